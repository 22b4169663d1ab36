package web_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/web"
)

const hostile = `"><script>alert(1)</script>`

func testFile(name string) index.File {
	return index.File{
		Filename: name, SHA256: sha256.Sum256([]byte(name)), Size: int64(len(name)) * 1_234_567, RequiresPython: ">=3.9,<4",
		Metadata: sha256.Sum256([]byte("metadata of " + name)), UploadTime: time.Date(2026, 8, 1, 12, 30, 0, 0, time.UTC),
	}
}

// testCatalog is an index as people have it: several toolkits, gaps, a yanked file, an sdist, and
// texts that try to become markup.
func testCatalog() *index.Catalog {
	flash := &index.Project{Name: "flash-attn", DisplayName: "flash-attn"}
	for _, version := range []string{"2.8.3", "2.8.2", "2.9.0rc1"} {
		for _, build := range []struct {
			toolkit string
			torch   []string
		}{{"cu126", []string{"2.8", "2.9"}}, {"cu128", []string{"2.8", "2.9", "2.10"}}, {"cu130", []string{"2.9", "2.10"}}, {"rocm6.4", []string{"2.9"}}} {
			for _, torch := range build.torch {
				for _, python := range []string{"310", "311", "312", "313"} {
					platforms := []string{"manylinux_2_28_x86_64"}
					if build.toolkit == "cu128" || build.toolkit == "cu130" {
						platforms = append(platforms, "win_amd64")
					}
					if build.toolkit == "cu130" && torch == "2.10" {
						platforms = append(platforms, "manylinux_2_34_aarch64")
					}
					for _, platform := range platforms {
						if python == "310" && torch == "2.10" {
							continue // a gap
						}
						f := testFile(fmt.Sprintf("flash_attn-%s+%s.torch%s-cp%s-cp%s-%s.whl", version, build.toolkit, torch, python, python, platform))
						f.Arch = []string{"80", "86", "89", "90", "100", "120+PTX"}
						if build.toolkit == "rocm6.4" {
							f.Arch = []string{"gfx90a", "gfx942", "gfx1100"}
						}
						if build.toolkit == "cu128" && torch == "2.9" {
							f.Audit = []index.AuditResult{
								{Check: "symbols against torch 2.9", Result: "pass", Detail: "312 imported, all found"},
								{Check: "glibc", Result: "warn", Detail: "needs 2.28; the tag says so"},
								{Check: "GPU architectures", Result: "fail", Detail: "no code for sm_103 " + hostile},
							}
						}
						if version == "2.8.2" && build.toolkit == "cu126" {
							f.Yanked, f.YankedReason = true, "wrong head size "+hostile
						}
						flash.Files = append(flash.Files, f)
					}
				}
			}
		}
	}
	flash.Files = append(flash.Files, testFile("flash_attn-2.8.3.tar.gz"))
	projects := []*index.Project{flash}
	for _, p := range []struct{ name, version string }{{"exllamav2", "0.3.2"}, {"xformers", "0.0.33"}, {"causal-conv1d", "1.5.2"}, {"mamba-ssm", "2.2.5"}} {
		project := &index.Project{Name: p.name, DisplayName: p.name}
		for _, label := range []string{"cu128.torch2.9", "cu130.torch2.9"} {
			project.Files = append(project.Files, testFile(fmt.Sprintf("%s-%s+%s-cp312-cp312-linux_x86_64.whl", strings.ReplaceAll(p.name, "-", "_"), p.version, label)))
		}
		projects = append(projects, project)
	}
	projects = append(projects,
		&index.Project{Name: "kernels", DisplayName: "kernels " + hostile, Files: []index.File{testFile("kernels-0.9.0-py3-none-any.whl")}},
		&index.Project{Name: "old-kernels", DisplayName: "old-kernels", Status: index.Archived, StatusReason: "use kernels " + hostile, Files: []index.File{testFile("old_kernels-1.0-cp39-abi3-manylinux2014_x86_64.whl")}},
		&index.Project{Name: "suspicious", DisplayName: "suspicious", Status: index.Quarantined, StatusReason: "being looked at", Files: []index.File{testFile("suspicious-1.0-py3-none-any.whl")}},
		&index.Project{Name: "empty", DisplayName: "empty"},
	)
	for _, p := range projects {
		slices.SortFunc(p.Files, func(a, b index.File) int {
			if c := a.Version().Compare(b.Version()); c != 0 {
				return c
			}
			return strings.Compare(a.Filename, b.Filename)
		})
	}
	return index.NewCatalog(index.Config{Default: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9"}}}, projects)
}

func testOptions() web.Options {
	return web.Options{
		Title: "Example wheels",
	}
}

func get(t *testing.T, h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "wheels.example.org"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newHandler(t *testing.T) http.Handler {
	t.Helper()
	h, err := web.Handler(testCatalog(), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

const filePath = "/project/flash-attn/flash_attn-2.8.3%2Bcu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl/"

func TestHandler(t *testing.T) {
	h := newHandler(t)
	tests := []struct {
		path     string
		status   int
		location string
		has      []string
		hasNot   string
	}{
		{path: "/", status: 200, has: []string{"Example wheels", `href="./project/flash-attn/"`, "CUDA 12.8", "http://wheels.example.org/cu128/torch2.9/simple/", "2.8.3"}},
		{path: "/?q=mamba", status: 200, has: []string{"mamba-ssm", "1 package"}, hasNot: "xformers"},
		{path: "/?q=rocm+2.9", status: 200, has: []string{"flash-attn"}, hasNot: "xformers"},
		{path: "/?q=nothing+like+it", status: 200, has: []string{"Nothing found"}},
		{path: "/?q=" + url.QueryEscape(hostile), status: 200},
		{path: "/pick/", status: 200, has: []string{"<option value=\"flash-attn\">"}, hasNot: "suspicious"},
		{path: "/pick/?package=Flash_Attn", status: 302, location: "../project/flash-attn/"},
		{path: "/pick/?package=nope", status: 200, has: []string{"no package “nope”"}},
		{path: "/pick", status: 302, location: "pick/"},
		{path: "/project/", status: 302, location: "../"},
		{path: "/project/flash-attn", status: 302, location: "flash-attn/"},
		{path: "/project/Flash_Attn/", status: 302, location: "../flash-attn/"},
		{path: "/project/flash-attn/", status: 200, has: []string{
			"pip install flash-attn==2.8.3&#43;cu130.torch2.10 --only-binary flash-attn --extra-index-url http://wheels.example.org/cu130/torch2.10/simple/",
			"CUDA 13.0", "<caption", "yanked", "flash_attn-2.8.3.tar.gz",
		}},
		{path: "/project/flash-attn/?os=Windows+x64&python=3.12&toolkit=cu128&torch=2.9", status: 200, has: []string{
			"flash_attn-2.8.3&#43;cu128.torch2.9-cp312-cp312-win_amd64.whl</a>", "http://wheels.example.org/cu128/torch2.9/simple/",
		}},
		{path: "/project/flash-attn/?version=2.8.2&toolkit=rocm6.4", status: 200, has: []string{"pip install flash-attn==2.8.2&#43;rocm6.4.torch2.9 "}},
		{path: "/project/flash-attn/?version=nope&python=%3Cscript%3E", status: 200},
		{path: "/project/flash-attn/" + strings.Trim(filePath, "/"), status: 404},
		{path: strings.TrimSuffix(filePath, "/"), status: 302, location: strings.TrimPrefix(filePath, "/project/flash-attn/")},
		{path: filePath, status: 200, has: []string{
			"glibc 2.28 or newer", "sm_90", "Hopper", "sm_120 and PTX", "312 imported", "Download", ".metadata",
			"--hash=sha256:", "[tool.uv.sources]", "&gt;=3.9,&lt;4", "pip install torch==2.9.* --index-url https://download.pytorch.org/whl/cu128",
		}},
		{path: "/project/old-kernels/", status: 200, has: []string{"archived", "≥3.9"}},
		{path: "/project/suspicious/", status: 200, has: []string{"quarantined"}, hasNot: "suspicious-1.0"},
		{path: "/project/suspicious/suspicious-1.0-py3-none-any.whl/", status: 404},
		{path: "/project/empty/", status: 200, has: []string{"No files"}},
		{path: "/project/nope/", status: 404, has: []string{"There is no such page", "cu128/torch2.9"}},
		{path: "/cu128/torch2.9/requirements/flash-attn.txt", status: 200, has: []string{
			"--extra-index-url http://wheels.example.org/cu128/torch2.9/simple/\n--only-binary flash-attn\nflash-attn==2.8.3+cu128.torch2.9 \\\n    --hash=sha256:",
		}},
		{path: "/cu128-torch29/requirements/flash-attn.txt?version=2.8.3", status: 200, has: []string{"flash-attn==2.8.3+cu128.torch2.9"}},
		{path: "/cu128/torch2.9/pylock.flash-attn.toml", status: 200, has: []string{
			"lock-version = \"1.0\"", "version = \"2.8.3+cu128.torch2.9\"", "index = \"http://wheels.example.org/cu128/torch2.9/simple/\"",
			"name = \"flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl\"", "hashes = { sha256 = \"",
		}},
		{path: "/all/requirements/flash-attn.txt", status: 400, has: []string{"several builds", "2.8.3+cu128.torch2.9"}},
		{path: "/all/requirements/flash-attn.txt?version=2.8.3%2Bcu128.torch2.9", status: 200},
		{path: "/all/requirements/flash-attn.txt?version=x", status: 400},
		{path: "/cu128/torch2.9/requirements/nope.txt", status: 404},
		{path: "/cu999/requirements/flash-attn.txt", status: 404},
		{path: "/all/pylock.suspicious.toml", status: 404},
		{path: "/requirements/" + hostile + ".txt", status: 404},
		{path: "/nope" + hostile, status: 404},
		{path: "/static/", status: 404},
	}
	for _, test := range tests {
		got := get(t, h, (&url.URL{Path: "/"}).ResolveReference(mustParse(t, test.path)).String())
		if got.Code != test.status || got.Header().Get("Location") != test.location {
			t.Errorf("%s: %d %q, want %d %q", test.path, got.Code, got.Header().Get("Location"), test.status, test.location)
			continue
		}
		body := got.Body.String()
		for _, has := range test.has {
			if !strings.Contains(body, has) {
				t.Errorf("%s has no %q", test.path, has)
			}
		}
		if test.hasNot != "" && strings.Contains(body, test.hasNot) {
			t.Errorf("%s has %q", test.path, test.hasNot)
		}
		if strings.Contains(body, "<script>alert") || strings.Contains(body, `"><script`) {
			t.Errorf("%s: foreign text became markup", test.path)
		}
		if test.status == 200 && !strings.Contains(got.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: policy %q", test.path, got.Header().Get("Content-Security-Policy"))
		}
	}
}

func mustParse(t *testing.T, s string) *url.URL {
	t.Helper()
	path, query, _ := strings.Cut(s, "?")
	decoded, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	return &url.URL{Path: decoded, RawPath: strings.ReplaceAll(path, `"`, "%22"), RawQuery: query}
}

// TestCaching: a page that did not change is not sent again, and assets are kept for ever.
func TestCaching(t *testing.T) {
	h := newHandler(t)
	first := get(t, h, "/", "Accept-Encoding", "gzip")
	if first.Header().Get("Content-Encoding") != "gzip" {
		t.Errorf("coding %q", first.Header().Get("Content-Encoding"))
	}
	if again := get(t, h, "/", "Accept-Encoding", "gzip", "If-None-Match", first.Header().Get("ETag")); again.Code != 304 || again.Body.Len() > 0 {
		t.Errorf("%d with %d bytes, want 304", again.Code, again.Body.Len())
	}
	plain := get(t, h, "/")
	assets := regexp.MustCompile(`static/kiln\.[0-9a-f]{10}\.(css|js|svg)`).FindAllString(plain.Body.String(), -1)
	if len(assets) < 3 {
		t.Fatalf("assets %q", assets)
	}
	for _, a := range assets {
		if got := get(t, h, "/"+a); got.Code != 200 || !strings.Contains(got.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %q", a, got.Code, got.Header().Get("Cache-Control"))
		}
	}
}

// TestHostHeader: a client cannot put what it wants into a page.
func TestHostHeader(t *testing.T) {
	h := newHandler(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.Host = "evil.example/\"><script>"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if strings.Contains(w.Body.String(), "evil") {
		t.Error("the page has a host that cannot be one")
	}
}

// TestRender: the static pages are those of the handler, apart from the address, and every link
// of every page leads somewhere.
func TestRender(t *testing.T) {
	catalog := testCatalog()
	opts := testOptions()
	opts.BaseURL = "https://wheels.example.org/gpu/"
	files := map[string][]byte{}
	err := web.Render(catalog, opts, func(path string, data []byte) error {
		if _, ok := files[path]; ok {
			t.Errorf("%s is written twice", path)
		}
		files[path] = bytes.Clone(data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// Pages that are there need not be made; nothing else is different then.
	opts.Skip = func(p *index.Project) bool { return true }
	err = web.Render(catalog, opts, func(path string, data []byte) error {
		if strings.HasPrefix(path, "project/") || !bytes.Equal(files[path], data) {
			t.Errorf("%s is written, or differs", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := web.Handler(catalog, opts)
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	for name, data := range files {
		if !strings.HasSuffix(name, ".html") {
			continue
		}
		page := "/" + strings.TrimSuffix(name, "index.html")
		if name != "404.html" {
			served := get(t, h, (&url.URL{Path: page}).String())
			if diff := cmp.Diff(string(data), served.Body.String()); diff != "" {
				t.Errorf("%s differs from what is served (-file +served):\n%.2000s", name, diff)
			}
		}
		base := &url.URL{Path: page}
		for _, m := range link.FindAllStringSubmatch(string(data), -1) {
			u, err := base.Parse(strings.ReplaceAll(m[1], "&#43;", "+"))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if u.Host != "" {
				if name != "404.html" {
					t.Errorf("%s links to another host: %s", name, u)
				}
				continue
			}
			target := strings.TrimPrefix(u.Path, "/")
			if strings.HasSuffix(target, "/") || target == "" {
				target += "index.html"
			}
			api := strings.HasPrefix(target, "files/") || target == "catalog.json" || target == "simple/index.html"
			if _, ok := files[target]; !ok && !api {
				t.Errorf("%s links to %s, which does not exist", name, u)
			}
		}
	}
	if _, ok := files["project/suspicious/suspicious-1.0-py3-none-any.whl/index.html"]; ok {
		t.Error("a file in quarantine has a page")
	}
}

// TestPickerData: what the script reads is JSON, whatever the names.
func TestPickerData(t *testing.T) {
	h := newHandler(t)
	body := get(t, h, "/project/flash-attn/").Body.String()
	m := regexp.MustCompile(`(?s)<script type="application/json" data-builds>(.*?)</script>`).FindStringSubmatch(body)
	if m == nil {
		t.Fatal("no data")
	}
	var data struct {
		Project string
		Tables  [5][]string
		Rows    [][]any
	}
	if err := json.Unmarshal([]byte(m[1]), &data); err != nil {
		t.Fatal(err)
	}
	if data.Project != "flash-attn" || len(data.Rows) < 100 || len(data.Tables[0]) != 3 {
		t.Errorf("project %s, %d rows, versions %q", data.Project, len(data.Rows), data.Tables[0])
	}
}

func BenchmarkProjectPage(b *testing.B) {
	p := &index.Project{Name: "big", DisplayName: "big"}
	for i := range 2000 {
		p.Files = append(p.Files, testFile(fmt.Sprintf("big-1.%d+cu12%d.torch2.%d-cp31%d-cp31%d-linux_x86_64.whl", i/100, i/50%2+8, i/10%5+5, i%5, i%5)))
	}
	make, err := web.Maker(web.Options{})
	if err != nil {
		b.Fatal(err)
	}
	catalog := index.NewCatalog(index.Config{}, []*index.Project{p})
	for b.Loop() {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/project/big/", nil)
		w := httptest.NewRecorder()
		make(catalog).ServeHTTP(w, r)
		_, _ = io.Copy(io.Discard, w.Body)
	}
}

// TestHosts: what clients write into the Host header and the query does not fill the memory.
func TestHosts(t *testing.T) {
	h, err := web.Handler(testCatalog(), web.Options{})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	ask := func(host, query string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/project/flash-attn/"+query, nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	first := ask("a.example", "").Body.String()
	before := heap()
	for i := range 300 {
		if body := ask(fmt.Sprintf("h%d.example", i), "").Body.String(); !strings.Contains(body, fmt.Sprintf("http://h%d.example/", i)) {
			t.Fatal("the page does not name the host it was asked for")
		}
	}
	after := heap()
	if page := uint64(len(first)); after > before+30*page {
		t.Errorf("300 hosts took %d bytes, a page has %d", after-before, page)
	}
	if got := ask("a.example", "?x=1&utm=2"); got.Body.String() != first {
		t.Error("an unknown part of a query changes the page")
	}
	runtime.KeepAlive(h)
}

// TestGzipRefused: "gzip;q=0" means without it.
func TestGzipRefused(t *testing.T) {
	h, err := web.Handler(testCatalog(), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	for accept, want := range map[string]string{"gzip": "gzip", "gzip;q=0": "", "gzip; q=0, *": "", "": "", "br": ""} {
		if got := get(t, h, "/", "Accept-Encoding", accept).Header().Get("Content-Encoding"); got != want {
			t.Errorf("Accept-Encoding %q: %q, want %q", accept, got, want)
		}
	}
}

// TestCPUBuild: a wheel without a label that was looked into and has no code for a GPU is a CPU
// build. One that was not looked into, or is pure Python, may be for anything.
func TestCPUBuild(t *testing.T) {
	audited := []index.AuditResult{{Check: "libraries", Result: "pass"}}
	for _, c := range []struct {
		name  string
		arch  []string
		audit []index.AuditResult
		want  string
	}{
		{"tiny-1.0-cp312-cp312-linux_x86_64.whl", nil, audited, "CPU"},
		{"tiny-1.0-cp312-cp312-linux_x86_64.whl", []string{"9.0"}, audited, "any"},
		{"tiny-1.0-cp312-cp312-linux_x86_64.whl", nil, nil, "any"},
		{"tiny-1.0-py3-none-any.whl", nil, audited, "any"},
		{"tiny-1.0+cu128-cp312-cp312-linux_x86_64.whl", nil, audited, "CUDA 12.8"},
	} {
		f := testFile(c.name)
		f.Arch, f.Audit = c.arch, c.audit
		h, err := web.Handler(index.NewCatalog(index.Config{}, []*index.Project{{Name: "tiny", DisplayName: "tiny", Files: []index.File{f}}}), testOptions())
		if err != nil {
			t.Fatal(err)
		}
		page := get(t, h, "/project/tiny/").Body.String()
		if !strings.Contains(page, "<th scope=\"row\">"+c.want) {
			t.Errorf("%s %v: want %s in\n%s", c.name, c.arch, c.want, page)
		}
	}
}
