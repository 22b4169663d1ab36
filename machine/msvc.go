package machine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// MSVCRequest is what a build asks of Visual C++.
type MSVCRequest struct {
	// Toolset is the toolset to use, as "14.39" or "14.39.33519". Empty means the newest that CUDA
	// takes.
	Toolset string
	// CUDA is the version of the toolkit whose nvcc calls cl; empty means none.
	CUDA string
	// Table knows which toolsets an nvcc takes; nil means compat.Default().
	Table *compat.Table
}

// Developer is a toolset of Visual C++ with the environment that its programs need.
type Developer struct {
	MSVC
	// Version is what cl says of itself: "19.39.33523".
	Version string
	// Env are the variables that vcvarsall.bat set or changed, or those of the developer shell that
	// kiln was started in. PATH is one of them. Names are in upper case.
	Env map[string]string
}

// MSVCError says why there is no toolset for a request, and what to do.
type MSVCError struct{ Diagnosis }

func (e *MSVCError) Error() string { return e.Title + ": " + e.Detail }

func msvcError(id, title, fix, format string, args ...any) error {
	return &MSVCError{Diagnosis{ID: id, Title: title, Detail: fmt.Sprintf(format, args...), Fix: fix, Class: ClassFault, Confidence: Certain}}
}

// OpenMSVC finds the toolset that a build needs, takes over its environment, and proves that its cl
// answers. The error is an [*MSVCError] where the machine lacks something.
func OpenMSVC(ctx context.Context, h *Host, req MSVCRequest) (*Developer, error) {
	p := &prober{Host: h, opts: ProbeOptions{Timeout: probeTimeout}, m: &Machine{}}
	r := p.msvc(ctx)
	chosen, err := ChooseMSVC(h, p.m.MSVC, req)
	if lacks, ok := errors.AsType[*MSVCError](err); ok && len(p.m.MSVC) == 0 {
		lacks.Detail += ": " + strings.Join(r.Looked, ", ")
	}
	if err != nil {
		return nil, err
	}
	return chosen.Open(ctx, h)
}

// Open takes over the environment of an installation and proves that its cl answers. The error is an
// [*MSVCError] where it does not work.
func (m MSVC) Open(ctx context.Context, h *Host) (*Developer, error) {
	d := &Developer{MSVC: m}
	if m.Source == sourceShell || m.VCVarsAll == "" {
		d.Env = shellVariables(h)
	} else {
		all, err := VCVars(ctx, h, m, m.Toolset)
		if err != nil {
			return nil, msvcError("no-msvc", "Visual C++ does not work", "repair it with the Visual Studio Installer; `kiln doctor` shows what was found", "%s: %v", m.VCVarsAll, err)
		}
		d.Env = changedVariables(h, all)
	}
	return d, d.prove(ctx, h)
}

const sourceShell = "developer shell"

// ChooseMSVC takes the first of the installations that were found and its newest toolset that fit.
// The error is an [*MSVCError].
func ChooseMSVC(h *Host, list []MSVC, req MSVCRequest) (MSVC, error) {
	table := req.Table
	if table == nil {
		table = compat.Default()
	}
	below := 0
	if bounds, ok := table.HostCompilers(req.CUDA); ok && req.CUDA != "" {
		below = bounds.MSC[1]
	}
	if len(list) == 0 {
		return MSVC{}, msvcError("no-msvc", "there is no Visual C++ compiler", installToolset(h, "", newestBelow(below)),
			"neither PATH, vswhere nor the usual folders have a cl.exe for x64")
	}
	var found, wanted []string
	home := ""
	for _, m := range list {
		for _, toolset := range m.installed() {
			found = append(found, strings.TrimSpace(toolset+" in "+m.Home))
			if m.Home != "" && home == "" {
				home = m.Home
			}
			if req.Toolset != "" && toolset != req.Toolset && !strings.HasPrefix(toolset, req.Toolset+".") {
				continue
			}
			wanted = append(wanted, toolset)
			if version := mscVer(toolset); below > 0 && version >= below {
				continue
			}
			switch {
			case toolset == m.Toolset && (m.Source == sourceShell && h.Getenv("VSCMD_ARG_TGT_ARCH") != "x64" || m.Source == sourcePath && !cl64(m.CL)):
				continue
			case toolset != m.Toolset:
				m.CL = h.path(m.Home, "VC", "Tools", "MSVC", toolset, "bin", "Hostx64", "x64", "cl.exe")
				m.Source = "folders" // the shell is for another one
			}
			m.Toolset, m.MSCVer = toolset, mscVer(toolset)
			return m, nil
		}
	}
	have := strings.Join(found, ", ")
	switch {
	case req.Toolset != "" && len(wanted) == 0:
		return MSVC{}, msvcError("msvc-toolset", "the toolset of the row is not installed", installToolset(h, home, req.Toolset),
			"toolset %s is not installed, these are: %s", req.Toolset, have)
	case below > 0 && slices.ContainsFunc(wanted, func(t string) bool { return mscVer(t) >= below }):
		return MSVC{}, msvcError("msvc-too-new", "nvcc does not accept this Visual Studio", installToolset(h, home, newestBelow(below)),
			"CUDA %s takes toolsets up to %s (_MSC_VER below %d), these are installed: %s", req.CUDA, newestBelow(below), below, have)
	}
	return MSVC{}, msvcError("no-msvc", "there is no Visual C++ compiler for x64", "start kiln outside of the developer shell, or in the x64 Native Tools shell", "found are: %s", have)
}

// installed are the toolsets that this installation has: the one of the shell, then the newest first.
func (m *MSVC) installed() []string {
	return append([]string{m.Toolset}, slices.DeleteFunc(slices.Clone(m.Toolsets), func(t string) bool { return t == m.Toolset })...)
}

const sourcePath = "PATH"

// cl64 tells the compiler for x64 by its folder.
func cl64(cl string) bool {
	dir := strings.ToLower(parent(cl))
	return strings.HasSuffix(dir, `hostx64\x64`) || strings.HasSuffix(dir, `amd64`)
}

// newestBelow is the newest toolset with a _MSC_VER below a bound: 14.39 below 1940.
func newestBelow(below int) string {
	if below <= 1900 {
		return ""
	}
	return fmt.Sprintf("14.%d", below-1901)
}

// installToolset is the command that adds a toolset to an installation of Visual Studio, or that
// installs the build tools where there is none.
func installToolset(h *Host, home, toolset string) string {
	component := "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
	// Visual Studio 2022 numbers its releases with its toolsets: 14.39 came with 17.9.
	if minor := number(strings.SplitN(strings.TrimPrefix(toolset, "14."), ".", 2)[0]); minor >= 30 && minor <= 44 {
		component = fmt.Sprintf("Microsoft.VisualStudio.Component.VC.14.%d.17.%d.x86.x64", minor, minor-30)
	}
	if home == "" {
		return `winget install Microsoft.VisualStudio.2022.BuildTools --override "--quiet --wait --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended --add ` + component + `"`
	}
	installer := h.path(h.Getenv("ProgramFiles(x86)"), "Microsoft Visual Studio", "Installer", "setup.exe")
	return fmt.Sprintf(`"%s" modify --installPath "%s" --add %s --quiet`, installer, home, component)
}

// shellVariables are those that a developer shell has besides the ones of every shell.
func shellVariables(h *Host) map[string]string {
	env := map[string]string{}
	for _, pair := range h.Env {
		name, value, _ := strings.Cut(pair, "=")
		name = strings.ToUpper(name)
		switch name {
		case "PATH", "INCLUDE", "EXTERNAL_INCLUDE", "LIB", "LIBPATH", "DEVENVDIR", "EXTENSIONSDKDIR", "PLATFORM":
			env[name] = value
			continue
		}
		for _, prefix := range []string{"VC", "VS", "WINDOWSSDK", "WINDOWSLIB", "UCRT", "UNIVERSALCRT", "FRAMEWORK", "NETFXSDK", "__VSCMD"} {
			if strings.HasPrefix(name, prefix) {
				env[name] = value
			}
		}
	}
	return env
}

// changedVariables are those that differ from the environment that the script was started in.
func changedVariables(h *Host, all map[string]string) map[string]string {
	env := maps.Clone(all)
	for name, value := range all {
		// cmd sets PROMPT itself.
		if before, ok := h.LookupEnv(name); name == "PROMPT" || name == "LC_ALL" || ok && before == value && name != "PATH" {
			delete(env, name)
		}
	}
	return env
}

// clVersion is in the first line of cl in every language: "… Version 19.39.33523 for x64".
var clVersion = regexp.MustCompile(`\b(19\.(\d+)\.[\d.]*\d)\b.*\b(x64|x86|ARM64)\b`)

// prove runs cl: it must be of the toolset and make programs for x64.
func (d *Developer) prove(ctx context.Context, h *Host) error {
	const title, fix = "Visual C++ does not work", "repair it with the Visual Studio Installer; `kiln doctor` shows what was found"
	out, err := h.run(ctx, probeTimeout, d.CL)
	m := clVersion.FindStringSubmatch(string(out))
	switch {
	case m == nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case m == nil:
		return msvcError("no-msvc", title, fix, "%s says: %s", d.CL, firstLine(out, err))
	case m[3] != "x64":
		return msvcError("no-msvc", "this Visual C++ is not for x64", fix, "%s makes programs for %s", d.CL, m[3])
	}
	if minor := strings.SplitN(d.Toolset, ".", 3); d.Source != sourcePath && len(minor) > 1 && minor[1] != m[2] {
		return msvcError("msvc-toolset", "another compiler answers than the one that was chosen", fix, "the toolset is %s, and %s says that it is %s", d.Toolset, d.CL, m[1])
	}
	d.Version = m[1]
	return nil
}

// WindowsCUDAHomes are the places of a CUDA toolkit on Windows: the variables of its installer, the
// folder of the installer, and the package index's wheels, relative to site-packages.
func WindowsCUDAHomes(h *Host, version string) []string {
	var homes []string
	add := func(home string) {
		if home = strings.TrimRight(home, `/\`); home != "" && !slices.Contains(homes, home) {
			homes = append(homes, home)
		}
	}
	add(h.Getenv("CUDA_PATH_V" + strings.ReplaceAll(version, ".", "_")))
	add(h.Getenv("CUDA_PATH"))
	if root := h.Getenv("ProgramFiles"); root != "" {
		add(h.path(root, "NVIDIA GPU Computing Toolkit", "CUDA", "v"+version))
	}
	for _, home := range CUDAHomes(version) {
		if !strings.HasPrefix(home, "/") {
			add(home)
		}
	}
	return homes
}
