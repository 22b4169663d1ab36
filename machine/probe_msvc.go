package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// MSVC is an installation of Visual C++.
type MSVC struct {
	Home    string `json:"home,omitempty"` // of Visual Studio
	CL      string `json:"cl"`
	Toolset string `json:"toolset,omitempty"` // "14.39.33519"
	MSCVer  int    `json:"msc_ver,omitempty"` // _MSC_VER: 1939
	Source  string `json:"source"`            // "developer shell", "PATH", "vswhere", "folders", "registry"
	// Toolsets are all of Home that have a compiler for x64, newest first.
	Toolsets []string `json:"toolsets,omitempty"`
	// VCVarsAll is the script that sets the compiler's environment, "" if missing: then
	// INCLUDE and LIB may be missing too.
	VCVarsAll string `json:"vcvarsall,omitempty"`
}

// mscVer is _MSC_VER of a toolset: 14.39 is 1939.
func mscVer(toolset string) int {
	f := strings.SplitN(toolset, ".", 3)
	if len(f) < 2 || f[0] != "14" {
		return 0
	}
	minor := number(f[1])
	if len(f[1]) == 1 {
		minor *= 10 // 14.0 is Visual Studio 2015
	}
	return 1900 + minor
}

// toolsets are the C++ toolsets of a Visual Studio, newest first by number.
func (p *prober) toolsets(home string) []string {
	return p.versionedDirs(p.path(home, "VC", "Tools", "MSVC"), "")
}

// msvcAt makes an MSVC of a Visual Studio folder.
func (p *prober) msvcAt(home, source string) (MSVC, bool) {
	cl := func(toolset string) string {
		return p.path(home, "VC", "Tools", "MSVC", toolset, "bin", "Hostx64", "x64", "cl.exe")
	}
	sets := slices.DeleteFunc(p.toolsets(home), func(t string) bool { return !p.isFile(cl(t)) })
	if len(sets) == 0 {
		return MSVC{}, false
	}
	m := MSVC{Home: home, CL: cl(sets[0]), Toolset: sets[0], MSCVer: mscVer(sets[0]), Source: source, Toolsets: sets}
	if f := p.path(home, "VC", "Auxiliary", "Build", "vcvarsall.bat"); p.isFile(f) {
		m.VCVarsAll = f
	}
	return m, true
}

// msvc looks for Visual C++ in the order in which builds would find it.
func (p *prober) msvc(ctx context.Context) Result {
	r := Result{ID: "cl", Status: Missing}
	p.msvcOnPath()
	onPath := len(p.m.MSVC) > 0
	r.Looked = slices.Concat(p.vswhere(ctx), p.msvcFolders(), p.msvcRegistry())
	if len(p.m.MSVC) == 0 {
		return r
	}
	m := p.m.MSVC[0]
	r.Status, r.Path, r.Value = OK, m.CL, m.Toolset
	target := p.Getenv("VSCMD_ARG_TGT_ARCH")
	switch {
	case m.Source == sourceShell && target != "x64":
		r.Status, r.Detail = Unsupported, "the developer shell is for "+target+"; PyTorch needs x64"
	case onPath && !cl64(m.CL):
		r.Status, r.Detail = Unsupported, "this cl.exe is not the 64-bit one: it compiles and fails at linking"
	case m.Source == sourceShell && p.Getenv("DISTUTILS_USE_SDK") != "1":
		r.Detail = "DISTUTILS_USE_SDK is not 1: PyTorch's builder stops in a developer shell without it"
	case m.VCVarsAll == "" && !onPath:
		r.Detail = "vcvarsall.bat is missing: INCLUDE and LIB may have to be set by hand"
	}
	return r
}

func (p *prober) addMSVC(m MSVC) {
	for i := range p.m.MSVC {
		if old := &p.m.MSVC[i]; strings.EqualFold(old.CL, m.CL) || old.Home != "" && strings.EqualFold(old.Home, m.Home) {
			// The compiler on PATH is of this installation, which has more.
			if old.VCVarsAll == "" {
				old.VCVarsAll, old.Toolsets = m.VCVarsAll, m.Toolsets
			}
			return
		}
	}
	p.m.MSVC = append(p.m.MSVC, m)
}

// msvcOnPath takes the compiler of a developer shell, or one that is on PATH in another way.
func (p *prober) msvcOnPath() {
	cl, ok := p.LookPath("cl")
	if !ok {
		return
	}
	m := MSVC{CL: cl, Source: sourcePath}
	if p.Getenv("VSCMD_ARG_TGT_ARCH") != "" {
		m.Source = sourceShell
	}
	// …\VC\Tools\MSVC\14.39.33519\bin\Hostx64\x64\cl.exe
	parts := strings.Split(cl, `\`)
	if n := len(parts); n > 5 {
		m.Toolset = parts[n-5]
		m.MSCVer = mscVer(m.Toolset)
		if n > 8 {
			m.Home = strings.Join(parts[:n-8], `\`)
		}
	}
	p.addMSVC(m)
}

// vswhere asks Visual Studio's installer for the newest one that has a C++ compiler.
func (p *prober) vswhere(ctx context.Context) (looked []string) {
	for _, root := range []string{"ProgramFiles(x86)", "ProgramFiles"} {
		if p.Getenv(root) == "" {
			continue
		}
		where := p.path(p.Getenv(root), "Microsoft Visual Studio", "Installer", "vswhere.exe")
		looked = append(looked, where)
		if !p.isFile(where) {
			continue
		}
		for _, need := range []string{"Microsoft.VisualStudio.Component.VC.Tools.x86.x64", "Microsoft.VisualStudio.Workload.WDExpress"} {
			out, err := p.run(ctx, p.opts.Timeout, where, "-latest", "-prerelease", "-products", "*", "-requires", need, "-property", "installationPath", "-utf8")
			if err != nil {
				continue
			}
			if home := firstLine(out, nil); home != "" {
				if m, ok := p.msvcAt(home, "vswhere"); ok {
					p.addMSVC(m)
					break
				}
			}
		}
		break
	}
	return looked
}

// msvcFolders looks into the usual folders of Visual Studio.
func (p *prober) msvcFolders() (looked []string) {
	for _, year := range []string{"2022", "2019", "2017"} {
		for _, root := range []string{"ProgramW6432", "ProgramFiles(x86)"} {
			base := p.Getenv(root)
			if base == "" {
				continue
			}
			for _, edition := range []string{"BuildTools", "Community", "Professional", "Enterprise", "Preview"} {
				home := p.path(base, "Microsoft Visual Studio", year, edition)
				looked = append(looked, home)
				if m, ok := p.msvcAt(home, "folders"); ok {
					p.addMSVC(m)
				}
			}
		}
	}
	return looked
}

// msvcRegistry looks for Visual Studio 2015; later ones are not in the registry.
func (p *prober) msvcRegistry() (looked []string) {
	if p.Registry == nil {
		return nil
	}
	const key, version = `Software\Microsoft\VisualStudio\SxS\VC7`, "14.0"
	looked = []string{`HKLM\` + key + `\` + version}
	home, ok := p.Registry(key, version)
	cl := p.path(strings.TrimRight(home, `\`), "bin", "amd64", "cl.exe")
	if !ok || !p.isFile(cl) {
		return looked
	}
	m := MSVC{Home: parent(strings.TrimRight(home, `\`)), CL: cl, Toolset: version, MSCVer: mscVer(version), Source: "registry"}
	if f := p.path(home, "vcvarsall.bat"); p.isFile(f) {
		m.VCVarsAll = f
	}
	p.addMSVC(m)
	return looked
}

// VCVars runs vcvarsall.bat and returns the environment that it makes, names in upper
// case. toolset may ask for an older one, as "14.39"; empty means the newest.
func VCVars(ctx context.Context, h *Host, m MSVC, toolset string) (map[string]string, error) {
	if m.VCVarsAll == "" {
		return nil, errors.New("vcvarsall.bat is missing")
	}
	line := `"` + m.VCVarsAll + `" x64`
	if toolset != "" {
		line += " -vcvars_ver=" + toolset
	}
	out, err := h.Run(ctx, []string{"cmd", "/u", "/c", line + " >nul && set"}, "")
	if err != nil {
		return nil, fmt.Errorf("vcvarsall.bat: %w", err)
	}
	env, err := parseUTF16Env(out)
	if err != nil {
		return nil, fmt.Errorf("vcvarsall.bat: %w", err)
	}
	if env["INCLUDE"] == "" || env["LIB"] == "" {
		return nil, errors.New("vcvarsall.bat: it set neither INCLUDE nor LIB")
	}
	return env, nil
}

// parseUTF16Env reads what `cmd /u /c set` prints: UTF-16, little endian.
func parseUTF16Env(out []byte) (map[string]string, error) {
	if len(out)%2 != 0 {
		return nil, errors.New("its output is not UTF-16")
	}
	units := make([]uint16, len(out)/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(out[2*i:])
	}
	env := map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(string(utf16.Decode(units)), "\uFEFF")) {
		name, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "=")
		if ok && name != "" {
			env[strings.ToUpper(name)] = value
		}
	}
	return env, nil
}
