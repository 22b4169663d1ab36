package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

const recordFormat = "kiln-record/1"

// Record is everything that is known about how the files of a row came to be.
type Record struct {
	Format   string    `json:"format"`
	Recipe   *Recipe   `json:"recipe"`
	Attempt  int       `json:"attempt"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// BuiltBy is when the files were made, if this run only tested them again.
	BuiltBy *time.Time    `json:"built,omitempty"`
	Stages  []StageRecord `json:"stages"`

	Image       string          `json:"image,omitempty"` // pinned
	OS          string          `json:"os,omitempty"`
	Libc        string          `json:"libc,omitempty"`
	Python      string          `json:"python,omitempty"`
	Torch       *torchFacts     `json:"torch,omitempty"`
	Tools       tools           `json:"tools"`
	Jobs        int             `json:"jobs"`
	Environment []string        `json:"environment,omitempty"`
	Installed   []Installed     `json:"installed,omitempty"`
	Patches     []PatchRecord   `json:"patches,omitempty"`
	Commands    []CommandRecord `json:"commands"`
	Warnings    []string        `json:"warnings,omitempty"`
	// Compiles says what was compiled and what came from the cache; nil if nobody counted.
	Compiles *CompileSummary `json:"compiles,omitempty"`

	Files           []FileRecord    `json:"files"`
	TopLevel        []string        `json:"top_level,omitempty"`
	NativeModules   []string        `json:"native_modules,omitempty"`
	Requires        []string        `json:"requires,omitempty"`
	PeakMemoryBytes int64           `json:"peak_memory_bytes"`
	Audit           json.RawMessage `json:"audit,omitempty"`
	Test            TestResult      `json:"test"`
}

// StageRecord is one stage with the time it took, or why it did not run.
type StageRecord struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds,omitempty"`
	Skipped string  `json:"skipped,omitempty"`
}

// CommandRecord is one command.
type CommandRecord struct {
	Stage           string   `json:"stage"`
	Argv            []string `json:"argv"`
	Seconds         float64  `json:"seconds"`
	CPUSeconds      float64  `json:"cpu_seconds"`
	PeakMemoryBytes int64    `json:"peak_memory_bytes"`
	ExitCode        int      `json:"exit_code"`
	Network         bool     `json:"network"`
}

// PatchRecord says in how many places a patch changed a file.
type PatchRecord struct {
	File   string `json:"file"`
	Places int    `json:"places"`
}

// FileRecord is one file in dist/.
type FileRecord struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

func (r *Record) builtBy() *time.Time {
	if r.BuiltBy != nil {
		return r.BuiltBy
	}
	return &r.Finished
}

func nowUTC() time.Time { return time.Now().UTC() }

// recordPath is where the record of a row is: beside the files, so that they travel
// together.
func (o *Options) recordPath(row string) string {
	return filepath.Join(o.DistDir, recordsDir, row+".json")
}

// recordsDir is the folder of the records in dist/.
const recordsDir = "records"

// ReadRecord reads the record of a row from a dist folder.
func ReadRecord(dist, row string) (*Record, error) {
	return readRecord(filepath.Join(dist, recordsDir, row+".json"))
}

func readRecord(path string) (*Record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if r.Format != recordFormat || r.Recipe == nil {
		return nil, fmt.Errorf("read %s: format %q, want %q", path, r.Format, recordFormat)
	}
	return &r, nil
}

func writeRecord(path string, r *Record) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return fsx.WriteFile(path, append(text, '\n'), 0o666)
}

// intact returns an error if a file in dist/ is not what was recorded.
func (o *Options) intact(files []FileRecord) error {
	if len(files) == 0 {
		return errors.New("no files are recorded")
	}
	for _, f := range files {
		sum, size, err := hashFile(filepath.Join(o.DistDir, f.Name))
		if err != nil {
			return err
		}
		if sum != f.SHA256 || size != f.Size {
			return fmt.Errorf("%s is not the file that was built", f.Name)
		}
	}
	return nil
}

// made reports whether a record in dist/ has a file of these bytes.
func (o *Options) made(name, sum string) bool {
	found := false
	_ = filepath.WalkDir(filepath.Join(o.DistDir, recordsDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || found {
			return nil //nolint:nilerr // what cannot be read proves nothing
		}
		if r, err := readRecord(path); err == nil {
			for _, f := range r.Files {
				found = found || f.Name == name && f.SHA256 == sum
			}
		}
		return nil
	})
	return found
}

func hashFile(path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	size, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), size, err
}
