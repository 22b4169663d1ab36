//go:build !linux

package launcher

import (
	"os"
	"os/exec"
)

// Builds run on Linux; elsewhere a launcher only has to compile.

func (l *launcher) replace(args []string) int {
	s, err := run(append([]string{l.tool.Path}, args...), l.env)
	if err != nil {
		return 126
	}
	return exitCode(s)
}

func dieTogether(*exec.Cmd) {}

func ended(s *os.ProcessState) (code int, signaled bool) { return s.ExitCode(), false }

func killed(*os.ProcessState) bool { return false }

func peakBytes(*os.ProcessState) int64 { return 0 }

func killOrphans() {}

const atWord, placedWord = "at", "placed"

// At needs Linux.
func At(_, _ string, argv []string) []string { return argv }

// PlaceOf needs Linux.
func PlaceOf(string, string) string { return "" }

func at(string, []string) int { return 126 }

func placedAt(string, []string) int { return 126 }
