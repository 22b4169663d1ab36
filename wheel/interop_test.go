package wheel_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/wheel"
)

// python returns the interpreter named by KILN_PYTHON, which has pip, setuptools,
// wheel, build and packaging. Without one the test is skipped, or fails if
// KILN_REQUIRE lists python.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs Python")
	}
	path := os.Getenv("KILN_PYTHON")
	if path == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set: needs a Python with pip, setuptools, wheel, build and packaging")
	}
	return path
}

func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PIP_NO_INDEX=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_CONFIG_FILE="+os.DevNull, "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", filepath.Base(name), args, err, out)
	}
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

func onlyWheel(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(found) != 1 {
		t.Fatalf("wheels in %s: %q, %v", dir, found, err)
	}
	return found[0]
}

func openClean(t *testing.T, path string) *wheel.Reader {
	t.Helper()
	r, err := wheel.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if problems, err := r.Check(t.Context(), wheel.CheckOptions{}); err != nil || len(problems) > 0 {
		t.Fatalf("%s: %v, %v", filepath.Base(path), problems, err)
	}
	return r
}

// setuptoolsProject has what wheels have: a module, data with awkward names, a
// script, data files, a licence, extras, entry points.
var setuptoolsProject = map[string]string{
	"pyproject.toml": `[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "Kiln.Interop"
version = "1.2"
description = "Größe"
readme = "README.md"
requires-python = ">=3.8"
dependencies = ["torch>=2.2.0; python_version < '2'", "numpy>=1; python_version < '2'"]
[project.optional-dependencies]
gpu = ["torch[opt]>=2.2.0"]
[project.scripts]
kiln-interop = "kiln_interop:main"
[tool.setuptools]
script-files = ["bin/kiln-tool"]
packages = ["kiln_interop"]
[tool.setuptools.package-data]
kiln_interop = ["*.txt"]
[tool.setuptools.data-files]
"share/kiln" = ["shared.dat"]
`,
	"README.md":                   "# Interop\n\nName: not a field\n",
	"LICENSE":                     "Free.\n",
	"shared.dat":                  "data\n",
	"bin/kiln-tool":               "#!/usr/bin/env python\nprint('tool')\n",
	"kiln_interop/__init__.py":    "def main():\n    print('hello')\n",
	"kiln_interop/a, b \"c\".txt": "awkward\n",
	"kiln_interop/größe.txt":      "umlaut\n",
}

// TestInterop builds a wheel with setuptools, rewrites it, and has pip, wheel and
// importlib.metadata read the result.
func TestInterop(t *testing.T) {
	py := python(t)
	if runtime.GOOS == "windows" {
		t.Skip("the project has a file name that Windows forbids")
	}
	project, built, out := t.TempDir(), t.TempDir(), t.TempDir()
	writeFiles(t, project, setuptoolsProject)
	command(t, project, py, "-m", "build", "--wheel", "--no-isolation", "--outdir", built)
	source := onlyWheel(t, built)
	openClean(t, source)

	done, err := wheel.RewriteFile(t.Context(), source, out, wheel.RewriteOptions{
		Local: new("cu128-torch2.9"),
		EditMetadata: func(m *wheel.Metadata) error {
			n, err := m.SetRequiresDist("torch", "==2.9.*")
			if n != 2 {
				t.Errorf("%d requirements changed, want 2", n)
			}
			return err
		},
		Add: map[string][]byte{"sboms/kiln.json": []byte("{}\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "kiln_interop-1.2+cu128.torch2.9-py3-none-any.whl"; done.Name != want {
		t.Fatalf("name %s, want %s", done.Name, want)
	}
	rewritten := filepath.Join(out, done.Name)
	openClean(t, rewritten)

	t.Run("pip", func(t *testing.T) {
		venv := filepath.Join(t.TempDir(), "venv")
		command(t, "", py, "-m", "venv", venv)
		bin := filepath.Join(venv, "bin")
		command(t, "", filepath.Join(bin, "python"), "-m", "pip", "install", "--no-deps", rewritten)
		got := command(t, "", filepath.Join(bin, "python"), "-c", `
import importlib.metadata as m, importlib.util, pathlib, hashlib, base64
d = m.distribution("kiln-interop")
print(m.version("Kiln.Interop"))
print(d.metadata["Name"], "|", d.metadata["Summary"])
print(*d.requires, sep=" | ")
bad = [str(f) for f in d.files if f.hash and f.hash.value != base64.urlsafe_b64encode(hashlib.new(f.hash.mode, f.locate().read_bytes()).digest()).decode().rstrip("=")]
print(bad, any(str(f).endswith('a, b "c".txt') for f in d.files), any(str(f).endswith("sboms/kiln.json") for f in d.files))
`)
		want := "1.2+cu128.torch2.9\nKiln.Interop | Größe\n" +
			"torch==2.9.*; python_version < \"2\" | numpy>=1; python_version < \"2\" | torch[opt]==2.9.*; extra == \"gpu\"\n[] True True\n"
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if got := command(t, "", filepath.Join(bin, "kiln-interop")); got != "hello\n" {
			t.Errorf("entry point printed %q", got)
		}
		if got := command(t, "", filepath.Join(bin, "kiln-tool")); got != "tool\n" {
			t.Errorf("script printed %q", got)
		}
		command(t, "", filepath.Join(bin, "python"), "-m", "pip", "check")
		command(t, "", filepath.Join(bin, "python"), "-m", "pip", "uninstall", "--yes", "kiln-interop")
	})

	t.Run("wheel unpack", func(t *testing.T) {
		dir := t.TempDir()
		command(t, dir, py, "-m", "wheel", "unpack", rewritten) // compares hashes
		if _, err := os.Stat(filepath.Join(dir, "kiln_interop-1.2+cu128.torch2.9", "kiln_interop", "größe.txt")); err != nil {
			t.Error(err)
		}
	})

	t.Run("wheel tags", func(t *testing.T) {
		dir := t.TempDir()
		data, err := os.ReadFile(rewritten)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, done.Name), data, 0o666); err != nil {
			t.Fatal(err)
		}
		command(t, dir, py, "-m", "wheel", "tags", "--remove", "--python-tag=cp312", "--abi-tag=cp312", "--platform-tag=linux_x86_64", "--build=3", done.Name)
		theirs := openClean(t, onlyWheel(t, dir))
		// The same change made here: equal but for the order and the times.
		ours, err := wheel.RewriteFile(t.Context(), rewritten, t.TempDir(), wheel.RewriteOptions{Python: []string{"cp312"}, ABI: []string{"cp312"}, Platform: []string{"linux_x86_64"}, Build: new("3")})
		if err != nil {
			t.Fatal(err)
		}
		if got := theirs.Filename().String(); got != ours.Name {
			t.Errorf("wheel names it %s, kiln %s", got, ours.Name)
		}
		info, err := theirs.Info()
		if err != nil || info.Build != "3" || len(info.Tags) != 1 {
			t.Errorf("WHEEL of theirs: %+v, %v", info, err)
		}
	})

	t.Run("renamed", func(t *testing.T) {
		// What two public farms publish: pip refuses it from an index, kiln repairs it.
		dir := t.TempDir()
		data, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		renamed := filepath.Join(dir, "kiln_interop-1.2+cu128-py3-none-any.whl")
		if err := os.WriteFile(renamed, data, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := wheel.RewriteFile(t.Context(), renamed, dir, wheel.RewriteOptions{Overwrite: true}); err != nil {
			t.Fatal(err)
		}
		openClean(t, renamed)
		target := filepath.Join(t.TempDir(), "target")
		command(t, "", py, "-m", "pip", "install", "--no-deps", "--find-links", dir, "--target", target, "kiln-interop==1.2+cu128")
		if _, err := os.Stat(filepath.Join(target, "kiln_interop-1.2+cu128.dist-info", "METADATA")); err != nil {
			t.Error(err)
		}
	})

	t.Run("packaging", func(t *testing.T) {
		got := command(t, "", py, "-c", fmt.Sprintf(`
import zipfile, packaging.metadata, packaging.utils
path = %q
name, version, build, tags = packaging.utils.parse_wheel_filename(path.rsplit("/", 1)[-1])
z = zipfile.ZipFile(path)
assert z.testzip() is None
m = packaging.metadata.Metadata.from_email(z.read(f"kiln_interop-{version}.dist-info/METADATA"))
print(m.name, m.version == version, m.requires_python, len(m.requires_dist))
`, rewritten))
		if want := "Kiln.Interop True >=3.8 3\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestMetadataCorpusIsCurrent runs the script that made the corpus.
func TestMetadataCorpusIsCurrent(t *testing.T) {
	py := python(t)
	if got := command(t, "", py, "-c", "import packaging; print(packaging.__version__)"); got != "26.3\n" {
		t.Skipf("the corpus was made with packaging 26.3, KILN_PYTHON has %s", got)
	}
	want, err := os.ReadFile("testdata/metadata/corpus.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	got := command(t, "testdata/metadata", py, "make_corpus.py")
	if !bytes.Equal([]byte(got), want) {
		t.Error("make_corpus.py gives another corpus.jsonl")
	}
}
