//go:build !windows

package machine

func localRegistry(string, string) (string, bool) { return "", false }
