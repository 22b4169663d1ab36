//go:build !linux

package quant

func largePages([]uint32) {}
