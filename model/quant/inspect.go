package quant

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// LayerInfo describes a quantized layer of a file.
type LayerInfo struct {
	Key    string `json:"key"` // names of its tensors start with it and a dot; may be empty
	Format Format `json:"format"`
	Rows   int    `json:"rows"` // K, input features
	Cols   int    `json:"cols"` // N, output features with padding
	// Widths are in stored order, widest first.
	Widths []WidthInfo `json:"widths"`
	Groups int         `json:"groups"`
	// Bytes is the size of its tensors without the bias; BitsPerWeight is the same for each weight.
	Bytes         int64   `json:"bytes"`
	BitsPerWeight float64 `json:"bits_per_weight"`
	// Permuted is the reordering of EXL2 or the act-order of GPTQ, if it changes anything.
	Permuted bool `json:"permuted"`
	Bias     bool `json:"bias"`
	// Err says why the layer cannot be loaded: a tensor is missing or breaks the format. Fields
	// that depend on it are zero.
	Err error `json:"-"`
}

// WidthInfo is the part of a layer that has one width.
type WidthInfo struct {
	Bits   int `json:"bits"`
	Rows   int `json:"rows"`
	Groups int `json:"groups"`
}

// Tensors that tell a format, and all that belong to a layer in it.
var layerTensors = map[Format][]string{
	EXL2: {"q_weight", "q_groups", "q_invperm", "q_scale", "q_scale_max", "q_perm", "q_group_map"},
	GPTQ: {"qweight", "qzeros", "scales", "g_idx"},
}

// Inspect lists the quantized layers of a file, by key. A layer is recognised by its packed
// weights, q_weight for EXL2 and qweight for GPTQ. Headers, group tables and permutations are read
// and checked; weights and scales are not.
func Inspect(file *safetensors.File) []LayerInfo {
	return inspect(Files(file), file.Header().Tensors, GPTQOptions{})
}

func inspect(src Source, tensors []safetensors.Tensor, gptq GPTQOptions) []LayerInfo {
	var layers []LayerInfo
	for _, t := range tensors {
		dot := strings.LastIndexByte(t.Name, '.')
		suffix, key := t.Name[dot+1:], t.Name[:max(dot, 0)]
		if dot == 0 { // ".q_weight" is no name that a key gives
			continue
		}
		for _, format := range []Format{EXL2, GPTQ} {
			if suffix == layerTensors[format][0] {
				layers = append(layers, inspectLayer(loader{src, key}, format, gptq))
			}
		}
	}
	slices.SortFunc(layers, func(a, b LayerInfo) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Format, b.Format))
	})
	return layers
}

// InspectEXL2 describes one EXL2 layer whose tensors may be in several files. Like [Inspect] it
// checks everything that can be checked without reading weights and scales.
func InspectEXL2(src Source, key string) LayerInfo {
	return inspectLayer(loader{src, key}, EXL2, GPTQOptions{})
}

// InspectGPTQ is [InspectEXL2] for a GPTQ layer.
func InspectGPTQ(src Source, key string) LayerInfo {
	return inspectLayer(loader{src, key}, GPTQ, GPTQOptions{})
}

// GPTQSuffixes are the endings of the tensors of a GPTQ layer.
func GPTQSuffixes() []string { return slices.Clone(layerTensors[GPTQ]) }

// EXL2Suffixes are the endings of the tensors that exllamav2's converter writes for a layer, in
// byte order.
func EXL2Suffixes() []string {
	return []string{"bias", "q_groups", "q_invperm", "q_scale", "q_scale_max", "q_weight"}
}

func inspectLayer(l loader, format Format, gptq GPTQOptions) LayerInfo {
	info := LayerInfo{Key: l.key, Format: format}
	for _, suffix := range layerTensors[format] {
		if t, ok := l.src.Lookup(l.name(suffix)); ok {
			info.Bytes += t.Size
		}
	}
	_, info.Bias = l.src.Lookup(l.name("bias"))
	var m *QMatrix
	var err error
	if format == EXL2 {
		m, err = l.exl2File()
	} else {
		m, err = l.gptqStructure(gptq)
	}
	if err != nil {
		info.Err = err
		return info
	}
	info.Rows, info.Cols, info.Groups, info.Permuted = m.rows, m.cols, len(m.groups), m.Permuted()
	info.BitsPerWeight = 8 * float64(info.Bytes) / (float64(m.rows) * float64(m.cols))
	for _, g := range m.groups {
		if n := len(info.Widths); n == 0 || info.Widths[n-1].Bits != g.Bits {
			info.Widths = append(info.Widths, WidthInfo{Bits: g.Bits})
		}
		w := &info.Widths[len(info.Widths)-1]
		w.Rows += g.Rows
		w.Groups++
	}
	return info
}

// DequantizeOptions change what [DequantizeFile] writes. The zero value writes all layers of the
// file as [K, N].
type DequantizeOptions struct {
	// Keys are the layers to write. Nil means all.
	Keys []string
	// Transpose writes [N, K], the layout of a PyTorch Linear layer. It takes memory for one whole
	// matrix.
	Transpose bool
	// CopyOthers also copies every tensor that belongs to no layer that is written, and biases of
	// those that are.
	CopyOthers bool
	// EXL2 and GPTQ are how layers are read.
	EXL2 EXL2Options
	GPTQ GPTQOptions
}

// DequantizeFile writes quantized layers of a file to a new safetensors file at path, as key.weight
// in half precision. The metadata of the file is kept. One layer is in memory at a time. The new
// file appears complete or not at all.
//
// A layer that cannot be loaded, a key without a layer and a file without layers are errors. When
// ctx ends, its cause is returned.
func DequantizeFile(ctx context.Context, path string, file *safetensors.File, opts DequantizeOptions) error {
	src := Files(file)
	all := inspect(src, file.Header().Tensors, opts.GPTQ)
	layers := map[string]LayerInfo{} // by name of the tensor to write
	dropped := map[string]bool{}     // names of tensors that are replaced
	var errs []error
	for _, layer := range all {
		if opts.Keys != nil && !slices.Contains(opts.Keys, layer.Key) {
			continue
		}
		l := loader{key: layer.Key}
		if other, ok := layers[l.name("weight")]; ok {
			errs = append(errs, fmt.Errorf("layer %q is both %v and %v", layer.Key, other.Format, layer.Format))
		}
		errs = append(errs, layer.Err)
		layers[l.name("weight")] = layer
		for _, suffix := range layerTensors[layer.Format] {
			dropped[l.name(suffix)] = true
		}
	}
	for _, key := range opts.Keys {
		if _, ok := layers[loader{key: key}.name("weight")]; !ok {
			errs = append(errs, fmt.Errorf("no quantized layer %q", key))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("dequantize: %w", err)
	}
	if len(layers) == 0 {
		return errors.New("dequantize: no quantized layers")
	}

	var specs []safetensors.Spec
	for name, layer := range layers {
		shape := []int64{int64(layer.Rows), int64(layer.Cols)}
		if opts.Transpose {
			slices.Reverse(shape)
		}
		specs = append(specs, safetensors.Spec{Name: name, DType: tensor.F16, Shape: shape})
	}
	if opts.CopyOthers {
		for _, t := range file.Header().Tensors {
			if !dropped[t.Name] {
				specs = append(specs, safetensors.Spec{Name: t.Name, DType: t.DType, Shape: t.Shape})
			}
		}
	}
	layout, err := safetensors.NewLayout(specs, file.Header().Metadata)
	if err != nil {
		return fmt.Errorf("dequantize: %w", err)
	}
	return safetensors.WriteFile(path, layout, func(name string) (io.Reader, error) {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		layer, ok := layers[name]
		if !ok {
			return src.Open(name)
		}
		var m *QMatrix
		var err error
		if layer.Format == EXL2 {
			m, err = LoadEXL2(src, layer.Key, opts.EXL2)
		} else {
			m, err = LoadGPTQ(src, layer.Key, opts.GPTQ)
		}
		if err != nil {
			return nil, err
		}
		if opts.Transpose {
			return transposed(m)
		}
		return &rowReader{m: m, stop: func() error { return context.Cause(ctx) }}, nil
	})
}

// rowReader reads the weights of a matrix, some rows at a time.
type rowReader struct {
	m    *QMatrix
	stop func() error // asked before each piece
	next int
	buf  []byte
	rest []byte
}

func (r *rowReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		if err := r.stop(); err != nil {
			return 0, err
		}
		rows := min(64, r.m.rows-r.next)
		if rows == 0 {
			return 0, io.EOF
		}
		r.rest = grow(&r.buf, 2*rows*r.m.cols)
		if err := r.m.DequantizeRows(r.rest, r.next, rows); err != nil {
			return 0, err
		}
		r.next += rows
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// transposed returns the weights as [N, K].
func transposed(m *QMatrix) (io.Reader, error) {
	out := make([]byte, 2*m.rows*m.cols)
	const block = 64 // rows whose parts of a column share a cache line or two
	buf := make([]byte, 2*block*m.cols)
	for first := 0; first < m.rows; first += block {
		rows := min(block, m.rows-first)
		if err := m.DequantizeRows(buf[:2*rows*m.cols], first, rows); err != nil {
			return nil, err
		}
		for j := range m.cols {
			dst := out[2*(j*m.rows+first):]
			for i := range rows {
				copy(dst[2*i:2*i+2], buf[2*(i*m.cols+j):])
			}
		}
	}
	return &sliceReader{out}, nil
}
