package wheel_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/wheel"
)

func TestParseRequirement(t *testing.T) {
	for _, tt := range []struct {
		in, text string
		want     wheel.Requirement
	}{
		{
			"torch[x]>=2.2,<3 ; python_version < '3.13'",
			"torch[x]<3,>=2.2; python_version < '3.13'",
			wheel.Requirement{Name: "torch", RawName: "torch", Extras: []string{"x"}, Specifier: mustSpecifiers(t, ">=2.2,<3"), Marker: "python_version < '3.13'"},
		},
		{
			" Flash_Attn [ b.B , a, A ] ( >= 2 ) ",
			"Flash_Attn[a,b-b]>=2",
			wheel.Requirement{Name: "flash-attn", RawName: "Flash_Attn", Extras: []string{"a", "b-b"}, Specifier: mustSpecifiers(t, ">=2")},
		},
		{
			"flash-attn @ https://example.org/a.whl ; os_name=='posix'",
			"flash-attn @ https://example.org/a.whl ; os_name=='posix'",
			wheel.Requirement{Name: "flash-attn", RawName: "flash-attn", URL: "https://example.org/a.whl", Marker: "os_name=='posix'"},
		},
		{
			"a@file:///x;y",
			"a @ file:///x;y",
			wheel.Requirement{Name: "a", RawName: "a", URL: "file:///x;y"},
		},
		{
			`nvidia-cublas-cu12==12.8.4.1; platform_system == "Linux" and (platform_machine == "x86_64" or 'a' not in extra)`,
			`nvidia-cublas-cu12==12.8.4.1; platform_system == "Linux" and (platform_machine == "x86_64" or 'a' not in extra)`,
			wheel.Requirement{
				Name: "nvidia-cublas-cu12", RawName: "nvidia-cublas-cu12", Specifier: mustSpecifiers(t, "==12.8.4.1"),
				Marker: `platform_system == "Linux" and (platform_machine == "x86_64" or 'a' not in extra)`,
			},
		},
		{"numpy", "numpy", wheel.Requirement{Name: "numpy", RawName: "numpy"}},
	} {
		got, err := wheel.ParseRequirement(tt.in)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s:\n%s", tt.in, diff)
		}
		if got.String() != tt.text {
			t.Errorf("%s prints as %s, want %s", tt.in, got, tt.text)
		}
	}
	if got := (wheel.Requirement{Name: "torch", Extras: []string{"x"}}).String(); got != "torch[x]" {
		t.Errorf("produced %s", got)
	}
}

func TestParseRequirementErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                                `column 1: expected a project name, found the end`,
		"foo bar":                         `column 5: expected a version specifier, ';' or the end, found "bar"`,
		"foo_":                            `column 1: expected a project name, found "foo_"`,
		"foo[a b]":                        `column 7: expected ',' or ']' after an extra, found "b]"`,
		"foo[a,]":                         `column 7: expected the name of an extra, found "]"`,
		"foo(>=1":                         `column 8: expected ')', found the end`,
		"foo>=1.*":                        `column 4: ".*" needs == or !=`,
		"foo>=2.8+cu128":                  `column 4: a local version needs == or !=`,
		"foo @ ":                          `column 7: expected a URL, found the end`,
		"foo @ a\nb":                      `column 8: expected a URL without white space, found "\nb"`,
		"foo @ a b":                       `column 9: expected ';' or the end, found "b"`,
		"foo; ":                           `column 6: expected a marker variable or a quoted string, found the end`,
		"foo; os == 'a'":                  `column 6: expected a marker variable or a quoted string, found "os == 'a'"`,
		"foo; os_name 'a'":                `column 14: expected an operator: === ~= == != <= >= < > in, not in, found "'a'"`,
		"foo; os_name not 'a'":            `column 18: expected in after not, found "'a'"`,
		"foo; os_name == 'a":              `column 17: expected a string with a closing quote, found "'a"`,
		`foo; os_name == 'a\'`:            `column 19: expected a string without backslashes and control characters, found "\\'"`,
		"foo; os_name == 'a' x":           `column 21: expected and, or or the end, found "x"`,
		"foo; (os_name == 'a'":            `column 21: expected and, or or ')', found the end`,
		"foo; variant_label == 'a'":       `column 6: expected a marker variable or a quoted string, found "variant_label == 'a'"`,
		"foo;" + strings.Repeat("(", 200): `column 106: marker nested deeper than 100 parentheses`,
	} {
		_, err := wheel.ParseRequirement(in)
		if err == nil || !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}
