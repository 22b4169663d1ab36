package matrix

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/compat"
)

// History is what earlier builds measured. kiln build writes it; a plan estimates
// from it. A nil History knows nothing.
type History struct {
	// Rows holds one record per finished row, by row ID.
	Rows map[string]Measured `json:"rows"`
	// Units holds, by package, the compiler calls of one row in classes: calls
	// of one class can be shared by rows that agree on certain axes.
	Units map[string][]UnitClass `json:"units"`
}

// Measured is what building one row took.
type Measured struct {
	Seconds         float64 `json:"seconds"`
	PeakMemoryBytes int64   `json:"peak_memory_bytes"`
	DiskBytes       int64   `json:"disk_bytes"`
	FileBytes       int64   `json:"file_bytes"` // of all files of the row
}

// UnitClass counts compiler calls whose result depends on the same axes.
type UnitClass struct {
	Name  string `json:"name"`
	Count int    `json:"count"` // compiler calls per row
	// Axes are the axes that the result depends on: names as in selection
	// expressions, or "cxx11abi".
	Axes []string `json:"axes"`
	// Toolkits are those whose rows have such calls: "cuda", "rocm", "none". Empty means all.
	Toolkits []string `json:"toolkits,omitempty"`
}

// historyFormat guards against reading something else.
const historyFormat = "kiln-history/1"

// ReadHistory reads what kiln build has written.
func ReadHistory(r io.Reader) (*History, error) {
	var file struct {
		Format string `json:"format"`
		History
	}
	if err := json.NewDecoder(r).Decode(&file); err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if file.Format != historyFormat {
		return nil, fmt.Errorf("read history: format %q, want %q", file.Format, historyFormat)
	}
	return &file.History, nil
}

// Estimate is what building a plan will take. Known says for how many of the rows
// there is a measurement to go by; with 0 the numbers mean nothing.
type Estimate struct {
	Rows  int `json:"rows"`
	Known int `json:"known_rows"`
	// Time is the sum over the known rows, one after the other.
	Time time.Duration `json:"-"`
	// PeakMemoryBytes and DiskBytes are those of the largest row.
	PeakMemoryBytes int64 `json:"-"`
	DiskBytes       int64 `json:"-"`
	// FileBytes is the size of all files together.
	FileBytes int64 `json:"-"`

	// CompileRows is for how many rows the compiler calls are known. Calls is
	// their number if nothing is shared, UniqueCalls if everything is that can be.
	CompileRows int `json:"-"`
	Calls       int `json:"-"`
	UniqueCalls int `json:"-"`
}

// A Basis is what an expectation rests on.
type Basis int

// The values.
const (
	Unknown   Basis = iota
	MeanOf          // the mean of rows like it
	BuiltOnce       // an earlier build of the row itself
)

// An Expectation is what the build of a row will need.
type Expectation struct {
	Measured
	Basis Basis
}

// Expect says for each row what its build will need. A row that was never built is taken to be
// like the mean of the package's rows with the same toolkit, else of all its rows. A nil history
// knows nothing.
func (h *History) Expect(rows []Row) []Expectation {
	out := make([]Expectation, len(rows))
	if h == nil {
		return out
	}
	means := h.means(rows)
	for i := range rows {
		if m, ok := h.Rows[rows[i].ID]; ok {
			out[i] = Expectation{m, BuiltOnce}
			continue
		}
		for _, key := range meanKeys(&rows[i]) {
			if m, ok := means[key]; ok {
				out[i] = Expectation{m, MeanOf}
				break
			}
		}
	}
	return out
}

// estimate adds up what is known.
func (h *History) estimate(rows []Row, table *compat.Table) Estimate {
	e := Estimate{Rows: len(rows)}
	if h == nil {
		return e
	}
	expected := h.Expect(rows)
	unique := map[string]bool{}
	for i := range rows {
		r, m := &rows[i], expected[i]
		if m.Basis != Unknown {
			e.Known++
			e.Time += time.Duration(m.Seconds * float64(time.Second))
			e.PeakMemoryBytes = max(e.PeakMemoryBytes, m.PeakMemoryBytes)
			e.DiskBytes = max(e.DiskBytes, m.DiskBytes)
			e.FileBytes += m.FileBytes
		}
		if classes, ok := h.Units[r.Package]; ok && r.Kind == KindWheel {
			e.CompileRows++
			for _, c := range classes {
				if toolkit, _ := r.Toolkit(); len(c.Toolkits) > 0 && !slices.Contains(c.Toolkits, toolkit) {
					continue
				}
				e.Calls += c.Count
				if key := c.key(r, table); !unique[key] {
					unique[key] = true
					e.UniqueCalls += c.Count
				}
			}
		}
	}
	return e
}

// key names what the calls of a class depend on in one row.
func (c UnitClass) key(r *Row, table *compat.Table) string {
	var b strings.Builder
	b.WriteString(r.Package + "\x00" + r.Version + "\x00" + c.Name)
	for _, name := range c.Axes {
		value := r.Axis(name)
		if name == "cxx11abi" {
			abi, known := table.CXX11ABI(r.Torch, r.CUDA, r.ROCm, r.OS)
			value = fmt.Sprint(abi, known)
		}
		b.WriteString("\x00" + value)
	}
	return b.String()
}

// means averages the measurements of the rows of this plan by package and toolkit,
// and by package.
func (h *History) means(rows []Row) map[string]Measured {
	sums, n := map[string]Measured{}, map[string]int{}
	for i := range rows {
		m, ok := h.Rows[rows[i].ID]
		if !ok {
			continue
		}
		for _, key := range meanKeys(&rows[i]) {
			s := sums[key]
			s.Seconds += m.Seconds
			s.PeakMemoryBytes += m.PeakMemoryBytes
			s.DiskBytes += m.DiskBytes
			s.FileBytes += m.FileBytes
			sums[key] = s
			n[key]++
		}
	}
	for key, s := range sums {
		c := int64(n[key])
		sums[key] = Measured{s.Seconds / float64(c), s.PeakMemoryBytes / c, s.DiskBytes / c, s.FileBytes / c}
	}
	return sums
}

func meanKeys(r *Row) []string {
	name, version := r.Toolkit()
	return []string{r.Package + "\x00" + r.Kind + "\x00" + name + version, r.Package + "\x00" + r.Kind}
}

// MarshalJSON writes null for what is not known.
func (e Estimate) MarshalJSON() ([]byte, error) {
	type out struct {
		Rows            int      `json:"rows"`
		KnownRows       int      `json:"known_rows"`
		Seconds         *float64 `json:"seconds"`
		PeakMemoryBytes *int64   `json:"peak_memory_bytes"`
		DiskBytes       *int64   `json:"disk_bytes"`
		FileBytes       *int64   `json:"file_bytes"`
		Calls           *int     `json:"compile_calls"`
		UniqueCalls     *int     `json:"unique_compile_calls"`
	}
	o := out{Rows: e.Rows, KnownRows: e.Known}
	if e.Known > 0 {
		seconds := e.Time.Seconds()
		o.Seconds, o.PeakMemoryBytes, o.DiskBytes, o.FileBytes = &seconds, &e.PeakMemoryBytes, &e.DiskBytes, &e.FileBytes
	}
	if e.CompileRows > 0 {
		o.Calls, o.UniqueCalls = &e.Calls, &e.UniqueCalls
	}
	return json.Marshal(o)
}

// Write writes the history as [ReadHistory] reads it.
func (h *History) Write(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Format string `json:"format"`
		*History
	}{historyFormat, h})
}
