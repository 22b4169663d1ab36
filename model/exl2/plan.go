package exl2

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
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
	// SignatureSuffix is what the name of a manifest gets for the file with its signature.
	SignatureSuffix = ".intoto.jsonl"
	// ConverterVersion is the version of the converter whose step this is; it goes into
	// quantization_config where nothing says which release quantized.
	ConverterVersion = "0.3.2"
)

// Names selects how shards are named. Loaders take either.
type Names string

const (
	// ModelNames are model-00001-of-0000N.safetensors, also for a single shard.
	ModelNames Names = "model"
	// OutputNames are those of the original: output-00001-of-0000N.safetensors, and
	// output.safetensors for a single shard.
	OutputNames Names = "output"
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
	// Out is the output folder; empty means the one the job names. A job that names none wants the
	// weights, and nothing else, in its working directory; then so does the plan.
	Out string
	// Mode is Default unless set, for weights in the working directory Compat.
	Mode Mode
	// Names is the mode's unless set: ModelNames for Default, OutputNames for Compat.
	Names Names
	// Merge puts the files into an output folder that exists, and leaves its other files there.
	Merge bool
	// ShardBytes limits the tensor bytes of a shard; 0 means the job's limit, negative means no
	// limit.
	ShardBytes int64
	// Skip replaces DefaultSkip; shell patterns on file names. Compat ignores it.
	Skip []string
	// ManifestPath puts the manifest elsewhere; empty means into the folder, and in compat mode
	// nowhere.
	ManifestPath string
	// Version is the release of exllamav2 that quantized. Empty means the one that the job or its
	// layers name, else ConverterVersion.
	Version string
}

// Plan is everything that a compile will write, down to the offset of each tensor. It is a value:
// the same inputs and options give the same plan.
type Plan struct {
	Mode         Mode   `json:"mode"`
	Out          string `json:"out"`
	Architecture string `json:"architecture"`
	// WeightsOnly is a plan of shards for the working directory, without the files of a model.
	WeightsOnly bool `json:"weights_only,omitempty"`
	// Merge means that the files are moved into the output folder one by one, and that it keeps
	// what else it has. Otherwise the folder appears, or is replaced, as a whole.
	Merge bool `json:"merge,omitempty"`
	// Version goes into quantization_config.
	Version string `json:"version,omitempty"`
	// Metadata is in the header of every shard.
	Metadata map[string]string `json:"metadata,omitempty"`
	// InPlace means that the output folder is the input too: it is replaced, and what is not
	// written anew is taken along.
	InPlace bool `json:"in_place,omitempty"`
	// Unchanged means that the output folder is as planned already.
	Unchanged bool `json:"unchanged,omitempty"`
	// DirMode are the permission bits of the folder; 0 means those of a new one.
	DirMode fs.FileMode `json:"dir_mode,omitempty"`

	ShardBytes   int64    `json:"shard_bytes"`
	TensorBytes  int64    `json:"tensor_bytes"` // data of all tensors
	Bytes        int64    `json:"bytes"`        // of all files but the manifest
	Shards       []Shard  `json:"shards"`
	Files        []File   `json:"files"` // the other files, sorted by name
	ManifestPath string   `json:"manifest_path,omitempty"`
	Inputs       []Input  `json:"inputs"`
	Notices      []string `json:"notices,omitempty"`
	Dropped      []string `json:"dropped,omitempty"`

	manifest *Manifest // of the model that is resharded
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
	Action string      `json:"action"` // copy, config, index; in a model that is resharded also link
	Size   int64       `json:"size"`
	Mode   fs.FileMode `json:"mode"`            // permission bits
	Input  int         `json:"input,omitempty"` // of a copy
	SHA256 string      `json:"sha256,omitempty"`

	content []byte // of config and index
	link    string // the file of which this becomes another name
	// unlisted files are not in the manifest: they are not in the folder itself, where loaders look,
	// or are no files.
	unlisted bool
}

// What a [File] is.
const (
	actionCopy   = "copy"
	actionConfig = "config"
	actionIndex  = "index"
	actionLink   = "link"
)

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
		Notices: append([]string(nil), inv.Notices...), Merge: opts.Merge,
	}
	if p.Out == "" {
		p.Out = inv.Job.OutDir
	}
	if p.Out == "" {
		p.Out, p.WeightsOnly, p.Merge = inv.Job.Dir, true, true
	}
	switch p.Mode {
	case "":
		p.Mode = Default
		if p.WeightsOnly {
			p.Mode = Compat
		}
	case Default, Compat:
	default:
		return nil, fmt.Errorf("plan: unknown mode %q, want %s or %s", p.Mode, Default, Compat)
	}
	names := opts.Names
	switch names {
	case "":
		names = ModelNames
		if p.Mode == Compat {
			names = OutputNames
		}
	case ModelNames, OutputNames:
	default:
		return nil, fmt.Errorf("plan: unknown names %q, want %s or %s", names, ModelNames, OutputNames)
	}
	if p.Mode == Default {
		p.Metadata = map[string]string{"format": "pt"} // some loaders insist on it
	}
	if p.ShardBytes == 0 {
		p.ShardBytes = inv.Job.ShardBytes
	} else if p.ShardBytes < 0 {
		p.ShardBytes = 1 << 62
	}
	inputs := []string{inv.ModelDir}
	if !p.WeightsOnly {
		inputs = append(inputs, inv.Job.Dir)
	}
	if err := checkOut(p.Out, inputs...); err != nil {
		ps.add(BadOutput, p.Out, "", "%v", err)
	}
	if p.Mode == Default && p.ManifestPath == "" && !p.WeightsOnly {
		p.ManifestPath = ManifestName
	}
	p.Version = cmp.Or(opts.Version, inv.Job.Version, inv.layerVersion, ConverterVersion)
	config, err := compiledConfig(inv.config, inv.Job, p.Version)
	if err != nil {
		ps.add(BadConfig, filepath.Join(inv.ModelDir, ConfigFile), "", "%v", err)
	}
	if len(ps) > 0 {
		return nil, ps
	}
	if err := p.addShards(inv, names); err != nil {
		return nil, err
	}
	if p.WeightsOnly {
		p.Version = "" // there is no config.json to say it
	} else if err := p.addFiles(inv, opts.Skip, config).Err(); err != nil {
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

func (p *Plan) addShards(inv *Inventory, names Names) error {
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
		s := Shard{Name: names.shard(i, len(shards))}
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

// shard is the name of shard i, from 0, of n.
func (names Names) shard(i, n int) string {
	if names == OutputNames {
		return safetensors.ShardName("output", i+1, n)
	}
	return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, n)
}

// shardNames matches the files that a compile, by kiln or by the original, can have left.
var shardNames = regexp.MustCompile(`^(model|output)(-\d{5}-of-\d{5}|_temp_\d+)?\.safetensors$`)

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
		p.Files = append(p.Files, File{Name: f.name, Action: actionCopy, Size: f.input.Size, Mode: f.mode, Input: len(p.Inputs) - 1})
	}
	p.addContent(ConfigFile, actionConfig, config, configMode)
	if p.Mode != Compat {
		p.addContent(IndexFile, actionIndex, p.index(), 0o644)
	}
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return ps
}

// addContent plans a file whose content is known.
func (p *Plan) addContent(name, action string, content []byte, mode fs.FileMode) {
	sum := sha256.Sum256(content)
	p.Files = append(p.Files, File{
		Name: name, Action: action, Size: int64(len(content)), Mode: mode, SHA256: hex.EncodeToString(sum[:]), content: content,
	})
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
