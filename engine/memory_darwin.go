package engine

import "golang.org/x/sys/unix"

// MachineMemory returns the memory of this machine. The system does not say what is available, so
// that is taken to be all of it.
func MachineMemory() (Memory, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Memory{}, err
	}
	return Memory{TotalBytes: int64(total), AvailableBytes: int64(total), Source: "machine"}, nil
}
