package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// A Host is the one door through which probes see a machine. [Local] opens it to this
// one; tests give one that is made up, of any system.
type Host struct {
	OS, Arch string // as Go names them
	// Dir is the working folder, where relative paths begin.
	Dir string
	// Env is the environment, as NAME=value. Names are compared without case on Windows.
	Env []string
	// ReadFile reads a whole file.
	ReadFile func(path string) ([]byte, error)
	// Stat describes a file, following links.
	Stat func(path string) (fs.FileInfo, error)
	// ReadDir lists the names in a folder, sorted.
	ReadDir func(path string) ([]string, error)
	// Run runs a program to its end, with Env and LC_ALL=C, and returns what it wrote
	// to standard output and error together.
	Run func(ctx context.Context, argv []string, stdin string) ([]byte, error)
	// FreeSpace is how much may be written to the file system of a path.
	FreeSpace func(path string) (int64, error)
	// Root says that programs run as the administrator, who needs no sudo.
	Root bool
	// Registry reads a value of HKEY_LOCAL_MACHINE in its 32-bit view; nil off Windows.
	Registry func(key, value string) (string, bool)
}

// maxProbeFile is how much of a file a probe reads; version.py and os-release are small,
// libc10.so has a few megabytes.
const maxProbeFile = 64 << 20

// Local is the machine that this program runs on, with the given environment.
func Local(env []string) *Host {
	dir, _ := os.Getwd() // without one, relative paths stay as they are
	return &Host{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Dir: dir, Env: env,
		ReadFile: func(path string) ([]byte, error) {
			info, err := os.Stat(path)
			if err != nil {
				return nil, err
			}
			if info.Size() > maxProbeFile {
				return nil, fmt.Errorf("%s is too large", path)
			}
			return os.ReadFile(path)
		},
		Stat: os.Stat,
		ReadDir: func(path string) ([]string, error) {
			entries, err := os.ReadDir(path)
			names := make([]string, len(entries))
			for i, e := range entries {
				names[i] = e.Name()
			}
			return names, err
		},
		Run: func(ctx context.Context, argv []string, stdin string) ([]byte, error) {
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Env = append(slices.Clone(env), "LC_ALL=C")
			cmd.Stdin = strings.NewReader(stdin)
			rawShell(cmd)
			// Do not wait for a program that hangs in the kernel, which cannot be killed. Not less
			// than this: on a busy machine, reading the output of one that has ended takes time
			// too.
			cmd.WaitDelay = 5 * time.Second
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return out.Bytes(), err
		},
		FreeSpace: fsx.FreeSpace,
		Root:      os.Geteuid() == 0,
		Registry:  localRegistry,
	}
}

// Getenv returns the value of a variable, "" if it is not set.
func (h *Host) Getenv(name string) string {
	v, _ := h.LookupEnv(name)
	return v
}

// LookupEnv returns the value of a variable and whether it is set. The last entry of
// Env holds.
func (h *Host) LookupEnv(name string) (string, bool) {
	for _, e := range slices.Backward(h.Env) {
		n, v, ok := strings.Cut(e, "=")
		if ok && (n == name || h.OS == "windows" && strings.EqualFold(n, name)) {
			return v, true
		}
	}
	return "", false
}

// NoExec reports whether a path, which need not exist, is on a file system that forbids executing.
// It is false where the system does not tell.
func (h *Host) NoExec(name string) bool {
	if h.OS != "linux" {
		return false
	}
	data, err := h.ReadFile("/proc/mounts")
	if err != nil {
		return false
	}
	_, options := mountOf(parseMounts(string(data)), name)
	return hasOption(options, "noexec")
}

// path joins elements in the way of the system.
func (h *Host) path(elem ...string) string {
	if h.OS == "windows" {
		out := ""
		for _, e := range elem {
			if e == "" {
				continue
			}
			if out != "" && !strings.HasSuffix(out, `\`) {
				out += `\`
			}
			out += strings.ReplaceAll(e, "/", `\`)
		}
		return out
	}
	return filepath.ToSlash(filepath.Join(elem...))
}

// Abs makes a path independent of the working folder, which the programs that get it may not share.
func (h *Host) Abs(path string) string {
	absolute := strings.HasPrefix(path, "/")
	if h.OS == "windows" {
		absolute = strings.HasPrefix(path, `\`) || len(path) > 2 && path[1] == ':' && strings.ContainsAny(path[2:3], `/\`)
	}
	if path == "" || absolute || h.Dir == "" {
		return path
	}
	return h.path(h.Dir, path)
}

// exe is the file name of a program.
func (h *Host) exe(name string) string {
	if h.OS == "windows" && !strings.HasSuffix(strings.ToLower(name), ".exe") {
		return name + ".exe"
	}
	return name
}

func (h *Host) isFile(path string) bool {
	info, err := h.Stat(path)
	return err == nil && !info.IsDir()
}

func (h *Host) isDir(path string) bool {
	info, err := h.Stat(path)
	return err == nil && info.IsDir()
}

// searchPath are the folders of PATH.
func (h *Host) searchPath() []string {
	sep := ":"
	if h.OS == "windows" {
		sep = ";"
	}
	return slices.DeleteFunc(strings.Split(h.Getenv("PATH"), sep), func(d string) bool { return d == "" })
}

// LookPath finds a program on the PATH of the host's environment, or where its path says. What it
// returns is absolute.
func (h *Host) LookPath(name string) (string, bool) {
	if strings.ContainsAny(name, `/\`) {
		name = h.Abs(name)
		return name, h.isFile(name)
	}
	for _, dir := range h.searchPath() {
		p := h.path(h.Abs(dir), h.exe(name))
		info, err := h.Stat(p)
		if err != nil || info.IsDir() {
			continue
		}
		if h.OS == "windows" || info.Mode()&0o111 != 0 {
			return p, true
		}
	}
	return "", false
}

// run is Run with a limit of its own.
func (h *Host) run(ctx context.Context, limit time.Duration, argv ...string) ([]byte, error) {
	return h.runInput(ctx, limit, "", argv...)
}

var errTooSlow = errors.New("no answer in time")

func (h *Host) runInput(ctx context.Context, limit time.Duration, stdin string, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTooSlow)
	defer cancel()
	return h.Run(ctx, argv, stdin)
}
