package workflow_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/publish"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// standIns are actions for a machine without GitHub: what a runner's service would do, with a
// folder.
var standIns = map[string]string{
	// It keeps nothing: that is done after the job, which a composite action cannot.
	"cache": `name: cache
inputs: {path: {required: true}, key: {required: true}, restore-keys: {required: false}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'test -n "$CACHED" && test -n "$KEY"', env: {CACHED: "${{ inputs.path }}", KEY: "${{ inputs.key }}"}}
`,
	"checkout": `
name: checkout
inputs: {persist-credentials: {required: false}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'cp -a "$SOURCE/." . && rm -rf dist .kiln site'}
`,
	"upload-artifact": `
name: upload-artifact
inputs: {name: {required: true}, path: {required: true}, if-no-files-found: {required: false}, retention-days: {required: false}, include-hidden-files: {required: false}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {NAME: '${{ inputs.name }}', FROM: '${{ inputs.path }}'}
      run: mkdir -p "$ARTIFACTS/$NAME" && if [ -d "$FROM" ]; then cp -a "$FROM/." "$ARTIFACTS/$NAME/"; else cp -a "$FROM" "$ARTIFACTS/$NAME/"; fi
`,
	"download-artifact": `
name: download-artifact
inputs: {pattern: {required: true}, path: {required: true}, merge-multiple: {required: false}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {PATTERN: '${{ inputs.pattern }}', TO: '${{ inputs.path }}'}
      run: mkdir -p "$TO" && for d in "$ARTIFACTS"/$PATTERN; do cp -a "$d/." "$TO/"; done
`,
	"upload-pages-artifact": `
name: upload-pages-artifact
inputs: {path: {required: true}, retention-days: {required: false}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {FROM: '${{ inputs.path }}'}
      run: mkdir -p "$ARTIFACTS/pages" && cp -a "$FROM/." "$ARTIFACTS/pages/"
`,
	"deploy-pages": `
name: deploy-pages
outputs: {page_url: {value: "file://pages"}}
runs:
  using: composite
  steps:
    - {shell: bash, run: 'test -f "$ARTIFACTS/pages/catalog.json"'}
`,
}

// TestE2EWorkflow writes the workflow of a real package and lets nektos/act run its Linux path on
// this machine, from the plan to a published folder, its index and its pages. Only the actions of
// GitHub itself are stand-ins.
func TestE2EWorkflow(t *testing.T) {
	kilntest.NeedE2E(t, "workflow")
	repo := t.TempDir()
	must(t, os.CopyFS(repo, os.DirFS(filepath.Join("..", "examples", "hello-cuda"))))
	for _, name := range []string{"dist", ".kiln"} {
		must(t, os.RemoveAll(filepath.Join(repo, name)))
	}
	public, artifacts := runWorkflow(t, repo, onHost)
	wheels, err := filepath.Glob(filepath.Join(public, "*", "*.whl"))
	must(t, err)
	if len(wheels) != 2 {
		t.Errorf("published: %v, want two wheels", wheels)
	}
	plan, err := os.ReadFile(filepath.Join(artifacts, "plan", "plan.html"))
	must(t, err)
	if strings.Count(string(plan), "hello-cuda-0.1.0-") < 2 {
		t.Errorf("the page of the plan has not both rows:\n%s", plan)
	}
	page, err := os.ReadFile(filepath.Join(artifacts, "pages", "all", "simple", "hello-cuda", "index.html"))
	must(t, err)
	if strings.Count(string(page), "https://wheels.example.org/") < 2 {
		t.Errorf("the page has not both wheels:\n%s", page)
	}
}

// TestE2EWorkflowFailure: of two rows one fails. The other is published, and the notes of the
// release say why the one is missing.
func TestE2EWorkflowFailure(t *testing.T) {
	kilntest.NeedE2E(t, "workflow")
	repo := t.TempDir()
	const yml = `packages:
  demo:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [build, "setuptools>=77"]
    test_import: demo
    local_version: "{flavor}"
    env: {FLAVOR: "{flavor}"}
    matrix: [{os: debian-12, python: "3.11", axes: {flavor: [good, broken]}}]
`
	const setup = `import os
from setuptools import Extension, setup
if os.environ["FLAVOR"] == "broken":
    raise SystemExit("error: the flux capacitor is missing")
setup(name="demo", version="1.0", ext_modules=[Extension("demo", ["demo.c"])])
`
	const module = `#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "demo", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&module); }
`
	must(t, os.Mkdir(filepath.Join(repo, "src"), 0o777))
	for name, text := range map[string]string{"packages.yml": yml, "src/setup.py": setup, "src/demo.c": module} {
		must(t, os.WriteFile(filepath.Join(repo, filepath.FromSlash(name)), []byte(text), 0o666))
	}
	run := onHost
	run.fails = true
	public, _ := runWorkflow(t, repo, run)
	target, err := publish.NewDir(public, publish.DirOptions{})
	must(t, err)
	releases, err := target.List(t.Context(), func(string) bool { return true })
	must(t, err)
	if len(releases) != 1 || !strings.Contains(releases[0].Notes, "not complete") {
		t.Fatalf("releases: %+v", releases)
	}
	if notes := releases[0].Notes; !strings.Contains(notes, "| failed: ") || strings.Contains(notes, "there is no record") {
		t.Errorf("the notes do not say why a row failed:\n%s", notes)
	}
	t.Log(releases[0].Notes)
}

// TestE2EWorkflowReuse: of two rows that differ in torch alone one is compiled. The job of the other
// gets its wheel and proves it, and the release has one file that serves both.
func TestE2EWorkflowReuse(t *testing.T) {
	kilntest.NeedE2E(t, "workflow")
	repo := t.TempDir()
	for name, text := range map[string]string{
		"packages.yml": `packages:
  demo:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: ["setuptools>=77", ninja]
    torch_source: {path: torch}
    local_version: "cpu-torch{torch}"
    reuse: {torch: import}
    test_import: demo
    matrix: [{os: debian-12, torch: ["2.10.0", "2.12.1"], python: "3.11"}]
`,
		"src/setup.py": "from setuptools import Extension, setup\nsetup(name='demo', version='1.0', ext_modules=[Extension('demo', ['demo.c'])])\n",
		"src/demo.c": `#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "demo", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_demo(void) { return PyModule_Create(&module); }
`,
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(repo, name)), 0o777))
		must(t, os.WriteFile(filepath.Join(repo, name), []byte(text), 0o666))
	}
	kilntest.TorchWheels(t, filepath.Join(repo, "torch"), "2.10.0", "2.12.1")
	public, artifacts := runWorkflow(t, repo, onHost)
	wheels, err := filepath.Glob(filepath.Join(public, "*", "*.whl"))
	must(t, err)
	if len(wheels) != 1 || !strings.Contains(wheels[0], "torch2.10.0") {
		t.Errorf("published: %v, want the wheel of torch 2.10.0", wheels)
	}
	for _, view := range []string{"torch2.10", "torch2.12"} {
		page, err := os.ReadFile(filepath.Join(artifacts, "pages", "cpu", view, "simple", "demo", "index.html"))
		if err != nil || !strings.Contains(string(page), "torch2.10.0-cp311-cp311") {
			t.Errorf("the page of %s has not the wheel: %v\n%s", view, err, page)
		}
	}
	second, err := record.Read(filepath.Join(artifacts, "dist-demo-1.0-cpu-torch2.12.1-cp311-linux_x86_64"), "demo-1.0-cpu-torch2.12.1-cp311-linux_x86_64")
	must(t, err)
	if second.Reuse == nil || second.Reuse.Row != "demo-1.0-cpu-torch2.10.0-cp311-linux_x86_64" {
		t.Errorf("the second row was not proven: %+v", second.Reuse)
	}
}

// actRun is a run of a workflow by act.
type actRun struct {
	workflow string   // what packages.yml has of it, besides kiln
	event    []string // act's words for what starts it
	programs string   // a folder that comes first on PATH
	env      []string
	fetched  bool // jobs fetch kiln, which is not on PATH
	fails    bool // the run as a whole is red
	parallel int  // rows at the same time; act takes a number only, and one row where it finds none
}

// onHost is a run started by hand, whose rows are built on this machine.
var onHost = actRun{workflow: "  sandbox: host\n  runners: {debian-12: ubuntu-24.04}\n", event: byHand, fetched: true}

var byHand = []string{"workflow_dispatch", "--input", "release=1"}

// runWorkflow completes a configuration, writes its workflow and runs it.
func runWorkflow(t *testing.T, repo string, r actRun) (public, artifacts string) {
	t.Helper()
	act, err := filepath.Abs(filepath.Join("..", ".cache", "tools", "act"))
	must(t, err)
	kiln := builtKiln(t)
	from, search := "path", filepath.Dir(kiln)+":"+os.Getenv("PATH")
	if r.fetched {
		sum, _, err := fsx.SHA256(kiln)
		must(t, err)
		from, search = fmt.Sprintf(`{url: "file://%s", sha256: {linux-amd64: %s}}`, kiln, sum), os.Getenv("PATH")
	}
	if _, err := os.Stat(act); err != nil {
		t.Fatalf("%v; run make e2e-workflow", err)
	}
	artifacts, public = t.TempDir(), filepath.Join(t.TempDir(), "public")
	config, err := os.ReadFile(filepath.Join(repo, "packages.yml"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(repo, "packages.yml"), fmt.Appendf(config, `
publish:
  targets: {folder: {dir: %q, url: "https://wheels.example.org/"}}
  index: {dir: site}
workflow:
  kiln: %s
%s`, public, from, r.workflow), 0o666))
	if r.programs != "" {
		search = r.programs + ":" + search
	}
	run := func(succeeds bool, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "PATH="+search, "ARTIFACTS="+artifacts, "XDG_CACHE_HOME="+filepath.Join(artifacts, ".cache"))
		out, err := cmd.CombinedOutput()
		if (err == nil) != succeeds {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	run(true, kiln, "workflow", "github", "--write")
	file := filepath.Join(repo, ".github", "workflows", "kiln.yml")
	text, err := os.ReadFile(file)
	must(t, err)
	if r.parallel > 0 {
		text = regexp.MustCompile(`max-parallel: .*`).ReplaceAll(text, fmt.Appendf(nil, "max-parallel: %d", r.parallel))
		must(t, os.WriteFile(file, text, 0o666))
	}
	run(true, "git", "init", "-q", "-b", "main")
	run(true, "git", "add", "-A")
	run(true, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "first")

	actions := t.TempDir()
	args := append(slices.Clone(r.event), "-P", "ubuntu-24.04=-self-hosted", "-P", "ubuntu-22.04=-self-hosted", "--concurrent-jobs", "1", "--action-offline-mode", "--no-skip-checkout")
	for _, v := range append([]string{
		"ARTIFACTS=" + artifacts, "SOURCE=" + repo, "PIP_INDEX_URL=" + os.Getenv("PIP_INDEX_URL"), "PIP_CERT=" + os.Getenv("PIP_CERT"), "HOME=" + os.Getenv("HOME"),
	}, r.env...) {
		args = append(args, "--env", v)
	}
	for _, m := range regexp.MustCompile(`uses: (\S+)@([0-9a-f]{40})`).FindAllStringSubmatch(string(text), -1) {
		short := m[1][strings.LastIndexByte(m[1], '/')+1:]
		body := standIns[short]
		if body == "" {
			if short == "setup-python" { // on hosted runners only
				body = "name: none\ninputs: {python-version: {required: false}}\nruns: {using: composite, steps: [{shell: bash, run: 'exit 1'}]}\n"
			} else {
				t.Fatalf("no stand-in for %s", m[1])
			}
		}
		dir := filepath.Join(actions, short)
		must(t, os.MkdirAll(dir, 0o777))
		must(t, os.WriteFile(filepath.Join(dir, "action.yml"), []byte(body), 0o666))
		args = append(args, "--local-repository", "https://github.com/"+m[1]+"@"+m[2]+"="+dir)
	}
	t.Log(lastLines(run(!r.fails, act, args...), 200))
	return public, artifacts
}

// builtKiln is the program that make build made.
func builtKiln(t *testing.T) string {
	t.Helper()
	kiln, err := filepath.Abs(filepath.Join("..", "bin", "kiln"))
	must(t, err)
	if _, err := os.Stat(kiln); err != nil {
		t.Fatalf("%v; run make e2e-workflow", err)
	}
	return kiln
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
