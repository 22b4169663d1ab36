package compat_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/compat"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func mustArchs(t testing.TB, s string) compat.ArchList {
	t.Helper()
	l, err := compat.ParseArchList(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestParseArchList(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{" ; , ", ""},
		{"9.0+PTX 8.6;8.0,7.5", "7.5 8.0 8.6 9.0+PTX"},
		{"9.0;12.0+PTX;10.0", "9.0 10.0 12.0+PTX"}, // as numbers, not as text
		{"8.6 8.6+PTX 86 sm_86", "8.6+PTX"},
		{"8.6-real 8.6-virtual", "8.6+PTX"},
		{"8.6-virtual", "8.6-virtual"},
		{"120 sm_90a 100f+PTX", "9.0a 10.0f+PTX 12.0"},
		{"9.0a 9.0", "9.0 9.0a"},
		{"Ampere", "8.0 8.6+PTX"},
		{"Volta+Tegra Volta", "7.0+PTX 7.2"},
		{"Blackwell", "10.0 10.3 12.0 12.1+PTX"},
		{"native", "native"},
		{"native 8.0", "8.0 native"},
	} {
		l := mustArchs(t, tt.in)
		if l.String() != tt.want || l.Text() != tt.in {
			t.Errorf("%q: got %q, text %q, want %q", tt.in, l, l.Text(), tt.want)
		}
	}
}

func TestArchListItems(t *testing.T) {
	want := []compat.Arch{
		{Major: 8, Minor: 6, SASS: true, PTX: true},
		{Major: 9, Suffix: "a", SASS: true},
		{Major: 12, PTX: true},
	}
	l := mustArchs(t, "12.0-virtual 9.0a 8.6+PTX")
	if d := cmp.Diff(want, l.Items()); d != "" {
		t.Error(d)
	}
	flags := []string{
		"-gencode=arch=compute_86,code=sm_86",
		"-gencode=arch=compute_86,code=compute_86",
		"-gencode=arch=compute_90a,code=sm_90a",
		"-gencode=arch=compute_120,code=compute_120",
	}
	if d := cmp.Diff(flags, l.GencodeFlags()); d != "" {
		t.Error(d)
	}
}

func TestParseArchListErrors(t *testing.T) {
	for _, tt := range []struct {
		in         string
		offset     int
		suggestion string
	}{
		{"8.0 9.0+PTXX", 4, "9.0+PTX"},
		{"9.0+ptx", 0, "9.0+PTX"},
		{"9.0PTX", 0, "9.0+PTX"},
		{"8.6.0", 0, "8.6"},
		{"8.0;;8.6-reel", 5, "8.6-real"},
		{"8", 0, "8.0"},
		{"ampere", 0, "Ampere"},
		{"Hoper", 0, "Hopper"},
		{"Nativ", 0, "native"},
		{"Hopper+PTX", 0, "Hopper"},
		{"Volta+Tegra+PTX", 0, "7.2+PTX"},
		{"compute_86", 0, "8.6-virtual"},
		{"9.0b", 0, ""},
		{"08.6", 0, ""},
		{"sm_8.6", 0, ""},
		{"1234", 0, ""},
		{"-", 0, ""},
		{"…", 0, ""},
	} {
		_, err := compat.ParseArchList(tt.in)
		e, ok := errors.AsType[*compat.ArchError](err)
		if !ok {
			t.Errorf("%q: got %v, want an ArchError", tt.in, err)
			continue
		}
		if e.Offset != tt.offset || e.Suggestion != tt.suggestion {
			t.Errorf("%q: got offset %d, suggestion %q, want %d, %q (%v)", tt.in, e.Offset, e.Suggestion, tt.offset, tt.suggestion, err)
		}
		if tt.suggestion != "" {
			mustArchs(t, tt.suggestion)
		}
	}
	_, err := compat.ParseArchList("8.x 9.0 nope 7.5+PTY")
	if n := strings.Count(err.Error(), "\n") + 1; n != 3 {
		t.Errorf("want all three bad entries reported, got %d: %v", n, err)
	}
	if _, err := compat.ParseArchList(strings.Repeat("x ", 2000)); strings.Count(err.Error(), "\n") != 9 {
		t.Errorf("want ten errors at most: %v", err)
	}
	if _, err := compat.ParseArchList(strings.Repeat("8.6 ", 2000)); err == nil {
		t.Error("want an overlong list refused")
	}
}

func TestTorchEnv(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"6.0 6.1;9.0+PTX", "6.0 6.1;9.0+PTX"}, // as written
		{"9.0 8.0", "9.0 8.0"},
		{"Ampere;9.0a", "Ampere;9.0a"},
		{"8.0,9.0", "8.0 9.0"}, // forms that only kiln reads
		{"8.0  9.0", "8.0 9.0"},
		{"8.0;", "8.0"},
		{" 8.0", "8.0"},
		{"sm_80 90+PTX", "8.0 9.0+PTX"},
		{"8.0-real", "8.0"},
		{"native", "native"},
	} {
		if got, ok := mustArchs(t, tt.in).TorchEnv(); !ok || got != tt.want {
			t.Errorf("%q: got %q, %v, want %q", tt.in, got, ok, tt.want)
		}
	}
	for _, in := range []string{"8.0-virtual", "native 8.0"} {
		if got, ok := mustArchs(t, in).TorchEnv(); ok {
			t.Errorf("%q: got %q, want no way to say it", in, got)
		}
	}
}

// TestSASSRunsOn compares with the device table of torch 2.14, spelt out.
func TestSASSRunsOn(t *testing.T) {
	devices := []int{50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121}
	runs := map[int][]int{
		50: {50, 52}, 52: {52}, 53: {53},
		60: {60, 61}, 61: {61}, 62: {62},
		70: {70, 75}, 72: {72}, 75: {75},
		80: {80, 86, 89}, 86: {86, 89}, 87: {87}, 89: {89},
		90:  {90},
		100: {100, 103}, 101: {101, 110}, 103: {103}, 110: {101, 110},
		120: {120, 121}, 121: {121},
	}
	for code, want := range runs {
		a := compat.Arch{Major: code / 10, Minor: code % 10, SASS: true}
		var got []int
		for _, d := range devices {
			if a.SASSRunsOn(compat.CC{Major: d / 10, Minor: d % 10}) {
				got = append(got, d)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("sm_%d: %s", code, d)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		list, device string
		sass, any    bool
	}{
		{"8.6", "8.9", true, true},
		{"8.6", "8.0", false, false},
		{"8.6", "9.0", false, false},
		{"8.6+PTX", "9.0", false, true},
		{"8.6+PTX", "8.0", false, false},
		{"8.0 8.6", "8.7", false, false},
		{"9.0a+PTX", "9.0", true, true},
		{"9.0a+PTX", "10.0", false, false},
		{"10.0f+PTX", "10.3", true, true},
		{"10.0f+PTX", "12.0", false, false},
		{"10.0f-virtual", "10.3", false, true},
		{"10.1", "11.0", true, true},
		{"9.0-virtual", "9.0", false, true},
		{"", "9.0", false, false},
	} {
		d, err := compat.ParseCC(tt.device)
		if err != nil {
			t.Fatal(err)
		}
		l := mustArchs(t, tt.list)
		if s, a := l.SASSCovers(d), l.Covers(d); s != tt.sass || a != tt.any {
			t.Errorf("%q on %s: got sass %v, any %v, want %v, %v", tt.list, d, s, a, tt.sass, tt.any)
		}
	}
}

func TestParseGfxList(t *testing.T) {
	l, err := compat.ParseGfxList("gfx1100;gfx90a:xnack-, gfx942 gfx1100 gfx11-generic gfx9-4-generic")
	if err != nil {
		t.Fatal(err)
	}
	if want := "gfx90a:xnack-;gfx942;gfx1100;gfx11-generic;gfx9-4-generic"; l.String() != want {
		t.Errorf("got %s, want %s", l, want)
	}
	if d := cmp.Diff([]string{"--offload-arch=gfx90a:xnack-", "--offload-arch=gfx942"}, l.OffloadFlags()[:2]); d != "" {
		t.Error(d)
	}
	for in, want := range map[string]string{
		"GFX90A": "gfx90a", "gfx90A": "gfx90a", "1100": "gfx1100", "90a": "gfx90a",
		"gfx": "", "gfx9": "", "gfx11000": "", "gfx90g": "", "gfx90a:fast": "", "gfx90a:xnack": "", "gfx-generic": "", "8.6": "",
	} {
		_, err := compat.ParseGfxList("gfx900 " + in)
		if e, ok := errors.AsType[*compat.ArchError](err); !ok || e.Offset != 7 || e.Suggestion != want {
			t.Errorf("%q: got %v, want suggestion %q", in, err, want)
		}
	}
}

// genList draws the text of an arch list.
func genList(t *rapid.T) string {
	item := rapid.OneOf(
		rapid.StringMatching(`([1-9]|1[0-2])\.[0-9][af]?(\+PTX|-real|-virtual)?`),
		rapid.StringMatching(`(sm_)?([1-9]|1[0-2])[0-9][af]?(\+PTX)?`),
		rapid.SampledFrom([]string{"Ampere", "Hopper", "Blackwell", "Volta+Tegra", "native"}),
	)
	return strings.Join(rapid.SliceOfN(item, 0, 8).Draw(t, "items"), rapid.SampledFrom([]string{" ", ";", ", "}).Draw(t, "sep"))
}

func TestArchListProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := genList(t)
		l, err := compat.ParseArchList(text)
		if err != nil {
			t.Fatal(err)
		}
		again, err := compat.ParseArchList(l.String())
		if err != nil || again.String() != l.String() {
			t.Fatalf("%q prints as %q, which reads as %q (%v)", text, l, again, err)
		}
		items := l.Items()
		if d := cmp.Diff(items, again.Items()); d != "" {
			t.Fatal(d)
		}
		for i, a := range items {
			if !a.SASS && !a.PTX {
				t.Fatalf("%q: %+v asks for nothing", text, a)
			}
			if !a.RunsOn(a.CC()) || !l.Covers(a.CC()) {
				t.Fatalf("%q: %s does not run on itself", text, a)
			}
			if i > 0 && !less(items[i-1], a) {
				t.Fatalf("%q: %s is not before %s", text, items[i-1], a)
			}
		}
		// A longer list covers no less, and +PTX on an entry takes nothing away.
		more, err := compat.ParseArchList(text + " " + genList(t))
		if err != nil {
			t.Fatal(err)
		}
		d := compat.CC{Major: rapid.IntRange(1, 13).Draw(t, "major"), Minor: rapid.IntRange(0, 9).Draw(t, "minor")}
		if l.Covers(d) && !more.Covers(d) || l.SASSCovers(d) && !more.SASSCovers(d) {
			t.Fatalf("%q covers %s, %q does not", l, d, more)
		}
		if l.SASSCovers(d) && !l.Covers(d) {
			t.Fatalf("%q has machine code for %s but does not cover it", l, d)
		}
		// PTX of a plain target covers everything newer than a covered device.
		for _, a := range items {
			if a.PTX && a.Suffix == "" && a.RunsOn(d) && a.CC() == d && !a.RunsOn(compat.CC{Major: d.Major + 1}) {
				t.Fatalf("%s runs on %s but not on its successor", a, d)
			}
		}
	})
}

func less(a, b compat.Arch) bool {
	return slices.Compare([]int{a.Major, a.Minor, int((a.Suffix + "\x00")[0])}, []int{b.Major, b.Minor, int((b.Suffix + "\x00")[0])}) < 0
}

func FuzzArchList(f *testing.F) {
	for _, s := range []string{"8.0 8.6;9.0+PTX", "Ampere,native", "sm_90a 120-virtual", "9.0+PTXX", "8.6.0", "gfx90a:xnack+;gfx1100", "compute_86", "…+PTX"} {
		f.Add(s)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := compat.ParseArchList(s); err == nil {
			again, err := compat.ParseArchList(l.String())
			if err != nil || !slices.Equal(again.Items(), l.Items()) || again.Native() != l.Native() {
				t.Errorf("%q prints as %q: %v", s, l, err)
			}
			if env, ok := l.TorchEnv(); ok {
				if again, err := compat.ParseArchList(env); err != nil || !slices.Equal(again.Items(), l.Items()) {
					t.Errorf("%q goes to torch as %q: %v", s, env, err)
				}
			}
			l.GencodeFlags()
		} else {
			checkArchErrors(t, s, err)
		}
		if l, err := compat.ParseGfxList(s); err == nil {
			if again, err := compat.ParseGfxList(l.String()); err != nil || again.String() != l.String() {
				t.Errorf("%q prints as %q: %v", s, l, err)
			}
		} else {
			checkArchErrors(t, s, err)
		}
	})
}

// checkArchErrors wants every error to point at its entry and to suggest only
// what would be accepted.
func checkArchErrors(t *testing.T, s string, err error) {
	var list interface{ Unwrap() []error }
	if !errors.As(err, &list) {
		return // too long as a whole
	}
	for _, err := range list.Unwrap() {
		e, ok := errors.AsType[*compat.ArchError](err)
		if !ok {
			t.Fatalf("%q: %v is no ArchError", s, err)
		}
		if !strings.HasPrefix(s[e.Offset:], e.Item) {
			t.Errorf("%q: entry %q is not at byte %d", s, e.Item, e.Offset)
		}
		if e.Suggestion == "" {
			continue
		}
		_, err1 := compat.ParseArchList(e.Suggestion)
		_, err2 := compat.ParseGfxList(e.Suggestion)
		if err1 != nil && err2 != nil {
			t.Errorf("%q: suggests %q: %v", s, e.Suggestion, err1)
		}
	}
}
