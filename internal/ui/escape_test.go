package ui_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/ui"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain, é, 模, 👍":               "plain, é, 模, 👍",
		"\x1b]0;title\x07":             `\u001b]0;title\u0007`,
		"\x1b[31mred":                  `\u001b[31mred`,
		"C1 \u009b2J, raw \x9b2J":      `C1 \u009b2J, raw \x9b2J`,
		"\u202egnp.exe\u2066":          `\u202egnp.exe\u2066`,
		"a\nb\rc\td":                   `a\u000ab\u000dc\u0009d`,
		"\x7f\u200b\u2028\U000e0041":   `\u007f\u200b\u2028\udb40\udc41`,
		"narrow\u202fspace stays \\u1": "narrow\u202fspace stays \\u1",
	} {
		if got := ui.Escape(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestWriter(t *testing.T) {
	color := ui.Terminal{Color: true, Width: 80}
	for _, tt := range []struct {
		name     string
		make     func(b *bytes.Buffer) *ui.Writer
		in, want string
	}{
		{"lines and tabs stay", plain, "a\tb\nc\r\nd\n", "a\tb\nc\nd\n"},
		{"without colours", plain, "\x1b[31mred\x1b[0m\n", "\\u001b[31mred\\u001b[0m\n"},
		{"colours stay and end with the line", colored, "\x1b[1;31mred\nnext\n", "\x1b[1;31mred\x1b[0m\nnext\n"},
		{"heat maps stay", colored, "\x1b[48;5;118;38;5;232m4.0\x1b[0m\n", "\x1b[48;5;118;38;5;232m4.0\x1b[0m\n"},
		{"nothing that hides", colored, "\x1b[8mx\x1b[30my\x1b[97mz\x1b[38;5;232m\x1b[41m\x1b[7m", `\u001b[8mx\u001b[30my\u001b[97mz\u001b[38;5;232m\u001b[41m\u001b[7m`},
		{"nothing that moves", colored, "\x1b[2J\x1b[H\x1b[1A\x1b[6n\x1b[?25l\x1bc\x08\rx", `\u001b[2J\u001b[H\u001b[1A\u001b[6n\u001b[?25l\u001bc\u0008\u000dx`},
		{"no strings", colored, "\x1b]52;c;eA==\x07\x1bP+q\x1b\\\x1b_x", `\u001b]52;c;eA==\u0007\u001bP+q\u001b\u005c\u001b_x`},
		{"the end is not lost", plain, "cut \xe6\xa8", `cut \xe6\xa8`},
		{"nor a sequence", colored, "cut \x1b[3", `cut \u001b[3`},
		{"logs", logged, "1%\r2%\r\n\x1b[01m\x1b[Kwarning\x1b[m\x1b[K\x1b[45m\n\x1b[2J", "1%\n2%\nwarning\n\\u001b[2J"},
		{"coloured logs", func(b *bytes.Buffer) *ui.Writer { return ui.Log(ui.NewWriter(b, color)) }, "\x1b[01;35m\x1b[Kwarning\x1b[m\n", "\x1b[01;35mwarning\x1b[m\n"},
	} {
		want := strings.ReplaceAll(tt.want, `\u005c`, `\`)
		// However it is cut into writes, the same comes out.
		for size := 1; size <= len(tt.in); size++ {
			var b bytes.Buffer
			w := tt.make(&b)
			for rest := tt.in; rest != ""; {
				n, err := w.Write([]byte(rest[:min(size, len(rest))]))
				if err != nil {
					t.Fatal(err)
				}
				rest = rest[n:]
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			if b.String() != want {
				t.Errorf("%s, %d bytes at a time: got %q, want %q", tt.name, size, b.String(), want)
				break
			}
		}
	}
}

func plain(b *bytes.Buffer) *ui.Writer   { return ui.NewWriter(b, ui.Terminal{}) }
func colored(b *bytes.Buffer) *ui.Writer { return ui.NewWriter(b, ui.Terminal{Color: true}) }
func logged(b *bytes.Buffer) *ui.Writer  { return ui.Log(b) }

// TestWriterJSON: a document means the same afterwards.
func TestWriterJSON(t *testing.T) {
	want := "\x1b[2J \u009b \u202e \x7f \U000e0041 é"
	var b bytes.Buffer
	w := plain(&b)
	if err := json.NewEncoder(w).Encode(want); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal(b.Bytes(), &got); err != nil || got != want {
		t.Errorf("%s: %q, %v", b.Bytes(), got, err)
	}
	if strings.ContainsFunc(strings.TrimSpace(b.String()), func(r rune) bool { return !unicode.IsGraphic(r) }) {
		t.Errorf("not escaped: %q", b.String())
	}
}

func TestTableEscapes(t *testing.T) {
	var b bytes.Buffer
	w := ui.NewWriter(&b, ui.Terminal{Color: true, Width: 60})
	table := ui.NewTable("NAME")
	table.Add("evil\x1b[31m\nok")
	if err := table.Write(w, ui.Terminal{Color: true, Width: 60}); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "\x1b[1mNAME\x1b[0m\nevil\\u001b[31m\\u000aok\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzWriter(f *testing.F) {
	f.Add("\x1b[1;31mred\x1b[0m \x1b]0;x\x07 \u202e \x9b\r\n", 3, true)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text string, at int, color bool) {
		write := func(parts ...string) string {
			var b bytes.Buffer
			w := ui.NewWriter(&b, ui.Terminal{Color: color})
			for _, p := range parts {
				if _, err := w.Write([]byte(p)); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		got := write(text)
		if !utf8.ValidString(got) {
			t.Fatalf("%q", got)
		}
		at = min(max(at, 0), len(text))
		if cut := write(text[:at], text[at:]); cut != got {
			t.Fatalf("cut at %d: %q, whole: %q", at, cut, got)
		}
		for i, r := range got {
			switch {
			case unicode.IsGraphic(r) || r == '\n' || r == '\t':
			case r == 0x1b && color:
				end := strings.IndexByte(got[i:], 'm')
				if end < 0 || strings.Trim(got[i+1:i+end], "[0123456789;") != "" {
					t.Fatalf("%q", got[i:])
				}
			default:
				t.Fatalf("%U in %q", r, got)
			}
		}
	})
}
