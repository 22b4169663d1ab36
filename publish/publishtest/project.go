// Package publishtest has what tests of publishing need: a project with finished builds, servers
// that answer like GitHub and S3, faults on the way to them, and the suite that every target must
// pass.
package publishtest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/wheel"
)

// Project is a packages.yml with a dist folder in which its rows are finished.
type Project struct {
	Dir, Dist string
	Plan      *matrix.Plan
}

// NewProject plans a document and finishes all its rows. padding is added to wheels, to make them
// large.
func NewProject(t testing.TB, document string, padding int) *Project {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "packages.yml"), []byte(document), 0o666); err != nil {
		t.Fatal(err)
	}
	file, list := matrix.Parse("packages.yml", []byte(document))
	if list.HasErrors() {
		t.Fatal(list.Err())
	}
	p := &Project{Dir: dir, Dist: filepath.Join(dir, "dist"), Plan: file.Plan(matrix.Options{})}
	if err := p.Plan.Err(); err != nil {
		t.Fatal(err)
	}
	for i := range p.Plan.Rows {
		p.Finish(t, &p.Plan.Rows[i], "", padding)
	}
	return p
}

// Finish writes the files and the record of a row, as a build would. A text makes other bytes.
func (p *Project) Finish(t testing.TB, row *matrix.Row, text string, padding int) {
	t.Helper()
	if err := Finish(p.Dist, row, text, padding); err != nil {
		t.Fatal(err)
	}
}

// Finish is [Project.Finish] for a dist folder.
func Finish(dist string, row *matrix.Row, text string, padding int) error {
	if err := os.MkdirAll(dist, 0o777); err != nil {
		return err
	}
	started := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	built := record.Record{
		Attempt: 1, Started: started, Finished: started.Add(time.Minute), Jobs: 2, OS: "debian-12",
		Recipe: record.Recipe{
			Row: *row, Settings: matrix.Settings{Description: "A demonstration", CUDACheck: "strict"},
			Source: record.Source{Kind: "git", Location: "https://example.org/demo", Commit: strings.Repeat("c", 40), Digest: strings.Repeat("c", 40)},
			Digest: row.Digest, BuildDigest: row.Digest, Sandbox: "host",
		},
		Installed: []record.Installed{{Name: "setuptools", Version: "80.0", SHA256: strings.Repeat("5", 64)}},
		Commands:  []record.Command{{Stage: "compile", Argv: []string{"python", "-m", "build"}}},
		Test:      record.Test{Result: "passed", Installed: []record.Installed{{Name: "numpy", Version: "2.3.0"}}},
	}
	for _, name := range row.Files() {
		data, err := sdist(name, text)
		if strings.HasSuffix(name, ".whl") {
			data, err = Wheel(name, text, padding)
			built.Audit = &audit.Report{
				Format: audit.ReportFormat, File: name, Size: int64(len(data)), Findings: []audit.Finding{}, Platform: &audit.Platform{GLIBC: "2.28"},
				Objects: []audit.Object{{Path: "demo.so", Kind: "elf", GPU: []audit.GPUCode{{Target: "9.0a", Kind: "sass"}}}},
			}
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dist, name), data, 0o666); err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		built.Files = append(built.Files, record.File{Name: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))})
	}
	return record.Write(dist, &built)
}

// Record is the path of the record of a row.
func (p *Project) Record(row *matrix.Row) string {
	return record.Path(p.Dist, row.ID)
}

// Inventory reads the dist folder.
func (p *Project) Inventory(t testing.TB) *publish.Inventory {
	t.Helper()
	inv, err := publish.ReadInventory(t.Context(), p.Dist, p.Plan.Rows, publish.InventoryOptions{Skipped: p.Plan.Skipped, Statement: publish.StatementOptions{Version: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range inv.Rows {
		if r.State == publish.RowRejected {
			t.Fatalf("%s: %s", r.ID, r.Reason)
		}
	}
	return inv
}

// Wheel returns a small valid wheel of that name.
func Wheel(filename, text string, padding int) ([]byte, error) {
	name, err := wheel.ParseFilename(filename)
	if err != nil {
		return nil, err
	}
	info := name.RawName + "-" + name.Version.Raw() + ".dist-info/"
	var about, record strings.Builder
	about.WriteString("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\n")
	for _, tag := range name.Tags() {
		about.WriteString("Tag: " + tag.String() + "\n")
	}
	members := [][2]string{
		{name.RawName + ".py", "# " + text + "\n" + strings.Repeat("#\n", padding/2)},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name.Name + "\nVersion: " + name.Version.String() + "\nRequires-Python: >=3.9\n"},
		{info + "WHEEL", about.String()},
	}
	for _, m := range members {
		sum := sha256.Sum256([]byte(m[1]))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", m[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(m[1]))
	}
	members = append(members, [2]string{info + "RECORD", record.String() + info + "RECORD,,\n"})
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		n := uint64(len(m[1]))
		w, err := z.CreateRaw(&zip.FileHeader{Name: m[0], CRC32: crc32.ChecksumIEEE([]byte(m[1])), CompressedSize64: n, UncompressedSize64: n})
		if err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, m[1]); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// sdist returns a small valid source distribution of that name.
func sdist(filename, text string) ([]byte, error) {
	name, err := wheel.ParseSdistName(filename)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	folder := strings.TrimSuffix(filename, ".tar.gz") + "/"
	for _, m := range [][2]string{
		{folder + "PKG-INFO", "Metadata-Version: 2.2\nName: " + name.Name + "\nVersion: " + name.Version.String() + "\n"},
		{folder + "pyproject.toml", "# " + text + "\n"},
	} {
		if err := w.WriteHeader(&tar.Header{Name: m[0], Size: int64(len(m[1])), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, m[1]); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Sum returns the SHA-256 of bytes in hexadecimal digits.
func Sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
