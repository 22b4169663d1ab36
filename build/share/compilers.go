package share

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/internal/depfile"
	"github.com/kiln-build/kiln/internal/fsx"
)

// CompilerOptions says where [FindCompilers] looks and what it makes. Paths are as seen where the
// compilers run.
type CompilerOptions struct {
	// Program is what the links point to: kiln.
	Program string `json:"program"`
	// Path are the folders of programs, in order.
	Path []string `json:"path"`
	// Bin gets the links.
	Bin string `json:"bin"`
	// Work is the row's folder.
	Work string `json:"work"`
	// Passes gets links for passes that are called past the launcher; see launcher.PassVariable.
	Passes string `json:"passes,omitempty"`
	// CUDAHome is the toolkit, and CUDALinks a folder that becomes one with the launcher as nvcc:
	// packages call it by its path. Empty means that there is none.
	CUDAHome  string `json:"cuda_home,omitempty"`
	CUDALinks string `json:"cuda_links,omitempty"`
	// Map is that of the configuration: compilers too are called at canonical places.
	Map []launcher.Mapping `json:"map"`
	// HostCompiler is nvcc's, if it is not the default.
	HostCompiler string `json:"host_compiler,omitempty"`
	// Memo is a folder that remembers what was tried out about compilers; Temp is for files of the
	// moment.
	Memo string `json:"memo"`
	Temp string `json:"temp"`
}

// Compilers is what [FindCompilers] found.
type Compilers struct {
	CCache        string                   `json:"ccache,omitempty"`
	CCacheVersion string                   `json:"ccache_version,omitempty"`
	Place         string                   `json:"place,omitempty"` // see launcher.PlaceOf
	Tools         map[string]launcher.Tool `json:"tools"`
}

// LeastCCache has everything that is used of it; Debian 12 has 4.7.5, Ubuntu 24.04 4.9.
var LeastCCache = [2]int{4, 7}

// FindCompilers finds the compilers and ccache in an environment and puts links to this program
// before them.
func FindCompilers(ctx context.Context, o CompilerOptions) (*Compilers, error) {
	found := &Compilers{Tools: map[string]launcher.Tool{}}
	for _, dir := range []string{o.Bin, o.Memo, o.Temp} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
	}
	s := &compilerSearch{CompilerOptions: o, sums: map[string]string{}}
	why := s.ccache(ctx, found)
	ids := map[string]launcher.Tool{} // by real path: most names are links to a few programs
	for _, dir := range o.Path {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // PATH may name folders that are not there
		}
		for _, entry := range entries {
			name := entry.Name()
			kind := launcher.KindOf(name)
			path := filepath.Join(dir, name)
			if launcher.IsWrapper(name) {
				if err := relink(o.Program, filepath.Join(o.Bin, name)); err != nil {
					return nil, err
				}
			}
			if _, seen := found.Tools[name]; kind == "" || seen || launcher.LookPath(name, dir) == "" {
				continue
			}
			real, err := filepath.EvalSymlinks(path)
			if err != nil {
				continue
			}
			if launcher.KindOf(filepath.Base(real)) == launcher.Clang {
				kind = launcher.Clang // cc may be either
			}
			known, ok := ids[real]
			if !ok {
				known = s.identify(ctx, path, real, kind)
				ids[real] = known
			}
			tool := known
			tool.Path = s.mapped(path)
			if tool.Refused == "" {
				tool.Refused = why
			}
			found.Tools[name] = tool
			if err := relink(o.Program, filepath.Join(o.Bin, name)); err != nil {
				return nil, err
			}
		}
	}
	if o.Passes != "" {
		if err := os.MkdirAll(o.Passes, 0o777); err != nil {
			return nil, err
		}
		for _, name := range launcher.Passes {
			if err := relink(o.Program, filepath.Join(o.Passes, name)); err != nil {
				return nil, err
			}
		}
	}
	if o.Work != "" && o.Work != launcher.CanonicalWork {
		found.Place = launcher.PlaceOf(o.Program, o.Work)
	}
	return found, s.toolkit(found)
}

// relink makes a link, in place of one that is there.
func relink(to, link string) error {
	os.Remove(link)
	return os.Symlink(to, link)
}

// toolkit makes a folder that is the CUDA toolkit, but for its nvcc.
func (s *compilerSearch) toolkit(found *Compilers) error {
	if s.CUDALinks == "" || found.Tools["nvcc"].Path == "" {
		return nil
	}
	for _, dir := range []string{"", "bin"} {
		from, to := filepath.Join(s.CUDAHome, dir), filepath.Join(s.CUDALinks, dir)
		if err := os.MkdirAll(to, 0o777); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			target := filepath.Join(from, e.Name())
			switch {
			case dir == "" && e.Name() == "bin":
				continue
			case dir == "bin" && e.Name() == "nvcc":
				target = s.Program
			}
			if err := relink(target, filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

type compilerSearch struct {
	CompilerOptions
	sums map[string]string // of files, by path
}

func (s *compilerSearch) mapped(path string) string {
	for _, m := range s.Map {
		if rest, ok := strings.CutPrefix(path, m.From); ok && (rest == "" || rest[0] == '/') {
			return m.To + rest
		}
	}
	return path
}

func (s *compilerSearch) output(ctx context.Context, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = s.Temp
	cmd.Env = []string{"PATH=" + strings.Join(s.Path, ":"), "HOME=" + s.Temp, "TMPDIR=" + s.Temp, "LC_ALL=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var ccacheVersion = regexp.MustCompile(`ccache version (\d+)\.(\d+)(\S*)`)

// ccache looks for it and says why it cannot be used.
func (s *compilerSearch) ccache(ctx context.Context, found *Compilers) (why string) {
	path := ""
	for _, dir := range s.Path {
		if path = launcher.LookPath("ccache", dir); path != "" {
			break
		}
	}
	if path == "" {
		return "there is no ccache here"
	}
	text, err := s.output(ctx, path, "--version")
	m := ccacheVersion.FindStringSubmatch(text)
	if err != nil || m == nil {
		return "ccache does not say its version"
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	found.CCacheVersion = m[1] + "." + m[2] + m[3]
	if major < LeastCCache[0] || major == LeastCCache[0] && minor < LeastCCache[1] {
		return fmt.Sprintf("ccache %s is older than %d.%d", found.CCacheVersion, LeastCCache[0], LeastCCache[1])
	}
	found.CCache = path
	return ""
}

// identify makes the digest of a compiler.
func (s *compilerSearch) identify(ctx context.Context, path, real string, kind launcher.Kind) launcher.Tool {
	tool := launcher.Tool{Kind: kind}
	h := sha256.New()
	var err error
	switch kind {
	case launcher.NVCC:
		err = s.nvcc(ctx, h, path)
	case launcher.GCC:
		err = s.gcc(ctx, h, path, real)
	case launcher.Clang:
		err = s.clang(ctx, h, path, real)
	case launcher.HIPCC:
		err = s.hipcc(ctx, h, path, real)
	}
	if err != nil {
		tool.Refused = "its identity is not known: " + err.Error()
		return tool
	}
	tool.ID = hex.EncodeToString(h.Sum(nil)[:16])
	switch kind {
	case launcher.NVCC:
		tool.Refused = s.remembered("nvcc-"+tool.ID, func() (string, bool) { return s.probe(ctx, path) })
	case launcher.HIPCC:
		tool.Refused = s.remembered("hipcc-"+tool.ID, func() (string, bool) { return s.probeHIP(ctx, path) })
	}
	return tool
}

// add puts the name and bytes of a file into a digest.
func (s *compilerSearch) add(h io.Writer, path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	sum, ok := s.sums[real]
	if !ok {
		if sum, _, err = fsx.SHA256(real); err != nil {
			return err
		}
		s.sums[real] = sum
	}
	fmt.Fprintf(h, "%s %s\n", filepath.Base(path), sum)
	return nil
}

func (s *compilerSearch) gcc(ctx context.Context, h io.Writer, path, real string) error {
	if err := s.add(h, real); err != nil {
		return err
	}
	specs, err := s.output(ctx, path, "-dumpspecs")
	if err != nil {
		return fmt.Errorf("-dumpspecs: %w", err)
	}
	fmt.Fprintf(h, "specs %x\n", sha256.Sum256([]byte(specs)))
	for _, program := range []string{"cc1", "cc1plus", "as"} {
		name, err := s.output(ctx, path, "-print-prog-name="+program)
		if err != nil {
			return fmt.Errorf("-print-prog-name: %w", err)
		}
		name = strings.TrimSpace(name)
		if !filepath.IsAbs(name) {
			name = launcher.LookPath(name, strings.Join(s.Path, ":"))
		}
		if name == "" {
			continue // a C compiler alone has no cc1plus
		}
		if err := s.add(h, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *compilerSearch) clang(ctx context.Context, h io.Writer, path, real string) error {
	version, err := s.output(ctx, path, "--version")
	if err != nil {
		return fmt.Errorf("--version: %w", err)
	}
	_, _ = io.WriteString(h, version)
	if err := s.add(h, real); err != nil {
		return err
	}
	// Distributions have the compiler itself in libraries.
	f, err := elf.Open(real)
	if err != nil {
		return err
	}
	defer f.Close()
	needed, _ := f.ImportedLibraries()
	for _, name := range needed {
		if !strings.HasPrefix(name, "libLLVM") && !strings.HasPrefix(name, "libclang") {
			continue
		}
		places, _ := filepath.Glob("/usr/lib/*-linux-gnu/" + name)
		places = append(places, filepath.Join(filepath.Dir(real), "..", "lib", name), "/usr/lib/"+name, "/usr/lib64/"+name)
		i := slices.IndexFunc(places, func(p string) bool { _, err := os.Stat(p); return err == nil })
		if i < 0 {
			return fmt.Errorf("%s is not where libraries are", name)
		}
		if err := s.add(h, places[i]); err != nil {
			return err
		}
	}
	return nil
}

// nvcc asks it for the commands that it would run, and takes every program and every file that they
// name.
func (s *compilerSearch) nvcc(ctx context.Context, h io.Writer, path string) error {
	source := filepath.Join(s.Temp, "identity.cu")
	if err := os.WriteFile(source, []byte("__global__ void k() {}\n"), 0o666); err != nil {
		return err
	}
	text, err := s.output(ctx, slices.Concat([]string{s.mapped(path)}, s.ccbin(), []string{"--dryrun", "-c", source, "-o", source + ".o"})...)
	if err != nil {
		return fmt.Errorf("--dryrun: %w: %s", err, strings.TrimSpace(text))
	}
	search := s.Path
	var programs []string
	for line := range strings.Lines(text) {
		line, ok := strings.CutPrefix(line, "#$ ")
		if !ok {
			continue
		}
		if list, ok := strings.CutPrefix(line, "PATH="); ok {
			search = filepath.SplitList(strings.TrimSpace(list))
			continue
		}
		words := strings.Fields(strings.ReplaceAll(line, `"`, " "))
		for i, word := range words {
			switch {
			case i == 0 && !strings.Contains(word, "="):
				if filepath.IsAbs(word) {
					programs = append(programs, word)
				} else if found := launcher.LookPath(word, strings.Join(search, ":")); found != "" {
					programs = append(programs, found)
				}
			case strings.HasSuffix(word, ".bc") && filepath.IsAbs(word):
				programs = append(programs, word) // the device library
			}
		}
	}
	slices.Sort(programs)
	programs = slices.Compact(programs)
	if len(programs) < 3 {
		return errors.New("--dryrun names no programs")
	}
	for _, p := range programs {
		name := filepath.Base(p)
		if name == "rm" {
			continue
		}
		if launcher.KindOf(name) == launcher.GCC {
			real, err := filepath.EvalSymlinks(p)
			if err != nil {
				return err
			}
			if err := s.gcc(ctx, h, p, real); err != nil {
				return err
			}
			continue
		}
		if err := s.add(h, p); err != nil {
			return err
		}
	}
	return nil
}

func (s *compilerSearch) ccbin() []string {
	if s.HostCompiler == "" {
		return nil
	}
	return []string{"-ccbin", s.HostCompiler}
}

// hipTarget is a GPU that every clang with HIP knows.
const hipTarget = "gfx906"

var (
	quotedWord = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	// tempName is in the names of files between the passes.
	tempName = regexp.MustCompile(`-[0-9a-f]{6}\.`)
)

// hipcc asks it for the commands that it would run, and takes every program that they name, all
// device libraries, and what hipcc itself is made of.
func (s *compilerSearch) hipcc(ctx context.Context, h io.Writer, path, real string) error {
	if err := s.add(h, real); err != nil {
		return err
	}
	for _, name := range []string{"hipcc.pl", "hipcc.bin", "hipvars.pm", "hipconfig", "hipconfig.pl", "hipconfig.bin"} {
		part := filepath.Join(filepath.Dir(real), name)
		if _, err := os.Stat(part); err == nil {
			if err := s.add(h, part); err != nil {
				return err
			}
		}
	}
	source := filepath.Join(s.Temp, "identity.hip")
	if err := os.WriteFile(source, []byte("__attribute__((global)) void k() {}\n"), 0o666); err != nil {
		return err
	}
	text, err := s.output(ctx, s.mapped(path), "-###", "--offload-arch="+hipTarget, "-c", source, "-o", source+".o")
	if err != nil {
		return fmt.Errorf("-###: %w: %s", err, strings.TrimSpace(text))
	}
	fmt.Fprintf(h, "commands %x\n", sha256.Sum256([]byte(tempName.ReplaceAllString(strings.ReplaceAll(text, s.Temp, "/tmp"), "-X."))))
	programs, libraries := hipCommands(text)
	if len(programs) < 2 || len(libraries) == 0 {
		return errors.New("-### names no programs or no device libraries")
	}
	for _, p := range programs {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return err
		}
		if launcher.KindOf(filepath.Base(real)) == launcher.Clang {
			err = s.clang(ctx, h, p, real)
		} else {
			err = s.add(h, p)
		}
		if err != nil {
			return err
		}
	}
	for _, dir := range libraries {
		// Each GPU has its own among them.
		files, err := filepath.Glob(filepath.Join(dir, "*.bc"))
		if err != nil {
			return err
		}
		for _, file := range files {
			if err := s.add(h, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// hipCommands reads the output of -###: the programs, and the folders of device libraries.
func hipCommands(text string) (programs, libraries []string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), `"`) {
			continue
		}
		for i, m := range quotedWord.FindAllStringSubmatch(line, -1) {
			switch word := m[1]; {
			case !filepath.IsAbs(word):
			case i == 0:
				programs = append(programs, word)
			case strings.HasSuffix(word, ".bc"):
				libraries = append(libraries, filepath.Dir(word))
			}
		}
	}
	slices.Sort(programs)
	slices.Sort(libraries)
	return slices.Compact(programs), slices.Compact(libraries)
}

// probeHIP does for hipcc what probe does for nvcc: its list has to name what the pass for the host
// reads, and the lists of the passes for GPUs, which a launcher asks for, what each of them reads.
func (s *compilerSearch) probeHIP(ctx context.Context, path string) (refused string, final bool) {
	const high = "gfx90a"
	dir, err := os.MkdirTemp(s.Temp, "probe")
	if err != nil {
		return err.Error(), false
	}
	defer os.RemoveAll(dir)
	source := "#if !defined(__HIP_DEVICE_COMPILE__)\n#include \"host.h\"\n#elif defined(__" + high + "__)\n#include \"high.h\"\n#else\n#include \"low.h\"\n#endif\n" +
		"__attribute__((device)) void k() {}\n" // no kernel: it would need the runtime's headers
	for name, text := range map[string]string{"probe.hip": source, "host.h": "\n", "low.h": "\n", "high.h": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			return err.Error(), false
		}
	}
	list := filepath.Join(dir, "probe.d")
	args := []string{s.mapped(path), "--offload-arch=" + hipTarget, "--offload-arch=" + high, "-c", filepath.Join(dir, "probe.hip")}
	if out, err := s.output(ctx, append(slices.Clone(args), "-MD", "-MF", list, "-MT", launcher.DepTarget, "-o", filepath.Join(dir, "probe.o"))...); err != nil {
		return "its dependency list could not be tried: " + lastLine(out), false
	}
	host, err := os.ReadFile(list)
	if err != nil {
		return err.Error(), false
	}
	devices, err := s.output(ctx, append(slices.Clone(args), "--cuda-device-only", "-M")...)
	if err != nil {
		return "the dependency lists of its passes for GPUs could not be tried: " + lastLine(devices), false
	}
	switch {
	case !bytes.HasPrefix(host, []byte(launcher.DepTarget)):
		return "its dependency list has another target than it was told", true
	case !lists(host, "host.h") || !lists([]byte(devices), "low.h") || !lists([]byte(devices), "high.h"):
		return "its dependency lists do not cover all its passes", true
	}
	return "", true
}

// lists reports whether a dependency list names a file.
func lists(text []byte, name string) bool {
	return slices.ContainsFunc(depfile.Parse(text), func(f string) bool { return filepath.Base(f) == name })
}

func lastLine(out string) string {
	out = strings.TrimSpace(out)
	return strings.TrimSpace(out[strings.LastIndexByte(out, '\n')+1:])
}

// remembered tries a compiler out once: what is known of it is in a file. What is not final is
// tried again by the next row.
func (s *compilerSearch) remembered(name string, try func() (refused string, final bool)) string {
	memo := filepath.Join(s.Memo, name)
	if text, err := os.ReadFile(memo); err == nil {
		return string(text)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "what is known of it cannot be read: " + err.Error()
	}
	refused, final := try()
	if final {
		_ = os.WriteFile(memo, []byte(refused), 0o666) // without it the next row tries again
	}
	return refused
}

// probe compiles a file that reads one header in the pass for the host and one in each pass for a
// GPU, and looks whether the dependency list has them all. A toolkit with another habit is not
// shared: changes of a header would go unseen.
func (s *compilerSearch) probe(ctx context.Context, path string) (refused string, final bool) {
	dir, err := os.MkdirTemp(s.Temp, "probe")
	if err != nil {
		return err.Error(), false
	}
	defer os.RemoveAll(dir)
	list, err := s.output(ctx, s.mapped(path), "--list-gpu-arch")
	archs := strings.Fields(list)
	if err != nil || len(archs) < 2 {
		return "it does not list its architectures", false
	}
	low, high := strings.TrimPrefix(archs[0], "compute_"), strings.TrimPrefix(archs[len(archs)-1], "compute_")
	limit, err := strconv.Atoi(strings.TrimRight(high, "af"))
	if err != nil {
		return "it does not list its architectures", false
	}
	source := fmt.Sprintf("#ifndef __CUDA_ARCH__\n#include \"host.h\"\n#elif __CUDA_ARCH__ >= %d0\n#include \"high.h\"\n#else\n#include \"low.h\"\n#endif\n__global__ void k() {}\n", limit)
	for name, text := range map[string]string{"probe.cu": source, "host.h": "\n", "low.h": "\n", "high.h": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			return err.Error(), false
		}
	}
	argv := slices.Concat([]string{s.mapped(path)}, s.ccbin(), []string{
		"-gencode=arch=compute_" + low + ",code=compute_" + low, "-gencode=arch=compute_" + high + ",code=compute_" + high,
		"-MD", "-MF", filepath.Join(dir, "probe.d"), "-MT", launcher.DepTarget, "-c", filepath.Join(dir, "probe.cu"), "-o", filepath.Join(dir, "probe.o"),
	})
	if out, err := s.output(ctx, argv...); err != nil {
		return "its dependency list could not be tried: " + lastLine(out), false
	}
	deps, err := os.ReadFile(filepath.Join(dir, "probe.d"))
	if err != nil {
		return err.Error(), false
	}
	for _, name := range []string{"host.h", "low.h", "high.h"} {
		if !lists(deps, name) {
			refused = "its dependency list does not cover all its passes"
		}
	}
	if !bytes.HasPrefix(deps, []byte(launcher.DepTarget)) {
		refused = "its dependency list has another target than it was told"
	}
	return refused, true
}
