//go:build linux

package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// exllamaRequirements are what importing exllamav2 needs besides torch, and what torch's builder
// imports.
const exllamaRequirements = "exllamav2==0.3.2 setuptools==81.0.0 rich==15.0.0 pygments==2.21.0 markdown-it-py==4.3.0 mdurl==0.1.2 safetensors==0.8.0 tokenizers==0.23.3 numpy==2.4.6 pillow==13.0.0"

// loaderVessel is a container with torch 2.6, exllamav2 as PyPI has it, and the programs.
func loaderVessel(t *testing.T, args ...string) *vessel {
	t.Helper()
	programs, err := filepath.Abs(filepath.Join("testdata", "programs"))
	if err != nil {
		t.Fatal(err)
	}
	v := launch(t, buildKiln(t), "trixie-torch26", append([]string{
		"--volume", programs + ":/programs:ro", "--env", "TORCH_CUDA_ARCH_LIST=9.0", "--env", "KILN_CACHE_DIR=/cache", "--env", "CCACHE_DISABLE=1",
		"--env", "KILN=/usr/local/bin/kiln", "--env", "PYTHONUNBUFFERED=1", "--env", "PYTHONDONTWRITEBYTECODE=1",
	}, args...)...)
	v.must("python3 -m venv --system-site-packages /venv; /venv/bin/pip -q install --no-deps " + exllamaRequirements)
	return v
}

// TestE2EJITExLlamaV2: exllamav2 from PyPI, unedited, with kiln in the place of torch's loader.
// Ten starts are ended in the middle of a compile; then eight processes at once import the whole
// extension, which is compiled once, for one GPU.
func TestE2EJITExLlamaV2(t *testing.T) {
	kilntest.NeedE2E(t, "jit-exllamav2")
	v := loaderVessel(t)
	t.Log(v.must("cd /tmp; /venv/bin/python /programs/proof.py kills"))
	start := time.Now()
	t.Log(v.must("cd /tmp; /venv/bin/python /programs/proof.py whole"))
	t.Logf("%s in all", time.Since(start).Round(time.Second))
}

// TestE2EJITPrograms: the calls of twenty programs behave alike with torch's loader and with
// kiln's.
func TestE2EJITPrograms(t *testing.T) {
	kilntest.NeedE2E(t, "jit-programs")
	v := loaderVessel(t)
	names := strings.Fields(v.must("/venv/bin/python /programs/programs.py 2>/dev/null"))
	if len(names) < 20 {
		t.Fatalf("%d programs: %q", len(names), names)
	}
	for _, name := range names {
		run := func(loader, how string) string {
			t.Helper()
			return v.must("mkdir -p /" + loader + "/" + name + "; cd /" + loader + "/" + name + "; TORCH_EXTENSIONS_DIR=/" + loader +
				"/ext timeout 1200 /venv/bin/python " + how + "/programs/programs.py " + name)
		}
		torch, kiln := run("torch", ""), run("kiln", "-m kiln.torch ")
		if torch != kiln || strings.TrimSpace(torch) == "" {
			t.Errorf("%s: with torch's loader\n%s\nwith kiln's\n%s", name, torch, kiln)
			continue
		}
		t.Logf("%s: the same", name)
	}
}

// rocmSpec is exllamav2's extension for ROCm, with the definition that its own loader adds.
const rocmSpec = `name: exllamav2_ext
torch: true
root: /src
sources: ["exllamav2/exllamav2_ext/**/*.cpp", "exllamav2/exllamav2_ext/**/*.cu"]
include: [exllamav2/exllamav2_ext]
flags: {cxx: [-O3], hip: [-O3, -DHIPBLAS_USE_HIP_HALF]}
prebuilt: false
`

// TestE2EJITROCm translates exllamav2's extension with torch's own hipify, and compares every file
// with what torch's CUDAExtension makes. Debian has no torch for ROCm: of torch there are hipify and
// a version that says ROCm, so that files which include torch's headers do not compile.
func TestE2EJITROCm(t *testing.T) {
	kilntest.NeedE2E(t, "jit-rocm")
	programs, err := filepath.Abs(filepath.Join("testdata", "programs"))
	if err != nil {
		t.Fatal(err)
	}
	id, err := podman(t.Context(), "create", prefix+"trixie-torch26", "true")
	if err != nil {
		t.Fatal(err)
	}
	id = strings.TrimSpace(id)
	utils := t.TempDir()
	for _, name := range []string{"hipify", "cpp_extension.py"} {
		if _, err := podman(t.Context(), "cp", id+":/usr/lib/python3/dist-packages/torch/utils/"+name, utils+"/"+name); err != nil {
			t.Error(err)
		}
	}
	if _, err := podman(t.Context(), "rm", id); err != nil || t.Failed() {
		t.Fatal(err)
	}
	v := launch(t, buildKiln(t), "trixie-hip", "--volume", programs+":/programs:ro", "--volume", utils+":/utils:ro",
		"--env", "KILN_CACHE_DIR=/cache", "--env", "CCACHE_DISABLE=1", "--env", "PYTORCH_ROCM_ARCH=gfx1030", "--env", "PYTHONDONTWRITEBYTECODE=1")
	v.must(`python3 -m venv /pip; /pip/bin/pip -q install --no-deps --target /src exllamav2==0.3.2
site=/usr/lib/python3/dist-packages; mkdir -p $site/torch/lib $site/torch/include; cp -r /utils $site/torch/utils
printf '__version__ = "2.6.0+rocm5.7"\ncuda = None\nhip = "5.7.31921"\n' >$site/torch/version.py; touch $site/torch/__init__.py
cat >/ext.yml <<'END'
` + rocmSpec + "END")
	const sums = "find /src -type f | sort | xargs -d '\\n' sha256sum"
	before := v.must(sums)
	v.must("kiln jit /ext.yml --ninja /n")
	if after := v.must(sums); after != before {
		t.Error("something was written beside the sources")
	}
	t.Log(v.must("cd /; python3 /programs/hipify.py /src /cache/jit/v1/hip/*/src exllamav2/exllamav2_ext 2>&1 | tail -n 1"))
	t.Log(v.must("cd /n; ninja -k 0 -j 1 >log 2>&1 || true; echo $(ls *.o | wc -l) of $(grep -c '^build .*_compile\\|^build .*: compile' build.ninja) files compile; grep -h 'fatal error' log | sed 's/.*fatal error/fatal error/' | sort | uniq -c | sort -rn | head -n 5"))
}
