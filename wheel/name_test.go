package wheel_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/wheel"
)

func TestNames(t *testing.T) {
	for _, tt := range []struct{ in, normalized, file string }{
		{"Flash.Attn_extra", "flash-attn-extra", "flash_attn_extra"},
		{"FrIeNdLy-._.-bArD", "friendly-bard", "friendly_bard"},
		{"zope.interface", "zope-interface", "zope_interface"},
		{"flash-attn", "flash-attn", "flash_attn"},
		{"torch", "torch", "torch"},
		{"3", "3", "3"},
	} {
		if !wheel.ValidName(tt.in) {
			t.Errorf("%q is not valid", tt.in)
		}
		if got := wheel.NormalizeName(tt.in); got != tt.normalized {
			t.Errorf("NormalizeName(%q) = %q, want %q", tt.in, got, tt.normalized)
		}
		if got := wheel.FileName(tt.in); got != tt.file {
			t.Errorf("FileName(%q) = %q, want %q", tt.in, got, tt.file)
		}
	}
	for _, in := range []string{"", "_private", "foo-", "föö", "foo\n", "foo bar", "-", "foo/bar", ".", "foo\x00"} {
		if wheel.ValidName(in) {
			t.Errorf("%q is valid", in)
		}
	}
}

func TestNormalizeNameProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[A-Za-z0-9._-]{0,20}`)).Draw(t, "name")
		once := wheel.NormalizeName(s)
		if twice := wheel.NormalizeName(once); twice != once {
			t.Fatalf("%q normalizes to %q and then to %q", s, once, twice)
		}
		file := wheel.FileName(s)
		if got := wheel.NormalizeName(file); got != once {
			t.Fatalf("file form %q normalizes to %q, want %q", file, got, once)
		}
		if wheel.ValidName(s) != wheel.ValidName(once) {
			t.Fatalf("%q and %q differ in validity", s, once)
		}
	})
}
