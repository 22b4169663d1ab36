package index_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/sign"
)

// statement is one about files, given as names and hashes.
func statement(t *testing.T, signed bool, files ...string) []byte {
	t.Helper()
	var list []sign.Subject
	for i := 0; i < len(files); i += 2 {
		list = append(list, sign.NewSubject(files[i], files[i+1]))
	}
	text, err := json.Marshal(map[string]any{"_type": sign.StatementType, "subject": list})
	if err == nil && signed {
		text, err = sign.Seal(text, ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPapers: what goes with a wheel is stored if it is about that wheel, stays as it is but for a
// signature, is checked, and goes with the wheel.
func TestPapers(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	publish(t, store, indextest.Wheels(t, fa130)...)
	catalog, err := store.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := catalog.Project("flash-attn").File(fa130)
	bom := `{"bomFormat": "CycloneDX"}`
	wheel, sum := f.SHA256.String(), fmt.Sprintf("%x", sha256.Sum256([]byte(bom)))
	bomName, name := fa130+index.SBOMSuffix, fa130+index.ProvenanceSuffix
	other := strings.Repeat("1", 64)
	for i, step := range []struct{ name, text, want string }{
		{strings.Replace(bomName, "2.8.3", "2.8.4", 1), bom, "upload that first"},
		{bomName, `{"bomFormat": "SPDX"}`, "is no bill of materials"},
		{bomName, bom, "added"},
		{bomName, bom, "unchanged"},
		{bomName, bom + " ", "published with sha256"},
		{name, "no statement", "cannot be read"},
		{name, string(statement(t, false, bomName, sum)), "is not about"},
		{name, string(statement(t, false, fa130, other)), "the statement says"},
		{name, string(statement(t, false, fa130, wheel, bomName, other)), "the statement says"},
		{name, string(statement(t, false, fa130, wheel, fa130+index.MetadataSuffix, other)), "the statement says"},
		{name, string(statement(t, false, fa130, wheel, bomName, sum)), "added"},
		{name, string(statement(t, false, fa130, wheel)), "published with sha256"},
		{name, string(statement(t, true, fa130, wheel)), "published with sha256"},
		{name, string(statement(t, true, fa130, wheel, bomName, sum)), "added"},
		{name, string(statement(t, true, fa130, wheel, bomName, sum)), "unchanged"},
		{name, string(statement(t, false, fa130, wheel, bomName, sum)), "published with sha256"},
	} {
		change, err := store.AddPaper(t.Context(), step.name, []byte(step.text))
		got := fmt.Sprint(change.Action, " ", err)
		if problem := new(index.Problem); err != nil && !errors.As(err, problem) || !strings.Contains(got, step.want) || err == nil && change.Action != step.want {
			t.Errorf("step %d: %s, want %q", i, got, step.want)
		}
		checkIndex(t, store)
	}
	path := filepath.Join(dir, filepath.FromSlash(f.HostedPath())) + index.ProvenanceSuffix
	if err := os.WriteFile(path, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	report, err := store.Check(t.Context(), index.CheckOptions{})
	if err != nil || len(report.Findings) != 1 || report.Findings[0].Rule != "paper" {
		t.Errorf("%v, %+v", err, report.Findings)
	}
	if _, err := store.Remove(t.Context(), "flash-attn", func(*index.File) bool { return true }); err != nil {
		t.Fatal(err)
	}
	checkIndex(t, store)
}
