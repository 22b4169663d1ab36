package fatbin_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"testing"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
)

var directives = regexp.MustCompile(`(?m)^\.version (\d+)\.(\d+)\r?\n\.target (sm_\d+[af]?)`)

// checkPayload unpacks an entry and holds its header against what is inside.
func checkPayload(t *testing.T, r io.ReaderAt, e fatbin.Entry) {
	t.Helper()
	data, err := e.Payload(r)
	if e.Kind == fatbin.LTOIR && errors.Is(err, fatbin.ErrNotSupported) {
		return // obfuscated
	}
	if err != nil {
		t.Errorf("%v %s: %v", e.Kind, e.Target(), err)
		return
	}
	if int64(len(data)) != e.RawSize {
		t.Errorf("%v %s: %d bytes, header says %d", e.Kind, e.Target(), len(data), e.RawSize)
	}
	switch e.Kind {
	case fatbin.PTX:
		m := directives.FindSubmatch(data)
		if m == nil {
			t.Errorf("%s: no .version and .target in %.200q", e.Target(), data)
			return
		}
		got := fmt.Sprintf("%s %s %s", m[1], m[2], m[3])
		if want := fmt.Sprintf("%d %d sm_%d%s", e.Major, e.Minor, e.Arch, e.Suffix); got != want {
			t.Errorf("PTX is of %s, its header says %s", got, want)
		}
	case fatbin.SASS:
		c, err := fatbin.ReadCubin(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Errorf("%s: %v", e.Target(), err)
			return
		}
		if c.Target() != e.Target() {
			t.Errorf("cubin is for %s, its header says %s", c.Target(), e.Target())
		}
	}
}
