package matrix_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/matrix"
)

// parse reads a document that has no errors.
func parse(t testing.TB, text string) *matrix.File {
	t.Helper()
	file, list := matrix.Parse("packages.yml", []byte(text))
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return file
}

// plan makes a plan that has no errors.
func plan(t testing.TB, text string, opts matrix.Options) *matrix.Plan {
	t.Helper()
	p := parse(t, text).Plan(opts)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	return p
}

func ids(rows []matrix.Row) []string {
	out := make([]string, len(rows))
	for i := range rows {
		out[i] = rows[i].ID
	}
	return out
}

func rules(list diag.List) []string {
	var out []string
	for _, d := range list {
		out = append(out, d.Severity.String()+" "+d.Rule)
	}
	return out
}

// TestExLlamaV2 compares the example with the 88 rows of the real workflow.
func TestExLlamaV2(t *testing.T) {
	text, err := os.ReadFile("../examples/exllamav2/packages.yml")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 30 {
		t.Errorf("the example has %d lines, want at most 30", n)
	}
	facts, err := os.ReadFile("testdata/exllamav2-0.3.2.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(facts)) {
		if !strings.HasPrefix(line, "#") {
			want = append(want, strings.TrimRight(line, "\n"))
		}
	}
	p := plan(t, string(text), matrix.Options{})
	var got []string
	for _, r := range p.Rows {
		arch := r.Arch
		if r.ROCm != "" && arch != "" {
			arch = "" // the workflow leaves it to torch's builder, whose list kiln writes down
		}
		got = append(got, strings.Join([]string{r.Kind, r.OS, r.Python, r.CUDA, r.ROCm, r.Torch, arch, strings.Join(r.Files(), " ")}, "\t"))
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) != 88 {
		t.Fatalf("the facts have %d rows", len(want))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPublishedForms checks that the document of the pipeline's description, with its
// arch given per group, comes out as the same 88 rows.
func TestPublishedForms(t *testing.T) {
	const form = `packages:
  exllamav2:
    versions: ["0.3.2"]
    arch_lists:
      hopper:    "6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0+PTX"
      blackwell: "6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX"
    matrix:
      - os: [ubuntu-22.04, windows-2022]
        cuda: ["11.8.0", "12.1.0"]
        torch: ["2.3.1", "2.4.0", "2.5.0"]
        python: ["3.10", "3.11", "3.12", "3.13"]
        arch: hopper
        exclude:
          - {python: "3.13", torch: ["2.3.1", "2.4.0"]}
          - {python: "3.13", torch: "2.5.0", os: windows-2022}
      - {os: [ubuntu-22.04, windows-2022], cuda: ["11.8.0", "12.4.0"], torch: ["2.6.0"], python: ["3.10", "3.11", "3.12", "3.13"], arch: hopper}
      - {os: [ubuntu-22.04, windows-2022], cuda: ["12.8.1"], torch: ["2.7.0", "2.8.0", "2.9.0"], python: ["3.10", "3.11", "3.12", "3.13"], arch: blackwell}
      - {os: [ubuntu-22.04], rocm: ["5.6"], torch: ["2.2.2"], python: ["3.10", "3.11"]}
      - {os: [ubuntu-22.04], rocm: ["6.0"], torch: ["2.3.1"], python: ["3.10", "3.11", "3.12"]}
      - {os: [ubuntu-22.04], rocm: ["6.1"], torch: ["2.4.0"], python: ["3.10", "3.11", "3.12"]}
    include:
      - {kind: sdist, os: ubuntu-22.04, torch: "2.3.1", python: "3.11"}
      - {os: ubuntu-22.04, cuda: "12.1.0", torch: "2.2.2", python: "3.10", arch: hopper}
`
	text, err := os.ReadFile("../examples/exllamav2/packages.yml")
	if err != nil {
		t.Fatal(err)
	}
	want, got := ids(plan(t, string(text), matrix.Options{}).Rows), ids(plan(t, form, matrix.Options{}).Rows)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBaseForm(t *testing.T) {
	const doc = `packages:
  flash-attn:
    versions: ["2.8.3"]
    build_args: ""
    extra_deps: []
    description: ""
`
	for _, tt := range []struct {
		name string
		opts matrix.Options
		want []string
	}{
		{"defaults", matrix.Options{}, []string{
			"flash-attn-2.8.3-cu129-cp312-linux_x86_64", "flash-attn-2.8.3-cu129-cp313-linux_x86_64",
			"flash-attn-2.8.3-cu130-cp312-linux_x86_64", "flash-attn-2.8.3-cu130-cp313-linux_x86_64",
		}},
		{"inputs", matrix.Options{Python: []string{"3.13t"}, CUDA: []string{"12.6.3"}, OS: "windows-2022"}, []string{
			"flash-attn-2.8.3-cu126-cp313t-win_amd64",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := plan(t, doc, tt.opts)
			if diff := cmp.Diff(tt.want, ids(p.Rows)); diff != "" {
				t.Error(diff)
			}
			s, ok := p.Settings(p.Rows[0].ID)
			if !ok || !slices.Equal(s.Test.Imports, []string{"flash_attn"}) || s.Source.Kind != "index" || s.Frontend != "build" {
				t.Errorf("Settings = %+v, %v", s, ok)
			}
		})
	}
}

func TestBuildTags(t *testing.T) {
	for _, tt := range []struct{ name, settings, group, want string }{
		{"default", "", `{cuda: "12.8.1", torch: "2.9.0"}`, "x-1.0+cu128.torch2.9.0-cp312-cp312-linux_x86_64.whl"},
		{"default without torch", "", `{cuda: "12.8.1"}`, "x-1.0+cu128-cp312-cp312-linux_x86_64.whl"},
		{"default without toolkit", "", `{torch: "2.9.0"}`, "x-1.0-cp312-cp312-linux_x86_64.whl"},
		{"rocm", "", `{rocm: "6.4", torch: "2.9.0"}`, "x-1.0+rocm6.4.torch2.9.0-cp312-cp312-linux_x86_64.whl"},
		{"no separator", `local_version: "{toolkit_tag}torch{torch_minor}"`, `{cuda: "12.8.1", torch: "2.9.0"}`, "x-1.0+cu128torch2.9-cp312-cp312-linux_x86_64.whl"},
		{"without dots", `local_version: "pt{torch_nodot}cu{cuda_nodot}"`, `{cuda: "13.0.1", torch: "2.11.0"}`, "x-1.0+pt211cu130-cp312-cp312-linux_x86_64.whl"},
		{"flash-attention", `local_version: "cu{cuda_major}torch{torch_minor}cxx11abi{cxx11abi}"`, `{cuda: "12.8.1", torch: "2.8.0"}`, "x-1.0+cu12torch2.8cxx11abitrue-cp312-cp312-linux_x86_64.whl"},
		{"plus sign", `local_version: "+Own_Tag-007"`, `{cuda: "12.8.1"}`, "x-1.0+own.tag.7-cp312-cp312-linux_x86_64.whl"},
		{"off", `local_version: ""`, `{cuda: "12.8.1", torch: "2.9.0"}`, "x-1.0-cp312-cp312-linux_x86_64.whl"},
		{"of the group", `local_version: ""`, `{cuda: "12.8.1", local_version: "{cuda}"}`, "x-1.0+12.8.1-cp312-cp312-linux_x86_64.whl"},
		{"custom axis", `local_version: "{toolkit_tag}-{blas}"`, `{cuda: "12.8.1", axes: {blas: mkl}}`, "x-1.0+cu128.mkl-cp312-cp312-linux_x86_64.whl"},
		{"limited API", `wheel_tag: cp39-abi3`, `{}`, "x-1.0-cp39-abi3-linux_x86_64.whl"},
		{"platform", "", `{os: our-runner, platform: linux_aarch64}`, "x-1.0-cp312-cp312-linux_aarch64.whl"},
		{"arm runner", "", `{os: ubuntu-24.04-arm}`, "x-1.0-cp312-cp312-linux_aarch64.whl"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			group := strings.Replace(tt.group, "{", `{python: "3.12", `, 1)
			p := plan(t, "packages:\n  x:\n    versions: [\"1.0\"]\n    "+tt.settings+"\n    matrix:\n      - "+group+"\n", matrix.Options{})
			if diff := cmp.Diff([]string{tt.want}, p.Rows[0].Files()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestArchResolution(t *testing.T) {
	const doc = `packages:
  x:
    versions: ["1.0"]
    arch_lists: {old: "7.0 8.0", new: "8.0 9.0+PTX"}
    arch: {"11.8": old, ">=12.8": new, "rocm >=6.4": "gfx90a;gfx942", default: "8.6"}
    matrix:
      - {python: "3.12", cuda: ["11.8.0", "12.6.3", "12.8.1"]}
      - {python: "3.12", rocm: ["6.3", "6.4"]}
      - {python: "3.13", cuda: "12.8.1", arch: "10.0"}
      - {python: "3.13"}
`
	var got []string
	for _, r := range plan(t, doc, matrix.Options{}).Rows {
		got = append(got, strings.TrimSuffix(r.ID, "-linux_x86_64")+" "+r.Arch)
	}
	want := []string{
		"x-1.0-cu118-cp312 7.0 8.0", "x-1.0-cu126-cp312 8.6", "x-1.0-cu128-cp312 8.0 9.0+PTX",
		"x-1.0-rocm6.3-cp312 gfx900;gfx906;gfx908;gfx90a;gfx942;gfx1030;gfx1100;gfx1101;gfx1102;gfx1200;gfx1201", "x-1.0-rocm6.4-cp312 gfx90a;gfx942", "x-1.0-cu128-cp313 10.0", "x-1.0-cpu-cp313 ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSettings(t *testing.T) {
	const doc = `packages:
  Flash_Attn:
    versions: ["1.0"]
    source: {git: "https://git.example/x", ref: "v{version}"}
    build_args: --verbose --no-build-isolation -C'opt=two words' --global-option=--fast
    env:
      A: "{package} {toolkit} {toolkit_version} {python_tag} {arch_numbers} {{literal}}"
      B: "{arch_numbers:,} {arch_numbers: } {cuda_nodot}"
      JOBS: 4
      PER: {cuda: on-cuda, default: elsewhere}
      ONLY_ROCM: {rocm: "1"}
    image: {cuda: "base:{cuda_minor}"}
    build: {frontend: uv, config_settings: {opt: ["{os}", b]}}
    resources: {jobs: 4, memory_per_job: 5 GiB}
    matrix:
      - {cuda: "12.8.1", python: "3.12", arch: "8.0;9.0a", env: {JOBS: 2}, resources: {jobs: 1, wall_time: 2h}}
      - {python: "3.12"}
`
	p := plan(t, doc, matrix.Options{})
	s, _ := p.Settings("flash-attn-1.0-cu128-cp312-linux_x86_64")
	want := map[string]string{"A": "flash-attn cuda 12.8.1 cp312 80;90a {literal}", "B": "80,90a 80 90a 128", "JOBS": "2", "PER": "on-cuda"}
	if diff := cmp.Diff(want, s.Env); diff != "" {
		t.Error(diff)
	}
	if s.Image != "base:12.8" || s.Source.Ref != "v1.0" || !s.Source.Submodules || s.Frontend != "uv" {
		t.Errorf("Settings = %+v", s)
	}
	if diff := cmp.Diff([]string{"--verbose"}, s.BuildArgs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string][]string{"opt": {"ubuntu-22.04", "b", "two words"}, "--global-option": {"--fast"}}, s.ConfigSettings); diff != "" {
		t.Error(diff)
	}
	if s.Resources.Jobs != 1 || s.Resources.MemoryPerJobBytes != 5<<30 || s.Resources.WallTime != matrix.Seconds(2*time.Hour) {
		t.Errorf("Resources = %+v", s.Resources)
	}
	if cpu, _ := p.Settings("flash-attn-1.0-cpu-cp312-linux_x86_64"); cpu.Env["PER"] != "elsewhere" || cpu.Env["JOBS"] != "4" {
		t.Errorf("Env = %v", cpu.Env)
	}
	if _, ok := p.Settings("no-such-row"); ok {
		t.Error("an unknown row has settings")
	}
}

func TestEmptyIsNothingToDo(t *testing.T) {
	if p := plan(t, "packages: {}\n", matrix.Options{}); len(p.Rows) != 0 || len(p.Findings) != 0 {
		t.Errorf("plan = %+v", p)
	}
}

func TestAliasesAndMergeKeys(t *testing.T) {
	const doc = `x-anchors:
  py: &py ["3.12", "3.13"]
  base: &base {os: ubuntu-24.04, python: *py}
packages:
  x:
    versions: ["1.0"]
    matrix:
      - {<<: *base, cuda: "12.8.1"}
      - {<<: *base, os: windows-2022}
`
	want := []string{
		"x-1.0-cu128-cp312-linux_x86_64", "x-1.0-cu128-cp313-linux_x86_64", "x-1.0-cpu-cp312-win_amd64", "x-1.0-cpu-cp313-win_amd64",
	}
	if diff := cmp.Diff(want, ids(plan(t, doc, matrix.Options{}).Rows)); diff != "" {
		t.Error(diff)
	}
}

func TestSkipIncompatible(t *testing.T) {
	const doc = `packages:
  x:
    versions: ["1.0"]
    matrix:
      - {cuda: ["12.1.0", "12.4.1"], torch: "2.6.0", python: "3.12"}
`
	file := parse(t, doc)
	if p := file.Plan(matrix.Options{}); p.Err() == nil {
		t.Error("torch 2.6 with CUDA 12.1 is accepted")
	}
	p := file.Plan(matrix.Options{SkipIncompatible: true})
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	if len(p.Rows) != 1 || len(p.Skipped) != 1 || p.Skipped[0].Rule != "torch-cuda-build" || p.Skipped[0].Pos.Line != 5 {
		t.Errorf("rows %v, skipped %+v", ids(p.Rows), p.Skipped)
	}
}

// TestOwnTorch: which builds PyTorch publishes does not matter for a torch from elsewhere.
func TestOwnTorch(t *testing.T) {
	const doc = `packages:
  x:
    versions: ["1.0"]
    torch_source: SOURCE
    matrix:
      - {cuda: "12.1.0", torch: "2.6.0", python: "3.12"}
`
	for source, ok := range map[string]bool{
		"{system: true}": true, "{path: /srv/torch}": true, "{index: https://mirror.example/whl}": false,
		"{index: https://mirror.example/whl/cu124}\n    build: {cuda_check: bypass}": true,
	} {
		if p := parse(t, strings.Replace(doc, "SOURCE", source, 1)).Plan(matrix.Options{}); (p.Err() == nil) != ok {
			t.Errorf("%s: %v", source, p.Err())
		}
	}
}

func TestReadVersions(t *testing.T) {
	for _, tt := range []struct{ name, file, pattern, want, err string }{
		{"python", "__version__ = \"0.3.2\"\n", "", "0.3.2", ""},
		{"annotated, single quotes", "import x\n__version__: str = '1.0.dev1'\n", "", "1.0.dev1", ""},
		{"toml", "[project]\nname = \"x\"\nversion = \"2.0\"\n", "", "2.0", ""},
		{"own pattern", "#define V 1.4\n", `pattern: '#define V (\S+)'`, "1.4", ""},
		{"normal form", "version = \"1.0-RC1\"\n", "", "1.0rc1", ""},
		{"absent", "nothing\n", "", "", "matches nothing"},
		{"not a version", "version = \"None\"\n", "", "", "None"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.WriteFile("v.py", []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			file := parse(t, "packages:\n  x:\n    source: {path: .}\n    version_from:\n      file: v.py\n      "+tt.pattern+"\n")
			versions, list := file.ReadVersions()
			if err := list.Err(); tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("ReadVersions = %v, want %q", err, tt.err)
				}
				return
			}
			if got := versions["x"]; got != tt.want || len(list) > 0 {
				t.Errorf("ReadVersions = %q, %v, want %q", got, list, tt.want)
			}
			p := file.Plan(matrix.Options{Versions: versions, Python: []string{"3.12"}, CUDA: []string{"12.8.1"}})
			if len(p.Rows) != 1 || p.Rows[0].Version != tt.want {
				t.Errorf("rows %v", ids(p.Rows))
			}
		})
	}
	// Without the version there is nothing to plan with.
	p := parse(t, "packages:\n  x:\n    source: {path: .}\n    version_from: {file: v.py}\n").Plan(matrix.Options{})
	if diff := cmp.Diff([]string{"error no-version"}, rules(p.Findings)); diff != "" {
		t.Error(diff)
	}
}

func TestSelection(t *testing.T) {
	const doc = `packages:
  x:
    versions: ["1.0", "2.0"]
    matrix:
      - {os: [ubuntu-22.04, windows-2022], cuda: ["12.6.3", "12.8.1"], python: ["3.12", "3.13t"], axes: {blas: [mkl, open]}, local_version: "{toolkit_tag}-{blas}"}
      - {rocm: "6.4", python: "3.12"}
    include:
      - {kind: sdist, version: "1.0", python: "3.12"}
`
	file := parse(t, doc)
	all := file.Plan(matrix.Options{})
	if len(all.Rows) != 35 {
		t.Fatalf("%d rows: %v", len(all.Rows), rules(all.Findings))
	}
	for expr, want := range map[string]int{
		`cuda`: 32, `not cuda`: 3, `rocm`: 2, `cuda=12.8`: 16, `cuda==12.8.1`: 16, `cuda=12`: 32, `cuda>12.6`: 16, `cuda>=12.6`: 32,
		`cuda<12.8 and python=3.12`: 8, `python=3.13`: 0, `python=3.13t`: 16, `python>=3.13`: 16, `python!=3.12`: 16,
		`os=windows-*`: 16, `os!=windows-*`: 19, `blas=mkl`: 16, `toolkit=none`: 1, `kind=sdist`: 1, `version=1.0`: 18,
		`version in (1.0, 2.0)`: 35, `cuda in (12.6, 12.8.1) and blas in (mkl)`: 16, `cuda not in (12.6)`: 19,
		`(cuda=12.8 or rocm) and not os=windows-2022 and version=2.0`: 5, `CUDA=12.8 AND BLAS=mkl`: 8,
		`! cuda && version=1.0 || rocm`: 3, `id=x-1.0-*`: 18, `tag=cu128-*`: 16, `package=x`: 35, `arch`: 34, `platform="win_amd64"`: 16,
		`cuda=12.8.*`: 16,
	} {
		sel, err := matrix.ParseSelection(expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			continue
		}
		if p := file.Plan(matrix.Options{Select: sel}); len(p.Rows) != want || len(p.Rows)+p.Unselected != 35 {
			t.Errorf("%s: %d rows, want %d", expr, len(p.Rows), want)
		}
	}
}

func TestHistory(t *testing.T) {
	text, err := os.ReadFile("../examples/exllamav2/packages.yml")
	if err != nil {
		t.Fatal(err)
	}
	history, err := matrix.ReadHistory(strings.NewReader(`{"format": "kiln-history/1",
		"units": {"exllamav2": [
			{"name": "bindings", "count": 16, "axes": ["os", "python", "cuda", "rocm", "torch", "arch"]},
			{"name": "kernels", "count": 28, "axes": ["os", "cuda", "rocm", "torch", "arch"]},
			{"name": "helpers", "count": 3, "axes": ["platform", "cxx11abi"]}]},
		"rows": {
			"exllamav2-0.3.2-cu128-torch2.9.0-cp312-linux_x86_64": {"seconds": 100, "peak_memory_bytes": 8, "disk_bytes": 5, "file_bytes": 10},
			"exllamav2-0.3.2-cu128-torch2.9.0-cp313-linux_x86_64": {"seconds": 300, "peak_memory_bytes": 6, "disk_bytes": 7, "file_bytes": 30}}}`))
	if err != nil {
		t.Fatal(err)
	}
	// 47 units in 87 native rows. Bindings need each row, kernels are shared across
	// Python versions, helpers across all but platform and ABI.
	e := plan(t, string(text), matrix.Options{History: history}).Estimate
	if e.Calls != 4089 || e.UniqueCalls != 2129 {
		t.Errorf("calls %d, unique %d; want 4089 and 2129", e.Calls, e.UniqueCalls)
	}
	// Every wheel row is like the mean of its toolkit, or of the package; the sdist
	// row has nothing to go by.
	if e.Known != 87 || e.Time.Seconds() != 87*200 || e.PeakMemoryBytes != 8 || e.DiskBytes != 7 || e.FileBytes != 87*20 {
		t.Errorf("Estimate = %+v", e)
	}
	if none := plan(t, string(text), matrix.Options{}).Estimate; none.Known != 0 || none.CompileRows != 0 {
		t.Errorf("without history: %+v", none)
	}
	for _, bad := range []string{"", "{}", `{"format": "other/1"}`} {
		if _, err := matrix.ReadHistory(strings.NewReader(bad)); err == nil {
			t.Errorf("history %q is accepted", bad)
		}
	}
}
