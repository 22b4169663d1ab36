//go:build !unix

package measure

import "os"

// PeakMemory knows nothing on this system.
func PeakMemory(*os.ProcessState) int64 { return 0 }
