package exl2

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/model/safetensors"
)

// Mode selects what the output looks like. Loaders take either.
type Mode string

const (
	// Default packs in order into model-00001-of-0000N.safetensors with a correct index, leaves
	// stale and foreign weight files behind and adds a manifest.
	Default Mode = "default"
	// Compat reproduces the original's folder byte for byte: its file names, its packing, the
	// source's stale index, and no file that it would not have written.
	Compat Mode = "compat"
)

const (
	// IndexFile maps tensors to shards.
	IndexFile = safetensors.IndexName
	// ManifestName has the digests of a compiled model, see Manifest.
	ManifestName = "kiln-manifest.json"
	// ConverterVersion is the version of the converter whose step this is; it goes into
	// quantization_config.
	ConverterVersion = "0.3.2"
)

// defaultSkip are the patterns of source files that the default mode does not copy: weights in
// other formats and indexes of files that do not exist in the output. Hidden files are not copied
// either.
var defaultSkip = []string{
	"*.safetensors", "*.bin", "*.safetensors.index.json", "*.bin.index.json",
	"*.pth", "*.pt", "*.gguf", "*.h5", "*.msgpack", "*.onnx",
}

// DefaultSkip returns the patterns that PlanOptions.Skip stands for when it is nil.
func DefaultSkip() []string { return append([]string(nil), defaultSkip...) }

// PlanOptions are the decisions that are not in the inputs.
type PlanOptions struct {
	// Out is the output folder; empty means the one the job names.
	Out string
	// Mode is Default unless set.
	Mode Mode
	// ShardBytes limits the tensor bytes of a shard; 0 means the job's limit, negative means no
	// limit.
	ShardBytes int64
	// Skip replaces DefaultSkip; shell patterns on file names. Compat ignores it.
	Skip []string
	// ManifestPath puts the manifest elsewhere; empty means into the folder, and in compat mode
	// nowhere.
	ManifestPath string
	// Version replaces ConverterVersion.
	Version string
}

// Plan is everything that a compile will write, down to the offset of each tensor. It is a value:
// the same inputs and options give the same plan.
type Plan struct {
	Mode         Mode     `json:"mode"`
	Out          string   `json:"out"`
	Architecture string   `json:"architecture"`
	ShardBytes   int64    `json:"shard_bytes"`
	TensorBytes  int64    `json:"tensor_bytes"` // data of all tensors
	Bytes        int64    `json:"bytes"`        // of all files but the manifest
	Shards       []Shard  `json:"shards"`
	Files        []File   `json:"files"` // the other files, sorted by name
	ManifestPath string   `json:"manifest_path,omitempty"`
	Inputs       []Input  `json:"inputs"`
	Notices      []string `json:"notices,omitempty"`
	Dropped      []string `json:"dropped,omitempty"`
}

// Shard is one safetensors file of the output.
type Shard struct {
	Name       string          `json:"name"`
	Size       int64           `json:"size"`
	HeaderSize int64           `json:"header_size"` // bytes before the data
	Tensors    []PlannedTensor `json:"tensors"`     // in the order of the file
}

// PlannedTensor is a tensor with its place in the shard.
type PlannedTensor struct {
	Tensor
	Offset int64 `json:"offset"` // from the start of the file
}

// File is an output file that is not a shard.
type File struct {
	Name   string      `json:"name"`
	Action string      `json:"action"` // copy, config, index
	Size   int64       `json:"size"`
	Mode   fs.FileMode `json:"mode"`            // permission bits
	Input  int         `json:"input,omitempty"` // of a copy
	SHA256 string      `json:"sha256,omitempty"`

	content []byte // of config and index
}

// Digest identifies the plan; a partial output is continued only for the same digest.
func (p *Plan) Digest() string {
	data, err := json.Marshal(p)
	if err != nil {
		panic("exl2: plan: " + err.Error()) // the type has nothing that cannot be marshalled
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// manifestInside reports whether the manifest is a file of the model folder.
func (p *Plan) manifestInside() bool { return p.Mode != Compat && p.ManifestPath == ManifestName }

// Plan decides what is written where. It reads nothing. An inventory with problems has no plan;
// they are the error.
func (inv *Inventory) Plan(opts PlanOptions) (*Plan, error) {
	ps := append(Problems(nil), inv.Problems...)
	p := &Plan{
		Mode: opts.Mode, Out: opts.Out, Architecture: inv.Architecture, ShardBytes: opts.ShardBytes,
		Inputs: append([]Input(nil), inv.Inputs...), Dropped: inv.Dropped, ManifestPath: opts.ManifestPath,
		Notices: append([]string(nil), inv.Notices...),
	}
	switch p.Mode {
	case "":
		p.Mode = Default
	case Default, Compat:
	default:
		return nil, fmt.Errorf("plan: unknown mode %q, want %s or %s", p.Mode, Default, Compat)
	}
	if p.Out == "" {
		p.Out = inv.Job.OutDir
	}
	if p.ShardBytes == 0 {
		p.ShardBytes = inv.Job.ShardBytes
	} else if p.ShardBytes < 0 {
		p.ShardBytes = 1 << 62
	}
	if p.Out == "" {
		ps.add(BadOutput, filepath.Join(inv.Job.Dir, JobFile), "compile_full", "the job names no output folder; give one")
	} else if err := checkOut(p.Out, inv.ModelDir, inv.Job.Dir); err != nil {
		ps.add(BadOutput, p.Out, "", "%v", err)
	}
	if p.Mode == Default && p.ManifestPath == "" {
		p.ManifestPath = ManifestName
	}
	if opts.Version == "" {
		opts.Version = ConverterVersion
	}
	config, err := compiledConfig(inv.config, inv.Job, opts.Version)
	if err != nil {
		ps.add(BadConfig, filepath.Join(inv.ModelDir, ConfigFile), "", "%v", err)
	}
	if len(ps) > 0 {
		return nil, ps
	}
	if err := p.addShards(inv); err != nil {
		return nil, err
	}
	if err := p.addFiles(inv, opts.Skip, config).Err(); err != nil {
		return nil, err
	}
	for _, s := range p.Shards {
		p.Bytes += s.Size
	}
	for _, f := range p.Files {
		p.Bytes += f.Size
	}
	return p, nil
}

// checkOut refuses an output folder that is, holds or lies in an input folder.
func checkOut(out string, inputs ...string) error {
	o, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	for _, in := range inputs {
		i, err := filepath.Abs(in)
		if err != nil {
			return err
		}
		if o == i {
			return fmt.Errorf("the output folder is the input folder")
		}
		if strings.HasPrefix(i, o+string(filepath.Separator)) {
			return fmt.Errorf("the output folder holds the input folder %s", in)
		}
	}
	return nil
}

func (p *Plan) addShards(inv *Inventory) error {
	var all []Tensor
	var modules [][]packItem
	item := func(t Tensor) packItem {
		all = append(all, t)
		return packItem{id: len(all) - 1, size: t.Size}
	}
	for _, m := range inv.modules {
		items := make([]packItem, len(m))
		for i, t := range m {
			items[i] = item(t)
		}
		modules = append(modules, items)
	}
	var extras []packItem
	ids := map[string]packItem{}
	for _, t := range inv.extras {
		it, again := ids[t.Name]
		if !again {
			it = item(t)
			ids[t.Name] = it
		} else if p.Mode != Compat {
			continue
		}
		extras = append(extras, it)
	}

	var shards [][]int
	if p.Mode == Compat {
		var err error
		if shards, err = packCompat(modules, extras, p.ShardBytes); err != nil {
			var large *tooLargeError
			errors.As(err, &large)
			return Problems{{
				Kind: BadPacking, File: p.Out, Tensor: all[large.smallest.id].Name,
				Message: fmt.Sprintf("%d bytes do not fit into a shard of %d, where the original gives up; raise the shard size or leave the compatible mode",
					large.smallest.size, p.ShardBytes),
			}}
		}
	} else {
		items := append(slices.Concat(modules...), extras...)
		shards = packInOrder(items, p.ShardBytes)
		for _, s := range shards {
			if t := all[s[0]]; t.Size > p.ShardBytes {
				p.Notices = append(p.Notices, fmt.Sprintf("%s has %d bytes, more than a shard of %d, and gets a shard of its own", t.Name, t.Size, p.ShardBytes))
			}
		}
	}

	for i, ids := range shards {
		s := Shard{Name: shardName(p.Mode, i, len(shards))}
		for _, id := range ids {
			t := all[id]
			s.Tensors = append(s.Tensors, PlannedTensor{Tensor: t})
			p.TensorBytes += t.Size
		}
		if err := p.layOut(&s); err != nil {
			return fmt.Errorf("lay out %s: %w", s.Name, err)
		}
		p.Shards = append(p.Shards, s)
	}
	return nil
}

func shardName(mode Mode, i, n int) string {
	switch {
	case mode != Compat:
		return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n)
	case n == 1:
		return "output.safetensors"
	}
	return fmt.Sprintf("output-%05d-of-%05d.safetensors", i+1, n)
}

func (p *Plan) addFiles(inv *Inventory, skip []string, config []byte) (ps Problems) {
	if skip == nil {
		skip = defaultSkip
	}
	if p.Mode == Compat {
		skip = []string{"*.bin"} // tensor files are not in the list; hidden ones are copied
	}
	taken := map[string]bool{ConfigFile: true}
	if p.Mode != Compat {
		taken[IndexFile], taken[ManifestName] = true, true
	}
	for _, s := range p.Shards {
		taken[s.Name] = true
	}
	configMode := fs.FileMode(0o644)
	for _, f := range inv.files {
		if f.name == ConfigFile {
			configMode = f.mode
		}
		if taken[f.name] || skipped(f.name, skip, p.Mode) {
			continue
		}
		if f.err != nil {
			ps.add(BadFile, f.input.Path, "", "%v", f.err)
			continue
		}
		p.Inputs = append(p.Inputs, f.input)
		p.Files = append(p.Files, File{Name: f.name, Action: "copy", Size: f.input.Size, Mode: f.mode, Input: len(p.Inputs) - 1})
	}
	made := func(name, action string, content []byte, mode fs.FileMode) {
		sum := sha256.Sum256(content)
		p.Files = append(p.Files, File{
			Name: name, Action: action, Size: int64(len(content)), Mode: mode, SHA256: hex.EncodeToString(sum[:]), content: content,
		})
	}
	made(ConfigFile, "config", config, configMode)
	if p.Mode != Compat {
		made(IndexFile, "index", p.index(), 0o644)
	}
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return ps
}

// skipped applies shell patterns, which do not match a leading dot.
func skipped(name string, patterns []string, mode Mode) bool {
	if strings.HasPrefix(name, ".") {
		return mode != Compat
	}
	for _, pattern := range patterns {
		if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}
