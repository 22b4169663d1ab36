package index

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/wheel"
)

// The media types of the simple API (PEP 691).
const (
	TypeJSON = "application/vnd.pypi.simple.v1+json"
	TypeHTML = "application/vnd.pypi.simple.v1+html"
	TypeText = "text/html"
)

// apiVersion is the version of the simple repository API that pages follow. HTML will
// stay at it (PEP 833).
const apiVersion = "1.4"

// pageFormat changes when pages say other things of the same catalog, so that the first change
// by a new version of the program writes all of them.
const pageFormat = "3"

// Format is a serialization of the simple repository API.
type Format int

// The formats.
const (
	HTML Format = iota // text/html and application/vnd.pypi.simple.v1+html
	JSON               // application/vnd.pypi.simple.v1+json
)

// AppendList appends the page that lists the projects of the view.
func (v *View) AppendList(dst []byte, format Format) []byte {
	entries := make([]listEntry, len(v.projects))
	for i, p := range v.projects {
		entries[i] = listEntry{p.Name, p.DisplayName}
	}
	return appendList(dst, format, entries)
}

// AppendProject appends the page of a project. alias is the path by which the view was
// reached; hosted files have relative links, which depend on it. It is not ok if the project
// is not in the view. Equal catalogs give equal bytes.
func (v *View) AppendProject(dst []byte, format Format, alias, project string) (page []byte, ok bool) {
	p := v.catalog.byName[project]
	if p == nil {
		return dst, false
	}
	members, ok := v.catalog.membersOf(p)[v.Path]
	if !ok {
		return dst, false
	}
	r := newRenderer(p, &v.catalog.config, members)
	return r.append(dst, format, v.Path, alias, members), true
}

// AppendVariants appends the file of all variants of a version of a project, called
// filename (PEP 825). It is not ok if there is no such file.
func (c *Catalog) AppendVariants(dst []byte, project, filename string) (doc []byte, ok bool) {
	p := c.byName[project]
	if p == nil || !c.config.Variants {
		return dst, false
	}
	for _, v := range p.variantFiles() {
		if v.filename == filename {
			return append(dst, v.data...), true
		}
	}
	return dst, false
}

// listEntry is a project on a list page.
type listEntry struct{ name, display string }

func listPages(entries []listEntry) []pageFile {
	return []pageFile{{name: htmlPage, data: appendList(nil, HTML, entries)}, {name: jsonPage, data: appendList(nil, JSON, entries)}}
}

func appendList(dst []byte, format Format, entries []listEntry) []byte {
	if format == JSON {
		dst = append(dst, `{"meta":{"api-version":"`+apiVersion+`"},"projects":[`...)
		for i, e := range entries {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"name":`...)
			dst = appendJSONString(dst, e.display)
			dst = append(dst, '}')
		}
		return append(dst, "]}\n"...)
	}
	dst = appendHead(dst, "Simple index", nil)
	for _, e := range entries {
		dst = append(dst, `<a href="`...)
		dst = appendHTML(dst, e.name)
		dst = append(dst, `/">`...)
		dst = appendHTML(dst, e.display)
		dst = append(dst, "</a><br>\n"...)
	}
	return append(dst, "</body>\n</html>\n"...)
}

// appendHead appends everything up to the first link. p is nil for lists.
func appendHead(dst []byte, title string, p *Project) []byte {
	dst = append(dst, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"+
		`<meta name="pypi:repository-version" content="`+apiVersion+"\">\n"...)
	if p != nil {
		dst = append(dst, `<meta name="pypi:project-status" content="`...)
		dst = appendHTML(dst, string(p.status()))
		dst = append(dst, "\">\n"...)
		if p.StatusReason != "" {
			dst = append(dst, `<meta name="pypi:project-status-reason" content="`...)
			dst = appendHTML(dst, p.StatusReason)
			dst = append(dst, "\">\n"...)
		}
	}
	dst = append(dst, "<title>"...)
	dst = appendHTML(dst, title)
	dst = append(dst, "</title>\n</head>\n<body>\n<h1>"...)
	dst = appendHTML(dst, title)
	return append(dst, "</h1>\n"...)
}

func (p *Project) status() Status {
	if p.Status == "" {
		return Active
	}
	return p.Status
}

// renderer makes the pages of one project in all views. What is said of a file is the same in
// all of them, apart from the way to hosted files, so it is written once.
type renderer struct {
	project  *Project
	html     []fragment // by index of the file
	json     []fragment
	versions []string // normal forms, by index of the file
	variants []variantFile
}

// fragment is the text about one file. The relative URL of the root of the index belongs at
// byte root, if that is not negative.
type fragment struct {
	text []byte
	root int
}

// variantFile is a document of PEP 825 that the index makes.
type variantFile struct {
	filename   string
	data       []byte
	html, json fragment
}

// newRenderer renders the given files.
func newRenderer(p *Project, config *Config, files []int32) *renderer {
	r := &renderer{
		project: p, html: make([]fragment, len(p.Files)), json: make([]fragment, len(p.Files)), versions: make([]string, len(p.Files)),
	}
	if p.Status == Quarantined {
		return r
	}
	// One block of memory for all fragments of a format.
	htmlBlock, jsonBlock := make([]byte, 0, len(files)*512), make([]byte, 0, len(files)*576)
	for _, i := range files {
		f := &p.Files[i]
		start := len(htmlBlock)
		url, hosted := f.URL(""), f.Base == ""
		var root int
		htmlBlock, root = appendAnchor(htmlBlock, f, url, hosted, config.OldMetadataAttribute)
		r.html[i] = fragment{htmlBlock[start:len(htmlBlock):len(htmlBlock)], root}
		start = len(jsonBlock)
		jsonBlock, root = appendObject(jsonBlock, f, url, hosted, p.built[i])
		r.json[i] = fragment{jsonBlock[start:len(jsonBlock):len(jsonBlock)], root}
		r.versions[i] = f.versionText()
	}
	if config.Variants {
		r.variants = p.variantFiles()
		for i := range r.variants {
			v := &r.variants[i]
			f := File{Filename: v.filename, SHA256: sha256.Sum256(v.data), Size: int64(len(v.data))}
			url := variantsView + "/simple/" + p.Name + "/" + escapeName(v.filename)
			v.html.text, v.html.root = appendAnchor(nil, &f, url, true, false)
			v.json.text, v.json.root = appendObject(nil, &f, url, true, Coordinates{})
		}
	}
	return r
}

// pages returns the pages for a view, reached at alias.
func (r *renderer) pages(path, alias string, files []int32) []pageFile {
	htmlSize, jsonSize := 1024, 1024
	for _, i := range files {
		htmlSize += len(r.html[i].text) + 3*(4+strings.Count(alias, "/")) // the way to the root
		jsonSize += len(r.json[i].text) + 3*(4+strings.Count(alias, "/")) + len(r.versions[i])/4
	}
	out := []pageFile{
		{name: htmlPage, data: r.append(make([]byte, 0, htmlSize), HTML, path, alias, files)},
		{name: jsonPage, data: r.append(make([]byte, 0, jsonSize), JSON, path, alias, files)},
	}
	if path == variantsView {
		for _, v := range r.variants {
			out = append(out, pageFile{name: v.filename, data: v.data})
		}
	}
	return out
}

// rootKey returns the relative URL on which pages of these files depend, "" if on none.
func (r *renderer) rootKey(alias string, files []int32) string {
	for _, i := range files {
		if r.html[i].root >= 0 {
			return rootURL(alias, 1)
		}
	}
	return ""
}

// append appends the page for a view, reached at alias.
func (r *renderer) append(dst []byte, format Format, path, alias string, files []int32) []byte {
	p := r.project
	root := rootURL(alias, 1)
	if p.Status == Quarantined {
		files = nil
	}
	variants := r.variants
	if path != variantsView && path != allView {
		variants = nil
	}
	if format == HTML {
		dst = appendHead(dst, "Links for "+p.DisplayName, p)
		for _, i := range files {
			dst = r.html[i].append(dst, root)
		}
		for i := range variants {
			dst = variants[i].html.append(dst, root)
		}
		return append(dst, "</body>\n</html>\n"...)
	}
	dst = append(dst, `{"meta":{"api-version":"`+apiVersion+`"},"name":`...)
	dst = appendJSONString(dst, p.Name)
	dst = append(dst, `,"files":[`...)
	for k, i := range files {
		if k > 0 {
			dst = append(dst, ',')
		}
		dst = r.json[i].append(dst, root)
	}
	for i := range variants {
		dst = append(dst, ',') // there is at least one variant wheel before
		dst = variants[i].json.append(dst, root)
	}
	dst = append(dst, `],"versions":[`...)
	for k, v := range r.uniqueVersions(files) {
		if k > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSONString(dst, v)
	}
	dst = append(dst, ']')
	dst = append(dst, `,"project-status":{"status":`...)
	dst = appendJSONString(dst, string(p.status()))
	if p.StatusReason != "" {
		dst = append(dst, `,"reason":`...)
		dst = appendJSONString(dst, p.StatusReason)
	}
	return append(dst, "}}\n"...)
}

// uniqueVersions returns the versions of files, each once, in the order of the files.
func (r *renderer) uniqueVersions(files []int32) []string {
	var out []string
	for _, i := range files {
		if v := r.versions[i]; !slices.Contains(out[max(0, len(out)-4):], v) && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func (f *fragment) append(dst []byte, root string) []byte {
	if f.root < 0 {
		return append(dst, f.text...)
	}
	dst = append(dst, f.text[:f.root]...)
	dst = append(dst, root...)
	return append(dst, f.text[f.root:]...)
}

// appendAnchor appends the link to a file and returns where the root of the index has to be
// inserted, or -1.
func appendAnchor(dst []byte, f *File, url string, hosted, oldAttribute bool) (text []byte, root int) {
	start := len(dst)
	dst = append(dst, `<a href="`...)
	root = -1
	if hosted {
		root = len(dst) - start
	}
	dst = appendHTML(dst, url)
	dst = append(dst, "#sha256="...)
	dst = hex.AppendEncode(dst, f.SHA256[:])
	dst = append(dst, '"')
	if f.RequiresPython != "" {
		dst = append(dst, ` data-requires-python="`...)
		dst = appendHTML(dst, f.RequiresPython)
		dst = append(dst, '"')
	}
	if !f.Metadata.IsZero() {
		dst = append(dst, ` data-core-metadata="sha256=`...)
		dst = hex.AppendEncode(dst, f.Metadata[:])
		dst = append(dst, '"')
		if oldAttribute {
			dst = append(dst, ` data-dist-info-metadata="sha256=`...)
			dst = hex.AppendEncode(dst, f.Metadata[:])
			dst = append(dst, '"')
		}
	}
	if f.Yanked {
		dst = append(dst, ` data-yanked="`...)
		dst = appendHTML(dst, f.YankedReason)
		dst = append(dst, '"')
	}
	if f.Provenance != "" {
		dst = append(dst, ` data-provenance="`...)
		dst = appendHTML(dst, f.Provenance)
		dst = append(dst, '"')
	}
	dst = append(dst, ` data-size="`...)
	dst = strconv.AppendInt(dst, f.Size, 10)
	dst = append(dst, '"')
	if !f.UploadTime.IsZero() {
		dst = append(dst, ` data-upload-time="`...)
		dst = appendTime(dst, f.UploadTime)
		dst = append(dst, '"')
	}
	dst = append(dst, '>')
	dst = appendHTML(dst, f.Filename)
	return append(dst, "</a><br>\n"...), root
}

// appendObject is appendAnchor for JSON.
func appendObject(dst []byte, f *File, url string, hosted bool, built Coordinates) (text []byte, root int) {
	start := len(dst)
	dst = append(dst, `{"filename":`...)
	dst = appendJSONString(dst, f.Filename)
	dst = append(dst, `,"url":`...)
	root = -1
	if hosted {
		root = len(dst) + 1 - start // after the quote
	}
	dst = appendJSONString(dst, url)
	dst = append(dst, `,"hashes":{"sha256":"`...)
	dst = hex.AppendEncode(dst, f.SHA256[:])
	dst = append(dst, `"}`...)
	if f.RequiresPython != "" {
		dst = append(dst, `,"requires-python":`...)
		dst = appendJSONString(dst, f.RequiresPython)
	}
	if !f.Metadata.IsZero() {
		dst = append(dst, `,"core-metadata":{"sha256":"`...)
		dst = hex.AppendEncode(dst, f.Metadata[:])
		dst = append(dst, `"}`...)
	}
	dst = append(dst, `,"size":`...)
	dst = strconv.AppendInt(dst, f.Size, 10)
	if !f.UploadTime.IsZero() {
		dst = append(dst, `,"upload-time":"`...)
		dst = appendTime(dst, f.UploadTime)
		dst = append(dst, '"')
	}
	switch {
	case f.Yanked && f.YankedReason != "":
		dst = append(dst, `,"yanked":`...)
		dst = appendJSONString(dst, f.YankedReason)
	case f.Yanked:
		dst = append(dst, `,"yanked":true`...)
	}
	if f.Provenance != "" {
		dst = append(dst, `,"provenance":`...)
		dst = appendJSONString(dst, f.Provenance)
	}
	dst = appendBuilt(dst, built, f)
	return append(dst, '}'), root
}

// appendBuilt appends the key in which JSON says what a file was built for. Installers ignore
// keys that begin with an underscore (PEP 691); [Remote] reads this one.
func appendBuilt(dst []byte, built Coordinates, f *File) []byte {
	if built.IsZero() && len(f.Arch) == 0 && f.Glibc == "" && len(f.Window) == 0 && len(f.Papers) == 0 {
		return dst
	}
	dst = append(dst, `,"_kiln":{`...)
	start := len(dst)
	comma := func() {
		if len(dst) > start {
			dst = append(dst, ',')
		}
	}
	list := func(key string, values []string) {
		if len(values) == 0 {
			return
		}
		comma()
		dst = appendJSONString(dst, key)
		dst = append(dst, ':', '[')
		for i, v := range values {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSONString(dst, v)
		}
		dst = append(dst, ']')
	}
	if built.Toolkit != "" {
		dst = append(dst, `"toolkit":`...)
		dst = appendJSONString(dst, built.Toolkit)
	}
	list("torch", built.Torch)
	list("arch", f.Arch)
	if f.Glibc != "" {
		comma()
		dst = append(dst, `"glibc":`...)
		dst = appendJSONString(dst, f.Glibc)
	}
	list("window", f.Window)
	if len(f.Papers) > 0 {
		comma()
		dst = append(dst, `"papers":{`...)
		for i, suffix := range slices.Sorted(maps.Keys(f.Papers)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSONString(dst, suffix)
			dst = append(dst, ':')
			dst = appendJSONString(dst, f.Papers[suffix].String())
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// timeFormat is that of PEP 700: UTC, at most microseconds.
const timeFormat = "2006-01-02T15:04:05.999999Z"

func appendTime(dst []byte, t time.Time) []byte { return t.UTC().AppendFormat(dst, timeFormat) }

// versionText returns the normal form of the version in the file name.
func (f *File) versionText() string {
	if f.IsWheel() {
		// Most names are canonical, and the version stands between the first two dashes.
		if _, rest, ok := strings.Cut(f.Filename, "-"); ok {
			text, _, _ := strings.Cut(rest, "-")
			if v, err := wheel.ParseVersion(text); err == nil {
				return v.String()
			}
		}
	}
	return f.Version().String()
}

// variantFiles makes the documents about the variants of each version.
func (p *Project) variantFiles() []variantFile {
	byVersion := map[string][]*Variant{}
	var order []string
	for i := range p.Files {
		if f := &p.Files[i]; f.Variant != nil {
			v := f.versionText()
			if byVersion[v] == nil {
				order = append(order, v)
			}
			byVersion[v] = append(byVersion[v], f.Variant)
		}
	}
	var out []variantFile
	for _, v := range order {
		data, err := mergeVariants(byVersion[v])
		if err != nil {
			continue // was refused when the file was published
		}
		out = append(out, variantFile{filename: wheel.FileName(p.Name) + "-" + v + "-variants.json", data: append(data, '\n')})
	}
	return out
}

// Bits of textClass: characters that need attention in HTML, and in JSON.
const (
	htmlSpecial = 1 << iota
	jsonSpecial
)

// textClass says of each byte whether it may stand for itself.
var textClass = func() (class [256]uint8) {
	for c := range class {
		if c < ' ' || c >= 0x7f {
			class[c] = htmlSpecial | jsonSpecial
		}
	}
	for _, c := range `&<>"'` {
		class[c] |= htmlSpecial
	}
	class['"'] |= jsonSpecial
	class['\\'] |= jsonSpecial
	return class
}()

// plainLen returns how many bytes s begins with that stand for themselves.
func plainLen(s string, special uint8) int {
	for i := range len(s) {
		if textClass[s[i]]&special != 0 {
			return i
		}
	}
	return len(s)
}

// appendHTML appends text for use between tags and in quoted attributes. Control
// characters, which HTML does not allow, become spaces.
func appendHTML(dst []byte, s string) []byte {
	i := plainLen(s, htmlSpecial)
	dst = append(dst, s[:i]...)
	for i < len(s) {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r >= 0x80 && r < 0xa0 {
				r = ' '
			}
			dst = utf8.AppendRune(dst, r) // U+FFFD for what is not UTF-8
			i += n
			continue
		}
		switch {
		case c == '&':
			dst = append(dst, "&amp;"...)
		case c == '<':
			dst = append(dst, "&lt;"...)
		case c == '>':
			dst = append(dst, "&gt;"...)
		case c == '"':
			dst = append(dst, "&quot;"...)
		case c == '\'':
			dst = append(dst, "&#39;"...)
		case c < ' ' || c == 0x7f:
			dst = append(dst, ' ')
		default:
			dst = append(dst, c)
		}
		i++
	}
	return dst
}

// appendJSONString appends a JSON string.
func appendJSONString(dst []byte, s string) []byte {
	const hexDigits = "0123456789abcdef"
	i := plainLen(s, jsonSpecial)
	dst = append(append(dst, '"'), s[:i]...)
	for i < len(s) {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		}
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ' || c == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			dst = append(dst, c)
		}
		i++
	}
	return append(dst, '"')
}

// viewSummary is what catalog.json says of a project in one view. Each field is a list, separated
// by commas.
type viewSummary struct {
	pythons, platforms, versions, arch string
}

// summarize describes files of a project for catalog.json.
func (p *Project) summarize(files []int32) viewSummary {
	pythons, platforms, arch := map[string]bool{}, map[string]bool{}, map[string]bool{}
	var versions []string
	if p.Status == Quarantined {
		return viewSummary{}
	}
	for _, i := range files {
		f := &p.Files[i]
		if f.Yanked {
			continue
		}
		if v := f.versionText(); !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
		for _, a := range f.Arch {
			arch[a] = true
		}
		if !f.IsWheel() {
			continue
		}
		// The tags are the last three parts of the name; cheaper than a whole Filename.
		parts := strings.Split(strings.TrimSuffix(f.Filename, ".whl"), "-")
		if f.Variant != nil {
			parts = parts[:len(parts)-1]
		}
		for tag := range strings.SplitSeq(parts[len(parts)-3], ".") {
			pythons[pythonVersion(tag)] = true
		}
		for tag := range strings.SplitSeq(parts[len(parts)-1], ".") {
			platforms[tag] = true
		}
	}
	join := func(list []string) string { return strings.Join(list, ",") }
	return viewSummary{
		join(slices.SortedFunc(maps.Keys(pythons), compareNatural)), join(slices.Sorted(maps.Keys(platforms))),
		join(versions), join(slices.SortedFunc(maps.Keys(arch), compareNatural)),
	}
}

// catalogView is a view in catalog.json.
type catalogView struct {
	Path, Toolkit, CUDA, Torch  string
	Aliases, Pythons, Platforms []string
	Projects                    []catalogProject
}

type catalogProject struct {
	name    string
	summary viewSummary
}

// AppendCatalog appends catalog.json, which lists the views of toolkits and what is in them, for
// scripts that look for the nearest one.
func (c *Catalog) AppendCatalog(dst []byte) []byte {
	var views []catalogView
	for _, v := range c.views {
		if v.Toolkit == "" {
			continue
		}
		var names []string
		if c.config.Aliases {
			names = v.Aliases
		}
		out := newCatalogView(v.Path, names)
		for _, p := range v.projects {
			out.add(p.Name, p.summarize(c.membersOf(p)[v.Path]))
		}
		views = append(views, out)
	}
	return appendCatalog(dst, &c.config, views)
}

func newCatalogView(path string, aliases []string) catalogView {
	at, _ := parseViewPath(path)
	cuda, _ := compat.ParseToolkitTag(at.toolkit)
	return catalogView{Path: path, Toolkit: at.toolkit, CUDA: cuda, Torch: at.torch, Aliases: aliases}
}

func (v *catalogView) add(project string, s viewSummary) {
	include := func(list []string, text, before string) []string {
		if text == "" || text == before {
			return list // as of most projects
		}
		for x := range strings.SplitSeq(text, ",") {
			if !slices.Contains(list, x) {
				list = append(list, x)
			}
		}
		return list
	}
	var last viewSummary
	if n := len(v.Projects); n > 0 {
		last = v.Projects[n-1].summary
	}
	v.Pythons, v.Platforms = include(v.Pythons, s.pythons, last.pythons), include(v.Platforms, s.platforms, last.platforms)
	v.Projects = append(v.Projects, catalogProject{project, s})
}

func appendCatalog(dst []byte, config *Config, views []catalogView) []byte {
	dst = append(dst, `{"kiln-catalog":1`...)
	if !config.Default.IsZero() {
		text, _ := json.Marshal(struct { // strings only, cannot fail
			Toolkit string `json:"accel,omitempty"`
			Torch   string `json:"torch,omitempty"`
		}{config.Default.Toolkit, strings.Join(config.Default.Torch, ",")})
		dst = append(append(dst, `,"default":`...), text...)
	}
	dst = append(dst, ",\n\"views\":["...)
	for i := range views {
		v := &views[i]
		slices.SortFunc(v.Pythons, compareNatural)
		slices.Sort(v.Platforms)
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, "\n{\"path\":"...)
		dst = appendJSONString(dst, v.Path)
		dst = append(dst, `,"accel":`...)
		dst = appendJSONString(dst, v.Toolkit)
		if v.CUDA != "" {
			dst = append(dst, `,"cuda":`...)
			dst = appendJSONString(dst, v.CUDA)
		}
		if v.Torch != "" {
			dst = append(dst, `,"torch":`...)
			dst = appendJSONString(dst, v.Torch)
		}
		dst = appendStrings(dst, `,"aliases":`, v.Aliases, true)
		dst = appendStrings(dst, `,"python":`, v.Pythons, false)
		dst = appendStrings(dst, `,"platforms":`, v.Platforms, false)
		dst = append(dst, `,"projects":[`...)
		for k, p := range v.Projects {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, "\n {\"name\":"...)
			dst = appendJSONString(dst, p.name)
			dst = appendSplit(append(dst, `,"versions":`...), p.summary.versions)
			if p.summary.arch != "" {
				dst = appendSplit(append(dst, `,"sm":`...), p.summary.arch)
			}
			dst = append(dst, '}')
		}
		dst = append(dst, `]}`...)
	}
	return append(dst, "]}\n"...)
}

func appendStrings(dst []byte, key string, list []string, omitEmpty bool) []byte {
	if omitEmpty && len(list) == 0 {
		return dst
	}
	dst = append(append(dst, key...), '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendJSONString(dst, s)
	}
	return append(dst, ']')
}

// appendSplit appends the list of what commas separate.
func appendSplit(dst []byte, text string) []byte {
	dst = append(dst, '[')
	for more := text != ""; more; {
		var x string
		x, text, more = strings.Cut(text, ",")
		dst = appendJSONString(dst, x)
		if more {
			dst = append(dst, ',')
		}
	}
	return append(dst, ']')
}
