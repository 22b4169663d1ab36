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
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL {
		sets = append(sets, &avx512Set)
	}
	return sets
}

var avx2Set = avx2.set()

var avx2 = assembly{
	name: "avx2",
	cols: 32,
	rows: []int{1},
	mulCodes: [9][9]func(y, x *float32, words *uint32, depth int, sums *float32){
		2: {1: mulCodes2x1AVX2},
		3: {1: mulCodes3x1AVX2},
		4: {1: mulCodes4x1AVX2},
		5: {1: mulCodes5x1AVX2},
		6: {1: mulCodes6x1AVX2},
		8: {1: mulCodes8x1AVX2},
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

var avx512Set = avx512.set()

var avx512 = assembly{
	name: "avx512",
	cols: 64,
	rows: []int{1, 2, 4, 8},
	mulCodes: [9][9]func(y, x *float32, words *uint32, depth int, sums *float32){
		2: {1: mulCodes2x1AVX512, 2: mulCodes2x2AVX512, 4: mulCodes2x4AVX512, 8: mulCodes2x8AVX512},
		3: {1: mulCodes3x1AVX512, 2: mulCodes3x2AVX512, 4: mulCodes3x4AVX512, 8: mulCodes3x8AVX512},
		4: {1: mulCodes4x1AVX512, 2: mulCodes4x2AVX512, 4: mulCodes4x4AVX512, 8: mulCodes4x8AVX512},
		5: {1: mulCodes5x1AVX512, 2: mulCodes5x2AVX512, 4: mulCodes5x4AVX512, 8: mulCodes5x8AVX512},
		6: {1: mulCodes6x1AVX512, 2: mulCodes6x2AVX512, 4: mulCodes6x4AVX512, 8: mulCodes6x8AVX512},
		8: {1: mulCodes8x1AVX512, 2: mulCodes8x2AVX512, 4: mulCodes8x4AVX512, 8: mulCodes8x8AVX512},
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
