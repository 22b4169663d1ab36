package exl2

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
)

// Info says what is in a compiled model.
type Info struct {
	Dir          string `json:"dir"`
	Architecture string `json:"architecture"`
	// TargetBits and HeadBits are what config.json says was asked for; 0 if it says nothing.
	TargetBits float64 `json:"target_bits"`
	HeadBits   float64 `json:"head_bits"`
	// LayerBits is the real average of bits per weight over the quantized linears of the decoder
	// layers, everything that is stored for them counted. AllBits includes the head.
	LayerBits float64 `json:"layer_bits"`
	AllBits   float64 `json:"all_bits"`

	Files       []InfoFile  `json:"files"`
	Bytes       int64       `json:"bytes"` // of all tensor files
	QuantBytes  int64       `json:"quant_bytes"`
	FloatBytes  int64       `json:"float_bytes"` // tensors that belong to no quantized linear
	Quantized   int         `json:"quantized"`   // number of quantized linears
	Floats      int         `json:"floats"`      // number of other tensors
	Layers      []InfoLayer `json:"layers"`
	Other       []Cell      `json:"other"` // quantized linears outside the layers: the head
	Types       []Cell      `json:"types"` // all layers together, one for each type, in the order of the first layer
	BitsPerRow  []BitShare  `json:"bits_per_row"`
	Problems    Problems    `json:"problems,omitempty"`
	totalLayers Cell
}

// InfoFile is a tensor file.
type InfoFile struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Tensors int    `json:"tensors"`
}

// InfoLayer is a decoder layer.
type InfoLayer struct {
	Index int `json:"index"`
	Cell
	Cells []Cell `json:"cells"` // one for each type, experts together
}

// Cell is one or more quantized linears of the same type.
type Cell struct {
	Type    string  `json:"type"` // such as self_attn.q_proj or mlp.experts.*.up_proj
	Count   int     `json:"count"`
	Weights int64   `json:"weights"`
	Bytes   int64   `json:"bytes"`
	Bits    float64 `json:"bits"` // per weight
	Groups  int     `json:"groups"`
}

// BitShare is how many rows of quantized matrices have a width.
type BitShare struct {
	Bits int   `json:"bits"`
	Rows int64 `json:"rows"`
}

func (c *Cell) add(d Cell) {
	c.Count += d.Count
	c.Weights += d.Weights
	c.Bytes += d.Bytes
	c.Groups += d.Groups
	if c.Weights > 0 {
		c.Bits = float64(8*c.Bytes) / float64(c.Weights)
	}
}

// addTo adds d to the cell of its type, which is appended if it is new.
func addTo(cells *[]Cell, d Cell) {
	for i := range *cells {
		if (*cells)[i].Type == d.Type {
			(*cells)[i].add(d)
			return
		}
	}
	c := Cell{Type: d.Type}
	c.add(d)
	*cells = append(*cells, c)
}

var (
	layerKey  = regexp.MustCompile(`(?:^|\.)layers\.(\d{1,6})\.(.+)$`)
	expertKey = regexp.MustCompile(`\.experts\.\d+\.`)
)

// Inspect reads the headers, group tables and permutations of a compiled model, by kiln or by
// another program. What it cannot make sense of is in Info.Problems; the error is for a folder that
// cannot be read or has no model.
func Inspect(ctx context.Context, dir string, links Links) (*Info, error) {
	d, err := openModelDir(ctx, dir, links)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", dir, err)
	}
	defer d.close()
	info := &Info{Dir: dir, Problems: d.problems}
	if config, err := links.readSmall(filepath.Join(dir, ConfigFile), maxConfigBytes); err == nil {
		info.readConfig(config)
	}
	for _, f := range d.index.files {
		if f.header != nil {
			info.Files = append(info.Files, InfoFile{Name: filepath.Base(f.input.Path), Size: f.input.Size, Tensors: len(f.header.Tensors)})
			info.Bytes += f.input.Size
		}
	}

	shares := map[int]int64{}
	layers := map[int]*InfoLayer{}
	var head Cell
	for _, key := range d.quantizedKeys() {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		m, ps := d.matrix(key)
		if len(ps) > 0 {
			info.Problems = append(info.Problems, ps...)
			continue
		}
		info.Quantized++
		info.QuantBytes += matrixBytes(&m)
		for _, w := range m.Widths {
			shares[w.Bits] += int64(w.Rows)
		}
		cell := Cell{Type: key, Count: 1, Weights: int64(m.Rows) * int64(m.Cols), Bytes: matrixBytes(&m), Groups: m.Groups}
		match := layerKey.FindStringSubmatch(key)
		if match == nil {
			addTo(&info.Other, cell)
			head.add(cell)
			continue
		}
		n, _ := strconv.Atoi(match[1]) // at most six digits
		cell.Type = expertKey.ReplaceAllString(match[2], ".experts.*.")
		if layers[n] == nil {
			layers[n] = &InfoLayer{Index: n}
		}
		addTo(&layers[n].Cells, cell)
		layers[n].add(cell)
		info.totalLayers.add(cell)
	}
	for _, l := range layers {
		slices.SortFunc(l.Cells, func(a, b Cell) int { return cmp.Or(typeRank(a.Type)-typeRank(b.Type), strings.Compare(a.Type, b.Type)) })
		info.Layers = append(info.Layers, *l)
	}
	slices.SortFunc(info.Layers, func(a, b InfoLayer) int { return a.Index - b.Index })
	for _, l := range info.Layers {
		for _, c := range l.Cells {
			addTo(&info.Types, c)
		}
	}
	for bits, rows := range shares {
		info.BitsPerRow = append(info.BitsPerRow, BitShare{bits, rows})
	}
	slices.SortFunc(info.BitsPerRow, func(a, b BitShare) int { return a.Bits - b.Bits })
	info.LayerBits = info.totalLayers.Bits
	head.add(info.totalLayers)
	info.AllBits = head.Bits
	for _, t := range d.index.list {
		if key, suffix, ok := cutLast(t.Name); !ok || !isMatrixSuffix(suffix) || d.index.get(key+".q_weight") == nil {
			info.Floats++
			info.FloatBytes += t.Size
		}
	}
	return info, nil
}

func (info *Info) readConfig(data []byte) {
	root, err := parseJSON(data)
	if err != nil {
		info.Problems.add(BadConfig, ConfigFile, "", "%v", err)
		return
	}
	if names := root.get("architectures"); names != nil && len(names.items) > 0 {
		info.Architecture = names.items[0].text
	}
	q := root.get("quantization_config")
	for field, dst := range map[string]*float64{"bits": &info.TargetBits, "head_bits": &info.HeadBits} {
		if v := q.get(field); v != nil && (v.kind == kInt || v.kind == kFloat) {
			*dst = v.float()
		}
	}
}

// typeRank puts the linears of a layer into the order in which they are used.
func typeRank(typ string) int {
	order := []string{
		"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "w1", "up_proj", "v1", "w3", "c_fc", "down_proj", "w2", "c_proj",
	}
	_, last, _ := cutLast(typ)
	if i := slices.Index(order, last); i >= 0 {
		return i
	}
	return len(order)
}

func cutLast(key string) (before, after string, ok bool) {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return "", key, false
	}
	return key[:i], key[i+1:], true
}

// modelDir is a folder with a compiled model, opened for reading by tensor name.
type modelDir struct {
	links    Links
	index    *sourceIndex
	others   []sourceFile
	files    map[int]*os.File
	problems Problems
}

func openModelDir(ctx context.Context, dir string, links Links) (*modelDir, error) {
	files, others, err := scanModel(ctx, dir, links, 2*runtime.GOMAXPROCS(0))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no *.safetensors file")
	}
	d := &modelDir{links: links, others: others, files: map[int]*os.File{}}
	var notices []string
	d.index, notices, d.problems = indexSource(files, findArchitecture(fallbackArchitecture)) // whose keymap is empty
	for _, n := range notices {
		d.problems.add(ForeignTensor, dir, "", "%s", n)
	}
	return d, nil
}

func (d *modelDir) close() {
	for _, f := range d.files {
		f.Close() //nolint:errcheck // only read
	}
}

// Lookup finds a tensor in any of the files.
func (d *modelDir) Lookup(name string) (safetensors.Tensor, bool) {
	if t := d.index.get(name); t != nil {
		return t.Tensor, true
	}
	return safetensors.Tensor{}, false
}

// Open returns the data of a tensor that exists.
func (d *modelDir) Open(name string) (io.Reader, error) {
	return d.open(d.index.get(name))
}

func (d *modelDir) open(t *sourceTensor) (io.Reader, error) {
	f := d.files[t.file]
	if f == nil {
		var err error
		if f, _, err = d.links.open(d.index.files[t.file].input.Path); err != nil {
			return nil, err
		}
		d.files[t.file] = f
	}
	return io.NewSectionReader(f, d.index.files[t.file].header.DataStart+t.Offset, t.Size), nil
}

// matrix reads the quantized linear key, whose tensors may be in different files.
func (d *modelDir) matrix(key string) (quant.LayerInfo, Problems) {
	file := ""
	if t := d.index.get(key + ".q_weight"); t != nil {
		file = filepath.Base(d.index.files[t.file].input.Path)
	}
	return readMatrix(file, key, d)
}

// quantizedKeys lists the quantized linears, sorted.
func (d *modelDir) quantizedKeys() []string {
	var keys []string
	for _, t := range d.index.list {
		if key, ok := strings.CutSuffix(t.Name, ".q_weight"); ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
