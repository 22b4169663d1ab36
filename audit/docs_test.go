package audit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestDocs: the page about the rules is made from their table.
func TestDocs(t *testing.T) {
	path := filepath.Join("..", "docs", "audit.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- rules: begin; written by go test ./audit -update -->\n", "<!-- rules: end -->\n"
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the rules", path)
	}
	var b strings.Builder
	b.WriteString("\n| rule | severity | means |\n| --- | --- | --- |\n")
	for _, r := range audit.Rules() {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s |\n", r.ID, r.ID, r.Severity, r.Title)
	}
	for _, r := range audit.Rules() {
		fmt.Fprintf(&b, "\n### %s\n\n%s (%s).\n\n**Cause.** %s\n\n**Fix.** %s\n", r.ID, r.Title, r.Severity, r.Cause, r.Fix)
	}
	b.WriteString("\n")
	want := before + begin + b.String() + end + after
	if kilntest.Update() {
		kilntest.WriteGolden(t, path, []byte(want))
		return
	}
	if diff := cmp.Diff(want, string(page)); diff != "" {
		t.Errorf("docs/audit.md is stale: run go test ./audit -run TestDocs -update\n(-want +got):\n%s", diff)
	}
}

// TestRules: every rule is complete, and ids are unique.
func TestRules(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range audit.Rules() {
		if seen[r.ID] {
			t.Errorf("two rules %s", r.ID)
		}
		seen[r.ID] = true
		if r.Severity == audit.Off || r.Title == "" || !strings.HasSuffix(r.Cause, ".") || !strings.HasSuffix(r.Fix, ".") {
			t.Errorf("rule %s is not complete", r.ID)
		}
		if found, ok := audit.LookupRule(r.ID); !ok || found != r {
			t.Errorf("rule %s is not found", r.ID)
		}
	}
}
