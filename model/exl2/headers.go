package exl2

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"

	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// tensorInfo is an entry of a header with its place in the file.
type tensorInfo struct {
	Name   string
	DType  tensor.DType
	Shape  []int64
	Offset int64 // from the start of the file
	Size   int64
}

// fileHeader is the checked header of a safetensors file.
type fileHeader struct {
	tensors []tensorInfo
	byName  map[string]int
	sum     string // SHA-256 of everything in front of the data
}

// readHeader reads the header of a file.
func readHeader(path string) (*fileHeader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return parseHeader(f, info.Size())
}

func parseHeader(r io.ReaderAt, size int64) (*fileHeader, error) {
	h, err := safetensors.ReadHeader(r, size)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, h.DataStart)); err != nil {
		return nil, err
	}
	out := &fileHeader{byName: make(map[string]int, len(h.Tensors)), sum: hex.EncodeToString(sum.Sum(nil))}
	for i, t := range h.Tensors {
		out.byName[t.Name] = i
		out.tensors = append(out.tensors, tensorInfo{Name: t.Name, DType: t.DType, Shape: t.Shape, Offset: h.DataStart + t.Offset, Size: t.Size})
	}
	return out, nil
}

func (h *fileHeader) lookup(name string) (tensorInfo, bool) {
	i, ok := h.byName[name]
	if !ok {
		return tensorInfo{}, false
	}
	return h.tensors[i], true
}

// data reads tensors of the file that r is.
func (h *fileHeader) data(r io.ReaderAt) tensorData {
	return func(name string) (io.Reader, error) {
		t, ok := h.lookup(name)
		if !ok {
			return nil, os.ErrNotExist
		}
		return io.NewSectionReader(r, t.Offset, t.Size), nil
	}
}

// layout plans the file of a shard. Only the default mode has metadata, which some loaders insist on.
func (p *Plan) layout(s *Shard) (*safetensors.Layout, error) {
	specs := make([]safetensors.Spec, len(s.Tensors))
	for i, t := range s.Tensors {
		specs[i] = safetensors.Spec{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	var metadata map[string]string
	if p.Mode != Compat {
		metadata = map[string]string{"format": "pt"}
	}
	return safetensors.NewLayout(specs, metadata)
}

// shardHeader is everything in front of the shard's data.
func (p *Plan) shardHeader(s *Shard) ([]byte, error) {
	l, err := p.layout(s)
	if err != nil {
		return nil, err
	}
	return l.Header(), nil
}

// layOut gives the tensors of a shard their order and place.
func (p *Plan) layOut(s *Shard) error {
	l, err := p.layout(s)
	if err != nil {
		return err
	}
	byName := make(map[string]Tensor, len(s.Tensors))
	for _, t := range s.Tensors {
		byName[t.Name] = t.Tensor
	}
	for i, t := range l.Tensors() {
		s.Tensors[i] = PlannedTensor{Tensor: byName[t.Name], Offset: l.DataStart() + t.Offset}
	}
	s.Size, s.HeaderSize = l.FileSize(), l.DataStart()
	return nil
}

// index is the text of the index file.
func (p *Plan) index() []byte {
	ix := safetensors.Index{TotalSize: p.TensorBytes, WeightMap: map[string]string{}}
	for _, s := range p.Shards {
		for _, t := range s.Tensors {
			ix.WeightMap[t.Name] = s.Name
		}
	}
	return ix.Encode()
}
