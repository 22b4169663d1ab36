package exl2

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// Options says where the inputs of a compile are.
type Options struct {
	// WorkDir is the converter's working directory: it has job_new.json and out_tensor/.
	WorkDir string
	// ModelDir is the source model; empty means the one the job names.
	ModelDir string
	// JobFile is read instead of the job_new.json in WorkDir, if it is given.
	JobFile string
	Links   Links
	// Workers is how many files are looked at at the same time; 0 means two for each processor.
	Workers int
}

// Input identifies a file that a plan reads, so that a change between plan and write is noticed.
type Input struct {
	Path    string    `json:"path"`
	Name    string    `json:"name"` // out_tensor/… or model/…, the same on every machine
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mod_time"`
	// ID is another value after every change of the file on this machine; empty if the system has
	// none.
	ID string `json:"id,omitempty"`
	// HeaderSHA256 is the digest of the safetensors header; empty for other files.
	HeaderSHA256 string `json:"header_sha256,omitempty"`
}

// Tensor is one tensor of the compiled model and where its bytes come from.
type Tensor struct {
	Name  string       `json:"name"`
	DType tensor.DType `json:"dtype"`
	Shape []int64      `json:"shape"`
	Size  int64        `json:"size"`
	From  Source       `json:"from"`
	// Convert is nil for tensors that are copied.
	Convert *Convert `json:"convert,omitempty"`
	// SHA256 is what the digest of the data must be; empty if it is not known.
	SHA256 string `json:"sha256,omitempty"`
}

// Source is a tensor in an input file.
type Source struct {
	Input  int          `json:"input"` // index in Inputs
	Name   string       `json:"name"`  // name in that file
	DType  tensor.DType `json:"dtype"`
	Offset int64        `json:"offset"` // from the start of the file
	Size   int64        `json:"size"`
}

// Convert describes how a float tensor becomes half precision. Steps apply in the order of the
// fields.
type Convert struct {
	// Scale is the factor of the round trip x·s/s; 0 means none.
	Scale float64 `json:"scale,omitempty"`
	// Offset is the constant of the round trip x+c−c; 0 means none.
	Offset float64 `json:"offset,omitempty"`
	// Repeat is how often the tensor is written one after the other; 0 means once.
	Repeat int `json:"repeat,omitempty"`
}

// Inventory is everything there is to know of the inputs without reading weights. It is immutable.
type Inventory struct {
	Job      *Job
	ModelDir string
	// Architecture is the name in config.json; Known is false if it is compiled as a Llama for want
	// of a better entry.
	Architecture string
	Known        bool
	Inputs       []Input
	Problems     Problems
	// Notices are remarks that stop nothing.
	Notices []string
	// Dropped are source tensors that belong to no module, by their name in the source.
	Dropped []string

	config  []byte
	model   *model
	modules [][]Tensor   // in the order of the model, tensors in the order of the parts
	extras  []Tensor     // in the original's order; a name can be listed twice
	files   []sourceFile // regular files of the source model that are not read as tensors

	layerVersion string // release of exllamav2 that the files of the layers name, or empty
}

// sourceFile is a file of the source model that may be copied.
type sourceFile struct {
	name  string
	input Input
	mode  fs.FileMode
	err   error // why it must not be read
}

// sourceTensor is a tensor of the source model under its rewritten name.
type sourceTensor struct {
	safetensors.Tensor
	original string
	file     int // index in the scanned files
}

// ReadInventory reads the job, the configuration and the headers of all inputs, and checks them. It
// reads the group tables and permutations of quantized layers, no weights. Everything that is wrong
// is reported at once; the inventory is nil only if the job or the configuration could not be
// understood.
func ReadInventory(ctx context.Context, opts Options) (*Inventory, Problems) {
	if opts.JobFile == "" {
		opts.JobFile = filepath.Join(opts.WorkDir, JobFile)
	}
	job, ps := readJob(opts.JobFile, opts.WorkDir, opts.Links)
	if job == nil {
		return nil, ps
	}
	inv := &Inventory{Job: job, ModelDir: opts.ModelDir, Problems: ps}
	if inv.ModelDir == "" {
		inv.ModelDir = job.ModelDir
	}
	if opts.Workers <= 0 {
		opts.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	if inv.ModelDir == "" {
		inv.Problems.add(BadJob, opts.JobFile, "in_dir", "the job names no source model; give one")
		return nil, inv.Problems
	}
	if !inv.readConfig(opts.Links) {
		return nil, inv.Problems
	}
	sources, ok := inv.readSource(ctx, opts)
	if !ok {
		return nil, inv.Problems
	}
	inv.readModules(ctx, opts, sources)
	if err := ctx.Err(); err != nil {
		inv.Problems.add(BadFile, opts.WorkDir, "", "stopped: %v", context.Cause(ctx))
	}
	return inv, inv.Problems
}

func (inv *Inventory) readConfig(links Links) bool {
	path := filepath.Join(inv.ModelDir, ConfigFile)
	data, err := links.readSmall(path, maxConfigBytes)
	if err != nil {
		kind := BadConfig
		if errors.Is(err, fs.ErrNotExist) {
			kind = MissingFile
		}
		inv.Problems.add(kind, path, "", "%v; %s must be the source model", err, inv.ModelDir)
		return false
	}
	m, ps := parseModel(data, path)
	inv.Problems = append(inv.Problems, ps...)
	if len(ps) > 0 {
		return false
	}
	inv.config, inv.model = data, m
	inv.Architecture, inv.Known = m.name, m.known
	if !m.known {
		inv.Notices = append(inv.Notices, fmt.Sprintf("architecture %s is not in the table; it is compiled as %s", m.name, fallbackArchitecture))
	}
	return true
}

// sourceIndex finds source tensors by their rewritten names.
type sourceIndex struct {
	files  []scanned
	byName map[string]int
	list   []sourceTensor // first occurrence decides the place, last one the content
}

func (s *sourceIndex) get(name string) *sourceTensor {
	if i, ok := s.byName[name]; ok {
		return &s.list[i]
	}
	return nil
}

// isTensorFile is the shell pattern *.safetensors, which leaves hidden files out.
func isTensorFile(name string) bool {
	return strings.HasSuffix(name, ".safetensors") && !strings.HasPrefix(name, ".")
}

// scanModel lists a model folder: tensor files with their headers, and the other files. A file that
// must not be read has only its error. Folders are left out, and so are links to them and links to
// nothing.
func scanModel(ctx context.Context, dir string, links Links, workers int) ([]scanned, []sourceFile, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, nil, err
	}
	var tensors []scanned
	var others []sourceFile
	for _, e := range entries {
		in := Input{Path: filepath.Join(dir, e.Name()), Name: "model/" + e.Name()}
		if isTensorFile(e.Name()) {
			tensors = append(tensors, scanned{input: in})
			continue
		}
		if info, err := os.Stat(in.Path); err != nil || info.IsDir() {
			continue
		}
		f := sourceFile{name: e.Name(), input: in}
		info, err := links.stat(in.Path)
		if err != nil {
			f.err = err
		} else {
			f.input.Size, f.input.ModTime, f.mode = info.Size(), info.ModTime(), info.Mode().Perm()
			f.input.ID = fileID(in.Path)
		}
		others = append(others, f)
	}
	parallel(ctx, workers, len(tensors), func(i int) {
		if f := tensors[i].open(links); f != nil {
			f.Close() //nolint:errcheck // only read
		}
	})
	return tensors, others, ctx.Err()
}

func (inv *Inventory) readSource(ctx context.Context, opts Options) (*sourceIndex, bool) {
	files, others, err := scanModel(ctx, inv.ModelDir, opts.Links, opts.Workers)
	if err != nil {
		inv.Problems.add(BadFile, inv.ModelDir, "", "%v", err)
		return nil, false
	}
	inv.files = others
	if len(files) == 0 {
		inv.Problems.add(MissingFile, inv.ModelDir, "", "no *.safetensors file in the source model")
	}
	idx, notices, ps := indexSource(files, inv.model.arch)
	inv.Notices = append(inv.Notices, notices...)
	inv.Problems = append(inv.Problems, ps...)
	if inv.model.needsPreprocessor && !slices.ContainsFunc(others, func(f sourceFile) bool { return f.name == "preprocessor_config.json" }) {
		inv.Problems.add(MissingFile, filepath.Join(inv.ModelDir, "preprocessor_config.json"), "", "loaders need it for a model with a vision part")
	}
	return idx, true
}

// indexSource applies the architecture's keymap to all names and settles names that occur twice.
func indexSource(files []scanned, arch *architecture) (*sourceIndex, []string, Problems) {
	idx := &sourceIndex{files: files, byName: map[string]int{}}
	var notices []string
	var ps Problems
	for i, f := range files {
		if f.err != nil {
			ps.add(BadFile, f.input.Path, "", "%v", f.err)
			continue
		}
		for _, t := range f.header.InHeaderOrder() {
			st := sourceTensor{Tensor: t, original: t.Name, file: i}
			st.Name = arch.rename(t.Name)
			if at, dup := idx.byName[st.Name]; dup {
				notices = append(notices, fmt.Sprintf("%s is in %s and in %s; the latter is used",
					st.Name, files[idx.list[at].file].input.Name, f.input.Name))
				idx.list[at] = st
				continue
			}
			idx.byName[st.Name] = len(idx.list)
			idx.list = append(idx.list, st)
		}
	}
	return idx, notices, ps
}

// modelReader turns the modules of a model into tensors.
type modelReader struct {
	model   *model
	source  *sourceIndex
	ps      Problems
	notices []string
	inputs  []Input
	inputOf map[string]int  // by path
	used    map[string]bool // rewritten source names that are accounted for
}

func (r *modelReader) input(in Input) int {
	if i, ok := r.inputOf[in.Path]; ok {
		return i
	}
	r.inputOf[in.Path] = len(r.inputs)
	r.inputs = append(r.inputs, in)
	return len(r.inputs) - 1
}

func newModelReader(m *model, source *sourceIndex) *modelReader {
	return &modelReader{model: m, source: source, inputOf: map[string]int{}, used: map[string]bool{}}
}

func (inv *Inventory) readModules(ctx context.Context, opts Options, source *sourceIndex) {
	mods := inv.model.modules()
	r := newModelReader(inv.model, source)
	r.requireLinears(mods, inv.ModelDir)

	// Quantized layers: one small file each, possibly tens of thousands.
	dir := filepath.Join(opts.WorkDir, "out_tensor")
	var parts []*part
	for i := range mods {
		for j := range mods[i].parts {
			if p := &mods[i].parts[j]; p.typ == partQuant {
				parts = append(parts, p)
			}
		}
	}
	type layer struct {
		scanned
		m  quant.LayerInfo
		ps Problems
	}
	layers := make([]layer, len(parts))
	if _, err := os.Stat(dir); err != nil {
		r.ps.add(MissingFile, dir, "", "no folder with quantized layers in the working directory")
	} else {
		parallel(ctx, opts.Workers, len(parts), func(i int) {
			l := &layers[i]
			l.scanned, l.m, l.ps = readLayer(dir, parts[i].key, opts.Links)
		})
	}
	versions := layerVersions{}
	embedding := 0 // rows of the embedding, which a head may follow instead of vocab_size
	next := 0
	for _, mod := range mods {
		var tensors []Tensor
		for i := range mod.parts {
			p := &mod.parts[i]
			if p.typ != partQuant {
				ts := r.floatPart(p)
				if p.typ == partEmbedding && len(ts) > 0 {
					embedding = int(ts[0].Shape[0])
				}
				tensors = append(tensors, ts...)
				continue
			}
			l := &layers[next]
			next++
			r.ps = append(r.ps, l.ps...)
			if l.header == nil || len(l.ps) > 0 {
				continue
			}
			r.checkLayer(p, l.input.Path, &l.m, embedding)
			versions.note(l.header.Metadata)
			in := r.input(l.input)
			for _, suffix := range matrixSuffixes {
				if t, ok := l.header.Lookup(p.key + "." + suffix); ok {
					tensors = append(tensors, copied(t, l.header, in))
				}
			}
		}
		inv.modules = append(inv.modules, tensors)
	}
	inv.layerVersion = versions.last
	if inv.Job.Version == "" && len(versions.all) > 1 {
		r.notices = append(r.notices, fmt.Sprintf("layers were quantized by exllamav2 %s; config.json will name %s, that of the last layer",
			strings.Join(versions.all, " and "), versions.last))
	}
	inv.extras = r.extras()
	inv.Inputs = r.inputs
	inv.Problems = append(inv.Problems, r.ps...)
	inv.Notices = append(inv.Notices, r.notices...)
	for _, t := range source.list {
		if !r.used[t.Name] {
			inv.Dropped = append(inv.Dropped, t.original)
		}
	}
	if last := inv.Job.lastQuantized; last >= 0 && last != int64(len(mods)-1) {
		inv.Notices = append(inv.Notices, fmt.Sprintf("the job's last quantized module is %d, the model's last is %d", last, len(mods)-1))
	}
	inv.checkNames()
}

// layerVersions collects what the files of quantized layers say about the program that made them.
type layerVersions struct {
	all  []string
	last string
}

func (v *layerVersions) note(metadata map[string]string) {
	for _, key := range versionKeys {
		if s := metadata[key]; s != "" {
			if v.last = s; !slices.Contains(v.all, s) {
				v.all = append(v.all, s)
			}
			return
		}
	}
}

// copied is the output tensor for bytes taken as they are.
func copied(t safetensors.Tensor, h *safetensors.Header, input int) Tensor {
	return Tensor{
		Name: t.Name, DType: t.DType, Shape: t.Shape, Size: t.Size,
		From: Source{Input: input, Name: t.Name, DType: t.DType, Offset: h.DataStart + t.Offset, Size: t.Size},
	}
}

// readLayer reads the file of one quantized layer.
func readLayer(dir, key string, links Links) (s scanned, m quant.LayerInfo, ps Problems) {
	path := filepath.Join(dir, key+".safetensors")
	s.input = Input{Path: path, Name: "out_tensor/" + key + ".safetensors"}
	f := s.open(links)
	if f == nil {
		if errors.Is(s.err, fs.ErrNotExist) {
			ps.add(MissingFile, path, "", "the quantized layer is missing")
		} else {
			ps.add(BadFile, path, "", "%v", s.err)
		}
		return s, m, ps
	}
	defer f.Close()
	for _, t := range s.header.Tensors {
		suffix, ok := strings.CutPrefix(t.Name, key+".")
		if !ok || !isMatrixSuffix(suffix) {
			ps.add(ForeignTensor, path, t.Name, "does not belong to the layer %s", key)
		}
	}
	m, mps := readMatrix(path, key, tensorSource{s.header, f})
	return s, m, append(ps, mps...)
}

// checkLayer compares a quantized layer with what the architecture expects of it. exllamav2 pads
// the output features of its linear layers to a multiple of 32 and refuses to multiply with a
// matrix of another width.
func (r *modelReader) checkLayer(p *part, file string, m *quant.LayerInfo, embedding int) {
	padded := func(n int) int { return (n + 31) &^ 31 }
	if m.Rows != p.in {
		r.ps.add(BadShape, file, p.key, "%d input features, the configuration has %d", m.Rows, p.in)
	}
	if m.Cols != padded(p.out) && !(p.role == "lm_head" && m.Cols == padded(embedding)) {
		r.ps.add(BadShape, file, p.key, "%d output features, want %d: the configuration has %d, padded to a multiple of 32", m.Cols, padded(p.out), p.out)
	}
	switch {
	case p.bias && !m.Bias:
		r.ps.add(MissingTensor, file, p.key+".bias", "the architecture wants a bias")
	case !p.bias && m.Bias:
		r.ps.add(ForeignTensor, file, p.key+".bias", "the architecture has no bias here, and loaders refuse it")
	}
}

// keySuffixes are the endings with which a linear layer can appear in a source model.
var keySuffixes = []string{".q_weight", ".qweight", ".weight", ""}

// requireLinears checks that the source has every linear layer, as the original does when it opens
// a model.
func (r *modelReader) requireLinears(mods []module, dir string) {
	has := func(key string) bool {
		found := false
		for _, s := range keySuffixes {
			if r.source.get(key+s) != nil {
				r.used[key+s] = true
				found = true
			}
		}
		if r.source.get(key+".bias") != nil {
			r.used[key+".bias"] = true
		}
		return found
	}
	prefix := r.model.arch.Prefix
	first := prefix + "model.layers.0.mlp."
	swiglu := has(first+"swiglu.w12") && !has(first+"down_proj")
	for _, mod := range mods {
		for i := range mod.parts {
			p := &mod.parts[i]
			if p.typ != partQuant {
				continue
			}
			keys := []string{p.key}
			if p.fused != "" {
				keys = append(keys, p.fused)
			}
			if swiglu {
				if base, ok := strings.CutSuffix(p.key, "mlp."+p.role); ok {
					keys = []string{base + "mlp.swiglu.w12"}
					if p.role == "down_proj" {
						keys = []string{base + "mlp.swiglu.w3"}
					}
				}
			}
			found := false
			for _, k := range keys {
				found = has(k) || found
			}
			if found || p.role == "lm_head" && r.model.headOptional {
				continue
			}
			var names []string
			for _, k := range keys {
				names = append(names, k+".weight")
			}
			pr := Problem{Kind: MissingTensor, File: dir, Tensor: p.key + ".weight", Message: "not in the source model"}
			if len(names) > 1 {
				pr.Alternatives = names
			}
			r.ps = append(r.ps, pr)
		}
	}
}

// floatPart finds the weight and bias of a part in the source and decides how they are converted.
func (r *modelReader) floatPart(p *part) []Tensor {
	var out []Tensor
	for _, suffix := range []string{".weight", ".bias"} {
		name := p.key + suffix
		t := r.source.get(name)
		if t == nil {
			if suffix == ".weight" {
				r.ps = append(r.ps, Problem{Kind: MissingTensor, Tensor: name, Message: "not in the source model", Alternatives: r.similar(p.key)})
			}
			continue
		}
		r.used[name] = true
		in := r.source.files[t.file].input
		if suffix == ".bias" {
			switch {
			case p.typ == partHeadNorm && p.offset != 0:
				continue // the original drops it
			case p.typ != partLayerNorm && p.typ != partHeadNorm:
				r.ps.add(ForeignTensor, in.Path, t.original, "this %s has no bias in this architecture", p.typ)
				continue
			}
		}
		if !readable[t.DType] {
			r.ps.add(BadDType, in.Path, t.original, "dtype %s cannot be read, want F16, BF16 or F32", t.DType)
			continue
		}
		c := &Convert{}
		if p.scale != 1 && suffix == ".weight" {
			c.Scale = p.scale
		}
		if suffix == ".weight" {
			c.Offset = p.offset
		}
		shape, ok := r.floatShape(p, t, in.Path, c)
		if !ok {
			continue
		}
		size := int64(2 * max(1, c.Repeat))
		for _, n := range t.Shape {
			size *= n
		}
		out = append(out, Tensor{
			Name: name, DType: tensor.F16, Shape: shape, Size: size, Convert: c,
			From: Source{Input: r.input(in), Name: t.original, DType: t.DType, Offset: r.source.files[t.file].header.DataStart + t.Offset, Size: t.Size},
		})
	}
	return out
}

// floatShape checks the shape of a float tensor and returns the one that is written.
func (r *modelReader) floatShape(p *part, t *sourceTensor, file string, c *Convert) ([]int64, bool) {
	m := r.model
	hidden := int64(m.hidden)
	bad := func(format string, args ...any) ([]int64, bool) {
		r.ps.add(BadShape, file, t.original, "shape %v, %s", t.Shape, fmt.Sprintf(format, args...))
		return nil, false
	}
	switch p.typ {
	case partEmbedding, partPositions:
		if len(t.Shape) != 2 || t.Shape[1] != hidden {
			return bad("want two dimensions, the second %d", hidden)
		}
		if p.typ == partPositions && t.Shape[0] < int64(m.context) {
			return bad("want at least %d positions", m.context)
		}
	case partRouter:
		if want := []int64{int64(m.experts), hidden}; !slices.Equal(t.Shape, want) {
			return bad("want %v", want)
		}
	case partHeadNorm:
		want := []int64{int64(p.heads), int64(m.headDim)}
		if len(t.Shape) == 1 && t.Shape[0] == want[1] {
			c.Repeat = p.heads
		} else if !slices.Equal(t.Shape, want) {
			return bad("want %v or [%d]", want, want[1])
		}
		return want, true
	default:
		if !slices.Equal(t.Shape, []int64{hidden}) {
			return bad("want [%d]", hidden)
		}
	}
	return t.Shape, true
}

// similar lists source tensors that end like the key, for the message about a missing one.
func (r *modelReader) similar(key string) []string {
	parts := strings.Split(key, ".")
	end := "." + parts[len(parts)-1] + ".weight"
	layer := ""
	if i := slices.Index(parts, "layers"); i >= 0 && i+1 < len(parts) {
		layer = "." + parts[i+1] + "."
	}
	var names []string
	for _, t := range r.source.list {
		if strings.HasSuffix("."+t.original, end) && strings.Contains(t.original, layer) && len(names) < 3 {
			names = append(names, t.original)
		}
	}
	sort.Strings(names)
	return names
}

// extras lists the tensors of the vision part, prefix by prefix and within a prefix in the order of
// the headers, as the original does. Prefixes can overlap; then a name comes twice.
func (r *modelReader) extras() []Tensor {
	var out []Tensor
	for _, prefix := range r.model.arch.Extras {
		for i := range r.source.list {
			t := &r.source.list[i]
			if !strings.HasPrefix(t.Name, prefix) {
				continue
			}
			in := r.source.files[t.file].input
			if !readable[t.DType] && !r.used[t.Name] {
				r.notices = append(r.notices, fmt.Sprintf("%s has the type %s, which exllamav2 cannot read; it is copied as it is", t.original, t.DType))
			}
			r.used[t.Name] = true
			e := copied(t.Tensor, r.source.files[t.file].header, r.input(in))
			e.From.Name = t.original
			out = append(out, e)
		}
	}
	return out
}

// checkNames reports a name that two modules give.
func (inv *Inventory) checkNames() {
	seen := map[string]bool{}
	for _, m := range inv.modules {
		for _, t := range m {
			if seen[t.Name] {
				inv.Problems.add(ForeignTensor, inv.Inputs[t.From.Input].Path, t.Name, "two modules write a tensor of this name")
			}
			seen[t.Name] = true
		}
	}
	reported := map[string]bool{}
	for _, t := range inv.extras {
		if seen[t.Name] && !reported[t.Name] {
			reported[t.Name] = true
			inv.Problems.add(ForeignTensor, inv.Inputs[t.From.Input].Path, t.Name, "a module and the vision part write a tensor of this name")
		}
	}
}

// parallel calls f(0) … f(n−1) on the given number of goroutines and returns when all are done or
// ctx is.
func parallel(ctx context.Context, workers, n int, f func(int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(workers, n) {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
}
