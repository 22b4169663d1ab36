package publish

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/kiln-build/kiln/matrix"
)

// recordFormat is the form of build records that this package reads.
const recordFormat = "kiln-record/1"

// Record is what a build says about the files of one row, as far as publishing needs it. It is
// written by package build, as dist/records/ROW.json.
type Record struct {
	Format   string     `json:"format"`
	Recipe   Recipe     `json:"recipe"`
	Attempt  int        `json:"attempt"`
	Started  time.Time  `json:"started"`
	Finished time.Time  `json:"finished"`
	Built    *time.Time `json:"built,omitempty"`

	Image       string          `json:"image,omitempty"`
	OS          string          `json:"os,omitempty"`
	Libc        string          `json:"libc,omitempty"`
	Python      string          `json:"python,omitempty"`
	Torch       json.RawMessage `json:"torch,omitempty"`
	Tools       json.RawMessage `json:"tools,omitempty"`
	Jobs        int             `json:"jobs"`
	Environment []string        `json:"environment,omitempty"`
	Installed   []Installed     `json:"installed,omitempty"`
	Patches     json.RawMessage `json:"patches,omitempty"`
	Commands    json.RawMessage `json:"commands,omitempty"`
	Warnings    []string        `json:"warnings,omitempty"`

	Files         []RecordFile    `json:"files"`
	NativeModules []string        `json:"native_modules,omitempty"`
	Requires      []string        `json:"requires,omitempty"`
	Audit         json.RawMessage `json:"audit,omitempty"`
	Test          struct {
		Result    string      `json:"result"`
		Why       string      `json:"why,omitempty"`
		Installed []Installed `json:"installed,omitempty"`
	} `json:"test"`
}

// Recipe is what decided what the row became.
type Recipe struct {
	Row      matrix.Row `json:"row"`
	Settings struct {
		Description string `json:"description,omitempty"`
		CUDACheck   string `json:"cuda_check"`
	} `json:"settings"`
	Source struct {
		Kind     string `json:"kind"`
		Location string `json:"location,omitempty"`
		Commit   string `json:"commit,omitempty"`
		File     string `json:"file,omitempty"`
		Digest   string `json:"digest"`
	} `json:"source"`
	Sandbox     string `json:"sandbox"`
	BuildDigest string `json:"build_digest"`
	Digest      string `json:"digest"`
}

// Installed is one package of an environment.
type Installed struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	URL     string `json:"url,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
}

// RecordFile is one file that a row became.
type RecordFile struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// ReadRecord reads one record.
func ReadRecord(path string) (*Record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := ParseRecord(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

// ParseRecord reads the text of a record.
func ParseRecord(text []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.Format != recordFormat || r.Recipe.Row.ID == "" {
		return nil, fmt.Errorf("format %q, want %q with a row", r.Format, recordFormat)
	}
	return &r, nil
}
