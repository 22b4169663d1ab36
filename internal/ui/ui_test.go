package ui_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/ui"
)

func TestTable(t *testing.T) {
	table := ui.NewTable("row", ">size", "note")
	table.Add("a", "1", "é")
	table.Add("long-name", "1,000")
	table.Add("b", "20", "a long note at the end")
	for _, tt := range []struct {
		term ui.Terminal
		want string
	}{
		{ui.Terminal{}, "row         size  note\na              1  é\nlong-name  1,000\nb             20  a long note at the end\n"},
		{ui.Terminal{Width: 20}, "row         size  n…\na              1  é\nlong-name  1,000\nb             20  a…\n"},
		{ui.Terminal{Width: 4, Color: true}, "\x1b[1mrow…\x1b[0m\na  …\nlon…\nb  …\n"},
	} {
		var out strings.Builder
		if err := table.Write(&out, tt.term); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("width %d: %s", tt.term.Width, diff)
		}
	}
}

func TestWords(t *testing.T) {
	for want, got := range map[string]string{
		"320ms": ui.Duration(320 * time.Millisecond), "59.9s": ui.Duration(59900 * time.Millisecond),
		"2m 5s": ui.Duration(125 * time.Second), "47h 59m": ui.Duration(48*time.Hour - time.Second), "3d 2h": ui.Duration(74 * time.Hour),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDetectFile(t *testing.T) {
	if got := ui.Detect(&strings.Builder{}, true); got != (ui.Terminal{}) {
		t.Errorf("a buffer is %+v", got)
	}
}
