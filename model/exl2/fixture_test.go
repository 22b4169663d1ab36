package exl2

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/model/tensor"
)

// fixture describes a tiny finished quantization. The zero value of each field means what the seed
// says.
type fixture struct {
	Seed  uint64
	Arch  string         // config.json's name
	Set   map[string]any // overrides config.json
	Limit float64        // shard_size in MiB
	Plain bool           // values and files of an ordinary model instead of awkward ones
	Tower bool           // vision tensors that compete for the room in shards, so that their order decides
	Scale int            // thousands of tokens in the vocabulary, for tests about size; 0 means a few dozen

	work, model, out string
}

type rawTensor struct {
	name  string
	dtype tensor.DType
	shape []int64
	data  []byte
}

// writeSafetensors is a writer of its own: tensors in the given order, so that headers need not be
// sorted.
func writeSafetensors(path string, tensors []rawTensor, metadata bool) error {
	return writeSafetensorsListed(path, tensors, metadata, nil)
}

// writeSafetensorsListed has the data of tensors in the given order, and lists them in the header in
// the order that listed gives, if there is one.
func writeSafetensorsListed(path string, tensors []rawTensor, metadata bool, listed []int) error {
	var b strings.Builder
	b.WriteByte('{')
	if metadata {
		b.WriteString(`"__metadata__":{"format":"pt"}`)
	}
	var data []byte
	entries := make([]string, len(tensors))
	for i, t := range tensors {
		shape := strings.ReplaceAll(fmt.Sprint(t.shape), " ", ",")
		entries[i] = fmt.Sprintf(`%q:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, t.name, t.dtype, shape, len(data), len(data)+len(t.data))
		data = append(data, t.data...)
	}
	for i := range entries {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		if listed != nil {
			i = listed[i]
		}
		b.WriteString(entries[i])
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(b.Len()))
	out = append(append(out, b.String()...), data...)
	return os.WriteFile(path, out, 0o644)
}

// awkward are the F32 values that conversions get wrong first.
var awkward = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, 0.1, 70000, -70000, 65504, 65519.99, 65520, 5.9604645e-8, 2.9802322e-8, 2.9802326e-8, 6.1e-5,
	6.0975552e-5, 1.00048828125, 1.00146484375, 0.333251953125, 4.8828125e-4, 4.884e-4, 3.0e-5, 1e-45, 3e38, 1024.5, 5461.3,
	float32(math.Inf(1)), float32(math.Inf(-1)), math.Float32frombits(0x7FC12345), math.Float32frombits(0xFFC00001),
}

func randomFloats(r *rand.Rand, dtype tensor.DType, n int64) []byte {
	var b []byte
	for range n {
		v := float32(r.NormFloat64())
		switch r.IntN(8) {
		case 0:
			v = awkward[r.IntN(len(awkward))]
		case 1:
			v *= 1e-4
		}
		switch dtype {
		case tensor.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		case tensor.BF16:
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(v)>>16))
		case tensor.F16:
			b = binary.LittleEndian.AppendUint16(b, uint16(tensor.Float16FromFloat32(v)))
		case tensor.I16:
			b = binary.LittleEndian.AppendUint16(b, uint16(r.Uint32()))
		case tensor.I32:
			b = binary.LittleEndian.AppendUint32(b, r.Uint32()>>r.IntN(32))
		}
	}
	return b
}

// plainFloats are values such as a trained model has, in bfloat16.
func plainFloats(r *rand.Rand, _ tensor.DType, n int64) []byte {
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint16(b, uint16(tensor.BFloat16FromFloat32(float32(r.NormFloat64()))))
	}
	return b
}

// oddTensor is a tensor of a vision part as it is found in real ones: positions as integers, masks,
// scales in eight bits.
func oddTensor(r *rand.Rand, name string) rawTensor {
	dtype := []tensor.DType{tensor.I64, tensor.U8, tensor.Bool, tensor.I8, tensor.F64, tensor.F8E4M3, tensor.F8E5M2, tensor.I16, tensor.I32}[r.IntN(9)]
	shape := []int64{int64(1 + r.IntN(5)), int64(1 + r.IntN(40))}
	if r.IntN(4) == 0 {
		shape = []int64{}
	}
	data := make([]byte, elements(shape)*int64(dtype.Bits())/8)
	for i := range data {
		if data[i] = byte(r.Uint32()); dtype == tensor.Bool {
			data[i] &= 1
		}
	}
	return rawTensor{name, dtype, shape, data}
}

func elements(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// ordinaryScales makes the scales of a layer as small as those of a real one, so that a model of
// such layers computes numbers.
func ordinaryScales(ts []rawTensor) {
	for _, t := range ts {
		if strings.HasSuffix(t.name, ".q_scale_max") || strings.HasSuffix(t.name, ".bias") {
			for i := 1; i < len(t.data); i += 2 {
				t.data[i] = 0x24 | t.data[i]&0x03 // 1/64 to 1/32
			}
		}
	}
}

// quantized makes the tensors of a structurally valid layer with random contents.
func quantized(r *rand.Rand, key string, in, out int, bias bool) []rawTensor {
	n := (out + 31) &^ 31
	var groups []byte
	var count, packed int64
	bits := []int{8, 6, 5, 4, 3, 2}
	bits = bits[r.IntN(len(bits)):]
	for rows := in; rows > 0; count++ {
		g := min(rows, 32<<r.IntN(3))
		groups = binary.LittleEndian.AppendUint16(groups, uint16(bits[0]))
		groups = binary.LittleEndian.AppendUint16(groups, uint16(packed))
		packed += int64(g * bits[0] / 32)
		rows -= g
		if r.IntN(2) == 0 && len(bits) > 1 {
			bits = bits[1:]
		}
	}
	random := func(n int64) []byte {
		b := make([]byte, 0, n)
		for int64(len(b)) < n {
			b = binary.LittleEndian.AppendUint64(b, r.Uint64())
		}
		return b[:n]
	}
	var perm []byte
	for _, i := range r.Perm(in) {
		perm = binary.LittleEndian.AppendUint32(perm, uint32(i))
	}
	cols := int64(n)
	ts := []rawTensor{
		{key + ".q_weight", tensor.I32, []int64{packed, cols}, random(4 * packed * cols)},
		{key + ".q_invperm", tensor.I32, []int64{int64(in)}, perm},
		{key + ".q_scale", tensor.I32, []int64{count, cols / 8}, random(count * cols / 2)},
		{key + ".q_scale_max", tensor.F16, []int64{count}, random(2 * count)},
		{key + ".q_groups", tensor.I16, []int64{2 * count}, groups},
	}
	if bias {
		ts = append(ts, rawTensor{key + ".bias", tensor.F16, []int64{cols}, random(2 * cols)})
	}
	if r.IntN(2) == 0 { // the order in the file must not matter
		r.Shuffle(len(ts), func(i, j int) { ts[i], ts[j] = ts[j], ts[i] })
	}
	return ts
}

// sourceName undoes the keymap, so that the source looks like a checkpoint of the architecture.
func sourceName(a *architecture, name string) string {
	rules := loadTable().Keymaps[a.Keymap]
	s := name
	for _, r := range slices.Backward(rules) {
		if !r.Start {
			s = strings.ReplaceAll(s, r.To, r.From)
		} else if rest, ok := strings.CutPrefix(s, r.To); ok {
			s = r.From + rest
		}
	}
	if a.rename(s) == name {
		return s
	}
	return name
}

// config makes a random config.json for the architecture and returns it with its keys in a fixed
// order.
// tokenizer is the file tokenizer.json: for an ordinary model with a token for each of 58 characters.
func (fx *fixture) tokenizer() string {
	if !fx.Plain {
		return "{}"
	}
	var vocab []string
	for i, c := range " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?\n" {
		name, _ := json.Marshal(string(c))
		vocab = append(vocab, fmt.Sprintf("%s: %d", name, i))
	}
	return `{"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "merges": [], "vocab": {` +
		strings.Join(vocab, ", ") + "}}}\n"
}

func (fx *fixture) config(r *rand.Rand) map[string]any {
	pick := func(values ...any) any { return values[r.IntN(len(values))] }
	headDim := []int{16, 32}[r.IntN(2)]
	heads := []int{2, 4}[r.IntN(2)]
	text := map[string]any{
		"num_hidden_layers": 1 + r.IntN(3), "hidden_size": heads * headDim, "num_attention_heads": heads,
		"intermediate_size": 32 * (1 + r.IntN(4)), "vocab_size": 40 + r.IntN(60), "rms_norm_eps": 1e-5,
	}
	if r.IntN(2) == 0 {
		text["num_key_value_heads"] = []int{1, heads}[r.IntN(2)]
	}
	if r.IntN(3) == 0 {
		text["head_dim"] = headDim
	}
	c := map[string]any{"architectures": []string{fx.Arch}, "torch_dtype": "bfloat16", "rope_theta": 1e6, "note": "grün \u2028 \U0001F525"}
	a := findArchitecture(fx.Arch)
	if a == nil {
		a = findArchitecture(fallbackArchitecture)
	}
	if a.Keymap == "dbrx" {
		text = map[string]any{
			"d_model": heads * headDim, "n_heads": heads, "n_layers": 1 + r.IntN(2), "vocab_size": 50,
			"attn_config": map[string]any{"kv_n_heads": heads / 2},
			"ffn_config":  map[string]any{"ffn_hidden_size": 64, "moe_num_experts": 2},
		}
	}
	if a.Positions {
		text = map[string]any{
			"n_embd": heads * headDim, "n_head": heads, "n_layer": 1 + r.IntN(2), "vocab_size": 50, "n_positions": 24, "n_inner": nil,
		}
		if fx.Arch != "GPT2LMHeadModel" {
			text["n_inner"] = 64
		}
	}
	if a.Router != "" && a.Keymap != "dbrx" {
		c[pick("num_local_experts", "num_experts").(string)] = 1 + r.IntN(3)
		if r.IntN(2) == 0 {
			c["moe_intermediate_size"] = 32 * (1 + r.IntN(2))
		}
	}
	if len(a.Extras) > 0 {
		vision := "pixtral"
		if len(a.Match) == 0 {
			vision = "siglip_vision_model"
		}
		c["vision_config"] = map[string]any{"model_type": vision}
	}
	if len(a.Extras) > 0 && !a.VisionAlways && r.IntN(2) == 0 {
		c["text_config"] = text
		if fx.Arch == "Gemma3ForConditionalGeneration" { // its defaults step in
			delete(text, "vocab_size")
			if r.IntN(2) == 0 {
				c["vocab_size"] = 90
			}
		}
	} else {
		maps.Copy(c, text)
	}
	for _, key := range []string{"tie_word_embeddings", "attention_bias", "mlp_bias", "use_qk_norm"} {
		if r.IntN(4) == 0 {
			c[key] = pick(true, false)
		}
	}
	if fx.Arch == "MiniCPMForCausalLM" || r.IntN(6) == 0 {
		c[pick("scale_emb", "embedding_multiplier").(string)] = pick(12, 12.0, 1, 0.3, 1.0, 1e5)
	}
	if r.IntN(5) == 0 {
		c["quantization_config"] = map[string]any{"quant_method": "old"}
	}
	for k, v := range fx.Set {
		if v == nil {
			delete(c, k)
		} else {
			c[k] = v
		}
	}
	return c
}

var fixtureLimits = []float64{8192, 1073741824, 1, 0.25, 0.1, 0.05, 0.03, 0.02, 0.0125, 0.004}

// make writes the fixture below dir; the job names dir/out.
func (fx *fixture) make(t testing.TB, dir string) {
	t.Helper()
	if err := fx.write(dir); err != nil {
		t.Fatal(err)
	}
}

func (fx *fixture) write(dir string) error {
	r := rand.New(rand.NewPCG(fx.Seed, 0x6b696c6e))
	odd := rand.New(rand.NewPCG(fx.Seed, 0x6f6464)) // header orders and types, apart from everything else
	order := func(tensors []rawTensor) []int {
		if fx.Plain || odd.IntN(2) == 0 {
			return nil
		}
		return odd.Perm(len(tensors))
	}
	if fx.Arch == "" {
		names := append(Architectures(), "SomethingNewForCausalLM")
		fx.Arch = names[r.IntN(len(names))]
	}
	if limit := fixtureLimits[r.IntN(len(fixtureLimits))]; fx.Limit == 0 {
		fx.Limit = limit
	}
	hub := filepath.Join(dir, "hub") // laid out like a model in a Hugging Face cache
	fx.work, fx.model, fx.out = filepath.Join(dir, "work"), filepath.Join(hub, "snapshots", "main"), filepath.Join(dir, "out")
	for _, d := range []string{filepath.Join(fx.work, "out_tensor"), filepath.Join(fx.model, "subdir"), filepath.Join(hub, "blobs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	config := fx.config(r)
	if fx.Scale > 0 {
		config["vocab_size"] = 1000 * fx.Scale
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	m, ps := parseModel(text, ConfigFile)
	if err := ps.Err(); err != nil {
		return err
	}
	mods := m.modules()

	dtypes := []tensor.DType{tensor.F16, tensor.BF16, tensor.F32}
	common := dtypes[r.IntN(3)]
	var source []rawTensor
	float := func(name string, shape ...int64) {
		dtype := common
		if r.IntN(8) == 0 {
			dtype = []tensor.DType{tensor.F16, tensor.BF16, tensor.F32, tensor.I16, tensor.I32}[r.IntN(5)]
		}
		values := randomFloats
		if fx.Plain {
			dtype, values = tensor.BF16, plainFloats
		}
		source = append(source, rawTensor{sourceName(m.arch, name), dtype, shape, values(r, dtype, elements(shape))})
	}
	stub := func(name string) { // of source linears only the name matters
		name = sourceName(m.arch, name)
		for _, s := range source {
			if s.name == name {
				return
			}
		}
		source = append(source, rawTensor{name, tensor.BF16, []int64{1}, []byte{1, 2}})
	}
	hidden := int64(m.hidden)
	vocab := m.vocab
	if vocab > 100000 { // the default of Gemma 3, too large for a fixture; a head may follow the embedding instead
		vocab = 70
	}
	for _, mod := range mods {
		for _, p := range mod.parts {
			switch p.typ {
			case partQuant:
				out := p.out
				if p.role == "lm_head" {
					out = vocab
				}
				path := filepath.Join(fx.work, "out_tensor", p.key+".safetensors")
				ts := quantized(r, p.key, p.in, out, p.bias)
				if fx.Plain {
					ordinaryScales(ts)
				}
				if err := writeSafetensorsListed(path, ts, false, order(ts)); err != nil {
					return err
				}
				if p.role == "lm_head" && m.headOptional {
					continue
				}
				if p.fused != "" {
					stub(p.fused + ".weight")
				} else {
					stub(p.key + ".weight")
				}
			case partEmbedding:
				float(p.key+".weight", int64(vocab), hidden)
			case partPositions:
				float(p.key+".weight", 24+int64(r.IntN(3)), hidden)
			case partRouter:
				float(p.key+".weight", int64(m.experts), hidden)
			case partHeadNorm:
				shape := []int64{int64(m.headDim)}
				if r.IntN(3) == 0 {
					shape = []int64{int64(p.heads), int64(m.headDim)}
				}
				float(p.key+".weight", shape...)
				if r.IntN(3) == 0 {
					float(p.key+".bias", shape...)
				}
			default:
				float(p.key+".weight", hidden)
				if p.typ == partLayerNorm && r.IntN(2) == 0 {
					float(p.key+".bias", hidden)
				}
			}
		}
	}
	for i, prefix := range m.arch.Extras {
		for j := range r.IntN(4) {
			dtype := []tensor.DType{tensor.BF16, tensor.F32, tensor.F16}[r.IntN(3)]
			shape := []int64{int64(1 + r.IntN(40)), int64(1 + r.IntN(30))}
			source = append(source, rawTensor{fmt.Sprintf("%spart%d.%d.weight", prefix, i, j), dtype, shape, randomFloats(r, dtype, elements(shape))})
		}
		for j := range odd.IntN(3) {
			source = append(source, oddTensor(odd, fmt.Sprintf("%sodd%d.%d", prefix, i, j)))
		}
		for j := 0; fx.Tower && j < 4; j++ {
			data := make([]byte, int(fx.Limit*(1<<20)*(0.2+0.2*odd.Float64())))
			for k := range data {
				data[k] = byte(odd.Uint32())
			}
			name := fmt.Sprintf("%stable%d.%d", prefix, i, odd.IntN(1e6))
			source = append(source, rawTensor{name, []tensor.DType{tensor.U8, tensor.I8}[j%2], []int64{int64(len(data))}, data})
		}
	}
	if fx.Arch == "Gemma3ForConditionalGeneration" && r.IntN(2) == 0 {
		source = append(source, rawTensor{"multi_modal_projector.mm_input_projection_weight", tensor.BF16, []int64{3, 5}, randomFloats(r, tensor.BF16, 15)})
	}
	source = append(source, rawTensor{"model.layers.0.self_attn.rotary_emb.inv_freq", tensor.F32, []int64{8}, make([]byte, 32)})
	files := 1
	if !fx.Plain {
		source = append(source, rawTensor{"odd \"name\" <&>", tensor.U8, []int64{3}, []byte{1, 2, 3}})
		r.Shuffle(len(source), func(i, j int) { source[i], source[j] = source[j], source[i] })
		files += r.IntN(3)
	}
	if i := r.IntN(len(source)); files > 1 && i%files != len(source)%files && readable[source[i].dtype] && r.IntN(2) == 0 {
		// A tensor in two files belongs to the one that is read last.
		again := source[i]
		again.data = randomFloats(r, again.dtype, elements(again.shape))
		source = append(source, again)
	}
	for i := range files {
		var part []rawTensor
		for j := i; j < len(source); j += files {
			part = append(part, source[j])
		}
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, files)
		if i > 0 && r.IntN(3) == 0 {
			if err := writeSafetensorsListed(filepath.Join(hub, "blobs", name), part, true, order(part)); err != nil {
				return err
			}
			if err := os.Symlink(filepath.Join("..", "..", "blobs", name), filepath.Join(fx.model, name)); err != nil {
				return err
			}
			continue
		}
		if err := writeSafetensorsListed(filepath.Join(fx.model, name), part, r.IntN(2) == 0, order(part)); err != nil {
			return err
		}
	}
	others := map[string]string{
		"config.json": string(text), "tokenizer.json": fx.tokenizer(), "README.md": "a model\n", "model.safetensors.index.json": `{"weight_map":{}}`,
		"pytorch_model.bin": "pickle", "consolidated.pth": "weights", ".gitattributes": "*.bin lfs\n", ".hidden.safetensors": "not one",
		"subdir/file.txt": "not copied", "preprocessor_config.json": "{}",
	}
	for name, content := range others {
		ordinary := name == "config.json" || name == "tokenizer.json" || name == "README.md"
		if name == "preprocessor_config.json" && !m.needsPreprocessor || fx.Plain && !ordinary {
			continue
		}
		if err := os.WriteFile(filepath.Join(fx.model, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if !fx.Plain {
		if err := os.Symlink("README.md", filepath.Join(fx.model, "LINK.md")); err != nil {
			return err
		}
	}
	job := map[string]any{
		"in_dir": fx.model, "out_dir": fx.work, "compile_full": fx.out, "shard_size": fx.Limit, "progress": []string{"compile", "finished"}[r.IntN(2)],
		"bits": json.RawMessage([]string{"4.0", "4.125", "2.5", "6"}[r.IntN(4)]), "head_bits": 6, "dataset_rows": 115, "length": 2048,
		"cal_dataset": []any{nil, "data/cal.parquet", "data/"}[r.IntN(3)], "status_output": false, "measurement": map[string]any{"x": []int{1}},
		"q_last_module_idx": len(mods) - 1, "strategy": map[string]any{},
	}
	text, err = json.MarshalIndent(job, "", "    ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(fx.work, JobFile), text, 0o644)
}
