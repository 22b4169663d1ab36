package ui_test

import (
	"bytes"
	"testing"

	"github.com/kiln-build/kiln/internal/ui"
)

func TestLive(t *testing.T) {
	var out bytes.Buffer
	live := ui.NewLive(&out, ui.Terminal{Width: 10})
	live.Set([]string{"one", "a line that is too long"})
	live.Print("stays\n")
	live.Set([]string{"two"})
	live.Close()
	live.Close()
	want := "one\na line t…\n" +
		"\x1b[2A\x1b[Jstays\none\na line t…\n" +
		"\x1b[2A\x1b[Jtwo\n" +
		"\x1b[1A\x1b[J"
	if got := out.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	out.Reset()
	plain := ui.NewLive(&out, ui.Terminal{})
	plain.Set([]string{"nobody sees this"})
	plain.Print("stays")
	plain.Close()
	if got := out.String(); got != "stays\n" {
		t.Errorf("without a terminal: got %q", got)
	}
}
