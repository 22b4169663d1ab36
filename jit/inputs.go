package jit

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/machine"
)

// Input is one thing that decides what a module becomes.
type Input struct {
	Name  string `json:"name"` // "source a.cpp", "c++ flags", "torch", …
	Value string `json:"value"`
}

// Inputs are all of them, in a fixed order. They have no absolute paths of the project, no times
// and no user.
type Inputs []Input

// Digest is the SHA-256 of the inputs, each part with its length before it, in hexadecimal.
func (in Inputs) Digest() string {
	h := sha256.New()
	for _, i := range in {
		writePart(h, i.Name)
		writePart(h, i.Value)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func writePart(h hash.Hash, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	_, _ = io.WriteString(h, s)
}

// Change is one difference between two lists of inputs.
type Change struct {
	Name string `json:"name"`
	// Old and New are the values, empty where there is none.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
}

// Compare lists what differs, in the order of now, then what is gone.
func (in Inputs) Compare(now Inputs) []Change {
	old := map[string]string{}
	for _, i := range in {
		old[i.Name] = i.Value
	}
	var out []Change
	seen := map[string]bool{}
	for _, i := range now {
		seen[i.Name] = true
		if v, ok := old[i.Name]; !ok || v != i.Value {
			out = append(out, Change{i.Name, v, i.Value})
		}
	}
	for _, i := range in {
		if !seen[i.Name] {
			out = append(out, Change{i.Name, i.Value, ""})
		}
	}
	return out
}

// maxHashed is the largest program or library that is read whole to know it.
const maxHashed = 64 << 20

// identify tells a program or library from another of the same name and version. A large library is
// known by the id that its linker gave it.
func identify(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "missing"
	}
	info, err := os.Stat(real)
	if err != nil {
		return "missing"
	}
	if info.Size() <= maxHashed {
		if sum, _, err := fsx.SHA256(real); err == nil {
			return "sha256:" + sum
		}
	}
	if id := buildID(real); id != "" {
		return fmt.Sprintf("build-id:%s size:%d", id, info.Size())
	}
	return fmt.Sprintf("size:%d mtime:%d", info.Size(), info.ModTime().UnixNano())
}

// buildID reads the id of an ELF file, "" if it has none.
func buildID(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	section := f.Section(".note.gnu.build-id")
	if section == nil || section.Size > 1<<10 {
		return ""
	}
	data, err := section.Data()
	// name size, description size, type, "GNU\0", description
	if err != nil || len(data) < 17 {
		return ""
	}
	return hex.EncodeToString(data[16:])
}

// torchIdentity tells an installed torch from another, also from one of the same version: what it
// says of itself, the list of its files with their digests, and its libraries. files are what must
// be looked at to see a change.
func torchIdentity(m *machine.Machine) (inputs Inputs, files []string) {
	t := m.Torch
	inputs = append(inputs, Input{"torch", fmt.Sprintf("%s git %s cuda %s hip %s abi %s", t.Version, t.Git, t.CUDA, t.HIP, t.CXX11ABI)})
	files = append(files, filepath.Join(t.Dir, "version.py"))
	site := filepath.Dir(t.Dir)
	records, _ := filepath.Glob(filepath.Join(escapeGlob(site), "torch-*.dist-info", "RECORD")) // the pattern is ours
	slices.Sort(records)
	for _, r := range records {
		files = append(files, r)
		if sum, _, err := fsx.SHA256(r); err == nil {
			inputs = append(inputs, Input{"torch files " + filepath.Base(filepath.Dir(r)), sum})
		}
	}
	for _, name := range torchLibraries(m.OS, t) {
		path := filepath.Join(t.Dir, "lib", name)
		if _, err := os.Stat(path); err != nil {
			continue // some are elsewhere in a distribution's torch, and are of the same package
		}
		files = append(files, path)
		inputs = append(inputs, Input{"torch library " + name, identify(path)})
	}
	return inputs, files
}

func torchLibraries(goos string, t machine.Torch) []string {
	names := []string{"c10", "torch", "torch_cpu", "torch_python"}
	if t.CUDA != "" {
		names = append(names, "c10_cuda", "torch_cuda")
	}
	if t.HIP != "" {
		names = append(names, "c10_hip", "torch_hip")
	}
	for i, n := range names {
		names[i] = machine.LibraryName(goos, n)
	}
	return names
}

// pybindTags finds in torch's Python library what other modules must be compiled with to share
// objects with it: compiler, C++ library and C++ ABI, as pybind11 named them up to its version 2.
func pybindTags(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	m := findPybind(f)
	if m == nil {
		return nil
	}
	return []string{`-DPYBIND11_COMPILER_TYPE="` + m[0] + `"`, `-DPYBIND11_STDLIB="` + m[1] + `"`, `-DPYBIND11_BUILD_ABI="` + m[2] + `"`}
}

var pybindInternals = regexp.MustCompile(`__pybind11_internals_v\d+(_(?:gcc|clang|icc|msvc))(_lib(?:stdcpp|cpp))?(_cxxabi\d+)?__`)

// findPybind looks for the name of pybind11's shared state.
func findPybind(r io.Reader) []string {
	const window, overlap = 1 << 20, 256
	buf := make([]byte, 0, window+overlap)
	for {
		n, err := io.ReadFull(r, buf[len(buf):len(buf)+window])
		buf = buf[:len(buf)+n]
		if bytes.Contains(buf, []byte("__pybind11_internals_v")) {
			if m := pybindInternals.FindSubmatch(buf); m != nil {
				return []string{string(m[1]), string(m[2]), string(m[3])}
			}
		}
		if err != nil {
			return nil
		}
		buf = append(buf[:0], buf[max(0, len(buf)-overlap):]...)
	}
}
