package units_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/units"
)

func TestParseBytes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int64
	}{
		{"1 B", 1},
		{"500 MB", 500_000_000},
		{"4GiB", 4 << 30},
		{"4  GiB", 4 << 30},
		{"1.5 KiB", 1536},
		{"2 kB", 2000},
		{"2 KB", 2000},
		{"8192 TiB", 1 << 53},
	} {
		if got, err := units.ParseBytes(tt.in); err != nil || got != tt.want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{
		"", "4", "GiB", "4 gib", "4 G", "4 iB", "-4 GiB", "+4 GiB", "4 GiB ", " 4 GiB", "4. GiB", ".5 GiB", "1e3 MB", "0x10 B",
		"1_000 B", "NaN GiB", "Inf B", "0 B", "0.9 B", "8193 TiB", "4 GiB GiB", "4 B B",
	} {
		if got, err := units.ParseBytes(in); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", in, got)
		}
	}
}

func TestWords(t *testing.T) {
	for want, got := range map[string]string{
		"0 B": units.Bytes(0), "1023 B": units.Bytes(1023), "1.0 KiB": units.Bytes(1024), "1.5 MiB": units.Bytes(3 << 19),
		"1.0 GiB": units.Bytes(1<<30 - 1), "8.0 EiB": units.Bytes(1<<63 - 1),
		"1 row": units.Count(1, "row"), "0 rows": units.Count(0, "row"), "4,089 calls": units.Count(4089, "call"),
		"-1,234,567": units.Number(-1234567), "-123": units.Number(-123), "999": units.Number(999),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestInverse: a size that was written is read as what was written, to the digits that it has.
func TestInverse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.Int64Range(1, 1<<50-1).Draw(rt, "n") // PiB are not read
		text := units.Bytes(n)
		if n >= 1<<50-1<<44 {
			rt.Skip("rounds to 1.0 PiB")
		}
		got, err := units.ParseBytes(text)
		if err != nil {
			rt.Fatal(err)
		}
		if again := units.Bytes(got); again != text {
			rt.Fatalf("%d is written %q, read as %d and written %q", n, text, got, again)
		}
	})
}
