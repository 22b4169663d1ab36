//go:build !linux && !darwin && !windows

package memory

import "errors"

// Read is not known on this system.
func Read() (Info, error) {
	return Info{}, errors.New("the memory of this system is not known")
}
