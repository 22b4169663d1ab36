// Package report shows a plan, or a build at work or at its end, to people: the matrix as a picture,
// what failed and why, time and memory of rows, what the cache saved, and the critical path.
//
// [New] makes a [Report] from what is known and looks at nothing else. [Report.WriteHTML] writes
// it as one page that needs no other file and no network, and [Handler] serves that page with what
// the journal says now. The package builds nothing and changes nothing.
package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
)

// Input is what a report is made from.
type Input struct {
	// Plan has the rows with their values and what was left out. Rows of the state that it does
	// not have are in the list of rows only.
	Plan record.Plan
	// State is that of the last run; nil for a plan that is not about a build.
	State *engine.State
	// Active says that a process is at work: what the journal calls running is running.
	Active bool
	// History says what rows without a measurement are expected to take; nil knows nothing.
	History *matrix.History
	// Findings are those of the plan.
	Findings diag.List
}

// Status is where a row stands: a [engine.Status], or one of those below.
type Status = engine.Status

// Further states of rows.
const (
	StatusPlanned  Status = "planned"  // in the plan, not in the last build
	StatusExcluded Status = "excluded" // by a rule of the plan; see [Report.Excluded]
)

// states are listed in this order, with a mark that tells them apart without colours.
var states = []struct {
	status         Status
	glyph, meaning string
}{
	{engine.StatusDone, "✓", "built and tested"},
	{engine.StatusReused, "↺", "was there already"},
	{engine.StatusRunning, "▶", ""},
	{engine.StatusPending, "…", "waiting"},
	{engine.StatusFailed, "✗", ""},
	{engine.StatusCanceled, "■", "stopped"},
	{engine.StatusSkipped, "⊘", "cannot be built here"},
	{StatusPlanned, "○", ""},
	{StatusExcluded, "–", "left out by a rule"},
}

// Report is what a page shows. It depends on no clock: what is running has its beginning.
type Report struct {
	Format  string    `json:"format"`
	Title   string    `json:"title"`
	Built   bool      `json:"built"` // false: it is a plan
	Active  bool      `json:"active"`
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Counts has how many rows are in which state, without states that no row is in.
	Counts []Count `json:"counts"`
	Rows   []Row   `json:"rows"`
	// Excluded are the rules that left rows out of the plan.
	Excluded []Rule    `json:"excluded"`
	Findings diag.List `json:"findings,omitempty"`

	// Seconds is the time of all rows together that this build made, PeakMemoryBytes the largest
	// of their peaks, and Bytes the size of the files of all rows.
	Seconds         float64 `json:"seconds"`
	PeakMemoryBytes int64   `json:"peak_memory_bytes"`
	Bytes           int64   `json:"bytes"`
	// ExpectedSeconds and ExpectedRows are what is expected of rows that are still to be built, and
	// for how many of them that is known.
	ExpectedSeconds float64 `json:"expected_seconds,omitempty"`
	ExpectedRows    int     `json:"expected_rows,omitempty"`
	Saved           Saved   `json:"saved"`
	// Path is the critical path, first row first; see [criticalPath].
	Path []Step `json:"critical_path"`

	grids []grid
	// Rows that the last build was asked for, those of them that ended, and those that failed.
	asked, ended, failed int
}

// Count is how many rows are in a state.
type Count struct {
	Status  Status `json:"status"`
	Rows    int    `json:"rows"`
	Meaning string `json:"-"` // of a state whose name does not say it
}

// Row is a row and what became of it.
type Row struct {
	ID      string `json:"id"`
	Package string `json:"package,omitempty"` // empty if the plan does not have the row
	Version string `json:"version,omitempty"`
	OS      string `json:"os,omitempty"`
	Python  string `json:"python,omitempty"`
	Compute string `json:"compute,omitempty"` // CUDA 12.8.1, ROCm 6.4, CPU or source
	Torch   string `json:"torch,omitempty"`

	// Current says that the last build was asked for the row.
	Current bool         `json:"current"`
	Status  Status       `json:"status"`
	Reason  string       `json:"reason,omitempty"`
	Cause   engine.Cause `json:"cause,omitempty"`
	// Stage and its progress are those of a running or failed row.
	Stage   string `json:"stage,omitempty"`
	Done    int    `json:"done,omitempty"`
	Total   int    `json:"total,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	// Started and Ended are those of the last attempt, if it was one of this build.
	Started time.Time `json:"started,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// Seconds and PeakMemoryBytes are measured; those of a reused row when it was built. Expected
	// ones are from earlier builds.
	Seconds             float64          `json:"seconds,omitempty"`
	PeakMemoryBytes     int64            `json:"peak_memory_bytes,omitempty"`
	ExpectedSeconds     float64          `json:"expected_seconds,omitempty"`
	ExpectedMemoryBytes int64            `json:"expected_memory_bytes,omitempty"`
	Bytes               int64            `json:"bytes,omitempty"` // of its files
	Test                string           `json:"test,omitempty"`
	Compiles            *record.Compiles `json:"compiles,omitempty"`
}

// Rule is why rows were left out of the plan.
type Rule struct {
	Reason  string `json:"reason"`
	Where   string `json:"where"`
	Rows    int    `json:"rows"`
	Example string `json:"example"`
}

// Saved is what did not have to be made.
type Saved struct {
	// Rows were there already; building them had taken RowSeconds.
	Rows       int     `json:"rows"`
	RowSeconds float64 `json:"row_seconds"`
	// Of the compiler Calls of the rows that were built, Hits came from the cache, RemoteHits of
	// them from other machines.
	Calls      int `json:"calls"`
	Hits       int `json:"hits"`
	RemoteHits int `json:"remote_hits"`
	// CompileSeconds is about what the hits would have taken: each as long as the mean of its
	// package's calls that were no hits. Zero if there were none.
	CompileSeconds float64 `json:"compile_seconds"`
}

// Step is a row of the critical path.
type Step struct {
	Row int    `json:"-"` // in Rows
	ID  string `json:"id"`
	// Waited is the time since the row before ended, or since the build began.
	Waited  float64   `json:"waited_seconds"`
	Started time.Time `json:"started,omitzero"`
	Seconds float64   `json:"seconds"`
	Running bool      `json:"running,omitempty"` // then Seconds is zero
}

// Lost is the reason of a row that was running when kiln was killed.
const Lost = "kiln ended before the row did; the next kiln build continues"

// New makes a report.
func New(in Input) *Report {
	r := &Report{Format: "kiln-report/1", Active: in.Active, Findings: in.Findings, Counts: []Count{}, Rows: []Row{}, Excluded: []Rule{}, Path: []Step{}}
	jobs := map[string]*engine.JobState{}
	if s := in.State; s != nil {
		r.Built, r.Started, r.Ended = !s.Started.IsZero(), s.Started, s.Ended
		for i := range s.Jobs {
			jobs[s.Jobs[i].ID] = &s.Jobs[i]
		}
	}
	expected := in.History.Expect(in.Plan.Rows)
	for i := range in.Plan.Rows {
		row := newRow(&in.Plan.Rows[i])
		row.ExpectedSeconds, row.ExpectedMemoryBytes = expected[i].Seconds, expected[i].PeakMemoryBytes
		if j := jobs[row.ID]; j != nil {
			row.fill(j, r)
			delete(jobs, row.ID)
		}
		r.Rows = append(r.Rows, row)
	}
	if in.State != nil {
		for i := range in.State.Jobs {
			if j := &in.State.Jobs[i]; j.Current && jobs[j.ID] != nil {
				row := Row{ID: j.ID}
				row.fill(j, r)
				r.Rows = append(r.Rows, row)
			}
		}
	}
	r.exclude(in.Plan.Skipped)
	r.add()
	r.Path = r.criticalPath()
	r.grids = r.makeGrids(in.Plan.Skipped)
	r.Title = r.title()
	return r
}

func newRow(m *matrix.Row) Row {
	row := Row{ID: m.ID, Package: m.Package, Version: m.Version, OS: m.OS, Python: m.Python, Torch: m.Torch, Status: StatusPlanned}
	switch toolkit, version := m.Toolkit(); {
	case m.Kind == matrix.KindSdist:
		row.Compute = "source"
	case toolkit == "cuda":
		row.Compute = "CUDA " + version
	case toolkit == "rocm":
		row.Compute = "ROCm " + version
	default:
		row.Compute = "CPU"
	}
	return row
}

// fill takes what the journal says of a row.
func (row *Row) fill(j *engine.JobState, r *Report) {
	row.Current, row.Status, row.Reason, row.Cause, row.Attempt = j.Current, j.Status, j.Reason, j.Cause, j.Attempt
	if !j.Started.Before(r.Started) && j.Attempt > 0 {
		row.Started, row.Ended = j.Started, j.Ended
	}
	switch j.Status {
	case engine.StatusDone:
		if j.Finished == nil {
			break
		}
		row.Seconds, row.PeakMemoryBytes = j.Finished.Wall.Seconds(), j.Finished.Result.PeakMemoryBytes
		var out record.Outputs
		if json.Unmarshal(j.Finished.Result.Outputs, &out) == nil { // else another kiln wrote it
			row.Test, row.Compiles = out.Test, out.Compiles
			for _, f := range out.Files {
				row.Bytes += f.Size
			}
		}
		if j.Finished.Time.Before(r.Started) {
			row.Status = engine.StatusReused
		}
	case engine.StatusRunning:
		row.Stage, row.Done, row.Total = j.Stage, j.Done, j.Total
		if !r.Active {
			row.Status, row.Reason = engine.StatusCanceled, Lost
		}
	case engine.StatusFailed:
		row.Stage, row.PeakMemoryBytes = j.Stage, j.PeakMemoryBytes
		row.Seconds = max(0, j.Ended.Sub(j.Started).Seconds())
	case engine.StatusPending:
		if !j.Current && j.Attempt == 0 {
			row.Status = StatusPlanned
		}
	}
	if row.ExpectedSeconds == 0 {
		row.ExpectedSeconds, row.ExpectedMemoryBytes = j.Learned.Wall.Seconds(), j.Learned.PeakMemoryBytes
	}
}

// exclude groups what was left out by the rule that did it.
func (r *Report) exclude(skips []matrix.Skip) {
	for _, s := range skips {
		i := r.rule(&s)
		if i < 0 {
			i = len(r.Excluded)
			r.Excluded = append(r.Excluded, Rule{Reason: s.Reason, Where: s.Pos.String(), Example: s.Row.ID})
		}
		r.Excluded[i].Rows++
	}
}

func (r *Report) rule(s *matrix.Skip) int {
	where := s.Pos.String()
	return slices.IndexFunc(r.Excluded, func(rule Rule) bool { return rule.Reason == s.Reason && rule.Where == where })
}

// add makes the sums.
func (r *Report) add() {
	counts := map[Status]int{}
	type sum struct {
		seconds   float64
		own, hits int
	}
	compiles := map[string]*sum{} // by package
	for i := range r.Rows {
		row := &r.Rows[i]
		counts[row.Status]++
		r.Bytes += row.Bytes
		switch {
		case row.Status == engine.StatusReused && row.Current:
			r.Saved.Rows++
			r.Saved.RowSeconds += row.Seconds
		case (row.Status == engine.StatusDone || row.Status == engine.StatusFailed) && row.Current:
			r.Seconds += row.Seconds
			r.PeakMemoryBytes = max(r.PeakMemoryBytes, row.PeakMemoryBytes)
		case slices.Contains([]Status{engine.StatusPending, engine.StatusRunning, StatusPlanned}, row.Status) && row.ExpectedSeconds > 0:
			r.ExpectedRows++
			r.ExpectedSeconds += row.ExpectedSeconds
		}
		if row.Current {
			r.asked++
			if !slices.Contains([]Status{engine.StatusPending, engine.StatusRunning, engine.StatusCanceled}, row.Status) {
				r.ended++
			}
			if row.Status == engine.StatusFailed {
				r.failed++
			}
		}
		if c := row.Compiles; c != nil && row.Status == engine.StatusDone {
			r.Saved.Calls, r.Saved.Hits, r.Saved.RemoteHits = r.Saved.Calls+c.Calls, r.Saved.Hits+c.Hits, r.Saved.RemoteHits+c.RemoteHits
			s := compiles[row.Package]
			if s == nil {
				s = new(sum)
				compiles[row.Package] = s
			}
			s.seconds, s.own, s.hits = s.seconds+c.Seconds, s.own+c.Calls-c.Hits, s.hits+c.Hits
		}
	}
	for _, s := range compiles {
		if s.own > 0 {
			r.Saved.CompileSeconds += s.seconds / float64(s.own) * float64(s.hits)
		}
	}
	for _, rule := range r.Excluded {
		counts[StatusExcluded] += rule.Rows
	}
	for _, s := range states {
		if n := counts[s.status]; n > 0 {
			r.Counts = append(r.Counts, Count{s.status, n, s.meaning})
		}
	}
}

// criticalPath returns the rows that decided how long the build took: the one that ended last, the
// one whose end it had waited for, and so on to the beginning. Rows need nothing of each other, but
// a row starts when one that ended has left it memory and processors. Of a plan it is the row that
// is expected to take longest.
func (r *Report) criticalPath() []Step {
	path := []Step{}
	// latest is the row that ended last of those that fit; what is running ends after the others.
	latest := func(fits func(row *Row) bool) int {
		last := -1
		for i := range r.Rows {
			row := &r.Rows[i]
			if r.ran(row) && fits(row) && (last < 0 || row.end().After(r.Rows[last].end())) {
				last = i
			}
		}
		return last
	}
	at := latest(func(*Row) bool { return true })
	for at >= 0 {
		row := &r.Rows[at]
		step := Step{Row: at, ID: row.ID, Started: row.Started, Running: row.Ended.IsZero(), Waited: max(0, row.Started.Sub(r.Started).Seconds())}
		if !step.Running {
			step.Seconds = row.Ended.Sub(row.Started).Seconds()
		}
		// Rows that took no time start and end at one moment, and are not before each other.
		at = latest(func(other *Row) bool { return other.Started.Before(row.Started) && !other.end().After(row.Started) })
		if at >= 0 {
			step.Waited = row.Started.Sub(r.Rows[at].Ended).Seconds()
		}
		path = append(path, step)
	}
	slices.Reverse(path)
	for i := range r.Rows {
		if row := &r.Rows[i]; !r.Built && row.ExpectedSeconds > 0 && (len(path) == 0 || row.ExpectedSeconds > path[0].Seconds) {
			path = []Step{{Row: i, ID: row.ID, Seconds: row.ExpectedSeconds}}
		}
	}
	return path
}

// end is when a row ended, or a time after all others if it has not.
func (row *Row) end() time.Time {
	if row.Ended.IsZero() {
		return time.Unix(1<<40, 0)
	}
	return row.Ended
}

// ran reports whether this build worked on a row, and until when is known or it is running.
func (r *Report) ran(row *Row) bool {
	return r.Built && !row.Started.IsZero() && row.Status != engine.StatusSkipped && (!row.Ended.IsZero() || row.Status == engine.StatusRunning)
}

// title names the packages.
func (r *Report) title() string {
	var names []string
	for i := range r.grids {
		names = append(names, r.grids[i].Name)
	}
	if more := len(names) - 3; more > 0 {
		names = append(names[:3], fmt.Sprintf("%d more", more))
	}
	what := "Plan"
	if r.Built {
		what = "Build"
	}
	if len(names) == 0 {
		return what
	}
	return what + " of " + strings.Join(names, ", ")
}

// Summary is the state in one sentence.
func (r *Report) Summary() string {
	all := len(r.Rows)
	if !r.Built {
		if all == 0 {
			return "No rows."
		}
		return units.Count(all, "row") + " to build."
	}
	text := fmt.Sprintf("%d of %s ended", r.ended, units.Count(r.asked, "row"))
	if r.failed > 0 {
		text += fmt.Sprintf(", %d failed", r.failed)
	}
	switch {
	case r.Active:
		return "At work: " + text + "."
	case r.Ended.IsZero() || r.ended < r.asked:
		return "Stopped: " + text + "; the next kiln build continues."
	}
	return "Finished: " + text + "."
}

// grid is the matrix of one package and version.
type grid struct {
	Name    string
	Systems []system
	Lines   []line
}

type system struct {
	Name    string
	Pythons []string
}

type line struct {
	Compute, Torch string
	Cells          []cell
}

// cell has the rows of one combination; several differ in what is no axis of the picture.
type cell struct {
	First bool // of its system
	Marks []mark
}

// mark is a row in the picture, or one that was left out.
type mark struct {
	Status Status
	Link   string // of the line that says more
	Text   string
}

// makeGrids lays out rows and what was left out by package and version, in the order of the plan.
func (r *Report) makeGrids(skips []matrix.Skip) []grid {
	type key struct{ compute, torch, os, python string }
	marks := map[string]map[key][]mark{}
	var names []string
	put := func(row *Row, m mark) {
		if row.Package == "" {
			return
		}
		name := row.Package + " " + row.Version
		if marks[name] == nil {
			marks[name] = map[key][]mark{}
			names = append(names, name)
		}
		k := key{row.Compute, row.Torch, row.OS, row.Python}
		marks[name][k] = append(marks[name][k], m)
	}
	for i := range r.Rows {
		put(&r.Rows[i], mark{r.Rows[i].Status, fmt.Sprintf("#row-%d", i+1), r.Rows[i].text()})
	}
	for i := range skips {
		row := newRow(&skips[i].Row)
		put(&row, mark{StatusExcluded, fmt.Sprintf("#rule-%d", r.rule(&skips[i])+1), "excluded: " + skips[i].Reason})
	}
	var out []grid
	for _, name := range names {
		cells := marks[name]
		// values are the different ones of an axis, sorted, of the combinations that fit.
		values := func(axis func(key) string, fits func(key) bool) []string {
			seen := map[string]int{}
			for k := range cells {
				if fits(k) {
					seen[axis(k)]++
				}
			}
			return matrix.SortedValues(seen)
		}
		table := grid{Name: name}
		for _, os := range values(func(k key) string { return k.os }, func(key) bool { return true }) {
			table.Systems = append(table.Systems, system{os, values(func(k key) string { return k.python }, func(k key) bool { return k.os == os })})
		}
		// The newest first, as on the pages of an index.
		computes := values(func(k key) string { return k.compute }, func(key) bool { return true })
		slices.Reverse(computes)
		slices.SortStableFunc(computes, func(a, b string) int { return cmp.Compare(computeRank(a), computeRank(b)) })
		for _, compute := range computes {
			for _, torch := range slices.Backward(values(func(k key) string { return k.torch }, func(k key) bool { return k.compute == compute })) {
				l := line{Compute: compute, Torch: cmp.Or(torch, "any")}
				for _, s := range table.Systems {
					for i, python := range s.Pythons {
						l.Cells = append(l.Cells, cell{First: i == 0, Marks: cells[key{compute, torch, s.Name, python}]})
					}
				}
				table.Lines = append(table.Lines, l)
			}
		}
		out = append(out, table)
	}
	return out
}

// computeRank orders platforms as people look for them.
func computeRank(compute string) int {
	kind, _, _ := strings.Cut(compute, " ")
	return slices.Index([]string{"CUDA", "ROCm", "CPU", "source"}, kind)
}

// text says what became of a row in one line.
func (row *Row) text() string {
	text := string(row.Status)
	if row.Status == engine.StatusRunning && row.Stage != "" {
		text += ": " + row.Stage
		if row.Total > 0 {
			text += fmt.Sprintf(" %d/%d", row.Done, row.Total)
		}
	}
	if short := record.ShortReason(row.ID, row.Reason); short != "" {
		text += ": " + short
	}
	if row.Seconds > 0 {
		text += ", " + units.Duration(time.Duration(row.Seconds*float64(time.Second)))
	}
	return text
}
