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

	"github.com/klauspost/compress/gzip"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/serve"
	"github.com/kiln-build/kiln/wheel"
)

// policy lets a page use nothing but its own style sheet, script and pictures.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Limits of what clients can make a handler keep and do.
const (
	maxCacheBytes = 64 << 20 // of finished pages
	maxRenders    = 4        // pages being made at once
)

// handler serves the pages of one catalog.
type handler struct {
	pages  *pages
	assets map[string]asset // by path

	renders chan struct{} // slots of maxRenders

	mu    sync.Mutex
	cache map[string]*cached // by path
	size  int                // bytes of the pages in it
}

// cached is the page of a path for the last base URL that a client asked it for. Others are made
// when they are asked for: a client may send any Host, and must not fill the memory with them.
type cached struct {
	mu   sync.Mutex // held while the page is made
	base string
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
	assets := map[string]asset{}
	for _, a := range s.assets {
		assets["/"+a.path] = a
	}
	return func(c *index.Catalog) http.Handler {
		return &handler{pages: &pages{site: s, catalog: c, opts: opts}, assets: assets, renders: make(chan struct{}, maxRenders), cache: map[string]*cached{}}
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
		h.send(w, r, newResponse(http.StatusOK, a.data))
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
	res, err := h.page(r.URL.Path, base, query)
	if err != nil {
		if h.pages.opts.Log != nil {
			h.pages.opts.Log.Error("page not made", "path", r.URL.Path, "error", err)
		}
		http.Error(w, "the page could not be made", http.StatusInternalServerError)
		return
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
	view := h.pages.catalog.View(e.view)
	if view == nil {
		refuse(http.StatusNotFound, "no such view")
		return
	}
	files, err := view.Pin(e.project, version)
	switch {
	case errors.Is(err, index.ErrNotFound):
		refuse(http.StatusNotFound, err.Error())
		return
	case err != nil:
		refuse(http.StatusBadRequest, err.Error())
		return
	}
	if !e.pylock {
		h.send(w, r, newResponse(http.StatusOK, []byte(index.InstallLines(e.project, view.URL(base), files...).Requirements)))
		return
	}
	body, err := view.AppendPylock(nil, base, e.project, files)
	if err != nil {
		refuse(http.StatusInternalServerError, err.Error())
		return
	}
	h.send(w, r, newResponse(http.StatusOK, body))
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

// page makes a page, or takes it from those made before.
func (h *handler) page(path, base string, query url.Values) (*response, error) {
	if query = known(path, query); len(query) > 0 {
		return h.make(path, base, query)
	}
	h.mu.Lock()
	c := h.cache[path]
	if c == nil {
		c = new(cached)
		h.cache[path] = c
	}
	h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.res != nil && c.base == base {
		return c.res, nil
	}
	res, err := h.make(path, base, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.cache[path] != c: // dropped meanwhile
	case err != nil || res.status != http.StatusOK:
		delete(h.cache, path)
		h.size -= c.res.size()
	default:
		h.size += res.size() - c.res.size()
		c.base, c.res = base, res
		if h.size > maxCacheBytes {
			h.cache, h.size = map[string]*cached{}, 0
		}
	}
	return res, err
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

// make makes a page.
func (h *handler) make(path, base string, query url.Values) (*response, error) {
	h.renders <- struct{}{}
	defer func() { <-h.renders }()
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

func newResponse(status int, body []byte) *response {
	sum := sha256.Sum256(body)
	res := &response{status: status, plain: body, etag: hex.EncodeToString(sum[:12])}
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err == nil {
		_, _ = z.Write(body) // into memory
		_ = z.Close()
		res.gz = buf.Bytes()
	}
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
