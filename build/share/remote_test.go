package share

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build/launcher"
)

func TestRemoteCacheParse(t *testing.T) {
	for address, want := range map[string]any{
		"http://cache.example/kiln|layout=bazel":   &launcher.Remote{Kind: "http", Path: "/kiln", Attributes: []string{"layout=bazel"}},
		"https://cache.example":                    &launcher.Remote{Kind: "http"},
		"redis://cache.example/3|read-only=true":   &launcher.Remote{Kind: "redis", Attributes: []string{"read-only=true"}},
		"ftp://cache.example":                      "ftp:// is not known",
		"cache.example":                            "has no scheme",
		"http://user:secret@cache.example":         "belong into the environment",
		"http://user:sec ret%zz@cache.example|a=b": "belong into the environment",
	} {
		_, got, err := RemoteCache{URL: address}.parse()
		if text, bad := want.(string); bad {
			if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: error %v, want %q in it and no secret", address, err, text)
			}
			continue
		}
		if diff := cmp.Diff(want, any(got)); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", address, err, diff)
		}
	}
}

// unixClient sends every request to a socket.
func unixClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
}

// The proxy adds the credentials, and is of no use for anything but the cache.
func TestRemoteHTTP(t *testing.T) {
	t.Run("http", func(t *testing.T) { testRemoteHTTP(t, false) })
	t.Run("https", func(t *testing.T) { testRemoteHTTP(t, true) })
}

func testRemoteHTTP(t *testing.T, secure bool) {
	t.Helper()
	stored := map[string]string{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "kiln" || password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.Method {
		case http.MethodPut:
			text, _ := io.ReadAll(r.Body)
			stored[r.URL.Path] = string(text)
		default:
			text, ok := stored[r.URL.Path]
			if !ok {
				w.WriteHeader(http.StatusNotFound)
			}
			fmt.Fprint(w, text)
		}
	}))
	defer server.Close()
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	socket := filepath.Join(t.TempDir(), "remote")
	cache := RemoteCache{URL: server.URL + "/cache|layout=bazel", User: "kiln", Password: "secret"}
	remote, stop, err := cache.serve(t.Context(), socket, server.Client().Transport)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if diff := cmp.Diff(&launcher.Remote{Socket: socket, Kind: "http", Path: "/cache", Attributes: []string{"layout=bazel"}}, remote); diff != "" {
		t.Error(diff)
	}
	client := unixClient(socket)
	do := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://launcher"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	if code, _ := do(http.MethodPut, "/cache/ac/1", "object"); code != http.StatusOK {
		t.Errorf("put: %d", code)
	}
	if code, text := do(http.MethodGet, "/cache/ac/1", ""); code != http.StatusOK || text != "object" {
		t.Errorf("get: %d %q", code, text)
	}
	if code, _ := do(http.MethodGet, "/admin", ""); code != http.StatusNotFound {
		t.Errorf("something else: %d", code)
	}
}

// The relay introduces itself before ccache does, and closes what it could not.
func TestRemoteRedis(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				var words []string
				for range 3 + 2 {
					var n int
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					if _, err := fmt.Sscanf(line, "*%d", &n); err != nil {
						return
					}
					for range n {
						_, _ = r.ReadString('\n')
						word, _ := r.ReadString('\n')
						words = append(words, strings.TrimSpace(word))
					}
					switch text := strings.Join(words, " "); text {
					case "AUTH kiln secret", "AUTH kiln secret SELECT 2":
						fmt.Fprint(conn, "+OK\r\n")
					case "AUTH kiln secret SELECT 2 PING":
						fmt.Fprint(conn, "+PONG\r\n")
					default:
						fmt.Fprint(conn, "-ERR "+text+"\r\n")
					}
				}
			}()
		}
	}()
	for password, want := range map[string]string{"secret": "+PONG\r\n", "wrong": ""} {
		socket := filepath.Join(t.TempDir(), "remote")
		cache := RemoteCache{URL: "redis://" + listener.Addr().String() + "/2", User: "kiln", Password: password}
		_, stop, err := cache.serve(t.Context(), socket, nil)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(redisCommand("PING")); err != nil && want != "" {
			t.Fatal(err)
		}
		got, _ := bufio.NewReader(conn).ReadString('\n')
		if got != want {
			t.Errorf("password %s: %q, want %q", password, got, want)
		}
		conn.Close()
		stop()
	}
}
