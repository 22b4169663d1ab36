package serve_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/serve"
	"github.com/kiln-build/kiln/index/web"
)

// privateFixture is a private index with two projects, and tokens for all of it and for one.
func privateFixture(t *testing.T) (f *fixture, all, one string) {
	t.Helper()
	builds := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "flash-attn failed "+r.URL.Path)
	})
	pages, err := web.Maker(web.Options{Private: true, Builds: builds})
	if err != nil {
		t.Fatal(err)
	}
	f = newFixture(t, serve.Options{Private: true, Pages: pages})
	f.publish(wheel128, "tiny-1.0-py3-none-any.whl")
	tokens, err := serve.OpenTokens(filepath.Join(f.dir, ".kiln", "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	create := func(n serve.NewToken) string {
		secret, _, err := tokens.Create(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	return f, create(serve.NewToken{Projects: []string{"*"}, ReadOnly: true}), create(serve.NewToken{Projects: []string{"tiny*"}, ReadOnly: true})
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// privatePaths are all kinds of pages, by whether they are about the project tiny alone.
func privatePaths(f *fixture) map[string]bool {
	tiny, other := f.server.Catalog().Project("tiny").Files[0], f.server.Catalog().Project("flash-attn").Files[0]
	return map[string]bool{
		"/": false, "/simple/": false, "/all/simple/": false, "/cu128/torch2.9/simple/": false, "/catalog.json": false, "/pick/": false,
		"/simple/flash-attn/": false, "/all/simple/flash-attn/": false, "/cu128/torch2.9/simple/flash-attn/": false,
		"/project/flash-attn/": false, "/" + other.HostedPath(): false, "/" + other.HostedPath() + ".metadata": false,
		"/cu128/torch2.9/requirements/flash-attn.txt": false, "/cu128/torch2.9/pylock.flash-attn.toml": false,
		"/pick/?package=flash-attn": false, "/simple/missing/": false, "/project/missing/": false, "/missing": false,
		"/builds": false, "/builds/": false, "/builds/state.json": false,
		"/simple/tiny/": true, "/all/simple/tiny/": true, "/project/tiny/": true, "/" + tiny.HostedPath(): true, "/" + tiny.HostedPath() + ".metadata": true,
		"/all/requirements/tiny.txt": true, "/all/pylock.tiny.toml": true, "/simple/Tiny/": true, "/simple/tiny": true,
	}
}

// TestPrivate: without a token nothing is answered, whatever is sent; with one, what it is for.
func TestPrivate(t *testing.T) {
	f, all, one := privateFixture(t)
	refused := 0
	for path := range privatePaths(f) {
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "POST"} {
			if method == "POST" && path == "/" {
				continue // an upload, which asks for a token by itself
			}
			got := f.do(method, path)
			if got.StatusCode != http.StatusUnauthorized || got.Header.Get("WWW-Authenticate") != `Basic realm="kiln"` || got.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s %s without a token: %d %v", method, path, got.StatusCode, got.Header)
			}
			if strings.Contains(got.body, "tiny") || got.Header.Get("Access-Control-Allow-Origin") != "" || got.Header.Get("Location") != "" || got.Header.Get("Etag") != "" {
				t.Errorf("%s %s without a token says %q, %v", method, path, got.body, got.Header)
			}
			refused++
		}
	}
	// Answers are for one client: no shared cache, no other origin.
	for path, own := range privatePaths(f) {
		whole := f.do("GET", path, "Authorization", basic("__token__", all))
		missing := strings.Contains(path, "missing")
		if missing != (whole.StatusCode == http.StatusNotFound) || whole.StatusCode >= 400 && !missing {
			t.Errorf("%s with a token for all: %d %s", path, whole.StatusCode, whole.body)
		}
		if cc := whole.Header.Get("Cache-Control"); strings.Contains(cc, "public") || !strings.Contains(strings.Join(whole.Header.Values("Vary"), ","), "Authorization") || whole.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v", path, whole.Header)
		}
		part := f.do("GET", path, "Authorization", "Bearer "+one)
		switch {
		case own && (part.StatusCode != whole.StatusCode || part.body != whole.body):
			t.Errorf("%s with a token for it: %d, %d bytes", path, part.StatusCode, len(part.body))
		case strings.HasSuffix(path, "/simple/") || path == "/catalog.json": // the same with less in it
			if part.StatusCode != http.StatusOK && part.StatusCode != http.StatusNotFound || strings.Contains(part.body, "flash") || strings.Contains(part.body, "cu128") ||
				part.StatusCode == http.StatusOK && !strings.Contains(part.body, "tiny") && path != "/catalog.json" {
				t.Errorf("%s with a token for another project: %d %s", path, part.StatusCode, part.body)
			}
		case !own && part.StatusCode != http.StatusNotFound && part.StatusCode != http.StatusForbidden:
			t.Errorf("%s with a token for another project: %d", path, part.StatusCode)
		case !own && strings.Contains(part.body, "flash"):
			t.Errorf("%s with a token for another project: %s", path, part.body)
		}
	}
	// A project that the token is not for looks as one that does not exist.
	other, none := f.do("GET", "/simple/flash-attn/", "Authorization", basic("x", one)), f.do("GET", "/simple/nothing/", "Authorization", basic("x", one))
	if other.StatusCode != none.StatusCode || other.body != none.body {
		t.Errorf("%d %q, %d %q", other.StatusCode, other.body, none.StatusCode, none.body)
	}
	if got := f.do("GET", "/healthz"); got.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %d", got.StatusCode)
	}
	// A read token uploads nothing; an upload token reads its projects.
	if got := f.do("POST", "/legacy/", "Authorization", basic("__token__", all)); got.StatusCode == http.StatusOK {
		t.Errorf("upload with a read token: %d", got.StatusCode)
	}
	if got := f.do("GET", "/simple/", "Authorization", basic("__token__", f.secret)); got.StatusCode != http.StatusOK {
		t.Errorf("reading with an upload token: %d", got.StatusCode)
	}
	if page := f.do("GET", "/project/tiny/", "Authorization", basic("__token__", all)).body; !strings.Contains(page, "machine 127.0.0.1 login __token__ password TOKEN") {
		t.Error("the page does not say where installers find the token")
	}
	if refused < 100 {
		t.Errorf("only %d requests were tried", refused)
	}
}

// TestPrivateWrong: credentials that are almost right.
func TestPrivateWrong(t *testing.T) {
	f, all, _ := privateFixture(t)
	for i, header := range []string{
		"Basic", "Basic ", "Basic !!!", basic("__token__", ""), basic("", ""), basic(all, ""), basic("__token__", all+" "), basic("__token__", all[:len(all)-1]),
		basic("__token__", strings.ToUpper(all)), "Bearer", "Bearer ", "Bearer x", "Bearer " + all + "x", "Digest " + all, all, "Negotiate " + all, "Basic " + all,
		"bearer\t" + all, "Token " + all, basic("__token__", "kiln_"), basic("__token__", "*"), "Basic " + strings.Repeat("A", 8000),
	} {
		got := f.do("GET", "/simple/tiny/", "Authorization", header)
		if got.StatusCode != http.StatusUnauthorized && got.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%d %.40q: %d", i, header, got.StatusCode)
		}
	}
	for range 10 {
		f.do("GET", "/simple/tiny/", "Authorization", basic("__token__", "kiln_wrong"))
	}
	if got := f.do("GET", "/simple/tiny/", "Authorization", basic("__token__", "kiln_wrong")); got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" {
		t.Errorf("after many wrong tokens: %d", got.StatusCode)
	}
	if got := f.do("GET", "/simple/tiny/", "Authorization", basic("__token__", all)); got.StatusCode != http.StatusOK {
		t.Errorf("a right token after wrong ones: %d", got.StatusCode)
	}
	tokens, err := serve.OpenTokens(filepath.Join(f.dir, ".kiln", "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := tokens.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range list {
		if err := tokens.Revoke(t.Context(), token.ID); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.do("GET", "/simple/tiny/", "Authorization", basic("__token__", all)); got.StatusCode == http.StatusOK {
		t.Error("a revoked token reads")
	}
	if err := os.WriteFile(filepath.Join(f.dir, ".kiln", "tokens.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := f.do("GET", "/simple/tiny/", "Authorization", basic("__token__", all)); got.StatusCode != http.StatusInternalServerError {
		t.Errorf("with a broken file of tokens: %d", got.StatusCode)
	}
}

// TestPrivateClients: installers read a private index with a token in the URL and in ~/.netrc, and
// the uploaders with theirs.
func TestPrivateClients(t *testing.T) {
	c := newClients(t, "twine", "uv")
	f, _, one := privateFixture(t)
	host := strings.TrimPrefix(f.http.URL, "http://")
	withToken := fmt.Sprintf("http://__token__:%s@%s/simple/", one, host)
	got := func(dir string) bool {
		names, _ := filepath.Glob(filepath.Join(dir, "tiny-1.0*"))
		return len(names) > 0
	}
	dir := t.TempDir()
	if out := c.run(false, "pip", "download", "--no-deps", "-d", dir, "--index-url", f.http.URL+"/simple/", "tiny"); strings.Contains(out, one) {
		t.Errorf("%s", out)
	}
	c.run(true, "pip", "download", "--no-deps", "-d", dir, "--index-url", withToken, "tiny")
	if !got(dir) {
		t.Error("pip has not got it")
	}
	c.run(true, "uv", "pip", "install", "--no-deps", "--target", filepath.Join(dir, "uv"), "--index-url", withToken, "tiny")
	c.run(false, "uv", "pip", "install", "--no-deps", "--no-cache", "--target", filepath.Join(dir, "no"), "--index-url", f.http.URL+"/simple/", "tiny")
	if !got(filepath.Join(dir, "uv")) || got(filepath.Join(dir, "no")) {
		t.Error("uv has not got it, or without a token")
	}
	netrc := "machine 127.0.0.1 login __token__ password " + one + "\n"
	if err := os.WriteFile(filepath.Join(c.home, ".netrc"), []byte(netrc), 0o600); err != nil {
		t.Fatal(err)
	}
	c.run(true, "pip", "download", "--no-deps", "--no-cache-dir", "-d", filepath.Join(dir, "netrc"), "--index-url", f.http.URL+"/simple/", "tiny")
	c.run(true, "uv", "pip", "install", "--no-deps", "--no-cache", "--target", filepath.Join(dir, "uvrc"), "--index-url", f.http.URL+"/simple/", "tiny")
	if !got(filepath.Join(dir, "netrc")) || !got(filepath.Join(dir, "uvrc")) {
		t.Error("not got with ~/.netrc")
	}
	if err := os.Remove(filepath.Join(c.home, ".netrc")); err != nil {
		t.Fatal(err)
	}
	wheels := t.TempDir()
	putWheel(t, wheels, "tiny-1.1-py3-none-any.whl", nil)
	file := filepath.Join(wheels, "tiny-1.1-py3-none-any.whl")
	if out := c.run(false, "twine", "upload", "--non-interactive", "--disable-progress-bar", "--repository-url", f.http.URL+"/legacy/", "-u", "__token__", "-p", one, file); !strings.Contains(out, "403") {
		t.Errorf("twine with a read token: %s", out)
	}
	c.run(true, "uv", "publish", "--publish-url", f.http.URL+"/legacy/", "--check-url", fmt.Sprintf("http://__token__:%s@%s/all/simple/", f.secret, host), "--token", f.secret, file)
	if f.server.Catalog().Project("tiny").File("tiny-1.1-py3-none-any.whl") == nil {
		t.Error("uv publish has not published")
	}
}

// TestPrivateFolder: a folder of wheels can be private too.
func TestPrivateFolder(t *testing.T) {
	dir := t.TempDir()
	putWheel(t, dir, "tiny-1.0-py3-none-any.whl", nil)
	tokens, err := serve.OpenTokens(filepath.Join(t.TempDir(), "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	folder, err := index.OpenFolder(dir, index.AddOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := serve.New(t.Context(), folder, serve.Options{Private: true}); err == nil {
		t.Error("a private server without tokens to check")
	}
	if _, err := serve.New(t.Context(), folder, serve.Options{Private: true, Tokens: tokens, ReadOnly: true}); err != nil {
		t.Error(err)
	}
}

// TestPrivateHostile: requests as no client writes them, byte for byte. Without a token none is
// answered; with a token for one project none says anything of another.
func TestPrivateHostile(t *testing.T) {
	f, all, one := privateFixture(t)
	host := strings.TrimPrefix(f.http.URL, "http://")
	tiny, other := f.server.Catalog().Project("tiny").Files[0], f.server.Catalog().Project("flash-attn").Files[0]
	file, own := "/"+other.HostedPath(), "/"+tiny.HostedPath()
	paths := []string{
		"/simple/tiny/../flash-attn/", "/simple/tiny/%2e%2e/flash-attn/", "/simple/tiny%2f..%2fflash-attn/", "//simple/flash-attn/", "/./simple/flash-attn/", "/simple//flash-attn/",
		"/simple/FLASH.Attn/", "/simple/flash-attn/?project=tiny", "/simple/flash-attn/;tiny", "/simple/flash-attn%00/", "/simple/tiny\\..\\flash-attn/",
		"/cu128/torch2.9/simple/tiny/../flash-attn/", "/project/tiny/../flash-attn/", "/project/flash-attn/requirements/tiny.txt", "/project/flash-attn/pylock.tiny.toml",
		file + "/../" + own[strings.LastIndexByte(own, '/')+1:], file[:strings.LastIndexByte(file, '/')] + own[strings.LastIndexByte(own, '/'):],
		file + "?x=" + own, file + "%2f" + own[1:], own + "/.." + file, file + ".metadata/simple/tiny/", "/catalog.json/simple/tiny/", "/catalog.json?project=tiny",
		"/builds/simple/tiny/", "/builds/project/tiny/", "/builds/pylock.tiny.toml", "/builds/requirements/tiny.txt", "/builds/../simple/flash-attn/", "/pick/simple/tiny/", "/pick/?package=flash-attn",
		"/requirements/tiny.txt/../../cu128/torch2.9/requirements/flash-attn.txt", "/.kiln/tokens.json", "/simple/../.kiln/tokens.json", "/metrics/simple/tiny/", "/debug/pprof/",
		"http://" + host + "/simple/flash-attn/", "http://__token__:" + one + "@" + host + "/simple/flash-attn/", "*",
	}
	headers := []string{
		"", "Host: localhost", "X-Original-URL: /healthz", "X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1", "Range: bytes=0-99", "If-None-Match: *", "Cookie: token=" + all,
		"X-Authorization: Bearer " + all, "Proxy-Authorization: Bearer " + all, "Authorization: Basic\r\nAuthorization: Bearer x", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
		"Origin: https://example.org\r\nAccess-Control-Request-Method: GET", "Accept: text/html",
	}
	send := func(method, path, header string) string {
		t.Helper()
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if !strings.HasPrefix(header, "Host:") {
			header = "Host: " + host + "\r\n" + header
		}
		if _, err := io.WriteString(c, method+" "+path+" HTTP/1.1\r\nConnection: close\r\n"+strings.TrimSuffix(header, "\r\n")+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(c)
		return string(answer)
	}
	refused := 0
	for _, path := range paths {
		for _, header := range headers {
			for _, method := range []string{"GET", "TRACE"} {
				got := send(method, path, header)
				if status, _, _ := strings.Cut(strings.TrimPrefix(got, "HTTP/1.1 "), " "); len(status) != 3 || status[0] != '4' || strings.Contains(got, "tiny") || strings.Contains(got, "flash") {
					t.Errorf("%s %s with %q and without a token:\n%s", method, path, header, got)
				}
				refused++
			}
		}
		if got := send("GET", path, "Authorization: Bearer "+one); strings.Contains(got, "flash") || strings.Contains(got, "failed") || strings.HasPrefix(got, "HTTP/1.1 200") && strings.Contains(path, "flash") {
			t.Errorf("%s with a token for tiny:\n%s", path, got)
		}
	}
	if refused < 900 {
		t.Errorf("only %d requests", refused)
	}
}
