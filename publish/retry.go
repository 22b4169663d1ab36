package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/google/go-github/v92/github"
	"github.com/minio/minio-go/v7"
)

// Retry says how often and how patiently a target tries again what may work the next time:
// broken connections, timeouts, answers 408, 429 and 5xx, and limits on the rate of requests.
type Retry struct {
	// Tries is the number of attempts. Default 6.
	Tries int
	// Wait is the first pause; each is twice the one before, up to a minute. Default 500 ms. What
	// the server asks for in Retry-After is kept.
	Wait time.Duration
	// MaxWait is the longest pause that a server may ask for. Default 15 minutes.
	MaxWait time.Duration
	// Limited is the pause after an answer that says that there were too many requests, and not how
	// long to wait. Default a minute.
	Limited time.Duration
	// Log gets a line for every further attempt; nil discards it.
	Log *slog.Logger
}

// do calls f until it succeeds, fails for good, or there were enough attempts.
func (r *Retry) do(ctx context.Context, what string, f func() error) error {
	tries, wait, most := r.Tries, r.Wait, r.MaxWait
	if tries == 0 {
		tries = 6
	}
	if wait == 0 {
		wait = 500 * time.Millisecond
	}
	if most == 0 {
		most = 15 * time.Minute
	}
	limited := r.Limited
	if limited == 0 {
		limited = time.Minute
	}
	for try := 1; ; try++ {
		err := f()
		if err == nil {
			return nil
		}
		again, after := transient(err)
		if after < 0 {
			after = limited
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case !again:
			return fmt.Errorf("%s: %w", what, err)
		case try >= tries:
			return fmt.Errorf("%s: %w (after %d attempts)", what, err, try)
		case after > most:
			return fmt.Errorf("%s: %w: the server asks to wait for %s", what, err, after)
		}
		pause := wait/2 + rand.N(wait)
		if wait = min(2*wait, time.Minute); after > 0 {
			pause = after
		}
		if r.Log != nil {
			r.Log.Warn("trying again", "what", what, "error", err, "attempt", try+1, "wait", pause.Round(time.Millisecond))
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// Get reads what an address has; read may be called again, for another attempt.
func (r *Retry) Get(ctx context.Context, client *http.Client, address string, read func(io.Reader) error) error {
	return r.do(ctx, "fetch "+address, func() error {
		resp, err := request(ctx, client, http.MethodGet, address)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return read(resp.Body)
	})
}

// request makes a request without a body. An answer other than 200 is an error.
func request(ctx context.Context, client *http.Client, method, address string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, newHTTPError(resp)
	}
	return resp, nil
}

// httpError is an answer other than success.
type httpError struct {
	status int
	after  time.Duration
	text   string
}

func (e *httpError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.status, e.text) }

// newHTTPError reads an answer other than success.
func newHTTPError(resp *http.Response) *httpError {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 2000)) // what there is
	return &httpError{status: resp.StatusCode, after: retryAfter(resp.Header), text: string(text)}
}

// retryAfter reads the header of that name, in seconds or as a date.
func retryAfter(h http.Header) time.Duration {
	s := h.Get("Retry-After")
	if n, err := strconv.Atoi(s); err == nil && n >= 0 {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(time.Until(t), 0)
	}
	return 0
}

// errAgain marks an error that a second attempt may cure.
type errAgain struct{ error }

func (e errAgain) Unwrap() error { return e.error }

// Again marks an error that a second attempt may cure, such as bytes that changed on the way.
func Again(err error) error { return errAgain{err} }

// brokenObjects are what stores say of bytes that were cut off or changed on the way.
var brokenObjects = []string{"RequestTimeout", "IncompleteBody", "SlowDown", "BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "SignatureDoesNotMatch"}

// transient says whether a second attempt may succeed, and how long the server wants to be left
// alone: -1 if it does, and does not say how long.
func transient(err error) (again bool, after time.Duration) {
	var (
		own      *httpError
		limit    *github.RateLimitError
		abuse    *github.AbuseRateLimitError
		answer   *github.ErrorResponse
		object   minio.ErrorResponse
		netError net.Error
		urlError *url.Error
		cut      *json.SyntaxError
	)
	status := func(n int) bool { return n == http.StatusRequestTimeout || n == http.StatusTooManyRequests || n >= 500 }
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, ErrExists):
		return false, 0
	case errors.As(err, &errAgain{}):
		return true, 0
	case errors.As(err, &own):
		return status(own.status), own.after
	case errors.As(err, &abuse):
		if abuse.RetryAfter != nil {
			return true, max(*abuse.RetryAfter, 0)
		}
		return true, -1
	case errors.As(err, &limit):
		return true, max(time.Until(limit.Rate.Reset.Time), 0)
	case errors.As(err, &answer) && answer.Response != nil:
		return status(answer.Response.StatusCode), retryAfter(answer.Response.Header)
	case errors.As(err, &object):
		return status(object.StatusCode) || slices.Contains(brokenObjects, object.Code), 0
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNABORTED):
		return true, 0
	case errors.As(err, &cut): // an answer that was cut off
		return true, 0
	case errors.As(err, &netError) && netError.Timeout(), errors.As(err, &urlError):
		return true, 0
	}
	return false, 0
}
