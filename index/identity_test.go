package index_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
)

// other writes a wheel of a name with bytes that no other call writes.
func other(t *testing.T, name string) index.NewFile {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, indextest.Wheel(t, name, map[string]string{"x_data.txt": dir}), 0o644); err != nil {
		t.Fatal(err)
	}
	return index.NewFile{Path: path, UploadTime: indextest.Day}
}

// TestIdentity: what installers take for a published file cannot be published again under another
// spelling, and what is another build can.
func TestIdentity(t *testing.T) {
	const pure, native = "x-1.0-py3-none-any.whl", "x-2.0+cu128.torch2.9-cp312-cp312-manylinux_2_17_x86_64.whl"
	for _, test := range []struct{ published, name, refusal string }{
		{pure, "x-1.0-py3.py3-none-any.whl", "only the spelling"},
		{pure, "x-1.0-py3-none-any.any.whl", "only the spelling"},
		{pure, "x-1.0-py3-none.none-any.whl", "only the spelling"},
		{pure, "x-1.0-PY3-none-any.whl", "only the spelling"},
		{pure, "x-1.0-py3-NONE-Any.whl", "only the spelling"},
		{pure, "x-1.0.0-py3-none-any.whl", "only the spelling"},
		{pure, "x-1-py3-none-any.whl", "only the spelling"},
		{pure, "X-1.0-py3-none-any.whl", "only the spelling"},
		{pure, "x-1.0-1-py3-none-any.whl", "was published for py3-none-any"},
		{pure, "x-1.0-0-py3-none-any.whl", "was published for py3-none-any"},
		{pure, "x-1.0-2abc-py3-none-any.whl", "was published for py3-none-any"},
		{pure, "x-1.0-py2.py3-none-any.whl", "was published for py3-none-any"},
		{pure, "x-1.0.0-7-py2.py3-none-any.whl", "was published for py3-none-any"},
		{"x-1.0-1-py3-none-any.whl", "x-1.0-01-py3-none-any.whl", "only the spelling"},
		{"x-1.0-1a-py3-none-any.whl", "x-1.0-1A-py3-none-any.whl", "only the spelling"},
		{"x-1.0-1-py3-none-any.whl", pure, "was published for py3-none-any"},
		{native, "x-2.0+cu128.torch2.9-cp312-cp312-manylinux2014_x86_64.whl", "only the spelling"},
		{native, "x-2.0+CU128.torch2.9-cp312-cp312-manylinux_2_17_x86_64.whl", "only the spelling"},
		{native, "x-2.0+cu128_torch2.9-cp312-cp312-manylinux_2_17_x86_64.whl", "only the spelling"},
		{native, "x-2.0+cu128.torch2.9-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", "only the spelling"},
		{native, "x-2.0+cu128.torch2.9-cp311.cp312-cp312-manylinux_2_17_x86_64.whl", "was published for cp312-cp312-manylinux_2_17_x86_64"},
		{native, "x-2.0+cu128.torch2.9-1-cp312-cp312-manylinux_2_17_x86_64.whl", "was published for"},
		// Another label is another version, but not in one view.
		{native, "x-2.0.0+cu128.torch2.9.0-cp312-cp312-manylinux2014_x86_64.whl", "view cu128/torch2.9 has this build already"},

		{pure, "x-1.0-cp312-none-any.whl", ""},
		{pure, "x-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", ""},
		{pure, "x-1.1-py3-none-any.whl", ""},
		{pure, "x-1.0.post1-py3-none-any.whl", ""},
		{pure, "x-1.0rc1-py3-none-any.whl", ""},
		{pure, "x-1.0+cpu-py3-none-any.whl", ""},
		{native, "x-2.0+cu128.torch2.9-cp311-cp311-manylinux_2_17_x86_64.whl", ""},
		{native, "x-2.0+cu130.torch2.9-cp312-cp312-manylinux_2_17_x86_64.whl", ""},
		{native, "x-2.0+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			store := openStore(t, t.TempDir())
			add := func(f index.NewFile) []index.Problem {
				t.Helper()
				_, problems, err := store.Add(t.Context(), []index.NewFile{f}, index.AddOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return problems
			}
			if problems := add(other(t, test.published)); len(problems) > 0 {
				t.Fatal(problems)
			}
			problems := add(other(t, test.name))
			switch {
			case test.refusal == "" && len(problems) > 0:
				t.Errorf("refused: %v", problems)
			case test.refusal != "" && (len(problems) != 1 || !strings.Contains(problems[0].Error(), test.refusal) || !strings.Contains(problems[0].Error(), test.published)):
				t.Errorf("%v, want %q and the name of the published file", problems, test.refusal)
			}
			if test.refusal != "only the spelling" {
				return
			}
			// Neither yanking nor removing makes the name free.
			all := func(*index.File) bool { return true }
			if _, err := store.Yank(t.Context(), "x", all, "", false); err != nil {
				t.Fatal(err)
			}
			if problems := add(other(t, test.name)); len(problems) != 1 {
				t.Errorf("after yanking: %v", problems)
			}
			if _, err := store.Remove(t.Context(), "x", all); err != nil {
				t.Fatal(err)
			}
			if problems := add(other(t, test.name)); len(problems) != 1 || !strings.Contains(problems[0].Error(), "only the spelling") {
				t.Errorf("after removing: %v", problems)
			}
		})
	}
}

// TestBuildNumber: the operator replaces a build by one with a number, in two steps.
func TestBuildNumber(t *testing.T) {
	store := openStore(t, t.TempDir())
	const first, second = "x-1.0-py3-none-any.whl", "x-1.0-1-py3-none-any.whl"
	add := func(name string) []index.Problem {
		_, problems, err := store.Add(t.Context(), []index.NewFile{other(t, name)}, index.AddOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return problems
	}
	if problems := add(first); len(problems) > 0 {
		t.Fatal(problems)
	}
	if problems := add(second); len(problems) != 1 || !strings.Contains(problems[0].Error(), "yank the other first") {
		t.Fatal(problems)
	}
	if _, err := store.Yank(t.Context(), "x", func(f *index.File) bool { return f.Filename == first }, "broken", false); err != nil {
		t.Fatal(err)
	}
	if problems := add(second); len(problems) > 0 {
		t.Fatal(problems)
	}
	// In one step, and in a manifest, the second of two is refused as well.
	store = openStore(t, t.TempDir())
	_, problems, err := store.Add(t.Context(), []index.NewFile{other(t, first), other(t, second)}, index.AddOptions{})
	if err != nil || len(problems) != 1 {
		t.Error(problems, err)
	}
}

// TestSdistIdentity: a version has one source distribution.
func TestSdistIdentity(t *testing.T) {
	store := openStore(t, t.TempDir())
	list := func(name, python string) []index.Problem {
		_, problems, err := store.AddListed(t.Context(), func(yield func(index.File, error) bool) {
			f := index.File{Filename: name, Base: "https://example.org/", Size: 1, RequiresPython: python, UploadTime: indextest.Day}
			copy(f.SHA256[:], name)
			yield(f, nil)
		}, index.AddOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return problems
	}
	if problems := list("x-1.0.tar.gz", ">=3.9,<4"); len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, name := range []string{"x-1.0.0.tar.gz", "x-1.0.zip", "X-1.tar.gz"} {
		if problems := list(name, ""); len(problems) != 1 || !strings.Contains(problems[0].Error(), "x-1.0.tar.gz") {
			t.Errorf("%s: %v", name, problems)
		}
	}
	for _, python := range []string{"3.9", ">=3.9 and <4", ">=3.6.*", "python>3", ">=", "<script>"} {
		if problems := list("x-2.0.tar.gz", python); len(problems) != 1 || !strings.Contains(problems[0].Error(), "Requires-Python") {
			t.Errorf("Requires-Python %q: %v", python, problems)
		}
	}
}
