package quant

import (
	"syscall"
	"unsafe"
)

// largePages asks for pages of 2 MiB for words that are about to be written. With pages of 4 KiB, a
// product of one row spends much of its time looking addresses up.
func largePages(words []uint32) {
	const page, advice = 2 << 20, 14 // MADV_HUGEPAGE
	data := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 4*len(words))
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(data))) % page
	if uintptr(len(data)) < skip+page {
		return
	}
	data = data[skip:]
	_ = syscall.Madvise(data[:len(data)/page*page], advice) // without it, products are only slower
}
