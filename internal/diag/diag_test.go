package diag_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/diag"
)

func render(t *testing.T, source string, d diag.Diagnostic) string {
	t.Helper()
	var out strings.Builder
	p := diag.Printer{Sources: map[string][]byte{"f.yml": []byte(source)}}
	if err := p.Print(&out, diag.List{d}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func at(line, column int) diag.Pos { return diag.Pos{File: "f.yml", Line: line, Column: column} }

func TestPrint(t *testing.T) {
	long := strings.Repeat("a", 300) + "X" + strings.Repeat("b", 300)
	tests := []struct {
		name, source string
		d            diag.Diagnostic
		want         string
	}{
		{
			"caret and hint", "a: 1\nb: 2.10\r\n",
			diag.Diagnostic{Pos: at(2, 4), Width: 4, Message: "m", Hint: "h"},
			"f.yml:2:4: error: m\n  2 | b: 2.10\n    |    ^^^^\n  hint: h\n",
		},
		{
			"related", "a: 1\na: 2\n",
			diag.Diagnostic{Severity: diag.Warning, Pos: at(2, 1), Message: "again", Related: []diag.Related{{Pos: at(1, 1), Message: "first here"}}},
			"f.yml:2:1: warning: again\n  2 | a: 2\n    | ^\n  f.yml:1:1: first here\n  1 | a: 1\n    | ^\n",
		},
		{
			"tab counts one column", "\tx: y",
			diag.Diagnostic{Pos: at(1, 2), Message: "m"},
			"f.yml:1:2: error: m\n  1 |  x: y\n    |  ^\n",
		},
		{
			"wide characters", "名: 値",
			diag.Diagnostic{Pos: at(1, 4), Message: "m"},
			"f.yml:1:4: error: m\n  1 | 名: 値\n    |     ^^\n",
		},
		{
			"past the end of the line", "ab",
			diag.Diagnostic{Pos: at(1, 9), Width: 7, Message: "m"},
			"f.yml:1:9: error: m\n  1 | ab\n    |   ^\n",
		},
		{
			"long line is cut around the caret", long,
			diag.Diagnostic{Pos: at(1, 301), Message: "m"},
			"f.yml:1:301: error: m\n  1 | …" + strings.Repeat("a", 50) + "X" + strings.Repeat("b", 49) + "…\n    | " + strings.Repeat(" ", 51) + "^\n",
		},
		{"unknown line", "x", diag.Diagnostic{Pos: at(7, 1), Message: "m"}, "f.yml:7:1: error: m\n"},
		{"no position", "x", diag.Diagnostic{Severity: diag.Note, Message: "m"}, "note: m\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, render(t, tt.source, tt.d)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestColorOnlyAddsEscapes(t *testing.T) {
	var plain, colored strings.Builder
	list := diag.List{{Pos: at(1, 1), Message: "m", Hint: "h"}}
	sources := map[string][]byte{"f.yml": []byte("a: 1")}
	_ = (&diag.Printer{Sources: sources}).Print(&plain, list)
	_ = (&diag.Printer{Sources: sources, Color: true}).Print(&colored, list)
	stripped := colored.String()
	for _, seq := range []string{"\x1b[1m", "\x1b[2m", "\x1b[1;31m", "\x1b[32m", "\x1b[0m"} {
		if !strings.Contains(stripped, seq) && seq != "\x1b[1;31m" {
			t.Errorf("no %q in coloured output", seq)
		}
		stripped = strings.ReplaceAll(stripped, seq, "")
	}
	if diff := cmp.Diff(plain.String(), stripped); diff != "" {
		t.Error(diff)
	}
}

func TestList(t *testing.T) {
	var l diag.List
	if l.Err() != nil {
		t.Error("empty list is an error")
	}
	l.Add(diag.Diagnostic{Severity: diag.Warning, Pos: at(9, 1), Message: "w"})
	if l.Err() != nil {
		t.Error("a warning is an error")
	}
	l.Add(diag.Diagnostic{Pos: at(2, 5), Message: "second"})
	l.Add(diag.Diagnostic{Pos: at(2, 1), Message: "first"})
	l.Sort()
	err := l.Err()
	var le *diag.ListError
	if !errors.As(err, &le) || len(le.Diagnostics) != 3 {
		t.Fatalf("Err() = %#v", err)
	}
	if want := "f.yml:2:1: error: first\nf.yml:2:5: error: second"; err.Error() != want {
		t.Errorf("Error() = %q, want %q", err, want)
	}
}

func TestSuggest(t *testing.T) {
	known := []string{"versions", "version_from", "torch", "python", "cuda", "os"}
	for word, want := range map[string]string{
		"verions": "versions", "Torch": "torch", "pyhton": "python", "cud": "cuda",
		"so": "os", "zebra": "", "torch2": "", "": "", strings.Repeat("x", 1<<20): "",
	} {
		if got := diag.Suggest(word, known); got != want {
			t.Errorf("Suggest(%.20q) = %q, want %q", word, got, want)
		}
	}
	if got := diag.DidYouMean("torhc", known); got != `; did you mean "torch"?` {
		t.Errorf("DidYouMean = %q", got)
	}
}
