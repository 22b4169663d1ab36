//go:build linux

package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// drive is the folder of drive C in the containers of these tests.
const drive = "/home/kiln/wine/drive_c/"

// windows is a container that is a Windows machine: Wine, real CPython for Windows, and stand-ins of
// Visual Studio with MinGW's compiler behind them. See testdata/windows/setup.sh.
type windows struct {
	*vessel
	exe string // the folder that is /exe there
}

// buildFor builds a Go program, or the tests of a package, for a system.
func buildFor(t *testing.T, system, output string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{args[0], "-trimpath", "-o", output}, args[1:]...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// startWindows makes such a machine, with kiln.exe and a project in C:\proj.
func startWindows(t *testing.T, args ...string) windows {
	t.Helper()
	exe := t.TempDir()
	buildFor(t, "windows", filepath.Join(exe, "kiln.exe"), "build", "../../cmd/kiln")
	buildFor(t, "windows", filepath.Join(exe, "standin.exe"), "build", "./testdata/windows/standin")
	buildFor(t, "windows", filepath.Join(exe, "python32.exe"), "build", "./testdata/windows/python32")
	buildFor(t, "linux", filepath.Join(exe, "bridge"), "build", "./testdata/windows/bridge")
	python, err := filepath.EvalSymlinks(repository(t, ".cache/images/windows"))
	if err != nil {
		t.Fatalf("no Python for Windows: dev/e2e/windows-python.sh makes it: %v", err)
	}
	w := windows{exe: exe, vessel: launch(t, filepath.Join(exe, "kiln.exe"), "trixie-wine", append(args,
		"--volume", exe+":/exe:ro", "--volume", python+":/windows:ro", "--volume", repository(t, "dev/e2e/testdata/windows")+":/testdata:ro",
		"--volume", repository(t, "examples/hello-cuda")+":/hello-cuda:ro", "--volume", repository(t, ".")+":/source:ro",
		"--volume", t.TempDir()+":/readonly:ro", "--mount", "type=tmpfs,tmpfs-size=8m,destination=/small",
		"--env", "WINEDEBUG=-all", "--env", "WINEPREFIX=/home/kiln/wine", "--env", "XDG_RUNTIME_DIR=/tmp",
		"--env", `PIP_CERT=Z:\etc\ssl\certs\ca-certificates.crt`)...)}
	w.must("/testdata/setup.sh")
	w.project("proj")
	return w
}

// project makes a fresh copy of the project in a folder of drive C.
func (w windows) project(name string) {
	w.t.Helper()
	w.must("d='" + drive + name + `'; mkdir -p "$d"; cp -r /testdata/project/. "$d"; cp -r /hello-cuda "$d/hello-cuda"; rm "$d/hello-cuda/packages.yml"`)
}

// kiln runs kiln.exe in a folder of drive C and returns its standard output.
func (w windows) kiln(dir, args string) (string, error) {
	return w.shell("cd '" + drive + dir + "' && wine /exe/kiln.exe " + args)
}

// mustKiln is kiln for commands that succeed.
func (w windows) mustKiln(dir, args string) string {
	w.t.Helper()
	out, err := w.kiln(dir, args)
	if err != nil {
		w.t.Fatalf("kiln.exe %s: %v\n%s", args, err, out)
	}
	return out
}

// windowsRow is what the tests look at of kiln build --json.
type windowsRow struct {
	ID, Status, Reason, Test, Diagnosis string
	Files                               []struct{ Name, SHA256 string }
}

// build builds rows and returns how they ended. A kiln that refuses to begin is one row of that state.
func (w windows) build(dir, args string) []windowsRow {
	w.t.Helper()
	out, err := w.kiln(dir, "build --json "+args)
	var result struct{ Rows []windowsRow }
	if out == "" && err != nil {
		return []windowsRow{{Status: "refused", Reason: err.Error()}}
	}
	if bad := json.Unmarshal([]byte(out), &result); bad != nil {
		w.t.Fatalf("kiln.exe build %s: %v, %v\n%s", args, err, bad, out)
	}
	return result.Rows
}

// TestE2EWindows takes two packages through all stages with kiln.exe, publishes and serves them,
// and installs them from there with pip in a fresh environment of Windows' CPython.
func TestE2EWindows(t *testing.T) {
	kilntest.NeedE2E(t, "windows")
	t.Parallel()
	w := startWindows(t)
	if out := w.mustKiln("proj", "plan"); strings.Count(out, "win_amd64.whl") != 2 {
		t.Errorf("plan:\n%s", out)
	}
	for _, row := range w.build("proj", "--jobs 1") {
		if row.Status != "done" || row.Test != "passed" || len(row.Files) != 1 {
			t.Fatalf("%+v", row)
		}
	}
	if out := w.must("iconv -f UTF-16LE '" + drive + "standins/vcvars.log'"); strings.Count(out, "14.44.35207") != 1 {
		t.Errorf("vcvarsall.bat ran for %q, want once for both rows", out)
	}
	for _, row := range w.build("proj", "") {
		if row.Status != "reused" {
			t.Errorf("a second build: %+v", row)
		}
	}
	if out := w.mustKiln("proj", "audit dist/*.whl"); strings.Count(out, "no problem found") != 2 {
		t.Errorf("audit:\n%s", out)
	}
	if out := w.mustKiln("proj", "status"); strings.Count(out, "done") != 2 {
		t.Errorf("status:\n%s", out)
	}
	if out := w.mustKiln("proj", "logs 'wincount-*'"); !strings.Contains(out, "link.exe") {
		t.Errorf("the log does not show the linker:\n%s", out)
	}
	w.mustKiln("proj", "test 'wincount-*'")
	w.mustKiln("proj", "publish --release 1")
	w.mustKiln("proj", "index check --dir index")
	server := strings.TrimSpace(w.must("cd '" + drive + `proj' && { wine /exe/kiln.exe serve --dir index --addr 127.0.0.1:0 >/tmp/serve.log 2>&1 & }
for i in $(seq 600); do if grep -oE 'http://[a-z0-9.]+:[0-9]+/' /tmp/serve.log | head -n 1 | grep . ; then break; fi; sleep 0.1; done`))
	w.must(`cd ` + drive + ` && wine Python313/python.exe -m venv fresh &&
wine fresh/Scripts/python.exe -m pip install --disable-pip-version-check --index-url ` + server + `simple/ hello-cuda wincount`)
	out := w.must(`cd ` + drive + ` && wine fresh/Scripts/python.exe -c "import hello_cuda, wincount; print(hello_cuda.backend()['toolkit'], wincount.count('a b c'), wincount.total([4, 5]))"`)
	if got := strings.Fields(out); strings.Join(got, " ") != "none 3 9" {
		t.Errorf("the installed packages print %q", out)
	}
	if out := w.mustKiln("proj", "verify dist/*.whl"); strings.Count(out, ".whl") < 2 {
		t.Errorf("verify:\n%s", out)
	}
	if out := w.mustKiln("proj", "pick wincount --index "+server+" --python 3.13"); !strings.Contains(out, "wincount") {
		t.Errorf("pick:\n%s", out)
	}
	// A model has the same bytes as on Linux.
	w.must("cp -r /source/examples/tiny-exl2 " + drive + "tiny")
	w.mustKiln("tiny", "model compile --job work --model model --out out")
	w.mustKiln("tiny", "model verify out")
	w.mustKiln("tiny", "quant dequantize out/model-00001-of-00001.safetensors --out half.safetensors")
	tiny, dir := repository(t, "examples/tiny-exl2"), t.TempDir()
	for _, args := range [][]string{
		{"model", "compile", "--job", "work", "--model", "model", "--out", filepath.Join(dir, "out")},
		{"quant", "dequantize", filepath.Join(dir, "out", "model-00001-of-00001.safetensors"), "--out", filepath.Join(dir, "half.safetensors")},
	} {
		cmd := exec.CommandContext(t.Context(), buildKiln(t), append([]string{"-C", tiny}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	for _, name := range []string{"out/model-00001-of-00001.safetensors", "half.safetensors"} {
		sum, _, err := fsx.SHA256(filepath.Join(dir, name))
		if got := w.must("sha256sum " + drive + "tiny/" + name); err != nil || !strings.HasPrefix(got, sum) {
			t.Errorf("%s: %v, %s on Windows, %s here", name, err, got, sum)
		}
	}
}

// TestE2EWindowsJIT compiles a module of C++ and CUDA with stand-ins of cl, link and nvcc, in a
// folder with a blank in its name, and imports it; a change of a header is noticed.
func TestE2EWindowsJIT(t *testing.T) {
	kilntest.NeedE2E(t, "windows")
	t.Parallel()
	w := startWindows(t)
	w.must(`d='` + drive + `Program Files/NVIDIA GPU Computing Toolkit/CUDA/v12.4'; mkdir -p "$d/bin" "$d/nvvm/bin" "$d/include" "$d/lib/x64"
for f in nvcc ptxas cudafe++ fatbinary; do cp /exe/standin.exe "$d/bin/$f.exe"; done; cp /exe/standin.exe "$d/nvvm/bin/cicc.exe"; touch "$d/include/cuda_runtime.h" "$d/lib/x64/cudart.lib"
cp -r /testdata/jit '` + drive + `jit p'`)
	jit := func(args string) string {
		t.Helper()
		out, err := w.shell("cd '" + drive + "jit p' && export WINEPATH='C:\\Python313' && wine /exe/kiln.exe jit ext.yml " + args)
		if err != nil {
			t.Fatalf("kiln.exe jit %s: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(out)
	}
	first := jit("")
	out := w.must(`wine ` + drive + `Python313/python.exe -c "import os, sys; sys.path.insert(0, os.path.dirname(sys.argv[1])); import winjit; print(winjit.answer())" '` + first + `'`)
	if strings.TrimSpace(out) != "42" {
		t.Errorf("the module prints %q", out)
	}
	if again := jit(""); again != first {
		t.Errorf("the same inputs: %s, then %s", first, again)
	}
	w.must("echo '#define MORE 1' >>'" + drive + "jit p/answer.h'")
	if out := jit("--explain"); !strings.Contains(out, "answer.h") {
		t.Errorf("after a change of a header: %s", out)
	}
	if again := jit(""); again == first {
		t.Errorf("a changed header gives the same module %s", again)
	}
}
