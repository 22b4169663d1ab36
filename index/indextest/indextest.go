// Package indextest has what the tests of an index and of its server share: makers of wheels, and
// the installers that they run.
package indextest

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/wheel"
)

// Day is when files that tests make entered the index.
var Day = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

// Wheel makes the smallest wheel of a name that installers accept. extra are more members.
func Wheel(t testing.TB, filename string, extra map[string]string) []byte {
	t.Helper()
	name, err := wheel.ParseFilename(filename)
	if err != nil {
		t.Fatal(err)
	}
	info := name.RawName + "-" + name.Version.Raw() + ".dist-info/"
	members := map[string]string{
		name.RawName + ".py": "answer = 42\n",
		info + "METADATA":    "Metadata-Version: 2.1\nName: " + name.Name + "\nVersion: " + name.Version.String() + "\nRequires-Python: >=3.8\n",
		info + "WHEEL":       "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n",
	}
	for _, tag := range name.Tags() {
		members[info+"WHEEL"] += "Tag: " + tag.String() + "\n"
	}
	maps.Copy(members, extra)
	record := &strings.Builder{}
	for _, member := range slices.Sorted(maps.Keys(members)) {
		sum := sha256.Sum256([]byte(members[member]))
		fmt.Fprintf(record, "%s,sha256=%s,%d\n", member, base64.RawURLEncoding.EncodeToString(sum[:]), len(members[member]))
	}
	members[info+"RECORD"] = record.String() + info + "RECORD,,\n"
	return Zip(t, members)
}

// Zip makes an archive of files that are not compressed.
func Zip(t testing.TB, members map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, member := range slices.Sorted(maps.Keys(members)) {
		data := members[member]
		w, err := z.CreateRaw(&zip.FileHeader{
			Name: member, Method: zip.Store, CRC32: crc32.ChecksumIEEE([]byte(data)),
			CompressedSize64: uint64(len(data)), UncompressedSize64: uint64(len(data)),
		})
		if err == nil {
			_, err = io.WriteString(w, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Wheels makes wheels in a new folder and returns what [index.Store.Add] takes.
func Wheels(t testing.TB, names ...string) (files []index.NewFile) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, Wheel(t, name, nil), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, index.NewFile{Path: path, UploadTime: Day})
	}
	return files
}

// DependWheel writes a wheel with requirements.
func DependWheel(t *testing.T, dir, filename string, requires ...string) index.NewFile {
	t.Helper()
	parts := strings.SplitN(filename, "-", 3)
	metadata := "Metadata-Version: 2.1\nName: " + parts[0] + "\nVersion: " + parts[1] + "\nRequires-Python: >=3.8\n"
	if len(requires) > 0 {
		metadata += "Requires-Dist: " + strings.Join(requires, "\nRequires-Dist: ") + "\n"
	}
	path := filepath.Join(dir, filename)
	data := Wheel(t, filename, map[string]string{parts[0] + "-" + parts[1] + ".dist-info/METADATA": metadata})
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return index.NewFile{Path: path, UploadTime: Day}
}

// ManyFiles yields n files of CUDA and ROCm builds that are elsewhere, 500 a project.
func ManyFiles(n int) iter.Seq2[index.File, error] {
	return func(yield func(index.File, error) bool) {
		for i := range n {
			k := i % 500
			f := index.File{
				Filename: fmt.Sprintf("package_%05d-1.%d.0+%s-cp%d-cp%[4]d-manylinux_2_28_%s.whl", i/500, k/50,
					[]string{"cu126.torch2.8", "cu128.torch2.8", "cu128.torch2.9", "cu130.torch2.9", "rocm6.4.torch2.9"}[k/10%5], 310+k/2%5,
					[]string{"x86_64", "aarch64"}[k%2]),
				Base: "https://example.org/files/", Size: int64(1_000_000 + i), RequiresPython: ">=3.10",
				UploadTime: time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC),
			}
			f.SHA256 = sha256.Sum256([]byte(f.Filename))
			f.Metadata = sha256.Sum256([]byte("metadata of " + f.Filename))
			if !yield(f, nil) {
				return
			}
		}
	}
}

// ClientPackages are what a Python needs for the tests of clients.
var ClientPackages = []string{"pip", "uv", "twine", "pypi-simple"}

// Tool returns the path of a program: the one that the variable names, else a program beside the
// Python of KILN_PYTHON. Without it the test is skipped, or fails if KILN_REQUIRE lists it.
func Tool(t *testing.T, name, variable string) string {
	t.Helper()
	if E2E() {
		switch name {
		case "old-pip":
			return Venv(t, "old-pip", "pip==22.3.1") // the first that reads metadata
		case "python":
			return Venv(t, "clients", ClientPackages...)
		case "uv":
			python := Venv(t, "clients", ClientPackages...)
			return filepath.Join(filepath.Dir(python), "uv"+filepath.Ext(python))
		}
	}
	if path := os.Getenv(variable); path != "" {
		return path
	}
	if python := os.Getenv("KILN_PYTHON"); python != "" && name != "old-pip" {
		path := filepath.Join(filepath.Dir(python), name)
		if runtime.GOOS == "windows" {
			path += ".exe"
		}
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	kilntest.Lacking(t, name, "%s is neither beside KILN_PYTHON nor named by %s", name, variable)
	return ""
}

// Environment is that of an installer without the configuration of its user.
func Environment() []string {
	return append(os.Environ(), "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_CONFIG_FILE="+os.DevNull, "PIP_NO_CACHE_DIR=1", "PIP_INDEX_URL=", "PIP_EXTRA_INDEX_URL=",
		"PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1", "UV_NO_CONFIG=1", "UV_NO_CACHE=1", "NO_COLOR=1", "UV_PYTHON_DOWNLOADS=never")
}

// E2E reports whether KILN_E2E names "index": then all clients are installed from PyPI into
// .cache/e2e-index and do everything, and processes are killed a hundred times.
func E2E() bool {
	return kilntest.E2E("index")
}

// Scale returns how often to do something, in ordinary tests and in those of KILN_E2E.
func Scale(few, many int) int {
	if E2E() {
		return many
	}
	return few
}

var venvs sync.Mutex

// Venv returns the Python of a virtual environment with certain packages. It is made once for all
// tests and runs.
func Venv(t *testing.T, name string, requirements ...string) string {
	t.Helper()
	venvs.Lock()
	defer venvs.Unlock()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for root != filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Dir(root)
	}
	dir := filepath.Join(root, ".cache", "e2e-index", name)
	python := filepath.Join(dir, "bin", "python")
	if runtime.GOOS == "windows" {
		python = filepath.Join(dir, "Scripts", "python.exe")
	}
	done, want := filepath.Join(dir, "done.txt"), strings.Join(requirements, "\n")+"\nupgraded"
	if have, err := os.ReadFile(done); err == nil && string(have) == want {
		return python
	}
	base := os.Getenv("KILN_PYTHON")
	if base == "" {
		base = "python3"
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{base, "-m", "venv", dir},
		append([]string{python, "-m", "pip", "install", "-q", "--upgrade", "--disable-pip-version-check"}, requirements...), // a new environment has an old pip
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if err := os.WriteFile(done, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
	return python
}
