package share

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
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
