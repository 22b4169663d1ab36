package audit_test

import (
	"archive/zip"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/audit/internal/table"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/wheel"
)

const (
	oldCheckFail = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
	newCheckFail = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
	linuxWheel   = "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
	moduleFile   = "demo/_ext.cpython-312-x86_64-linux-gnu.so"
)

// module is an extension module called _ext.
func module(m elfMaker) []byte {
	m.defined = append(m.defined, "PyInit__ext")
	return m.bytes()
}

func check(t *testing.T, name string, files map[string][]byte, opts audit.Options, metadata ...string) *audit.Report {
	t.Helper()
	data := makeWheel(t, name, files, metadata...)
	r, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), name, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// found lists the findings as "severity rule: details", notes left out.
func found(r *audit.Report) []string {
	out := []string{}
	for _, f := range r.Findings {
		if f.Severity > audit.Note {
			out = append(out, strings.TrimRight(f.Severity.String()+" "+f.Rule+": "+strings.Join(f.Details, " "), ": "))
		}
	}
	return out
}

func TestFindings(t *testing.T) {
	builtin := func(version string) *audit.Snapshot {
		s, err := audit.Builtin(version)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	torch := []string{"libc10.so", "libtorch_cpu.so", "libtorch_python.so"}
	requires := "Requires-Dist: torch"
	for _, test := range []struct {
		name     string
		wheel    string
		files    map[string][]byte
		opts     audit.Options
		metadata string
		want     []string
	}{
		{name: "good", files: map[string][]byte{moduleFile: module(elfMaker{
			needed: []string{"libc.so.6"}, undefined: []string{"memcpy@GLIBC_2.14@libc.so.6", "PyModule_Create2"}, weak: []string{"__gmon_start__", "nobody_has_it"},
		})}},
		{
			name:  "glibc too new",
			files: map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libc.so.6"}, undefined: []string{"arc4random@GLIBC_2.36@libc.so.6"}})},
			want:  []string{"error platform: GLIBC_2.36"},
		},
		{
			name:  "libstdc++ too new",
			files: map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libstdc++.so.6"}, undefined: []string{"x@GLIBCXX_3.4.30@libstdc++.so.6"}})},
			want:  []string{"error platform: GLIBCXX_3.4.30"},
		},
		{
			name:  "library that is not promised",
			files: map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libopenblas.so.0"}})},
			want:  []string{"error platform-library: libopenblas.so.0"},
		},
		{
			name: "library inside, with a run path",
			files: map[string][]byte{
				moduleFile:              module(elfMaker{needed: []string{"libinner.so"}, undefined: []string{"inner"}, runpath: "$ORIGIN/../demo.libs"}),
				"demo.libs/libinner.so": elfMaker{soname: "libinner.so", defined: []string{"inner"}}.bytes(),
			},
		},
		{
			name: "library inside, without a run path",
			files: map[string][]byte{
				moduleFile:              module(elfMaker{needed: []string{"libinner.so"}}),
				"demo.libs/libinner.so": elfMaker{soname: "libinner.so"}.bytes(),
			},
			want: []string{"warning platform-library: libinner.so"},
		},
		{
			name:  "other machine",
			files: map[string][]byte{moduleFile: module(elfMaker{machine: elf.EM_AARCH64})},
			want:  []string{"error machine"},
		},
		{
			name:  "x86-64-v3",
			files: map[string][]byte{moduleFile: module(elfMaker{level: 3})},
			want:  []string{"error isa-level"},
		},
		{
			name:  "run path and executable stack",
			files: map[string][]byte{moduleFile: module(elfMaker{runpath: "/home/builder/lib:$ORIGIN", execStack: true})},
			want:  []string{"warning exec-stack", "warning run-path: /home/builder/lib"},
		},
		{
			name:  "symbol nobody defines",
			files: map[string][]byte{moduleFile: module(elfMaker{undefined: []string{"_ZN4mine6launchEPf"}})},
			want:  []string{"error symbol-missing: _ZN4mine6launchEPf"},
		},
		{
			name: "driver, torch and CUDA bundled",
			files: map[string][]byte{
				"demo.libs/libcuda-1a2b3c4d.so.1":    elfMaker{}.bytes(),
				"demo.libs/libc10.so":                elfMaker{}.bytes(),
				"demo.libs/libcudart-1a2b3c4d.so.12": elfMaker{}.bytes(),
			},
			want: []string{"error bundled-library: libc10.so", "error bundled-library: libcuda-1a2b3c4d.so.1", "warning bundled-library: libcudart-1a2b3c4d.so.12"},
		},
		{
			name: "fits torch", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{needed: torch, undefined: []string{oldCheckFail}})},
		},
		{
			name: "C++ ABI", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{needed: torch, undefined: []string{newCheckFail}})},
			want:  []string{"error cxx-abi", "error symbol-missing: " + newCheckFail},
		},
		{
			name: "torch not linked", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{undefined: []string{oldCheckFail}})},
			want:  []string{"error symbol-unlinked: " + oldCheckFail},
		},
		{
			name: "CUDA major", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{needed: append([]string{"libcudart.so.11.0"}, torch...)})},
			want:  []string{"error cuda-major: libcudart.so.11.0"},
		},
		{
			name: "library of another torch", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libc10.so.2.6"}})},
			want:  []string{"error library-missing: libc10.so.2.6"},
		},
		{
			name: "torch by the local version", wheel: "demo-1.0+cu121.torch2.4.0-cp312-cp312-linux_x86_64.whl", metadata: requires,
			files: map[string][]byte{moduleFile: module(elfMaker{needed: torch, undefined: []string{newCheckFail}})},
			want:  []string{"error cxx-abi", "error symbol-missing: " + newCheckFail},
		},
		{
			name: "torch by the requirement", metadata: "Requires-Dist: torch==2.4.0", wheel: "demo-1.0-cp312-cp312-linux_x86_64.whl",
			files: map[string][]byte{moduleFile: module(elfMaker{needed: torch, undefined: []string{newCheckFail}})},
			want:  []string{"error cxx-abi", "error symbol-missing: " + newCheckFail},
		},
		{
			name:  "torch not declared",
			files: map[string][]byte{moduleFile: module(elfMaker{needed: torch})},
			want:  []string{"warning torch-undeclared"},
		},
		{
			name: "pybind11", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{needed: torch, rodata: "text\x00__pybind11_internals_v4_clang_libcpp__\x00"})},
			want:  []string{"warning pybind11: __pybind11_internals_v4_clang_libcpp__ __pybind11_internals_v5_gcc_libstdcpp_cxxabi1011__"},
		},
		{
			name: "pybind11 of the same Python", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{needed: torch, rodata: "text\x00__pybind11_internals_v4_gcc_libstdcpp_cxxabi1011__\x00"})},
			want:  []string{"warning pybind11: __pybind11_internals_v4_gcc_libstdcpp_cxxabi1011__ __pybind11_internals_v5_gcc_libstdcpp_cxxabi1011__"},
		},
		{
			name: "pybind11 of another Python", metadata: requires, opts: audit.Options{Torch: builtin("2.6.0")}, wheel: "demo-1.0-cp311-cp311-linux_x86_64.whl",
			files: map[string][]byte{"demo/_ext.cpython-311-x86_64-linux-gnu.so": module(elfMaker{needed: torch, rodata: "text\x00__pybind11_internals_v4_gcc_libstdcpp_cxxabi1011__\x00"})},
		},
		{
			name: "local version names another CUDA", wheel: "demo-1.0+cu118-cp312-cp312-linux_x86_64.whl",
			files: map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libcudart.so.12"}})},
			want:  []string{"error local-version: libcudart.so.12"},
		},
		{
			name:  "module of another Python",
			files: map[string][]byte{"demo/_ext.cpython-311-x86_64-linux-gnu.so": module(elfMaker{})},
			want:  []string{"error python-tag"},
		},
		{
			name:  "name this Python does not have",
			files: map[string][]byte{moduleFile: module(elfMaker{undefined: []string{"PyModule_Create2", "_PyObject_GC_Malloc"}})},
			want:  []string{"error python-symbol: _PyObject_GC_Malloc"},
		},
		{
			name:  "linked with libpython",
			files: map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libpython3.12.so.1.0"}})},
			want:  []string{"error python-library: libpython3.12.so.1.0"},
		},
		{
			name: "abi3 that is true", wheel: "demo-1.0-cp38-abi3-manylinux_2_28_x86_64.whl",
			files: map[string][]byte{"demo/_ext.abi3.so": module(elfMaker{undefined: []string{"PyModule_Create2", "PyModuleDef_Init"}})},
		},
		{
			name: "abi3 that is not", wheel: "demo-1.0-cp38-abi3-manylinux_2_28_x86_64.whl",
			files: map[string][]byte{"demo/_ext.abi3.so": module(elfMaker{undefined: []string{"PyModule_Create2", "_PyType_Lookup", "PyObject_GetOptionalAttr"}})},
			want:  []string{"error abi3: _PyType_Lookup", "error abi3-version: PyObject_GetOptionalAttr"},
		},
		{
			name: "native code for any platform", wheel: "demo-1.0-py3-none-any.whl",
			files: map[string][]byte{moduleFile: module(elfMaker{})},
			want:  []string{"error native-in-any"},
		},
		{
			name: "renamed to manylinux", files: map[string][]byte{
				moduleFile:                 module(elfMaker{}),
				"demo-1.0.dist-info/WHEEL": []byte("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: cp312-cp312-linux_x86_64\n"),
			},
			want: []string{"warning tag", "warning purelib"},
		},
		{name: "nothing native", files: map[string][]byte{"demo/__init__.py": []byte("pass\n")}, want: []string{"warning no-native-code"}},
		{name: "code that is not read", wheel: "demo-1.0-py3-none-macosx_12_0_arm64.whl", files: map[string][]byte{"demo/_ext.so": []byte("\xcf\xfa\xed\xfe")}},
		{
			name: "module and GPU code expected", opts: audit.Options{Modules: []string{"_ext", "_cuda"}, Archs: archs(t, "8.0")},
			files: map[string][]byte{moduleFile: module(elfMaker{})},
			want:  []string{"error module-missing: _cuda", "error no-gpu-code"},
		},
		{
			name: "severity", opts: audit.Options{Severity: map[string]audit.Severity{audit.RuleMachine: audit.Off, audit.RuleNoNative: audit.Error}},
			files: map[string][]byte{"demo/__init__.py": nil},
			want:  []string{"error no-native-code"},
		},
		{
			name: "without section headers", files: map[string][]byte{moduleFile: module(elfMaker{noHeaders: true, undefined: []string{"_ZN4mine6launchEPf"}})},
			want: []string{"error symbol-missing: _ZN4mine6launchEPf"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			name := test.wheel
			if name == "" {
				name = linuxWheel
			}
			test.opts.NoTable = true
			var metadata []string
			if test.metadata != "" {
				metadata = append(metadata, test.metadata)
			}
			got := found(check(t, name, test.files, test.opts, metadata...))
			want := append([]string{}, test.want...)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func archs(t *testing.T, s string) compat.ArchList {
	t.Helper()
	list, err := compat.ParseArchList(s)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestTorchTable: the table names the versions a module loads with, and the message where a
// missing symbol is.
func TestTorchTable(t *testing.T) {
	torch, err := audit.Builtin("2.6.0")
	if err != nil {
		t.Fatal(err)
	}
	r := check(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libc10.so"}, undefined: []string{newCheckFail}})},
		audit.Options{Torch: torch}, "Requires-Dist: torch")
	var works []string
	for _, v := range r.WorksWith {
		if v.OK != (v.Reason == "") || v.OK != (v.Missing == 0) {
			t.Errorf("%+v contradicts itself", v)
		}
		if v.OK {
			works = append(works, v.Torch)
		}
	}
	if len(r.WorksWith) != len(audit.Builtins()) {
		t.Errorf("%d torches tried, want %d", len(r.WorksWith), len(audit.Builtins()))
	}
	for _, v := range audit.Builtins() {
		s, err := audit.Builtin(v)
		if err != nil {
			t.Fatal(err)
		}
		if s.CXX11ABI == nil {
			t.Errorf("torch %s: C++ ABI unknown", v)
			continue
		}
		if want := s.Library("libc10.so").Has(newCheckFail) && *s.CXX11ABI; want != slices.Contains(works, v) {
			t.Errorf("works with %s: %v, want %v", v, !want, want)
		}
	}
	i := slices.IndexFunc(r.Findings, func(f audit.Finding) bool { return f.Rule == audit.RuleSymbolMissing })
	if i < 0 {
		t.Fatal("no finding")
	}
	for _, text := range []string{"c10::detail::torchCheckFail(char const*,", "other C++ ABI", "libc10.so of torch 2.7.0"} {
		if !strings.Contains(r.Findings[i].Message, text) {
			t.Errorf("%q does not say %q", r.Findings[i].Message, text)
		}
	}
}

// TestArchive: damage is a finding, never an error.
func TestArchive(t *testing.T) {
	good := makeWheel(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{}), "demo/data.txt": bytes.Repeat([]byte("text"), 100)})
	at := bytes.Index(good, []byte("demo/data.txt"))
	for _, test := range []struct {
		name, file string
		data       []byte
		want       []string
	}{
		{"no zip", linuxWheel, []byte("not a zip file"), []string{"error archive"}},
		{"cut off", linuxWheel, good[:len(good)-10], []string{"error archive"}},
		{"bad name", "demo.whl", good, []string{"error name"}},
		{"renamed", "demo-2.0-cp312-cp312-manylinux_2_28_x86_64.whl", good, nil},
		{"flipped byte", linuxWheel, flip(good, at+len("demo/data.txt")+3), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := audit.CheckReader(t.Context(), bytes.NewReader(test.data), int64(len(test.data)), test.file, audit.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.Worst() != audit.Error {
				t.Errorf("findings %+v, want an error", r.Findings)
			}
			if test.want != nil {
				if diff := cmp.Diff(test.want, found(r)); diff != "" {
					t.Errorf("findings (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func flip(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 0x40
	return b
}

// TestDigest: a file that RECORD does not vouch for is named.
func TestDigest(t *testing.T) {
	good := makeWheel(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{}), "demo/data.txt": []byte("text")})
	other := makeWheel(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{}), "demo/data.txt": []byte("TEXT")})
	// The record of one wheel in the archive of the other.
	data := swapRecord(t, good, other)
	r, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), linuxWheel, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"error digest"}, found(r)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	quick, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), linuxWheel, audit.Options{SkipDigests: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{}, found(quick)); diff != "" {
		t.Errorf("findings without digests (-want +got):\n%s", diff)
	}
}

func TestSingleLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libdemo.so")
	if err := os.WriteFile(path, elfMaker{soname: "libdemo.so", needed: []string{"libc.so.6"}, undefined: []string{"f@GLIBC_2.28@libc.so.6"}}.bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	r, err := audit.Check(t.Context(), path, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Platform == nil || r.Platform.Tag != "manylinux_2_28_x86_64" || r.Objects[0].GLIBC != "2.28" {
		t.Errorf("platform %+v", r.Platform)
	}
}

func TestCanceled(t *testing.T) {
	data := makeWheel(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{})})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := audit.CheckReader(ctx, bytes.NewReader(data), int64(len(data)), linuxWheel, audit.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
}

// TestPolicies: the oldest level wins, and every level admits what an older one does.
func TestPolicies(t *testing.T) {
	for _, test := range []struct{ version, library, want string }{
		{"GLIBC_2.2.5", "libc.so.6", "manylinux_2_5_x86_64"},
		{"GLIBC_2.17", "libc.so.6", "manylinux_2_17_x86_64"},
		{"GLIBC_2.19", "libc.so.6", "linux_x86_64"}, // there is no such version on x86-64
		{"GLIBC_2.28", "libc.so.6", "manylinux_2_28_x86_64"},
		{"GLIBC_ABI_DT_RELR", "libc.so.6", "manylinux_2_36_x86_64"},
		{"GLIBC_9.9", "libc.so.6", "linux_x86_64"},
		{"GLIBC_", "libc.so.6", "linux_x86_64"},
		{"GLIBCXX_3.4.32", "libstdc++.so.6", "manylinux_2_39_x86_64"},
		{"CXXABI_1.3.9", "libstdc++.so.6", "manylinux_2_24_x86_64"},
		{"ZLIB_1.2.9", "libz.so.1", "manylinux_2_27_x86_64"},
		{"libcudart.so.12", "libcudart.so.12", "manylinux_2_5_x86_64"}, // a namespace of its own
	} {
		r := check(t, "demo-1.0-cp312-cp312-linux_x86_64.whl",
			map[string][]byte{moduleFile: module(elfMaker{needed: []string{test.library}, undefined: []string{"f@" + test.version + "@" + test.library}})}, audit.Options{})
		if r.Platform.Tag != test.want {
			t.Errorf("%s: tag %s, want %s", test.version, r.Platform.Tag, test.want)
		}
	}
}

// TestBuiltins: every release of the tables has the content that the digest in its label was made
// of, and as a file of its own it is read as the same.
func TestBuiltins(t *testing.T) {
	files, err := filepath.Glob("snapshots/*.table")
	if err != nil || len(files) != 5 {
		t.Fatalf("tables %v (%v)", files, err)
	}
	total := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		total += len(data)
		releases, err := table.Open(string(data))
		if err != nil {
			t.Fatal(err)
		}
		for i, label := range releases.Labels() {
			if testing.Short() && i > 1 {
				break
			}
			list, err := releases.Read([]int{i}, nil)
			if err != nil {
				t.Fatal(err)
			}
			single, err := table.Encode(list)
			if err != nil {
				t.Fatal(err)
			}
			s, err := audit.ReadSnapshot(bytes.NewReader(single))
			if err != nil {
				t.Errorf("%s: %v", label, err)
				continue
			}
			if name, err := s.FileName(); err != nil || name != label+".kilnsnap" {
				t.Errorf("%s: its content belongs under %s (%v)", label, name, err)
			}
			if s.Kind != audit.KindTorch {
				continue
			}
			builtin, err := audit.Builtin(s.Version)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(s, builtin, cmpopts.IgnoreUnexported(audit.Snapshot{}, audit.SnapshotLibrary{})); diff != "" {
				t.Errorf("%s (-file +builtin):\n%s", label, diff)
			}
			for j := range s.Libraries {
				if !slices.Equal(s.Libraries[j].Symbols(), builtin.Libraries[j].Symbols()) {
					t.Errorf("%s: symbols of %s differ", label, s.Libraries[j].File)
				}
			}
		}
	}
	if total > 2<<20 {
		t.Errorf("%d bytes of snapshots in the binary", total)
	}
	torches := audit.Builtins()
	oldestFirst := slices.IsSortedFunc(torches, func(a, b string) int {
		v, errA := wheel.ParseVersion(a)
		w, errB := wheel.ParseVersion(b)
		if err := errors.Join(errA, errB); err != nil {
			t.Error(err)
		}
		return v.Compare(w)
	})
	if len(torches) < 23 || !oldestFirst {
		t.Errorf("torch %v", torches)
	}
}

// TestSnapshotFolder: a snapshot of a folder has what was in it, and survives writing.
func TestSnapshotFolder(t *testing.T) {
	dir := t.TempDir()
	lib := filepath.Join(dir, "torch", "lib")
	if err := os.MkdirAll(lib, 0o777); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		"torch/version.py":                         []byte("__version__ = '2.99.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"),
		"torch/_C.cpython-312-x86_64-linux-gnu.so": elfMaker{}.bytes(),
		"torch/lib/libc10.so":                      elfMaker{soname: "libc10.so", needed: []string{"libc.so.6"}, defined: []string{newCheckFail, "_ZN3c103fooEv"}}.bytes(),
		"torch/lib/libshm.so":                      elfMaker{defined: []string{"b", "a", "ab"}}.bytes(),
		"torch/lib/notes.txt":                      []byte("text"),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), content, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	whl := filepath.Join(dir, "torch-2.99.0+cu130-cp312-cp312-linux_x86_64.whl")
	writeWheel(t, whl, files)
	var names []string
	for _, source := range []string{dir, filepath.Join(dir, "torch"), whl} {
		s, err := audit.OpenSnapshot(t.Context(), source, audit.SnapshotOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if s.Version != "2.99.0+cu130" || s.CUDA != "13.0" || s.ROCm != "" || s.Python != "cp312" || s.Platform != "linux_x86_64" || s.CXX11ABI == nil || !*s.CXX11ABI {
			t.Errorf("%s: %+v", source, s)
		}
		if diff := cmp.Diff([]string{"a", "ab", "b"}, s.Library("libshm.so").Symbols()); diff != "" {
			t.Errorf("symbols (-want +got):\n%s", diff)
		}
		name, err := s.FileName()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
		roundTrip(t, s)
	}
	if len(slices.Compact(names)) != 1 {
		t.Errorf("names %v of the same torch", names)
	}
}

func roundTrip(t *testing.T, s *audit.Snapshot) {
	t.Helper()
	var one, two bytes.Buffer
	if _, err := s.WriteTo(&one); err != nil {
		t.Fatal(err)
	}
	again, err := audit.ReadSnapshot(bytes.NewReader(one.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.WriteTo(&two); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("a snapshot changes when it is written, read and written again")
	}
	for i := range s.Libraries {
		if diff := cmp.Diff(s.Libraries[i].Symbols(), again.Libraries[i].Symbols()); diff != "" {
			t.Errorf("symbols (-want +got):\n%s", diff)
		}
	}
}

// TestELFRoundTrip: whatever symbols and libraries a file has, the audit sees exactly these.
func TestELFRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringMatching(`[a-zA-Z_][a-zA-Z0-9_]{0,12}`)
		m := elfMaker{
			needed:    rapid.SliceOfN(rapid.StringMatching(`lib[a-z]{1,8}\.so\.[0-9]`), 0, 5).Draw(rt, "needed"),
			defined:   rapid.SliceOfNDistinct(name, 0, 20, rapid.ID).Draw(rt, "defined"),
			undefined: rapid.SliceOfN(name, 0, 20).Draw(rt, "undefined"),
			weak:      rapid.SliceOfN(name, 0, 5).Draw(rt, "weak"),
			noHeaders: rapid.Bool().Draw(rt, "stripped"),
		}
		data := m.bytes()
		r, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), "lib.so", audit.Options{NoTable: true})
		if err != nil {
			rt.Fatal(err)
		}
		o := r.Objects[0]
		if o.Defined != len(m.defined) || o.Undefined != len(m.undefined) || !slices.Equal(o.Needed, m.needed) {
			rt.Fatalf("%+v does not agree with %+v", o, m)
		}
	})
}

func TestParseSeverities(t *testing.T) {
	got, err := audit.ParseSeverities([]string{"arch-extra=error", "no-ptx=off"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]audit.Severity{"arch-extra": audit.Error, "no-ptx": audit.Off}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"arch-extra", "nothing=error", "no-ptx=loud"} {
		if _, err := audit.ParseSeverities([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestStored: a large member that is not compressed is read in its place, with the same result, and
// is still compared with RECORD.
func TestStored(t *testing.T) {
	large := module(elfMaker{needed: []string{"libc.so.6"}, undefined: []string{"f@GLIBC_2.17@libc.so.6"}, rodata: strings.Repeat("x", 9<<20)})
	deflated := makeWheel(t, linuxWheel, map[string][]byte{moduleFile: large, "demo/large.txt": bytes.Repeat([]byte("y"), 9<<20)})
	stored := store(t, deflated, nil)
	damaged := store(t, deflated, func(name string, data []byte) []byte {
		if name == moduleFile {
			data = bytes.Replace(data, []byte("xxxxxxxx"), []byte("xxxxZxxx"), 1)
		}
		return data
	})
	check := func(data []byte, opts audit.Options) *audit.Report {
		t.Helper()
		opts.NoTable = true
		r, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), linuxWheel, opts)
		if err != nil {
			t.Fatal(err)
		}
		r.Size = 0
		return r
	}
	want := check(deflated, audit.Options{})
	if len(want.Objects) != 1 || want.Objects[0].Size != int64(len(large)) {
		t.Fatalf("objects %+v", want.Objects)
	}
	for _, opts := range []audit.Options{{}, {SkipDigests: true}} {
		if diff := cmp.Diff(want, check(stored, opts)); diff != "" {
			t.Errorf("SkipDigests %v, stored (-deflated +stored):\n%s", opts.SkipDigests, diff)
		}
	}
	got := check(damaged, audit.Options{})
	if i := slices.IndexFunc(got.Findings, func(f audit.Finding) bool { return f.Rule == audit.RuleDigest }); i < 0 || got.Findings[i].File != moduleFile {
		t.Errorf("a changed member: %+v", got.Findings)
	}
}

// TestLargeMembers: members are seen alike in memory, in a temporary file, and in their place.
func TestLargeMembers(t *testing.T) {
	files := map[string][]byte{
		moduleFile:          module(elfMaker{needed: []string{"libc.so.6"}, undefined: []string{"f@GLIBC_2.17@libc.so.6"}, rodata: strings.Repeat("x", 1<<20)}),
		"demo/__init__.py":  bytes.Repeat([]byte("pass\n"), 100_000),
		"demo/empty":        nil,
		"demo/short.fatbin": []byte("MZ"),
	}
	deflated := makeWheel(t, linuxWheel, files)
	changed := func(name string, data []byte) []byte {
		if name == moduleFile || name == "demo/__init__.py" {
			data[len(data)/2]++
		}
		return data
	}
	for name, archive := range map[string][]byte{
		"deflated": deflated, "stored": store(t, deflated, nil), "stored, changed": store(t, deflated, changed),
		"deflated, damaged": corruptMiddle(t, deflated, moduleFile), "stored, damaged": corruptMiddle(t, store(t, deflated, nil), moduleFile),
	} {
		for _, skip := range []bool{false, true} {
			dir := t.TempDir()
			check := func(opts audit.Options) *audit.Report {
				t.Helper()
				r, err := audit.CheckReader(t.Context(), bytes.NewReader(archive), int64(len(archive)), linuxWheel, opts)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			opts := audit.Options{NoTable: true, SkipDigests: skip, TempDir: dir}
			want := check(opts)
			if strings.Contains(name, ",") != slices.ContainsFunc(want.Findings, func(f audit.Finding) bool { return f.Rule == audit.RuleDigest || f.Rule == audit.RuleCorrupt }) && !skip {
				t.Errorf("%s: findings %+v", name, want.Findings)
			}
			got := check(audit.WithInMemory(opts, 1))
			if name == "stored, damaged" && skip {
				continue // a member that is not read to its end is not found to be damaged
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s, SkipDigests %v (-small +large):\n%s", name, skip, diff)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("%s: left in the folder for temporary files: %v, %v", name, left, err)
			}
		}
	}
}

// corruptMiddle changes a byte in the data of a member, but not its checksum.
func corruptMiddle(t *testing.T, archive []byte, name string) []byte {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File {
		if f.Name == name {
			off, err := f.DataOffset()
			if err != nil {
				t.Fatal(err)
			}
			out := bytes.Clone(archive)
			out[off+int64(f.CompressedSize64/2)] ^= 0x55
			return out
		}
	}
	t.Fatalf("no member %s", name)
	return nil
}

// store packs an archive again without compression and data descriptors, each member changed by
// edit, if that is not nil.
func store(t testing.TB, archive []byte, edit func(name string, data []byte) []byte) []byte {
	t.Helper()
	in, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	out := zip.NewWriter(&buf)
	for _, f := range in.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if edit != nil {
			data = edit(f.Name, data)
		}
		n := uint64(len(data))
		w, err := out.CreateRaw(&zip.FileHeader{Name: f.Name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(data), CompressedSize64: n, UncompressedSize64: n})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// FuzzObject: no native file, however damaged, crashes the audit.
func FuzzObject(f *testing.F) {
	f.Add(module(elfMaker{needed: []string{"libc.so.6"}, undefined: []string{"f@GLIBC_2.17@libc.so.6", newCheckFail}, runpath: "$ORIGIN", level: 2, rodata: "__pybind11_internals_v4__"}))
	f.Add(elfMaker{noHeaders: true, defined: []string{"a"}}.bytes())
	f.Add([]byte("MZ\x90\x00"))
	for _, file := range []string{"windows.dll", "nvcc124.so", "nvcc130.a", "clang19.o", "nvcc130-size.fatbin"} {
		data, err := os.ReadFile(filepath.Join("internal", "fatbin", "testdata", file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), "lib.so", audit.Options{NoTable: true, Places: true})
		if err != nil {
			t.Skip(err)
		}
		if len(r.Objects) > 1 {
			t.Errorf("%d objects", len(r.Objects))
		}
	})
}

// FuzzWheel: no archive crashes the audit, and what is wrong with it is a finding.
func FuzzWheel(f *testing.F) {
	f.Add(makeWheel(f, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{needed: []string{"libc.so.6"}, undefined: []string{"f@GLIBC_2.17@libc.so.6"}})}))
	f.Add(makeWheel(f, linuxWheel, map[string][]byte{"demo/__init__.py": nil, "demo/x.fatbin": []byte("\x50\xed\x55\xba\x01\x00\x10\x00")}, "Requires-Dist: torch==2.6.0"))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Add(store(f, makeWheel(f, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{undefined: []string{"f"}}), "demo/MZ.txt": []byte("MZ")}), nil))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		opts := audit.Options{NoTable: true, Limits: wheel.Limits{Inflated: 1 << 20}, TempDir: t.TempDir()}
		check := func(opts audit.Options) *audit.Report {
			r, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), linuxWheel, opts)
			if err != nil {
				t.Fatalf("an error, not a finding: %v", err)
			}
			return r
		}
		r := check(opts)
		if diff := cmp.Diff(r, check(audit.WithInMemory(opts, 1))); diff != "" {
			t.Errorf("large members are seen differently (-small +large):\n%s", diff)
		}
		for i := range r.Findings {
			if _, ok := audit.LookupRule(r.Findings[i].Rule); !ok || r.Findings[i].Message == "" {
				t.Errorf("finding %+v", r.Findings[i])
			}
		}
	})
}

// FuzzSnapshot: what is read can be written and read again.
func FuzzSnapshot(f *testing.F) {
	s, err := audit.Builtin("2.6.0")
	if err != nil {
		f.Fatal(err)
	}
	s.Libraries = s.Libraries[:1]
	var buf bytes.Buffer
	if _, err := s.WriteTo(&buf); err != nil {
		f.Fatal(err)
	}
	f.Add(buf.Bytes())
	f.Add([]byte("kiln-snapshots/1\n"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := audit.ReadSnapshot(bytes.NewReader(data))
		if err != nil {
			return
		}
		roundTrip(t, s)
	})
}

// swapRecord returns the archive of one wheel with the RECORD of another.
func swapRecord(t *testing.T, archive, record []byte) []byte {
	t.Helper()
	read := func(data []byte) map[string][]byte {
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		out := map[string][]byte{}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			out[f.Name] = content
		}
		return out
	}
	files := read(archive)
	for name, content := range read(record) {
		if strings.HasSuffix(name, "/RECORD") {
			files[name] = content
		}
	}
	return kilntest.Zip(t, files)
}
