package build_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/engine"
)

// elsewhere makes attempts as a cluster does, but in this process: all that comes back is what the
// worker left in the folder.
type elsewhere struct {
	*engine.LocalRunner
	worker func() engine.Runner
}

func (c *elsewhere) Run(ctx context.Context, a *engine.Attempt) (engine.Result, error) {
	if err := a.Save(); err != nil {
		return engine.Result{}, err
	}
	if err := engine.Work(ctx, a.Dir, c.worker()); err != nil {
		return engine.Result{}, err
	}
	result, ended, err := a.Poll()
	if !ended {
		return result, errors.New("the worker has left no result")
	}
	return result, err
}

func (c *elsewhere) Keep(context.Context, []engine.Lost) ([]engine.Lost, error) { return nil, nil }

func (c *elsewhere) Resume(context.Context, *engine.Attempt) (engine.Result, error) {
	return engine.Result{}, errors.New("nothing is kept")
}

// TestClusterFailures: a row that fails on another machine is explained as one of this machine.
func TestClusterFailures(t *testing.T) {
	p := newProject(t, map[string]string{
		"packages.yml": `
packages:
  nopython: {versions: ["1.0"], source: {path: src}, local_version: "", matrix: [{python: "3.4"}]}
  badpatch: {versions: ["1.0"], source: {path: src}, local_version: "", build: {patches: [{file: setup.py, find: "no such text", replace: ""}]}, matrix: [{python: "PYTHON"}]}
`,
		"src/setup.py": "from setuptools import setup\nsetup(name='pure', version='1.0')\n",
	})
	reasons := func(result *build.Result) (out []*build.RowError) {
		t.Helper()
		for _, r := range result.Rows {
			e, ok := errors.AsType[*build.RowError](r.Err)
			if !ok || r.Status != engine.StatusFailed {
				t.Fatalf("%s is %s: %v", r.Row.ID, r.Status, r.Err)
			}
			if r.Reason != e.Error() {
				t.Errorf("reason %q, want %q", r.Reason, e.Error())
			}
			out = append(out, e)
		}
		return out
	}
	want := reasons(p.build())
	p.opts.StateDir = t.TempDir()
	worker := p.opts
	p.opts.Cluster = &elsewhere{engine.Local(nil), func() engine.Runner { return build.RowRunner(worker) }}
	got := reasons(p.build())
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(build.RowError{}, "Log", "Err")); diff != "" {
		t.Errorf("on another machine (-here +there):\n%s", diff)
	}
	for i := range got {
		if got[i].Err.Error() != want[i].Err.Error() || got[i].Diagnosis.ID == "" {
			t.Errorf("%q, want %q", got[i].Err, want[i].Err)
		}
	}
}
