// Package calls reads the records of compiler launchers: every call of a row, what it read, and
// what made the compiles of two rows differ.
package calls

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/depfile"
	"github.com/kiln-build/kiln/internal/fsx"
)

// Inputs is what the calls of a row read, so that the keys of two rows can be compared when the
// files are gone.
type Inputs struct {
	Format string `json:"format"`
	// Row and its axes by name.
	Row     string            `json:"row"`
	Package string            `json:"package"`
	Axes    map[string]string `json:"axes"`
	Made    time.Time         `json:"made"`
	// Files are all files that were read, by their canonical paths; Digests are theirs, in the same
	// order.
	Files   []string `json:"files"`
	Digests []string `json:"digests"`
	Calls   []Unit   `json:"calls"`
}

// InputsFormat guards against reading something else.
const InputsFormat = "kiln-inputs/1"

// Unit is one compile of a row.
type Unit struct {
	Source   string           `json:"source"`
	Tool     string           `json:"tool"`
	Compiler string           `json:"compiler,omitempty"`
	Args     []string         `json:"args"`
	Result   launcher.Outcome `json:"result"`
	Why      string           `json:"why,omitempty"`
	// Key is a digest of everything that decides: equal keys are one compile. Empty if the call
	// went past the cache.
	Key         string  `json:"key,omitempty"`
	Seconds     float64 `json:"seconds"`
	ObjectBytes int64   `json:"object_bytes"`
	PeakBytes   int64   `json:"peak_memory_bytes"`
	// Read are positions in Inputs.Files, in the order in which they were read.
	Read []int `json:"read,omitempty"`
}

// Digest returns the digest of a file that was read, "" if there is none.
func (in *Inputs) Digest(i int) string {
	if i < 0 || i >= len(in.Digests) {
		return ""
	}
	return in.Digests[i]
}

// Collect reads the records of a row and digests what was read, each file once. It has to run where
// the compilers ran.
func Collect(c *launcher.Config) (*Inputs, error) {
	records, err := ReadRecords(c.Calls)
	if err != nil {
		return nil, err
	}
	in := &Inputs{Format: InputsFormat, Row: c.Row, Package: c.Package, Made: time.Now().UTC()}
	index := map[string]int{}
	for _, r := range records {
		u := Unit{
			Source: r.Source, Tool: r.Tool, Compiler: r.Compiler, Args: r.Args, Result: r.Result, Why: r.Why,
			Seconds: r.Seconds, ObjectBytes: r.ObjectBytes, PeakBytes: r.PeakMemoryBytes,
		}
		if text, err := os.ReadFile(r.Deps); r.Deps != "" && err == nil {
			for _, file := range depfile.Parse(text) {
				full := file
				if !path.IsAbs(full) {
					full = path.Join(r.Dir, full)
				}
				name := c.Canonical(path.Clean(full))
				i, ok := index[name]
				if !ok {
					i = len(in.Files)
					index[name] = i
					in.Files = append(in.Files, name)
					in.Digests = append(in.Digests, digestFile(full))
				}
				u.Read = append(u.Read, i)
			}
		}
		if u.Result == launcher.Hit || u.Result == launcher.Miss {
			u.Key = in.key(&u)
		}
		in.Calls = append(in.Calls, u)
	}
	return in, nil
}

// key digests what ccache compares in its depend mode: compiler, arguments, and the files that were
// read.
func (in *Inputs) key(u *Unit) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	_ = enc.Encode([]any{u.Compiler, u.Args}) // plain data, into a hash
	for _, i := range u.Read {
		_ = enc.Encode([]string{in.Files[i], in.Digests[i]})
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// digestFile returns half a SHA-256, "" for a file that is gone.
func digestFile(path string) string {
	sum, _, err := fsx.SHA256(path)
	if err != nil {
		return ""
	}
	return sum[:32]
}

// ReadInputs reads what [Collect] found.
func ReadInputs(path string) (*Inputs, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	in := new(Inputs)
	if err := json.Unmarshal(text, in); err != nil {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	if in.Format != InputsFormat || len(in.Files) != len(in.Digests) {
		return nil, &os.PathError{Op: "read", Path: path, Err: os.ErrInvalid}
	}
	return in, nil
}

// Find returns the compile of a file: by its path below the source, or a shorter end of it that
// fits one file only. The names are those of all files that fit, or of all there are if none does.
func (in *Inputs) Find(file string) (*Unit, []string) {
	var found []*Unit
	var names, all []string
	for i := range in.Calls {
		u := &in.Calls[i]
		name := strings.TrimPrefix(u.Source, launcher.CanonicalWork+"/source/")
		all = append(all, name)
		if name == file {
			return u, nil
		}
		if strings.HasSuffix("/"+name, "/"+strings.TrimPrefix(file, "./")) && !slices.Contains(names, name) {
			found, names = append(found, u), append(names, name)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	if len(found) > 1 {
		return nil, names
	}
	slices.Sort(all)
	return nil, slices.Compact(all)
}

// Difference is the first thing in which two compiles differ.
type Difference struct {
	// What is "compiler", "argument", "file", "result" or "" if they agree in everything that
	// decides.
	What string `json:"what"`
	// Name is the file or the position of the argument.
	Name string `json:"name,omitempty"`
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
	// More counts the further differences of the same sort.
	More int `json:"more,omitempty"`
}

// Explain says why the keys of two compiles differ, looking at what ccache looks at, in its order:
// compiler, arguments, files.
func Explain(inA, inB *Inputs, a, b *Unit) Difference {
	if a.Compiler != b.Compiler {
		return Difference{What: "compiler", Name: a.Tool, A: a.Compiler, B: b.Compiler}
	}
	if d, ok := firstArgument(a.Args, b.Args); ok {
		return d
	}
	type file struct{ a, b string }
	files := map[string]*file{}
	var order []string
	for side, u := range []*Unit{a, b} {
		in := []*Inputs{inA, inB}[side]
		for _, i := range u.Read {
			if i < 0 || i >= len(in.Files) {
				continue
			}
			name := in.Files[i]
			f := files[name]
			if f == nil {
				f = &file{"not read", "not read"}
				files[name] = f
				order = append(order, name)
			}
			digest := in.Digest(i)
			if digest == "" {
				digest = "gone"
			}
			if side == 0 {
				f.a = digest
			} else {
				f.b = digest
			}
		}
	}
	var d Difference
	for _, name := range order {
		if f := files[name]; f.a != f.b {
			if d.What == "" {
				d = Difference{What: "file", Name: name, A: f.a, B: f.b}
			} else {
				d.More++
			}
		}
	}
	if d.What == "" && (len(a.Read) == 0) != (len(b.Read) == 0) {
		return Difference{What: "result", A: string(a.Result) + " " + a.Why, B: string(b.Result) + " " + b.Why}
	}
	return d
}

func firstArgument(a, b []string) (Difference, bool) {
	if slices.Equal(a, b) {
		return Difference{}, false
	}
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	d := Difference{What: "argument", A: "none", B: "none"}
	if i < len(a) {
		d.A = a[i]
	}
	if i < len(b) {
		d.B = b[i]
	}
	return d, true
}

// Python says which sources for GPUs are compiled again for every Python, as they read Python.h; ""
// if none is. Kernels need nothing of Python: the header that brings it can be replaced.
func (in *Inputs) Python() string {
	var sources []string
	through := ""
	for _, u := range in.Calls {
		if u.Tool != "nvcc" && u.Tool != "hipcc" {
			continue
		}
		reads, header := false, ""
		for _, i := range u.Read {
			if i < 0 || i >= len(in.Files) {
				continue
			}
			for _, name := range []string{"torch/extension.h", "torch/python.h", "pybind11/pybind11.h"} {
				if header == "" && strings.HasSuffix(in.Files[i], "/"+name) {
					header = name
				}
			}
			reads = reads || path.Base(in.Files[i]) == "Python.h"
		}
		if reads {
			sources, through = append(sources, strings.TrimPrefix(u.Source, launcher.CanonicalWork+"/source/")), cmp.Or(through, header)
		}
	}
	if len(sources) == 0 {
		return ""
	}
	text := fmt.Sprintf("compiled again for every Python, as they read Python.h: %s", strings.Join(sources[:min(len(sources), 3)], ", "))
	if n := len(sources) - 3; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	switch {
	case strings.HasPrefix(through, "torch/"):
		text += "; they get it through " + through + ": with #include <torch/types.h> in its place, and bindings in a .cpp file, they are compiled once"
	case through != "":
		text += "; they get it through " + through + ": with bindings in a .cpp file they are compiled once"
	}
	return text
}
