package publish

import (
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/matrix"
)

// TestSharedFile: a wheel that serves several rows is published once, for the torch of each, and the
// index has it in the views of all.
func TestSharedFile(t *testing.T) {
	const name = "demo-1.0+cu128.torch2.10.0-cp312-cp312-linux_x86_64.whl"
	unit := func(id, torch string, reuse *record.Reuse) Unit {
		facts := index.Facts{Coordinates: rowCoordinates(&matrix.Row{CUDA: "12.8.1", Torch: torch}, true)}
		return Unit{Row: matrix.Row{ID: id}, Record: &record.Record{Reuse: reuse}, File: LocalFile{Name: name, SHA256: "a", Facts: facts}}
	}
	units := together([]Unit{
		unit("c", "2.12.1", &record.Reuse{Row: "b", Torch: "2.12.1"}), unit("b", "2.10.0", nil), unit("d", "2.11.0", &record.Reuse{Row: "b", Torch: "2.11.0"}),
		{Row: matrix.Row{ID: "x"}, Record: &record.Record{}, File: LocalFile{Name: "x-1.0-py3-none-any.whl", SHA256: "b"}},
	})
	want := []string{"2.10", "2.11", "2.12"}
	if len(units) != 2 || units[0].Row.ID != "b" || !slices.Equal(units[0].File.Facts.Coordinates.Torch, want) || units[1].Row.ID != "x" {
		t.Fatalf("units %+v", units)
	}
	file := index.File{Filename: name}
	file.Learn(units[0].File.Facts)
	if got := file.Built(); got.Toolkit != "cu128" || !slices.Equal(got.Torch, want) {
		t.Errorf("the index has it for %s", got)
	}
	if p := units[0].Proven; len(p) != 2 || p[0].Torch != "2.12.1" || p[1].Torch != "2.11.0" {
		t.Errorf("proven %+v", p)
	}
	// An index that is made of what is published has the statement only.
	for _, linked := range []bool{true, false} {
		report := &audit.Report{}
		if linked {
			report.TorchABI = &audit.TorchABI{Kind: audit.TorchReleases}
		}
		built := &record.Record{Recipe: record.Recipe{Row: matrix.Row{ID: "b", CUDA: "12.8.1", Torch: "2.10.0"}}, Audit: report}
		text, err := NewStatement(built, record.File{Name: name, SHA256: strings.Repeat("a", 64)}, nil, &StatementOptions{Proven: units[0].Proven})
		if err != nil {
			t.Fatal(err)
		}
		statement, _, err := ParseStatement(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		file := index.File{Filename: name}
		file.Learn(statementFacts(statement))
		if got := file.Built(); !slices.Equal(got.Torch, want) {
			t.Errorf("by the statement (linked with torch: %t) the index has it for %s", linked, got)
		}
	}
	other := index.File{Filename: "demo-1.0+cu128.torch2.9.0-cp312-cp312-linux_x86_64.whl"}
	other.Learn(units[0].File.Facts)
	if got := other.Built(); !slices.Equal(got.Torch, []string{"2.9"}) {
		t.Errorf("a label that the facts contradict became %s", got)
	}
}

// TestStableCoordinates: a wheel on the stable ABI is for its torch and all later ones on record.
func TestStableCoordinates(t *testing.T) {
	c := rowCoordinates(&matrix.Row{CUDA: "12.8.1", Torch: "2.10.0", TorchStable: "2.10"}, true)
	if c.Toolkit != "cu128" || len(c.Torch) < 4 || c.Torch[0] != "2.10" || slices.Contains(c.Torch, "2.9") {
		t.Errorf("got %s", c)
	}
}
