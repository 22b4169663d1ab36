package build

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// A test may require another package of the same packages.yml, as torch-sparse requires
// torch-scatter. An index often has that one as source alone, which a test without compilers cannot
// install, so that the wheel of the row with the same Python, toolkit and torch is taken.

// required is a requirement that a wheel of dist/ may meet.
func required(text string) (wheel.Requirement, bool) {
	r, err := wheel.ParseRequirement(text)
	return r, err == nil && r.URL == "" && r.Marker == ""
}

// besides reports whether the wheels of two rows are for one environment.
func besides(a, b *matrix.Row) bool {
	return a.Package != b.Package && a.Python == b.Python && a.Platform == b.Platform && a.CUDA == b.CUDA && a.ROCm == b.ROCm && a.Torch == b.Torch
}

// siblings puts the wheels of other rows in dist/ in the place of requirements that they meet.
func (a *attempt) siblings(requirements []string) ([]string, error) {
	out := slices.Clone(requirements)
	for i, text := range requirements {
		need, ok := required(text)
		if !ok {
			continue
		}
		var best *record.Record
		var newest wheel.Version
		for r, err := range record.All(a.builder.DistDir) {
			if err != nil || r.Recipe.Row.Package != need.Name || !besides(&a.Row, &r.Recipe.Row) || r.Recipe.Row.WheelTag == matrix.NoWheel {
				continue
			}
			v, err := wheel.ParseVersion(r.Recipe.Row.Version)
			if err != nil || !need.Specifier.Contains(v) || best != nil && v.Compare(newest) <= 0 {
				continue
			}
			best, newest = r, v
		}
		if best == nil {
			continue
		}
		if err := a.builder.intact(best.Files); err != nil {
			return nil, err
		}
		for _, f := range best.Files {
			if strings.HasSuffix(f.Name, ".whl") {
				out[i] = filepath.Join(a.builder.DistDir, f.Name)
			}
		}
	}
	return out, nil
}

// inOrder lets a row begin after the rows whose wheels its test requires. Packages whose tests
// require each other have no order.
func inOrder(rows []matrix.Row, settings func(id string) matrix.Settings, jobs []engine.Job) {
	needs := map[string][]string{}
	for _, row := range rows {
		for _, text := range settings(row.ID).Test.Requires {
			if need, ok := required(text); ok && !slices.Contains(needs[row.Package], need.Name) {
				needs[row.Package] = append(needs[row.Package], need.Name)
			}
		}
	}
	var reaches func(from, to string, seen map[string]bool) bool
	reaches = func(from, to string, seen map[string]bool) bool {
		seen[from] = true
		return from == to || slices.ContainsFunc(needs[from], func(name string) bool { return !seen[name] && reaches(name, to, seen) })
	}
	for i := range jobs {
		row := &rows[slices.IndexFunc(rows, func(r matrix.Row) bool { return r.ID == jobs[i].ID })]
		for j := range rows {
			if other := &rows[j]; slices.Contains(needs[row.Package], other.Package) && besides(row, other) && !reaches(other.Package, row.Package, map[string]bool{}) {
				jobs[i].After = append(jobs[i].After, other.ID)
			}
		}
	}
}
