//go:build linux

package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestE2EPackages builds packages of other people from the package index, each with a packages.yml
// of examples/ of at most twelve lines, on this machine; installs them with pip from an index of the
// result, and uses them. What it logs is the table of docs/benchmarks.md: time, compiler calls seen,
// how many of them came from the cache, how many went past the launcher, and what the audit says.
func TestE2EPackages(t *testing.T) {
	kilntest.NeedE2E(t, "packages")
	for _, test := range []struct {
		name, use string
		// kernels are the GPU files, each of which is compiled for one Python alone.
		kernels int
		// after is a package of the same file whose wheels are there, if its test has run before.
		after string
	}{
		{name: "torch-scatter", use: "import torch, torch_scatter; assert torch_scatter.scatter(torch.ones(4), torch.tensor([0, 0, 1, 1])).tolist() == [2, 2]"},
		{name: "causal-conv1d", use: "import torch, causal_conv1d_cuda", kernels: 3},
		{name: "torch-sparse", use: "import torch, torch_sparse; a = torch_sparse.SparseTensor.eye(2); assert (a @ torch.ones(2, 1)).tolist() == [[1], [1]]", after: "torch-scatter"},
		{name: "bitsandbytes", use: bitsandbytesUse, kernels: 3},
		{name: "contourpy", use: "import contourpy; assert len(contourpy.contour_generator(z=[[0, 1], [1, 2]]).lines(0.5)) == 1"},
		{name: "spglib", use: spglibUse},
		{name: "rpds-py", use: "import rpds; assert rpds.HashTrieMap({'a': 1}).insert('b', 2)['b'] == 2"},
		{name: "pyyaml", use: pyyamlUse},
		{name: "msgpack", use: "import msgpack; assert msgpack.unpackb(msgpack.packb([1, 'x'])) == [1, 'x']; import msgpack._cmsgpack"},
		{name: "docopt", use: "import docopt; assert docopt.docopt('Usage: x [--n=N]', ['--n=3'])['--n'] == '3'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := repository(t, "examples", test.name, "packages.yml")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if lines := bytes.Count(text, []byte("\n")); lines > 12 {
				t.Errorf("packages.yml has %d lines", lines)
			}
			if mirror := os.Getenv("KILN_E2E_GITHUB"); mirror != "" { // where GitHub is out of reach
				text = bytes.ReplaceAll(text, []byte("https://github.com"), []byte(mirror))
			}
			dir, kept := t.TempDir(), filepath.Join(repository(t), ".cache", "e2e-packages")
			if earlier := filepath.Join(kept, test.after); test.after != "" {
				if _, err := os.Stat(earlier); err == nil {
					if err := os.CopyFS(filepath.Join(dir, "dist"), os.DirFS(earlier)); err != nil {
						t.Fatal(err)
					}
				}
			}
			records := buildPackages(t, dir, text, "--runner", "host")
			kernelsOnce(t, filepath.Join(dir, ".kiln"), test.kernels)
			address := serveFolder(t, kiln(t), filepath.Join(dir, "dist"))
			for _, r := range records {
				if r.Recipe.Row.Package == test.name {
					install(t, r, records, address, test.use)
				}
			}
			if !t.Failed() {
				to := filepath.Join(kept, test.name)
				if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(filepath.Join(dir, "dist")))); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestE2EContainerPackages builds packages of other people in images with toolkits of their own: a
// torch extension with Debian's CUDA 12.4 for two Pythons, Cython over a library that image_setup
// installs, and CMake in an image of manylinux, with Pythons that kiln brings.
func TestE2EContainerPackages(t *testing.T) {
	kilntest.NeedE2E(t, "packages")
	text, err := os.ReadFile(filepath.Join("testdata", "packages-containers.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, use string
		kernels   int
	}{
		{name: "causal-conv1d", kernels: 3}, // used in its test alone: the image has the torch
		{name: "pyyaml", use: pyyamlUse},
		{name: "spglib", use: spglibUse},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("UV_PYTHON_DOWNLOADS_JSON_URL", filepath.Join(stockCache(t), "pythons", "downloads.json"))
			dir := t.TempDir()
			records := buildPackages(t, dir, text, "--runner", "podman", "--engine-arg=--runtime=runc", test.name+"-*")
			kernelsOnce(t, filepath.Join(dir, ".kiln"), test.kernels)
			if test.use == "" {
				return
			}
			address := serveFolder(t, kiln(t), filepath.Join(dir, "dist"))
			for _, r := range records {
				if r.Recipe.Row.Python != "3.11" {
					continue // its test has installed it; KILN_PYTHON is 3.11
				}
				r.Interpreter.Path = ""
				install(t, r, records, address, test.use)
			}
		})
	}
}

const (
	pyyamlUse = "import yaml; assert yaml.load('a: [1, 2]', Loader=yaml.CSafeLoader) == {'a': [1, 2]}"
	spglibUse = "import spglib; assert spglib.get_spacegroup(([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 0, 0]], [1])) == 'Pm-3m (221)'"
)

// Every library is loaded beside torch, and the CPU one quantizes.
const bitsandbytesUse = `import bitsandbytes, ctypes, glob, os, torch
files = glob.glob(os.path.dirname(bitsandbytes.__file__) + '/libbitsandbytes_*.so')
assert files and all(ctypes.CDLL(f) for f in files), files
from bitsandbytes.functional import quantize_4bit, dequantize_4bit
a = torch.ones(64, 64); assert not files[0].endswith('cpu.so') or torch.allclose(dequantize_4bit(*quantize_4bit(a)), a)`

// buildPackages builds the rows of a packages.yml in a folder, and logs a line of the table for each.
func buildPackages(t *testing.T, dir string, text []byte, args ...string) []*record.Record {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "packages.yml"), text, 0o666); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	cmd := exec.CommandContext(t.Context(), kiln(t), append([]string{"build", "--json"}, args...)...)
	cmd.Dir = dir
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Logf("%s", log.String())
	var result struct{ Rows []struct{ ID string } }
	if err := json.Unmarshal(out.Bytes(), &result); err != nil || len(result.Rows) == 0 {
		t.Fatalf("%v: %s", err, out.String())
	}
	t.Logf("%d rows in %.0f s", len(result.Rows), time.Since(start).Seconds())
	records := make([]*record.Record, len(result.Rows))
	for i, row := range result.Rows {
		r, err := record.Read(filepath.Join(dir, "dist"), row.ID)
		if err != nil {
			t.Fatal(err)
		}
		packageRow(t, r)
		records[i] = r
	}
	return records
}

// packageRow logs a row of the table, and wants no error of the audit.
func packageRow(t *testing.T, r *record.Record) {
	t.Helper()
	calls, hits, past := 0, 0, 0
	if c := r.Compiles; c != nil {
		calls, hits = c.Calls, c.Hits
		for why, n := range c.Reasons {
			if strings.HasPrefix(why, "it was called by its path") {
				past += n
			}
		}
	}
	worst := map[audit.Severity]int{}
	if r.Audit != nil {
		for _, f := range r.Audit.Findings {
			worst[f.Severity]++
			t.Logf("audit: %s: %s: %s", f.Severity, f.Rule, f.Message)
		}
	}
	if worst[audit.Error] > 0 {
		t.Errorf("%s: the audit has errors", r.Recipe.Row.ID)
	}
	t.Logf("| %s | %.0f s | %d | %d | %d | %d errors, %d warnings | %s | %s |", r.Recipe.Row.ID, r.Finished.Sub(r.Started).Seconds(), calls, hits, past,
		worst[audit.Error], worst[audit.Warning], r.Test.Result, r.Files[len(r.Files)-1].Name)
}

// kernelsOnce wants at least n files for nvcc in the rows, each compiled in one row and taken from the
// cache in all others that have it; none if n is 0.
func kernelsOnce(t *testing.T, state string, n int) {
	t.Helper()
	if n == 0 {
		return
	}
	all, err := share.ReadCalls(state)
	if err != nil {
		t.Fatal(err)
	}
	results := map[string][]launcher.Outcome{}
	for _, in := range all {
		for _, u := range in.Calls {
			if strings.HasSuffix(u.Source, ".cu") {
				name := filepath.Base(u.Source)
				results[name] = append(results[name], u.Result)
			}
		}
	}
	if len(results) < n {
		t.Errorf("%d kernel files were seen, want %d: %v", len(results), n, results)
	}
	for name, got := range results {
		slices.Sort(got)
		if len(got) < 2 || got[len(got)-1] != launcher.Miss || slices.ContainsFunc(got[:len(got)-1], func(o launcher.Outcome) bool { return o != launcher.Hit }) {
			t.Errorf("%s: %v, want a miss and hits", name, got)
		}
	}
	t.Logf("kernels: %v", results)
}

// install gets the package with pip, in an environment of its own, with the others of its Python, and
// uses it.
func install(t *testing.T, r *record.Record, all []*record.Record, address, use string) {
	t.Helper()
	python := r.Interpreter.Path
	if python == "" {
		python = os.Getenv("KILN_PYTHON")
	}
	venv := filepath.Join(t.TempDir(), "venv")
	defer os.RemoveAll(venv)
	pip := []string{venv + "/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--index-url", "http://" + address + "/simple/", "--extra-index-url", "https://pypi.org/simple"}
	for _, other := range all {
		if row := &other.Recipe.Row; row.Python == r.Recipe.Row.Python && (other == r || row.Package != r.Recipe.Row.Package) {
			pip = append(pip, row.Package+"=="+row.Version+strings.ReplaceAll(row.BuildTag, "-", "."))
		}
	}
	if r.Recipe.Row.Torch != "" {
		pip = append(pip, "torch=="+r.Recipe.Row.Torch) // which extensions often do not declare
	}
	for _, argv := range [][]string{
		{python, "-m", "venv", venv},
		pip,
		{venv + "/bin/python", "-c", use},
	} {
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = t.TempDir()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %v\n%s", r.Recipe.Row.ID, argv, err, out)
			return
		}
	}
}
