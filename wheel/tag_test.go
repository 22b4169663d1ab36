package wheel_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/wheel"
)

func TestParseTag(t *testing.T) {
	for in, want := range map[string][]wheel.Tag{
		"cp312-cp312-linux_x86_64": {{"cp312", "cp312", "linux_x86_64"}},
		"py2.py3-none-any":         {{"py2", "none", "any"}, {"py3", "none", "any"}},
		"CP313-Cp313T-Win_AMD64":   {{"cp313", "cp313t", "win_amd64"}},
		"py3.py3-none-any":         {{"py3", "none", "any"}},
	} {
		got, err := wheel.ParseTag(in)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", in, diff)
		}
	}
	if got := (wheel.Tag{Python: "py3", ABI: "none", Platform: "any"}).String(); got != "py3-none-any" {
		t.Error(got)
	}
	for in, want := range map[string]string{
		"":                  `tag "": not three parts separated by '-'`,
		"py3-none":          `tag "py3-none": not three parts separated by '-'`,
		"py3-none-any-x":    `tag "py3-none-any-x": not three parts separated by '-'`,
		"py3-none-":         `tag "py3-none-": platform tag is empty`,
		"py3-none..x-any":   `tag "py3-none..x-any": abi tag "none..x" has an empty member`,
		"3-none-any":        `tag "3-none-any": python tag "3" starts with a digit`,
		"py3-none-any any":  `tag "py3-none-any any": platform tag "any any" has a character other than letters, digits and '_'`,
		"py3-none-\u017f":   "tag \"py3-none-\u017f\": platform tag \"\u017f\" has a character other than letters, digits and '_'",
		"py3-none-\xff\xfe": `tag "py3-none-\xff\xfe": platform tag "\xff\xfe" has a character other than letters, digits and '_'`,
	} {
		_, err := wheel.ParseTag(in)
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	exactly := strings.Repeat("p.", 9) + "p-" + strings.Repeat("a.", 9) + "a-" + strings.Repeat("x.", 9) + "x"
	if _, err := wheel.ParseTag(exactly); err != nil {
		t.Error(err)
	}
	if _, err := wheel.ParseTag(exactly + ".x"); err == nil {
		t.Error("1100 tags accepted")
	}
}

func TestManylinux(t *testing.T) {
	type version struct {
		Major, Minor int
		Arch         string
		OK           bool
	}
	for in, want := range map[string]version{
		"manylinux1_x86_64":           {2, 5, "x86_64", true},
		"manylinux2010_i686":          {2, 12, "i686", true},
		"manylinux2014_aarch64":       {2, 17, "aarch64", true},
		"manylinux_2_28_x86_64":       {2, 28, "x86_64", true},
		"manylinux_2_17_ppc64le":      {2, 17, "ppc64le", true},
		"manylinux_2_x86_64":          {},
		"manylinux_2_28":              {},
		"manylinux_2_28_":             {},
		"manylinux_2_028_x86_64":      {},
		"manylinux_2_99999999999_x":   {},
		"manylinux_02_5_x":            {},
		"manylinux1":                  {},
		"manylinux1_":                 {},
		"manylinux2020_x86_64":        {},
		"linux_x86_64":                {},
		"musllinux_1_2_x86_64":        {},
		"":                            {},
		"manylinux_-2_5_x86_64":       {},
		"manylinux_2_9999_x86_64":     {2, 9999, "x86_64", true},
		"manylinux_3_0_some_new_arch": {3, 0, "some_new_arch", true},
	} {
		var got version
		got.Major, got.Minor, got.Arch, got.OK = wheel.ManylinuxVersion(in)
		if got != want {
			t.Errorf("%s = %+v, want %+v", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"manylinux2014_x86_64":  "manylinux_2_17_x86_64 manylinux2014_x86_64",
		"manylinux_2_17_x86_64": "manylinux_2_17_x86_64 manylinux2014_x86_64",
		"manylinux_2_5_i686":    "manylinux_2_5_i686 manylinux1_i686",
		"manylinux_2_28_x86_64": "manylinux_2_28_x86_64",
		"win_amd64":             "win_amd64",
	} {
		if got := strings.Join(wheel.PlatformAliases(in), " "); got != want {
			t.Errorf("aliases of %s = %s, want %s", in, got, want)
		}
	}
}

func TestSupportedTagsErrors(t *testing.T) {
	linux := wheel.Platform{OS: "linux", Arch: "x86_64", Glibc: wheel.PlatformVersion{Major: 2, Minor: 36}}
	for _, in := range []wheel.Interpreter{
		{},
		{Major: 3, Minor: 12},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "linux"}},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "plan9", Arch: "amd64"}},
		{Major: 3, Minor: 1 << 30, Platform: linux},
		{Major: 2, Minor: 7, Platform: linux},
		{Implementation: "pp", Major: 3, Minor: 11, Platform: linux},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "linux", Arch: "x86_64", Glibc: wheel.PlatformVersion{Major: 2, Minor: 1 << 30}}},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "linux", Arch: "x86_64", Glibc: wheel.PlatformVersion{Major: 3}}},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "linux", Arch: "x86_64", Musl: wheel.PlatformVersion{Major: 1, Minor: -1}}},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "macosx", Arch: "arm64", MacOS: wheel.PlatformVersion{Major: 10, Minor: 15}}},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "macosx", Arch: "arm64"}},
		{Major: 3, Minor: 12, Platform: wheel.Platform{OS: "macosx", Arch: "ppc", MacOS: wheel.PlatformVersion{Major: 11}}},
	} {
		if tags, err := wheel.SupportedTags(in); err == nil {
			t.Errorf("%+v: %d tags", in, len(tags))
		}
	}
}
