package audit_test

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

const (
	windowsWheel  = "demo-1.0-cp312-cp312-win_amd64.whl"
	windowsModule = "demo/_ext.cp312-win_amd64.pyd"
	c10CheckFail  = "?torchCheckFail@detail@c10@@YAXPEBD0IAEBV?$basic_string@DU?$char_traits@D@std@@V?$allocator@D@2@@std@@@Z"
)

// pyd is an extension module called _ext.
func pyd(m peMaker) []byte {
	m.exports = append(m.exports, "PyInit__ext")
	return m.bytes()
}

func TestWindowsFindings(t *testing.T) {
	torch, err := audit.Builtin("2.6.0+cpu")
	if err != nil {
		t.Fatal(err)
	}
	module := func(imports ...string) map[string][]byte {
		return map[string][]byte{windowsModule: pyd(peMaker{imports: imports})}
	}
	const requires = "Requires-Dist: torch"
	for _, test := range []struct {
		name     string
		wheel    string
		files    map[string][]byte
		opts     audit.Options
		metadata string
		want     []string
	}{
		{
			name:  "good",
			files: module("python312.dll:PyModule_Create2", "VCRUNTIME140.dll:memcpy", "VCRUNTIME140_1.dll:__CxxFrameHandler4", "api-ms-win-crt-heap-l1-1-0.dll:malloc", "KERNEL32.dll:Sleep", "nvcuda.dll:cuInit"),
		},
		{name: "C++ runtime", files: module("MSVCP140.dll:?_Xlength_error@std@@YAXPEBD@Z"), want: []string{"warning vc-runtime: msvcp140.dll"}},
		{name: "C++ runtime that torch asks for", metadata: requires, files: module("MSVCP140.dll:f", "c10.dll:"+c10CheckFail)},
		{name: "debug runtime", files: module("VCRUNTIME140D.dll:memcpy", "python312_d.dll:PyModule_Create2"), want: []string{
			"error library-missing: vcruntime140d.dll", "error library-missing: python312_d.dll",
		}},
		{name: "library of mingw", files: module("libgcc_s_seh-1.dll:_Unwind_Resume"), want: []string{"error library-missing: libgcc_s_seh-1.dll"}},
		{name: "missing library that is loaded late", files: map[string][]byte{windowsModule: pyd(peMaker{delayed: []string{"nowhere.dll:f"}})}},
		{
			name: "library beside the module",
			files: map[string][]byte{
				windowsModule:    pyd(peMaker{imports: []string{"Inner.dll:f", "Inner.dll:#1"}}),
				"demo/inner.DLL": peMaker{exports: []string{"f"}}.bytes(),
			},
		},
		{
			name: "library in another folder",
			files: map[string][]byte{
				windowsModule:         pyd(peMaker{imports: []string{"inner.dll:f"}}),
				"demo.libs/inner.dll": peMaker{exports: []string{"f"}}.bytes(),
			},
			want: []string{"error library-missing: inner.dll"},
		},
		{
			name: "library in another folder that is made known",
			files: map[string][]byte{
				windowsModule:         pyd(peMaker{imports: []string{"inner.dll:f"}}),
				"demo.libs/inner.dll": peMaker{exports: []string{"f"}}.bytes(),
				"demo/__init__.py":    []byte("import os\nos.add_dll_directory(os.path.join(__file__, '..', '..', 'demo.libs'))\n"),
			},
		},
		{
			name: "name that the library lacks, and a number",
			files: map[string][]byte{
				windowsModule:    pyd(peMaker{imports: []string{"inner.dll:f", "inner.dll:g", "inner.dll:#2"}}),
				"demo/inner.dll": peMaker{exports: []string{"f"}}.bytes(),
			},
			want: []string{"error symbol-missing: g #2"},
		},
		{
			name: "what a library needs is looked for in the folder of the module",
			files: map[string][]byte{
				windowsModule:    pyd(peMaker{imports: []string{"inner.dll:f"}}),
				"demo/inner.dll": peMaker{exports: []string{"f"}, imports: []string{"deep.dll:h", "gone.dll:x"}}.bytes(),
				"demo/deep.dll":  peMaker{exports: []string{"k"}}.bytes(),
			},
			want: []string{"error library-missing: gone.dll", "error symbol-missing: h"},
		},
		{
			name: "names that stand for others",
			files: map[string][]byte{
				windowsModule:    pyd(peMaker{imports: []string{"inner.dll:a", "inner.dll:b", "inner.dll:c", "inner.dll:d", "inner.dll:e"}}),
				"demo/inner.dll": peMaker{exports: []string{"a=deep.h", "b=deep.missing", "c=KERNEL32.Sleep", "d=nowhere.f", "e=inner.e"}}.bytes(),
				"demo/deep.dll":  peMaker{exports: []string{"h"}}.bytes(),
			},
			want: []string{"error symbol-missing: b d e"},
		},
		{
			name: "library that no module needs", wheel: "demo-1.0-py3-none-win_amd64.whl",
			files: map[string][]byte{"demo/demo.dll": peMaker{imports: []string{"gone.dll:f", "cublas64_12.dll:f"}}.bytes()},
			want:  []string{"warning library-missing: gone.dll", "warning library-missing: cublas64_12.dll"},
		},
		{
			name: "other machines",
			files: map[string][]byte{
				windowsModule:      pyd(peMaker{machine: pe.IMAGE_FILE_MACHINE_ARM64, imports: []string{"inner.dll:f"}}),
				"demo/inner.dll":   peMaker{exports: []string{"f"}}.bytes(),
				"demo/attach.dll":  peMaker{machine: pe.IMAGE_FILE_MACHINE_ARM64}.bytes(),
				"demo/managed.dll": peMaker{managed: true, imports: []string{"gone.dll:f"}}.bytes(),
				"demo/start.exe":   peMaker{program: true, imports: []string{"gone.dll:f"}}.bytes(),
			},
			want: []string{"error machine"},
		},
		{
			name: "renamed", files: map[string][]byte{windowsModule: peMaker{exports: []string{"PyInit_other"}}.bytes()}, opts: audit.Options{Modules: []string{"_ext"}},
			want: []string{"error module-missing: _ext"},
		},
		{name: "linked with another Python", files: module("python311.dll:PyModule_Create2"), want: []string{"error python-tag: python311.dll"}},
		{
			name: "module of another Python", files: map[string][]byte{"demo/_ext.cp311-win_amd64.pyd": pyd(peMaker{})},
			want: []string{"error python-tag"},
		},
		{
			name: "function of another Python", files: module("python312.dll:PyObject_GetOptionalAttr"),
			want: []string{"error python-symbol: PyObject_GetOptionalAttr"},
		},
		{
			name: "abi3 that is true", wheel: "demo-1.0-cp38-abi3-win_amd64.whl",
			files: map[string][]byte{"demo/_ext.pyd": pyd(peMaker{imports: []string{"python3.dll:PyModule_Create2"}})},
		},
		{
			name: "abi3 that is not", wheel: "demo-1.0-cp38-abi3-win_amd64.whl",
			files: map[string][]byte{"demo/_ext.pyd": pyd(peMaker{imports: []string{"python312.dll:PyModule_Create2", "python312.dll:_PyType_Lookup"}})},
			want:  []string{"error abi3: python312.dll", "error abi3: _PyType_Lookup"},
		},
		{
			name: "abi3 in the name", wheel: "demo-1.0-cp38-abi3-win_amd64.whl",
			files: map[string][]byte{"demo/_ext.abi3.pyd": pyd(peMaker{imports: []string{"python3.dll:PyModule_Create2"}})},
			want:  []string{"error python-tag"},
		},
		{name: "fits torch", metadata: requires, opts: audit.Options{Torch: torch}, files: module("c10.dll:"+c10CheckFail, "asmjit.dll:")},
		{
			name: "does not fit torch", metadata: requires, opts: audit.Options{Torch: torch}, files: module("c10.dll:?gone@c10@@YAXXZ", "torch_cuda.dll:f", "c10_cuda.dll:"),
			want: []string{"error library-missing: torch_cuda.dll", "error library-missing: c10_cuda.dll", "error symbol-missing: ?gone@c10@@YAXXZ"},
		},
		{
			name: "the torch it names", metadata: "Requires-Dist: torch==2.6.0", files: module("c10.dll:?gone@c10@@YAXXZ"),
			want: []string{"error symbol-missing: ?gone@c10@@YAXXZ"},
		},
		{
			name: "a torch with CUDA, which is not on record", metadata: "Requires-Dist: torch==2.6.0",
			files: module("c10.dll:?gone@c10@@YAXXZ", "c10_cuda.dll:f", "cudart64_12.dll:cudaMalloc"),
		},
		{name: "torch undeclared", files: module("c10.dll:" + c10CheckFail), want: []string{"warning torch-undeclared"}},
		{
			name: "label", wheel: "demo-1.0+cu118-cp312-cp312-win_amd64.whl", metadata: requires, files: module("cudart64_12.dll:cudaMalloc"),
			want: []string{"error local-version: cudart64_12.dll"},
		},
		{name: "CUDA from nowhere", files: module("cudart64_12.dll:cudaMalloc"), want: []string{"error library-missing: cudart64_12.dll"}},
		{name: "CUDA from NVIDIA", metadata: "Requires-Dist: nvidia-cuda-runtime-cu12", files: module("cudart64_12.dll:cudaMalloc")},
		{
			name: "bundled", files: map[string][]byte{"demo/c10.dll": peMaker{}.bytes(), "demo/nvcuda.dll": peMaker{}.bytes(), "demo/cudart64_12.dll": peMaker{}.bytes()},
			want: []string{"error bundled-library: c10.dll", "error bundled-library: nvcuda.dll", "warning bundled-library: cudart64_12.dll"},
		},
		{name: "damaged", files: map[string][]byte{windowsModule: pyd(peMaker{})[:300]}, want: []string{"error object"}},
		{name: "text that begins with MZ", files: map[string][]byte{windowsModule: pyd(peMaker{}), "demo/notes.txt": []byte("MZ is a magic")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			name := test.wheel
			if name == "" {
				name = windowsWheel
			}
			test.opts.NoTable = true
			var metadata []string
			if test.metadata != "" {
				metadata = append(metadata, test.metadata)
			}
			want := append([]string{}, test.want...)
			r := check(t, name, test.files, test.opts, metadata...)
			if diff := cmp.Diff(want, found(r)); diff != "" {
				t.Errorf("findings (-want +got):\n%s\n%+v", diff, r.Findings)
			}
			test.opts.SkipDigests = true
			if diff := cmp.Diff(want, found(check(t, name, test.files, test.opts, metadata...))); diff != "" {
				t.Errorf("findings without digests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWindowsObject: what is read of a file is in the report.
func TestWindowsObject(t *testing.T) {
	r := check(t, windowsWheel, map[string][]byte{windowsModule: pyd(peMaker{
		imports: []string{"python312.dll:PyModule_Create2", "WS2_32.dll:#115", "KERNEL32.dll:"}, delayed: []string{"cudart64_12.dll:cudaMalloc"},
		rdata: "__pybind11_internals_v5_msvc_md_mscver19__",
	})}, audit.Options{})
	want := []audit.Object{{
		Path: windowsModule, Kind: "pe", Size: r.Objects[0].Size, Machine: "amd64", Module: "_ext", Python: "cp312", StableABI: "3.2",
		Needed: []string{"python312.dll", "ws2_32.dll", "kernel32.dll"}, Delayed: []string{"cudart64_12.dll"},
		Defined: 1, Undefined: 2, Pybind: "__pybind11_internals_v5_msvc_md_mscver19__",
	}}
	if diff := cmp.Diff(want, r.Objects); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	r = check(t, windowsWheel, map[string][]byte{
		windowsModule:    pyd(peMaker{imports: []string{"VCRUNTIME140.dll:memcpy", "MSVCP140.dll:f", "torch_cpu.dll:g", "inner.dll:"}, delayed: []string{"late.dll:f"}}),
		"demo/inner.dll": peMaker{imports: []string{"gone.dll:f", "KERNEL32.dll:Sleep"}}.bytes(),
	}, audit.Options{NoTable: true})
	if diff := cmp.Diff([]string{"gone.dll", "msvcp140.dll", "torch_cpu.dll"}, r.External); diff != "" {
		t.Errorf("external (-want +got):\n%s", diff)
	}
}

// TestWindowsTorchTable: the snapshots of Windows are compared with, whatever was asked for, and the
// message says which torch has a name.
func TestWindowsTorchTable(t *testing.T) {
	linux, err := audit.Builtin("2.2.0")
	if err != nil {
		t.Fatal(err)
	}
	const name = "?report_overflow@c10@@YAXPEBD@Z"
	r := check(t, windowsWheel, map[string][]byte{windowsModule: pyd(peMaker{imports: []string{"c10.dll:" + name}})},
		audit.Options{Torch: linux}, "Requires-Dist: torch")
	if r.Torch != "2.2.0+cpu" {
		t.Errorf("compared with torch %s", r.Torch)
	}
	works := map[string]bool{}
	for _, v := range r.WorksWith {
		works[v.Torch] = v.OK
	}
	if len(works) < 23 || !works["2.6.0+cpu"] || works["2.15.0+cpu"] {
		t.Errorf("works with %v", works)
	}
	r = check(t, windowsWheel, map[string][]byte{windowsModule: pyd(peMaker{imports: []string{"c10.dll:" + name}})},
		audit.Options{}, "Requires-Dist: torch==2.15.0")
	if len(r.Findings) == 0 || !strings.Contains(r.Findings[0].Message, "c10::report_overflow") || !strings.Contains(r.Findings[0].Message, "that of torch 2.2.0 to ") {
		t.Errorf("findings %+v", r.Findings)
	}
}

// TestWindowsHostile: tables that lead out of the file, or in circles, are findings and end soon.
func TestWindowsHostile(t *testing.T) {
	good := pyd(peMaker{imports: []string{"python312.dll:PyModule_Create2"}, delayed: []string{"a.dll:f"}})
	directories := 0x40 + 4 + 20 + 112
	for name, change := range map[string]func(b []byte){
		"imports outside":     func(b []byte) { binary.LittleEndian.PutUint32(b[directories+8:], 0x7fffffff) },
		"delayed outside":     func(b []byte) { binary.LittleEndian.PutUint32(b[directories+8*13:], 0xfffffff0) },
		"exports outside":     func(b []byte) { binary.LittleEndian.PutUint32(b[directories:], 0xfffffff0) },
		"exports of anything": func(b []byte) { binary.LittleEndian.PutUint32(b[directories:], 0x1000) },
	} {
		b := bytes.Clone(good)
		change(b)
		r, err := audit.CheckReader(t.Context(), bytes.NewReader(b), int64(len(b)), "x.pyd", audit.Options{NoTable: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Worst() != audit.Error {
			t.Errorf("%s: findings %+v", name, r.Findings)
		}
	}
}

// FuzzPE: no Windows file, however damaged, crashes the audit or is seen as more than one.
func FuzzPE(f *testing.F) {
	f.Add(pyd(peMaker{imports: []string{"python312.dll:PyModule_Create2", "c10.dll:#7", "b.dll:"}, delayed: []string{"a.dll:f"}, rdata: "__pybind11_internals_v4__"}))
	f.Add(peMaker{exports: []string{"a=b.c", "d"}, managed: true}.bytes())
	data, err := os.ReadFile(filepath.Join("internal", "fatbin", "testdata", "windows.dll"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := audit.CheckReader(t.Context(), bytes.NewReader(data), int64(len(data)), "_ext.pyd", audit.Options{NoTable: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Objects) > 1 {
			t.Errorf("%d objects", len(r.Objects))
		}
		for _, o := range r.Objects {
			if o.Kind == "pe" && (o.Defined > 1<<17 || o.Undefined > 1<<18+1) {
				t.Errorf("%d names and %d needed", o.Defined, o.Undefined)
			}
		}
	})
}

// TestWindowsSnapshot: of an installed torch with CUDA everything is known, also what its folder
// has of CUDA.
func TestWindowsSnapshot(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"version.py":             []byte("__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\n"),
		"_C.cp312-win_amd64.pyd": pyd(peMaker{}),
		"lib/c10.dll":            peMaker{exports: []string{"?a@c10@@YAXXZ"}}.bytes(),
		"lib/torch_cuda.dll":     peMaker{imports: []string{"cudart64_12.dll:cudaMalloc"}, exports: []string{"?b@at@@YAXXZ"}}.bytes(),
		"lib/cudart64_12.dll":    peMaker{exports: []string{"cudaMalloc"}}.bytes(),
		"lib/torch.lib":          []byte("!<arch>\n"),
	} {
		file := filepath.Join(dir, "torch", filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	torch, err := audit.TakeSnapshot(t.Context(), dir, audit.SnapshotOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if torch.Platform != "win_amd64" || torch.Python != "cp312" || torch.CUDA != "12.8" || len(torch.Libraries) != 3 {
		t.Errorf("snapshot %+v", torch)
	}
	for _, test := range []struct {
		imports []string
		want    []string
	}{
		{[]string{"c10.dll:?a@c10@@YAXXZ", "torch_cuda.dll:?b@at@@YAXXZ", "cudart64_12.dll:cudaMalloc"}, []string{}},
		{[]string{"torch_cuda.dll:?a@c10@@YAXXZ", "c10_cuda.dll:f"}, []string{"error library-missing: c10_cuda.dll", "error symbol-missing: ?a@c10@@YAXXZ"}},
		{[]string{"c10.dll:?a@c10@@YAXXZ", "cudart64_110.dll:cudaMalloc"}, []string{"error cuda-major: cudart64_110.dll"}},
		{[]string{"c10.dll:?a@c10@@YAXXZ", "cufft64_11.dll:f"}, []string{"error library-missing: cufft64_11.dll"}},
	} {
		r := check(t, windowsWheel, map[string][]byte{windowsModule: pyd(peMaker{imports: test.imports})}, audit.Options{Torch: torch, NoTable: true}, "Requires-Dist: torch")
		if diff := cmp.Diff(test.want, found(r)); diff != "" {
			t.Errorf("%v: findings (-want +got):\n%s", test.imports, diff)
		}
	}
}
