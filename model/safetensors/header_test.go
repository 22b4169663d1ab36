package safetensors_test

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// verdict is a line of testdata/headers.jsonl; see testdata/corpus.py.
type verdict struct {
	Header   *string           `json:"header"`
	Hex      string            `json:"hex"`
	File     *string           `json:"file"`
	Data     int               `json:"data"`
	OK       bool              `json:"ok"`
	Error    string            `json:"error"`
	Tensors  [][4]any          `json:"tensors"`
	Metadata map[string]string `json:"metadata"`
}

// bytes returns the whole file.
func (v verdict) bytes(t testing.TB) []byte {
	t.Helper()
	switch {
	case v.File != nil:
		return unhex(t, *v.File)
	case v.Header != nil:
		return file([]byte(*v.Header), v.Data)
	}
	return file(unhex(t, v.Hex), v.Data)
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// file puts a length in front of a header and data behind it.
func file(header []byte, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range data {
		b = append(b, byte(i*7%251))
	}
	return b
}

func read(b []byte) (*safetensors.Header, error) {
	return safetensors.ReadHeader(bytes.NewReader(b), int64(len(b)))
}

// lines decodes a file of JSON lines.
func lines[T any](t testing.TB, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []T
	for scan := bufio.NewScanner(f); scan.Scan(); {
		var v T
		if err := json.Unmarshal(scan.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// stricter reports whether err is one of the five cases in which this package refuses
// what the reference library takes.
func stricter(err error) bool {
	for _, text := range []string{"occurs more than once", "entry must be an object", "dtype must be a string, not {", "is above 9223372036854775807"} {
		if err != nil && strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

func compareVerdict(t *testing.T, v verdict, raw []byte) {
	t.Helper()
	h, err := read(raw)
	switch {
	case err == nil && !v.OK:
		t.Errorf("%q is accepted; the reference library says: %s", shown(raw), v.Error)
	case err != nil && v.OK && !stricter(err):
		t.Errorf("%q: %v; the reference library accepts it", shown(raw), err)
	case err == nil:
		var got [][4]any
		for _, x := range h.Tensors {
			shape := []any{}
			for _, dim := range x.Shape {
				shape = append(shape, float64(dim))
			}
			data := raw[h.DataStart+x.Offset:][:x.Size]
			sum := sha256.Sum256(data)
			got = append(got, [4]any{x.Name, x.DType.String(), shape, hex.EncodeToString(sum[:8])})
			if again, ok := h.Lookup(x.Name); !ok || !gocmp.Equal(again, x) {
				t.Errorf("Lookup(%q) = %v, %v", x.Name, again, ok)
			}
		}
		slices.SortFunc(got, func(a, b [4]any) int { return cmp.Compare(a[0].(string), b[0].(string)) })
		if diff := gocmp.Diff(v.Tensors, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q: tensors (-want +got)\n%s", shown(raw), diff)
		}
		if diff := gocmp.Diff(v.Metadata, h.Metadata); diff != "" {
			t.Errorf("%q: metadata (-want +got)\n%s", shown(raw), diff)
		}
	}
}

func shown(raw []byte) string { return string(raw[:min(len(raw), 200)]) }

func TestReferenceVerdicts(t *testing.T) {
	accepted, rejected := 0, 0
	for _, v := range lines[verdict](t, "testdata/headers.jsonl") {
		compareVerdict(t, v, v.bytes(t))
		if v.OK {
			accepted++
		} else {
			rejected++
		}
	}
	if accepted < 200 || rejected < 300 {
		t.Errorf("only %d valid and %d invalid headers", accepted, rejected)
	}
}

func TestReadHeaderErrors(t *testing.T) {
	one := func(entry string) string { return `{"a.weight":` + entry + `}` }
	tests := []struct {
		header string
		data   int
		want   string
	}{
		{`{"a":`, 0, `header: tensor "a": byte 4: the JSON text ends too early`},
		{`{"a":{},}`, 0, `header: tensor "a": dtype is missing`},
		{`{]`, 0, `header: byte 1: name must be a string, not ]`},
		{`{} x`, 0, `header: byte 2: data after the end`},
		{"{\"\xff\":1}", 0, `header: byte 2: invalid UTF-8`},
		{one(`{"dtype":"F33"}`), 0, `header: tensor "a.weight": unknown dtype "F33"`},
		{one(`{"dtype":"F32","shape":[-1]}`), 0, `header: tensor "a.weight": dimension -1 is not an unsigned integer`},
		{one(`{"dtype":"F32","shape":[1]}`), 4, `header: tensor "a.weight": data_offsets is missing`},
		{one(`{"dtype":"F32","shape":[1],"data_offsets":[0]}`), 4, `header: tensor "a.weight": data_offsets has 1 entries, not 2`},
		{one(`{"dtype":"F32","shape":[1],"data_offsets":[4,0]}`), 4, `header: tensor "a.weight": data_offsets [4,0] end before they start`},
		{one(`{"dtype":"F32","shape":[2],"data_offsets":[0,4]}`), 4, `tensor "a.weight": F32 of shape [2] has 8 bytes, but its data_offsets span 4`},
		{one(`{"dtype":"F32","shape":[1],"data_offsets":[4,8]}`), 8, `tensor "a.weight": starts at 4, but the data before it ends at 0`},
		{one(`{"dtype":"F4","shape":[3],"data_offsets":[0,1]}`), 1, `tensor "a.weight": F4 of shape [3]: 12 bits: size is not a whole number of bytes`},
		{one(`{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`), 6, `file has 2 bytes after the last tensor`},
		{`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, 6, `tensor "b": starts at 2, inside the data of "a"`},
		{`{"__metadata__":{"a":1}}`, 0, `header: byte 20: __metadata__: value of "a" must be a string, not number`},
	}
	for _, tt := range tests {
		_, err := read(file([]byte(tt.header), tt.data))
		if diff := gocmp.Diff(tt.want, fmt.Sprint(err)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.header, diff)
		}
	}
	lfs := "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
	if _, err := read([]byte(lfs)); err == nil || err.Error() != "file is a Git LFS pointer, not the model file itself" {
		t.Errorf("LFS pointer: %v", err)
	}
	if _, err := read(binary.LittleEndian.AppendUint64(nil, math.MaxUint64)); err == nil || err.Error() != "header length is 18446744073709551615, the limit is 100000000" {
		t.Errorf("huge header: %v", err)
	}
	boom := errors.New("boom")
	if _, err := safetensors.ReadHeader(failingReader{boom}, 100); !errors.Is(err, boom) {
		t.Errorf("read error: %v", err)
	}
}

type failingReader struct{ err error }

func (r failingReader) ReadAt([]byte, int64) (int, error) { return 0, r.err }

// TestTruncated cuts a file at every byte.
func TestTruncated(t *testing.T) {
	whole := file([]byte(`{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}`), 9)
	if _, err := read(whole); err != nil {
		t.Fatal(err)
	}
	for n := range len(whole) {
		_, err := read(whole[:n])
		var truncated *safetensors.TruncatedError
		if !errors.As(err, &truncated) || truncated.Size != int64(n) || truncated.Want <= int64(n) {
			t.Errorf("cut at %d: %v", n, err)
		}
		// A reader that ends before the size it was said to have.
		if _, err := safetensors.ReadHeader(bytes.NewReader(whole[:n]), int64(len(whole))); n < len(whole)-9 && !errors.As(err, &truncated) {
			t.Errorf("short reader, %d: %v", n, err)
		}
	}
}

// TestLyingLength: claims of size cost no memory.
func TestLyingLength(t *testing.T) {
	prefix := binary.LittleEndian.AppendUint64(nil, safetensors.MaxHeaderSize)
	prefix = append(prefix, strings.Repeat(" ", 1000)...)
	for _, size := range []int64{int64(len(prefix)), 1 << 40} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := safetensors.ReadHeader(bytes.NewReader(prefix), size)
		runtime.ReadMemStats(&after)
		if _, ok := errors.AsType[*safetensors.TruncatedError](err); !ok {
			t.Errorf("size %d: %v", size, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
			t.Errorf("size %d: %d bytes allocated", size, got)
		}
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	raw := file([]byte(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}}`), 6)
	if err := os.WriteFile(path, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := f.Reader("b")
	if err != nil {
		t.Fatal(err)
	}
	if err := iotest.TestReader(r, raw[len(raw)-2:]); err != nil {
		t.Error(err)
	}
	outer, off, n := r.Outer()
	if outer != io.ReaderAt(f.OSFile()) || off != f.Header().DataStart+4 || n != 2 {
		t.Errorf("Outer() = %v, %d, %d", outer, off, n)
	}
	if _, err := f.Reader("c"); err == nil || err.Error() != path+`: no tensor "c"` {
		t.Errorf("missing tensor: %v", err)
	}
	if _, ok := f.Header().Lookup("c"); ok {
		t.Error("Lookup finds a tensor that is not there")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	if _, err := safetensors.Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := safetensors.Open(dir); err == nil {
		t.Error("a folder was opened")
	}
	if err := os.Truncate(path, int64(len(raw)-1)); err != nil {
		t.Fatal(err)
	}
	var truncated *safetensors.TruncatedError
	if _, err := safetensors.Open(path); !errors.As(err, &truncated) || !strings.HasPrefix(err.Error(), path+": ") {
		t.Errorf("truncated file: %v", err)
	}
}

func FuzzReadHeader(f *testing.F) {
	for _, v := range lines[verdict](f, "testdata/headers.jsonl") {
		f.Add(v.bytes(f))
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := read(raw)
		if err != nil {
			return
		}
		var end int64
		specs := make([]safetensors.Spec, 0, len(h.Tensors))
		for _, x := range h.Tensors {
			size, err := tensor.Size(x.DType, x.Shape)
			if err != nil || size != x.Size || x.Offset != end {
				t.Fatalf("%+v after %d (%v)", x, end, err)
			}
			end += size
			specs = append(specs, safetensors.Spec{Name: x.Name, DType: x.DType, Shape: x.Shape})
		}
		if h.DataStart+end != int64(len(raw)) {
			t.Fatalf("data ends at %d of %d", h.DataStart+end, len(raw))
		}
		l, err := safetensors.NewLayout(specs, h.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		again, err := read(append(slices.Clone(l.Header()), make([]byte, end)...))
		if err != nil {
			t.Fatalf("%q: %v", l.Header(), err)
		}
		byName := cmpopts.SortSlices(func(a, b safetensors.Tensor) bool { return a.Name < b.Name })
		if diff := gocmp.Diff(h.Tensors, again.Tensors, byName, cmpopts.IgnoreFields(safetensors.Tensor{}, "Offset"), cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
		if diff := gocmp.Diff(h.Metadata, again.Metadata); diff != "" {
			t.Fatal(diff)
		}
	})
}

// BenchmarkReadHeader reads the header of a model with 50,000 tensors.
func BenchmarkReadHeader(b *testing.B) {
	var specs []safetensors.Spec
	for i := range 50_000 {
		specs = append(specs, safetensors.Spec{Name: fmt.Sprintf("model.layers.%d.block_sparse_moe.experts.%d.w1.q_weight", i/500, i%500), DType: tensor.I32, Shape: []int64{512, 4096}})
	}
	l, err := safetensors.NewLayout(specs, nil)
	if err != nil {
		b.Fatal(err)
	}
	r := bytes.NewReader(l.Header())
	b.SetBytes(int64(len(l.Header())))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := safetensors.ReadHeader(r, l.FileSize()); err != nil {
			b.Fatal(err)
		}
	}
}
