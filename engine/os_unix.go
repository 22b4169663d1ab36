//go:build unix

package engine

import "golang.org/x/sys/unix"

var diskFull = []error{unix.ENOSPC, unix.EDQUOT}

// removeEmpty removes a folder if it is empty. os.Remove would try to remove a file first, which is
// most of its time.
func removeEmpty(dir string) error { return unix.Rmdir(dir) }
