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
