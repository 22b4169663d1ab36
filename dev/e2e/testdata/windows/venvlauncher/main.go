// Command venvlauncher stands for the program of that name in Windows' CPython, which becomes
// Scripts\python.exe of virtual environments: it starts the interpreter that pyvenv.cfg names, and
// tells it which environment it is in.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "venvlauncher:", err)
		code = 106
	}
	os.Exit(code)
}

func run() (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	f, err := os.Open(filepath.Join(filepath.Dir(filepath.Dir(self)), "pyvenv.cfg"))
	if err != nil {
		return 0, err
	}
	home := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), "="); ok && strings.TrimSpace(key) == "home" {
			home = strings.TrimSpace(value)
		}
	}
	cmd := exec.Command(filepath.Join(home, "python.exe"), os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "__PYVENV_LAUNCHER__="+self)
	err = cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return failed.ExitCode(), nil
	}
	return 0, err
}
