package wheel_test

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/wheel"
)

// normalForms maps spellings to normal forms; "" stands for invalid.
var normalForms = []struct{ in, want string }{
	{"01.0.0", "1.0.0"},
	{"V1.0", "1.0"},
	{"1.0a", "1.0a0"},
	{"1.0.A-1", "1.0a1"},
	{"1.0-b_2", "1.0b2"},
	{"1.0preview", "1.0rc0"},
	{"1.0.RC.4", "1.0rc4"},
	{"1.0c1", "1.0rc1"},
	{"1.0pre1", "1.0rc1"},
	{"1.0alpha1", "1.0a1"},
	{"1.0beta1", "1.0b1"},
	{"1.0-1", "1.0.post1"},
	{"1.0_rev-2", "1.0.post2"},
	{"1.0r3", "1.0.post3"},
	{"1.0post", "1.0.post0"},
	{"1.0-dev_4", "1.0.dev4"},
	{"1.0dev", "1.0.dev0"},
	{"0!1.0", "1.0"},
	{"00!1.0", "1.0"},
	{"v1!00.010", "1!0.10"},
	{"1.0+Ubuntu-1", "1.0+ubuntu.1"},
	{"1.0+007", "1.0+7"},
	{"1.0+foo007", "1.0+foo007"},
	{"1.0+cu128_torch2.9", "1.0+cu128.torch2.9"},
	{"1.0.dev99999999999999999999", "1.0.dev99999999999999999999"},
	{"1.0a-1", "1.0a1"},
	{"1.0a--1", "1.0a0.post1"},
	{" \t\n\r\f\v1.0 \t\n\r\f\v", "1.0"},
	{"1!2.0rc1.post3.dev4+cu128", "1!2.0rc1.post3.dev4+cu128"},

	{"", ""},
	{" ", ""},
	{"v", ""},
	{"1.0.", ""},
	{"1.0-", ""},
	{"1.0+", ""},
	{"1.0+a..b", ""},
	{"1.0+a+b", ""},
	{"1.0+a.", ""},
	{"1..0", ""},
	{"1.0-1-2", ""},
	{"1.0_1", ""},
	{"1.0-torch", ""},
	{"1.0.*", ""},
	{"!1.0", ""},
	{"1!", ""},
	{"1!!1", ""},
	{"vv1.0", ""},
	{"1!v1.0", ""},
	{"1.0+é", ""},
	{"1.0.post1.post2", ""},
	{"1,0", ""},
	{"1.0 a1", ""},
	{"1.0.dev1.post1", ""},
	{"1.0\u00a0", ""},
	{"1.0\x00", ""},
	{"١.٠", ""},
}

func TestVersionNormalForm(t *testing.T) {
	for _, tt := range normalForms {
		v, err := wheel.ParseVersion(tt.in)
		switch {
		case tt.want == "" && err == nil:
			t.Errorf("%q: accepted as %q", tt.in, v)
		case tt.want == "" && !v.IsZero():
			t.Errorf("%q: error with version %q", tt.in, v)
		case tt.want != "" && err != nil:
			t.Error(err)
		case v.String() != tt.want:
			t.Errorf("%q: normal form %q, want %q", tt.in, v, tt.want)
		case v.Raw() != strings.TrimSpace(tt.in) && tt.want != "":
			t.Errorf("%q: raw text %q", tt.in, v.Raw())
		}
	}
}

func TestVersionErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":          `version "": empty`,
		"latest":    `version "latest": does not begin with a number`,
		"1.0-torch": `version "1.0-torch": unexpected "-torch" after "1.0"`,
		"1.0.*":     `version "1.0.*": ".*" belongs in a specifier, not in a version`,
		"1.0_1":     `version "1.0_1": "_1": a post-release without "post" is written with '-'`,
		"1.0+é":     `version "1.0+é": local version "+é" is not made of letters and digits separated by '.', '-' or '_'`,
		"1.0+a+b":   `version "1.0+a+b": unexpected "+b" after "1.0+a"`,
	} {
		_, err := wheel.ParseVersion(in)
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	_, err := wheel.ParseVersion(strings.Repeat("x", 1<<20))
	if err == nil || len(err.Error()) > 1000 {
		t.Error("error about a long text is as long as the text")
	}
}

func TestVersionParts(t *testing.T) {
	v := mustVersion(t, "v01!02.10.0rc3.post04.dev5+Cu128-007")
	type parts struct {
		Epoch, Public, Base, Local, Phase, Pre, Post, Dev string
		Release                                           []string
	}
	var got parts
	got.Epoch, got.Public, got.Base, got.Local, got.Release = v.Epoch(), v.Public(), v.Base(), v.Local(), v.Release()
	got.Phase, got.Pre, _ = v.Pre()
	got.Post, _ = v.Post()
	got.Dev, _ = v.Dev()
	want := parts{
		Epoch: "1", Public: "1!2.10.0rc3.post4.dev5", Base: "1!2.10.0", Local: "cu128.7",
		Phase: "rc", Pre: "3", Post: "4", Dev: "5", Release: []string{"2", "10", "0"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	plain := mustVersion(t, "2.9.0")
	_, _, pre := plain.Pre()
	_, post := plain.Post()
	_, dev := plain.Dev()
	if pre || post || dev || plain.Local() != "" || plain.Epoch() != "0" {
		t.Errorf("%s has parts it should not have", plain)
	}
	var zero wheel.Version
	if !zero.IsZero() || zero.String() != "" || zero.Release() != nil || zero.Raw() != "" {
		t.Errorf("zero version: %q %v", zero, zero.Release())
	}
}

func TestVersionWithLocal(t *testing.T) {
	for _, tt := range []struct{ version, local, want string }{
		{"2.8.3", "cu128-torch2.9.0", "2.8.3+cu128.torch2.9.0"},
		{"v2.8.3+old", "cu12torch2.8cxx11abiTRUE", "2.8.3+cu12torch2.8cxx11abitrue"},
		{"0.3.2rc1", "rocm6.2.4_torch2.4.0", "0.3.2rc1+rocm6.2.4.torch2.4.0"},
		{"2.8.3+old", "", "2.8.3"},
		{"1.0", "007", "1.0+7"},
	} {
		got, err := mustVersion(t, tt.version).WithLocal(tt.local)
		if err != nil || got.String() != tt.want || got.Raw() != tt.want {
			t.Errorf("%s with local %q = %q (raw %q), %v, want %q", tt.version, tt.local, got, got.Raw(), err, tt.want)
		}
	}
	for _, local := range []string{"+cu128", "a..b", "-", "a b", "a+b", "é", ".a", "a-", " a"} {
		if got, err := mustVersion(t, "1.0").WithLocal(local); err == nil {
			t.Errorf("local version %q accepted: %s", local, got)
		}
	}
	if _, err := (wheel.Version{}).WithLocal("cu128"); err == nil {
		t.Error("zero version took a local version")
	}
}

func TestVersionText(t *testing.T) {
	data, err := json.Marshal(map[string]wheel.Version{"v": mustVersion(t, "1.0-RC1")})
	if err != nil || string(data) != `{"v":"1.0rc1"}` {
		t.Errorf("%s, %v", data, err)
	}
	var back map[string]wheel.Version
	if err := json.Unmarshal(data, &back); err != nil || back["v"].String() != "1.0rc1" {
		t.Errorf("%v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`{"v":"x"}`), &back); err == nil {
		t.Error("invalid version unmarshalled")
	}
}

// referenceOrder is ascending.
var referenceOrder = strings.Fields(`
	1.dev0 1.0.dev456 1.0a1 1.0a2.dev456 1.0a12.dev456 1.0a12 1.0b1.dev456
	1.0b2 1.0b2.post345.dev456 1.0b2.post345 1.0rc1.dev456 1.0rc1 1.0
	1.0+abc.5 1.0+abc.7 1.0+5 1.0.post456.dev34 1.0.post456 1.0.15 1.1.dev1`)

func TestVersionOrder(t *testing.T) {
	for i, a := range referenceOrder {
		for j, b := range referenceOrder {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := mustVersion(t, a).Compare(mustVersion(t, b)); got != want {
				t.Errorf("%s compared to %s = %d, want %d", a, b, got, want)
			}
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		shuffled := make([]wheel.Version, len(referenceOrder))
		for i, j := range rng.Perm(len(referenceOrder)) {
			shuffled[i] = mustVersion(t, referenceOrder[j])
		}
		slices.SortFunc(shuffled, wheel.Version.Compare)
		var got []string
		for _, v := range shuffled {
			got = append(got, v.Raw())
		}
		if diff := cmp.Diff(referenceOrder, got); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestVersionOrderOfLabels(t *testing.T) {
	// Each list ascends; the last is what an installer takes.
	for _, list := range []string{
		"2.8.3 2.8.3+cu128.torch2.9.0 2.8.3+cu128.torch2.10.0 2.8.3+cu130.torch2.9.0",
		"2.8.3+cu12torch2.10cxx11abiTRUE 2.8.3+cu12torch2.8cxx11abiTRUE",
		"1+cu128torch210 1+cu128torch29",
		"1+cu100 1+cu130 1+cu92",
		"1+cpu 1+cu128 1+rocm6.4 1+xpu 1+1",
		"1.dev1+cu130 1+cpu",
		"1+18446744073709551615 1+18446744073709551616 1+99999999999999999999999",
	} {
		fields := strings.Fields(list)
		for i := range fields[1:] {
			if mustVersion(t, fields[i]).Compare(mustVersion(t, fields[i+1])) != -1 {
				t.Errorf("%s is not before %s", fields[i], fields[i+1])
			}
		}
	}
	for _, same := range [][2]string{{"1.0", "1"}, {"1.0", "v1.0.0.0"}, {"1.0+A-1", "1+a.01"}, {"0!1", "1"}, {"1.0a", "1.0.alpha.0"}, {"0", "0.0"}} {
		if !mustVersion(t, same[0]).Equal(mustVersion(t, same[1])) {
			t.Errorf("%s and %s are not equal", same[0], same[1])
		}
	}
}

// drawVersion draws versions from a small space, so that equal and almost
// equal ones are frequent.
func drawVersion(t *rapid.T, label string) wheel.Version {
	text := rapid.StringMatching(`v?([01]!)?0?[0-2](\.[0-2]){0,2}([._-]?(a|B|rc|preview)[._-]?[0-2]?)?(-[12]|[._-]?(post|r)[0-2]?)?(\.?dev[0-2]?)?(\+(a|B|cu128|0?1|10)([._-](a|2|x9)){0,2})?`).Draw(t, label)
	v, err := wheel.ParseVersion(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVersionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := drawVersion(t, "a"), drawVersion(t, "b"), drawVersion(t, "c")
		if a.Compare(b) != -b.Compare(a) {
			t.Fatal("order is not antisymmetric")
		}
		if a.Compare(b) <= 0 && b.Compare(c) <= 0 && a.Compare(c) > 0 {
			t.Fatal("order is not transitive")
		}
		if a.Equal(b) && a.Compare(c) != b.Compare(c) {
			t.Fatal("equal versions compare differently")
		}
		back, err := wheel.ParseVersion(a.String())
		if err != nil || !back.Equal(a) || back.String() != a.String() {
			t.Fatalf("%q does not round trip: %q, %v", a, back, err)
		}
		public, err := wheel.ParseVersion(a.Public())
		if err != nil || public.Local() != "" || public.Compare(a) > 0 {
			t.Fatalf("public version of %q: %q, %v", a, public, err)
		}
		again, err := public.WithLocal(a.Local())
		if err != nil || again.String() != a.String() {
			t.Fatalf("%q with local %q: %q, %v", public, a.Local(), again, err)
		}
	})
}

func TestParseVersionAllocates(t *testing.T) {
	for _, text := range []string{"2.9.0", "2.8.3+cu128.torch2.9.0", "1.0rc1"} {
		if n := testing.AllocsPerRun(100, func() {
			v, err := wheel.ParseVersion(text)
			if err != nil || v.String() != text || v.Compare(v) != 0 {
				t.Error(text)
			}
		}); n != 0 {
			t.Errorf("%s: %g allocations to parse, print and compare", text, n)
		}
	}
}

func BenchmarkParseVersion(b *testing.B) {
	for _, text := range []string{"2.9.0", "2.8.3+cu128.torch2.9.0", "1!2.0-RC.1.post3.dev4"} {
		b.Run(text, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := wheel.ParseVersion(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompare(b *testing.B) {
	for _, pair := range [][2]string{{"2.9.0", "2.10.0"}, {"2.9.0", "2.9.0"}, {"2.8.3+cu128.torch2.9.0", "2.8.3+cu128.torch2.10.0"}} {
		b.Run(pair[0]+"/"+pair[1], func(b *testing.B) {
			v, w := mustVersion(b, pair[0]), mustVersion(b, pair[1])
			b.ReportAllocs()
			b.SetBytes(int64(len(pair[0]) + len(pair[1])))
			for b.Loop() {
				v.Compare(w)
			}
		})
	}
}
