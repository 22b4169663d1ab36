package memory

import "os"

// Read returns the memory of this machine or of the control group that this process is in,
// whichever has less.
func Read() (Info, error) { return ReadLinux(os.ReadFile) }
