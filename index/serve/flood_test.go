package serve_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index/serve"
)

// dialFrom opens a connection from an address of this machine.
func (f *fixture) dialFrom(addr string) net.Conn {
	f.t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}).DialContext(f.t.Context(), "tcp", f.http.Listener.Addr().String())
	if err != nil && runtime.GOOS != "linux" {
		f.t.Skipf("this system has the loopback address 127.0.0.1 alone: %v", err)
	} else if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a request on a connection and returns the status, 0 if there is none.
func ask(conn net.Conn, path, headers string) int {
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n"+headers+"\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// hold begins a request that stays under way until the test ends, and waits until the server has
// begun with it.
func (f *fixture) hold(addr, headers string) net.Conn {
	f.t.Helper()
	conn := f.dialFrom(addr)
	if _, err := fmt.Fprintf(conn, "POST /legacy/ HTTP/1.1\r\nHost: x\r\n%sAuthorization: Bearer %s\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n", headers, f.secret); err != nil {
		f.t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		f.t.Logf("held from %s: %v", addr, err)
	}
	return conn
}

// until waits until a request from an address gets a status.
func (f *fixture) until(want int, addr, path, headers string) {
	f.t.Helper()
	got := 0
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		conn := f.dialFrom(addr)
		got = ask(conn, path, headers)
		_ = conn.Close()
		if got == want {
			return
		}
	}
	f.t.Errorf("%s from %s: %d, want %d", path, addr, got, want)
}

// TestConnectionLimits: an address that has too many requests under way is told to wait, others and
// the health check are not; connections without a request make room.
func TestConnectionLimits(t *testing.T) {
	f := newFixture(t, serve.Options{MaxPerAddress: 4, MaxConnections: 16, MaxUploads: 100, Stall: time.Minute})
	f.publish(wheel128)
	var silent []net.Conn
	for range 20 {
		silent = append(silent, f.dialFrom("127.0.0.2"))
	}
	f.until(200, "127.0.0.2", "/all/simple/flash-attn/", "")
	open := 0
	for _, conn := range silent {
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); err != nil && !strings.Contains(err.Error(), "reset") && err != io.EOF { //nolint:errorlint // a connection's own
			open++
		}
	}
	if open > 8 { // those of the reserve would be told to come back
		t.Errorf("%d silent connections are open, want at most 8", open)
	}
	for range 4 {
		f.hold("127.0.0.3", "")
	}
	f.until(503, "127.0.0.3", "/all/simple/flash-attn/", "")
	f.until(200, "127.0.0.3", "/healthz", "")
	f.until(200, "127.0.0.4", "/all/simple/flash-attn/", "")
	// All places are taken by requests.
	for i := range 16 {
		f.hold(fmt.Sprintf("127.0.0.%d", 10+i/3), "")
	}
	f.until(503, "127.0.0.99", "/all/simple/flash-attn/", "")
	f.until(200, "127.0.0.99", "/healthz", "")
}

// TestProxyLimits: behind a trusted proxy its clients are counted, not its connections.
func TestProxyLimits(t *testing.T) {
	f := newFixture(t, serve.Options{
		MaxPerAddress: 2, MaxUploads: 100, Stall: time.Minute,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")},
	})
	f.publish(wheel128)
	for range 4 {
		f.hold("127.0.0.9", "X-Forwarded-For: 192.0.2.1\r\n")
	}
	f.until(503, "127.0.0.9", "/all/simple/flash-attn/", "X-Forwarded-For: 192.0.2.1\r\n")
	f.until(503, "127.0.0.9", "/all/simple/flash-attn/", "X-Forwarded-For: 10.0.0.1, 192.0.2.1\r\n")
	f.until(200, "127.0.0.9", "/all/simple/flash-attn/", "X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\n")
	// Others are not believed.
	f.until(200, "127.0.0.5", "/all/simple/flash-attn/", "X-Forwarded-For: 192.0.2.1\r\n")
}

// TestUnwantedBody: a body that trickles in where none is wanted does not hold a connection.
func TestUnwantedBody(t *testing.T) {
	if testing.Short() {
		t.Skip("waits ten seconds")
	}
	f := newFixture(t, serve.Options{})
	conn := f.dial()
	if _, err := io.WriteString(conn, "POST /simple/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 40*time.Second)
	defer stop()
	go func() {
		for ctx.Err() == nil {
			_, _ = conn.Write([]byte{'x'})
			time.Sleep(20 * time.Millisecond)
		}
	}()
	begin := time.Now()
	_ = conn.SetReadDeadline(begin.Add(30 * time.Second))
	_, _ = io.Copy(io.Discard, conn)
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("the connection was held for %v", took)
	}
}

// TestPlainPages: a page without compression is the same, small or large, and again from memory.
func TestPlainPages(t *testing.T) {
	f := newFixture(t, serve.Options{})
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprintf("large-1.%d+cu128.torch2.9-py3-none-any.whl", i))
	}
	f.publish(append(names, wheel128)...)
	for _, path := range []string{"/all/simple/large/", "/all/simple/flash-attn/", "/catalog.json"} {
		packed := f.do(http.MethodGet, path, "Accept-Encoding", "gzip")
		want := gunzip(t, packed.body)
		for range 3 {
			got := f.do(http.MethodGet, path, "Accept-Encoding", "identity")
			if got.body != want || got.Header.Get("Content-Length") != fmt.Sprint(len(want)) {
				t.Errorf("%s: %d bytes, %s announced, want %d", path, len(got.body), got.Header.Get("Content-Length"), len(want))
			}
		}
	}
	if len(f.do(http.MethodGet, "/all/simple/large/").body) < 64<<10 {
		t.Error("the page is too small for this test")
	}
}

func gunzip(t *testing.T, packed string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}
