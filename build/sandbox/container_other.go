//go:build !linux

package sandbox

// ulimitArgs is for runtimes on this machine, which are on Linux only.
func ulimitArgs() []string { return nil }

// markedProcesses needs /proc. What is left of a killed run is not found here.
func markedProcesses(string) []int { return nil }

func killMarked(int, string) error { return nil }
