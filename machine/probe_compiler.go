package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Compiler is a C++ compiler.
type Compiler struct {
	Path    string `json:"path"`
	Kind    string `json:"kind"` // "gcc" or "clang"
	Version string `json:"version"`
	Major   int    `json:"major"`
	// Works says that a small shared library was compiled and linked; Fault why not.
	// Both are empty when it was not tried, or took too long.
	Works bool   `json:"works,omitempty"`
	Fault string `json:"fault,omitempty"`
}

var (
	dottedVersion = regexp.MustCompile(`\d+(?:\.\d+)+`)
	versionedGXX  = regexp.MustCompile(`^g\+\+-(\d+)$`)
)

// parseCompiler reads the answer to --version.
func parseCompiler(out string) (kind, version string) {
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	kind = "gcc"
	if strings.Contains(line, "clang") {
		kind = "clang"
	} else if i := strings.LastIndexByte(line, ')'); i >= 0 {
		// The parentheses have the distribution's own version.
		line = line[i:]
	}
	return kind, dottedVersion.FindString(line)
}

// compilers looks for C++ compilers, the one that a build would use first.
func (p *prober) compilers(ctx context.Context) Result {
	r := Result{ID: "c++", Status: Missing}
	var names []string
	if p.opts.CXX != "" {
		names = append(names, p.opts.CXX)
	}
	if cxx := launcherless(p.Getenv("CXX")); cxx != "" {
		names = append(names, cxx)
	}
	names = append(names, "c++", "g++")
	var numbered []int
	for _, dir := range p.searchPath() {
		files, err := p.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, f := range files {
			if m := versionedGXX.FindStringSubmatch(f); m != nil {
				if n, err := strconv.Atoi(m[1]); err == nil && !slices.Contains(numbered, n) {
					numbered = append(numbered, n)
				}
			}
		}
	}
	slices.Sort(numbered)
	for _, n := range slices.Backward(numbered) {
		names = append(names, fmt.Sprintf("g++-%d", n))
	}
	names = append(names, "clang++")
	if p.OS == "windows" {
		names = slices.DeleteFunc(names, func(n string) bool { return n == "c++" })
	}
	r.Looked = slices.Clone(names)
	for _, name := range names {
		path, ok := p.LookPath(name)
		if !ok {
			continue
		}
		out, err := p.run(ctx, p.opts.Timeout, path, "--version")
		if err != nil {
			if r.Status == Missing {
				r.Status, r.Path, r.Detail = Broken, path, firstLine(out, err)
			}
			continue
		}
		c := Compiler{Path: path}
		c.Kind, c.Version = parseCompiler(string(out))
		c.Major = number(c.Version)
		if slices.ContainsFunc(p.m.Compilers, func(o Compiler) bool { return o.Kind == c.Kind && o.Version == c.Version }) {
			continue // c++ and g++ are often the same
		}
		if p.opts.TempDir != "" && len(p.m.Compilers) == 0 {
			c.Works, c.Fault = p.smoke(ctx, path)
		}
		p.m.Compilers = append(p.m.Compilers, c)
	}
	if len(p.m.Compilers) == 0 {
		return r
	}
	first := p.m.Compilers[0]
	r.Status, r.Path, r.Value, r.Detail = OK, first.Path, first.Kind+" "+first.Version, ""
	switch {
	case first.Fault != "":
		r.Status, r.Detail = Broken, first.Fault
	case first.Kind == "gcc" && first.Major < 5:
		r.Status, r.Detail = Unsupported, "it has no C++11 library ABI"
	}
	return r
}

// smokeTime is how long a test compile may take. A machine that is too busy for it is
// not broken.
const smokeTime = 4 * time.Second

// smoke compiles and links a shared library: that finds a missing libstdc++-dev, missing
// binutils and a full disk.
func (p *prober) smoke(ctx context.Context, cxx string) (works bool, fault string) {
	out, err := p.runInput(ctx, min(smokeTime, p.opts.Timeout), "#include <string>\n#include <vector>\nstd::vector<std::string> f() { return {\"a\"}; }\n",
		cxx, "-shared", "-fPIC", "-x", "c++", "-", "-o", p.path(p.opts.TempDir, "kiln-smoke.so"))
	if errors.Is(err, errTooSlow) {
		return false, ""
	}
	if err != nil {
		if errs := FindCompilerErrors(strings.Split(string(out), "\n"), 1); errs.Total > 0 {
			return false, errs.First[0].Message
		}
		return false, firstLine(out, err)
	}
	return true, ""
}

// hostCompiler decides which compiler nvcc would call, and whether it accepts it.
func (p *prober) hostCompiler(ctx context.Context) Result {
	r := Result{ID: "nvcc-host-compiler", Status: Skipped}
	if len(p.m.CUDA) == 0 {
		return r
	}
	t := &p.m.CUDA[0]
	limit := t.MaxGCC
	var chosen string
	for _, name := range []string{"CUDAHOSTCXX", "NVCC_CCBIN", "CC"} {
		if v := launcherless(p.Getenv(name)); v != "" {
			chosen = v
			r.Looked = append(r.Looked, name)
			break
		}
	}
	if chosen == "" && t.Layout == "distribution" {
		// The distribution's nvcc has a script of its own that picks a fitting compiler.
		r.Status, r.Value = OK, "chosen by the distribution's nvcc"
		fits := slices.IndexFunc(p.m.Compilers, func(c Compiler) bool { return c.Kind == "gcc" && (limit == 0 || c.Major <= limit) })
		if fits >= 0 {
			t.HostCompiler = p.m.Compilers[fits].Path
			return r
		}
		// It looks for numbered names only, and has none to choose from.
		if i := slices.IndexFunc(p.m.Compilers, func(c Compiler) bool { return c.Kind == "gcc" }); i >= 0 {
			c := p.m.Compilers[i]
			r.Status, r.Path, r.Value = Unsupported, c.Path, c.Kind+" "+c.Version
			r.Detail = fmt.Sprintf("nvcc %s accepts gcc up to %d", t.Version, limit)
			return r
		}
		r.Status, r.Value, r.Detail = Missing, "", "nvcc needs gcc on PATH"
		return r
	}
	var c *Compiler
	if chosen != "" {
		// nvcc takes gcc or g++; only the second answers for C++.
		dir, base := "", chosen
		if i := strings.LastIndexAny(chosen, `/\`); i >= 0 {
			dir, base = chosen[:i+1], chosen[i+1:]
		}
		if path, ok := p.LookPath(dir + strings.Replace(base, "gcc", "g++", 1)); ok {
			if out, err := p.run(ctx, p.opts.Timeout, path, "--version"); err == nil {
				c = &Compiler{Path: path}
				c.Kind, c.Version = parseCompiler(string(out))
				c.Major = number(c.Version)
			}
		}
		r.Detail = chosen + " does not work"
	} else if i := slices.IndexFunc(p.m.Compilers, func(c Compiler) bool { return c.Kind == "gcc" }); i >= 0 {
		c = &p.m.Compilers[i]
	}
	if c == nil {
		r.Status, r.Detail = Missing, cmp.Or(r.Detail, "nvcc needs gcc on PATH")
		if p.OS == "windows" {
			r.Detail = "nvcc needs cl.exe on PATH"
			if len(p.m.MSVC) > 0 {
				r.Status, r.Path, r.Value, r.Detail = OK, p.m.MSVC[0].CL, "MSVC "+p.m.MSVC[0].Toolset, ""
			}
		}
		return r
	}
	r.Path, r.Value, r.Status, r.Detail = c.Path, c.Kind+" "+c.Version, OK, ""
	if c.Kind == "gcc" && limit > 0 && c.Major > limit {
		r.Status = Unsupported
		r.Detail = fmt.Sprintf("nvcc %s accepts gcc up to %d", t.Version, limit)
		// One that fits may be installed beside it.
		for _, o := range p.m.Compilers {
			if o.Kind == "gcc" && o.Major <= limit {
				t.HostCompiler = o.Path
				r.Detail += "; " + o.Path + " would do"
				break
			}
		}
		return r
	}
	t.HostCompiler = c.Path
	return r
}
