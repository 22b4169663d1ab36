package serve

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/wheel"
)

// authenticate finds the token of a request; need is the answer to a request without one. A right
// token always works; a client that tries many wrong ones is told to wait.
func (s *Server) authenticate(w *recorder, r *http.Request, need string) (Token, error) {
	if r.TLS == nil && !s.opts.InsecureUploads && !fromLoopback(r) {
		return Token{}, refuse(http.StatusForbidden, "tokens need https: they must not be sent in clear text")
	}
	secret, ok := requestSecret(r)
	if !ok {
		return Token{}, refuse(http.StatusUnauthorized, "%s", need)
	}
	token, err := s.opts.Tokens.Lookup(secret)
	if err == nil {
		w.token = token.ID
		return token, nil
	}
	if !errors.Is(err, ErrNoToken) {
		return Token{}, err
	}
	s.metrics.authFailures.Add(1)
	if s.fails.add(addressOf(s.gate.client(r)), time.Now()) {
		w.Header().Set("Retry-After", strconv.Itoa(int(failureWindow.Seconds())))
		return Token{}, refuse(http.StatusTooManyRequests, "too many wrong tokens; wait a minute")
	}
	return Token{}, refuse(http.StatusUnauthorized, "the token is not valid")
}

func fromLoopback(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// permitted reports whether a private index may answer a request, and if not, answers it.
func (s *Server) permitted(w *recorder, r *http.Request) bool {
	token, err := s.authenticate(w, r, "this index is private: user __token__ and a token as password")
	if err != nil {
		w.Header().Set("Cache-Control", "no-store")
		var refusal *uploadError
		if !errors.As(err, &refusal) {
			s.opts.Log.Error("tokens are not readable", "error", err)
			refusal = &uploadError{http.StatusInternalServerError, "the tokens are not readable; the log of the server says why"}
		}
		if refusal.status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="kiln"`)
		}
		plainError(w, refusal.status, refusal.text)
		return false
	}
	project, known := projectOf(r.URL.Path)
	switch {
	case token.readsAll(), strings.HasPrefix(r.URL.Path, "/static/") && token.has(ScopeRead):
		return true
	case r.URL.Path == "/catalog.json" || isList(r.URL.Path):
		w.limited = &token
		return true
	case !known:
		w.Header().Set("Cache-Control", "no-store")
		plainError(w, http.StatusForbidden, "the token is for "+strings.Join(token.Projects, ", ")+"; this page needs one for all projects")
		return false
	case !token.Allows(ScopeRead, project):
		notFound(w) // as for a project that is not there
		return false
	}
	return true
}

// isList reports whether a path is the list of projects of a view.
func isList(path string) bool {
	_, rest, ok := simplePath(path)
	return ok && strings.Trim(rest, "/") == ""
}

// restricted is the part of the index that a token for some projects may read.
func (sn *snapshot) restricted(token *Token) *index.Catalog {
	var projects []*index.Project
	for p := range sn.catalog.Projects() {
		if token.Allows(ScopeRead, p.Name) {
			projects = append(projects, p)
		}
	}
	return index.NewCatalog(sn.catalog.Config(), projects)
}

// serveRestricted answers with a list for one token, which is not kept.
func (s *Server) serveRestricted(w *recorder, contentType []string, body []byte) {
	h := w.Header()
	h["Content-Type"] = contentType
	h["Cache-Control"] = s.pageAge
	_, _ = w.Write(body)
}

// PermitAll answers only requests with a token that may read the whole index, as for metrics.
func (s *Server) PermitAll(h http.Handler) http.Handler {
	if !s.opts.Private {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.permitted(&recorder{ResponseWriter: w, stall: s.opts.Stall, private: true}, r) {
			h.ServeHTTP(w, r)
		}
	})
}

// projectOf returns the one project that a path is about. Paths that are about several, or about
// none, are not known. It reads paths in the order of route.
func projectOf(path string) (project string, known bool) {
	last := path[strings.LastIndexByte(path, '/')+1:]
	if strings.HasPrefix(path, "/files/") || strings.HasPrefix(path, "/wheels/") {
		name, _ := cutSuffix(last)
		project, _, err := index.ParseName(name)
		return project, err == nil
	}
	if _, rest, ok := simplePath(path); ok {
		name := wheel.NormalizeName(strings.Trim(rest, "/"))
		return name, name != ""
	}
	switch {
	case strings.HasPrefix(path, "/builds/"): // of all projects, whatever follows
		return "", false
	case strings.HasPrefix(path, "/project/"):
		name, _, _ := strings.Cut(strings.TrimPrefix(path, "/project/"), "/")
		return wheel.NormalizeName(name), name != ""
	case strings.HasSuffix(path, "/requirements/"+last):
		name, ok := strings.CutSuffix(last, ".txt")
		return wheel.NormalizeName(name), ok && name != ""
	}
	name, ok := strings.CutPrefix(last, "pylock.")
	if name, is := strings.CutSuffix(name, ".toml"); ok && is && name != "" {
		return wheel.NormalizeName(name), true
	}
	return "", false
}
