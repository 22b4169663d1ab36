package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha1" // the form of passwords that bazel-remote reads
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/build/calls"
	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/build/share"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/matrix"
)

// needShare skips unless make e2e-share runs the tests, and returns a kiln for the environments.
func needShare(t *testing.T) string {
	t.Helper()
	kilntest.NeedE2E(t, "share")
	program := filepath.Join(t.TempDir(), "kiln")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/kiln")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build kiln: %v\n%s", err, out)
	}
	return program
}

// buildRow builds one row and returns it with its compiles.
func buildRow(t *testing.T, plan *matrix.Plan, opts build.Options, part string) (build.RowResult, *calls.Inputs) {
	t.Helper()
	i := slices.IndexFunc(plan.Rows, func(r matrix.Row) bool { return strings.Contains(r.ID, part) })
	if i < 0 {
		t.Fatalf("no row %s", part)
	}
	result, err := build.Run(t.Context(), plan, plan.Rows[i:i+1], opts)
	if err != nil {
		t.Fatal(err)
	}
	r := result.Rows[0]
	if r.Status != engine.StatusDone || r.Record == nil || r.Record.Test.Result != "passed" {
		t.Fatalf("%s is %s: %v\n%s", r.Row.ID, r.Status, r.Err, logOf(r))
	}
	if opts.NoShare {
		return r, nil
	}
	all, err := share.ReadCalls(opts.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	j := slices.IndexFunc(all, func(in *calls.Inputs) bool { return in.Row == r.Row.ID })
	if j < 0 {
		t.Fatalf("no calls of %s are kept", r.Row.ID)
	}
	return r, all[j]
}

func stageSeconds(r build.RowResult, name string) float64 {
	for _, s := range r.Record.Stages {
		if s.Name == name {
			return s.Seconds
		}
	}
	return 0
}

// numbers prints what a row took.
func numbers(t *testing.T, r build.RowResult) {
	t.Helper()
	c := r.Record.Compiles
	t.Logf("%s: %.0f s in all, %.0f s in the compile stage; %d compiles, %d shared, %d compiled; %.1f s of processor, %.0f MB the largest",
		r.Row.ID, r.Wall.Seconds(), stageSeconds(r, "compile"), c.Calls, c.Hits, c.Misses, c.CPUSeconds, float64(c.PeakMemoryBytes)/1e6)
}

// TestE2EShare builds an extension of torch, ten kernels and three bindings, for two Pythons in one
// image with one toolkit: each kernel is compiled once, the bindings for each Python, and the
// compilers of the second row take less than a quarter of the processor time. Then for another
// torch.
func TestE2EShare(t *testing.T) {
	program := needShare(t)
	plan, opts := planOf(t, filepath.Join("testdata", "share.yml"))
	opts.Kiln = program
	first, _ := buildRow(t, plan, opts, "torch2.6.0-cp313")
	numbers(t, first)
	second, calls := buildRow(t, plan, opts, "torch2.6.0-cp311")
	numbers(t, second)
	for _, u := range calls.Calls {
		want := launcher.Miss
		if strings.HasSuffix(u.Source, ".cu") {
			want = launcher.Hit
		}
		if u.Result != want {
			t.Errorf("%s in the second row: %s %s, want %s", u.Source, u.Result, u.Why, want)
		}
	}
	if c := second.Record.Compiles; c.Calls != 13 || c.Hits != 10 || first.Record.Compiles.Misses != 13 {
		t.Errorf("first %+v, second %+v; want 13 misses, then 10 hits of 13", first.Record.Compiles, c)
	}
	ratio := first.Record.Compiles.CPUSeconds / second.Record.Compiles.CPUSeconds
	t.Logf("second row: %.1f times faster in all, %.1f times in the compile stage, %.1f times less processor time of compilers",
		first.Wall.Seconds()/second.Wall.Seconds(), stageSeconds(first, "compile")/stageSeconds(second, "compile"), ratio)
	if ratio < 4 {
		t.Errorf("the compilers of the second row took 1/%.1f of the processor time, want 1/4", ratio)
	}

	other, calls := buildRow(t, plan, opts, "torch2.5.1-cp311")
	numbers(t, other)
	for _, u := range calls.Calls {
		t.Logf("another torch: %s: %s", strings.TrimPrefix(u.Source, launcher.CanonicalWork+"/source/"), u.Result)
		// It reads nothing of torch.
		if strings.HasSuffix(u.Source, "/fill.cu") && u.Result != launcher.Hit {
			t.Errorf("%s: %s, want a hit", u.Source, u.Result)
		}
	}
}

// TestE2EShareVerify: what is shared is what the compiler makes, and from scratch means from
// scratch.
func TestE2EShareVerify(t *testing.T) {
	program := needShare(t)
	plan, opts := helloPlan(t)
	opts.Kiln = program
	_, first := buildRow(t, plan, opts, "-one-")
	opts.VerifyShare = 100
	second, calls := buildRow(t, plan, opts, "-two-")
	c := second.Record.Compiles
	if c.Hits != 3 || c.Verified != 3 || len(first.Calls) != 3 || len(calls.Calls) != 3 {
		t.Errorf("second row: %+v, want 3 hits, all of them verified", c)
	}
	opts.Rebuild, opts.NoShare = true, true
	scratch, _ := buildRow(t, plan, opts, "-two-")
	if scratch.Record.Compiles != nil {
		t.Errorf("without sharing: %+v", scratch.Record.Compiles)
	}
	if a, b := second.Record.Files[0].SHA256, scratch.Record.Files[0].SHA256; a != b {
		t.Logf("the wheel from scratch has other bytes: %s, %s", a, b)
	}
}

// helloPlan has two rows that agree in everything that compilers see.
func helloPlan(t *testing.T) (*matrix.Plan, build.Options) {
	t.Helper()
	source := repository(t, "examples", "hello-cuda")
	return planOf(t, write(t, map[string]string{"packages.yml": fmt.Sprintf(`
packages:
  hello-cuda:
    source: {path: %q}
    versions: ["0.1.0"]
    extra_deps: [build, "setuptools>=77"]
    env: {BUILD_TARGET: cuda}
    local_version: "{flavor}"
    image: %strixie-cuda124
    test: {expressions: ["hello_cuda.backend()"], image: %strixie-runtime}
    matrix: [{os: debian-13, python: "3.13", cuda: "12.4.0", arch: "8.0", axes: {flavor: [one, two]}}]
`, source, prefix, prefix)}))
}

// hipSetup compiles one file after the other with what HIPCC names, as makefiles do.
const hipSetup = `
import os, re, subprocess, sysconfig
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class build_hip(build_ext):
    def build_extension(self, ext):
        output = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(output), exist_ok=True)
        archs = ["--offload-arch=" + a for a in re.split("[; ,]+", os.environ["PYTORCH_ROCM_ARCH"].strip())]
        objects = []
        for source in ext.sources:
            object = os.path.join(self.build_temp, source + ".o")
            os.makedirs(os.path.dirname(object), exist_ok=True)
            subprocess.run([os.environ["HIPCC"], "-fPIC", "-O2", "-std=c++17", *archs, "-I" + sysconfig.get_path("include"), "-c", source, "-o", object], check=True)
            objects.append(object)
        subprocess.run([os.environ["HIPCC"], "-shared", "-fPIC", *archs, *objects, "-o", output], check=True)

setup(name="share-hip", version="0.1.0", ext_modules=[Extension("share_hip", ["module.hip", "one.hip", "two.cu"])], cmdclass={"build_ext": build_hip})
`

// hipKernel reads one header for the host and one for each GPU.
const hipKernel = `
#include <hip/hip_runtime.h>
#if !defined(__HIP_DEVICE_COMPILE__)
#include "host.h"
#elif defined(__gfx90a__)
#include "high.h"
#else
#include "low.h"
#endif
__global__ void %s(float* p) { p[threadIdx.x] = expf(p[threadIdx.x]) + VALUE; }
`

const hipModule = `
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <hip/hip_runtime.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "share_hip", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_share_hip(void) { return PyModule_Create(&module); }
`

// TestE2EShareHIP: what hipcc compiles is shared, and is what it compiles; a change that only one
// GPU sees is seen.
func TestE2EShareHIP(t *testing.T) {
	program := needShare(t)
	yml := write(t, map[string]string{
		"packages.yml": fmt.Sprintf(`
packages:
  share-hip:
    source: {path: src}
    versions: ["0.1.0"]
    extra_deps: [build, "setuptools>=77"]
    local_version: "{flavor}"
    image: %strixie-hip
    test: {image: %strixie-hip-runtime}
    matrix: [{os: debian-13, python: "3.13", rocm: "5.7", arch: "gfx906 gfx90a", axes: {flavor: [one, two, three]}}]
`, prefix, prefix),
		"src/setup.py": hipSetup, "src/module.hip": hipModule, "src/one.hip": fmt.Sprintf(hipKernel, "one"), "src/two.cu": fmt.Sprintf(strings.ReplaceAll(hipKernel, "low.h", "other.h"), "two"),
		"src/host.h": "#define VALUE 1\n", "src/low.h": "#define VALUE 1\n", "src/high.h": "#define VALUE 1\n", "src/other.h": "#define VALUE 1\n",
	})
	plan, opts := planOf(t, yml)
	opts.Kiln = program
	first, calls := buildRow(t, plan, opts, "-one-")
	numbers(t, first)
	if c := first.Record.Compiles; c.Calls != 3 || c.Misses != 3 {
		t.Errorf("first row: %+v %+v, want 3 misses", c, calls.Calls)
	}
	opts.VerifyShare = 100
	second, _ := buildRow(t, plan, opts, "-two-")
	numbers(t, second)
	if c := second.Record.Compiles; c.Hits != 3 || c.Verified != 3 {
		t.Errorf("second row: %+v, want 3 hits, all of them verified", c)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(yml), "src", "low.h"), []byte("#define VALUE 2\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	third, calls := buildRow(t, plan, opts, "-three-")
	numbers(t, third)
	for _, u := range calls.Calls {
		want := launcher.Hit
		if strings.HasSuffix(u.Source, "/one.hip") {
			want = launcher.Miss // gfx906 reads low.h for it
		}
		if u.Result != want {
			t.Errorf("%s after a change for one GPU: %s %s, want %s", u.Source, u.Result, u.Why, want)
		}
	}
}

// start runs a server until the test ends, and waits until it answers.
func start(t *testing.T, port int, argv ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", argv[0], log.String())
		}
	})
	kilntest.WaitForPort(t, port, argv[0])
}

// TestE2EShareRemote: two machines, that is, two empty state folders, share through a real
// bazel-remote and through a real Redis, both with a password, from containers without network.
func TestE2EShareRemote(t *testing.T) {
	program := needShare(t)
	for _, test := range []struct {
		name   string
		remote func(t *testing.T) share.RemoteCache
	}{
		{"bazel-remote", func(t *testing.T) share.RemoteCache {
			dir, port := t.TempDir(), kilntest.FreePort(t)
			sum := sha1.Sum([]byte("secret"))
			passwords := filepath.Join(dir, "passwords")
			if err := os.WriteFile(passwords, []byte("kiln:{SHA}"+base64.StdEncoding.EncodeToString(sum[:])+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			start(t, port, repository(t, ".cache", "tools", "bazel-remote"), "--dir", filepath.Join(dir, "data"), "--max_size", "1", "--disable_http_ac_validation",
				"--http_address", fmt.Sprintf("127.0.0.1:%d", port), "--grpc_address", "none", "--htpasswd_file", passwords)
			return share.RemoteCache{URL: fmt.Sprintf("http://127.0.0.1:%d|layout=bazel", port), User: "kiln", Password: "secret"}
		}},
		{"redis", func(t *testing.T) share.RemoteCache {
			port := kilntest.FreePort(t)
			start(t, port, "redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--requirepass", "secret", "--save", "", "--dir", t.TempDir())
			return share.RemoteCache{URL: fmt.Sprintf("redis://127.0.0.1:%d/1", port), Password: "secret"}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			remote := test.remote(t)
			for machine, want := range []int{0, 3} {
				plan, opts := helloPlan(t)
				opts.Kiln, opts.Remote = program, remote
				r, _ := buildRow(t, plan, opts, "-one-")
				numbers(t, r)
				if c := r.Record.Compiles; c.Calls != 3 || c.RemoteHits != want || c.Hits != want {
					t.Errorf("machine %d: %+v, want %d hits, all of them remote", machine+1, c, want)
				}
			}
		})
	}
}
