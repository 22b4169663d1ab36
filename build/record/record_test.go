package record_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/matrix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRoundTrip: what is written is what is read, and what cannot be read does not hide the rest.
func TestRoundTrip(t *testing.T) {
	dist := filepath.Join(t.TempDir(), "dist")
	started := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	want := &record.Record{
		Recipe: record.Recipe{
			Row:    matrix.Row{ID: "demo-1.0", Package: "demo", Version: "1.0", Digest: "d"},
			Source: record.Source{Kind: "git", Location: "https://example.org/demo", Commit: "c", Digest: "c"}, Sandbox: "host",
		},
		Attempt: 2, Started: started, Finished: started.Add(time.Minute), Built: &started, Torch: &record.Torch{Version: "2.9.0", CXX11ABI: true},
		Files:    []record.File{{Name: "demo-1.0.whl", SHA256: "s", Size: 3}},
		Compiles: &record.Compiles{Calls: 2, Hits: 1, Reasons: map[string]int{"why": 1}},
		Audit: &audit.Report{
			Format: audit.ReportFormat, File: "demo-1.0.whl", Findings: []audit.Finding{{Rule: "x", Severity: audit.Warning}}, Objects: []audit.Object{},
		},
		Test: record.Test{Result: "passed", Installed: []record.Installed{{Name: "numpy", Version: "2"}}},
	}
	want.Recipe.Seal()
	must(t, record.Write(dist, want))
	got, err := record.Read(dist, "demo-1.0")
	must(t, err)
	want.Format = got.Format
	if diff := cmp.Diff(want, got); diff != "" || got.Format == "" || !got.BuiltAt().Equal(started) {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	must(t, os.WriteFile(record.Path(dist, "broken"), []byte("{"), 0o666))
	must(t, os.WriteFile(filepath.Join(dist, record.Dir, "note.txt"), nil, 0o666))
	var rows, broken []string
	for r, err := range record.All(dist) {
		if err != nil {
			broken = append(broken, err.Error())
			continue
		}
		rows = append(rows, r.Recipe.Row.ID)
	}
	if len(rows) != 1 || rows[0] != "demo-1.0" || len(broken) != 1 || !strings.Contains(broken[0], "broken.json") {
		t.Errorf("rows %q, errors %q", rows, broken)
	}
	for range record.All(t.TempDir()) {
		t.Error("a folder without records has one")
	}
}

// TestParse: a reader needs the format and the row, and accepts fields of a newer kiln.
func TestParse(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"format":"kiln-record/1","recipe":{"row":{"id":"a"}}}`:                         true,
		`{"format":"kiln-record/1","recipe":{"row":{"id":"a"},"moon":"full"},"new":[1]}`: true,
		`{"format":"kiln-record/2","recipe":{"row":{"id":"a"}}}`:                         false,
		`{"format":"kiln-record/1","recipe":{}}`:                                         false,
		`{"format":"kiln-record/1"}`:                                                     false,
		`[]`:                                                                             false,
	} {
		if r, err := record.Parse([]byte(text)); (err == nil) != ok || ok && r.Recipe.Row.ID != "a" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestFailure: a failure is read for the configuration that failed, and for no other.
func TestFailure(t *testing.T) {
	dist := t.TempDir()
	row := &matrix.Row{ID: "demo-1.0", Digest: "d"}
	path := record.FailurePath(dist, row.ID)
	if f, err := record.ReadFailure(path, row); f != nil || err != nil {
		t.Errorf("no file: %v, %v", f, err)
	}
	want := record.Failure{
		Row: row.ID, Digest: "d", Reason: "demo-1.0: compile: out of memory\n  use fewer jobs", Stage: "compile",
		Diagnosis: &machine.Diagnosis{ID: "oom", Class: machine.ClassMemory, Lines: []string{"Killed"}}, Error: "exit status 1", Log: "log",
	}
	must(t, want.Write(path))
	got, err := record.ReadFailure(path, row)
	must(t, err)
	want.Format = got.Format
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if short := record.ShortReason(row.ID, got.Reason); short != "compile: out of memory" {
		t.Errorf("short reason %q", short)
	}
	if f, err := record.ReadFailure(path, &matrix.Row{ID: row.ID, Digest: "other"}); f != nil || err != nil {
		t.Errorf("another configuration: %v, %v", f, err)
	}
	must(t, os.WriteFile(path, []byte(`{"format":"kiln-failure/2"}`), 0o666))
	if _, err := record.ReadFailure(path, row); err == nil || !strings.Contains(err.Error(), "kiln-failure/2") {
		t.Errorf("another format: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"format":"kiln-record/1","recipe":{"row":{"id":"demo"}},"files":[]}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := record.Parse(text); err == nil && r.Recipe.Row.ID == "" {
			t.Error("a record without a row")
		}
	})
}

func FuzzFailure(f *testing.F) {
	f.Add([]byte(`{"format":"kiln-failure/1","row":"a","digest":"b","reason":"c"}`))
	f.Add([]byte(`{"format":"kiln-failure/2"}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if failure, err := record.ParseFailure(text); (failure == nil) == (err == nil) {
			t.Errorf("%q gives %+v and %v", text, failure, err)
		}
	})
}

// TestPlan: what a build was asked for is read as it was written; a folder without one has none.
func TestPlan(t *testing.T) {
	dir := t.TempDir()
	if p, err := record.ReadPlan(dir); err != nil || len(p.Rows) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	row := matrix.Row{ID: "demo-1.0", Package: "demo", Version: "1.0", Kind: "wheel", OS: "ubuntu-22.04", Python: "3.12", CUDA: "12.8.1", Axes: "a=b"}
	want := &record.Plan{Rows: []matrix.Row{row}, Skipped: []matrix.Skip{{Row: row, Rule: "exclude", Reason: "why", Pos: diag.Pos{File: "packages.yml", Line: 3, Column: 4}}}}
	must(t, record.WritePlan(dir, want))
	got, err := record.ReadPlan(dir)
	must(t, err)
	want.Format = got.Format
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzPlan(f *testing.F) {
	f.Add([]byte(`{"format":"kiln-planned/1","rows":[{"id":"a","axes":{"b":"c"}}],"skipped":[{"row":{},"pos":{"line":1}}]}`))
	f.Add([]byte(`{"format":"kiln-planned/2"}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := record.ParsePlan(text); (p == nil) == (err == nil) {
			t.Errorf("%q gives %+v and %v", text, p, err)
		}
	})
}
