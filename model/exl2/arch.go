package exl2

import (
	_ "embed"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// architecturesJSON holds what is specific to an architecture, and nothing that holds for all of
// them: layer keys, attention projections and q/k norms have the same names everywhere.
//
//go:embed architectures.json
var architecturesJSON []byte

// fallbackArchitecture is used for names the table does not have.
const fallbackArchitecture = "LlamaForCausalLM"

type architecture struct {
	Name   string            `json:"name"`
	Match  map[string]string `json:"match"`  // config path → value, all needed; else the fallback applies
	Prefix string            `json:"prefix"` // of every key of the language model
	// Extras are the prefixes of source tensors that are copied unchanged, in this order.
	Extras       []string `json:"extras"`
	VisionAlways bool     `json:"vision_always"` // a loader wants preprocessor_config.json whatever the config says
	Keymap       string   `json:"keymap"`
	Norm         string   `json:"norm"`        // rmsnorm or layernorm
	NormOffset   float64  `json:"norm_offset"` // norms are stored as weight − offset
	QKNorm       bool     `json:"qk_norm"`
	MultiQuery   bool     `json:"multi_query"` // one key/value head
	Parallel     bool     `json:"parallel"`    // attention and MLP are one module
	Positions    bool     `json:"positions"`   // learned position embedding
	Bias         []string `json:"bias"`        // qkv, o, mlp
	// QKVBiasFromConfig makes attention_bias decide about qkv alone.
	QKVBiasFromConfig bool           `json:"qkv_bias_from_config"`
	HeadOptional      bool           `json:"head_optional"` // the source may lack lm_head
	Defaults          map[string]int `json:"defaults"`
	AttentionNorms    []string       `json:"attention_norms"` // before, after
	MLPNorms          []string       `json:"mlp_norms"`
	Router            string         `json:"router"` // set for a mixture of experts
	// MLP has the linears by role; * stands for the expert.
	MLP struct {
		Gate string `json:"gate"`
		Up   string `json:"up"`
		Down string `json:"down"`
	} `json:"mlp"`
	// Fused source tensors and the roles they replace.
	Fused map[string][]string `json:"fused"`
}

type keyRule struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Start bool   `json:"start"` // only at the start of the name; otherwise everywhere
}

type table struct {
	Keymaps       map[string][]keyRule `json:"keymaps"`
	Architectures []architecture       `json:"architectures"`
}

var loadTable = sync.OnceValue(func() *table {
	var t table
	if err := json.Unmarshal(architecturesJSON, &t); err != nil {
		panic("exl2: embedded table of architectures: " + err.Error()) // a broken build, not a run-time condition
	}
	return &t
})

// Architectures lists the names of config.json's architectures that are known, in the order of the
// table.
func Architectures() []string {
	t := loadTable()
	names := make([]string, len(t.Architectures))
	for i := range t.Architectures {
		names[i] = t.Architectures[i].Name
	}
	return names
}

func findArchitecture(name string) *architecture {
	t := loadTable()
	for i := range t.Architectures {
		if t.Architectures[i].Name == name {
			return &t.Architectures[i]
		}
	}
	return nil
}

// rename applies the architecture's keymap to the name of a source tensor. Each rule works on the
// result of the one before.
func (a *architecture) rename(name string) string {
	for _, r := range loadTable().Keymaps[a.Keymap] {
		if !r.Start {
			name = strings.ReplaceAll(name, r.From, r.To)
		} else if rest, ok := strings.CutPrefix(name, r.From); ok {
			name = r.To + rest
		}
	}
	return name
}

// partType says how a part is made.
type partType string

const (
	partQuant     partType = "quant"
	partEmbedding partType = "embedding"
	partPositions partType = "pos_embedding"
	partRMSNorm   partType = "rmsnorm"
	partLayerNorm partType = "layernorm"
	partHeadNorm  partType = "headnorm"
	partRouter    partType = "router"
)

// part is one norm, linear layer, embedding or router.
type part struct {
	role string
	typ  partType
	key  string

	// Quant parts.
	in, out int
	bias    bool
	fused   string // key of the fused source tensor that may stand for this one

	// Float parts.
	heads  int     // repetition of a head norm
	offset float64 // round trip x+offset−offset in half precision
	scale  float64 // round trip x·scale/scale in half precision; 1 means none
}

// module is the unit after which the original looks at the shard limit.
type module struct {
	typ   string // embedding, pos_embedding, attention, mlp, moe_mlp, parallel_decoder, norm, linear
	layer int    // −1 outside the layers
	parts []part
}

// modules expands the architecture for a configuration: every module in order, every part in order.
func (m *model) modules() []module {
	a := m.arch
	norm := partType(a.Norm)
	one := func(typ string, p part) module { return module{typ: typ, layer: -1, parts: []part{p}} }

	out := []module{one("embedding", part{role: "embedding", typ: partEmbedding, key: a.Prefix + "model.embed_tokens", scale: m.scale})}
	if a.Positions {
		out = append(out, one("pos_embedding", part{role: "pos_embedding", typ: partPositions, key: "model.wpe", scale: 1}))
	}
	for layer := range m.layers {
		base := a.Prefix + "model.layers." + strconv.Itoa(layer) + "."
		norms := func(keys []string) []part {
			var ps []part
			for i, key := range keys {
				role := [...]string{"pre_norm", "post_norm"}[i]
				ps = append(ps, part{role: role, typ: norm, key: base + key, offset: a.NormOffset, scale: 1})
			}
			return ps
		}
		linear := func(role, key string, in, out int, bias string) part {
			p := part{role: role, typ: partQuant, key: base + key, in: in, out: out, bias: m.bias[bias]}
			for fused, roles := range a.Fused {
				if slices.Contains(roles, role) {
					p.fused = base + fused
				}
			}
			return p
		}
		q, kv := m.heads*m.headDim, m.kvHeads*m.headDim
		attention := append(norms(a.AttentionNorms),
			linear("q_proj", "self_attn.q_proj", m.hidden, q, "qkv"),
			linear("k_proj", "self_attn.k_proj", m.hidden, kv, "qkv"),
			linear("v_proj", "self_attn.v_proj", m.hidden, kv, "qkv"),
			linear("o_proj", "self_attn.o_proj", q, m.hidden, "o"))
		if m.qkNorm {
			attention = append(attention,
				part{role: "q_norm", typ: partHeadNorm, key: base + "self_attn.q_norm", heads: m.heads, offset: a.NormOffset, scale: 1},
				part{role: "k_norm", typ: partHeadNorm, key: base + "self_attn.k_norm", heads: m.kvHeads, offset: a.NormOffset, scale: 1})
		}
		mlp := norms(a.MLPNorms)
		if a.Router != "" {
			mlp = append(mlp, part{role: "router", typ: partRouter, key: base + a.Router, scale: 1})
			for e := range m.experts {
				expert := func(key string) string { return strings.Replace(key, "*", strconv.Itoa(e), 1) }
				mlp = append(mlp,
					linear("w1", expert(a.MLP.Gate), m.hidden, m.inter, "mlp"),
					linear("w3", expert(a.MLP.Up), m.hidden, m.inter, "mlp"),
					linear("w2", expert(a.MLP.Down), m.inter, m.hidden, "mlp"))
			}
		} else {
			if a.MLP.Gate != "" {
				mlp = append(mlp, linear("gate_proj", a.MLP.Gate, m.hidden, m.inter, "mlp"))
			}
			mlp = append(mlp,
				linear("up_proj", a.MLP.Up, m.hidden, m.inter, "mlp"),
				linear("down_proj", a.MLP.Down, m.inter, m.hidden, "mlp"))
		}
		switch {
		case a.Parallel:
			out = append(out, module{typ: "parallel_decoder", layer: layer, parts: append(attention, mlp...)})
		case a.Router != "":
			out = append(out, module{"attention", layer, attention}, module{"moe_mlp", layer, mlp})
		default:
			out = append(out, module{"attention", layer, attention}, module{"mlp", layer, mlp})
		}
	}
	return append(out,
		one("norm", part{role: "final_norm", typ: norm, key: a.Prefix + "model.norm", offset: a.NormOffset, scale: 1}),
		one("linear", part{role: "lm_head", typ: partQuant, key: a.Prefix + "lm_head", in: m.hidden, out: m.vocab}))
}
