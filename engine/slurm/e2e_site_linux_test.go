package slurm_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/engine/enginetest"
	"github.com/kiln-build/kiln/engine/slurm"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestE2ESite is what a site sets up once, on the real cluster. The parts are at work at the same
// time, as they mostly wait.
func TestE2ESite(t *testing.T) {
	needE2E(t)
	for name, test := range map[string]func(*testing.T){
		"Conformance": conformance, "TimeLimit": timeLimit, "Cache": cache, "Podman": podman, "Failure": failure,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			test(t)
			t.Logf("%s took %v", name, time.Since(start).Round(time.Second))
		})
	}
}

// conformance: the suite of all runners, with jobs of a real Slurm.
func conformance(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	again := map[engine.Runner]func(t *testing.T) engine.Runner{}
	n := 0
	enginetest.Run(t, enginetest.Config{
		MemoryBytes: 1 << 30,
		New: func(t *testing.T) engine.Runner {
			n++
			dir, owner := filepath.Join(t.TempDir(), "batches"), fmt.Sprintf("test%d", n)
			start := func(t *testing.T) engine.Runner {
				r, err := slurm.New(slurm.Options{
					Dir: dir, Owner: owner, Worker: []string{"env", conformanceEnv + "=1", exe}, Env: os.Environ(), Partition: "main",
					Poll: time.Second, Window: 50 * time.Millisecond, Beat: time.Second,
				})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			r := start(t)
			again[r] = start
			return r
		},
		Again: func(t *testing.T, first engine.Runner) engine.Runner { return again[first](t) },
	})
}

// slowFiles adds files to the source that take so long to compile, once; the compiler itself is
// quick. It returns a folder with a file for each that was compiled.
func (p *e2e) slowFiles(files, seconds int) (marks string) {
	p.t.Helper()
	var sources strings.Builder
	for i := range files {
		name := fmt.Sprintf("csrc/part%02d.cpp", i)
		p.write("src/"+name, fmt.Sprintf("int part%02d() { return %d; }\n", i, i))
		fmt.Fprintf(&sources, "%q, ", name)
	}
	p.edit("src/setup.py", `sources=["csrc/module.cpp", `, `sources=[`+sources.String()+`"csrc/module.cpp", `)
	marks = filepath.Join(p.dir, "marks")
	if err := os.Mkdir(marks, 0o777); err != nil {
		p.t.Fatal(err)
	}
	p.edit("src/setup.py", "    def build_extension(self, ext):\n", fmt.Sprintf(`    def build_extension(self, ext):
        import time
        compile = self.compiler._compile

        def slow(obj, src, *args, **kwargs):
            mark = os.path.join(%q, os.path.basename(src))
            if not os.path.exists(mark):
                time.sleep(%d)
            compile(obj, src, *args, **kwargs)
            open(mark, "w").close()

        self.compiler._compile = slow
`, marks, seconds))
	return marks
}

const oneRow = `    env: {BUILD_TARGET: cpu}
    resources: {jobs: 1, memory_per_job: 512 MiB}
    matrix: [{os: debian-12, python: "3.11", axes: {flavor: [one]}}]
`

// timeLimit: a row that takes longer than the queue allows stops before the limit, keeps its
// objects, and ends in a later job.
func timeLimit(t *testing.T) {
	const files, seconds = 12, 8
	p := newE2E(t, `"partition": "short", "grace": "20s"`, oneRow)
	marks := p.slowFiles(files, seconds)
	kept := 0 // objects that the first job left
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			if second, _ := filepath.Glob(filepath.Join(p.dir, ".kiln", "attempts", "*.2")); len(second) > 0 {
				left, _ := os.ReadDir(marks)
				kept = len(left)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	rows, err := p.build()
	close(stop)
	<-watched
	p.all(1, rows, err)
	p.nothingLeft()
	if t.Failed() {
		t.FailNow()
	}
	c := rows[0].Compiles
	if rows[0].Attempts < 2 || kept == 0 || kept >= files {
		t.Errorf("%d attempts, %d of %d objects after the first", rows[0].Attempts, kept, files)
	}
	if c.Hits < kept || c.Calls != files+2 || c.Hits+c.Misses != c.Calls {
		t.Errorf("the last attempt: %+v, want %d calls and at least %d hits", c, files+2, kept)
	}
	if !strings.Contains(p.read("stderr"), "stopped before the time limit of the queue") {
		t.Errorf("kiln did not say why:\n%s", p.read("stderr"))
	}
	log, err := os.ReadFile(filepath.Join(p.cluster, "log", "slurmctld.log"))
	if err != nil || strings.Contains(string(log), "Time limit exhausted") {
		t.Errorf("Slurm had to end a job at its limit: %v", err)
	}
	t.Logf("a row of %d s in a queue of 2 min: %d jobs; the first left %d of %d objects, the last compiled %d and took %d from the cache; no job reached its limit",
		files*seconds, rows[0].Attempts, kept, files, c.Misses, c.Hits)
}

// serve runs a server until the test ends, and waits until it answers.
func serve(t *testing.T, port int, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	kilntest.WaitForPort(t, port, argv[0])
}

// cache: each node has a disk of its own, and they share compiles through a Redis. What makes the
// disks differ on one machine is a mount that only the job sees.
func cache(t *testing.T) {
	listen, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listen.Addr().(*net.TCPAddr).Port
	listen.Close()
	serve(t, port, "redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	disks := t.TempDir()
	scratch := filepath.Join(disks, "scratch")
	for _, name := range []string{"scratch", "n1", "n2", "n3"} {
		if err := os.Mkdir(filepath.Join(disks, name), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	prefix, err := json.Marshal([]string{"unshare", "--mount", "sh", "-ec", fmt.Sprintf(`mount --bind "%s/$SLURMD_NODENAME" "%s"; exec "$@"`, disks, scratch), "sh"})
	if err != nil {
		t.Fatal(err)
	}
	p := newE2E(t, fmt.Sprintf(`"prefix": %s, "scratch": %q, "cache_remote": "redis://127.0.0.1:%d"`, prefix, scratch, port), `    env: {BUILD_TARGET: cpu}
    resources: {jobs: 1, memory_per_job: 512 MiB}
    matrix: [{os: debian-12, python: "3.11", axes: {flavor: [one, two, three, four]}}]
`)
	for _, test := range []struct {
		row, node            string
		misses, hits, remote int
	}{
		{"*-one-*", "n1", 2, 0, 0},
		{"*-two-*", "n2", 0, 2, 2},
		{"*-three-*", "n2", 0, 2, 0}, // now they are on its own disk
	} {
		rows, err := p.build("--slurm-arg=--nodelist="+test.node, test.row)
		p.all(1, rows, err)
		if t.Failed() {
			t.FailNow()
		}
		if c := rows[0].Compiles; c.Calls != 2 || c.Misses != test.misses || c.Hits != test.hits || c.RemoteHits != test.remote {
			t.Errorf("%s on %s: %+v, want %+v", test.row, test.node, c, test)
		}
	}
	_, ended := p.onSlurm("--slurm-arg=--nodelist=n3", "*-four-*")
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, p.tail())
	}
	if line := "compiler calls: 2, of which 2 came from the cache, 2 of them from other machines"; !strings.Contains(p.read("output"), line) {
		t.Errorf("the summary does not say %q:\n%s", line, p.tail())
	}
	for _, node := range []string{"n1", "n2", "n3"} {
		if found, _ := filepath.Glob(filepath.Join(disks, node, "kiln-*", "cache", "ccache")); len(found) != 1 {
			t.Errorf("the disk of %s has the caches %q, want one", node, found)
		}
		if left, _ := filepath.Glob(filepath.Join(disks, node, "kiln-*", "work", "*")); len(left) > 0 {
			t.Errorf("left on %s: %q", node, left)
		}
	}
	if _, err := os.Stat(filepath.Join(p.dir, ".kiln", "cache", "ccache")); err == nil {
		t.Error("the shared folder has a compile cache too")
	}
	if len(p.hashes()) != 4 {
		t.Errorf("%d files", len(p.hashes()))
	}
	p.nothingLeft()
	t.Log("what n1 compiled, n2 and n3 took from the cache of the site; the second row of n2 from its own disk")
}

// podman: rows in containers. A worker is killed with -9, which leaves its container; the next
// attempt removes it.
func podman(t *testing.T) {
	const image = "localhost/kiln-e2e/ci"
	call := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "podman", append([]string{"--runtime", "runc"}, args...)...).Output()
		if err != nil {
			t.Fatalf("podman %q: %v", args, err)
		}
		return string(out)
	}
	call("image", "exists", image)
	p := newE2E(t, `"sandbox": "podman"`, `    env: {BUILD_TARGET: cpu, CXXFLAGS: "-DROW={flavor} -fconstexpr-ops-limit=1000000000"}
    image: `+image+`
    resources: {jobs: 1, memory_per_job: 512 MiB}
    matrix: [{os: debian-12, python: "3.11", axes: {flavor: [one, two]}}]
`)
	p.edit("src/csrc/module.cpp", "#include <Python.h>\n", "#include <Python.h>\n"+slow)
	// containers are those of a row; all if it is empty.
	containers := func(row string) []string {
		label := strings.TrimSpace(p.read(".kiln/id")) + "."
		if row != "" {
			sum := sha256.Sum256([]byte(row))
			label += hex.EncodeToString(sum[:6])
		}
		return slices.DeleteFunc(strings.Split(call("ps", "--all", "--format", "{{.ID}} {{.Labels}}", "--filter", "label=kiln.owner"), "\n"), func(line string) bool {
			return !strings.Contains(line, label)
		})
	}
	_, ended := p.onSlurm("--engine-arg=--runtime=runc")
	var victim *worker
	p.wait("a container", ended, func() bool {
		for _, w := range p.workers() {
			if len(containers(w.row)) > 0 {
				victim = w
				return true
			}
		}
		return false
	})
	kill9(t, victim.pid)
	left := len(containers(victim.row))
	if left == 0 {
		t.Error("the killed worker has left no container")
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("%v\n%s", err, p.tail())
		}
	case <-time.After(20 * time.Minute):
		t.Fatalf("kiln does not end\n%s\n%s", p.squeue(), p.tail())
	}
	if left := containers(""); len(left) > 0 {
		t.Errorf("containers are left: %q", left)
	}
	p.nothingLeft()
	s := p.state()
	for i := range s.Jobs {
		if j := &s.Jobs[i]; j.Status != engine.StatusDone || (j.Attempt == 2) != (j.ID == victim.row) {
			t.Errorf("%s is %s after %d attempts; the worker of %s was killed", j.ID, j.Status, j.Attempt, victim.row)
		}
	}
	t.Logf("2 rows in %s; the worker of one was killed and left a container, which its next attempt removed", image)
}

// failure: a row that fails on a node is explained as on one machine.
func failure(t *testing.T) {
	p := newE2E(t, `"partition": "main"`, oneRow)
	p.edit("src/csrc/module.cpp", "#include <Python.h>\n", "#include <Python.h>\n#error no\n")
	rows, err := p.build()
	if err == nil || len(rows) != 1 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if r := rows[0]; r.Status != engine.StatusFailed || r.Attempts != 1 || r.Diagnosis != "compile-error" || !strings.Contains(r.Reason, "module.cpp") {
		t.Errorf("%+v", r)
	}
	if left := p.squeue(); left != "" {
		t.Errorf("jobs are left: %s", left)
	}
	t.Logf("diagnosis %s: %s", rows[0].Diagnosis, rows[0].Reason)
}

// TestE2EPreempted: a job of another partition takes the node. Slurm puts the row back, and it goes
// on.
func TestE2EPreempted(t *testing.T) {
	p := newE2E(t, `"partition": "main"`, oneRow)
	marks := p.slowFiles(4, 4)
	_, ended := p.onSlurm("--slurm-arg=--nodelist=n1")
	p.wait("the first object", ended, func() bool { left, _ := os.ReadDir(marks); return len(left) > 0 })
	p.must(exec.CommandContext(t.Context(), "sbatch", "--partition=urgent", "--nodelist=n1", "--exclusive", "--output=/dev/null", "--chdir="+t.TempDir(), "--wrap=sleep 1"))
	if err := <-ended; err != nil {
		t.Fatalf("%v\n%s", err, p.tail())
	}
	p.nothingLeft()
	if n := len(p.hashes()); n != 1 {
		t.Errorf("%d files", n)
	}
	log, err := os.ReadFile(filepath.Join(p.cluster, "log", "slurmctld.log"))
	if err != nil || !strings.Contains(string(log), "preempt") {
		t.Errorf("nothing was preempted: %v", err)
	}
	if !strings.Contains(p.read("output"), "put back into the queue by Slurm") && !strings.Contains(p.read("output"), "stopped by Slurm") {
		t.Errorf("kiln did not say so:\n%s", p.tail())
	}
	t.Log("\n" + p.tail())
}
