package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// PassVariable names the folder in which GCC looks for its passes first. The launcher takes it out
// of the environment of the compilers that it calls, so that a pass which is called through the
// folder belongs to a compiler that was called by its path.
const PassVariable = "COMPILER_PATH"

// Passes are the programs that stand in that folder.
var Passes = [...]string{"cc1", "cc1plus"}

func isPass(name string) bool { return slices.Contains(Passes[:], name) }

// IsWrapper reports whether a program is one that build systems put before compilers where they find
// it: Meson, CMake and torch do. The launcher takes its place, and calls ccache as rows need it.
func IsWrapper(name string) bool { return name == "ccache" || name == "sccache" }

// unwrap makes the call of a wrapper one of the compiler behind it, and returns the compiler's name.
// What is no such call goes to the program that was meant.
func unwrap(name, config string) string {
	c, err := ReadConfig(config)
	if err != nil {
		say(err)
		os.Exit(1) //nolint:forbidigo // A launcher is a program of its own.
	}
	env, args := c.environ(), os.Args[1:]
	meant := append([]string{LookPath(name, getenv(env, "PATH"))}, args...)
	if len(args) > 0 && KindOf(path.Base(args[0])) != "" {
		compiler := path.Base(args[0])
		behind := LookPath(compiler, getenv(env, "PATH"))
		if args[0] == compiler || args[0] == behind || args[0] == path.Join(c.Bin, compiler) || args[0] == c.Tools[compiler].Path {
			os.Args = args
			return compiler
		}
		meant, env = args, os.Environ() //nolint:forbidigo // A launcher is a program of its own.
	}
	err = syscall.Exec(meant[0], meant, env)
	say(fmt.Errorf("run %s: %w", meant[0], err))
	os.Exit(126) //nolint:forbidigo // A launcher is a program of its own.
	return ""
}

// past writes down a compile that went past the launcher, and becomes the pass.
func past(name, config string) int {
	c, err := ReadConfig(config)
	if err != nil {
		say(err)
		return 1
	}
	env := c.environ()
	parent := "/proc/" + fmt.Sprint(os.Getppid())
	driver, err := os.Readlink(parent + "/exe")
	if err != nil {
		say(fmt.Errorf("%s: find its compiler: %w", name, err))
		return 127
	}
	ask := exec.Command(driver, "-print-prog-name="+name) //nolint:noctx // It ends by itself.
	ask.Env = env
	out, err := ask.Output()
	pass := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(pass) {
		say(fmt.Errorf("%s of %s: not found", name, driver))
		return 127
	}
	args := os.Args[1:]
	if source := passSource(args); source != "" {
		cwd, _ := os.Getwd()
		called, _ := os.ReadFile(parent + "/cmdline")
		first, _, _ := strings.Cut(string(called), "\x00")
		entry := Entry{
			Time: time.Now().UTC(), Row: c.Row, Tool: path.Base(first), Source: c.Canonical(absolute(cwd, source)), Result: Bypass,
			Why: "it was called by its path, " + c.Canonical(first) + caller(os.Getppid()), Args: []string{}, Dir: cwd,
		}
		if err := entry.Append(c.Calls); err != nil {
			say(fmt.Errorf("record: %w", err))
		}
	}
	err = syscall.Exec(pass, append([]string{pass}, args...), env)
	say(fmt.Errorf("run %s: %w", pass, err))
	return 126
}

// passSource is what a pass compiles; "" if it only preprocesses, or tries something out.
func passSource(args []string) string {
	source := ""
	for i, arg := range args {
		switch {
		case arg == "-E" || arg == "-fsyntax-only":
			return ""
		case !strings.HasPrefix(arg, "-") && isSource(arg) && (i == 0 || !strings.HasPrefix(args[i-1], "-dumpbase") && args[i-1] != "-o"):
			source = arg
		}
	}
	return source
}

// caller says which program called a process.
func caller(pid int) string {
	stat, err := os.ReadFile("/proc/" + fmt.Sprint(pid) + "/stat")
	if err != nil {
		return ""
	}
	parts := strings.Split(string(stat), ") ")
	words := strings.Fields(parts[len(parts)-1])
	if len(words) < 2 {
		return ""
	}
	name, err := os.ReadFile("/proc/" + words[1] + "/comm")
	if err != nil {
		return ""
	}
	return ", by " + strings.TrimSpace(string(name))
}
