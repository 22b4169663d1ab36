//go:build unix && !linux

package run_test

var helpers = map[string]func() error{}
