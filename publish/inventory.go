package publish

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// States of a row in an [Inventory].
const (
	RowReady    = "ready"    // built, tested and audited
	RowMissing  = "missing"  // no record in dist/
	RowFailed   = "failed"   // built here without success
	RowStale    = "stale"    // built from an older configuration
	RowUntested = "untested" // its test did not run
	RowRejected = "rejected" // test, audit or files are not as they must be
	RowSkipped  = "skipped"  // left out by the plan
)

// RowState says what is to be said of one row before anything is uploaded.
type RowState struct {
	ID     string   `json:"id"`
	State  string   `json:"state"`
	Reason string   `json:"reason,omitempty"`
	Files  []string `json:"files,omitempty"`
}

// Unit is one distribution with what goes with it. Its files are published together.
type Unit struct {
	Row    matrix.Row
	Record *record.Record
	// File is the wheel or sdist.
	File LocalFile
	// Side are metadata, provenance and bill of materials of a wheel.
	Side []LocalFile
	// Archs are the GPU architectures that the audit found, "8.0 9.0+PTX".
	Archs string
	// Warnings are those of build and audit.
	Warnings []string
	// Proven are the rows with another torch that the file serves.
	Proven []record.Reuse
}

// Inventory is what there is to publish.
type Inventory struct {
	Units []Unit
	Rows  []RowState
	// Strangers are files in the folder that belong to no row.
	Strangers []string
}

// Count returns how many rows have one of the states.
func (inv *Inventory) Count(states ...string) int {
	n := 0
	for i := range inv.Rows {
		if slices.Contains(states, inv.Rows[i].State) {
			n++
		}
	}
	return n
}

// InventoryOptions are options of [ReadInventory].
type InventoryOptions struct {
	// Untested allows rows whose test did not run.
	Untested bool
	// Failures are reasons of rows that failed here, by id.
	Failures map[string]string
	// Skipped are rows that the plan left out.
	Skipped []matrix.Skip
	// Merged are the rows whose files are part of the wheel of another one, by id.
	Merged map[string]string
	// Statement are options of the statements about wheels.
	Statement StatementOptions
	// NoSide leaves out what goes with wheels.
	NoSide bool
}

// ReadInventory reads a dist folder and says of every row of the plan whether it can be published.
// Every file is hashed and compared with its record: what is published is what was tested.
func ReadInventory(ctx context.Context, dist string, rows []matrix.Row, opts InventoryOptions) (*Inventory, error) {
	states := make([]RowState, len(rows))
	units := make([][]Unit, len(rows))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range rows {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var err error
			states[i], units[i], err = readRow(dist, &rows[i], &opts)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	inv := &Inventory{Rows: states, Units: together(slices.Concat(units...))}
	for i := range inv.Units {
		u := &inv.Units[i]
		if len(u.Proven) == 0 || opts.NoSide {
			continue
		}
		// Who makes an index of what is published learns from the statement what the file serves.
		statement := opts.Statement
		statement.Proven = u.Proven
		var err error
		if u.Side, err = sideFiles(u, &statement); err != nil {
			return nil, err
		}
	}
	for _, s := range opts.Skipped {
		inv.Rows = append(inv.Rows, RowState{ID: s.Row.ID, State: RowSkipped, Reason: s.Reason})
	}
	known := map[string]bool{}
	for i := range inv.Rows {
		for _, f := range inv.Rows[i].Files {
			known[f] = true
		}
	}
	entries, err := os.ReadDir(dist)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if name := e.Name(); isDistribution(name) && !known[name] {
			inv.Strangers = append(inv.Strangers, name)
		}
	}
	return inv, nil
}

// together makes one unit of those of rows that share a file: that of the row which it was built
// for, if it is among them, for the torch releases of all.
func together(units []Unit) []Unit {
	first := map[string]int{}
	var out []Unit
	for _, u := range units {
		i, shared := first[u.File.SHA256+u.File.Name]
		if !shared {
			first[u.File.SHA256+u.File.Name] = len(out)
			out = append(out, u)
			continue
		}
		// It was proven with these, linked with torch or not.
		facts := mergeFacts(out[i].File.Facts, append(slices.Clone(u.File.Facts.Coordinates.Torch), compat.Minor(out[i].Row.Torch), compat.Minor(u.Row.Torch))...)
		proven := out[i].Proven
		if r := out[i].Record.Reuse; r != nil && len(proven) == 0 {
			proven = append(proven, *r)
		}
		if u.Record.Reuse == nil {
			out[i] = u
		} else {
			proven = append(proven, *u.Record.Reuse)
		}
		out[i].File.Facts, out[i].Proven = facts, proven
	}
	return out
}

func isDistribution(name string) bool {
	return strings.HasSuffix(name, ".whl") || strings.HasSuffix(name, ".tar.gz")
}

func readRow(dist string, row *matrix.Row, opts *InventoryOptions) (RowState, []Unit, error) {
	state := RowState{ID: row.ID, Files: row.Files()}
	end := func(s, format string, args ...any) (RowState, []Unit, error) {
		state.State, state.Reason = s, fmt.Sprintf(format, args...)
		return state, nil, nil
	}
	built, err := record.Read(dist, row.ID)
	if errors.Is(err, fs.ErrNotExist) {
		if reason, failed := opts.Failures[row.ID]; failed {
			return end(RowFailed, "%s", record.ShortReason(row.ID, reason))
		}
		switch f, err := record.ReadFailure(record.FailurePath(dist, row.ID), row); {
		case err != nil:
			return end(RowFailed, "why it failed cannot be read: %v", err)
		case f != nil:
			return end(RowFailed, "%s", record.ShortReason(row.ID, f.Reason))
		}
	}
	if into := opts.Merged[row.ID]; into != "" {
		if err == nil {
			state.Files = names(built)
		}
		return end(RowSkipped, "its files are part of %s", into)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return end(RowMissing, "there is no record of a build")
	case err != nil:
		return end(RowRejected, "%v", err)
	case built.Recipe.Row.Digest != row.Digest:
		return end(RowStale, "it was built from another configuration; run kiln build")
	}
	made := names(built)
	if built.Reuse == nil && !slices.EqualFunc(state.Files, made, func(want, got string) bool { return row.Made(want, got, built.Recipe.Settings.Repair != "") }) {
		return end(RowRejected, "the record has the files %s", strings.Join(made, ", "))
	}
	state.Files = made
	archs, warnings := "", built.Warnings
	if report := built.Audit; report != nil {
		if report.Worst() == audit.Error {
			return end(RowRejected, "the audit has an error: %s", report.Findings[0].Message)
		}
		archs = report.Archs()
	} else if slices.ContainsFunc(made, func(n string) bool { return strings.HasSuffix(n, ".whl") }) {
		return end(RowRejected, "it was not audited")
	}
	switch {
	case built.Test.Result == "passed":
	case built.Test.Result == "not run" && opts.Untested:
		warnings = append(slices.Clone(warnings), "not tested: "+built.Test.Why)
	case built.Test.Result == "not run":
		return end(RowUntested, "%s", built.Test.Why)
	default:
		return end(RowRejected, "the test is %q", built.Test.Result)
	}
	if built.Recipe.Settings.CUDACheck == "bypass" {
		warnings = append(slices.Clone(warnings), "the comparison of CUDA versions was switched off for this build")
	}
	var units []Unit
	for _, f := range built.Files {
		path := filepath.Join(dist, f.Name)
		sum, size, err := fsx.SHA256(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return end(RowMissing, "%s is gone", f.Name)
		case err != nil:
			return state, nil, err
		case sum != f.SHA256 || size != f.Size:
			return end(RowRejected, "%s is not the file that was tested", f.Name)
		}
		u := Unit{Row: *row, Record: built, File: LocalFile{Name: f.Name, Size: size, SHA256: sum, Path: path}, Warnings: warnings}
		if strings.HasSuffix(f.Name, ".whl") {
			u.Archs, u.File.Facts = archs, recordFacts(built)
			if !opts.NoSide {
				if u.Side, err = sideFiles(&u, &opts.Statement); err != nil {
					return end(RowRejected, "%v", err)
				}
			}
		}
		units = append(units, u)
	}
	state.State = RowReady
	return state, units, nil
}

// names are those of the files of a record.
func names(r *record.Record) (out []string) {
	for _, f := range r.Files {
		out = append(out, f.Name)
	}
	return out
}

// sideFiles makes what goes with a wheel: its papers, then the statement that names them.
func sideFiles(u *Unit, opts *StatementOptions) ([]LocalFile, error) {
	metadata, err := readMetadata(u.File.Path)
	if err != nil {
		return nil, err
	}
	file := record.File{Name: u.File.Name, SHA256: u.File.SHA256, Size: u.File.Size}
	sbom, err := NewSBOM(u.Record, file, opts)
	if err != nil {
		return nil, err
	}
	papers := []LocalFile{dataFile(u.File.Name+index.MetadataSuffix, metadata), dataFile(u.File.Name+index.SBOMSuffix, sbom)}
	statement, err := NewStatement(u.Record, file, papers, opts)
	if err != nil {
		return nil, err
	}
	return append(papers, dataFile(u.File.Name+index.ProvenanceSuffix, statement)), nil
}

func dataFile(name string, data []byte) LocalFile {
	sum := sha256.Sum256(data)
	return LocalFile{Name: name, Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:]), Data: data}
}

// readMetadata returns the METADATA of a wheel as it is in the archive.
func readMetadata(path string) ([]byte, error) {
	w, err := wheel.Open(path)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	return readMember(w, "METADATA")
}

// readMember returns a file of the dist-info folder of a wheel.
func readMember(w *wheel.Reader, name string) ([]byte, error) {
	f, err := w.OpenFile(w.DistInfo() + "/" + name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(text) > maxSmall {
		err = fmt.Errorf("%s has more than %d bytes", name, maxSmall)
	}
	return text, err
}
