package build

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// TestMerge: the wheel has the files of all rows; a file of two rows with different bytes, and a row
// that is not built as it is planned now, are errors that name the rows.
func TestMerge(t *testing.T) {
	for _, test := range []struct{ name, file, content, digest, want string }{
		{"merged", "demo/lib_two.so", "two", "2", ""},
		{"same bytes", "demo/lib_one.so", "one", "2", ""},
		{"other bytes", "demo/lib_one.so", "two", "2", "demo/lib_one.so has other bytes in row-two than in row-one"},
		{"other bytes than its own", "demo/lib_own.so", "two", "2", "demo/lib_own.so has other bytes in row-two than in row-own"},
		{"built otherwise", "demo/lib_two.so", "two", "3", "row-two: it was built from another configuration"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dist, work := t.TempDir(), t.TempDir()
			write := func(dir, row, name, digest, file, content string) record.File {
				t.Helper()
				data := indextest.Wheel(t, name, map[string]string{file: content})
				f := record.File{Name: name, SHA256: fmt.Sprintf("%x", sha256.Sum256(data)), Size: int64(len(data))}
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
					t.Fatal(err)
				}
				r := &record.Record{Recipe: record.Recipe{Row: matrix.Row{ID: row}, BuildDigest: digest}, Files: []record.File{f}}
				if err := record.Write(dist, r); err != nil {
					t.Fatal(err)
				}
				return f
			}
			write(dist, "row-one", "demo-1.0+one-py3-none-linux_x86_64.whl", "1", "demo/lib_one.so", "one")
			write(dist, "row-two", "demo-1.0+two-py3-none-linux_x86_64.whl", "2", test.file, test.content)
			own := write(work, "row-own", "demo-1.0-py3-none-linux_x86_64.whl", "0", "demo/lib_own.so", "own")
			a := &attempt{
				Recipe:  &record.Recipe{Row: matrix.Row{ID: "row-own"}, Parts: []record.Donor{{Row: "row-one", BuildDigest: "1"}, {Row: "row-two", BuildDigest: test.digest}}},
				builder: &Builder{Options: Options{DistDir: dist}}, work: work, log: &tailWriter{to: io.Discard}, files: []string{filepath.Join(work, own.Name)},
			}
			a.record.Files = []record.File{own}
			err := merge(t.Context(), a)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r, err := wheel.Open(a.files[0])
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var names []string
			for m := range r.Files() {
				names = append(names, m.Name)
			}
			for _, name := range []string{"demo/lib_own.so", "demo/lib_one.so", test.file} {
				if !slices.Contains(names, name) {
					t.Errorf("no %s in %q", name, names)
				}
			}
			if problems, err := r.Check(t.Context(), wheel.CheckOptions{}); err != nil || len(problems) > 0 {
				t.Error(problems, err)
			}
			if len(a.record.Merged) != 2 || a.record.Merged[1].Row != "row-two" {
				t.Errorf("%+v", a.record.Merged)
			}
		})
	}
}
