package exl2

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/model/safetensors"
)

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	fx := &fixture{Seed: 21, Arch: "MixtralForCausalLM", Limit: 0.1, Set: map[string]any{"num_local_experts": 3, "num_hidden_layers": 2}}
	fx.make(t, dir)
	if err := compileFixture(t, fx, PlanOptions{}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	info, err := Inspect(t.Context(), fx.out, InnerLinks)
	if err != nil {
		t.Fatal(err)
	}
	if len(info.Problems) > 0 || info.Architecture != fx.Arch || len(info.Layers) != 2 || info.Quantized != 2*(4+9)+1 {
		t.Errorf("got %+v", info)
	}
	l := info.Layers[0]
	if len(l.Cells) != 7 || l.Cells[0].Type != "self_attn.q_proj" || l.Cells[6].Type != "block_sparse_moe.experts.*.w2" || l.Cells[6].Count != 3 {
		t.Errorf("layer 0: %+v", l.Cells)
	}
	// The average by hand, from the files of the converter.
	var bytesAll, weights int64
	paths, _ := filepath.Glob(filepath.Join(fx.work, "out_tensor", "*.safetensors"))
	for _, p := range paths {
		f, err := safetensors.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		var k, n int64
		for _, e := range f.Header().Tensors {
			bytesAll += e.Size
			if strings.HasSuffix(e.Name, ".q_invperm") {
				k = e.Shape[0]
			}
			if strings.HasSuffix(e.Name, ".q_weight") {
				n = e.Shape[1]
			}
		}
		weights += k * n
	}
	if want := float64(8*bytesAll) / float64(weights); math.Abs(info.AllBits-want) > 1e-9 {
		t.Errorf("%v bits per weight, want %v", info.AllBits, want)
	}
	if info.QuantBytes != bytesAll {
		t.Errorf("%d bytes quantized, want %d", info.QuantBytes, bytesAll)
	}

	var text bytes.Buffer
	if err := info.WriteText(&text, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"MixtralForCausalLM", "q_proj", "*.w2", "lm_head"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("text has no %q:\n%s", want, text.String())
		}
	}
	var page bytes.Buffer
	if err := info.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "http") || !strings.Contains(page.String(), "<svg") {
		t.Error("the page is not self-contained")
	}
	svg := page.String()[strings.Index(page.String(), "<svg"):]
	svg = svg[:strings.Index(svg, "</svg>")+6]
	dec := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("svg: %v", err)
		}
	}
	if _, err := json.Marshal(info); err != nil {
		t.Error(err)
	}
	if _, err := Inspect(t.Context(), t.TempDir(), InnerLinks); err == nil {
		t.Error("an empty folder is a model")
	}
}

func TestVerifyProgress(t *testing.T) {
	fx := llama(t, t.TempDir())
	if _, err := Write(t.Context(), planFixture(t, fx, PlanOptions{}), WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	var last Progress
	rep, err := Verify(t.Context(), fx.out, VerifyOptions{Progress: func(p Progress) {
		if p.Done <= last.Done {
			t.Errorf("%d bytes after %d", p.Done, last.Done)
		}
		last = p
	}})
	if err != nil || !rep.OK() || last.Done != last.Total || last.Total != rep.Bytes {
		t.Errorf("the last progress is %+v of %d bytes, %v, %v", last, rep.Bytes, rep, err)
	}
}

func TestVerifyFindsDamage(t *testing.T) {
	flip := func(name func(*Plan) string, at func(*Plan) int64) func(*testing.T, *fixture, *Plan) {
		return func(t *testing.T, fx *fixture, p *Plan) {
			path := filepath.Join(fx.out, name(p))
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			data[at(p)] ^= 1
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := func(p *Plan) string { return p.Shards[0].Name }
	weight := func(p *Plan) int64 {
		i := slices.IndexFunc(p.Shards[0].Tensors, func(t PlannedTensor) bool { return strings.HasSuffix(t.Name, ".q_weight") })
		return p.Shards[0].Tensors[i].Offset
	}
	tests := []struct {
		name string
		edit func(*testing.T, *fixture, *Plan)
		opts VerifyOptions
		want string // "" means nothing is found
	}{
		{"nothing", func(*testing.T, *fixture, *Plan) {}, VerifyOptions{}, ""},
		{"a weight", flip(first, weight), VerifyOptions{}, "sha256"},
		{"a weight, not hashed", flip(first, weight), VerifyOptions{Structure: true}, ""},
		{"a weight, no manifest", func(t *testing.T, fx *fixture, p *Plan) {
			os.Remove(filepath.Join(fx.out, ManifestName))
			flip(first, weight)(t, fx, p)
		}, VerifyOptions{}, "not verifiable: there is no kiln-manifest.json"},
		{"no manifest, structure only", func(t *testing.T, fx *fixture, p *Plan) { os.Remove(filepath.Join(fx.out, ManifestName)) }, VerifyOptions{Structure: true}, ""},
		{"a weight, no digests", func(t *testing.T, fx *fixture, p *Plan) {
			editJSON(t, filepath.Join(fx.out, ManifestName), func(m map[string]any) {
				delete(m["files"].([]any)[0].(map[string]any), "sha256")
			})
			flip(first, weight)(t, fx, p)
		}, VerifyOptions{}, "not verifiable: the manifest has no digests of 1 files"},
		{"a foreign file that has no tensors", func(t *testing.T, fx *fixture, p *Plan) {
			if err := os.WriteFile(filepath.Join(fx.out, "modeling_llama.py"), []byte("import os"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, VerifyOptions{Structure: true}, "modeling_llama.py: not in the manifest"},
		{"config", func(t *testing.T, fx *fixture, _ *Plan) {
			editJSON(t, filepath.Join(fx.out, ConfigFile), func(m map[string]any) { delete(m, "quantization_config") })
		}, VerifyOptions{}, "quant_method"},
		{"manifest", func(t *testing.T, fx *fixture, _ *Plan) {
			editJSON(t, filepath.Join(fx.out, ManifestName), func(m map[string]any) {
				m["tensors"].([]any)[0].(map[string]any)["offset"] = int64(math.MaxInt64 - 1)
			})
		}, VerifyOptions{}, "the manifest puts it at 9223372036854775806"},
		{"a tensor of an empty file", func(t *testing.T, fx *fixture, p *Plan) {
			if err := os.WriteFile(filepath.Join(fx.out, "empty"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			editJSON(t, filepath.Join(fx.out, ManifestName), func(m map[string]any) {
				m["files"] = append(m["files"].([]any), map[string]any{"name": "empty", "size": 0, "sha256": "e3"})
				m["tensors"] = append(m["tensors"].([]any), map[string]any{"name": "t", "file": "empty", "offset": 0, "size": 0, "sha256": "e3"})
			})
		}, VerifyOptions{}, "want e3"},
		{"missing shard", func(t *testing.T, fx *fixture, p *Plan) { os.Remove(filepath.Join(fx.out, p.Shards[1].Name)) }, VerifyOptions{}, "not in the folder"},
		{"a foreign tensor file", func(t *testing.T, fx *fixture, p *Plan) {
			if err := writeSafetensors(filepath.Join(fx.out, "output_temp_1.safetensors"), nil, false); err != nil {
				t.Fatal(err)
			}
		}, VerifyOptions{}, "not in the manifest"},
		{"truncated", func(t *testing.T, fx *fixture, p *Plan) {
			if err := os.Truncate(filepath.Join(fx.out, first(p)), p.Shards[0].Size-2); err != nil {
				t.Fatal(err)
			}
		}, VerifyOptions{}, "bytes"},
		{"float tensor against the source", func(t *testing.T, fx *fixture, p *Plan) {
			os.Remove(filepath.Join(fx.out, ManifestName))
			for _, s := range p.Shards {
				for _, tn := range s.Tensors {
					if tn.Name == "model.norm.weight" {
						flip(func(*Plan) string { return s.Name }, func(*Plan) int64 { return tn.Offset })(t, fx, p)
					}
				}
			}
		}, VerifyOptions{ModelDir: "model"}, "differs from the source"},
		{"index", func(t *testing.T, fx *fixture, p *Plan) {
			os.Remove(filepath.Join(fx.out, ManifestName))
			editJSON(t, filepath.Join(fx.out, IndexFile), func(m map[string]any) { delete(m["weight_map"].(map[string]any), "lm_head.q_weight") })
		}, VerifyOptions{}, "wrong about 1 tensors"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fx := llama(t, t.TempDir())
			p := planFixture(t, fx, PlanOptions{})
			if _, err := Write(t.Context(), p, WriteOptions{}); err != nil {
				t.Fatal(err)
			}
			tt.edit(t, fx, p)
			if tt.opts.ModelDir != "" {
				tt.opts.ModelDir = fx.model
			}
			rep, err := Verify(t.Context(), fx.out, tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" {
				if !rep.OK() {
					t.Error(rep.Problems)
				}
				return
			}
			if !strings.Contains(rep.Problems.Error(), tt.want) {
				t.Errorf("want %q, got %v", tt.want, rep.Problems)
			}
		})
	}
}
