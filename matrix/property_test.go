package matrix_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/matrix"
)

// model is a random packages.yml, and the naive expansion of it: nested loops and
// values compared as texts.
type model struct {
	groups  []modelGroup
	exclude []map[string][]string // of the package
	include []modelRow
}

type modelGroup struct {
	axes    map[string][]string
	zip     []string
	exclude []map[string][]string
}

// modelRow has one value for each axis of the row.
type modelRow map[string]string

// modelAxes is the order in which axes vary, slowest first.
var modelAxes = []string{"version", "os", "cuda", "rocm", "torch", "blas", "python"}

// modelValues are values that never make two rows write one file. Not all of their
// combinations exist.
var modelValues = map[string][]string{
	"version": {"1.0", "1.1", "2.0rc1"},
	"os":      {"ubuntu-22.04", "windows-2022", "ubuntu-22.04-arm"},
	"cuda":    {"11.8.0", "12.4.0", "12.6.3", "12.8.1", "13.0.2"},
	"rocm":    {"6.1", "6.2.4", "6.4"},
	"torch":   {"2.4.0", "2.6.0", "2.8.0", "2.9.0"},
	"blas":    {"mkl", "openblas"},
	"python":  {"3.10", "3.12", "3.13", "3.13t"},
}

func drawModel(t *rapid.T) *model {
	m := &model{}
	some := func(axis string, least int) []string {
		n := rapid.IntRange(least, min(3, len(modelValues[axis]))).Draw(t, "number of "+axis)
		return rapid.Permutation(modelValues[axis]).Draw(t, axis)[:n]
	}
	toolkit := func() string { return rapid.SampledFrom([]string{"", "cuda", "rocm"}).Draw(t, "toolkit") }
	for range rapid.IntRange(1, 3).Draw(t, "groups") {
		g := modelGroup{axes: map[string][]string{}}
		for _, axis := range []string{"version", "os", "torch", "blas", "python", toolkit()} {
			if axis == "" || axis == "blas" && rapid.Bool().Draw(t, "no blas") {
				continue
			}
			g.axes[axis] = some(axis, 1)
		}
		if cuda, torch := g.axes["cuda"], g.axes["torch"]; len(cuda) == len(torch) && rapid.Bool().Draw(t, "zip") {
			g.zip = []string{"torch", "cuda"}
		}
		g.exclude = drawRules(t, g.axes)
		m.groups = append(m.groups, g)
	}
	m.exclude = drawRules(t, modelValues)
	for range rapid.IntRange(0, 3).Draw(t, "included") {
		row := modelRow{}
		for _, axis := range []string{"version", "os", "torch", "python", toolkit()} {
			if axis != "" {
				row[axis] = rapid.SampledFrom(modelValues[axis]).Draw(t, axis)
			}
		}
		m.include = append(m.include, row)
	}
	return m
}

func drawRules(t *rapid.T, values map[string][]string) []map[string][]string {
	var rules []map[string][]string
	for range rapid.IntRange(0, 2).Draw(t, "rules") {
		rule := map[string][]string{}
		for _, axis := range modelAxes {
			if len(values[axis]) > 0 && axis != "blas" && rapid.IntRange(0, 2).Draw(t, "use "+axis) == 0 {
				n := rapid.IntRange(1, min(2, len(values[axis]))).Draw(t, "number of patterns")
				rule[axis] = rapid.Permutation(values[axis]).Draw(t, "patterns")[:n]
			}
		}
		if len(rule) > 0 {
			rules = append(rules, rule)
		}
	}
	return rules
}

// String writes the model as packages.yml.
func (m *model) String() string {
	var b strings.Builder
	list := func(values []string) string {
		var quoted []string
		for _, v := range values {
			quoted = append(quoted, strconv.Quote(v))
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	rules := func(indent string, rules []map[string][]string) {
		if len(rules) == 0 {
			return
		}
		fmt.Fprintf(&b, "%sexclude:\n", indent)
		for _, rule := range rules {
			var keys []string
			for _, axis := range modelAxes {
				if rule[axis] != nil {
					keys = append(keys, axis+": "+list(rule[axis]))
				}
			}
			fmt.Fprintf(&b, "%s  - {%s}\n", indent, strings.Join(keys, ", "))
		}
	}
	blas := slices.ContainsFunc(m.groups, func(g modelGroup) bool { return len(g.axes["blas"]) > 0 })
	b.WriteString(modelHead(blas) + "    matrix:\n")
	for _, g := range m.groups {
		for i, axis := range slices.DeleteFunc(slices.Clone(modelAxes), func(a string) bool { return len(g.axes[a]) == 0 }) {
			lead := "        "
			if i == 0 {
				lead = "      - "
			}
			if axis == "blas" {
				fmt.Fprintf(&b, "%saxes: {blas: %s}\n", lead, list(g.axes[axis]))
			} else {
				fmt.Fprintf(&b, "%s%s: %s\n", lead, axis, list(g.axes[axis]))
			}
		}
		if g.zip != nil {
			fmt.Fprintf(&b, "        zip: [%s]\n", strings.Join(g.zip, ", "))
		}
		rules("        ", g.exclude)
	}
	rules("    ", m.exclude)
	if len(m.include) > 0 {
		b.WriteString("    include:\n")
		for _, row := range m.include {
			b.WriteString("      - " + row.inline() + "\n")
		}
	}
	return b.String()
}

// modelHead begins a file. The tag may name only axes that the file has.
func modelHead(blas bool) string {
	tag := "{toolkit_tag}-torch{torch}"
	if blas {
		tag += "-{blas}"
	}
	return "packages:\n  demo:\n    local_version: \"" + tag + "\"\n"
}

func (r modelRow) inline() string {
	var keys []string
	for _, axis := range modelAxes {
		if r[axis] != "" && axis != "blas" {
			keys = append(keys, axis+": "+strconv.Quote(r[axis]))
		}
	}
	if r["blas"] != "" {
		keys = append(keys, "axes: {blas: "+r["blas"]+"}")
	}
	return "{" + strings.Join(keys, ", ") + "}"
}

func (r modelRow) String() string {
	var values []string
	for _, axis := range modelAxes {
		values = append(values, r[axis])
	}
	return strings.Join(values, "|")
}

// rowOf returns the values of a planned row.
func rowOf(r *matrix.Row) modelRow {
	out := modelRow{}
	for _, axis := range modelAxes {
		if v := r.Axis(axis); v != "" {
			out[axis] = v
		}
	}
	return out
}

// expand returns the product of all groups, and which rows an exclude removes.
func (m *model) expand() (rows []modelRow, removed []bool) {
	for _, g := range m.groups {
		all := []modelRow{{}}
		for _, axis := range modelAxes {
			if len(g.axes[axis]) == 0 || axis == "torch" && g.zip != nil {
				continue
			}
			var longer []modelRow
			for _, row := range all {
				for i, v := range g.axes[axis] {
					next := modelRow{axis: v}
					maps.Copy(next, row)
					if axis == "cuda" && g.zip != nil {
						next["torch"] = g.axes["torch"][i]
					}
					longer = append(longer, next)
				}
			}
			all = longer
		}
		for _, row := range all {
			rows = append(rows, row)
			removed = append(removed, slices.ContainsFunc(slices.Concat(g.exclude, m.exclude), func(rule map[string][]string) bool {
				for axis, values := range rule {
					if !slices.Contains(values, row[axis]) {
						return false
					}
				}
				return true
			}))
		}
	}
	return rows, removed
}

func parseModel(t interface{ Fatalf(string, ...any) }, text string) *matrix.File {
	file, list := matrix.Parse("packages.yml", []byte(text))
	if list.HasErrors() {
		t.Fatalf("%v\n%s", list.Err(), text)
	}
	return file
}

// TestPlanIsTheProduct compares plans with the naive expansion: what is kept and what
// is removed are together the product, in its order; included rows are never removed
// by an exclude.
func TestPlanIsTheProduct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		text := m.String()
		plan := parseModel(t, text).Plan(matrix.Options{SkipIncompatible: true})
		if err := plan.Err(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		rows, removed := m.expand()
		var wantKept, wantRemoved, kept, excluded []string
		first := map[string]bool{}
		duplicates := 0
		for i, row := range slices.Concat(rows, m.include) {
			switch key := row.String(); {
			case i < len(rows) && removed[i]:
				wantRemoved = append(wantRemoved, key)
			case first[key]:
				duplicates++
			default:
				first[key] = true
				wantKept = append(wantKept, key)
			}
		}
		incompatible := map[string]bool{}
		gotDuplicates := 0
		for _, s := range plan.Skipped {
			switch key := rowOf(&s.Row).String(); {
			case s.Rule == "exclude":
				excluded = append(excluded, key)
			case s.Rule == "duplicate":
				gotDuplicates++
			default:
				incompatible[key] = true
			}
		}
		for i := range plan.Rows {
			kept = append(kept, rowOf(&plan.Rows[i]).String())
		}
		wantKept = slices.DeleteFunc(wantKept, func(key string) bool { return incompatible[key] })
		if diff := cmp.Diff(wantKept, kept, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("rows (-want +got):\n%s\n%s", diff, text)
		}
		if diff := cmp.Diff(wantRemoved, excluded, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("excluded (-want +got):\n%s\n%s", diff, text)
		}
		// An incompatible row that is given twice is skipped twice, not a duplicate.
		if gotDuplicates > duplicates {
			t.Fatalf("%d duplicates, want at most %d\n%s", gotDuplicates, duplicates, text)
		}
		for _, row := range m.include {
			if key := row.String(); !slices.Contains(kept, key) && !incompatible[key] {
				t.Fatalf("the included row %s is gone\n%s", key, text)
			}
		}
	})
}

// TestSelectCommutes: selecting while planning equals planning and then filtering, in
// order, for rows and for skips.
func TestSelectCommutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawModel(t).String()
		expression := drawExpression(t, 3)
		selection, err := matrix.ParseSelection(expression)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		file := parseModel(t, text)
		opts := matrix.Options{SkipIncompatible: true}
		all := file.Plan(opts)
		opts.Select = selection
		selected := file.Plan(opts)
		if err := selected.Err(); err != nil {
			t.Fatalf("%s: %v\n%s", expression, err, text)
		}
		var rows, skipped []string
		for i := range all.Rows {
			if selection.Match(&all.Rows[i]) {
				rows = append(rows, all.Rows[i].ID)
			}
		}
		for i := range all.Skipped {
			if s := &all.Skipped[i]; selection.Match(&s.Row) {
				skipped = append(skipped, s.Rule+" "+s.Row.ID)
			}
		}
		var gotRows, gotSkipped []string
		for i := range selected.Rows {
			gotRows = append(gotRows, selected.Rows[i].ID)
		}
		for i := range selected.Skipped {
			gotSkipped = append(gotSkipped, selected.Skipped[i].Rule+" "+selected.Skipped[i].Row.ID)
		}
		if diff := cmp.Diff(rows, gotRows, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("--select %q (-filtered +selected):\n%s\n%s", expression, diff, text)
		}
		if diff := cmp.Diff(skipped, gotSkipped, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("skips of --select %q (-filtered +selected):\n%s\n%s", expression, diff, text)
		}
	})
}

func drawExpression(t *rapid.T, depth int) string {
	if depth > 0 {
		switch rapid.IntRange(0, 4).Draw(t, "form") {
		case 0:
			return "(" + drawExpression(t, depth-1) + ") and " + drawExpression(t, depth-1)
		case 1:
			return drawExpression(t, depth-1) + " or (" + drawExpression(t, depth-1) + ")"
		case 2:
			return "not (" + drawExpression(t, depth-1) + ")"
		}
	}
	axis := rapid.SampledFrom(modelAxes).Draw(t, "axis")
	value := rapid.SampledFrom(modelValues[axis]).Draw(t, "value")
	if axis == "blas" { // not in every file
		return "package=demo"
	}
	switch op := rapid.SampledFrom([]string{"", "=", "!=", "<", ">=", "in", "not in"}).Draw(t, "operator"); {
	case op == "":
		return axis
	case op == "in" || op == "not in":
		return fmt.Sprintf("%s %s (%s, %q)", axis, op, value, rapid.SampledFrom(modelValues[axis]).Draw(t, "value"))
	case axis == "os":
		return axis + "=" + value[:4] + "*"
	default:
		return axis + op + value
	}
}

// TestRowStandsAlone: the ID, the files and the digest of a row do not depend on the
// other rows of the plan, and planning twice gives the same.
func TestRowStandsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawModel(t).String()
		file := parseModel(t, text)
		opts := matrix.Options{SkipIncompatible: true}
		plan := file.Plan(opts)
		again := parseModel(t, text).Plan(opts)
		if first, second := toJSON(t, plan), toJSON(t, again); first != second {
			t.Fatalf("the same file (-first +second):\n%s", cmp.Diff(first, second))
		}
		if len(plan.Rows) == 0 {
			return
		}
		row := rapid.SampledFrom(plan.Rows).Draw(t, "row")
		values := rowOf(&row)
		alone := modelHead(values["blas"] != "") + "    include:\n      - " + values.inline() + "\n"
		one := parseModel(t, alone).Plan(opts)
		if len(one.Rows) != 1 {
			t.Fatalf("%d rows, want 1\n%s", len(one.Rows), alone)
		}
		if diff := cmp.Diff(row, one.Rows[0]); diff != "" {
			t.Fatalf("the row among others and alone (-among +alone):\n%s\n%s", diff, alone)
		}
	})
}

func toJSON(t interface{ Fatalf(string, ...any) }, plan *matrix.Plan) string {
	settings := []matrix.Settings{}
	for i := range plan.Rows {
		s, _ := plan.Settings(plan.Rows[i].ID)
		settings = append(settings, s)
	}
	text, err := json.MarshalIndent([]any{plan.Rows, plan.Skipped, plan.Findings, plan.Unselected, plan.Estimate, settings}, "", " ")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(text)
}

// TestDigest: the digest changes if and only if a setting does that affects the files.
func TestDigest(t *testing.T) {
	const base = `packages:
  demo:
    versions: ["1.0"]
    source: {git: "https://example.com/demo", ref: "v{version}"}
    extra_deps: [torch, ninja]
    arch_lists: {hopper: "8.0 9.0+PTX", unused: "7.5"}
    env: {A: "1", B: {">=12.8": "{torch}", default: "x"}}
    matrix:
      - {cuda: "12.8.1", torch: "2.9.0", python: "3.12", arch: hopper}
`
	digest := func(text string) string {
		t.Helper()
		plan := parseModel(t, text).Plan(matrix.Options{})
		if len(plan.Rows) == 0 || plan.Err() != nil {
			t.Fatalf("%d rows, %v\n%s", len(plan.Rows), plan.Err(), text)
		}
		return plan.Rows[0].Digest
	}
	want := digest(base)
	add := func(lines string) string { return base + lines }
	replace := func(from, to string) string {
		t.Helper()
		if strings.Count(base, from) != 1 {
			t.Fatalf("%q is there %d times", from, strings.Count(base, from))
		}
		return strings.Replace(base, from, to, 1)
	}
	for _, tt := range []struct {
		name, text string
		same       bool
	}{
		{"nothing", base, true},
		{"a comment", "# Hello.\n" + base, true},
		{"description", add("    description: A demo\n"), true},
		{"test_import", add("    test_import: demo.core\n"), true},
		{"test", add("    test: {expressions: [\"demo.f()\"], requires: [numpy], requires_gpu: true, timeout: 5m}\n"), true},
		{"resources", add("    resources: {memory_per_job: 4 GiB, jobs: 2, nvcc_threads: 2, disk: 10 GiB, wall_time: 1h}\n"), true},
		{"an exclude that does not match", add("    exclude: [{python: \"3.13\"}]\n"), true},
		{"another row", add("    include: [{cuda: \"12.8.1\", torch: \"2.8.0\", python: \"3.13\"}]\n"), true},
		{"another package", add("  other: {versions: [\"2.0\"], env: {A: \"9\"}}\n"), true},
		{"a list that is not used", replace(", unused: \"7.5\"", ", unused: \"8.6\""), true},
		{"the list by value", replace("arch: hopper", "arch: \"8.0 9.0+PTX\""), true},
		{"the order of variables", replace(`{A: "1", B: {">=12.8": "{torch}", default: "x"}}`, `{B: {">=12.8": "{torch}", default: "x"}, A: "1"}`), true},
		{"a variable of other toolkits", replace(`default: "x"`, `default: "y"`), true},
		{"a variable with the same value", replace(`"{torch}"`, `"2.9.0"`), true},
		{"the ref written out", replace("v{version}", "v1.0"), true},
		{"defaults written out", add("    build: {frontend: build, isolation: false}\n    runtime_torch: any\n    local_version: \"{toolkit_tag}-torch{torch}\"\n"), true},
		{"the default of submodules", replace(`"v{version}"}`, `"v{version}", submodules: true}`), true},

		{"the version", replace(`versions: ["1.0"]`, `versions: ["1.1"]`), false},
		{"the name", replace("demo:\n", "demo2:\n"), false},
		{"a variable", replace(`A: "1"`, `A: "2"`), false},
		{"one more variable", replace(`A: "1"`, `A: "1", C: ""`), false},
		{"a variable of this toolkit", replace(`"{torch}"`, `"{torch_minor}"`), false},
		{"a variable of the group", replace("arch: hopper", "arch: hopper, env: {A: \"3\"}"), false},
		{"the list", replace(`"8.0 9.0+PTX"`, `"8.0 9.0"`), false},
		{"the list's text", replace(`"8.0 9.0+PTX"`, `"8.0;9.0+PTX"`), false},
		{"extra_deps", replace("[torch, ninja]", "[torch, ninja, packaging]"), false},
		{"build_args", add("    build_args: --verbose\n"), false},
		{"the front-end", add("    build: {frontend: uv}\n"), false},
		{"isolation", add("    build: {isolation: true}\n"), false},
		{"config_settings", add("    build: {config_settings: {\"--build-option\": \"-j4\"}}\n"), false},
		{"patches", add("    build: {patches: [{file: setup.py, find: a, replace: b}]}\n"), false},
		{"how often a patch applies", add("    build: {patches: [{file: setup.py, find: a, replace: b, count: 2}]}\n"), false},
		{"runtime_torch", add("    runtime_torch: minor\n"), false},
		{"the image", add("    image: \"nvidia/cuda:{cuda}-devel-ubuntu22.04\"\n"), false},
		{"the tag", add("    local_version: \"cu{cuda_major}\"\n"), false},
		{"wheel_tag", add("    wheel_tag: cp39-abi3\n"), false},
		{"the ref", replace("v{version}", "release-{version}"), false},
		{"submodules", replace(`"v{version}"}`, `"v{version}", submodules: false}`), false},
		{"the repository", replace("https://example.com/demo", "https://example.com/fork"), false},
		{"the kind of source", replace(`{git: "https://example.com/demo", ref: "v{version}"}`, "{path: .}"), false},
		{"the os", replace("python: \"3.12\"", "python: \"3.12\", os: ubuntu-24.04"), false},
		{"the platform", replace("python: \"3.12\"", "python: \"3.12\", platform: manylinux_2_28_x86_64"), false},
		{"the patch version of CUDA", replace("12.8.1", "12.8.0"), false},
		{"torch", replace("2.9.0", "2.9.1"), false},
		{"Python", replace("3.12", "3.13"), false},
		{"a custom axis", replace("python: \"3.12\"", "python: \"3.12\", axes: {blas: mkl}"), false},
	} {
		if got := digest(tt.text); (got == want) != tt.same {
			t.Errorf("%s: the digest is the same: %v, want %v", tt.name, got == want, tt.same)
		}
	}
}

// manyRows writes a file with zipped axes, excludes, variables and custom axes that
// has the given number of rows, a multiple of 100, and a fifth more before excluding.
func manyRows(rows int) string {
	var shards []string
	for i := range rows / 100 {
		shards = append(shards, fmt.Sprintf("s%d", i))
	}
	return `packages:
  demo:
    versions: ["1.0"]
    local_version: "{toolkit_tag}-torch{torch}-{blas}.{shard}"
    image: "nvidia/cuda:{cuda}-devel-ubuntu22.04"
    env:
      TARGET: "{toolkit}-{cuda_major}"
      ARCHS: "{arch_numbers}"
      FLAGS: {">=12.8": "-compress-mode=size -D{blas}", default: "-D{shard}"}
    matrix:
      - cuda: ["12.4.0", "12.8.1"]
        torch: ["2.6.0", "2.8.0"]
        zip: [cuda, torch]
        python: ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]
        arch: "8.0 8.6 9.0+PTX"
        axes:
          blas: [b0, b1, b2, b3, b4, b5, b6, b7, b8, b9]
          shard: [` + strings.Join(shards, ", ") + `]
        exclude:
          - {python: ">=3.14"}
    exclude:
      - {python: "3.9", torch: ">=2.9", os: windows-*}
`
}

// TestManyRows: a plan of a hundred thousand rows is complete.
func TestManyRows(t *testing.T) {
	const n = 100_000
	plan := parseModel(t, manyRows(n)).Plan(matrix.Options{})
	if err := plan.Err(); err != nil {
		t.Fatal(err)
	}
	if len(plan.Rows) != n || len(plan.Skipped) != n/5 {
		t.Errorf("%d rows and %d skipped, want %d and %d", len(plan.Rows), len(plan.Skipped), n, n/5)
	}
	want := map[string]int{"3.9": n / 5, "3.10": n / 5, "3.11": n / 5, "3.12": n / 5, "3.13": n / 5}
	if diff := cmp.Diff(want, plan.Counts("python")); diff != "" {
		t.Errorf("by Python (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"cuda 12.4.0": n / 2, "cuda 12.8.1": n / 2}, plan.CountedToolkits()); diff != "" {
		t.Errorf("by toolkit (-want +got):\n%s", diff)
	}
	ids := map[string]bool{}
	for i := range plan.Rows {
		ids[plan.Rows[i].ID] = true
	}
	if len(ids) != n {
		t.Errorf("%d different IDs, want %d", len(ids), n)
	}
}

// BenchmarkPlan expands and checks plans of three sizes. ns/row and B/row stay the
// same if the work grows as the plan does.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			file := parseModel(b, manyRows(n))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			b.ReportAllocs()
			for b.Loop() {
				if plan := file.Plan(matrix.Options{}); len(plan.Rows) != n {
					b.Fatalf("%d rows, want %d", len(plan.Rows), n)
				}
			}
			runtime.ReadMemStats(&after)
			rows := float64(b.N) * float64(n)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/rows, "ns/row")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/rows, "B/row")
		})
	}
}

// TestRowJSON: a row survives being written down and read again.
func TestRowJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z0-9.]{0,8}`)
		want := matrix.Row{
			ID: word.Draw(t, "id"), Digest: word.Draw(t, "digest"), Package: "demo", Version: "1.0",
			Kind: rapid.SampledFrom([]string{matrix.KindWheel, matrix.KindSdist}).Draw(t, "kind"),
			OS:   word.Draw(t, "os"), Platform: "linux_x86_64", Python: "3.13t", CUDA: word.Draw(t, "cuda"), ROCm: word.Draw(t, "rocm"),
			Torch: word.Draw(t, "torch"), Arch: word.Draw(t, "arch"), BuildTag: "+cu128", WheelTag: "cp313-cp313t",
			Axes: matrix.Axes(rapid.SampledFrom([]string{"", "blas=mkl", "a=1,b=2"}).Draw(t, "axes")),
		}
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got matrix.Row
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}
