package launcher

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// dial connects to a socket in the file system.
func dial(path string) (*os.File, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	for {
		if err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = syscall.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// forward listens on a port of the loopback interface and hands everything on to a socket in the file system.
func forward(path string) (port int, stop func(), err error) {
	stop = func() {}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, stop, os.NewSyscallError("socket", err)
	}
	stop = func() { _ = syscall.Close(fd) }
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, stop, os.NewSyscallError("bind", err)
	}
	if err := syscall.Listen(fd, 8); err != nil {
		return 0, stop, os.NewSyscallError("listen", err)
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, stop, os.NewSyscallError("getsockname", err)
	}
	go func() {
		for {
			near, _, err := syscall.Accept4(fd, syscall.SOCK_CLOEXEC)
			if errors.Is(err, syscall.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			go relay(near, path)
		}
	}()
	return address.(*syscall.SockaddrInet4).Port, stop, nil
}

func relay(fd int, path string) {
	near := os.NewFile(uintptr(fd), "loopback")
	defer near.Close()
	far, err := dial(path)
	if err != nil {
		return
	}
	defer far.Close()
	go func() {
		_, _ = io.Copy(far, near)
		_ = syscall.Shutdown(int(far.Fd()), syscall.SHUT_WR)
	}()
	_, _ = io.Copy(near, far)
}
