package wheel_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/wheel"
)

func TestParseFilename(t *testing.T) {
	for _, tt := range []struct {
		in, canonical string // canonical is empty if in is
		want          wheel.Filename
	}{
		{
			in: "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl",
			want: wheel.Filename{
				Name: "flash-attn", RawName: "flash_attn", Version: mustVersion(t, "2.8.3"),
				Python: []string{"cp312"}, ABI: []string{"cp312"}, Platform: []string{"linux_x86_64"},
			},
		},
		{
			in: "flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl",
			want: wheel.Filename{
				Name: "flash-attn", RawName: "flash_attn", Version: mustVersion(t, "2.8.3+cu128.torch2.9"),
				Python: []string{"cp312"}, ABI: []string{"cp312"}, Platform: []string{"manylinux_2_28_x86_64"},
			},
		},
		{
			in:        "Flash.Attn-2.8.3-cp312-cp312-linux_x86_64.whl",
			canonical: "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl",
			want: wheel.Filename{
				Name: "flash-attn", RawName: "Flash.Attn", Version: mustVersion(t, "2.8.3"),
				Python: []string{"cp312"}, ABI: []string{"cp312"}, Platform: []string{"linux_x86_64"},
			},
		},
		{
			in: "foo-1.0-1-py3-none-any.whl",
			want: wheel.Filename{
				Name: "foo", RawName: "foo", Version: mustVersion(t, "1.0"), Build: wheel.BuildTag{Number: "1"},
				Python: []string{"py3"}, ABI: []string{"none"}, Platform: []string{"any"},
			},
		},
		{
			in: "foo-1.0-1abc-py3-none-any.whl",
			want: wheel.Filename{
				Name: "foo", RawName: "foo", Version: mustVersion(t, "1.0"), Build: wheel.BuildTag{Number: "1", Suffix: "abc"},
				Python: []string{"py3"}, ABI: []string{"none"}, Platform: []string{"any"},
			},
		},
		{
			in: "foo-1.0+cu128-2.1-cp312-cp312-linux_x86_64.whl",
			want: wheel.Filename{
				Name: "foo", RawName: "foo", Version: mustVersion(t, "1.0+cu128"), Build: wheel.BuildTag{Number: "2", Suffix: ".1"},
				Python: []string{"cp312"}, ABI: []string{"cp312"}, Platform: []string{"linux_x86_64"},
			},
		},
		{
			in:        "foo-v1.00-PY3.py2.py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
			canonical: "foo-1.0-py2.py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
			want: wheel.Filename{
				Name: "foo", RawName: "foo", Version: mustVersion(t, "v1.00"), Python: []string{"py3", "py2"},
				ABI: []string{"none"}, Platform: []string{"manylinux_2_17_x86_64", "manylinux2014_x86_64"},
			},
		},
	} {
		got, err := wheel.ParseFilename(tt.in)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s:\n%s", tt.in, diff)
		}
		canonical := tt.canonical
		if canonical == "" {
			canonical = tt.in
		}
		if got.String() != canonical {
			t.Errorf("%s prints as %s, want %s", tt.in, got, canonical)
		}
	}
}

func TestParseFilenameErrors(t *testing.T) {
	for in, want := range map[string]string{
		"flash_attn-2.8.3+cu128-torch2.9.0-cp312-cp312-linux_x86_64.whl":   `'-' inside the local version of "2.8.3+cu128-torch2.9.0"; the right name is "flash_attn-2.8.3+cu128.torch2.9.0-cp312-cp312-linux_x86_64.whl"`,
		"flash_attn-2.8.3+cu128-torch2.9.0-1-cp312-cp312-linux_x86_64.whl": `'-' inside the local version of "2.8.3+cu128-torch2.9.0"; the right name is "flash_attn-2.8.3+cu128.torch2.9.0-1-cp312-cp312-linux_x86_64.whl"`,
		"foo-1.0+rocm6.1-torch-2.4.0-cp310-cp310-win_amd64.whl":            `'-' inside the local version of "1.0+rocm6.1-torch-2.4.0"; the right name is "foo-1.0+rocm6.1.torch.2.4.0-cp310-cp310-win_amd64.whl"`,
		"flash-attn-2.8.3-cp312-cp312-linux_x86_64.whl":                    `'-' inside the project name "flash-attn"; the right name is "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl"`,
		"flash-attn-2.8.3-1-cp312-cp312-linux_x86_64.whl":                  `'-' inside the project name "flash-attn"; the right name is "flash_attn-2.8.3-1-cp312-cp312-linux_x86_64.whl"`,
		"a-b-c-1.0-py3-none-any.whl":                                       `'-' inside the project name "a-b-c"; the right name is "a_b_c-1.0-py3-none-any.whl"`,
		"foo__bar-1.0-py3-none-any.whl":                                    `project name "foo__bar" contains "__"`,
		"_foo-1.0-py3-none-any.whl":                                        `project name "_foo" is not valid`,
		"-1.0-py3-none-any.whl":                                            `starts with '-'`,
		".foo-1.0-py3-none-any.whl":                                        `starts with '.'`,
		"foo--py3-none-any.whl":                                            `version "": empty`,
		"foo-1.0--none-any.whl":                                            `python tag is empty`,
		"foo-1.0-py3--any.whl":                                             `abi tag is empty`,
		"foo-1.0-py3.-none-any.whl":                                        `python tag "py3." has an empty member`,
		"foo-1.0_1-py3-none-any.whl":                                       `version "1.0_1": "_1": a post-release without "post" is written with '-'`,
		"playlyfe-0.1.1-2.7.6-none-any.whl":                                `python tag "2.7.6" starts with a digit`,
		"foo-1.0-_py3-none-any.whl":                                        `python tag "_py3" does not start with a letter`,
		"foo-1.0-py3-none-any.WHL":                                         `does not end in ".whl"`,
		"foo-1.0-py3-none-a<b>.whl":                                        `character '<' at byte 18`,
		"../foo-1.0-py3-none-any.whl":                                      `character '/' at byte 2`,
		"foo-1.0-py3-none-any.whl\n":                                       `character '\n' at byte 24`,
		"föö-1.0-py3-none-any.whl":                                         `character 'ö' at byte 1`,
		"foo-1.0-py3-none-an+y.whl":                                        `platform tag "an+y" has a character other than letters, digits and '_'`,
		"foo-1.0-1!-py3-none-any.whl":                                      `build tag "1!" has a character other than letters, digits, '_' and '.'`,
		"foo-1.0-x1-py3-none-any.whl":                                      `build tag "x1" does not start with a digit`,
		"foo-1.0-cp312-cp312-linux_x86_64-cu128.whl":                       `build tag "cp312" does not start with a digit`,
		"foo-1.0-1-cp312-cp312-linux_x86_64-cu128.whl":                     `has 7 parts separated by '-', more than a name can have`,
		"foo.whl":                         `has 1 parts separated by '-', not name, version, python tag, abi tag and platform tag`,
		"":                                `empty`,
		"nul.x-1.0-py3-none-any.whl":      `"nul" is a device on Windows`,
		"COM1.foo-1.0-py3-none-any.whl":   `"COM1" is a device on Windows`,
		strings.Repeat("a", 260) + ".whl": `has 264 bytes, more than 240`,
		"foo-1.0-" + strings.Repeat("p.", 39) + "p-" + strings.Repeat("a.", 25) + "a-any.whl": `compressed tag set stands for more than 1000 tags`,
	} {
		f, err := wheel.ParseFilename(in)
		if err == nil {
			t.Errorf("%s: accepted as %v", in, f)
			continue
		}
		if got := err.Error(); !strings.HasPrefix(got, "wheel name ") || !strings.HasSuffix(got, ": "+want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if f.Name != "" || f.Python != nil {
			t.Errorf("%s: error with result %v", in, f)
		}
	}
}

// The names given in errors must themselves be right.
func TestParseFilenameSuggestions(t *testing.T) {
	for _, in := range []string{
		"flash_attn-2.8.3+cu128-torch2.9.0-cp312-cp312-linux_x86_64.whl",
		"Flash-Attn-2.8.3.post1-2-cp312-cp312-linux_x86_64.whl",
	} {
		_, err := wheel.ParseFilename(in)
		if err == nil {
			t.Errorf("%s: accepted", in)
			continue
		}
		_, meant, _ := strings.Cut(err.Error(), "the right name is ")
		meant = strings.Trim(meant, `"`)
		if f, err := wheel.ParseFilename(meant); err != nil || f.String() != meant {
			t.Errorf("%s: suggested %q: %v", in, meant, err)
		}
	}
}

func TestParseFilenameVariants(t *testing.T) {
	variants := wheel.FilenameOptions{Variants: true}
	for in, label := range map[string]string{
		"foo-1.0-cp312-cp312-linux_x86_64-cu128.whl":      "cu128",
		"foo-1.0-1-cp312-cp312-linux_x86_64-cu12.8_x.whl": "cu12.8_x",
		"foo-1.0-py3-none-any-null.whl":                   "null",
		"foo-1.0-py3-none-any.whl":                        "",
		"foo-1.0-1-py3-none-any.whl":                      "",
	} {
		f, err := wheel.ParseFilenameOptions(in, variants)
		if err != nil || f.Label != label || f.String() != in {
			t.Errorf("%s: label %q, name %s, %v", in, f.Label, f, err)
		}
		if _, err := wheel.ParseFilename(in); (err == nil) != (label == "") {
			t.Errorf("%s without variants: %v", in, err)
		}
	}
	for _, in := range []string{
		"foo-1.0-cp312-cp312-linux_x86_64-.whl",
		"foo-1.0-cp312-cp312-linux_x86_64-CU.whl",
		"foo-1.0-cp312-cp312-linux_x86_64-a-b.whl",
		"foo-1.0-1-cp312-cp312-linux_x86_64-a-b.whl",
		// A platform is no label, even where the grammar would allow it.
		"flash_attn-2.8.3+cu128-torch29-cp312-cp312-linux_x86_64.whl",
	} {
		if f, err := wheel.ParseFilenameOptions(in, variants); err == nil {
			t.Errorf("%s: accepted with label %q", in, f.Label)
		}
	}
}

func TestFilenameTags(t *testing.T) {
	f, err := wheel.ParseFilename("foo-1.0-py2.py3-none.abi3-any.whl")
	if err != nil {
		t.Fatal(err)
	}
	want := []wheel.Tag{{"py2", "none", "any"}, {"py2", "abi3", "any"}, {"py3", "none", "any"}, {"py3", "abi3", "any"}}
	if diff := cmp.Diff(want, f.Tags()); diff != "" {
		t.Error(diff)
	}
}

func TestBuildTagOrder(t *testing.T) {
	order := []wheel.BuildTag{{}, {Number: "0"}, {Number: "1"}, {Number: "1", Suffix: "abc"}, {Number: "2"}, {Number: "10"}, {Number: "99999999999999999999"}}
	if !slices.IsSortedFunc(order, wheel.BuildTag.Compare) {
		t.Error("not in order")
	}
	for i := range order[1:] {
		if order[i].Compare(order[i+1]) != -1 || order[i+1].Compare(order[i]) != 1 {
			t.Errorf("%q is not before %q", order[i], order[i+1])
		}
	}
	if (wheel.BuildTag{Number: "01"}).Compare(wheel.BuildTag{Number: "1"}) != 0 {
		t.Error("leading zeros count")
	}
}

func TestParseSdistName(t *testing.T) {
	for _, tt := range []struct {
		in, canonical string
		want          wheel.SdistName
	}{
		{"exllamav2-0.3.2.tar.gz", "exllamav2-0.3.2.tar.gz", wheel.SdistName{Name: "exllamav2", RawName: "exllamav2", Version: mustVersion(t, "0.3.2"), Ext: ".tar.gz"}},
		{"Flash-Attn-2.8.3-1.zip", "flash_attn_2_8_3-1.zip", wheel.SdistName{Name: "flash-attn-2-8-3", RawName: "Flash-Attn-2.8.3", Version: mustVersion(t, "1"), Ext: ".zip"}},
		{"zope.interface-5.0RC1.tar.gz", "zope_interface-5.0rc1.tar.gz", wheel.SdistName{Name: "zope-interface", RawName: "zope.interface", Version: mustVersion(t, "5.0rc1"), Ext: ".tar.gz"}},
	} {
		got, err := wheel.ParseSdistName(tt.in)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s:\n%s", tt.in, diff)
		}
		if got.String() != tt.canonical {
			t.Errorf("%s prints as %s, want %s", tt.in, got, tt.canonical)
		}
	}
	if got := (wheel.SdistName{Name: "a-b", Version: mustVersion(t, "1.0")}).String(); got != "a_b-1.0.tar.gz" {
		t.Errorf("produced %s", got)
	}
	for in, want := range map[string]string{
		"foo-1.0.tgz":      `sdist name "foo-1.0.tgz": does not end in ".tar.gz" or ".zip"`,
		"foo-1.0.TAR.GZ":   `sdist name "foo-1.0.TAR.GZ": does not end in ".tar.gz" or ".zip"`,
		"foo.tar.gz":       `sdist name "foo.tar.gz": no '-' between name and version`,
		"foo_-1.0.tar.gz":  `sdist name "foo_-1.0.tar.gz": project name "foo_" is not valid`,
		"foo-.tar.gz":      `sdist name "foo-.tar.gz": version "": empty`,
		"foo-latest.zip":   `sdist name "foo-latest.zip": version "latest": does not begin with a number`,
		"aux.b-1.0.tar.gz": `sdist name "aux.b-1.0.tar.gz": "aux" is a device on Windows`,
		"flash-attn-2.8.3+cu128-torch2.9.tar.gz": `sdist name "flash-attn-2.8.3+cu128-torch2.9.tar.gz": '-' inside the local version of ` +
			`"2.8.3+cu128-torch2.9"; the right name is "flash_attn-2.8.3+cu128.torch2.9.tar.gz"`,
	} {
		_, err := wheel.ParseSdistName(in)
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestFilenameProperties(t *testing.T) {
	member := rapid.StringMatching(`[a-z][a-z0-9_]{0,6}`)
	members := rapid.SliceOfNDistinct(member, 1, 4, rapid.ID)
	rapid.Check(t, func(t *rapid.T) {
		made := wheel.Filename{
			Name:    wheel.NormalizeName(rapid.StringMatching(`[A-Za-z0-9]{1,3}([._-]{1,2}[a-z0-9]{1,3}){0,2}`).Draw(t, "name")),
			Version: drawVersion(t, "version"),
			Python:  members.Draw(t, "python"), ABI: members.Draw(t, "abi"), Platform: members.Draw(t, "platform"),
		}
		if rapid.Bool().Draw(t, "has build") {
			made.Build = wheel.BuildTag{Number: rapid.StringMatching(`[0-9]{1,3}`).Draw(t, "number"), Suffix: rapid.StringMatching(`([a-z_.][a-z0-9]?)?`).Draw(t, "suffix")}
		}
		if rapid.Bool().Draw(t, "has label") {
			made.Label = rapid.StringMatching(`[0-9a-z_.]{1,5}`).Draw(t, "label")
		}
		name := made.String()
		read, err := wheel.ParseFilenameOptions(name, wheel.FilenameOptions{Variants: true})
		if err != nil {
			t.Fatal(err)
		}
		if read.String() != name || read.Name != made.Name || read.Build != made.Build || read.Label != made.Label ||
			!read.Version.Equal(made.Version) || len(read.Tags()) != len(made.Tags()) {
			t.Fatalf("%s reads as %+v", name, read)
		}
		sdist := wheel.SdistName{Name: made.Name, Version: made.Version}
		back, err := wheel.ParseSdistName(sdist.String())
		if err != nil || back.String() != sdist.String() || back.Name != sdist.Name {
			t.Fatalf("%s reads as %+v, %v", sdist, back, err)
		}
	})
}
