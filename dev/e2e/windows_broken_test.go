//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// leftovers lists the processes of a build that still run in the container: Windows programs besides
// Wine's own, and the compiler behind the stand-ins. It ends what Wine made of a program whose creator
// was killed before it could start it: Wine's job objects forget it, and it waits without having
// loaded kernel32.dll, so without a program in it. On Windows it is in the job like all others.
const leftovers = `for p in /proc/[0-9]*; do
  name=$(head -z -n 1 $p/cmdline 2>/dev/null | tr '\0' '\n' | grep -E 'kiln\.exe|python\.exe|cl\.exe|link\.exe|mingw32' || true)
  case $name in
    '') ;;
    *.exe) sleep 1
      if grep -q kernel32.dll $p/maps 2>/dev/null; then echo "$name"; elif kill -9 ${p#/proc/} 2>/dev/null; then echo "$name" >>/tmp/never-started; fi ;;
    *) echo "$name" ;;
  esac
done`

// TestE2EWindowsKills ends kiln.exe at 20 moments of a build, with the signal that no program sees:
// nothing of the build goes on, and the next kiln.exe makes the same files as an undisturbed one.
func TestE2EWindowsKills(t *testing.T) {
	kilntest.NeedE2E(t, "windows")
	t.Parallel()
	w := startWindows(t)
	const row = "'wincount-*'"
	sums := func() string { return w.must("cd " + drive + "proj/dist && sha256sum *.whl") }
	if rows := w.build("proj", row); rows[0].Status != "done" {
		t.Fatalf("%+v", rows[0])
	}
	w.must("rm -r " + drive + "proj/dist " + drive + "proj/.kiln/journal.jsonl")
	// The second build has the pip of the first, as all others have.
	start := time.Now()
	if rows := w.build("proj", row); rows[0].Status != "done" {
		t.Fatalf("%+v", rows[0])
	}
	whole, want := time.Since(start), sums()
	kills := 20
	if n, err := strconv.Atoi(os.Getenv("KILN_KILLS")); err == nil {
		kills = n
	}
	w.must("rm -r " + drive + "proj/dist " + drive + "proj/.kiln/journal.jsonl")
	for i := range kills {
		after := whole * time.Duration(i+1) / time.Duration(kills+1)
		out := w.must(fmt.Sprintf(`cd %sproj; wine /exe/kiln.exe build %s >/tmp/kill.log 2>&1 & pid=$!; sleep %.2f
if kill -9 $pid 2>/dev/null; then echo killed; else echo ended; fi; wait $pid || true
list() { %s; }; for i in $(seq 100); do if [ -z "$(list)" ]; then break; fi; sleep 0.1; done; list`, drive, row, after.Seconds(), leftovers))
		if head, rest, _ := strings.Cut(out, "\n"); strings.TrimSpace(rest) != "" {
			t.Errorf("%s after %v: left behind:\n%s", head, after, rest)
		} else if head == "ended" {
			t.Logf("the build ended before %v", after)
		}
	}
	if out := w.must("cat /tmp/never-started 2>/dev/null || true"); out != "" {
		t.Logf("made by Wine and never started:\n%s", out)
	}
	if rows := w.build("proj", row); rows[0].Status != "done" && rows[0].Status != "reused" || rows[0].Test != "passed" {
		t.Fatalf("after %d kills: %+v", kills, rows[0])
	}
	if got := sums(); got != want {
		t.Errorf("after %d kills:\n%swithout:\n%s", kills, got, want)
	}
}

// TestE2EWindowsBroken: ten machines on which a row cannot be built, each with its diagnosis.
func TestE2EWindowsBroken(t *testing.T) {
	kilntest.NeedE2E(t, "windows")
	t.Parallel()
	w := startWindows(t)
	// A CUDA row, for which nvcc is played too.
	cuda := `{os: windows-2022, python: "3.13", cuda: "12.1.0", arch: "8.0"}`
	plain := `{os: windows-2022, python: "3.13"}`
	// project writes a packages.yml of one row.
	project := func(name, row, more string) {
		w.project(name)
		text := "packages:\n  wincount:\n    source: {path: wincount}\n    version_from: {file: pyproject.toml}\n    extra_deps: [build, \"setuptools>=77\"]\n" + more + "    matrix: [" + row + "]\n"
		w.must("cat >" + drive + name + "/packages.yml <<'EOF'\n" + text + "EOF")
	}
	const studio = drive + "'Program Files/Microsoft Visual Studio'"
	nvcc := "d=" + drive + "'Program Files/NVIDIA GPU Computing Toolkit/CUDA/v12.1'; mkdir -p \"$d/bin\"; cp /exe/standin.exe \"$d/bin/nvcc.exe\""
	// A library whose file, or whose name in Python's, is not there.
	library := func(dll, name string) string {
		return "cd /tmp; printf 'LIBRARY " + dll + "\\nEXPORTS\\n" + name + "\\n' >/tmp/x.def; x86_64-w64-mingw32ucrt-dlltool -d /tmp/x.def -l " + drive + "standins/lib/gone.lib"
	}
	calls := func(name string) string {
		return `cd ` + drive + `NAME/wincount; sed -i 's/^PyMODINIT_FUNC/extern void ` + name + `(void);\n&/; s/    return PyModule_Create/    ` + name + `();\n&/' csrc/module.c; sed -i 's/include_dirs/libraries=["gone"], &/' setup.py`
	}
	for _, tt := range []struct {
		name, row, more, before, after, args string
		dir                                  string
		id, says                             string
	}{
		{name: "nomsvc", row: plain, before: "mv " + studio + " /tmp/studio; mv " + drive + "'Program Files (x86)/Microsoft Visual Studio' /tmp/installer", after: "mv /tmp/studio " + studio + "; mv /tmp/installer " + drive + "'Program Files (x86)/Microsoft Visual Studio'", id: "no-msvc", says: "winget install"},
		{name: "toonew", row: cuda, before: nvcc + "; mv " + studio + "/2022/BuildTools/VC/Tools/MSVC/14.39.33519 /tmp/old", after: "mv /tmp/old " + studio + "/2022/BuildTools/VC/Tools/MSVC/14.39.33519", id: "msvc-too-new", says: "VC.14.39.17.9.x86.x64"},
		{name: "nocuda", row: strings.Replace(cuda, "12.1.0", "12.4.0", 1), id: "no-nvcc", says: "CUDA_PATH_V12_4"},
		{name: "toolset", row: plain, more: "    env: {VCToolsVersion: \"14.30\"}\n", id: "msvc-toolset", says: "these are: 14.44.35207"},
		{name: "long", row: plain, dir: strings.Repeat("l", 60) + "/" + strings.Repeat("m", 60), id: "path-too-long", says: "LongPathsEnabled"},
		{name: "readonly", row: plain, args: `--dist 'Z:\readonly'`, says: `the folder for finished files cannot be written: mkdir Z:\readonly`},
		{name: "full", row: plain, args: `--state 'Z:\small\state'`, id: "disk-full", says: "put the work folder on a larger drive"},
		{name: "nodll", row: plain, before: library("gone.dll", "gone_call") + "; " + calls("gone_call"), says: "gone.dll"},
		{name: "nosymbol", row: plain, before: library("python313.dll", "PyGone_Call") + "; " + calls("PyGone_Call"), says: "PyGone_Call|procedure could not be found"},
		{name: "win32", row: plain, before: "mv " + drive + "Python313 /tmp/python; mkdir -p " + drive + "Python313; cp /exe/python32.exe " + drive + "Python313/python.exe", after: "rm -r " + drive + "Python313; mv /tmp/python " + drive + "Python313", id: "no-python", says: "3.13 for win32"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := tt.name
			if tt.dir != "" {
				dir = tt.dir
			}
			project(dir, tt.row, tt.more)
			if tt.before != "" {
				w.must(strings.ReplaceAll(tt.before, "NAME", dir))
			}
			rows := w.build(dir, tt.args)
			if tt.after != "" {
				w.must(tt.after)
			}
			if r := rows[0]; r.Status != "failed" && r.Status != "refused" || tt.id != "" && r.Diagnosis != tt.id || !regexp.MustCompile(strings.ReplaceAll(tt.says, `\`, `\\`)).MatchString(r.Reason) {
				t.Errorf("%s, %q: %s", r.Status, r.Diagnosis, r.Reason)
			} else {
				t.Logf("%s: %s", r.Diagnosis, r.Reason)
			}
		})
	}
	// The shell of a failed row has the environment of its build.
	out, err := w.shell("cd " + drive + "nosymbol; printf 'set\\r\\nexit\\r\\n' | wine /exe/kiln.exe shell wincount-0.1.0-cpu-cp313-win_amd64 2>&1")
	for _, want := range []string{"VCTOOLSVERSION=14.44.35207", "DISTUTILS_USE_SDK=1", `nosymbol\.kiln\work\wincount-0.1.0-cpu-cp313-win_amd64\venv\Scripts;`} {
		if !strings.Contains(out, want) {
			t.Errorf("kiln shell: %v, no %q in\n%s", err, want, out)
		}
	}
}

// TestE2EWindowsUnits runs the tests of the packages with parts for Windows as Windows programs.
func TestE2EWindowsUnits(t *testing.T) {
	kilntest.NeedE2E(t, "windows")
	t.Parallel()
	w := startWindows(t)
	for _, pkg := range []string{"internal/run", "internal/fsx", "internal/secret", "build/sandbox", "engine", "machine", "matrix", "wheel"} {
		t.Run(pkg, func(t *testing.T) {
			exe := filepath.Join(w.exe, filepath.Base(pkg)+".test.exe")
			buildFor(t, "windows", exe, "test", "-c", "../../"+pkg)
			out, err := w.shell("d=" + drive + "src/" + pkg + `; mkdir -p "$d" && cp -r /source/examples ` + drive + "src && cp -r /source/" + pkg + `/. "$d" && cd "$d" && wine /exe/` + filepath.Base(exe) + " -test.short 2>&1")
			if err != nil {
				t.Errorf("%v\n%s", err, out[max(0, len(out)-4000):])
			}
		})
	}
}
