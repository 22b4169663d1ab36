package slurm_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/engine"
)

// e2e is a project that kiln builds on the cluster of scripts/e2e-slurm.sh.
type e2e struct {
	t       *testing.T
	kiln    string
	dir     string // of the project
	cluster string // of the daemons
	config  string
}

// newE2E makes a copy of examples/hello-cuda with so many rows that differ in their name.
func newE2E(t *testing.T, rows int, partition string) *e2e {
	t.Helper()
	if !slices.Contains(strings.Split(os.Getenv("KILN_E2E"), ","), "slurm") {
		t.Skip("KILN_E2E does not name slurm")
	}
	p := &e2e{t: t, dir: os.Getenv("KILN_SLURM_PROJECT"), cluster: os.Getenv("KILN_SLURM_CLUSTER")}
	if p.dir == "" {
		p.dir = t.TempDir() // else a folder of an earlier, stopped test: what one machine has built in it counts
	}
	if p.cluster == "" {
		t.Fatal("KILN_SLURM_CLUSTER is not set: run `make e2e-slurm`")
	}
	if p.kiln = os.Getenv("KILN_PROGRAM"); p.kiln == "" {
		p.kiln = filepath.Join(t.TempDir(), "kiln")
		p.must(exec.Command("go", "build", "-o", p.kiln, "../../cmd/kiln")) //nolint:noctx // a test's
	}
	if err := os.CopyFS(filepath.Join(p.dir, "src"), os.DirFS("../../examples/hello-cuda")); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	os.Remove(filepath.Join(p.dir, "src", "packages.yml"))
	var flavors []string
	for i := range rows {
		flavors = append(flavors, fmt.Sprintf("r%02d", i))
	}
	p.write("packages.yml", fmt.Sprintf(`packages:
  hello-cuda:
    source: {path: src}
    version_from: {file: pyproject.toml}
    extra_deps: [build, "setuptools>=77"]
    # The variable makes every row compile for itself, so that there are compilers to kill.
    env: {BUILD_TARGET: {cuda: cuda, default: cpu}, CFLAGS: "-DROW_{flavor}", CXXFLAGS: "-DROW_{flavor}"}
    test: {expressions: ["hello_cuda.backend()"]}
    local_version: "{flavor}"
    resources: {jobs: 1, memory_per_job: 512 MiB}
    matrix:
      - {os: debian-12, python: "3.11", axes: {flavor: [%s]}}
`, strings.Join(flavors, ", ")))
	p.config = filepath.Join(p.dir, "slurm.json")
	p.write("slurm.json", fmt.Sprintf(`{"partition": %q, "poll": "2s", "beat": "2s", "max_running": 6}`, partition))
	return p
}

func (p *e2e) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o666); err != nil {
		p.t.Fatal(err)
	}
}

func (p *e2e) must(cmd *exec.Cmd) string {
	p.t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("%q: %v\n%s%s", cmd.Args, err, out, &stderr)
	}
	return string(out)
}

// start starts a build; what it prints goes to a file.
func (p *e2e) start(args ...string) (cmd *exec.Cmd, ended chan error) {
	p.t.Helper()
	out, err := os.OpenFile(filepath.Join(p.dir, "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd = exec.Command(p.kiln, append([]string{"build", "-C", p.dir}, args...)...) //nolint:noctx // it is killed by hand
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, ended
}

func (p *e2e) onSlurm() (*exec.Cmd, chan error) {
	return p.start("--runner", "slurm", "--slurm-config", p.config)
}

// state is what kiln status says.
func (p *e2e) state() *engine.State {
	p.t.Helper()
	s, err := engine.ReadState(filepath.Join(p.dir, ".kiln"))
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func (p *e2e) count(want func(*engine.JobState) bool) int {
	n := 0
	s := p.state()
	for i := range s.Jobs {
		if want(&s.Jobs[i]) {
			n++
		}
	}
	return n
}

// wait polls until a condition holds.
func (p *e2e) wait(what string, ended <-chan error, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(15 * time.Minute); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited too long for %s\n%s", what, p.tail())
		}
		select {
		case err := <-ended:
			p.t.Fatalf("kiln ended (%v) before %s\n%s", err, what, p.tail())
		default:
		}
	}
}

func (p *e2e) tail() string {
	text, _ := os.ReadFile(filepath.Join(p.dir, "output"))
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}

// hashes are the files in dist/.
func (p *e2e) hashes() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob(filepath.Join(p.dir, "dist", "*"))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil {
			sum := sha256.Sum256(text)
			out[filepath.Base(f)] = hex.EncodeToString(sum[:])
		}
	}
	return out
}

// processes are those that have a line in their environment.
func processes(t *testing.T, line string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || !slices.Contains(strings.Split(string(text), "\x00"), line) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && pid != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

func name(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(text))
}

func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(fields[1])
	return n
}

func kill9(t *testing.T, pid int) {
	t.Helper()
	if pid > 1 {
		t.Logf("kill -9 %d (%s)", pid, name(pid))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

func (p *e2e) daemon(name string) int {
	p.t.Helper()
	text, err := os.ReadFile(filepath.Join(p.cluster, name+".pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

// jobProcesses are the workers on a node, of this cluster.
func (p *e2e) jobProcesses(node string) []int {
	conf := processes(p.t, "SLURM_CONF="+filepath.Join(p.cluster, "slurm.conf"))
	return slices.DeleteFunc(processes(p.t, "SLURMD_NODENAME="+node), func(pid int) bool { return !slices.Contains(conf, pid) })
}

func (p *e2e) restart(name string) {
	p.t.Helper()
	cmd := exec.Command("../../scripts/e2e-slurm.sh", "start", p.cluster, name) //nolint:noctx // a test's
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("start %s: %v\n%s", name, err, out)
	}
}

// compiles counts how often the rows came to their compile stage, from the events that workers left.
func (p *e2e) compiles() int {
	n := 0
	_ = filepath.WalkDir(filepath.Join(p.dir, ".kiln", "attempts"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "events.jsonl" {
			return nil //nolint:nilerr // a folder that was just removed
		}
		text, _ := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			var e engine.Event
			if json.Unmarshal([]byte(line), &e) == nil && e.Kind == engine.EventStage && e.Stage == "compile" {
				n++
			}
		}
		return nil
	})
	return n
}

// finish checks that all rows are built as they were before, and that nothing is left.
func (p *e2e) finish(want map[string]string) {
	p.t.Helper()
	if diff := cmp.Diff(want, p.hashes()); diff != "" {
		p.t.Errorf("dist/ differs from that of one machine (-want +got):\n%s", diff)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		left := p.must(exec.Command("squeue", "--noheader", "--format=%i %T %j")) //nolint:noctx // a test's
		if left == "" {
			break
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("jobs are left:\n%s", left)
		}
	}
	for _, dir := range []string{"slurm", "work"} {
		if left, _ := filepath.Glob(filepath.Join(p.dir, ".kiln", dir, "*")); len(left) > 0 {
			p.t.Errorf("left: %q", left)
		}
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		if left := p.jobProcesses(node); len(left) > 0 {
			p.t.Errorf("processes of jobs are left on %s: %v", node, left)
		}
	}
}

// reference builds the rows on this machine alone, in the same folder, since paths get into binaries.
func (p *e2e) reference() map[string]string {
	p.t.Helper()
	start := time.Now()
	_, ended := p.start("--runner", "host")
	if err := <-ended; err != nil {
		p.t.Fatalf("on one machine: %v\n%s", err, p.tail())
	}
	want := p.hashes()
	p.t.Logf("one machine: %d files in %v", len(want), time.Since(start).Round(time.Second))
	for _, dir := range []string{"dist", ".kiln"} {
		if err := os.RemoveAll(filepath.Join(p.dir, dir)); err != nil {
			p.t.Fatal(err)
		}
	}
	return want
}

// TestE2EFaults: 24 rows (or KILN_SLURM_ROWS) on three nodes; a node, the controller, kiln and a compiler are killed with -9 in mid-run.
func TestE2EFaults(t *testing.T) {
	rows := 24
	if text := os.Getenv("KILN_SLURM_ROWS"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil || rows < 8 {
			t.Fatalf("KILN_SLURM_ROWS %q: want a number from 8 on", text)
		}
	}
	p := newE2E(t, rows, "main")
	want := p.reference()
	if len(want) != rows {
		t.Fatalf("one machine built %d files", len(want))
	}
	start := time.Now()
	cmd, ended := p.onSlurm()
	done := func(n int) func() bool {
		return func() bool {
			return p.count(func(j *engine.JobState) bool { return j.Status == engine.StatusDone }) >= n
		}
	}
	p.wait("the first rows", ended, done(rows/12))

	// A node, with all that runs on it.
	var onNode []int
	p.wait("work on n2", ended, func() bool { onNode = p.jobProcesses("n2"); return len(onNode) > 0 })
	lost := 0
	for _, pid := range onNode {
		if step := parent(pid); strings.HasPrefix(name(step), "slurmstepd") {
			lost++
			kill9(t, step)
		}
	}
	kill9(t, p.daemon("n2"))
	for _, pid := range onNode {
		kill9(t, pid)
	}

	// A compiler.
	owner, err := os.ReadFile(filepath.Join(p.dir, ".kiln", "id"))
	if err != nil {
		t.Fatal(err)
	}
	p.wait("a compiler", ended, func() bool {
		for _, f := range compilers(t, strings.TrimSpace(string(owner))) {
			kill9(t, f)
			return true
		}
		return false
	})

	// The controller.
	kill9(t, p.daemon("slurmctld"))
	time.Sleep(20 * time.Second)
	p.restart("slurmctld")
	p.wait("rows after the controller's return", ended, done(rows*5/12))
	p.restart("n2")

	// kiln itself, twice.
	for _, n := range []int{rows * 11 / 24, rows * 14 / 24} {
		p.wait("rows before kiln's end", ended, done(n))
		kill9(t, cmd.Process.Pid)
		<-ended
		time.Sleep(5 * time.Second)
		cmd, ended = p.onSlurm()
	}
	if err := <-ended; err != nil {
		t.Fatalf("kiln: %v\n%s", err, p.tail())
	}
	t.Logf("three nodes, with faults: %v", time.Since(start).Round(time.Second))
	extra := 0
	s := p.state()
	for i := range s.Jobs {
		extra += s.Jobs[i].Attempt - 1
	}
	n := p.compiles()
	t.Logf("%d rows were at work on the lost node; %d attempts more than rows; %d compile stages in the last attempts", lost, extra, n)
	// The killed compiler costs an attempt. One may be lost between kiln's kill and sbatch's answer, for each kill.
	if extra > 3 || n+extra > rows+lost+3 {
		t.Errorf("rows were built more often than there is reason for")
	}
	p.finish(want)
	t.Log("\n" + p.tail())
}

// compilers are the processes of rows that compile, by the mark that kiln gives to the processes of a row.
func compilers(t *testing.T, owner string) []int {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(text, []byte("KILN_BOX_OWNER="+owner+".")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && (name(pid) == "cc1plus" || name(pid) == "cc1") {
			out = append(out, pid)
		}
	}
	return out
}
