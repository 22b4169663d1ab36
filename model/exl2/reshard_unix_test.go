//go:build unix

package exl2

import (
	"os"
	"syscall"
	"testing"
)

func inodeOf(t testing.TB, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}
