package kernels

func native() []*Set { return []*Set{&neonSet} }

var neonSet = neon.set()

var neon = assembly{
	name: "neon",
	cols: 16,
	rows: []int{1},
	mulCodes: [9][9]func(y, x *float32, words *uint32, depth int, sums *float32){
		2: {1: mulCodes2x1NEON},
		3: {1: mulCodes3x1NEON},
		4: {1: mulCodes4x1NEON},
		5: {1: mulCodes5x1NEON},
		6: {1: mulCodes6x1NEON},
		8: {1: mulCodes8x1NEON},
	},
	unpack: [9]func(panel *float32, words *uint32, rows int){
		2: unpack2NEON, 3: unpack3NEON, 4: unpack4NEON, 5: unpack5NEON, 6: unpack6NEON, 8: unpack8NEON,
	},
	mulPanel: [panelRows + 1]func(y, a, panel *float32, depth int, scales *uint32, sums *float32){
		nil, mulPanel1NEON, mulPanel2NEON, mulPanel3NEON, mulPanel4NEON, mulPanel5NEON, mulPanel6NEON,
	},
	round:  roundNEON,
	encode: encodeNEON,
	decode: decodeNEON,
	read:   readNEON,
}
