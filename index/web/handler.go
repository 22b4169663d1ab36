package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/serve"
	"github.com/kiln-build/kiln/wheel"
)

// policy lets a page use nothing but its own style sheet, script and pictures.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Limits of what clients can make a handler keep and do.
const (
	maxCacheBytes = 32 << 20 // of finished pages
	maxWaiting    = 64       // requests that wait for their page to be made
	maxLoose      = 16 << 20 // bytes of pages on their way to clients that are not in the cache
)

// errBusy is the error for a page that is not made now.
var errBusy = errors.New("too many pages are being made; try again in a moment")

// handler serves the pages of one catalog.
type handler struct {
	pages  *pages
	assets map[string]sentAsset // by path

	renders chan struct{} // slots of [serve.Renders]
	waiting atomic.Int32  // requests for one
	loose   atomic.Int64  // bytes of pages that are being sent and not in the cache

	mu      sync.Mutex
	cache   map[string]*cached // by path
	size    int                // bytes of the pages in it
	flights map[string]*flight // by base URL and path
}

// cached is the page of a path for one base URL. A client may send any Host, and must neither fill
// the memory with pages nor drive out the one that others use.
type cached struct {
	base string
	res  *response
	used time.Time // the last time
}

// stayTime is how long a page stays after it was used, if it is asked for with another Host.
const stayTime = time.Minute

// flight is a page that is being made, for all that ask for it meanwhile.
type flight struct {
	done chan struct{}
	res  *response
	kept bool
	err  error
}

// sentAsset is a style sheet or the like, ready to be sent.
type sentAsset struct {
	kind string
	res  *response
}

// response is a page ready to be sent.
type response struct {
	status int
	plain  []byte
	gz     []byte
	etag   string
}

// Maker returns a function that makes the handler of the pages of a catalog. Templates and
// style sheets are prepared once for all of them.
func Maker(opts Options) (func(*index.Catalog) http.Handler, error) {
	s, err := newSite()
	if err != nil {
		return nil, err
	}
	assets := map[string]sentAsset{}
	for _, a := range s.assets {
		assets["/"+a.path] = sentAsset{a.kind, newResponse(http.StatusOK, a.data)}
	}
	return func(c *index.Catalog) http.Handler {
		return &handler{pages: &pages{site: s, catalog: c, opts: opts}, assets: assets, renders: make(chan struct{}, serve.Renders()), cache: map[string]*cached{}, flights: map[string]*flight{}}
	}, nil
}

// Handler serves the pages of a catalog for GET and HEAD at /, /pick/, /project/ and /static/.
func Handler(c *index.Catalog, opts Options) (http.Handler, error) {
	make, err := Maker(opts)
	if err != nil {
		return nil, err
	}
	return make(c), nil
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a, ok := h.assets[r.URL.Path]; ok {
		w.Header().Set("Content-Type", a.kind)
		w.Header().Set("Cache-Control", "public, max-age=365000000, immutable")
		h.send(w, r, a.res)
		return
	}
	if builds := h.pages.opts.Builds; builds != nil && (r.URL.Path == "/builds" || strings.HasPrefix(r.URL.Path, "/builds/")) {
		builds.ServeHTTP(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	base := h.base(r)
	query := r.URL.Query()
	if e, ok := exportPath(r.URL.Path); ok {
		h.export(w, r, e, base, query.Get("version"))
		return
	}
	to, known := h.redirect(r.URL.Path, query)
	if known {
		header.Set("Location", to)
		w.WriteHeader(http.StatusFound)
		return
	}
	header.Set("Content-Type", "text/html; charset=utf-8")
	res, kept, err := h.page(r.URL.Path, base, query)
	if errors.Is(err, errBusy) {
		header.Set("Retry-After", "5")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if err != nil {
		if h.pages.opts.Log != nil {
			h.pages.opts.Log.Error("page not made", "path", r.URL.Path, "error", err)
		}
		http.Error(w, "the page could not be made", http.StatusInternalServerError)
		return
	}
	if !kept {
		// A client that reads slowly keeps one form of the page in memory, and all of them together
		// not more than the limit.
		res = res.only(serve.AcceptsGzip(r.Header))
		size := int64(res.size())
		if h.loose.Add(size) > maxLoose {
			h.loose.Add(-size)
			header.Set("Retry-After", "5")
			http.Error(w, errBusy.Error(), http.StatusServiceUnavailable)
			return
		}
		defer h.loose.Add(-size)
	}
	h.send(w, r, res)
}

// exported is a file that pins one version of a project, for installers.
type exported struct {
	view, project string
	pylock        bool
}

// exportPath splits /{view}/requirements/{project}.txt and /{view}/pylock.{project}.toml.
func exportPath(path string) (e exported, ok bool) {
	at := strings.LastIndexByte(path, '/')
	if at < 0 {
		return e, false
	}
	folder, name := strings.TrimPrefix(path[:at], "/"), path[at+1:]
	if e.project, ok = strings.CutPrefix(name, "pylock."); ok {
		e.view, e.pylock = folder, true
		e.project, ok = strings.CutSuffix(e.project, ".toml")
		return e, ok
	}
	if e.project, ok = strings.CutSuffix(name, ".txt"); !ok {
		return e, false
	}
	if folder == "requirements" {
		return e, true
	}
	e.view, ok = strings.CutSuffix(folder, "/requirements")
	return e, ok
}

// export sends the newest version of a project in a view, or the one asked for, as a requirements
// file with hashes or as a lock file (PEP 751).
func (h *handler) export(w http.ResponseWriter, r *http.Request, e exported, base, version string) {
	header := w.Header()
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Cache-Control", "public, max-age=60")
	refuse := func(status int, message string) { h.send(w, r, newResponse(status, []byte(message+"\n"))) }
	if !h.enter() {
		header.Set("Retry-After", "5")
		refuse(http.StatusServiceUnavailable, errBusy.Error())
		return
	}
	res := h.exported(e, base, version)
	h.leave()
	h.send(w, r, res)
}

// exported makes such a file, or says why there is none.
func (h *handler) exported(e exported, base, version string) *response {
	refuse := func(status int, message string) *response { return newResponse(status, []byte(message+"\n")) }
	view := h.pages.catalog.View(e.view)
	if view == nil {
		return refuse(http.StatusNotFound, "no such view")
	}
	files, err := view.Pin(e.project, version)
	switch {
	case errors.Is(err, index.ErrNotFound):
		return refuse(http.StatusNotFound, err.Error())
	case err != nil:
		return refuse(http.StatusBadRequest, err.Error())
	}
	if !e.pylock {
		return newResponse(http.StatusOK, []byte(index.InstallLines(e.project, view.URL(base), files...).Requirements))
	}
	body, err := view.AppendPylock(nil, base, e.project, files)
	if err != nil {
		return refuse(http.StatusInternalServerError, err.Error())
	}
	return newResponse(http.StatusOK, body)
}

// base is the URL of the root of the index as this client sees it.
func (h *handler) base(r *http.Request) string {
	if h.pages.opts.BaseURL != "" {
		return h.pages.opts.BaseURL
	}
	if r.Host == "" || len(r.Host) > 255 || strings.Trim(strings.ToLower(r.Host), "abcdefghijklmnopqrstuvwxyz0123456789.-:[]") != "" {
		return placeholder
	}
	if r.TLS != nil {
		return "https://" + r.Host + "/"
	}
	return "http://" + r.Host + "/"
}

// redirect returns where a page really is, relative to where it was asked for.
func (h *handler) redirect(path string, query url.Values) (string, bool) {
	switch {
	case path == "/pick" || path == "/project":
		return strings.TrimPrefix(path, "/") + "/", true
	case path == "/project/":
		return "../", true
	case path == "/pick/" && query.Get("package") != "":
		if p := h.pages.catalog.Project(wheel.NormalizeName(query.Get("package"))); p != nil {
			return "../project/" + p.Name + "/", true
		}
	case strings.HasPrefix(path, "/project/"):
		parts := strings.Split(strings.TrimPrefix(path, "/project/"), "/")
		p := h.pages.catalog.Project(wheel.NormalizeName(parts[0]))
		if p == nil || len(parts) > 3 {
			return "", false
		}
		switch {
		case len(parts) == 1: // no slash at the end
			return p.Name + "/", true
		case parts[0] != p.Name:
			return strings.Repeat("../", len(parts)-1) + p.Name + "/", true
		case len(parts) == 2 && parts[1] != "":
			if f := p.File(parts[1]); f != nil {
				return fileURL(f), true
			}
		}
	}
	return "", false
}

// page makes a page, or takes it from those made before. It reports whether the page is kept.
func (h *handler) page(path, base string, query url.Values) (res *response, kept bool, err error) {
	if query = known(path, query); len(query) > 0 {
		res, err = h.make(path, base, query)
		return res, false, err
	}
	if !h.exists(path) {
		res, err = h.make(path, base, nil)
		return res, false, err
	}
	key := base + " " + path
	h.mu.Lock()
	if c := h.cache[path]; c != nil && c.base == base {
		c.used = time.Now()
		h.mu.Unlock()
		return c.res, true, nil
	}
	if f := h.flights[key]; f != nil {
		h.mu.Unlock()
		<-f.done
		return f.res, f.kept, f.err
	}
	f := &flight{done: make(chan struct{})}
	h.flights[key] = f
	h.mu.Unlock()
	f.res, f.err = h.make(path, base, nil)
	h.mu.Lock()
	delete(h.flights, key)
	if f.err == nil && f.res.status == http.StatusOK {
		f.kept = h.keep(path, base, f.res)
	}
	h.mu.Unlock()
	close(f.done)
	return f.res, f.kept, f.err
}

// keep puts a page into the cache, unless the one of another base URL is in use. h.mu is held.
func (h *handler) keep(path, base string, res *response) bool {
	old := h.cache[path]
	switch {
	case old != nil && time.Since(old.used) < stayTime:
		return false
	case old != nil:
		h.size -= old.res.size()
	}
	if h.size += res.size(); h.size > maxCacheBytes {
		h.cache, h.size = map[string]*cached{}, res.size()
	}
	h.cache[path] = &cached{base: base, res: res, used: time.Now()}
	return true
}

// exists reports whether there may be a page at a path.
func (h *handler) exists(path string) bool {
	if path == "/" || path == "/pick/" {
		return true
	}
	rest, ok := strings.CutPrefix(path, "/project/")
	name, _, _ := strings.Cut(rest, "/")
	return ok && h.pages.catalog.Project(name) != nil
}

// known returns the part of a query that the page at a path depends on.
func known(path string, query url.Values) url.Values {
	names := groupNames[:]
	switch path {
	case "/":
		names = []string{"q"}
	case "/pick/":
		names = []string{"package"}
	}
	out := url.Values{}
	for _, name := range names {
		if v := query.Get(name); v != "" {
			out.Set(name, v)
		}
	}
	return out
}

// enter waits for a slot, unless too many wait already.
func (h *handler) enter() bool {
	defer h.waiting.Add(-1)
	if h.waiting.Add(1) > maxWaiting {
		return false
	}
	h.renders <- struct{}{}
	return true
}

func (h *handler) leave() { <-h.renders }

// make makes a page.
func (h *handler) make(path, base string, query url.Values) (*response, error) {
	if !h.enter() {
		return nil, errBusy
	}
	defer h.leave()
	status := http.StatusOK
	body, err := h.render(path, base, query)
	if body == nil && err == nil {
		status = http.StatusNotFound
		body, err = h.pages.notFound(base, path)
	}
	if err != nil {
		return nil, err
	}
	return newResponse(status, body), nil
}

// render makes a page; nil means that there is none.
func (h *handler) render(path, base string, query url.Values) ([]byte, error) {
	switch path {
	case "/":
		return h.pages.home(base, strings.TrimSpace(query.Get("q")))
	case "/pick/":
		return h.pages.pick(base, query.Get("package"))
	}
	rest, ok := strings.CutPrefix(path, "/project/")
	if !ok {
		return nil, nil
	}
	name, rest, _ := strings.Cut(rest, "/")
	p := h.pages.catalog.Project(name)
	if p == nil {
		return nil, nil
	}
	if rest == "" {
		return h.pages.project(base, p, query)
	}
	filename, ok := strings.CutSuffix(rest, "/")
	f := p.File(filename)
	if !ok || f == nil || hidden(p) {
		return nil, nil
	}
	return h.pages.file(base, p, f)
}

// size is what a page takes of memory.
func (r *response) size() int {
	if r == nil {
		return 0
	}
	return len(r.plain) + len(r.gz)
}

// only returns the page in the form that a client takes.
func (r *response) only(gz bool) *response {
	out := *r
	if gz && r.gz != nil {
		out.plain = nil
	} else {
		out.gz = nil
	}
	return &out
}

// minPacked is the size from which on compressing is worth it.
const minPacked = 1400

// packers are writers of gzip, each of which takes much memory to make.
var packers = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	return z
}}

func newResponse(status int, body []byte) *response {
	sum := sha256.Sum256(body)
	res := &response{status: status, plain: body, etag: hex.EncodeToString(sum[:12])}
	if len(body) < minPacked {
		return res
	}
	var buf bytes.Buffer
	z := packers.Get().(*gzip.Writer)
	defer packers.Put(z)
	z.Reset(&buf)
	_, _ = z.Write(body) // into memory
	_ = z.Close()
	res.gz = buf.Bytes()
	return res
}

func (h *handler) send(w http.ResponseWriter, r *http.Request, res *response) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Vary", "Accept-Encoding")
	body, etag := res.plain, `"`+res.etag+`"`
	if serve.AcceptsGzip(r.Header) && res.gz != nil {
		body, etag = res.gz, `"`+res.etag+`-gz"`
		header.Set("Content-Encoding", "gzip")
	}
	if res.status == http.StatusOK {
		header.Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			header.Del("Content-Encoding")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(res.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client went away
	}
}
