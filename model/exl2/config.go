package exl2

import (
	"errors"
	"math"
	"slices"
	"strings"
)

// ConfigFile is the name of a model's configuration.
const ConfigFile = "config.json"

// Bounds that keep a hostile config.json from asking for an absurd plan.
const (
	maxDimension = 1 << 24
	maxLayers    = 4096
	maxExperts   = 4096
	maxParts     = 1 << 20
)

// model is what config.json says, resolved with the architecture's defaults.
type model struct {
	name  string // as in config.json
	arch  *architecture
	known bool // false if arch is only the fallback

	layers, hidden, vocab, heads, headDim, kvHeads, inter, experts int
	context                                                        int // 0 if the config has none
	qkNorm                                                         bool
	scale                                                          float64
	bias                                                           map[string]bool // by qkv, o, mlp
	headOptional                                                   bool            // the source may lack lm_head
	needsPreprocessor                                              bool
}

// lookup finds the first of the dotted paths that has a value; with under, all of them are tried
// again below that object.
func lookup(root *value, under string, paths ...string) *value {
	roots := []*value{root}
	if under != "" {
		roots = append(roots, root.get(under))
	}
	for _, r := range roots {
		for _, path := range paths {
			v := r
			for step := range strings.SplitSeq(path, ".") {
				v = v.get(step)
			}
			if v != nil && v.kind != kNull {
				return v
			}
		}
	}
	return nil
}

// parseModel reads config.json's text. The model is usable only without problems.
func parseModel(data []byte, path string) (*model, Problems) {
	r := configReader{path: path}
	var err error
	if r.root, err = parseJSON(data); err == nil && r.root.kind != kObject {
		err = errors.New("want an object")
	}
	if err != nil {
		r.bad("", "%v", err)
		return nil, r.ps
	}
	m := &model{}
	names := r.root.get("architectures")
	if names == nil || names.kind != kArray || len(names.items) != 1 || names.items[0].kind != kString {
		r.bad("architectures", "want a list with exactly one name")
		return nil, r.ps
	}
	m.name = names.items[0].text
	m.arch = findArchitecture(m.name)
	m.known = m.arch != nil
	if m.known {
		for p, want := range m.arch.Match {
			if v := lookup(&r.root, "", p); v == nil || v.kind != kString || v.text != want {
				m.known = false
			}
		}
	}
	if !m.known {
		m.arch = findArchitecture(fallbackArchitecture)
	}
	r.arch = m.arch
	r.sizes(m)
	r.features(m)
	r.checkSizes(m)
	return m, r.ps
}

// configReader reads the fields of a configuration and collects what is wrong with them.
type configReader struct {
	root value
	arch *architecture
	path string
	ps   Problems
}

func (r *configReader) bad(field, format string, args ...any) {
	r.ps.add(BadConfig, r.path, field, format, args...)
}

// integer returns −1 for an absent field.
func (r *configReader) integer(under string, limit int, paths ...string) int {
	v := lookup(&r.root, under, paths...)
	if v == nil {
		return -1
	}
	f := v.float()
	if math.IsNaN(f) || f != math.Trunc(f) {
		r.bad(paths[0], "want an integer")
		return 0
	}
	if f < 0 || f > float64(limit) {
		r.bad(paths[0], "%v is out of range", f)
		return 0
	}
	return int(f)
}

// pick returns the first candidate that is there.
func (r *configReader) pick(field string, candidates ...int) int {
	for _, c := range candidates {
		if c >= 0 {
			return c
		}
	}
	r.bad(field, "missing")
	return 0
}

// fallback returns the architecture's default, or −1 if it has none.
func (r *configReader) fallback(name string) int {
	if d, ok := r.arch.Defaults[name]; ok {
		return d
	}
	return -1
}

// sizes reads the dimensions of the model.
func (r *configReader) sizes(m *model) {
	ratio := func(a, b int) int {
		if a < 0 || b <= 0 {
			return -1
		}
		return a / b
	}
	const text = "text_config"
	m.layers = r.pick("num_hidden_layers", r.integer(text, maxLayers, "num_hidden_layers", "n_layers", "n_layer"))
	m.hidden = r.pick("hidden_size", r.integer(text, maxDimension, "hidden_size", "d_model", "n_embd"))
	m.vocab = r.pick("vocab_size", r.integer(text, maxDimension, "vocab_size"), r.fallback("vocab_size"))
	heads := r.integer(text, maxDimension, "num_attention_heads", "n_heads", "n_head")
	if heads < 0 {
		heads = r.fallback("num_attention_heads")
	}
	m.headDim = r.pick("head_dim", r.integer(text, maxDimension, "head_dim"), r.fallback("head_dim"), ratio(m.hidden, heads))
	m.heads = r.pick("num_attention_heads", heads, ratio(m.hidden, m.headDim))
	kv := r.integer(text, maxDimension, "num_key_value_heads", "attn_config.kv_n_heads")
	if r.arch.MultiQuery {
		kv = 1
	}
	m.kvHeads = r.pick("num_key_value_heads", kv, r.fallback("num_key_value_heads"), m.heads)
	inter := r.integer(text, maxDimension, "intermediate_size", "ffn_config.ffn_hidden_size", "n_inner")
	if inter < 0 {
		if n := r.fallback("intermediate_size_multiple_of_hidden"); n > 0 {
			inter = n * m.hidden
		}
	}
	if r.arch.Router != "" {
		m.experts = r.pick("num_experts", r.integer("", maxExperts, "num_local_experts", "ffn_config.moe_num_experts", "num_experts"))
		m.inter = r.pick("intermediate_size", r.integer("", maxDimension, "moe_intermediate_size"), inter)
	} else {
		m.inter = r.pick("intermediate_size", inter)
	}
	m.context = max(0, r.integer(text, math.MaxInt32, "max_sequence_length", "model_max_length", "max_position_embeddings", "max_seq_len", "n_positions"))
}

// features reads what the model has beside its dimensions: norms, scales, biases, a vision part.
func (r *configReader) features(m *model) {
	a := r.arch
	m.qkNorm = a.QKNorm
	if v := lookup(&r.root, "", "use_qk_norm"); v != nil {
		if v.kind != kTrue && v.kind != kFalse {
			r.bad("use_qk_norm", "want true or false")
		}
		m.qkNorm = v.kind == kTrue
	}
	m.scale = 1
	if v := lookup(&r.root, "", "scale_emb", "embedding_multiplier"); v != nil {
		m.scale = v.float()
		if s32 := float32(m.scale); s32 == 0 || s32 != s32 || math.IsInf(float64(s32), 0) {
			r.bad("scale_emb", "want a finite number other than zero")
			m.scale = 1
		}
	}
	m.bias = map[string]bool{}
	for _, b := range a.Bias {
		m.bias[b] = true
	}
	attention := r.root.get("attention_bias").truthy()
	if a.QKVBiasFromConfig {
		m.bias["qkv"] = attention
	} else if attention && !m.bias["qkv"] && !m.bias["o"] {
		m.bias["qkv"], m.bias["o"] = true, true
	}
	if r.root.get("mlp_bias").truthy() {
		m.bias["mlp"] = true
	}
	m.headOptional = a.HeadOptional || r.root.get("tie_word_embeddings").truthy()
	m.needsPreprocessor = a.VisionAlways || lookup(&r.root, "", "vision_config.model_type") != nil
}

// checkSizes refuses dimensions that no model has.
func (r *configReader) checkSizes(m *model) {
	if m.layers*(12+3*m.experts) > maxParts {
		r.bad("num_hidden_layers", "%d layers of %d experts are more than a model has", m.layers, m.experts)
	}
	for _, d := range []struct {
		name string
		n    int
	}{{"hidden_size", m.hidden}, {"head_dim", m.headDim}, {"num_attention_heads", m.heads}, {"num_key_value_heads", m.kvHeads}} {
		if d.n == 0 && !slices.ContainsFunc(r.ps, func(p Problem) bool { return p.Tensor == d.name }) {
			r.bad(d.name, "is zero")
		}
	}
	if m.heads*m.headDim > maxDimension {
		r.bad("head_dim", "%d heads of %d are out of range", m.heads, m.headDim)
	}
}
