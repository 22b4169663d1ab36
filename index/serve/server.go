// Package serve is a server for an index: the simple API of every view, the files, and uploads in
// the legacy format of PyPI with tokens that are bound to projects. It never asks another index for
// anything.
package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/wheel"
)

// Options are how a [Server] works. The zero value serves without uploads.
type Options struct {
	// Tokens decide which clients may upload. Without them none may.
	Tokens *Tokens
	// ReadOnly refuses all uploads.
	ReadOnly bool
	// InsecureUploads accepts uploads over plain HTTP from other machines, on which a token
	// can be read by anyone on the way. It is for servers behind a proxy that does TLS.
	InsecureUploads bool

	// MaxFileBytes is the largest file to accept. Default 4 GiB.
	MaxFileBytes int64
	// MaxProjectBytes and MaxTotalBytes bound what uploads may make of a project and of the
	// whole index. Default: no bound.
	MaxProjectBytes, MaxTotalBytes int64
	// MaxUploads is how many uploads may run at once. Default 16.
	MaxUploads int

	// MaxConnections is how many connections there may be at once, as far as the system has
	// descriptors for them. Default 2048.
	MaxConnections int
	// MaxPerAddress is how many connections, and requests under way, one address may have. An IPv6
	// network of 64 bits counts as one address. Default 256.
	MaxPerAddress int
	// TrustedProxies are the addresses of proxies in front of the server: the client is the one
	// that they name in X-Forwarded-For.
	TrustedProxies []netip.Prefix

	// Private answers nothing but /healthz without a token. A token for some projects reads these;
	// lists and pages about the whole index need one for all.
	Private bool
	// PageAge is how long clients may use a page without asking again. Default one minute.
	PageAge time.Duration
	// PageCacheBytes is how much memory pages may take. Default 64 MiB.
	PageCacheBytes int64
	// Poll is how often to look for changes that other processes made. Default one second.
	Poll time.Duration
	// Stall is how long a client may neither take nor send a piece of a file. Default two
	// minutes.
	Stall time.Duration

	// Pages makes the handler of everything that is not part of the API from a state of the
	// index. It is called once for each state. Nil has no such pages.
	Pages func(*index.Catalog) http.Handler

	// Log gets what an operator should know; nil discards it.
	Log *slog.Logger
	// AccessLog gets one record a request; nil discards them.
	AccessLog *slog.Logger
}

// Store is the index that a server answers for: an [index.Store], or an [index.Folder], to which
// nothing can be uploaded. Catalog returns the same value until something changes.
type Store interface {
	Catalog(ctx context.Context) (*index.Catalog, error)
	OpenFile(f *index.File, suffix string) (io.ReadSeekCloser, error)
}

// Server answers requests for an index: the simple API of every view, the files, uploads in the
// legacy format of PyPI, and whatever [Options.Pages] adds. It never asks another
// index for anything.
//
// Readers work on an immutable snapshot, so that they never wait for a writer.
type Server struct {
	store   Store
	opts    Options
	metrics serverMetrics
	uploads *uploader
	fails   failures
	started time.Time
	pageAge []string // header of pages

	gate    *gate
	renders chan struct{} // slots of Renders

	current atomic.Pointer[snapshot]
	reload  sync.Mutex // held while the next snapshot is made
}

// New makes a server for the index in store and reads its state.
func New(ctx context.Context, store Store, opts Options) (*Server, error) {
	if opts.Private && opts.Tokens == nil {
		return nil, errors.New("a private server needs tokens to compare with")
	}
	if opts.MaxFileBytes == 0 {
		opts.MaxFileBytes = 4 << 30
	}
	if opts.MaxUploads == 0 {
		opts.MaxUploads = 16
	}
	if opts.MaxConnections == 0 {
		opts.MaxConnections = 2048
	}
	if opts.MaxPerAddress == 0 {
		opts.MaxPerAddress = 256
	}
	if opts.PageAge == 0 {
		opts.PageAge = time.Minute
	}
	if opts.PageCacheBytes == 0 {
		opts.PageCacheBytes = 64 << 20
	}
	if opts.Poll == 0 {
		opts.Poll = time.Second
	}
	if opts.Stall == 0 {
		opts.Stall = 2 * time.Minute
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{store: store, opts: opts, started: time.Now(), renders: make(chan struct{}, Renders()), gate: newGate(&opts)}
	s.pageAge = []string{"public, max-age=" + strconv.Itoa(int(opts.PageAge.Seconds()))}
	if err := s.Reload(ctx); err != nil {
		return nil, err
	}
	if hosted, ok := store.(*index.Store); ok && opts.Tokens != nil && !opts.ReadOnly {
		var err error
		if s.uploads, err = newUploader(s, hosted); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Close removes what unfinished uploads left. Requests must have ended.
func (s *Server) Close() error {
	if s.uploads == nil {
		return nil
	}
	return s.uploads.close()
}

// Catalog returns the state that is being served.
func (s *Server) Catalog() *index.Catalog { return s.current.Load().catalog }

// Reload looks whether the index has changed and if so serves the new state.
func (s *Server) Reload(ctx context.Context) error {
	s.reload.Lock()
	defer s.reload.Unlock()
	catalog, err := s.store.Catalog(ctx)
	if err != nil {
		return fmt.Errorf("read index: %w", err)
	}
	old := s.current.Load()
	if old != nil && old.catalog == catalog {
		return nil
	}
	next := newSnapshot(catalog, old, s.opts)
	next.renders = s.renders
	s.current.Store(next)
	return nil
}

// Run serves changes that other processes make to the index soon after they were made. It
// returns when ctx ends.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(s.opts.Poll)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.Reload(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			s.opts.Log.Error("index is not readable; the last state is served", "error", err)
		}
		failing = err != nil
	}
}

// HTTPServer returns an HTTP server for s with the limits that keep slow and hostile clients from
// binding resources. The caller sets its address and starts and stops it. Without TLS it is faster
// on a listener of [Server.Listener].
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 100},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if tcp, ok := c.(interface{ SetWriteBuffer(bytes int) error }); ok {
				_ = tcp.SetWriteBuffer(sendBuffer) // only for speed
			}
			return withPlace(connContext(ctx, c), c)
		},
		ErrorLog: slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
	}
}

// Renders is how many pages are being made at once: few, so that processors are left for requests
// that need none.
func Renders() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// sendBuffer is what the system takes of a response before the client does: most pages as a whole,
// so that they are written in one go.
const sendBuffer = 256 << 10

// snapshot is one state of the index with the pages that were asked for.
type snapshot struct {
	catalog  *index.Catalog
	projects map[string]*projectPages
	lists    pageCache // project lists and catalog.json
	web      http.Handler
	size     atomic.Int64 // bytes of pages in memory
	renders  chan struct{}
}

// projectPages is what was made of a project. It lives as long as the project does not change,
// across snapshots.
type projectPages struct {
	project *index.Project
	pages   pageCache
	files   func() map[string]*index.File // by name
}

func newSnapshot(catalog *index.Catalog, old *snapshot, opts Options) *snapshot {
	sn := &snapshot{catalog: catalog, projects: map[string]*projectPages{}}
	// Which files a view shows depends on the project and on the configuration.
	reusable := old != nil && sameConfig(old.catalog.Config(), catalog.Config())
	if reusable {
		sn.size.Store(old.size.Load() - old.lists.size.Load())
	}
	for p := range catalog.Projects() {
		if reusable {
			if pp := old.projects[p.Name]; pp != nil && pp.project == p {
				sn.projects[p.Name] = pp
				continue
			}
			if pp := old.projects[p.Name]; pp != nil {
				sn.size.Add(-pp.pages.size.Load())
			}
		}
		sn.projects[p.Name] = &projectPages{project: p, files: sync.OnceValue(func() map[string]*index.File {
			files := make(map[string]*index.File, len(p.Files))
			for i := range p.Files {
				files[p.Files[i].Filename] = &p.Files[i]
			}
			return files
		})}
	}
	if opts.Pages != nil {
		sn.web = opts.Pages(catalog)
	}
	return sn
}

func sameConfig(a, b index.Config) bool {
	return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

// page is the compressed form of a page with its headers. The plain form is unpacked once one of
// the few clients that want it asks for it.
type page struct {
	once    sync.Once
	missing bool
	gz      []byte
	file    *sendfile // gz once more, if it is large
	plain   int       // bytes
	etag    string

	unpacked   sync.Once
	plainBytes []byte    // of a small page
	plainFile  *sendfile // of a large one, where there are such files
	// Header values, made once: a slice a request would cost more than the request.
	lengthGzip, lengthPlain []string
	etags                   [repCount][2][]string // by representation and coding
}

type pageKey struct {
	view    string // path or alias
	project string // empty for the list
	format  index.Format
}

// pageCache is a set of pages, each made by the first request for it. There are few, so that the
// map is copied for each more, and readers need no lock.
type pageCache struct {
	pages  atomic.Pointer[map[pageKey]*page]
	change sync.Mutex
	size   atomic.Int64
}

func (c *pageCache) load(key pageKey) *page {
	if m := c.pages.Load(); m != nil {
		return (*m)[key]
	}
	return nil
}

// loadOrNew returns the page of a key, which may have to be made.
func (c *pageCache) loadOrNew(key pageKey) *page {
	c.change.Lock()
	defer c.change.Unlock()
	if p := c.load(key); p != nil {
		return p
	}
	pages := map[pageKey]*page{}
	if m := c.pages.Load(); m != nil {
		pages = maps.Clone(*m)
	}
	p := new(page)
	pages[key] = p
	c.pages.Store(&pages)
	return p
}

// drop forgets a page, if it is still that of the key.
func (c *pageCache) drop(key pageKey, p *page) {
	c.change.Lock()
	defer c.change.Unlock()
	if c.load(key) != p {
		return
	}
	pages := maps.Clone(*c.pages.Load())
	delete(pages, key)
	c.pages.Store(&pages)
}

// page returns a page of a cache, making it if needed. Others who ask for the same page wait
// for it.
func (sn *snapshot) page(c *pageCache, key pageKey, limit int64, render func() ([]byte, bool)) *page {
	p := c.load(key)
	if p == nil {
		p = c.loadOrNew(key)
	}
	p.once.Do(func() {
		sn.renders <- struct{}{}
		p.make(render)
		<-sn.renders
		if p.missing {
			c.drop(key, p) // names of projects that a view does not have are not collected
			return
		}
		size := int64(len(p.gz))
		if p.file != nil {
			size *= 2
		}
		c.size.Add(size)
		if sn.size.Add(size) > limit {
			sn.forget() // rare: starting over is simpler than knowing what was used last
		}
	})
	return p
}

// forget drops all pages from memory.
func (sn *snapshot) forget() {
	drop := func(c *pageCache) {
		c.change.Lock()
		defer c.change.Unlock()
		c.pages.Store(nil)
		sn.size.Add(-c.size.Swap(0))
	}
	drop(&sn.lists)
	for _, pp := range sn.projects {
		drop(&pp.pages)
	}
}

func (p *page) make(render func() ([]byte, bool)) {
	body, ok := render()
	if !ok {
		p.missing = true
		return
	}
	p.gz = compress(body)
	p.file = newSendfile(p.gz)
	p.plain = len(body)
	sum := sha256.Sum256(body)
	p.etag = hex.EncodeToString(sum[:16])
	p.lengthGzip, p.lengthPlain = []string{strconv.Itoa(len(p.gz))}, []string{strconv.Itoa(p.plain)}
	for r := range repCount {
		for coding, suffix := range [2]string{"", "-gz"} {
			p.etags[r][coding] = []string{`"` + p.etag + "-" + "jht"[r:r+1] + suffix + `"`}
		}
	}
}

// unpack makes the plain form, if it is not too large to be kept.
func (sn *snapshot) unpack(c *pageCache, p *page, limit int64) {
	p.unpacked.Do(func() {
		sn.renders <- struct{}{}
		defer func() { <-sn.renders }()
		if int64(p.plain) > limit/4 {
			return
		}
		z, err := gzip.NewReader(bytes.NewReader(p.gz))
		if err != nil {
			return // its own work
		}
		plain := make([]byte, p.plain)
		if _, err := io.ReadFull(z, plain); err != nil {
			return
		}
		if p.plainFile = newSendfile(plain); p.plainFile == nil {
			p.plainBytes = plain
		}
		c.size.Add(int64(p.plain))
		if sn.size.Add(int64(p.plain)) > limit {
			sn.forget()
		}
	})
}

// pageReader reads a page for a connection that has the kernel send it.
type pageReader struct {
	file *sendfile
	off  int64
}

func (r *pageReader) Read(p []byte) (int, error) {
	n, err := r.file.ReadAt(p, r.off)
	r.off += int64(n)
	return n, err
}

// compress returns the gzip form, which is the same for the same bytes.
func compress(body []byte) []byte {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, 7) // 9 takes twice the time for 1% less
	if err != nil {
		panic(err) // the level is a constant
	}
	_, _ = z.Write(body) // into memory
	_ = z.Close()
	return bytes.Clone(buf.Bytes())
}

// Header values that are the same for every response.
var (
	headerNosniff   = []string{"nosniff"}
	headerGzip      = []string{"gzip"}
	headerVary      = []string{"Accept, Accept-Encoding"}
	headerVaryGzip  = []string{"Accept-Encoding"}
	headerStar      = []string{"*"}
	headerExpose    = []string{"ETag, Content-Range, Accept-Ranges"}
	headerReferrer  = []string{"no-referrer"}
	headerPolicy    = []string{"default-src 'none'; style-src 'unsafe-inline'"}
	headerJSON      = []string{"application/json"}
	headerText      = []string{"text/plain; charset=utf-8"}
	headerOctets    = []string{"application/octet-stream"}
	headerImmutable = []string{"public, max-age=365000000, immutable"}
	headerBytes     = []string{"bytes"}
	headerMinute    = []string{"public, max-age=60"}
	headerTypes     = [repCount][]string{{repJSON.contentType()}, {repHTML.contentType()}, {repText.contentType()}}
)

const (
	allowRead   = "GET, HEAD, OPTIONS"
	allowUpload = "GET, HEAD, OPTIONS, POST"
	maxURL      = 4 << 10
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w, stall: s.opts.Stall, begin: time.Now(), private: s.opts.Private}
	defer s.finish(rec, r)
	refusal, end := s.gate.begin(r)
	defer end()
	h := rec.Header()
	if r.ContentLength != 0 && (r.Method != http.MethodPost || !isUpload(r.URL.Path) || refusal != "") {
		// A body that the server did not ask for is not waited for.
		_ = http.NewResponseController(w).SetReadDeadline(rec.begin.Add(10 * time.Second))
		h.Set("Connection", "close")
	}
	h["X-Content-Type-Options"] = headerNosniff
	if !s.opts.Private {
		h["Access-Control-Allow-Origin"] = headerStar
		h["Access-Control-Expose-Headers"] = headerExpose
	}
	if refusal != "" && r.URL.Path != "/healthz" {
		h.Set("Connection", "close")
		busy(rec, refusal)
		return
	}
	s.route(rec, r)
}

// busy tells a client to come back.
func busy(w http.ResponseWriter, text string) {
	w.Header().Set("Retry-After", "5")
	plainError(w, http.StatusServiceUnavailable, text)
}

// isUpload reports whether a path takes uploads.
func isUpload(path string) bool { return path == "/legacy/" || path == "/legacy" || path == "/" }

// finish records a request, also one whose client went away in the middle.
func (s *Server) finish(rec *recorder, r *http.Request) {
	took := time.Since(rec.begin)
	s.metrics.observe(rec, took)
	if s.opts.AccessLog == nil {
		return
	}
	client := ""
	if len(s.opts.TrustedProxies) > 0 {
		client = s.gate.client(r).String()
	}
	s.opts.AccessLog.LogAttrs(r.Context(), slog.LevelInfo, "request",
		slog.String("remote", r.RemoteAddr), slog.String("client", client), slog.String("method", r.Method), slog.String("url", r.URL.RequestURI()),
		slog.Int("status", rec.code()), slog.Int64("bytes", rec.bytes), slog.Duration("took", took),
		slog.String("agent", r.UserAgent()), slog.String("token", rec.token))
}

func (s *Server) route(w *recorder, r *http.Request) {
	if len(r.RequestURI) > maxURL {
		w.Header().Set("Connection", "close")
		plainError(w, http.StatusRequestURITooLong, "the URL is longer than 4 KiB")
		return
	}
	path := r.URL.Path
	if s.opts.Private && path != "/healthz" && !(r.Method == http.MethodPost && isUpload(path)) && !s.permitted(w, r) {
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		if isUpload(path) {
			w.handler = handlerUpload
			s.upload(w, r)
			return
		}
		fallthrough
	default:
		allow := allowRead
		if isUpload(path) {
			allow = allowUpload
		}
		w.Header().Set("Allow", allow)
		if r.Method == http.MethodOptions {
			w.Header().Set("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
			w.Header().Set("Access-Control-Allow-Headers", "Accept, Range, If-None-Match, If-Range")
			w.Header().Set("Access-Control-Max-Age", "86400")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		plainError(w, http.StatusMethodNotAllowed, "method "+strconv.Quote(r.Method)+" is not for this URL; it has "+allow)
		return
	}
	if !plainPath(r) {
		notFound(w)
		return
	}
	sn := s.current.Load()
	switch {
	case strings.HasPrefix(path, "/files/"):
		w.handler = handlerFile
		s.serveFile(w, r, sn)
	case strings.HasPrefix(path, "/wheels/"):
		w.handler = handlerFile
		s.serveName(w, path, sn)
	case path == "/catalog.json":
		w.handler = handlerPage
		if w.limited != nil {
			s.serveRestricted(w, headerJSON, sn.restricted(w.limited).AppendCatalog(nil))
			return
		}
		p := sn.page(&sn.lists, pageKey{view: "catalog.json"}, s.opts.PageCacheBytes, func() ([]byte, bool) {
			return sn.catalog.AppendCatalog(nil), true
		})
		w.Header()["Content-Type"] = headerJSON
		s.servePage(w, r, sn, &sn.lists, p, repJSON, headerVaryGzip)
	case path == "/healthz":
		w.handler = handlerHealth
		w.Header()["Content-Type"] = headerText
		w.Header().Set("Cache-Control", "no-store")
		_, _ = io.WriteString(w, "ok\n")
	case path == "/legacy" || path == "/legacy/":
		w.Header().Set("Allow", allowUpload)
		w.Header().Set(index.PapersHeader, index.SBOMSuffix+" "+index.ProvenanceSuffix)
		plainError(w, http.StatusMethodNotAllowed, "this is the URL for uploads: POST a file as twine or uv publish do")
	default:
		if view, rest, ok := simplePath(path); ok {
			w.handler = handlerPage
			s.serveSimple(w, r, sn, view, rest)
			return
		}
		if sn.web == nil {
			notFound(w)
			return
		}
		w.handler = handlerWeb
		sn.web.ServeHTTP(w, r)
	}
}

// plainPath reports whether the path, which has been decoded once, means what it seems to.
func plainPath(r *http.Request) bool {
	path := r.URL.Path
	if !strings.HasPrefix(path, "/") || strings.Contains(path, "//") || strings.Contains(path, "/../") || strings.HasSuffix(path, "/..") ||
		strings.Contains(path, "/./") || strings.HasSuffix(path, "/.") {
		return false
	}
	for i := range len(path) {
		if c := path[i]; c < ' ' || c == 0x7f || c == '\\' {
			return false
		}
	}
	if r.URL.RawPath == "" {
		return true
	}
	return !strings.Contains(strings.ToLower(r.URL.RawPath), "%2f") // a slash inside a name
}

// simplePath splits /{view}/simple{rest} and reports whether the path is one of the API.
func simplePath(path string) (view, rest string, ok bool) {
	if rest, ok := strings.CutPrefix(path, "/simple"); ok && (rest == "" || rest[0] == '/') {
		return "", rest, true
	}
	before, rest, ok := strings.Cut(path, "/simple")
	if !ok || rest != "" && rest[0] != '/' {
		return "", "", false
	}
	return strings.TrimPrefix(before, "/"), rest, true
}

// serveSimple answers for the simple API of a view. rest begins after /simple.
func (s *Server) serveSimple(w *recorder, r *http.Request, sn *snapshot, view, rest string) {
	v := sn.catalog.View(view)
	if v == nil {
		notFound(w)
		return
	}
	if rest == "" {
		redirect(w, r, "simple/")
		return
	}
	name := strings.Trim(rest, "/")
	if strings.Contains(name, "/") || len(name)+1 < len(rest)-1 {
		notFound(w)
		return
	}
	if name == "" && w.limited != nil {
		if v = sn.restricted(w.limited).View(view); v == nil {
			notFound(w)
			return
		}
	}
	if name == "" {
		s.serveRepresentation(w, r, sn, pageKey{view: view}, &sn.lists, func(f index.Format) ([]byte, bool) { return v.AppendList(nil, f), true })
		return
	}
	normal := wheel.NormalizeName(name)
	pp := sn.projects[normal]
	if pp == nil || !wheel.ValidName(name) {
		notFound(w)
		return
	}
	if !strings.HasSuffix(rest, "/") || normal != name {
		if _, ok := v.Files(normal); !ok {
			notFound(w)
			return
		}
		up := ""
		if strings.HasSuffix(rest, "/") {
			up = "../"
		}
		redirect(w, r, up+normal+"/")
		return
	}
	s.serveRepresentation(w, r, sn, pageKey{view: view, project: name}, &pp.pages, func(f index.Format) ([]byte, bool) {
		return v.AppendProject(nil, f, view, name)
	})
}

// redirect sends the client to a URL relative to the one it asked for, so that it also
// works behind a proxy that serves the index below a path.
func redirect(w *recorder, r *http.Request, to string) {
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	h := w.Header()
	h.Set("Location", to)
	h["Cache-Control"] = headerMinute
	h["Content-Type"] = headerText
	w.WriteHeader(http.StatusMovedPermanently)
}

func (s *Server) serveRepresentation(w *recorder, r *http.Request, sn *snapshot, key pageKey, cache *pageCache, render func(index.Format) ([]byte, bool)) {
	h := w.Header()
	rep, ok := negotiate(r.Header, r.URL.RawQuery)
	if !ok {
		h["Vary"] = headerVary
		plainError(w, http.StatusNotAcceptable, notAcceptable)
		return
	}
	key.format = index.HTML
	if rep == repJSON {
		key.format = index.JSON
	}
	if w.limited != nil {
		body, _ := render(key.format)
		s.serveRestricted(w, headerTypes[rep], body)
		return
	}
	p := sn.page(cache, key, s.opts.PageCacheBytes, func() ([]byte, bool) { return render(key.format) })
	if p.missing {
		notFound(w)
		return
	}
	h["Content-Type"] = headerTypes[rep]
	if rep == repJSON {
		delete(h, "X-Content-Type-Options") // is for what could be taken for HTML; a map of nine costs twice that of eight
	} else {
		h["Content-Security-Policy"] = headerPolicy
		h["Referrer-Policy"] = headerReferrer
	}
	s.servePage(w, r, sn, cache, p, rep, headerVary)
}

// servePage writes a page, or that it has not changed. Content-Type has been set.
func (s *Server) servePage(w *recorder, r *http.Request, sn *snapshot, cache *pageCache, p *page, rep representation, vary []string) {
	h := w.Header()
	gz := AcceptsGzip(r.Header)
	coding := 0
	if gz {
		coding = 1
	}
	h["Vary"] = vary
	h["Etag"] = p.etags[rep][coding]
	h["Cache-Control"] = s.pageAge
	if match := r.Header["If-None-Match"]; len(match) > 0 && etagMatches(match, p.etags[rep][coding][0]) {
		delete(h, "Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if gz {
		h["Content-Encoding"] = headerGzip
		h["Content-Length"] = p.lengthGzip
	} else {
		h["Content-Length"] = p.lengthPlain
	}
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	if gz {
		if !p.file.cork(r) || !w.sendPage(p.file) {
			_, _ = w.Write(p.gz) // the client went away
		}
		return
	}
	sn.unpack(cache, p, s.opts.PageCacheBytes)
	switch {
	case p.plainBytes != nil:
		_, _ = w.Write(p.plainBytes)
	case p.plainFile.cork(r) && w.sendPage(p.plainFile):
	case p.plainFile != nil:
		_, _ = io.Copy(w, io.NewSectionReader(p.plainFile, 0, p.plainFile.size))
	default:
		z, err := gzip.NewReader(bytes.NewReader(p.gz))
		if err == nil {
			_, _ = io.Copy(w, z)
		}
	}
}

// etagMatches compares an If-None-Match header with the current tag, weakly as RFC 9110 wants.
func etagMatches(header []string, etag string) bool {
	for _, line := range header {
		for part := range strings.SplitSeq(line, ",") {
			part = strings.TrimPrefix(strings.Trim(part, " \t"), "W/")
			if part == etag || part == "*" {
				return true
			}
		}
	}
	return false
}

// serveFile answers for /files/{2 digits}/{62 digits}/{name}[.metadata and other papers]. The file is looked up
// by its name; no path is made from what the client wrote.
func (s *Server) serveFile(w *recorder, r *http.Request, sn *snapshot) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/files/"), "/")
	if len(parts) != 3 {
		notFound(w)
		return
	}
	name, suffix := cutSuffix(parts[2])
	project, _, err := index.ParseName(name)
	if err != nil {
		notFound(w)
		return
	}
	pp := sn.projects[project]
	if pp == nil || pp.project.Status == index.Quarantined {
		notFound(w)
		return
	}
	f := pp.files()[name]
	if f == nil || f.Base != "" || parts[0]+parts[1] != f.SHA256.String() || f.Paper(suffix).IsZero() {
		notFound(w)
		return
	}
	content, err := s.store.OpenFile(f, suffix)
	if err != nil {
		if outOfDescriptors(err) {
			busy(w, "too many open files; try again in a moment")
			return
		}
		if !errors.Is(err, fs.ErrNotExist) {
			s.opts.Log.Error("file of the index is not readable", "file", f.Filename, "error", err)
			plainError(w, http.StatusInternalServerError, "the file is not readable")
			return
		}
		s.opts.Log.Error("file of the index is missing", "file", f.Filename)
		notFound(w)
		return
	}
	defer content.Close()
	h := w.Header()
	h["Cache-Control"] = headerImmutable
	h.Set("Etag", `"sha256-`+f.Paper(suffix).String()+`"`)
	switch suffix {
	default:
		h["Content-Type"] = headerJSON
		h["Cache-Control"] = headerMinute // a statement may get a signature
		r.Header.Del("Range")
	case index.MetadataSuffix:
		h["Content-Type"] = headerText
		r.Header.Del("Range") // small; the whole is simpler
	case "":
		h["Content-Type"] = headerOctets
		h["Accept-Ranges"] = headerBytes
		if strings.Contains(r.Header.Get("Range"), ",") {
			r.Header.Del("Range") // several ranges at once are allowed to be ignored
		}
	}
	http.ServeContent(w, r, "", f.UploadTime, content)
}

// serveName answers for /wheels/{name}[.metadata and other papers], in whatever spelling: the
// downloaders of some projects know their wheels by names such as …+cu12torch2.9cxx11abiTRUE-…,
// whose version is another text in its normal form.
func (s *Server) serveName(w *recorder, path string, sn *snapshot) {
	name, suffix := cutSuffix(strings.TrimPrefix(path, "/wheels/"))
	parsed, err := wheel.ParseFilename(name)
	if err != nil {
		notFound(w)
		return
	}
	pp := sn.projects[parsed.Name]
	if pp == nil || pp.project.Status == index.Quarantined {
		notFound(w)
		return
	}
	f := pp.files()[name]
	for i := range pp.project.Files {
		if have := &pp.project.Files[i]; f == nil && have.IsWheel() {
			if other, ok := have.Wheel(); ok && other.String() == parsed.String() {
				f = have
			}
		}
	}
	if f == nil || suffix != "" && f.Paper(suffix).IsZero() {
		notFound(w)
		return
	}
	w.Header()["Cache-Control"] = headerMinute
	w.Header().Set("Location", f.URL("../")+suffix)
	w.WriteHeader(http.StatusFound)
}

// cutSuffix splits the name of a file, or of one that goes with it.
func cutSuffix(path string) (name, suffix string) {
	if name, suffix, ok := index.CutPaper(path); ok {
		return name, suffix
	}
	if name, ok := strings.CutSuffix(path, index.MetadataSuffix); ok {
		return name, index.MetadataSuffix
	}
	return path, ""
}

func notFound(w *recorder) {
	w.Header()["Cache-Control"] = headerMinute
	plainError(w, http.StatusNotFound, "not found")
}

// plainError answers with one line of text.
func plainError(w http.ResponseWriter, code int, text string) {
	h := w.Header()
	h["Content-Type"] = headerText
	text = strings.TrimRight(text, "\n") + "\n"
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// queryValue returns the first value of a key in a query, decoded once.
func queryValue(rawQuery, key string) (string, bool) {
	for pair := range strings.SplitSeq(rawQuery, "&") {
		if k, v, _ := strings.Cut(pair, "="); k == key {
			return unescapeQuery(v), true
		}
	}
	return "", false
}
