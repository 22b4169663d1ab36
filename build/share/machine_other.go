//go:build !linux

package share

import (
	"errors"
	"os"
)

// Compiles are shared on Linux.
type sharedMachine struct{}

func machineDir(bool) string { return "" }

func openMachine(string, *claim) (*sharedMachine, error) { return nil, errors.ErrUnsupported }

func (m *sharedMachine) begin(string) ([]claim, error) { return nil, nil }

func (m *sharedMachine) end(*claim) error { return nil }

func (m *sharedMachine) close() {}

func newRunDir() (string, *os.File, error) { return "", nil, errors.ErrUnsupported }
