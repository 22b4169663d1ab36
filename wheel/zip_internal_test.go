package wheel

import (
	"archive/zip"
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sparseFile is a file of zeros with a few pieces in it, for archives that are
// too large to make.
type sparseFile struct {
	size   int64
	pieces map[int64][]byte
}

func (s *sparseFile) Write(p []byte) (int, error) {
	s.pieces[s.size] = bytes.Clone(p)
	s.size += int64(len(p))
	return len(p), nil
}

func (s *sparseFile) ReadAt(p []byte, off int64) (int, error) {
	n := int(min(int64(len(p)), s.size-off))
	clear(p[:n])
	for at, piece := range s.pieces {
		if from, to := max(at, off), min(at+int64(len(piece)), off+int64(n)); from < to {
			copy(p[from-off:to-off], piece[from-at:to-at])
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// TestZip64 writes members around the sizes and offsets that ask for ZIP64 fields
// and reads them back with this package and with archive/zip.
func TestZip64(t *testing.T) {
	for name, sizes := range map[string][]int64{
		"just below":   {max32 - 1, 1},
		"at the limit": {max32, 1},
		"just above":   {max32 + 1, 1},
		"offset only":  {3 << 30, 3 << 30, 1},
		"both":         {6 << 30, 5 << 30, 1},
	} {
		t.Run(name, func(t *testing.T) {
			file := &sparseFile{pieces: make(map[int64][]byte)}
			z := &zipWriter{w: file, date: 33}
			var want []entry
			for i, size := range sizes {
				e := entry{name: string(rune('a'+i)) + "/é", flags: flagUTF8, mode: modeRegular | 0o644, crc: uint32(i), size: size, packed: size, header: file.size}
				if err := z.begin(&e); err != nil {
					t.Fatal(err)
				}
				e.data = file.size
				file.size += size // a hole
				z.offset += size
				want = append(want, e)
			}
			if err := z.finish(); err != nil {
				t.Fatal(err)
			}
			limits := Limits{FileSize: 1 << 40}.withDefaults()
			got, err := readZip(file, file.size, &limits)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(entry{})); diff != "" {
				t.Error(diff)
			}
			other, err := zip.NewReader(file, file.size)
			if err != nil {
				t.Fatal(err)
			}
			for i, f := range other.File {
				at, err := f.DataOffset()
				if err != nil || f.Name != want[i].name || f.UncompressedSize64 != uint64(want[i].size) || at != want[i].data {
					t.Errorf("archive/zip: %s, %d bytes at %d, %v", f.Name, f.UncompressedSize64, at, err)
				}
			}
		})
	}
}
