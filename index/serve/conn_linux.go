package serve

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sendfileBytes = 32 << 10 // pages from this size on are worth it
	maxSendfiles  = 256      // open files for all pages of this process
)

// descriptors is how many files and connections this process may have open.
var descriptors = sync.OnceValue(func() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > 1<<20 {
		return 1 << 20
	}
	return int(limit.Cur)
})

// sendfiles counts the open files of all pages.
var sendfiles atomic.Int64

// sendfile is a page outside the memory of Go, from where the kernel sends it without copying it.
type sendfile struct {
	fd   int
	size int64
}

// ReadAt reads a piece of the page.
func (s *sendfile) ReadAt(p []byte, off int64) (int, error) {
	if off >= s.size {
		return 0, io.EOF
	}
	n, err := unix.Pread(s.fd, p[:min(int64(len(p)), s.size-off)], off)
	runtime.KeepAlive(s)
	return max(n, 0), err
}

// newSendfile returns nil where there is no such thing, or too many are open.
func newSendfile(data []byte) *sendfile {
	if len(data) < sendfileBytes {
		return nil
	}
	if sendfiles.Add(1) > int64(min(maxSendfiles, descriptors()/8)) {
		sendfiles.Add(-1)
		return nil
	}
	fd, err := unix.MemfdCreate("kiln-page", unix.MFD_CLOEXEC)
	if err != nil {
		sendfiles.Add(-1)
		return nil
	}
	file := os.NewFile(uintptr(fd), "page")
	if _, err := file.Write(data); err != nil {
		_ = file.Close()
		sendfiles.Add(-1)
		return nil
	}
	s := &sendfile{fd: fd, size: int64(len(data))}
	// A page is dropped when no request has it any more.
	runtime.AddCleanup(s, func(file *os.File) {
		_ = file.Close()
		sendfiles.Add(-1)
	}, file)
	return s
}

// Listener returns l with the limits of the server on connections, on which a large page leaves as a whole, head and body in
// the same packets, and without being copied. Connections that are not plain TCP are left as
// they are.
//
// It is for servers that many jobs of a cluster ask for the same page, directly or through a proxy
// that does TLS: a page of 125 kB costs 58 µs of processor time instead of 72 (medians of nine
// alternating runs on two cores of an AMD EPYC).
func (s *Server) Listener(l net.Listener) net.Listener {
	return &pageListener{Listener: newGateListener(l, s.gate, true), stall: s.opts.Stall}
}

type pageListener struct {
	net.Listener

	stall time.Duration
}

func (l *pageListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	limited, ok := c.(*gateConn)
	if !ok {
		return c, nil
	}
	tcp, ok := limited.Conn.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c, nil //nolint:nilerr // it is slower, not broken
	}
	pc := &pageConn{TCPConn: tcp, limited: limited, raw: raw, stall: l.stall}
	pc.sendHead, pc.sendBody = pc.tryHead, pc.tryBody // once, as each costs an allocation
	return pc, nil
}

// pageConn is a connection that can send a page. Writes and write deadlines come from one
// goroutine, as net/http has it.
type pageConn struct {
	*net.TCPConn

	limited *gateConn
	raw     syscall.RawConn
	stall   time.Duration

	more bool // what is written next is the head of a page
	late bool // there is a write deadline

	// What is being sent.
	sendHead, sendBody func(fd uintptr) bool
	head               []byte
	source             int   // file of the page
	off, end           int64 // of what is left of it
	renew              int64 // where the client gets more time
	err                error
}

func (c *pageConn) place() *place { return c.limited.at }

// Close closes the connection and gives its place back.
func (c *pageConn) Close() error { return c.limited.Close() }

// Write leaves the packet open if a page follows.
func (c *pageConn) Write(p []byte) (int, error) {
	if !c.more {
		return c.TCPConn.Write(p)
	}
	c.more, c.head, c.err, c.renew = false, p, nil, 0
	err := c.raw.Write(c.sendHead)
	n := len(p) - len(c.head)
	c.head = nil
	if err == nil {
		err = c.err
	}
	return n, err
}

// ReadFrom has the kernel send a page.
func (c *pageConn) ReadFrom(r io.Reader) (int64, error) {
	page, ok := r.(*pageReader)
	if !ok {
		return c.TCPConn.ReadFrom(r)
	}
	begin := page.off
	c.source, c.off, c.end, c.err, c.renew = page.file.fd, begin, page.file.size, nil, begin
	err := c.raw.Write(c.sendBody)
	runtime.KeepAlive(page.file)
	page.off = c.off
	if err == nil {
		err = c.err
	}
	return c.off - begin, err
}

// tryHead sends of the head what the system takes and reports whether it is done with it.
func (c *pageConn) tryHead(fd uintptr) bool {
	for len(c.head) > 0 {
		n, err := unix.SendmsgN(int(fd), c.head, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
		if err == nil {
			c.head = c.head[n:]
		} else if done, wait := c.failed("sendmsg", err, 0); done || wait {
			return done
		}
	}
	return true
}

// tryBody does the same with the page.
func (c *pageConn) tryBody(fd uintptr) bool {
	for c.off < c.end {
		n, err := unix.Sendfile(int(fd), c.source, &c.off, int(c.end-c.off))
		if err == nil && n == 0 {
			c.err = io.ErrUnexpectedEOF
			return true
		}
		if err != nil {
			if done, wait := c.failed("sendfile", err, c.off); done || wait {
				return done
			}
		}
	}
	return true
}

// failed says what becomes of a call that sent nothing at an offset: it is given up, it is to be
// made again when the client has taken something, or at once.
func (c *pageConn) failed(call string, err error, off int64) (done, wait bool) {
	switch {
	case errors.Is(err, unix.EINTR):
		return false, false
	case errors.Is(err, unix.EAGAIN):
		if off >= c.renew {
			c.renew = off + pieceBytes
			_ = c.SetWriteDeadline(time.Now().Add(c.stall)) // fails if the connection is closed, which ends the wait
		}
		return false, true
	}
	c.err = &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(call, err)}
	return true, false
}

// SetWriteDeadline spares the system the end of a deadline that never was: there is one after each
// response.
func (c *pageConn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() && !c.late {
		return nil
	}
	c.late = !t.IsZero()
	return c.TCPConn.SetWriteDeadline(t)
}

// SetDeadline sets that of reads as well.
func (c *pageConn) SetDeadline(t time.Time) error {
	c.late = !t.IsZero()
	return c.TCPConn.SetDeadline(t)
}

type pageConnKey struct{}

// connContext lets requests find their connection.
func connContext(ctx context.Context, c net.Conn) context.Context {
	if pc, ok := c.(*pageConn); ok {
		return context.WithValue(ctx, pageConnKey{}, pc)
	}
	return ctx
}

// cork joins the head of the response to the page that follows it. It reports whether the
// connection of a request can.
func (s *sendfile) cork(r *http.Request) bool {
	if s == nil || r.ProtoMajor != 1 {
		return false
	}
	c, ok := r.Context().Value(pageConnKey{}).(*pageConn)
	if ok {
		c.more = true
	}
	return ok
}
