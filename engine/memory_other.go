//go:build !linux && !darwin && !windows

package engine

import "errors"

// MachineMemory is not known on this system.
func MachineMemory() (Memory, error) {
	return Memory{}, errors.New("not known on this system; set Options.MemoryBytes")
}
