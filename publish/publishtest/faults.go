package publishtest

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
)

// Fault is something that goes wrong with one request.
type Fault struct {
	// Kind is
	//
	//	""        nothing
	//	"refuse"  the connection is reset before anything is read
	//	"body"    it is reset when At bytes of the body have arrived; the server sees a cut body
	//	"answer"  the request is carried out; the connection is reset after At bytes of the answer
	//	"short"   only At bytes of the body reach the server, which does not notice
	//	"flip"    the byte At of the body is changed on the way
	//	"status"  the request is not carried out; the answer is Status, with After as Retry-After
	Kind   string
	At     int64
	Status int
	After  int // seconds; negative is no header
}

// Faults decides what goes wrong. A nil *Faults lets everything pass.
type Faults struct {
	mu   sync.Mutex
	next func(r *http.Request) Fault
	n    int
}

// Set replaces what decides; nil lets everything pass.
func (f *Faults) Set(next func(r *http.Request) Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = next
}

// Count returns how many faults there were.
func (f *Faults) Count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

func (f *Faults) choose(r *http.Request) Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == nil {
		return Fault{}
	}
	fault := f.next(r)
	if fault.Kind != "" {
		f.n++
	}
	return fault
}

// Once lets the first request that match says true for have the fault.
func Once(match func(*http.Request) bool, fault Fault) func(*http.Request) Fault {
	done := false
	return func(r *http.Request) Fault {
		if done || !match(r) {
			return Fault{}
		}
		done = true
		return fault
	}
}

// Random lets about one of every n requests have a fault of any kind.
func Random(rng *rand.Rand, n int) func(*http.Request) Fault {
	return func(r *http.Request) Fault {
		if rng.IntN(n) != 0 {
			return Fault{}
		}
		at := int64(0)
		if size := r.ContentLength; size > 0 {
			// The classes of places: begin, inside, just before the end, the end.
			at = []int64{0, 1, rng.Int64N(size), size / 2, size - 1, size}[rng.IntN(6)]
		}
		kinds := []string{"refuse", "answer", "status"}
		if r.ContentLength > 0 {
			kinds = append(kinds, "body", "body", "short", "flip")
		}
		fault := Fault{Kind: kinds[rng.IntN(len(kinds))], At: at, After: -1}
		switch fault.Kind {
		case "status":
			fault.Status = []int{500, 502, 503, 429}[rng.IntN(4)]
			fault.After = rng.IntN(2) - 1
		case "answer":
			fault.At = int64(rng.IntN(200))
		case "flip", "short":
			fault.At = min(at, max(r.ContentLength-1, 0))
		}
		return fault
	}
}

// Wrap puts the faults in front of a server.
func (f *Faults) Wrap(next http.Handler) http.Handler {
	if f == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch fault := f.choose(r); fault.Kind {
		case "":
			next.ServeHTTP(w, r)
		case "refuse":
			reset(w, nil)
		case "body":
			r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, fault.At), broken{}))
			next.ServeHTTP(httptest.NewRecorder(), r)
			reset(w, nil)
		case "answer":
			rec := httptest.NewRecorder()
			next.ServeHTTP(rec, r)
			var b bytes.Buffer
			_ = rec.Result().Write(&b)
			reset(w, b.Bytes()[:min(int64(b.Len()), fault.At)])
		case "short":
			data, _ := io.ReadAll(r.Body) // what came
			data = data[:min(int64(len(data)), fault.At)]
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
			r.Header.Set("Content-Length", strconv.Itoa(len(data)))
			next.ServeHTTP(w, r)
		case "flip":
			data, _ := io.ReadAll(r.Body) // what came
			if fault.At < int64(len(data)) {
				data[fault.At] ^= 0x20
			}
			r.Body = io.NopCloser(bytes.NewReader(data))
			next.ServeHTTP(w, r)
		case "status":
			_, _ = io.Copy(io.Discard, r.Body)
			if fault.After >= 0 {
				w.Header().Set("Retry-After", strconv.Itoa(fault.After))
			}
			w.Header().Set("Content-Type", "application/json")
			message := http.StatusText(fault.Status)
			if fault.Status == http.StatusForbidden || fault.Status == http.StatusTooManyRequests {
				message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
			}
			w.WriteHeader(fault.Status)
			fmt.Fprintf(w, `{"message": %q, "documentation_url": "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`, message)
		default:
			panic("no fault " + fault.Kind)
		}
	})
}

// Proxy is a handler that passes requests on to a real server.
func Proxy(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is part of what clients sign
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
}

// reset writes the beginning of an answer and breaks the connection, so that the other side sees a
// reset.
func reset(w http.ResponseWriter, answer []byte) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = conn.Write(answer)
	if tcp, ok := conn.(*net.TCPConn); ok && len(answer) == 0 {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
