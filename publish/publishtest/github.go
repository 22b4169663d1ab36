package publishtest

import (
	"crypto/sha1" //nolint:gosec // names of git objects
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// GitHub is a server that answers like GitHub's REST API, as far as releases, their assets and refs
// go, and remembers every request.
//
// What it copies, because clients stumble over it: drafts may share a tag, published releases may
// not (422 already_exists); a draft has no public download; an upload that was cut off leaves an
// asset in the state "starter" which has no bytes and blocks its name (422 already_exists); lists
// come in pages of 30 with a Link header; downloads are redirects; names of assets lose unusual
// characters.
type GitHub struct {
	// NoDigest leaves out the digest of assets, as older installations do.
	NoDigest bool

	mu       sync.Mutex
	next     int64
	releases map[int64]*ghRelease
	assets   map[int64]*ghAsset
	refs     map[string]string // ref → object
	tags     map[string]string // object → message
	log      []Request
	url      string
}

// Request is one request as it was logged.
type Request struct {
	Method string
	Path   string
	Query  map[string]string
	// Body are the keys of a JSON body.
	Body []string
	// Header are those that the API has rules for.
	Accept, Version, Authorization, ContentType string
	ContentLength                               int64
	Status                                      int
}

type ghRelease struct {
	ID         int64     `json:"id"`
	TagName    string    `json:"tag_name"`
	Name       string    `json:"name"`
	Body       string    `json:"body"`
	Draft      bool      `json:"draft"`
	Prerelease bool      `json:"prerelease"`
	CreatedAt  time.Time `json:"created_at"`
	UploadURL  string    `json:"upload_url"`
	HTMLURL    string    `json:"html_url"`
	URL        string    `json:"url"`
}

type ghAsset struct {
	ID          int64     `json:"id"`
	Name        string    `json:"name"`
	State       string    `json:"state"`
	Size        int       `json:"size"`
	ContentType string    `json:"content_type"`
	Digest      string    `json:"digest,omitempty"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
	URL         string    `json:"url"`
	DownloadURL string    `json:"browser_download_url"`

	release int64
	data    []byte
}

// Repository is the only one that there is, and Token who may write to it.
const (
	Repository = "octo/wheels"
	Token      = "ghp_test"
	mainCommit = "1111111111111111111111111111111111111111"
)

// NewGitHub starts a server; faults may be nil.
func NewGitHub(t testing.TB, faults *Faults) *GitHub {
	s := &GitHub{releases: map[int64]*ghRelease{}, assets: map[int64]*ghAsset{}, refs: map[string]string{"refs/heads/main": mainCommit}, tags: map[string]string{}}
	server := httptest.NewServer(faults.Wrap(s))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// URL is the address of the API.
func (s *GitHub) URL() string { return s.url }

// Log returns the requests so far.
func (s *GitHub) Log() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Published returns what users can download: sums by tag and name, and a problem if there is
// something twice.
func (s *GitHub) Published() (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, tags := map[string]string{}, map[string]bool{}
	for _, r := range s.releases {
		if r.Draft {
			continue
		}
		if tags[r.TagName] {
			return nil, fmt.Errorf("two releases %s", r.TagName)
		}
		tags[r.TagName] = true
		for _, a := range s.assets {
			if a.release != r.ID || a.State != "uploaded" {
				continue
			}
			key := r.TagName + "/" + a.Name
			if out[key] != "" {
				return nil, fmt.Errorf("%s is there twice", key)
			}
			sum := sha256.Sum256(a.data)
			out[key] = hex.EncodeToString(sum[:])
		}
	}
	return out, nil
}

// Tamper changes the bytes of an asset behind everybody's back.
func (s *GitHub) Tamper(name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.assets {
		if a.Name == name {
			a.setData(data, s.NoDigest)
		}
	}
}

// AddRelease adds a published release with an asset, as if another program had made it.
func (s *GitHub) AddRelease(tag, name string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.newRelease(tag)
	s.newAsset(r.ID, name, "application/octet-stream").setData(data, s.NoDigest)
}

func (a *ghAsset) setData(data []byte, noDigest bool) {
	sum := sha256.Sum256(data)
	a.data, a.Size, a.State = data, len(data), "uploaded"
	if a.Digest = "sha256:" + hex.EncodeToString(sum[:]); noDigest {
		a.Digest = ""
	}
}

func (s *GitHub) newRelease(tag string) *ghRelease {
	s.next++
	r := &ghRelease{ID: s.next, TagName: tag, CreatedAt: time.Now().UTC().Truncate(time.Second)}
	r.URL = fmt.Sprintf("%s/repos/%s/releases/%d", s.url, Repository, r.ID)
	r.UploadURL = fmt.Sprintf("%s/uploads/repos/%s/releases/%d/assets{?name,label}", s.url, Repository, r.ID)
	s.releases[r.ID] = r
	return r
}

// oddCharacters are replaced in names of assets.
var oddCharacters = regexp.MustCompile(`[^A-Za-z0-9._+@-]+`)

func (s *GitHub) newAsset(release int64, name, contentType string) *ghAsset {
	s.next++
	now := time.Now().UTC().Truncate(time.Second)
	a := &ghAsset{ID: s.next, Name: oddCharacters.ReplaceAllString(name, "."), State: "starter", ContentType: contentType, CreatedAt: now, UpdatedAt: now, release: release}
	a.URL = fmt.Sprintf("%s/repos/%s/releases/assets/%d", s.url, Repository, a.ID)
	a.DownloadURL = fmt.Sprintf("%s/%s/releases/download/%s/%s", s.url, Repository, s.releases[release].TagName, a.Name)
	s.assets[a.ID] = a
	return a
}

// ghError is an answer of the API other than success.
type ghError struct {
	status int
	body   map[string]any
}

func validation(resource, code, field, message string) *ghError {
	e := map[string]any{"message": "Validation Failed", "documentation_url": "https://docs.github.com/rest"}
	if code != "" {
		e["errors"] = []any{map[string]any{"resource": resource, "code": code, "field": field}}
	}
	if message != "" {
		e["message"] = message
	}
	return &ghError{http.StatusUnprocessableEntity, e}
}

var errNotFound = &ghError{http.StatusNotFound, map[string]any{"message": "Not Found", "documentation_url": "https://docs.github.com/rest"}}

// ServeHTTP answers one request.
func (s *GitHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	entry := Request{
		Method: r.Method, Path: r.URL.Path, Query: map[string]string{}, Accept: r.Header.Get("Accept"), Version: r.Header.Get("X-GitHub-Api-Version"),
		Authorization: r.Header.Get("Authorization"), ContentType: r.Header.Get("Content-Type"), ContentLength: r.ContentLength,
	}
	for k, v := range r.URL.Query() {
		entry.Query[k] = v[0]
	}
	status, header, body := s.answer(r, &entry)
	entry.Status = status
	s.mu.Lock()
	s.log = append(s.log, entry)
	s.mu.Unlock()
	maps.Copy(w.Header(), header)
	switch b := body.(type) {
	case nil:
		w.WriteHeader(status)
	case []byte:
		w.Header().Set("Content-Type", "application/octet-stream")
		w.WriteHeader(status)
		_, _ = w.Write(b)
	default:
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(b)
	}
}

func (s *GitHub) answer(r *http.Request, entry *Request) (int, http.Header, any) {
	header := http.Header{}
	fail := func(e *ghError) (int, http.Header, any) { return e.status, header, e.body }
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/"+Repository+"/releases/download/"); ok {
		return s.download(rest)
	}
	if id, ok := strings.CutPrefix(path, "/blob/"); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		n, _ := strconv.ParseInt(id, 10, 64)
		if a := s.assets[n]; a != nil {
			return http.StatusOK, header, a.data
		}
		return fail(errNotFound)
	}
	authorized := r.Header.Get("Authorization") == "Bearer "+Token
	if !authorized && r.Method != http.MethodGet {
		return http.StatusUnauthorized, header, map[string]any{"message": "Requires authentication"}
	}
	if rest, ok := strings.CutPrefix(path, "/uploads/repos/"+Repository+"/releases/"); ok && r.Method == http.MethodPost {
		return s.upload(r, strings.TrimSuffix(rest, "/assets"))
	}
	rest, ok := strings.CutPrefix(path, "/repos/"+Repository)
	if !ok {
		return fail(errNotFound)
	}
	var in map[string]any
	if r.Method == http.MethodPost || r.Method == http.MethodPatch {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return http.StatusBadRequest, header, map[string]any{"message": "Problems parsing JSON"}
		}
		entry.Body = slices.Sorted(maps.Keys(in))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case rest == "" && r.Method == http.MethodGet:
		return http.StatusOK, header, map[string]any{"full_name": Repository, "default_branch": "main"}
	case strings.HasPrefix(rest, "/git/"):
		status, body := s.git(r.Method, strings.TrimPrefix(rest, "/git/"), in)
		return status, header, body
	case rest == "/releases" && r.Method == http.MethodGet:
		list := slices.SortedFunc(maps.Values(s.releases), func(a, b *ghRelease) int { return int(b.ID - a.ID) })
		if !authorized {
			list = slices.DeleteFunc(list, func(r *ghRelease) bool { return r.Draft })
		}
		return http.StatusOK, header, page(r, list, header)
	case rest == "/releases" && r.Method == http.MethodPost:
		tag, _ := in["tag_name"].(string)
		draft, _ := in["draft"].(bool)
		if tag == "" {
			return fail(validation("Release", "missing_field", "tag_name", ""))
		}
		if !draft && slices.ContainsFunc(slices.Collect(maps.Values(s.releases)), func(r *ghRelease) bool { return r.TagName == tag && !r.Draft }) {
			return fail(validation("Release", "already_exists", "tag_name", ""))
		}
		rel := s.newRelease(tag)
		rel.update(in)
		return http.StatusCreated, header, rel
	case strings.HasPrefix(rest, "/releases/assets/"):
		return s.asset(r, strings.TrimPrefix(rest, "/releases/assets/"))
	case strings.HasPrefix(rest, "/releases/"):
		return s.release(r, strings.TrimPrefix(rest, "/releases/"), in, header)
	}
	return fail(errNotFound)
}

func (r *ghRelease) update(in map[string]any) {
	for key, field := range map[string]*string{"name": &r.Name, "body": &r.Body, "tag_name": &r.TagName} {
		if v, ok := in[key].(string); ok {
			*field = v
		}
	}
	// GitHub keeps texts with the line ends of the web.
	r.Body = strings.ReplaceAll(strings.ReplaceAll(r.Body, "\r\n", "\n"), "\n", "\r\n")
	for key, field := range map[string]*bool{"draft": &r.Draft, "prerelease": &r.Prerelease} {
		if v, ok := in[key].(bool); ok {
			*field = v
		}
	}
}

// page cuts a list as the query says and adds the Link header.
func page[T any](r *http.Request, list []T, header http.Header) []T {
	size, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
	if size <= 0 || size > 100 {
		size = 30
	}
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	n = max(n, 1)
	from, to := min((n-1)*size, len(list)), min(n*size, len(list))
	if to < len(list) {
		u := *r.URL
		q := u.Query()
		q.Set("page", strconv.Itoa(n+1))
		u.RawQuery = q.Encode()
		header.Set("Link", fmt.Sprintf(`<http://%s%s>; rel="next"`, r.Host, u.String()))
	}
	return append([]T{}, list[from:to]...)
}

func (s *GitHub) release(r *http.Request, rest string, in map[string]any, header http.Header) (int, http.Header, any) {
	number, sub, _ := strings.Cut(rest, "/")
	id, err := strconv.ParseInt(number, 10, 64)
	rel := s.releases[id]
	if err != nil || rel == nil {
		return errNotFound.status, header, errNotFound.body
	}
	switch {
	case sub == "assets" && r.Method == http.MethodGet:
		var list []*ghAsset
		for _, a := range s.assets {
			if a.release == id {
				list = append(list, a)
			}
		}
		slices.SortFunc(list, func(a, b *ghAsset) int { return int(a.ID - b.ID) })
		return http.StatusOK, header, page(r, list, header)
	case sub != "":
	case r.Method == http.MethodGet:
		return http.StatusOK, header, rel
	case r.Method == http.MethodPatch:
		if publish, ok := in["draft"].(bool); ok && !publish && rel.Draft {
			for _, other := range s.releases {
				if other.TagName == rel.TagName && !other.Draft {
					e := validation("Release", "already_exists", "tag_name", "")
					return e.status, header, e.body
				}
			}
		}
		rel.update(in)
		return http.StatusOK, header, rel
	case r.Method == http.MethodDelete:
		delete(s.releases, id)
		maps.DeleteFunc(s.assets, func(_ int64, a *ghAsset) bool { return a.release == id })
		return http.StatusNoContent, header, nil
	}
	return errNotFound.status, header, errNotFound.body
}

func (s *GitHub) asset(r *http.Request, number string) (int, http.Header, any) {
	header := http.Header{}
	id, _ := strconv.ParseInt(number, 10, 64)
	a := s.assets[id]
	switch {
	case a == nil:
	case r.Method == http.MethodDelete:
		delete(s.assets, id)
		return http.StatusNoContent, header, nil
	case r.Method == http.MethodGet && r.Header.Get("Accept") == "application/octet-stream":
		if a.State == "uploaded" {
			header.Set("Location", fmt.Sprintf("%s/blob/%d", s.url, id))
			return http.StatusFound, header, nil
		}
	case r.Method == http.MethodGet:
		return http.StatusOK, header, a
	}
	return errNotFound.status, header, errNotFound.body
}

// upload takes a file. One that ends too early stays as a "starter".
func (s *GitHub) upload(r *http.Request, number string) (int, http.Header, any) {
	header := http.Header{}
	id, _ := strconv.ParseInt(number, 10, 64)
	name := oddCharacters.ReplaceAllString(r.URL.Query().Get("name"), ".")
	s.mu.Lock()
	rel := s.releases[id]
	var problem *ghError
	count := 0
	for _, a := range s.assets {
		if a.release == id {
			count++
			if a.Name == name {
				problem = validation("ReleaseAsset", "already_exists", "name", "")
			}
		}
	}
	switch {
	case rel == nil:
		problem = errNotFound
	case name == "":
		problem = validation("ReleaseAsset", "missing_field", "name", "")
	case r.ContentLength < 0:
		problem = &ghError{http.StatusBadRequest, map[string]any{"message": "Bad Content-Length"}}
	case count >= 1000:
		problem = validation("ReleaseAsset", "custom", "base", "file count limit exceeded")
	}
	if problem != nil {
		s.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		return problem.status, header, problem.body
	}
	a := s.newAsset(id, name, r.Header.Get("Content-Type"))
	s.mu.Unlock()
	data, err := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || int64(len(data)) != r.ContentLength {
		return http.StatusBadRequest, header, map[string]any{"message": "Size does not match Content-Length"}
	}
	a.setData(data, s.NoDigest)
	return http.StatusCreated, header, a
}

// download is what browsers and installers use.
func (s *GitHub) download(rest string) (int, http.Header, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	header := http.Header{}
	for _, a := range s.assets {
		if r := s.releases[a.release]; !r.Draft && a.State == "uploaded" && r.TagName+"/"+a.Name == rest {
			header.Set("Location", fmt.Sprintf("%s/blob/%d", s.url, a.ID))
			return http.StatusFound, header, nil
		}
	}
	return errNotFound.status, header, errNotFound.body
}

func (s *GitHub) git(method, rest string, in map[string]any) (int, any) {
	text := func(key string) string { v, _ := in[key].(string); return v }
	object := func(ref string) map[string]any {
		kind := "tag"
		if s.refs[ref] == mainCommit {
			kind = "commit"
		}
		return map[string]any{"ref": ref, "object": map[string]any{"sha": s.refs[ref], "type": kind}}
	}
	switch {
	case method == http.MethodGet && strings.HasPrefix(rest, "ref/"):
		if ref := "refs/" + strings.TrimPrefix(rest, "ref/"); s.refs[ref] != "" {
			return http.StatusOK, object(ref)
		}
	case method == http.MethodGet && strings.HasPrefix(rest, "matching-refs/"):
		list := []any{}
		for _, ref := range slices.Sorted(maps.Keys(s.refs)) {
			if strings.HasPrefix(ref, "refs/"+strings.TrimPrefix(rest, "matching-refs/")) {
				list = append(list, object(ref))
			}
		}
		return http.StatusOK, list
	case method == http.MethodGet && strings.HasPrefix(rest, "tags/"):
		sha := strings.TrimPrefix(rest, "tags/")
		if message, ok := s.tags[sha]; ok {
			return http.StatusOK, map[string]any{"sha": sha, "message": message, "tag": "kiln-lock"}
		}
	case method == http.MethodPost && rest == "tags":
		if text("object") != mainCommit || text("tag") == "" || text("message") == "" || text("type") != "commit" {
			e := validation("Tag", "invalid", "object", "")
			return e.status, e.body
		}
		s.next++
		sum := sha1.Sum([]byte(text("message") + strconv.FormatInt(s.next, 10))) //nolint:gosec // a name
		sha := hex.EncodeToString(sum[:])
		s.tags[sha] = text("message")
		return http.StatusCreated, map[string]any{"sha": sha, "message": text("message"), "tag": text("tag")}
	case method == http.MethodPost && rest == "refs":
		ref := text("ref")
		if s.refs[ref] != "" {
			e := validation("Reference", "", "", "Reference already exists")
			return e.status, e.body
		}
		if !strings.HasPrefix(ref, "refs/") || strings.Count(ref, "/") < 2 || s.tags[text("sha")] == "" {
			e := validation("Reference", "", "", "Object does not exist")
			return e.status, e.body
		}
		s.refs[ref] = text("sha")
		return http.StatusCreated, object(ref)
	case strings.HasPrefix(rest, "refs/"):
		ref := rest
		if s.refs[ref] == "" {
			e := validation("Reference", "", "", "Reference does not exist")
			return e.status, e.body
		}
		if method == http.MethodDelete {
			delete(s.refs, ref)
			return http.StatusNoContent, nil
		}
		s.refs[ref] = text("sha")
		return http.StatusOK, object(ref)
	}
	return errNotFound.status, errNotFound.body
}
