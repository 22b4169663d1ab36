package jit

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/internal/fsx"
)

// ExportNinja writes a build.ninja into a folder that compiles the module with ninja, for debugging
// and for people who are used to it. It returns the path of the file, which is written only if it
// changes.
func ExportNinja(ctx context.Context, spec *Spec, opts Options, dir string) (string, error) {
	l, err := newLoader(spec, &opts)
	if err != nil {
		return "", err
	}
	l.probe(ctx)
	if err := l.writeInline(); err != nil {
		return "", err
	}
	p, err := newPlan(l.spec, l.machine, &opts)
	if err != nil {
		return "", err
	}
	if p.msvc != nil {
		return "", fmt.Errorf("a build.ninja with Visual C++: %w", ErrNotSupported)
	}
	if err := l.translate(ctx, p); err != nil {
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "build.ninja")
	text := p.ninja(dir)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return path, nil
	}
	return path, fsx.WriteFile(path, text, 0o666)
}

// ninja writes the plan in ninja's language, with one rule for each compiler, as torch's builder
// does.
func (p *plan) ninja(dir string) []byte {
	var b bytes.Buffer
	b.WriteString("# Written by kiln jit --ninja.\nninja_required_version = 1.3\n")
	fmt.Fprintf(&b, "root = %s\n", ninjaEscape(p.spec.Root))
	rules := map[string]string{kindCXX: "compile", kindC: "compile_c", kindCUDA: "cuda_compile", kindHIP: "hip_compile"}
	seen := map[string]bool{}
	for _, u := range p.units {
		if seen[u.kind] {
			continue
		}
		seen[u.kind] = true
		// All but what differs from file to file.
		argv := p.fill(append(u.argv[:1:1], u.flags...), "", "", "")
		if p.launcher != "" {
			argv = append([]string{p.launcher}, argv...)
		}
		flags := strings.ReplaceAll(shellLine(argv), "$", "$$")
		fmt.Fprintf(&b, "\nrule %s\n  command = cd '$root' && %s -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n", rules[u.kind], flags)
	}
	link := p.fill(p.link, "", "", "$out")
	line := strings.ReplaceAll(shellLine(link[1:len(link)-2]), "$", "$$")
	fmt.Fprintf(&b, "\nrule link\n  command = %s $in %s -o $out\n\n", shellQuote(link[0]), line)
	var objects []string
	for _, u := range p.units {
		object := ninjaEscape(filepath.Join(dir, u.object))
		objects = append(objects, object)
		fmt.Fprintf(&b, "build %s: %s %s\n", object, rules[u.kind], ninjaEscape(p.spec.path(p.source(u))))
	}
	module := ninjaEscape(filepath.Join(dir, p.module))
	fmt.Fprintf(&b, "\nbuild %s: link %s\n\ndefault %s\n", module, strings.Join(objects, " "), module)
	return b.Bytes()
}

// ninjaEscape writes a path where ninja takes several.
func ninjaEscape(s string) string {
	return strings.NewReplacer("$", "$$", " ", "$ ", ":", "$:").Replace(s)
}
