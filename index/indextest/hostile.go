package indextest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"testing"
)

// HostileNames are names that must never become a path, a URL or markup.
var HostileNames = []string{
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

// Evil is the name of hostile wheels.
const Evil = "evil-1.0-py3-none-any.whl"

const (
	evil     = Evil
	evilInfo = "evil-1.0.dist-info/"
	evilMeta = "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n"
	evilTags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
)

// HostileWheels are contents of [Evil] that must be refused.
func HostileWheels(t testing.TB) map[string][]byte {
	t.Helper()
	good := Wheel(t, evil, nil)
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
		"no metadata":      Zip(t, map[string]string{evilInfo + "WHEEL": evilTags}),
		"no WHEEL":         Zip(t, map[string]string{evilInfo + "METADATA": evilMeta}),
		"no RECORD":        Zip(t, map[string]string{evilInfo + "METADATA": evilMeta, evilInfo + "WHEEL": evilTags}),
		"no dist-info":     Zip(t, map[string]string{"evil.py": "x"}),
		"another name":     Wheel(t, evil, map[string]string{evilInfo + "METADATA": strings.Replace(evilMeta, "evil", "torch", 1)}),
		"another version":  Wheel(t, evil, map[string]string{evilInfo + "METADATA": strings.Replace(evilMeta, "1.0\n", "2.0\n", 1)}),
		"version with tag": Wheel(t, evil, map[string]string{evilInfo + "METADATA": strings.Replace(evilMeta, "1.0\n", "1.0+cu128\n", 1)}),
		"broken metadata":  Wheel(t, evil, map[string]string{evilInfo + "METADATA": "\x00\x01\x02"}),
		"wrong digest":     bytes.Replace(Wheel(t, evil, nil), []byte("answer = 42"), []byte("answer = 43"), 1),
	}
	// A directory that ends elsewhere than the archive says.
	shifted := bytes.Clone(good)
	shifted[len(shifted)-6]++
	out["shifted directory"] = shifted
	return out
}

// deflate compresses n zeros.
func deflate(t testing.TB, n int64) []byte {
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

// HostileRequests are written to a connection as they are, and get no answer of success.
func HostileRequests() map[string]string {
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

// HostileForms are bodies of uploads by a client that has a token. Their boundary is b.
func HostileForms() map[string]string {
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

// HostileSdists are contents of evil-1.0.tar.gz that must be refused.
func HostileSdists(t testing.TB) map[string][]byte {
	t.Helper()
	info := member{tar.Header{Name: "evil-1.0/PKG-INFO"}, evilMeta}
	setup := member{tar.Header{Name: "evil-1.0/setup.py"}, "pass\n"}
	good := tarball(t, info, setup)
	damaged := func(at int) []byte {
		out := bytes.Clone(good)
		out[(len(out)+at)%len(out)] ^= 0xff
		return out
	}
	more := func(h tar.Header, text string) []byte { return tarball(t, info, setup, member{h, text}) }
	link := func(kind byte, name, target string) []byte {
		return more(tar.Header{Name: name, Typeflag: kind, Linkname: target}, "")
	}
	return map[string][]byte{
		"empty": {}, "text": []byte("hello"), "half": good[:len(good)/2], "without its end": good[:len(good)-9], "wrong checksum": damaged(-5), "wrong length": damaged(-1),
		"data after": append(bytes.Clone(good), "more"...), "damaged": damaged(len(good) / 2),
		"not compressed":       gunzipAll(t, good),
		"no PKG-INFO":          tarball(t, setup),
		"second PKG-INFO":      more(tar.Header{Name: "evil-1.0/PKG-INFO"}, strings.Replace(evilMeta, "evil", "torch", 1)),
		"another name":         tarball(t, member{tar.Header{Name: "evil-1.0/PKG-INFO"}, strings.Replace(evilMeta, "evil", "torch", 1)}),
		"another version":      tarball(t, member{tar.Header{Name: "evil-1.0/PKG-INFO"}, strings.Replace(evilMeta, "1.0\n", "2.0\n", 1)}),
		"PKG-INFO that climbs": tarball(t, member{tar.Header{Name: "../PKG-INFO"}, evilMeta}),
		"PKG-INFO as a link":   tarball(t, member{tar.Header{Name: "evil-1.0/PKG-INFO", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, ""}),
		"PKG-INFO is a folder": tarball(t, member{tar.Header{Name: "evil-1.0/PKG-INFO", Typeflag: tar.TypeDir}, ""}),
		"broken PKG-INFO":      tarball(t, member{tar.Header{Name: "evil-1.0/PKG-INFO"}, "\x00\x01\x02"}),
		"wrong folder":         tarball(t, member{tar.Header{Name: "other-1.0/PKG-INFO"}, evilMeta}),
		"second folder":        more(tar.Header{Name: "other-1.0/setup.py"}, "x"),
		"no folder":            tarball(t, member{tar.Header{Name: "PKG-INFO"}, evilMeta}),
		"climbing":             more(tar.Header{Name: "evil-1.0/../../x"}, "x"),
		"absolute":             more(tar.Header{Name: "/etc/cron.d/x"}, "x"),
		"link out":             link(tar.TypeSymlink, "evil-1.0/x", "../../etc/passwd"),
		"absolute link":        link(tar.TypeSymlink, "evil-1.0/x", "/etc/passwd"),
		"hard link out":        link(tar.TypeLink, "evil-1.0/x", "../x"),
		"hard link to nothing": link(tar.TypeLink, "evil-1.0/x", "evil-1.0/none"),
		"device":               more(tar.Header{Name: "evil-1.0/x", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""),
		"block device":         more(tar.Header{Name: "evil-1.0/x", Typeflag: tar.TypeBlock, Devmajor: 8}, ""),
		"pipe":                 more(tar.Header{Name: "evil-1.0/x", Typeflag: tar.TypeFifo}, ""),
		"bomb":                 bombSdist(t),
	}
}

// Sdist makes a source distribution that has mark in it.
func Sdist(t testing.TB, filename, mark string) []byte {
	t.Helper()
	root := strings.TrimSuffix(filename, ".tar.gz")
	name, version, _ := strings.Cut(root, "-")
	info := "Metadata-Version: 2.2\nName: " + name + "\nVersion: " + version + "\n"
	return tarball(t, member{tar.Header{Name: root + "/PKG-INFO"}, info}, member{tar.Header{Name: root + "/mark.txt"}, mark})
}

type member struct {
	header tar.Header
	text   string
}

func tarball(t testing.TB, members ...member) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for _, m := range members {
		m.header.Mode, m.header.Size = 0o644, int64(len(m.text))
		if err := w.WriteHeader(&m.header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// bombSdist has a file of 8 GiB in a few megabytes.
func bombSdist(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	const size = 8 << 30
	err := w.WriteHeader(&tar.Header{Name: "evil-1.0/zeros", Mode: 0o644, Size: size})
	if err == nil {
		err = z.Flush()
	}
	// 64 MiB of zeros as a member of gzip, 128 times.
	var part bytes.Buffer
	one := gzip.NewWriter(&part)
	if err == nil {
		_, err = io.CopyN(one, zeroReader{}, 1<<26)
	}
	if err := errors.Join(err, one.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return append(buf.Bytes(), bytes.Repeat(part.Bytes(), size>>26)...)
}

func gunzipAll(t testing.TB, data []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}
