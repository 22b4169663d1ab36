package build

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/matrix"
)

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
		nameLaunchers(&test.row, test.env, tools, "/l")
		if diff := cmp.Diff(test.want, test.env); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
