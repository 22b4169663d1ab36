//go:build !windows

package machine

import "os/exec"

func localRegistry(string, string) (string, bool) { return "", false }

func rawShell(*exec.Cmd) {}

// LongPaths reports whether programs of this machine take paths of any length.
func LongPaths() bool { return true }
