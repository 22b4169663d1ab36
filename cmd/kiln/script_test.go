package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/kilntest"
	children "github.com/kiln-build/kiln/internal/run"
)

func TestMain(m *testing.M) {
	launcher.Main()
	children.Main()
	testscript.Main(m, map[string]func(){
		"kiln": func() { os.Exit(start()) },
	})
}

// TestScripts runs testdata/script/*.txtar. Besides the commands of testscript they
// have those of scriptCommands; $EXAMPLES is the folder of the examples and $PLATFORM
// what Go calls this one. Where the condition python holds, kiln finds a Python of the
// version $PYTHON, whose tag is $CPTAG. With -update, what the scripts compare with cmp is written.
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	if err != nil {
		t.Fatal(err)
	}
	python := os.Getenv("KILN_PYTHON")
	var version, path string
	if python != "" {
		out, err := exec.CommandContext(t.Context(), python, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)").Output()
		if err != nil {
			t.Fatalf("KILN_PYTHON: %v", err)
		}
		version, path, _ = strings.Cut(strings.TrimSpace(string(out)), " ")
	} else if kilntest.Required("python") {
		t.Error("KILN_PYTHON is not set (KILN_REQUIRE has python)")
	}
	cudaRoot := sharingTools(t, python)
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       kilntest.Update(),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                scriptCommands,
		Setup: func(env *testscript.Env) error {
			env.Setenv("EXAMPLES", examples)
			env.Setenv("CUDA_ROOT", cudaRoot)
			env.Setenv("PLATFORM", runtime.GOOS+"/"+runtime.GOARCH)
			if python != "" {
				env.Setenv("PYTHON", version)
				env.Setenv("CPTAG", "cp"+strings.ReplaceAll(version, ".", ""))
				env.Setenv("PATH", env.Getenv("PATH")+string(os.PathListSeparator)+filepath.Join(path, "bin"))
				env.Setenv("SSL_CERT_FILE", os.Getenv("SSL_CERT_FILE"))
			}
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "python":
				return python != "", nil
			case "sharing":
				return cudaRoot != "", nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
	})
}

// sharingTools returns the root of the CUDA toolkit among the packages of an interpreter, or "" if
// it or ccache is missing.
func sharingTools(t *testing.T, python string) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(python), "..", "lib", "python3*", "site-packages", "nvidia", "cu13", "bin", "nvcc"))
	_, err := exec.LookPath("ccache")
	if len(found) == 0 || python == "" {
		if kilntest.Required("nvcc") {
			t.Error("the packages of KILN_PYTHON have no nvcc (KILN_REQUIRE has nvcc)")
		}
		return ""
	}
	if err != nil {
		if kilntest.Required("ccache") {
			t.Errorf("%v (KILN_REQUIRE has ccache)", err)
		}
		return ""
	}
	return filepath.Dir(filepath.Dir(found[0]))
}

var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"exitcode": scriptExitCode,
	"json":     scriptJSON,
	"parts":    scriptParts,
	"rows":     scriptRows,
	"samerows": scriptSameRows,
	"wheel":    scriptWheel,
}

// scriptExitCode runs kiln and wants it to leave with a certain code:
//
//	exitcode 2 plan --no-such-flag
func scriptExitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode CODE ARGS…")
	}
	err := ts.Exec("kiln", args[1:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s", got, args[0])
	}
}

// scriptJSON compares one value of a JSON file. The path has names and indexes; length is
// the length of a list or map, and * collects a value of every element:
//
//	json plan.json rows.length      88
//	json plan.json rows.0.os        ubuntu-22.04
//	json plan.json rows.*.python    3.12 3.13
//
// With a ! in front the path must not exist.
func scriptJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg && len(args) != 2 || !neg && len(args) < 2 {
		ts.Fatalf("usage: json FILE PATH VALUE…, or ! json FILE PATH")
	}
	var v any
	readJSON(ts, args[0], &v)
	got, ok := jsonValues(v, strings.Split(args[1], "."))
	switch {
	case neg && ok:
		ts.Fatalf("%s has %s: %v", args[0], args[1], got)
	case !neg && !ok:
		ts.Fatalf("%s has no %s", args[0], args[1])
	case !neg:
		if diff := cmp.Diff(args[2:], got); diff != "" {
			ts.Fatalf("%s %s (-want +got):\n%s", args[0], args[1], diff)
		}
	}
}

func readJSON(ts *testscript.TestScript, name string, v any) {
	if err := json.Unmarshal([]byte(ts.ReadFile(name)), v); err != nil {
		ts.Fatalf("%s: %v", name, err)
	}
}

func jsonValues(v any, path []string) ([]string, bool) {
	if len(path) == 0 {
		switch v := v.(type) {
		case string:
			return []string{v}, true
		case map[string]any, []any, nil, bool:
			text, err := json.Marshal(v)
			return []string{string(text)}, err == nil
		case float64:
			return []string{strconv.FormatFloat(v, 'f', -1, 64)}, true
		}
		return nil, false
	}
	switch v := v.(type) {
	case map[string]any:
		if path[0] == "length" {
			return []string{strconv.Itoa(len(v))}, true
		}
		// A key may itself have dots in it, as row IDs do.
		for n := len(path); n > 0; n-- {
			if value, ok := v[strings.Join(path[:n], ".")]; ok {
				return jsonValues(value, path[n:])
			}
		}
	case []any:
		switch path[0] {
		case "length":
			return []string{strconv.Itoa(len(v))}, true
		case "*":
			out := []string{}
			for _, item := range v {
				values, ok := jsonValues(item, path[1:])
				if !ok {
					return nil, false
				}
				out = append(out, values...)
			}
			return out, true
		}
		if i, err := strconv.Atoi(path[0]); err == nil && i >= 0 && i < len(v) {
			return jsonValues(v[i], path[1:])
		}
	}
	return nil, false
}

// planRow is a row of `kiln plan --json`, as far as the scripts look at it.
type planRow struct {
	ID, Kind, OS, Python, Toolkit, CUDA, ROCm, Torch, Arch string
	Files                                                  []string
}

func readPlan(ts *testscript.TestScript, name string) []planRow {
	var plan struct{ Rows []planRow }
	readJSON(ts, name, &plan)
	return plan.Rows
}

func (r planRow) axis(ts *testscript.TestScript, name string) string {
	switch name {
	case "kind":
		return r.Kind
	case "os":
		return r.OS
	case "python":
		return r.Python
	case "toolkit":
		return r.Toolkit
	case "cuda":
		return r.CUDA
	case "rocm":
		return r.ROCm
	case "torch":
		return r.Torch
	case "arch":
		return r.Arch
	}
	ts.Fatalf("no axis %q", name)
	return ""
}

// scriptRows counts rows that have certain values:
//
//	rows plan.json 41 os=ubuntu-22.04 toolkit=cuda
func scriptRows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: rows FILE NUMBER AXIS=VALUE…")
	}
	n := 0
	for _, r := range readPlan(ts, args[0]) {
		if !slices.ContainsFunc(args[2:], func(arg string) bool {
			name, value, _ := strings.Cut(arg, "=")
			return r.axis(ts, name) != value
		}) {
			n++
		}
	}
	if strconv.Itoa(n) != args[1] {
		ts.Fatalf("%d rows have %s, want %s", n, strings.Join(args[2:], " and "), args[1])
	}
}

// scriptSameRows compares a plan, as a set, with a table in which every line is a
// product of comma lists. A dash is an empty value, and the last column names a line
// "arch NAME LIST".
//
//	samerows plan.json table.txt
func scriptSameRows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: samerows FILE TABLE")
	}
	want, archs := map[string]int{}, map[string]string{"-": ""}
	for line := range strings.Lines(ts.ReadFile(args[1])) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if fields[0] == "arch" {
			archs[fields[1]] = strings.Join(fields[2:], " ")
			continue
		}
		keys := []string{""}
		for i, field := range fields {
			var longer []string
			for _, key := range keys {
				for value := range strings.SplitSeq(field, ",") {
					if i == len(fields)-1 {
						value = archs[value]
					}
					longer = append(longer, key+"|"+strings.TrimPrefix(value, "-"))
				}
			}
			keys = longer
		}
		for _, key := range keys {
			want[key]++
		}
	}
	got := map[string]int{}
	for _, r := range readPlan(ts, args[0]) {
		got[strings.Join([]string{"", r.Kind, r.OS, r.CUDA, r.ROCm, r.Torch, r.Python, r.Arch}, "|")]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		ts.Fatalf("rows (-want +got):\n%s", diff)
	}
}

// scriptParts checks a matrix for GitHub Actions against the plan it was made from:
// every row is there once, in order, and no part is too large for GitHub.
//
//	parts matrix.json plan.json 3
func scriptParts(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: parts MATRIX PLAN NUMBER")
	}
	type jobs struct {
		Include []map[string]string
	}
	var matrix struct {
		jobs
		Parts []jobs
	}
	readJSON(ts, args[0], &matrix)
	parts := matrix.Parts
	if len(parts) == 0 {
		parts = []jobs{matrix.jobs}
	}
	if strconv.Itoa(len(parts)) != args[2] {
		ts.Fatalf("%d parts, want %s", len(parts), args[2])
	}
	var want, got []string
	for _, r := range readPlan(ts, args[1]) {
		want = append(want, r.ID)
	}
	for _, part := range parts {
		if len(part.Include) == 0 || len(part.Include) > 256 {
			ts.Fatalf("a part has %d jobs", len(part.Include))
		}
		for _, job := range part.Include {
			got = append(got, job["row"])
			names := slices.Sorted(maps.Keys(job))
			if diff := cmp.Diff([]string{"arch", "cuda", "group", "kind", "name", "os", "python", "rocm", "row", "runs_on", "sandbox", "torch"}, names); diff != "" {
				ts.Fatalf("keys of a job (-want +got):\n%s", diff)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		ts.Fatalf("rows (-want +got):\n%s", diff)
	}
}

// TestHelpHasExamples: the help of every command shows how to use it.
func TestHelpHasExamples(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Example == "" {
			t.Errorf("%q has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%q: the example %q is not indented by two", cmd.CommandPath(), line)
			}
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%q has the short help %q, want a sentence without its full stop", cmd.CommandPath(), cmd.Short)
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk((&app{stdin: strings.NewReader(""), stdout: new(strings.Builder), stderr: new(strings.Builder)}).command())
}

// TestFlagsAreDocumented: every flag says what it does, in one style.
func TestFlagsAreDocumented(t *testing.T) {
	root := (&app{}).command()
	for _, cmd := range append(root.Commands(), root) {
		for line := range strings.Lines(cmd.LocalFlags().FlagUsages()) {
			usage := strings.TrimSpace(line)
			if fields := strings.Fields(usage); len(fields) < 3 {
				t.Errorf("%q: the flag %q has no description", cmd.CommandPath(), usage)
			}
			if strings.HasSuffix(usage, ".") {
				t.Errorf("%q: the description %q ends with a full stop", cmd.CommandPath(), usage)
			}
		}
	}
}

// TestExitCodes: the codes are a contract with scripts.
func TestExitCodes(t *testing.T) {
	got := fmt.Sprint(exitDone, exitRowsFailed, exitUsage, exitInterrupted)
	if want := "0 1 2 130"; got != want {
		t.Errorf("exit codes %s, want %s", got, want)
	}
}
