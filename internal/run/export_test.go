package run

import (
	"bytes"
)

// RedactStream writes the parts to a stream one by one and returns what comes out.
func RedactStream(secrets, parts []string) string {
	var buf bytes.Buffer
	out := newOutput(&Cmd{Stdout: &buf, Redact: secrets})
	for _, part := range parts {
		_, _ = out.stdout.Write([]byte(part))
	}
	_ = out.flush()
	return buf.String()
}
