package safetensors_test

import (
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, safetensors.ShardName("model", 1, 1))

	// Plan: every offset is known before anything is written.
	layout, err := safetensors.NewLayout([]safetensors.Spec{
		{Name: "norm.weight", DType: tensor.F16, Shape: []int64{2}},
		{Name: "proj.q_weight", DType: tensor.I32, Shape: []int64{1, 2}},
	}, map[string]string{"format": "pt"})
	if err != nil {
		log.Fatal(err)
	}

	// Write: here in order, from readers.
	data := map[string]string{"norm.weight": "\x00\x3c\x00\x40", "proj.q_weight": "\x01\x00\x00\x00\x02\x00\x00\x00"}
	err = safetensors.WriteFile(path, layout, func(name string) (io.Reader, error) { return strings.NewReader(data[name]), nil })
	if err != nil {
		log.Fatal(err)
	}

	// Read: the header first, then the tensors one wants.
	f, err := safetensors.Open(path)
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for _, t := range f.Header().Tensors {
		fmt.Println(t.Name, t.DType, t.Shape, t.Size)
	}
	r, err := f.Reader("norm.weight")
	if err != nil {
		log.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		log.Fatal(err)
	}
	norm := make([]float32, 2)
	tensor.DecodeF16(norm, raw)
	fmt.Println(norm, f.Header().Metadata["format"])
	// Output:
	// proj.q_weight I32 [1 2] 8
	// norm.weight F16 [2] 4
	// [1 2] pt
}
