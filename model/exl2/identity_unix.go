//go:build unix

package exl2

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fileID changes when a file is replaced or written to, also where its size and time of
// modification were put back: programs can set those, but not the number of the file and the time
// of its last change.
func fileID(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "" // opening it says why
	}
	return fmt.Sprintf("%d:%d.%09d", st.Ino, int64(st.Ctim.Sec), int64(st.Ctim.Nsec))
}
