//go:build !linux

package serve

import (
	"context"
	"net"
	"net/http"
)

// sendfile is there on Linux only.
type sendfile struct{}

func newSendfile([]byte) *sendfile { return nil }

// Listener returns l. On Linux its connections send large pages without copying them.
func (s *Server) Listener(l net.Listener) net.Listener { return l }

func connContext(ctx context.Context, _ net.Conn) context.Context { return ctx }

func (p *page) cork(*http.Request) bool { return false }
