package launcher

import (
	"encoding/json"
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
	Failed Outcome = "failed" // the compiler reported an error
)

// Entry is one call of a compiler, as it is written down.
type Entry struct {
	Time time.Time `json:"time"`
	Row  string    `json:"row"`
	// Tool is the name that the compiler was called by, Compiler a digest of the programs behind
	// it.
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

	// Place is where the compiler saw the folder of the row, if not where it is; see [At].
	Place string `json:"place,omitempty"`
	// Kept is a copy of the object, and Command what makes it again, if hits are to be verified.
	Kept    string   `json:"kept,omitempty"`
	Command []string `json:"command,omitempty"`
}

// Append adds the record to a file, as one line in one write, so that several launchers can do so
// at once.
func (r *Entry) Append(path string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
