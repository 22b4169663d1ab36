// Package record is what a build leaves beside its files: a [Record] of how they came to be, with
// the [Recipe] that decided it, or the [Failure] of a row that has none. Package build writes them;
// publish and index read them. Readers accept fields that they do not know, so that a newer kiln
// may add some.
package record

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/secret"
)

const format = "kiln-record/1"

// maxBytes bounds what is read of a record: reports of large wheels have some megabytes.
const maxBytes = 256 << 20

// Dir is the folder of the records in a dist folder: beside the files, so that they travel
// together.
const Dir = "records"

// Record is everything that is known about how the files of a row came to be.
type Record struct {
	Format   string    `json:"format"` // set by [Write]
	Recipe   Recipe    `json:"recipe"`
	Attempt  int       `json:"attempt"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// Built is when the files were made, if this run only tested them again.
	Built *time.Time `json:"built,omitempty"`
	// Merged are the wheels of other rows whose files the wheel has, too.
	Merged []Merged `json:"merged,omitempty"`
	// Reuse is set if the files are those of another row.
	Reuse  *Reuse  `json:"reuse,omitempty"`
	Stages []Stage `json:"stages"`

	Image       string      `json:"image,omitempty"` // pinned
	OS          string      `json:"os,omitempty"`
	Libc        string      `json:"libc,omitempty"`
	Python      string      `json:"python,omitempty"`
	Interpreter Interpreter `json:"interpreter,omitzero"`
	Torch       *Torch      `json:"torch,omitempty"`
	Tools       Tools       `json:"tools"`
	Jobs        int         `json:"jobs"`
	Environment []string    `json:"environment,omitempty"`
	Installed   []Installed `json:"installed,omitempty"`
	Patches     []Patch     `json:"patches,omitempty"`
	Commands    []Command   `json:"commands"`
	Warnings    []string    `json:"warnings,omitempty"`
	// Compiles says what was compiled and what came from the cache; nil if compiles were not
	// counted.
	Compiles *Compiles `json:"compiles,omitempty"`

	Files           []File        `json:"files"`
	TopLevel        []string      `json:"top_level,omitempty"`
	NativeModules   []string      `json:"native_modules,omitempty"`
	Requires        []string      `json:"requires,omitempty"`
	PeakMemoryBytes int64         `json:"peak_memory_bytes"`
	Audit           *audit.Report `json:"audit,omitempty"` // nil without a wheel
	Test            Test          `json:"test"`
}

// Merged is the wheel of another row that was merged.
type Merged struct {
	Row string `json:"row"`
	File
}

// Reuse is why the wheel of another row serves a row: what the audit of the wheel says of this row's
// torch, and how it was proven. Test in the record has what was loaded.
type Reuse struct {
	Row    string `json:"row"`   // that the wheel was built for
	Torch  string `json:"torch"` // that it was proven with
	Proof  string `json:"proof"` // import or tests
	Reason string `json:"reason"`
}

// ProofName is how it was proven; "" if the row was compiled.
func (r *Reuse) ProofName() string {
	if r == nil {
		return ""
	}
	return r.Proof
}

// Stage is one stage with the time it took, or why it did not run.
type Stage struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds,omitempty"`
	Skipped string  `json:"skipped,omitempty"`
}

// Command is one command.
type Command struct {
	Stage           string   `json:"stage"`
	Argv            []string `json:"argv"`
	Seconds         float64  `json:"seconds"`
	CPUSeconds      float64  `json:"cpu_seconds"`
	PeakMemoryBytes int64    `json:"peak_memory_bytes"`
	ExitCode        int      `json:"exit_code"`
	Network         bool     `json:"network"`
}

// Interpreter is the Python that an environment was made with.
type Interpreter struct {
	// Source is "image", "machine", or "managed" for one that kiln brought.
	Source  string `json:"source"`
	Path    string `json:"path"` // as seen in the environment
	Version string `json:"version"`
	SHA256  string `json:"sha256,omitempty"` // of the files of a managed one
}

// Torch is the torch of the build environment.
type Torch struct {
	Version  string `json:"version"`
	CUDA     string `json:"cuda"`
	HIP      string `json:"hip"`
	CXX11ABI bool   `json:"cxx11abi"`
	File     string `json:"file,omitempty"` // torch/__init__.py, as seen in the environment
}

// Tools are the compilers of the build environment.
type Tools struct {
	CUDAHome    string `json:"cuda_home,omitempty"`
	CUDAVersion string `json:"cuda_version,omitempty"`
	ROCmHome    string `json:"rocm_home,omitempty"`
	ROCmVersion string `json:"rocm_version,omitempty"`
	// CXX and CC are set if the default compiler is not the right one.
	CXX string `json:"cxx,omitempty"`
	CC  string `json:"cc,omitempty"`
	// Compiler is the first line of its --version.
	Compiler string `json:"compiler,omitempty"`
}

// Installed is one package of an environment, pinned by what pip downloaded.
type Installed struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	URL     string `json:"url,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
}

// Patch says in how many places a patch changed a file.
type Patch struct {
	File   string `json:"file"`
	Places int    `json:"places"`
}

// File is one file in the dist folder.
type File struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Compiles says what the compilers of a row did.
type Compiles struct {
	// Calls are all compiles: Hits came from the cache, RemoteHits of them from another machine,
	// Misses were compiled and kept, Bypassed compiled without the cache, Failed ended with an
	// error.
	Calls      int `json:"calls"`
	Hits       int `json:"hits"`
	RemoteHits int `json:"remote_hits,omitempty"`
	Misses     int `json:"misses"`
	Bypassed   int `json:"bypassed,omitempty"`
	Failed     int `json:"failed,omitempty"`
	// Reasons counts why calls went past the cache.
	Reasons map[string]int `json:"reasons,omitempty"`
	// Seconds is the time of all calls, without WaitSeconds for slots.
	Seconds     float64 `json:"seconds"`
	WaitSeconds float64 `json:"wait_seconds"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	ObjectBytes int64   `json:"object_bytes"`
	// PeakMemoryBytes is that of the largest single process.
	PeakMemoryBytes int64  `json:"peak_memory_bytes"`
	CCache          string `json:"ccache,omitempty"` // version
	// Verified objects were compiled again and compared; Inconclusive ones differ in nothing but
	// what nvcc derives from the folder.
	Verified     int `json:"verified,omitempty"`
	Inconclusive int `json:"inconclusive,omitempty"`
}

// Outputs is what the journal keeps of a finished row.
type Outputs struct {
	Files    []File    `json:"files"`
	Test     string    `json:"test"`
	Compiles *Compiles `json:"compiles,omitempty"`
	// Proof is that of Reuse; "" if the row was compiled.
	Proof string `json:"proof,omitempty"`
}

// Test is the verdict of the test stage: "passed", "failed" or "not run" (Why).
type Test struct {
	Result string `json:"result"`
	Why    string `json:"why,omitempty"`
	Image  string `json:"image,omitempty"`
	// NetworkOff says that the imports really had no network.
	NetworkOff  bool              `json:"network_off"`
	Interpreter Interpreter       `json:"interpreter,omitzero"`
	Seconds     float64           `json:"seconds,omitempty"`
	Versions    map[string]string `json:"versions,omitempty"`
	// Modules are the compiled modules with the files they were loaded from.
	Modules   map[string]string `json:"modules,omitempty"`
	Values    map[string]string `json:"values,omitempty"`
	Installed []Installed       `json:"installed,omitempty"`
}

// BuiltAt is when the files were made.
func (r *Record) BuiltAt() time.Time {
	if r.Built != nil {
		return *r.Built
	}
	return r.Finished
}

// Path is where the record of a row is in a dist folder.
func Path(dist, row string) string { return filepath.Join(dist, Dir, row+".json") }

// Read reads the record of a row.
func Read(dist, row string) (*Record, error) { return readFile(Path(dist, row)) }

func readFile(path string) (*Record, error) {
	text, err := fsx.ReadFile(path, maxBytes)
	if err != nil {
		return nil, err
	}
	r, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

// Parse reads the text of a record. It must name its format and its row.
func Parse(text []byte) (*Record, error) {
	var r Record
	// An earlier kiln wrote down the credentials of addresses.
	if err := json.Unmarshal([]byte(secret.Clean(string(text))), &r); err != nil {
		return nil, err
	}
	if r.Format != format || r.Recipe.Row.ID == "" {
		return nil, fmt.Errorf("format %q, want %q with a row", r.Format, format)
	}
	return &r, nil
}

// All reads the records of a dist folder. A folder without records has none; a record that cannot
// be read is an error and does not end the list.
func All(dist string) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		_ = filepath.WalkDir(filepath.Join(dist, Dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".json" {
				return nil //nolint:nilerr // there need not be any
			}
			if !yield(readFile(path)) {
				return fs.SkipAll
			}
			return nil
		})
	}
}

// Write puts a record beside the files that it is about.
func Write(dist string, r *Record) error {
	c := *r
	c.Format = format
	return write(Path(dist, r.Recipe.Row.ID), c)
}

func write(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	// What is beside published files has no credentials, wherever they may have come from.
	return fsx.WriteFile(path, []byte(secret.Clean(string(text))+"\n"), 0o666)
}
