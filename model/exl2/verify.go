package exl2

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/kiln-build/kiln/model/safetensors"
)

// VerifyOptions says against what a model is checked. The zero value checks it against the digests
// of its own manifest and against the rules of the format. A model without digests cannot be
// verified, which is a problem too.
type VerifyOptions struct {
	// ManifestPath is the manifest; empty means the one in the folder, if there is one.
	ManifestPath string
	// ModelDir is the source model; if given, float tensors are converted again and compared, and
	// so are vision tensors.
	ModelDir string
	// Structure leaves the digests out, and does not miss them: sizes and structure only.
	Structure bool
	// Signature, if set, says who signed the bytes of a manifest; its error is a problem of the
	// model. Without digests there is nothing that a signature could cover, so Structure excludes it.
	Signature func(manifest []byte) (signer string, err error)
	Links     Links
	// Progress is called with the bytes hashed so far; nil means not at all.
	Progress func(Progress)
}

// Report is what Verify has done and found.
type Report struct {
	Dir      string   `json:"dir"`
	Manifest bool     `json:"manifest"` // there was one
	Signer   string   `json:"signer,omitempty"`
	Files    int      `json:"files"`    // compared with the manifest
	Tensors  int      `json:"tensors"`  // compared with the manifest
	Bytes    int64    `json:"bytes"`    // hashed
	Matrices int      `json:"matrices"` // quantized linears checked
	Sources  int      `json:"sources"`  // tensors compared with the source model
	Problems Problems `json:"problems,omitempty"`
	// Notices are remarks that make the model no worse for loaders of EXL2.
	Notices []string `json:"notices,omitempty"`
}

// OK reports whether nothing was found.
func (r *Report) OK() bool { return len(r.Problems) == 0 }

// Verify checks a compiled model. What is wrong with the model is in the report; the error is for a
// check that could not be carried out.
func Verify(ctx context.Context, dir string, opts VerifyOptions) (*Report, error) {
	rep := &Report{Dir: dir}
	d, err := openModelDir(ctx, dir, opts.Links)
	if err != nil {
		return nil, fmt.Errorf("verify %s: %w", dir, err)
	}
	defer d.close()
	rep.Problems = append(rep.Problems, d.problems...)

	if opts.ManifestPath == "" {
		path := filepath.Join(dir, ManifestName)
		if _, err := os.Stat(path); err == nil {
			opts.ManifestPath = path
		}
	}
	if opts.ManifestPath != "" {
		m, data, err := readManifest(opts.ManifestPath, opts.Links)
		if err != nil {
			return nil, fmt.Errorf("verify %s: %w", dir, err)
		}
		rep.Manifest = true
		if opts.Signature != nil {
			if rep.Signer, err = opts.Signature(data); err != nil {
				rep.Problems.add(BadSignature, filepath.Base(opts.ManifestPath), "", "%v", err)
			}
		}
		if err := rep.checkManifest(ctx, d, m, opts); err != nil {
			return nil, fmt.Errorf("verify %s: %w", dir, err)
		}
	} else if !opts.Structure {
		rep.Problems.add(NotVerifiable, "", "", "not verifiable: there is no %s, so changed weights cannot be noticed; "+
			"give the manifest, or check the structure only", ManifestName)
	}
	rep.checkIndex(d)
	if err := rep.checkModel(ctx, d, opts); err != nil {
		return nil, fmt.Errorf("verify %s: %w", dir, err)
	}
	return rep, nil
}

// checkManifest compares files and tensors with what was recorded. Every byte is read once.
func (r *Report) checkManifest(ctx context.Context, d *modelDir, m *Manifest, opts VerifyOptions) error {
	byFile := map[string][]ManifestTensor{}
	for _, t := range m.Tensors {
		byFile[t.File] = append(byFile[t.File], t)
	}
	known := map[string]bool{}
	if path, err := filepath.Rel(r.Dir, opts.ManifestPath); err == nil {
		known[path] = true // the manifest does not name itself, nor its signature
		known[path+SignatureSuffix] = true
	}
	undigested := 0
	var total int64
	for _, f := range m.Files {
		if !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name {
			return fmt.Errorf("the manifest names %q, which is no file of the folder", f.Name)
		}
		known[f.Name] = true
		total += f.Size
		if f.SHA256 == "" {
			undigested++
		}
	}
	if undigested > 0 && !opts.Structure {
		r.Problems.add(NotVerifiable, "", "", "not verifiable: the manifest has no digests of %d files, so changes cannot be noticed; "+
			"check the structure only", undigested)
	}
	for _, f := range d.index.files {
		if name := filepath.Base(f.input.Path); !known[name] {
			r.Problems.add(ForeignFile, name, "", "not in the manifest; loaders read every *.safetensors file")
		}
	}
	for _, f := range d.others {
		if !known[f.name] {
			r.Problems.add(ForeignFile, f.name, "", "not in the manifest; it is no part of the model that was compiled")
		}
	}
	var mu sync.Mutex
	var done int64
	found := make([]Problems, len(m.Files))
	var failed error
	advance := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		done += n
		if opts.Progress != nil {
			opts.Progress(Progress{Done: done, Total: total})
		}
	}
	parallel(ctx, runtime.GOMAXPROCS(0), len(m.Files), func(i int) {
		ps, tensors, err := verifyFile(ctx, r.Dir, m.Files[i], byFile[m.Files[i].Name], opts, advance)
		mu.Lock()
		defer mu.Unlock()
		found[i] = ps
		r.Files++
		r.Tensors += tensors
		failed = errors.Join(failed, err)
		if !opts.Structure {
			r.Bytes += m.Files[i].Size
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, ps := range found {
		r.Problems = append(r.Problems, ps...)
	}
	return failed
}

// verifyFile compares one file and its tensors with the manifest, and says how many bytes it has
// read on the way.
func verifyFile(ctx context.Context, dir string, want ManifestFile, tensors []ManifestTensor, opts VerifyOptions, advance func(int64)) (ps Problems, n int, err error) {
	f, info, err := opts.Links.open(filepath.Join(dir, want.Name))
	if errors.Is(err, fs.ErrNotExist) {
		ps.add(MissingFile, want.Name, "", "in the manifest, not in the folder")
		return ps, 0, nil
	}
	if err != nil {
		ps.add(BadFile, want.Name, "", "%v", err)
		return ps, 0, nil
	}
	defer f.Close()
	if info.Size() != want.Size {
		ps.add(Mismatch, want.Name, "", "%d bytes, want %d", info.Size(), want.Size)
		return ps, 0, nil
	}
	if opts.Structure || want.SHA256 == "" {
		return nil, len(tensors), nil
	}
	slices.SortFunc(tensors, func(a, b ManifestTensor) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size))
	})
	var there []ManifestTensor
	var ranges []byteRange
	var pos int64
	for _, t := range tensors {
		if t.Offset < pos || t.Size < 0 || t.Offset > want.Size || t.Size > want.Size-t.Offset {
			ps.add(Mismatch, want.Name, t.Name, "the manifest puts it at %d+%d", t.Offset, t.Size)
			continue
		}
		there, ranges = append(there, t), append(ranges, byteRange{t.Offset, t.Size})
		pos = t.Offset + t.Size
	}
	p := newPipeline(ctx, minBuffersPerWorker, bufferBytes)
	p.consume(func(c *chunk) error { advance(int64(c.n)); return nil })
	whole, parts := p.digest(), p.digestRanges(ranges)
	if err := p.finish(p.read(f, want.Size)); err != nil {
		return ps, 0, fmt.Errorf("%s: %w", want.Name, err)
	}
	for i, t := range there {
		if got := parts.sums[i]; got != t.SHA256 {
			ps.add(Mismatch, want.Name, t.Name, "sha256 %s, want %s", got, t.SHA256)
		}
	}
	if got := hex.EncodeToString(whole.Sum(nil)); got != want.SHA256 {
		ps.add(Mismatch, want.Name, "", "sha256 %s, want %s", got, want.SHA256)
	}
	return ps, len(there), nil
}

// checkIndex compares an index file, if there is one, with the tensor files.
func (r *Report) checkIndex(d *modelDir) {
	data, err := d.links.readSmall(filepath.Join(r.Dir, IndexFile), safetensors.MaxHeaderSize)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var index *safetensors.Index
	if err == nil {
		index, err = safetensors.ParseIndex(data)
	}
	if err != nil {
		r.Problems.add(BadFile, IndexFile, "", "%v", err)
		return
	}
	listed := index.Files()
	wrong, present := 0, false
	for i := range d.index.list {
		t := &d.index.list[i]
		if index.WeightMap[t.Name] != filepath.Base(d.index.files[t.file].input.Path) {
			wrong++
		}
		delete(index.WeightMap, t.Name)
	}
	for _, f := range d.index.files {
		present = present || slices.Contains(listed, filepath.Base(f.input.Path))
	}
	switch wrong += len(index.WeightMap); {
	case wrong == 0:
	case !present:
		r.Notices = append(r.Notices, IndexFile+" is that of the source model and names none of the files here")
	default:
		r.Problems.add(Mismatch, IndexFile, "", "wrong about %d tensors", wrong)
	}
}

// checkModel checks that the model has everything its configuration asks for.
func (r *Report) checkModel(ctx context.Context, d *modelDir, opts VerifyOptions) error {
	config, err := d.links.readSmall(filepath.Join(r.Dir, ConfigFile), maxConfigBytes)
	if err != nil {
		kind := BadConfig
		if errors.Is(err, fs.ErrNotExist) {
			kind = MissingFile
		}
		r.Problems.add(kind, ConfigFile, "", "%v", err)
		return nil
	}
	m, ps := parseModel(config, ConfigFile)
	r.Problems = append(r.Problems, ps...)
	if len(ps) > 0 {
		return nil
	}
	if root, err := parseJSON(config); err == nil {
		if method := root.get("quantization_config").get("quant_method"); method == nil || method.text != "exl2" {
			r.Problems.add(BadConfig, ConfigFile, "quantization_config", "quant_method is not exl2")
		}
	}

	// The compiled model, read as if it were a source: it must have the same float parts, in half
	// precision.
	self := newModelReader(m, d.index)
	embedding := 0
	for _, mod := range m.modules() {
		for i := range mod.parts {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			p := &mod.parts[i]
			if p.typ != partQuant {
				for _, t := range self.floatPart(p) {
					if p.typ == partEmbedding {
						embedding = int(t.Shape[0])
					}
					if got, _ := d.Lookup(t.Name); got.DType != t.DType || !slices.Equal(got.Shape, t.Shape) {
						self.ps.add(BadShape, "", t.Name, "%s %v, want %s %v", got.DType, got.Shape, t.DType, t.Shape)
					}
				}
				continue
			}
			mat, ps := d.matrix(p.key)
			r.Problems = append(r.Problems, ps...)
			if len(ps) == 0 {
				r.Matrices++
				self.checkLayer(p, "", &mat, embedding)
			}
		}
	}
	r.Problems = append(r.Problems, self.ps...)
	if opts.ModelDir != "" {
		return r.checkSource(ctx, d, m, opts.ModelDir)
	}
	return nil
}

// checkSource converts the float tensors of the source model again and compares.
func (r *Report) checkSource(ctx context.Context, d *modelDir, m *model, dir string) error {
	files, _, err := scanModel(ctx, dir, d.links, 2*runtime.GOMAXPROCS(0))
	if err != nil {
		return err
	}
	source, _, ps := indexSource(files, m.arch)
	r.Problems = append(r.Problems, ps...)
	rd := newModelReader(m, source)
	var want []Tensor
	for _, mod := range m.modules() {
		for i := range mod.parts {
			if p := &mod.parts[i]; p.typ != partQuant {
				want = append(want, rd.floatPart(p)...)
			}
		}
	}
	want = append(want, rd.extras()...)
	r.Problems = append(r.Problems, rd.ps...)

	open := &inputs{plan: &Plan{Inputs: rd.inputs}}
	defer open.close()
	maps := roundTripMaps{}
	scratch := make([]byte, 64<<10)
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for i := range want {
		t := &want[i]
		got, ok := d.Lookup(t.Name)
		switch {
		case !ok:
			r.Problems.add(MissingTensor, "", t.Name, "in the source model, not here")
			continue
		case got.Size != t.Size || got.DType != t.DType:
			r.Problems.add(Mismatch, "", t.Name, "%s %v, want %s %v", got.DType, got.Shape, t.DType, t.Shape)
			continue
		}
		f, err := open.open(t.From.Input)
		if err != nil {
			return err
		}
		var src io.Reader = io.NewSectionReader(f, t.From.Offset, t.From.Size)
		if t.Convert != nil {
			src = newConverter(f, t, maps.get(t.Convert), scratch)
		}
		have, err := d.Open(t.Name)
		if err != nil {
			return err
		}
		r.Sources++
		for left := t.Size; left > 0; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			k := min(left, int64(len(a)))
			if _, err := io.ReadFull(src, a[:k]); err != nil {
				return err
			}
			if _, err := io.ReadFull(have, b[:k]); err != nil {
				return err
			}
			if !bytes.Equal(a[:k], b[:k]) {
				r.Problems.add(Mismatch, "", t.Name, "differs from the source model after conversion")
				break
			}
			left -= k
		}
	}
	return nil
}
