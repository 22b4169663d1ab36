package safetensors_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// written is a line of testdata/layouts.jsonl; see testdata/corpus.py.
type written struct {
	Tensors  [][3]any          `json:"tensors"`
	Metadata map[string]string `json:"metadata"`
	Header   string            `json:"header"`
	SHA256   string            `json:"sha256"`
}

func (w written) specs(t testing.TB) []safetensors.Spec {
	t.Helper()
	specs := make([]safetensors.Spec, 0, len(w.Tensors))
	for _, x := range w.Tensors {
		d, err := tensor.ParseDType(x[1].(string))
		if err != nil {
			t.Fatal(err)
		}
		var shape []int64
		for _, dim := range x[2].([]any) {
			shape = append(shape, int64(dim.(float64)))
		}
		specs = append(specs, safetensors.Spec{Name: x[0].(string), DType: d, Shape: shape})
	}
	return specs
}

// content is byte i of tensor k as the corpus has it.
func content(k int, size int64) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*31 + k)
	}
	return b
}

// TestReferenceFiles writes every file of the corpus and compares with what the reference
// library wrote, byte for byte.
func TestReferenceFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.safetensors")
	for _, w := range lines[written](t, "testdata/layouts.jsonl") {
		specs := w.specs(t)
		index := map[string]int{}
		for k, s := range specs {
			index[s.Name] = k
		}
		slices.Reverse(specs) // the order of the specs does not matter
		l, err := safetensors.NewLayout(specs, w.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(w.Header, string(l.Header()[8:])); diff != "" {
			t.Errorf("header (-want +got)\n%s", diff)
			continue
		}
		err = safetensors.WriteFile(path, l, func(name string) (io.Reader, error) {
			_, size, ok := l.Offset(name)
			if !ok {
				return nil, fmt.Errorf("no tensor %q", name)
			}
			return bytes.NewReader(content(index[name], size)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != w.SHA256 || l.FileSize() != int64(len(raw)) {
			t.Errorf("%s: content differs", w.Header)
		}
		for name, k := range index {
			start, size, _ := l.Offset(name)
			if !bytes.Equal(raw[start:start+size], content(k, size)) {
				t.Errorf("%q is not at %d", name, start)
			}
		}
	}
}

func TestLayout(t *testing.T) {
	specs := []safetensors.Spec{
		{Name: "a.weight", DType: tensor.F16, Shape: []int64{3}},
		{Name: "b.q_groups", DType: tensor.I16, Shape: []int64{2}},
		{Name: "b.q_weight", DType: tensor.I32, Shape: []int64{1, 2}},
	}
	l, err := safetensors.NewLayout(specs, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := "\xc0\x00\x00\x00\x00\x00\x00\x00" +
		`{"b.q_weight":{"dtype":"I32","shape":[1,2],"data_offsets":[0,8]},` +
		`"a.weight":{"dtype":"F16","shape":[3],"data_offsets":[8,14]},` +
		`"b.q_groups":{"dtype":"I16","shape":[2],"data_offsets":[14,18]}}  `
	if diff := gocmp.Diff(want, string(l.Header())); diff != "" {
		t.Error(diff)
	}
	if l.FileSize() != 218 || l.DataStart() != 200 {
		t.Errorf("size %d, data at %d", l.FileSize(), l.DataStart())
	}
	if start, size, ok := l.Offset("b.q_groups"); start != 214 || size != 4 || !ok {
		t.Errorf("Offset = %d, %d, %v", start, size, ok)
	}
	if _, _, ok := l.Offset("c"); ok {
		t.Error("Offset of a tensor that is not there")
	}
	specs[0].Shape[0] = 99
	if got := l.Tensors()[1].Shape[0]; got != 3 {
		t.Errorf("the layout shares its shapes with the caller: %d", got)
	}
	raw := string(l.Header()) + "\x00\x01\x02\x03\x04\x05\x06\x07" + "\x00\x3c\x00\x40\x00\x42" + "\x04\x00\x00\x00"
	if sum := sha256.Sum256([]byte(raw)); hex.EncodeToString(sum[:]) != "b52ea1e64180854009fb2c753d87ba4867c8715fa358fe0b47c53aca28fc1b2f" {
		t.Errorf("digest %x", sum)
	}
}

func TestLayoutMetadata(t *testing.T) {
	for _, tt := range []struct {
		metadata map[string]string
		want     string
	}{
		{nil, `{}`},
		{map[string]string{}, `{"__metadata__":{}}`}, // the reference writes {},"__metadata__":{}}, which is not JSON
		{map[string]string{"b": "2", "a": "1", "ä": "\x00"}, `{"__metadata__":{"a":"1","b":"2","ä":"\u0000"}}`},
	} {
		l, err := safetensors.NewLayout(nil, tt.metadata)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(l.Header()[8:]); strings.TrimRight(got, " ") != tt.want || len(got)%8 != 0 {
			t.Errorf("%q, want %q", got, tt.want)
		}
		h, err := read(l.Header())
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(tt.metadata, h.Metadata); diff != "" {
			t.Error(diff)
		}
	}
}

func TestLayoutErrors(t *testing.T) {
	_, err := safetensors.NewLayout([]safetensors.Spec{
		{Name: "a", DType: tensor.F32},
		{Name: "a", DType: tensor.F16},
		{Name: "__metadata__", DType: tensor.F32},
		{Name: "b\xff", DType: tensor.F32},
		{Name: "c"},
		{Name: "d", DType: tensor.F4, Shape: []int64{3}},
		{Name: "e", DType: tensor.F32, Shape: []int64{1 << 62, 1 << 62}},
	}, map[string]string{"k\xff": "v"})
	want := []string{
		`tensor "a": occurs more than once`,
		`tensor "__metadata__": the name is reserved`,
		`tensor "b\xff": the name is not UTF-8`,
		`tensor "c": size of a tensor of unknown dtype 0`,
		`tensor "d": F4 of shape [3]: 12 bits: size is not a whole number of bytes`,
		`tensor "e": shape [4611686018427387904 4611686018427387904]: size overflows`,
		`metadata "k\xff": not UTF-8`,
	}
	if diff := gocmp.Diff(strings.Join(want, "\n"), fmt.Sprint(err)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	huge := []int64{1 << 60}
	var specs []safetensors.Spec
	for i := range 9 {
		specs = append(specs, safetensors.Spec{Name: fmt.Sprint(i), DType: tensor.U8, Shape: huge})
	}
	if _, err := safetensors.NewLayout(specs, nil); !errors.Is(err, tensor.ErrOverflow) {
		t.Errorf("9 EiB: %v", err)
	}
	if _, err := safetensors.NewLayout(nil, map[string]string{"k": strings.Repeat("v", safetensors.MaxHeaderSize)}); err == nil || !strings.HasPrefix(err.Error(), "the header would have") {
		t.Errorf("huge header: %v", err)
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f.safetensors")
	l, err := safetensors.NewLayout([]safetensors.Spec{{Name: "a", DType: tensor.U8, Shape: []int64{5}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.Create(filepath.Join(t.TempDir(), "src"))
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := src.WriteString("__hello__"); err != nil {
		t.Fatal(err)
	}
	section := io.NewSectionReader(src, 1, 6)
	if _, err := section.Seek(1, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	closed := false
	tests := []struct {
		name string
		r    io.Reader
		err  error
		want string // of the error
	}{
		{"reader", strings.NewReader("hello"), nil, ""},
		{"section of a file", section, nil, ""},
		{"closer", &closer{strings.NewReader("hello"), &closed}, nil, ""},
		{"short", strings.NewReader("hell"), nil, `write ` + path + `: tensor "a": its reader ended after 4 of 5 bytes: unexpected EOF`},
		{"long", strings.NewReader("hello!"), nil, `write ` + path + `: tensor "a": its reader has more than 5 bytes`},
		{"short section", io.NewSectionReader(src, 2, 4), nil, `write ` + path + `: tensor "a": its reader has 4 bytes, not 5`},
		{"error", nil, boom, `write ` + path + `: tensor "a": boom`},
	}
	for _, tt := range tests {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		err := safetensors.WriteFile(path, l, func(string) (io.Reader, error) { return tt.r, tt.err })
		entries, _ := os.ReadDir(dir)
		if tt.want != "" {
			if fmt.Sprint(err) != tt.want || len(entries) != 0 {
				t.Errorf("%s: %v, %d files left; want %s", tt.name, err, len(entries), tt.want)
			}
			continue
		}
		raw, _ := os.ReadFile(path)
		if err != nil || !bytes.HasSuffix(raw, []byte("hello")) || int64(len(raw)) != l.FileSize() {
			t.Errorf("%s: %q, %v", tt.name, raw, err)
		}
	}
	if !closed {
		t.Error("the reader was not closed")
	}
	if err := safetensors.WriteFile(filepath.Join(dir, "none", "f"), l, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing folder: %v", err)
	}
}

type closer struct {
	io.Reader
	closed *bool
}

func (c *closer) Close() error {
	*c.closed = true
	return nil
}

func TestShardName(t *testing.T) {
	for want, got := range map[string]string{
		"model.safetensors":                 safetensors.ShardName("model", 1, 1),
		"output-00002-of-00010.safetensors": safetensors.ShardName("output", 2, 10),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
