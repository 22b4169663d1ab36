package exl2

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// reshard plans and writes.
func reshard(t testing.TB, dir string, opts ReshardOptions, write WriteOptions) *Result {
	t.Helper()
	p, err := PlanReshard(t.Context(), dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	res, err := Write(t.Context(), p, write)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// tensorsOf reads all tensors of a folder, one file after the other, with their bytes.
func tensorsOf(t testing.TB, dir string) map[string]rawTensor {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]rawTensor{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h, err := safetensors.ReadHeader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, x := range h.Tensors {
			if _, dup := out[x.Name]; dup {
				t.Errorf("%s is there twice", x.Name)
			}
			out[x.Name] = rawTensor{x.Name, x.DType, x.Shape, data[h.DataStart+x.Offset:][:x.Size]}
		}
	}
	return out
}

func sameTensors(t testing.TB, want, got map[string]rawTensor) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%d tensors, want %d", len(got), len(want))
	}
	for name, x := range want {
		if y := got[name]; x.dtype != y.dtype || !slices.Equal(x.shape, y.shape) || !bytes.Equal(x.data, y.data) {
			t.Errorf("%s is %s %v, want %s %v, or has other data", name, y.dtype, y.shape, x.dtype, x.shape)
		}
	}
}

// anyModel is a model that is not quantized: several files, tensors of all kinds, headers in any
// order, other files, a folder and links.
func anyModel(t testing.TB, dir string, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	var all []rawTensor
	for i := range 12 {
		for _, name := range []string{"self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight"} {
			shape := []int64{int64(1 + r.IntN(40)), int64(1 + r.IntN(30))}
			all = append(all, rawTensor{fmt.Sprintf("model.layers.%d.%s", i, name), tensor.BF16, shape, randomFloats(r, tensor.BF16, elements(shape))})
		}
		all = append(all, oddTensor(r, fmt.Sprintf("vision.%d", i)))
	}
	all = append(all, rawTensor{"empty", tensor.F32, []int64{0, 3}, nil})
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if err := os.MkdirAll(filepath.Join(dir, "onnx", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	index := safetensors.Index{WeightMap: map[string]string{}}
	for i := range 3 {
		part := all[i*len(all)/3 : (i+1)*len(all)/3]
		name := safetensors.ShardName("model", i+1, 3)
		if err := writeSafetensorsListed(filepath.Join(dir, name), part, true, r.Perm(len(part))); err != nil {
			t.Fatal(err)
		}
		for _, x := range part {
			index.WeightMap[x.name] = name
			index.TotalSize += int64(len(x.data))
		}
	}
	files := map[string]string{
		"config.json": `{"architectures": ["T5ForConditionalGeneration"]}`, IndexFile: string(index.Encode()), "tokenizer.json": "{}",
		".gitattributes": "x\n", "onnx/model.onnx": "onnx", "onnx/deep/file": "y", "pytorch_model.bin": "pickle",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("tokenizer.json", filepath.Join(dir, "link.json")); err != nil {
		t.Fatal(err)
	}
}

func TestReshard(t *testing.T) {
	for seed := range uint64(6) {
		dir := t.TempDir()
		model, one, two := filepath.Join(dir, "model"), filepath.Join(dir, "one"), filepath.Join(dir, "two")
		anyModel(t, model, seed)
		want := tensorsOf(t, model)
		before := hashDir(t, model)
		limit := int64(3000 + 1000*seed)
		res := reshard(t, model, ReshardOptions{Out: one, ShardBytes: limit}, WriteOptions{NoHash: seed%2 == 0})
		if diff := cmp.Diff(before, hashDir(t, model)); diff != "" {
			t.Fatalf("the source changed:\n%s", diff)
		}
		sameTensors(t, want, tensorsOf(t, one))
		names := map[string]bool{}
		for i := range res.Shards {
			name := safetensors.ShardName("model", i+1, res.Shards)
			names[name] = true
			f, err := safetensors.Open(filepath.Join(one, name))
			if err != nil {
				t.Fatal(err)
			}
			h := f.Header()
			var size int64
			for _, x := range h.Tensors {
				size += x.Size
			}
			if size > limit && len(h.Tensors) > 1 {
				t.Errorf("%s has %d bytes of tensors, more than %d", name, size, limit)
			}
			if h.Metadata["format"] != "pt" {
				t.Errorf("%s has lost its metadata", name)
			}
			f.Close()
		}
		text, err := os.ReadFile(filepath.Join(one, IndexFile))
		if err != nil {
			t.Fatal(err)
		}
		index, err := safetensors.ParseIndex(text)
		if err != nil || len(index.WeightMap) != len(want) {
			t.Fatalf("index of %d tensors, %v", len(index.WeightMap), err)
		}
		for name, file := range index.WeightMap {
			if !names[file] {
				t.Errorf("the index says that %s is in %s", name, file)
			}
		}
		for _, name := range []string{"onnx/deep/file", "onnx/model.onnx", ".gitattributes", "pytorch_model.bin", "link.json"} {
			if _, err := os.Stat(filepath.Join(one, filepath.FromSlash(name))); err != nil {
				t.Error(err)
			}
		}

		// The result depends on the tensors and the limit alone.
		reshard(t, one, ReshardOptions{Out: two, ShardBytes: 100_000_000, Names: OutputNames}, WriteOptions{})
		if _, err := os.Stat(filepath.Join(two, "output.safetensors")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(two, IndexFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a single shard needs no index: %v", err)
		}
		reshard(t, two, ReshardOptions{ShardBytes: limit}, WriteOptions{})
		if diff := cmp.Diff(hashDir(t, one), hashDir(t, two)); diff != "" {
			t.Errorf("resharded again (-first +second):\n%s", diff)
		}
		if left := leftovers(t, dir); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestReshardInPlace(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "model")
	anyModel(t, model, 1)
	if err := os.Chmod(model, 0o750); err != nil {
		t.Fatal(err)
	}
	want := tensorsOf(t, model)
	large := filepath.Join(model, "onnx", "model.onnx")
	before, err := os.Stat(large)
	if err != nil {
		t.Fatal(err)
	}
	res := reshard(t, model, ReshardOptions{ShardBytes: 4000}, WriteOptions{NoHash: true})
	if res.Shards < 3 || res.Unchanged {
		t.Errorf("%+v", res)
	}
	sameTensors(t, want, tensorsOf(t, model))
	if old, _ := filepath.Glob(filepath.Join(model, "*-of-00003.safetensors")); len(old) > 0 {
		t.Errorf("old shards are left: %v", old)
	}
	if info, err := os.Stat(model); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(model, "tokenizer.json")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("a file has mode %v, %v", info.Mode(), err)
	}
	if after, err := os.Stat(large); err != nil || !os.SameFile(before, after) {
		t.Errorf("another file was copied; it can be large: %v", err)
	}
	if target, err := os.Readlink(filepath.Join(model, "link.json")); err != nil || target != "tokenizer.json" {
		t.Errorf("link to %q, %v", target, err)
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	// The same again has nothing to do, and cleans up after a run that was killed at its end.
	if err := os.MkdirAll(filepath.Join(dir, ".model.kiln-partial", "files"), 0o755); err != nil {
		t.Fatal(err)
	}
	if res := reshard(t, model, ReshardOptions{ShardBytes: 4000}, WriteOptions{}); !res.Unchanged {
		t.Errorf("%+v", res)
	}
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestReshardManifest takes a compiled model: its manifest stays true, and damage is found.
func TestReshardManifest(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	if err := compileFixture(t, fx, PlanOptions{}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	old, err := ReadManifest(filepath.Join(fx.out, ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	reshard(t, fx.out, ReshardOptions{ShardBytes: 12_345}, WriteOptions{})
	if rep, err := Verify(t.Context(), fx.out, VerifyOptions{ModelDir: fx.model}); err != nil || !rep.OK() {
		t.Errorf("%+v, %v", rep, err)
	}
	m, err := ReadManifest(filepath.Join(fx.out, ManifestName))
	if err != nil || !cmp.Equal(m.Inputs, old.Inputs) || len(m.Tensors) != len(old.Tensors) {
		t.Errorf("the manifest has lost what the model was made from: %v", err)
	}

	shard := filepath.Join(fx.out, m.Files[0].Name)
	data, err := os.ReadFile(shard)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(shard, data, 0o644); err != nil {
		t.Fatal(err)
	}
	before := hashDir(t, fx.out)
	p, err := PlanReshard(t.Context(), fx.out, ReshardOptions{ShardBytes: 50_000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Write(t.Context(), p, WriteOptions{}); err == nil || !strings.Contains(err.Error(), "the model was changed or damaged") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, hashDir(t, fx.out)); diff != "" {
		t.Errorf("the model was touched:\n%s", diff)
	}
}

func TestReshardRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		change func(model string) error
		opts   ReshardOptions
		want   string
	}{
		"a shard that is missing": {
			func(m string) error { return os.Remove(filepath.Join(m, "model-00002-of-00003.safetensors")) },
			ReshardOptions{},
			"model-00002-of-00003.safetensors: model.safetensors.index.json names it",
		},
		"a shard cut short": {
			func(m string) error { return os.Truncate(filepath.Join(m, "model-00002-of-00003.safetensors"), 100) },
			ReshardOptions{},
			"truncated",
		},
		"a tensor of the index that is missing": {
			func(m string) error {
				path := filepath.Join(m, IndexFile)
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return os.WriteFile(path, bytes.Replace(text, []byte(`"empty"`), []byte(`"lost"`), 1), 0o644)
			},
			ReshardOptions{},
			"lost: model.safetensors.index.json says that it is here",
		},
		"an index that is none": {
			func(m string) error { return os.WriteFile(filepath.Join(m, IndexFile), []byte("{"), 0o644) },
			ReshardOptions{},
			"model.safetensors.index.json",
		},
		"a file with the name of a new shard": {
			func(m string) error {
				return writeSafetensors(filepath.Join(m, "model.safetensors"), []rawTensor{{"other", tensor.U8, []int64{1}, []byte{1}}}, false)
			},
			ReshardOptions{ShardBytes: -1},
			"has the name of a new shard",
		},
		"an output inside": {nil, ReshardOptions{Out: "inside"}, "inside of the model's folder"},
		"no model":         {func(m string) error { return os.RemoveAll(m) }, ReshardOptions{}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			model := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			anyModel(t, model, 1)
			if c.change != nil {
				if err := c.change(model); err != nil {
					t.Fatal(err)
				}
			}
			if c.opts.Out != "" {
				c.opts.Out = filepath.Join(model, c.opts.Out)
			}
			if c.opts.ShardBytes == 0 {
				c.opts.ShardBytes = 5000
			}
			if _, err := PlanReshard(t.Context(), model, c.opts); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestReshardDuplicates has a tensor in two files, as exllamav2's compile can leave it.
func TestReshardDuplicates(t *testing.T) {
	for _, same := range []bool{true, false} {
		dir := t.TempDir()
		x := rawTensor{"x", tensor.U8, []int64{3}, []byte{1, 2, 3}}
		y := rawTensor{"x", tensor.U8, []int64{3}, []byte{1, 2, 3}}
		if !same {
			y.data = []byte{1, 2, 4}
		}
		for name, ts := range map[string][]rawTensor{"a.safetensors": {x}, "b.safetensors": {y, {"z", tensor.U8, []int64{1}, []byte{9}}}} {
			if err := writeSafetensors(filepath.Join(dir, name), ts, false); err != nil {
				t.Fatal(err)
			}
		}
		p, err := PlanReshard(t.Context(), dir, ReshardOptions{ShardBytes: -1})
		if ps, _ := asProblems(err); !same {
			if !ps.Has(Mismatch) {
				t.Errorf("got %v", err)
			}
			continue
		}
		if err != nil || len(p.Shards[0].Tensors) != 2 || !strings.Contains(strings.Join(p.Notices, ""), "written once") {
			t.Errorf("%v %+v", err, p)
		}
	}
}

// TestReshardKeepsOthers has a tensor file that the index does not name, as published models do.
func TestReshardKeepsOthers(t *testing.T) {
	model := filepath.Join(t.TempDir(), "model")
	anyModel(t, model, 1)
	other := filepath.Join(model, "consolidated.safetensors")
	if err := writeSafetensors(other, []rawTensor{{"layers.0.wq", tensor.U8, []int64{2}, []byte{1, 2}}}, false); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	reshard(t, model, ReshardOptions{ShardBytes: 6000}, WriteOptions{})
	if after, err := os.ReadFile(other); err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v", err)
	}
	text, err := os.ReadFile(filepath.Join(model, IndexFile))
	if err != nil || bytes.Contains(text, []byte("layers.0.wq")) {
		t.Errorf("%v", err)
	}
}

func TestCompareNatural(t *testing.T) {
	names := []string{
		"", "a", "a.0", "a.00", "a.1.z", "a.2.b", "a.10.a", "a.10.a.bias", "a.18446744073709551617", "a.99999999999999999999999", "a.x", "b",
	}
	for i := range names {
		for j := range names {
			got, want := compareNatural(names[i], names[j]), i-j
			if got < 0 != (want < 0) || got > 0 != (want > 0) {
				t.Errorf("compare %q with %q: %d", names[i], names[j], got)
			}
		}
	}
}

func TestDiff(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, out := range []string{a, b} {
		if err := compileFixture(t, fx, PlanOptions{Out: out, ShardBytes: int64(20_000 + len(out)%2)}, WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reshard(t, b, ReshardOptions{ShardBytes: 9_000}, WriteOptions{})
	d, err := Diff(t.Context(), a, b, DiffOptions{})
	if err != nil || !d.Same() || d.Equal != d.A.Tensors || d.Equal != d.B.Tensors || d.Bytes != d.A.TensorBytes || d.A.Shards == d.B.Shards {
		t.Fatalf("%v %+v", err, d)
	}

	// One value of a norm, one layer with other widths, one tensor more, the configuration, a file.
	all := tensorsOf(t, b)
	norm := all["model.norm.weight"]
	norm.data = slices.Clone(norm.data)
	norm.data[6], norm.data[7] = 0x00, 0x3c
	all["model.norm.weight"] = norm
	one := tensorsOf(t, a)["model.norm.weight"]
	one.data = slices.Clone(one.data)
	one.data[6], one.data[7] = 0x00, 0x42 // 3
	rewrite := func(dir string, tensors map[string]rawTensor) {
		t.Helper()
		paths, _ := filepath.Glob(filepath.Join(dir, "*.safetensors*"))
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		var list []rawTensor
		for _, x := range tensors {
			list = append(list, x)
		}
		if err := writeSafetensors(filepath.Join(dir, "model.safetensors"), list, false); err != nil {
			t.Fatal(err)
		}
	}
	left := tensorsOf(t, a)
	left["model.norm.weight"] = one
	rewrite(a, left)
	key := "model.layers.1.mlp.up_proj"
	r := rand.New(rand.NewPCG(1, 1))
	rows := int(all[key+".q_invperm"].shape[0])
	for {
		done := false
		for _, x := range quantized(r, key, rows, int(all[key+".q_weight"].shape[1]), false) {
			if x.name == key+".q_weight" && x.shape[0] != left[x.name].shape[0] {
				done = true
			}
			all[x.name] = x
		}
		if done {
			break
		}
	}
	all["more"] = rawTensor{"more", tensor.I64, []int64{1}, make([]byte, 8)}
	rewrite(b, all)
	config := filepath.Join(b, ConfigFile)
	var values map[string]any
	text, err := os.ReadFile(config)
	if err != nil || json.Unmarshal(text, &values) != nil {
		t.Fatal(err)
	}
	values["rope_theta"] = 5
	values["quantization_config"].(map[string]any)["bits"] = 9.5
	values["architectures"] = []string{"MistralForCausalLM"}
	if text, err = json.Marshal(values); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b, "tokenizer.json"), []byte("[]"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b, "new.txt"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if d, err = Diff(t.Context(), a, b, DiffOptions{}); err != nil {
		t.Fatal(err)
	}
	byName := map[string]TensorDiff{}
	for _, x := range d.Tensors {
		byName[x.Name] = x
	}
	if x := byName["model.norm.weight"]; x.Elements != 1 || x.First != 3 || x.Largest != 2 || x.Of != one.shape[0] {
		t.Errorf("%+v", x)
	}
	if x := byName["more"]; x.A != nil || x.B == nil || x.B.DType != tensor.I64 {
		t.Errorf("%+v", x)
	}
	if x := byName[key+".q_weight"]; x.Layer != key || x.A == nil || x.B == nil {
		t.Errorf("%+v", x)
	}
	for name, x := range byName {
		if name != "model.norm.weight" && name != "more" && x.Layer != key {
			t.Errorf("%+v", x)
		}
	}
	if len(d.Widths) != 1 || d.Widths[0].Key != key || d.Widths[0].A.BitsPerWeight == d.Widths[0].B.BitsPerWeight {
		t.Errorf("widths: %+v", d.Widths)
	}
	var paths []string
	for _, c := range d.Config {
		paths = append(paths, c.Path)
	}
	slices.Sort(paths)
	if diff := cmp.Diff([]string{"architectures[0]", "quantization_config.bits", "rope_theta"}, paths); diff != "" {
		t.Errorf("config:\n%s", diff)
	}
	if diff := cmp.Diff([]FileDiff{{"new.txt", -1, 3}, {"tokenizer.json", 2, 2}}, d.Files); diff != "" {
		t.Errorf("files:\n%s", diff)
	}

	// Without reading weights the norm is the same.
	if d, err = Diff(t.Context(), a, b, DiffOptions{Structure: true}); err != nil || d.Bytes != 0 || len(d.Widths) != 1 {
		t.Fatalf("%v %+v", err, d)
	}
	if slices.ContainsFunc(d.Tensors, func(x TensorDiff) bool { return x.Name == "model.norm.weight" }) {
		t.Error("weights were compared")
	}

	// The source model has the same layers as numbers.
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeSafetensors(filepath.Join(source, "model.safetensors"), []rawTensor{{key + ".weight", tensor.BF16, []int64{1}, []byte{1, 2}}}, false); err != nil {
		t.Fatal(err)
	}
	if d, err = Diff(t.Context(), a, source, DiffOptions{}); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(d.Widths, func(w WidthDiff) bool { return w.Key == key })
	if i < 0 || d.Widths[i].B.Format != "BF16" || d.Widths[i].B.BitsPerWeight != 16 {
		t.Errorf("%+v", d.Widths)
	}
}

// FuzzReshard feeds a tensor file, an index and a configuration. What can be planned is written, and
// must be the same model afterwards.
func FuzzReshard(f *testing.F) {
	dir := f.TempDir()
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 4 {
		ts := append(quantized(r, "l.0", 32, 32, i%2 == 0), oddTensor(r, "v"), rawTensor{"e", tensor.F32, []int64{0}, nil})
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := writeSafetensorsListed(path, ts, i%2 == 1, r.Perm(len(ts))); err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, []byte(`{"weight_map":{"v":"a.safetensors"}}`), []byte(`{"a":[1,{"b":2}],"c":null}`), uint16(100<<i))
	}
	fuzzcorpus.Add(f)
	memory := "" // waiting for a disk would leave few runs
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		memory = "/dev/shm"
	}
	f.Fuzz(func(t *testing.T, data, index, config []byte, limit uint16) {
		dir, err := os.MkdirTemp(memory, "kiln-fuzz-") //nolint:usetesting // in memory
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		model, out := filepath.Join(dir, "model"), filepath.Join(dir, "out")
		if err := os.Mkdir(model, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{"a.safetensors": data, IndexFile: index, ConfigFile: config} {
			if len(text) > 0 {
				if err := os.WriteFile(filepath.Join(model, name), text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		p, err := PlanReshard(t.Context(), model, ReshardOptions{Out: out, ShardBytes: int64(limit) + 1})
		if err != nil {
			return
		}
		if _, err := Write(t.Context(), p, WriteOptions{NoHash: limit%2 == 0}); err != nil {
			t.Fatal(err)
		}
		d, err := Diff(t.Context(), model, out, DiffOptions{})
		if err != nil {
			if _, bad := parseJSON(config); bad != nil {
				return // which Diff reads and PlanReshard does not
			}
			t.Fatal(err)
		}
		if !d.Same() || d.Equal != d.A.Tensors {
			t.Fatalf("not the same model: %+v", d)
		}
	})
}
