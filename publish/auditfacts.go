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
	"github.com/kiln-build/kiln/index"
)

// Audits says what is inside the wheels that enter an index. The report in the record of a build
// counts most: it knows the very torch that the wheel was built with. Other wheels are looked at.
type Audits struct {
	Log *slog.Logger

	mu      sync.Mutex
	reports map[string]map[string]*audit.Report // by folder of wheels and SHA-256
}

// Look is the Audit of [index.AddOptions].
func (a *Audits) Look(ctx context.Context, path string, sum index.Digest) (arch []string, results []index.AuditResult) {
	report := a.recorded(filepath.Dir(path), sum.String())
	if report == nil {
		var err error
		if report, err = audit.Check(ctx, path, audit.Options{NoTable: true, SkipDigests: true}); err != nil {
			// It says nothing about installing.
			a.Log.Warn("GPU code not looked at", "file", filepath.Base(path), "error", err)
			return nil, nil
		}
	}
	return auditFacts(report)
}

// recorded returns the report of a wheel with that hash, nil if there is none. A record that cannot
// be read is left out: the wheel is there.
func (a *Audits) recorded(dir, sum string) *audit.Report {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reports == nil {
		a.reports = map[string]map[string]*audit.Report{}
	}
	if a.reports[dir] == nil {
		a.reports[dir] = map[string]*audit.Report{}
		for r, err := range record.All(dir) {
			if err != nil {
				a.Log.Warn("record of a build left out", "error", err)
				continue
			}
			for _, f := range r.Files {
				if r.Audit != nil && f.Name == r.Audit.File {
					a.reports[dir][f.SHA256] = r.Audit
				}
			}
		}
	}
	return a.reports[dir][sum]
}

// auditFacts is what an index stores of a report: the GPU architectures that all libraries of the
// wheel have code for, and in short what is wrong, and what was looked at and is right.
func auditFacts(r *audit.Report) (archs []string, out []index.AuditResult) {
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
	return strings.Fields(r.Archs()), out
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
