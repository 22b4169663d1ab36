package launcher_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// The test binary is a launcher too.
func TestMain(m *testing.M) {
	launcher.Main()
	os.Exit(m.Run())
}

// bench is a folder with a launcher before the real g++ and ccache.
type bench struct {
	t      testing.TB
	dir    string
	config launcher.Config
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	for tool, promise := range map[string]string{"g++": "cc", "ccache": "ccache"} {
		if _, err := exec.LookPath(tool); err != nil {
			kilntest.Lacking(t, promise, "there is no %s", tool)
		}
	}
	gcc, _ := exec.LookPath("g++")
	cc, _ := exec.LookPath("ccache")
	work := filepath.Join(b.dir, "work")
	for _, d := range []string{"bin", "deps", "tmp", "source", "venv/lib/site/inc"} {
		if err := os.MkdirAll(filepath.Join(work, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(work, "bin", "g++")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(work, "venv/lib/site"), filepath.Join(work, "site")); err != nil {
		t.Fatal(err)
	}
	b.config = launcher.Config{
		Row: "row", Package: "demo", Version: "1.0", Work: work, Bin: filepath.Join(work, "bin"), Tools: map[string]launcher.Tool{"g++": {Path: gcc, Kind: launcher.GCC, ID: "gcc"}},
		CCache: cc, CacheDir: filepath.Join(b.dir, "cache"), CacheBytes: 1e9, Calls: filepath.Join(work, "calls.jsonl"),
		Deps: filepath.Join(work, "deps"), Temp: filepath.Join(work, "tmp"),
		Map: []launcher.Mapping{{From: filepath.Join(work, "venv/lib/site"), To: filepath.Join(work, "site")}},
	}
	b.write("venv/lib/site/inc/x.h", "#define X 1\n")
	b.write("source/a.cpp", "#include <x.h>\n#include <map>\n#include <string>\nstd::map<std::string, int> f() { return {{__FILE__, X + ROUND}}; }\n")
	return b
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.config.Work, filepath.FromSlash(name)), []byte(text), 0o666); err != nil {
		b.t.Fatal(err)
	}
}

// command prepares a call of the launcher.
func (b *bench) command(args ...string) *exec.Cmd {
	b.t.Helper()
	text, err := json.Marshal(b.config)
	if err != nil {
		b.t.Fatal(err)
	}
	path := filepath.Join(b.config.Work, "launcher.json")
	if err := os.WriteFile(path, text, 0o666); err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.CommandContext(b.t.Context(), filepath.Join(b.config.Bin, "g++"), args...)
	cmd.Dir = filepath.Join(b.config.Work, "source")
	cmd.Env = []string{"PATH=" + b.config.Bin + ":/usr/local/bin:/usr/bin:/bin", launcher.ConfigEnv + "=" + path, "HOME=" + b.dir, "LC_ALL=C.UTF-8"}
	return cmd
}

func (b *bench) args(round int, object string, more ...string) []string {
	inc := filepath.Join(b.config.Work, "venv/lib/site/inc")
	return append([]string{"-O1", "-I" + inc, "-DROUND=" + strconv.Itoa(round), "-c", "a.cpp", "-o", object}, more...)
}

// compile runs the launcher and returns the object and the last record.
func (b *bench) compile(round int, object string, more ...string) ([]byte, launcher.Entry) {
	b.t.Helper()
	cmd := b.command(b.args(round, object, more...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	text, err := os.ReadFile(filepath.Join(cmd.Dir, object))
	if err != nil {
		b.t.Fatal(err)
	}
	records, err := calls.ReadRecords(b.config.Calls)
	if err != nil || len(records) == 0 {
		b.t.Fatalf("records: %v, %v", records, err)
	}
	return text, records[len(records)-1]
}

// Headers of Python are named by a link, and GCC lists what is found with -isystem, as CMake gives it,
// by the shorter name, which is the place of the other Python for its row too: an object for Python
// 3.12 was taken for 3.13.
func TestLauncherSystemHeaders(t *testing.T) {
	one, two := newBench(t), newBench(t)
	two.config.CacheDir = one.config.CacheDir
	short, err := os.MkdirTemp("", "p") //nolint:usetesting // its name has to be shorter than that of the row
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	results := [2]launcher.Entry{}
	for i, b := range []*bench{one, two} {
		python := filepath.Join(short, strconv.Itoa(i))
		if err := os.Mkdir(python, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(python, "Python.h"), []byte("#define PYTHON "+strconv.Itoa(i)+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(b.config.Work, "python")
		if err := os.Symlink(python, link); err != nil {
			t.Fatal(err)
		}
		b.config.Map = append(b.config.Map, launcher.Mapping{From: python, To: link})
		b.write("source/a.cpp", "#include <Python.h>\nint f() { return PYTHON + ROUND; }\n")
		_, results[i] = b.compile(1, "a.o", "-isystem", python)
	}
	if results[0].Result != launcher.Miss || results[1].Result != launcher.Miss {
		t.Errorf("%s, then %s for another Python; want two misses", results[0].Result, results[1].Result)
	}
}

// Rows in other folders, with other names for objects, share; what differs in something that
// matters does not.
func TestLauncherShares(t *testing.T) {
	one, two := newBench(t), newBench(t)
	two.config.CacheDir = one.config.CacheDir
	first, r := one.compile(1, "build.cp311.o", "-g")
	if r.Result != launcher.Miss || r.PeakMemoryBytes < 1<<20 || r.ObjectBytes != int64(len(first)) || r.Source != "/kiln/work/source/a.cpp" {
		t.Errorf("first call: %+v", r)
	}
	second, r2 := two.compile(1, "build.cp313.o", "-g", "-MMD", "-MF", "list.d")
	if r2.Result != launcher.Hit || !bytes.Equal(first, second) {
		t.Errorf("second call: %+v, same bytes: %v", r2, bytes.Equal(first, second))
	}
	for _, dir := range []string{one.dir, two.dir} {
		if bytes.Contains(first, []byte(dir)) {
			t.Errorf("the object names the folder %s", dir)
		}
	}
	list, err := os.ReadFile(filepath.Join(two.config.Work, "source", "list.d"))
	if err != nil || !strings.HasPrefix(string(list), "build.cp313.o: a.cpp") || !strings.Contains(string(list), "site/inc/x.h") {
		t.Errorf("dependency list: %v\n%s", err, list)
	}
	in, err := calls.Collect(&two.config)
	other, err1 := calls.Collect(&one.config)
	if err1 != nil || other.Calls[0].Key == "" || other.Calls[0].Key != in.Calls[0].Key {
		t.Errorf("keys of one compile: %v, %v, %v", err1, other.Calls, in.Calls)
	}
	if err != nil || len(in.Calls) != 1 || !slices.Contains(in.Files, "/kiln/work/site/inc/x.h") || slices.Contains(in.Digests, "") {
		t.Errorf("inputs: %v, %+v", err, in)
	}

	if _, r := two.compile(2, "x.o"); r.Result != launcher.Miss {
		t.Errorf("another argument: %s", r.Result)
	}
	two.write("venv/lib/site/inc/x.h", "#define X 2\n")
	changed, r := two.compile(1, "x.o", "-g")
	if r.Result != launcher.Miss || bytes.Equal(changed, first) {
		t.Errorf("another header: %s", r.Result)
	}
	two.config.Tools["g++"] = launcher.Tool{Path: two.config.Tools["g++"].Path, Kind: launcher.GCC, ID: "another"}
	if _, r := two.compile(1, "x.o"); r.Result != launcher.Miss {
		t.Errorf("another compiler: %s", r.Result)
	}
	two.config.Remote = &launcher.Remote{Socket: filepath.Join(two.dir, "none"), Kind: "http"}
	if _, r := two.compile(3, "x.o"); r.Result != launcher.Miss || r.Remote {
		t.Errorf("a remote cache that does not answer: %s %s", r.Result, r.Why)
	}
	two.config.CCache = ""
	if _, r := two.compile(1, "x.o"); r.Result != launcher.Bypass || r.Why != "there is no ccache here" {
		t.Errorf("without ccache: %s, %s", r.Result, r.Why)
	}
}

// What the compiler says and how it ends is the caller's to see.
func TestLauncherFails(t *testing.T) {
	b := newBench(t)
	b.write("source/a.cpp", "int f() { return no_such_thing; }\n")
	out, err := b.command(b.args(1, "a.o")...).CombinedOutput()
	e, ok := errors.AsType[*exec.ExitError](err)
	if !ok || e.ExitCode() != 1 || !bytes.Contains(out, []byte("no_such_thing")) {
		t.Errorf("%v\n%s", err, out)
	}
	records, err := calls.ReadRecords(b.config.Calls)
	if err != nil || len(records) != 1 || records[0].Result != launcher.Failed || records[0].ExitCode != 1 {
		t.Errorf("records %+v, %v", records, err)
	}
	if out, err := b.command("--version").Output(); err != nil || len(out) == 0 {
		t.Errorf("a question: %v, %q", err, out)
	}
}

// standInHIP compiles with g++, and reads dev.h for each GPU; its own list does not say so, as
// hipcc's does not.
const standInHIP = `#!/bin/sh
case " $* " in
*" -M "*) [ -e broken ] && exit 1; echo "a.o: a.hip dev.h" ; exit 0 ;;
esac
for a; do shift; case $a in --offload-arch=*|-fcolor-diagnostics) ;; a.hip) set -- "$@" -x c++ a.hip ;; *) set -- "$@" "$a" ;; esac; done
exec g++ "-DDEV=$(cat dev.h)" "$@"
`

// What only the passes for GPUs read decides too, is in the list of inputs, and a compiler that
// does not tell is not shared.
func TestLauncherHIP(t *testing.T) {
	b := newBench(t)
	tool := filepath.Join(b.dir, "hipcc")
	if err := os.WriteFile(tool, []byte(standInHIP), 0o777); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(b.config.Bin, "hipcc")); err != nil {
		t.Fatal(err)
	}
	b.config.Tools["hipcc"] = launcher.Tool{Path: tool, Kind: launcher.HIPCC, ID: "hip"}
	b.write("source/a.hip", "int f() { return DEV; }\n")
	b.write("source/dev.h", "1")
	compile := func() (object string, r launcher.Entry) {
		t.Helper()
		cmd := b.command("-c", "a.hip", "-o", "a.o", "--offload-arch=gfx90a", "-MMD", "-MF", "a.d")
		cmd.Path = filepath.Join(b.config.Bin, "hipcc")
		cmd.Args[0] = "hipcc"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		text, err := os.ReadFile(filepath.Join(cmd.Dir, "a.o"))
		if err != nil {
			t.Fatal(err)
		}
		list, err := os.ReadFile(filepath.Join(cmd.Dir, "a.d"))
		if err != nil || !strings.HasPrefix(string(list), "a.o: a.hip") || strings.Contains(string(list), "dev.h") {
			t.Errorf("the caller's list: %v\n%s", err, list)
		}
		records, err := calls.ReadRecords(b.config.Calls)
		if err != nil {
			t.Fatal(err)
		}
		return string(text), records[len(records)-1]
	}
	first, r := compile()
	if r.Result != launcher.Miss {
		t.Errorf("first call: %+v", r)
	}
	if again, r := compile(); r.Result != launcher.Hit || again != first {
		t.Errorf("second call: %s %s", r.Result, r.Why)
	}
	b.write("source/dev.h", "2")
	if other, r := compile(); r.Result != launcher.Miss || other == first {
		t.Errorf("a header of the GPU's alone was changed: %s, same object: %v", r.Result, other == first)
	}
	in, err := calls.Collect(&b.config)
	if err != nil || !slices.Contains(in.Files, "/kiln/work/source/dev.h") || in.Calls[0].Key == "" {
		t.Errorf("inputs: %v, %+v", err, in)
	}
	b.write("source/broken", "")
	if _, r := compile(); r.Result != launcher.Bypass || !strings.HasPrefix(r.Why, "what its passes for GPUs read is not known") {
		t.Errorf("without lists: %s %s", r.Result, r.Why)
	}
}

// What ccache refuses runs as it was called, and is counted with the reason.
func TestLauncherPassesThrough(t *testing.T) {
	b := newBench(t)
	tool := filepath.Join(b.dir, "nvcc")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho \"$@\" >k.out\n"), 0o777); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(b.config.Bin, "nvcc")); err != nil {
		t.Fatal(err)
	}
	b.config.Tools["nvcc"] = launcher.Tool{Path: tool, Kind: launcher.NVCC, ID: "nvcc"}
	for i, option := range []string{"-ptx", "-cubin", "--fatbin"} {
		args := []string{option, "k.cu", "--output-file", "k.out", "-Iinc"}
		cmd := b.command(args...)
		cmd.Path = filepath.Join(b.config.Bin, "nvcc")
		cmd.Args[0] = "nvcc"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", option, err, out)
		}
		text, err := os.ReadFile(filepath.Join(cmd.Dir, "k.out"))
		if want := strings.Join(args, " ") + "\n"; err != nil || string(text) != want {
			t.Errorf("%s: called with %q, %v; want %q", option, text, err, want)
		}
		records, err := calls.ReadRecords(b.config.Calls)
		if err != nil || len(records) != i+1 {
			t.Fatalf("%s: %d records, %v", option, len(records), err)
		}
		if r := records[i]; r.Result != launcher.Bypass || r.Why != "ccache does not cache "+option || r.ObjectBytes != int64(len(text)) {
			t.Errorf("%s: %+v", option, r)
		}
	}
}

// A pool that goes away while a launcher waits does not hold it up.
func TestLauncherWithoutPool(t *testing.T) {
	b := newBench(t)
	dir, err := os.MkdirTemp("", "kiln-") //nolint:usetesting // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b.config.Slots = filepath.Join(dir, "slots")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", b.config.Slots)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan launcher.SlotRequest, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		var r launcher.SlotRequest
		_ = json.NewDecoder(conn).Decode(&r)
		asked <- r
		conn.Close() // killed
		listener.Close()
	}()
	if _, r := b.compile(1, "a.o"); r.Result != launcher.Miss {
		t.Errorf("%s %s", r.Result, r.Why)
	}
	if r := <-asked; r.File != "demo /kiln/work/source/a.cpp gcc" || r.Unit == "" || r.CPU != 1 {
		t.Errorf("asked for %+v", r)
	}
	if _, r := b.compile(1, "a.o"); r.Result != launcher.Hit {
		t.Errorf("without a socket: %s %s", r.Result, r.Why)
	}
}

// children returns the processes that a process has started.
func children(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var out []int
	for word := range strings.FieldsSeq(string(text)) {
		if n, err := strconv.Atoi(word); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// TestLauncherKill kills the launcher, or ccache below it, at random moments. A killed launcher is
// a failed call. A killed ccache is not. Whatever was killed, the next call gives the right object.
func TestLauncherKill(t *testing.T) {
	b := newBench(t)
	rounds := 2
	if kilntest.E2E("share") {
		rounds = 50
	}
	began := time.Now()
	b.compile(0, "warm.o")
	usual := time.Since(began)
	reference := newBench(t)
	killed := map[string]int{}
	for round := 1; round <= rounds; round++ {
		want, _ := reference.compile(round, "a.o")
		for _, victim := range []string{"launcher", "ccache"} {
			object := fmt.Sprintf("%s-%d.o", victim, round)
			// Another key for each, so that there is something to compile.
			more := "-DVICTIM=" + victim
			cmd := b.command(b.args(round, object, more)...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(rand.Int64N(int64(usual))))
			hit := false
			switch pids := children(cmd.Process.Pid); {
			case victim == "launcher":
				hit = cmd.Process.Kill() == nil
			case len(pids) > 0:
				hit = syscall.Kill(pids[0], syscall.SIGKILL) == nil
			}
			err := cmd.Wait()
			if err == nil || hit {
				killed[victim]++
			}
			if victim == "ccache" && err != nil {
				t.Fatalf("ccache was killed: %v", err)
			}
			if err == nil {
				// It says that the object is there.
				b.same(object, want)
			}
			again, _ := b.compile(round, object, more)
			if !bytes.Equal(again, want) {
				t.Fatalf("after killing the %s in round %d the next call gives another object", victim, round)
			}
		}
	}
	t.Logf("killed: %v in %d rounds, a compile takes %v", killed, rounds, usual.Round(time.Millisecond))
}

func (b *bench) same(object string, want []byte) {
	b.t.Helper()
	got, err := os.ReadFile(filepath.Join(b.config.Work, "source", object))
	if err != nil || !bytes.Equal(got, want) {
		b.t.Fatalf("%s: %v, %d bytes, want %d", object, err, len(got), len(want))
	}
}

// A compiler that is called by its path is written down, with who called it; one that is called
// through a wrapper is shared as any other.
func TestLauncherPast(t *testing.T) {
	b := newBench(t)
	b.config.Passes = filepath.Join(b.dir, "passes")
	if err := os.Mkdir(b.config.Passes, 0o777); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{filepath.Join(b.config.Passes, "cc1plus"), filepath.Join(b.config.Bin, "ccache")} {
		if err := os.Symlink(self, link); err != nil {
			t.Fatal(err)
		}
	}
	real := b.config.Tools["g++"].Path
	run := func(argv ...string) launcher.Entry {
		t.Helper()
		cmd := b.command()
		cmd.Env = append(cmd.Env, launcher.PassVariable+"="+b.config.Passes)
		cmd.Path, cmd.Args = argv[0], argv
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
		records, err := calls.ReadRecords(b.config.Calls)
		if err != nil || len(records) == 0 {
			t.Fatalf("records: %v, %v", records, err)
		}
		return records[len(records)-1]
	}
	r := run("/bin/sh", "-c", real+" "+strings.Join(b.args(1, "x.o"), " ")+"; true")
	if r.Result != launcher.Bypass || r.Why != "it was called by its path, "+real+", by sh" || r.Source != "/kiln/work/source/a.cpp" {
		t.Errorf("by its path: %+v", r)
	}
	for i, want := range []launcher.Outcome{launcher.Miss, launcher.Hit} {
		if r := run(append([]string{filepath.Join(b.config.Bin, "ccache"), []string{"g++", real}[i]}, b.args(1, "x.o")...)...); r.Result != want || r.Tool != "g++" {
			t.Errorf("through a wrapper: %+v", r)
		}
	}
	records, err := calls.ReadRecords(b.config.Calls)
	if err != nil || len(records) != 3 {
		t.Errorf("%d records, %v: the compilers of the launcher are no calls past it", len(records), err)
	}
}
