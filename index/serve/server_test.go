package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
	"github.com/kiln-build/kiln/wheel"
)

// fixture is a running server over an index of its own.
type fixture struct {
	t      testing.TB
	dir    string
	store  *index.Store
	server *serve.Server
	http   *httptest.Server
	secret string
}

func newFixture(t testing.TB, opts serve.Options) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir()}
	var err error
	if f.store, err = index.Open(f.dir, index.StoreOptions{}); err != nil {
		t.Fatal(err)
	}
	tokens, err := serve.OpenTokens(filepath.Join(f.dir, ".kiln", "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	if f.secret, _, err = tokens.Create(t.Context(), serve.NewToken{Projects: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	opts.Tokens = tokens
	if f.server, err = serve.New(t.Context(), f.store, opts); err != nil {
		t.Fatal(err)
	}
	f.http = httptest.NewUnstartedServer(nil)
	f.http.Config = f.server.HTTPServer()
	f.http.Listener = f.server.Listener(f.http.Listener)
	f.http.Start()
	t.Cleanup(func() {
		f.http.Close()
		if err := f.server.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// publish adds wheels to the index directly.
func (f *fixture) publish(filenames ...string) {
	f.t.Helper()
	files := indextest.Wheels(f.t, filenames...)
	_, problems, err := f.store.Add(f.t.Context(), files, index.AddOptions{})
	if err != nil || len(problems) > 0 {
		f.t.Fatal(err, problems)
	}
	if err := f.server.Reload(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body string
}

// do sends a request; headers are pairs. Redirects are not followed.
func (f *fixture) do(method, path string, headers ...string) answer {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.http.URL+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return f.send(req)
}

func (f *fixture) send(req *http.Request) answer {
	f.t.Helper()
	client := *f.http.Client()
	client.Transport = &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{res, string(body)}
}

// form is an upload as clients send it; tests change what they are about.
type form struct {
	filename string
	content  []byte
	fields   [][2]string // in order; a name of "content" is the place of the file
	secret   string
	header   map[string]string
	query    string
	path     string
}

func (f *fixture) form(filename string, content []byte) *form {
	sum := sha256.Sum256(content)
	name, version, kind := "x", "1", "bdist_wheel"
	if w, err := wheel.ParseFilename(filename); err == nil {
		name, version = w.Name, w.Version.String()
	} else if s, err := wheel.ParseSdistName(filename); err == nil {
		name, version, kind = s.Name, s.Version.String(), "sdist"
	}
	return &form{
		filename: filename, content: content, secret: f.secret, path: "/legacy/", header: map[string]string{},
		fields: [][2]string{
			{":action", "file_upload"},
			{"protocol_version", "1"},
			{"metadata_version", "2.1"},
			{"name", name},
			{"version", version},
			{"filetype", kind},
			{"pyversion", "py3"},
			{"summary", "of no interest"},
			{"sha256_digest", hex.EncodeToString(sum[:])},
			{"content", ""},
		},
	}
}

// set replaces a field, or removes it with an empty value.
func (m *form) set(name, value string) *form {
	m.fields = slices.DeleteFunc(m.fields, func(kv [2]string) bool { return kv[0] == name })
	if value != "" {
		m.fields = append(m.fields, [2]string{name, value})
	}
	return m
}

func (m *form) encode(t testing.TB) (body []byte, contentType string) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, kv := range m.fields {
		header := textproto.MIMEHeader{}
		header.Set("Content-Disposition", `form-data; name="`+kv[0]+`"`)
		value := []byte(kv[1])
		if kv[0] == "content" {
			header.Set("Content-Disposition", `form-data; name="content"; filename="`+m.filename+`"`)
			value = m.content
		}
		part, err := w.CreatePart(header)
		if err == nil {
			_, err = part.Write(value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), w.FormDataContentType()
}

func (f *fixture) upload(m *form) answer {
	f.t.Helper()
	body, contentType := m.encode(f.t)
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.http.URL+m.path+m.query, bytes.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	if m.secret != "" {
		req.SetBasicAuth("__token__", m.secret)
	}
	for k, v := range m.header {
		req.Header.Set(k, v)
	}
	return f.send(req)
}

// consistent fails the test if a file is listed that is not there whole, or if something that was
// received is left over.
func (f *fixture) consistent() {
	f.t.Helper()
	checkConsistent(f.t, f.dir)
	left, err := filepath.Glob(filepath.Join(f.dir, ".kiln", "uploads", "*", "upload-*"))
	if err != nil {
		f.t.Fatal(err)
	}
	if len(left) > 0 {
		f.t.Errorf("left over: %q", left)
	}
}

func checkConsistent(t testing.TB, dir string) (files int) {
	t.Helper()
	store, err := index.Open(dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := store.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for p := range catalog.Projects() {
		for i := range p.Files {
			file := &p.Files[i]
			r, err := store.OpenFile(file, "")
			if err != nil {
				t.Errorf("%s is listed: %v", file.Filename, err)
				continue
			}
			h := sha256.New()
			n, err := io.Copy(h, r)
			r.Close()
			if err != nil || n != file.Size || hex.EncodeToString(h.Sum(nil)) != file.SHA256.String() {
				t.Errorf("%s is listed with %d bytes and sha256 %s, and has %d and %x: %v", file.Filename, file.Size, file.SHA256, n, h.Sum(nil), err)
			}
			files++
		}
	}
	return files
}

const (
	wheel128 = "flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-linux_x86_64.whl"
	wheel130 = "flash_attn-2.8.3+cu130.torch2.9-cp312-cp312-linux_x86_64.whl"
)

func TestServerPages(t *testing.T) {
	f := newFixture(t, serve.Options{})
	f.publish(wheel128, wheel130)
	tests := []struct {
		method, path string
		headers      []string
		status       int
		kind         string
		location     string
		has, hasNot  string
	}{
		{path: "/simple/", status: 200, kind: "text/html; charset=utf-8", has: `<a href="flash-attn/">`},
		{path: "/simple", status: 301, location: "simple/"},
		{path: "/simple?x=1", status: 301, location: "simple/?x=1"},
		{path: "/all/simple/", status: 200, has: "flash-attn"},
		{path: "/all/simple/flash-attn/", status: 200, has: "%2Bcu128"},
		{path: "/all/simple/flash-attn/", headers: []string{"Accept", index.TypeJSON}, status: 200, kind: index.TypeJSON, has: `"versions"`},
		{path: "/all/simple/flash-attn/", headers: []string{"Accept", "application/json"}, status: 406, kind: "text/plain; charset=utf-8", has: index.TypeJSON},
		{path: "/all/simple/flash-attn/?format=" + url.QueryEscape(index.TypeJSON), status: 200, kind: index.TypeJSON},
		{path: "/all/simple/flash-attn/?format=" + index.TypeHTML, status: 200, kind: index.TypeHTML + "; charset=utf-8"},
		{path: "/cu128/torch2.9/simple/flash-attn/", status: 200, has: "%2Bcu128", hasNot: "cu130"},
		{path: "/cu128-torch2.9/simple/flash-attn/", status: 200, has: "%2Bcu128", hasNot: "cu130"},
		{path: "/cu128-torch29/simple/flash-attn/", status: 200, has: "%2Bcu128", hasNot: "cu130"},
		{path: "/cu128/simple/flash-attn/", status: 200, has: "%2Bcu128", hasNot: "cu130"},
		{path: "/cu128/torch2.9/simple", status: 301, location: "simple/"},
		{path: "/all/simple/Flash_Attn/", status: 301, location: "../flash-attn/"},
		{path: "/all/simple/Flash_Attn", status: 301, location: "flash-attn/"},
		{path: "/all/simple/flash-attn?y=2", status: 301, location: "flash-attn/?y=2"},
		{path: "/all/simple/%66lash-attn/", status: 200},
		{path: "/all/simple/nothing/", status: 404},
		{path: "/all/simple/flash-attn/x/", status: 404},
		{path: "/all/simple/flash%2Fattn/", status: 404},
		{path: "/all/simple/..%2fflash-attn/", status: 404},
		{path: "/all/simple/flash%5Cattn/", status: 404},
		{path: "/all/simple/%00/", status: 404},
		{path: "/all/simple/../simple/flash-attn/", status: 404},
		{path: "/all/simple//flash-attn/", status: 404},
		{path: "/all/simple/flash-attn//", status: 404},
		{path: "/cu999/simple/", status: 404},
		{path: "/cu999/torch2.9/simple/flash-attn/", status: 404},
		{path: "/catalog.json", status: 200, kind: "application/json", has: "cu128/torch2.9"},
		{path: "/healthz", status: 200, has: "ok"},
		{path: "/nothing", status: 404},
		{path: "/.kiln/tokens.json", status: 404},
		{method: "HEAD", path: "/simple/", status: 200, kind: "text/html; charset=utf-8"},
		{method: "PUT", path: "/simple/", status: 405},
		{method: "DELETE", path: "/all/simple/flash-attn/", status: 405},
		{method: "POST", path: "/simple/", status: 405},
		{method: "GET", path: "/legacy/", status: 405},
		{method: "OPTIONS", path: "/simple/", status: 204},
	}
	for _, test := range tests {
		got := f.do(cmp2(test.method, "GET"), test.path, test.headers...)
		name := test.method + " " + test.path
		if got.StatusCode != test.status {
			t.Errorf("%s: status %d, want %d: %s", name, got.StatusCode, test.status, got.body)
			continue
		}
		if kind := got.Header.Get("Content-Type"); test.kind != "" && kind != test.kind {
			t.Errorf("%s: type %q, want %q", name, kind, test.kind)
		}
		if got.Header.Get("Location") != test.location {
			t.Errorf("%s: redirect to %q, want %q", name, got.Header.Get("Location"), test.location)
		}
		if !strings.Contains(got.body, test.has) || test.hasNot != "" && strings.Contains(got.body, test.hasNot) {
			t.Errorf("%s: want %q and not %q in:\n%s", name, test.has, test.hasNot, got.body)
		}
		if test.status == 405 && got.Header.Get("Allow") == "" {
			t.Errorf("%s: no Allow", name)
		}
		if test.status == 406 && !strings.Contains(got.Header.Get("Vary"), "Accept") {
			t.Errorf("%s: Vary %q", name, got.Header.Get("Vary"))
		}
		if got.Header.Get("X-Content-Type-Options") != "nosniff" && got.Header.Get("Content-Type") != index.TypeJSON {
			t.Errorf("%s: no nosniff", name)
		}
		if got.Header.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(got.Header.Get("Access-Control-Expose-Headers"), "ETag") {
			t.Errorf("%s: not for other origins", name)
		}
	}
}

func cmp2(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// TestServerValidators: each representation and coding has its own tag, and a known tag is not
// sent again.
func TestServerValidators(t *testing.T) {
	f := newFixture(t, serve.Options{PageAge: 7 * time.Minute})
	f.publish(wheel128)
	seen := map[string]string{}
	for _, path := range []string{"/all/simple/flash-attn/", "/all/simple/", "/catalog.json"} {
		for _, accept := range []string{index.TypeJSON, index.TypeHTML, index.TypeText} {
			for _, coding := range []string{"gzip", "identity"} {
				name := strings.Join([]string{path, accept, coding}, " ")
				got := f.do("GET", path, "Accept", accept, "Accept-Encoding", coding)
				etag := got.Header.Get("ETag")
				if path != "/catalog.json" {
					if other, ok := seen[etag]; ok || etag == "" {
						t.Errorf("%s has the tag %q of %s", name, etag, other)
					}
					seen[etag] = name
				}
				if got.Header.Get("Content-Encoding") != map[string]string{"gzip": "gzip"}[coding] {
					t.Errorf("%s: coding %q", name, got.Header.Get("Content-Encoding"))
				}
				if got.Header.Get("Cache-Control") != "public, max-age=420" {
					t.Errorf("%s: Cache-Control %q", name, got.Header.Get("Cache-Control"))
				}
				if n := got.Header.Get("Content-Length"); n != strconv.Itoa(len(got.body)) {
					t.Errorf("%s: Content-Length %s of %d bytes", name, n, len(got.body))
				}
				head := f.do("HEAD", path, "Accept", accept, "Accept-Encoding", coding)
				for _, key := range []string{"ETag", "Content-Type", "Content-Length", "Content-Encoding", "Vary", "Cache-Control"} {
					if head.Header.Get(key) != got.Header.Get(key) {
						t.Errorf("%s: HEAD has %s %q, GET %q", name, key, head.Header.Get(key), got.Header.Get(key))
					}
				}
				again := f.do("GET", path, "Accept", accept, "Accept-Encoding", coding, "If-None-Match", `"other", W/`+etag)
				if again.StatusCode != 304 || again.body != "" {
					t.Errorf("%s: %d with %d bytes, want 304", name, again.StatusCode, len(again.body))
				}
				for _, key := range []string{"ETag", "Vary", "Cache-Control"} {
					if again.Header.Get(key) != got.Header.Get(key) {
						t.Errorf("%s: 304 has %s %q, 200 %q", name, key, again.Header.Get(key), got.Header.Get(key))
					}
				}
				if stale := f.do("GET", path, "Accept", accept, "Accept-Encoding", coding, "If-None-Match", `"x"`); stale.StatusCode != 200 {
					t.Errorf("%s: another tag is answered with %d", name, stale.StatusCode)
				}
			}
		}
	}
	// A page that changed has another tag, the others keep theirs.
	old := f.do("GET", "/cu128/torch2.9/simple/flash-attn/", "Accept-Encoding", "gzip").Header.Get("ETag")
	all := f.do("GET", "/all/simple/flash-attn/", "Accept-Encoding", "gzip").Header.Get("ETag")
	f.publish(wheel130)
	if f.do("GET", "/cu128/torch2.9/simple/flash-attn/", "Accept-Encoding", "gzip").Header.Get("ETag") != old {
		t.Error("the page of a view changed with a file of another view")
	}
	if f.do("GET", "/all/simple/flash-attn/", "Accept-Encoding", "gzip").Header.Get("ETag") == all {
		t.Error("the page of all files did not change with a new file")
	}
}

func TestServerFiles(t *testing.T) {
	f := newFixture(t, serve.Options{})
	f.publish(wheel128)
	content := indextest.Wheel(t, wheel128, nil)
	file := f.server.Catalog().Project("flash-attn").Files[0]
	path := "/" + file.URL("")
	size := len(content)
	etag := `"sha256-` + file.SHA256.String() + `"`
	tests := []struct {
		name    string
		headers []string
		status  int
		body    string
		ranges  string
	}{
		{name: "whole", status: 200, body: string(content)},
		{name: "first byte", headers: []string{"Range", "bytes=0-0"}, status: 206, body: string(content[:1]), ranges: fmt.Sprintf("bytes 0-0/%d", size)},
		{name: "last byte", headers: []string{"Range", fmt.Sprintf("bytes=%d-", size-1)}, status: 206, body: string(content[size-1:]), ranges: fmt.Sprintf("bytes %d-%d/%d", size-1, size-1, size)},
		{name: "suffix", headers: []string{"Range", "bytes=-22"}, status: 206, body: string(content[size-22:]), ranges: fmt.Sprintf("bytes %d-%d/%d", size-22, size-1, size)},
		{name: "past the end", headers: []string{"Range", fmt.Sprintf("bytes=%d-", size)}, status: 416, ranges: fmt.Sprintf("bytes */%d", size)},
		{name: "two ranges", headers: []string{"Range", "bytes=0-1,4-5"}, status: 200, body: string(content)},
		{name: "If-Range hit", headers: []string{"Range", "bytes=0-3", "If-Range", etag}, status: 206, body: string(content[:4]), ranges: fmt.Sprintf("bytes 0-3/%d", size)},
		{name: "If-Range miss", headers: []string{"Range", "bytes=0-3", "If-Range", `"sha256-00"`}, status: 200, body: string(content)},
		{name: "known", headers: []string{"If-None-Match", etag}, status: 304},
		{name: "gzip asked for", headers: []string{"Accept-Encoding", "gzip"}, status: 200, body: string(content)},
	}
	for _, test := range tests {
		got := f.do("GET", path, test.headers...)
		if got.StatusCode != test.status || got.Header.Get("Content-Range") != test.ranges {
			t.Errorf("%s: %d, range %q; want %d, %q", test.name, got.StatusCode, got.Header.Get("Content-Range"), test.status, test.ranges)
		}
		if test.body != "" && got.body != test.body {
			t.Errorf("%s: %d bytes, want %d", test.name, len(got.body), len(test.body))
		}
		if got.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: coding %q", test.name, got.Header.Get("Content-Encoding"))
		}
		if test.status < 400 && got.Header.Get("ETag") != etag {
			t.Errorf("%s: tag %q", test.name, got.Header.Get("ETag"))
		}
	}
	head := f.do("HEAD", path)
	if head.Header.Get("Accept-Ranges") != "bytes" || head.Header.Get("Content-Length") != strconv.Itoa(size) ||
		head.Header.Get("Content-Type") != "application/octet-stream" || !strings.Contains(head.Header.Get("Cache-Control"), "immutable") {
		t.Errorf("HEAD: %v", head.Header)
	}
	metadata := f.do("GET", path+".metadata")
	if metadata.StatusCode != 200 || !strings.HasPrefix(metadata.body, "Metadata-Version: 2.1\nName: flash-attn\n") {
		t.Errorf("metadata: %d %q", metadata.StatusCode, metadata.body)
	}
	sum := sha256.Sum256([]byte(metadata.body))
	if hex.EncodeToString(sum[:]) != file.Metadata.String() {
		t.Error("the metadata has not the hash that pages give")
	}
	h := file.SHA256.String()
	for _, wrong := range []string{
		"/files/", "/files/" + h[:2] + "/" + h[2:] + "/", "/files/" + h[:2] + "/" + h[2:], "/files/00/" + h[2:] + "/" + wheel128,
		path + ".asc", path + "/", path + "%00", strings.Replace(path, "%2B", "+", 1) + "x", "/files/../.kiln/tokens.json",
		"/files/" + h[:2] + "/" + h[2:] + "/..%2f..%2f..%2f.kiln%2ftokens.json", "/files/" + h[:2] + "/" + h[2:] + "/" + wheel130,
	} {
		if got := f.do("GET", wrong); got.StatusCode != 404 {
			t.Errorf("GET %s: %d, want 404", wrong, got.StatusCode)
		}
	}
	// A bare + is the same name.
	if got := f.do("GET", strings.Replace(path, "%2B", "+", 1)); got.StatusCode != 200 {
		t.Errorf("GET with a bare +: %d", got.StatusCode)
	}
}

func TestUpload(t *testing.T) {
	f := newFixture(t, serve.Options{})
	content := indextest.Wheel(t, wheel128, nil)
	got := f.upload(f.form(wheel128, content))
	if got.StatusCode != 200 || got.body != "added "+wheel128+"\n" {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	// It is there at once, in the pages and as a file.
	page := f.do("GET", "/cu128/torch2.9/simple/flash-attn/", "Accept", index.TypeJSON)
	var listed struct {
		Files []struct {
			Filename, URL string
			Hashes        map[string]string
			Size          int64
		}
	}
	if err := json.Unmarshal([]byte(page.body), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed.Files) != 1 || listed.Files[0].Filename != wheel128 || listed.Files[0].Size != int64(len(content)) {
		t.Fatalf("listed: %+v", listed)
	}
	base, _ := url.Parse("/cu128/torch2.9/simple/flash-attn/")
	link, err := base.Parse(listed.Files[0].URL)
	if err != nil {
		t.Fatal(err)
	}
	if file := f.do("GET", link.EscapedPath()); file.body != string(content) {
		t.Errorf("%s: %d, %d bytes of %d", link, file.StatusCode, len(file.body), len(content))
	}
	// Again: nothing to do. Other bytes: refused, and the first stays.
	if got := f.upload(f.form(wheel128, content)); got.StatusCode != 200 || !strings.HasPrefix(got.body, "unchanged") {
		t.Errorf("the same again: %d %s", got.StatusCode, got.body)
	}
	other := indextest.Wheel(t, wheel128, map[string]string{"flash_attn_more.py": "x = 1\n"})
	if got := f.upload(f.form(wheel128, other)); got.StatusCode != 400 || !strings.Contains(got.body, "File already exists") {
		t.Errorf("other bytes: %d %s", got.StatusCode, got.body)
	}
	f.consistent()
}

// TestUploadForms: what clients send in other ways.
func TestUploadForms(t *testing.T) {
	f := newFixture(t, serve.Options{})
	content := indextest.Wheel(t, wheel128, nil)
	sum := md5.Sum(content)
	forms := map[string]*form{
		"file first":     f.form(wheel128, content),
		"action in URL":  f.form(wheel128, content).set(":action", ""),
		"bearer":         f.form(wheel128, content),
		"at the root":    f.form(wheel128, content),
		"without slash":  f.form(wheel128, content),
		"md5 after":      f.form(wheel128, content).set("sha256_digest", "").set("md5_digest", hex.EncodeToString(sum[:])),
		"md5 before":     f.form(wheel128, content).set("sha256_digest", ""),
		"no protocol":    f.form(wheel128, content).set("protocol_version", ""),
		"other spelling": f.form(wheel128, content).set("name", "Flash_Attn").set("version", "2.8.3+CU128-torch2.9"),
	}
	forms["file first"].fields = append([][2]string{{"content", ""}}, forms["file first"].fields[:9]...)
	forms["action in URL"].query = "?:action=file_upload"
	forms["bearer"].secret, forms["bearer"].header["Authorization"] = "", "Bearer "+f.secret
	forms["at the root"].path = "/"
	forms["without slash"].path = "/legacy"
	forms["md5 before"].fields = append([][2]string{{"md5_digest", hex.EncodeToString(sum[:])}}, forms["md5 before"].fields...)
	for name, m := range forms {
		if got := f.upload(m); got.StatusCode != 200 {
			t.Errorf("%s: %d %s", name, got.StatusCode, got.body)
		}
	}
	sdist := "flash_attn-2.8.3.tar.gz"
	if got := f.upload(f.form(sdist, testSdist(t, "flash_attn-2.8.3", "flash-attn", "2.8.3"))); got.StatusCode != 200 {
		t.Errorf("sdist: %d %s", got.StatusCode, got.body)
	}
	f.consistent()
}

func TestUploadRefused(t *testing.T) {
	f := newFixture(t, serve.Options{MaxFileBytes: 1 << 20})
	content := indextest.Wheel(t, wheel128, nil)
	zeros := strings.Repeat("0", 64)
	tests := map[string]struct {
		form   *form
		status int
		has    string
	}{
		"no token":          {with(f.form(wheel128, content), func(m *form) { m.secret = "" }), 401, "token"},
		"wrong token":       {with(f.form(wheel128, content), func(m *form) { m.secret = "kiln_no" }), 401, "token"},
		"wrong digest":      {f.form(wheel128, content).set("sha256_digest", zeros), 400, "sha256_digest"},
		"wrong md5":         {f.form(wheel128, content).set("md5_digest", zeros[:32]), 400, "md5_digest"},
		"wrong blake2":      {f.form(wheel128, content).set("blake2_256_digest", zeros), 400, "blake2_256_digest"},
		"no digest":         {f.form(wheel128, content).set("sha256_digest", ""), 400, "digest"},
		"other action":      {f.form(wheel128, content).set(":action", "submit"), 400, ":action"},
		"no action":         {f.form(wheel128, content).set(":action", ""), 400, ":action"},
		"other protocol":    {f.form(wheel128, content).set("protocol_version", "2"), 400, "protocol_version"},
		"no name":           {f.form(wheel128, content).set("name", ""), 400, "name"},
		"other name":        {f.form(wheel128, content).set("name", "torch"), 400, "name"},
		"no version":        {f.form(wheel128, content).set("version", ""), 400, "version"},
		"no label":          {f.form(wheel128, content).set("version", "2.8.3"), 400, "version"},
		"no metadata":       {f.form(wheel128, content).set("metadata_version", ""), 400, "metadata_version"},
		"other type":        {f.form(wheel128, content).set("filetype", "sdist"), 400, "filetype"},
		"no pyversion":      {f.form(wheel128, content).set("pyversion", ""), 400, "pyversion"},
		"no file":           {with(f.form(wheel128, content), func(m *form) { m.fields = m.fields[:9] }), 400, "content"},
		"two files":         {with(f.form(wheel128, content), func(m *form) { m.fields = append(m.fields, [2]string{"content"}) }), 400, "two files"},
		"many parts":        {with(f.form(wheel128, content), func(m *form) { m.fields = append(m.fields, make([][2]string, 300)...) }), 400, "parts"},
		"huge field":        {f.form(wheel128, content).set("description", strings.Repeat("x", 4<<20+1)), 413, "larger"},
		"too large":         {f.form(wheel128, append(content, make([]byte, 2<<20)...)), 413, "larger"},
		"not a wheel":       {f.form(wheel128, []byte("hello")), 400, wheel128},
		"renamed":           {f.form(wheel130, content), 400, "cu128"},
		"upper case":        {f.form("Flash_Attn-1.0-py3-none-any.whl", content), 400, "must be written"},
		"version not plain": {f.form("flash_attn-1.0RC1-py3-none-any.whl", content), 400, "must be written"},
		"device":            {f.form("nul-1.0-py3-none-any.whl", indextest.Wheel(t, "nul-1.0-py3-none-any.whl", nil)), 400, "Windows"},
		"egg":               {f.form("flash_attn-1.0.egg", content), 400, "neither"},
		"json wanted":       {with(f.form(wheel128, content).set("name", ""), func(m *form) { m.header["Accept"] = "application/json;q=0.9, text/plain;q=0.8" }), 400, `{"detail":"`},
		"not a form":        {with(f.form(wheel128, content), func(m *form) { m.header["Content-Type"] = "text/plain" }), 400, "multipart"},
		"no boundary":       {with(f.form(wheel128, content), func(m *form) { m.header["Content-Type"] = "multipart/form-data" }), 400, "multipart"},
		"wrong boundary":    {with(f.form(wheel128, content), func(m *form) { m.header["Content-Type"] = "multipart/form-data; boundary=x" }), 400, ""},
	}
	for name, test := range tests {
		got := f.upload(test.form)
		if got.StatusCode != test.status || !strings.Contains(got.body, test.has) {
			t.Errorf("%s: %d %s; want %d with %q", name, got.StatusCode, got.body, test.status, test.has)
		}
		if got.StatusCode == 401 && got.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", name)
		}
		if strings.Contains(got.body, f.secret) {
			t.Errorf("%s: the answer has the token in it", name)
		}
	}
	if projects, _ := f.server.Catalog().Len(); projects != 0 {
		t.Errorf("%d projects, want none", projects)
	}
	f.consistent()
}

func with(m *form, change func(*form)) *form {
	change(m)
	return m
}

func TestUploadScope(t *testing.T) {
	f := newFixture(t, serve.Options{})
	tokens, err := serve.OpenTokens(filepath.Join(f.dir, ".kiln", "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := tokens.Create(t.Context(), serve.NewToken{Projects: []string{"exllama*"}})
	if err != nil {
		t.Fatal(err)
	}
	m := f.form(wheel128, indextest.Wheel(t, wheel128, nil))
	m.secret = secret
	if got := f.upload(m); got.StatusCode != 403 {
		t.Errorf("another project: %d %s", got.StatusCode, got.body)
	}
	own := "exllamav2-0.3.2-py3-none-any.whl"
	m = f.form(own, indextest.Wheel(t, own, nil))
	m.secret = secret
	if got := f.upload(m); got.StatusCode != 200 {
		t.Errorf("its own project: %d %s", got.StatusCode, got.body)
	}
}

func TestUploadModes(t *testing.T) {
	content := indextest.Wheel(t, wheel128, nil)
	readOnly := newFixture(t, serve.Options{ReadOnly: true})
	if got := readOnly.upload(readOnly.form(wheel128, content)); got.StatusCode != 403 || !strings.Contains(got.body, "read-only") {
		t.Errorf("read-only: %d %s", got.StatusCode, got.body)
	}
	// A request that seems to come from another machine without TLS.
	f := newFixture(t, serve.Options{})
	body, contentType := f.form(wheel128, content).encode(t)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/legacy/", bytes.NewReader(body))
	req.Header.Set("Content-Type", contentType)
	req.SetBasicAuth("__token__", f.secret)
	res := httptest.NewRecorder()
	f.server.ServeHTTP(res, req)
	if res.Code != 403 || !strings.Contains(res.Body.String(), "https") {
		t.Errorf("plain HTTP from elsewhere: %d %s", res.Code, res.Body)
	}
}

func TestUploadQuota(t *testing.T) {
	a, b := "quota-1.0-py3-none-any.whl", "quota-2.0-py3-none-any.whl"
	content := indextest.Wheel(t, a, nil)
	f := newFixture(t, serve.Options{MaxProjectBytes: int64(len(content)) * 3 / 2})
	if got := f.upload(f.form(a, content)); got.StatusCode != 200 {
		t.Fatalf("first: %d %s", got.StatusCode, got.body)
	}
	if got := f.upload(f.form(b, indextest.Wheel(t, b, nil))); got.StatusCode != 413 || !strings.Contains(got.body, "quota of quota") {
		t.Errorf("second: %d %s", got.StatusCode, got.body)
	}
	f.consistent()
	total := newFixture(t, serve.Options{MaxTotalBytes: 100})
	if got := total.upload(total.form(a, content)); got.StatusCode != 413 || !strings.Contains(got.body, "quota of the index") {
		t.Errorf("whole index: %d %s", got.StatusCode, got.body)
	}
}

func TestUploadWrongTokens(t *testing.T) {
	f := newFixture(t, serve.Options{})
	m := f.form(wheel128, indextest.Wheel(t, wheel128, nil))
	m.secret = "kiln_guess"
	last := 0
	for range 12 {
		last = f.upload(m).StatusCode
	}
	if last != 429 {
		t.Errorf("after 12 wrong tokens: %d, want 429", last)
	}
	m.secret = f.secret
	if got := f.upload(m); got.StatusCode != 200 {
		t.Errorf("the right token after wrong ones: %d %s", got.StatusCode, got.body)
	}
}

// TestUploadConcurrently: of many different files under one name one is published, and who
// uploaded its bytes is told so.
func TestUploadConcurrently(t *testing.T) {
	f := newFixture(t, serve.Options{MaxUploads: 64})
	const clients = 24
	var mu sync.Mutex
	stored := map[string]int{} // by status and sha256
	var wait sync.WaitGroup
	for i := range clients {
		wait.Go(func() {
			content := indextest.Wheel(t, wheel128, map[string]string{"flash_attn_data.py": strconv.Itoa(i % 8)})
			got := f.upload(f.form(wheel128, content))
			sum := sha256.Sum256(content)
			mu.Lock()
			defer mu.Unlock()
			switch got.StatusCode {
			case 200:
				stored[hex.EncodeToString(sum[:])]++
			case 400:
				if !strings.Contains(got.body, "already exists") {
					t.Errorf("%d %s", got.StatusCode, got.body)
				}
			default:
				t.Errorf("%d %s", got.StatusCode, got.body)
			}
		})
	}
	wait.Wait()
	if len(stored) != 1 {
		t.Fatalf("%d contents were accepted: %v", len(stored), stored)
	}
	file := f.server.Catalog().Project("flash-attn").Files[0]
	if stored[file.SHA256.String()] != clients/8 {
		t.Errorf("%d clients have the published bytes, want %d", stored[file.SHA256.String()], clients/8)
	}
	f.consistent()
}

// TestUploadCutOff: connections that end in the middle leave nothing.
func TestUploadCutOff(t *testing.T) {
	f := newFixture(t, serve.Options{})
	body, contentType := f.form(wheel128, indextest.Wheel(t, wheel128, nil)).encode(t)
	auth := base64.StdEncoding.EncodeToString([]byte("__token__:" + f.secret))
	var wait sync.WaitGroup
	for range 20 {
		cut := rand.IntN(len(body))
		wait.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.http.Listener.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST /legacy/ HTTP/1.1\r\nHost: x\r\nAuthorization: Basic %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", auth, contentType, len(body))
			_, _ = conn.Write(body[:cut])
			_ = conn.(*net.TCPConn).CloseWrite()
			answer, _ := io.ReadAll(conn) // until the server is done with it
			if strings.HasPrefix(string(answer), "HTTP/1.1 200") {
				t.Errorf("an upload cut at %d of %d was accepted", cut, len(body))
			}
		})
	}
	wait.Wait()
	if _, files := f.server.Catalog().Len(); files != 0 {
		t.Errorf("%d files, want none", files)
	}
	f.consistent()
}

// TestSlowClients: who stops in the middle of an upload, or of its headers, is let go.
func TestSlowClients(t *testing.T) {
	f := newFixture(t, serve.Options{Stall: 50 * time.Millisecond})
	auth := base64.StdEncoding.EncodeToString([]byte("__token__:" + f.secret))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /legacy/ HTTP/1.1\r\nHost: x\r\nAuthorization: Basic %s\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n--x", auth)
	answer, err := io.ReadAll(conn) // ends only if the server gives up
	if err != nil && !errors.Is(err, net.ErrClosed) {
		t.Logf("read: %v", err)
	}
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
		t.Errorf("answer %q, want a 400", answer)
	}
	f.consistent()
}

// TestServerSeesOthers: what another process publishes is served without a restart.
func TestServerSeesOthers(t *testing.T) {
	f := newFixture(t, serve.Options{Poll: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.server.Run(ctx) }()
	defer func() { cancel(); <-done }()
	other, err := index.Open(f.dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), wheel128)
	if err := os.WriteFile(path, indextest.Wheel(t, wheel128, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, problems, err := other.Add(t.Context(), []index.NewFile{{Path: path}}, index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	deadline := time.Now().Add(30 * time.Second)
	for f.do("GET", "/all/simple/flash-attn/").StatusCode != 200 {
		if time.Now().After(deadline) {
			t.Fatal("never served")
		}
	}
}

// TestServerReaders: while uploads go on, every page is one state of the index: what it
// lists is there.
func TestServerReaders(t *testing.T) {
	f := newFixture(t, serve.Options{})
	f.publish(wheel128)
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for ctx.Err() == nil {
				page := f.do("GET", "/all/simple/flash-attn/", "Accept", index.TypeJSON)
				var listed struct {
					Files    []struct{ Filename, URL string }
					Versions []string
				}
				if err := json.Unmarshal([]byte(page.body), &listed); err != nil {
					t.Errorf("%d %v", page.StatusCode, err)
					return
				}
				last := listed.Files[len(listed.Files)-1]
				base, _ := url.Parse("/all/simple/flash-attn/")
				link, _ := base.Parse(last.URL)
				if got := f.do("HEAD", link.EscapedPath()); got.StatusCode != 200 {
					t.Errorf("%s is listed and answers %d", last.Filename, got.StatusCode)
				}
			}
		})
	}
	for i := range 15 {
		name := fmt.Sprintf("flash_attn-3.%d-py3-none-any.whl", i)
		if got := f.upload(f.form(name, indextest.Wheel(t, name, nil))); got.StatusCode != 200 {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	}
	cancel()
	wait.Wait()
	f.consistent()
}

func TestServerMetrics(t *testing.T) {
	f := newFixture(t, serve.Options{})
	f.publish(wheel128)
	f.do("GET", "/all/simple/flash-attn/")
	f.do("GET", "/nothing")
	var buf bytes.Buffer
	f.server.WriteMetrics(&buf)
	for _, want := range []string{
		`kiln_http_requests_total{handler="page",code="2xx"} 1`, `kiln_http_requests_total{handler="other",code="4xx"} 1`,
		"kiln_index_projects 1", "kiln_index_files 1", "kiln_http_request_duration_seconds_bucket", "go_goroutines",
	} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("metrics have no %q", want)
		}
	}
}

// TestPageCacheLimit: pages beyond the limit are made again, not kept.
func TestPageCacheLimit(t *testing.T) {
	f := newFixture(t, serve.Options{PageCacheBytes: 1})
	f.publish(wheel128)
	first := f.do("GET", "/all/simple/flash-attn/")
	second := f.do("GET", "/all/simple/flash-attn/")
	if diff := cmp.Diff(first.body, second.body); diff != "" || first.StatusCode != 200 {
		t.Error(diff)
	}
	var buf bytes.Buffer
	f.server.WriteMetrics(&buf)
	if !strings.Contains(buf.String(), "kiln_page_cache_bytes 0\n") {
		t.Error("pages are kept beyond the limit")
	}
}

// TestLargePage: many clients at once get a page that is large enough to be sent from a file,
// whole, and another one after it changed.
func TestLargePage(t *testing.T) {
	f := newFixture(t, serve.Options{})
	if _, problems, err := f.store.AddListed(t.Context(), indextest.ManyFiles(500), index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	fetch := func() {
		t.Helper()
		if err := f.server.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		want, ok := f.server.Catalog().View("all").AppendProject(nil, index.JSON, "all", "package-00000")
		if !ok {
			t.Fatal("no page")
		}
		var wait sync.WaitGroup
		for range 40 {
			wait.Go(func() {
				for range 3 {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.http.URL+"/all/simple/package-00000/", nil)
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Accept", index.TypeJSON) // the transport asks for gzip and unpacks it
					res, err := f.http.Client().Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					body, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || !res.Uncompressed || !bytes.Equal(body, want) {
						t.Errorf("%s, unpacked: %v, %d bytes, want %d: %v", res.Status, res.Uncompressed, len(body), len(want), err)
					}
				}
			})
		}
		wait.Wait()
	}
	fetch()
	if _, err := f.store.Yank(t.Context(), "package-00000", func(*index.File) bool { return true }, "broken", false); err != nil {
		t.Fatal(err)
	}
	fetch()
}

// largePage makes a server with a page that is large enough to be sent from a file. It returns what
// follows the method in a request for it, without the end, and its compressed body.
func largePage(t *testing.T, opts serve.Options) (f *fixture, request string, body []byte) {
	t.Helper()
	f = newFixture(t, opts)
	if _, problems, err := f.store.AddListed(t.Context(), indextest.ManyFiles(500), index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	if err := f.server.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	const path = "/all/simple/package-00000/"
	res := f.do("GET", path, "Accept", index.TypeJSON, "Accept-Encoding", "gzip")
	if res.StatusCode != http.StatusOK || len(res.body) < 32<<10 {
		t.Fatalf("%s, %d bytes", res.Status, len(res.body))
	}
	return f, path + " HTTP/1.1\r\nHost: x\r\nAccept: " + index.TypeJSON + "\r\nAccept-Encoding: gzip\r\n", []byte(res.body)
}

func (f *fixture) dial() net.Conn {
	f.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(f.t.Context(), "tcp", f.http.Listener.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil { // so that the server has to wait
		f.t.Fatal(err)
	}
	return conn
}

// TestPipelined: a client that asks for more than a connection holds before it reads gets every
// answer whole and in order.
func TestPipelined(t *testing.T) {
	f, page, body := largePage(t, serve.Options{})
	etag := f.do("HEAD", "/all/simple/package-00000/", "Accept", index.TypeJSON, "Accept-Encoding", "gzip").Header.Get("Etag")
	kinds := []struct {
		method, request string
		status          int
		body            []byte
	}{
		{"GET", page, http.StatusOK, body},
		{"HEAD", page, http.StatusOK, nil},
		{"GET", page, http.StatusOK, body},
		{"GET", page + "If-None-Match: " + etag + "\r\n", http.StatusNotModified, nil},
		{"GET", "/healthz HTTP/1.1\r\nHost: x\r\n", http.StatusOK, []byte("ok\n")},
		{"GET", "/nothing HTTP/1.1\r\nHost: x\r\n", http.StatusNotFound, []byte("not found\n")},
	}
	const rounds = 50
	conn := f.dial()
	sent := make(chan error, 1)
	go func() {
		var all strings.Builder
		for range rounds {
			for _, k := range kinds {
				all.WriteString(k.method + " " + k.request + "\r\n")
			}
		}
		_, err := io.WriteString(conn, all.String())
		sent <- err
	}()
	reader := bufio.NewReader(conn)
	for i := range rounds {
		for _, k := range kinds {
			res, err := http.ReadResponse(reader, &http.Request{Method: k.method})
			if err != nil {
				t.Fatalf("round %d: %s %q: %v", i, k.method, k.request, err)
			}
			got, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != k.status || !bytes.Equal(got, k.body) {
				t.Fatalf("round %d: %s %q: %s, %d bytes, want %d and %d: %v", i, k.method, k.request, res.Status, len(got), k.status, len(k.body), err)
			}
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestStalled: a client that asks and does not read is let go.
func TestStalled(t *testing.T) {
	f, page, _ := largePage(t, serve.Options{Stall: 50 * time.Millisecond})
	conn := f.dial()
	if err := conn.SetWriteDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for {
		// The server stops reading when it cannot write, so that this ends when it closes the
		// connection.
		if _, err := io.WriteString(conn, "GET "+page+"\r\n"); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
			return
		}
	}
}
