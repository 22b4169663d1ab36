//go:build !linux

package launcher

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// Builds run on Linux; elsewhere a launcher only has to compile.
type state struct {
	code      int
	cpu       time.Duration
	peakBytes int64
}

func (s state) exitCode() int { return s.code }

func (s state) killed() bool { return false }

func (l *launcher) replace(args []string) int {
	s, err := run(append([]string{l.tool.Path}, args...), l.env)
	if err != nil {
		return 126
	}
	return s.code
}

func run(argv, env []string) (state, error) {
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // A compiler ends by itself.
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	return wait(cmd)
}

func capture(argv, env []string, output string) (state, error) {
	file, err := os.Create(output)
	if err != nil {
		return state{}, err
	}
	defer file.Close()
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // A compiler ends by itself.
	cmd.Env, cmd.Stdout = env, file
	return wait(cmd)
}

func wait(cmd *exec.Cmd) (state, error) {
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil
	}
	if err != nil {
		return state{}, err
	}
	return state{code: cmd.ProcessState.ExitCode(), cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

func dial(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func forward(string) (int, func(), error) { return 0, func() {}, errors.ErrUnsupported }
