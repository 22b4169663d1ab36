package launcher

import (
	"errors"
	"os"
	"os/exec"
	"time"
)

// run runs a program to its end. If it is killed, what it has started is killed too, so that no
// process is left that writes into the object. It stays in the process group of its caller.
func run(argv, env []string) (*os.ProcessState, error) {
	cmd := command(argv, env)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return wait(cmd)
}

// capture is run with the program's output in a file; its messages are dropped.
func capture(argv, env []string, output string) (*os.ProcessState, error) {
	file, err := os.Create(output)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := command(argv, env)
	cmd.Stdout = file
	return wait(cmd)
}

func command(argv, env []string) *exec.Cmd {
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // A compiler ends by itself.
	cmd.Env = env
	return cmd
}

func wait(cmd *exec.Cmd) (*os.ProcessState, error) {
	dieTogether(cmd)
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return nil, err
	}
	if _, signaled := ended(cmd.ProcessState); signaled {
		killOrphans()
	}
	return cmd.ProcessState, nil
}

// exitCode is what a shell would say.
func exitCode(s *os.ProcessState) int {
	code, _ := ended(s)
	return code
}

func cpuTime(s *os.ProcessState) time.Duration { return s.UserTime() + s.SystemTime() }
