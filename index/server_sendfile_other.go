//go:build !linux

package index

import "os"

// sendfile is there on Linux only.
type sendfile struct{}

func newSendfile([]byte) *sendfile { return nil }

func (*sendfile) take() *os.File { return nil }

func (*sendfile) put(*os.File) {}
