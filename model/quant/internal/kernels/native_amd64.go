package kernels

import (
	"golang.org/x/sys/cpu"
)

func native() []*Set {
	x := &cpu.X86
	if !x.HasAVX2 || !x.HasFMA || !x.HasF16C {
		return nil
	}
	sets := []*Set{&avx2Set}
	avx512 := x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL
	if avx512 {
		sets = append(sets, &avx512Set)
	}
	// Integers of 256 bits are faster than floating-point numbers of 512.
	sets = append(sets, &avx2IntSet)
	if x.HasAVXVNNI {
		sets = append(sets, &avxVNNISet)
	}
	if avx512 && x.HasAVX512VNNI {
		sets = append(sets, &avx512VNNISet)
	}
	return sets
}

var (
	avx2Set       = avx2.set("avx2", nil)
	avx512Set     = avx512.set("avx512", nil)
	avx2IntSet    = avx2.set("avx2-int", &intsAVX2)
	avxVNNISet    = avx2.set("avx-vnni", &intsAVXVNNI)
	avx512VNNISet = avx512.set("avx512-vnni", &intsVNNI)
)

var avx2 = assembly{
	cols: 32,
	mulCodes: [9]func(y, x *float32, words *uint32, depth int, sums *float32){
		2: mulCodes2AVX2, 3: mulCodes3AVX2, 4: mulCodes4AVX2, 5: mulCodes5AVX2, 6: mulCodes6AVX2, 8: mulCodes8AVX2,
	},
	unpack: [9]func(panel *float32, words *uint32, rows int){
		2: unpack2AVX2, 3: unpack3AVX2, 4: unpack4AVX2, 5: unpack5AVX2, 6: unpack6AVX2, 8: unpack8AVX2,
	},
	mulPanel: [panelRows + 1]func(y, a, panel *float32, depth int, scales *uint32, sums *float32){
		nil, mulPanel1AVX2, mulPanel2AVX2, mulPanel3AVX2, mulPanel4AVX2, mulPanel5AVX2, mulPanel6AVX2,
	},
	round:  roundAVX2,
	encode: encodeAVX2,
	decode: decodeAVX2,
	read:   readAVX2,
}

var avx512 = assembly{
	cols: 64,
	mulCodes: [9]func(y, x *float32, words *uint32, depth int, sums *float32){
		2: mulCodes2AVX512, 3: mulCodes3AVX512, 4: mulCodes4AVX512, 5: mulCodes5AVX512, 6: mulCodes6AVX512, 8: mulCodes8AVX512,
	},
	unpack: [9]func(panel *float32, words *uint32, rows int){
		2: unpack2AVX512, 3: unpack3AVX512, 4: unpack4AVX512, 5: unpack5AVX512, 6: unpack6AVX512, 8: unpack8AVX512,
	},
	mulPanel: [panelRows + 1]func(y, a, panel *float32, depth int, scales *uint32, sums *float32){
		nil, mulPanel1AVX512, mulPanel2AVX512, mulPanel3AVX512, mulPanel4AVX512, mulPanel5AVX512, mulPanel6AVX512,
	},
	round:  roundAVX512,
	encode: encodeAVX2,
	decode: decodeAVX2,
	read:   readAVX2,
}

var intsAVX2 = intAssembly{
	order:    &pairOrder,
	quantize: quantizeAVX2,
	rows:     []int{1, 2, 4},
	mul: [9][9]func(y *float32, x, words *uint32, depth, pieces, shifted int){
		2: {1: mulInts2x1AVX2, 2: mulInts2x2AVX2, 4: mulInts2x4AVX2},
		3: {1: mulInts3x1AVX2, 2: mulInts3x2AVX2, 4: mulInts3x4AVX2},
		4: {1: mulInts4x1AVX2, 2: mulInts4x2AVX2, 4: mulInts4x4AVX2},
		5: {1: mulInts5x1AVX2, 2: mulInts5x2AVX2, 4: mulInts5x4AVX2},
		6: {1: mulInts6x1AVX2, 2: mulInts6x2AVX2, 4: mulInts6x4AVX2},
		8: {1: mulInts8x1AVX2, 2: mulInts8x2AVX2, 4: mulInts8x4AVX2},
	},
}

var intsAVXVNNI = intAssembly{
	order:    &pairOrder,
	quantize: quantizeAVX2,
	rows:     []int{1, 4},
	mul: [9][9]func(y *float32, x, words *uint32, depth, pieces, shifted int){
		2: {1: mulInts2x1AVXVNNI, 4: mulInts2x4AVXVNNI},
		3: {1: mulInts3x1AVXVNNI, 4: mulInts3x4AVXVNNI},
		4: {1: mulInts4x1AVXVNNI, 4: mulInts4x4AVXVNNI},
		5: {1: mulInts5x1AVXVNNI, 4: mulInts5x4AVXVNNI},
		6: {1: mulInts6x1AVXVNNI, 4: mulInts6x4AVXVNNI},
		8: {1: mulInts8x1AVXVNNI, 4: mulInts8x4AVXVNNI},
	},
}

var intsVNNI = intAssembly{
	order:    &pairOrder,
	quantize: quantizeAVX2,
	rows:     []int{1, 2, 4, 8},
	mul: [9][9]func(y *float32, x, words *uint32, depth, pieces, shifted int){
		2: {1: mulInts2x1VNNI, 2: mulInts2x2VNNI, 4: mulInts2x4VNNI, 8: mulInts2x8VNNI},
		3: {1: mulInts3x1VNNI, 2: mulInts3x2VNNI, 4: mulInts3x4VNNI, 8: mulInts3x8VNNI},
		4: {1: mulInts4x1VNNI, 2: mulInts4x2VNNI, 4: mulInts4x4VNNI, 8: mulInts4x8VNNI},
		5: {1: mulInts5x1VNNI, 2: mulInts5x2VNNI, 4: mulInts5x4VNNI, 8: mulInts5x8VNNI},
		6: {1: mulInts6x1VNNI, 2: mulInts6x2VNNI, 4: mulInts6x4VNNI, 8: mulInts6x8VNNI},
		8: {1: mulInts8x1VNNI, 2: mulInts8x2VNNI, 4: mulInts8x4VNNI, 8: mulInts8x8VNNI},
	},
}
