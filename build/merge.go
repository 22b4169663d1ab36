package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// part returns how a row that is merged is built now: in this run, or as it was before.
func (b *Builder) part(row *matrix.Row, recipes map[string]*record.Recipe) record.Donor {
	part := record.Donor{Row: row.ID}
	if recipe := recipes[row.ID]; recipe != nil {
		part.BuildDigest = recipe.BuildDigest
	} else if old, err := record.Read(b.DistDir, row.ID); err == nil && old.Recipe.Row.Digest == row.Digest {
		part.BuildDigest = old.Recipe.BuildDigest
	}
	return part
}

// parts returns the records of the rows that are merged.
func (a *attempt) parts() ([]*record.Record, error) {
	var out []*record.Record
	for _, part := range a.Parts {
		missing := func(why string) error {
			return fault("merge", "a row that is merged is not built", "build it: kiln build "+part.Row, "%s: %s", part.Row, why)
		}
		old, err := record.Read(a.builder.DistDir, part.Row)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil, missing("there is no record of a build")
		case err != nil:
			return nil, err
		case part.BuildDigest == "" || old.Recipe.BuildDigest != part.BuildDigest:
			return nil, missing("it was built from another configuration")
		}
		if err := a.builder.intact(old.Files); err != nil {
			return nil, missing(err.Error())
		}
		out = append(out, old)
	}
	return out, nil
}

// merge adds the files of other rows to the wheel.
func merge(ctx context.Context, a *attempt) error {
	if len(a.Parts) == 0 {
		return skip("packages.yml merges no rows into this one")
	}
	rows := map[string]string{a.record.Files[0].Name: a.Row.ID}
	opts := wheel.RewriteOptions{Time: a.epoch}
	parts, err := a.parts()
	if err != nil {
		return err
	}
	for _, old := range parts {
		r, err := wheel.Open(filepath.Join(a.builder.DistDir, old.Files[0].Name))
		if err != nil {
			return err
		}
		defer r.Close()
		opts.Merge = append(opts.Merge, r)
		rows[old.Files[0].Name] = old.Recipe.Row.ID
		a.record.Merged = append(a.record.Merged, record.Merged{Row: old.Recipe.Row.ID, File: old.Files[0]})
	}
	dir := filepath.Join(a.work, "merged")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	made, err := wheel.RewriteFile(ctx, a.files[0], dir, opts)
	if conflict, ok := errors.AsType[*wheel.MergeError](err); ok {
		return fault("merge", "two rows have different files of one name",
			"name the files differently for each toolkit, or leave one of the rows out of merge: in packages.yml",
			"%s has other bytes in %s than in %s", conflict.Member, rows[conflict.Second], rows[conflict.First])
	}
	if err != nil {
		return err
	}
	merged, err := wheel.Open(filepath.Join(dir, made.Name))
	if err != nil {
		return err
	}
	defer merged.Close()
	a.record.TopLevel, a.record.NativeModules = modules(merged)
	a.files[0] = filepath.Join(dir, made.Name)
	a.record.Files[0] = record.File{Name: made.Name, SHA256: made.SHA256, Size: made.Size}
	fmt.Fprintf(a.log, "%s  %s with the files of %d more rows\n", made.SHA256, made.Name, len(a.Parts))
	return nil
}
