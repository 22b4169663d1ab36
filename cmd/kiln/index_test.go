package main

import (
	"archive/zip"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kiln-build/kiln/wheel"
)

// scriptWheel writes a small wheel of the name that the path has. A text makes other bytes, and a
// file comes to be in it.
//
//	wheel dist/demo-1.0-py3-none-any.whl [TEXT [FILE]]
func scriptWheel(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 3 {
		ts.Fatalf("usage: wheel FILE [TEXT [FILE]]")
	}
	args = append(args, "", "")
	var more [][2]string
	if name := args[2]; name != "" {
		more = append(more, [2]string{name, ts.ReadFile(name)})
	}
	ts.Check(writeTestWheel(ts.MkAbs(args[0]), args[1], more...))
}

// writeTestWheel writes a small wheel of the name that the path has.
func writeTestWheel(path, text string, more ...[2]string) error {
	name, err := wheel.ParseFilename(filepath.Base(path))
	if err != nil {
		return err
	}
	info := name.RawName + "-" + name.Version.Raw() + ".dist-info/"
	about := "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n"
	for _, tag := range name.Tags() {
		about += "Tag: " + tag.String() + "\n"
	}
	members := [][2]string{
		{name.RawName + ".py", "# " + text + "\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name.Name + "\nVersion: " + name.Version.String() + "\nRequires-Python: >=3.9\n"},
		{info + "WHEEL", about},
	}
	members = append(members, more...)
	record := ""
	for _, m := range members {
		sum := sha256.Sum256([]byte(m[1]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", m[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(m[1]))
	}
	members = append(members, [2]string{info + "RECORD", record + info + "RECORD,,\n"})
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, m := range members {
		// The same bytes with every version of Go: nothing is compressed.
		w, err := z.CreateRaw(&zip.FileHeader{
			Name: m[0], CRC32: crc32.ChecksumIEEE([]byte(m[1])), CompressedSize64: uint64(len(m[1])), UncompressedSize64: uint64(len(m[1])),
		})
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, m[1]); err != nil {
			return err
		}
	}
	return errors.Join(z.Close(), os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, buf.Bytes(), 0o644))
}

// TestServeStops: a server that is told to end, ends well.
func TestServeStops(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot interrupt itself on Windows")
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		out, stdout := io.Pipe()
		var stderr strings.Builder
		code := make(chan int, 1)
		go func() {
			code <- run([]string{"serve", "--dir", t.TempDir(), "--addr", "localhost:0"}, strings.NewReader(""), stdout, &stderr)
			stdout.Close()
		}()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			// It listens before it says so.
			if strings.HasPrefix(lines.Text(), "  upload") {
				if err := self.Signal(sig); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := <-code; got != exitDone || stderr.String() != "" {
			t.Errorf("after %v: exit code %d, %q", sig, got, stderr.String())
		}
	}
}
