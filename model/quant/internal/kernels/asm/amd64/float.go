package main

import "math"

func float(f float32) uint32 { return math.Float32bits(f) }
