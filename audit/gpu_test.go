package audit_test

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/compat"
)

// device is GPU code as compilers made it: a file of internal/fatbin/testdata, or one of its
// sections. What is in them is in golden_test.go there.
func device(t *testing.T, file, section string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("internal", "fatbin", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	if section == "" {
		return data
	}
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := f.Section(section)
	if s == nil {
		t.Fatalf("%s has no section %s", file, section)
	}
	if data, err = s.Data(); err != nil {
		t.Fatal(err)
	}
	return data
}

func gfx(t *testing.T, s string) compat.GfxList {
	t.Helper()
	list, err := compat.ParseGfxList(s)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestGPU: findings about GPU code, as "severity rule: details". The modules are made here,
// what is in their sections comes from nvcc and clang.
func TestGPU(t *testing.T) {
	cuda := func(m elfMaker, containers ...[]byte) []byte {
		m.sections = map[string][]byte{".nv_fatbin": bytes.Join(containers, nil)}
		return module(m)
	}
	hip := func(bundle []byte) []byte {
		return module(elfMaker{sections: map[string][]byte{".hip_fatbin": bundle}})
	}
	var (
		old     = device(t, "nvcc118.o", ".nv_fatbin")  // 6.0 8.0+PTX
		recent  = device(t, "nvcc130.o", ".nv_fatbin")  // 9.0a 10.0f, PTX of 12.0
		speed   = device(t, "nvcc130-speed.fatbin", "") // 8.0+PTX
		amd     = device(t, "clang19.o", ".hip_fatbin") // gfx906 gfx90a:xnack+ gfx90a:xnack- gfx1100, compressed
		linked  = device(t, "nvcc124.so", "")           // 8.0, and relocatable input with PTX
		noPTX   = device(t, "nvcc130-90a.cubin", "")    // 9.0a
		cut     = old[:len(old)/2]                      // in the middle of an image
		torch26 = func() *audit.Snapshot {
			s, err := audit.Builtin("2.6.0") // 5.0 to 9.0
			if err != nil {
				t.Fatal(err)
			}
			return s
		}()
	)
	for _, test := range []struct {
		name  string
		files map[string][]byte
		opts  audit.Options
		gpus  string // what the report says there is
		want  []string
	}{
		{name: "as asked for", files: map[string][]byte{moduleFile: cuda(elfMaker{}, old)}, opts: audit.Options{Archs: archs(t, "6.0 8.0+PTX")}, gpus: "6.0 8.0+PTX"},
		{
			name: "missing and extra", files: map[string][]byte{moduleFile: cuda(elfMaker{}, old)}, opts: audit.Options{Archs: archs(t, "7.5 8.0 9.0+PTX")},
			gpus: "6.0 8.0+PTX",
			want: []string{"error arch-missing: 7.5 9.0 PTX of 9.0", "warning arch-extra: 6.0 PTX of 8.0"},
		},
		{
			name: "9.0a runs where 9.0 does", files: map[string][]byte{moduleFile: cuda(elfMaker{}, recent)}, opts: audit.Options{Archs: archs(t, "9.0 10.0f 12.0+PTX")},
			gpus: "9.0a 10.0f 12.0-virtual",
			want: []string{"error arch-missing: 12.0"},
		},
		{
			name: "another suffix", files: map[string][]byte{moduleFile: cuda(elfMaker{}, recent)}, opts: audit.Options{Archs: archs(t, "9.0a 10.0a")},
			gpus: "9.0a 10.0f 12.0-virtual",
			want: []string{"error arch-missing: 10.0a", "warning arch-extra: 10.0f PTX of 12.0"},
		},
		{
			name: "severity changed", files: map[string][]byte{moduleFile: cuda(elfMaker{}, old)},
			opts: audit.Options{Archs: archs(t, "8.0+PTX"), Severity: map[string]audit.Severity{audit.RuleArchExtra: audit.Error}},
			gpus: "6.0 8.0+PTX",
			want: []string{"error arch-extra: 6.0"},
		},
		{
			name: "not all files", gpus: "8.0+PTX", opts: audit.Options{Archs: archs(t, "6.0 8.0+PTX")},
			files: map[string][]byte{moduleFile: cuda(elfMaker{}, old), "demo/_two.cpython-312-x86_64-linux-gnu.so": cuda(elfMaker{}, speed)},
			want:  []string{"error arch-missing: 6.0"},
		},
		{
			name: "uneven", files: map[string][]byte{moduleFile: cuda(elfMaker{}, old, speed)}, gpus: "6.0 8.0+PTX",
			want: []string{"note arch-uneven: sass 6.0 in 1 of 2"},
		},
		{
			name: "relocatable, device linked", files: map[string][]byte{"demo/lib.so": linked}, opts: audit.Options{Archs: archs(t, "8.0")}, gpus: "8.0",
			want: []string{"note no-ptx"},
		},
		{
			name: "relocatable, its PTX is gone", files: map[string][]byte{"demo/lib.so": linked}, opts: audit.Options{Archs: archs(t, "8.0+PTX")}, gpus: "8.0",
			want: []string{"error arch-missing: PTX of 8.0", "note no-ptx"},
		},
		{
			name: "unreachable", opts: audit.Options{Torch: torch26}, gpus: "9.0a 10.0f 12.0-virtual",
			files: map[string][]byte{moduleFile: cuda(elfMaker{needed: []string{"libc10.so"}}, recent)},
			want:  []string{"warning torch-undeclared", "note arch-unreachable: 10.0f", "note import-order"},
		},
		{
			name: "archive and object are not loaded", opts: audit.Options{Archs: archs(t, "6.0 8.0+PTX")}, gpus: "6.0 8.0+PTX",
			files: map[string][]byte{moduleFile: cuda(elfMaker{}, old), "demo/lib.a": device(t, "nvcc130.a", ""), "demo/one.o": device(t, "nvcc118.o", "")},
		},
		{
			name: "single images", opts: audit.Options{Archs: archs(t, "8.0+PTX 9.0a 12.0f")},
			files: map[string][]byte{"demo/a.fatbin": speed, "demo/b.cubin": noPTX, "demo/__init__.py": nil, moduleFile: module(elfMaker{})},
			want:  []string{"error arch-missing: 12.0f"},
		},
		{
			name: "cut off", files: map[string][]byte{moduleFile: cuda(elfMaker{}, cut)},
			want: []string{"warning gpu-code"},
		},
		{
			name: "section cut off", files: map[string][]byte{"demo/lib.so": device(t, "nvcc124.so", "")[:15000]},
			want: []string{"error object"},
		},
		{name: "AMD as asked for", files: map[string][]byte{moduleFile: hip(amd)}, opts: audit.Options{Gfx: gfx(t, "gfx906 gfx90a gfx1100")}, gpus: "gfx1100 gfx906 gfx90a:xnack+ gfx90a:xnack-"},
		{
			name: "AMD missing and extra", files: map[string][]byte{moduleFile: hip(amd)}, opts: audit.Options{Gfx: gfx(t, "gfx90a:xnack- gfx942 gfx1100")},
			gpus: "gfx1100 gfx906 gfx90a:xnack+ gfx90a:xnack-",
			want: []string{"error arch-missing: gfx942", "warning arch-extra: gfx906 gfx90a:xnack+"},
		},
		{
			name: "AMD asked for, NVIDIA found", files: map[string][]byte{moduleFile: cuda(elfMaker{}, old)}, opts: audit.Options{Gfx: gfx(t, "gfx90a")}, gpus: "6.0 8.0+PTX",
			want: []string{"error no-gpu-code"},
		},
		{
			name: "NVIDIA asked for, AMD found", files: map[string][]byte{moduleFile: hip(amd)}, opts: audit.Options{Archs: archs(t, "8.0")},
			gpus: "gfx1100 gfx906 gfx90a:xnack+ gfx90a:xnack-",
			want: []string{"error no-gpu-code"},
		},
		{
			name: "native is not compared", files: map[string][]byte{moduleFile: cuda(elfMaker{}, old)}, opts: audit.Options{Archs: archs(t, "native")}, gpus: "6.0 8.0+PTX",
		},
		{name: "AMD cut off", files: map[string][]byte{moduleFile: hip(amd[:len(amd)/2])}, want: []string{"warning gpu-code"}},
		{
			// Libraries for Intel GPUs have this section.
			name:  "SYCL is not damage",
			files: map[string][]byte{moduleFile: module(elfMaker{sections: map[string][]byte{"__CLANG_OFFLOAD_BUNDLE__sycl-spir64_gen": []byte("code")}})},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.opts.NoTable = true
			r := check(t, linuxWheel, test.files, test.opts)
			got := []string{}
			for _, f := range r.Findings {
				if flags := f.Cause + f.Fix; test.opts.Gfx.String() != "" && strings.Contains(flags, "-gencode") {
					t.Errorf("%s names nvcc's flags for an AMD GPU: %s", f.Rule, flags)
				}
				if f.Rule != audit.RulePlatformLoose {
					got = append(got, strings.TrimRight(f.Severity.String()+" "+f.Rule+": "+strings.Join(f.Details, " "), ": "))
				}
			}
			if diff := cmp.Diff(append([]string{}, test.want...), got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if got := r.Archs(); got != test.gpus && test.gpus != "" {
				t.Errorf("GPUs %q, want %q", got, test.gpus)
			}
		})
	}
}

// TestGPUCode: the report counts images and translation units.
func TestGPUCode(t *testing.T) {
	r := check(t, linuxWheel, map[string][]byte{moduleFile: module(elfMaker{sections: map[string][]byte{
		".nv_fatbin": bytes.Join([][]byte{device(t, "nvcc130-speed.fatbin", ""), device(t, "nvcc130-size.fatbin", "")}, nil),
	}})}, audit.Options{})
	want := []audit.GPUCode{
		{Target: "8.0", Kind: "ptx", Count: 1, Units: 1, Compressed: 1, Bytes: 684},
		{Target: "12.0f", Kind: "ptx", Count: 1, Units: 1, Compressed: 1, Bytes: 478},
		{Target: "8.0", Kind: "sass", Count: 1, Units: 1, Bytes: 4712},
		{Target: "12.0f", Kind: "sass", Count: 1, Units: 1, Compressed: 1, Bytes: 1619},
	}
	if diff := cmp.Diff(want, r.Objects[0].GPU); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.Objects[0].GPUUnits != 2 {
		t.Errorf("%d units, want 2", r.Objects[0].GPUUnits)
	}
}
