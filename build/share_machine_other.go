//go:build !linux

package build

import (
	"errors"
	"os"
)

// Compiles are shared on Linux.
type machine struct{}

func machineDir(bool) string { return "" }

func openMachine(string, *claim) (*machine, error) { return nil, errors.ErrUnsupported }

func (m *machine) begin(string) ([]claim, error) { return nil, nil }

func (m *machine) end(*claim) error { return nil }

func (m *machine) close() {}

func newRunDir() (string, *os.File, error) { return "", nil, errors.ErrUnsupported }
