package wheel_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/wheel"
)

func mustSpecifiers(t testing.TB, s string) wheel.SpecifierSet {
	t.Helper()
	set, err := wheel.ParseSpecifierSet(s)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSpecifiersAndLocalLabels(t *testing.T) {
	const candidate = "2.8.3+cu128.torch2.9"
	for spec, want := range map[string]bool{
		"==2.8.3":                 true,
		"==2.8.3+cu128.torch2.9":  true,
		"==2.8.3+cu128-torch2.9":  true,
		"==2.8.3+cu128":           false,
		"===2.8.3":                false,
		"===2.8.3+CU128.torch2.9": true,
		"===2.8.3+cu128-torch2.9": false,
		"===2.8.3+\u212au128":     false,
		">=2.8.3":                 true,
		"<=2.8.3":                 true,
		"~=2.8.3":                 true,
		"<2.8.4":                  true,
		">2.8.3":                  false,
		">2.8.2":                  true,
		"!=2.8.3":                 false,
		"!=2.8.3+cu130":           true,
		"==2.8.*":                 true,
		"!=2.8.*":                 false,
		"":                        true,
		">=2.8,<3,!=2.8.3+cu130":  true,
	} {
		if got := mustSpecifiers(t, spec).Contains(mustVersion(t, candidate)); got != want {
			t.Errorf("%s in %q = %t, want %t", candidate, spec, got, want)
		}
	}
}

func TestSpecifierErrors(t *testing.T) {
	for in, want := range map[string]string{
		"==2.8.3+cu128.*": `specifier "==2.8.3+cu128.*": ".*" may follow release numbers only`,
		">=2.8.3+cu128":   `specifier ">=2.8.3+cu128": a local version needs == or !=`,
		"~=2.8.3+cu128":   `specifier "~=2.8.3+cu128": a local version needs == or !=`,
		"~=2":             `specifier "~=2": ~= needs at least two release numbers`,
		">=2.*":           `specifier ">=2.*": ".*" needs == or !=`,
		"2.0":             `specifier "2.0": does not begin with one of === ~= == != <= >= < >`,
		">=1, <x":         `specifier "<x": no version after <`,
		"==1.0-torch":     `specifier "==1.0-torch": unexpected "-torch" after "1.0"`,
		"===1;x":          `specifier "===1;x": ";x" cannot stand in a version`,
	} {
		_, err := wheel.ParseSpecifierSet(in)
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestSpecifierPrereleases(t *testing.T) {
	for _, tt := range []struct {
		spec, version        string
		allowed, whenRefused bool
	}{
		{">=1.0", "1.1a1", true, false},
		{">=1.0", "1.1", true, true},
		{"==1.1a1", "1.1a1", true, false},
		{"<2.0", "2.0rc1", false, false},
		{"<2.0rc2", "2.0rc1", true, false},
		{">1.0", "1.0.post1", false, false},
		{">1.0.post1", "1.0.post2", true, true},
		{"==1.*", "1.0.dev1", true, false},
	} {
		set, v := mustSpecifiers(t, tt.spec), mustVersion(t, tt.version)
		if got := set.Contains(v); got != tt.allowed {
			t.Errorf("%s in %q = %t", tt.version, tt.spec, got)
		}
		if set.Contains(v, true) != set.Contains(v) {
			t.Errorf("%s in %q: allowing pre-releases is not the default", tt.version, tt.spec)
		}
		if got := set.Contains(v, false); got != tt.whenRefused {
			t.Errorf("%s in %q without pre-releases = %t", tt.version, tt.spec, got)
		}
	}
}

func TestSpecifierFilter(t *testing.T) {
	for _, tt := range []struct {
		spec, versions, want string
		policy               []bool
	}{
		{">=1.2.3", "1.2 1.3 1.5a1", "1.3", nil},
		{">=1.2.3", "1.2 1.5a1", "1.5a1", nil},
		{">=1.2.3", "1.3 1.5a1", "1.3 1.5a1", []bool{true}},
		{">=1.2.3", "1.5a1", "", []bool{false}},
		{">=1.2.3a1", "1.3 1.5a1", "1.3 1.5a1", nil},
		{"!=1.5a1", "1.5a1 1.5a2 1.6", "1.6", nil},
		{"", "2.0 1.0.dev1 1.0", "2.0 1.0", nil},
		{"===1.5a1", "1.5a1 1.6", "1.5a1", nil},
	} {
		var versions []wheel.Version
		for text := range strings.FieldsSeq(tt.versions) {
			versions = append(versions, mustVersion(t, text))
		}
		var got []string
		for _, v := range mustSpecifiers(t, tt.spec).Filter(versions, tt.policy...) {
			got = append(got, v.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q of %s = %s, want %s", tt.spec, tt.versions, got, tt.want)
		}
	}
}

func TestSpecifierString(t *testing.T) {
	for in, want := range map[string]string{
		" >= 1.0 , !=1.1,<2 ": "!=1.1,<2,>=1.0",
		"==1.0,==1.0.0":       "==1.0",
		"~=1.0,~=1.0.0":       "~=1.0,~=1.0.0",
		">=V1.0-RC1":          ">=V1.0-RC1",
		",":                   "",
	} {
		if got := mustSpecifiers(t, in).String(); got != want {
			t.Errorf("%q prints as %q, want %q", in, got, want)
		}
	}
	if !mustSpecifiers(t, "<2,>=1.0").Equal(mustSpecifiers(t, ">= 1,<2.0")) {
		t.Error("equal sets differ")
	}
	if mustSpecifiers(t, "<2").Equal(mustSpecifiers(t, "<=2")) || !(wheel.SpecifierSet{}).IsEmpty() {
		t.Error("different sets are equal")
	}
	clauses := mustSpecifiers(t, "==2.9.*,===x").Specifiers()
	v, ok := clauses[0].Version()
	_, arbitrary := clauses[1].Version()
	if len(clauses) != 2 || clauses[0].Operator() != "==" || clauses[0].Text() != "2.9.*" || !ok || v.String() != "2.9" || arbitrary {
		t.Errorf("clauses %v", clauses)
	}
}

func TestSpecifierProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, w := drawVersion(t, "candidate"), drawVersion(t, "named")
		has := func(spec string) bool {
			set, err := wheel.ParseSpecifierSet(spec)
			if err != nil {
				t.Fatal(err)
			}
			again, err := wheel.ParseSpecifierSet(set.String())
			if err != nil || !again.Equal(set) || again.Contains(v) != set.Contains(v) {
				t.Fatalf("%q does not round trip: %q, %v", set, again, err)
			}
			return set.Contains(v)
		}
		if has("=="+w.String()) == has("!="+w.String()) {
			t.Fatal("!= is not the opposite of ==")
		}
		if has("=="+w.Base()+".*") == has("!="+w.Base()+".*") {
			t.Fatal("!= is not the opposite of == with a wildcard")
		}
		public := w.Public()
		if has("<"+public) && has(">"+public) || has("<"+public) && !has("<="+public) || has(">"+public) && !has(">="+public) {
			t.Fatal("comparisons contradict each other")
		}
		if (has(">="+public) && has("<="+public)) != has("=="+public) {
			t.Fatal(">= and <= do not make ==")
		}
		if both := has(">=" + public + ",!=" + w.Base() + ".*"); both != (has(">="+public) && has("!="+w.Base()+".*")) {
			t.Fatal("a set is not the conjunction of its clauses")
		}
		if !has("===" + v.String()) {
			t.Fatal("=== does not find the version itself")
		}
	})
}
