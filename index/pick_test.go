package index_test

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

var workstation = index.Machine{
	OS: "linux", Arch: "x86_64", Glibc: "2.39", Python: "3.12.4", Torch: "2.9.0+cu128", TorchCUDA: "12.8", TorchABI: "TRUE",
	Driver: "570.86.10", DriverCUDA: "12.8", GPUs: []index.MachineGPU{{Name: "H100", Arch: "9.0"}},
}

// on is a machine like the workstation, with differences.
func on(change func(*index.Machine)) index.Machine {
	m := workstation
	change(&m)
	return m
}

func TestPick(t *testing.T) {
	tests := map[string]struct {
		machine   index.Machine
		specifier string
		pre       bool
		files     []*index.File
		best      string // "" if none fits
		near      string // reason of the nearest miss
		note      string
	}{
		"the workstation": {machine: workstation, best: "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"windows": {
			machine: on(func(m *index.Machine) { m.OS, m.Glibc, m.Arch = "windows", "", "amd64" }),
			best:    "fa-2.8.3+cu128.torch2.9-cp312-cp312-win_amd64.whl",
		},
		"older torch": {
			machine: on(func(m *index.Machine) { m.Torch = "2.8.1+cu126"; m.TorchCUDA = "12.6" }),
			best:    "fa-2.8.3+cu126.torch2.8-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"CUDA of torch from its label": {
			machine: on(func(m *index.Machine) { m.Torch, m.TorchCUDA = "2.9.1+cu130", ""; m.DriverCUDA = "13.0" }),
			best:    "fa-2.8.3+cu130.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"another CUDA minor": {
			machine: on(func(m *index.Machine) { m.Torch, m.TorchCUDA = "2.9.0+cu129", "12.9" }),
			best:    "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", note: "usually works within one major version",
		},
		"another CUDA major": {
			machine: on(func(m *index.Machine) { m.Torch, m.TorchCUDA, m.DriverCUDA = "2.9.0+cu118", "11.8", "11.8" }),
			near:    "was built for CUDA 12.8, the installed torch has 11.8",
		},
		"torch without a build": {
			machine: on(func(m *index.Machine) { m.Torch, m.TorchCUDA = "2.11.0+cu130", "13.0"; m.DriverCUDA = "13.0" }),
			near:    "was built for torch 2.10, this has 2.11.0+cu130",
		},
		"no torch": {
			machine: on(func(m *index.Machine) { m.Torch, m.TorchCUDA = "", "" }),
			best:    "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", note: "torch 2.9 has to be installed",
		},
		"no torch, newer driver": {
			machine: on(func(m *index.Machine) { m.Torch, m.TorchCUDA, m.DriverCUDA = "", "", "13.1" }),
			best:    "fa-2.8.3+cu130.torch2.10-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"torch for the CPU": {
			machine: on(func(m *index.Machine) {
				m.Torch, m.TorchCUDA, m.NoDriver, m.GPUs, m.DriverCUDA = "2.9.0+cpu", "", true, nil, ""
			}),
			best: "fa-2.8.3+cpu.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"nothing but a CPU": {
			machine: index.Machine{OS: "linux", Glibc: "2.36", Python: "3.12", NoDriver: true},
			best:    "fa-2.8.3+cpu.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"ROCm": {
			machine: on(func(m *index.Machine) {
				m.Torch, m.TorchCUDA, m.TorchROCm, m.NoDriver, m.DriverCUDA, m.GPUs = "2.9.0+rocm6.4", "", "6.4", true, "", nil
			}),
			best: "fa-2.8.3+rocm6.4.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		},
		"Python without a build":  {machine: on(func(m *index.Machine) { m.Python = "3.11.2" }), near: "is for Python 3.12, this is 3.11"},
		"free-threaded":           {machine: on(func(m *index.Machine) { m.Python, m.FreeThreaded = "3.13", true }), near: "this is 3.13 free-threaded"},
		"old glibc":               {machine: on(func(m *index.Machine) { m.Glibc = "2.17" }), near: "needs glibc 2.28, this has 2.17"},
		"musl":                    {machine: on(func(m *index.Machine) { m.Glibc, m.Musl = "", "1.2" }), near: "needs glibc 2.28, this has musl"},
		"another processor":       {machine: on(func(m *index.Machine) { m.Arch = "aarch64" }), near: "is for x86_64, this is aarch64"},
		"macOS":                   {machine: on(func(m *index.Machine) { m.OS, m.Arch, m.Glibc = "macos", "arm64", "" }), near: "this is macOS"},
		"old driver":              {machine: on(func(m *index.Machine) { m.Torch, m.TorchCUDA, m.DriverCUDA = "2.9.0+cu130", "13.0", "12.8" }), near: "needs a driver for CUDA 13, this one (570.86.10) runs CUDA up to 12.8"},
		"GPU without code":        {machine: on(func(m *index.Machine) { m.GPUs = []index.MachineGPU{{Name: "V100", Arch: "7.0"}} }), near: "has no code for V100 (7.0); it has 80, 90, 120+PTX"},
		"GPU of the same major":   {machine: on(func(m *index.Machine) { m.GPUs = []index.MachineGPU{{Arch: "8.6"}} }), best: "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"GPU by PTX":              {machine: on(func(m *index.Machine) { m.GPUs = []index.MachineGPU{{Arch: "13.0"}} }), best: "fa-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", note: "has only PTX for 13.0"},
		"GPU by PTX, old driver":  {machine: on(func(m *index.Machine) { m.GPUs = []index.MachineGPU{{Arch: "13.0"}}; m.DriverCUDA = "12.7" }), near: "which a driver for CUDA 12.7 cannot compile", specifier: "==2.8.3+cu128.torch2.9"},
		"an older version":        {machine: workstation, specifier: "<2.8.3", best: "fa-2.8.2+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"an exact label":          {machine: workstation, specifier: "==2.8.3+cu126.torch2.9", best: "fa-2.8.3+cu126.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"a version that is not":   {machine: workstation, specifier: ">=3", near: "is version 2.9.0rc1+cu128.torch2.9, not >=3"},
		"pre-releases":            {machine: workstation, pre: true, best: "fa-2.9.0rc1+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"pre-release by version":  {machine: workstation, specifier: ">=2.9.0rc1", best: "fa-2.9.0rc1+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"a toolkit asked for":     {machine: on(func(m *index.Machine) { m.Toolkit = "cu126" }), best: "fa-2.8.3+cu126.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl"},
		"only source":             {machine: workstation, files: []*index.File{pickFile("fa-1.0.tar.gz")}, near: "has to be compiled"},
		"nothing is known":        {machine: index.Machine{}, best: "fa-2.8.3+rocm6.4.torch2.9-cp313-cp313-win_amd64.whl"},
		"yanked":                  {machine: workstation, files: []*index.File{pickFile("fa-1.0-py3-none-any.whl", func(f *index.File) { f.Yanked, f.YankedReason = true, "broken" })}, near: "was yanked: broken"},
		"yanked, but pinned":      {machine: workstation, specifier: "==1.0", files: []*index.File{pickFile("fa-1.0-py3-none-any.whl", func(f *index.File) { f.Yanked = true })}, best: "fa-1.0-py3-none-any.whl"},
		"Requires-Python":         {machine: workstation, files: []*index.File{pickFile("fa-1.0-py3-none-any.whl", func(f *index.File) { f.RequiresPython = ">=3.13" })}, near: "needs Python >=3.13, this is 3.12.4"},
		"another ABI":             {machine: workstation, files: []*index.File{pickFile("fa-1.0+cu12torch2.9cxx11abifalse-cp312-cp312-linux_x86_64.whl")}, near: "_GLIBCXX_USE_CXX11_ABI FALSE, the installed torch with TRUE"},
		"the same ABI, major":     {machine: workstation, files: []*index.File{pickFile("fa-1.0+cu12torch2.9cxx11abitrue-cp312-cp312-linux_x86_64.whl")}, best: "fa-1.0+cu12torch2.9cxx11abitrue-cp312-cp312-linux_x86_64.whl"},
		"abi3":                    {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp39-abi3-manylinux_2_28_x86_64.whl")}, best: "fa-1.0-cp39-abi3-manylinux_2_28_x86_64.whl"},
		"coordinates of the file": {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", func(f *index.File) { f.Coordinates = index.Coordinates{Toolkit: "cu128", Torch: []string{"2.8"}} })}, near: "was built for torch 2.8"},
		"several torch versions": {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", func(f *index.File) {
			f.Coordinates = index.Coordinates{Toolkit: "cu128", Torch: []string{"2.8", "2.9"}}
		})}, best: "fa-1.0-cp312-cp312-linux_x86_64.whl"},
		"exact architecture":      {machine: workstation, files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", archs("90a"), func(f *index.File) { f.Coordinates.Toolkit = "cu128" })}, best: "fa-1.0-cp312-cp312-linux_x86_64.whl"},
		"exact architecture, not": {machine: on(func(m *index.Machine) { m.GPUs = []index.MachineGPU{{Arch: "12.0"}} }), files: []*index.File{pickFile("fa-1.0-cp312-cp312-linux_x86_64.whl", archs("90a"), func(f *index.File) { f.Coordinates.Toolkit = "cu128" })}, near: "has no code for 12.0"},
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
		got, err := index.Pick(files, test.machine, index.PickOptions{Specifier: set, Prereleases: test.pre})
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
	for _, m := range []index.Machine{
		{Python: "x"}, {Python: "3"}, {Torch: "new"}, {OS: "beos"}, {OS: "linux", Glibc: "two"}, {DriverCUDA: "x"},
	} {
		if _, err := index.Pick(flashFiles(), m, index.PickOptions{}); err == nil {
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
		m := on(func(m *index.Machine) {
			m.Torch = rapid.SampledFrom([]string{"", "2.8.0+cu126", "2.9.0+cu128", "2.9.0+cpu", "2.10.1+cu130"}).Draw(t, "torch")
			m.TorchCUDA = ""
			m.Python = rapid.SampledFrom([]string{"3.9", "3.10", "3.12", "3.13.1"}).Draw(t, "python")
			m.Glibc = rapid.SampledFrom([]string{"2.17", "2.28", "2.41"}).Draw(t, "glibc")
			m.DriverCUDA = rapid.SampledFrom([]string{"", "11.8", "12.4", "13.0"}).Draw(t, "driver")
			m.GPUs = []index.MachineGPU{{Arch: rapid.SampledFrom([]string{"7.5", "8.0", "9.0", "12.0"}).Draw(t, "gpu")}}
		})
		shuffled := rapid.Permutation(files).Draw(t, "files")
		a, err := index.Pick(files, m, index.PickOptions{Prereleases: true})
		if err != nil {
			t.Fatal(err)
		}
		b, err := index.Pick(shuffled, m, index.PickOptions{Prereleases: true})
		if err != nil {
			t.Fatal(err)
		}
		names := func(list []index.Choice) (out []string) {
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
		c, err := index.Pick(files, less, index.PickOptions{Prereleases: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Fits) < len(a.Fits) {
			t.Fatalf("%d files fit, with less known only %d", len(a.Fits), len(c.Fits))
		}
	})
}

func TestInstallLines(t *testing.T) {
	f := pickFile("flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-linux_x86_64.whl")
	g := pickFile("flash_attn-2.8.3+cu128.torch2.9-cp313-cp313-linux_x86_64.whl")
	hashes := []string{f.SHA256.String(), g.SHA256.String()}
	if hashes[0] > hashes[1] {
		hashes[0], hashes[1] = hashes[1], hashes[0]
	}
	const simple = "https://HOST/cu128/torch2.9/simple/"
	want := index.Install{
		Pip: "pip install flash-attn==2.8.3+cu128.torch2.9 --only-binary flash-attn --extra-index-url " + simple,
		UV:  "uv pip install flash-attn==2.8.3+cu128.torch2.9 --index " + simple,
		UVProject: `[project]
dependencies = ["flash-attn==2.8.3+cu128.torch2.9"]

[[tool.uv.index]]
name = "kiln-cu128-torch29"
url = "` + simple + `"
explicit = true

[tool.uv.sources]
flash-attn = { index = "kiln-cu128-torch29" }
`,
		Poetry: "poetry source add --priority=explicit kiln-cu128-torch29 " + simple + "\npoetry add --source kiln-cu128-torch29 flash-attn==2.8.3+cu128.torch2.9",
		Requirements: "--extra-index-url " + simple + "\n--only-binary flash-attn\nflash-attn==2.8.3+cu128.torch2.9 \\\n    --hash=sha256:" +
			hashes[0] + " \\\n    --hash=sha256:" + hashes[1] + "\n",
	}
	if diff := cmp.Diff(want, index.InstallLines("flash-attn", simple, f, g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRemote: the files of an index over HTTP are those of the index, from its root, from a
// repository, in JSON and in HTML.
func TestRemote(t *testing.T) {
	f := newFixture(t, index.ServerOptions{})
	f.publish(wheel128, wheel130)
	for _, path := range []string{"", "/", "/simple/", "/simple", "/all/simple/"} {
		remote, err := index.OpenRemote(t.Context(), nil, f.http.URL+path)
		if err != nil {
			t.Fatal(err)
		}
		files, err := remote.Files(t.Context(), "Flash_Attn")
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != 2 || files[0].Filename != wheel128 || files[0].SHA256.IsZero() || files[0].RequiresPython != ">=3.8" {
			t.Fatalf("%s: %+v", path, files)
		}
		if got := f.do("GET", strings.TrimPrefix(files[0].URL(""), f.http.URL)); got.StatusCode != 200 {
			t.Errorf("%s: the file is not at %s: %d", path, files[0].URL(""), got.StatusCode)
		}
		want := f.http.URL + "/cu128/torch2.9/simple/"
		if got := remote.SimpleURL(files[0].Built(), "2.9"); got != want {
			t.Errorf("%s: install from %s, want %s", path, got, want)
		}
	}
	remote, err := index.OpenRemote(t.Context(), nil, f.http.URL)
	if err != nil {
		t.Fatal(err)
	}
	// What file names cannot say travels as well.
	unlabeled := index.NewFile{
		Path: writeWheels(t, "xformers-1.0-py3-none-any.whl")[0].Path, Arch: []string{"80", "90+ptx"},
		Coordinates: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9", "2.10"}},
	}
	if _, problems, err := f.store.Publish(t.Context(), []index.NewFile{unlabeled}, index.PublishOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if files, err := remote.Files(t.Context(), "xformers"); err != nil || len(files) != 1 ||
		!cmp.Equal(files[0].Built(), unlabeled.Coordinates) || !cmp.Equal(files[0].Arch, unlabeled.Arch) {
		t.Errorf("coordinates and architectures do not survive: %v %+v", err, files)
	}
	if _, err := remote.Files(t.Context(), "nothing"); err == nil || !strings.Contains(err.Error(), "no such project") {
		t.Errorf("a project that is not there: %v", err)
	}
	if _, err := remote.Files(t.Context(), "../x"); err == nil {
		t.Error("a name that is none is asked for")
	}
	for _, bad := range []string{"", "ftp://x/", "/simple/", "http:///x"} {
		if _, err := index.OpenRemote(t.Context(), nil, bad); err == nil {
			t.Errorf("index %q is accepted", bad)
		}
	}
}

// TestRemoteHTML: an index of another program, with pages as people write them.
func TestRemoteHTML(t *testing.T) {
	page := `<!DOCTYPE html><html><body><!-- <a href="no.whl">no.whl</a> -->
<A class=x HREF='../../packages/fa-1.0-py3-none-any.whl#sha256=` + strings.Repeat("ab", 32) + `' data-requires-python="&gt;=3.8">fa-1.0-py3-none-any.whl</A>
<a href="https://example.org/fa-1.1-py3-none-any.whl" data-yanked="bad &amp; old">fa-1.1-py3-none-any.whl</a><a>no link</a><a href=x>readme</a>
<abbr href="fa-9-py3-none-any.whl">fa-9-py3-none-any.whl</abbr>`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/root/pypi/fa/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, page)
	}))
	defer server.Close()
	remote, err := index.OpenRemote(t.Context(), server.Client(), server.URL+"/root/pypi")
	if err != nil {
		t.Fatal(err)
	}
	files, err := remote.Files(t.Context(), "fa")
	if err != nil {
		t.Fatal(err)
	}
	sum, _ := index.ParseDigest(strings.Repeat("ab", 32))
	want := []*index.File{
		{Filename: "fa-1.0-py3-none-any.whl", Base: server.URL + "/root/packages/", SHA256: sum, RequiresPython: ">=3.8"},
		{Filename: "fa-1.1-py3-none-any.whl", Base: "https://example.org/", Yanked: true, YankedReason: "bad & old"},
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := remote.SimpleURL(index.Coordinates{Toolkit: "cu128"}, "2.9"); got != server.URL+"/root/pypi/" {
		t.Errorf("install from %s", got)
	}
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
		if _, err := index.Pick(files, workstation, index.PickOptions{}); err != nil {
			t.Error(err)
		}
	})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
