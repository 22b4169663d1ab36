//go:build !windows

package toolchain

func localRegistry(string, string) (string, bool) { return "", false }
