//go:build linux

package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// vessel is a container that lives through several commands, as a machine does.
type vessel struct {
	t  *testing.T
	id string
}

// podman runs podman and returns what it prints.
func podman(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "podman", append([]string{"--runtime", "runc"}, args...)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w\n%s", err, log.String())
	}
	return out.String(), nil
}

// buildKiln makes the static binary that goes into containers.
func buildKiln(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kiln")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../cmd/kiln")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// launch starts a container of an image with kiln, if there is a path of it, the specs and the
// network of this machine.
func launch(t *testing.T, kiln, image string, args ...string) *vessel {
	t.Helper()
	if _, err := podman(t.Context(), "image", "exists", prefix+image); err != nil {
		t.Fatalf("no image %s: dev/e2e/images.sh %s makes it", image, image)
	}
	specs, err := filepath.Abs(filepath.Join("testdata", "toolchain"))
	if err != nil {
		t.Fatal(err)
	}
	shim := repository(t, "python")
	network := os.Getenv("KILN_E2E_NETWORK")
	if network == "" {
		network = "host"
	}
	all := []string{
		"run", "--detach", "--rm", "--init", "--network", network, "--env", "DEBIAN_FRONTEND=noninteractive", "--env", "HOME=/home/kiln",
	}
	if kiln != "" {
		all = append(all, "--volume", kiln+":/usr/local/bin/kiln:ro", "--volume", specs+":/specs:ro", "--volume", shim+":/opt/python:ro",
			"--env", "PYTHONPATH=/opt/python", "--workdir", "/specs")
	}
	for name, resource := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC} {
		var limit unix.Rlimit
		if unix.Getrlimit(resource, &limit) == nil {
			n := strconv.FormatUint(min(limit.Max, pidMax()), 10)
			all = append(all, "--ulimit", name+"="+n+":"+n)
		}
	}
	if bundle := os.Getenv("SSL_CERT_FILE"); bundle != "" {
		const inside = "/etc/ssl/certs/ca-certificates.crt"
		all = append(all, "--volume", bundle+":"+inside+":ro", "--env", "PIP_CERT="+inside)
	}
	for _, key := range []string{"PIP_INDEX_URL", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"} {
		if os.Getenv(key) != "" {
			all = append(all, "--env", key)
		}
	}
	all = append(append(all, args...), prefix+image, "sleep", "infinity")
	out, err := podman(t.Context(), all...)
	if err != nil {
		t.Fatal(err)
	}
	v := &vessel{t, strings.TrimSpace(out)}
	t.Cleanup(func() {
		if _, err := podman(context.WithoutCancel(t.Context()), "rm", "--force", "--time", "0", v.id); err != nil {
			t.Error(err)
		}
	})
	v.must("mkdir -p /home/kiln")
	return v
}

func pidMax() uint64 {
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
			return n
		}
	}
	return math.MaxInt32
}

// shell runs a script and returns its standard output, also if it fails.
func (v *vessel) shell(script string) (string, error) {
	return podman(v.t.Context(), "exec", v.id, "bash", "-c", script)
}

func (v *vessel) must(script string) string {
	v.t.Helper()
	out, err := v.shell("set -e\n" + script)
	if err != nil {
		v.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// doctor returns the problems that kiln doctor finds, notes left out, as id → fix.
func (v *vessel) doctor(before string) map[string]string {
	v.t.Helper()
	out, err := v.shell(before + "\nkiln doctor --json")
	var report struct {
		Problems []struct{ ID, Severity, Fix string }
	}
	if jerr := json.Unmarshal([]byte(out), &report); jerr != nil {
		v.t.Fatalf("kiln doctor: %v, %v\n%s", err, jerr, out)
	}
	found := map[string]string{}
	for _, p := range report.Problems {
		if p.Severity != "note" {
			found[p.ID] = p.Fix
		}
	}
	return found
}

// jit returns the diagnoses of kiln jit; none means that the module is there and imports.
func (v *vessel) jit(before, spec string) (ids []string, fix string) {
	v.t.Helper()
	out, err := v.shell(before + "\nkiln jit --json " + spec)
	var answer struct {
		Path      string
		Error     string
		Diagnoses []struct{ ID, Detail, Fix string }
	}
	if jerr := json.Unmarshal([]byte(out), &answer); jerr != nil {
		v.t.Fatalf("kiln jit: %v, %v\n%s", err, jerr, out)
	}
	if answer.Path != "" {
		// The shim finds the same one, and what was made works.
		got := v.must(before + "\npython3 -c 'import kiln, sys; print(kiln.load(sys.argv[1]).answer())' " + spec)
		if got != "42\n" {
			v.t.Errorf("the module answers %q", got)
		}
		return nil, ""
	}
	for _, d := range answer.Diagnoses {
		ids = append(ids, d.ID)
	}
	if len(answer.Diagnoses) == 0 {
		v.t.Fatalf("kiln jit: %s", answer.Error)
	}
	v.t.Logf("%s: %s", answer.Diagnoses[0].ID, answer.Diagnoses[0].Detail)
	return ids, answer.Diagnoses[0].Fix
}

// TestE2EToolchain: machines that each lack one thing. The diagnosis names it, and the first fix
// that is printed, when it is run, makes the module work.
func TestE2EToolchain(t *testing.T) {
	kilntest.NeedE2E(t, "toolchain")
	kiln := buildKiln(t)
	nvidia := ""
	if found, err := filepath.Glob(filepath.Join("..", "..", ".cache", "venv", "lib", "python*", "site-packages", "nvidia")); err == nil && len(found) > 0 {
		if nvidia, err = filepath.Abs(found[0]); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, image string
		args        []string // of podman
		prepare     string   // makes the machine lack it
		before      string   // environment of every command
		spec        string
		want        string // diagnosis
		doctorOnly  bool   // kiln jit does not need it
		fix         string // what the fix must contain
	}{
		{
			name: "no compiler", image: "ci", prepare: "apt-get update -q; dpkg --purge --force-depends g++ g++-12", spec: "plain.yml",
			want: "no-compiler", fix: "apt-get install -y g++",
		},
		{
			name: "Python headers missing", image: "ci", prepare: "apt-get update -q; dpkg --purge --force-depends python3-dev python3.11-dev libpython3-dev libpython3.11-dev",
			spec: "plain.yml", want: "python-headers", fix: "apt-get install -y python3.11-dev",
		},
		{
			name: "ninja only in the virtual environment", image: "ci",
			prepare: "dpkg --purge --force-depends ninja-build; python3 -m venv /venv; /venv/bin/pip install --quiet ninja",
			before:  "export VIRTUAL_ENV=/venv", spec: "plain.yml", want: "ninja-missing", doctorOnly: true, fix: `export PATH="/venv/bin:$PATH"`,
		},
		{
			name: "cache on noexec", image: "ci", args: []string{"--tmpfs", "/cache:rw,noexec,size=200m"}, before: ": ${KILN_CACHE_DIR=/cache}; export KILN_CACHE_DIR",
			spec: "plain.yml", want: "noexec", fix: "export KILN_CACHE_DIR=/home/kiln/.cache/kiln",
		},
		{
			name: "full disk", image: "ci", args: []string{"--tmpfs", "/cache:rw,exec,size=8m"}, prepare: "head -c 8300000 /dev/zero >/cache/filler",
			before: ": ${KILN_CACHE_DIR=/cache}; export KILN_CACHE_DIR", spec: "plain.yml", want: "disk-full", fix: "export KILN_CACHE_DIR=/home/kiln/.cache/kiln",
		},
		{
			name: "gcc too new for nvcc 12.4", image: "trixie-cuda124", prepare: "apt-get update -q; dpkg --purge --force-depends g++-13", spec: "cuda.yml",
			want: "host-compiler", fix: "apt-get install -y g++-13",
		},
		{
			name: "gcc too new for nvcc 11.8", image: "bookworm-cuda118", prepare: "apt-get update -q; dpkg --purge --force-depends g++-11", spec: "cuda.yml",
			want: "host-compiler", fix: "apt-get install -y g++-11",
		},
		{
			name: "no nvcc", image: "trixie-torch26", prepare: "apt-get update -q; dpkg --purge --force-depends nvidia-cuda-toolkit", spec: "torch.yml",
			want: "no-nvcc", fix: "apt-get install -y nvidia-cuda-toolkit",
		},
		{
			name: "torch with other CUDA major", image: "trixie-torch26", args: []string{"--volume", nvidia + ":/opt/nvidia:ro"},
			before: ": ${CUDA_HOME=/opt/nvidia/cu13}; export CUDA_HOME", spec: "torch.yml", want: "cuda-mismatch", fix: "export CUDA_HOME=/usr",
		},
		{
			name: "torch CPU", image: "trixie-torch26", prepare: "apt-get update -q; apt-get install -y -q --no-install-recommends python3-torch", spec: "torch.yml",
			want: "torch-cpu", fix: "apt-get install -y python3-torch-cuda libtorch-cuda-dev",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Now()
			v := launch(t, kiln, tt.image, tt.args...)
			if tt.prepare != "" {
				v.must(tt.prepare)
			}
			problems := v.doctor(tt.before)
			doctorFix, ok := problems[tt.want]
			if !ok {
				t.Fatalf("kiln doctor finds %v, want %s", problems, tt.want)
			}
			ids, fix := v.jit(tt.before, tt.spec)
			switch {
			case tt.doctorOnly && len(ids) > 0, !tt.doctorOnly && !slices.Equal(ids, []string{tt.want}):
				t.Fatalf("kiln jit diagnoses %v, want %s", ids, tt.want)
			case tt.doctorOnly:
				fix = doctorFix
			}
			for _, text := range []string{doctorFix, fix} {
				if first, _, _ := strings.Cut(text, "\n"); first != tt.fix {
					t.Errorf("fix %q, want %q", first, tt.fix)
				}
			}
			first, _, _ := strings.Cut(fix, "\n")
			// What changes the environment changes that of the commands after it; what changes the
			// machine is run once.
			before := tt.before
			if strings.HasPrefix(first, "export ") {
				before += "\n" + first
			} else {
				v.must(first)
			}
			if left := v.doctor(before); left[tt.want] != "" {
				t.Errorf("after the fix kiln doctor still finds %s: %s", tt.want, left[tt.want])
			}
			if ids, _ := v.jit(before, tt.spec); len(ids) > 0 {
				t.Errorf("after the fix kiln jit diagnoses %v", ids)
			}
			t.Logf("%s: %s, then %q, in %s", tt.name, tt.want, first, time.Since(start).Round(time.Second))
		})
	}
}

// TestE2EJITHIP compiles a module of HIP and C++ for two GPUs that this machine does not have, and
// reads them from the result.
func TestE2EJITHIP(t *testing.T) {
	kilntest.NeedE2E(t, "jit-hip")
	v := launch(t, buildKiln(t), "trixie-hip", "--env", "KILN_CACHE_DIR=/cache")
	const both = "export PYTORCH_ROCM_ARCH='gfx90a;gfx1030'"
	if ids, _ := v.jit(both, "hip.yml"); len(ids) > 0 {
		t.Fatalf("kiln jit diagnoses %v", ids)
	}
	var answer struct {
		Path, Source, Archs string
		Remembered          bool
	}
	read := func(before string) {
		t.Helper()
		if err := json.Unmarshal([]byte(v.must(before+"\nkiln jit --json hip.yml")), &answer); err != nil {
			t.Fatal(err)
		}
	}
	read(both)
	if answer.Archs != "gfx90a;gfx1030" || !answer.Remembered {
		t.Errorf("second call: %+v", answer)
	}
	t.Log(v.must("kiln audit --gfx 'gfx90a gfx1030' " + answer.Path))
	if out, err := v.shell("kiln audit --gfx 'gfx90a gfx1030 gfx1100' " + answer.Path); err == nil || !strings.Contains(out, "no code for gfx1100") {
		t.Errorf("audit for another GPU: %v\n%s", err, out)
	}
	// Another list is another module.
	first := answer.Path
	if read("export PYTORCH_ROCM_ARCH=gfx1030"); answer.Path == first || answer.Source != "built" || answer.Archs != "gfx1030" {
		t.Errorf("other GPUs: %+v", answer)
	}
	if ids, fix := v.jit("export PYTORCH_ROCM_ARCH=8.0", "hip.yml"); !slices.Equal(ids, []string{"arch-unsupported"}) || !strings.HasPrefix(fix, "export PYTORCH_ROCM_ARCH=") {
		t.Errorf("a CUDA target: %v, %q", ids, fix)
	}
	const one = "export PYTORCH_ROCM_ARCH=gfx906"
	v.must("apt-get update -q; dpkg --purge --force-depends hipcc")
	ids, fix := v.jit(one, "hip.yml")
	if !slices.Equal(ids, []string{"no-hipcc"}) {
		t.Fatalf("without hipcc: %v, %q", ids, fix)
	}
	install, _, _ := strings.Cut(fix, "\n")
	v.must(install)
	if ids, _ := v.jit(one, "hip.yml"); len(ids) > 0 {
		t.Errorf("after %q: %v", install, ids)
	}
}

// TestE2EJITPrebuilt: a wheel with a module that was compiled with torch 2.6 is used with torch
// 2.6, and refused with torch 2.5, where the symbol that is named is the one that importing it
// fails on. Both are PyPI's.
func TestE2EJITPrebuilt(t *testing.T) {
	kilntest.NeedE2E(t, "jit-prebuilt")
	kiln := buildKiln(t)
	wheels := t.TempDir()
	type result struct {
		Path, Source, Error string
		Rejected            []struct {
			Path      string
			Diagnoses []struct{ ID, Detail string }
		}
	}
	ask := func(v *vessel, before string) (r result) {
		t.Helper()
		out, err := v.shell(before + "\nkiln jit --json --python /usr/bin/python3.11 env.yml")
		if jerr := json.Unmarshal([]byte(out), &r); jerr != nil {
			t.Fatalf("kiln jit: %v, %v\n%s", err, jerr, out)
		}
		return r
	}
	const load = `python3.11 -c 'import sys, torch, importlib.machinery as m
print(m.ExtensionFileLoader("env", sys.argv[1]).load_module().answer())' `

	same := launch(t, kiln, "share-torch26", "--env", "KILN_CACHE_DIR=/cache", "--volume", wheels+":/wheels")
	built := ask(same, "")
	if built.Source != "built" {
		t.Fatalf("first call: %+v", built)
	}
	same.must(`python3.11 - ` + built.Path + ` <<'END'
import os, sys, zipfile
with zipfile.ZipFile("/wheels/env-1.0-cp311-cp311-linux_x86_64.whl", "w") as z:
    z.write(sys.argv[1], "pkg/" + os.path.basename(sys.argv[1]))
    z.writestr("env-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: env\nVersion: 1.0\n")
    z.writestr("env-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n")
    z.writestr("env-1.0.dist-info/RECORD", "")
END
rm -r /cache`)
	used := ask(same, "export KILN_NO_JIT=1")
	if used.Source != "prebuilt" || len(used.Rejected) > 0 {
		t.Fatalf("with the torch it was compiled with: %+v", used)
	}
	if got := same.must(load + used.Path); got != "42\n" {
		t.Errorf("the module answers %q", got)
	}

	other := launch(t, kiln, "share-torch25", "--env", "KILN_CACHE_DIR=/cache", "--volume", wheels+":/wheels:ro")
	refused := ask(other, "export KILN_NO_JIT=1")
	if refused.Path != "" || len(refused.Rejected) != 1 || len(refused.Rejected[0].Diagnoses) == 0 {
		t.Fatalf("with another torch: %+v", refused)
	}
	d := refused.Rejected[0].Diagnoses[0]
	out, err := other.shell(load + refused.Rejected[0].Path + " 2>&1")
	const symbol = "_ZN3c105utils7has_envEPKc"
	if d.ID != "undefined-symbol" || !strings.Contains(d.Detail, symbol) || err == nil || !strings.Contains(out, "undefined symbol: "+symbol) {
		t.Errorf("refused because of %+v; importing it: %v\n%s", d, err, out)
	}
	t.Logf("torch 2.6: %s; torch 2.5: %s", used.Source, d.Detail)
}
