package launcher

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func TestParseCall(t *testing.T) {
	type want struct {
		Args    string
		Source  string
		Output  string
		Other   bool
		Refused string
		Deps    bool
		DepPath string
		Targets string
		CCBin   string
		Threads int
	}
	for _, test := range []struct {
		name string
		kind Kind
		args string
		want want
	}{
		{
			"torch 2.6 with nvcc", NVCC,
			"--generate-dependencies-with-compile --dependency-output k.o.d -I/t -c /s/k.cu -o k.o -gencode=arch=compute_80,code=sm_80 -ccbin gcc-13 --threads 2 -std=c++17",
			want{
				Args:   "-I/t -c /s/k.cu -o k.o -gencode=arch=compute_80,code=sm_80 -ccbin gcc-13 --threads 2 -std=c++17",
				Source: "/s/k.cu", Output: "k.o", Deps: true, DepPath: "k.o.d", CCBin: "gcc-13", Threads: 2,
			},
		},
		{
			"torch with c++", GCC, "-MMD -MF b.o.d -DX=1 -I/t -fPIC -c b.cpp -o b.o -DTORCH_EXTENSION_NAME=e",
			want{Args: "-DX=1 -I/t -fPIC -c b.cpp -o b.o -DTORCH_EXTENSION_NAME=e", Source: "b.cpp", Output: "b.o", Deps: true, DepPath: "b.o.d", Threads: 1},
		},
		{"no output", GCC, "-c dir/x.c", want{Args: "-c dir/x.c -o x.o", Source: "dir/x.c", Output: "x.o", Threads: 1}},
		{"joined output", GCC, "-c x.c -ofoo.o", want{Args: "-c x.c -o foo.o", Source: "x.c", Output: "foo.o", Threads: 1}},
		{
			"targets", GCC, "-c x.c -o x.o -MD -MT a -MQ b", want{Args: "-c x.c -o x.o", Source: "x.c", Output: "x.o", Deps: true, Targets: "a b", Threads: 1},
		},
		{
			"dependencies of the preprocessor", GCC, "-Wp,-MD,x.d -c x.c -o x.o", want{Args: "-c x.c -o x.o", Source: "x.c", Output: "x.o", Deps: true, DepPath: "x.d", Threads: 1},
		},
		{
			"long names", NVCC, "--compile --output-file=k.o --include-path /t --compiler-bindir=g++-13 k.cu",
			want{Args: "-c -o k.o -I /t -ccbin g++-13 k.cu", Source: "k.cu", Output: "k.o", CCBin: "g++-13", Threads: 1},
		},
		{"device objects", NVCC, "-dc k.cu -o k.o", want{Args: "-dc k.cu -o k.o", Source: "k.cu", Output: "k.o", Threads: 1}},
		{"a value with the name of a source", NVCC, "-c -Xcompiler -DF=x.cpp k.cu -o k.o", want{Args: "-c -Xcompiler -DF=x.cpp k.cu -o k.o", Source: "k.cu", Output: "k.o", Threads: 1}},
		{"link", GCC, "-shared a.o b.o -o m.so", want{Args: "-shared a.o b.o -o m.so", Output: "m.so", Other: true, Threads: 1}},
		{"compile and link", GCC, "a.c -o a", want{Args: "a.c -o a", Source: "a.c", Output: "a", Other: true, Threads: 1}},
		{"question", NVCC, "--version", want{Other: true, Threads: 1}},
		{"preprocess", GCC, "-E x.c", want{Args: "x.c", Source: "x.c", Output: "x.o", Other: true, Threads: 1}},
		{"ptx", NVCC, "-ptx k.cu -o k.ptx", want{Args: "-ptx k.cu -o k.ptx", Source: "k.cu", Output: "k.ptx", Refused: "ccache does not cache -ptx", Threads: 1}},
		{"cubin", NVCC, "--cubin k.cu -o k.cubin", want{Args: "--cubin k.cu -o k.cubin", Source: "k.cu", Output: "k.cubin", Refused: "ccache does not cache --cubin", Threads: 1}},
		{"fatbin", NVCC, "-fatbin k.cu -o k.fatbin", want{Args: "-fatbin k.cu -o k.fatbin", Source: "k.cu", Output: "k.fatbin", Refused: "ccache does not cache -fatbin", Threads: 1}},
		{"two sources", GCC, "-c a.c b.c", want{Args: "-c a.c b.c", Source: "a.c", Output: "a.o", Refused: "it compiles several files at once", Threads: 1}},
		{"coverage", GCC, "-c --coverage a.c -o a.o", want{Args: "-c --coverage a.c -o a.o", Source: "a.c", Output: "a.o", Refused: "it is called with --coverage", Threads: 1}},
		{"arguments in a file", GCC, "@args -c a.c -o a.o", want{Args: "@args -c a.c -o a.o", Source: "a.c", Output: "a.o", Refused: "it reads arguments from a file", Threads: 1}},
		{
			"torch with hipcc", HIPCC, "-I/t -c k.hip -o k.o -fPIC --offload-arch=gfx90a --offload-arch=gfx942 -fno-gpu-rdc",
			want{Args: "-I/t -c k.hip -o k.o -fPIC --offload-arch=gfx90a --offload-arch=gfx942 -fno-gpu-rdc", Source: "k.hip", Output: "k.o", Threads: 1},
		},
		{"hipcc for no GPU", HIPCC, "-c k.hip -o k.o", want{Args: "-c k.hip -o k.o", Source: "k.hip", Output: "k.o", Refused: "it does not say for which GPUs", Threads: 1}},
		{
			"hipcc for this GPU", HIPCC, "-c k.hip -o k.o --offload-arch=native",
			want{Args: "-c k.hip -o k.o --offload-arch=native", Source: "k.hip", Output: "k.o", Refused: "it compiles for the GPUs of this machine", Threads: 1},
		},
		{
			"hipcc for GPUs alone", HIPCC, "-c k.hip -o k.o --offload-arch=gfx90a --cuda-device-only",
			want{Args: "-c k.hip -o k.o --offload-arch=gfx90a --cuda-device-only", Source: "k.hip", Output: "k.o", Refused: "it is called with --cuda-device-only", Threads: 1},
		},
		{"hipcc links", HIPCC, "-shared a.o -o m.so --offload-arch=gfx90a", want{Args: "-shared a.o -o m.so --offload-arch=gfx90a", Output: "m.so", Other: true, Threads: 1}},
		{"no value", GCC, "-c x.c -o", want{Args: "-c x.c -o", Source: "x.c", Output: "x.o", Refused: "the value of -o is missing", Threads: 1}},
		{"kept files", NVCC, "-c --keep k.cu -o k.o", want{Args: "-c --keep k.cu -o k.o", Source: "k.cu", Output: "k.o", Refused: "it is called with --keep", Threads: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := parseCall(test.kind, strings.Fields(test.args))
			got := want{
				strings.Join(c.args, " "), c.source, c.output, c.other, c.refused, c.wantDeps, c.depPath, strings.Join(c.targets, " "), c.ccbin, c.threads,
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.args, diff)
			}
		})
	}
}

// A package that calls nvcc with --threads 4 does not read NVCC_THREADS.
func TestOneThread(t *testing.T) {
	for args, want := range map[string]string{
		"-c a.cu --threads 4 -O3 -t 2 -o t4.o": "-c a.cu --threads 1 -O3 -t 1 -o t4.o",
		"--threads=4 -t8 -time x -t=2 -c a.cu": "--threads=1 -t1 -time x --threads=1 -c a.cu",
		"-c a.cu -o -t4 --threads":             "-c a.cu -o -t4 --threads",
	} {
		if got := strings.Join(oneThread(strings.Fields(args)), " "); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", args, got, want)
		}
	}
}

func TestKindOf(t *testing.T) {
	for name, want := range map[string]Kind{
		"nvcc": NVCC, "hipcc": HIPCC, "g++": GCC, "gcc-13": GCC, "c++": GCC, "x86_64-linux-gnu-g++-12": GCC, "clang++-19": Clang,
		"clang": Clang, "aarch64-linux-gnu-gcc": GCC, "kiln": "", "ld": "", "gcc-ar": "", "gcc-ar-12": "", "nvcc.profile": "", "c++filt": "", "clangd": "", "bcc": "",
	} {
		if got := KindOf(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestMapPaths(t *testing.T) {
	change := func(p string) string { return strings.Replace(p, "/venv", "/canonical", 1) }
	args := "-I/venv/a -I /venv/b -isystem /venv/c -isystem=/venv/d -include /venv/e.h -L/venv/lib -DP=/venv -Irelative /venv/x.cu"
	want := "-I/canonical/a -I /canonical/b -isystem /canonical/c -isystem=/canonical/d -include /canonical/e.h -L/venv/lib -DP=/venv -Irelative /venv/x.cu"
	if got := strings.Join(mapPaths(NVCC, strings.Fields(args), change), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// FuzzParseCall: a call that is shared has one source and one output, and no argument is lost or
// invented but for those about dependencies and names.
func FuzzParseCall(f *testing.F) {
	f.Add(true, "--generate-dependencies-with-compile\n--dependency-output\nk.d\n-c\nk.cu\n-o\nk.o")
	f.Add(false, "-MMD\n-MF\nx.d\n-c\nx.cpp")
	f.Add(false, "-o")
	f.Add(true, "--output-file=\n-c\n-t\n0")
	f.Add(true, "-c\n.C\n-o")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, nvcc bool, text string) {
		kind := GCC
		if nvcc {
			kind = NVCC
		}
		c := parseCall(kind, strings.Split(text, "\n"))
		if c.other || c.refused != "" {
			return
		}
		if c.source == "" || c.output == "" && !strings.Contains(text, "-o") || c.threads < 1 {
			t.Errorf("shared: source %q, output %q, %d threads", c.source, c.output, c.threads)
		}
		again := parseCall(kind, c.args)
		if again.other || again.refused != "" || again.source != c.source || again.output != c.output {
			t.Errorf("what is called is understood differently: %q", c.args)
		}
	})
}
