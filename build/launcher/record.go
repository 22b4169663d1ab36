package launcher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Outcome is what became of a call.
type Outcome string

// The outcomes.
const (
	Hit    Outcome = "hit"    // the result of an earlier call was used
	Miss   Outcome = "miss"   // compiled, and kept for later calls
	Bypass Outcome = "bypass" // compiled without the cache; Why says why
	Failed Outcome = "failed" // the compiler said no
)

// Record is one call of a compiler.
type Record struct {
	Time time.Time `json:"time"`
	Row  string    `json:"row"`
	// Tool is the name that the compiler was called by, Compiler a digest of the programs behind it.
	Tool     string `json:"tool"`
	Compiler string `json:"compiler,omitempty"`
	// Source is the path of what was compiled, with /kiln/work for the folder of the row.
	Source string  `json:"source"`
	Result Outcome `json:"result"`
	Why    string  `json:"why,omitempty"`
	// Remote says that the result came from the shared cache, and not from this machine's.
	Remote bool `json:"remote,omitempty"`
	// Args are the arguments that are compared, after rewriting.
	Args []string `json:"args"`
	// Deps is a file that lists what was read, in make's syntax, relative to Dir.
	Deps string `json:"deps,omitempty"`
	Dir  string `json:"dir"`

	Object      string `json:"object"`
	ObjectBytes int64  `json:"object_bytes"`
	// WaitSeconds passed until there was a slot, then Seconds for the call.
	WaitSeconds float64 `json:"wait_seconds"`
	Seconds     float64 `json:"seconds"`
	CPUSeconds  float64 `json:"cpu_seconds"`
	// PeakMemoryBytes is that of the largest single process below the launcher.
	PeakMemoryBytes int64 `json:"peak_memory_bytes"`
	ExitCode        int   `json:"exit_code"`

	// Kept is a copy of the object, and Command what makes it again, if hits are to be verified.
	Kept    string   `json:"kept,omitempty"`
	Command []string `json:"command,omitempty"`
}

// append adds the record to a file, as one line in one write, so that several launchers may do so at once.
func (r *Record) append(path string) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// ReadRecords reads the records of a row. A file that is not there has none; a line that a killed launcher
// left unfinished is dropped.
func ReadRecords(path string) ([]Record, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRecords(text)
}

func parseRecords(text []byte) ([]Record, error) {
	var records []Record
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			if _, torn := errors.AsType[*json.SyntaxError](err); torn {
				continue
			}
			return nil, fmt.Errorf("call %d: %w", n, err)
		}
		records = append(records, r)
	}
	return records, nil
}
