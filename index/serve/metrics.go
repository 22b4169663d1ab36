package serve

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kiln-build/kiln/index"
)

// handlerKind is the part of a server that answered, for metrics.
type handlerKind int

const (
	handlerOther handlerKind = iota
	handlerPage
	handlerFile
	handlerUpload
	handlerWeb
	handlerHealth
	handlerCount
)

var handlerNames = [handlerCount]string{"other", "page", "file", "upload", "web", "health"}

// durationBounds are the upper bounds of the buckets of durations, in seconds.
var durationBounds = [...]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 300}

// serverMetrics counts what a server does. It is written out by hand: the format is a few lines,
// and the libraries for it bring more than they save.
type serverMetrics struct {
	requests [handlerCount][6]atomic.Int64 // by the first digit of the status
	buckets  [handlerCount][len(durationBounds) + 1]atomic.Int64
	nanos    [handlerCount]atomic.Int64
	bytes    [handlerCount]atomic.Int64

	uploadsAdded, uploadsUnchanged, uploadsRefused atomic.Int64
	uploadBytes, authFailures                      atomic.Int64
}

func (m *serverMetrics) observe(rec *recorder, took time.Duration) {
	if class := rec.code() / 100; class >= 1 && class <= 5 {
		m.requests[rec.handler][class].Add(1)
	}
	bucket, _ := slices.BinarySearch(durationBounds[:], took.Seconds())
	m.buckets[rec.handler][bucket].Add(1)
	m.nanos[rec.handler].Add(int64(took))
	m.bytes[rec.handler].Add(rec.bytes)
}

// WriteMetrics writes the metrics of the server and of its process in the text format of
// Prometheus.
func (s *Server) WriteMetrics(w io.Writer) {
	out := bufio.NewWriter(w)
	defer out.Flush() //nolint:errcheck // the client went away
	family := func(name, kind, help string) {
		fmt.Fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	single := func(name, kind, help string, value float64) {
		family(name, kind, help)
		fmt.Fprintf(out, "%s %v\n", name, value)
	}
	m := &s.metrics
	family("kiln_http_requests_total", "counter", "Requests answered, by part of the server and class of status.")
	for k, name := range handlerNames {
		for class := 1; class < 6; class++ {
			fmt.Fprintf(out, "kiln_http_requests_total{handler=%q,code=\"%dxx\"} %d\n", name, class, m.requests[k][class].Load())
		}
	}
	family("kiln_http_request_duration_seconds", "histogram", "Time until the answer was written.")
	for k, name := range handlerNames {
		count := int64(0)
		for i := range m.buckets[k] {
			count += m.buckets[k][i].Load()
			bound := "+Inf"
			if i < len(durationBounds) {
				bound = strconv.FormatFloat(durationBounds[i], 'g', -1, 64)
			}
			fmt.Fprintf(out, "kiln_http_request_duration_seconds_bucket{handler=%q,le=%q} %d\n", name, bound, count)
		}
		fmt.Fprintf(out, "kiln_http_request_duration_seconds_sum{handler=%q} %v\n", name, time.Duration(m.nanos[k].Load()).Seconds())
		fmt.Fprintf(out, "kiln_http_request_duration_seconds_count{handler=%q} %d\n", name, count)
	}
	family("kiln_http_response_bytes_total", "counter", "Bytes of the bodies of answers.")
	for k, name := range handlerNames {
		fmt.Fprintf(out, "kiln_http_response_bytes_total{handler=%q} %d\n", name, m.bytes[k].Load())
	}
	family("kiln_uploads_total", "counter", "Uploads, by what came of them.")
	fmt.Fprintf(out, "kiln_uploads_total{result=\"added\"} %d\n", m.uploadsAdded.Load())
	fmt.Fprintf(out, "kiln_uploads_total{result=\"unchanged\"} %d\n", m.uploadsUnchanged.Load())
	fmt.Fprintf(out, "kiln_uploads_total{result=\"refused\"} %d\n", m.uploadsRefused.Load())
	single("kiln_upload_bytes_total", "counter", "Bytes of files received.", float64(m.uploadBytes.Load()))
	single("kiln_auth_failures_total", "counter", "Requests with a wrong token.", float64(m.authFailures.Load()))
	projects, files := s.Catalog().Len()
	single("kiln_index_projects", "gauge", "Projects in the index.", float64(projects))
	single("kiln_index_files", "gauge", "Files in the index.", float64(files))
	single("kiln_index_bytes", "gauge", "Bytes of the files that the index has itself.", float64(catalogBytes(s.Catalog())))
	s.gate.mu.Lock()
	connections := len(s.gate.places)
	s.gate.mu.Unlock()
	single("kiln_connections", "gauge", "Connections of clients.", float64(connections))
	single("kiln_page_cache_bytes", "gauge", "Bytes of compressed pages in memory.", float64(s.current.Load().size.Load()))
	single("go_goroutines", "gauge", "Goroutines of the process.", float64(runtime.NumGoroutine()))
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	single("go_memstats_heap_inuse_bytes", "gauge", "Bytes of the heap in use.", float64(memory.HeapInuse))
	single("go_memstats_sys_bytes", "gauge", "Bytes of memory obtained from the system.", float64(memory.Sys))
	single("process_start_time_seconds", "gauge", "When the server started, in seconds since 1970.", float64(s.started.UnixMilli())/1000)
}

// recorder is a response writer that knows what was answered. It passes files on to the
// kernel in pieces and gives the client a time for each.
type recorder struct {
	http.ResponseWriter
	status  int
	bytes   int64
	handler handlerKind
	token   string // ID of the token that was used
	limited *Token // what a list shows, if not everything
	private bool   // for this client alone, so no shared cache may keep it
	begin   time.Time

	stall    time.Duration // how long the client may take nothing
	extended time.Time     // when it was last given more time
}

// Unwrap is for [http.ResponseController].
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// WriteHeader remembers the status.
func (w *recorder) WriteHeader(code int) {
	w.restrict()
	if w.status == 0 && code >= 200 {
		w.status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// restrict takes back what handlers say of shared caches. It is called before the header is sent.
func (w *recorder) restrict() {
	if !w.private {
		return
	}
	h := w.Header()
	if age, ok := strings.CutPrefix(h.Get("Cache-Control"), "public"); ok {
		h.Set("Cache-Control", "private"+age)
	}
	h.Add("Vary", "Authorization")
	w.private = false
}

// Write counts, and gives the client more time.
func (w *recorder) Write(p []byte) (int, error) {
	w.restrict()
	if now := time.Now(); now.Sub(w.extended) > w.stall/16 {
		w.extended = now
		_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(now.Add(w.stall)) // not every writer has deadlines
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// sendPage sends a page over the connection it was announced to. It reports whether it was tried.
func (w *recorder) sendPage(file *sendfile) bool {
	to, ok := w.ResponseWriter.(interface {
		io.ReaderFrom
		http.Flusher
	})
	if !ok {
		return false
	}
	w.restrict()
	to.Flush()                                   // the head, as otherwise a part of the page is copied to look for its type
	n, _ := to.ReadFrom(&pageReader{file: file}) // the client went away
	w.bytes += n
	return true
}

// pieceBytes is what a client must take within the time of a stall.
const pieceBytes = 1 << 20

// ReadFrom sends a file in pieces, so that a client may take as long as it wants but not stop.
// Each piece goes from the page cache to the network without passing through this process.
func (w *recorder) ReadFrom(src io.Reader) (int64, error) {
	limited, ok := src.(*io.LimitedReader)
	rf, ok2 := w.ResponseWriter.(io.ReaderFrom)
	if !ok || !ok2 {
		return io.Copy(struct{ io.Writer }{w}, src)
	}
	w.restrict()
	control := http.NewResponseController(w.ResponseWriter)
	var sent int64
	for limited.N > 0 {
		_ = control.SetWriteDeadline(time.Now().Add(w.stall)) // not every writer has deadlines
		piece := &io.LimitedReader{R: limited.R, N: min(limited.N, pieceBytes)}
		n, err := rf.ReadFrom(piece)
		sent += n
		w.bytes += n
		limited.N -= n
		if err != nil {
			return sent, err
		}
		if n == 0 {
			break // the file is shorter than it was
		}
	}
	return sent, nil
}

// catalogBytes is the size of all hosted files.
func catalogBytes(c *index.Catalog) int64 {
	var n int64
	for p := range c.Projects() {
		n += projectBytes(p)
	}
	return n
}

func projectBytes(p *index.Project) int64 {
	var n int64
	for i := range p.Files {
		if p.Files[i].Base == "" {
			n += p.Files[i].Size
		}
	}
	return n
}

// unescapeQuery decodes a value of a query; one that cannot be decoded is no known value.
func unescapeQuery(s string) string {
	v, err := url.QueryUnescape(s)
	if err != nil {
		return "\x00"
	}
	return v
}
