// Package web shows an index to people: which projects and builds it has, which file fits
// what, and how to install it.
//
// [Render] writes the pages as files for a static host and [Handler] serves them; both show the
// same. Every page works without JavaScript, which only makes choosing quicker, and from any
// folder of a host, because all links are relative. Nothing is loaded from another host.
//
// The package changes nothing and answers no installer: package index does.
package web

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/look"
	"github.com/kiln-build/kiln/internal/units"
)

//go:embed templates static
var embedded embed.FS

// Options are how pages look. The zero value is ready to use.
type Options struct {
	// BaseURL is the URL of the root of the index, ending in "/", for the commands that pages
	// show. Without it [Handler] takes what the request says, and pages of [Render] take it
	// from the browser's address line or show https://HOST/.
	BaseURL string
	// Title is the name of the index. Default "kiln index".
	Title string
	// Private says on pages that installers need a token.
	Private bool
	// Builds, if not nil, answers for /builds/, and pages of [Handler] link to it.
	Builds http.Handler
	// Skip, if not nil, tells [Render] to leave out the pages of a project, because they are
	// there already. Nothing else that is shown depends on it.
	Skip func(p *index.Project) bool
	// Log gets errors of [Handler]; nil discards them.
	Log *slog.Logger
}

// asset is an embedded file, named after its content so that browsers may keep it for ever.
type asset struct {
	path string // static/kiln.0123456789.css
	data []byte
	kind string
}

var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// site is everything that does not depend on a catalog.
type site struct {
	pages  *template.Template
	assets map[string]asset // by the name in the source
}

func newSite() (*site, error) {
	s := &site{assets: map[string]asset{}}
	add := func(file string, data []byte) {
		sum := sha256.Sum256(data)
		ext := path.Ext(file)
		name := "static/" + strings.TrimSuffix(file, ext) + "." + hex.EncodeToString(sum[:5]) + ext
		s.assets[file] = asset{path: name, data: data, kind: assetTypes[ext]}
	}
	files, err := fs.ReadDir(embedded, "static")
	if err != nil {
		return nil, fmt.Errorf("read embedded files: %w", err)
	}
	for _, f := range files {
		data, err := embedded.ReadFile("static/" + f.Name())
		if err != nil {
			return nil, fmt.Errorf("read embedded files: %w", err)
		}
		add(f.Name(), data)
	}
	add("kiln.css", []byte(look.CSS))
	s.pages, err = template.New("").Funcs(template.FuncMap{
		"asset": func(name string) string { return s.assets[name].path },
		"bytes": units.Bytes,
		"date":  func(t time.Time) string { return t.UTC().Format("2006-01-02") },
		"time":  func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") },
		"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"count": units.Count,
		"in":    func(list []string, s string) bool { return slices.Contains(list, s) },
	}).ParseFS(embedded, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse templates: %w", err)
	}
	return s, nil
}

func (s *site) execute(name string, data any) ([]byte, error) {
	var buf bytes.Buffer
	if err := s.pages.ExecuteTemplate(&buf, name, data); err != nil {
		return nil, fmt.Errorf("page %s: %w", name, err)
	}
	return buf.Bytes(), nil
}

// Revision identifies the templates and embedded files, and with them how pages look.
func Revision() string {
	h := sha256.New()
	h.Write([]byte(look.CSS))
	_ = fs.WalkDir(embedded, ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			data, _ := embedded.ReadFile(name) // cannot fail: it is in the binary
			fmt.Fprintf(h, "%s %d\n", name, len(data))
			h.Write(data)
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Render writes the pages of a catalog. Paths are relative to the root of the index, with
// forward slashes; files come before the pages that link to them. The first error of write
// ends it.
func Render(c *index.Catalog, opts Options, write func(path string, data []byte) error) error {
	s, err := newSite()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.assets)) {
		if err := write(s.assets[name].path, s.assets[name].data); err != nil {
			return err
		}
	}
	p := &pages{site: s, catalog: c, opts: opts, static: true}
	page := func(path string, data []byte, err error) error {
		if err != nil {
			return err
		}
		return write(path, data)
	}
	for project := range c.Projects() {
		if opts.Skip != nil && opts.Skip(project) {
			continue
		}
		for i := range project.Files {
			if hidden(project) {
				break
			}
			f := &project.Files[i]
			body, err := p.file(p.base(), project, f)
			if err := page(path.Join("project", project.Name, f.Filename, "index.html"), body, err); err != nil {
				return err
			}
		}
		body, err := p.project(p.base(), project, url.Values{})
		if err := page(path.Join("project", project.Name, "index.html"), body, err); err != nil {
			return err
		}
	}
	body, err := p.pick(p.base(), "")
	if err := page("pick/index.html", body, err); err != nil {
		return err
	}
	body, err = p.notFound(p.base(), "")
	if err := page("404.html", body, err); err != nil {
		return err
	}
	body, err = p.home(p.base(), "")
	return page("index.html", body, err)
}

// hidden reports whether nothing of a project may be shown but its name and state.
func hidden(p *index.Project) bool { return p.Status == index.Quarantined }

// pages makes the pages of one catalog.
type pages struct {
	site    *site
	catalog *index.Catalog
	opts    Options
	static  bool
}

// placeholder stands for the URL of an index that does not know where it will be.
const placeholder = "https://HOST/"

func (p *pages) base() string { return cmp.Or(p.opts.BaseURL, placeholder) }

// frame is what every page has around it.
type frame struct {
	Title string // of the page
	Site  string // of the index
	Root  string // relative URL of the root
	Base  string // absolute URL of the root
	Page  string // which entry of the navigation it is
	// Guess says that Base is a guess, which a script replaces with the truth.
	Guess bool
	// Builds says that there is a page about builds.
	Builds bool
	// NetRC is the line of ~/.netrc that gives installers the token of a private index.
	NetRC string
}

func (p *pages) frame(title, base string, depth int, name string) frame {
	root := strings.Repeat("../", depth)
	if root == "" {
		root = "./"
	}
	f := frame{Title: title, Site: cmp.Or(p.opts.Title, "kiln index"), Root: root, Base: base, Page: name, Guess: p.static && p.opts.BaseURL == "", Builds: !p.static && p.opts.Builds != nil}
	if u, err := url.Parse(base); err == nil && p.opts.Private {
		f.NetRC = "machine " + u.Hostname() + " login __token__ password TOKEN"
	}
	return f
}

// homePage lists the projects.
type homePage struct {
	frame
	Query    string
	Projects []summary
	Total    int
	Files    int
	Bytes    int64
	Views    []viewLink
}

// summary is a project in a list.
type summary struct {
	Name, Display string
	URL           string
	Version       string // newest, without label
	Files         int
	Updated       time.Time
	Toolkits      []string // CUDA 12.8
	Torch         []string
	Status        index.Status
}

type viewLink struct {
	Path, Name string
	URL        string
	Projects   int
}

func (p *pages) home(base, query string) ([]byte, error) {
	data := homePage{frame: p.frame("", base, 0, "home"), Query: query}
	words := strings.Fields(strings.ToLower(query))
	for project := range p.catalog.Projects() {
		data.Total++
		for i := range project.Files {
			data.Files++
			data.Bytes += project.Files[i].Size
		}
		s := summarize(project)
		if matches(s, words) {
			data.Projects = append(data.Projects, s)
		}
	}
	data.Views = viewLinks(p.catalog, base)
	return p.site.execute("home.html", data)
}

// matches reports whether a project has all words in what is shown of it.
func matches(s summary, words []string) bool {
	text := strings.ToLower(strings.Join(append(append([]string{s.Name, s.Display, s.Version}, s.Toolkits...), s.Torch...), " "))
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

func summarize(p *index.Project) summary {
	s := summary{Name: p.Name, Display: cmp.Or(p.DisplayName, p.Name), URL: "project/" + p.Name + "/", Status: p.Status}
	if hidden(p) {
		return s
	}
	s.Files = len(p.Files)
	toolkits := map[string]bool{}
	for i := range p.Files {
		f := &p.Files[i]
		if f.UploadTime.After(s.Updated) {
			s.Updated = f.UploadTime
		}
		built := f.Built()
		if built.Toolkit != "" {
			toolkits[built.Toolkit] = true
		}
		for _, t := range built.Torch {
			if !slices.Contains(s.Torch, t) {
				s.Torch = append(s.Torch, t)
			}
		}
	}
	for _, t := range slices.SortedFunc(maps.Keys(toolkits), compareToolkits) {
		s.Toolkits = append(s.Toolkits, index.ToolkitName(t))
	}
	slices.SortFunc(s.Torch, compareNumbers)
	if releases := releasesOf(p); len(releases) > 0 {
		s.Version = releases[0].version
	}
	return s
}

func viewLinks(c *index.Catalog, base string) []viewLink {
	var out []viewLink
	for _, v := range c.Views() {
		link := viewLink{Path: v.Path, Name: viewName(v), URL: base + v.Path + "/simple/"}
		if v.Path == "" {
			link.URL = base + "simple/"
		}
		for range v.Projects() {
			link.Projects++
		}
		out = append(out, link)
	}
	return out
}

func viewName(v *index.View) string {
	switch {
	case v.Path == "":
		return "Default"
	case v.Toolkit == "" && v.Torch == "":
		return "Every file"
	case v.Torch == "":
		return index.ToolkitName(v.Toolkit)
	}
	return index.ToolkitName(v.Toolkit) + ", torch " + v.Torch
}

// pickPage chooses a project.
type pickPage struct {
	frame
	Projects []summary
	Unknown  string // what was asked for and is not there
}

func (p *pages) pick(base, unknown string) ([]byte, error) {
	data := pickPage{frame: p.frame("Pick a build", base, 1, "pick"), Unknown: unknown}
	for project := range p.catalog.Projects() {
		if !hidden(project) && len(project.Files) > 0 {
			data.Projects = append(data.Projects, summarize(project))
		}
	}
	return p.site.execute("pick.html", data)
}

// errorPage says that there is no page.
type errorPage struct {
	frame
	Path  string
	Views []viewLink
}

func (p *pages) notFound(base, wanted string) ([]byte, error) {
	data := errorPage{frame: p.frame("Not found", base, 0, ""), Path: wanted, Views: viewLinks(p.catalog, base)}
	// The page is shown at any depth, so that its links cannot be relative.
	data.Root = base
	if data.Guess {
		data.Root = "/"
	}
	return p.site.execute("404.html", data)
}
