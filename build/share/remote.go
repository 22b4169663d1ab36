package share

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/build/launcher"
	"github.com/kiln-build/kiln/matrix"
)

// RemoteCache is a compile cache that several machines share: ccache's remote storage. Compilers
// reach it through kiln, so they need no network and never see the credentials.
type RemoteCache struct {
	// URL is http://HOST/PATH, https://HOST/PATH or redis://HOST:PORT/DB, with ccache's attributes
	// behind bars: https://cache.example.org/kiln|layout=bazel|read-only=true.
	URL string
	// User and Password, or Token (HTTP only), are the credentials.
	User, Password, Token string
}

// parse splits the address into what kiln connects to and what ccache is told.
func (r RemoteCache) parse() (*url.URL, *launcher.Remote, error) {
	address, err := matrix.ParseCacheAddress(r.URL)
	if err != nil {
		return nil, nil, fmt.Errorf("remote cache: %w", err)
	}
	u, remote := address.URL, &launcher.Remote{Attributes: address.Attributes}
	if u.Scheme != "redis" {
		remote.Kind, remote.Path = "http", u.Path
		return u, remote, nil
	}
	remote.Kind = "redis"
	if r.Token != "" {
		return nil, nil, errors.New("remote cache: Redis takes a user and a password, not a token")
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "6379")
	}
	return u, remote, nil
}

// serve opens the socket that launchers use, until stop is called. A cache over HTTP is reached by
// transport.
func (r RemoteCache) serve(ctx context.Context, socket string, transport http.RoundTripper) (remote *launcher.Remote, stop func(), err error) {
	u, remote, err := r.parse()
	if err != nil {
		return nil, nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, nil, fmt.Errorf("remote cache: %w", err)
	}
	remote.Socket = socket
	if remote.Kind == "redis" {
		s := &redisRelay{cache: r, address: u}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.serve(ctx, listener)
		}()
		return remote, func() { _ = listener.Close(); <-done }, nil
	}
	server := &http.Server{
		Handler: r.proxy(u, transport), ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // ccache counts errors itself
	}
	go server.Serve(listener) //nolint:errcheck // It ends with Close.
	return remote, func() { _ = server.Close() }, nil
}

// proxy hands requests on, with credentials. Only the paths of the cache exist.
func (r RemoteCache) proxy(u *url.URL, transport http.RoundTripper) http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = u.Scheme, u.Host, u.Host
			p.Out.Header.Del("Authorization")
			switch {
			case r.Token != "":
				p.Out.Header.Set("Authorization", "Bearer "+r.Token)
			case r.User != "" || r.Password != "":
				p.Out.SetBasicAuth(r.User, r.Password)
			}
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	prefix := strings.TrimRight(u.Path, "/") + "/"
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasPrefix(req.URL.Path, prefix) {
			http.NotFound(w, req)
			return
		}
		proxy.ServeHTTP(w, req)
	})
}

// redisRelay connects launchers with a Redis server, after introducing itself to it.
type redisRelay struct {
	cache   RemoteCache
	address *url.URL
}

func (s *redisRelay) serve(ctx context.Context, listener net.Listener) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for {
		near, err := listener.Accept()
		if err != nil {
			break
		}
		all.Go(func() { s.relay(ctx, near) })
	}
	cancel()
	all.Wait()
}

func (s *redisRelay) relay(ctx context.Context, near net.Conn) {
	defer near.Close()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	far, err := dialer.DialContext(ctx, "tcp", s.address.Host)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { _ = near.Close(); _ = far.Close() })
	defer stop()
	reader := bufio.NewReader(far)
	for _, command := range s.introduction() {
		if _, err := far.Write(command); err != nil {
			return
		}
		if answer, err := reader.ReadString('\n'); err != nil || !strings.HasPrefix(answer, "+") {
			return
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(far, near)
		_ = far.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(near, reader)
	_ = near.Close()
	<-done
}

// introduction are the commands before ccache's own, in Redis' protocol.
func (s *redisRelay) introduction() [][]byte {
	var commands [][]byte
	switch {
	case s.cache.User != "":
		commands = append(commands, redisCommand("AUTH", s.cache.User, s.cache.Password))
	case s.cache.Password != "":
		commands = append(commands, redisCommand("AUTH", s.cache.Password))
	}
	if db, err := strconv.Atoi(strings.Trim(s.address.Path, "/")); err == nil && db > 0 {
		commands = append(commands, redisCommand("SELECT", strconv.Itoa(db)))
	}
	return commands
}

func redisCommand(words ...string) []byte {
	out := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(w), w)
	}
	return out
}
