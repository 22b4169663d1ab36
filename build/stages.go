package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/fsx"
)

// stage is one step of an attempt.
type stage struct {
	name  string
	doing string
	// makes says that the stage makes the files: it is skipped when those of an earlier build
	// stand.
	makes bool
	run   func(context.Context, *attempt) error
}

// stages is the way of every row, in order. Reading this list is reading the product.
var stages = []stage{
	// Finds out whether the files of an earlier build still stand, then only tests again.
	{"reuse", "looking for files of an earlier build", false, reuse},
	// Tests the wheel of a row with another torch in its place, if the audit says that it serves.
	{"prove", "proving the wheel of another row", false, prove},
	// Copies the exact source into the row's folder and applies the patches.
	{"fetch", "fetching the source", true, fetch},
	// Makes the build environment: image, Python, virtual environment, torch, then the rest.
	{"prepare", "preparing the build environment", true, prepare},
	// Compares what is really there with what the row says, before minutes are spent.
	{"preflight", "checking tools and versions", true, preflight},
	// Runs the front-end, cut off from the network, with nothing of the outer environment.
	{"compile", "building the wheel", true, compile},
	// Takes exactly the files that the row promises and looks at what they are.
	{"collect", "collecting the files", true, collect},
	// Adds the files of other rows, where one wheel has those of several toolkits.
	{"merge", "merging the files of other rows", true, merge},
	// Copies foreign libraries into the wheel, and gives it the platform tag that is true.
	{"repair", "repairing the wheel", true, repair},
	// Reads the binaries: will this load on the machine it is meant for.
	{"audit", "auditing the wheel", false, auditWheel},
	// Installs and imports the wheel in an environment without compilers.
	{"test", "testing the wheel", false, testFiles},
	// Puts the files into dist/, with their record.
	{"store", "storing the files", false, store},
}

func reuse(_ context.Context, a *attempt) error {
	if !a.builder.Rebuild && a.given == "" {
		if old, err := record.Read(a.builder.DistDir, a.Row.ID); err == nil && old.Recipe.BuildDigest == a.BuildDigest && old.Reuse == nil && a.builder.intact(old.Files) == nil {
			a.reused = true
			a.take(old)
		}
	}
	if err := os.RemoveAll(a.work); err != nil {
		return err
	}
	for _, dir := range []string{a.out(), a.home(), a.temp(), a.testDir(), a.builder.cacheDir()} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	switch {
	case a.given != "":
		a.reused = true
		return a.takeGiven()
	case a.reused:
		return nil
	case a.builder.Retest:
		return fault("not-built", "there is nothing to test", "build the row first: kiln build "+a.Row.ID, "%s is not in %s as this configuration would build it", a.Files[0], a.builder.DistDir)
	}
	return skip("there are none")
}

func fetch(ctx context.Context, a *attempt) error {
	if _, err := a.parts(); err != nil {
		return err // before anything is compiled
	}
	if need := a.Settings.Resources.DiskBytes; need > 0 {
		if free, err := fsx.FreeSpace(a.work); err == nil && free < need {
			return engine.Fail(engine.CauseDisk, fmt.Errorf("%s has %d MB free, and the row needs %d MB", a.work, free/1e6, need/1e6))
		}
	}
	epoch, err := a.builder.sources.fetch(ctx, a.Source, a.source())
	if err != nil {
		return err
	}
	a.epoch = epoch
	for _, p := range a.Settings.Patches {
		if err := a.patch(p.File, p.Find, p.Replace, p.Count); err != nil {
			return err
		}
	}
	return sameTimes(a.source(), epoch)
}

// sameTimes gives all files of a source one time: compilers write times of files into line tables.
func sameTimes(dir string, to time.Time) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return os.Chtimes(name, to, to)
	})
}

// patch replaces text in one file of the source copy. Changing nothing is an error.
func (a *attempt) patch(file, find, replace string, want int) error {
	const title = "a patch did not apply"
	root, err := os.OpenRoot(a.source())
	if err != nil {
		return err
	}
	defer root.Close()
	text, err := root.ReadFile(filepath.FromSlash(file))
	if err != nil {
		return fault("patch", title, "give the path relative to the source in build.patches", "%v", err)
	}
	n := strings.Count(string(text), find)
	switch {
	case n == 0:
		return fault("patch", title, "change or remove the patch in packages.yml; the text may differ in this version", "%s does not contain %q", file, find)
	case want > 0 && n != want:
		return fault("patch", title, "change count or find of the patch in packages.yml", "%s contains %q %d times, want %d", file, find, n, want)
	}
	info, err := root.Stat(filepath.FromSlash(file))
	if err != nil {
		return err
	}
	fmt.Fprintf(a.log, "patched %s in %d places\n", file, n)
	a.record.Patches = append(a.record.Patches, record.Patch{File: file, Places: n})
	return root.WriteFile(filepath.FromSlash(file), []byte(strings.ReplaceAll(string(text), find, replace)), info.Mode())
}

// store moves the files into dist/ and writes the record. The record comes last: a file
// without one is not a result.
func store(_ context.Context, a *attempt) error {
	if a.given != "" {
		return skip("the wheel stays where it is")
	}
	a.record.Finished = time.Now().UTC()
	a.record.PeakMemoryBytes = a.peak
	if err := os.MkdirAll(a.builder.DistDir, 0o777); err != nil {
		return err
	}
	if !a.reused {
		for i, path := range a.files {
			if err := a.builder.place(path, a.record.Files[i]); err != nil {
				return err
			}
		}
	}
	return record.Write(a.builder.DistDir, &a.record)
}

// place moves a finished file into dist/ without ever replacing one that kiln did not
// make: an older result of the same name is moved aside, a stranger is an error.
func (b *Builder) place(path string, file record.File) error {
	to := filepath.Join(b.DistDir, file.Name)
	sum, size, err := fsx.SHA256(to)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return err
	case sum == file.SHA256 && size == file.Size:
		return nil // the same bytes: an attempt that was killed after this step
	default:
		if !b.made(file.Name, sum) {
			return fault("dist-conflict", "a file in dist/ is in the way", "move it away, or remove it", "%s has other bytes and was not built by kiln", to)
		}
		aside := filepath.Join(b.StateDir, "replaced", sum)
		if err := os.MkdirAll(aside, 0o777); err != nil {
			return err
		}
		if err := os.Rename(to, filepath.Join(aside, file.Name)); err != nil {
			return err
		}
	}
	// Through a copy beside the target, since the state folder may be on another disk.
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := fsx.Create(to)
	if err != nil {
		return err
	}
	defer f.Abort() //nolint:errcheck // nothing to do after Commit
	if _, err := from.WriteTo(f); err != nil {
		return err
	}
	return f.Commit()
}
