//go:build !linux

package build

// ulimitArgs is for engines on this machine, which are on Linux only.
func ulimitArgs() []string { return nil }

// ownedProcesses needs /proc. What is left of a killed run is not found here.
func ownedProcesses(string) []int { return nil }

func killOwned(int, string) error { return nil }
