package serve_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
)

const (
	evil     = indextest.Evil
	evilInfo = "evil-1.0.dist-info/"
	evilMeta = "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n"
)

// testSdist makes a source distribution whose one folder is root.
func testSdist(t testing.TB, root, name, version string) []byte {
	t.Helper()
	text := "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	return testTar(t, &tar.Header{Name: root + "/PKG-INFO", Mode: 0o644, Size: int64(len(text))}, text)
}

func testTar(t testing.TB, header *tar.Header, text string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestHostile: more than 200 hostile names, archives and requests. Each gets a clear answer from
// the 400s, nothing of it is published or left behind, and the server goes on.
func TestHostile(t *testing.T) {
	f := newFixture(t, serve.Options{Stall: 5 * time.Second})
	n := 0
	refused := func(name string, status int, body string) {
		t.Helper()
		n++
		if status < 400 || status > 499 {
			t.Errorf("%.100q: status %d %.200s", name, status, body)
		}
		if strings.TrimSpace(body) == "" {
			t.Errorf("%.100q: status %d without a reason", name, status)
		}
		if strings.Contains(body, f.dir) || strings.Contains(body, f.secret) {
			t.Errorf("%.100q: the answer tells too much: %.300s", name, body)
		}
	}
	content := indextest.Wheel(t, evil, nil)
	for _, name := range indextest.HostileNames {
		got := f.upload(f.form(name, content).set("name", "evil").set("version", "1.0"))
		refused("name "+name, got.StatusCode, got.body)
	}
	for name, archive := range indextest.HostileWheels(t) {
		begin := time.Now()
		got := f.upload(f.form(evil, archive))
		refused("archive "+name, got.StatusCode, got.body)
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("archive %s: refused after %v", name, took)
		}
	}
	for name, archive := range indextest.HostileSdists(t) {
		got := f.upload(f.form("evil-1.0.tar.gz", archive))
		refused("sdist "+name, got.StatusCode, got.body)
	}
	for name, request := range indextest.HostileRequests() {
		switch status, body := f.raw(request); status {
		case 0: // what is no HTTP may get no answer
			n++
		case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusExpectationFailed: // from the HTTP library
			n++
		default:
			refused("request "+name, status, body)
		}
	}
	for name, body := range indextest.HostileForms() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.http.URL+"/legacy/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		req.SetBasicAuth("__token__", f.secret)
		got := f.send(req)
		refused("form "+name, got.StatusCode, got.body)
	}
	t.Logf("%d hostile requests", n)
	if n < 200 {
		t.Errorf("%d hostile requests, want 200", n)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if projects, files := f.server.Catalog().Len(); projects != 0 || files != 0 {
		t.Errorf("%d projects and %d files, want none", projects, files)
	}
	f.consistent()
	if got := f.upload(f.form(evil, content)); got.StatusCode != 200 {
		t.Errorf("a good upload after all: %d %s", got.StatusCode, got.body)
	}
}

// raw writes bytes to a connection and reads one answer. The status is 0 if there is none.
func (f *fixture) raw(request string) (status int, body string) {
	f.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(f.t.Context(), "tcp", f.http.Listener.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		f.t.Fatal(err)
	}
	_, _ = io.WriteString(conn, request)
	_ = conn.(*net.TCPConn).CloseWrite()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(text)
}

// TestMarkup: what a wheel says of itself stays text in pages.
func TestMarkup(t *testing.T) {
	f := newFixture(t, serve.Options{})
	metadata := strings.Replace(evilMeta, "Version: 1.0\n", "Version: 1.0\nRequires-Python: >=3.8\nSummary: <script>alert(1)</script>\n", 1)
	got := f.upload(f.form(evil, indextest.Wheel(t, evil, map[string]string{evilInfo + "METADATA": metadata})))
	if got.StatusCode != 200 {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	if _, err := f.store.Yank(t.Context(), "evil", func(*index.File) bool { return true }, `"><script>alert(1)</script>`, false); err != nil {
		t.Fatal(err)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	page := f.do("GET", "/all/simple/evil/")
	if strings.Contains(page.body, "<script>") || !strings.Contains(page.body, "&lt;script&gt;") {
		t.Errorf("%s", page.body)
	}
}
