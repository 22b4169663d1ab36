package serve_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
)

// TestRemote: the files of an index over HTTP are those of the index, from its root, from a
// repository, in JSON and in HTML.
func TestRemote(t *testing.T) {
	f := newFixture(t, serve.Options{})
	f.publish(wheel128, wheel130)
	for _, path := range []string{"", "/", "/simple/", "/simple", "/all/simple/"} {
		remote, err := index.OpenRemote(t.Context(), nil, f.http.URL+path)
		if err != nil {
			t.Fatal(err)
		}
		files, err := remote.Files(t.Context(), "Flash_Attn")
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != 2 || files[0].Filename != wheel128 || files[0].SHA256.IsZero() || files[0].RequiresPython != ">=3.8" {
			t.Fatalf("%s: %+v", path, files)
		}
		if got := f.do("GET", strings.TrimPrefix(files[0].URL(""), f.http.URL)); got.StatusCode != 200 {
			t.Errorf("%s: the file is not at %s: %d", path, files[0].URL(""), got.StatusCode)
		}
		want := f.http.URL + "/cu128/torch2.9/simple/"
		if got := remote.SimpleURL(files[0].Built(), "2.9"); got != want {
			t.Errorf("%s: install from %s, want %s", path, got, want)
		}
	}
	remote, err := index.OpenRemote(t.Context(), nil, f.http.URL)
	if err != nil {
		t.Fatal(err)
	}
	// What file names cannot say travels as well.
	unlabeled := index.NewFile{
		Path: indextest.Wheels(t, "xformers-1.0-py3-none-any.whl")[0].Path, Arch: []string{"80", "90+ptx"},
		Coordinates: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9", "2.10"}},
	}
	if _, problems, err := f.store.Add(t.Context(), []index.NewFile{unlabeled}, index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if files, err := remote.Files(t.Context(), "xformers"); err != nil || len(files) != 1 ||
		!cmp.Equal(files[0].Built(), unlabeled.Coordinates) || !cmp.Equal(files[0].Arch, []string{"8.0", "9.0+PTX"}) {
		t.Errorf("coordinates and architectures do not survive: %v %+v", err, files)
	}
	if _, err := remote.Files(t.Context(), "nothing"); err == nil || !strings.Contains(err.Error(), "no such project") {
		t.Errorf("a project that is not there: %v", err)
	}
	if _, err := remote.Files(t.Context(), "../x"); err == nil {
		t.Error("a name that is none is asked for")
	}
	for _, bad := range []string{"", "ftp://x/", "/simple/", "http:///x"} {
		if _, err := index.OpenRemote(t.Context(), nil, bad); err == nil {
			t.Errorf("index %q is accepted", bad)
		}
	}
}

// TestLockers: poetry and pdm lock the build of the view they are pointed at, with its hash and
// those of its dependencies. pdm needs the exact pin: of "demo-ext" it locks version 1.0, without
// label and hash.
func TestLockers(t *testing.T) {
	if !indextest.E2E() {
		t.Skip("KILN_E2E does not name index")
	}
	f := newFixture(t, serve.Options{})
	dir := t.TempDir()
	files := []index.NewFile{
		indextest.DependWheel(t, dir, "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl", "helper"),
		indextest.DependWheel(t, dir, "demo_ext-1.0+cu130.torch2.9-py3-none-any.whl", "helper"),
		indextest.DependWheel(t, dir, "helper-2.0-py3-none-any.whl"),
	}
	if _, problems, err := f.store.Add(t.Context(), files, index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := f.store.SetProject(t.Context(), "helper", index.Settings{Shared: new(true)}); err != nil {
		t.Fatal(err)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	view := f.http.URL + "/cu128/torch2.9/simple/"
	project := "[project]\nname = \"user\"\nversion = \"0\"\nrequires-python = \">=3.10,<4\"\ndependencies = [\"%s\"]\n"
	for _, test := range []struct{ name, requirements, dependency, source, lock string }{
		{"poetry", "poetry==2.2.1", "demo-ext", "[[tool.poetry.source]]\nname = \"kiln\"\nurl = \"%s\"\npriority = \"primary\"\n", "poetry.lock"},
		{"pdm", "pdm==2.26.1 unearth==0.17.5", "demo-ext==1.0+cu128.torch2.9", "[[tool.pdm.source]]\nname = \"pypi\"\nurl = \"%s\"\nverify_ssl = false\n", "pdm.lock"},
	} {
		t.Run(test.name, func(t *testing.T) {
			python := indextest.Venv(t, test.name, strings.Fields(test.requirements)...)
			home := t.TempDir()
			if err := os.WriteFile(filepath.Join(home, "pyproject.toml"), fmt.Appendf(nil, project+test.source, test.dependency, view), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), python, "-m", test.name, "lock")
			cmd.Dir = home
			cmd.Env = append(indextest.Environment(), "HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_CACHE_HOME="+home, "POETRY_CACHE_DIR="+home, "PDM_CHECK_UPDATE=0", "PDM_IGNORE_SAVED_PYTHON=1", "POETRY_VIRTUALENVS_USE_POETRY_PYTHON=true",
				"PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			lock, err := os.ReadFile(filepath.Join(home, test.lock))
			if err != nil {
				t.Fatal(err)
			}
			catalog := f.server.Catalog()
			for _, want := range []string{
				"1.0+cu128.torch2.9", catalog.Project("demo-ext").File(filepath.Base(files[0].Path)).SHA256.String(),
				catalog.Project("helper").Files[0].SHA256.String(),
			} {
				if !strings.Contains(string(lock), want) {
					t.Errorf("no %q in\n%s", want, lock)
				}
			}
			if strings.Contains(string(lock), "cu130") {
				t.Errorf("another build is locked:\n%s", lock)
			}
		})
	}
}
