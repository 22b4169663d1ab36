package index_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
)

// TestAdditions: what pip and uv take from the views of a project with builds for the CPU and for
// CUDA and several Pythons, before and after each file is added. No addition leaves a Python
// without the version it had. What it logs is the table of docs/index.md.
func TestAdditions(t *testing.T) {
	const tags = "-cp%[1]s-cp%[1]s-manylinux_2_17_x86_64.whl"
	steps := []struct {
		version string
		pythons []string
		built   string // what no label says
	}{
		{"1.0", []string{"311", "312", "313"}, ""},
		{"1.0+cu130.torch2.11", []string{"312"}, ""},
		{"1.0+cu130.torch2.11", []string{"313"}, ""},
		{"1.1", []string{"312"}, ""},
		{"1.1+cpu.torch2.11", []string{"311"}, ""},
		{"1.2", []string{"313"}, "cu130/torch2.11"},
	}
	pythons := []string{"311", "312", "313"}
	// By view, what each Python gets after each step; "" for nothing.
	want := map[string]map[string][]string{
		"": {
			"311": {"1.0", "1.0", "1.0", "1.0", "1.1+cpu.torch2.11", "1.1+cpu.torch2.11"},
			"312": {"1.0", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.1", "1.1", "1.1"},
			"313": {"1.0", "1.0", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.2"},
		},
		"cu130/torch2.11": {
			"311": {"", "", "", "", "", ""},
			"312": {"", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11"},
			"313": {"", "", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.0+cu130.torch2.11", "1.2"},
		},
		"cpu/torch2.11": {
			"311": {"", "", "", "", "1.1+cpu.torch2.11", "1.1+cpu.torch2.11"},
			"312": {"", "", "", "", "", ""}, "313": {"", "", "", "", "", ""},
		},
	}
	// The project of each number has the files of the steps up to it, so that one run of an
	// installer answers for all of them.
	store, dir := openStore(t, t.TempDir()), t.TempDir()
	for k, step := range steps {
		for project := k; project < len(steps); project++ {
			for _, python := range step.pythons {
				f := indextest.DependWheel(t, dir, fmt.Sprintf("fa%d-%s"+fmt.Sprintf(tags, python), project, step.version))
				if step.built != "" {
					var err error
					if f.Coordinates, err = index.ParseCoordinates(step.built); err != nil {
						t.Fatal(err)
					}
				}
				publish(t, store, f)
			}
		}
	}
	url := serve(t, store.Dir())
	for _, client := range []struct {
		name string
		ask  func(t *testing.T, url, python string, projects []string) []string
	}{{"pip", askPip}, {"uv", askUV}} {
		t.Run(client.name, func(t *testing.T) {
			for _, view := range []string{"", "cu130/torch2.11", "cpu/torch2.11"} {
				for _, python := range pythons {
					var projects, versions []string
					for k, version := range want[view][python] {
						if version != "" {
							projects, versions = append(projects, fmt.Sprintf("fa%d", k)), append(versions, version)
						}
					}
					if projects == nil {
						continue
					}
					path := url + "/" + strings.TrimPrefix(view+"/simple/", "/")
					got := client.ask(t, path, python, projects)
					if diff := cmp.Diff(versions, got); diff != "" {
						t.Errorf("/%s for Python %s: %s", view, python, diff)
					}
					t.Logf("| `/%s` | 3.%s |%s %s |", strings.TrimPrefix(view+"/simple/", "/"), python[1:], strings.Repeat(" – |", len(steps)-len(got)), strings.Join(got, " | "))
				}
			}
		})
	}
}

// askPip returns the versions that pip takes of some projects for a Python.
func askPip(t *testing.T, url, python string, projects []string) []string {
	t.Helper()
	names, err := pipDownload(t, indextest.Tool(t, "python", "KILN_PYTHON"), url, append([]string{
		"--no-deps", "--only-binary", ":all:", "--python-version", python, "--platform", "manylinux_2_17_x86_64",
	}, projects...)...)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, name := range names {
		out = append(out, strings.Split(name, "-")[1])
	}
	return out
}

// askUV is askPip with uv.
func askUV(t *testing.T, url, python string, projects []string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), indextest.Tool(t, "uv", "KILN_UV"), "pip", "compile", "-q", "--no-header", "--no-annotate", "--no-deps",
		"--no-python-downloads", "--only-binary", ":all:", "--python-version", python[:1]+"."+python[1:], "--python-platform", "x86_64-manylinux_2_28",
		"--python", indextest.Tool(t, "python", "KILN_PYTHON"), "--index-url", url, "-")
	cmd.Env = indextest.Environment()
	cmd.Stdin = strings.NewReader(strings.Join(projects, "\n"))
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	lines := strings.Fields(string(text))
	slices.Sort(lines)
	for i, line := range lines {
		_, lines[i], _ = strings.Cut(line, "==")
	}
	return lines
}
