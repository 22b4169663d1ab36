package workflow_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/workflow"
)

// actionlint is the checker of workflows, built from dev/tools/go.mod.
func actionlint(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", ".cache", "tools", "actionlint"))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err == nil {
		return path
	}
	kilntest.Lacking(t, "actionlint", "actionlint is not built; make deps builds it")
	return ""
}

// lint runs actionlint on a workflow.
func lint(t *testing.T, program, name string, text []byte) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, ".github", "workflows", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, ".github", "actionlint.yaml")
	if err := os.WriteFile(config, []byte("self-hosted-runner: {labels: [gpu]}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-config-file", config, "-no-color", "-shellcheck=", "-pyflakes=", path)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("actionlint: %v\n%s", err, out)
	}
}

// workflowConfigs are added to the examples, or stand alone.
var workflowConfigs = map[string]struct{ example, more string }{
	"exllamav2":  {"exllamav2", ""},
	"flash-attn": {"flash-attn", "publish:\n  targets: {release: {github: octo/flash-attn}}\n  tag: \"v{date}.{counter}\"\n  index: {dir: site}\n"},
	"everything": {"exllamav2", `
publish:
  to: bucket
  targets: {bucket: {s3: wheels, endpoint: "https://s3.example.org"}, release: {github: octo/wheels}}
  index: {dir: site}
workflow:
  name: "Build: wheels"
  kiln: path
  runners: {ubuntu-22.04: [self-hosted, linux], host: [self-hosted]}
  gpu_runner: [self-hosted, gpu]
  triggers: [push, tag]
  branch: master
  actions: {checkout: octo/checkout@0123456789012345678901234567890123456789}
  msvc: "14.44"
  timeout: 5h
`},
	"branch": {"flash-attn", "publish:\n  targets: {server: {kiln: \"https://wheels.example.org/\"}}\n  index: {dir: site, branch: gh-pages}\nworkflow: {triggers: tag}\n"},
}

func parsePlan(t *testing.T, text string) (*matrix.File, *matrix.Plan) {
	t.Helper()
	file, list := matrix.Parse("packages.yml", []byte(text))
	if list.HasErrors() {
		t.Fatal(list.Err())
	}
	plan := file.Plan(matrix.Options{})
	if err := plan.Err(); err != nil {
		t.Fatal(err)
	}
	return file, plan
}

func TestWorkflow(t *testing.T) {
	program := actionlint(t)
	for name, c := range workflowConfigs {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("..", "examples", c.example, "packages.yml"))
			if err != nil {
				t.Fatal(err)
			}
			file, plan := parsePlan(t, string(text)+c.more)
			got, err := workflow.New(workflow.Options{Plan: plan, Workflow: file.Workflow(), Publish: file.Publish(), File: "packages.yml", Version: "v0.1.0"})
			if err != nil {
				t.Fatal(err)
			}
			kilntest.Golden(t, "testdata/"+name+".yml", got)
			lint(t, program, name+".yml", got)
			checkWorkflow(t, string(got))
		})
	}
}

// checkWorkflow holds what is promised of every workflow.
func checkWorkflow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if run, ok := strings.CutPrefix(line, "run: "); ok {
			if !strings.HasPrefix(run, "kiln ") && !strings.HasPrefix(run, "go install ") {
				t.Errorf("a step is no kiln command: %s", run)
			}
			if strings.Contains(run, "${{") || strings.ContainsAny(run, ";|&`") {
				t.Errorf("a step has more than one command, or a value in its text: %s", run)
			}
		}
		if uses, ok := strings.CutPrefix(line, "uses: "); ok {
			ref, _, _ := strings.Cut(uses, " ")
			_, hash, _ := strings.Cut(ref, "@")
			if len(hash) != 40 || strings.Trim(hash, "0123456789abcdef") != "" {
				t.Errorf("an action is not pinned: %s", uses)
			}
		}
	}
	if !strings.Contains(text, "\npermissions: {}\n") {
		t.Error("the workflow as a whole has permissions")
	}
	if strings.Count(text, "contents: write") != 1 {
		t.Error("more than the release job may write")
	}
	if strings.Count(text, "strategy:") != strings.Count(text, "fail-fast: false") {
		t.Error("a matrix fails fast")
	}
}

// TestWorkflowJobs: every row is in one job, and the jobs are those of the 88 rows.
func TestWorkflowJobs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "examples", "exllamav2", "packages.yml"))
	if err != nil {
		t.Fatal(err)
	}
	_, plan := parsePlan(t, string(text))
	jobs := workflow.Jobs(plan)
	if len(jobs) != 2 || len(jobs[0].Rows) != 50 || len(jobs[1].Rows) != 38 || !jobs[1].Windows {
		t.Fatalf("%d jobs, want 50 Linux and 38 Windows rows", len(jobs))
	}
	var out strings.Builder
	for _, j := range jobs {
		matrix, err := j.Matrix()
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(j.ID + "=" + strings.ReplaceAll(matrix, "},{", "},\n{") + "\n")
	}
	kilntest.Golden(t, "testdata/exllamav2.matrix", []byte(out.String()))
}

// TestWorkflowSplit: more rows than GitHub takes become several jobs, and none gets lost.
func TestWorkflowSplit(t *testing.T) {
	file, plan := parsePlan(t, `
packages:
  demo:
    versions: ["1.0"]
    local_version: "{blas}.{shard}"
    matrix:
      - python: ["3.10", "3.11", "3.12", "3.13", "3.14"]
        os: debian-12
        axes:
          blas: [b0, b1, b2, b3, b4, b5, b6, b7]
          shard: [s00, s01, s02, s03, s04, s05, s06, s07, s10, s11, s12, s13, s14, s15, s16, s17]
`)
	jobs := workflow.Jobs(plan)
	n := 0
	for _, j := range jobs {
		n += len(j.Rows)
		if len(j.Rows) > matrix.GitHubMaxJobs {
			t.Errorf("job %s has %d rows", j.ID, len(j.Rows))
		}
	}
	if len(jobs) != 3 || n != 640 || jobs[2].ID != "linux3" {
		t.Errorf("%d jobs with %d rows, want 3 with 640", len(jobs), n)
	}
	if got := jobs[0].Rows[0].RunsOn; got != `["ubuntu-24.04"]` {
		t.Errorf("debian-12 runs on %s, which GitHub does not host", got)
	}
	text, err := workflow.New(workflow.Options{Plan: plan, Workflow: file.Workflow(), Publish: file.Publish(), File: "a/packages.yml", Version: "devel"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"linux3:", "fromJSON(needs.prepare.outputs.linux3)", "needs: [prepare, linux, linux2, linux3]", "path: a/dist\n", "kiln@latest"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the workflow has no %q", want)
		}
	}
	lint(t, actionlint(t), "split.yml", text)
}
