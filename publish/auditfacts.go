package publish

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// Audits says what is inside the wheels that enter an index. The report in the record of a build
// counts most: it knows the very torch that the wheel was built with. Other wheels are looked at.
type Audits struct {
	Log *slog.Logger

	mu    sync.Mutex
	facts map[string]map[string]index.Facts // by folder of wheels and SHA-256
}

// Look is the Audit of [index.AddOptions].
func (a *Audits) Look(ctx context.Context, path string, sum index.Digest) index.Facts {
	if facts, ok := a.recorded(filepath.Dir(path), sum.String()); ok {
		return facts
	}
	report, err := audit.Check(ctx, path, audit.Options{SkipDigests: true})
	if err != nil {
		// It says nothing about installing.
		a.Log.Warn("GPU code not looked at", "file", filepath.Base(path), "error", err)
		return index.Facts{}
	}
	return auditFacts(report)
}

// recorded returns what the record of a wheel with that hash says. A record that cannot be read is
// left out: the wheel is there.
func (a *Audits) recorded(dir, sum string) (index.Facts, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.facts == nil {
		a.facts = map[string]map[string]index.Facts{}
	}
	if a.facts[dir] == nil {
		a.facts[dir] = map[string]index.Facts{}
		for r, err := range record.All(dir) {
			if err != nil {
				a.Log.Warn("record of a build left out", "error", err)
				continue
			}
			for _, f := range r.Files {
				if r.Audit != nil && f.Name == r.Audit.File {
					facts := recordFacts(r)
					if other, shared := a.facts[dir][f.SHA256]; shared {
						facts = mergeFacts(other, facts.Coordinates.Torch...)
					}
					if r.Reuse != nil { // linked with torch or not
						facts = mergeFacts(facts, compat.Minor(r.Reuse.Torch))
						if first, err := record.Read(dir, r.Reuse.Row); err == nil {
							facts = mergeFacts(facts, compat.Minor(first.Recipe.Row.Torch))
						}
					}
					a.facts[dir][f.SHA256] = facts
				}
			}
		}
	}
	facts, ok := a.facts[dir][sum]
	return facts, ok
}

// recordFacts is what an index stores of a wheel that was built and audited.
func recordFacts(r *record.Record) index.Facts {
	facts := auditFacts(r.Audit)
	facts.Coordinates = rowCoordinates(&r.Recipe.Row, usesTorch(r.Audit))
	return facts
}

// mergeFacts is what is stored of a wheel that serves rows with other torch releases, too.
func mergeFacts(facts index.Facts, more ...string) index.Facts {
	torches := slices.DeleteFunc(slices.Concat(facts.Coordinates.Torch, more), func(t string) bool { return t == "" })
	slices.SortFunc(torches, func(a, b string) int {
		va, _ := wheel.ParseVersion(a)
		vb, _ := wheel.ParseVersion(b)
		return va.Compare(vb)
	})
	facts.Coordinates.Torch = slices.Compact(torches)
	return facts
}

// rowCoordinates is for what the wheel of a row was built. The torch of the row counts if the wheel
// is linked with it; a package that only finds it at run time takes any.
func rowCoordinates(row *matrix.Row, linked bool) (c index.Coordinates) {
	if linked && row.Torch != "" {
		c.Torch = []string{compat.Minor(row.Torch)}
		if row.TorchStable != "" {
			c.Torch = torchesFrom(compat.Minor(row.TorchStable))
		}
		c.Toolkit = "cpu"
	}
	if tag := compat.ToolkitTag(row.CUDA, row.ROCm); tag != "" {
		c.Toolkit = tag
	}
	return c
}

// torchesFrom are the releases of torch on record from one on.
func torchesFrom(minor string) []string {
	list := []string{minor}
	from, err := wheel.ParseVersion(minor)
	for _, version := range audit.Builtins() {
		public, _, _ := strings.Cut(version, "+")
		next := compat.Minor(public)
		if v, bad := wheel.ParseVersion(next); err == nil && bad == nil && v.Compare(from) > 0 && !slices.Contains(list, next) {
			list = append(list, next)
		}
	}
	return list
}

// usesTorch reports whether a library of the wheel is linked with torch's.
func usesTorch(r *audit.Report) bool {
	return slices.ContainsFunc(r.Objects, func(o audit.Object) bool {
		return slices.ContainsFunc(o.Needed, func(name string) bool {
			name = strings.TrimPrefix(strings.ToLower(name), "lib")
			return strings.HasPrefix(name, "torch") || strings.HasPrefix(name, "c10")
		})
	})
}

// window are the minor versions of torch of which every release that was tried has all names.
func window(tried []audit.TorchVerdict) []string {
	var list []string
	bad := map[string]bool{}
	for _, v := range tried {
		public, _, _ := strings.Cut(v.Torch, "+")
		minor := compat.Minor(public)
		if bad[minor] = bad[minor] || !v.OK; !slices.Contains(list, minor) {
			list = append(list, minor)
		}
	}
	return slices.DeleteFunc(list, func(minor string) bool { return bad[minor] })
}

// auditFacts is what an index stores of a report: the GPU architectures that all libraries of the
// wheel have code for, and in short what is wrong, and what was looked at and is right.
func auditFacts(r *audit.Report) index.Facts {
	var out []index.AuditResult
	add := func(check, result, detail string) {
		if len(out) < index.MaxAuditResults {
			out = append(out, index.AuditResult{Check: oneLine(check), Result: result, Detail: oneLine(detail)})
		}
	}
	found := map[string]bool{}
	for _, f := range r.Findings {
		found[f.Rule] = true
		detail := f.Message
		if len(f.Details) > 0 {
			detail += ": " + strings.Join(f.Details[:min(3, len(f.Details))], ", ")
		}
		if f.File != "" {
			detail = f.File + ": " + detail
		}
		switch f.Severity {
		case audit.Error:
			add(f.Rule, "fail", detail)
		case audit.Warning:
			add(f.Rule, "warn", detail)
		default: // notes are for the build
		}
	}
	clean := func(rules ...string) bool {
		return !slices.ContainsFunc(rules, func(rule string) bool { return found[rule] })
	}
	if r.Torch != "" && clean(audit.RuleLibraryMissing, audit.RuleSymbolMissing, audit.RuleSymbolUnlinked, audit.RuleSymbolUnknown, audit.RuleCXXABI, audit.RuleTorchVersion) {
		add("symbols against torch "+r.Torch, "pass", "")
	}
	if p := r.Platform; p != nil && clean(audit.RulePlatform, audit.RulePlatformLibrary, audit.RuleMachine) {
		detail := ""
		if p.GLIBC != "" {
			detail = "needs glibc " + p.GLIBC
		}
		add("platform tag", "pass", detail)
	}
	if archs := r.Archs(); archs != "" && clean(audit.RuleArchMissing, audit.RuleArchUnreachable, audit.RuleArchUneven, audit.RuleGPUCode, audit.RuleNothingToRunOnGPU) {
		add("GPU code", "pass", archs)
	}
	facts := index.Facts{Arch: strings.Fields(r.Archs()), Window: window(r.WorksWith), Audit: out}
	if r.Platform != nil {
		facts.Glibc = compat.Minor(r.Platform.GLIBC)
	}
	return facts
}

// oneLine makes a text of foreign names fit for the index.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > index.MaxAuditText {
		s = strings.ToValidUTF8(s[:index.MaxAuditText-3], "") + "…"
	}
	return s
}
