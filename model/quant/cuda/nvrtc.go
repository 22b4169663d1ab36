package cuda

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unsafe"
)

// JIT says how kernels are compiled on the machine where they run.
type JIT struct {
	// Library is the path of NVRTC. Empty means the one that the loader finds.
	Library string
	// Cache is a folder for what was compiled, which takes a minute. Empty means that nothing is
	// kept. Several processes may use one folder at once.
	Cache string
}

// Compiler is NVRTC, which compiles CUDA C++ and needs neither a GPU nor a driver for that.
type Compiler struct {
	path         string
	major, minor int32

	getErrorString, getVersion                 uintptr
	createProgram, compileProgram, destroy     uintptr
	getLogSize, getLog, getCUBINSize, getCUBIN uintptr
	getPTXSize, getPTX                         uintptr
	getNumSupportedArchs, getSupportedArchs    uintptr
}

// NewCompiler loads NVRTC: the library at the path, or the one that the loader finds. Without one
// the error is ErrNotSupported.
func NewCompiler(path string) (*Compiler, error) {
	names := compilerLibraries()
	if path != "" {
		names = []string{path}
		// NVRTC looks for its second library where the loader does, which is not where packages of
		// Python have it. One that is loaded already is found by its name.
		parts, err := filepath.Glob(filepath.Join(filepath.Dir(path), compilerParts))
		if err != nil {
			return nil, fmt.Errorf("NVRTC %s: %w", path, err)
		}
		for _, part := range parts {
			if _, err := openLibrary(part); err != nil {
				return nil, fmt.Errorf("NVRTC: %w: %w", ErrNotSupported, err)
			}
		}
	}
	lib, found, err := openFirst(names, openLibrary)
	if err != nil {
		return nil, fmt.Errorf("NVRTC: %w: %w", ErrNotSupported, err)
	}
	c := &Compiler{path: found}
	err = symbols(lib, map[string]*uintptr{
		"nvrtcGetErrorString":       &c.getErrorString,
		"nvrtcVersion":              &c.getVersion,
		"nvrtcCreateProgram":        &c.createProgram,
		"nvrtcCompileProgram":       &c.compileProgram,
		"nvrtcDestroyProgram":       &c.destroy,
		"nvrtcGetProgramLogSize":    &c.getLogSize,
		"nvrtcGetProgramLog":        &c.getLog,
		"nvrtcGetCUBINSize":         &c.getCUBINSize,
		"nvrtcGetCUBIN":             &c.getCUBIN,
		"nvrtcGetPTXSize":           &c.getPTXSize,
		"nvrtcGetPTX":               &c.getPTX,
		"nvrtcGetNumSupportedArchs": &c.getNumSupportedArchs,
		"nvrtcGetSupportedArchs":    &c.getSupportedArchs,
	})
	if err != nil {
		return nil, fmt.Errorf("NVRTC %s is too old: %w: %w", found, ErrNotSupported, err)
	}
	// nvrtcResult nvrtcVersion(int *major, int *minor)
	r := call(c.getVersion, uintptr(unsafe.Pointer(&c.major)), uintptr(unsafe.Pointer(&c.minor)))
	return c, c.check("nvrtcVersion", r)
}

// Version returns the version of NVRTC, "13.0" for instance.
func (c *Compiler) Version() string { return fmt.Sprintf("%d.%d", c.major, c.minor) }

// Architectures returns the compute capabilities that NVRTC compiles for, 90 for 9.0.
func (c *Compiler) Architectures() ([]int, error) {
	// nvrtcResult nvrtcGetNumSupportedArchs(int *count)
	var n int32
	r := call(c.getNumSupportedArchs, uintptr(unsafe.Pointer(&n)))
	if err := c.check("nvrtcGetNumSupportedArchs", r); err != nil || n == 0 {
		return nil, err
	}
	// nvrtcResult nvrtcGetSupportedArchs(int *archs)
	list := make([]int32, n)
	r = call(c.getSupportedArchs, uintptr(unsafe.Pointer(&list[0])))
	out := make([]int, n)
	for i, v := range list {
		out[i] = int(v)
	}
	return out, c.check("nvrtcGetSupportedArchs", r)
}

func (c *Compiler) check(name string, result uintptr) error {
	code := int(int32(result))
	if code == 0 {
		return nil
	}
	// const char *nvrtcGetErrorString(nvrtcResult result)
	text := call(c.getErrorString, uintptr(code))
	e := &Error{Func: name, Code: code}
	if text != 0 {
		e.Name = goString(*(**byte)(unsafe.Pointer(&text)))
	}
	return e
}

// Compile compiles one of the modules that EmbeddedImages names, from the embedded source. The
// target is a real architecture, "sm_90a" for instance, for machine code, or a virtual one,
// "compute_80", for PTX.
func (c *Compiler) Compile(module, target string) ([]byte, error) {
	out, err := c.compile(module, target)
	if err != nil {
		return nil, fmt.Errorf("compile %s for %s with NVRTC %s: %w", module, target, c.Version(), err)
	}
	return out, nil
}

func (c *Compiler) compile(module, target string) ([]byte, error) {
	from := embedded()
	source, err := fs.ReadFile(from, module+".cu")
	if err != nil {
		return nil, err
	}
	headers, err := fs.Glob(from, "*.cuh")
	if err != nil {
		return nil, err
	}
	var texts, names cStrings
	defer texts.release()
	defer names.release()
	for _, name := range headers {
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, err
		}
		texts.add(string(text))
		names.add(name)
	}
	var options, own cStrings
	defer options.release()
	defer own.release()
	for _, o := range compilerOptions(target) {
		options.add(o)
	}
	own.add(string(source))
	own.add(module + ".cu")

	// nvrtcResult nvrtcCreateProgram(nvrtcProgram *prog, const char *src, const char *name, int
	// numHeaders, const char *const *headers, const char *const *includeNames)
	var program uintptr
	r := call(c.createProgram, uintptr(unsafe.Pointer(&program)), own.at(0), own.at(1), uintptr(len(headers)), texts.list(), names.list())
	if err := c.check("nvrtcCreateProgram", r); err != nil {
		return nil, err
	}
	// nvrtcResult nvrtcDestroyProgram(nvrtcProgram *prog)
	defer func() { call(c.destroy, uintptr(unsafe.Pointer(&program))) }()
	// nvrtcResult nvrtcCompileProgram(nvrtcProgram prog, int numOptions, const char *const
	// *options)
	r = call(c.compileProgram, program, uintptr(options.len()), options.list())
	if err := c.check("nvrtcCompileProgram", r); err != nil {
		text, logErr := c.result("nvrtcGetProgramLog", c.getLogSize, c.getLog, program)
		return nil, errors.Join(fmt.Errorf("%w: %s", err, bytes.TrimRight(text, "\x00\n")), logErr)
	}
	if strings.HasPrefix(target, "compute_") {
		text, err := c.result("nvrtcGetPTX", c.getPTXSize, c.getPTX, program)
		return bytes.TrimRight(text, "\x00"), err
	}
	return c.result("nvrtcGetCUBIN", c.getCUBINSize, c.getCUBIN, program)
}

// compilerOptions are those of the embedded images; see kernels/generate.go. NVRTC optimizes
// without being asked.
func compilerOptions(target string) []string {
	// Lambdas have no annotation of their own.
	return []string{"--std=c++17", "--device-as-default-execution-space", "--gpu-architecture=" + target}
}

// result calls a pair of functions of which the first gives the size of what the second gives.
//
// nvrtcResult nvrtcGetCUBINSize(nvrtcProgram prog, size_t *size)
// nvrtcResult nvrtcGetCUBIN(nvrtcProgram prog, char *cubin)
func (c *Compiler) result(name string, size, get, program uintptr) ([]byte, error) {
	var n uint64
	r := call(size, program, uintptr(unsafe.Pointer(&n)))
	if err := c.check(name+"Size", r); err != nil || n == 0 {
		return nil, err
	}
	out := make([]byte, n)
	r = call(get, program, uintptr(unsafe.Pointer(&out[0])))
	return out, c.check(name, r)
}

// cStrings are texts with NUL that stay where they are until release.
type cStrings struct {
	pinner runtime.Pinner
	texts  []*byte
}

func (s *cStrings) add(text string) {
	b := append([]byte(text), 0)
	s.pinner.Pin(&b[0])
	s.texts = append(s.texts, &b[0])
}

func (s *cStrings) len() int { return len(s.texts) }

func (s *cStrings) at(i int) uintptr { return uintptr(unsafe.Pointer(s.texts[i])) }

func (s *cStrings) list() uintptr {
	if len(s.texts) == 0 {
		return 0
	}
	s.pinner.Pin(&s.texts[0])
	return uintptr(unsafe.Pointer(&s.texts[0]))
}

func (s *cStrings) release() { s.pinner.Unpin() }

// targets returns for each module that a device can run the architecture to compile for.
func targets(major, minor int) (modules, architectures []string) {
	arch := fmt.Sprintf("sm_%d%d", major, minor)
	modules = required(major, minor)
	architectures = slices.Repeat([]string{arch}, len(modules))
	if major == 9 && minor == 0 {
		modules, architectures = append(modules, "wgmma", "tall"), append(architectures, arch+"a", arch+"a")
	}
	return modules, architectures
}

// jitted is a module that was compiled, or found in the cache.
type jitted struct {
	module string
	image  []byte
}

// compileFor returns the modules for a device. NVRTC is loaded in any case: its version is part of
// the cache's keys.
func (j *JIT) compileFor(major, minor int) ([]jitted, error) {
	c, err := NewCompiler(j.Library)
	if err != nil {
		return nil, err
	}
	source, err := SourceHash()
	if err != nil {
		return nil, err
	}
	var out []jitted
	modules, architectures := targets(major, minor)
	for i, module := range modules {
		target := architectures[i]
		key := sha256.Sum256([]byte(strings.Join(slices.Concat([]string{source, c.Version(), module}, compilerOptions(target)), "\n")))
		name := filepath.Join(j.Cache, module+"_"+target+"_"+hex.EncodeToString(key[:8])+".cubin")
		image := j.load(name)
		if image == nil {
			if image, err = c.Compile(module, target); err != nil {
				return nil, err
			}
			if err := j.store(name, image); err != nil {
				return nil, fmt.Errorf("keep compiled kernels: %w", err)
			}
		}
		out = append(out, jitted{module, image})
	}
	return out, nil
}

// load returns a file of the cache, nil if there is none or if it is damaged: it begins with the
// hash of the rest.
func (j *JIT) load(name string) []byte {
	if j.Cache == "" {
		return nil
	}
	data, err := os.ReadFile(name)
	if err != nil || len(data) <= sha256.Size {
		return nil
	}
	if sum := sha256.Sum256(data[sha256.Size:]); !bytes.Equal(sum[:], data[:sha256.Size]) {
		return nil
	}
	return data[sha256.Size:]
}

// store writes a file of the cache. It need not survive a crash whole, since load checks it.
func (j *JIT) store(name string, image []byte) error {
	if j.Cache == "" {
		return nil
	}
	if err := os.MkdirAll(j.Cache, 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(j.Cache, ".new-*")
	if err != nil {
		return err
	}
	sum := sha256.Sum256(image)
	_, err = f.Write(append(sum[:], image...))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
