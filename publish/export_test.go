package publish

import (
	"context"
	"time"
)

// RetryDo lets tests look at the pauses.
func RetryDo(ctx context.Context, r Retry, f func() error) error { return r.do(ctx, "try", f) }

// NewTestHTTPError is an answer of a server.
func NewTestHTTPError(status int, after time.Duration) error {
	return &httpError{status: status, after: after, text: "busy"}
}

// ParseRelease reads the books of a release that has these files, and writes them again.
func ParseRelease(text []byte, files []RemoteFile) ([]byte, error) {
	m, err := parseManifest(text)
	if err != nil {
		return nil, err
	}
	return m.next(m.join("v1", files))
}
