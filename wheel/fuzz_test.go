package wheel_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/wheel"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func FuzzVersion(f *testing.F) {
	for _, tt := range normalForms {
		f.Add(tt.in, "1.0")
	}
	for i := range referenceOrder[1:] {
		f.Add(referenceOrder[i], referenceOrder[i+1])
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s, other string) {
		v, err := wheel.ParseVersion(s)
		if err != nil {
			return
		}
		normal := v.String()
		again, err := wheel.ParseVersion(normal)
		if err != nil || again.String() != normal || !again.Equal(v) {
			t.Fatalf("%q: normal form %q reads as %q, %v", s, normal, again, err)
		}
		want := v.Public()
		if v.Local() != "" {
			want += "+" + v.Local()
		}
		if normal != want || !strings.HasPrefix(normal, v.Base()) {
			t.Fatalf("%q: %q is not made of %q and %q", s, normal, v.Public(), v.Local())
		}
		w, err := wheel.ParseVersion(other)
		if err != nil {
			return
		}
		c := v.Compare(w)
		if c != -w.Compare(v) || c != again.Compare(w) {
			t.Fatalf("%q and %q: order depends on side or spelling", s, other)
		}
		if v.Public() == w.Public() && v.Local() == w.Local() && c != 0 {
			t.Fatalf("%q and %q: same normal form, not equal", s, other)
		}
	})
}

func FuzzSpecifier(f *testing.F) {
	for _, s := range []string{"==2.8.3", "==2.8.3+cu128-torch2.9", "===2.8.3", "~=2.8.3", ">2.8.3", "!=1.*,<2", "==1.0+a.*", ">=1,,", " <= 1!0.1rc1.dev2 "} {
		f.Add(s, "2.8.3+cu128.torch2.9")
		f.Add(s, "1.0.dev1")
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s, version string) {
		set, err := wheel.ParseSpecifierSet(s)
		if err != nil {
			return
		}
		again, err := wheel.ParseSpecifierSet(set.String())
		if err != nil || again.String() != set.String() || !again.Equal(set) {
			t.Fatalf("%q: prints as %q, which reads as %q, %v", s, set, again, err)
		}
		v, err := wheel.ParseVersion(version)
		if err != nil {
			return
		}
		all := true
		for _, clause := range set.Specifiers() {
			all = all && clause.Contains(v)
		}
		if set.Contains(v) != all || again.Contains(v) != all {
			t.Fatalf("%q: contains %q = %t, its clauses say %t", s, v, set.Contains(v), all)
		}
		if set.Contains(v, false) != (all && !v.IsPrerelease()) {
			t.Fatalf("%q: wrong policy for %q", s, v)
		}
		if got := len(set.Filter([]wheel.Version{v})) == 1; got != all {
			t.Fatalf("%q: filter of %q alone = %t", s, v, got)
		}
	})
}

func FuzzFilename(f *testing.F) {
	for _, s := range []string{
		"flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
		"Flash.Attn-2.8.3-cp312-cp312-linux_x86_64.whl",
		"foo-1.0-1abc-py2.py3-none-any.whl",
		"flash_attn-2.8.3+cu128-torch2.9.0-cp312-cp312-linux_x86_64.whl",
		"flash-attn-2.8.3-cp312-cp312-linux_x86_64.whl",
		"foo__bar-1.0-py3-none-any.whl", "foo--py3-none-any.whl", "foo-1.0-py3.-none-any.whl", "playlyfe-0.1.1-2.7.6-none-any.whl",
		"foo-1.0-py3-none-a<b>.whl", "../foo-1.0-py3-none-any.whl", "foo-1.0-cp312-cp312-linux_x86_64-cu128.whl",
		"foo-1.0.tar.gz", "foo-bar-1.0.zip", "foo-1.0+a-b.tar.gz", "cp312-cp312-linux_x86_64", "py2.py3-none-any",
	} {
		f.Add(s)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		variants := wheel.FilenameOptions{Variants: true}
		if file, err := wheel.ParseFilenameOptions(s, variants); err == nil {
			if len(file.Tags()) > 1000 || strings.ContainsAny(s, "/\\%<>\" \n\x00") || len(s) > 240 {
				t.Fatalf("%q: accepted", s)
			}
			name := file.String()
			again, err := wheel.ParseFilenameOptions(name, variants)
			// Normal forms can be longer than what they stand for: 1a is 1a0.
			if len(name) <= 240 && (err != nil || again.String() != name || again.Name != file.Name) {
				t.Fatalf("%q: canonical name %q reads as %q, %v", s, name, again, err)
			}
			if _, err := wheel.ParseFilename(s); (err == nil) != (file.Label == "") {
				t.Fatalf("%q: label %q, without variants %v", s, file.Label, err)
			}
		} else if _, meant, ok := strings.Cut(err.Error(), "the right name is "); ok {
			meant = strings.Trim(meant, `"`)
			if right, err := wheel.ParseFilename(meant); err != nil || right.String() != meant {
				t.Fatalf("%q: suggested %q: %v", s, meant, err)
			}
		}
		if sdist, err := wheel.ParseSdistName(s); err == nil {
			name := sdist.String()
			again, err := wheel.ParseSdistName(name)
			if len(name) <= 240 && (err != nil || again.String() != name || again.Name != sdist.Name) {
				t.Fatalf("%q: canonical name %q reads as %q, %v", s, name, again, err)
			}
		}
		if tags, err := wheel.ParseTag(s); err == nil {
			for _, tag := range tags {
				again, err := wheel.ParseTag(tag.String())
				if err != nil || len(again) != 1 || again[0] != tag {
					t.Fatalf("%q: tag %q reads as %v, %v", s, tag, again, err)
				}
			}
		}
	})
}

func FuzzRequirement(f *testing.F) {
	for _, s := range []string{
		"torch[x]>=2.2,<3 ; python_version < '3.13'", "a @ https://example.org/x ; os_name=='a'", "foo (>=1,)", "foo===1,>=2",
		"foo[]; ('a' not in extra) or \"b\" == os.name", "foo;", "foo[a,", "foo_", "foo @", "foo===\n1",
	} {
		f.Add(s)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := wheel.ParseRequirement(s)
		if err != nil {
			return
		}
		text := r.String()
		again, err := wheel.ParseRequirement(text)
		if err != nil || again.String() != text {
			t.Fatalf("%q: prints as %q, which reads as %q, %v", s, text, again, err)
		}
		if again.Name != r.Name || !again.Specifier.Equal(r.Specifier) || again.Marker != r.Marker || again.URL != r.URL {
			t.Fatalf("%q: prints as %q, which means something else", s, text)
		}
	})
}

// TestParsersAreLinear feeds every parser 256 KiB of text that would stall a
// backtracking or quadratic one for minutes.
func TestParsersAreLinear(t *testing.T) {
	const n = 1 << 18
	parsers := map[string]func(string){
		"version": func(s string) {
			if v, err := wheel.ParseVersion(s); err == nil {
				_ = v.String()
				_ = v.Compare(v)
			}
		},
		"specifier": func(s string) {
			if set, err := wheel.ParseSpecifierSet(s); err == nil {
				_ = set.String()
				set.Contains(wheel.Version{})
			}
		},
		"wheel":       func(s string) { _, _ = wheel.ParseFilename(s) },
		"sdist":       func(s string) { _, _ = wheel.ParseSdistName(s) },
		"tag":         func(s string) { _, _ = wheel.ParseTag(s) },
		"requirement": func(s string) { _, _ = wheel.ParseRequirement(s) },
		"name":        func(s string) { _, _ = wheel.NormalizeName(s), wheel.ValidName(s) },
	}
	for _, unit := range []string{"1", "0", "1.", "a", "-", "1a", ".dev", "+a", "a.", ">=1,", "===1,", "==1.*,", "p.", "-p", "(", "a and ", "'", " ", "_", "a[b,", "é"} {
		for _, prefix := range []string{"", "1+", "1.0a", ">=1", "foo", "foo[", "foo; ", "foo; os_name=='a' and ", "foo @ ", "py3-none-"} {
			text := prefix + strings.Repeat(unit, n/len(unit))
			for name, parse := range parsers {
				start := time.Now()
				parse(text)
				if d := time.Since(start); d > 10*time.Second {
					t.Errorf("%s of %q and 256 KiB of %q took %v", name, prefix, unit, d)
				}
			}
		}
		if testing.Short() {
			break
		}
	}
}
