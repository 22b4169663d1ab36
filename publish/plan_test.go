package publish_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
	address "github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/publish/publishtest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var noon = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// unit makes a distribution with what goes with it.
func unit(version, name string) publish.Unit {
	file := func(name string) publish.LocalFile {
		return publish.LocalFile{Name: name, Size: int64(len(name)), SHA256: publishtest.Sum([]byte(name)), Data: []byte(name)}
	}
	return publish.Unit{
		Row: matrix.Row{ID: "demo-" + version + "-cpu-" + name, Package: "demo", Version: version}, Record: &record.Record{},
		File: file(name), Side: []publish.LocalFile{file(name + ".metadata")},
	}
}

func remote(f publish.LocalFile) publish.RemoteFile {
	return publish.RemoteFile{Name: f.Name, Size: f.Size, SHA256: f.SHA256, Uploaded: noon}
}

// actions writes a plan as lines.
func actions(p *publish.Plan) []string {
	out := []string{}
	for _, a := range p.Actions {
		out = append(out, a.Do+" "+a.Tag+" "+a.File.Name)
	}
	return out
}

func TestPlan(t *testing.T) {
	a, b := unit("1.0", "a.whl"), unit("1.0", "b.whl")
	there := publish.Release{Tag: "v1.0", Created: noon, Files: []publish.RemoteFile{remote(a.File), remote(a.Side[0])}}
	other := there
	other.Files = []publish.RemoteFile{{Name: "a.whl", Size: 5, SHA256: "other"}, remote(a.Side[0])}
	silent := there
	silent.Files = []publish.RemoteFile{{Name: "a.whl", Size: 5}, remote(a.Side[0])}
	papers := there
	papers.Files = []publish.RemoteFile{remote(a.File), {Name: "a.whl.metadata", Size: 1, SHA256: "first"}}
	half := publish.Release{Tag: "v1.0", Files: []publish.RemoteFile{{Name: "a.whl.metadata", Size: 1, SHA256: "cut"}}}
	tests := []struct {
		name     string
		existing []publish.Release
		limits   publish.Limits
		opts     publish.PlanOptions
		want     []string
	}{
		{name: "nothing there", want: []string{"upload v1.0 a.whl.metadata", "upload v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "half there", existing: []publish.Release{there}, want: []string{"present v1.0 a.whl.metadata", "present v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "other bytes", existing: []publish.Release{other}, want: []string{"refuse v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "overwrite", existing: []publish.Release{other}, opts: publish.PlanOptions{Overwrite: true}, want: []string{"present v1.0 a.whl.metadata", "replace v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "never overwrite", existing: []publish.Release{other}, limits: publish.Limits{NoOverwrite: true}, opts: publish.PlanOptions{Overwrite: true}, want: []string{"refuse v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "no hash", existing: []publish.Release{silent}, want: []string{"present v1.0 a.whl.metadata", "check v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "the first papers stay", existing: []publish.Release{papers}, want: []string{"present v1.0 a.whl.metadata", "present v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "left over", existing: []publish.Release{half}, want: []string{"replace v1.0 a.whl.metadata", "upload v1.0 a.whl", "upload v1.0 b.whl.metadata", "upload v1.0 b.whl"}},
		{name: "too large", limits: publish.Limits{FileBytes: 4}, want: []string{"refuse v1.0 a.whl", "refuse v1.0 b.whl"}},
		{name: "wheels only", limits: publish.Limits{WheelsOnly: true, Flat: true}, want: []string{"upload  a.whl", "upload  b.whl"}},
		{name: "split", limits: publish.Limits{ReleaseFiles: 3}, want: []string{"upload v1.0 a.whl.metadata", "upload v1.0 a.whl", "upload v1.0-part2 b.whl.metadata", "upload v1.0-part2 b.whl"}},
		{name: "date", opts: publish.PlanOptions{Tag: "v{date}.{counter}"}, want: []string{"upload v2026-08-01.1 a.whl.metadata", "upload v2026-08-01.1 a.whl", "upload v2026-08-01.1 b.whl.metadata", "upload v2026-08-01.1 b.whl"}},
		{
			name: "second release of a day", opts: publish.PlanOptions{Tag: "v{date}.{counter}"},
			existing: []publish.Release{{Tag: "v2026-08-01.1", Created: noon, Files: there.Files}},
			want:     []string{"present v2026-08-01.1 a.whl.metadata", "present v2026-08-01.1 a.whl", "upload v2026-08-01.2 b.whl.metadata", "upload v2026-08-01.2 b.whl"},
		},
		{
			name: "a release of yesterday that was not finished", opts: publish.PlanOptions{Tag: "v{date}.{counter}"},
			existing: []publish.Release{{Tag: "v2026-07-31.3", Files: there.Files}},
			want:     []string{"present v2026-07-31.3 a.whl.metadata", "present v2026-07-31.3 a.whl", "upload v2026-07-31.3 b.whl.metadata", "upload v2026-07-31.3 b.whl"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.opts.Now = noon
			p, err := publish.NewPlan("t", test.limits, &publish.Inventory{Units: []publish.Unit{a, b}}, test.existing, test.opts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, actions(p)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	_, err := publish.NewPlan("t", publish.Limits{}, &publish.Inventory{Units: []publish.Unit{b}}, []publish.Release{{Tag: "v2026-08-01", Created: noon}}, publish.PlanOptions{Tag: "v{date}", Now: noon})
	if err == nil || !strings.Contains(err.Error(), "{counter}") {
		t.Errorf("two releases on one day: %v", err)
	}
	for _, tag := range []string{"v {version}", "a/b", "-x", "x..y", "x.lock"} {
		if _, err := publish.NewPlan("t", publish.Limits{}, &publish.Inventory{Units: []publish.Unit{a}}, nil, publish.PlanOptions{Tag: tag, Now: noon}); err == nil {
			t.Errorf("the tag %q was taken", tag)
		}
	}
}

// TestPlanRival: a name that only spells a published build in another way is not uploaded.
func TestPlanRival(t *testing.T) {
	published := unit("1.0", "demo-1.0-py3-none-any.whl")
	there := []publish.Release{{Tag: "v1.0", Created: noon, Files: []publish.RemoteFile{remote(published.File), remote(published.Side[0])}}}
	for name, want := range map[string]string{
		"demo-1.0-py3.py3-none-any.whl": "refuse", "demo-1.0-1-py3-none-any.whl": "refuse", "demo-1.0.0-PY3-none-any.whl": "refuse",
		"demo-1.0-cp312-cp312-win_amd64.whl": "upload", "demo-1.1-py3-none-any.whl": "upload", "other-1.0-py3-none-any.whl": "upload",
	} {
		plan, err := publish.NewPlan("t", publish.Limits{}, &publish.Inventory{Units: []publish.Unit{unit("1.0", name)}}, there, publish.PlanOptions{Now: noon})
		must(t, err)
		last := plan.Actions[len(plan.Actions)-1]
		if last.Do != want || want == "refuse" && !strings.Contains(last.Why, published.File.Name) {
			t.Errorf("%s: %s %q, want %s", name, last.Do, last.Why, want)
		}
	}
}

// TestPlanProperties: a plan loses no file, puts none into two releases, keeps units together and
// within the limit; and what it did is a plan with nothing to do.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := publish.Limits{ReleaseFiles: rapid.IntRange(2, 7).Draw(t, "limit")}
		opts := publish.PlanOptions{Now: noon, Tag: rapid.SampledFrom([]string{"v{version}", "{package}-{version}", "v{date}.{counter}"}).Draw(t, "tag")}
		inv := &publish.Inventory{}
		for i := range rapid.IntRange(1, 12).Draw(t, "units") {
			inv.Units = append(inv.Units, unit(rapid.SampledFrom([]string{"1.0", "2.0"}).Draw(t, "version"), fmt.Sprintf("f%d.whl", i)))
		}
		state := map[string]*publish.Release{}
		apply := func(p *publish.Plan, n int) []publish.Release {
			for _, a := range p.Actions[:min(n, len(p.Actions))] {
				if state[a.Tag] == nil {
					state[a.Tag] = &publish.Release{Tag: a.Tag, Created: noon}
				}
				if state[a.Tag].File(a.File.Name) == nil {
					state[a.Tag].Files = append(state[a.Tag].Files, remote(a.File))
				}
			}
			var out []publish.Release
			for _, r := range state {
				out = append(out, *r)
			}
			return out
		}
		p, err := publish.NewPlan("t", limits, inv, nil, opts)
		if err != nil {
			t.Fatal(err)
		}
		// Cut off anywhere, then to the end.
		existing := apply(p, rapid.IntRange(0, len(p.Actions)).Draw(t, "cut"))
		if p, err = publish.NewPlan("t", limits, inv, existing, opts); err != nil {
			t.Fatal(err)
		}
		existing = apply(p, len(p.Actions))
		where := map[string]string{}
		for _, r := range existing {
			if len(r.Files) > limits.ReleaseFiles {
				t.Fatalf("%s has %d files, limit %d", r.Tag, len(r.Files), limits.ReleaseFiles)
			}
			for _, f := range r.Files {
				if where[f.Name] != "" {
					t.Fatalf("%s is in %s and %s", f.Name, where[f.Name], r.Tag)
				}
				where[f.Name] = r.Tag
			}
		}
		for _, u := range inv.Units {
			if where[u.File.Name] == "" || where[u.File.Name] != where[u.Side[0].Name] {
				t.Fatalf("%s is in %q, and what goes with it in %q", u.File.Name, where[u.File.Name], where[u.Side[0].Name])
			}
		}
		if p, err = publish.NewPlan("t", limits, inv, existing, opts); err != nil || p.Count(publish.DoPresent) != len(p.Actions) {
			t.Fatalf("a second plan does something: %v, %v", actions(p), err)
		}
	})
}

func TestPrune(t *testing.T) {
	day := 24 * time.Hour
	release := func(tag string, age time.Duration, names ...string) publish.Release {
		r := publish.Release{Tag: tag, Created: noon.Add(-age)}
		for _, n := range names {
			r.Files = append(r.Files, publish.RemoteFile{Name: n, Uploaded: noon.Add(-age)})
		}
		return r
	}
	releases := []publish.Release{
		release("v1", 100*day, "demo-1-cp311-cp311-linux_x86_64.whl", "demo-1-cp311-cp311-linux_x86_64.whl.metadata", "demo-1-cp310-cp310-linux_x86_64.whl"),
		release("v2", 50*day, "demo-2-cp311-cp311-linux_x86_64.whl"),
		release("v3", day, "demo-3-cp311-cp311-linux_x86_64.whl", "notes.txt"),
	}
	for _, test := range []struct {
		keep publish.Keep
		want []string
	}{
		{publish.Keep{}, nil},
		{publish.Keep{Age: 90 * day}, []string{"demo-1-cp311-cp311-linux_x86_64.whl", "demo-1-cp311-cp311-linux_x86_64.whl.metadata"}},
		{publish.Keep{Releases: 1}, []string{"demo-1-cp311-cp311-linux_x86_64.whl", "demo-1-cp311-cp311-linux_x86_64.whl.metadata", "demo-2-cp311-cp311-linux_x86_64.whl"}},
		{publish.Keep{Releases: 3, Age: 200 * day}, nil},
	} {
		var got []string
		for _, r := range publish.PlanPrune(releases, test.keep, noon) {
			got = append(got, r.File.Name)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.keep, diff)
		}
	}
}

// TestNotes: notes are made of the facts, and always the same.
func TestNotes(t *testing.T) {
	p := publishtest.NewProject(t, `
packages:
  demo:
    versions: ["1.0"]
    matrix:
      - {cuda: "12.8.1", torch: "2.9.0", python: ["3.12", "3.13"], arch: "8.0 9.0+PTX"}
    include: [{kind: sdist, python: "3.12"}]
`, 10)
	must(t, os.Remove(p.Record(&p.Plan.Rows[1])))
	must(t, fail(p.Dist, &p.Plan.Rows[1], "nvcc was killed: out of memory; set resources.memory_per_job"))
	inv := p.Inventory(t)
	inv.Units[0].Archs, inv.Units[0].Warnings = "8.0 9.0+PTX", []string{"arch-extra: more | than asked"}
	inv.Rows = append(inv.Rows, publish.RowState{ID: "demo-1.0-cu118-torch2.9.0-cp312-linux_x86_64", State: publish.RowSkipped, Reason: "excluded"})
	target, err := publish.NewDir(filepath.Join(t.TempDir(), "public"), publish.DirOptions{URL: "https://wheels.example.org/"})
	must(t, err)
	result, err := publish.Run(t.Context(), target, inv, publish.Options{PlanOptions: publish.PlanOptions{Now: noon}, Owner: "tester", Notes: publish.NotesOptions{IndexURL: "https://index.example.org"}})
	must(t, err)
	kilntest.Golden(t, "testdata/notes.md", []byte(result.Releases[0].Notes))
}

// fail writes why a row failed.
func fail(dist string, row *matrix.Row, reason string) error {
	return record.Failure{Row: row.ID, Digest: row.Digest, Reason: reason}.Write(record.FailurePath(dist, row.ID))
}

// TestInventory: every reason not to publish a row.
func TestInventory(t *testing.T) {
	p := publishtest.NewProject(t, publishtest.Document, 10)
	row := &p.Plan.Rows[0]
	edit := func(old, now string) {
		text, err := os.ReadFile(p.Record(row))
		must(t, err)
		if !strings.Contains(string(text), old) {
			t.Fatalf("the record has no %s", old)
		}
		must(t, os.WriteFile(p.Record(row), []byte(strings.ReplaceAll(string(text), old, now)), 0o666))
	}
	for name, test := range map[string]struct {
		change func()
		state  string
	}{
		"ready":     {func() {}, publish.RowReady},
		"no record": {func() { must(t, os.Remove(p.Record(row))) }, publish.RowMissing},
		"failed there": {func() {
			must(t, os.Remove(p.Record(row)))
			must(t, fail(p.Dist, row, "nvcc: out of memory\nand more"))
		}, publish.RowFailed},
		"failed before": {func() {
			must(t, os.Remove(p.Record(row)))
			older := *row
			older.Digest = strings.Repeat("0", len(row.Digest))
			must(t, fail(p.Dist, &older, "nvcc: out of memory"))
		}, publish.RowMissing},
		"failed, then built": {func() { must(t, fail(p.Dist, row, "nvcc: out of memory")) }, publish.RowReady},
		"test failed":        {func() { edit(`"passed"`, `"failed"`) }, publish.RowRejected},
		"not tested":         {func() { edit(`"passed"`, `"not run"`) }, publish.RowUntested},
		"audit error":        {func() { edit(`"findings": []`, `"findings": [{"rule": "x", "severity": "error", "message": "no"}]`) }, publish.RowRejected},
		"not audited":        {func() { edit(`"audit": {`, `"audited": {`) }, publish.RowRejected},
		"older":              {func() { edit(row.Digest, strings.Repeat("0", len(row.Digest))) }, publish.RowStale},
		"file gone":          {func() { must(t, os.Remove(filepath.Join(p.Dist, row.Files()[0]))) }, publish.RowMissing},
		"file changed":       {func() { must(t, os.WriteFile(filepath.Join(p.Dist, row.Files()[0]), []byte("x"), 0o666)) }, publish.RowRejected},
		"record broken":      {func() { must(t, os.WriteFile(p.Record(row), []byte("{"), 0o666)) }, publish.RowRejected},
	} {
		p.Finish(t, row, "", 10)
		must(t, os.RemoveAll(filepath.Join(p.Dist, "failures")))
		test.change()
		inv, err := publish.ReadInventory(t.Context(), p.Dist, p.Plan.Rows[:1], publish.InventoryOptions{})
		must(t, err)
		if inv.Rows[0].State != test.state || (len(inv.Units) > 0) != (test.state == publish.RowReady) {
			t.Errorf("%s: %+v, want %s", name, inv.Rows[0], test.state)
		}
		if test.state == publish.RowFailed && inv.Rows[0].Reason != "nvcc: out of memory" {
			t.Errorf("%s: %q", name, inv.Rows[0].Reason)
		}
	}
}

// TestRetryWaits: the pauses are those that the server asks for, in the time of the bubble.
func TestRetryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		n := 0
		err := publish.RetryDo(t.Context(), publish.Retry{}, func() error {
			if n++; n < 3 {
				return publish.NewTestHTTPError(503, 90*time.Second)
			}
			return nil
		})
		if waited := time.Since(start); err != nil || waited != 3*time.Minute {
			t.Errorf("waited %s, %v; want 3m", waited, err)
		}
		start, n = time.Now(), 0
		err = publish.RetryDo(t.Context(), publish.Retry{Tries: 5}, func() error { n++; return publish.NewTestHTTPError(502, 0) })
		if waited := time.Since(start); err == nil || n != 5 || waited < 3*time.Second || waited > 20*time.Second {
			t.Errorf("%d attempts in %s, %v", n, waited, err)
		}
		n = 0
		if err = publish.RetryDo(t.Context(), publish.Retry{}, func() error { n++; return publish.NewTestHTTPError(404, 0) }); err == nil || n != 1 {
			t.Errorf("%d attempts at what is not there, %v", n, err)
		}
		if err = publish.RetryDo(t.Context(), publish.Retry{}, func() error { return publish.NewTestHTTPError(503, 24*time.Hour) }); err == nil || !strings.Contains(err.Error(), "asks to wait") {
			t.Errorf("a day: %v", err)
		}
	})
}

// papers are a wheel of a project in a folder of its own, with all that is published with it.
type papers struct {
	built *record.Record
	wheel string // its path
	row   string
}

func (p *papers) write(t *testing.T, suffix string, text []byte) {
	t.Helper()
	must(t, os.WriteFile(p.wheel+suffix, text, 0o666))
}

func newPapers(t *testing.T, opts publish.StatementOptions) *papers {
	t.Helper()
	project := publishtest.NewProject(t, publishtest.Document, 10)
	opts.Version = "test"
	inv, err := publish.ReadInventory(t.Context(), project.Dist, project.Plan.Rows, publish.InventoryOptions{Statement: opts})
	must(t, err)
	u := inv.Units[0]
	p := &papers{built: u.Record, wheel: filepath.Join(t.TempDir(), u.File.Name), row: u.Row.ID}
	data, err := os.ReadFile(u.File.Path)
	must(t, err)
	p.write(t, "", data)
	if len(u.Side) != 3 {
		t.Fatalf("%d files go with the wheel, want 3", len(u.Side))
	}
	for _, f := range u.Side {
		p.write(t, strings.TrimPrefix(f.Name, u.File.Name), f.Data)
	}
	return p
}

func trust(t *testing.T, paths ...string) *sign.Trust {
	t.Helper()
	out := &sign.Trust{}
	for _, path := range paths {
		public, err := sign.ReadPublicKey(path)
		must(t, err)
		k, err := sign.NewTrustedKey(filepath.Base(path), public)
		must(t, err)
		out.Add(k)
	}
	return out
}

func TestProvenance(t *testing.T) {
	dir := t.TempDir()
	private, public := publishtest.Keys(t, dir, "a")
	_, stranger := publishtest.Keys(t, dir, "b")
	key, err := sign.ReadPrivateKey(private)
	must(t, err)
	p := newPapers(t, publish.StatementOptions{})
	plain, err := os.ReadFile(p.wheel + ".intoto.jsonl")
	must(t, err)
	kilntest.Golden(t, "testdata/statement.jsonl", plain)
	sbom, err := os.ReadFile(p.wheel + ".cdx.json")
	must(t, err)
	kilntest.Golden(t, "testdata/sbom.cdx.json", sbom)
	again, err := os.ReadFile(newPapers(t, publish.StatementOptions{}).wheel + ".intoto.jsonl")
	must(t, err)
	if string(plain) != string(again) {
		t.Error("equal records give different statements")
	}
	when := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	signed, err := publish.NewStatement(p.built, p.built.Files[0], nil, &publish.StatementOptions{Version: "test", Key: key, Signed: when})
	must(t, err)
	both := trust(t, stranger, public)
	if _, signer, err := publish.ParseStatement(signed, both); err != nil || signer.Name != "a.pub" {
		t.Errorf("signed by %v, %v", signer, err)
	}
	for name, text := range map[string][]byte{"another key": signed, "no signature": plain} {
		if _, _, err := publish.ParseStatement(text, trust(t, stranger)); !errors.Is(err, sign.ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Every changed byte is noticed: in the payload by the signature, elsewhere by the form.
	for i := range signed {
		changed := append([]byte{}, signed...)
		changed[i] ^= 1
		if s, _, err := publish.ParseStatement(changed, both); err == nil {
			want, _, _ := publish.ParseStatement(signed, both)
			if diff := cmp.Diff(want, s); diff != "" {
				t.Errorf("byte %d changed unnoticed:\n%s", i, diff)
			}
		}
	}
	verdict := func() *publish.Verdict {
		v, err := publish.Verify(t.Context(), p.wheel, publish.VerifyOptions{})
		must(t, err)
		return v
	}
	if v := verdict(); !v.OK() || v.Signed || v.Row != p.row || v.Test != "passed" || v.SBOM == "" || len(v.Notes) > 0 {
		t.Errorf("verdict %+v", v)
	}
	data, err := os.ReadFile(p.wheel)
	must(t, err)
	p.write(t, "", append(data, 0))
	if v := verdict(); len(v.Problems) != 3 {
		t.Errorf("a changed wheel: %q, want that it cannot be read, and that provenance and bill of materials are of others", v.Problems)
	}
}

// TestSignedPapers: what goes with a wheel is in the signed statement, so that it can be neither
// changed nor emptied nor deleted unnoticed.
func TestSignedPapers(t *testing.T) {
	private, public := publishtest.Keys(t, t.TempDir(), "a")
	key, err := sign.ReadPrivateKey(private)
	must(t, err)
	for _, tt := range []struct{ suffix, change, want string }{
		{"", "", ""},
		{".cdx.json", "changed", "the bill of materials was changed"},
		{".cdx.json", "emptied", "the bill of materials was changed"},
		{".cdx.json", "deleted", "the bill of materials is missing"},
		{".metadata", "changed", "the metadata was changed"},
		{".metadata", "emptied", "the metadata was changed"},
		{".metadata", "deleted", "the metadata is missing"},
	} {
		p := newPapers(t, publish.StatementOptions{Key: key, Signed: time.Now()})
		name := p.wheel + tt.suffix
		text, err := os.ReadFile(name)
		must(t, err)
		switch tt.change {
		case "changed": // still a valid file about the same wheel
			p.write(t, tt.suffix, bytes.Replace(text, []byte("numpy"), []byte("dumpy"), 1))
			if tt.suffix == ".metadata" {
				p.write(t, tt.suffix, append(text, "Requires-Dist: evil\n"...))
			}
		case "emptied":
			p.write(t, tt.suffix, nil)
		case "deleted":
			must(t, os.Remove(name))
		}
		for _, keys := range []*sign.Trust{nil, trust(t, public)} {
			v, err := publish.Verify(t.Context(), p.wheel, publish.VerifyOptions{Trust: keys})
			must(t, err)
			if tt.want == "" {
				if !v.OK() || keys != nil && v.SignerName != "a.pub" {
					t.Errorf("nothing changed: %+v", v)
				}
			} else if len(v.Problems) != 1 || !strings.HasPrefix(v.Problems[0], tt.want) {
				t.Errorf("%s %s: %q, want %q", tt.suffix, tt.change, v.Problems, tt.want)
			}
		}
	}
}

// TestEarlyStatements: statements of before know the wheel alone. That is said, and what follows
// from the wheel is still checked.
func TestEarlyStatements(t *testing.T) {
	p := newPapers(t, publish.StatementOptions{})
	early, err := publish.NewStatement(p.built, p.built.Files[0], nil, &publish.StatementOptions{Version: "test"})
	must(t, err)
	p.write(t, ".intoto.jsonl", early)
	verdict := func() *publish.Verdict {
		v, err := publish.Verify(t.Context(), p.wheel, publish.VerifyOptions{})
		must(t, err)
		return v
	}
	if v := verdict(); !v.OK() || len(v.Notes) != 1 || !strings.Contains(v.Notes[0], ".metadata and ") || !strings.Contains(v.Notes[0], "early version") {
		t.Errorf("%+v", v)
	}
	p.write(t, ".metadata", []byte("Metadata-Version: 2.1\n"))
	if v := verdict(); len(v.Problems) != 1 || !strings.Contains(v.Problems[0], "not the one in the wheel") {
		t.Errorf("other metadata: %q", v.Problems)
	}
	must(t, os.Remove(p.wheel+".metadata"))
	must(t, os.Remove(p.wheel+".cdx.json"))
	if v := verdict(); !v.OK() || len(v.Notes) != 0 {
		t.Errorf("no papers: %+v", v)
	}
}

// TestPapersOfAnotherBuild: a statement names its papers by their hashes. Those of another build
// are never mixed with what is published.
func TestPapersOfAnotherBuild(t *testing.T) {
	project := publishtest.NewProject(t, publishtest.Document, 10)
	read := func(version string) *publish.Inventory {
		inv, err := publish.ReadInventory(t.Context(), project.Dist, project.Plan.Rows[:1], publish.InventoryOptions{Statement: publish.StatementOptions{Version: version}})
		must(t, err)
		return inv
	}
	u := read("first").Units[0]
	for _, tt := range []struct{ version, gone, want string }{
		{"first", ".cdx.json", publish.DoUpload},
		{"first", ".intoto.jsonl", publish.DoUpload},
		{"second", ".cdx.json", publish.DoRefuse},
		{"second", ".intoto.jsonl", publish.DoRefuse},
		{"second", ".metadata", publish.DoUpload},
	} {
		there := publish.Release{Tag: "v1.0", Created: time.Now(), Files: []publish.RemoteFile{remote(u.File)}}
		for _, f := range u.Side {
			if !strings.HasSuffix(f.Name, tt.gone) {
				there.Files = append(there.Files, remote(f))
			}
		}
		plan, err := publish.NewPlan("test", publish.Limits{}, read(tt.version), []publish.Release{there}, publish.PlanOptions{})
		must(t, err)
		for _, a := range plan.Actions {
			want := publish.DoPresent
			if strings.HasSuffix(a.File.Name, tt.gone) {
				want = tt.want
			}
			if a.Do != want {
				t.Errorf("%s without %s: %s %s, want %s", tt.version, tt.gone, a.Do, a.File.Name, want)
			}
		}
	}
}

func FuzzStatement(f *testing.F) {
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","predicateType":"https://slsa.dev/provenance/v1","subject":[]}`))
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[]}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(_ *testing.T, text []byte) {
		if s, _, err := publish.ParseStatement(text, nil); err == nil && s == nil {
			panic("no statement and no error")
		}
	})
}

// FuzzRelease: the books of a release are read from a place that others may write to. What was read
// can be written again, and says the same.
func FuzzRelease(f *testing.F) {
	f.Add([]byte(`{"format":"kiln-release/1","tag":"v1","created":"2026-01-01T00:00:00Z","files":[{"name":"a.whl","size":1,"sha256":"00"}],"changes":[{"name":"a.whl","action":"replaced"}]}`))
	fuzzcorpus.Add(f)
	files := []publish.RemoteFile{{Name: "a.whl", Size: 1}, {Name: "b.whl"}}
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := publish.ParseRelease(text, files)
		if err != nil {
			return
		}
		twice, err := publish.ParseRelease(once, files)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%v\n%s\n%s", err, once, twice)
		}
	})
}

// TestSignLater: signing a release that was published unsigned adds the signatures, once; a statement
// that says something else is left alone. On a kiln server too.
func TestSignLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "public")
	target, err := publish.NewDir(dir, publish.DirOptions{})
	must(t, err)
	t.Run("dir", func(t *testing.T) { testSignLater(t, target, filepath.Join(dir, "*")) })
	t.Run("kiln", func(t *testing.T) {
		server, secret, dir := kilnServer(t)
		web := httptest.NewServer(server)
		defer func() { web.Close(); server.Close() }()
		target, err := publish.NewKiln(publish.KilnOptions{URL: address.Parse(web.URL), Token: secret, Projects: []string{"demo"}, Retry: publishtest.QuickRetry})
		must(t, err)
		testSignLater(t, target, filepath.Join(dir, "files", "*", "*"))
		store, err := index.Open(dir, index.StoreOptions{})
		must(t, err)
		report, err := store.Check(t.Context(), index.CheckOptions{})
		must(t, err)
		for _, f := range report.Findings {
			t.Errorf("%+v", f)
		}
	})
}

func testSignLater(t *testing.T, target publish.Target, folder string) {
	project := publishtest.NewProject(t, publishtest.Document, 10)
	keys := t.TempDir()
	run := func(version, key string) *publish.Result {
		t.Helper()
		opts := publish.StatementOptions{Version: version, Signed: time.Now()}
		if key != "" {
			private, _ := publishtest.Keys(t, keys, key)
			var err error
			opts.Key, err = sign.ReadPrivateKey(private)
			must(t, err)
		}
		inv, err := publish.ReadInventory(t.Context(), project.Dist, project.Plan.Rows, publish.InventoryOptions{Statement: opts})
		must(t, err)
		result, err := publish.Run(t.Context(), target, inv, publish.Options{Owner: "tester"})
		must(t, err)
		if len(result.Failed) > 0 {
			t.Fatal(result.Failed[0].Error)
		}
		return result
	}
	signed := func(key string) int {
		t.Helper()
		paths, err := filepath.Glob(filepath.Join(folder, "*.intoto.jsonl"))
		must(t, err)
		n := 0
		for _, path := range paths {
			text, err := os.ReadFile(path)
			must(t, err)
			if _, _, err := publish.ParseStatement(text, trust(t, filepath.Join(keys, key+".pub"))); err == nil {
				n++
			}
		}
		return n
	}
	run("test", "")
	if n := len(run("other", "release").Uploaded); n != 0 || signed("release") != 0 {
		t.Errorf("%d files replaced by statements with another bill of materials", n)
	}
	result := run("test", "release")
	if n := len(result.Uploaded); n != 3 || signed("release") != 3 {
		t.Errorf("%d files uploaded, %d signed, want 3", n, signed("release"))
	}
	if n := len(result.Releases[0].Changes); n != 3 && !target.Limits().Flat {
		t.Errorf("the release remembers %d changes, want 3", n)
	}
	if n := len(run("test", "second").Uploaded); n != 0 || signed("release") != 3 {
		t.Errorf("%d signed statements were replaced", n)
	}
}
