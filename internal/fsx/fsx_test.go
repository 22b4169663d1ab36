package fsx_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/fsx"
)

func mustWrite(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// tree returns all files below dir with their content; temporary names are kept, so that
// a leftover shows.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() {
			files[name+"/"] = ""
			return nil
		}
		text, err := os.ReadFile(path)
		files[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func wantTree(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.json")
	for _, text := range []string{"first", "second, longer", ""} {
		if err := fsx.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		wantTree(t, dir, map[string]string{"a.json": text})
	}
	if runtime.GOOS != "windows" {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm() | 0o022; got != 0o662 { // umask may take group and other bits
			t.Errorf("mode %o", info.Mode())
		}
	}
}

func TestWriteFileErrors(t *testing.T) {
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, "folder/file"), "x")
	if err := fsx.WriteFile(filepath.Join(dir, "folder"), nil, 0o666); err == nil || !strings.Contains(err.Error(), "folder: is a folder") {
		t.Errorf("over a folder: %v", err)
	}
	if err := fsx.WriteFile(filepath.Join(dir, "none/file"), nil, 0o666); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into a missing folder: %v", err)
	}
	wantTree(t, dir, map[string]string{"folder/": "", "folder/file": "x"})
}

func TestAtomicFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model")
	mustWrite(t, path, "old")
	f, err := fsx.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if f.Path() != path {
		t.Errorf("path %s", f.Path())
	}
	if _, err := f.Write([]byte("new")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("er content"), 3); err != nil {
		t.Fatal(err)
	}
	if name := filepath.Base(f.File().Name()); !fsx.IsTemp(name) || fsx.IsTemp("model") {
		t.Errorf("IsTemp is wrong about %q", name)
	}
	if text, _ := os.ReadFile(path); string(text) != "old" {
		t.Errorf("before Commit: %q", text)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	wantTree(t, dir, map[string]string{"model": "newer content"})
	if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("second Commit: %v", err)
	}
	if err := f.Abort(); err != nil {
		t.Errorf("Abort after Commit: %v", err)
	}

	f, err = fsx.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Abort(), f.Abort()); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Commit after Abort: %v", err)
	}
	wantTree(t, dir, map[string]string{"model": "newer content"})
}

func TestAtomicFileErrorsNameThePath(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model")
	f, err := fsx.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.File().Close(); err != nil { // as if the file system were gone
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) || err.Error() != "write "+path+": file already closed" {
		t.Errorf("Write: %v", err)
	}
	if _, err := f.WriteAt([]byte("x"), 5); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("WriteAt: %v", err)
	}
	if err := f.Commit(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Commit: %v", err)
	}
	wantTree(t, dir, map[string]string{})
}

func TestRenameDir(t *testing.T) {
	replace := fsx.RenameDirOptions{Replace: true}
	tests := []struct {
		name   string
		target func(t *testing.T, to string)
		opts   fsx.RenameDirOptions
		err    error // nil: published
	}{
		{"absent", func(*testing.T, string) {}, fsx.RenameDirOptions{}, nil},
		{"absent, replace", func(*testing.T, string) {}, replace, nil},
		{"empty", func(t *testing.T, to string) {
			if err := os.Mkdir(to, 0o777); err != nil {
				t.Fatal(err)
			}
		}, fsx.RenameDirOptions{}, nil},
		{"not empty", func(t *testing.T, to string) { mustWrite(t, to+"/sub/stale", "old") }, fsx.RenameDirOptions{}, fsx.ErrNotEmpty},
		{"not empty, replace", func(t *testing.T, to string) { mustWrite(t, to+"/sub/stale", "old") }, replace, nil},
		{"file", func(t *testing.T, to string) { mustWrite(t, to, "old") }, fsx.RenameDirOptions{}, fsx.ErrNotEmpty},
		{"file, replace", func(t *testing.T, to string) { mustWrite(t, to, "old") }, replace, fsx.ErrNotEmpty},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			to := filepath.Join(dir, "model")
			tt.target(t, to)
			before := tree(t, dir)
			from, err := fsx.MkdirTemp(to)
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(t, filepath.Join(from, "config.json"), "{}")
			mustWrite(t, filepath.Join(from, "deep/er/file"), "x")
			err = fsx.RenameDir(from, to, tt.opts)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if tt.err == nil {
				wantTree(t, dir, map[string]string{
					"model/": "", "model/config.json": "{}", "model/deep/": "", "model/deep/er/": "", "model/deep/er/file": "x",
				})
				return
			}
			if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "publish folder "+to) {
				t.Errorf("error text: %v", err)
			}
			if err := os.RemoveAll(from); err != nil {
				t.Fatal(err)
			}
			wantTree(t, dir, before)
		})
	}
	t.Run("no source", func(t *testing.T) {
		dir := t.TempDir()
		if err := fsx.RenameDir(filepath.Join(dir, "none"), filepath.Join(dir, "to"), replace); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		mustWrite(t, filepath.Join(dir, "file"), "")
		if err := fsx.RenameDir(filepath.Join(dir, "file"), filepath.Join(dir, "to"), replace); err == nil {
			t.Error("a file was published as a folder")
		}
	})
}

// TestMoveAside: without an exchange of folders, the old one comes back when the new one
// cannot be placed.
func TestMoveAside(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	mustWrite(t, filepath.Join(to, "f"), "old")
	if _, err := fsx.MoveAside(from, to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no source: %v", err)
	}
	wantTree(t, dir, map[string]string{"to/": "", "to/f": "old"})

	mustWrite(t, filepath.Join(from, "f"), "new")
	replaced, err := fsx.MoveAside(from, to)
	if err != nil || !fsx.IsTemp(filepath.Base(replaced)) {
		t.Fatalf("%s, %v", replaced, err)
	}
	wantTree(t, to, map[string]string{"f": "new"})
	wantTree(t, replaced, map[string]string{"f": "old"})
}

func TestCopyBuffered(t *testing.T) {
	src := bytes.Repeat([]byte("0123456789"), 300_000)
	dst := make(sliceWriter, len(src)+4)
	n, err := fsx.CopyBuffered(dst, 4, bytes.NewReader(src), 0, int64(len(src)))
	if err != nil || n != int64(len(src)) || !bytes.Equal(dst[4:], src) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := fsx.CopyBuffered(dst, 0, bytes.NewReader(src[:5]), 2, 4); n != 3 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short source: %d, %v", n, err)
	}
	if n, err := fsx.CopyBuffered(dst[:2], 0, bytes.NewReader(src), 0, 4); n != 2 || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("short target: %d, %v", n, err)
	}
}

type sliceWriter []byte

func (w sliceWriter) WriteAt(p []byte, off int64) (int, error) {
	n := copy(w[off:], p)
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func TestCopyHash(t *testing.T) {
	data := bytes.Repeat([]byte("kiln "), 10_000)
	want := sha256.Sum256(data)
	for name, src := range map[string]io.Reader{
		"plain":    bytes.NewReader(data),
		"one byte": iotest.OneByteReader(bytes.NewReader(data)),
		"data+EOF": iotest.DataErrReader(bytes.NewReader(data)),
	} {
		var dst bytes.Buffer
		n, sum, err := fsx.CopyHash(&dst, src, make([]byte, 4096))
		if err != nil || n != int64(len(data)) || sum != want || !bytes.Equal(dst.Bytes(), data) {
			t.Errorf("%s: %d bytes, %x, %v", name, n, sum, err)
		}
	}
	boom := errors.New("boom")
	n, sum, err := fsx.CopyHash(io.Discard, io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(boom)), make([]byte, 2))
	if !errors.Is(err, boom) || n != 3 || sum != sha256.Sum256([]byte("abc")) {
		t.Errorf("read error: %d, %x, %v", n, sum, err)
	}
	n, sum, err = fsx.CopyHash(&limitedWriter{left: 5}, bytes.NewReader(data), make([]byte, 4))
	if !errors.Is(err, io.ErrShortWrite) || n != 5 || sum != sha256.Sum256(data[:5]) {
		t.Errorf("short write: %d, %x, %v", n, sum, err)
	}
}

type limitedWriter struct{ left int }

func (w *limitedWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.left -= n
	return n, nil
}

func TestFreeSpace(t *testing.T) {
	dir := t.TempDir()
	have, err := fsx.FreeSpace(dir)
	if err != nil || have <= 0 {
		t.Fatalf("%d, %v", have, err)
	}
	if n, err := fsx.FreeSpace(filepath.Join(dir, "not", "there", "yet")); err != nil || n <= 0 {
		t.Errorf("missing folder: %d, %v", n, err)
	}
}

func TestPreallocate(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("head"); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ size, want int64 }{{0, 4}, {100_000, 100_000}, {10, 100_000}} {
		if err := fsx.Preallocate(f, step.size); err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil || info.Size() != step.want {
			t.Errorf("Preallocate(%d): size %d, want %d (%v)", step.size, info.Size(), step.want, err)
		}
	}
	text := make([]byte, 6)
	if _, err := f.ReadAt(text, 0); err != nil || string(text) != "head\x00\x00" {
		t.Errorf("content %q, %v", text, err)
	}
}

func TestHints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	mustWrite(t, path, strings.Repeat("kiln", 10_000))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	hints := func() { // whatever they are given, they change nothing
		for _, r := range [][2]int64{{0, 40_000}, {0, 0}, {39_000, 1 << 40}, {1 << 40, 1}, {-1, 5}, {5, -1}} {
			fsx.Prefetch(f, r[0], r[1])
			fsx.StartWriteback(f, r[0], r[1])
		}
	}
	if _, err := f.WriteAt([]byte("KILN"), 4); err != nil {
		t.Fatal(err)
	}
	hints()
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	hints() // a closed file is no matter
	got, err := os.ReadFile(path)
	if want := "kilnKILN" + strings.Repeat("kiln", 9_998); err != nil || string(got) != want {
		t.Errorf("content changed: %d bytes, %v", len(got), err)
	}
}

func TestCopyRange(t *testing.T) {
	dir := t.TempDir()
	content := make([]byte, 3<<20+77)
	for i := range content {
		content[i] = byte(i*7 + i>>9)
	}
	src, err := os.Create(filepath.Join(dir, "src"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := src.Write(content); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		dst, err := os.OpenFile(filepath.Join(dir, "dst"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		defer dst.Close()
		srcOff := rapid.Int64Range(0, int64(len(content))).Draw(t, "srcOff")
		n := rapid.Int64Range(0, int64(len(content))).Draw(t, "n")
		dstOff := rapid.Int64Range(0, 5000).Draw(t, "dstOff")
		have := min(n, int64(len(content))-srcOff)
		done, err := fsx.CopyRange(dst, dstOff, src, srcOff, n)
		if done != have || (have < n) != errors.Is(err, io.ErrUnexpectedEOF) || have == n && err != nil {
			t.Fatalf("copied %d of %d (%d there): %v", done, n, have, err)
		}
		got := make([]byte, have)
		if _, err := dst.ReadAt(got, dstOff); err != nil && have > 0 {
			t.Fatal(err)
		}
		if !bytes.Equal(got, content[srcOff:srcOff+have]) {
			t.Fatal("content differs")
		}
	})
	if _, err := fsx.CopyRange(src, 0, src, -1, 1); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("negative offset: %v", err)
	}
}

// TestCopyRangeFallback copies from a file that the kernel cannot copy from.
func TestCopyRangeFallback(t *testing.T) {
	src, err := os.Open("/proc/self/cmdline")
	if err != nil {
		t.Skipf("no file that copy_file_range refuses: %v", err)
	}
	defer src.Close()
	want, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	dst, err := os.Create(filepath.Join(t.TempDir(), "dst"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	n, err := fsx.CopyRange(dst, 2, src, 1, int64(len(want)-1))
	if err != nil || n != int64(len(want)-1) {
		t.Fatalf("%d, %v", n, err)
	}
	got, err := os.ReadFile(dst.Name())
	if err != nil || !bytes.Equal(got[2:], want[1:]) {
		t.Errorf("%q, %v", got, err)
	}
}

func BenchmarkCopy(b *testing.B) {
	const size = 64 << 20
	dir := b.TempDir()
	src, err := os.Create(filepath.Join(dir, "src"))
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	if _, err := src.Write(bytes.Repeat([]byte("0123456789abcdef"), size/16)); err != nil {
		b.Fatal(err)
	}
	dst, err := os.Create(filepath.Join(dir, "dst"))
	if err != nil {
		b.Fatal(err)
	}
	defer dst.Close()
	b.Run("CopyRange", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := fsx.CopyRange(dst, 3, src, 0, size); err != nil {
				b.Fatal(err)
			}
		}
	})
	buf := make([]byte, 1<<20)
	b.Run("CopyHash", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			w := io.NewOffsetWriter(dst, 3)
			if _, _, err := fsx.CopyHash(w, io.NewSectionReader(src, 0, size), buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestSHA256(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("abc"), 0o666); err != nil {
		t.Fatal(err)
	}
	// The example of FIPS 180-2.
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if sum, size, err := fsx.SHA256(path); sum != want || size != 3 || err != nil {
		t.Errorf("%s, %d, %v", sum, size, err)
	}
	if _, _, err := fsx.SHA256(path + ".gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if sum, _, err := fsx.SHA256(filepath.Dir(path)); sum != "" || err == nil {
		t.Errorf("a folder: %q, %v", sum, err)
	}
}

func TestMakeDirOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store", "tool")
	failed := errors.New("no network")
	if err := fsx.MakeDirOnce(t.Context(), path, func(temp string) error {
		return errors.Join(failed, os.WriteFile(filepath.Join(temp, "half"), nil, 0o666))
	}); !errors.Is(err, failed) {
		t.Fatalf("got %v", err)
	}
	var filled atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := fsx.MakeDirOnce(t.Context(), path, func(temp string) error {
				filled.Add(1)
				return os.WriteFile(filepath.Join(temp, "whole"), nil, 0o666)
			}); err != nil {
				t.Error(err)
			}
			if entries, err := os.ReadDir(path); err != nil || len(entries) != 1 || entries[0].Name() != "whole" {
				t.Errorf("%v, %v", entries, err)
			}
		})
	}
	wg.Wait()
	if n := filled.Load(); n != 1 {
		t.Errorf("filled %d times", n)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 2 {
		t.Errorf("want the folder and its lock, got %v, %v", entries, err)
	}
}
