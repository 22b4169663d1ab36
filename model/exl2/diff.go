package exl2

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// DiffOptions says how closely two models are compared. The zero value compares every byte.
type DiffOptions struct {
	// Structure compares names, types, shapes and widths, and reads no weights.
	Structure bool
	Links     Links
	// Progress is called with the bytes of tensors compared so far; nil means not at all.
	Progress func(Progress)
}

// Difference is what [Diff] has found. Lists are in the natural order of names.
type Difference struct {
	A DiffSide `json:"a"`
	B DiffSide `json:"b"`
	// Compared are tensors with the same name, type and shape, of which Equal have the same data;
	// with Structure it was not looked at and Equal is 0. Bytes is the size of what was compared.
	Compared int   `json:"compared"`
	Equal    int   `json:"equal"`
	Bytes    int64 `json:"bytes"`

	Tensors []TensorDiff `json:"tensors"`
	Widths  []WidthDiff  `json:"widths"`
	Config  []ConfigDiff `json:"config"`
	Files   []FileDiff   `json:"files"`
}

// Same reports whether nothing differs. How tensors are divided into files does not matter.
func (d *Difference) Same() bool {
	return len(d.Tensors)+len(d.Widths)+len(d.Config)+len(d.Files) == 0
}

// DiffSide is one of the two models.
type DiffSide struct {
	Dir         string `json:"dir"`
	Shards      int    `json:"shards"`
	Tensors     int    `json:"tensors"`
	TensorBytes int64  `json:"tensor_bytes"`
}

// TensorForm is what a header says about a tensor.
type TensorForm struct {
	DType tensor.DType `json:"dtype"`
	Shape []int64      `json:"shape"`
}

// TensorDiff is a tensor that differs. A or B is nil if that model does not have it.
type TensorDiff struct {
	Name string      `json:"name"`
	A    *TensorForm `json:"a,omitempty"`
	B    *TensorForm `json:"b,omitempty"`
	// Layer is the key of the quantized layer that the tensor belongs to in either model, or empty.
	Layer string `json:"layer,omitempty"`
	// For tensors of the same type and shape: how many elements differ, of how many, the first of
	// them, and for floating-point types the largest finite distance.
	Elements int64   `json:"elements,omitempty"`
	Of       int64   `json:"of,omitempty"`
	First    int64   `json:"first,omitempty"`
	Largest  float64 `json:"largest,omitempty"`
}

// LayerForm is how a linear layer is stored: quantized in some format, or as numbers of a type.
type LayerForm struct {
	Format        string            `json:"format"` // exl2, gptq, or a type such as BF16
	BitsPerWeight float64           `json:"bits_per_weight"`
	Widths        []quant.WidthInfo `json:"widths,omitempty"`
	Problem       string            `json:"problem,omitempty"` // why nothing can be said
}

// WidthDiff is a linear layer that has other widths in the two models, or another format. A or B
// is nil if that model does not have the layer.
type WidthDiff struct {
	Key string     `json:"key"`
	A   *LayerForm `json:"a,omitempty"`
	B   *LayerForm `json:"b,omitempty"`
}

// ConfigDiff is a value of config.json that differs, as JSON; empty if it is not there.
type ConfigDiff struct {
	Path string `json:"path"`
	A    string `json:"a,omitempty"`
	B    string `json:"b,omitempty"`
}

// FileDiff is another file of the folder that differs; a size is −1 if it is not there. Shards,
// index, manifest and config.json are compared by what they say.
type FileDiff struct {
	Name  string `json:"name"`
	ASize int64  `json:"a_size"`
	BSize int64  `json:"b_size"`
}

// Diff compares two models in safetensors files, quantized or not. Tensors are read in pieces, so
// that memory does not follow their size.
func Diff(ctx context.Context, a, b string, opts DiffOptions) (*Difference, error) {
	d := &Difference{Tensors: []TensorDiff{}, Widths: []WidthDiff{}, Config: []ConfigDiff{}, Files: []FileDiff{}}
	var sides [2]*folder
	for i, dir := range []string{a, b} {
		m, err := openFolder(ctx, dir, opts.Links)
		if err == nil {
			defer m.close()
			err = m.readable()
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", dir, err)
		}
		sides[i] = m
	}
	d.A, d.B = sides[0].side(a), sides[1].side(b)
	if err := d.diffTensors(ctx, sides, opts); err != nil {
		return nil, err
	}
	d.diffWidths(sides)
	if err := d.diffConfig(a, b, opts.Links); err != nil {
		return nil, err
	}
	return d, d.diffFiles(sides)
}

// readable opens every file, so that several goroutines can read, and refuses a model whose
// content is not certain.
func (m *folder) readable() error {
	ps := slices.Concat(m.problems, m.settleDuplicates(&Plan{}))
	if err := ps.Err(); err != nil {
		return err
	}
	for i := range m.index.files {
		if _, err := m.open(&sourceTensor{file: i}); err != nil {
			return fmt.Errorf("%s: %w", m.index.files[i].input.Path, err)
		}
	}
	return nil
}

func (m *folder) side(dir string) DiffSide {
	s := DiffSide{Dir: dir, Shards: len(m.index.files), Tensors: len(m.index.list)}
	for _, t := range m.index.list {
		s.TensorBytes += t.Size
	}
	return s
}

// layerOf is the key of the quantized layer that a tensor belongs to, or empty.
func (m *folder) layerOf(name string) string {
	key, suffix, ok := cutLast(name)
	if !ok {
		return ""
	}
	exl2 := isMatrixSuffix(suffix) || suffix == "weight" // the latter in the other model
	gptq := slices.Contains(quant.GPTQSuffixes(), suffix) || suffix == "weight" || suffix == "bias"
	if exl2 && m.index.get(key+".q_weight") != nil || gptq && m.index.get(key+".qweight") != nil {
		return key
	}
	return ""
}

func form(t *sourceTensor) *TensorForm {
	if t == nil {
		return nil
	}
	return &TensorForm{DType: t.DType, Shape: t.Shape}
}

// diffTensors compares headers, and then the data of tensors that both have.
func (d *Difference) diffTensors(ctx context.Context, sides [2]*folder, opts DiffOptions) error {
	names := map[string]bool{}
	for _, m := range sides {
		for i := range m.index.list {
			names[m.index.list[i].Name] = true
		}
	}
	var both []TensorDiff
	var total int64
	for _, name := range slices.SortedFunc(maps.Keys(names), compareNatural) {
		x, y := sides[0].index.get(name), sides[1].index.get(name)
		t := TensorDiff{Name: name, A: form(x), B: form(y), Layer: cmp.Or(sides[0].layerOf(name), sides[1].layerOf(name))}
		if x == nil || y == nil || x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) {
			d.Tensors = append(d.Tensors, t)
			continue
		}
		both = append(both, t)
		total += x.Size
	}
	d.Compared = len(both)
	if opts.Structure {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	parallel(ctx, runtime.GOMAXPROCS(0), len(both), func(i int) {
		t := &both[i]
		err := t.compare(ctx, sides, func(n int64) {
			mu.Lock()
			defer mu.Unlock()
			d.Bytes += n
			if opts.Progress != nil {
				opts.Progress(Progress{Done: d.Bytes, Total: total})
			}
		})
		if err != nil {
			cancel(fmt.Errorf("%s: %w", t.Name, err))
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, t := range both {
		if t.Elements > 0 {
			d.Tensors = append(d.Tensors, t)
		} else {
			d.Equal++
		}
	}
	slices.SortFunc(d.Tensors, func(a, b TensorDiff) int { return compareNatural(a.Name, b.Name) })
	return nil
}

// diffChunk is how much of a tensor is read at once. It is a multiple of every element.
const diffChunk = 256 << 10

// compare reads both tensors of the name and counts the elements that differ.
func (t *TensorDiff) compare(ctx context.Context, sides [2]*folder, advance func(int64)) error {
	var src [2]io.Reader
	for i, m := range sides {
		var err error
		if src[i], err = m.open(m.index.get(t.Name)); err != nil {
			return err
		}
	}
	width := int64(max(1, t.A.DType.Bits()/8)) // elements smaller than a byte are counted by bytes
	size := sides[0].index.get(t.Name).Size
	a, b := make([]byte, min(size, diffChunk)), make([]byte, min(size, diffChunk))
	for at := int64(0); at < size; at += int64(len(a)) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(size-at, int64(len(a)))
		for i, buf := range [][]byte{a[:n], b[:n]} {
			if _, err := io.ReadFull(src[i], buf); err != nil {
				return err
			}
		}
		if !bytes.Equal(a[:n], b[:n]) {
			t.count(a[:n], b[:n], at/width, width)
		}
		advance(n)
	}
	if t.Elements > 0 {
		t.Of = size / width
	}
	return nil
}

// count notes the elements that differ; first is the number of the first of these.
func (t *TensorDiff) count(a, b []byte, first, width int64) {
	for i := int64(0); i < int64(len(a)); i += width {
		x, y := a[i:i+width], b[i:i+width]
		if bytes.Equal(x, y) {
			continue
		}
		if t.Elements == 0 {
			t.First = first + i/width
		}
		t.Elements++
		if u, v, ok := numbers(t.A.DType, x, y); ok {
			if far := math.Abs(u - v); far > t.Largest && !math.IsInf(far, 0) {
				t.Largest = far
			}
		}
	}
}

// numbers returns two elements of a floating-point type.
func numbers(dtype tensor.DType, x, y []byte) (u, v float64, ok bool) {
	one := func(b []byte) float64 {
		switch dtype {
		case tensor.F16:
			return float64(tensor.Float16(binary.LittleEndian.Uint16(b)).Float32())
		case tensor.BF16:
			return float64(tensor.BFloat16(binary.LittleEndian.Uint16(b)).Float32())
		case tensor.F32:
			return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
		default:
			return math.Float64frombits(binary.LittleEndian.Uint64(b))
		}
	}
	switch dtype {
	case tensor.F16, tensor.BF16, tensor.F32, tensor.F64:
		return one(x), one(y), true
	}
	return 0, 0, false
}

// diffWidths compares how linear layers are stored that are quantized in one of the models.
func (d *Difference) diffWidths(sides [2]*folder) {
	keys := map[string]bool{}
	for _, m := range sides {
		for i := range m.index.list {
			if key := m.layerOf(m.index.list[i].Name); key != "" {
				keys[key] = true
			}
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(keys), compareNatural) {
		a, b := sides[0].layer(key), sides[1].layer(key)
		if a == nil || b == nil || a.Format != b.Format || a.BitsPerWeight != b.BitsPerWeight || a.Problem != b.Problem ||
			!slices.Equal(a.Widths, b.Widths) {
			d.Widths = append(d.Widths, WidthDiff{Key: key, A: a, B: b})
		}
	}
}

// layer describes the linear layer of a key, or returns nil if there is none.
func (m *folder) layer(key string) *LayerForm {
	var info quant.LayerInfo
	switch {
	case m.index.get(key+".q_weight") != nil:
		info = quant.InspectEXL2(m, key)
	case m.index.get(key+".qweight") != nil:
		info = quant.InspectGPTQ(m, key)
	default:
		t := m.index.get(key + ".weight")
		if t == nil {
			return nil
		}
		return &LayerForm{Format: t.DType.String(), BitsPerWeight: float64(t.DType.Bits())}
	}
	f := &LayerForm{Format: fmt.Sprint(info.Format), BitsPerWeight: info.BitsPerWeight, Widths: info.Widths}
	if info.Err != nil {
		f.Problem = info.Err.Error()
	}
	return f
}

// diffConfig compares config.json, if there is one.
func (d *Difference) diffConfig(a, b string, links Links) error {
	var roots [2]*value
	for i, dir := range []string{a, b} {
		path := filepath.Join(dir, ConfigFile)
		text, err := links.readSmall(path, maxConfigBytes)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var root value
		if err == nil {
			root, err = parseJSON(text)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		roots[i] = &root
	}
	d.diffValues("", roots[0], roots[1])
	return nil
}

// diffValues appends what differs between two values, by their path.
func (d *Difference) diffValues(path string, a, b *value) {
	join := func(name string) string {
		if path == "" {
			return name
		}
		return path + "." + name
	}
	switch {
	case a != nil && b != nil && a.kind == kObject && b.kind == kObject:
		left, right := map[string]*value{}, map[string]*value{}
		for i := range b.members {
			right[b.members[i].key] = &b.members[i].val
		}
		for i := range a.members {
			m := &a.members[i]
			left[m.key] = &m.val
			d.diffValues(join(m.key), &m.val, right[m.key])
		}
		for i := range b.members {
			if m := &b.members[i]; left[m.key] == nil {
				d.diffValues(join(m.key), nil, &m.val)
			}
		}
	case a != nil && b != nil && a.kind == kArray && b.kind == kArray && len(a.items) == len(b.items):
		for i := range a.items {
			d.diffValues(path+"["+strconv.Itoa(i)+"]", &a.items[i], &b.items[i])
		}
	default:
		if x, y := compactJSON(a), compactJSON(b); x != y {
			d.Config = append(d.Config, ConfigDiff{Path: path, A: x, B: y})
		}
	}
}

// compactJSON is a value on one line.
func compactJSON(v *value) string {
	if v == nil {
		return ""
	}
	lines := strings.Split(string(appendPython(nil, *v, 0)), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i]) // strings have no line breaks in JSON
	}
	return strings.Join(lines, " ")
}

// diffFiles compares the other files of the folders.
func (d *Difference) diffFiles(sides [2]*folder) error {
	var files [2]map[string]sourceFile
	names := map[string]bool{}
	for i, m := range sides {
		files[i] = map[string]sourceFile{}
		for _, f := range m.others {
			if f.name != IndexFile && f.name != ManifestName && f.name != ManifestName+SignatureSuffix && f.name != ConfigFile {
				files[i][f.name] = f
				names[f.name] = true
			}
		}
	}
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		f := FileDiff{Name: name, ASize: -1, BSize: -1}
		x, inA := files[0][name]
		y, inB := files[1][name]
		if inA {
			f.ASize = x.input.Size
		}
		if inB {
			f.BSize = y.input.Size
		}
		if inA && inB && f.ASize == f.BSize {
			same, err := sameFile(x, y, a, b)
			if err != nil {
				return err
			}
			if same {
				continue
			}
		}
		d.Files = append(d.Files, f)
	}
	return nil
}

func sameFile(x, y sourceFile, a, b []byte) (bool, error) {
	if err := cmp.Or(x.err, y.err); err != nil {
		return false, fmt.Errorf("%s: %w", x.name, err)
	}
	f, err := openInput(x.input)
	if err != nil {
		return false, err
	}
	defer f.Close()
	g, err := openInput(y.input)
	if err != nil {
		return false, err
	}
	defer g.Close()
	return equal(f, io.LimitReader(g, y.input.Size), a, b)
}
