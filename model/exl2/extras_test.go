package exl2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/model/tensor"
)

// TestExtrasOrder has vision tensors whose data lies in another order than the header lists them.
// The header decides.
func TestExtrasOrder(t *testing.T) {
	fx := &fixture{Seed: 3, Arch: "Qwen2VLForConditionalGeneration", Limit: 8192}
	fx.make(t, t.TempDir())
	var header strings.Builder
	var data []byte
	var want []string
	for i := range 4 { // the last tensor of the header has the first bytes
		name := fmt.Sprintf("visual.blocks.%d.weight", 3-i)
		fmt.Fprintf(&header, `,%q:{"dtype":"F16","shape":[1],"data_offsets":[%d,%d]}`, name, 2*(3-i), 2*(4-i))
		data = append(data, byte(i), 0)
		want = append(want, name)
	}
	text := "{" + header.String()[1:] + "}"
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	if err := os.WriteFile(filepath.Join(fx.model, "model-vision.safetensors"), append(file, data...), 0o644); err != nil {
		t.Fatal(err)
	}
	inv, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work})
	if err := ps.Err(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range inv.extras {
		if strings.HasPrefix(e.Name, "visual.blocks.") {
			got = append(got, e.Name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("extras %v, want %v", got, want)
	}
}

// TestExtrasOfAnyType copies vision tensors that exllamav2 cannot read, and says so.
func TestExtrasOfAnyType(t *testing.T) {
	fx := &fixture{Seed: 3, Arch: "Qwen2VLForConditionalGeneration", Limit: 8192}
	fx.make(t, t.TempDir())
	ids := []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}
	if err := writeSafetensors(filepath.Join(fx.model, "model-vision.safetensors"), []rawTensor{
		{"visual.embeddings.position_ids", tensor.I64, []int64{1, 2}, ids},
		{"visual.merger.mask", tensor.U8, []int64{3}, []byte{1, 0, 1}},
	}, false); err != nil {
		t.Fatal(err)
	}
	p := planFixture(t, fx, PlanOptions{})
	notices := strings.Join(p.Notices, "\n")
	for _, want := range []string{"visual.embeddings.position_ids has the type I64, which exllamav2 cannot read", "visual.merger.mask has the type U8"} {
		if strings.Count(notices, want) != 1 {
			t.Errorf("want once %q, got %s", want, notices)
		}
	}
	if _, err := Write(t.Context(), p, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	d, err := openModelDir(t.Context(), fx.out, InnerLinks)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	r, err := d.Open("visual.embeddings.position_ids")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(r); err != nil || !bytes.Equal(got.Bytes(), ids) {
		t.Errorf("copied % x, %v", got.Bytes(), err)
	}
	if rep, err := Verify(t.Context(), fx.out, VerifyOptions{ModelDir: fx.model}); err != nil || !rep.OK() {
		t.Errorf("%v, %v", rep, err)
	}
}
