//go:build !linux

package serve

import (
	"context"
	"io"
	"net"
	"net/http"
)

const maxSendfiles = 0

// sendfile is there on Linux only.
type sendfile struct {
	size int64
}

func newSendfile([]byte) *sendfile { return nil }

// ReadAt is for the type only.
func (s *sendfile) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }

func descriptors() int { return 1 << 20 }

// Listener returns l with the limits of the server on connections. On Linux they send large pages
// without copying them.
func (s *Server) Listener(l net.Listener) net.Listener { return newGateListener(l, s.gate, true) }

func connContext(ctx context.Context, _ net.Conn) context.Context { return ctx }

func (s *sendfile) cork(*http.Request) bool { return false }
