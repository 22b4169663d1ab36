package scaffold

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// DifferenceError says that no file was found whose plan is that of the workflow.
type DifferenceError struct {
	Workflow string
	// Missing are rows of the workflow that the plan lacks, Extra those that only the plan has.
	Missing, Extra []string
	// Findings are the errors of the plan, which most often say why.
	Findings diag.List
}

func (e *DifferenceError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no packages.yml has the rows of %s", e.Workflow)
	for _, part := range []struct {
		title string
		rows  []string
	}{{"not in the plan", e.Missing}, {"only in the plan", e.Extra}} {
		for i, r := range part.rows {
			if i == 10 {
				fmt.Fprintf(&b, "\n  and %d more", len(part.rows)-i)
				break
			}
			fmt.Fprintf(&b, "\n  %s: %s", part.title, r)
		}
	}
	for _, d := range e.Findings {
		if d.Severity == diag.Error {
			fmt.Fprintf(&b, "\n  because %s", d.Message)
			if d.Hint != "" {
				fmt.Fprintf(&b, " (%s)", d.Hint)
			}
		}
	}
	return b.String()
}

// score says how much a job looks like one that builds wheels: 3 with Python and a toolkit or
// torch, 2 with a toolkit or torch, 1 with Python alone.
func (s *scaffold) score(job *workflowJob) int {
	r := &reader{table: s.opts.Compat, name: s.doc.name}
	copied := *job
	combos := r.unzip(&copied)
	python, gpu := 0, 0
	for _, key := range copied.keys {
		switch r.role(&copied, key, combos) {
		case rolePython:
			python = 1
		case roleCUDA, roleROCm, roleTorch:
			gpu = 2
		}
	}
	return python + gpu
}

// chooseJob returns the one job that builds wheels.
func (s *scaffold) chooseJob(w *workflowFile) (*workflowJob, error) {
	best := 0
	var jobs []*workflowJob
	for _, job := range w.jobs {
		score := s.score(job)
		if score > best {
			best, jobs = score, nil
		}
		if score == best {
			jobs = append(jobs, job)
		}
	}
	switch {
	case best == 0 && len(w.broken) > 0:
		var list diag.List
		for _, id := range slices.Sorted(maps.Keys(w.broken)) {
			list = append(list, w.broken[id]...)
		}
		return nil, list.Err()
	case best == 0:
		return nil, fmt.Errorf("%s: no matrix has a Python, CUDA, ROCm or torch version\n  name the job with --job: %s", w.jobs[0].pos, jobNames(w.jobs))
	case len(jobs) > 1:
		return nil, fmt.Errorf("%s: several jobs have a matrix of builds\n  name one, or several, with --job: %s", jobs[0].pos, jobNames(jobs))
	}
	return jobs[0], nil
}

func jobNames(jobs []*workflowJob) string {
	var parts []string
	for _, job := range jobs {
		parts = append(parts, fmt.Sprintf("%s (line %d, %s)", job.id, job.pos.Line, units.Count(len(job.combos), "row")))
	}
	return strings.Join(parts, ", ")
}

// fromWorkflow reads the workflow.
func (s *scaffold) fromWorkflow() error {
	name := filepath.ToSlash(s.opts.Workflow)
	text, err := fsx.ReadFile(s.opts.Workflow, maxYAML+1)
	if err != nil {
		return fmt.Errorf("--from-workflow: %w", err)
	}
	return s.takeWorkflow(name, text)
}

// takeWorkflow makes the file from the text of a workflow.
func (s *scaffold) takeWorkflow(name string, text []byte) error {
	s.result.Sources[name] = text
	w := readWorkflow(name, text)
	if err := w.list.Err(); err != nil {
		return err
	}
	jobs, err := s.jobs(w)
	if err != nil {
		return err
	}
	r := &reader{table: s.opts.Compat, name: wheel.NormalizeName(s.doc.name)}
	var rows []row
	s.places = map[row]diag.Pos{}
	for _, job := range jobs {
		s.found(job.pos, "the job %s has a matrix of %s", job.id, units.Count(len(job.combos), "row"))
		for i, row := range r.rows(job) {
			rows = append(rows, row)
			s.places[row] = cmp.Or(s.places[row], job.combos[i].pos)
		}
	}
	if err := r.list.Err(); err != nil {
		return err
	}
	s.result.Jobs = len(rows)
	unique := slices.Compact(slices.SortedFunc(slices.Values(rows), func(a, b row) int { return strings.Compare(rowTitle(a), rowTitle(b)) }))
	if n := len(rows) - len(unique); n > 0 {
		r.guess(jobs[0].pos, "%s are the same as another one for kiln and are built once", units.Count(n, "row"))
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool {
		i, ok := slices.BinarySearchFunc(unique, r, func(a, b row) int { return strings.Compare(rowTitle(a), rowTitle(b)) })
		if ok {
			unique = slices.Delete(unique, i, i+1) // the first one stays
		}
		return !ok
	})
	s.result.Found, s.result.Guessed = append(s.result.Found, r.found...), append(s.result.Guessed, r.guessed...)
	s.doc.comment = "The rows of " + filepath.Base(s.opts.Workflow) + "; `kiln plan` shows them."
	for _, variableName := range slices.Sorted(maps.Keys(r.variables)) {
		s.doc.env = slices.DeleteFunc(s.doc.env, func(v variable) bool { return v.name == variableName })
		s.doc.env = append(s.doc.env, variable{name: variableName, value: "{" + r.variables[variableName] + "}"})
		s.doc.alsoReads = slices.DeleteFunc(s.doc.alsoReads, func(v string) bool { return v == variableName })
	}
	s.doc.alsoReads = nil // the workflow knows which it needs
	if slices.ContainsFunc(rows, func(r row) bool { return r.torch != "" }) {
		s.doc.extraDeps = slices.DeleteFunc(s.doc.extraDeps, func(d string) bool { return d == "torch" })
	}
	if s.doc.path == "" && s.doc.git == "" && !slices.ContainsFunc(rows, func(r row) bool { return r.version == "" }) {
		s.doc.versions = nil
	}
	return s.fit(rows, r.custom)
}

func (s *scaffold) jobs(w *workflowFile) ([]*workflowJob, error) {
	if len(s.opts.Jobs) == 0 {
		job, err := s.chooseJob(w)
		return []*workflowJob{job}, err
	}
	var out []*workflowJob
	for _, id := range s.opts.Jobs {
		i := slices.IndexFunc(w.jobs, func(j *workflowJob) bool { return j.id == id })
		switch {
		case i >= 0:
			out = append(out, w.jobs[i])
		case w.broken[id] != nil:
			return nil, w.broken[id].Err()
		default:
			return nil, fmt.Errorf("%s has no job %q with a matrix\n  it has %s", w.name, id, jobNames(w.jobs))
		}
	}
	return out, nil
}

// fit looks for the shortest file whose plan has exactly the rows.
func (s *scaffold) fit(rows []row, custom []string) error {
	arch, follows := archOf(rows)
	s.doc.arch = arch
	var parts []string
	for _, name := range custom {
		parts = append(parts, "-"+tagPart(rows, name))
	}
	tails := strings.Join(parts, "")
	// Without a tag of its own, rows that differ in nothing that the name of a file has would
	// collide. Rows without a toolkit are "cpu" for PyTorch's index, and nothing in {toolkit_tag}.
	base := "{toolkit_tag}-torch{torch}"
	if slices.ContainsFunc(rows, func(r row) bool { return r.kind == matrix.KindWheel && r.cuda == "" && r.rocm == "" }) {
		base = "{torch_index}-torch{torch}"
	}
	tags := []string{"", base, base + "-{os}"}
	if tails != "" {
		tags = tags[1:]
	}
	var nearest *DifferenceError
	for _, excludes := range []bool{true, false} {
		s.doc.groups = groupsOf(rows, custom, !follows, excludes)
		for _, tag := range tags {
			if s.doc.localVersion = tag; tag != "" {
				s.doc.localVersion += tails
			}
			plan, err := s.plan()
			if err != nil {
				return err
			}
			diff := s.difference(rows, plan)
			if diff == nil {
				s.result.Plan = plan
				if tag != "" {
					s.guess("file names have %s, because rows would write the same file otherwise", s.doc.localVersion)
				}
				return nil
			}
			if nearest == nil || len(diff.Missing)+len(diff.Extra) < len(nearest.Missing)+len(nearest.Extra) {
				nearest = diff
			}
		}
	}
	return nearest
}

// tagPart is how a custom axis shows in file names: values that are words stand alone.
func tagPart(rows []row, name string) string {
	for _, r := range rows {
		v := strings.ToLower(matrix.Axes(r.custom).Get(name))
		if strings.Trim(v, "0123456789.") == "" || slices.Contains(yamlWords, v) || v == "none" {
			return strings.NewReplacer("_", "", "-", "").Replace(name) + "{" + name + "}"
		}
	}
	return "{" + name + "}"
}

// difference compares the rows of a workflow with a plan. nil means that they are equal.
func (s *scaffold) difference(rows []row, plan *matrix.Plan) *DifferenceError {
	want := map[row]bool{}
	place := map[row]diag.Pos{}
	for _, r := range rows {
		pos := s.places[r]
		r.platform = ""
		if r.version == "" {
			r.version = s.version
		}
		want[r], place[r] = true, pos
	}
	e := &DifferenceError{Workflow: s.opts.Workflow, Findings: plan.Findings}
	for i := range plan.Rows {
		p := &plan.Rows[i]
		r := row{kind: p.Kind, version: p.Version, os: p.OS, python: p.Python, cuda: p.CUDA, rocm: p.ROCm, torch: p.Torch, arch: p.Arch, custom: string(p.Axes)}
		if !want[r] {
			r.arch = "" // a workflow that leaves the list open
		}
		if !want[r] {
			r.arch = p.Arch
			e.Extra = append(e.Extra, rowTitle(r))
			continue
		}
		delete(want, r)
	}
	for r := range want {
		e.Missing = append(e.Missing, rowTitle(r)+" ("+place[r].String()+")")
	}
	if len(e.Missing)+len(e.Extra) == 0 {
		return nil
	}
	slices.Sort(e.Missing)
	slices.Sort(e.Extra)
	return e
}

// rowTitle writes a row for people; different rows have different titles.
func rowTitle(r row) string {
	var out []string
	for _, part := range []struct{ name, value string }{
		{"version", r.version}, {"", r.os}, {"", r.platform}, {"CUDA", r.cuda}, {"ROCm", r.rocm}, {"torch", r.torch}, {"Python", r.python}, {"arch", r.arch}, {"", r.custom},
	} {
		if part.value != "" {
			out = append(out, strings.TrimSpace(part.name+" "+part.value))
		}
	}
	return cmp.Or(r.kind, matrix.KindWheel) + " " + strings.Join(out, ", ")
}
