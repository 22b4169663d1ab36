package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// recipeFormat changes when the same recipe would give other files.
const recipeFormat = "kiln-recipe/1"

// Recipe is everything that decides what a row becomes: a plain value that can be
// written down, compared, and carried out on another machine.
type Recipe struct {
	Format   string          `json:"format"`
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

	// BuildDigest covers what affects the files, Digest also what affects the
	// verdict of the tests.
	BuildDigest string `json:"build_digest"`
	Digest      string `json:"digest"`
}

// RecipeOptions are the choices of a run that enter a recipe.
type RecipeOptions struct {
	Sandbox string
	// TorchIndex is the address below which torch's indexes are; the suffix for
	// the toolkit is added. Default DefaultTorchIndex.
	TorchIndex string
	// DefaultImage is the image template for rows that name none; {version} is the
	// toolkit's. Default DefaultImage.
	DefaultImage string
}

const (
	// DefaultTorchIndex is where torch's own wheels are.
	DefaultTorchIndex = "https://download.pytorch.org/whl"
	// DefaultImage is the image of CUDA rows that name none.
	DefaultImage = "nvidia/cuda:{version}-devel-ubuntu22.04"
)

// NewRecipe makes the recipe of a row. It touches nothing.
func NewRecipe(row matrix.Row, settings matrix.Settings, source Source, opts RecipeOptions) (*Recipe, error) {
	r := &Recipe{
		Format: recipeFormat, Row: row, Settings: settings, Source: source, Sandbox: opts.Sandbox, Files: row.Files(),
		Native: row.Kind == matrix.KindWheel && !strings.HasSuffix(row.Platform, "any"),
	}
	if opts.Sandbox != "host" {
		r.Image = settings.Image
		if r.Image == "" && row.CUDA != "" {
			template := opts.DefaultImage
			if template == "" {
				template = DefaultImage
			}
			r.Image = strings.ReplaceAll(template, "{version}", row.CUDA)
		}
		if r.Image == "" {
			return nil, &NoImageError{Row: row.ID}
		}
		if r.TestImage = settings.Test.Image; r.TestImage == "" {
			r.TestImage = strings.Replace(r.Image, "-devel", "-runtime", 1)
		}
	}
	if err := r.requirements(opts); err != nil {
		return nil, err
	}
	r.Env = rowVariables(row, settings)
	r.BuildDigest = r.digest(false)
	r.Digest = r.digest(true)
	return r, nil
}

// NoImageError says that a row has no image to be built in.
type NoImageError struct{ Row string }

func (e *NoImageError) Error() string {
	return e.Row + ": no container image; set image: for this row in packages.yml, or build it with --runner host"
}

// requirements splits what the build needs by the index it comes from. The split is
// on parsed names: torchvision is not torch.
func (r *Recipe) requirements(opts RecipeOptions) error {
	torch := ""
	if r.Row.Torch != "" {
		torch = "torch==" + r.Row.Torch
	}
	have := map[string]bool{}
	for _, text := range r.Settings.ExtraDeps {
		req, err := wheel.ParseRequirement(text)
		if err != nil {
			return err
		}
		have[req.Name] = true
		switch {
		case req.Name != "torch":
			r.Deps = append(r.Deps, text)
		case torch == "":
			torch = text
		}
	}
	// The front-end itself: the environment holds nothing by itself, not even pip.
	if f := r.Settings.Frontend; !have[f] {
		r.Deps = append(r.Deps, f)
	}
	if torch == "" {
		return nil
	}
	r.Torch = []string{torch}
	if r.Settings.TorchSource.Kind == "index" {
		if r.TorchIndex = r.Settings.TorchSource.Location; r.TorchIndex == "" {
			base := opts.TorchIndex
			if base == "" {
				base = DefaultTorchIndex
			}
			r.TorchIndex = strings.TrimRight(base, "/") + "/" + r.Row.TorchIndex()
		}
	}
	return nil
}

// digest hashes the recipe. Resources and descriptions change no file and no verdict.
func (r *Recipe) digest(withTest bool) string {
	c := *r
	c.BuildDigest, c.Digest = "", ""
	c.Settings.Description, c.Settings.Resources = "", matrix.ResourceSettings{}
	if !withTest {
		c.Settings.Test, c.Settings.Audit, c.TestImage = matrix.TestSettings{}, nil, ""
	}
	text, _ := json.Marshal(&c) // plain data, cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// rowVariables are the variables that the row decides. The user's own win over what
// kiln only suggests, never over the architectures, which packages.yml cannot set.
func rowVariables(row matrix.Row, settings matrix.Settings) []string {
	env := map[string]string{}
	switch {
	case row.CUDA != "":
		env["FORCE_CUDA"] = "1"
		env["BUILD_TARGET"] = "cuda"
		env["TORCH_CUDA_ARCH_LIST"] = row.Arch
	case row.ROCm != "":
		env["FORCE_CUDA"] = "1" // torch's builder calls HIP by that name, too
		env["BUILD_TARGET"] = "rocm"
		env["USE_ROCM"] = "1"
		env["ROCM_VERSION"] = row.ROCm
		if row.Arch != "" {
			env["PYTORCH_ROCM_ARCH"] = strings.NewReplacer(" ", ";", ",", ";").Replace(row.Arch)
		}
	}
	if n := settings.Resources.NVCCThreads; n > 0 {
		env["NVCC_THREADS"] = itoa(n)
	}
	maps.Copy(env, settings.Env)
	return sortedEnv(env)
}

func sortedEnv(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}
