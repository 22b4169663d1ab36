package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/kiln-build/kiln/matrix"
)

// recipeFormat changes when the same recipe would give other files.
const recipeFormat = "kiln-recipe/1"

// Recipe is everything that decides what a row becomes: a plain value that can be
// written down, compared, and carried out on another machine.
type Recipe struct {
	Format   string          `json:"format"` // set by [Recipe.Seal]
	Row      matrix.Row      `json:"row"`
	Settings matrix.Settings `json:"settings"`
	Source   Source          `json:"source"`
	// Sandbox is the kind of environment: host, podman or docker.
	Sandbox string `json:"sandbox"`
	// Image and TestImage are the container images, empty on the host.
	Image     string `json:"image,omitempty"`
	TestImage string `json:"test_image,omitempty"`
	// Torch are the requirements that come from TorchIndex (or the row's other torch
	// source), Deps those from the default index.
	Torch      []string `json:"torch,omitempty"`
	TorchIndex string   `json:"torch_index,omitempty"`
	Deps       []string `json:"deps,omitempty"`
	// Env are the variables that the row sets for the compile stage, sorted. What
	// depends on the machine (paths, number of jobs) is added when it runs.
	Env []string `json:"env"`
	// Files are the names that must come out.
	Files []string `json:"files"`
	// Native says that the wheel must contain compiled code.
	Native bool `json:"native"`

	// Donors are the rows whose wheel may serve this one, if it is proven to; they affect neither
	// digest.
	Donors []Donor `json:"donors,omitempty"`

	// Parts are the rows whose files are merged into this one's wheel, as they are built now.
	Parts []Donor `json:"parts,omitempty"`

	// BuildDigest covers what affects the files, Digest also what affects the
	// verdict of the tests. [Recipe.Seal] sets them.
	BuildDigest string `json:"build_digest"`
	Digest      string `json:"digest"`
}

// Donor is a row whose wheel may serve another one, as it is built now.
type Donor struct {
	Row         string `json:"row"`
	BuildDigest string `json:"build_digest"`
}

// Source is where the code of a row comes from, fixed to exact bytes.
type Source struct {
	Kind     string `json:"kind"`               // index, git, path or sdist
	Location string `json:"location,omitempty"` // address or folder
	Commit   string `json:"commit,omitempty"`   // of git
	// Submodules says whether those of git are fetched too.
	Submodules bool   `json:"submodules,omitempty"`
	File       string `json:"file,omitempty"` // name of the sdist
	// Digest is the SHA-256 of the sdist or of the folder's files, or the commit.
	Digest string `json:"digest"`
}

// Seal sets the format and the digests of a recipe that is complete.
func (r *Recipe) Seal() {
	r.Format = recipeFormat
	r.BuildDigest, r.Digest = r.digest(false), r.digest(true)
}

// digest hashes the recipe. Resources and descriptions change no file and no verdict.
func (r *Recipe) digest(withTest bool) string {
	c := *r
	c.BuildDigest, c.Digest, c.Donors, c.Settings.Reuse = "", "", nil, ""
	c.Settings.Description, c.Settings.Resources = "", matrix.ResourceSettings{}
	if c.Source.Kind == "path" {
		c.Source.Location = "" // the digest says what is in the folder, wherever the machine has it
	}
	if !withTest {
		c.Settings.Test, c.Settings.Audit, c.TestImage = matrix.TestSettings{}, nil, ""
	}
	text, _ := json.Marshal(&c) // plain data, cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
