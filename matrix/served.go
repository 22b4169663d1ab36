package matrix

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// Served returns how many combinations of a torch release and a Python the rows of the plan are for:
// as many as there would be rows without torch: {stable: …} and python: {abi3: …}. Releases that the
// table does not have do not count. A nil table means compat.Default().
func (p *Plan) Served(table *compat.Table) int {
	if table == nil {
		table = compat.Default()
	}
	n := 0
	for i := range p.Rows {
		n += p.Rows[i].served(table)
	}
	return n
}

func (r *Row) served(table *compat.Table) int {
	torches, pythons := []string{r.Torch}, []string{r.Python}
	series := table.TorchSeries()
	if r.TorchStable != "" {
		torches = torches[:0]
		from, _ := parseRelease(compat.Minor(r.TorchStable))
		for _, minor := range series {
			if v, ok := parseRelease(minor); ok && slices.Compare(v.parts, from.parts) >= 0 {
				versions := table.TorchVersions(minor)
				torches = append(torches, versions[len(versions)-1])
			}
		}
	}
	if r.ABI3 != "" {
		pythons = pythons[:0]
		least, _ := strconv.Atoi(strings.TrimPrefix(r.ABI3, "3."))
		for minor := least; minor < least+20; minor++ {
			pythons = append(pythons, fmt.Sprintf("3.%d", minor))
		}
	}
	n := 0
	for _, torch := range torches {
		if torch == "" { // of the Pythons, those count that the newest torch is for
			versions := table.TorchVersions(series[len(series)-1])
			torch = versions[len(versions)-1]
		}
		for _, python := range pythons {
			findings := table.Check(compat.Combo{OS: r.OS, Python: python, CUDA: r.CUDA, ROCm: r.ROCm, Torch: torch, Kind: r.Kind})
			if !slices.ContainsFunc(findings, func(f compat.Finding) bool { return f.Severity == compat.Error || f.Rule == compat.RuleTorchPython }) {
				n++
			}
		}
	}
	return max(n, 1)
}
