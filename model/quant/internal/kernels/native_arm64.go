package kernels

func native() []*Set { return []*Set{&neonSet} }

var neonSet = neon.set("neon", nil)

var neon = assembly{
	cols: 16,
	mulCodes: [9]func(y, x *float32, words *uint32, depth int, sums *float32){
		2: mulCodes2NEON, 3: mulCodes3NEON, 4: mulCodes4NEON, 5: mulCodes5NEON, 6: mulCodes6NEON, 8: mulCodes8NEON,
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
