package index_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/index"
)

func TestParseLabel(t *testing.T) {
	for label, want := range map[string]string{
		"":                           "",
		"cu128.torch2.9":             "cu128/torch2.9",
		"cu128.torch2.9.0":           "cu128/torch2.9",
		"cu128.torch2.10.1":          "cu128/torch2.10",
		"rocm6.1.torch2.4.0":         "rocm6.1/torch2.4",
		"rocm6.2.4.torch2.4.0":       "rocm6.2.4/torch2.4",
		"cpu":                        "cpu",
		"cpu.torch2.9":               "cpu/torch2.9",
		"xpu":                        "xpu",
		"cu128":                      "cu128",
		"cu92":                       "cu92",
		"cu12torch2.8cxx11abitrue":   "cu12/torch2.8",
		"cu12torch2.10cxx11abifalse": "cu12/torch2.10",
		"cu128torch2.9":              "cu128/torch2.9",
		"cu128torch29":               "cu128/torch2.9",
		"cu128torch210":              "cu128/torch2.10",
		"cu.12.8.torch.2.9":          "cu128/torch2.9",
		"cu.13.0.torch.2.11":         "cu130/torch2.11",
		"rocm.6.4.torch.2.9":         "rocm6.4/torch2.9",
		"cu12.8.torch2.9":            "cu128/torch2.9",
		"pt28.cu128":                 "cu128/torch2.8",
		"pt211cu130":                 "cu130/torch2.11",
		"pt2.8.cu128":                "cu128/torch2.8",
		"cu128.torch2.9.b2":          "cu128/torch2.9",
		"torch2.9":                   "torch2.9",
		"cu128.torch":                "cu128",
		"rocm":                       "",
		"gitabcdef":                  "",
		"ubuntu.1":                   "",
		"7":                          "",
	} {
		if got := index.ParseLabel(label).String(); got != want {
			t.Errorf("ParseLabel(%q) = %q, want %q", label, got, want)
		}
	}
}

func TestParseCoordinates(t *testing.T) {
	for _, s := range []string{"cu128/torch2.9", "cu128", "torch2.9", "rocm6.4/torch2.9,2.10", "cpu/torch2.1"} {
		c, err := index.ParseCoordinates(s)
		if err != nil || c.String() != s {
			t.Errorf("ParseCoordinates(%q) = %v, %v", s, c, err)
		}
	}
	for _, s := range []string{"", "/", "all", "simple", "files", "cu128/2.9", "cu128/torch", "cu128/torch2", "../torch2.9", "cu128/torch2.9,2.9", "CU128", "cu128/torch2.9/x", "cu128/../torch2.9"} {
		if c, err := index.ParseCoordinates(s); err == nil {
			t.Errorf("ParseCoordinates(%q) = %v, want an error", s, c)
		}
	}
}

// file describes a file elsewhere.
func file(filename string) index.File {
	return index.File{
		Filename: filename, Base: "https://example.org/w/", SHA256: sha256.Sum256([]byte(filename)), Size: 10,
		UploadTime: time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC),
	}
}

func project(name string, files ...index.File) *index.Project {
	slices.SortFunc(files, func(a, b index.File) int {
		if c := a.Version().Compare(b.Version()); c != 0 {
			return c
		}
		return strings.Compare(a.Filename, b.Filename)
	})
	return &index.Project{Name: name, DisplayName: name, Files: files}
}

// shown lists what the views show of a project.
func shown(c *index.Catalog, name string) map[string][]string {
	out := map[string][]string{}
	for _, v := range c.Views() {
		files, ok := v.Files(name)
		if !ok {
			continue
		}
		names := []string{}
		for _, f := range files {
			names = append(names, strings.TrimSuffix(strings.TrimPrefix(f.Filename, strings.ReplaceAll(name, "-", "_")+"-"), "-py3-none-any.whl"))
		}
		out[v.Path] = names
	}
	return out
}

func TestViews(t *testing.T) {
	wheels := func(versions ...string) (files []index.File) {
		for _, v := range versions {
			files = append(files, file("fa-"+v+"-py3-none-any.whl"))
		}
		return files
	}
	other := project("other", file("other-1+cu126.torch2.7-py3-none-any.whl"), file("other-1+cu126.torch2.8-py3-none-any.whl"))
	declared := index.Config{Default: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9"}}}
	sdist := file("fa-1.tar.gz")
	override := file("fa-1-py3-none-any.whl")
	override.Coordinates = index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9", "2.10"}}
	windowed := file("fa-1+cu126-py3-none-any.whl")
	windowed.Window = []string{"2.8", "2.9"}
	tests := []struct {
		name   string
		config index.Config
		files  []index.File
		edit   func(*index.Project)
		want   map[string][]string
	}{
		{
			name: "several, default declared", config: declared, files: wheels("1+cu128.torch2.8", "1+cu128.torch2.9", "1+cu130.torch2.9"),
			want: map[string][]string{
				"": {"1+cu128.torch2.9"}, "all": {"1+cu128.torch2.8", "1+cu128.torch2.9", "1+cu130.torch2.9"},
				"cu128": {"1+cu128.torch2.8", "1+cu128.torch2.9"}, "cu130": {"1+cu130.torch2.9"},
				"cu128/torch2.8": {"1+cu128.torch2.8"}, "cu128/torch2.9": {"1+cu128.torch2.9"}, "cu130/torch2.9": {"1+cu130.torch2.9"},
			},
		},
		{
			name: "several, none declared", files: wheels("1+cu128.torch2.8", "1+cu130.torch2.8"),
			want: map[string][]string{
				"": {"1+cu128.torch2.8", "1+cu130.torch2.8"}, "all": {"1+cu128.torch2.8", "1+cu130.torch2.8"},
				"cu128": {"1+cu128.torch2.8"}, "cu130": {"1+cu130.torch2.8"}, "cu128/torch2.8": {"1+cu128.torch2.8"}, "cu130/torch2.8": {"1+cu130.torch2.8"},
			},
		},
		{
			name: "only one combination is the default", config: declared, files: append(wheels("1+cu130.torch2.8", "2+cu130.torch2.8"), sdist),
			want: map[string][]string{
				"": {"1.tar.gz", "1+cu130.torch2.8", "2+cu130.torch2.8"}, "all": {"1.tar.gz", "1+cu130.torch2.8", "2+cu130.torch2.8"},
				"cu130": {"1+cu130.torch2.8", "2+cu130.torch2.8"}, "cu130/torch2.8": {"1+cu130.torch2.8", "2+cu130.torch2.8"},
			},
		},
		{
			name: "a first build for CUDA hides none for other Pythons", files: []index.File{
				file("fa-1-cp312-cp312-linux_x86_64.whl"), file("fa-1-cp313-cp313-linux_x86_64.whl"), file("fa-1+cu130-cp312-cp312-linux_x86_64.whl"),
			},
			want: map[string][]string{
				"":    {"1-cp312-cp312-linux_x86_64.whl", "1-cp313-cp313-linux_x86_64.whl", "1+cu130-cp312-cp312-linux_x86_64.whl"},
				"all": {"1-cp312-cp312-linux_x86_64.whl", "1-cp313-cp313-linux_x86_64.whl", "1+cu130-cp312-cp312-linux_x86_64.whl"}, "cu130": {"1+cu130-cp312-cp312-linux_x86_64.whl"},
			},
		},
		{
			name: "a default of CUDA keeps the CPU where it has nothing", config: index.Config{Default: index.Coordinates{Toolkit: "cu130"}}, files: []index.File{
				file("fa-1+cpu-cp312-cp312-linux_x86_64.whl"), file("fa-1+cpu-cp313-cp313-linux_x86_64.whl"), file("fa-1+cu130-cp312-cp312-linux_x86_64.whl"),
				file("fa-1+cu126-cp311-cp311-linux_x86_64.whl"),
			},
			want: map[string][]string{
				"":      {"1+cpu-cp313-cp313-linux_x86_64.whl", "1+cu130-cp312-cp312-linux_x86_64.whl"},
				"all":   {"1+cpu-cp312-cp312-linux_x86_64.whl", "1+cpu-cp313-cp313-linux_x86_64.whl", "1+cu126-cp311-cp311-linux_x86_64.whl", "1+cu130-cp312-cp312-linux_x86_64.whl"},
				"cpu":   {"1+cpu-cp312-cp312-linux_x86_64.whl", "1+cpu-cp313-cp313-linux_x86_64.whl"},
				"cu126": {"1+cu126-cp311-cp311-linux_x86_64.whl"}, "cu126/torch2.7": {"1+cu126-cp311-cp311-linux_x86_64.whl"}, "cu126/torch2.8": {"1+cu126-cp311-cp311-linux_x86_64.whl"},
				"cu130": {"1+cu130-cp312-cp312-linux_x86_64.whl"},
			},
		},
		{
			name: "torch unknown, its names in one", files: []index.File{windowed},
			want: map[string][]string{"": {"1+cu126"}, "all": {"1+cu126"}, "cu126": {"1+cu126"}, "cu126/torch2.8": {"1+cu126"}},
		},
		{
			name: "none of the default", config: declared, files: wheels("1+cu130.torch2.8", "1+cu130.torch2.9"),
			want: map[string][]string{
				"all": {"1+cu130.torch2.8", "1+cu130.torch2.9"}, "cu130": {"1+cu130.torch2.8", "1+cu130.torch2.9"},
				"cu130/torch2.8": {"1+cu130.torch2.8"}, "cu130/torch2.9": {"1+cu130.torch2.9"},
			},
		},
		{
			name: "own default", config: declared, files: wheels("1+cu130.torch2.8", "1+cu130.torch2.9"),
			edit: func(p *index.Project) { p.Default = index.Coordinates{Torch: []string{"2.9"}} },
			want: map[string][]string{
				"": {"1+cu130.torch2.9"}, "all": {"1+cu130.torch2.8", "1+cu130.torch2.9"}, "cu130": {"1+cu130.torch2.8", "1+cu130.torch2.9"},
				"cu130/torch2.8": {"1+cu130.torch2.8"}, "cu130/torch2.9": {"1+cu130.torch2.9"},
			},
		},
		{
			name: "no label", config: declared, files: append(wheels("1"), sdist),
			want: map[string][]string{"": {"1", "1.tar.gz"}, "all": {"1", "1.tar.gz"}},
		},
		{
			name: "shared", files: append(wheels("1"), sdist), edit: func(p *index.Project) { p.Shared = true },
			want: map[string][]string{
				"": {"1", "1.tar.gz"}, "all": {"1", "1.tar.gz"}, "cu126": {"1"}, "cu126/torch2.7": {"1"}, "cu126/torch2.8": {"1"},
			},
		},
		{
			name: "any torch", files: wheels("1+cu126"),
			want: map[string][]string{"": {"1+cu126"}, "all": {"1+cu126"}, "cu126": {"1+cu126"}, "cu126/torch2.7": {"1+cu126"}, "cu126/torch2.8": {"1+cu126"}},
		},
		{
			name: "any toolkit", files: wheels("1+torch2.8"),
			want: map[string][]string{"": {"1+torch2.8"}, "all": {"1+torch2.8"}, "cu126": {"1+torch2.8"}, "cu126/torch2.8": {"1+torch2.8"}},
		},
		{
			name: "one for any torch, one for a certain", config: declared, files: wheels("1+cu126", "1+cu126.torch2.8"),
			want: map[string][]string{"all": {"1+cu126", "1+cu126.torch2.8"}, "cu126": {"1+cu126", "1+cu126.torch2.8"}, "cu126/torch2.8": {"1+cu126.torch2.8"}},
		},
		{
			name: "published with coordinates", files: []index.File{override},
			want: map[string][]string{"": {"1"}, "all": {"1"}, "cu128": {"1"}, "cu128/torch2.9": {"1"}, "cu128/torch2.10": {"1"}},
		},
		{
			name: "quarantined", files: wheels("1+cu128.torch2.8"), edit: func(p *index.Project) { p.Status = index.Quarantined },
			want: map[string][]string{"": {}, "all": {}, "cu128": {}, "cu128/torch2.8": {}},
		},
		{name: "reserved", want: map[string][]string{"": {}, "all": {}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := project("fa", test.files...)
			if test.edit != nil {
				test.edit(p)
			}
			o := *other
			c := index.NewCatalog(test.config, []*index.Project{p, &o})
			if diff := cmp.Diff(test.want, shown(c, "fa")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestViewOrderAndAliases(t *testing.T) {
	c := index.NewCatalog(index.Config{}, []*index.Project{project("fa",
		file("fa-1+cu92.torch2.11-py3-none-any.whl"), file("fa-1+cu128.torch2.10-py3-none-any.whl"), file("fa-1+cu128.torch2.9-py3-none-any.whl"),
		file("fa-1+rocm6.4.torch2.9-py3-none-any.whl"), file("fa-1+cu92.torch21.1-py3-none-any.whl"))})
	var got []string
	for _, v := range c.Views() {
		got = append(got, strings.Join(append([]string{v.Path}, v.Aliases...), " "))
		for _, alias := range v.Aliases {
			if c.View(alias) != v {
				t.Errorf("View(%q) is another", alias)
			}
		}
	}
	want := []string{
		"", "all", "cu92", "cu92/torch2.11 cu92-torch2.11", "cu92/torch21.1 cu92-torch21.1", "cu128",
		"cu128/torch2.9 cu128-torch2.9 cu128-torch29", "cu128/torch2.10 cu128-torch2.10 cu128-torch210",
		"rocm6.4", "rocm6.4/torch2.9 rocm6.4-torch2.9 rocm6.4-torch29",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestNarrowViewsHaveOneLabel: in the view of one toolkit and torch, the greatest version that an
// installer can find never depends on the text of labels.
func TestNarrowViewsHaveOneLabel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("fa-%d%s-py3-none-any.whl", rapid.IntRange(1, 3).Draw(t, "version"),
				rapid.SampledFrom([]string{"", "+cu128.torch2.9", "+cu128.torch2.9.1", "+cu128torch29", "+cu130.torch2.9", "+cu128", "+torch2.9", "+cpu", "+rocm6.4.torch2.10"}).Draw(t, "label"))
		}), 1, 12).Draw(t, "files")
		slices.Sort(dir)
		var files []index.File
		taken := map[string]bool{}
		for _, name := range slices.Compact(dir) {
			f := file(name)
			key := f.Version().Public() + " " + f.Built().String()
			if c := f.Built(); c.Toolkit != "" && len(c.Torch) > 0 {
				if taken[key] {
					continue // would be refused
				}
				taken[key] = true
			}
			files = append(files, f)
		}
		c := index.NewCatalog(index.Config{}, []*index.Project{project("fa", files...)})
		for _, v := range c.Views() {
			if v.Torch == "" {
				continue
			}
			listed, _ := v.Files("fa")
			labels := map[string]string{}
			for _, f := range listed {
				// Files for any torch or toolkit are a choice of the publisher.
				if b := f.Built(); b.Toolkit == "" || len(b.Torch) == 0 {
					continue
				}
				public := f.Version().Public()
				if other, ok := labels[public]; ok {
					t.Fatalf("view %s has %s and %s", v.Path, other, f.Filename)
				}
				labels[public] = f.Filename
			}
		}
	})
}
