//go:build unix

package secret

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

// replaceProcess starts this program again in the same process, with a pipe that has the text. It
// returns only with an error.
func replaceProcess(text []byte, args, env []string) error {
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil { // stays open over exec, but for the end that is written
		return os.NewSyscallError("pipe", err)
	}
	defer syscall.Close(fds[0]) //nolint:errcheck // it was only read
	n, err := syscall.Write(fds[1], text)
	_ = syscall.Close(fds[1])
	if err != nil || n < len(text) {
		return fmt.Errorf("write %d bytes to a pipe: %d were: %w", len(text), n, err)
	}
	// Not by name: the file may have been replaced by an update since.
	program := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		if program, err = os.Executable(); err != nil {
			return err
		}
	}
	return os.NewSyscallError("exec", syscall.Exec(program, args, append(env, fdEnv+"="+strconv.Itoa(fds[0]))))
}

// receive reads what replaceProcess wrote. The descriptor is closed before any child is started.
func receive(text string) (*Store, error) {
	if err := os.Unsetenv(fdEnv); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%s is no descriptor", fdEnv, text)
	}
	f := os.NewFile(uintptr(fd), "credentials")
	if f == nil {
		return nil, fmt.Errorf("%s=%s is no descriptor", fdEnv, text)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPassed+1))
	if err != nil {
		return nil, err
	}
	var p passed
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, err
	}
	return p.restore(), nil
}
