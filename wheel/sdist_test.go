package wheel_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/wheel"
)

const (
	sdistName = "demo_pkg-1.0.tar.gz"
	pkgInfo   = "Metadata-Version: 2.2\nName: demo-pkg\nVersion: 1.0\n"
)

// A tarMember is a file with its content unless its header says something else.
type tarMember struct {
	tar.Header
	content string
}

func tarFile(name, content string) tarMember {
	return tarMember{tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}, content}
}

func tarSpecial(name string, kind byte, target string) tarMember {
	return tarMember{tar.Header{Name: name, Mode: 0o644, Typeflag: kind, Linkname: target}, ""}
}

var goodMembers = []tarMember{
	tarSpecial("demo_pkg-1.0/", tar.TypeDir, ""),
	tarFile("demo_pkg-1.0/PKG-INFO", pkgInfo),
	tarFile("demo_pkg-1.0/src/demo.c", "int main(void) { return 0; }\n"),
	tarFile("demo_pkg-1.0/demo.egg-info/PKG-INFO", "Metadata-Version: 1.0\nName: other\nVersion: 2\n"),
}

func makeTar(t testing.TB, members ...tarMember) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		m.Size = int64(len(m.content))
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func compress(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// sdistWith is a good sdist with more members.
func sdistWith(t testing.TB, more ...tarMember) []byte {
	t.Helper()
	return compress(t, makeTar(t, append(slices.Clone(goodMembers), more...)...))
}

func zipSdist(t testing.TB, names ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, name := range names {
		f, err := w.Create(name)
		if err == nil && strings.HasSuffix(name, "PKG-INFO") {
			_, err = io.WriteString(f, pkgInfo)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func readSdist(t testing.TB, name string, data []byte) (*wheel.Metadata, error) {
	t.Helper()
	return wheel.ReadSdist(t.Context(), bytes.NewReader(data), int64(len(data)), name, wheel.Limits{})
}

func TestReadSdist(t *testing.T) {
	const top = "demo_pkg-1.0/"
	twoParts := func() []byte { // gzip allows it
		data := makeTar(t, goodMembers...)
		return append(compress(t, data[:700]), compress(t, data[700:])...)
	}
	for name, test := range map[string]struct {
		file string
		data []byte
	}{
		"plain":             {sdistName, sdistWith(t)},
		"two gzip members":  {sdistName, twoParts()},
		"old spelling":      {"Demo.Pkg-1.0.tar.gz", compress(t, makeTar(t, tarFile("Demo.Pkg-1.0.0/PKG-INFO", pkgInfo)))},
		"dot before names":  {sdistName, compress(t, makeTar(t, tarSpecial("./", tar.TypeDir, ""), tarFile("./"+top+"PKG-INFO", pkgInfo)))},
		"folder twice":      {sdistName, sdistWith(t, tarSpecial(top, tar.TypeDir, ""))},
		"git's header":      {sdistName, sdistWith(t, tarMember{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "1234"}}, ""})},
		"long name":         {sdistName, sdistWith(t, tarFile(top+strings.Repeat("long/", 60)+"x", ""))},
		"link beside it":    {sdistName, sdistWith(t, tarSpecial(top+"link", tar.TypeSymlink, "PKG-INFO"))},
		"link upwards":      {sdistName, sdistWith(t, tarSpecial(top+"a/link", tar.TypeSymlink, "../src/demo.c"))},
		"link to the top":   {sdistName, sdistWith(t, tarSpecial(top+"a/link", tar.TypeSymlink, ".."))},
		"dangling link":     {sdistName, sdistWith(t, tarSpecial(top+"link", tar.TypeSymlink, "nowhere"))},
		"hard link":         {sdistName, sdistWith(t, tarSpecial(top+"link", tar.TypeLink, top+"src/demo.c"))},
		"no folder members": {sdistName, compress(t, makeTar(t, goodMembers[1:]...))},
		"zip":               {"demo_pkg-1.0.zip", zipSdist(t, top, top+"PKG-INFO", top+"setup.py")},
	} {
		m, err := readSdist(t, test.file, test.data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if m.Name() != "demo-pkg" || m.Version() != "1.0" || string(m.Bytes()) != pkgInfo {
			t.Errorf("%s: PKG-INFO %q", name, m.Bytes())
		}
	}
}

// hostileSdists are refused with a reason.
func hostileSdists(t testing.TB) map[string]struct {
	file   string
	data   []byte
	reason string
} {
	const top = "demo_pkg-1.0/"
	type hostile = struct {
		file   string
		data   []byte
		reason string
	}
	good := sdistWith(t)
	flipped := bytes.Clone(good)
	flipped[len(flipped)-6] ^= 1 // in the checksum
	bomb := makeTar(t, append(slices.Clone(goodMembers), tarFile(top+"zeros", strings.Repeat("\x00", 80<<20)))...)
	plain := makeTar(t, goodMembers...)
	crossed := bytes.Clone(plain)
	crossed[0] ^= 1 // in the first name, so that the header's checksum is wrong
	out := map[string]hostile{
		"not gzip":         {data: []byte("text"), reason: "not a gzip file"},
		"not tar":          {data: compress(t, []byte(strings.Repeat("text", 1000))), reason: "damaged"},
		"empty":            {data: compress(t, nil), reason: "the archive has no end"},
		"no members":       {data: compress(t, make([]byte, 1024)), reason: "no PKG-INFO"},
		"truncated":        {data: good[:len(good)/2], reason: "damaged: unexpected EOF"},
		"without its end":  {data: good[:len(good)-8], reason: "damaged: unexpected EOF"},
		"truncated tar":    {data: compress(t, plain[:len(plain)-1024-500]), reason: "damaged: unexpected EOF"},
		"tar without end":  {data: compress(t, plain[:len(plain)-1024]), reason: "the archive has no end"},
		"wrong CRC":        {data: flipped, reason: "invalid checksum"},
		"header checksum":  {data: compress(t, crossed), reason: "invalid tar header"},
		"text after gzip":  {data: append(bytes.Clone(good), "text"...), reason: "damaged"},
		"tar after tar":    {data: compress(t, append(bytes.Clone(plain), plain...)), reason: "bytes after the end"},
		"bomb":             {data: compress(t, bomb), reason: "unpacks to more than"},
		"no PKG-INFO":      {data: compress(t, makeTar(t, tarFile(top+"setup.py", ""))), reason: "no PKG-INFO"},
		"PKG-INFO deeper":  {data: compress(t, makeTar(t, tarFile(top+"x/PKG-INFO", pkgInfo))), reason: "no PKG-INFO"},
		"PKG-INFO at top":  {data: compress(t, makeTar(t, tarFile("PKG-INFO", pkgInfo))), reason: "not named like the file"},
		"PKG-INFO a link":  {data: compress(t, makeTar(t, tarFile(top+"x", pkgInfo), tarSpecial(top+"PKG-INFO", tar.TypeSymlink, "x"))), reason: "no PKG-INFO"},
		"PKG-INFO large":   {data: compress(t, makeTar(t, tarFile(top+"PKG-INFO", pkgInfo+strings.Repeat("X-Y: z\n", 1<<20)))), reason: "limit"},
		"other project":    {data: compress(t, makeTar(t, tarFile(top+"PKG-INFO", strings.Replace(pkgInfo, "demo", "other", 1)))), reason: `it is of "other-pkg" "1.0"`},
		"other version":    {data: compress(t, makeTar(t, tarFile(top+"PKG-INFO", strings.Replace(pkgInfo, "1.0", "1.1", 1)))), reason: `"1.1"`},
		"wrong top folder": {data: compress(t, makeTar(t, tarFile("evil-1.0/PKG-INFO", pkgInfo))), reason: "not named like the file"},
		"top is a file":    {data: compress(t, makeTar(t, tarFile("demo_pkg-1.0", ""))), reason: "not a folder"},
		"global path":      {data: sdistWith(t, tarMember{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "../evil"}}, ""}), reason: "global header"},
		"name of a wheel":  {file: "demo_pkg-1.0-py3-none-any.whl", data: good, reason: "does not end in"},
		"zip, other top":   {file: "demo_pkg-1.0.zip", data: zipSdist(t, top+"PKG-INFO", "evil/x"), reason: "not in the folder"},
		"zip, ..":          {file: "demo_pkg-1.0.zip", data: zipSdist(t, top+"PKG-INFO", top+"../../x"), reason: `".." in name`},
		"zip, no PKG-INFO": {file: "demo_pkg-1.0.zip", data: zipSdist(t, top+"setup.py"), reason: "no PKG-INFO"},
		"zip, cut":         {file: "demo_pkg-1.0.zip", data: zipSdist(t, top+"PKG-INFO")[:60], reason: "cut short"},
	}
	for name, h := range map[string]struct {
		member tarMember
		reason string
	}{
		"second PKG-INFO":    {tarFile(top+"PKG-INFO", pkgInfo), "duplicate name"},
		"second spelling":    {tarFile(top+"pkg-info", pkgInfo), "another spelling"},
		"second top folder":  {tarFile("evil-1.0/PKG-INFO", pkgInfo), "not in the folder"},
		"file at the top":    {tarFile("setup.py", ""), "not in the folder"},
		"parent":             {tarFile("../evil", ""), `".." in name`},
		"inner parent":       {tarFile(top+"../../evil", ""), `".." in name`},
		"absolute":           {tarFile("/etc/passwd", ""), "absolute name"},
		"drive":              {tarFile("C:/evil", ""), "absolute name"},
		"backslash":          {tarFile(top+`..\evil`, ""), "backslash"},
		"file twice":         {tarFile(top+"src/demo.c", ""), "duplicate name"},
		"folder over a file": {tarSpecial(top+"src/demo.c", tar.TypeDir, ""), "duplicate name"},
		"below a file":       {tarFile(top+"src/demo.c/x", ""), "not a folder"},
		"link out":           {tarSpecial(top+"link", tar.TypeSymlink, "../../etc"), "out of the folder"},
		"link absolute":      {tarSpecial(top+"link", tar.TypeSymlink, "/etc/passwd"), `link to "/etc/passwd"`},
		"link to a drive":    {tarSpecial(top+"link", tar.TypeSymlink, "C:evil"), `link to "C:evil"`},
		"link through links": {tarSpecial(top+"link", tar.TypeSymlink, "x/x/../../y"), "after a name"},
		"hard link out":      {tarSpecial(top+"link", tar.TypeLink, "../../etc/passwd"), "not a file before it"},
		"hard link to link":  {tarSpecial(top+"link", tar.TypeLink, top+"link"), "not a file before it"},
		"device":             {tarSpecial(top+"null", tar.TypeChar, ""), "neither a file"},
		"block device":       {tarSpecial(top+"disk", tar.TypeBlock, ""), "neither a file"},
		"named pipe":         {tarSpecial(top+"pipe", tar.TypeFifo, ""), "neither a file"},
	} {
		out[name] = hostile{data: sdistWith(t, h.member), reason: h.reason}
	}
	out["below a link"] = hostile{
		data: sdistWith(t, tarSpecial(top+"link", tar.TypeSymlink, "src"), tarFile(top+"link/x", "")), reason: "not a folder",
	}
	return out
}

func TestHostileSdists(t *testing.T) {
	for name, h := range hostileSdists(t) {
		file := h.file
		if file == "" {
			file = sdistName
		}
		_, err := readSdist(t, file, h.data)
		if err == nil || !strings.Contains(err.Error(), h.reason) {
			t.Errorf("%s: error %v, want one with %q", name, err, h.reason)
		}
		if _, ok := errors.AsType[*wheel.FormatError](err); !ok && file != "demo_pkg-1.0-py3-none-any.whl" {
			t.Errorf("%s: %v is not a FormatError", name, err)
		}
	}
}

// TestSdistLimits: the number of members and their names are bounded.
func TestSdistLimits(t *testing.T) {
	data := sdistWith(t)
	for want, limits := range map[string]wheel.Limits{
		"more than 2 members":         {Entries: 2},
		"more than 40 bytes of names": {Directory: 40},
		"limit 50":                    {FileSize: 50},
		"limit 10":                    {Metadata: 10},
	} {
		_, err := wheel.ReadSdist(t.Context(), bytes.NewReader(data), int64(len(data)), sdistName, limits)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", limits, err, want)
		}
	}
}

// TestSdistMemory: a gigabyte of zeros is refused after little work, in little memory.
func TestSdistMemory(t *testing.T) {
	var buf bytes.Buffer
	gz, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(gz)
	if err := w.WriteHeader(&tar.Header{Name: "demo_pkg-1.0/zeros", Typeflag: tar.TypeReg, Size: 70 << 20}); err != nil {
		t.Fatal(err)
	}
	for range 70 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = readSdist(t, sdistName, buf.Bytes())
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "unpacks to more than") {
		t.Errorf("error %v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("allocated %d bytes", n)
	}
}

// TestSdistRead: an error of the disk, or a context that ends, is not the archive's fault.
func TestSdistRead(t *testing.T) {
	data := sdistWith(t)
	broken := struct{ io.ReaderAt }{readerAt{iotest.ErrReader(fs.ErrPermission)}}
	_, err := wheel.ReadSdist(t.Context(), broken, int64(len(data)), sdistName, wheel.Limits{})
	if _, ok := errors.AsType[*wheel.FormatError](err); ok || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("disk: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = wheel.ReadSdist(ctx, bytes.NewReader(data), int64(len(data)), sdistName, wheel.Limits{})
	if _, ok := errors.AsType[*wheel.FormatError](err); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

type readerAt struct{ io.Reader }

func (r readerAt) ReadAt(p []byte, _ int64) (int, error) { return r.Read(p) }

// FuzzSdist: what is accepted stays in its folder for any program that unpacks it.
func FuzzSdist(f *testing.F) {
	f.Add(makeTar(f, goodMembers...), false)
	f.Add(zipSdist(f, "demo_pkg-1.0/PKG-INFO"), true)
	for _, h := range hostileSdists(f) {
		if len(h.data) > 4<<10 {
			continue
		}
		if gz, err := gzip.NewReader(bytes.NewReader(h.data)); err == nil {
			if data, err := io.ReadAll(gz); err == nil {
				f.Add(data, false)
			}
		} else {
			f.Add(h.data, true)
		}
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, isZip bool) {
		name := "demo_pkg-1.0.zip"
		archive := data
		if !isZip {
			// Compressed here: mutations of a gzip file hardly ever get past its checksum.
			name, archive = sdistName, compress(t, data)
		}
		m, err := wheel.ReadSdist(t.Context(), bytes.NewReader(archive), int64(len(archive)), name, wheel.Limits{Inflated: 1 << 20})
		if err != nil {
			return
		}
		if wheel.NormalizeName(m.Name()) != "demo-pkg" {
			t.Errorf("accepted as %q", m.Name())
		}
		if isZip {
			return
		}
		infos := 0
		for r := tar.NewReader(bytes.NewReader(data)); ; {
			h, err := r.Next()
			if err != nil {
				break
			}
			if h.Typeflag == tar.TypeXGlobalHeader {
				continue
			}
			if !filepath.IsLocal(h.Name) || h.Typeflag == tar.TypeSymlink && filepath.IsAbs(h.Linkname) {
				t.Errorf("accepted %+v", h)
			}
			if strings.Count(strings.TrimPrefix(h.Name, "./"), "/") == 1 && strings.EqualFold(filepath.Base(h.Name), "PKG-INFO") {
				infos++
			}
		}
		if infos != 1 {
			t.Errorf("%d PKG-INFO", infos)
		}
	})
}
