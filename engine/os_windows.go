package engine

import (
	"os"

	"golang.org/x/sys/windows"
)

var diskFull = []error{windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL, windows.ERROR_DISK_QUOTA_EXCEEDED}

// removeEmpty removes a folder if it is empty.
func removeEmpty(dir string) error { return os.Remove(dir) }
