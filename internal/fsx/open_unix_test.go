//go:build unix

package fsx_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// TestOpenNothingThatWaits: pipes, sockets and devices are refused at once, through links too.
func TestOpenNothingThatWaits(t *testing.T) {
	dir := t.TempDir()
	pipe, socket, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "s"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(pipe, 0o666), os.Symlink(pipe, link)); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, name := range []string{pipe, link, socket, "/dev/zero"} {
		done := make(chan error, 1)
		go func() {
			_, _, err := fsx.SHA256(name)
			done <- err
		}()
		select {
		case err := <-done:
			if !errors.Is(err, fsx.ErrNotRegular) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(60 * time.Second):
			t.Errorf("%s: still waiting", name)
		}
	}
}
