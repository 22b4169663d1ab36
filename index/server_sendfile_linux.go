package index

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	sendfileBytes = 32 << 10 // pages from this size on are worth it
	maxSendfiles  = 256      // open files for all pages of this process
	maxIdle       = 32       // of them, for one page
)

// sendfiles counts the open files of all pages.
var sendfiles atomic.Int64

// sendfile is a page outside the memory of Go, from where the kernel sends it without copying it. Every
// reader has an open file of its own, as it has a position.
type sendfile struct {
	path string // of the page, as long as the files are open

	*idleFiles
}

type idleFiles struct {
	source *os.File

	mu   sync.Mutex
	idle []*os.File
}

// newSendfile returns nil where there is no such thing, or too many are open.
func newSendfile(data []byte) *sendfile {
	if len(data) < sendfileBytes || sendfiles.Add(1) > maxSendfiles {
		if len(data) >= sendfileBytes {
			sendfiles.Add(-1)
		}
		return nil
	}
	fd, err := unix.MemfdCreate("kiln-page", unix.MFD_CLOEXEC)
	if err != nil {
		sendfiles.Add(-1)
		return nil
	}
	source := os.NewFile(uintptr(fd), "page")
	if _, err := source.Write(data); err != nil {
		_ = source.Close()
		sendfiles.Add(-1)
		return nil
	}
	s := &sendfile{path: fmt.Sprintf("/proc/self/fd/%d", fd), idleFiles: &idleFiles{source: source}}
	// A page is dropped when no request has it any more.
	runtime.AddCleanup(s, (*idleFiles).close, s.idleFiles)
	return s
}

func (s *idleFiles) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range append(s.idle, s.source) {
		_ = f.Close()
		sendfiles.Add(-1)
	}
	s.idle = nil
}

// take returns a file at its beginning, or nil.
func (s *sendfile) take() *os.File {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		f := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		if _, err := f.Seek(0, 0); err == nil {
			return f
		}
		_ = f.Close()
		sendfiles.Add(-1)
		return nil
	}
	s.mu.Unlock()
	if sendfiles.Add(1) > maxSendfiles {
		sendfiles.Add(-1)
		return nil
	}
	f, err := os.Open(s.path)
	if err != nil {
		sendfiles.Add(-1)
		return nil
	}
	return f
}

// put gives a file back.
func (s *sendfile) put(f *os.File) {
	s.mu.Lock()
	if len(s.idle) < maxIdle {
		s.idle = append(s.idle, f)
		f = nil
	}
	s.mu.Unlock()
	if f != nil {
		_ = f.Close()
		sendfiles.Add(-1)
	}
}
