package fatbin_test

import (
	"bytes"
	std "cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// A toolkit has nvcc and cuobjdump in its folder bin.
type toolkit struct {
	home    string
	version string // of nvcc: "13.0"
}

func (k toolkit) nvcc() string      { return filepath.Join(k.home, "bin", "nvcc") }
func (k toolkit) cuobjdump() string { return filepath.Join(k.home, "bin", "cuobjdump") }

// toolkits returns the toolkit among the packages of KILN_PYTHON (see
// dev/python/requirements.txt at the root) and those that KILN_CUDA_HOMES lists,
// separated as in PATH. nvcc is called with what NVCC_APPEND_FLAGS says, for a toolkit
// that does not know the machine's compiler.
func toolkits(t *testing.T) []toolkit {
	t.Helper()
	homes := filepath.SplitList(os.Getenv("KILN_CUDA_HOMES"))
	if py := os.Getenv("KILN_PYTHON"); py != "" {
		const find = `import importlib.util as u
s = u.find_spec("nvidia")
print(*(p + "/cu13" for p in (s.submodule_search_locations if s else [])), sep="\n")`
		out, err := exec.CommandContext(t.Context(), py, "-c", find).Output()
		if err != nil {
			t.Fatalf("KILN_PYTHON=%s: %v", py, err)
		}
		homes = append(homes, strings.Fields(string(out))...)
	}
	var found []toolkit
	for _, home := range homes {
		k := toolkit{home: home}
		if _, err := os.Stat(k.nvcc()); err != nil {
			continue
		}
		if _, err := os.Stat(k.cuobjdump()); err != nil {
			continue
		}
		out, err := exec.CommandContext(t.Context(), k.nvcc(), "--version").Output()
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(out), "release ")
		k.version, _, _ = strings.Cut(rest, ",")
		found = append(found, k)
	}
	if len(found) == 0 {
		kilntest.Lacking(t, "cuobjdump", "no toolkit with nvcc and cuobjdump in KILN_PYTHON or KILN_CUDA_HOMES")
	}
	return found
}

// command runs a program and returns what it printed.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "LC_ALL=C")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.Bytes(), errs.Bytes())
	}
	return out.String()
}

// dump lists the images of a file as cuobjdump sees them, sorted. all includes those of
// __nv_relfatbin beside those of .nv_fatbin.
func dump(t *testing.T, cuobjdump, file string, all bool) []string {
	t.Helper()
	args := []string{file}
	if all {
		args = []string{"-all", file}
	}
	cmd := exec.CommandContext(t.Context(), cuobjdump, args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil && !strings.Contains(errs.String(), "does not contain device code") {
		t.Fatalf("cuobjdump %s: %v\n%s", file, err, errs.Bytes())
	}
	var list []string
	for block := range strings.SplitSeq(string(out), "\nFatbin ") {
		kind, rest, ok := strings.Cut(block, " code:\n")
		if !ok {
			continue
		}
		image := map[string]string{}
		compressed := false
		for line := range strings.Lines(rest) {
			line = strings.TrimSuffix(line, "\n")
			switch key, value, ok := strings.Cut(line, " = "); {
			case ok:
				image[key] = value
			case line == "compressed":
				compressed = true
			}
		}
		options := image["ptxasOptions"] + image["nvvmOptions"]
		list = append(list, fmt.Sprintf("%s %s %s compressed=%t ident=%q options=%q",
			kind, image["arch"], image["code version"], compressed,
			image["identifier"], strings.TrimSpace(options)))
	}
	slices.Sort(list)
	return list
}

// listed renders entries as dump does.
func listed(entries []fatbin.Entry) []string {
	kinds := map[fatbin.Kind]string{fatbin.PTX: "ptx", fatbin.SASS: "elf", fatbin.LTOIR: "nvvm"}
	var list []string
	for _, e := range entries {
		list = append(list, fmt.Sprintf("%s sm_%d%s [%d,%d] compressed=%t ident=%q options=%q",
			kinds[e.Kind], e.Arch, e.Suffix, e.Major, e.Minor, e.Compression != "",
			e.Ident, strings.TrimSpace(e.Options)))
	}
	slices.Sort(list)
	return list
}

// loadable returns the entries that cuobjdump lists without -all.
func loadable(entries []fatbin.Entry) []fatbin.Entry {
	var list []fatbin.Entry
	for _, e := range entries {
		if !e.Relocatable() {
			list = append(list, e)
		}
	}
	if len(list) == 0 {
		return entries
	}
	return list
}

// scanFile reads a file.
func scanFile(t *testing.T, name string) fatbin.Contents {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	got, err := fatbin.Scan(f, info.Size())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return got
}

// flags are the ways of calling nvcc that put different things into an object. nvcc does
// not take a comma in a path, so the names have none.
var flags = []struct {
	name string
	args string
	// from and before limit the versions of nvcc.
	from, before string
}{
	{"one sass", "-c -gencode arch=compute_80,code=sm_80", "", ""},
	{"one ptx", "-c -gencode arch=compute_80,code=compute_80", "", ""},
	{"sass and ptx", "-c -gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"arch shorthand", "-c -arch=sm_86", "", ""},
	{"cross", "-c -gencode arch=compute_75,code=[sm_75,sm_80,sm_86,compute_75]", "", ""},
	{"pascal", "-c -gencode arch=compute_60,code=[sm_60,sm_61,compute_60]", "", "13.0"},
	{"hopper", "-c -gencode arch=compute_90,code=[sm_90,compute_90]", "", ""},
	{"90a", "-c -gencode arch=compute_90a,code=[sm_90a,compute_90a]", "12.0", ""},
	{"90 and 90a", "-c -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90a,code=sm_90a", "12.0", ""},
	{"blackwell", "-c -gencode arch=compute_100,code=sm_100 -gencode arch=compute_120,code=[sm_120,compute_120]", "12.8", ""},
	{"100a", "-c -gencode arch=compute_100a,code=[sm_100a,compute_100a]", "12.8", ""},
	{"100f", "-c -gencode arch=compute_100f,code=[sm_100f,compute_100f]", "12.9", ""},
	{"100f for 103", "-c -gencode arch=compute_100f,code=[sm_100f,sm_103f]", "12.9", ""},
	{"120f", "-c -gencode arch=compute_120f,code=[sm_120f,compute_120f]", "12.9", ""},
	{"120a and 120", "-c -gencode arch=compute_120a,code=sm_120a -gencode arch=compute_120,code=sm_120", "12.9", ""},
	{"all major", "-c -arch=all-major", "11.5", ""},
	{"compress all", "-c -Xfatbin -compress-all -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90", "", ""},
	{"no compression", "-c -no-compress -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"mode none", "-c --compress-mode=none -gencode arch=compute_80,code=[sm_80,compute_80]", "12.8", ""},
	{"mode size", "-c --compress-mode=size -gencode arch=compute_80,code=[sm_80,compute_80]", "12.8", ""},
	{"mode speed", "-c --compress-mode=speed -gencode arch=compute_80,code=[sm_80,compute_80]", "12.8", ""},
	{"mode balance", "-c --compress-mode=balance -gencode arch=compute_80,code=[sm_80,compute_80]", "12.8", ""},
	{"mode default", "-c --compress-mode=default -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_100f,code=sm_100f", "12.9", ""},
	{"mode size and compress all", "-c --compress-mode=size -Xfatbin -compress-all -gencode arch=compute_90a,code=[sm_90a,compute_90a]", "12.8", ""},
	{"device c", "-dc -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90", "", ""},
	{"rdc", "-c -rdc=true -gencode arch=compute_80,code=sm_80", "", ""},
	{"rdc 90a", "-dc -gencode arch=compute_90a,code=[sm_90a,compute_90a]", "12.0", ""},
	{"rdc 120f", "-dc -gencode arch=compute_120f,code=[sm_120f,compute_120f]", "12.9", ""},
	{"lto", "-dc -gencode arch=compute_80,code=lto_80", "", ""},
	{"lto and sass", "-dc -gencode arch=compute_80,code=[lto_80,sm_80] -gencode arch=compute_90,code=[lto_90,compute_90]", "", ""},
	{"lto 90a", "-dc -gencode arch=compute_90a,code=lto_90a", "12.3", ""},
	{"lto 100f", "-dc -gencode arch=compute_100f,code=lto_100f", "12.9", ""},
	{"debug", "-c -G -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"debug rdc", "-dc -G -g -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"line info", "-c -lineinfo -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"line info 90a", "-c -lineinfo -gencode arch=compute_90a,code=[sm_90a,compute_90a]", "12.0", ""},
	{"ptxas options", "-c -maxrregcount=32 -Xptxas -O1,-v -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"fast math", "-c -use_fast_math -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"fatbin file", "-fatbin -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_86,code=sm_86", "", ""},
	{"fatbin file with lto", "-fatbin -dc -gencode arch=compute_80,code=[lto_80,sm_80]", "12.0", ""},
	{"shared library", "-shared -Xcompiler -fPIC -cudart none -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90", "", ""},
	{"shared library of rdc", "-shared -rdc=true -Xcompiler -fPIC -cudart none -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"archive", "-lib -gencode arch=compute_80,code=[sm_80,compute_80]", "", ""},
	{"archive of rdc", "-lib -rdc=true -gencode arch=compute_80,code=[sm_80,compute_80] -gencode arch=compute_90,code=sm_90", "", ""},
}

// older reports whether version a, such as "12.4", is before b.
func older(t *testing.T, a, b string) bool {
	t.Helper()
	number := func(v string) int {
		major, minor, _ := strings.Cut(v, ".")
		n, err := strconv.Atoi(major)
		if err != nil {
			t.Fatal(err)
		}
		m, err := strconv.Atoi(std.Or(minor, "0"))
		if err != nil {
			t.Fatal(err)
		}
		return 100*n + m
	}
	return number(a) < number(b)
}

// TestCuobjdump compiles a source with each toolkit in every way of flags and compares
// what is found with the vendor's own tool.
func TestCuobjdump(t *testing.T) {
	source, err := filepath.Abs(filepath.Join("testdata", "axpy.cu"))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range toolkits(t) {
		t.Run(k.version, func(t *testing.T) {
			agreed := 0
			for _, f := range flags {
				if f.from != "" && older(t, k.version, f.from) || f.before != "" && !older(t, k.version, f.before) {
					continue
				}
				t.Run(f.name, func(t *testing.T) {
					dir := t.TempDir()
					out := filepath.Join(dir, "out.bin")
					command(t, dir, k.nvcc(), append(strings.Fields(f.args), "-o", out, source)...)
					got := scanFile(t, out)
					if len(got.Entries) == 0 {
						t.Fatal("no entries")
					}
					if diff := cmp.Diff(dump(t, k.cuobjdump(), out, true), listed(got.Entries)); diff != "" {
						t.Errorf("all images (-cuobjdump +fatbin):\n%s", diff)
					}
					if diff := cmp.Diff(dump(t, k.cuobjdump(), out, false), listed(loadable(got.Entries))); diff != "" {
						t.Errorf("loadable images (-cuobjdump +fatbin):\n%s", diff)
					}
					if !t.Failed() {
						agreed++
					}
				})
			}
			t.Logf("nvcc %s: %d objects agree", k.version, agreed)
		})
	}
}

// TestDeviceLink links libraries with and without relocatable code through nvcc's device
// link step.
func TestDeviceLink(t *testing.T) {
	source, err := filepath.Abs(filepath.Join("testdata", "axpy.cu"))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range toolkits(t) {
		for _, mode := range []string{"-c", "-dc"} {
			t.Run(k.version+mode, func(t *testing.T) {
				dir := t.TempDir()
				command(t, dir, k.nvcc(), mode, "-Xcompiler", "-fPIC", "-gencode", "arch=compute_80,code=[sm_80,compute_80]", source, "-o", "a.o")
				command(t, dir, k.nvcc(), "-dlink", "-cudadevrt", "none", "-Xcompiler", "-fPIC", "-gencode", "arch=compute_80,code=sm_80", "a.o", "-o", "link.o")
				command(t, dir, "g++", "-shared", "a.o", "link.o", "-o", "lib.so")
				lib := filepath.Join(dir, "lib.so")
				entries := scanFile(t, lib).Entries
				if diff := cmp.Diff(dump(t, k.cuobjdump(), lib, true), listed(entries)); diff != "" {
					t.Errorf("all images (-cuobjdump +fatbin):\n%s", diff)
				}
				if diff := cmp.Diff(dump(t, k.cuobjdump(), lib, false), listed(loadable(entries))); diff != "" {
					t.Errorf("loadable images (-cuobjdump +fatbin):\n%s", diff)
				}
				var got []string
				for _, e := range entries {
					got = append(got, fmt.Sprintf("%s %s %t", e.Section, e.Target(), e.DeviceLink))
				}
				want := []string{".nv_fatbin sm_80 false", ".nv_fatbin compute_80 false", ".nv_fatbin sm_80 true"}
				if mode == "-dc" {
					want = []string{"__nv_relfatbin sm_80 false", "__nv_relfatbin compute_80 false", ".nv_fatbin sm_80 true"}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestCuobjdumpFiles compares files that KILN_FATBIN_FILES lists, separated as in PATH:
// large libraries from elsewhere.
func TestCuobjdumpFiles(t *testing.T) {
	files := filepath.SplitList(os.Getenv("KILN_FATBIN_FILES"))
	if len(files) == 0 {
		t.Skip("KILN_FATBIN_FILES is not set: it lists files to compare")
	}
	kits := toolkits(t)
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			got := scanFile(t, name)
			// cuobjdump 13.2 calls some libraries of 12.1 invalid that older ones read.
			var kit toolkit
			for _, kit = range slices.Backward(kits) {
				if exec.CommandContext(t.Context(), kit.cuobjdump(), name).Run() == nil {
					break
				}
			}
			if diff := cmp.Diff(dump(t, kit.cuobjdump(), name, true), listed(got.Entries)); diff != "" {
				t.Errorf("(-cuobjdump +fatbin):\n%s", diff)
			}
			t.Logf("%d entries", len(got.Entries))
		})
	}
}
