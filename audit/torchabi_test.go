package audit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestTorchStable: a wheel that is said to be for the stable ABI and is not is refused, with each
// name.
func TestTorchStable(t *testing.T) {
	for _, test := range []struct {
		name    string
		from    string
		names   []string
		details []string // of the finding
	}{
		{"true", "2.10", []string{"torch_call_dispatcher"}, nil},
		{"older function, later promise", "2.12", []string{"torch_call_dispatcher"}, nil},
		{"no promise", "", []string{newCheckFail}, nil},
		{"C++ names", "2.10", []string{"torch_call_dispatcher", newCheckFail, "_ZN2at9getTypeIdEv"}, []string{"at::getTypeId()", "c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&)"}},
		{"a later function", "2.10", []string{"torch_call_dispatcher", "torch_from_blob"}, []string{"torch_from_blob"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := check(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libtorch_cpu.so", "libc10.so"}, undefined: test.names})},
				audit.Options{TorchStable: test.from}, "Requires-Dist: torch")
			var got []string
			for _, f := range r.Findings {
				if f.Rule == audit.RuleTorchStable {
					if f.Severity != audit.Error {
						t.Errorf("severity %s", f.Severity)
					}
					got = append(got, f.Details...)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, test.details) {
				t.Errorf("got %q, want %q", got, test.details)
			}
		})
	}
}

// TestTorchABI: the line about torch, for modules with names that came and went with the releases
// on record.
func TestTorchABI(t *testing.T) {
	const (
		check29  = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib" // until 2.9.1
		check210 = "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb" // 2.10.0 to 2.13.0
		dtype    = "aoti_torch_dtype_float32"
		dispatch = "torch_call_dispatcher" // since 2.10
		blob     = "torch_from_blob"       // since 2.11
	)
	builtins := audit.Builtins()
	newest := strings.Split(builtins[len(builtins)-1], ".")
	for _, test := range []struct {
		name          string
		needed, names []string
		kind, from    string
		summary       string // how it begins
		unstable      int
	}{
		{name: "no torch", kind: audit.TorchAny, summary: "any"},
		{name: "stable", needed: []string{"libtorch_cpu.so"}, names: []string{dtype, dispatch}, kind: audit.TorchStable, from: "2.10", summary: "stable ABI, 2.10 and later"},
		{
			// A torch that links libstdc++ statically has them, too.
			name: "functions of a newer libstdc++", needed: []string{"libtorch_cpu.so", "libstdc++.so.6"}, kind: audit.TorchStable, from: "2.10", summary: "stable ABI, 2.10 and later",
			names: []string{dispatch, "_ZSt21ios_base_library_initv", "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE15_M_replace_coldEPcmPKcmm"},
		},
		{name: "newer function", needed: []string{"libtorch_cpu.so"}, names: []string{dtype, blob}, kind: audit.TorchStable, from: "2.11", summary: "stable ABI, 2.11 and later"},
		{
			name: "stable with CUDA", needed: []string{"libtorch_cpu.so", "libtorch_cuda.so", "libcudart.so.13"}, names: []string{dispatch, "aoti_torch_get_current_cuda_stream"},
			kind: audit.TorchStable, from: "2.10", summary: "stable ABI, 2.10 and later, with CUDA 13",
		},
		{
			name: "one name too many", needed: []string{"libtorch_cpu.so", "libc10.so"}, names: []string{dispatch, newCheckFail}, kind: audit.TorchReleases, unstable: 1,
			summary: "2.10 to " + newest[0] + "." + newest[1] + " (2.9 lacks torch_call_dispatcher; ",
		},
		{
			name: "a window", needed: []string{"libc10.so", "libc10_cuda.so"}, names: []string{check210, newCheckFail}, kind: audit.TorchReleases, unstable: 2,
			summary: "2.10 to 2.13 (2.9 lacks c10::cuda::c10_cuda_check_implementation; 2.14 lacks c10::cuda::c10_cuda_check_implementation)",
		},
		{
			name: "two that never were together", needed: []string{"libc10.so", "libc10_cuda.so"}, names: []string{check29, check210}, kind: audit.TorchReleases, unstable: 2,
			summary: "none on record (",
		},
		{
			name: "a function that no torch has", needed: []string{"libtorch_cpu.so"}, names: []string{"torch_of_tomorrow"}, kind: audit.TorchReleases,
			summary: "none on record (" + newest[0] + "." + newest[1] + " lacks torch_of_tomorrow)",
		},
		{
			name: "a CUDA that later releases do not bring", needed: []string{"libc10.so", "libcudart.so.12"}, names: []string{newCheckFail}, kind: audit.TorchReleases, unstable: 1,
			summary: "2.7 to 2.10 (2.6 has the old C++ ABI; 2.11 lacks libcudart.so.12)",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := check(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{needed: test.needed, undefined: test.names})}, audit.Options{}, "Requires-Dist: torch")
			abi := r.TorchABI
			if abi == nil {
				t.Fatal("nothing said about torch")
			}
			if abi.Kind != test.kind || abi.From != test.from || len(abi.Unstable) != test.unstable || !strings.HasPrefix(abi.Summary, test.summary) {
				t.Errorf("got %+v, want %s from %q, %d unstable names, %q", *abi, test.kind, test.from, test.unstable, test.summary)
			}
		})
	}

	r := check(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libc10_cuda.so"}, undefined: []string{check210}})}, audit.Options{}, "Requires-Dist: torch")
	for version, want := range map[string]audit.TorchVerdict{
		"2.15": {Removed: "2.14.0", Has: "2.10.0 to 2.13.0", Name: "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, unsigned int, bool)"},
		"2.9":  {Has: "2.10.0 to 2.13.0", Name: "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, unsigned int, bool)"},
		"2.11": {OK: true},
	} {
		v := r.VerdictOf(version)
		if v == nil || v.OK != want.OK || v.Removed != want.Removed || v.Has != want.Has || v.Name != want.Name {
			t.Errorf("torch %s: %+v, want %+v", version, v, want)
		}
	}
	if r.VerdictOf("1.0") != nil {
		t.Error("a verdict on a torch that is not on record")
	}
}

// TestStableAdvice: a module compiled with debug information tells where it calls what is not
// stable, also through an inlined function of a header.
func TestStableAdvice(t *testing.T) {
	cxx, err := exec.LookPath("g++")
	if err != nil {
		kilntest.Lacking(t, "cc", "no g++")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"torch.h": "namespace at { struct Tensor { void* data() const; }; }\n" +
			"namespace c10 { namespace detail { [[noreturn]] void torchCheckFail(const char*, const char*, unsigned, const char*); } }\n" +
			"inline void require(bool ok) { if (!ok) c10::detail::torchCheckFail(\"f\", \"h\", 1, \"m\"); }\n" +
			"extern \"C\" int aoti_torch_dtype_float32();\n",
		"ext.cpp": "#include \"torch.h\"\n" +
			"extern \"C\" void* PyInit_ext(at::Tensor* t, int n) {\n" +
			"  require(n > 0);\n" +
			"  if (n == aoti_torch_dtype_float32()) return nullptr;\n" +
			"  void* p = t->data();\n" +
			"  return p ? p : t;\n" +
			"}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, flags := range []string{"-g", "-gdwarf-4", "-gdwarf-5", "-g0"} {
		out := filepath.Join(dir, "ext.so")
		if text, err := exec.CommandContext(t.Context(), cxx, "-O2", flags, "-shared", "-fPIC", "-o", out, filepath.Join(dir, "ext.cpp")).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		r, err := audit.Check(t.Context(), out, audit.Options{Places: true})
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Base(dir)
		got := []string{}
		for _, a := range r.TorchABI.Advice() {
			got = append(got, a.Name+" at "+strings.ReplaceAll(strings.Join(a.Places, " "), base+"/", "")+": "+a.Use)
		}
		at := func(line string) string {
			if flags == "-g0" {
				return ""
			}
			return filepath.Base(filepath.Dir(dir)) + "/ext.cpp:" + line
		}
		want := []string{
			"at::Tensor::data at " + at("5") + ": torch::stable::Tensor of torch/csrc/stable/tensor.h",
			"c10::detail::torchCheckFail at " + at("3") + ": STD_TORCH_CHECK of torch/headeronly/util/Exception.h",
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", flags, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestTorchLayouts: a torch with all the names is no match if inline code reads its classes wrongly.
// Between 2.9 and 2.10 the two counters of references became one.
func TestTorchLayouts(t *testing.T) {
	const promote = "_ZN3c106SymInt19promote_to_negativeEv" // in every torch on record
	for _, test := range []struct {
		torch, other string
		names        []string
		layout       string
	}{
		{"2.9.0", "2.10.0", []string{promote}, "c10::intrusive_ptr_target"},
		{"2.10.0", "2.9.0", []string{promote}, "c10::intrusive_ptr_target"},
		{"2.10.0", "2.11.0", []string{promote}, ""},
		{"2.12.0", "2.13.0", []string{promote}, "c10::TensorImpl"},
		{"2.13.0", "2.15.0", []string{promote}, ""}, // a scalar type was added
		{"2.3.0", "2.4.0", []string{promote}, ""},   // a type of devices got another name
		{"2.7.0", "2.8.0", []string{promote, "_ZN3c108toStringENS_11DispatchKeyE"}, "c10::DispatchKey"},
		{"2.7.0", "2.8.0", []string{promote}, ""},
		{"2.9.0", "2.10.0", []string{"aoti_torch_dtype_float32"}, ""},
	} {
		r := check(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libc10.so", "libtorch_cpu.so"}, undefined: test.names})},
			audit.Options{BuiltFor: test.torch}, "Requires-Dist: torch")
		v := r.VerdictOf(test.other)
		if v == nil || v.OK != (test.layout == "") || v.Layout != test.layout {
			t.Errorf("%s built for %s with %s: %+v, want layout %q", test.names, test.torch, test.other, v, test.layout)
		}
	}
}

// TestLayouts: every torch that a snapshot is built in for has the layouts of all types on record.
func TestLayouts(t *testing.T) {
	layouts := audit.BuiltinLayouts()
	releases := map[string]int{}
	for name, list := range layouts.Types {
		for _, l := range list {
			for _, release := range l.Releases {
				releases[release]++
			}
			if l.Size == 0 || len(l.Members) == 0 {
				t.Errorf("%s of %v: %+v", name, l.Releases, l.Layout)
			}
		}
	}
	for _, version := range audit.Builtins() {
		public, _, _ := strings.Cut(version, "+")
		if n := releases[public]; n != len(layouts.Types) {
			t.Errorf("torch %s: %d types on record, want %d; `go run ./audit/internal/layouts/generate %s` records them", public, n, len(layouts.Types), public)
		}
	}
}
