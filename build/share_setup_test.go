package build

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/matrix"
)

const hipOutput = `Debian clang version 17.0.6 (22+b2)
Target: x86_64-pc-linux-gnu
InstalledDir: /usr/bin
 "/usr/lib/llvm-17/bin/clang" "-cc1" "-mlink-builtin-bitcode" "/usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode/hip.bc" "-mlink-builtin-bitcode" "/usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode/ocml.bc" "-D" "T=\"a.bc\"" "-o" "/tmp/x-gfx906-261e6c.o"
 "/usr/lib/llvm-17/bin/lld" "-flavor" "gnu"
 "/usr/lib/llvm-17/bin/clang-offload-bundler" "-type=o"
 "/usr/lib/llvm-17/bin/clang" "-cc1" "-triple" "x86_64-pc-linux-gnu"
`

func TestHIPCommands(t *testing.T) {
	programs, libraries := hipCommands(hipOutput)
	if diff := cmp.Diff([]string{"/usr/lib/llvm-17/bin/clang", "/usr/lib/llvm-17/bin/clang-offload-bundler", "/usr/lib/llvm-17/bin/lld"}, programs); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/usr/lib/llvm-17/lib/clang/17/amdgcn/bitcode"}, libraries); diff != "" {
		t.Errorf("libraries (-want +got):\n%s", diff)
	}
	if programs, libraries := hipCommands("error: no such thing\n"); programs != nil || libraries != nil {
		t.Errorf("nothing gives %q, %q", programs, libraries)
	}
}

func FuzzHIPCommands(f *testing.F) {
	f.Add(hipOutput)
	f.Add(" \"/a\\\"b\" \"/c/\\\\.bc\"\n\"")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		programs, libraries := hipCommands(text)
		for _, list := range [][]string{programs, libraries} {
			for _, name := range list {
				if name == "" || name[0] != '/' {
					t.Errorf("%q is no path", name)
				}
			}
		}
	})
}

// Whatever names a compiler names its launcher, unless it is a compiler that has none.
func TestNameLaunchers(t *testing.T) {
	tools := map[string]launcher.Tool{"g++": {Path: "/usr/bin/g++"}, "nvcc": {Path: "/usr/local/cuda/bin/nvcc"}, "hipcc": {Path: "/opt/rocm/bin/hipcc"}}
	for _, test := range []struct {
		name string
		row  matrix.Row
		env  map[string]string
		want map[string]string
	}{
		{"neither CUDA nor ROCm", matrix.Row{}, map[string]string{}, map[string]string{}},
		{"CUDA", matrix.Row{CUDA: "12.4.0"}, map[string]string{}, map[string]string{"PYTORCH_NVCC": "/l/nvcc"}},
		{"ROCm", matrix.Row{ROCm: "6.2"}, map[string]string{}, map[string]string{"PYTORCH_NVCC": "/l/hipcc", "HIPCC": "/l/hipcc"}},
		{
			"by path",
			matrix.Row{CUDA: "12.4.0"},
			map[string]string{"CXX": "/usr/bin/g++", "PYTORCH_NVCC": "/usr/local/cuda/bin/nvcc", "CUDACXX": "/usr/local/cuda/bin/nvcc"},
			map[string]string{"CXX": "/l/g++", "PYTORCH_NVCC": "/l/nvcc", "CUDACXX": "/l/nvcc"},
		},
		{
			"another one, and one that PATH finds",
			matrix.Row{CUDA: "12.4.0"},
			map[string]string{"CXX": "/opt/gcc/bin/g++", "CC": "gcc-13", "PYTORCH_NVCC": "ccache nvcc"},
			map[string]string{"CXX": "/opt/gcc/bin/g++", "CC": "gcc-13", "PYTORCH_NVCC": "ccache nvcc"},
		},
	} {
		a := &attempt{Recipe: &record.Recipe{Row: test.row}}
		a.nameLaunchers(test.env, tools, "/l")
		if diff := cmp.Diff(test.want, test.env); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
