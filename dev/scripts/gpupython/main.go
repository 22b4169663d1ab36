// Command gpupython prints hashes of what the package model/quant/cuda computes for every golden
// matrix, as python/tests/goldens.py does through Python, so that dev/scripts/gpupython.sh can
// compare the two.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/safetensors"
)

func main() {
	dir := flag.String("goldens", "model/quant/testdata", "folder with exl2.safetensors and gptq.safetensors")
	flag.Parse()
	if err := run(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "gpupython:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	d, err := cuda.Open(cuda.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	all := map[string]map[string]string{}
	for _, format := range []string{"exl2", "gptq"} {
		f, err := safetensors.Open(filepath.Join(dir, format+".safetensors"))
		if err != nil {
			return err
		}
		defer f.Close()
		for _, t := range f.Header().Tensors {
			key, ok := strings.CutSuffix(t.Name, ".recon")
			if !ok {
				continue
			}
			if all[format+"/"+key], err = hashes(d, f, format, key); err != nil {
				return fmt.Errorf("%s/%s: %w", format, key, err)
			}
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	return out.Encode(all)
}

// hashes computes one matrix as a Go program would.
func hashes(d *cuda.Device, f *safetensors.File, format, key string) (map[string]string, error) {
	var m *quant.QMatrix
	var err error
	if format == "exl2" {
		m, err = quant.LoadEXL2(quant.Files(f), key, quant.EXL2Options{})
	} else {
		m, err = quant.LoadGPTQ(quant.Files(f), key, quant.GPTQOptions{})
	}
	if err != nil {
		return nil, err
	}
	r, err := f.Reader(key + ".x")
	if err != nil {
		return nil, err
	}
	activations := make([]byte, r.Size())
	if _, err := r.ReadAt(activations, 0); err != nil {
		return nil, err
	}
	ctx, rows := context.Background(), len(activations)/2/m.Rows()
	w, err := d.Upload(ctx, m)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	out := map[string]string{}
	keep := func(name string, from quant.Matrix) error {
		data := make([]byte, 2*from.Rows()*from.Cols())
		if err := from.CopyTo(data); err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		out[name] = hex.EncodeToString(sum[:])
		return from.Close()
	}
	x, err := d.NewMatrix(rows, m.Rows())
	if err != nil {
		return nil, err
	}
	defer x.Close()
	if err := x.CopyFrom(activations); err != nil {
		return nil, err
	}
	y, err := d.NewMatrix(rows, m.Cols())
	if err != nil {
		return nil, err
	}
	if err := d.Gemm(ctx, y, x, w, quant.GemmOptions{}); err != nil {
		return nil, err
	}
	if err := keep("gemm", y); err != nil {
		return nil, err
	}
	weights, err := d.NewMatrix(m.Rows(), m.Cols())
	if err != nil {
		return nil, err
	}
	if err := d.Dequantize(weights, w); err != nil {
		return nil, err
	}
	return out, keep("weights", weights)
}
