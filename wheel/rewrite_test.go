package wheel_test

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	klauspost "github.com/klauspost/compress/flate"

	"github.com/kiln-build/kiln/wheel"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// rewrite rewrites w in memory and checks what holds for every result.
func rewrite(t testing.TB, w madeWheel, opts wheel.RewriteOptions) madeWheel {
	t.Helper()
	var out bytes.Buffer
	done, err := wheel.Rewrite(t.Context(), w.open(t), &out, opts)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(out.Bytes())
	if done.SHA256 != hex.EncodeToString(sum[:]) || done.Size != int64(out.Len()) || done.Name != done.Filename.String() {
		t.Errorf("%+v does not describe what was written", done)
	}
	got := madeWheel{done.Name, out.Bytes()}
	if problems, err := got.open(t).Check(t.Context(), wheel.CheckOptions{}); err != nil || len(problems) > 0 {
		t.Errorf("rewritten wheel: %v, %v", problems, err)
	}
	return got
}

func contents(t testing.TB, w madeWheel) map[string]string {
	t.Helper()
	// archive/zip, not this package: two readers must agree.
	z, err := zip.NewReader(bytes.NewReader(w.data), int64(len(w.data)))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = string(content)
	}
	return files
}

// goldenWheel has the irregularities that Rewrite removes. Its bytes do not
// depend on the compressor of this version of Go.
func goldenWheel(t testing.TB) madeWheel {
	code := strings.Repeat("answer = 42\n", 4)
	packed := []byte{0x4b, 0xcc, 0x2b, 0x2e, 0x4f, 0x2d, 0x52, 0xb0, 0x55, 0x30, 0x31, 0xe2, 0x4a, 0x24, 0x82, 0x0d, 0x00} // code, deflated once
	crc := crc32.ChecksumIEEE([]byte(code))
	le := binary.LittleEndian
	descriptor := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, crc), uint32(len(packed))), uint32(len(code)))
	return makeWheel(t, wheelOptions{
		name: "Golden.Demo", version: "1.0", tag: "py3.py2-none-any",
		files: []file{
			{name: "golden/", content: ""},
			{name: "golden/z.py", content: code},
			{name: "golden/a, b.txt", content: "comma\n"},
			{name: "golden/é.txt", content: "accent\n"},
			{name: "golden/run", content: "#!/bin/sh\n", executable: true},
			{name: "Golden.Demo-1.0.data/scripts/tool", content: "#!python\n", executable: true},
		},
		metadata: "Metadata-Version: 2.1\r\nName: Golden.Demo\r\nVersion: 1.0\r\nRequires-Dist: torch (>=2.2.0) ; extra == 'gpu'\r\n\r\nText.\r\n",
		entries: func(m []zipMember) []zipMember {
			for i := range m {
				if m[i].method == 8 {
					m[i].method = 0
				}
				if m[i].name == "golden/z.py" {
					m[i].method, m[i].packed, m[i].flags = 8, packed, 8
					m[i].descriptor = append([]byte("PK\x07\x08"), descriptor...)
				}
			}
			slices.Reverse(m)
			return append(m, zipMember{name: "Golden.Demo-1.0.dist-info/RECORD.jws", content: []byte("{}")})
		},
	})
}

func TestRewriteGolden(t *testing.T) {
	src := goldenWheel(t)
	label := "cu128-torch2.9"
	opts := wheel.RewriteOptions{
		Local: &label, Python: []string{"py3"}, Platform: []string{"linux_x86_64"}, Build: new("2"),
		EditMetadata: func(m *wheel.Metadata) error {
			n, err := m.SetRequiresDist("torch", "==2.9.*")
			if n != 1 {
				t.Errorf("%d requirements changed, want 1", n)
			}
			return err
		},
		EditInfo: func(i *wheel.WheelInfo) error { i.RootIsPurelib = false; return nil },
		Add:      map[string][]byte{"sboms/kiln.json": []byte("{}\n"), "build.json": []byte("{}\n")},
		Time:     time.Unix(1_763_000_001, 0),
	}
	got := rewrite(t, src, opts)
	if want := "golden_demo-1.0+cu128.torch2.9-2-py3-none-linux_x86_64.whl"; got.name != want {
		t.Errorf("name %s, want %s", got.name, want)
	}
	golden := filepath.Join("testdata", "rewrite", got.name)
	if kilntest.Update() {
		kilntest.WriteGolden(t, golden, got.data)
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got.data) {
		t.Errorf("bytes differ from %s; content (-golden +got):\n%s", golden, cmp.Diff(contents(t, madeWheel{got.name, want}), contents(t, got)))
	}
	if again := rewrite(t, got, opts); !bytes.Equal(again.data, got.data) || again.name != got.name {
		t.Error("rewriting the result again changes it")
	}

	const stem = "golden_demo-1.0+cu128.torch2.9"
	var names []string
	z, err := zip.NewReader(bytes.NewReader(got.data), int64(len(got.data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File {
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(f.Name, "/run") || strings.HasSuffix(f.Name, "/tool") {
			mode = 0o755
		}
		if f.Mode() != mode || !f.Modified.Equal(time.Unix(1_763_000_000, 0)) || f.Flags&8 != 0 || len(f.Extra) > 0 {
			t.Errorf("%s: mode %v, time %v, flags %#x, extra %x", f.Name, f.Mode(), f.Modified.UTC(), f.Flags, f.Extra)
		}
		names = append(names, f.Name)
	}
	if diff := cmp.Diff([]string{
		"golden/a, b.txt", "golden/run", "golden/z.py", "golden/é.txt",
		stem + ".data/scripts/tool",
		stem + ".dist-info/METADATA", stem + ".dist-info/WHEEL", stem + ".dist-info/build.json", stem + ".dist-info/sboms/kiln.json",
		stem + ".dist-info/RECORD",
	}, names); diff != "" {
		t.Error(diff)
	}
	files := contents(t, got)
	if diff := cmp.Diff("Metadata-Version: 2.1\r\nName: Golden.Demo\r\nVersion: 1.0+cu128.torch2.9\r\nRequires-Dist: torch==2.9.* ; extra == 'gpu'\r\n\r\nText.\r\n", files[stem+".dist-info/METADATA"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("Wheel-Version: 1.0\nGenerator: maker (1)\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\nBuild: 2\n\n", files[stem+".dist-info/WHEEL"]); diff != "" {
		t.Error(diff)
	}
}

// TestRewriteKeepsCompressedBytes: members that stay are copied, not deflated
// again; Go would deflate this one to another length.
func TestRewriteKeepsCompressedBytes(t *testing.T) {
	content := []byte(strings.Repeat("x", 1000))
	packed := append([]byte{0x00, 0xe8, 0x03, 0x17, 0xfc}, content...) // deflate, a block without compression
	packed = append(packed, 0x03, 0x00)                                // and an empty final block
	w := makeWheel(t, wheelOptions{
		files:   []file{{name: "x.bin", content: string(content)}},
		entries: func(m []zipMember) []zipMember { m[0].method, m[0].packed = 8, packed; return m },
	})
	got := rewrite(t, w, wheel.RewriteOptions{Local: new("cpu")})
	if !bytes.Contains(got.data, packed) {
		t.Error("compressed bytes changed")
	}
	for m := range got.open(t).Files() {
		if m.Name == "x.bin" && m.CompressedSize != int64(len(packed)) {
			t.Errorf("compressed size %d, want %d", m.CompressedSize, len(packed))
		}
	}
}

// TestRewriteRepairsRenamed: a wheel that was given its label by renaming.
func TestRewriteRepairsRenamed(t *testing.T) {
	w := makeWheel(t, wheelOptions{files: []file{{name: "demo.py"}, {name: "demo-1.0.data/data/x"}}})
	w.name = "demo-1.0+cu128.torch2.9-1-cp312-cp312-linux_x86_64.whl"
	got := rewrite(t, w, wheel.RewriteOptions{})
	if got.name != w.name {
		t.Errorf("name %s", got.name)
	}
	files := contents(t, got)
	if _, ok := files["demo-1.0+cu128.torch2.9.data/data/x"]; !ok {
		t.Errorf("data folder not renamed: %v", files)
	}
	if got := files["demo-1.0+cu128.torch2.9.dist-info/METADATA"]; !strings.Contains(got, "\nVersion: 1.0+cu128.torch2.9\n") {
		t.Errorf("METADATA %q", got)
	}
	back := rewrite(t, got, wheel.RewriteOptions{Local: new(""), Python: []string{"py3"}, ABI: []string{"none"}, Platform: []string{"any"}, Build: new("")})
	if back.name != "demo-1.0-py3-none-any.whl" {
		t.Errorf("name %s", back.name)
	}
	if _, ok := contents(t, back)["demo-1.0.dist-info/METADATA"]; !ok {
		t.Error("label not removed from the folder")
	}
}

func TestRewriteRefuses(t *testing.T) {
	altered := func(name string) func([]zipMember) []zipMember {
		return func(m []zipMember) []zipMember {
			i := slices.IndexFunc(m, func(m zipMember) bool { return m.name == name })
			m[i].content = append(bytes.Clone(m[i].content[:len(m[i].content)-2]), '!', '\n')
			return m
		}
	}
	edit := func(field, value string) func(*wheel.Metadata) error {
		return func(m *wheel.Metadata) error { return m.Set(field, value) }
	}
	errEdit := errors.New("no")
	for _, test := range []struct {
		name, as string
		o        wheelOptions
		opts     wheel.RewriteOptions
		reason   string
	}{
		{"altered member", "", wheelOptions{entries: altered(demoFile)}, wheel.RewriteOptions{}, demoFile + ": sha256 mismatch"},
		{"altered METADATA, edited", "", wheelOptions{entries: altered(demoMetadata)}, wheel.RewriteOptions{Local: new("x")}, demoMetadata + ": sha256 mismatch"},
		{"altered WHEEL, edited", "", wheelOptions{entries: func(m []zipMember) []zipMember {
			i := slices.IndexFunc(m, func(m zipMember) bool { return strings.HasSuffix(m.name, "/WHEEL") })
			m[i].content = bytes.ToUpper(m[i].content)
			return m
		}}, wheel.RewriteOptions{Platform: []string{"win32"}}, "WHEEL: sha256 mismatch"},
		{"unlisted member", "", wheelOptions{record: func(r []string) []string { return r[1:] }}, wheel.RewriteOptions{}, "not listed in RECORD"},
		{"another version", "demo-1.1-py3-none-any.whl", wheelOptions{}, wheel.RewriteOptions{}, "another version"},
		{"another project", "other-1.0-py3-none-any.whl", wheelOptions{}, wheel.RewriteOptions{}, "another project"},
		{"two dist-info", "", wheelOptions{files: []file{{name: "x-1.dist-info/METADATA"}}}, wheel.RewriteOptions{}, "more than one .dist-info"},
		{"bad label", "", wheelOptions{}, wheel.RewriteOptions{Local: new("cu/128")}, "local version"},
		{"bad tag", "", wheelOptions{}, wheel.RewriteOptions{Platform: []string{"linux-x86_64"}}, "tag"},
		{"tag that becomes a build", "", wheelOptions{}, wheel.RewriteOptions{Python: []string{"1-py3"}}, "tag"},
		{"no tag", "", wheelOptions{}, wheel.RewriteOptions{ABI: []string{}}, "tag"},
		{"bad build", "", wheelOptions{}, wheel.RewriteOptions{Build: new("x1")}, "x1"},
		{"build with a dash", "", wheelOptions{}, wheel.RewriteOptions{Build: new("1-2")}, ""},
		{"edit fails", "", wheelOptions{}, wheel.RewriteOptions{EditMetadata: func(*wheel.Metadata) error { return errEdit }}, "edit METADATA: no"},
		{"edit of the name", "", wheelOptions{}, wheel.RewriteOptions{EditMetadata: edit("Name", "other")}, "no longer describes demo 1.0"},
		{"edit of the version", "", wheelOptions{}, wheel.RewriteOptions{EditMetadata: edit("Version", "2")}, "no longer describes demo 1.0"},
		{"edit that is too long", "", wheelOptions{}, wheel.RewriteOptions{EditMetadata: edit("X", strings.Repeat("x", 4<<20))}, "limit 4194304"},
		{"edit of tags", "", wheelOptions{}, wheel.RewriteOptions{EditInfo: func(i *wheel.WheelInfo) error { i.Tags = nil; return nil }}, "no longer describes"},
		{"edit of WHEEL fails", "", wheelOptions{}, wheel.RewriteOptions{EditInfo: func(*wheel.WheelInfo) error { return errEdit }}, "edit WHEEL: no"},
		{"add METADATA", "", wheelOptions{}, wheel.RewriteOptions{Add: map[string][]byte{"METADATA": nil}}, "add METADATA"},
		{"add RECORD in another case", "", wheelOptions{}, wheel.RewriteOptions{Add: map[string][]byte{"record": nil}}, "add record"},
		{"add outside", "", wheelOptions{}, wheel.RewriteOptions{Add: map[string][]byte{"../x": nil}}, `".." in name`},
		{"add a folder", "", wheelOptions{}, wheel.RewriteOptions{Add: map[string][]byte{"x/": nil}}, "names a folder"},
		{"add below a file", "", wheelOptions{}, wheel.RewriteOptions{Add: map[string][]byte{"x": nil, "x/y": nil}}, "both a file and a folder"},
		{"add below METADATA", "", wheelOptions{}, wheel.RewriteOptions{Add: map[string][]byte{"METADATA/x": nil}}, "both a file and a folder"},
		{"add two cases", "", wheelOptions{}, wheel.RewriteOptions{Add: map[string][]byte{"x": nil, "X": nil}}, "case is ignored"},
		{"after 2107", "", wheelOptions{}, wheel.RewriteOptions{Time: time.Date(2108, 1, 1, 0, 0, 0, 0, time.UTC)}, "after the year 2107"},
	} {
		w := makeWheel(t, test.o)
		if test.as != "" {
			w.name = test.as
		}
		_, err := wheel.Rewrite(t.Context(), w.open(t), io.Discard, test.opts)
		if err == nil || !strings.Contains(err.Error(), test.reason) || !strings.Contains(err.Error(), w.name) {
			t.Errorf("%s: error %v, want one with %q", test.name, err, test.reason)
		}
	}
}

func TestRewriteTimes(t *testing.T) {
	w := makeWheel(t, wheelOptions{})
	zero := rewrite(t, w, wheel.RewriteOptions{})
	for _, early := range []time.Time{time.Unix(0, 0), time.Date(1980, 1, 1, 0, 0, 1, 0, time.UTC), time.Date(1979, 12, 31, 18, 0, 0, 0, time.FixedZone("", -5*3600))} {
		if got := rewrite(t, w, wheel.RewriteOptions{Time: early}); !bytes.Equal(got.data, zero.data) {
			t.Errorf("%v differs from the default", early)
		}
	}
	if got := rewrite(t, w, wheel.RewriteOptions{Time: time.Unix(1e9, 0)}); bytes.Equal(got.data, zero.data) {
		t.Error("time has no effect")
	}
}

// folder lists a folder, to see what was left behind.
func folder(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestRewriteFile(t *testing.T) {
	w := makeWheel(t, wheelOptions{})
	in, out := t.TempDir(), t.TempDir()
	path := filepath.Join(in, w.name)
	if err := os.WriteFile(path, w.data, 0o666); err != nil {
		t.Fatal(err)
	}
	opts := wheel.RewriteOptions{Local: new("cu128")}
	const name = "demo-1.0+cu128-py3-none-any.whl"
	done, err := wheel.RewriteFile(t.Context(), path, out, opts)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(out, name))
	if err != nil || done.Name != name || !bytes.Equal(data, rewrite(t, w, opts).data) {
		t.Fatalf("%+v, %v", done, err)
	}
	if info, err := os.Stat(filepath.Join(out, name)); err != nil || info.Mode().Perm()&0o600 != 0o600 || info.Mode().Perm()&0o111 != 0 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	// Again: the same bytes are no conflict and the file is left alone.
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	if err := os.Chtimes(filepath.Join(out, name), old, old); err != nil {
		t.Fatal(err)
	}
	again, err := wheel.RewriteFile(t.Context(), path, out, opts)
	if err != nil || again.SHA256 != done.SHA256 {
		t.Errorf("%+v, %v", again, err)
	}
	if info, err := os.Stat(filepath.Join(out, name)); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("equal file was replaced: %v, %v", info.ModTime(), err)
	}

	// Other bytes are one, unless overwriting was asked for.
	opts.Time = time.Unix(1e9, 0)
	if _, err := wheel.RewriteFile(t.Context(), path, out, opts); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v, want fs.ErrExist", err)
	}
	if now, err := os.ReadFile(filepath.Join(out, name)); err != nil || !bytes.Equal(now, data) {
		t.Errorf("refused rewrite changed the file: %v", err)
	}
	opts.Overwrite = true
	if replaced, err := wheel.RewriteFile(t.Context(), path, out, opts); err != nil || replaced.SHA256 == done.SHA256 {
		t.Errorf("%+v, %v", replaced, err)
	}
	if diff := cmp.Diff([]string{name}, folder(t, out)); diff != "" {
		t.Error(diff)
	}
}

// cancelAfter is a context that ends after it was asked n times.
type cancelAfter struct {
	context.Context
	n      *int
	cancel context.CancelFunc
}

func (c cancelAfter) Err() error {
	if *c.n--; *c.n < 0 {
		c.cancel()
	}
	return c.Context.Err()
}

func TestRewriteFileLeavesNothing(t *testing.T) {
	w := makeWheel(t, wheelOptions{files: []file{{name: "a.bin", content: strings.Repeat("a", 300<<10)}, {name: "b.bin", content: strings.Repeat("b", 300<<10), deflate: true}}})
	in, out := t.TempDir(), t.TempDir()
	path := filepath.Join(in, w.name)
	if err := os.WriteFile(path, w.data, 0o666); err != nil {
		t.Fatal(err)
	}
	cancelled := 0
	for n := 0; ; n++ {
		ctx, cancel := context.WithCancel(t.Context())
		left := n
		_, err := wheel.RewriteFile(cancelAfter{ctx, &left, cancel}, path, out, wheel.RewriteOptions{})
		cancel()
		if err == nil {
			break
		}
		cancelled++
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if left := folder(t, out); len(left) > 0 {
			t.Fatalf("cancelled at step %d, left %q", n, left)
		}
	}
	if cancelled < 10 {
		t.Errorf("cancelled at %d steps only", cancelled)
	}
	if _, err := wheel.RewriteFile(t.Context(), path, filepath.Join(out, "none"), wheel.RewriteOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
	bad := makeWheel(t, wheelOptions{record: func(r []string) []string { r[0] = recordRow(demoFile, "x"); return r }})
	if err := os.WriteFile(path, bad.data, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := wheel.RewriteFile(t.Context(), path, out, wheel.RewriteOptions{Local: new("x")}); err == nil {
		t.Error("altered wheel accepted")
	}
	if diff := cmp.Diff([]string{w.name}, folder(t, out)); diff != "" {
		t.Error(diff)
	}
}

// failingWriter takes n bytes.
type failingWriter struct{ n int }

func (f *failingWriter) Write(p []byte) (int, error) {
	if f.n -= len(p); f.n < 0 {
		return 0, errDisk
	}
	return len(p), nil
}

func TestRewriteWriteErrors(t *testing.T) {
	r := makeWheel(t, wheelOptions{}).open(t)
	done, err := wheel.Rewrite(t.Context(), r, io.Discard, wheel.RewriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	step := 1
	if testing.Short() {
		step = 7
	}
	for n := 0; n < int(done.Size); n += step {
		if _, err := wheel.Rewrite(t.Context(), r, &failingWriter{n}, wheel.RewriteOptions{}); !errors.Is(err, errDisk) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

// TestRewriteManyMembers needs the ZIP64 end records.
func TestRewriteManyMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("66,000 members take a second")
	}
	var files []file
	for i := range 66_000 {
		files = append(files, file{name: fmt.Sprintf("d/%05d", i)})
	}
	w := makeWheel(t, wheelOptions{files: files, container: zipContainer{zip64: true}})
	got := rewrite(t, w, wheel.RewriteOptions{Local: new("cpu")})
	if n := len(contents(t, got)); n != 66_003 {
		t.Errorf("%d members", n)
	}
}

// FuzzArchive opens, checks and rewrites. What is rewritten is clean, and
// rewriting it again changes nothing.
func FuzzArchive(f *testing.F) {
	f.Add(goldenWheel(f).data, "cu128")
	f.Add(makeWheel(f, wheelOptions{name: "Golden.Demo"}).data, "")
	f.Add(makeWheel(f, wheelOptions{name: "Golden.Demo", version: "1.0+x", container: zipContainer{zip64: true}}).data, "y")
	for _, h := range hostileArchives() {
		if data := h.data(f); len(data) < 4<<10 {
			f.Add(bytes.ReplaceAll(data, []byte("demo-1.0.dist-info"), []byte("Golden.Demo-1.0.di")), "z")
			f.Add(data, "")
		}
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, label string) {
		const name = "Golden.Demo-1.0-py2.py3-none-any.whl"
		limits := wheel.Limits{Inflated: 1 << 20} // keeps the fuzzer fast
		r, err := wheel.NewReader(bytes.NewReader(data), int64(len(data)), name, limits)
		if err != nil {
			if _, ok := errors.AsType[*wheel.FormatError](err); !ok {
				t.Fatalf("not a FormatError: %v", err)
			}
			return
		}
		// Whatever opens here means the same to another reader.
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatalf("archive/zip refuses it: %v", err)
		}
		i := 0
		for m := range r.Files() {
			if f := z.File[i]; f.Name != m.Name || f.UncompressedSize64 != uint64(m.Size) || f.CRC32 != m.CRC32 {
				t.Fatalf("archive/zip sees %+v, not %+v", f.FileHeader, m)
			}
			i++
		}
		checkRewrite(t, r, label, limits)
	})
}

// FuzzInflate: whatever the compressed bytes are, another inflater makes the same of them, or
// refuses them like that of the standard library.
func FuzzInflate(f *testing.F) {
	for _, text := range []string{"", "a", strings.Repeat("golden ", 10_000), strings.Repeat("\x00", 1<<20)} {
		packed := deflate([]byte(text))
		f.Add(packed)
		f.Add(packed[:len(packed)/2])
		f.Add(append(packed, 0))
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, packed []byte) {
		content, _ := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), 1<<20))
		w := makeWheel(t, wheelOptions{entries: func(members []zipMember) []zipMember {
			return append(members, zipMember{name: "demo/data", content: content, packed: packed, method: 8, mode: 0o100644})
		}})
		read := func(open func(io.Reader) io.ReadCloser) ([]byte, error) {
			r, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, wheel.Limits{})
			if err != nil {
				return nil, err
			}
			r.SetInflater(open)
			m, err := r.OpenFile("demo/data")
			if err != nil {
				t.Fatal(err)
			}
			return io.ReadAll(m)
		}
		want, wantErr := read(flate.NewReader)
		got, err := read(klauspost.NewReader)
		if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Fatalf("%d bytes, %v; the standard library: %d bytes, %v", len(got), err, len(want), wantErr)
		}
		if _, ok := errors.AsType[*wheel.FormatError](err); err != nil && !ok {
			t.Errorf("not a FormatError: %v", err)
		}
	})
}

// FuzzRewrite is FuzzArchive on archives that are well formed, which chance seldom
// makes.
func FuzzRewrite(f *testing.F) {
	meta := "Metadata-Version: 2.1\nName: golden-demo\nVersion: 1.0\n"
	info := "Wheel-Version: 1.0\nTag: py2.py3-none-any\n\n"
	f.Add("a.py", "Golden.Demo-1.0.data/data/b", "content", meta, info, "cu128", uint8(0))
	f.Add("é, \"x\".py", "A.py", "", "\ufeff"+strings.ReplaceAll(meta, "\n", "\r\n"), info+"body", "", uint8(1))
	f.Add("a/b", "Golden.Demo-1.0.dist-info/x", "y", strings.Replace(meta, "1.0\n", "1.0+x", 1), "Wheel-Version: 1.0\nBuild: 7", "x", uint8(2))
	f.Add("golden_demo-1.0+z.data/scripts/a", "golden_demo-1.0+z.dist-info", "y", meta, info, "z", uint8(3))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, file1, file2, content, meta, info, label string, how uint8) {
		if len(file1) > 2000 || len(file2) > 2000 { // lengths are 16 bits
			return
		}
		w := makeWheel(t, wheelOptions{
			name: "Golden.Demo", tag: "py2.py3-none-any", metadata: meta, info: info,
			files:     []file{{name: file1, content: content, deflate: how&1 != 0}, {name: file2, content: content, executable: how&2 != 0}},
			container: zipContainer{zip64: how&4 != 0},
		})
		limits := wheel.Limits{}
		r, err := wheel.NewReader(bytes.NewReader(w.data), int64(len(w.data)), w.name, limits)
		if err != nil {
			return
		}
		checkRewrite(t, r, label, limits)
	})
}

// checkRewrite rewrites r, if that is accepted, and checks what must hold then.
func checkRewrite(t *testing.T, r *wheel.Reader, label string, limits wheel.Limits) {
	problems, err := r.Check(t.Context(), wheel.CheckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	opts := wheel.RewriteOptions{}
	if label != "" {
		opts.Local = &label
	}
	var out bytes.Buffer
	done, err := wheel.Rewrite(t.Context(), r, &out, opts)
	if err != nil {
		if len(problems) == 0 && label == "" {
			t.Fatalf("clean wheel refused: %v", err)
		}
		return
	}
	again, err := wheel.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()), done.Name, limits)
	if err != nil {
		t.Fatalf("rewritten: %v", err)
	}
	if problems, err := again.Check(t.Context(), wheel.CheckOptions{}); err != nil || len(problems) > 0 {
		t.Fatalf("rewritten: %v, %v", problems, err)
	}
	var twice bytes.Buffer
	if done2, err := wheel.Rewrite(t.Context(), again, &twice, opts); err != nil || done2.SHA256 != done.SHA256 || !bytes.Equal(out.Bytes(), twice.Bytes()) {
		t.Fatalf("not a fixed point: %v", err)
	}
}

func BenchmarkRewrite(b *testing.B) {
	r := largeWheel(b).open(b)
	opts := wheel.RewriteOptions{Local: new("cu128")}
	b.SetBytes(inflatedSize(r))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wheel.Rewrite(b.Context(), r, io.Discard, opts); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMerge: the files of several wheels of one version in one wheel, with its own metadata.
func TestMerge(t *testing.T) {
	made := func(version, name, content string) madeWheel {
		return makeWheel(t, wheelOptions{name: "demo", version: version, tag: "py3-none-linux_x86_64", files: []file{
			{name: "demo/__init__.py", content: "answer = 42\n"},
			{name: "demo/" + name, content: content, executable: true},
			{name: "demo-" + version + ".data/scripts/" + name, content: "#!python\n"},
		}})
	}
	base, one, two := made("1.0", "lib_cpu.so", "cpu"), made("1.0+cu126", "lib_cuda126.so", "126"), made("1.0+cu130", "lib_cuda130.so", "130")
	got := rewrite(t, base, wheel.RewriteOptions{Merge: []*wheel.Reader{one.open(t), two.open(t)}})
	want := []string{
		"demo-1.0.data/scripts/lib_cpu.so", "demo-1.0.data/scripts/lib_cuda126.so", "demo-1.0.data/scripts/lib_cuda130.so",
		"demo/__init__.py", "demo/lib_cpu.so", "demo/lib_cuda126.so", "demo/lib_cuda130.so",
	}
	files := contents(t, got)
	for _, name := range want {
		if _, ok := files[name]; !ok {
			t.Errorf("there is no %s", name)
		}
	}
	if files["demo/lib_cuda130.so"] != "130" || len(files) != len(want)+3 || got.name != base.name {
		t.Errorf("%s: %d files, want %d", got.name, len(files), len(want)+3)
	}
	other := made("1.0+cu130", "lib_cuda126.so", "other")
	for what, merge := range map[string][]madeWheel{
		"merge: demo/lib_cuda126.so has other bytes in demo-1.0+cu130-py3-none-linux_x86_64.whl than in demo-1.0+cu126-py3-none-linux_x86_64.whl": {one, other},
		"it is not of demo 1.0":   {made("1.1", "lib.so", "x")},
		"Root-Is-Purelib differs": {makeWheel(t, wheelOptions{name: "demo", version: "1.0+x", tag: "py3-none-linux_x86_64", info: "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n\n"})},
	} {
		var opts wheel.RewriteOptions
		for _, w := range merge {
			opts.Merge = append(opts.Merge, w.open(t))
		}
		if _, err := wheel.Rewrite(t.Context(), base.open(t), io.Discard, opts); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
}
