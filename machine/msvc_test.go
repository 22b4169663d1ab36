package machine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/machine/machinetest"
)

const (
	studio    = `C:\Program Files\Microsoft Visual Studio\2022\Community`
	vcvarsall = studio + `\VC\Auxiliary\Build\vcvarsall.bat`
)

func toolsetCL(toolset string) string {
	return studio + `\VC\Tools\MSVC\` + toolset + `\bin\Hostx64\x64\cl.exe`
}

// studioMachine is the made-up Windows with toolsets that answer, 14.39.33519 among them.
func studioMachine(toolsets ...string) *machinetest.Fake {
	f := machinetest.Windows()
	for _, set := range append(toolsets, "14.39.33519") {
		f.Files[toolsetCL(set)] = ""
		f.Programs[toolsetCL(set)] = "Microsoft (R) C/C++ Optimizing Compiler Version 19" + strings.TrimPrefix(set, "14") + " for x64\r\n"
		f.Programs[`cmd /u /c "`+vcvarsall+`" x64 -vcvars_ver=`+set+` >nul && set`] = utf16le("Path=" + studio + `\` + set + ";C:\\Windows\\System32\r\nINCLUDE=C:\\inc\r\nLIB=C:\\lib\r\n" +
			"VCToolsVersion=" + set + "\r\nSystemRoot=C:\\Windows\r\nPROMPT=$P$G\r\n")
	}
	return f
}

func TestOpenMSVC(t *testing.T) {
	for _, tt := range []struct {
		name      string
		f         *machinetest.Fake
		req       machine.MSVCRequest
		want      string // the toolset
		id        string // or the diagnosis
		says, fix string
	}{
		{name: "the newest", f: studioMachine("14.44.35207"), want: "14.44.35207"},
		{name: "the newest that CUDA takes", f: studioMachine("14.44.35207"), req: machine.MSVCRequest{CUDA: "12.1.0"}, want: "14.39.33519"},
		{name: "the one of the row", f: studioMachine("14.44.35207"), req: machine.MSVCRequest{Toolset: "14.39", CUDA: "12.8.1"}, want: "14.39.33519"},
		{
			name: "another one", f: studioMachine("14.44.35207"), req: machine.MSVCRequest{Toolset: "14.3"}, id: "msvc-toolset",
			says: "toolset 14.3 is not installed, these are: 14.44.35207 in " + studio + ", 14.39.33519 in " + studio, fix: "setup.exe",
		},
		{
			name: "one that is not installed", f: studioMachine(), req: machine.MSVCRequest{Toolset: "14.38"}, id: "msvc-toolset",
			fix: `"C:\Program Files (x86)\Microsoft Visual Studio\Installer\setup.exe" modify --installPath "` + studio + `" --add Microsoft.VisualStudio.Component.VC.14.38.17.8.x86.x64 --quiet`,
		},
		{
			name: "too new for CUDA", f: studioMachine("14.44.35207"), req: machine.MSVCRequest{Toolset: "14.44", CUDA: "12.1.0"}, id: "msvc-too-new",
			says: "CUDA 12.1.0 takes toolsets up to 14.39 (_MSC_VER below 1940)", fix: "Microsoft.VisualStudio.Component.VC.14.39.17.9.x86.x64",
		},
		{name: "none", f: &machinetest.Fake{OS: "windows", Env: []string{`ProgramW6432=C:\Program Files`}}, id: "no-msvc", says: `C:\Program Files\Microsoft Visual Studio\2022\BuildTools`, fix: "winget install"},
		{
			name: "for 32 bits", f: func() *machinetest.Fake {
				f := studioMachine()
				f.Programs[toolsetCL("14.39.33519")] = "Microsoft (R) C/C++ Optimizing Compiler Version 19.39.33519 for x86\r\n"
				return f
			}(), id: "no-msvc", says: "makes programs for x86",
		},
		{
			name: "another compiler", f: func() *machinetest.Fake {
				f := studioMachine()
				f.Programs[toolsetCL("14.39.33519")] = "Compilateur d'optimisation Microsoft (R) C/C++ version 19.44.35207 pour x64\r\n"
				return f
			}(), id: "msvc-toolset", says: "says that it is 19.44.35207",
		},
		{
			name: "broken", f: func() *machinetest.Fake {
				f := studioMachine()
				delete(f.Programs, toolsetCL("14.39.33519"))
				return f
			}(), id: "no-msvc", says: toolsetCL("14.39.33519") + " says:",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := machine.OpenMSVC(t.Context(), tt.f.Host(), tt.req)
			if tt.id == "" {
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]string{"PATH": studio + `\` + tt.want + `;C:\Windows\System32`, "INCLUDE": `C:\inc`, "LIB": `C:\lib`, "VCTOOLSVERSION": tt.want}
				if diff := cmp.Diff(want, d.Env); diff != "" || d.Toolset != tt.want || d.Version != "19"+strings.TrimPrefix(tt.want, "14") {
					t.Errorf("toolset %s, cl %s, environment (-want +got):\n%s", d.Toolset, d.Version, diff)
				}
				return
			}
			var lacks *machine.MSVCError
			if !errors.As(err, &lacks) {
				t.Fatalf("got %+v, %v", d, err)
			}
			if lacks.ID != tt.id || !strings.Contains(lacks.Detail, tt.says) || !strings.Contains(lacks.Fix, tt.fix) {
				t.Errorf("%s: %s\n%s", lacks.ID, lacks.Detail, lacks.Fix)
			}
		})
	}
}

// A developer shell is used as it is, if its toolset fits; else another one is set up beside it.
func TestOpenMSVCDeveloperShell(t *testing.T) {
	shell := func() *machinetest.Fake {
		f := studioMachine("14.44.35207")
		dir := strings.TrimSuffix(toolsetCL("14.44.35207"), `\cl.exe`)
		f.Env = append(f.Env, "VSCMD_ARG_TGT_ARCH=x64", "INCLUDE=C:\\shell", "LIB=C:\\shell", "Path="+dir, "SECRET=1")
		return f
	}
	d, err := machine.OpenMSVC(t.Context(), shell().Host(), machine.MSVCRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Source != "developer shell" || d.Env["INCLUDE"] != `C:\shell` || d.Env["VSCMD_ARG_TGT_ARCH"] != "x64" || d.Env["SECRET"] != "" {
		t.Errorf("%+v", d)
	}
	d, err = machine.OpenMSVC(t.Context(), shell().Host(), machine.MSVCRequest{CUDA: "12.1.0"})
	if err != nil {
		t.Fatal(err)
	}
	if d.Source != "folders" || d.Home != studio || d.Toolset != "14.39.33519" {
		t.Errorf("for CUDA 12.1: %+v", d)
	}
}

func TestWindowsCUDAHomes(t *testing.T) {
	got := machine.WindowsCUDAHomes(machinetest.Windows().Host(), "12.4")
	want := []string{`C:\cuda124`, `C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v12.4`, "nvidia/cu12.4", "nvidia/cu12", "nvidia/cuda_nvcc"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
