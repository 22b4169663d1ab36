package machine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/machine"
)

// A logFile is a log of the corpus: what failed, what is known, and what Diagnose has
// to find.
type logFile struct {
	machine.Evidence
	id, class, confidence string
}

// readLog reads a file of testdata/logs: lines "# key: value", a line of dashes, the log.
func readLog(t testing.TB, name string) logFile {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, body, ok := strings.Cut(strings.ReplaceAll(string(data), "\r\n", "\n"), "---\n")
	if !ok {
		t.Fatalf("%s has no line of dashes", name)
	}
	f := logFile{}
	f.LogLines = strings.Split(strings.TrimSuffix(body, "\n"), "\n")
	list := func(v string) []string { return strings.Split(v, ", ") }
	for line := range strings.Lines(head) {
		key, value, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "# ")), ": ")
		if !ok {
			t.Fatalf("%s: %q is not a key and a value", name, line)
		}
		switch key {
		case "id":
			f.id = value
		case "class":
			f.class = value
		case "confidence":
			f.confidence = value
		case "from": // how it was made, for readers
		case "stage":
			f.Stage = value
		case "exit":
			if f.ExitCode, err = strconv.Atoi(value); err != nil {
				t.Fatal(err)
			}
		case "torch":
			f.Torch = value
		case "cuda":
			f.CUDA = value
		case "rocm":
			f.ROCm = value
		case "python":
			f.Python = value
		case "os":
			f.OS = value
		case "image":
			f.Image = value
		case "distribution":
			f.Distribution = value
		case "torch-found":
			f.TorchFound = value
		case "torch-cuda-found":
			f.TorchCUDAFound = value
		case "arch-found":
			f.ArchFound = value
		case "gpus-found":
			f.GPUsFound = list(value)
		case "requirements":
			f.Requirements = list(value)
		case "test-imports":
			f.TestImports = list(value)
		case "wheel-top-level":
			f.WheelTopLevel = list(value)
		case "wheel-requires":
			f.WheelRequires = list(value)
		case "tools-missing":
			f.ToolsMissing = list(value)
		case "network-off":
			f.NetworkOff = value == "true"
		default:
			t.Fatalf("%s: unknown key %q", name, key)
		}
	}
	return f
}

func logs(t testing.TB, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "logs", pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	return names
}

func ids(list []machine.Diagnosis) []string {
	out := []string{}
	for _, d := range list {
		out = append(out, d.ID)
	}
	return out
}

// TestLogs: every log of the corpus gives its one diagnosis, in words that are pinned
// in diagnoses.golden.
func TestLogs(t *testing.T) {
	var golden strings.Builder
	for _, name := range logs(t, "*.txt") {
		f := readLog(t, name)
		base := strings.TrimSuffix(filepath.Base(name), ".txt")
		t.Run(base, func(t *testing.T) {
			got := machine.Diagnose(f.Evidence)
			if diff := cmp.Diff([]string{f.id}, ids(got)); diff != "" {
				t.Fatalf("diagnoses (-want +got):\n%s", diff)
			}
			d := got[0]
			if f.class != "" && f.class != string(d.Class) {
				t.Errorf("class %s, want %s", d.Class, f.class)
			}
			if f.confidence != "" && f.confidence != string(d.Confidence) {
				t.Errorf("confidence %s, want %s", d.Confidence, f.confidence)
			}
			if len(d.Lines) == 0 && f.id != "killed-by-signal" {
				t.Error("no line of the log proves it")
			}
			fmt.Fprintf(&golden, "%s: %s (%s, %s)\n  %s\n  fix: %s\n\n", base, d.ID, d.Class, d.Confidence, d.Detail, strings.ReplaceAll(d.Fix, "\n", "\n       "))
		})
	}
	kilntest.Golden(t, "testdata/diagnoses.golden", []byte(golden.String()))
}

// TestCleanLogs: the log of a command that ended well proves nothing, and even if the
// command had failed, only the entries that speak for want of others would.
func TestCleanLogs(t *testing.T) {
	generic := map[string]bool{}
	for _, k := range machine.Known() {
		generic[k.ID] = k.Generic
	}
	for _, name := range logs(t, filepath.Join("clean", "*.txt")) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			f := readLog(t, name)
			if got := machine.Diagnose(f.Evidence); len(got) != 0 {
				t.Errorf("a clean log gives %v", got)
			}
			for _, stage := range []string{f.Stage, "", machine.StageTest, machine.StageImport} {
				f.Stage, f.ExitCode = stage, 1
				got := machine.Diagnose(f.Evidence)
				if len(got) != 1 || !generic[got[0].ID] {
					t.Errorf("in stage %q it gives %v", stage, got)
				}
			}
		})
	}
}

// TestFacts: diagnoses that need no log.
func TestFacts(t *testing.T) {
	const gib = 1 << 30
	tests := []struct {
		name       string
		evidence   machine.Evidence
		want       []string
		class      machine.Class
		confidence machine.Confidence
		detail     string
	}{
		{"nothing failed", machine.Evidence{Stage: "compile", Jobs: 4, MemoryLimitBytes: 8 * gib, PeakMemoryBytes: 8 * gib}, []string{}, "", "", ""},
		{
			"oom counter",
			machine.Evidence{Stage: "compile", ExitCode: 1, OOMKilled: true, Jobs: 4, NVCCThreads: 2, MemoryLimitBytes: 6 * gib, PeakMemoryBytes: 6 * gib},
			[]string{"oom"},
			machine.ClassMemory, machine.Certain, "peak 6.0 GiB of a limit of 6.0 GiB, with 4 jobs of 2 nvcc threads",
		},
		{"exit 137 near the limit", machine.Evidence{Stage: "compile", ExitCode: 137, MemoryLimitBytes: 6 * gib, PeakMemoryBytes: 59 * gib / 10}, []string{"oom"}, machine.ClassMemory, machine.Certain, ""},
		{"SIGKILL far from the limit", machine.Evidence{Stage: "compile", ExitCode: -1, Signal: "SIGKILL", MemoryLimitBytes: 60 * gib, PeakMemoryBytes: 1 * gib}, []string{"oom"}, machine.ClassMemory, machine.Possible, ""},
		{
			"exit 137 without an event",
			machine.Evidence{Stage: "compile", ExitCode: 137, Jobs: 4, MemoryLimitBytes: 14 * gib, PeakMemoryBytes: 9 * gib},
			[]string{"oom"},
			machine.ClassMemory, machine.Possible, "its own memory limit did not do it",
		},
		{"time limit", machine.Evidence{Stage: "compile", ExitCode: -1, Signal: "SIGKILL", TimedOut: true, WallLimit: 2 * time.Hour}, []string{"time-limit"}, machine.ClassTime, machine.Certain, "2h0m0s"},
		{"time limit, Killed in the log", machine.Evidence{Stage: "compile", ExitCode: -1, Signal: "SIGKILL", TimedOut: true, LogLines: []string{"Killed"}}, []string{"time-limit"}, machine.ClassTime, "", ""},
		{"worker lost", machine.Evidence{Stage: "compile", Lost: true, MemoryLimitBytes: 16 * gib, PeakMemoryBytes: 2 * gib}, []string{"worker-lost"}, machine.ClassLost, "", ""},
		{"worker lost for memory", machine.Evidence{Stage: "compile", Lost: true, MemoryLimitBytes: 16 * gib, PeakMemoryBytes: 159 * gib / 10}, []string{"oom"}, machine.ClassMemory, machine.Certain, ""},
		{"disk", machine.Evidence{Stage: "preflight", FreeDiskBytes: 3 * gib, NeedDiskBytes: 12 * gib}, []string{"disk-full"}, machine.ClassDisk, "", "3.0 GiB left; the row needs 12.0 GiB"},
		{"nvcc on Windows", machine.Evidence{Stage: "preflight", OS: "windows", CUDA: "12.8.1", ToolsMissing: []string{"nvcc"}}, []string{"no-nvcc"}, machine.ClassFault, machine.Certain, "PATH and the installer's folder"},
		{"runtime image", machine.Evidence{Stage: "preflight", CUDA: "12.8.1", Image: "nvidia/cuda:12.8.1-runtime-ubuntu22.04", ToolsMissing: []string{"nvcc"}}, []string{"no-nvcc"}, machine.ClassFault, machine.Certain, "Runtime images have no compiler"},
		{"no compiler, no ninja", machine.Evidence{Stage: "preflight", ToolsMissing: []string{"ninja", "c++"}}, []string{"ninja-missing", "no-compiler"}, machine.ClassFault, machine.Certain, ""},
		{"toolkit differs in minor", machine.Evidence{Stage: "preflight", CUDA: "12.8.1", ToolkitFound: "12.4", TorchCUDAFound: "12.8"}, []string{"toolkit-differs"}, machine.ClassFault, "", "asks for CUDA 12.8.1, and nvcc is 12.4"},
		{"toolkit differs in major", machine.Evidence{Stage: "preflight", CUDA: "13.0.2", ToolkitFound: "13.0", TorchFound: "2.9.0+cu128", TorchCUDAFound: "12.8"}, []string{"cuda-mismatch"}, machine.ClassFault, "", "CUDA 13.0, and torch was built with CUDA 12.8"},
		{"same minor", machine.Evidence{Stage: "preflight", CUDA: "13.0.2", ToolkitFound: "13.0.88", TorchFound: "2.9.0+cu130", Torch: "2.9.0", TorchCUDAFound: "13.0"}, []string{}, "", "", ""},
		{"torch replaced", machine.Evidence{Stage: "test", Torch: "2.8.0", TorchFound: "2.11.0+cu130", WheelRequires: []string{"torch>=2.10"}}, []string{"torch-differs"}, machine.ClassFault, "", "torch 2.8.0, and the environment has 2.11.0+cu130"},
		{"torch of the series", machine.Evidence{Stage: "test", Torch: "2.8", TorchFound: "2.8.1+cu128"}, []string{}, "", "", ""},
		{"torch of another series", machine.Evidence{Stage: "test", Torch: "2.8", TorchFound: "2.9.0+cu128"}, []string{"torch-differs"}, machine.ClassFault, "", ""},
		{"same version, written otherwise", machine.Evidence{Stage: "collect", VersionFound: "1.0.0", VersionWanted: "1.0"}, []string{}, "", "", ""},
		{"outputs not looked at", machine.Evidence{Stage: "collect", ExitCode: 0, WantOutputs: []string{"a-1-cp312-cp312-linux_x86_64.whl"}}, []string{}, "", "", ""},
		{"torch is a CPU build", machine.Evidence{Stage: "preflight", CUDA: "12.8.1", TorchFound: "2.8.0+cpu", TorchCUDAFound: "none"}, []string{"torch-cpu"}, machine.ClassFault, machine.Certain, "2.8.0+cpu"},
		{"arch too new", machine.Evidence{Stage: "preflight", CUDA: "12.4.1", ToolkitFound: "12.4", Arch: "8.6 12.0+PTX"}, []string{"arch-unsupported"}, machine.ClassFault, "", "CUDA 12.8 was the first that could"},
		{"arch too old", machine.Evidence{Stage: "preflight", CUDA: "13.0.2", Arch: "6.1 8.6"}, []string{"arch-unsupported"}, machine.ClassFault, "", "was the last that could"},
		{"pure wheel", machine.Evidence{Stage: "collect", Native: true, Outputs: []string{"exllamav2-0.3.2-py3-none-any.whl"}, WantOutputs: []string{"exllamav2-0.3.2+cu128.torch2.9.0-cp313-cp313-linux_x86_64.whl"}, Env: map[string]string{"EXLLAMA_NOCOMPILE": ""}}, []string{"pure-wheel"}, machine.ClassFault, "", "EXLLAMA_NOCOMPILE is set"},
		{"no wheel", machine.Evidence{Stage: "collect", Outputs: []string{"a-1.tar.gz"}, WantOutputs: []string{"a-1-cp312-cp312-linux_x86_64.whl"}}, []string{"no-wheel"}, machine.ClassFault, "", "a-1.tar.gz"},
		{"several wheels", machine.Evidence{Stage: "collect", Outputs: []string{"a-1-cp312-cp312-linux_x86_64.whl", "torch-2.9.0-cp312-cp312-linux_x86_64.whl"}, WantOutputs: []string{"a-1-cp312-cp312-linux_x86_64.whl"}}, []string{"several-wheels"}, machine.ClassFault, "", "torch-2.9.0"},
		{"wanted wheel and sdist", machine.Evidence{Stage: "collect", Outputs: []string{"a-1-py3-none-any.whl", "a-1.tar.gz"}, WantOutputs: []string{"a-1-py3-none-any.whl", "a-1.tar.gz"}}, []string{}, "", "", ""},
		{"wrong name", machine.Evidence{Stage: "collect", Native: true, Outputs: []string{"a-1-cp312-cp312-linux_x86_64.whl"}, WantOutputs: []string{"a-1+cu128.torch2.9.0-cp312-cp312-linux_x86_64.whl"}}, []string{"wrong-name"}, machine.ClassFault, "", "another build tag"},
		{"wrong version", machine.Evidence{Stage: "collect", VersionFound: "0.3.3", VersionWanted: "0.3.2", Outputs: []string{"a-0.3.3-cp312-cp312-linux_x86_64.whl"}, WantOutputs: []string{"a-0.3.2-cp312-cp312-linux_x86_64.whl"}}, []string{"wrong-version"}, machine.ClassFault, "", "0.3.3"},
		{"version None", machine.Evidence{Stage: "fetch", VersionWanted: "None"}, []string{"version-not-found"}, machine.ClassFault, "", ""},
		{"downloaded", machine.Evidence{Stage: "collect", Native: true, CompileCalls: -1, Outputs: []string{"flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl"}}, []string{"not-built"}, machine.ClassFault, machine.Certain, "No compiler was called"},
		{"arch ignored", machine.Evidence{Stage: "audit", Arch: "8.6;9.0+PTX", ArchFound: "8.0 9.0"}, []string{"arch-ignored"}, machine.ClassFault, "", "8.6 and 9.0+PTX are missing"},
		{"arch variable that nothing reads", machine.Evidence{Stage: "preflight", Env: map[string]string{"FLASH_ATTENTION_CUDA_ARCHS": "86"}}, []string{"arch-ignored"}, machine.ClassFault, "", "FLASH_ATTN_CUDA_ARCHS"},
		{"module outside", machine.Evidence{Stage: "test", ModuleFile: "/home/user/.cache/torch_extensions/x.so"}, []string{"compile-at-import"}, machine.ClassFault, "", "not in the wheel"},
		{"module inside", machine.Evidence{Stage: "test", ModuleFile: "x/_C.so"}, []string{}, "", "", ""},
		{"SIGSEGV", machine.Evidence{Stage: "test", ExitCode: -1, Signal: "SIGSEGV", Argv: []string{"/usr/bin/python3"}}, []string{"killed-by-signal"}, machine.ClassFault, "", "python3 crashed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := machine.Diagnose(tt.evidence)
			if diff := cmp.Diff(tt.want, ids(got)); diff != "" {
				t.Fatalf("diagnoses (-want +got):\n%s", diff)
			}
			if len(got) == 0 {
				return
			}
			if got[0].Class != tt.class {
				t.Errorf("class %q, want %q", got[0].Class, tt.class)
			}
			if tt.confidence != "" && got[0].Confidence != tt.confidence {
				t.Errorf("confidence %q, want %q", got[0].Confidence, tt.confidence)
			}
			if !strings.Contains(got[0].Detail, tt.detail) {
				t.Errorf("detail %q lacks %q", got[0].Detail, tt.detail)
			}
		})
	}
}

// TestTable: ids are unique, every entry has a log or a case that gives it, and every
// failure mode that the pipeline has to know on Linux is covered.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range logs(t, "*.txt") {
		seen[readLog(t, name).id] = true
	}
	for _, id := range []string{ // TestFacts
		"worker-lost", "toolkit-differs", "torch-differs", "no-wheel", "several-wheels", "pure-wheel", "not-built", "wrong-version", "wrong-name", "arch-ignored",
	} {
		seen[id] = true
	}
	known := map[string]bool{}
	modes := map[int]bool{}
	generic := false
	for _, k := range machine.Known() {
		if known[k.ID] {
			t.Errorf("%s is there twice", k.ID)
		}
		known[k.ID] = true
		if !seen[k.ID] {
			t.Errorf("no log of the corpus gives %s", k.ID)
		}
		if k.Title == "" || k.Cause == "" || machine.Remedy(k.ID) == "" {
			t.Errorf("%s lacks a title, a cause or a remedy", k.ID)
		}
		if len(k.Patterns) == 0 && !k.FromFacts {
			t.Errorf("%s can never be found", k.ID)
		}
		if generic && !k.Generic {
			t.Errorf("%s comes after a generic entry", k.ID)
		}
		generic = k.Generic
		for _, m := range k.Modes {
			modes[m] = true
		}
	}
	for id := range seen {
		if !known[id] {
			t.Errorf("a log of the corpus wants %q, which is not in the table", id)
		}
	}
	// The other modes are about plans, indexes and releases, where nothing is run.
	for _, m := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 22, 23, 24, 25, 26, 30, 32, 33, 35, 36} {
		if !modes[m] {
			t.Errorf("failure mode %d is in no entry", m)
		}
	}
	if machine.Remedy("no-such-id") != "" {
		t.Error("an unknown id has a remedy")
	}
}

func TestCompilerErrors(t *testing.T) {
	var log []string
	for i := range 3000 {
		log = append(log,
			fmt.Sprintf("/opt/include/a.h:%d:3: note: candidate: template<class T> void f(T)", i),
			fmt.Sprintf("src/k.cu(%d): warning #177-D: variable \"error\" was declared but never referenced", i))
	}
	log = append(log,
		"In file included from src/a.cpp:1:",
		"src/a.cpp:12:7: error: ‘x’ was not declared in this scope",
		"src/k.cu(40): error: identifier \"y\" is undefined",
		"src/k.cu(40): error: identifier \"y\" is undefined", // once an arch
		"src/k.cu(41): error #20: identifier \"z\" is undefined",
		"ptxas fatal   : Unresolved extern function 'g'",
		`C:\src\b.cpp(7): error C2065: 'q': undeclared identifier`,
		"2 errors detected in the compilation of \"src/k.cu\".",
		"error: command '/usr/bin/g++' failed with exit code 1",
		"ninja: build stopped: subcommand failed.",
	)
	got := machine.FindCompilerErrors(log, 3)
	want := machine.CompilerErrors{
		First: []machine.CompilerError{
			{File: "src/a.cpp", Line: 12, Message: "‘x’ was not declared in this scope", Text: log[6001], Count: 1},
			{File: "src/k.cu", Line: 40, Message: `identifier "y" is undefined`, Text: log[6002], Count: 2},
			{File: "src/k.cu", Line: 41, Message: `identifier "z" is undefined`, Text: log[6004], Count: 1},
		},
		Total: 6, Files: 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	d := machine.Diagnose(machine.Evidence{Stage: machine.StageCompile, ExitCode: 1, LogLines: log})
	if len(d) != 1 || d[0].ID != "compile-error" || !strings.HasPrefix(d[0].Detail, "6 errors in 3 files. The first: src/a.cpp:12: ") {
		t.Errorf("diagnosis %+v", d)
	}
}

// TestDiagnoseKeepsItsEvidence: the caller's slices stay as they are.
func TestDiagnoseKeepsItsEvidence(t *testing.T) {
	for _, name := range logs(t, "*.txt") {
		f := readLog(t, name)
		f.LogLines = append([]string{"\x1b[31mred\x1b[0m\r"}, f.LogLines...)
		before := slices.Clone(f.LogLines)
		first := machine.Diagnose(f.Evidence)
		second := machine.Diagnose(f.Evidence)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("%s: two calls differ:\n%s", name, diff)
		}
		if diff := cmp.Diff(before, f.LogLines); diff != "" {
			t.Errorf("%s: the evidence was changed:\n%s", name, diff)
		}
	}
}

func TestColorsAreIgnored(t *testing.T) {
	d := machine.Diagnose(machine.Evidence{Stage: machine.StageCompile, ExitCode: 1, LogLines: []string{
		"10%\r50%\r\x1b[01m\x1b[Kx.cu:1:10:\x1b[m\x1b[K \x1b[01;31m\x1b[Kfatal error: \x1b[m\x1b[Kcublas_v2.h: No such file or directory",
	}})
	if diff := cmp.Diff([]string{"header-missing"}, ids(d)); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff([]string{"x.cu:1:10: fatal error: cublas_v2.h: No such file or directory"}, d[0].Lines); diff != "" {
		t.Error(diff)
	}
}

// FuzzDiagnose: whatever a program prints, there is an answer, of bounded size, and a
// failure always has one.
func FuzzDiagnose(f *testing.F) {
	for _, name := range logs(f, "*.txt") {
		l := readLog(f, name)
		f.Add(strings.Join(l.LogLines, "\n"), l.Stage, l.ExitCode)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, log, stage string, code int) {
		e := machine.Evidence{Stage: stage, ExitCode: code, LogLines: strings.Split(log, "\n")}
		got := machine.Diagnose(e)
		if code != 0 && len(got) == 0 {
			t.Error("a failure without a diagnosis")
		}
		for _, d := range got {
			if d.ID == "" || d.Title == "" || d.Detail == "" || d.Fix == "" || d.Class == "" || d.Confidence == "" {
				t.Errorf("incomplete: %+v", d)
			}
			if len(d.Lines) > 10 || len(d.Detail) > 64<<10 {
				t.Errorf("too long: %d lines, %d bytes", len(d.Lines), len(d.Detail))
			}
		}
	})
}

func BenchmarkDiagnose(b *testing.B) {
	f := readLog(b, filepath.Join("testdata", "logs", "torch-old-arch.txt"))
	noise := slices.Repeat(f.LogLines[:len(f.LogLines)-1], 10_000/len(f.LogLines)+1)
	f.LogLines = append(noise, f.LogLines...)
	size := 0
	for _, l := range f.LogLines {
		size += len(l) + 1
	}
	b.SetBytes(int64(size))
	for b.Loop() {
		machine.Diagnose(f.Evidence)
	}
}

// TestAsked: a network error names what pip was to get, from where, and what changes that.
func TestAsked(t *testing.T) {
	pip := []string{"/venv/bin/python", "-m", "pip", "--python", "/venv/bin/python", "install", "--no-compile", "--report", "report.json"}
	for want, args := range map[string][]string{
		"pip asked https://x.example/whl/cu130 for torch==2.11.0. --torch-index":          {"--dry-run", "--use-feature", "fast-deps", "--index-url", "https://x.example/whl/cu130", "torch==2.11.0"},
		"pip asked its default index for setuptools and wheel. --index-url names another": {"--constraint", "constraints.txt", "setuptools", "wheel"},
	} {
		found := machine.Diagnose(machine.Evidence{Stage: machine.StagePrepare, ExitCode: 1, Argv: slices.Concat(pip, args), LogLines: []string{
			"ERROR: HTTPSConnectionPool(host='x.example', port=443): Failed to establish a new connection: [Errno 111] Connection refused",
		}})
		if len(found) == 0 {
			t.Fatal("nothing is found")
		}
		d := found[0]
		sentence, key, _ := strings.Cut(want, ". ")
		if d.ID != "network" || !strings.Contains(d.Detail, sentence+".") || !strings.Contains(d.Fix, key) {
			t.Errorf("%+v, want %q", d, want)
		}
	}
}
