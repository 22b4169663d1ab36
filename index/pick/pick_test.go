package pick_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/pick"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/wheel"
)

func pickFile(name string, change ...func(*index.File)) *index.File {
	f := &index.File{Filename: name, SHA256: sha256.Sum256([]byte(name)), Size: 1}
	for _, c := range change {
		c(f)
	}
	return f
}

func archs(list ...string) func(*index.File) { return func(f *index.File) { f.Arch = list } }

func built(toolkit string, torch ...string) func(*index.File) {
	return func(f *index.File) { f.Coordinates = index.Coordinates{Toolkit: toolkit, Torch: torch} }
}

// needs sets what an audit found: the glibc, and the torch versions that have all names.
func needs(glibc string, window ...string) func(*index.File) {
	return func(f *index.File) { f.Glibc, f.Window = glibc, window }
}

// flashFiles are the builds of a package for many machines.
func flashFiles() []*index.File {
	var files []*index.File
	for _, version := range []string{"2.8.2", "2.8.3"} {
		for _, label := range []string{"cu126.torch2.8", "cu126.torch2.9", "cu128.torch2.8", "cu128.torch2.9", "cu130.torch2.9", "cu130.torch2.10", "cpu.torch2.9", "rocm6.4.torch2.9"} {
			for _, python := range []string{"310", "312", "313"} {
				for _, platform := range []string{"manylinux_2_28_x86_64", "win_amd64"} {
					files = append(files, pickFile(fmt.Sprintf("fa-%s+%s-cp%s-cp%s-%s.whl", version, label, python, python, platform), archs("80", "90", "120+PTX")))
				}
			}
		}
	}
	files = append(files, pickFile("fa-2.8.3.tar.gz"), pickFile("fa-2.9.0rc1+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", archs("80", "90", "120+PTX")))
	return files
}

var workstation = pick.Target{
	OS: "linux", Arch: "x86_64", Glibc: "2.39", Python: "3.12.4", Torch: "2.9.0+cu128", TorchCUDA: "12.8", TorchABI: "1",
	Driver: "570.86.10", DriverCUDA: "12.8", GPUs: []pick.GPU{{Name: "H100", Arch: "9.0"}},
}

// on is a machine like the workstation, with differences.
func on(change func(*pick.Target)) pick.Target {
	m := workstation
	change(&m)
	return m
}

func TestPick(t *testing.T) {
	tests := map[string]struct {
		machine   pick.Target
		specifier string
		pre       bool
		files     []*index.File
		best      string // "" if none fits
		near      string // reason of the nearest miss
		note      string
	}{
		"the workstation": {machine: workstation, best: "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"windows": {
			machine: on(func(m *pick.Target) { m.OS, m.Glibc, m.Arch = "windows", "", "amd64" }),
			best:    "fa-2.8.3+cu128.torch2.9-cp312-cp312-win_amd64.whl",
		},
		"a wheel that was proven with a later torch": {
			machine: workstation, files: []*index.File{pickFile("fa-2.8.3+cu128.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl", built("cu128", "2.8", "2.9"))},
			best: "fa-2.8.3+cu128.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl", note: "it was built for torch 2.8; it serves torch 2.9 too, which the build proved",
		},
		"a wheel on the stable ABI": {
			machine: workstation, files: []*index.File{pickFile("fa-2.8.3+cu128-cp312-cp312-manylinux_2_28_x86_64.whl", built("cu128", "2.8", "2.9", "2.10"))},
			best: "fa-2.8.3+cu128-cp312-cp312-manylinux_2_28_x86_64.whl", note: "one file for torch 2.8 to 2.10",
		},
		"older torch": {
			machine: on(func(m *pick.Target) { m.Torch = "2.8.1+cu126"; m.TorchCUDA = "12.6" }),
			best:    "fa-2.8.3+cu126.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"CUDA of torch from its label": {
			machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA = "2.9.1+cu130", ""; m.DriverCUDA = "13.0" }),
			best:    "fa-2.8.3+cu130.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"another CUDA minor": {
			machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA = "2.9.0+cu129", "12.9" }),
			best:    "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", note: "usually works within one major version",
		},
		"another CUDA major": {
			machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA, m.DriverCUDA = "2.9.0+cu118", "11.8", "11.8" }),
			near:    "was built for CUDA 12.8, the installed torch has 11.8",
		},
		"torch without a build": {
			machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA = "2.11.0+cu130", "13.0"; m.DriverCUDA = "13.0" }),
			near:    "was built for torch 2.10, this has 2.11.0+cu130",
		},
		"no torch": {
			machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA = "", "" }),
			best:    "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", note: "torch 2.9 has to be installed",
		},
		"no torch, newer driver": {
			machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA, m.DriverCUDA = "", "", "13.1" }),
			best:    "fa-2.8.3+cu130.torch2.10-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"torch for the CPU": {
			machine: on(func(m *pick.Target) {
				m.Torch, m.TorchCUDA, m.NoDriver, m.GPUs, m.DriverCUDA = "2.9.0+cpu", "", true, nil, ""
			}),
			best: "fa-2.8.3+cpu.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"nothing but a CPU": {
			machine: pick.Target{OS: "linux", Glibc: "2.36", Python: "3.12", NoDriver: true},
			best:    "fa-2.8.3+cpu.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"ROCm": {
			machine: on(func(m *pick.Target) {
				m.Torch, m.TorchCUDA, m.TorchROCm, m.NoDriver, m.DriverCUDA, m.GPUs = "2.9.0+rocm6.4", "", "6.4", true, "", nil
			}),
			best: "fa-2.8.3+rocm6.4.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"a row's torch and glibc, in no name": {
			machine: on(func(m *pick.Target) {
				m.Torch, m.TorchCUDA, m.Glibc, m.DriverCUDA = "2.15.0+cu130", "13.0", "2.28", "13.0"
			}),
			files: []*index.File{pickFile("fa-2.1.2-cp312-cp312-linux_x86_64.whl", built("cu130", "2.11"), needs("2.32"))}, near: "needs glibc 2.32, this has 2.28",
		},
		"a row's torch, in no name": {
			machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA, m.DriverCUDA = "2.15.0+cu130", "13.0", "13.0" }),
			files:   []*index.File{pickFile("fa-2.1.2-cp312-cp312-linux_x86_64.whl", built("cu130", "2.11"), needs("2.32", "2.11", "2.15"))},
			near:    "was built for torch 2.11, this has 2.15.0+cu130; the names it needs are in torch 2.11 to 2.15",
		},
		"glibc beyond the tag": {
			machine: on(func(m *pick.Target) { m.Glibc = "2.28" }),
			files:   []*index.File{pickFile("fa-1-cp312-cp312-manylinux_2_28_x86_64.whl", needs("2.32"))}, near: "needs glibc 2.32, this has 2.28",
		},
		"glibc on musl": {
			machine: on(func(m *pick.Target) { m.Glibc, m.Musl = "", "1.2" }),
			files:   []*index.File{pickFile("fa-1-cp312-cp312-linux_x86_64.whl", needs("2.32"))}, near: "needs glibc 2.32, this has musl",
		},
		"names that this torch lacks": {
			machine: workstation, files: []*index.File{pickFile("fa-1+cu128-cp312-cp312-linux_x86_64.whl", needs("", "2.7", "2.8"))},
			near: "uses names of torch that were found in torch 2.7 to 2.8, this has 2.9.0+cu128",
		},
		"names that this torch has": {
			machine: workstation, files: []*index.File{pickFile("fa-1+cu128-cp312-cp312-linux_x86_64.whl", needs("2.17", "2.8", "2.9"))},
			best: "fa-1+cu128-cp312-cp312-linux_x86_64.whl", note: "the torch it was built for is not known; the names it needs are in torch 2.8 to 2.9",
		},
		"Python without a build":  {machine: on(func(m *pick.Target) { m.Python = "3.11.2" }), near: "is for Python 3.12, this is 3.11"},
		"free-threaded":           {machine: on(func(m *pick.Target) { m.Python, m.FreeThreaded = "3.13", true }), near: "this is 3.13 free-threaded"},
		"old glibc":               {machine: on(func(m *pick.Target) { m.Glibc = "2.17" }), near: "needs glibc 2.28, this has 2.17"},
		"musl":                    {machine: on(func(m *pick.Target) { m.Glibc, m.Musl = "", "1.2" }), near: "needs glibc 2.28, this has musl"},
		"another processor":       {machine: on(func(m *pick.Target) { m.Arch = "aarch64" }), near: "is for x86_64, this is aarch64"},
		"macOS":                   {machine: on(func(m *pick.Target) { m.OS, m.Arch, m.Glibc = "macos", "arm64", "" }), near: "this is macOS"},
		"old driver":              {machine: on(func(m *pick.Target) { m.Torch, m.TorchCUDA, m.DriverCUDA = "2.9.0+cu130", "13.0", "12.8" }), near: "needs a driver for CUDA 13, this one (570.86.10) runs CUDA up to 12.8"},
		"GPU without code":        {machine: on(func(m *pick.Target) { m.GPUs = []pick.GPU{{Name: "V100", Arch: "7.0"}} }), near: "has no code for V100 (7.0); it has 80, 90, 120+PTX"},
		"GPU of the same major":   {machine: on(func(m *pick.Target) { m.GPUs = []pick.GPU{{Arch: "8.6"}} }), best: "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"GPU by PTX":              {machine: on(func(m *pick.Target) { m.GPUs = []pick.GPU{{Arch: "13.0"}} }), best: "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", note: "has only PTX for 13.0"},
		"GPU by PTX, old driver":  {machine: on(func(m *pick.Target) { m.GPUs = []pick.GPU{{Arch: "13.0"}}; m.DriverCUDA = "12.7" }), near: "which a driver for CUDA 12.7 cannot compile", specifier: "==2.8.3+cu128.torch2.9"},
		"an older version":        {machine: workstation, specifier: "<2.8.3", best: "fa-2.8.2+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"an exact label":          {machine: workstation, specifier: "==2.8.3+cu126.torch2.9", best: "fa-2.8.3+cu126.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"a version that is not":   {machine: workstation, specifier: ">=3", near: "is version 2.9.0rc1+cu128.torch2.9, not >=3"},
		"pre-releases":            {machine: workstation, pre: true, best: "fa-2.9.0rc1+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"pre-release by version":  {machine: workstation, specifier: ">=2.9.0rc1", best: "fa-2.9.0rc1+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"a toolkit asked for":     {machine: on(func(m *pick.Target) { m.Toolkit = "cu126" }), best: "fa-2.8.3+cu126.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"only source":             {machine: workstation, files: []*index.File{pickFile("fa-1.0.tar.gz")}, near: "has to be compiled"},
		"nothing is known":        {machine: pick.Target{}, best: "fa-2.8.3+rocm6.4.torch2.9-cp313-cp313-win_amd64.whl"},
		"yanked":                  {machine: workstation, files: []*index.File{pickFile("fa-1.0-py3-none-any.whl", func(f *index.File) { f.Yanked, f.YankedReason = true, "broken" })}, near: "was yanked: broken"},
		"yanked, but pinned":      {machine: workstation, specifier: "==1.0", files: []*index.File{pickFile("fa-1.0-py3-none-any.whl", func(f *index.File) { f.Yanked = true })}, best: "fa-1.0-py3-none-any.whl"},
		"Requires-Python":         {machine: workstation, files: []*index.File{pickFile("fa-1.0-py3-none-any.whl", func(f *index.File) { f.RequiresPython = ">=3.13" })}, near: "needs Python >=3.13, this is 3.12.4"},
		"another ABI":             {machine: workstation, files: []*index.File{pickFile("fa-1.0+cu12torch2.9cxx11abifalse-cp312-cp312-linux_x86_64.whl")}, near: "_GLIBCXX_USE_CXX11_ABI 0, the installed torch with 1"},
		"the same ABI, major":     {machine: workstation, files: []*index.File{pickFile("fa-1.0+cu12torch2.9cxx11abitrue-cp312-cp312-linux_x86_64.whl")}, best: "fa-1.0+cu12torch2.9cxx11abitrue-cp312-cp312-linux_x86_64.whl"},
		"abi3":                    {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp39-abi3-manylinux_2_28_x86_64.whl")}, best: "fa-1.0-cp39-abi3-manylinux_2_28_x86_64.whl"},
		"coordinates of the file": {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", func(f *index.File) { f.Coordinates = index.Coordinates{Toolkit: "cu128", Torch: []string{"2.8"}} })}, near: "was built for torch 2.8"},
		"several torch versions": {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", func(f *index.File) {
			f.Coordinates = index.Coordinates{Toolkit: "cu128", Torch: []string{"2.8", "2.9"}}
		})}, best: "fa-1.0-cp312-cp312-linux_x86_64.whl"},
		"exact architecture":      {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", archs("90a"), func(f *index.File) { f.Coordinates.Toolkit = "cu128" })}, best: "fa-1.0-cp312-cp312-linux_x86_64.whl"},
		"exact architecture, not": {machine: on(func(m *pick.Target) { m.GPUs = []pick.GPU{{Arch: "12.0"}} }), files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", archs("90a"), func(f *index.File) { f.Coordinates.Toolkit = "cu128" })}, near: "has no code for 12.0"},
	}
	for name, test := range tests {
		files := test.files
		if files == nil {
			files = flashFiles()
		}
		set, err := wheel.ParseSpecifierSet(test.specifier)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pick.Rank(files, test.machine, pick.Options{Specifier: set, Prereleases: test.pre})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		best, near, notes := "", "", ""
		if b := got.Best(); b != nil {
			best, notes = b.Filename, strings.Join(b.Notes, "; ")
		}
		if len(got.Near) > 0 {
			near = got.Near[0].Misses[0].Text
		}
		if best != test.best {
			t.Errorf("%s: %s, want %s; nearest: %s", name, best, test.best, near)
		}
		if !strings.Contains(near, test.near) {
			t.Errorf("%s: the nearest miss %q, want %q", name, near, test.near)
		}
		if !strings.Contains(notes, test.note) {
			t.Errorf("%s: notes %q, want %q", name, notes, test.note)
		}
	}
}

func TestPickErrors(t *testing.T) {
	for _, m := range []pick.Target{
		{Python: "x"}, {Python: "3"}, {Torch: "new"}, {OS: "beos"}, {OS: "linux", Glibc: "two"}, {DriverCUDA: "x"},
	} {
		if _, err := pick.Rank(flashFiles(), m, pick.Options{}); err == nil {
			t.Errorf("%+v is accepted", m)
		}
	}
}

// TestPickProperties: every file is judged once, in whatever order the files come; what fits has
// no reason against it and what does not has one; a machine of which less is known never
// excludes more.
func TestPickProperties(t *testing.T) {
	files := flashFiles()
	rapid.Check(t, func(t *rapid.T) {
		m := on(func(m *pick.Target) {
			m.Torch = rapid.SampledFrom([]string{"", "2.8.0+cu126", "2.9.0+cu128", "2.9.0+cpu", "2.10.1+cu130"}).Draw(t, "torch")
			m.TorchCUDA = ""
			m.Python = rapid.SampledFrom([]string{"3.9", "3.10", "3.12", "3.13.1"}).Draw(t, "python")
			m.Glibc = rapid.SampledFrom([]string{"2.17", "2.28", "2.41"}).Draw(t, "glibc")
			m.DriverCUDA = rapid.SampledFrom([]string{"", "11.8", "12.4", "13.0"}).Draw(t, "driver")
			m.GPUs = []pick.GPU{{Arch: rapid.SampledFrom([]string{"7.5", "8.0", "9.0", "12.0"}).Draw(t, "gpu")}}
		})
		shuffled := rapid.Permutation(files).Draw(t, "files")
		a, err := pick.Rank(files, m, pick.Options{Prereleases: true})
		if err != nil {
			t.Fatal(err)
		}
		b, err := pick.Rank(shuffled, m, pick.Options{Prereleases: true})
		if err != nil {
			t.Fatal(err)
		}
		names := func(list []pick.Choice) (out []string) {
			for _, c := range list {
				out = append(out, c.Filename)
			}
			return out
		}
		if diff := cmp.Diff([][]string{names(a.Fits), names(a.Near)}, [][]string{names(b.Fits), names(b.Near)}); diff != "" {
			t.Fatalf("another order gives another answer:\n%s", diff)
		}
		if len(a.Fits)+len(a.Near) != len(files) {
			t.Fatalf("%d files judged, want %d", len(a.Fits)+len(a.Near), len(files))
		}
		for _, c := range a.Near {
			if len(c.Misses) == 0 || c.Misses[0].Text == "" {
				t.Fatalf("%s does not fit without a reason", c.Filename)
			}
		}
		less := m
		less.GPUs, less.DriverCUDA, less.Glibc = nil, "", ""
		c, err := pick.Rank(files, less, pick.Options{Prereleases: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Fits) < len(a.Fits) {
			t.Fatalf("%d files fit, with less known only %d", len(a.Fits), len(c.Fits))
		}
	})
}

func FuzzRemotePage(f *testing.F) {
	f.Add("text/html", `<a href="fa-1.0-py3-none-any.whl#sha256=00" data-yanked>fa-1.0-py3-none-any.whl</a>`)
	f.Add("text/html", `<a href=x data-x='y" >fa-1.0-py3-none-any.whl<a/ =></a><!-- `)
	f.Add(index.TypeJSON, `{"files":[{"filename":"fa-1.0-py3-none-any.whl","url":"x","hashes":{"sha256":"00"},"yanked":"r","_kiln":{"toolkit":"cu128","torch":["2.9"],"arch":["90a"]}}]}`)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, contentType, body string) {
		client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			if strings.HasSuffix(r.URL.Path, "/fa/") {
				w.Header()["Content-Type"] = []string{contentType}
				_, _ = w.WriteString(body)
			} else {
				w.WriteHeader(http.StatusNotFound)
			}
			res := w.Result()
			res.Request = r
			return res, nil
		})}
		remote, err := index.OpenRemote(t.Context(), client, "http://host/simple/")
		if err != nil {
			t.Fatal(err)
		}
		files, err := remote.Files(t.Context(), "fa")
		if err != nil {
			return
		}
		if _, err := pick.Rank(files, workstation, pick.Options{}); err != nil {
			t.Error(err)
		}
	})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestPickGPU: which code runs on which GPU is compat's to know. Tegra parts (8.7, 11.0) run no
// code of desktop GPUs, and 10.1 is the name that 11.0 had before CUDA 13.
func TestPickGPU(t *testing.T) {
	for _, test := range []struct {
		archs, gpu string
		want       string // "fits", "note" or "gpu"
	}{
		{"8.0", "8.7", "gpu"},
		{"8.0 8.6", "8.8", "gpu"},
		{"8.7", "8.7", "fits"},
		{"7.0", "7.2", "gpu"},
		{"8.0+PTX", "8.7", "note"},
		{"10.1", "11.0", "fits"},
		{"11.0", "10.1", "fits"},
		{"10.0", "11.0", "gpu"},
		{"8.0", "8.6", "fits"},
		{"8.6", "8.0", "gpu"},
		{"9.0a+PTX", "10.0", "gpu"},
		{"10.0f", "10.3", "fits"},
		{"10.0f-virtual", "12.0", "gpu"},
		{"9.0-virtual", "12.0", "note"},
		{"sm_90 compute_90", "12.0", "note"},
		{"90+ptx", "9.0", "fits"},
		{"nonsense", "9.0", "gpu"},
	} {
		machine := on(func(m *pick.Target) { m.GPUs = []pick.GPU{{Arch: test.gpu}} })
		f := pickFile("fa-1+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", archs(strings.Fields(test.archs)...))
		got, err := pick.Rank([]*index.File{f}, machine, pick.Options{})
		if err != nil {
			t.Fatal(err)
		}
		result := "fits"
		if best := got.Best(); best == nil {
			result = got.Near[0].Misses[0].Kind
		} else if len(best.Notes) > 0 {
			result = "note"
		}
		if result != test.want {
			t.Errorf("code for %s on %s: %s, want %s", test.archs, test.gpu, result, test.want)
		}
	}
}
