package wheel_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/wheel"
)

// The tests in this file compare the package with the reference implementation
// by way of the corpus that testdata/packaging/make_corpus.py wrote.

const corpusDir = "testdata/packaging"

// corpusLines reads a file and fails if it has become shorter than promised.
func corpusLines(t testing.TB, name string, atLeast int) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(corpusDir, name))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if len(lines) < atLeast {
		t.Fatalf("%s has %d lines, want at least %d", name, len(lines), atLeast)
	}
	return lines
}

// corpusRows reads a file of arrays of strings.
func corpusRows(t testing.TB, name string, atLeast int) [][]string {
	t.Helper()
	lines := corpusLines(t, name, atLeast)
	rows := make([][]string, len(lines))
	for i, line := range lines {
		if err := json.Unmarshal([]byte(line), &rows[i]); err != nil {
			t.Fatalf("%s:%d: %v", name, i+1, err)
		}
	}
	return rows
}

// compareRows parses the first column of every row and compares the result
// with the others; a row without others must not parse.
func compareRows(t *testing.T, rows [][]string, parse func(string) ([]string, error)) {
	t.Helper()
	valid := 0
	for _, row := range rows {
		got, err := parse(row[0])
		switch want := row[1:]; {
		case len(want) == 0 && err == nil:
			t.Errorf("%q: accepted as %q, reference rejects it", row[0], got)
		case len(want) > 0 && err != nil:
			t.Errorf("%q: %v, reference accepts it as %q", row[0], err, want)
		case len(want) > 0 && !slices.Equal(got, want):
			t.Errorf("%q:\n got %q\nwant %q", row[0], got, want)
		}
		if len(row) > 1 {
			valid++
		}
	}
	if invalid := len(rows) - valid; valid < len(rows)/4 || invalid < len(rows)/10 {
		t.Errorf("corpus is lopsided: %d valid and %d invalid inputs", valid, invalid)
	}
}

func TestPackagingNames(t *testing.T) {
	compareRows(t, corpusRows(t, "names.jsonl", 1000), func(s string) ([]string, error) {
		if !wheel.ValidName(s) {
			return nil, os.ErrInvalid
		}
		return []string{wheel.NormalizeName(s)}, nil
	})
}

func TestPackagingVersions(t *testing.T) {
	compareRows(t, corpusRows(t, "versions.jsonl", 4000), func(s string) ([]string, error) {
		v, err := wheel.ParseVersion(s)
		flags := ""
		for _, f := range []struct {
			on   bool
			name string
		}{{v.IsPrerelease(), "r"}, {v.IsPostrelease(), "p"}, {v.IsDevrelease(), "d"}} {
			if f.on {
				flags += f.name
			}
		}
		return []string{v.String(), v.Public(), v.Local(), flags}, err
	})
}

func TestPackagingPairs(t *testing.T) {
	rows := corpusRows(t, "versions.jsonl", 4000)
	pairs := 0
	for _, line := range corpusLines(t, "pairs.txt", 3000) {
		left, rest, _ := strings.Cut(line, " ")
		v := mustVersion(t, rows[atoi(t, left)][0])
		for field := range strings.FieldsSeq(rest) {
			w := mustVersion(t, rows[atoi(t, field[1:])][0])
			want := strings.IndexByte("<=>", field[0]) - 1
			if got := v.Compare(w); got != want {
				t.Errorf("%s compared to %s = %d, want %d", v.Raw(), w.Raw(), got, want)
			}
			if got := w.Compare(v); got != -want {
				t.Errorf("%s compared to %s = %d, want %d", w.Raw(), v.Raw(), got, -want)
			}
			if v.Equal(w) != (want == 0) {
				t.Errorf("%s equal to %s = %t", v.Raw(), w.Raw(), v.Equal(w))
			}
			pairs++
		}
	}
	if pairs < 60_000 {
		t.Errorf("%d pairs, want at least 60000", pairs)
	}
}

func TestPackagingSpecifiers(t *testing.T) {
	checks := 0
	bits := func(n int, f func(int) bool) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = '0'
			if f(i) {
				b[i] = '1'
			}
		}
		checks += n
		return string(b)
	}
	candidates := map[string]string{}
	rows := corpusRows(t, "specifiers.jsonl", 2000)
	for _, row := range rows {
		if len(row) > 1 {
			candidates[row[0]] = row[3]
		}
	}
	compareRows(t, rows, func(s string) ([]string, error) {
		set, err := wheel.ParseSpecifierSet(s)
		if err != nil {
			return nil, err
		}
		var versions []wheel.Version
		for text := range strings.FieldsSeq(candidates[s]) {
			versions = append(versions, mustVersion(t, text))
		}
		// Filter is recognized by the spelling of what it returns; equal
		// spellings are returned together or not at all.
		filtered := map[string]bool{}
		for _, v := range set.Filter(versions) {
			filtered[v.Raw()] = true
		}
		n := len(versions)
		return []string{
			set.String(),
			bits(1, func(int) bool { return set.AllowsPrereleases() }),
			candidates[s],
			bits(n, func(i int) bool { return set.Contains(versions[i]) }),
			bits(n, func(i int) bool { return set.Contains(versions[i], false) }),
			bits(n, func(i int) bool { return filtered[versions[i].Raw()] }),
		}, nil
	})
	if checks < 60_000 {
		t.Errorf("%d checks, want at least 20000 of each kind", checks)
	}
}

func TestPackagingWheels(t *testing.T) {
	compareRows(t, corpusRows(t, "wheels.jsonl", 5000), func(s string) ([]string, error) {
		f, err := wheel.ParseFilename(s)
		if err != nil {
			return nil, err
		}
		build := ""
		if !f.Build.IsZero() {
			build = cmp.Or(strings.TrimLeft(f.Build.Number, "0"), "0") + " " + f.Build.Suffix
		}
		var tags []string
		for _, tag := range f.Tags() {
			tags = append(tags, tag.String())
		}
		slices.Sort(tags)
		return []string{f.Name, f.Version.String(), build, strings.Join(tags, " ")}, nil
	})
}

func TestPackagingSdists(t *testing.T) {
	compareRows(t, corpusRows(t, "sdists.jsonl", 1000), func(s string) ([]string, error) {
		n, err := wheel.ParseSdistName(s)
		return []string{n.Name, n.Version.String()}, err
	})
}

func TestPackagingRequirements(t *testing.T) {
	compareRows(t, corpusRows(t, "requirements.jsonl", 2000), func(s string) ([]string, error) {
		r, err := wheel.ParseRequirement(s)
		marker := "0"
		if r.Marker != "" {
			marker = "1"
		}
		return []string{r.RawName, strings.Join(r.Extras, ","), r.Specifier.String(), r.URL, marker}, err
	})
}

func TestPackagingTags(t *testing.T) {
	type version []int // the corpus writes versions as arrays
	platformVersion := func(v version) wheel.PlatformVersion {
		if len(v) != 2 {
			return wheel.PlatformVersion{}
		}
		return wheel.PlatformVersion{Major: v[0], Minor: v[1]}
	}
	for _, line := range corpusLines(t, "tags.jsonl", 150) {
		var facts struct {
			wheel.Interpreter
			Platform struct {
				OS, Arch           string
				Glibc, Musl, MacOS version
			}
		}
		var platforms []string
		var grouped string
		if err := json.Unmarshal([]byte(line), &[]any{&facts, &platforms, &grouped}); err != nil {
			t.Fatal(err)
		}
		in := facts.Interpreter
		in.Platform = wheel.Platform{
			OS: facts.Platform.OS, Arch: facts.Platform.Arch,
			Glibc: platformVersion(facts.Platform.Glibc),
			Musl:  platformVersion(facts.Platform.Musl),
			MacOS: platformVersion(facts.Platform.MacOS),
		}
		var want []string
		for tag := range strings.FieldsSeq(grouped) {
			prefix, ok := strings.CutSuffix(tag, "*")
			if !ok {
				want = append(want, tag)
				continue
			}
			for _, p := range platforms {
				want = append(want, prefix+p)
			}
		}
		tags, err := wheel.SupportedTags(in)
		if err != nil {
			t.Errorf("%+v: %v", in, err)
			continue
		}
		var got []string
		for _, tag := range tags {
			got = append(got, tag.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %d tags, want %d; first difference %s", in, len(got), len(want), firstDifference(got, want))
		}
	}
}

// TestPackagingStricter shows what kiln rejects though the reference accepts it.
func TestPackagingStricter(t *testing.T) {
	parsers := map[string]func(string) error{
		"version":     func(s string) error { _, err := wheel.ParseVersion(s); return err },
		"specifier":   func(s string) error { _, err := wheel.ParseSpecifierSet(s); return err },
		"wheel":       func(s string) error { _, err := wheel.ParseFilename(s); return err },
		"sdist":       func(s string) error { _, err := wheel.ParseSdistName(s); return err },
		"requirement": func(s string) error { _, err := wheel.ParseRequirement(s); return err },
	}
	reasons := map[string]bool{}
	for _, row := range corpusRows(t, "stricter.jsonl", 80) {
		kind, reason, text := row[0], row[1], row[2]
		reasons[kind+": "+reason] = true
		if parsers[kind](text) == nil {
			t.Errorf("%s %q: accepted in spite of: %s", kind, text, reason)
		}
	}
	if len(reasons) < 20 {
		t.Errorf("%d reasons, want at least 20: %v", len(reasons), reasons)
	}
}

// TestPackagingCorpusIsCurrent makes the corpus again and compares every byte.
func TestPackagingCorpusIsCurrent(t *testing.T) {
	python := python(t)
	out, err := exec.CommandContext(t.Context(), python, "-c", "import packaging; print(packaging.__version__)").CombinedOutput()
	if version := strings.TrimSpace(string(out)); err != nil || version != "26.3" {
		kilntest.Lacking(t, "python", "%s has no packaging 26.3: %s (%v)", python, version, err)
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), python, filepath.Join(corpusDir, "make_corpus.py"), dir).CombinedOutput(); err != nil {
		t.Fatalf("make_corpus.py: %v\n%s", err, out)
	}
	made, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 9 {
		t.Errorf("make_corpus.py wrote %d files, want 9", len(made))
	}
	for _, entry := range made {
		want, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(corpusDir, entry.Name()))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s differs from what make_corpus.py writes", entry.Name())
		}
	}
}

func firstDifference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return "missing " + want[i]
		case i >= len(want):
			return "extra " + got[i]
		case got[i] != want[i]:
			return strconv.Itoa(i) + ": " + got[i] + ", want " + want[i]
		}
	}
	return "none"
}

func mustVersion(t testing.TB, s string) wheel.Version {
	t.Helper()
	v, err := wheel.ParseVersion(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
