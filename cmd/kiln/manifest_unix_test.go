//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestKubernetesManifest does what the pods of the Job in docs/cluster.md do: the command of each
// index with rows.txt and a folder that all see. The API server is not asked.
func TestKubernetesManifest(t *testing.T) {
	page, err := os.ReadFile("../../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ := strings.Cut(rest, "```\n")
	var job struct {
		Kind string `yaml:"kind"`
		Spec struct {
			CompletionMode   string `yaml:"completionMode"`
			PodFailurePolicy struct {
				Rules []struct {
					Action      string `yaml:"action"`
					OnExitCodes struct {
						Values []int `yaml:"values"`
					} `yaml:"onExitCodes"`
				} `yaml:"rules"`
			} `yaml:"podFailurePolicy"`
			Template struct {
				Spec struct {
					Containers []struct {
						WorkingDir string   `yaml:"workingDir"`
						Command    []string `yaml:"command"`
						Args       []string `yaml:"args"`
					} `yaml:"containers"`
				} `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
	}
	if err := yaml.Unmarshal([]byte(text), &job); err != nil {
		t.Fatal(err)
	}
	if job.Kind != "Job" || job.Spec.CompletionMode != "Indexed" || len(job.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("%+v", job)
	}
	container := job.Spec.Template.Spec.Containers[0]
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("setup.py", "from setuptools import setup\nsetup(name='demo', version='1.0')\n")
	// No machine has the Python of the first row, and this one does not build the second.
	write("packages.yml", `packages:
  demo:
    source: {path: .}
    versions: ["1.0"]
    local_version: ""
    matrix: [{python: "3.4"}, {os: windows-2022, python: "3.12"}]
`)
	plan := exec.CommandContext(t.Context(), "kiln", "plan", "--json")
	plan.Dir = dir
	out, err := plan.Output()
	if err != nil {
		t.Fatal(err)
	}
	var planned struct {
		Rows []struct {
			ID string `json:"id"`
		} `json:"rows"`
	}
	if err := json.Unmarshal(out, &planned); err != nil || len(planned.Rows) != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	write("rows.txt", planned.Rows[0].ID+"\n"+planned.Rows[1].ID+"\n")
	for i, want := range []struct {
		code int
		text string
	}{{1, "1 row of 1 failed"}, {1, "1 row of 1 cannot be built here"}} {
		argv := append(append([]string{}, container.Command...), strings.ReplaceAll(container.Args[0], container.WorkingDir, dir))
		cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "JOB_COMPLETION_INDEX="+string(rune('0'+i)))
		out, err := cmd.CombinedOutput()
		code := 0
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			code = e.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != want.code || !strings.Contains(string(out), planned.Rows[i].ID) || !strings.Contains(string(out), want.text) || strings.Contains(string(out), planned.Rows[1-i].ID) {
			t.Errorf("index %d: exit code %d, want %d and %q of %s alone\n%s", i, code, want.code, want.text, planned.Rows[i].ID, out)
		}
		if _, err := os.Stat(filepath.Join(dir, ".kiln", "rows", planned.Rows[i].ID, "journal.jsonl")); err != nil {
			t.Error(err)
		}
	}
	// A row that failed is not tried again by Kubernetes.
	rules := job.Spec.PodFailurePolicy.Rules
	if last := rules[len(rules)-1]; last.Action != "FailIndex" || len(last.OnExitCodes.Values) == 0 || last.OnExitCodes.Values[0] != 1 {
		t.Errorf("%+v", rules)
	}
}
