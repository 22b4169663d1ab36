// Package examples_test builds the example package with real tools: CPython,
// setuptools, the host compiler, nvcc and NVRTC. No GPU is needed.
//
// KILN_PYTHON names an interpreter that has dev/python/requirements.txt
// installed. Without it the tests are skipped, unless KILN_REQUIRE (a comma list)
// names what is missing: python, or nvcc for everything from NVIDIA.
package examples_test

import (
	"archive/zip"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

const sourceDateEpoch = "1700000000"

// python returns the interpreter that has the pinned packages.
func python(t *testing.T) string {
	t.Helper()
	py := os.Getenv("KILN_PYTHON")
	if py == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set: it names a Python with dev/python/requirements.txt installed")
	}
	if !filepath.IsAbs(py) {
		t.Fatalf("KILN_PYTHON=%s is not an absolute path, and tests run in other directories", py)
	}
	if _, err := os.Stat(py); err != nil {
		kilntest.Lacking(t, "python", "KILN_PYTHON: %v", err)
	}
	return py
}

// cudaHome returns the root of the toolkit among the interpreter's packages.
func cudaHome(t *testing.T, py string) string {
	t.Helper()
	const find = `import importlib.util as u
s = u.find_spec("nvidia")
print(*(p + "/cu13" for p in (s.submodule_search_locations if s else [])), sep="\n")`
	for home := range strings.Lines(mustRun(t, t.TempDir(), nil, py, "-c", find)) {
		home = strings.TrimSpace(home)
		if _, err := os.Stat(filepath.Join(home, "bin", "nvcc")); err == nil {
			return home
		}
	}
	kilntest.Lacking(t, "nvcc", "the packages of KILN_PYTHON have no nvcc")
	return ""
}

// run executes a command in dir and returns what it printed. Of the environment it
// gets nothing but what a compiler needs, and env.
func run(t *testing.T, dir string, env []string, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append([]string{
		"PATH=/usr/bin:/bin",
		"HOME=" + dir,
		"TMPDIR=" + t.TempDir(),
		"LC_ALL=C.UTF-8",
		"PYTHONDONTWRITEBYTECODE=1",
		"SOURCE_DATE_EPOCH=" + sourceDateEpoch,
	}, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

func mustRun(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	stdout, stderr, err := run(t, dir, env, name, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, stdout, stderr)
	}
	return stdout
}

// copyExample returns a fresh copy of the package: setuptools writes into its sources.
func copyExample(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hello-cuda")
	for _, part := range []string{"csrc", "src", "tests"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join("hello-cuda", part))); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"MANIFEST.in", "README.md", "pyproject.toml", "setup.py"} {
		data, err := os.ReadFile(filepath.Join("hello-cuda", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// buildWheel builds a fresh copy of the package the way a pipeline does and returns
// the one wheel that comes out. The tag may be empty.
func buildWheel(t *testing.T, py, tag string, env ...string) string {
	t.Helper()
	out := t.TempDir()
	args := []string{"-m", "build", "--wheel", "--no-isolation", "--outdir", out}
	if tag != "" {
		args = append(args, "-C--build-option=egg_info", "-C--build-option=--tag-build="+tag)
	}
	mustRun(t, copyExample(t), env, py, args...)
	wheels, err := filepath.Glob(filepath.Join(out, "*"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("want one wheel, got %q (%v)", wheels, err)
	}
	return wheels[0]
}

// checkName compares the wheel's name with the tags that the interpreter itself gives.
func checkName(t *testing.T, py, wheel, version string) {
	t.Helper()
	const tags = `import sysconfig, packaging.tags as t
best = next(t.sys_tags())
print(best.interpreter, best.abi, sysconfig.get_platform().translate({45: "_", 46: "_"}), sep="-")`
	want := "hello_cuda-" + version + "-" + strings.TrimSpace(mustRun(t, t.TempDir(), nil, py, "-c", tags)) + ".whl"
	if got := filepath.Base(wheel); got != want {
		t.Errorf("wheel is %s, want %s", got, want)
	}
}

// install puts the wheel into a new environment, offline, and returns its interpreter.
func install(t *testing.T, py, wheel string) string {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, dir, nil, py, "-m", "venv", "--without-pip", dir)
	venv := filepath.Join(dir, "bin", "python")
	mustRun(t, dir, nil, py, "-m", "pip", "--python", venv, "install", "--no-index", "--no-cache-dir", "--quiet", wheel)
	return venv
}

// unittest runs the package's own tests in an environment that has it installed.
func unittest(t *testing.T, venv string) {
	t.Helper()
	stdout, stderr, err := run(t, copyExample(t), nil, venv, "-m", "unittest", "-v", "tests.test_hello")
	if err != nil {
		t.Errorf("unittest: %v", err)
	}
	t.Logf("%s%s", stdout, stderr)
}

type backend struct {
	Toolkit string   `json:"toolkit"`
	Archs   []string `json:"archs"`
	GPU     bool     `json:"gpu"`
	Device  *string  `json:"device"`
	Reason  *string  `json:"reason"`
}

func askBackend(t *testing.T, venv string) backend {
	t.Helper()
	var b backend
	text := mustRun(t, t.TempDir(), nil, venv, "-c", "import json, hello_cuda; print(json.dumps(hello_cuda.backend()))")
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return b
}

// extension unpacks the wheel's shared object and returns its path.
func extension(t *testing.T, wheel string) string {
	t.Helper()
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	for _, file := range archive.File {
		if !strings.HasPrefix(file.Name, "hello_cuda/_native.") {
			continue
		}
		in, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "native.so")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Fatalf("%s has no extension", wheel)
	return ""
}

func openELF(t *testing.T, path string) *elf.File {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// checkSelfContained verifies that the extension loads wherever the C library does:
// no CUDA library, no run path into the build machine, one exported name.
func checkSelfContained(t *testing.T, so string) {
	t.Helper()
	f := openELF(t, so)
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range needed {
		if strings.Contains(lib, "cuda") || strings.Contains(lib, "nv") {
			t.Errorf("the extension needs %s", lib)
		}
	}
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		if paths, _ := f.DynString(tag); len(paths) > 0 {
			t.Errorf("%v is %q", tag, paths)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported = append(exported, s.Name)
		}
	}
	if !slices.Equal(exported, []string{"PyInit__native"}) {
		t.Errorf("exported: %q", exported)
	}
}

// checkSameBytes verifies that a second build, elsewhere, gives the same file.
func checkSameBytes(t *testing.T, first, second string) {
	t.Helper()
	a, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("two builds of %s differ", filepath.Base(first))
	}
}

func TestExamplePlainWheel(t *testing.T) {
	t.Parallel()
	py := python(t)
	wheel := buildWheel(t, py, "", "BUILD_TARGET=cpu")
	checkName(t, py, wheel, "0.1.0")
	checkSelfContained(t, extension(t, wheel))
	// Unset is cpu where there is no toolkit.
	checkSameBytes(t, wheel, buildWheel(t, py, ""))

	venv := install(t, py, wheel)
	unittest(t, venv)
	b := askBackend(t, venv)
	if b.Toolkit != "none" || len(b.Archs) != 0 || b.GPU || b.Device != nil || b.Reason == nil {
		t.Errorf("backend() = %+v", b)
	}
	if out := mustRun(t, t.TempDir(), nil, venv, "-m", "hello_cuda"); !strings.Contains(out, "= [12, 24, 36]") {
		t.Errorf("python -m hello_cuda printed\n%s", out)
	}
}

func TestExampleBuildTag(t *testing.T) {
	t.Parallel()
	py := python(t)
	wheel := buildWheel(t, py, "+cu118-Torch2.9.0", "BUILD_TARGET=cpu")
	checkName(t, py, wheel, "0.1.0+cu118.torch2.9.0")
}

// newLauncher returns a command that can stand before a compiler, as a compile cache
// does, and a function that returns the commands it was given.
func newLauncher(t *testing.T) (path string, commands func() string) {
	t.Helper()
	dir := t.TempDir()
	path, log := filepath.Join(dir, "launcher"), filepath.Join(dir, "log")
	script := "#!/bin/sh\necho \"$@\" >>'" + log + "'\nexec \"$@\"\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, func() string {
		t.Helper()
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

func TestExampleCompilerLauncher(t *testing.T) {
	t.Parallel()
	py := python(t)
	launcher, commands := newLauncher(t)
	buildWheel(t, py, "", "BUILD_TARGET=cpu", "CC="+launcher+" gcc", "CXX="+launcher+" g++")
	for _, want := range []string{"-c csrc/module.cpp", "-c csrc/saxpy_cpu.cpp"} {
		if got := commands(); !strings.Contains(got, want) {
			t.Errorf("no %s among the commands of the launcher:\n%s", want, got)
		}
	}
}

func TestExampleNVCCLauncher(t *testing.T) {
	t.Parallel()
	py := python(t)
	nvcc := filepath.Join(cudaHome(t, py), "bin", "nvcc")
	launcher, commands := newLauncher(t)
	buildWheel(t, py, "", "PYTORCH_NVCC="+launcher+" "+nvcc, "CXX="+launcher+" g++", "TORCH_CUDA_ARCH_LIST=9.0")
	// Of CXX, nvcc gets the compiler and not the launcher.
	for _, want := range []string{nvcc + " ", "-ccbin=g++ -c csrc/saxpy.cu", "-c csrc/module.cpp"} {
		if got := commands(); !strings.Contains(got, want) {
			t.Errorf("no %s among the commands of the launcher:\n%s", want, got)
		}
	}
}

func TestExampleBuildMisuse(t *testing.T) {
	t.Parallel()
	py := python(t)
	empty := t.TempDir()
	// A toolkit whose compiler is there, though nothing here gets as far as running it,
	// and whose runtime is not.
	noRuntime := t.TempDir()
	if err := os.Mkdir(filepath.Join(noRuntime, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(noRuntime, "bin", "nvcc"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		env  []string
		want []string
	}{
		{
			"unknown target",
			[]string{"BUILD_TARGET=metal"},
			[]string{"BUILD_TARGET=metal is not known", "set it to cuda, rocm or cpu"},
		},
		{
			"no hipcc",
			[]string{"BUILD_TARGET=rocm", "ROCM_HOME=" + empty},
			[]string{"no hipcc at " + empty + "/bin/hipcc", "set ROCM_HOME"},
		},
		{
			"no toolkit",
			[]string{"BUILD_TARGET=cuda"},
			[]string{"BUILD_TARGET=cuda, but there is no nvcc", "set CUDA_HOME", "BUILD_TARGET=cpu"},
		},
		{
			"toolkit without compiler",
			[]string{"CUDA_HOME=" + empty},
			[]string{"no nvcc at " + empty + "/bin/nvcc", "runtime-only", "BUILD_TARGET=cpu"},
		},
		{
			"nvcc command that does not exist",
			[]string{"PYTORCH_NVCC=ccache /nowhere/bin/nvcc"},
			[]string{"no nvcc at /nowhere/bin/nvcc"},
		},
		{
			"toolkit without runtime",
			[]string{"CUDA_PATH=" + noRuntime},
			[]string{"no libcudart_static.a under " + noRuntime, "cudart development package"},
		},
		{
			"architecture",
			[]string{"CUDA_HOME=" + noRuntime, "TORCH_CUDA_ARCH_LIST=8.0;Ampere"},
			[]string{"TORCH_CUDA_ARCH_LIST: 'Ampere' is not an architecture", "'8.0 9.0+PTX'"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := copyExample(t)
			stdout, stderr, err := run(t, dir, tt.env, py, "-m", "build", "--wheel", "--no-isolation")
			if err == nil {
				t.Fatal("the build succeeded")
			}
			output := stdout + stderr
			for _, want := range tt.want {
				if !strings.Contains(output, want) {
					t.Errorf("%q is missing in\n%s", want, output)
				}
			}
			if strings.Contains(output, "Traceback") {
				t.Errorf("a mistake of the caller shows a traceback:\n%s", output)
			}
		})
	}
}

func TestExampleCUDAWheel(t *testing.T) {
	t.Parallel()
	py := python(t)
	home := cudaHome(t, py)
	env := []string{"BUILD_TARGET=cuda", "CUDA_HOME=" + home, "TORCH_CUDA_ARCH_LIST=7.5 9.0+PTX", "MAX_JOBS=2"}
	wheel := buildWheel(t, py, "+cu130", env...)
	checkName(t, py, wheel, "0.1.0+cu130")
	so := extension(t, wheel)
	checkSelfContained(t, so)

	// The same list in other words, nvcc through PATH: the same wheel.
	checkSameBytes(t, wheel, buildWheel(t, py, "+cu130",
		"PATH="+filepath.Join(home, "bin")+":/usr/bin:/bin", "TORCH_CUDA_ARCH_LIST=9.0;7.5;9.0+PTX;"))

	// One cubin for each architecture and PTX for the last, and nothing else.
	listed := mustRun(t, t.TempDir(), nil, filepath.Join(home, "bin", "cuobjdump"), "--list-elf", "--list-ptx", so)
	var images []string
	for line := range strings.Lines(listed) {
		if _, image, ok := strings.Cut(strings.TrimSpace(line), ".sm_"); ok {
			images = append(images, image)
		}
	}
	slices.Sort(images)
	if want := []string{"75.cubin", "90.cubin", "90.ptx"}; !slices.Equal(images, want) {
		t.Errorf("images are %q, want %q; cuobjdump:\n%s", images, want, listed)
	}

	venv := install(t, py, wheel)
	unittest(t, venv)
	b := askBackend(t, venv)
	if b.Toolkit != "cuda 13.0" || !slices.Equal(b.Archs, []string{"7.5", "9.0+PTX"}) {
		t.Errorf("backend() = %+v", b)
	}
	if _, err := os.Stat("/proc/driver/nvidia"); os.IsNotExist(err) {
		if b.GPU || b.Device != nil || b.Reason == nil || *b.Reason != "no NVIDIA driver on this machine" {
			t.Errorf("without a driver, backend() = %+v", b)
		}
	}
}

func TestExampleCUDACompileError(t *testing.T) {
	t.Parallel()
	py := python(t)
	home := cudaHome(t, py)
	// CUDA 13 has dropped Pascal. nvcc says so, and its word must reach the user.
	stdout, stderr, err := run(t, copyExample(t), []string{"CUDA_HOME=" + home, "TORCH_CUDA_ARCH_LIST=6.0"},
		py, "-m", "build", "--wheel", "--no-isolation")
	if err == nil || !strings.Contains(stdout+stderr, "Unsupported gpu architecture 'compute_60'") {
		t.Errorf("build: %v\n%s%s", err, stdout, stderr)
	}
}

func TestExampleNVRTC(t *testing.T) {
	t.Parallel()
	py := python(t)
	cudaHome(t, py)
	dir, out := copyExample(t), t.TempDir()
	script := filepath.Join(dir, "tests", "nvrtc_cubin.py")
	t.Log("\n" + mustRun(t, dir, nil, py, script, out, "7.5", "8.0", "8.9", "9.0", "10.0", "12.0"))
	for _, sm := range []byte{75, 80, 89, 90, 100, 120} {
		path := filepath.Join(out, fmt.Sprintf("sm_%d.cubin", sm))
		f := openELF(t, path)
		if f.Machine != emCUDA {
			t.Errorf("%s: machine is %v", path, f.Machine)
		}
		if got := cubinSM(t, path); got != sm {
			t.Errorf("%s: made for sm_%d", path, got)
		}
		if f.Section(".text.hello_saxpy") == nil {
			t.Errorf("%s: no code for hello_saxpy", path)
		}
	}

	_, stderr, err := run(t, dir, nil, py, script, out, "6.0")
	if err == nil || !strings.Contains(stderr, "sm_60: nvrtcCompileProgram: NVRTC_ERROR_INVALID_OPTION") {
		t.Errorf("for sm_60: %v\n%s", err, stderr)
	}
}

const emCUDA elf.Machine = 190

// cubinSM reads the architecture from e_flags, which debug/elf does not keep: the
// second byte since ELF ABI version 8 (CUDA 13).
func cubinSM(t *testing.T, path string) byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var header elf.Header64
	if err := binary.Read(bytes.NewReader(data), binary.LittleEndian, &header); err != nil {
		t.Fatal(err)
	}
	return byte(header.Flags >> 8)
}
