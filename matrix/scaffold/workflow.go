package scaffold

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/kiln-build/kiln/internal/diag"
)

// Limits on a workflow: far above what GitHub accepts, which is 256 jobs from one matrix.
const (
	maxCombos   = 10_000
	maxYAML     = 4 << 20
	maxExpanded = 1 << 17 // values after aliases are followed
)

// workflowFile is a workflow of GitHub Actions: the jobs that have a matrix.
type workflowFile struct {
	name string
	text []byte
	jobs []*workflowJob
	list diag.List

	// broken are the jobs whose matrix cannot be known, with the reasons.
	broken map[string]diag.List
	inputs map[string]string // defaults of inputs
	values int
}

// workflowJob is a job with its matrix, expanded as GitHub does it.
type workflowJob struct {
	id     string
	pos    diag.Pos
	keys   []string // in the order written
	combos []combo
	runsOn string // as written, "" if a matrix key decides
	python string // the version that actions/setup-python gets, if it is written out
	// uses maps a key of the matrix to the setting that it is given to alone: runs-on,
	// python-version.
	uses map[string]string
	// variables maps a key of the matrix to the environment variables that get its value.
	variables map[string][]string
	notes     []Note
}

// combo is one job of a matrix.
type combo struct {
	cells map[string]cell
	pos   diag.Pos
}

type cell struct {
	text string
	pos  diag.Pos
}

// axisValue is one value of a matrix: a scalar, or a map whose values count as keys of their own.
type axisValue struct {
	cells map[string]cell // by key of the matrix
	pos   diag.Pos
}

// readWorkflow reads a workflow, or a file that has a matrix alone. Mistakes are in its list.
func readWorkflow(name string, text []byte) *workflowFile {
	w := &workflowFile{name: name, text: text, inputs: map[string]string{}, broken: map[string]diag.List{}}
	if len(text) > maxYAML {
		w.list.Add(diag.Diagnostic{Rule: "workflow", Pos: diag.Pos{File: name}, Message: fmt.Sprintf("the file is larger than %d MiB", maxYAML>>20)})
		return w
	}
	var root yaml.Node
	if err := loadYAML(text, &root); err != nil {
		d := diag.Diagnostic{Rule: "workflow", Pos: diag.Pos{File: name}, Message: "not YAML: " + err.Error()}
		if le, ok := errors.AsType[*yaml.LoadError](err); ok {
			d.Message, d.Pos.Line, d.Pos.Column = "not YAML: "+le.Message, le.Mark.Line, le.Mark.Column+1
		}
		if errors.Is(err, io.EOF) {
			d.Message = "the file has no content"
		}
		w.list.Add(d)
		return w
	}
	if len(root.Content) == 0 {
		w.list.Add(diag.Diagnostic{Rule: "workflow", Pos: diag.Pos{File: name}, Message: "the file has no content"})
		return w
	}
	top := w.resolve(root.Content[0])
	if top.Kind != yaml.MappingNode {
		w.errorf(top, "name a workflow of GitHub Actions, or a file with its matrix as JSON or YAML", "the file is not a map")
		return w
	}
	w.readInputs(top)
	jobs := w.get(top, "jobs")
	if jobs == nil {
		// The value of strategy.matrix alone, as a job that computes one prints it.
		if m := w.get(top, "matrix"); m != nil {
			top = m
		}
		job := &workflowJob{id: "matrix", pos: w.pos(top)}
		if w.matrix(job, top) {
			w.jobs = append(w.jobs, job)
		}
	} else {
		for key, value := range w.pairs(jobs) {
			w.job(key, value)
		}
	}
	if len(w.jobs) == 0 {
		for _, id := range slices.Sorted(maps.Keys(w.broken)) {
			w.list = append(w.list, w.broken[id]...)
		}
	}
	if len(w.jobs) == 0 && !w.list.HasErrors() {
		w.list.Add(diag.Diagnostic{Rule: "workflow", Pos: w.pos(top), Message: "no job of the workflow has a matrix", Hint: "without --from-workflow, kiln init reads the project instead"})
	}
	return w
}

// loadYAML reads one document. A panic of the library, which is a release candidate, is an error.
func loadYAML(text []byte, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML reader stopped: %v", r)
		}
	}()
	return yaml.NewDecoder(bytes.NewReader(text)).Decode(n)
}

func (w *workflowFile) pos(n *yaml.Node) diag.Pos {
	return diag.Pos{File: w.name, Line: n.Line, Column: n.Column}
}

func (w *workflowFile) errorf(n *yaml.Node, hint, format string, args ...any) {
	w.list.Add(diag.Diagnostic{Rule: "workflow", Pos: w.pos(n), Width: len(strings.SplitN(n.Value, "\n", 2)[0]), Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (w *workflowFile) resolve(n *yaml.Node) *yaml.Node {
	for range 10 {
		if n.Kind != yaml.AliasNode || n.Alias == nil {
			break
		}
		n = n.Alias
	}
	return n
}

// pairs yields the keys and values of a map, once each and not without end.
func (w *workflowFile) pairs(n *yaml.Node) func(yield func(k, v *yaml.Node) bool) {
	return func(yield func(k, v *yaml.Node) bool) {
		if n = w.resolve(n); n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if w.values++; w.values > maxExpanded || !yield(n.Content[i], w.resolve(n.Content[i+1])) {
				return
			}
		}
	}
}

func (w *workflowFile) get(n *yaml.Node, key string) *yaml.Node {
	for k, v := range w.pairs(n) {
		if k.Value == key {
			return v
		}
	}
	return nil
}

func (w *workflowFile) readInputs(top *yaml.Node) {
	on := w.get(top, "on")
	if on == nil {
		return
	}
	for _, trigger := range []string{"workflow_dispatch", "workflow_call"} {
		if t := w.get(on, trigger); t != nil {
			if inputs := w.get(t, "inputs"); inputs != nil {
				for name, spec := range w.pairs(inputs) {
					if d := w.get(spec, "default"); d != nil && d.Kind == yaml.ScalarNode {
						w.inputs[name.Value] = d.Value
					}
				}
			}
		}
	}
}

// job reads a job, if it has a matrix.
func (w *workflowFile) job(key, n *yaml.Node) {
	strategy := w.get(n, "strategy")
	if strategy == nil {
		return
	}
	m := w.get(strategy, "matrix")
	if m == nil {
		return
	}
	job := &workflowJob{id: key.Value, pos: w.pos(key), uses: map[string]string{}, variables: map[string][]string{}}
	before := len(w.list)
	if !w.matrix(job, m) {
		w.broken[job.id] = slices.Clone(w.list[before:])
		w.list = w.list[:before]
		return
	}
	if runs := w.get(n, "runs-on"); runs != nil {
		switch {
		case runs.Kind == yaml.ScalarNode && !strings.Contains(runs.Value, "${{"):
			job.runsOn = runs.Value
		case runs.Kind == yaml.SequenceNode:
			job.runsOn = runner(texts(runs))
		}
	}
	w.look(job, "", n, 0)
	w.jobs = append(w.jobs, job)
}

func texts(n *yaml.Node) []string {
	var out []string
	for _, item := range n.Content {
		out = append(out, item.Value)
	}
	return out
}

// runner makes one name of the labels of a runner.
func runner(labels []string) string {
	for _, l := range labels {
		if _, known := systems[strings.ToLower(l)]; known {
			return strings.ToLower(l)
		}
	}
	return strings.Join(slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return l == "self-hosted" || l == "" }), "-")
}

// systems are the labels that self-hosted runners have.
var systems = map[string]bool{"linux": true, "windows": true, "macos": true}

var (
	aloneUse = regexp.MustCompile(`^\$\{\{\s*matrix\.([A-Za-z0-9_.-]+)\s*\}\}$`)
	shellUse = regexp.MustCompile(`\b([A-Za-z_][A-Za-z0-9_]*)=["']?\$\{\{\s*matrix\.([A-Za-z0-9_.-]+)\s*\}\}`)
)

// look finds what the keys of the matrix are used for.
func (w *workflowFile) look(job *workflowJob, name string, n *yaml.Node, depth int) {
	if w.values++; depth > maxNesting || w.values > maxExpanded {
		return
	}
	switch n = w.resolve(n); n.Kind {
	case yaml.MappingNode:
		for k, v := range w.pairs(n) {
			switch {
			case k.Value == "strategy" && depth == 0:
			case k.Value == "env":
				for name, value := range w.pairs(v) {
					if m := aloneUse.FindStringSubmatch(value.Value); m != nil {
						job.variables[m[1]] = append(job.variables[m[1]], name.Value)
					}
				}
			default:
				w.look(job, k.Value, v, depth+1)
			}
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			w.look(job, name, item, depth+1)
		}
	case yaml.ScalarNode:
		if m := aloneUse.FindStringSubmatch(strings.TrimSpace(n.Value)); m != nil {
			job.uses[m[1]] = cmp.Or(job.uses[m[1]], name)
		} else if name == "python-version" && !strings.Contains(n.Value, "${{") {
			job.python = cmp.Or(job.python, n.Value)
		}
		if name == "run" {
			for _, m := range shellUse.FindAllStringSubmatch(n.Value, -1) {
				job.variables[m[2]] = append(job.variables[m[2]], m[1])
			}
		}
	}
}

// matrix expands a matrix: the product of its lists, less exclude, and include as GitHub's rules
// have it.
func (w *workflowFile) matrix(job *workflowJob, n *yaml.Node) bool {
	before := len(w.list)
	if n = w.evaluate(job, n); n == nil {
		return false
	}
	if n.Kind != yaml.MappingNode {
		w.errorf(n, "", "the matrix of %s is not a map", job.id)
		return false
	}
	type axis struct {
		name   string
		values []axisValue
	}
	var axes []axis
	var include, exclude []axisValue
	total := 1
	for k, v := range w.pairs(n) {
		if v = w.evaluate(job, v); v == nil {
			continue
		}
		if v.Kind != yaml.SequenceNode {
			if k.Value == "include" || k.Value == "exclude" {
				w.errorf(v, "", "%q is not a list", k.Value)
			} else {
				w.errorf(v, "write ["+v.Value+"]", "the values of %q are not a list", k.Value)
			}
			continue
		}
		var values []axisValue
		for _, item := range v.Content {
			item = w.resolve(item)
			if item = w.evaluate(job, item); item == nil {
				continue
			}
			if k.Value != "include" && k.Value != "exclude" {
				values = append(values, w.value(job, k.Value, item))
				continue
			}
			if item.Kind != yaml.MappingNode {
				w.errorf(item, "", "an entry of %q is not a map", k.Value)
				continue
			}
			entry := axisValue{cells: map[string]cell{}, pos: w.pos(item)}
			for key, value := range w.pairs(item) {
				maps.Copy(entry.cells, w.value(job, key.Value, value).cells)
			}
			values = append(values, entry)
		}
		switch k.Value {
		case "include":
			include = values
		case "exclude":
			exclude = values
		default:
			axes = append(axes, axis{k.Value, values})
			if total *= max(1, len(values)); total > maxCombos {
				w.errorf(k, "", "the matrix of %s has more than %d combinations", job.id, maxCombos)
				return false
			}
		}
	}
	if len(w.list) > before {
		return false
	}
	var combos []combo
	if len(axes) > 0 {
		combos = []combo{{cells: map[string]cell{}, pos: w.pos(n)}}
	}
	own := map[string]bool{} // keys that the lists have
	for _, a := range axes {
		var next []combo
		for _, c := range combos {
			for _, v := range a.values {
				cells := maps.Clone(c.cells)
				maps.Copy(cells, v.cells)
				next = append(next, combo{cells, c.pos})
			}
		}
		for _, v := range a.values {
			for name := range v.cells {
				own[name] = true
			}
			job.key(slices.Sorted(maps.Keys(v.cells))...)
		}
		combos = next
	}
	for _, e := range include {
		job.key(slices.Sorted(maps.Keys(e.cells))...)
	}
	for _, e := range exclude {
		kept := slices.DeleteFunc(slices.Clone(combos), func(c combo) bool { return agrees(c, e, func(string) bool { return true }) })
		if len(kept) == len(combos) {
			job.notes = append(job.notes, Note{Pos: e.pos, Text: "the exclude entry " + e.String() + " removes nothing" + whyNothing(combos, e)})
		}
		combos = kept
	}
	base := len(combos)
	original := make([]combo, base)
	for i := range combos {
		original[i] = combo{maps.Clone(combos[i].cells), combos[i].pos}
	}
	for _, e := range include {
		added := false
		for i := range base {
			// An entry joins the combinations whose own values it does not change.
			if agrees(original[i], e, func(name string) bool { return own[name] }) {
				maps.Copy(combos[i].cells, e.cells)
				added = true
			}
		}
		if !added {
			combos = append(combos, combo{maps.Clone(e.cells), e.pos})
		}
	}
	if len(combos) == 0 {
		w.errorf(n, "", "the matrix of %s has no combination", job.id)
		return false
	}
	job.combos = combos
	return true
}

func (j *workflowJob) key(names ...string) {
	for _, name := range names {
		if !slices.Contains(j.keys, name) {
			j.keys = append(j.keys, name)
		}
	}
}

// agrees reports whether a combination has the values of an entry, of the keys that count.
func agrees(c combo, e axisValue, counts func(string) bool) bool {
	for name, want := range e.cells {
		if have, ok := c.cells[name]; counts(name) && (!ok || have.text != want.text) {
			return false
		}
	}
	return true
}

// String returns an entry as it could be written.
func (v axisValue) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.cells)) {
		parts = append(parts, name+": "+v.cells[name].text)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func whyNothing(combos []combo, e axisValue) string {
	for _, name := range slices.Sorted(maps.Keys(e.cells)) {
		if !slices.ContainsFunc(combos, func(c combo) bool { return c.cells[name].text == e.cells[name].text }) {
			return fmt.Sprintf(": no job has the %s %s", name, e.cells[name].text)
		}
	}
	return ""
}

// value reads one value of a key.
func (w *workflowFile) value(job *workflowJob, key string, n *yaml.Node) axisValue {
	out := axisValue{cells: map[string]cell{}, pos: w.pos(n)}
	switch n = w.resolve(n); n.Kind {
	case yaml.MappingNode:
		for k, v := range w.pairs(n) {
			if v = w.resolve(v); v.Kind == yaml.ScalarNode {
				out.cells[key+"."+k.Value] = w.scalar(job, v)
			}
		}
	case yaml.SequenceNode:
		out.cells[key] = cell{runner(texts(n)), w.pos(n)}
	default:
		out.cells[key] = w.scalar(job, n)
	}
	return out
}

func (w *workflowFile) scalar(job *workflowJob, n *yaml.Node) cell {
	switch n.Tag {
	case "!!null":
		return cell{"", w.pos(n)}
	case "!!float":
		if strings.HasSuffix(n.Value, "0") && strings.Contains(n.Value, ".") {
			job.notes = append(job.notes, Note{Pos: w.pos(n), Text: fmt.Sprintf("%s without quotes is the number %s on GitHub; it is taken as it is written", n.Value, strings.TrimRight(strings.TrimRight(n.Value, "0"), "."))})
		}
	}
	return cell{strings.TrimSpace(n.Value), w.pos(n)}
}

var (
	fromJSON  = regexp.MustCompile(`(?is)^\$\{\{\s*fromjson\(\s*(.*?)\s*\)\s*\}\}$`)
	inputName = regexp.MustCompile(`^(?:github\.event\.)?inputs\.([A-Za-z0-9_-]+)(?:\s*\|\|\s*'((?:[^']|'')*)')?$`)
)

// evaluate returns the value of an expression that is known before a run, or the node itself.
func (w *workflowFile) evaluate(job *workflowJob, n *yaml.Node) *yaml.Node {
	n = w.resolve(n)
	if n.Kind != yaml.ScalarNode || !strings.Contains(n.Value, "${{") {
		return n
	}
	const save = "save what that job prints for it (JSON, in the log of a run) in a file, and give that file to --from-workflow"
	m := fromJSON.FindStringSubmatch(strings.TrimSpace(n.Value))
	if m == nil {
		w.errorf(n, save, "%s is known only during a run", n.Value)
		return nil
	}
	argument, text := m[1], ""
	if input := inputName.FindStringSubmatch(argument); input != nil {
		value, known := w.inputs[input[1]]
		if !known {
			value = strings.ReplaceAll(input[2], "''", "'")
		}
		if text = value; text != "" {
			job.notes = append(job.notes, Note{Pos: w.pos(n), Text: "the default of the input " + input[1] + " is taken"})
		}
	} else if strings.HasPrefix(argument, "'") && strings.HasSuffix(argument, "'") && len(argument) > 1 {
		text = strings.ReplaceAll(argument[1:len(argument)-1], "''", "'")
	}
	if text == "" {
		w.errorf(n, save, "%s is known only during a run", n.Value)
		return nil
	}
	var root yaml.Node
	if err := loadYAML([]byte(text), &root); err != nil || len(root.Content) == 0 {
		w.errorf(n, "", "the text of fromJSON is not JSON")
		return nil
	}
	out := root.Content[0]
	place(out, n.Line, n.Column, 0)
	return out
}

// place gives all nodes of a text the position of the text.
func place(n *yaml.Node, line, column, depth int) {
	n.Line, n.Column = line, column
	for _, child := range n.Content {
		if depth < maxNesting {
			place(child, line, column, depth+1)
		}
	}
}
