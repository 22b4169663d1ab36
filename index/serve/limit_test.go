package serve

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestAddressOf(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::", "::1": "::",
	} {
		if got := addressOf(netip.MustParseAddr(in)).String(); got != want {
			t.Errorf("%s counts as %s, want %s", in, got, want)
		}
	}
}

// TestForwarded: only what trusted proxies append is believed.
func TestForwarded(t *testing.T) {
	g := newGate(&Options{MaxConnections: 10, MaxPerAddress: 10, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}})
	for _, test := range []struct{ remote, forwarded, want string }{
		{"192.0.2.1:5", "", "192.0.2.1"},
		{"192.0.2.1:5", "198.51.100.9", "192.0.2.1"},
		{"10.1.1.1:5", "", "10.1.1.1"},
		{"10.1.1.1:5", "198.51.100.9", "198.51.100.9"},
		{"10.1.1.1:5", "1.2.3.4, 198.51.100.9", "198.51.100.9"},
		{"10.1.1.1:5", "1.2.3.4, 198.51.100.9, 10.2.2.2", "198.51.100.9"},
		{"10.1.1.1:5", "198.51.100.9:4711", "198.51.100.9"},
		{"[fd00::1]:5", "[2001:db8::1]", "2001:db8::1"},
		{"[fd00::1]:5", "[2001:db8::1]:80", "2001:db8::1"},
		{"10.1.1.1:5", "198.51.100.9, unknown", "10.1.1.1"},
		{"10.1.1.1:5", "10.3.3.3", "10.3.3.3"},
	} {
		r := &http.Request{RemoteAddr: test.remote, Header: http.Header{}}
		if test.forwarded != "" {
			r.Header.Set("X-Forwarded-For", test.forwarded)
		}
		if got := g.client(r).String(); got != test.want {
			t.Errorf("%s for %q: %s, want %s", test.remote, test.forwarded, got, test.want)
		}
	}
}

// brokenListener fails where errs is not nil.
type brokenListener struct {
	net.Listener

	errs []error
}

func (l *brokenListener) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		if err == nil {
			return l.Listener.Accept()
		}
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
	}
	return l.Listener.Accept()
}

// TestAcceptErrors: what passes is logged and survived, what stays is not.
func TestAcceptErrors(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var log bytes.Buffer
	l := LimitListener(&brokenListener{listener, []error{syscall.ECONNABORTED, syscall.EMFILE, nil, syscall.ENFILE, nil}}, 10, slog.New(slog.NewTextHandler(&log, nil)))
	// Of three clients two are told that there are no descriptors, without HTTP as this may be TLS.
	var refused atomic.Int32
	for range 3 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		go func() {
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				refused.Add(1)
			}
		}()
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(60 * time.Second); refused.Load() < 2 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if refused.Load() != 2 {
		t.Errorf("%d clients were told, want 2", refused.Load())
	}
	_ = c.Close()
	if n := strings.Count(log.String(), "connection not accepted"); n != 1 {
		t.Errorf("%d lines in the log, want one in ten seconds:\n%s", n, log.String())
	}
	_ = l.Close()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := LimitListener(&brokenListener{listener, []error{syscall.EBADF}}, 10, slog.New(slog.DiscardHandler)).Accept(); !errors.Is(err, syscall.EBADF) {
		t.Errorf("an error that stays: %v", err)
	}
}

// TestCheckSlots: one token has one file looked into at a time, and leaves room for another.
func TestCheckSlots(t *testing.T) {
	u := &uploader{server: &Server{opts: Options{MaxUploads: 8}}, running: map[string]int{}, checking: map[string]chan struct{}{}, checks: make(chan struct{}, maxChecks)}
	for _, token := range []string{"a", "a", "b"} {
		if !u.enter(token) {
			t.Fatal("no place")
		}
	}
	end, err := u.check(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := u.check(short, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second file of the token: %v", err)
	}
	other, err := u.check(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	end()
	if end, err = u.check(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	end()
	if len(u.checks) != 0 {
		t.Error("slots are lost")
	}
}
