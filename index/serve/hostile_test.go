package serve_test

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
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

// hostileNames are names that must never become a path, a URL or markup.
var hostileNames = []string{
	"../evil-1.0-py3-none-any.whl", "..%2fevil-1.0-py3-none-any.whl", "/etc/evil-1.0-py3-none-any.whl", `..\\evil-1.0-py3-none-any.whl`,
	"a/b-1.0-py3-none-any.whl", "evil-1.0-py3-none-any.whl/", "./evil-1.0-py3-none-any.whl", ".evil-1.0-py3-none-any.whl", "..whl", ".whl",
	"evil-1.0-py3-none-any.whl\x00.txt", "evil\x00-1.0-py3-none-any.whl", "evil-1.0-py3-none-any.whl ", " evil-1.0-py3-none-any.whl",
	"evil-1.0-py3-none-a<b>.whl", "evil-1.0-py3-<script>-any.whl", "evil-1.0&x-py3-none-any.whl", "evil'-1.0-py3-none-any.whl",
	"evil-1.0-py3-none-any.WHL", "evil-1.0-py3-none-any.whl.exe", "evil-1.0-py3-none-any.zip", "evil-1.0.tar.bz2", "evil-1.0.tgz", "evil-1.0.egg",
	"evil-1.0-py3-none-any.whl.metadata", "evil-1.0-py3-none-any.whl.asc", "evil-1.0-py3-none-any.whl.provenance", "index.html", "catalog.json",
	"evil-1.0-py3-none.whl", "evil-1.0.whl", "evil.whl", "-1.0-py3-none-any.whl", "evil--py3-none-any.whl", "evil-1.0--none-any.whl",
	"evil-1.0-py3.-none-any.whl", "evil__x-1.0-py3-none-any.whl", "_evil-1.0-py3-none-any.whl", "evil_-1.0-py3-none-any.whl", "évil-1.0-py3-none-any.whl",
	"evil-1.0-2.7-none-any.whl", "evil-1.0_1-py3-none-any.whl", "evil-x-py3-none-any.whl", "evil-1.0+a-b-py3-none-any.whl", "evil-1.0-1-2-py3-none-any.whl",
	"evil-1.0-x1-py3-none-any.whl", "evil-1.0+cu128-torch2.9-cp312-cp312-linux_x86_64.whl", "Evil-1.0-py3-none-any.whl", "evil.x-1.0-py3-none-any.whl",
	"evil-01.0-py3-none-any.whl", "evil-1.0RC1-py3-none-any.whl", "evil-v1.0-py3-none-any.whl", "con-1.0-py3-none-any.whl", "aux-1.0-py3-none-any.whl",
	"nul-1.0.tar.gz", "com1-1.0-py3-none-any.whl", "evil-1.0-py3-none-any\r\n.whl", "evil-1.0-py3-none-any.whl;x=1", "evil-1.0-%70y3-none-any.whl",
	"evil-1.0-py3-none-any.whl?x", "evil-1.0-py3-none-any.whl#x", "evil*-1.0-py3-none-any.whl", "evil|x-1.0-py3-none-any.whl", "C:evil-1.0-py3-none-any.whl",
	"evil-" + strings.Repeat("1", 300) + "-py3-none-any.whl", strings.Repeat("a", 300) + "-1.0-py3-none-any.whl", "evil-1.0-" + strings.Repeat("py3.", 60) + "py3-none-any.whl",
	"evil-1.0-py3-none-any.cu128.whl/../x", "", "evil", "evil-1.0.tar.gz.gz", "evil-1.0.TAR.GZ", "-1.0.tar.gz", "evil-.tar.gz", "../evil-1.0.tar.gz", "evil-1.0.zip",
}

// rawZip writes members without any of the checks of a zip writer.
type rawZip struct {
	buf     bytes.Buffer
	central bytes.Buffer
	count   int
}

func (z *rawZip) add(name string, data []byte, size uint32, method, flags uint16, mode uint32) {
	offset := uint32(z.buf.Len())
	header := func(w *bytes.Buffer) {
		for _, v := range []any{flags, method, uint32(0x21 << 16), crc32.ChecksumIEEE(data), uint32(len(data)), size, uint16(len(name)), uint16(0)} {
			_ = binary.Write(w, binary.LittleEndian, v)
		}
	}
	z.buf.WriteString("PK\x03\x04\x14\x00")
	header(&z.buf)
	z.buf.WriteString(name)
	z.buf.Write(data)
	z.central.WriteString("PK\x01\x02\x14\x03\x14\x00")
	header(&z.central)
	for _, v := range []any{uint16(0), uint16(0), uint16(0), mode, offset} {
		_ = binary.Write(&z.central, binary.LittleEndian, v)
	}
	z.central.WriteString(name)
	z.count++
}

func (z *rawZip) store(name, data string) {
	z.add(name, []byte(data), uint32(len(data)), 0, 0, 0o100644<<16)
}

func (z *rawZip) bytes(count int) []byte {
	out := bytes.Clone(z.buf.Bytes())
	offset := len(out)
	out = append(out, z.central.Bytes()...)
	out = append(out, "PK\x05\x06\x00\x00\x00\x00"...)
	out = binary.LittleEndian.AppendUint16(out, uint16(count))
	out = binary.LittleEndian.AppendUint16(out, uint16(count))
	out = binary.LittleEndian.AppendUint32(out, uint32(z.central.Len()))
	out = binary.LittleEndian.AppendUint32(out, uint32(offset))
	return append(out, 0, 0)
}

const (
	evil     = "evil-1.0-py3-none-any.whl"
	evilInfo = "evil-1.0.dist-info/"
	evilMeta = "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n"
	evilTags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)

// hostileArchives are contents of evil-1.0-py3-none-any.whl.
func hostileArchives(t *testing.T) map[string][]byte {
	t.Helper()
	good := indextest.Wheel(t, evil, nil)
	build := func(change func(z *rawZip)) []byte {
		z := &rawZip{}
		z.store(evilInfo+"METADATA", evilMeta)
		z.store(evilInfo+"WHEEL", evilTags)
		change(z)
		z.store(evilInfo+"RECORD", "")
		return z.bytes(z.count)
	}
	zeros := deflate(t, 512<<20)
	out := map[string][]byte{
		"empty": {}, "text": []byte("hello"), "half": good[:len(good)/2], "without its end": good[:len(good)-10],
		"data before": append([]byte("#!/bin/sh\n"), good...), "data after": append(bytes.Clone(good), "more"...), "twice": append(bytes.Clone(good), good...),
		"html":                    []byte("<html><script>alert(1)</script></html>"),
		"empty archive":           (&rawZip{}).bytes(0),
		"more members than there": func() []byte { z := &rawZip{}; z.store("a", "b"); return z.bytes(9) }(),
		"climbing":                build(func(z *rawZip) { z.store("../../etc/passwd", "x") }),
		"absolute":                build(func(z *rawZip) { z.store("/etc/passwd", "x") }),
		"drive":                   build(func(z *rawZip) { z.store(`C:\evil`, "x") }),
		"backslash":               build(func(z *rawZip) { z.store(`..\evil.py`, "x") }),
		"control byte":            build(func(z *rawZip) { z.store("evil\x01.py", "x") }),
		"null byte":               build(func(z *rawZip) { z.store("evil\x00.py", "x") }),
		"newline":                 build(func(z *rawZip) { z.store("evil\n.py", "x") }),
		"duplicate":               build(func(z *rawZip) { z.store("evil.py", "x"); z.store("evil.py", "y") }),
		"second metadata":         build(func(z *rawZip) { z.store(evilInfo+"METADATA", "Name: torch\n") }),
		"second dist-info":        build(func(z *rawZip) { z.store("torch-2.9.dist-info/METADATA", "Name: torch\n") }),
		"encrypted":               build(func(z *rawZip) { z.add("evil.py", []byte("x"), 1, 0, 1, 0) }),
		"unknown method":          build(func(z *rawZip) { z.add("evil.py", []byte("x"), 1, 99, 0, 0) }),
		"link":                    build(func(z *rawZip) { z.add("evil.py", []byte("/etc/passwd"), 11, 0, 0, 0o120777<<16) }),
		"bomb":                    build(func(z *rawZip) { z.add("evil.py", zeros, 512<<20, 8, 0, 0) }),
		"bomb that lies":          build(func(z *rawZip) { z.add("evil.py", zeros, 10, 8, 0, 0) }),
		"not in RECORD":           build(func(z *rawZip) { z.store("evil.py", "x") }),
		"metadata bomb": func() []byte {
			z := &rawZip{}
			z.add(evilInfo+"METADATA", zeros, 512<<20, 8, 0, 0)
			z.store(evilInfo+"WHEEL", evilTags)
			z.store(evilInfo+"RECORD", "")
			return z.bytes(3)
		}(),
		"70,000 members": func() []byte {
			z := &rawZip{}
			for i := range 70_000 {
				z.store(fmt.Sprintf("e%d", i), "")
			}
			return z.bytes(70_000 & 0xffff)
		}(),
		"200,000 members": func() []byte {
			var buf bytes.Buffer
			z := zip.NewWriter(&buf) // writes the 64-bit form for so many
			for i := range 200_000 {
				if _, err := z.CreateRaw(&zip.FileHeader{Name: fmt.Sprintf("e%d", i)}); err != nil {
					t.Fatal(err)
				}
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
			return buf.Bytes()
		}(),
		"RECORD bomb": func() []byte {
			z := &rawZip{}
			z.store(evilInfo+"METADATA", evilMeta)
			z.store(evilInfo+"WHEEL", evilTags)
			z.add(evilInfo+"RECORD", zeros, 512<<20, 8, 0, 0)
			return z.bytes(3)
		}(),
		"WHEEL bomb": func() []byte {
			z := &rawZip{}
			z.store(evilInfo+"METADATA", evilMeta)
			z.add(evilInfo+"WHEEL", zeros, 512<<20, 8, 0, 0)
			z.store(evilInfo+"RECORD", "")
			return z.bytes(3)
		}(),
		"no metadata":      indextest.Zip(t, map[string]string{evilInfo + "WHEEL": evilTags}),
		"no WHEEL":         indextest.Zip(t, map[string]string{evilInfo + "METADATA": evilMeta}),
		"no RECORD":        indextest.Zip(t, map[string]string{evilInfo + "METADATA": evilMeta, evilInfo + "WHEEL": evilTags}),
		"no dist-info":     indextest.Zip(t, map[string]string{"evil.py": "x"}),
		"another name":     indextest.Wheel(t, evil, map[string]string{evilInfo + "METADATA": strings.Replace(evilMeta, "evil", "torch", 1)}),
		"another version":  indextest.Wheel(t, evil, map[string]string{evilInfo + "METADATA": strings.Replace(evilMeta, "1.0\n", "2.0\n", 1)}),
		"version with tag": indextest.Wheel(t, evil, map[string]string{evilInfo + "METADATA": strings.Replace(evilMeta, "1.0\n", "1.0+cu128\n", 1)}),
		"broken metadata":  indextest.Wheel(t, evil, map[string]string{evilInfo + "METADATA": "\x00\x01\x02"}),
		"wrong digest":     bytes.Replace(indextest.Wheel(t, evil, nil), []byte("answer = 42"), []byte("answer = 43"), 1),
	}
	// A directory that ends elsewhere than the archive says.
	shifted := bytes.Clone(good)
	shifted[len(shifted)-6]++
	out["shifted directory"] = shifted
	return out
}

// deflate compresses n zeros.
func deflate(t *testing.T, n int64) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	w, err := z.Create("x")
	if err == nil {
		_, err = io.CopyN(w, zeroReader{}, n)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(buf.Bytes()), int64(buf.Len()))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := r.File[0].OpenRaw()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(raw)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// hostileRequests are written to a connection as they are.
func hostileRequests() map[string]string {
	const host = "Host: x\r\nConnection: close\r\n\r\n"
	out := map[string]string{}
	for _, path := range []string{
		"/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "/simple/../../etc/passwd", "/simple/..%5c..%5cetc/", "/files/../../etc/passwd",
		"/files/%2e%2e/%2e%2e/.kiln/tokens.json", "/.kiln/tokens.json", "/.kiln/", "/files/.kiln/tokens.json", "/static/../../etc/passwd", "/project/../.kiln/tokens.json/",
		"/%00", "/simple/%00/", "/simple/x%00y/", "/simple/%0d%0aSet-Cookie:%20x=1/", "/simple/%0aX/", "/simple/<script>alert(1)</script>/", "/simple/%3Cscript%3E/", "//evil.example/simple/",
		"///", "/simple//x/", "/simple/./x/", "/simple/" + strings.Repeat("a", 3000) + "/", "/" + strings.Repeat("a", 5000), "/" + strings.Repeat("a/", 1500), "/simple/?format=" + strings.Repeat("x", 2000),
		"/?q=" + strings.Repeat("%3Cscript%3E", 200), "/all/simple/%c0%ae%c0%ae/", "/all/simple/%ff%fe/", "/all/simple/x%2fy/", "/cu128/../all/simple/", "/%2e%2e%2fsimple/", "/files/zz/zz/zz.whl", "/files/00/" + strings.Repeat("0", 62) + "/" + evil,
		"/simple;x=1/", "/SIMPLE/", "/legacy/../.kiln/tokens.json", "/catalog.json/", "/healthz/../.kiln",
	} {
		out["GET "+path] = "GET " + path + " HTTP/1.1\r\n" + host
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "get", "X" + strings.Repeat("Y", 500)} {
		out[method] = method + " /simple/ HTTP/1.1\r\n" + host
	}
	for name, header := range map[string]string{
		"huge header":        "X: " + strings.Repeat("a", 40_000),
		"many headers":       strings.TrimSuffix(strings.Repeat("X: aaaaaaaa\r\n", 4000), "\r\n"),
		"header with null":   "X: a\x00b",
		"header without":     "no colon here",
		"folded header":      "X: a\r\n b",
		"space before colon": "X : a",
		"two lengths":        "Content-Length: 1\r\nContent-Length: 2",
		"negative length":    "Content-Length: -1",
		"huge length":        "Content-Length: 99999999999999999999",
		"length and chunks":  "Content-Length: 4\r\nTransfer-Encoding: chunked",
		"unknown coding":     "Transfer-Encoding: gzip, chunked",
		"two hosts":          "Host: a",
		"expectation":        "Expect: 200-ok",
		"upgrade":            "Upgrade: websocket\r\nConnection: Upgrade\r\nAccept: application/json",
	} {
		out[name] = "GET /all/simple/none/ HTTP/1.1\r\n" + header + "\r\n" + host
	}
	out["no version"] = "GET /none\r\n\r\n"
	out["version 0.9"] = "GET /none HTTP/0.9\r\n" + host
	out["version 3"] = "GET /none HTTP/3.0\r\n" + host
	out["version 2 preface"] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	out["binary"] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"
	out["empty line"] = "\r\n\r\n\r\n"
	out["absolute URL"] = "GET http://evil.example/none HTTP/1.1\r\n" + host
	out["no host"] = "GET /simple/ HTTP/1.1\r\n\r\n"
	out["bad escape"] = "GET /%zz HTTP/1.1\r\n" + host
	out["asterisk"] = "GET * HTTP/1.1\r\n" + host
	return out
}

// hostileForms are bodies of uploads by a client that has a token.
func hostileForms() map[string]string {
	part := func(header, body string) string { return "--b\r\n" + header + "\r\n\r\n" + body + "\r\n" }
	const end = "--b--\r\n"
	file := `Content-Disposition: form-data; name="content"; filename="` + evil + `"`
	return map[string]string{
		"nothing": "", "only the end": end, "no end": part(file, "x"), "garbage": "garbage", "wrong boundary": "--c\r\n\r\n--c--",
		"no disposition":     part("X: y", "x") + end,
		"no filename":        part(`Content-Disposition: form-data; name="content"`, "x") + end,
		"two filenames":      part(`Content-Disposition: form-data; name="content"; filename="a"; filename="b"`, "x") + end,
		"encoded filename":   part(`Content-Disposition: form-data; name="content"; filename*=UTF-8''..%2Fevil-1.0-py3-none-any.whl`, "x") + end,
		"nested":             part("Content-Type: multipart/mixed; boundary=c\r\n"+file, "--c\r\n\r\nx\r\n--c--") + end,
		"huge part header":   part(file+"\r\nX: "+strings.Repeat("a", 11<<20), "x") + end,
		"many part headers":  part(file+strings.Repeat("\r\nX: a", 20_000), "x") + end,
		"base64":             part(file+"\r\nContent-Transfer-Encoding: base64", base64.StdEncoding.EncodeToString([]byte("PK"))) + end,
		"300 parts":          strings.Repeat(part(`Content-Disposition: form-data; name="x"`, ""), 300) + end,
		"5 MiB of fields":    strings.Repeat(part(`Content-Disposition: form-data; name="x"`, strings.Repeat("a", 1<<20)), 5) + end,
		"name with newlines": part("Content-Disposition: form-data; name=\"content\"; filename=\"a\r\nb.whl\"", "x") + end,
	}
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
	for _, name := range hostileNames {
		got := f.upload(f.form(name, content).set("name", "evil").set("version", "1.0"))
		refused("name "+name, got.StatusCode, got.body)
	}
	for name, archive := range hostileArchives(t) {
		begin := time.Now()
		got := f.upload(f.form(evil, archive))
		refused("archive "+name, got.StatusCode, got.body)
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("archive %s: refused after %v", name, took)
		}
	}
	for _, name := range []string{"climbing", "no PKG-INFO", "link", "another name"} {
		header := &tar.Header{Name: "../PKG-INFO", Mode: 0o644, Size: int64(len(evilMeta))}
		text := evilMeta
		switch name {
		case "no PKG-INFO":
			header.Name = "evil-1.0/setup.py"
		case "link":
			*header = tar.Header{Name: "evil-1.0/PKG-INFO", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}
			text = ""
		case "another name":
			header.Name, text = "evil-1.0/PKG-INFO", strings.Replace(evilMeta, "Name: evil", "Name: woes", 1)
		}
		got := f.upload(f.form("evil-1.0.tar.gz", testTar(t, header, text)))
		refused("sdist "+name, got.StatusCode, got.body)
	}
	for name, request := range hostileRequests() {
		switch status, body := f.raw(request); status {
		case 0: // what is no HTTP may get no answer
			n++
		case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported, http.StatusExpectationFailed: // from the HTTP library
			n++
		default:
			refused("request "+name, status, body)
		}
	}
	for name, body := range hostileForms() {
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
