package matrix_test

import (
	"testing"

	"github.com/kiln-build/kiln/matrix"
)

func TestParseSize(t *testing.T) {
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
		if got, err := matrix.ParseSize(tt.in); err != nil || got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{
		"", "4", "GiB", "4 gib", "4 G", "4 iB", "-4 GiB", "+4 GiB", "4 GiB ", " 4 GiB", "4. GiB", ".5 GiB", "1e3 MB", "0x10 B",
		"1_000 B", "NaN GiB", "Inf B", "0 B", "0.9 B", "8193 TiB", "4 GiB GiB", "4 B B",
	} {
		if got, err := matrix.ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}
