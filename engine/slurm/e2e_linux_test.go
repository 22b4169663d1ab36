package slurm_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// e2e is a project that kiln builds on the cluster of dev/scripts/e2e-slurm.sh.
type e2e struct {
	t       *testing.T
	kiln    string
	dir     string // of the project
	cluster string // of the daemons
}

// needE2E skips unless make e2e-slurm runs the test.
func needE2E(t *testing.T) (cluster string) {
	t.Helper()
	kilntest.NeedE2E(t, "slurm")
	cluster = os.Getenv("KILN_SLURM_CLUSTER")
	if cluster == "" {
		t.Fatal("KILN_SLURM_CLUSTER is not set: run `make e2e-slurm`")
	}
	return cluster
}

// newE2E makes a project of examples/hello-cuda. settings are those of Slurm, in JSON without the
// braces; rows is the end of the package in packages.yml.
func newE2E(t *testing.T, settings, rows string) *e2e {
	t.Helper()
	p := &e2e{t: t, cluster: needE2E(t), dir: t.TempDir(), kiln: os.Getenv("KILN_PROGRAM")}
	if p.kiln == "" {
		p.kiln = filepath.Join(t.TempDir(), "kiln")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", p.kiln, "../../cmd/kiln")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		p.must(build)
	}
	if err := os.CopyFS(filepath.Join(p.dir, "src"), os.DirFS("../../examples/hello-cuda")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(p.dir, "src", "packages.yml")); err != nil {
		t.Fatal(err)
	}
	p.write("packages.yml", `packages:
  hello-cuda:
    source: {path: src}
    version_from: {file: pyproject.toml}
    extra_deps: [build, "setuptools>=77"]
    test: {expressions: ["hello_cuda.backend()"]}
    local_version: "{flavor}"
`+rows)
	p.write("slurm.json", `{"poll": "2s", "beat": "2s", `+settings+`}`)
	return p
}

func (p *e2e) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o666); err != nil {
		p.t.Fatal(err)
	}
}

func (p *e2e) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(p.dir, name))
	return string(text)
}

// edit changes a file of the source.
func (p *e2e) edit(name, before, after string) {
	p.t.Helper()
	text := p.read(name)
	changed := strings.Replace(text, before, after, 1)
	if changed == text {
		p.t.Fatalf("%s has no %q", name, before)
	}
	p.write(name, changed)
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

// start starts a build; what it prints goes to the file output.
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

func (p *e2e) onSlurm(args ...string) (*exec.Cmd, chan error) {
	return p.start(append([]string{"--runner", "slurm", "--slurm-config", filepath.Join(p.dir, "slurm.json")}, args...)...)
}

// built is one row of kiln build --json.
type built struct {
	ID       string        `json:"id"`
	Status   engine.Status `json:"status"`
	Reason   string        `json:"reason"`
	Attempts int           `json:"attempts"`
	Test     string        `json:"test"`
	Compiles struct {
		Calls      int `json:"calls"`
		Hits       int `json:"hits"`
		RemoteHits int `json:"remote_hits"`
		Misses     int `json:"misses"`
	} `json:"compiles"`
	Diagnosis string `json:"diagnosis"`
}

// build builds on Slurm and returns the rows.
func (p *e2e) build(args ...string) (rows []built, failed error) {
	p.t.Helper()
	argv := append([]string{"build", "-C", p.dir, "--runner", "slurm", "--slurm-config", filepath.Join(p.dir, "slurm.json"), "--json"}, args...)
	cmd := exec.CommandContext(p.t.Context(), p.kiln, argv...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, failed := cmd.Output()
	p.write("stderr", stderr.String())
	var result struct {
		Rows []built `json:"rows"`
	}
	if err := json.Unmarshal(out, &result); err != nil {
		p.t.Fatalf("%q: %v, %v\n%s%s", argv, failed, err, out, &stderr)
	}
	return result.Rows, failed
}

// all fails unless so many rows are built and tested.
func (p *e2e) all(n int, rows []built, err error) {
	p.t.Helper()
	if err != nil || len(rows) != n {
		p.t.Errorf("%d rows, want %d: %v", len(rows), n, err)
	}
	for _, r := range rows {
		if r.Status != engine.StatusDone || r.Test != "passed" {
			p.t.Errorf("%s: %s, test %s: %s", r.ID, r.Status, r.Test, r.Reason)
		}
	}
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

func (p *e2e) done() int {
	n := 0
	s := p.state()
	for i := range s.Jobs {
		if s.Jobs[i].Status == engine.StatusDone {
			n++
		}
	}
	return n
}

// wait polls until a condition holds.
func (p *e2e) wait(what string, ended <-chan error, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(15 * time.Minute); !ok(); time.Sleep(100 * time.Millisecond) {
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
	lines := strings.Split(p.read("output"), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
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

// process is one of this machine.
type process struct {
	pid, parent int
	name        string
	args        []string
	environ     []string
}

func processes(t *testing.T) map[int]*process {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	out := map[int]*process{}
	for _, dir := range dirs {
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if err != nil || end < 0 {
			continue // it has ended
		}
		p := &process{name: string(stat[open+1 : end])}
		fields := strings.Fields(string(stat[end+1:]))
		if fields[0] == "Z" {
			continue
		}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		p.parent, _ = strconv.Atoi(fields[1])
		list := func(name string) []string {
			text, _ := os.ReadFile(filepath.Join(dir, name))
			return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		}
		p.args, p.environ = list("cmdline"), list("environ")
		out[p.pid] = p
	}
	return out
}

func (p *process) env(name string) string {
	for _, line := range p.environ {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return value
		}
	}
	return ""
}

// worker is a row at work on a node.
type worker struct {
	*process
	node string
	row  string
	tree []*process // all that descends from it
}

func (w *worker) compilers() []*process {
	return slices.DeleteFunc(slices.Clone(w.tree), func(p *process) bool { return p.name != "cc1plus" })
}

// workers finds the rows of this project that are at work, in the order of their nodes.
func (p *e2e) workers() []*worker {
	p.t.Helper()
	all := processes(p.t)
	var out []*worker
	for _, proc := range all {
		batch := proc.args[len(proc.args)-1]
		if !slices.Contains(proc.args, "slurm-worker") || filepath.Dir(batch) != filepath.Join(p.dir, ".kiln", "slurm") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(batch, "batch.json"))
		if err != nil {
			continue
		}
		var b struct {
			Attempts []string `json:"attempts"`
		}
		if err := json.Unmarshal(text, &b); err != nil {
			p.t.Fatal(err)
		}
		task, err := strconv.Atoi(proc.env("SLURM_ARRAY_TASK_ID"))
		if err != nil || task >= len(b.Attempts) {
			p.t.Fatalf("%q: task %d: %v", proc.args, task, err)
		}
		row := filepath.Base(b.Attempts[task])
		w := &worker{process: proc, node: proc.env("SLURMD_NODENAME"), row: strings.TrimSuffix(row, filepath.Ext(row))}
		for _, other := range all {
			for up := other; up != nil; up = all[up.parent] {
				if up.parent == proc.pid {
					w.tree = append(w.tree, other)
					break
				}
			}
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *worker) int { return cmp.Or(strings.Compare(a.node, b.node), cmp.Compare(a.pid, b.pid)) })
	return out
}

func kill9(t *testing.T, pid int) {
	t.Helper()
	if pid > 1 {
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

func (p *e2e) restart(name string) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), "../../dev/scripts/e2e-slurm.sh", "start", p.cluster, name)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("start %s: %v\n%s", name, err, out)
	}
}

// squeue lists the jobs of this project.
func (p *e2e) squeue() string {
	p.t.Helper()
	var jobs []string
	for line := range strings.Lines(p.must(exec.CommandContext(p.t.Context(), "squeue", "--noheader", "--format=%i %T %r %N %Z"))) {
		if strings.HasSuffix(strings.TrimSpace(line), " "+p.dir) {
			jobs = append(jobs, strings.TrimSpace(line))
		}
	}
	return strings.Join(jobs, "\n")
}

// nothingLeft checks that Slurm has no job of the project any more, and no node a process.
func (p *e2e) nothingLeft() {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		left := p.squeue()
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
	for _, proc := range processes(p.t) {
		if strings.Contains(strings.Join(proc.args, " "), p.dir) || strings.Contains(strings.Join(proc.environ, " "), p.dir) {
			p.t.Errorf("left: process %d %q", proc.pid, proc.args)
		}
	}
}

// reference builds the rows on this machine alone, in the same folder, since paths get into
// binaries.
func (p *e2e) reference() map[string]string {
	p.t.Helper()
	start := time.Now()
	_, ended := p.start("--runner", "host")
	if err := <-ended; err != nil {
		p.t.Fatalf("on one machine: %v\n%s", err, p.tail())
	}
	want := p.hashes()
	p.t.Logf("one machine: %d files in %v", len(want), time.Since(start).Round(time.Second))
	for _, name := range []string{"dist", ".kiln", "built"} {
		if err := os.RemoveAll(filepath.Join(p.dir, name)); err != nil {
			p.t.Fatal(err)
		}
	}
	return want
}

// slow makes a compiler think for some seconds, about something that leaves no trace in the object.
// ROW keeps rows from sharing it.
const slow = `
struct ROW;
constexpr long slow()
{
    long sum = 0;
    for (int i = 0; i < 1200; ++i)
        for (int k = 0; k < 1000; ++k)
            sum += k;
    return sum;
}
static_assert(slow() != 0);
`

// rowName is the flavor of a row.
func rowName(row string) string {
	for part := range strings.SplitSeq(row, "-") {
		if len(part) == 3 && part[0] == 'r' {
			return part
		}
	}
	return row
}

// TestE2EFaults: 24 rows (or KILN_SLURM_ROWS) on three nodes; a node, a compiler, the controller
// and kiln are killed with -9 in mid-run.
func TestE2EFaults(t *testing.T) {
	rows := 24
	if text := os.Getenv("KILN_SLURM_ROWS"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil || rows < 8 {
			t.Fatalf("KILN_SLURM_ROWS %q: want a number from 8 on", text)
		}
	}
	flavors := make([]string, rows)
	for i := range flavors {
		flavors[i] = fmt.Sprintf("r%02d", i)
	}
	// Not all rows are submitted at once, so that there is something to submit after every fault.
	p := newE2E(t, fmt.Sprintf(`"max_queued": %d`, max(7, rows/2)), fmt.Sprintf(`    env: {BUILD_TARGET: cpu, ROW: "{flavor}", CXXFLAGS: "-DROW={flavor} -fconstexpr-ops-limit=1000000000"}
    resources: {jobs: 1, memory_per_job: 512 MiB}
    matrix: [{os: debian-12, python: "3.11", axes: {flavor: [%s]}}]
`, strings.Join(flavors, ", ")))
	p.edit("src/csrc/module.cpp", "#include <Python.h>\n", "#include <Python.h>\n"+slow)
	// The source itself writes down when it is compiled: that is not kiln's word.
	record := filepath.Join(p.dir, "built")
	p.edit("src/setup.py", "    def build_extension(self, ext):\n", fmt.Sprintf("    def build_extension(self, ext):\n        with open(%q, \"a\") as f:\n            f.write(os.environ[\"ROW\"] + \"\\n\")\n", record))
	want := p.reference()
	if len(want) != rows {
		t.Fatalf("one machine built %d files", len(want))
	}
	start := time.Now()
	say := func(format string, args ...any) {
		t.Helper()
		t.Logf("%4.0f s, %2d of %d rows done: %s", time.Since(start).Seconds(), p.done(), rows, fmt.Sprintf(format, args...))
	}
	cmd, ended := p.onSlurm()
	reasons := map[string]int{} // why a row may be compiled more than once

	// A node, with all that runs on it, while it compiles.
	p.wait("a compiler on n2", ended, func() bool {
		return slices.ContainsFunc(p.workers(), func(w *worker) bool { return w.node == "n2" && len(w.compilers()) > 0 })
	})
	kill9(t, p.daemon("n2"))
	var lost []string
	compiling := 0
	for _, w := range p.workers() {
		if w.node != "n2" {
			continue
		}
		kill9(t, w.parent) // slurmstepd, which would tell the controller
		kill9(t, w.pid)
		for _, proc := range w.tree {
			kill9(t, proc.pid)
		}
		lost = append(lost, w.row)
		compiling += len(w.compilers())
		reasons[rowName(w.row)]++
	}
	if compiling == 0 {
		t.Fatal("no compiler was at work on n2 when it was killed")
	}
	say("killed n2 with %d rows and %d compilers", len(lost), compiling)

	// A compiler, on another node.
	var victim *worker
	p.wait("a compiler", ended, func() bool {
		for _, w := range p.workers() {
			for _, c := range w.compilers() {
				if w.node != "n2" && syscall.Kill(c.pid, syscall.SIGKILL) == nil {
					victim = w
					return true
				}
			}
		}
		return false
	})
	reasons[rowName(victim.row)]++
	say("killed a compiler of %s on %s", rowName(victim.row), victim.node)

	// The controller, with rows at work. They end without it.
	p.wait("work", ended, func() bool { return len(p.workers()) > 0 })
	before, atWork := p.done(), len(p.workers())
	kill9(t, p.daemon("slurmctld"))
	say("killed slurmctld while %d rows were at work", atWork)
	p.wait("the end of a row without a controller", ended, func() bool { return p.done() > before })
	p.wait("kiln to say so", ended, func() bool { return strings.Contains(p.read("output"), "Slurm does not answer") })
	say("%d rows have ended without a controller; starting it", p.done()-before)
	p.restart("slurmctld")
	p.wait("kiln to see it", ended, func() bool { return strings.Contains(p.read("output"), "Slurm answers again") })
	say("kiln sees it")

	// kiln itself, twice, with rows at work. They go on.
	for kills, known := 0, p.done(); ; {
		p.wait("work", ended, func() bool { return len(p.workers()) > 0 })
		before := len(p.hashes())
		kill9(t, cmd.Process.Pid)
		<-ended
		say("killed kiln while %d rows were at work", len(p.workers()))
		p.wait("the end of a row without kiln", nil, func() bool { return len(p.hashes()) > before || len(p.workers()) == 0 })
		if len(p.hashes()) == before {
			t.Fatal("no row ended while kiln was away")
		}
		say("%d rows ended without kiln; starting it", len(p.hashes())-before)
		cmd, ended = p.onSlurm()
		if kills++; kills == 2 {
			break
		}
		p.wait("kiln to find its rows", ended, func() bool { return p.done() > known })
		say("kiln has found them")
	}
	p.restart("n2")
	say("n2 is back")
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("kiln: %v\n%s", err, p.tail())
		}
	case <-time.After(30 * time.Minute):
		t.Fatalf("kiln does not end\n%s\n%s", p.squeue(), p.tail())
	}
	say("the end; all faults included it took %v", time.Since(start).Round(time.Second))

	// Each fault was felt.
	s := p.state()
	restarted := 0
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if j.Status != engine.StatusDone {
			t.Errorf("%s is %s: %s", j.ID, j.Status, j.Reason)
		}
		w, err := engine.NewAttempt(engine.Job{ID: j.ID}, j.Attempt, filepath.Join(p.dir, ".kiln", "attempts", fmt.Sprintf("%s.%d", j.ID, j.Attempt)), nil).Worker()
		if err != nil || w == nil {
			t.Errorf("%s: worker %v, %v", j.ID, w, err)
			continue
		}
		if slices.Contains(lost, j.ID) && (w.Start > 0 || j.Attempt > 1) {
			restarted++
		}
		if w.Start > 0 && !slices.Contains(lost, j.ID) {
			t.Errorf("%s was started %d times more by Slurm, and was not on the lost node", j.ID, w.Start)
		}
		if j.Attempt > 1 {
			t.Logf("%s: attempt %d", j.ID, j.Attempt)
		}
		if j.ID == victim.row && j.Attempt < 2 {
			t.Errorf("%s, whose compiler was killed, was tried once", j.ID)
		}
	}
	if restarted != len(lost) {
		t.Errorf("of %q only %d were started again", lost, restarted)
	}
	// Nothing was compiled twice without one of them.
	times := map[string]int{}
	for line := range strings.Lines(p.read("built")) {
		times[strings.TrimSpace(line)]++
	}
	extra := 0
	for _, name := range slices.Sorted(maps.Keys(times)) {
		extra += times[name] - 1
		if times[name] > 1+reasons[name] {
			t.Errorf("%s was compiled %d times, with %d reasons to do so again", name, times[name], reasons[name])
		}
	}
	if len(times) != rows {
		t.Errorf("%d rows were compiled, want %d", len(times), rows)
	}
	if diff := gocmp.Diff(want, p.hashes()); diff != "" {
		t.Errorf("dist/ differs from that of one machine (-want +got):\n%s", diff)
	}
	p.nothingLeft()
	for line := range strings.Lines(p.read("output")) {
		if strings.HasPrefix(line, "retry") || strings.HasPrefix(line, "{") || strings.Contains(line, "put back") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if t.Failed() {
		t.Log("\n" + p.tail())
		return
	}
	t.Logf("%d rows done; %d compiled a second time, all of them of the lost node or of the killed compiler; dist/ is that of one machine; no job, process or folder is left", rows, extra)
}
