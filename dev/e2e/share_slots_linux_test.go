package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slowCompiler stands before a compiler: it says when a compile begins and ends, and waits in
// between until it may go on.
const slowCompiler = `#!/bin/sh
case " $* " in
*" -c "*) ;;
*) exec REAL "$@" ;;
esac
echo "begin $PWD" >>DIR/log
while [ ! -e DIR/go ]; do sleep 0.1; done
REAL "$@"
code=$?
echo "end $PWD" >>DIR/log
exit $code
`

// slotsProject has three rows that compile a file each: what was learned about one says nothing of
// the others. Two of them fill the memory of the machine that the test makes up.
const slotsProject = `
packages:
  demo:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [build, setuptools]
    local_version: "{flavor}"
    env: {FLAVOR: "{flavor}"}
    test_import: _demo
    resources: {jobs: 1, memory_per_job: 400 GiB}
    matrix: [{python: "%s", axes: {flavor: [a, b, c]}}]
`

// What kilns are told of the machine, and how many compilers fit into it.
const (
	slotsMemory = 1000 << 30
	slotsCPU    = 8
	slotsFit    = 2
)

// slotsMachine is a machine with two projects on it.
type slotsMachine struct {
	t       *testing.T
	program string
	// dir has the log of the compilers, pool the claims.
	dir, pool string
	path      string
}

// kiln starts kiln build in a project.
func (m *slotsMachine) kiln(project string) (*exec.Cmd, *bytes.Buffer) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), m.program, "build", "--runner", "host", "--cpus", fmt.Sprint(slotsCPU), "--memory", fmt.Sprintf("%dGiB", slotsMemory>>30))
	cmd.Dir = filepath.Join(m.dir, project)
	cmd.Env = append(os.Environ(), "PATH="+m.path, "KILN_SLOTS="+m.pool)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, &out
}

// note writes a line of its own into the log.
func (m *slotsMachine) note(line string) {
	m.t.Helper()
	f, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := f.WriteString(line + "\n"); err != nil {
		m.t.Fatal(err)
	}
	f.Close()
}

// running reads from the log how many compilers of each project run now, how many began, and the
// most there were at once.
func (m *slotsMachine) running() (now, began map[string]int, most int) {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, "log"))
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	now, began = map[string]int{}, map[string]int{}
	for line := range strings.Lines(string(text)) {
		what, where, _ := strings.Cut(strings.TrimSpace(line), " ")
		project, _, _ := strings.Cut(strings.TrimPrefix(where, m.dir+"/"), "/")
		switch what {
		case "begin":
			now[project]++
			began[project]++
		case "end":
			now[project]--
		case "kill":
			now[project] = 0
		}
		sum := 0
		for _, n := range now {
			sum += n
		}
		most = max(most, sum)
	}
	return now, began, most
}

// slotsClaim is what a kiln says that it uses.
type slotsClaim struct {
	Running     int       `json:"running"`
	CPU         int       `json:"cpu"`
	MemoryBytes int64     `json:"memory_bytes"`
	Wanted      time.Time `json:"wanted"`
}

// claims reads what the kilns that live say, all at one moment.
func (m *slotsMachine) claims() (out []slotsClaim, err error) {
	ledger, err := os.Open(filepath.Join(m.pool, "lock"))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer ledger.Close()
	if err := syscall.Flock(int(ledger.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(m.pool, "*.claim"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
			f.Close() // its writer is gone
			continue
		}
		var c slotsClaim
		err = json.NewDecoder(f).Decode(&c)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// wait looks until something is so. Every time it looks whether the kilns together want no more
// than there is.
func (m *slotsMachine) wait(what string, so func(claims []slotsClaim, now, began map[string]int) bool) {
	m.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		claims, err := m.claims()
		if err != nil {
			m.t.Fatal(err)
		}
		var sum slotsClaim
		for _, c := range claims {
			sum.Running += c.Running
			sum.CPU += c.CPU
			sum.MemoryBytes += c.MemoryBytes
		}
		if sum.Running > slotsFit || sum.CPU > slotsCPU || sum.MemoryBytes > slotsMemory {
			m.t.Fatalf("while waiting until %s: the kilns together use %+v: %+v", what, sum, claims)
		}
		now, began, most := m.running()
		if most > slotsFit {
			m.t.Fatalf("while waiting until %s: %d compilers at once, %d fit", what, most, slotsFit)
		}
		if so(claims, now, began) {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("it never happened that %s: claims %+v, running %v, began %v", what, claims, now, began)
		}
	}
}

// processes counts those that work in a folder.
func processes(dir string) int {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	n := 0
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && (target == dir || strings.HasPrefix(target, dir+"/")) {
			n++
		}
	}
	return n
}

// TestE2EShareSlots: two kiln build at once on one machine together run no more compilers than its
// memory allows. One that has to wait goes on when the other one is killed, and both come to their
// end.
func TestE2EShareSlots(t *testing.T) {
	program := needShare(t)
	python := os.Getenv("KILN_PYTHON")
	out, err := exec.CommandContext(t.Context(), python, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)").Output()
	if err != nil {
		t.Fatalf("KILN_PYTHON: %v", err)
	}
	version, prefix, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &slotsMachine{t: t, program: program, dir: dir, pool: filepath.Join(dir, "pool"), path: filepath.Join(dir, "bin") + ":" + filepath.Join(prefix, "bin") + ":/usr/local/bin:/usr/bin:/bin"}
	files := map[string]string{}
	for _, name := range []string{"cc", "gcc", "x86_64-linux-gnu-gcc", "aarch64-linux-gnu-gcc"} {
		if real, err := exec.LookPath(name); err == nil {
			files["bin/"+name] = strings.NewReplacer("REAL", real, "DIR", dir).Replace(slowCompiler)
		}
	}
	for _, project := range []string{"one", "two"} {
		files[project+"/packages.yml"] = fmt.Sprintf(slotsProject, version)
		files[project+"/src/setup.py"] = "import os\nfrom setuptools import Extension, setup\nsetup(name='demo', version='1.0', ext_modules=[Extension('_demo', [os.environ['FLAVOR'] + '.c'])])\n"
		for _, flavor := range []string{"a", "b", "c"} {
			files[project+"/src/"+flavor+".c"] = "#include <Python.h>\nstatic struct PyModuleDef module = {PyModuleDef_HEAD_INIT, \"_demo\", NULL, -1, NULL};\nPyMODINIT_FUNC PyInit__demo(void) { return PyModule_Create(&module); }\n"
		}
	}
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
			t.Fatal(err)
		}
	}

	one, _ := m.kiln("one")
	m.wait("two compilers of the first run", func(_ []slotsClaim, now, _ map[string]int) bool { return now["one"] == slotsFit })
	two, twoOut := m.kiln("two")
	m.wait("the second waits for the first", func(claims []slotsClaim, _, began map[string]int) bool {
		if began["two"] > 0 {
			t.Fatal("a third compiler runs")
		}
		return len(claims) == 2 && (!claims[0].Wanted.IsZero() || !claims[1].Wanted.IsZero())
	})

	m.note("kill " + filepath.Join(dir, "one"))
	if err := one.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = one.Wait()
	m.wait("the second has what the killed one had", func(_ []slotsClaim, now, _ map[string]int) bool { return now["two"] == slotsFit })
	m.wait("nothing of the killed one is left", func([]slotsClaim, map[string]int, map[string]int) bool {
		return processes(filepath.Join(dir, "one")) == 0
	})

	again, againOut := m.kiln("one")
	m.wait("the first, which was started again, waits", func(claims []slotsClaim, now, _ map[string]int) bool {
		if now["one"] > 0 {
			t.Fatal("a third compiler runs")
		}
		return len(claims) == 2 && (!claims[0].Wanted.IsZero() || !claims[1].Wanted.IsZero())
	})
	m.note("go " + dir)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	type end struct {
		name string
		err  error
	}
	ends := make(chan end, 2)
	go func() { ends <- end{"one", again.Wait()} }()
	go func() { ends <- end{"two", two.Wait()} }()
	ended := map[string]error{}
	m.wait("both have ended", func([]slotsClaim, map[string]int, map[string]int) bool {
		select {
		case e := <-ends:
			ended[e.name] = e.err
		default:
		}
		return len(ended) == 2
	})
	for name, out := range map[string]*bytes.Buffer{"one": againOut, "two": twoOut} {
		if err := ended[name]; err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if wheels, _ := filepath.Glob(filepath.Join(dir, name, "dist", "*.whl")); len(wheels) != 3 {
			t.Errorf("%s made %q, want three wheels", name, wheels)
		}
	}
	now, began, most := m.running()
	if now["one"] != 0 || now["two"] != 0 || most != slotsFit {
		t.Errorf("compilers at work in the end: %v; at most %d at once, want %d", now, most, slotsFit)
	}
	if claims, err := m.claims(); err != nil || len(claims) != 0 {
		t.Errorf("claims in the end: %+v, %v", claims, err)
	}
	t.Logf("%d and %d compiles, at most %d at once; %d were killed", began["one"], began["two"], most, slotsFit)
}
