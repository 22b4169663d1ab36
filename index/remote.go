package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/kiln-build/kiln/wheel"
)

// ErrNoProject is the error for a project that an index does not have.
var ErrNoProject = errors.New("no such project")

// What is read of another index at most.
const maxRemotePage = 64 << 20

// Remote is another index, read over HTTP.
type Remote struct {
	client *http.Client
	root   *url.URL // of a kiln index; nil for others
	simple *url.URL // the repository with all files
	views  map[string]bool
}

// OpenRemote finds the repository at a URL, which may be the root of a kiln index or any
// repository of the simple API. client may be nil.
func OpenRemote(ctx context.Context, client *http.Client, rawURL string) (*Remote, error) {
	if client == nil {
		client = http.DefaultClient
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("index %q: not an http or https URL", rawURL)
	}
	u.RawQuery, u.Fragment = "", ""
	if !strings.HasSuffix(u.Path, "/") {
		u.Path += "/"
	}
	u.RawPath = ""
	r := &Remote{client: client, simple: u}
	// The user may have given the root, or the repository of a view below it.
	roots := []string{u.Path}
	if before, ok := strings.CutSuffix(u.Path, "simple/"); ok {
		roots = append(roots, before)
		if before, ok := strings.CutSuffix(before, "all/"); ok {
			roots = append(roots, before)
		}
	}
	for _, path := range roots {
		root := *u
		root.Path = path
		views, err := r.catalog(ctx, &root)
		if err != nil {
			return nil, err
		}
		if views != nil {
			r.root, r.views = &root, views
			if path == u.Path || path+"simple/" == u.Path {
				r.simple = root.JoinPath("all", "simple/")
			}
			return r, nil
		}
	}
	return r, nil
}

// catalog reads catalog.json. The map is nil if there is none that is kiln's.
func (r *Remote) catalog(ctx context.Context, root *url.URL) (map[string]bool, error) {
	body, _, _, err := r.get(ctx, root.JoinPath("catalog.json"), "application/json")
	if _, ok := errors.AsType[*statusError](err); ok {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var c struct {
		Format int `json:"kiln-catalog"`
		Views  []struct{ Path string }
	}
	if json.Unmarshal(body, &c) != nil || c.Format == 0 {
		return nil, nil
	}
	views := map[string]bool{}
	for _, v := range c.Views {
		views[v.Path] = true
	}
	return views, nil
}

// SimpleURL returns the repository from which to install a file: the view of exactly its
// toolkit and torch if the index has one. torch chooses among several versions.
func (r *Remote) SimpleURL(c Coordinates, torch string) string {
	for _, t := range append([]string{torch}, c.Torch...) {
		if path := c.Toolkit + "/torch" + t; r.root != nil && c.Toolkit != "" && t != "" && r.views[path] {
			return r.root.JoinPath(path, "simple/").String()
		}
	}
	return r.simple.String()
}

// statusError is an answer other than 200.
type statusError struct {
	url  string
	code int
}

func (e *statusError) Error() string {
	if e.code == http.StatusUnauthorized {
		return e.url + ": the index is private, and there is no valid token for it in the URL or in ~/.netrc"
	}
	return fmt.Sprintf("%s: %d %s", e.url, e.code, http.StatusText(e.code))
}

func (r *Remote) get(ctx context.Context, u *url.URL, accept string) (body []byte, contentType string, final *url.URL, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, "", nil, fmt.Errorf("index: %w", err)
	}
	req.Header.Set("Accept", accept)
	res, err := r.client.Do(req)
	if err != nil {
		return nil, "", nil, fmt.Errorf("index: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, "", nil, &statusError{u.Redacted(), res.StatusCode}
	}
	body, err = io.ReadAll(io.LimitReader(res.Body, maxRemotePage+1))
	if err != nil {
		return nil, "", nil, fmt.Errorf("index: %s: %w", u.Redacted(), err)
	}
	if len(body) > maxRemotePage {
		return nil, "", nil, fmt.Errorf("index: %s is larger than %d bytes", u.Redacted(), maxRemotePage)
	}
	return body, res.Header.Get("Content-Type"), res.Request.URL, nil
}

// Files reads the files of a project. The error wraps [ErrNoProject] if the index has none.
func (r *Remote) Files(ctx context.Context, project string) ([]*File, error) {
	if !wheel.ValidName(project) {
		return nil, fmt.Errorf("%q is no name of a project", project)
	}
	name := wheel.NormalizeName(project)
	page := r.simple.JoinPath(name + "/")
	body, contentType, final, err := r.get(ctx, page, TypeJSON+", "+TypeHTML+";q=0.2, text/html;q=0.01")
	if status, ok := errors.AsType[*statusError](err); ok && status.code == http.StatusNotFound {
		return nil, fmt.Errorf("%s at %s: %w", name, r.simple.Redacted(), ErrNoProject)
	}
	if err != nil {
		return nil, err
	}
	mediaType, _, _ := mime.ParseMediaType(contentType)
	var files []*File
	switch mediaType {
	case TypeJSON:
		files, err = parseJSONPage(body, final)
	case TypeHTML, TypeText:
		files = parseHTMLPage(body, final)
	default:
		err = fmt.Errorf("the type %q is none of the simple API", contentType)
	}
	if err != nil {
		return nil, fmt.Errorf("index: %s: %w", page.Redacted(), err)
	}
	// Names that are no distribution of this project are skipped, as installers do.
	kept := files[:0]
	for _, f := range files {
		if p, _, err := ParseName(f.Filename); err == nil && p == name {
			kept = append(kept, f)
		}
	}
	return kept, nil
}

// setURL splits a resolved URL into folder and name.
func (f *File) setURL(base *url.URL, ref string) bool {
	u, err := base.Parse(ref)
	if err != nil {
		return false
	}
	u.Fragment = ""
	text := u.String()
	i := strings.LastIndexByte(text, '/')
	f.Base = text[:i+1]
	return i >= 0
}

func parseJSONPage(body []byte, base *url.URL) ([]*File, error) {
	var page struct {
		Files []struct {
			Filename       string
			URL            string
			Hashes         map[string]string
			Size           int64
			RequiresPython string          `json:"requires-python"`
			Yanked         json.RawMessage // false, true or a reason
			Kiln           struct {
				Coordinates
				Arch   []string
				Glibc  string
				Window []string
				Papers map[string]Digest
			} `json:"_kiln"`
		}
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, err
	}
	var files []*File
	for _, in := range page.Files {
		f := &File{Filename: in.Filename, Size: in.Size, RequiresPython: in.RequiresPython, Arch: in.Kiln.Arch, Papers: in.Kiln.Papers}
		if f.normalizeArch() != nil {
			f.Arch = nil // of another program: not known excludes nothing
		}
		f.Glibc, f.Window = in.Kiln.Glibc, in.Kiln.Window
		if f.validateNeeds() != nil {
			f.Glibc, f.Window = "", nil
		}
		if in.Kiln.validate() == nil { // what is not understood, the label says
			f.Coordinates = in.Kiln.Coordinates
		}
		if !f.setURL(base, in.URL) {
			continue
		}
		f.SHA256, _ = ParseDigest(in.Hashes["sha256"]) // none is zero
		if json.Unmarshal(in.Yanked, &f.YankedReason) == nil && f.YankedReason != "" {
			f.Yanked = true
		} else {
			_ = json.Unmarshal(in.Yanked, &f.Yanked)
		}
		files = append(files, f)
	}
	return files, nil
}

// parseHTMLPage reads the anchors of a page of PEP 503. It never fails: what it does not
// understand is no file.
func parseHTMLPage(body []byte, base *url.URL) []*File {
	var files []*File
	rest := string(body)
	for {
		attrs, text, after, ok := nextAnchor(rest)
		if !ok {
			return files
		}
		rest = after
		// A copy: a part of the page would keep all of it in memory.
		f := &File{Filename: strings.Clone(strings.TrimSpace(html.UnescapeString(text))), RequiresPython: attrs["data-requires-python"]}
		f.YankedReason, f.Yanked = attrs["data-yanked"], hasKey(attrs, "data-yanked")
		_, fragment, _ := strings.Cut(attrs["href"], "#")
		if hash, ok := strings.CutPrefix(fragment, "sha256="); ok {
			f.SHA256, _ = ParseDigest(hash)
		}
		if attrs["href"] != "" && f.setURL(base, attrs["href"]) {
			files = append(files, f)
		}
	}
}

func hasKey(m map[string]string, key string) bool {
	_, ok := m[key]
	return ok
}

// nextAnchor finds the next <a …>text</a>.
func nextAnchor(s string) (attrs map[string]string, text, rest string, ok bool) {
	for {
		i := strings.IndexByte(s, '<')
		if i < 0 {
			return nil, "", "", false
		}
		s = s[i+1:]
		if after, comment := strings.CutPrefix(s, "!--"); comment {
			_, s, _ = strings.Cut(after, "-->")
			continue
		}
		if len(s) < 2 || s[0]|0x20 != 'a' || !strings.ContainsRune(" \t\r\n\f/", rune(s[1])) {
			continue
		}
		attrs, s = attributes(s[1:])
		end := strings.IndexByte(s, '<')
		if end < 0 {
			return nil, "", "", false
		}
		return attrs, s[:end], s[end:], true
	}
}

const htmlSpace = " \t\r\n\f/"

// attributes reads the attributes of a tag up to its end.
func attributes(s string) (attrs map[string]string, rest string) {
	attrs = map[string]string{}
	for {
		s = strings.TrimLeft(s, htmlSpace)
		if s == "" || s[0] == '>' {
			return attrs, strings.TrimPrefix(s, ">")
		}
		end := strings.IndexAny(s, htmlSpace+"=>")
		if end < 0 {
			return attrs, ""
		}
		if end == 0 { // a stray =
			s = s[1:]
			continue
		}
		name := strings.ToLower(s[:end])
		s = strings.TrimLeft(s[end:], htmlSpace)
		value := ""
		if after, ok := strings.CutPrefix(s, "="); ok {
			value, s = attributeValue(strings.TrimLeft(after, htmlSpace))
		}
		if !hasKey(attrs, name) {
			attrs[name] = html.UnescapeString(value)
		}
	}
}

func attributeValue(s string) (value, rest string) {
	if s != "" && (s[0] == '"' || s[0] == '\'') {
		value, rest, _ = strings.Cut(s[1:], s[:1])
		return value, rest
	}
	end := strings.IndexAny(s, " \t\r\n\f>")
	if end < 0 {
		return s, ""
	}
	return s[:end], s[end:]
}
