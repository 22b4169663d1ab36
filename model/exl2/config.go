package exl2

import (
	"math"
	"slices"
	"strconv"
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
	var ps Problems
	bad := func(field, format string, args ...any) { ps.add(BadConfig, path, field, format, args...) }

	root, err := parseJSON(data)
	if err != nil {
		bad("", "%v", err)
		return nil, ps
	}
	if root.kind != kObject {
		bad("", "want an object")
		return nil, ps
	}

	m := &model{}
	names := root.get("architectures")
	if names == nil || names.kind != kArray || len(names.items) != 1 || names.items[0].kind != kString {
		bad("architectures", "want a list with exactly one name")
		return nil, ps
	}
	m.name = names.items[0].text
	m.arch = findArchitecture(m.name)
	m.known = m.arch != nil
	if m.known {
		for p, want := range m.arch.Match {
			if v := lookup(&root, "", p); v == nil || v.kind != kString || v.text != want {
				m.known = false
			}
		}
	}
	if !m.known {
		m.arch = findArchitecture(fallbackArchitecture)
	}
	a := m.arch

	// integer returns −1 for an absent field.
	integer := func(under string, limit int, paths ...string) int {
		v := lookup(&root, under, paths...)
		if v == nil {
			return -1
		}
		f := v.float()
		if math.IsNaN(f) || f != math.Trunc(f) {
			bad(paths[0], "want an integer")
			return 0
		}
		if f < 0 || f > float64(limit) {
			bad(paths[0], "%v is out of range", f)
			return 0
		}
		return int(f)
	}
	pick := func(field string, candidates ...int) int {
		for _, c := range candidates {
			if c >= 0 {
				return c
			}
		}
		bad(field, "missing")
		return 0
	}
	fallback := func(name string) int {
		if d, ok := a.Defaults[name]; ok {
			return d
		}
		return -1
	}
	ratio := func(a, b int) int {
		if a < 0 || b <= 0 {
			return -1
		}
		return a / b
	}
	const text = "text_config"

	m.layers = pick("num_hidden_layers", integer(text, maxLayers, "num_hidden_layers", "n_layers", "n_layer"))
	m.hidden = pick("hidden_size", integer(text, maxDimension, "hidden_size", "d_model", "n_embd"))
	m.vocab = pick("vocab_size", integer(text, maxDimension, "vocab_size"), fallback("vocab_size"))
	heads := integer(text, maxDimension, "num_attention_heads", "n_heads", "n_head")
	if heads < 0 {
		heads = fallback("num_attention_heads")
	}
	m.headDim = pick("head_dim", integer(text, maxDimension, "head_dim"), fallback("head_dim"), ratio(m.hidden, heads))
	m.heads = pick("num_attention_heads", heads, ratio(m.hidden, m.headDim))
	kv := integer(text, maxDimension, "num_key_value_heads", "attn_config.kv_n_heads")
	if a.MultiQuery {
		kv = 1
	}
	m.kvHeads = pick("num_key_value_heads", kv, fallback("num_key_value_heads"), m.heads)
	inter := integer(text, maxDimension, "intermediate_size", "ffn_config.ffn_hidden_size", "n_inner")
	if inter < 0 {
		if n := fallback("intermediate_size_multiple_of_hidden"); n > 0 {
			inter = n * m.hidden
		}
	}
	if a.Router != "" {
		m.experts = pick("num_experts", integer("", maxExperts, "num_local_experts", "ffn_config.moe_num_experts", "num_experts"))
		m.inter = pick("intermediate_size", integer("", maxDimension, "moe_intermediate_size"), inter)
	} else {
		m.inter = pick("intermediate_size", inter)
	}
	m.context = max(0, integer(text, math.MaxInt32, "max_sequence_length", "model_max_length", "max_position_embeddings", "max_seq_len", "n_positions"))

	m.qkNorm = a.QKNorm
	if v := lookup(&root, "", "use_qk_norm"); v != nil {
		if v.kind != kTrue && v.kind != kFalse {
			bad("use_qk_norm", "want true or false")
		}
		m.qkNorm = v.kind == kTrue
	}
	m.scale = 1
	if v := lookup(&root, "", "scale_emb", "embedding_multiplier"); v != nil {
		m.scale = v.float()
		if s32 := float32(m.scale); s32 == 0 || s32 != s32 || math.IsInf(float64(s32), 0) {
			bad("scale_emb", "want a finite number other than zero")
			m.scale = 1
		}
	}

	m.bias = map[string]bool{}
	for _, b := range a.Bias {
		m.bias[b] = true
	}
	attention := root.get("attention_bias").truthy()
	if a.QKVBiasFromConfig {
		m.bias["qkv"] = attention
	} else if attention && !m.bias["qkv"] && !m.bias["o"] {
		m.bias["qkv"], m.bias["o"] = true, true
	}
	if root.get("mlp_bias").truthy() {
		m.bias["mlp"] = true
	}
	m.headOptional = a.HeadOptional || root.get("tie_word_embeddings").truthy()
	vision := lookup(&root, "", "vision_config.model_type")
	m.needsPreprocessor = a.VisionAlways || vision != nil

	if m.layers*(12+3*m.experts) > maxParts {
		bad("num_hidden_layers", "%d layers of %d experts are more than a model has", m.layers, m.experts)
	}
	for _, d := range []struct {
		name string
		n    int
	}{{"hidden_size", m.hidden}, {"head_dim", m.headDim}, {"num_attention_heads", m.heads}, {"num_key_value_heads", m.kvHeads}} {
		if d.n == 0 && !slices.ContainsFunc(ps, func(p Problem) bool { return p.Tensor == d.name }) {
			bad(d.name, "is zero")
		}
	}
	if m.heads*m.headDim > maxDimension {
		bad("head_dim", "%s heads of %d are out of range", strconv.Itoa(m.heads), m.headDim)
	}
	return m, ps
}
