package exl2

import (
	"fmt"
	"path/filepath"
	"testing"
)

// BenchmarkWrite compiles a model of about 400 MB; the inputs are in the page cache, the output
// goes to the disk of TMPDIR.
func BenchmarkWrite(b *testing.B) {
	dir := b.TempDir()
	fx := &fixture{Seed: 1, Arch: "LlamaForCausalLM", Limit: 8192, Set: map[string]any{
		"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 8192,
		"num_hidden_layers": 6, "vocab_size": 32001,
	}}
	fx.make(b, dir)
	inv, ps := ReadInventory(b.Context(), Options{WorkDir: fx.work})
	if err := ps.Err(); err != nil {
		b.Fatal(err)
	}
	for _, noHash := range []bool{false, true} {
		for _, shard := range []int64{-1, 64 << 20} {
			b.Run(fmt.Sprintf("hash=%v/shard=%d", !noHash, shard), func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					p, err := inv.Plan(PlanOptions{Out: filepath.Join(dir, fmt.Sprintf("out-%v-%d-%d", noHash, shard, i)), ShardBytes: shard})
					if err != nil {
						b.Fatal(err)
					}
					b.SetBytes(p.Bytes)
					if _, err := Write(b.Context(), p, WriteOptions{NoHash: noHash, Replace: true}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	b.Run("inventory", func(b *testing.B) {
		for range b.N {
			if _, ps := ReadInventory(b.Context(), Options{WorkDir: fx.work}); len(ps) > 0 {
				b.Fatal(ps)
			}
		}
	})
}
