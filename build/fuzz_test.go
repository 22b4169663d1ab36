package build

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// FuzzUnpackSdist: whatever a source distribution has in it, nothing appears outside of its folder.
func FuzzUnpackSdist(f *testing.F) {
	members := []struct{ name, link string }{
		{"demo-1.0/", ""},
		{"demo-1.0/setup.py", ""},
		{"demo-1.0/link", "setup.py"},
		{"demo-1.0/out", "../../outside"},
		{"../outside", ""},
	}
	var t, z bytes.Buffer
	packed := gzip.NewWriter(&t)
	tars, zips := tar.NewWriter(packed), zip.NewWriter(&z)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Linkname: m.link, Mode: 0o644, Typeflag: tar.TypeReg}
		switch {
		case m.link != "":
			h.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(m.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := tars.WriteHeader(h); err != nil {
			f.Fatal(err)
		}
		if _, err := zips.Create(m.name); err != nil {
			f.Fatal(err)
		}
		if err := tars.Flush(); err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(t.Bytes()), false)
	}
	for _, c := range []interface{ Close() error }{tars, packed, zips} {
		if err := c.Close(); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(t.Bytes(), false)
	f.Add(z.Bytes(), true)
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, zipped bool) {
		dir := t.TempDir()
		name := "demo-1.0.tar.gz"
		if zipped {
			name = "demo-1.0.zip"
		}
		archive, to := filepath.Join(dir, name), filepath.Join(dir, "to")
		if err := os.WriteFile(archive, data, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(to, 0o777); err != nil {
			t.Fatal(err)
		}
		_, _ = unpackSdist(archive, to) // most are refused
		found, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != 2 {
			t.Errorf("%v are there now", found)
		}
	})
}
