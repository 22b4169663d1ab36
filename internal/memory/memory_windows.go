package memory

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var globalMemoryStatusEx = windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")

// Read returns the memory of this machine.
func Read() (Info, error) {
	// MEMORYSTATUSEX
	status := struct {
		length, load                                      uint32
		total, available, totalPage, availPage, totalVirt uint64
		availableVirtual, availableExtendedVirtual        uint64
	}{}
	status.length = uint32(unsafe.Sizeof(status))
	if ok, _, err := globalMemoryStatusEx.Call(uintptr(unsafe.Pointer(&status))); ok == 0 {
		return Info{}, err
	}
	return Info{TotalBytes: int64(status.total), AvailableBytes: int64(status.available), Source: "machine"}, nil
}
