//go:build linux

package e2e_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestE2EWindowsPython makes the Python package for Windows with mingw-w64's compiler, audits it,
// installs it with pip into the real CPython for Windows under Wine, and there computes the golden
// matrices on the CPU: they have the same bits as on Linux, where they are compared with the Go
// package. A driver that only writes down its calls stands for nvcuda.dll.
func TestE2EWindowsPython(t *testing.T) {
	kilntest.NeedE2E(t, "windows-python")
	python := os.Getenv("KILN_PYTHON")
	windows, err := filepath.EvalSymlinks(repository(t, ".cache/images/windows/Python312"))
	if err != nil {
		t.Fatalf("no Python for Windows: dev/e2e/windows-python.sh 3.12 makes it: %v", err)
	}
	dir := t.TempDir()
	command := func(env []string, argv ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.Output()
		if err != nil {
			log := []byte{}
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				log = exit.Stderr
			}
			t.Fatalf("%s: %v\n%s%s", strings.Join(argv, " "), err, out, log)
		}
		return string(out)
	}
	backend, tests := repository(t, "python/backend.py"), repository(t, "python/tests")

	wheel := strings.TrimSpace(command(nil, python, backend, dir, "win_amd64"))
	if !strings.HasPrefix(wheel, "kiln_kernels-") || !strings.HasSuffix(wheel, "-py3-none-win_amd64.whl") {
		t.Errorf("the wheel is called %s", wheel)
	}
	kiln := buildKiln(t)
	if out := command(nil, kiln, "audit", filepath.Join(dir, wheel)); !strings.Contains(out, "no problem found") {
		t.Errorf("audit:\n%s", out)
	}
	// Later releases of numpy call functions of complex numbers that Wine 10 lacks.
	command(nil, python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", dir,
		"--implementation", "cp", "--python-version", "3.12", "--platform", "win_amd64", "numpy==1.26.4")
	command(nil, "x86_64-w64-mingw32-gcc", "-shared", "-O1", "-o", filepath.Join(dir, "nvcuda.dll"), repository(t, "model/quant/cuda/testdata/fakedriver.c"))

	v := launch(t, kiln, "trixie-wine", "--volume", dir+":/made:ro", "--volume", windows+":/windows:ro", "--volume", tests+":/tests:ro",
		"--volume", repository(t, "model/quant/testdata")+":/goldens:ro", "--env", "WINEDEBUG=-all", "--env", "WINEPREFIX=/home/kiln/wine", "--env", "XDG_RUNTIME_DIR=/tmp",
		"--env", `KILN_GOLDENS=Z:\goldens`, "--env", "PYTHONDONTWRITEBYTECODE=1", "--env", "PYTHONPATH=")
	const home = "/home/kiln/wine/drive_c/Python"
	v.must("wineboot --init; wineserver --wait; cp -r /windows " + home)
	const interpreter = `cd /tests; wine 'C:\Python\python.exe' -W error `
	v.must(`wine 'C:\Python\python.exe' -m pip install --quiet --no-index --find-links 'Z:\made' --no-warn-script-location --disable-pip-version-check numpy ` +
		`'Z:\made\` + wheel + `'`)

	var got, want map[string]map[string]string
	if err := json.Unmarshal([]byte(v.must(interpreter+"goldens.py cpu")), &got); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "libkiln.so")
	command(nil, python, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import backend; backend.build_library(sys.argv[2])", filepath.Dir(backend), library)
	env := []string{"KILN_LIBRARY=" + library, "PYTHONPATH=" + filepath.Dir(backend) + ":" + tests, "PYTHONDONTWRITEBYTECODE=1"}
	if err := json.Unmarshal([]byte(command(env, python, filepath.Join(tests, "goldens.py"), "cpu")), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 21 {
		t.Errorf("%d results of 21 (-Linux +Windows):\n%s", len(got), diff)
	}

	// The package's own tests, then without a driver, and with one that only writes down its calls.
	if out, err := v.shell(interpreter + "-m unittest test_quant 2>&1"); err != nil {
		t.Errorf("the package's tests: %v\n%s", err, out[max(0, len(out)-4000):])
	}
	const devices = `-c "import kiln
try: print(kiln.devices())
except kiln.NotSupported as e: print('no driver:', e)"`
	if out := v.must(interpreter + devices); !strings.Contains(out, "no driver:") || !strings.Contains(out, "nvcuda.dll") {
		t.Errorf("without a driver: %s", out)
	}
	v.must("cp /made/nvcuda.dll " + home + "/")
	if out, err := v.shell("export KILN_TEST_FAST=0; " + interpreter + "fake_gpu.py 2>&1"); err != nil {
		t.Errorf("with a stand-in for the driver: %v\n%s", err, out[max(0, len(out)-4000):])
	}
}
