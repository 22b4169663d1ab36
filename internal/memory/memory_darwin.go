package memory

import "golang.org/x/sys/unix"

// Read returns the memory of this machine. The system does not say what is available, so
// that is taken to be all of it.
func Read() (Info, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return Info{}, err
	}
	return Info{TotalBytes: int64(total), AvailableBytes: int64(total), Source: "machine"}, nil
}
