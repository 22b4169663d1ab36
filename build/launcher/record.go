package launcher

import (
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

// encode writes the record as JSON.
func (r *Record) encode() []byte {
	var o object
	o.string("time", r.Time.Format(time.RFC3339Nano))
	o.string("row", r.Row)
	o.string("tool", r.Tool)
	o.optional("compiler", r.Compiler)
	o.string("source", r.Source)
	o.string("result", string(r.Result))
	o.optional("why", r.Why)
	if r.Remote {
		o.raw("remote", "true")
	}
	o.strings("args", r.Args)
	o.optional("deps", r.Deps)
	o.string("dir", r.Dir)
	o.string("object", r.Object)
	o.int("object_bytes", r.ObjectBytes)
	o.float("wait_seconds", r.WaitSeconds)
	o.float("seconds", r.Seconds)
	o.float("cpu_seconds", r.CPUSeconds)
	o.int("peak_memory_bytes", r.PeakMemoryBytes)
	o.int("exit_code", int64(r.ExitCode))
	o.optional("kept", r.Kept)
	if len(r.Command) > 0 {
		o.strings("command", r.Command)
	}
	return o.end()
}

// Append adds the record to a file, as one line in one write, so that several launchers may do so at once.
func (r *Record) Append(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(r.encode())
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
