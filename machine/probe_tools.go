package machine

import (
	"context"
	"errors"
	"slices"
	"strings"
)

// versionOf runs a program with --version and reads the first version number.
func (p *prober) versionOf(ctx context.Context, path string) (string, error) {
	out, err := p.answer(ctx, path, "--version")
	return dottedVersion.FindString(out), err
}

// answer runs a program. If it fails, the error is the first line that it printed.
func (p *prober) answer(ctx context.Context, argv ...string) (string, error) {
	out, err := p.run(ctx, p.opts.Timeout, argv...)
	if err != nil {
		return "", errors.New(firstLine(out, err))
	}
	return string(out), nil
}

// needsService reports whether a program is the client of a service without which it does nothing:
// docker's daemon, and podman's virtual machine where the system is not Linux.
func (p *prober) needsService(id string) bool {
	return id == "docker" || id == "podman" && p.OS != "linux"
}

// ninja looks for ninja on PATH and beside the interpreter.
func (p *prober) ninja(ctx context.Context) Result {
	r := Result{ID: "ninja", Status: Missing}
	names := []string{"ninja", "ninja-build"}
	if s := p.m.Python.Scripts; s != "" {
		names = append(names, p.path(s, p.exe("ninja")))
	}
	for i, n := range names {
		r.Looked = append(r.Looked, n)
		path, ok := p.LookPath(n)
		if !ok {
			continue
		}
		v, err := p.versionOf(ctx, path)
		if err != nil {
			r.Status, r.Path, r.Detail = Broken, path, err.Error()
			continue
		}
		p.m.Ninja = Tool{Path: path, Version: v, OnPath: i < 2}
		r.Status, r.Path, r.Value, r.Detail = OK, path, v, ""
		switch {
		case i == 1:
			r.Detail = "PyTorch's builder looks for the name ninja"
		case i > 1:
			r.Detail = "it is not on PATH, where PyTorch's builder looks"
			r.Status = Unsupported
		case compareVersions(v, "1.3") < 0:
			r.Status, r.Detail = Unsupported, "it does not know the deps directive, which came with 1.3"
		}
		return r
	}
	return r
}

// tools looks for programs of which only the version matters.
func (p *prober) tools(ctx context.Context) []func() Result {
	var out []func() Result
	for _, t := range []struct {
		id   string
		into *Tool
	}{{"ccache", &p.m.CCache}, {"sccache", &p.m.SCCache}, {"git", &p.m.Git}, {"podman", &p.m.Podman}, {"docker", &p.m.Docker}} {
		out = append(out, func() Result {
			r := Result{ID: t.id, Status: Missing, Looked: []string{t.id}}
			path, ok := p.LookPath(t.id)
			if !ok {
				return r
			}
			v, err := p.versionOf(ctx, path)
			if err == nil && p.needsService(t.id) {
				_, err = p.answer(ctx, path, "version", "--format", "{{.Server.Version}}")
			}
			r.Status, r.Path, r.Value = OK, path, v
			if err != nil {
				r.Status, r.Detail = Broken, err.Error()
				return r
			}
			*t.into = Tool{Path: path, Version: v, OnPath: true}
			return r
		})
	}
	return out
}

// A ROCmToolkit is an installation of ROCm.
type ROCmToolkit struct {
	Home    string `json:"home"`
	HIPCC   string `json:"hipcc,omitempty"`
	Version string `json:"version,omitempty"`
	Source  string `json:"source"`
}

// rocm looks for ROCm and AMD GPUs.
func (p *prober) rocm(ctx context.Context) Result {
	r := Result{ID: "hipcc", Status: Missing}
	if p.OS != "linux" {
		r.Status = Skipped
		return r
	}
	type place struct{ home, source string }
	var places []place
	add := func(home, source string) {
		home = strings.TrimRight(home, "/")
		if home != "" && !slices.ContainsFunc(places, func(o place) bool { return o.home == home }) {
			places = append(places, place{home, source})
		}
	}
	add(p.Getenv("ROCM_HOME"), "ROCM_HOME")
	add(p.Getenv("ROCM_PATH"), "ROCM_PATH")
	for _, site := range p.m.Python.SitePackages {
		add(p.path(site, "_rocm_sdk_core"), "site-packages")
	}
	if hipcc, ok := p.LookPath("hipcc"); ok {
		home := parent(parent(hipcc))
		if strings.HasSuffix(home, "/hip") {
			home = parent(home)
		}
		add(home, "PATH")
	}
	add("/opt/rocm", "/opt/rocm")
	for _, d := range p.versionedDirs("/opt", "rocm-") {
		add("/opt/"+d, "/opt")
	}
	for _, c := range places {
		r.Looked = append(r.Looked, c.home)
		if !p.isDir(c.home) {
			continue
		}
		t := ROCmToolkit{Home: c.home, Source: c.source}
		if f := p.path(c.home, "bin", "hipcc"); p.isFile(f) {
			t.HIPCC = f
		}
		if data, err := p.ReadFile(p.path(c.home, ".info", "version")); err == nil {
			t.Version = dottedVersion.FindString(string(data))
		} else if f := p.path(c.home, "bin", "hipconfig"); p.isFile(f) {
			if out, err := p.run(ctx, p.opts.Timeout, f, "--version"); err == nil {
				t.Version = dottedVersion.FindString(string(out))
			}
		}
		if t.HIPCC == "" && t.Version == "" {
			continue
		}
		p.m.ROCm = append(p.m.ROCm, t)
	}
	if len(p.m.ROCm) > 0 {
		t := p.m.ROCm[0]
		r.Status, r.Path, r.Value = OK, t.Home, t.Version
		if t.HIPCC == "" {
			r.Status, r.Detail = Broken, "it has no bin/hipcc: only the runtime is installed"
		}
	}
	return r
}
