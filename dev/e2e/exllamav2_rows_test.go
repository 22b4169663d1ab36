//go:build linux

package e2e_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

// TestE2EExllamav2Rows counts what is left to compile of ExLlamaV2's 88 rows with reuse, by the code
// that plans it and by the names that its wheels take from torch. exllamav2-wheels.py made them, for
// Linux. Windows rows are all compiled in the first count, and in the second their wheels are taken
// to use the same functions.
func TestE2EExllamav2Rows(t *testing.T) {
	kilntest.NeedE2E(t, "exllamav2-rows")
	files, err := filepath.Glob(filepath.Join(repository(t, ".cache"), "exllamav2-rows", "*.whl"))
	if err != nil || len(files) < 2 {
		t.Fatalf("wheels %v, %v; run make e2e-exllamav2-rows", files, err)
	}
	reports := map[string]*audit.Report{}
	for _, file := range files {
		_, torch, _ := strings.Cut(strings.SplitN(filepath.Base(file), "-", 3)[1], ".torch")
		// As build audits a row with CUDA.
		r, err := audit.Check(t.Context(), file, audit.Options{SameCUDA: true, BuiltFor: torch, Python: "3.12"})
		if err != nil {
			t.Fatal(err)
		}
		reports[torch] = r
		t.Logf("built with torch %s: %d names outside the stable ABI; torch %s", torch, len(r.TorchABI.Unstable), r.TorchABI.Summary)
	}

	text, err := os.ReadFile(repository(t, "examples", "exllamav2", "packages.yml"))
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("    versions:"), []byte("    reuse: {torch: import}\n    versions:"), 1)
	file, list := matrix.Parse("packages.yml", text)
	if list.HasErrors() {
		t.Fatal(list)
	}
	plan := file.Plan(matrix.Options{})
	if len(plan.Rows) != 88 {
		t.Fatalf("%d rows, want 88", len(plan.Rows))
	}

	without := map[string]bool{} // torch and Python
	for _, row := range plan.Rows {
		without[strings.Join([]string{row.OS, row.Kind, row.CUDA, row.ROCm}, " ")] = true
	}
	for _, windows := range []bool{false, true} {
		// Rows are compiled one after the other until the wheels that are there serve the rest.
		built := map[string]*record.Record{}
		var served map[string]build.Expected
		for {
			served = map[string]build.Expected{}
			for _, e := range build.ExpectReuse(plan, compat.Default(), func(row *matrix.Row) *record.Record { return built[row.ID] }) {
				served[e.Row] = e
			}
			next := slices.IndexFunc(plan.Rows, func(r matrix.Row) bool { _, ok := served[r.ID]; return !ok && built[r.ID] == nil })
			if next < 0 {
				break
			}
			row := plan.Rows[next]
			r := &record.Record{Recipe: record.Recipe{Row: row}}
			if row.CUDA != "" && (windows || row.OS != "windows-2022") {
				r.Audit = reports[row.Torch]
			}
			built[row.ID] = r
		}
		why := map[string]int{}
		for id, e := range served {
			_, from, _ := strings.Cut(e.From, "-torch")
			from, _, _ = strings.Cut(from, "-")
			row := plan.Rows[slices.IndexFunc(plan.Rows, func(r matrix.Row) bool { return r.ID == id })]
			why[fmt.Sprintf("%s, CUDA %s, torch %s, by the wheel for %s: %s", row.OS, row.CUDA, row.Torch, from, e.Reason)]++
		}
		for _, reason := range slices.Sorted(maps.Keys(why)) {
			t.Logf("%d × %s", why[reason], reason)
		}
		t.Logf("88 rows: %d compiled, %d proven (Windows as on Linux: %t)", len(built), len(served), windows)
		if len(built)+len(served) != 88 || len(served) == 0 {
			t.Errorf("%d rows compiled and %d served, want 88 in all", len(built), len(served))
		}
	}
	for torch, r := range reports {
		for _, other := range []string{"2.3.1", "2.4.0", "2.5.0", "2.6.0", "2.7.0", "2.8.0", "2.9.0"} {
			if reason, ok := build.Serves(r, other); !ok && other > torch {
				t.Logf("built with %s: %s", torch, reason)
			}
		}
	}
	t.Logf("with one wheel for every torch and Python: %d rows", len(without))
}
