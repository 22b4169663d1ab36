// Package quanttest has random quantized matrices and the suite that every [quant.Backend] must
// pass.
//
// A package with a backend has a test that calls [TestBackend], and a benchmark that calls
// [BenchmarkBackend].
package quanttest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// EXL2 returns the tensors, named without a prefix, of a random EXL2 matrix with n columns and the
// given groups: uniform codes, scales of ordinary size and a random permutation.
func EXL2(rng *rand.Rand, n int, groups []quant.Group) quant.TensorMap {
	var weight, scale, table, largest []byte
	k, packed := 0, 0
	for _, g := range groups {
		table = binary.LittleEndian.AppendUint16(table, uint16(g.Bits))
		table = binary.LittleEndian.AppendUint16(table, uint16(packed))
		rows := g.Rows / 32 * g.Bits
		weight = appendWords(weight, rng, rows*n)
		scale = appendWords(scale, rng, n/8)
		largest = appendHalf(largest, 0.002+0.048*rng.Float32())
		k += g.Rows
		packed += rows
	}
	var inv []byte
	for _, i := range rng.Perm(k) {
		inv = binary.LittleEndian.AppendUint32(inv, uint32(i))
	}
	return quant.TensorMap{
		"q_weight":    {DType: tensor.I32, Shape: shape(packed, n), Data: weight},
		"q_scale":     {DType: tensor.I32, Shape: shape(len(groups), n/8), Data: scale},
		"q_scale_max": {DType: tensor.F16, Shape: shape(len(groups)), Data: largest},
		"q_groups":    {DType: tensor.I16, Shape: shape(2 * len(groups)), Data: table},
		"q_invperm":   {DType: tensor.I32, Shape: shape(k), Data: inv},
	}
}

// GPTQ returns the tensors, named without a prefix, of a random GPTQ matrix with uniform codes and
// zero points. Rows of a group are consecutive; with actOrder there is a g_idx that puts them in
// random places.
func GPTQ(rng *rand.Rand, k, n, bits, groupRows int, actOrder bool) quant.TensorMap {
	count := (k + groupRows - 1) / groupRows
	var scales []byte
	for range count * n {
		scales = appendHalf(scales, 0.001+0.02*rng.Float32())
	}
	out := quant.TensorMap{
		"qweight": {DType: tensor.I32, Shape: shape(k*bits/32, n), Data: appendWords(nil, rng, k*bits/32*n)},
		"qzeros":  {DType: tensor.I32, Shape: shape(count, n*bits/32), Data: appendWords(nil, rng, count*n*bits/32)},
		"scales":  {DType: tensor.F16, Shape: shape(count, n), Data: scales},
	}
	if actOrder {
		index := make([]byte, 4*k)
		for i, at := range rng.Perm(k) {
			binary.LittleEndian.PutUint32(index[4*at:], uint32(i/groupRows))
		}
		out["g_idx"] = quant.Tensor{DType: tensor.I32, Shape: shape(k), Data: index}
	}
	return out
}

// Normal returns n float16 numbers with standard deviation sigma.
func Normal(rng *rand.Rand, n int, sigma float64) []byte {
	out := make([]byte, 0, 2*n)
	for range n {
		out = appendHalf(out, float32(sigma*rng.NormFloat64()))
	}
	return out
}

func appendWords(b []byte, rng *rand.Rand, n int) []byte {
	for range n {
		b = binary.LittleEndian.AppendUint32(b, rng.Uint32())
	}
	return b
}

func appendHalf(b []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint16(b, uint16(tensor.Float16FromFloat32(v)))
}

func shape(dims ...int) []int64 {
	out := make([]int64, len(dims))
	for i, d := range dims {
		out[i] = int64(d)
	}
	return out
}

// sample is a matrix of the suite.
type sample struct {
	name   string
	matrix *quant.QMatrix
}

// samples returns matrices with everything that the formats allow.
func samples() ([]sample, error) {
	rng := rand.New(rand.NewPCG(2024, 11))
	var all []sample
	exl2 := func(name string, n int, groups ...quant.Group) error {
		tensors := EXL2(rng, n, groups)
		switch len(all) % 3 {
		case 1:
			tensors["bias"] = quant.Tensor{DType: tensor.F16, Shape: shape(n), Data: Normal(rng, n, 1)}
		case 2:
			delete(tensors, "q_invperm")
		}
		m, err := quant.LoadEXL2(tensors, "", quant.EXL2Options{})
		all = append(all, sample{"exl2 " + name, m})
		return err
	}
	gptq := func(name string, k, n, bits, groupRows int, actOrder bool, zero quant.ZeroPoint) error {
		opts := quant.GPTQOptions{GroupSize: groupRows, Zero: zero}
		m, err := quant.LoadGPTQ(GPTQ(rng, k, n, bits, groupRows, actOrder), "", opts)
		all = append(all, sample{fmt.Sprintf("gptq %d bit %s", bits, name), m})
		return err
	}
	of := func(bits, rows, count int) []quant.Group {
		var out []quant.Group
		for range count {
			out = append(out, quant.Group{Bits: bits, Rows: rows})
		}
		return out
	}
	for _, bits := range []int{8, 6, 5, 4, 3, 2} {
		if err := exl2(fmt.Sprintf("%d bit", bits), 288, of(bits, 32, 3)...); err != nil {
			return nil, err
		}
		if err := exl2(fmt.Sprintf("%d bit narrow", bits), 32, of(bits, 64, 2)...); err != nil {
			return nil, err
		}
	}
	all6 := []quant.Group{
		{Bits: 8, Rows: 32},
		{Bits: 6, Rows: 64},
		{Bits: 5, Rows: 32},
		{Bits: 4, Rows: 96},
		{Bits: 4, Rows: 32},
		{Bits: 3, Rows: 64},
		{Bits: 2, Rows: 32},
	}
	for _, n := range []int{8, 96, 288} {
		if err := exl2(fmt.Sprintf("all widths, %d columns", n), n, all6...); err != nil {
			return nil, err
		}
	}
	if err := exl2("wide", 2080, quant.Group{Bits: 5, Rows: 32}, quant.Group{Bits: 2, Rows: 64}); err != nil {
		return nil, err
	}
	for _, bits := range []int{2, 3, 4, 8} {
		for _, err := range []error{
			gptq("sequential", 128, 160, bits, 64, false, quant.ZeroPlusOne),
			gptq("act-order, wrapped zeros", 128, 160, bits, 32, true, quant.ZeroPlusOneWrap),
			gptq("act-order, uneven groups, v2", 160, 32, bits, 48, true, quant.ZeroAsStored),
			gptq("one group", 96, 64, bits, 96, false, quant.ZeroPlusOne),
		} {
			if err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}
