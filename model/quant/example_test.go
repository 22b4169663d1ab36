package quant_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

func Example() {
	// A matrix of 64 rows and 32 columns: 32 rows in 6 bits, the rest in 3.
	w := make([]float32, 64*32)
	for i := range w {
		w[i] = float32(i/32%4) / 4 // every column is 0, ¼, ½, ¾, 0, …
	}
	groups, err := quant.MixGroups(64, quant.Share{Bits: 6, GroupRows: 32, Fraction: 0.5}, quant.Share{Bits: 3, GroupRows: 32})
	if err != nil {
		log.Fatal(err)
	}
	m, err := quant.QuantizeEXL2(w, 64, 32, quant.EXL2Spec{Groups: groups})
	if err != nil {
		log.Fatal(err)
	}

	// One row of ones times the matrix.
	ones := make([]float32, 64)
	for i := range ones {
		ones[i] = 1
	}
	x := make([]byte, 2*64)
	tensor.EncodeF16(x, ones)
	cpu, err := quant.NewCPU(quant.CPUOptions{})
	if err != nil {
		log.Fatal(err)
	}
	weight, err := cpu.Upload(context.Background(), m)
	if err != nil {
		log.Fatal(err)
	}
	defer weight.Close()
	in, err := quant.NewHalf(1, 64, x)
	if err != nil {
		log.Fatal(err)
	}
	out, err := cpu.NewMatrix(1, m.Cols())
	if err != nil {
		log.Fatal(err)
	}
	if err := cpu.Gemm(context.Background(), out, in, weight, quant.GemmOptions{}); err != nil {
		log.Fatal(err)
	}
	y := make([]byte, 2*m.Cols())
	if err := out.CopyTo(y); err != nil {
		log.Fatal(err)
	}
	sums := make([]float32, m.Cols())
	tensor.DecodeF16(sums, y)
	fmt.Printf("%v, %d×%d, %d groups: %.3f\n", m.Format(), m.Rows(), m.Cols(), len(m.Groups()), sums[:3])
	// Output:
	// exl2, 64×32, 2 groups: [22.109 22.109 22.109]
}
