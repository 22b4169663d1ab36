//go:build linux

package e2e_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestE2EPackages builds packages of other people from the package index, each with a packages.yml
// of examples/ of at most twelve lines, on this machine; installs them with pip from an index of the
// result, and uses them. What it logs is the table of docs/benchmarks.md: time, compiler calls seen,
// how many of those of the second Python came from the cache, and what the audit says.
func TestE2EPackages(t *testing.T) {
	kilntest.NeedE2E(t, "packages")
	program := kiln(t)
	for _, test := range []struct{ name, use string }{
		{"docopt", "import docopt; assert docopt.docopt('Usage: x [--n=N]', ['--n=3'])['--n'] == '3'"},
		{"pyyaml", "import yaml; assert yaml.load('a: [1, 2]', Loader=yaml.CSafeLoader) == {'a': [1, 2]}"},
		{"msgpack", "import msgpack; assert msgpack.unpackb(msgpack.packb([1, 'x'])) == [1, 'x']; import msgpack._cmsgpack"},
		{"contourpy", "import contourpy; assert len(contourpy.contour_generator(z=[[0, 1], [1, 2]]).lines(0.5)) == 1"},
		{"spglib", "import spglib; assert spglib.get_spacegroup(([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 0, 0]], [1])) == 'Pm-3m (221)'"},
		{"rpds-py", "import rpds; assert rpds.HashTrieMap({'a': 1}).insert('b', 2)['b'] == 2"},
		{"bitsandbytes", "import bitsandbytes"},
		{"causal-conv1d", "import torch, causal_conv1d_cuda"},
		{"torch-scatter", "import torch, torch_scatter; assert torch_scatter.scatter(torch.ones(4), torch.tensor([0, 0, 1, 1])).tolist() == [2, 2]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, err := os.ReadFile(repository(t, "examples", test.name, "packages.yml"))
			if err != nil {
				t.Fatal(err)
			}
			if lines := bytes.Count(text, []byte("\n")); lines > 12 {
				t.Errorf("packages.yml has %d lines", lines)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "packages.yml"), text, 0o666); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			cmd := exec.CommandContext(t.Context(), program, "build", "--runner", "host", "--json")
			cmd.Dir = dir
			var out, log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &log
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, log.String())
			}
			var result struct{ Rows []struct{ ID string } }
			if err := json.Unmarshal(out.Bytes(), &result); err != nil || len(result.Rows) == 0 {
				t.Fatalf("%v: %s", err, out.String())
			}
			t.Logf("%s: %d rows in %.0f s", test.name, len(result.Rows), time.Since(start).Seconds())
			address := serveFolder(t, program, filepath.Join(dir, "dist"))
			for _, row := range result.Rows {
				r, err := record.Read(filepath.Join(dir, "dist"), row.ID)
				if err != nil {
					t.Fatal(err)
				}
				packageRow(t, r)
				install(t, r, address, test.use)
			}
		})
	}
}

// packageRow logs a row of the table.
func packageRow(t *testing.T, r *record.Record) {
	t.Helper()
	calls, hits, past := 0, 0, 0
	if c := r.Compiles; c != nil {
		calls, hits, past = c.Calls, c.Hits, c.Bypassed
	}
	worst := map[audit.Severity]int{}
	if r.Audit != nil {
		for _, f := range r.Audit.Findings {
			worst[f.Severity]++
		}
	}
	t.Logf("| %s | %.0f s | %d | %d | %d | %d errors, %d warnings | %s | %s |", r.Recipe.Row.ID, r.Finished.Sub(r.Started).Seconds(), calls, hits, past,
		worst[audit.Error], worst[audit.Warning], r.Test.Result, r.Files[len(r.Files)-1].Name)
}

// install gets the package with pip, in an environment of its own, and uses it.
func install(t *testing.T, r *record.Record, address, use string) {
	t.Helper()
	python := r.Interpreter.Path
	if python == "" {
		python = os.Getenv("KILN_PYTHON")
	}
	venv := filepath.Join(t.TempDir(), "venv")
	defer os.RemoveAll(venv)
	version := r.Recipe.Row.Version + strings.ReplaceAll(r.Recipe.Row.BuildTag, "-", ".")
	for _, argv := range [][]string{
		{python, "-m", "venv", venv},
		{venv + "/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--index-url", "http://" + address + "/simple/", "--extra-index-url", "https://pypi.org/simple", r.Recipe.Row.Package + "==" + version},
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
