package build

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArchReaders(t *testing.T) {
	for _, tc := range []struct {
		name      string
		files     map[string]string
		want      []archReader
		torchList bool
	}{
		{"plain", map[string]string{"setup.py": "from torch.utils.cpp_extension import CUDAExtension\n"}, nil, false},
		{
			"own variable and flags",
			map[string]string{"setup.py": "import os\n\ndef archs():\n    return os.getenv(\"FLASH_ATTN_CUDA_ARCHS\", \"80;90\").split(\";\")\n\nflags += [\"-gencode\", \"arch=compute_80,code=sm_80\"]\n"},
			[]archReader{{"setup.py", 4, "FLASH_ATTN_CUDA_ARCHS"}, {"setup.py", 6, ""}},
			false,
		},
		{
			"environ in all forms",
			map[string]string{"setup.py": "a = os.environ['MY_ARCHS']\nb = os.environ.get( 'X_GENCODE' )\n# os.environ['NOT_ARCHS']\nc = os.environ['TORCH_CUDA_ARCH_LIST']\nd = os.environ.get('ARCHFLAGS')\n"},
			[]archReader{{"setup.py", 1, "MY_ARCHS"}, {"setup.py", 2, "X_GENCODE"}},
			true,
		},
		{"cmake", map[string]string{"CMakeLists.txt": "set(CMAKE_CUDA_ARCHITECTURES $ENV{BNB_CUDA_ARCHS})\n"}, []archReader{{"CMakeLists.txt", 1, "BNB_CUDA_ARCHS"}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tc.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, torchList := archReaders(dir)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(archReader{})); diff != "" {
				t.Error(diff)
			}
			if torchList != tc.torchList {
				t.Errorf("reads TORCH_CUDA_ARCH_LIST: %t", torchList)
			}
		})
	}
}
