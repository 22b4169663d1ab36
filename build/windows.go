package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/machine"
)

// onWindows reports whether the commands of a box are Windows programs: only the host's can be.
func onWindows(box sandbox.Box) bool { return runtime.GOOS == "windows" && box.Image() == "" }

// join makes a path for the programs of a box.
func join(box sandbox.Box, elem ...string) string {
	if onWindows(box) {
		return filepath.Join(elem...)
	}
	return path.Join(elem...)
}

// exe returns the name of a program of a box.
func exe(box sandbox.Box, name string) string {
	if onWindows(box) {
		return name + ".exe"
	}
	return name
}

// venvBin returns the folder of a virtual environment's programs as seen in the box.
func venvBin(box sandbox.Box, venv string) string {
	if onWindows(box) {
		return filepath.Join(box.Inside(venv), "Scripts")
	}
	return path.Join(box.Inside(venv), "bin")
}

// venvPython returns the interpreter of a virtual environment as seen in the box.
func venvPython(box sandbox.Box, venv string) string {
	return join(box, venvBin(box, venv), exe(box, "python"))
}

// venvPackages returns the folder of its packages as seen in the box.
func venvPackages(box sandbox.Box, venv, python string) string {
	if onWindows(box) {
		return filepath.Join(box.Inside(venv), "Lib", "site-packages")
	}
	return path.Join(box.Inside(venv), "lib", "python"+python, "site-packages")
}

// pathList makes a value of PATH.
func pathList(box sandbox.Box, dirs []string) string {
	if onWindows(box) {
		return strings.Join(dirs, ";")
	}
	return strings.Join(dirs, ":")
}

// systemVariables are those of Windows without which its programs do not start, or do not find what
// the system itself has.
var systemVariables = []string{
	"SystemRoot", "SystemDrive", "windir", "ComSpec", "PATHEXT", "OS", "PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "ProgramData", "ALLUSERSPROFILE",
	"ProgramFiles", "ProgramFiles(x86)", "ProgramW6432", "CommonProgramFiles", "CommonProgramFiles(x86)", "CommonProgramW6432",
}

// windowsEnv completes the environment of every command on Windows.
func (a *attempt) windowsEnv(env map[string]string, home, temp string) {
	for _, name := range systemVariables {
		if value, ok := a.builder.Host.LookupEnv(name); ok {
			env[name] = value
		}
	}
	env["USERPROFILE"], env["TEMP"], env["TMP"] = home, temp, temp
	env["APPDATA"], env["LOCALAPPDATA"] = filepath.Join(home, "AppData", "Roaming"), filepath.Join(home, "AppData", "Local")
	env["PIP_CONFIG_FILE"] = "nul"
	env["PYTHONUTF8"] = "1" // as on other systems: the code page of a machine is no part of a build
	env["VSLANG"] = "1033"  // messages are explained by their English words
}

// windowsPythons are the places of interpreters that are not on PATH.
func windowsPythons(values map[string]string) []string {
	var out []string
	add := func(root string, elem ...string) {
		if filepath.IsAbs(root) {
			out = append(out, filepath.Join(append([]string{root}, elem...)...))
		}
	}
	for _, name := range []string{"AGENT_TOOLSDIRECTORY", "RUNNER_TOOL_CACHE"} {
		add(values[name], "Python", "{python}.*", "{arch}{-freethreaded}", "python.exe")
	}
	add(values["LOCALAPPDATA"], "Programs", "Python", "Python{nodot}", "python{t}.exe")
	add(values["PROGRAMFILES"], "Python{nodot}", "python{t}.exe")
	add(values["SYSTEMDRIVE"]+`\`, "Python{nodot}", "python{t}.exe")
	add(cmp.Or(values["PYENV"], filepath.Join(values["USERPROFILE"], ".pyenv", "pyenv-win")), "versions", "{python}.*", "python.exe")
	add(cmp.Or(values["UV_PYTHON_INSTALL_DIR"], filepath.Join(values["APPDATA"], "uv", "python")), "cpython-{python}.*{+freethreaded}-windows-*", "python.exe")
	return out
}

// lookWindows surveys this machine as survey.sh does an image.
func (e *environment) lookWindows() {
	var text strings.Builder
	dirs := e.searchPath(e.box)
	find := func(name string) string {
		for _, dir := range dirs {
			file := filepath.Join(dir, name+".exe")
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && !isAlias(file) {
				return file
			}
		}
		return ""
	}
	for _, name := range []string{"ninja", "git"} {
		if find(name) != "" {
			fmt.Fprintf(&text, "program %s\n", name)
		}
	}
	for _, place := range e.pythonPlaces() {
		if !filepath.IsAbs(place) {
			if file := find(place); file != "" {
				fmt.Fprintf(&text, "python %s\n", file)
			}
			continue
		}
		found, _ := filepath.Glob(place)
		for _, file := range found {
			fmt.Fprintf(&text, "python %s\n", file)
		}
	}
	e.seen = parseSurvey(text.String())
}

// isAlias tells Microsoft's placeholders for programs, which open its store.
func isAlias(file string) bool {
	return strings.Contains(strings.ToLower(file), `\microsoft\windowsapps\`)
}

// developers are the toolsets that were opened, once for all rows.
type developers struct {
	mu   sync.Mutex
	open map[machine.MSVCRequest]*machine.Developer
}

func (d *developers) get(ctx context.Context, h *machine.Host, req machine.MSVCRequest) (*machine.Developer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found := d.open[req]; found != nil {
		return found, nil
	}
	found, err := machine.OpenMSVC(ctx, h, req)
	if err != nil {
		return nil, err
	}
	if d.open == nil {
		d.open = map[machine.MSVCRequest]*machine.Developer{}
	}
	d.open[req] = found
	return found, nil
}

// toolsetVariable is the variable in which vcvarsall.bat says the toolset, and with which a row in
// packages.yml chooses one.
const toolsetVariable = "VCToolsVersion"

// findMSVC takes the toolset that the row's variables name, or that of the options, or the newest
// one that the row's CUDA takes.
func (a *attempt) findMSVC(ctx context.Context) error {
	want := strings.TrimRight(cmp.Or(a.Settings.Env[toolsetVariable], a.builder.MSVC), `\`)
	found, err := a.builder.developers.get(ctx, a.builder.Host, machine.MSVCRequest{Toolset: want, CUDA: a.Row.CUDA, Table: a.builder.Compat})
	if lacks, ok := errors.AsType[*machine.MSVCError](err); ok {
		return &diagnosed{lacks.Diagnosis}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.log, "Visual C++ %s, toolset %s of %s (%s)\n", found.Version, found.Toolset, cmp.Or(found.Home, found.CL), found.Source)
	a.tools.Compiler = "MSVC " + found.Version + ", toolset " + found.Toolset
	a.developer = found
	return nil
}

// developerEnv adds the compiler's environment. Its PATH comes before that of the machine, which it
// contains.
func (a *attempt) developerEnv(env map[string]string, first []string) {
	if a.developer == nil {
		return
	}
	maps.Copy(env, a.developer.Env)
	if list := a.developer.Env["PATH"]; list != "" {
		env["PATH"] = strings.Join(append(first, list), ";")
	}
	env["DISTUTILS_USE_SDK"], env["MSSdk"] = "1", "1"
	env["_LINK_"] = "/Brepro" // no time in the result: the same input makes the same file
}

// longestWork is how long the path of a row's folder may be on Windows: below it are packages with
// headers of 150 characters, and many programs end at 260.
const longestWork = 110

// checkWork refuses a folder in which builds fail with messages that do not name the cause.
func (a *attempt) checkWork() error {
	if runtime.GOOS != "windows" || len(a.work) <= longestWork || a.builder.LongPaths {
		return nil
	}
	return fault("path-too-long", "the path of the work folder is too long for Windows programs",
		"choose a shorter one with --state, such as --state C:\\k, or let programs use long paths (as an administrator):\n"+
			`reg add HKLM\SYSTEM\CurrentControlSet\Control\FileSystem /v LongPathsEnabled /t REG_DWORD /d 1 /f`,
		"%s has %d characters, and up to %d are sure to work", a.work, len(a.work), longestWork)
}

// system is the name of the system that the row is built on, for diagnoses.
func (a *attempt) system() string {
	if a.onHost() {
		return runtime.GOOS
	}
	return "linux"
}
