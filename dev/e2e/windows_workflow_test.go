//go:build linux

package e2e_test

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// windowsActions stand for actions on a runner with Windows: a folder in place of GitHub's services,
// and what is installed in place of downloads.
var windowsActions = map[string]string{
	"checkout": `inputs: {persist-credentials: {required: false}}
runs: {using: composite, steps: [{shell: bash, run: 'cp -a /repo/. . && rm -rf dist .kiln site'}]}
`,
	"cache": `inputs: {path: {required: true}, key: {required: true}, restore-keys: {required: false}}
runs: {using: composite, steps: [{shell: bash, run: 'true'}]}
`,
	"upload-artifact": `inputs: {name: {required: true}, path: {required: true}, if-no-files-found: {required: false}, retention-days: {required: false}, include-hidden-files: {required: false}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {NAME: '${{ inputs.name }}', FROM: '${{ inputs.path }}'}
      run: mkdir -p "/artifacts/$NAME" && if [ -d "$FROM" ]; then cp -a "$FROM/." "/artifacts/$NAME/"; else cp -a "$FROM" "/artifacts/$NAME/"; fi
`,
	"download-artifact": `inputs: {pattern: {required: true}, path: {required: true}, merge-multiple: {required: false}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {PATTERN: '${{ inputs.pattern }}', TO: '${{ inputs.path }}'}
      run: mkdir -p "$TO" && for d in /artifacts/$PATTERN; do cp -a "$d/." "$TO/"; done
`,
	// Python moves into the runner's folder of tools.
	"setup-python": `inputs: {python-version: {required: true}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {WANT: '${{ inputs.python-version }}'}
      run: |
        [ "$WANT" = 3.13 ]
        mkdir -p "$WINEPREFIX/drive_c/hostedtoolcache/windows/Python/3.13.5"
        mv "$WINEPREFIX/drive_c/Python313" "$WINEPREFIX/drive_c/hostedtoolcache/windows/Python/3.13.5/x64"
        echo 'AGENT_TOOLSDIRECTORY=C:\hostedtoolcache\windows' >>"$GITHUB_ENV"
`,
	// The developer shell of a toolset, for all later steps.
	"msvc-dev-cmd": `inputs: {arch: {required: true}, toolset: {required: true}}
runs:
  using: composite
  steps:
    - shell: bash
      env: {ARCH: '${{ inputs.arch }}', TOOLSET: '${{ inputs.toolset }}'}
      run: |
        studio="$WINEPREFIX/drive_c/Program Files/Microsoft Visual Studio/2022/BuildTools/VC"
        toolset=$(ls "$studio/Tools/MSVC" | grep "^$TOOLSET" | tail -n 1)
        printf '@call "C:\\Program Files\\Microsoft Visual Studio\\2022\\BuildTools\\VC\\Auxiliary\\Build\\vcvarsall.bat" %s -vcvars_ver=%s || exit /b 1\r\n@set\r\n' "$ARCH" "$toolset" >/tmp/developer.bat
        wine cmd /c 'Z:\tmp\developer.bat' | tr -d '\r' >/tmp/developer
        grep -E '^(INCLUDE|LIB|VCINSTALLDIR|VCToolsInstallDir|VCToolsVersion|VSCMD_ARG_TGT_ARCH)=' /tmp/developer >>"$GITHUB_ENV"
        sed -n 's/^PATH=\([^;]*\);.*/\1/Ip' /tmp/developer >>"$GITHUB_PATH"
`,
}

// windowsTorch is torch for Windows as it is on PyPI, for the CPU, with the marks of one for CUDA
// 12.8 and without the one call of OpenMP that Wine 10 lacks.
func windowsTorch(t *testing.T, to string) {
	t.Helper()
	const name = "torch-2.9.0-cp313-cp313-win_amd64.whl"
	kept := repository(t, ".cache/images/windows")
	if _, err := os.Stat(filepath.Join(kept, name)); err != nil {
		temp, err := os.MkdirTemp(kept, "work.") //nolint:usetesting // beside the place that the file is renamed to
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(temp)
		out, err := exec.CommandContext(t.Context(), os.Getenv("KILN_PYTHON"), "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", temp,
			"--implementation", "cp", "--python-version", "3.13", "--platform", "win_amd64", "torch==2.9.0").CombinedOutput()
		if err == nil {
			err = os.Rename(filepath.Join(temp, name), filepath.Join(kept, name))
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	changes := map[string][2]string{
		"torch/version.py":             {"2.9.0+cpu", "2.9.0+cu128"},
		"torch/__init__.py":            {"import builtins", "import os; os.environ.setdefault('KMP_AFFINITY', 'disabled')\nimport builtins"},
		"torch/utils/cpp_extension.py": {"torch.cuda._is_compiled() and torch.version.cuda", "torch.version.cuda"},
	}
	from, err := zip.OpenReader(filepath.Join(kept, name))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	file, err := os.Create(filepath.Join(to, name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	made := zip.NewWriter(file)
	add := func(name, text string) {
		w, err := made.Create(name)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range from.File {
		change, ok := changes[f.Name]
		if !ok && !strings.HasSuffix(f.Name, ".dist-info/RECORD") {
			if err := made.Copy(f); err != nil {
				t.Fatal(err)
			}
			continue
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		switch {
		case !ok:
			for name := range changes { // their hashes
				text = regexp.MustCompile(`(?m)^`+name+`,.*$`).ReplaceAllString(text, name+",,")
			}
			text = strings.TrimRight(text, "\r\n") + "\ntorch/lib/torch_cuda.lib,,\ntorch/lib/c10_cuda.lib,,\n"
		case strings.Count(text, change[0]) == 0:
			t.Fatalf("%s has no %q", f.Name, change[0])
		default:
			text = strings.Replace(text, change[0], change[1], 1)
			text = strings.Replace(text, "cuda: Optional[str] = None", "cuda: Optional[str] = '12.8'", 1)
		}
		add(f.Name, text)
	}
	add("torch/lib/torch_cuda.lib", "")
	add("torch/lib/c10_cuda.lib", "")
	if err := made.Close(); err != nil {
		t.Fatal(err)
	}
}

// cudaArchives serves a toolkit as NVIDIA does, with stand-ins in it.
func cudaArchives(t *testing.T, standin string) string {
	t.Helper()
	program, err := os.ReadFile(standin)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	var list []string
	for name, members := range map[string][]string{
		"cuda_nvcc":   {"bin/nvcc.exe", "bin/ptxas.exe", "bin/cudafe++.exe", "bin/fatbinary.exe", "nvvm/bin/cicc.exe"},
		"cuda_cudart": {"include/cuda_runtime.h", "lib/x64/cudart.lib"}, "libcublas": {"lib/x64/cublas.lib"},
	} {
		var text bytes.Buffer
		archive := zip.NewWriter(&text)
		for _, member := range members {
			w, err := archive.Create(name + "-archive/" + member)
			if err == nil && strings.HasSuffix(member, ".exe") {
				_, err = w.Write(program)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		files["/"+name+".zip"] = text.Bytes()
		list = append(list, fmt.Sprintf(`%q: {"version": "12.8.93", "windows-x86_64": {"relative_path": "%s.zip", "sha256": "%x"}}`, name, name, sha256.Sum256(text.Bytes())))
	}
	files["/redistrib_12.8.1.json"] = []byte("{" + strings.Join(list, ",\n") + "}")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(text)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestE2EWindowsWorkflow lets nektos/act run the workflow of examples/exllamav2 for a Windows row,
// with CUDA 12.8 and torch 2.9.0, from the plan to the published wheel: the job of the row by kiln.exe
// under Wine. Stand-ins: the actions above, NVIDIA's archives with what is in them, Visual C++, the sources
// of ExLlamaV2 (in testdata/windows/exllamav2), and the marks of CUDA in torch.
func TestE2EWindowsWorkflow(t *testing.T) {
	kilntest.NeedE2E(t, "windows")
	t.Parallel()
	const row = "exllamav2-0.3.2-cu128-torch2.9.0-cp313-win_amd64"
	torch := t.TempDir()
	windowsTorch(t, torch)
	w := startWindows(t, "--volume", repository(t, ".cache/tools")+":/tools:ro", "--volume", torch+":/torch:ro", "--volume", repository(t, "examples/exllamav2")+":/example:ro")
	w.must("apt-get -q update; apt-get -q -y --no-install-recommends install curl git")
	example, err := os.ReadFile(repository(t, "examples/exllamav2/packages.yml"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(example)
	for old, line := range map[string]string{
		`source: {git: "https://github.com/turboderp-org/exllamav2", ref: "v{version}"}`: `source: {path: src}
    torch_source: {path: 'Z:\torch'}
    audit: {no-gpu-code: warning} # nvcc's stand-in makes none`,
		", numpy]": "]", // calls functions that Wine 10 lacks
	} {
		if strings.Count(config, old) != 1 {
			t.Fatalf("%q is not once in the example", old)
		}
		config = strings.Replace(config, old, line, 1)
	}
	buildFor(t, "linux", filepath.Join(w.exe, "kiln-linux-amd64"), "build", "../../cmd/kiln")
	sum := func(name string) string {
		sum, _, err := fsx.SHA256(filepath.Join(w.exe, name))
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	if err := os.Link(filepath.Join(w.exe, "kiln.exe"), filepath.Join(w.exe, "kiln-windows-amd64.exe")); err != nil {
		t.Fatal(err)
	}
	config += fmt.Sprintf(`publish:
  targets: {folder: {dir: /public, url: "https://wheels.example.org/"}}
workflow:
  rows: "id = %s"
  kiln: {url: "file:///exe/kiln-{platform}{exe}", sha256: {linux-amd64: "%s", windows-amd64: "%s"}}
`, row, sum("kiln-linux-amd64"), sum("kiln-windows-amd64.exe"))
	w.must("mkdir -p /repo /artifacts /programs; cp -r /testdata/exllamav2 /repo/src; ln -s /testdata/kiln.sh /programs/kiln; cat >/repo/packages.yml <<'EOF'\n" + config + "EOF")
	workflow := w.must("cd /repo && git init -q -b main && /exe/kiln-linux-amd64 workflow github --write >/dev/null && git add -A && git -c user.name=t -c user.email=t@example.org commit -q -m first && cat .github/workflows/kiln.yml")
	args := "workflow_dispatch --input release=1 -P windows-2022=-self-hosted -P ubuntu-24.04=-self-hosted --concurrent-jobs 1 --action-offline-mode --no-skip-checkout" +
		" --env BASH_ENV=/testdata/runner.sh --env CUDA_ARCHIVES=" + cudaArchives(t, filepath.Join(w.exe, "standin.exe"))
	for _, m := range regexp.MustCompile(`uses: (\S+)@([0-9a-f]{40})`).FindAllStringSubmatch(workflow, -1) {
		short := m[1][strings.LastIndexByte(m[1], '/')+1:]
		if windowsActions[short] == "" {
			t.Fatalf("no stand-in for %s", m[1])
		}
		w.must("mkdir -p /actions/" + short + "; cat >/actions/" + short + "/action.yml <<'EOF'\nname: " + short + "\n" + windowsActions[short] + "EOF")
		args += " --local-repository https://github.com/" + m[1] + "@" + m[2] + "=/actions/" + short
	}
	out, err := w.shell("cd /repo && export XDG_CACHE_HOME=/c && set -o pipefail && /tools/act " + args + " 2>&1 | grep -vE 'LocalRepositoryCache| (Pre|Post|Set up) '")
	if err != nil {
		t.Fatalf("%v\n%s", err, out[max(0, len(out)-12000):])
	}
	t.Log(out[max(0, len(out)-4000):])
	const wheel = "exllamav2-0.3.2+cu128.torch2.9.0-cp313-cp313-win_amd64.whl"
	w.must("ls /public/*/" + wheel + " /artifacts/dist-" + row + "/" + wheel + " /artifacts/dist-" + row + "/records/" + row + ".json /artifacts/plan/plan.html")
	calls := w.must("cut -d ' ' -f 1-2 /tmp/kiln-calls")
	if diff := cmp.Diff("workflow cuda\nbuild -f\nworkflow summary\n", calls); diff != "" {
		t.Errorf("steps of kiln.exe (-want +got):\n%s", diff)
	}
}
