package build

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// Serves says whether a wheel serves rows with another torch than it was built for, by the report of
// its audit, and why or why not: all names are there, laid out as they were, with the same C++ ABI.
// That the CUDA and the Python are the same is for the caller to know.
func Serves(r *audit.Report, torch string) (reason string, ok bool) {
	abi := r.TorchABI
	if abi == nil {
		return "the audit did not look at torch", false
	}
	if abi.Kind == audit.TorchAny {
		return "it uses nothing of torch's libraries", true
	}
	v := r.VerdictOf(torch)
	switch {
	case abi.Kind == audit.TorchStable && !older(torch, abi.From):
		return "it uses only the stable ABI, " + abi.From + " and later", true
	case v == nil:
		return "torch " + torch + " is not on record", false
	case !v.OK:
		return "torch " + torch + " " + lacks(v.Reason), false
	}
	return "torch " + torch + " has all its names, laid out alike", true
}

func lacks(reason string) string {
	if what, ok := strings.CutPrefix(reason, "no "); ok {
		return "lacks " + what
	}
	return reason
}

func older(a, b string) bool {
	va, errA := wheel.ParseVersion(a)
	vb, errB := wheel.ParseVersion(b)
	return errA != nil || errB != nil || va.Compare(vb) < 0
}

// ReuseClass is rows of which one is compiled and the others are expected to be served by its wheel.
type ReuseClass struct {
	// Rows are their ids; the first is the one to compile, which has the oldest torch.
	Rows []string
	// Key is shared by classes whose rows differ in torch alone.
	Key string
}

// ReuseClasses sorts rows that may be served by each other's wheels. Before anything is built, it is
// known of two torch releases whether they lay out the classes alike that every extension inlines;
// what is known of finished wheels counts more, and is looked at when a row is built. settings are
// those of the rows.
func ReuseClasses(rows []matrix.Row, settings func(id string) matrix.Settings, table *compat.Table) []ReuseClass {
	groups := map[string][]matrix.Row{}
	var keys []string
	for i := range rows {
		s := settings(rows[i].ID)
		if s.Reuse == "" || rows[i].Torch == "" {
			continue
		}
		key := reuseKey(&rows[i], s)
		if groups[key] == nil {
			keys = append(keys, key)
		}
		groups[key] = append(groups[key], rows[i])
	}
	var out []ReuseClass
	for _, key := range keys {
		group := groups[key]
		slices.SortStableFunc(group, func(a, b matrix.Row) int {
			va, _ := wheel.ParseVersion(a.Torch)
			vb, _ := wheel.ParseVersion(b.Torch)
			return va.Compare(vb)
		})
		first := &group[0]
		for i := range group {
			row := &group[i]
			if i == 0 || !audit.BuiltinLayouts().Alike(first.Torch, row.Torch) || cxx11ABI(first, table) != cxx11ABI(row, table) {
				out = append(out, ReuseClass{Key: key})
				first = row
			}
			last := &out[len(out)-1]
			last.Rows = append(last.Rows, row.ID)
		}
	}
	return out
}

func cxx11ABI(r *matrix.Row, table *compat.Table) bool {
	abi, _ := table.CXX11ABI(r.Torch, r.CUDA, r.ROCm, r.OS)
	return abi
}

// reuseKey is equal for rows that differ in nothing but their torch and what is named after it.
func reuseKey(row *matrix.Row, s matrix.Settings) string {
	r := *row
	r.ID, r.Digest, r.Torch, r.BuildTag = "", "", "", ""
	s.Resources, s.Description, s.Audit, s.Test = matrix.ResourceSettings{}, "", nil, matrix.TestSettings{}
	text, _ := json.Marshal([]any{r, s}) // plain data, cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// arrange lets the rows of a class begin after the one that is compiled for it, and classes that
// differ in torch alone after the first of them: a wheel may serve more than could be foreseen.
func arrange(classes []ReuseClass, jobs []engine.Job) {
	after, leader := map[string][]string{}, map[string]string{}
	for _, c := range classes {
		first := cmp.Or(leader[c.Key], c.Rows[0])
		leader[c.Key] = first
		for i, id := range c.Rows {
			if i > 0 {
				after[id] = append(after[id], c.Rows[0])
			} else if id != first {
				after[id] = append(after[id], first)
			}
		}
	}
	for i := range jobs {
		jobs[i].After = after[jobs[i].ID]
	}
}

// nameDonors writes into the recipes whose wheels may serve their rows. The classes are those of the
// whole plan: a wheel may be in dist/ from an earlier build, or from another job of a hosted
// workflow. digest is that of the files of a row, "" if it is not known.
func nameDonors(classes []ReuseClass, recipes map[string]*record.Recipe, digest func(id string) string) {
	groups := map[string][]string{}
	for _, c := range classes {
		groups[c.Key] = append(groups[c.Key], c.Rows...)
	}
	for _, group := range groups {
		if !slices.ContainsFunc(group, func(id string) bool { return recipes[id] != nil }) {
			continue
		}
		var donors []record.Donor
		for _, id := range group {
			if d := digest(id); d != "" {
				donors = append(donors, record.Donor{Row: id, BuildDigest: d})
			}
		}
		for _, id := range group {
			if r := recipes[id]; r != nil {
				r.Donors = slices.DeleteFunc(slices.Clone(donors), func(d record.Donor) bool { return d.Row == id })
			}
		}
	}
}

// donor is the record of a row whose wheel should serve this one, nil if there is none.
func (a *attempt) donor() (found *record.Record, reason string) {
	for _, d := range a.Donors {
		old, err := record.Read(a.builder.DistDir, d.Row)
		if err != nil || old.Reuse != nil || old.Recipe.BuildDigest != d.BuildDigest || old.Audit == nil || old.Audit.Worst() == audit.Error {
			continue
		}
		why, ok := Serves(old.Audit, a.Row.Torch)
		if !ok {
			fmt.Fprintf(a.log, "the wheel of %s does not do: %s\n", d.Row, why)
			continue
		}
		if err := a.builder.intact(old.Files); err != nil {
			fmt.Fprintf(a.log, "the wheel of %s does not do: %v\n", d.Row, err)
			continue
		}
		return old, why
	}
	return nil, ""
}

// prove tests the wheel of another row with this row's torch. A wheel that fails is left alone, and
// the row is compiled.
func prove(ctx context.Context, a *attempt) error {
	if a.Settings.Reuse == "" || a.reused || a.given != "" || a.builder.Rebuild {
		return skip("the row is not to be served by another one's wheel")
	}
	old, reason := a.donor()
	if old == nil {
		return skip("no wheel of another row serves this one")
	}
	if a.Settings.Test.RequiresGPU && !a.builder.HaveGPU {
		return skip("the wheel of %s cannot be proven: the test needs a GPU, and this machine has none", old.Recipe.Row.ID)
	}
	fmt.Fprintf(a.log, "the wheel of %s: %s\n", old.Recipe.Row.ID, reason)
	whole, before := a.Recipe, a.record
	a.take(old)
	if a.Settings.Reuse == "import" {
		recipe := *a.Recipe
		recipe.Settings.Test.Expressions, recipe.Settings.Test.Command, recipe.Settings.Test.Before, recipe.Settings.Test.Files = nil, nil, nil, nil
		a.Recipe = &recipe
	}
	err := testFiles(ctx, a)
	a.Recipe = whole
	if err == nil {
		a.reused, a.proven = true, true
		a.record.Reuse = &record.Reuse{Row: old.Recipe.Row.ID, Torch: a.Row.Torch, Proof: a.Settings.Reuse, Reason: reason}
		return nil
	}
	explained := a.explain(ctx, err)
	if cause := engine.CauseOf(explained); ctx.Err() != nil || cause != engine.CauseFault {
		return err // nothing was shown
	}
	// What was loaded is of no use to the next stages; the log has it.
	commands := a.record.Commands
	a.record, a.files = before, nil
	a.record.Commands = commands
	a.warn("the wheel of %s does not serve this row, so it is compiled: %v", old.Recipe.Row.ID, err)
	closed := a.close(ctx)
	a.openers = nil
	return errors.Join(closed, os.RemoveAll(a.testDir()), os.MkdirAll(a.testDir(), 0o777))
}

// take makes the files of an earlier build, of this row or of another one, those of the attempt.
func (a *attempt) take(old *record.Record) {
	for _, f := range old.Files {
		a.files = append(a.files, filepath.Join(a.builder.DistDir, f.Name))
	}
	a.record.Files, a.record.TopLevel, a.record.Requires, a.record.NativeModules = old.Files, old.TopLevel, old.Requires, old.NativeModules
	built := old.BuiltAt()
	a.record.Built, a.record.Compiles, a.record.Audit = &built, old.Compiles, old.Audit
}

// keptProof says whether what was proven still counts for the settings of a row.
func keptProof(proof, wanted string) bool {
	return proof == "" || proof == wanted || proof == "tests" && wanted == "import"
}

// Expected is a row that is not to be compiled, and why.
type Expected struct {
	Row string `json:"row"`
	// From is the row whose wheel serves it.
	From   string `json:"from"`
	Proof  string `json:"proof"` // import or tests
	Reason string `json:"reason"`
	// Proven says that it was proven in an earlier build; otherwise it will be tried.
	Proven bool `json:"proven"`
}

// ExpectReuse says which rows of a plan need no compiler. known returns the record of a row whose
// files are what the plan asks for now, or nil.
func ExpectReuse(plan *matrix.Plan, table *compat.Table, known func(row *matrix.Row) *record.Record) []Expected {
	settings := func(id string) matrix.Settings { s, _ := plan.Settings(id); return s }
	rows := map[string]*matrix.Row{}
	for i := range plan.Rows {
		rows[plan.Rows[i].ID] = &plan.Rows[i]
	}
	classes := ReuseClasses(plan.Rows, settings, table)
	records, wheels := map[string]*record.Record{}, map[string][]*record.Record{}
	for _, c := range classes {
		for _, id := range c.Rows {
			if r := known(rows[id]); r != nil {
				records[id] = r
				if r.Reuse == nil && r.Audit != nil {
					wheels[c.Key] = append(wheels[c.Key], r)
				}
			}
		}
	}
	var out []Expected
	for _, c := range classes {
		for i, id := range c.Rows {
			e := Expected{Row: id, Proof: settings(id).Reuse}
			switch r := records[id]; {
			case r != nil && r.Reuse == nil:
				continue
			case r != nil && keptProof(r.Reuse.Proof, e.Proof):
				e.From, e.Proof, e.Reason, e.Proven = r.Reuse.Row, r.Reuse.Proof, r.Reuse.Reason, true
			default:
				for _, w := range wheels[c.Key] {
					if why, ok := Serves(w.Audit, rows[id].Torch); ok {
						e.From, e.Reason = w.Recipe.Row.ID, why
						break
					}
				}
				if e.From == "" && i > 0 && records[c.Rows[0]] == nil {
					e.From, e.Reason = c.Rows[0], "both releases of torch lay out alike what extensions inline"
				}
			}
			if e.From != "" {
				out = append(out, e)
			}
		}
	}
	return out
}
