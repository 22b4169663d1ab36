package compat_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/compat"
)

const (
	hopper    = "6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0+PTX"
	blackwell = "6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX"
)

// summary renders findings as "severity rule axes", one a line.
func summary(fs []compat.Finding) string {
	var b strings.Builder
	for _, f := range fs {
		fmt.Fprintf(&b, "%s %s %s\n", f.Severity, f.Rule, strings.Join(f.Axes, ","))
	}
	return b.String()
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name  string
		combo compat.Combo
		want  string // summary
		text  string // in the first finding's message
		fix   string // in the first finding's fix
	}{
		{"nothing said", compat.Combo{}, "", "", ""},
		{"fits", compat.Combo{OS: "ubuntu-24.04", Python: "3.12", CUDA: "13.0.2", Torch: "2.11.0", Arch: "8.0 9.0+PTX"}, "", "", ""},
		{"cpu", compat.Combo{OS: "macos-15", Python: "3.12", Torch: "2.11.0"}, "", "", ""},
		{"series without patch", compat.Combo{OS: "linux", Python: "3.12", CUDA: "12.8", Torch: "2.9"}, "", "", ""},

		{"unknown os", compat.Combo{OS: "ubuntu-24.4"}, "warning os-unknown os\n", `"ubuntu-24.4"`, "ubuntu-24.04"},
		{"strange os", compat.Combo{OS: "plan9"}, "warning os-unknown os\n", `"plan9"`, "known: alma-10"},
		{"runner label", compat.Combo{OS: "ubuntu-22.04-large"}, "warning os-unknown os\n", "taken for ubuntu-22.04", ""},

		{"two toolkits", compat.Combo{CUDA: "12.8.1", ROCm: "6.4"}, "error toolkit-both cuda,rocm\n", "both CUDA 12.8.1 and ROCm 6.4", ""},
		{"cuda nonsense", compat.Combo{CUDA: "cu128"}, "error cuda-version cuda\n", `"cu128"`, "12.8.1"},
		{"cuda never", compat.Combo{CUDA: "12.7"}, "error cuda-version cuda\n", "12.7 was never published", "use cuda 12.6 or 12.8"},
		{"cuda no such patch", compat.Combo{CUDA: "12.4.3"}, "error cuda-version cuda\n", "published: 12.4.0, 12.4.1", "12.4.1"},
		{"cuda newer patch", compat.Combo{CUDA: "13.0.9"}, "warning cuda-version cuda\n", "newer than the table", ""},
		{"cuda unknown", compat.Combo{CUDA: "14.0.0"}, "warning cuda-version cuda\n", "nearest: 13.4", ""},
		{"cuda older than all", compat.Combo{CUDA: "11.2.0"}, "warning cuda-version cuda\n", "nearest: 11.8", ""},
		{"cuda on a mac", compat.Combo{OS: "macos-14", CUDA: "12.8.1"}, "error cuda-os cuda,os\n", "does not exist for macos-14", "linux-arm or windows"},
		{"cuda on windows arm", compat.Combo{OS: "windows-11-arm", CUDA: "13.0.2"}, "warning cuda-os cuda,os\n", "not known", ""},
		{"rocm nonsense", compat.Combo{ROCm: "six"}, "error rocm-version rocm\n", `"six"`, ""},
		{"rocm on windows", compat.Combo{OS: "windows-2022", ROCm: "6.4"}, "error rocm-os rocm,os\n", "ROCm 6.4 does not exist for windows-2022", "use linux"},

		{"torch nonsense", compat.Combo{Torch: "latest"}, "error torch-version torch\n", `"latest"`, ""},
		{"torch with build", compat.Combo{Torch: "2.9.0+cu128"}, "error torch-version torch\n", "+cu128", "write torch 2.9.0"},
		{"torch never", compat.Combo{Torch: "2.6.1"}, "error torch-version torch\n", "2.6.1 was never published (published: 2.6.0)", "use torch 2.6.0"},
		{"torch newer patch", compat.Combo{Torch: "2.15.1"}, "warning torch-version torch\n", "newer than the table", ""},
		{"torch unknown", compat.Combo{Torch: "2.16.0"}, "warning torch-version torch\n", "nearest: 2.15", ""},
		{"torch nightly", compat.Combo{Torch: "2.16.0.dev20261101"}, "warning torch-version torch\n", "2.16.0 is not in the table", ""},
		{"torch candidate", compat.Combo{Torch: "2.14.0rc2"}, "warning torch-version torch\n", "pre-release", ""},
		{"torch on an old mac", compat.Combo{OS: "macos-13", Torch: "2.3.0"}, "error torch-os torch,os\n", "no wheels for macos-13", ""},
		{"torch on windows arm", compat.Combo{OS: "windows-11-arm", Torch: "2.9.0"}, "warning torch-os torch,os\n", "not known", ""},

		{
			"torch without that cuda",
			compat.Combo{Torch: "2.6.0", CUDA: "12.1.0"},
			"error torch-cuda-build torch,cuda\n",
			"torch 2.6.0 has no CUDA 12.1 build (published: 11.8, 12.4, 12.6)", "use cuda 12.4.x or 12.6.x, or torch 2.2-2.5",
		},
		{"torch without that major", compat.Combo{Torch: "2.12.0", CUDA: "11.8.0"}, "error torch-cuda-build torch,cuda\n", "no CUDA 11.8 build", "torch 2.2-2.7"},
		{"torch known in part", compat.Combo{Torch: "2.15.0", CUDA: "13.0.2"}, "warning torch-cuda-build torch,cuda\n", "not known to have a CUDA 13.0 build (known: 13.2)", "torch 2.9-2.14"},
		{"torch known in part, rocm", compat.Combo{Torch: "2.15.0", ROCm: "7.2"}, "warning torch-rocm-build torch,rocm\n", "is not known", ""},
		{"extra folder", compat.Combo{OS: "linux", Torch: "2.13.0", CUDA: "12.9.1"}, "note torch-cuda-build torch,cuda\n", "extra build", ""},
		{
			"extra folder on windows",
			compat.Combo{OS: "windows", Torch: "2.13.0", CUDA: "12.9.1"},
			"error torch-cuda-build torch,cuda,os\nnote torch-cuda-build torch,cuda\n", "not published for windows (only for linux)", "use cuda 12.6, 13.0 or 13.2",
		},
		{
			"inferred row",
			compat.Combo{OS: "windows", Torch: "2.10.0", CUDA: "12.9.1"},
			"warning torch-cuda-build torch,cuda,os\nnote torch-cuda-build torch,cuda\n", "not published for windows", "",
		},
		{"cuda on arm, unknown", compat.Combo{OS: "linux-arm", Torch: "2.8.0", CUDA: "12.8.1"}, "warning torch-cuda-build torch,cuda,os\n", "not known", ""},
		{"torch without that rocm", compat.Combo{Torch: "2.9.0", ROCm: "5.6"}, "error torch-rocm-build torch,rocm\n", "published: 6.3, 6.4", "use rocm 6.3 or 6.4, or torch 2.2"},
		{"rocm keeps its patch", compat.Combo{Torch: "2.6.0", ROCm: "6.2"}, "error torch-rocm-build torch,rocm\n", "6.2.4", "torch 2.5"},

		{"python nonsense", compat.Combo{Python: "cp313"}, "error python-version python\n", `"cp313"`, ""},
		{"python too new", compat.Combo{Python: "3.13", Torch: "2.4.0"}, "error torch-python torch,python\n", "no wheels for CPython 3.13 (published: 3.8-3.12)", "use python 3.12, or torch 2.5-2.15"},
		{"python too old", compat.Combo{Python: "3.8", Torch: "2.6.0"}, "error torch-python torch,python\n", "3.9-3.13", "use python 3.9"},
		{"python patch", compat.Combo{Python: "3.12.4", Torch: "2.6.0"}, "", "", ""},
		{"hole on windows", compat.Combo{OS: "windows-2022", Python: "3.13", Torch: "2.5.1"}, "error torch-python torch,python,os\n", "CPython 3.13 on windows-2022", "use python 3.12"},
		{"no hole on linux", compat.Combo{OS: "ubuntu-22.04", Python: "3.13", Torch: "2.5.1"}, "", "", ""},
		{"free-threaded", compat.Combo{Python: "3.13t", Torch: "2.9.0"}, "", "", ""},
		{"free-threaded dropped in a patch", compat.Combo{Python: "3.13t", Torch: "2.12.1"}, "error torch-python torch,python\n", "2.12.1", "3.14t"},
		{"free-threaded before that patch", compat.Combo{Python: "3.13t", Torch: "2.12.0"}, "", "", ""},
		{"announced, not seen", compat.Combo{Python: "3.15", Torch: "2.14.1"}, "warning torch-python torch,python\n", "announced", ""},

		{"arch unreadable", compat.Combo{CUDA: "12.8.1", Arch: "8.0 9.0+PTXX"}, "error arch-syntax arch\n", `did you mean "9.0+PTX"?`, ""},
		{"arch for nothing", compat.Combo{Arch: "8.0"}, "warning arch-unused arch\n", "no effect", ""},
		{"arch too new", compat.Combo{CUDA: "12.4.0", Arch: "9.0 12.0"}, "error arch-nvcc arch,cuda\n", "12.0 came with CUDA 12.8", "use cuda 12.8 or newer"},
		{"arch dropped", compat.Combo{CUDA: "13.0.2", Arch: "7.0 7.5"}, "error arch-nvcc arch,cuda\n", "7.0 was last in CUDA 12.9", "use cuda 12.9 or older"},
		{"arch renamed", compat.Combo{CUDA: "13.0.2", Arch: "10.1"}, "error arch-nvcc arch,cuda\n", "10.1 is called 11.0 there", "write 11.0"},
		{"arch of no gpu", compat.Combo{CUDA: "13.0.2", Arch: "8.3"}, "error arch-nvcc arch,cuda\n", "no CUDA in the table", "drop 8.3"},
		{"family and base", compat.Combo{CUDA: "13.0.2", Arch: "10.0 10.0f"}, "error arch-family-mix arch,cuda\n", "10.0, 10.0f", ""},
		{"specific and base", compat.Combo{CUDA: "13.0.2", Arch: "10.0 10.0a"}, "", "", ""},
		{"arch deprecated", compat.Combo{CUDA: "12.8.1", Arch: "7.0 7.5"}, "note arch-deprecated arch,cuda\n", "deprecates 7.0", ""},
		{"arch unknown to torch", compat.Combo{Torch: "2.6.0", CUDA: "12.6.3", Arch: "9.0 10.0"}, // nvcc 12.6 is the one that fails
			"error arch-nvcc arch,cuda\n", "10.0", ""},
		{"arch unknown to builder", compat.Combo{Torch: "2.8.0", CUDA: "12.9.1", Arch: "9.0 10.0f"}, "error arch-torch-builder arch,torch\n", "does not know 10.0f", "drop 10.0f"},
		{
			"newer builder knows it",
			compat.Combo{Torch: "2.7.0", CUDA: "12.8.1", Arch: "12.1"},
			"error arch-nvcc arch,cuda\nerror arch-torch-builder arch,torch\n", "12.1", "",
		},
		{
			"name unknown to builder",
			compat.Combo{Torch: "2.13.0", CUDA: "13.0.2", Arch: "Rubin"},
			"error arch-nvcc arch,cuda\nerror arch-torch-builder arch,torch\n", "10.7", "",
		},
		{"name by torch version", compat.Combo{Torch: "2.7.0", CUDA: "12.8.1", Arch: "Blackwell"}, "", "", ""}, // 10.3 would be refused
		{"native with an old builder", compat.Combo{Torch: "2.8.0", CUDA: "12.8.1", Arch: "native"}, "error arch-torch-builder arch,torch\n", "does not know native", "torch 2.9"},
		{"native with a new one", compat.Combo{Torch: "2.9.0", CUDA: "12.8.1", Arch: "native"}, "", "", ""},
		{"ptx alone", compat.Combo{Torch: "2.9.0", CUDA: "12.8.1", Arch: "9.0-virtual"}, "error arch-torch-builder arch,torch\n", "cannot be said", ""},
		{"ada through 8.6", compat.Combo{OS: "linux", Torch: "2.9.0", CUDA: "12.8.1", Arch: "8.9"}, "", "", ""},
		{"7.0 alone serves 7.5", compat.Combo{OS: "linux", Torch: "2.11.0", CUDA: "12.8.1", Arch: "7.0"}, "note arch-deprecated arch,cuda\n", "", ""},
		{
			"7.0 beside 7.5 serves nobody",
			compat.Combo{OS: "linux", Torch: "2.11.0", CUDA: "12.8.1", Arch: "7.0 7.5"},
			"warning arch-unreachable arch,torch,cuda\nnote arch-deprecated arch,cuda\n", "code for 7.0 can never run", "drop 7.0",
		},
		{"turing on arm servers", compat.Combo{OS: "linux-arm", Torch: "2.11.0", CUDA: "13.0.2", Arch: "7.5 9.0"}, "warning arch-unreachable arch,torch,cuda\n", "code for 7.5", ""},
		{"sdist compiles nothing", compat.Combo{CUDA: "13.0.2", Arch: "7.0", Kind: "sdist"}, "", "", ""},
		{"gfx", compat.Combo{ROCm: "6.4", Arch: "gfx90a;gfx1100"}, "", "", ""},
		{"gfx of a later ROCm", compat.Combo{ROCm: "6.1", Arch: "gfx90a;gfx1200;gfx1201:xnack-"}, "warning arch-gfx-new arch,rocm\n", "gfx1200, gfx1201:xnack- are in PyTorch's own builds from ROCm 6.3 on", "use rocm 6.3 or newer"},
		{"gfx of an unknown ROCm", compat.Combo{ROCm: "9.9", Arch: "gfx1200"}, "", "", ""},
		{"gfx unreadable", compat.Combo{ROCm: "6.4", Arch: "8.6"}, "error arch-syntax arch\n", `"8.6"`, ""},
		{"gfx unknown", compat.Combo{ROCm: "6.4", Arch: "gfx90a:xnack- gfx1234 gfx11-generic"}, "warning arch-gfx arch\n", "gfx1234 is not in the table", ""},

		{"gcc too new", compat.Combo{OS: "ubuntu-24.04", CUDA: "12.1.0"}, "warning host-compiler os,cuda\n", "accepts gcc 6 to 12, the default of ubuntu-24.04 is gcc 13", "ubuntu-20.04 or ubuntu-22.04"},
		{"msvc too new", compat.Combo{OS: "windows-2022", CUDA: "12.1.0"}, "warning host-compiler os,cuda\n", "1910 to 1939", "windows-2019"},
		{"msvc fits", compat.Combo{OS: "windows-2022", CUDA: "12.4.0"}, "", "", ""},
		{"gcc too old for torch", compat.Combo{OS: "ubuntu-20.04", Torch: "2.13.0"}, "warning cxx-standard os,torch\n", "C++20", "gcc 11"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := compat.Default().Check(tt.combo)
			if d := cmp.Diff(tt.want, summary(got)); d != "" {
				t.Fatalf("%s\n%v", d, got)
			}
			if len(got) > 0 && (!strings.Contains(got[0].Message, tt.text) || !strings.Contains(got[0].Fix, tt.fix)) {
				t.Errorf("got %v\nwant %q and %q in it", got[0], tt.text, tt.fix)
			}
			for _, f := range got {
				if f.Message == "" || strings.Contains(f.String(), "\n") || strings.Contains(f.String(), "%!") {
					t.Errorf("bad text: %q", f.String())
				}
			}
			if again := compat.Default().Check(tt.combo); cmp.Diff(got, again) != "" {
				t.Errorf("a second time: %v", again)
			}
		})
	}
}

// exllamav2 is the matrix of a real release workflow: 88 rows.
func exllamav2() []compat.Combo {
	var rows []compat.Combo
	group := func(oses, cuda, rocm, torch, pythons, arch string) {
		for os := range strings.FieldsSeq(oses) {
			for _, c := range append(strings.Fields(cuda), strings.Fields(rocm)...) {
				for tv := range strings.FieldsSeq(torch) {
					for p := range strings.FieldsSeq(pythons) {
						row := compat.Combo{OS: os, Python: p, Torch: tv, Arch: arch, Kind: "wheel"}
						if rocm == "" {
							row.CUDA = c
						} else {
							row.ROCm = c
						}
						rows = append(rows, row)
					}
				}
			}
		}
	}
	both := "ubuntu-22.04 windows-2022"
	group(both, "11.8.0 12.1.0", "", "2.3.1 2.4.0 2.5.0", "3.10 3.11 3.12", hopper)
	group("ubuntu-22.04", "11.8.0 12.1.0", "", "2.5.0", "3.13", hopper)
	group(both, "11.8.0 12.4.0", "", "2.6.0", "3.10 3.11 3.12 3.13", hopper)
	group(both, "12.8.1", "", "2.7.0 2.8.0 2.9.0", "3.10 3.11 3.12 3.13", blackwell)
	group("ubuntu-22.04", "", "5.6", "2.2.2", "3.10 3.11", "")
	group("ubuntu-22.04", "", "6.0", "2.3.1", "3.10 3.11 3.12", "")
	group("ubuntu-22.04", "", "6.1", "2.4.0", "3.10 3.11 3.12", "")
	group("ubuntu-22.04", "12.1.0", "", "2.2.2", "3.10", hopper)
	return append(rows, compat.Combo{OS: "ubuntu-22.04", Python: "3.11", Torch: "2.3.1", Kind: "sdist"})
}

func TestRealMatrix(t *testing.T) {
	rows := exllamav2()
	if len(rows) != 88 {
		t.Fatalf("%d rows, want 88", len(rows))
	}
	unreachable := 0
	for _, row := range rows {
		allowed := map[string]bool{}
		if row.CUDA == "12.8.1" {
			allowed[compat.RuleArchUnreached], allowed[compat.RuleArchDeprecated] = true, true
		}
		if row.OS == "windows-2022" && (row.CUDA == "11.8.0" || row.CUDA == "12.1.0") {
			allowed[compat.RuleHostCompiler] = true // the workflow installs an older toolset
		}
		for _, f := range compat.Default().Check(row) {
			if f.Severity == compat.Error || !allowed[f.Rule] {
				t.Errorf("%+v: %v", row, f)
			}
			delete(allowed, f.Rule)
			if f.Rule != compat.RuleArchUnreached {
				continue
			}
			unreachable++
			want := []string{"6.0", "6.1"}
			if row.Torch == "2.7.0" {
				want = append(want, "7.0")
			}
			if d := cmp.Diff(want, f.Archs); d != "" {
				t.Errorf("%+v: %s", row, d)
			}
		}
		if len(allowed) > 0 {
			t.Errorf("%+v: no finding of %v", row, allowed)
		}
	}
	if unreachable != 24 {
		t.Errorf("%d rows with unreachable archs, want 24", unreachable)
	}
}

// TestDefaultArchsFit checks kiln's own arch lists by kiln's own rules: for each
// published pair they have no error.
func TestDefaultArchsFit(t *testing.T) {
	tab := compat.Default()
	for _, torch := range tab.TorchSeries() {
		for _, cuda := range tab.CUDASeries() {
			if !slices.Contains(tab.TorchBuilds(torch), compat.ToolkitTag(cuda, "")) {
				continue
			}
			l, ok := tab.DefaultArchs(cuda)
			if !ok {
				t.Errorf("CUDA %s has no default arch list", cuda)
				continue
			}
			for _, f := range tab.Check(compat.Combo{OS: "linux", Torch: torch, CUDA: cuda, Arch: l.Text()}) {
				if f.Severity == compat.Error {
					t.Errorf("torch %s, CUDA %s: %v", torch, cuda, f)
				}
			}
		}
	}
}

func TestCheckConcurrently(t *testing.T) {
	tab, err := compat.Load(strings.NewReader(minimal))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, row := range exllamav2() {
				tab.Check(row)
			}
		})
	}
	wg.Wait()
}

func BenchmarkCheck(b *testing.B) {
	rows := exllamav2()
	b.Run("first", func(b *testing.B) {
		i := 0
		for b.Loop() { // a text never seen before defeats the memory
			row := rows[i%len(rows)]
			row.Kind = fmt.Sprint("wheel", i)
			compat.Default().Check(row)
			i++
		}
	})
	b.Run("again", func(b *testing.B) {
		i := 0
		for b.Loop() {
			compat.Default().Check(rows[i%len(rows)])
			i++
		}
	})
}
