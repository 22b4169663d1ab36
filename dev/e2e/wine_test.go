//go:build linux

package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// windowsReport is what the tests look at of kiln doctor --json.
type windowsReport struct {
	Machine struct {
		OS   string
		MSVC []struct{ CL, Toolset, Source, VCVarsAll string }
		CUDA []struct{ Home, Version string }
	}
	Problems []struct{ ID, Severity, Message, Fix string }
}

// TestE2EWine runs the Windows binary under Wine, against installations of Visual Studio and CUDA
// that are only as real as a search for them can tell: folders, a registry key, programs that print
// one answer.
func TestE2EWine(t *testing.T) {
	kilntest.NeedE2E(t, "wine")
	dir := t.TempDir()
	for name, pkg := range map[string]string{"kiln.exe": "../../cmd/kiln", "answer.exe": "./testdata/wine/answer.go", "machine.test.exe": ""} {
		args := []string{"build", "-o", filepath.Join(dir, name), pkg}
		if pkg == "" {
			args = []string{"test", "-c", "-o", filepath.Join(dir, name), "../../machine"}
		}
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=windows", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	source, err := filepath.Abs("../../machine")
	if err != nil {
		t.Fatal(err)
	}
	v := launch(t, filepath.Join(dir, "kiln.exe"), "trixie-runtime", "--volume", dir+":/exe:ro", "--volume", source+":/machine:ro", "--env", "WINEDEBUG=-all", "--env", "WINEPREFIX=/home/kiln/wine")
	v.must("apt-get -q update; apt-get -q -y --no-install-recommends install wine wine64; wineboot --init; wineserver --wait")

	doctor := func(args string) windowsReport {
		t.Helper()
		out, err := v.shell("wine /exe/kiln.exe doctor --json " + args)
		var r windowsReport
		if jerr := json.Unmarshal([]byte(out), &r); jerr != nil {
			t.Fatalf("kiln doctor: %v, %v\n%s", err, jerr, out)
		}
		return r
	}
	ids := func(r windowsReport) []string {
		list := []string{}
		for _, p := range r.Problems {
			if p.ID == "no-msvc" || p.ID == "msvc-too-new" || p.ID == "no-nvcc" && p.Severity != "note" {
				list = append(list, p.ID)
			}
		}
		return list
	}
	sources := func(r windowsReport) []string {
		list := []string{}
		for _, m := range r.Machine.MSVC {
			list = append(list, m.Source+" "+m.Toolset)
		}
		return list
	}
	// studio makes the folders of a Visual Studio.
	studio := func(home string, toolsets ...string) {
		for _, set := range toolsets {
			bin := "'" + drive + home + "/VC/Tools/MSVC/" + set + "/bin/Hostx64/x64'"
			v.must("mkdir -p " + bin + "; cp /exe/answer.exe " + bin + "/cl.exe")
		}
		build := "'" + drive + home + "/VC/Auxiliary/Build'"
		v.must("mkdir -p " + build + "; printf '@echo off\\r\\nset INCLUDE=C:\\\\inc\\r\\nset LIB=C:\\\\lib\\r\\n' >" + build + "/vcvarsall.bat")
	}
	check := func(what string, r windowsReport, wantSources, wantProblems []string) {
		t.Helper()
		if diff := cmp.Diff(wantSources, sources(r)); diff != "" {
			t.Errorf("%s: found (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(wantProblems, ids(r)); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", what, diff)
		}
	}

	r := doctor("")
	if r.Machine.OS != "windows" {
		t.Errorf("the system is %q", r.Machine.OS)
	}
	check("nothing installed", r, []string{}, []string{"no-msvc"})

	// The registry knows Visual Studio 2015, in the view for 32 bits.
	v.must(`d='` + drive + `Program Files (x86)/Microsoft Visual Studio 14.0/VC'; mkdir -p "$d/bin/amd64"; cp /exe/answer.exe "$d/bin/amd64/cl.exe"
wine reg add 'HKLM\Software\Microsoft\VisualStudio\SxS\VC7' /v 14.0 /t REG_SZ /d 'C:\Program Files (x86)\Microsoft Visual Studio 14.0\VC\' /f /reg:32`)
	check("2015", doctor(""), []string{"registry 14.0"}, []string{})

	// Folders go before the registry, the newer year before the older one, and 14.29 is above 14.9.
	studio("Program Files (x86)/Microsoft Visual Studio/2019/Community", "14.9.1", "14.29.30133")
	check("2019", doctor(""), []string{"folders 14.29.30133", "registry 14.0"}, []string{})
	studio("Program Files/Microsoft Visual Studio/2022/BuildTools", "14.40.33807")
	r = doctor("")
	check("2022", r, []string{"folders 14.40.33807", "folders 14.29.30133", "registry 14.0"}, []string{})
	if want := `C:\Program Files\Microsoft Visual Studio\2022\BuildTools\VC\Auxiliary\Build\vcvarsall.bat`; len(r.Machine.MSVC) > 0 && r.Machine.MSVC[0].VCVarsAll != want {
		t.Errorf("vcvarsall is %q, want %q", r.Machine.MSVC[0].VCVarsAll, want)
	}

	// vswhere goes before the folders.
	v.must(`d='` + drive + `Program Files (x86)/Microsoft Visual Studio/Installer'; mkdir -p "$d"; cp /exe/answer.exe "$d/vswhere.exe"
printf 'C:\\Program Files (x86)\\Microsoft Visual Studio\\2019\\Community\r\n' >"$d/vswhere.txt"`)
	check("vswhere", doctor(""), []string{"vswhere 14.29.30133", "folders 14.40.33807", "registry 14.0"}, []string{})
	v.must(`rm '` + drive + `Program Files (x86)/Microsoft Visual Studio/Installer/vswhere.exe'`)

	// The toolset of Visual Studio 17.10 is too new for CUDA 12.3. The newest CUDA is taken, not
	// the first by name.
	for _, cuda := range []string{"9.2", "12.3"} {
		v.must(`d='` + drive + `Program Files/NVIDIA GPU Computing Toolkit/CUDA/v` + cuda + `'; mkdir -p "$d/bin" "$d/nvvm/bin" "$d/include" "$d/lib/x64"
for f in nvcc ptxas cudafe++ fatbinary; do cp /exe/answer.exe "$d/bin/$f.exe"; done; cp /exe/answer.exe "$d/nvvm/bin/cicc.exe"; touch "$d/include/cuda_runtime.h" "$d/lib/x64/cudart.lib"
echo 'Cuda compilation tools, release ` + cuda + `, V` + cuda + `.107' >"$d/bin/version.txt"; printf 'sm_80\nsm_90\n' >"$d/bin/list-gpu-code.txt"`)
	}
	r = doctor("")
	check("CUDA 12.3", r, []string{"folders 14.40.33807", "folders 14.29.30133", "registry 14.0"}, []string{"msvc-too-new"})
	if len(r.Machine.CUDA) != 2 || r.Machine.CUDA[0].Version != "12.3" {
		t.Errorf("CUDA %+v", r.Machine.CUDA)
	}

	// The package's own tests, as a Windows program.
	out, err := v.shell("mkdir -p /tmp/machine && cp -r /machine/. /tmp/machine && cd /tmp/machine && wine /exe/machine.test.exe -test.short 2>&1")
	if err != nil {
		t.Errorf("tests of package machine under Wine: %v\n%s", err, out[max(0, len(out)-4000):])
	}
}
