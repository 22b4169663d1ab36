package workflow_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
  release_on: [push, dispatch]
  max_parallel: 8
  attest: true
  sign_key: WHEEL_KEY
  rows: "python >= 3.11"
  branch: master
  actions: {checkout: octo/checkout@0123456789012345678901234567890123456789}
  msvc: "14.44"
  timeout: 5h
`},
	"branch": {"flash-attn", "publish:\n  targets: {server: {kiln: \"https://wheels.example.org/\"}}\n  index: {dir: site, branch: gh-pages}\n" +
		"workflow:\n  triggers: tag\n  kiln: {wheel: kiln-build==0.1.0, index: \"https://wheels.example.org/simple/\", sha256: {linux-amd64: " + someSum + "}}\n"},
	"fork": {"flash-attn", "cache: {remote: \"https://cache.example.org/kiln\"}\nworkflow:\n  release_on: push\n  kiln:\n    url: \"https://example.org/kiln-{platform}\"\n    sha256: {linux-amd64: " + someSum + "}\n"},
}

const someSum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

var someSums = map[string]string{"linux-amd64": someSum, "darwin-arm64": someSum}

// allSums are those of a kiln whose maker knows the programs of all platforms.
var allSums = map[string]string{"linux-amd64": someSum, "windows-amd64": someSum}

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
			if strings.Contains(c.more, "\nworkflow:") {
				text, _, _ = bytes.Cut(text, []byte("\nworkflow:"))
			}
			file, plan := parsePlan(t, string(text)+c.more)
			got, err := workflow.New(workflow.Options{Plan: plan, Workflow: file.Workflow(), Publish: file.Publish(), File: "packages.yml", Version: "0.1.0", Sums: allSums})
			if err != nil {
				t.Fatal(err)
			}
			kilntest.Golden(t, "testdata/"+name+".yml", got)
			lint(t, program, name+".yml", got)
			checkWorkflow(t, string(got))
		})
	}
}

// TestOwnWorkflows: those of this repository pass the checker, with actions pinned as in the ones
// that kiln writes.
func TestOwnWorkflows(t *testing.T) {
	names, err := filepath.Glob(filepath.Join("..", ".github", "workflows", "*.yml"))
	if err != nil || len(names) < 2 {
		t.Fatalf("%v: %q", err, names)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lint(t, actionlint(t), filepath.Base(name), text)
		if !strings.Contains(string(text), "\npermissions: {}\n") {
			t.Errorf("%s as a whole has permissions", name)
		}
		for _, m := range regexp.MustCompile(`uses: (.*)`).FindAllStringSubmatch(string(text), -1) {
			repo, _, _ := strings.Cut(m[1], "@")
			for _, own := range workflow.DefaultActions {
				if strings.HasPrefix(own, repo+"@") && own != m[1] {
					t.Errorf("%s: %s, and kiln writes %s", name, m[1], own)
				}
			}
			if !regexp.MustCompile(`@[0-9a-f]{40} # v`).MatchString(m[1]) {
				t.Errorf("%s: %s is not pinned", name, m[1])
			}
		}
	}
}

// checkWorkflow holds what is promised of every workflow.
func checkWorkflow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if run, ok := strings.CutPrefix(line, "run: "); ok && run != "|" { // the step that gets kiln, see TestInstall
			if !strings.HasPrefix(run, "kiln ") {
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
	text, _, _ = bytes.Cut(text, []byte("\nworkflow:"))
	_, plan := parsePlan(t, string(text))
	jobs := workflow.Jobs(plan, nil)
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
	jobs := workflow.Jobs(plan, nil)
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
	text, err := workflow.New(workflow.Options{Plan: plan, Workflow: file.Workflow(), Publish: file.Publish(), File: "a/packages.yml", Version: "v0.1.0", Sums: someSums})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"linux3:", "fromJSON(needs.prepare.outputs.linux3)", "needs: [prepare, linux, linux2, linux3]", "path: a/dist\n", "releases/download/v0.1.0/kiln-0.1.0-{platform}{exe}"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the workflow has no %q", want)
		}
	}
	lint(t, actionlint(t), "split.yml", text)
}

// TestWorkflowReuse: rows that another one's wheel may serve come after it and get its files.
func TestWorkflowReuse(t *testing.T) {
	file, plan := parsePlan(t, `
packages:
  demo:
    versions: ["1.0"]
    local_version: "cpu-torch{torch}"
    reuse: {torch: import}
    matrix: [{os: [ubuntu-24.04, windows-2022], torch: ["2.10.0", "2.12.1"], python: "3.12"}]
workflow: {kiln: path}
`)
	after := map[string]string{}
	for _, platform := range []string{"linux_x86_64", "win_amd64"} {
		after["demo-1.0-cpu-torch2.12.1-cp312-"+platform] = "demo-1.0-cpu-torch2.10.0-cp312-" + platform
	}
	var got []string
	for _, j := range workflow.Jobs(plan, after) {
		if len(j.Rows) != 1 {
			t.Errorf("%s has %d rows", j.ID, len(j.Rows))
			continue
		}
		got = append(got, strings.TrimSpace(j.ID+" "+strings.Join(j.Needs, " "))+": "+j.Rows[0].Row+", "+j.Rows[0].After)
	}
	want := []string{
		"linux: demo-1.0-cpu-torch2.10.0-cp312-linux_x86_64, ",
		"windows: demo-1.0-cpu-torch2.10.0-cp312-win_amd64, ",
		"linux_proven linux: demo-1.0-cpu-torch2.12.1-cp312-linux_x86_64, demo-1.0-cpu-torch2.10.0-cp312-linux_x86_64",
		"windows_proven windows: demo-1.0-cpu-torch2.12.1-cp312-win_amd64, demo-1.0-cpu-torch2.10.0-cp312-win_amd64",
	}
	if !slices.Equal(got, want) {
		t.Errorf("jobs\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	text, err := workflow.New(workflow.Options{Plan: plan, After: after, Workflow: file.Workflow(), Publish: file.Publish(), File: "packages.yml"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"needs: [prepare, linux]", "needs: [prepare, windows]", "pattern: dist-${{ matrix.after }}\n", "needs: [prepare, linux, windows, linux_proven, windows_proven]"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the workflow has no %q", want)
		}
	}
	if n := strings.Count(string(text), "Get the wheel of another row"); n != 2 {
		t.Errorf("%d jobs get the wheel of another row, want 2", n)
	}
	lint(t, actionlint(t), "reuse.yml", text)
	if outputs, err := workflow.Outputs(plan, after, text); err != nil || !strings.Contains(outputs, "\nlinux_proven={") {
		t.Errorf("outputs %v:\n%s", err, outputs)
	}
	if summary := workflow.PlanSummary(plan, after, "0"); strings.Count(summary, "that of `demo-1.0-cpu-torch2.10.0") != 2 {
		t.Errorf("summary:\n%s", summary)
	}
}

// TestCheckJobs: a job that cannot succeed is not generated. The rows are named with what to set.
func TestCheckJobs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "examples", "exllamav2", "packages.yml"))
	if err != nil {
		t.Fatal(err)
	}
	_, plan := parsePlan(t, string(text))
	if err := workflow.CheckJobs(plan); err != nil || len(plan.HostedJobs()) != 88 {
		t.Errorf("the example as shipped: %d jobs, %v", len(plan.HostedJobs()), err)
	}
	text, _, _ = bytes.Cut(text, []byte("\nworkflow:"))
	_, plan = parsePlan(t, string(text)+`
  elsewhere: {versions: ["1.0"], matrix: [{os: debian-12, python: "3.11"}]}
`)
	const want = `some rows cannot be built by the hosted workflow
elsewhere-1.0-cpu-cp311-linux_x86_64: no hosted runner has debian-12, and on another system the wheel would need another glibc
  set workflow.runners to runners with it, or an image: for the package, or leave the rows out with workflow: {rows: "os != debian-12"}`
	if err := workflow.CheckJobs(plan); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

// TestKilnSource: a workflow whose jobs could not get kiln is not written.
func TestKilnSource(t *testing.T) {
	for _, test := range []struct{ name, kiln, version, want string }{
		{"development", "", "v0.1.0-3-gabcdef0-dirty", "is not from a release"},
		{"no version", "", "devel", "is not from a release"},
		{"own release", "", "0.1.0", ""},
		{"same release", "v0.1.0", "0.1.0", ""},
		{"another release", "v0.2.0", "0.1.0", "workflow.kiln.sha256 has no hash for linux-amd64, which is needed for the jobs that plan and release\n  it is in SHA256SUMS of the release"},
		{"another release with its hash", "{version: v0.2.0, sha256: {linux-amd64: " + someSum + "}}", "devel", ""},
		{"no release", "main", "0.1.0", `"main" is no release`},
		{"the hash of another platform", "{url: \"https://example.org/{platform}\", sha256: {linux-arm64: " + someSum + "}}", "0.1.0", "no hash for linux-amd64"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := "packages: {demo: {versions: [\"1.0\"], matrix: [{os: ubuntu-24.04, python: \"3.12\"}]}}\n"
			if test.kiln != "" {
				text += "workflow: {kiln: " + test.kiln + "}\n"
			}
			file, plan := parsePlan(t, text)
			got, err := workflow.New(workflow.Options{Plan: plan, Workflow: file.Workflow(), Publish: file.Publish(), File: "packages.yml", Version: test.version, Sums: someSums})
			if test.want == "" && (err != nil || !bytes.Contains(got, []byte("KILN_SHA256: \"linux-amd64="+someSum))) {
				t.Errorf("%v\n%s", err, got)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// installStep is the script of the step that gets kiln.
func installStep(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "        run: |\n")
	script, _, _ := strings.Cut(after, "      - name:")
	if !ok {
		t.Fatal("the workflow does not fetch kiln")
	}
	return script
}

// TestInstallWheel runs the step that lets pip install kiln, from an index in a folder.
func TestInstallWheel(t *testing.T) {
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	const info = "kiln_build-0.1.0.dist-info/"
	content := kilntest.Zip(t, map[string][]byte{
		info + "METADATA":                    []byte("Metadata-Version: 2.1\nName: kiln-build\nVersion: 0.1.0\n"),
		info + "WHEEL":                       []byte("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n"),
		info + "RECORD":                      nil,
		"kiln_build-0.1.0.data/scripts/kiln": []byte("#!/bin/sh\necho fetched\n"),
	})
	index := t.TempDir()
	if err := os.Mkdir(filepath.Join(index, "kiln-build"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"kiln-build/index.html":                        []byte("<a href=\"kiln_build-0.1.0-py3-none-any.whl\">kiln_build-0.1.0-py3-none-any.whl</a>"),
		"kiln-build/kiln_build-0.1.0-py3-none-any.whl": content,
	} {
		if err := os.WriteFile(filepath.Join(index, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script, sum := installStep(t, "testdata/branch.yml"), sha256.Sum256(content)
	for hash, ok := range map[string]bool{hex.EncodeToString(sum[:]): true, strings.Repeat("0", 64): false} {
		temp := t.TempDir()
		paths := filepath.Join(temp, "paths")
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", script)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(python)+":"+os.Getenv("PATH"), "RUNNER_TEMP="+temp, "GITHUB_PATH="+paths, "PIP_FIND_LINKS=",
			"KILN_INDEX=file://"+index, "KILN_WHEEL=kiln-build==0.1.0 --hash=sha256:"+strings.Repeat("1", 64)+" --hash=sha256:"+hash)
		out, err := cmd.CombinedOutput()
		if (err == nil) != ok {
			t.Fatalf("%v\n%s", err, out)
		}
		if !ok {
			continue
		}
		where, err := os.ReadFile(paths)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exec.CommandContext(t.Context(), "sh", filepath.Join(strings.TrimSpace(string(where)), "kiln")).Output()
		if string(got) != "fetched\n" {
			t.Errorf("kiln printed %q, %v", got, err)
		}
	}
}

// TestInstall runs the step that fetches kiln: the right program gets onto PATH, any other ends
// the job.
func TestInstall(t *testing.T) {
	script := installStep(t, "testdata/fork.yml")
	dir := t.TempDir()
	program := "#!/bin/sh\necho fetched\n"
	if err := os.WriteFile(filepath.Join(dir, "kiln-linux-amd64"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(program))
	// The name that a release gives to the program for Windows.
	if err := os.Link(filepath.Join(dir, "kiln-linux-amd64"), filepath.Join(dir, "kiln-windows-amd64.exe")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, platform, sums string
		ok                   bool
	}{
		{"right", "Linux-X64", "windows-amd64=0 linux-amd64=" + hex.EncodeToString(sum[:]), true},
		{"Windows", "Windows-X64", "linux-amd64=0 windows-amd64=" + hex.EncodeToString(sum[:]), true},
		{"other bytes", "Linux-X64", "linux-amd64=" + strings.Repeat("0", 64), false},
		{"no hash", "Linux-X64", "windows-amd64=" + hex.EncodeToString(sum[:]), false},
		{"no such platform", "Linux-RISCV", "linux-amd64=" + hex.EncodeToString(sum[:]), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			temp := t.TempDir()
			paths := filepath.Join(temp, "paths")
			cmd := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", script)
			system, arch, _ := strings.Cut(tc.platform, "-")
			cmd.Env = append(os.Environ(), "RUNNER_OS="+system, "RUNNER_ARCH="+arch, "RUNNER_TEMP="+temp, "GITHUB_PATH="+paths,
				"KILN_URL=file://"+dir+"/kiln-{platform}{exe}", "KILN_SHA256="+tc.sums)
			out, err := cmd.CombinedOutput()
			if (err == nil) != tc.ok {
				t.Fatalf("%v\n%s", err, out)
			}
			if !tc.ok {
				return
			}
			where, err := os.ReadFile(paths)
			if err != nil {
				t.Fatal(err)
			}
			name := map[string]string{"Windows": "kiln.exe"}[system]
			got, err := exec.CommandContext(t.Context(), filepath.Join(strings.TrimSpace(string(where)), cmp.Or(name, "kiln"))).Output()
			if string(got) != "fetched\n" {
				t.Errorf("kiln printed %q, %v", got, err)
			}
		})
	}
}
