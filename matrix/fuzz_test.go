package matrix_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// seedFiles returns every packages.yml that the repository has.
func seedFiles(tb testing.TB) [][]byte {
	tb.Helper()
	var out [][]byte
	for _, pattern := range []string{
		filepath.Join("..", "examples", "*", "packages.yml"),
		filepath.Join("testdata", "broken", "*", "*.yml"),
	} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			tb.Fatalf("%s: %d files, %v", pattern, len(names), err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				tb.Fatal(err)
			}
			out = append(out, text)
		}
	}
	return out
}

// FuzzParse: whatever the file, reading and planning it ends, says where the mistakes
// are, and gives rows that can be told apart and whose files have valid names.
func FuzzParse(f *testing.F) {
	for _, text := range seedFiles(f) {
		if len(text) < 4096 { // the bombs slow down everything that is bred from them
			f.Add(text)
		}
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<16 {
			return
		}
		const name = "packages.yml"
		file, list := matrix.Parse(name, text)
		if (file == nil) != list.HasErrors() {
			t.Fatalf("a file %v with the diagnostics %v", file != nil, list)
		}
		sources := map[string][]byte{name: text}
		checkDiagnostics(t, list, sources)
		if file == nil {
			return
		}
		opts := matrix.Options{MaxRows: 2000, Versions: map[string]string{}}
		for _, p := range file.Packages() {
			opts.Versions[p] = "1.0"
		}
		plan := file.Plan(opts)
		checkDiagnostics(t, plan.Findings, sources)
		checkRows(t, plan)
		opts.SkipIncompatible = true
		skipping := file.Plan(opts)
		checkDiagnostics(t, skipping.Findings, sources)
		checkRows(t, skipping)
		if n, m := len(plan.Rows)+len(plan.Skipped), len(skipping.Rows)+len(skipping.Skipped); n > m {
			t.Errorf("%d rows and skips, %d if incompatible rows are skipped", n, m)
		}
	})
}

// checkDiagnostics wants every place to be inside its source, and all of them to be
// printable.
func checkDiagnostics(t *testing.T, list diag.List, sources map[string][]byte) {
	t.Helper()
	inside := func(p diag.Pos) bool {
		text, ok := sources[p.File]
		if !ok || p.Line < 1 || p.Column < 1 {
			return false
		}
		lines := bytes.Split(text, []byte("\n"))
		if p.Line > len(lines) {
			return false
		}
		// One past the end: where something is missing.
		return p.Column <= utf8.RuneCount(lines[p.Line-1])+1
	}
	for _, d := range list {
		if d.Rule == "" || d.Message == "" || d.Width < 0 || !inside(d.Pos) {
			t.Errorf("not a place in the file, or no rule: %s [%s] width %d", d, d.Rule, d.Width)
		}
		for _, r := range d.Related {
			if r.Message == "" || !inside(r.Pos) {
				t.Errorf("%s: related place %s is not in the file: %s", d, r.Pos, r.Message)
			}
		}
	}
	for _, color := range []bool{false, true} {
		p := diag.Printer{Sources: sources, Color: color}
		if err := p.Print(io.Discard, list); err != nil {
			t.Error(err)
		}
	}
}

// checkRows wants rows that can be told apart by their ID and by their files.
func checkRows(t *testing.T, plan *matrix.Plan) {
	t.Helper()
	ids, files := map[string]bool{}, map[string]bool{}
	for i := range plan.Rows {
		r := &plan.Rows[i]
		if ids[r.ID] {
			t.Errorf("two rows have the ID %s", r.ID)
		}
		ids[r.ID] = true
		for _, name := range r.Files() {
			if files[name] {
				t.Errorf("two rows write %s", name)
			}
			files[name] = true
			checkFileName(t, r, name)
		}
		if len(r.Digest) != 64 || strings.Trim(r.Digest, "0123456789abcdef") != "" {
			t.Errorf("%s has the digest %q", r.ID, r.Digest)
		}
		if strings.ContainsAny(r.ID, "/\\ \t\n\x00") {
			t.Errorf("the ID %q cannot be the name of a folder", r.ID)
		}
		if _, ok := plan.Settings(r.ID); !ok {
			t.Errorf("%s has no settings", r.ID)
		}
		if text, err := json.Marshal(r); err != nil || !json.Valid(text) {
			t.Errorf("%s as JSON: %v", r.ID, err)
		}
	}
	for _, s := range plan.Skipped {
		if s.Rule == "" || s.Reason == "" {
			t.Errorf("%s is skipped without a reason", s.Row.ID)
		}
	}
	text, parts, err := plan.GitHubMatrix()
	if err != nil || !json.Valid(text) || parts != max(1, (len(plan.Rows)+matrix.GitHubMaxJobs-1)/matrix.GitHubMaxJobs) {
		t.Errorf("the GitHub matrix of %d rows has %d parts, %v", len(plan.Rows), parts, err)
	}
}

func checkFileName(t *testing.T, r *matrix.Row, name string) {
	t.Helper()
	if strings.HasSuffix(name, ".tar.gz") {
		n, err := wheel.ParseSdistName(name)
		if err != nil || n.Version.String() != r.Version {
			t.Errorf("%s: the sdist %s reads as %s, %v", r.ID, name, n, err)
		}
		return
	}
	n, err := wheel.ParseFilename(name)
	if err != nil {
		t.Errorf("%s: %v", r.ID, err)
		return
	}
	if n.String() != name || n.Version.Public() != r.Version || wheel.NormalizeName(n.Name) != r.Package {
		t.Errorf("%s: the wheel %s reads as %s %s %s", r.ID, name, n.Name, n.Version, n)
	}
}

// FuzzSelect: a selection expression is refused with a place in it, or it means
// something: its negation selects exactly the other rows.
func FuzzSelect(f *testing.F) {
	for _, s := range []string{
		"cuda", "not rocm", "cuda=12.8", "cuda>=12.8 and python in (3.12, 3.13) and not os=windows-*",
		"(torch<2.9 or torch!=2.5) && !kind=sdist", `os="ubuntu-22.04" || id='*cp313*'`, "python not in (3.13t)",
		"a=b", "", "(", "cuda>=", "or", "cuda | rocm", "not not not cuda", "cuda in ()", "é=ü", "tag=cu128-*",
	} {
		f.Add(s)
	}
	rows := examplePlan(f).Rows
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := matrix.ParseSelection(text)
		sources := map[string][]byte{matrix.SelectionSource: []byte(text)}
		if err != nil {
			var list *diag.ListError
			if !errors.As(err, &list) || len(list.Diagnostics) == 0 || s != nil {
				t.Fatalf("%T %v", err, err)
			}
			// The expression is one line, whatever is in it.
			for _, d := range list.Diagnostics {
				if d.Pos.File != matrix.SelectionSource || d.Pos.Line != 1 || d.Pos.Column < 1 || d.Pos.Column > utf8.RuneCountInString(text)+1 {
					t.Errorf("%s is not a place in %q", d, text)
				}
			}
			p := diag.Printer{Sources: sources}
			if err := p.Print(io.Discard, list.Diagnostics); err != nil {
				t.Error(err)
			}
			return
		}
		if s.String() != text {
			t.Errorf("%q became %q", text, s)
		}
		if err := s.Check([]string{"a"}); err != nil {
			if list := (*diag.ListError)(nil); !errors.As(err, &list) {
				t.Errorf("%T %v", err, err)
			}
		}
		opposite, err := matrix.ParseSelection("not (" + text + ")")
		if err != nil {
			if strings.Contains(err.Error(), "too deeply") || strings.Contains(err.Error(), "longer than") {
				return
			}
			t.Fatalf("%q is valid, but not in parentheses: %v", text, err)
		}
		both, err := matrix.ParseSelection("(" + text + ") or not (" + text + ")")
		if err != nil && !strings.Contains(err.Error(), "longer than") {
			t.Fatal(err)
		}
		for i := range rows {
			if s.Match(&rows[i]) == opposite.Match(&rows[i]) {
				t.Errorf("%q and its opposite agree on %s", text, rows[i].ID)
			}
			if both != nil && !both.Match(&rows[i]) {
				t.Errorf("neither %q nor its opposite has %s", text, rows[i].ID)
			}
		}
	})
}

// examplePlan is the plan of the largest example: 88 rows of all kinds.
func examplePlan(tb testing.TB) *matrix.Plan {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("..", "examples", "exllamav2", "packages.yml"))
	if err != nil {
		tb.Fatal(err)
	}
	file, list := matrix.Parse("packages.yml", text)
	if list.HasErrors() {
		tb.Fatal(list.Err())
	}
	return file.Plan(matrix.Options{})
}

// shlexTable is what Python's shlex and a POSIX shell make of a text; null means that
// it is refused. testdata/shlex/make.py writes it.
func shlexTable(tb testing.TB) []struct {
	Text      string
	Shlex, Sh []string
} {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "shlex", "table.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var table []struct {
		Text      string
		Shlex, Sh []string
	}
	if err := json.Unmarshal(text, &table); err != nil {
		tb.Fatal(err)
	}
	return table
}

// TestWords compares with the reference programs. Where they differ (a backslash
// before a line end, $ or ` is special to a shell alone) the shell is right: its
// users copy command lines from there.
func TestWords(t *testing.T) {
	differ := 0
	for _, tt := range shlexTable(t) {
		got, err := matrix.SplitWords(tt.Text)
		if (err != nil) != (tt.Sh == nil) {
			t.Errorf("%q: %q, %v; a shell: %q", tt.Text, got, err, tt.Sh)
			continue
		}
		if err == nil && !slices.Equal(got, tt.Sh) {
			t.Errorf("%q (-shell +got):\n%s", tt.Text, cmp.Diff(tt.Sh, got))
		}
		if !slices.Equal(tt.Sh, tt.Shlex) {
			differ++
		}
	}
	if differ != 5 {
		t.Errorf("shlex and a shell differ in %d texts of the table, want 5", differ)
	}
}

// FuzzWords: splitting undoes quoting.
func FuzzWords(f *testing.F) {
	for _, tt := range shlexTable(f) {
		f.Add(tt.Text)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		words, err := matrix.SplitWords(text)
		if err != nil {
			if !strings.ContainsAny(text, `'"\`) {
				t.Errorf("%q has no quotes: %v", text, err)
			}
			return
		}
		var quoted []string
		total := 0
		for _, w := range words {
			total += len(w)
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		if total > len(text) {
			t.Errorf("%q has become longer: %q", text, words)
		}
		again, err := matrix.SplitWords(strings.Join(quoted, " \t"))
		if err != nil || !slices.Equal(words, again) {
			t.Errorf("%q is %q, and quoted %q, %v", text, words, again, err)
		}
		if !strings.ContainsAny(text, `'"\`) && !slices.Equal(words, strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n", r) })) {
			t.Errorf("%q without quotes is %q", text, words)
		}
	})
}

func FuzzReadHistory(f *testing.F) {
	f.Add([]byte(`{"format":"kiln-history/1","rows":{"demo":{"seconds":60,"peak_memory_bytes":1000}},"units":{"demo":[{"name":"a","count":2,"axes":["python"]}]}}`))
	fuzzcorpus.Add(f)
	f.Fuzz(func(_ *testing.T, text []byte) {
		if h, err := matrix.ReadHistory(bytes.NewReader(text)); err == nil && h == nil {
			panic("no history and no error")
		}
	})
}
