package index_test

import (
	"crypto/sha256"
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// hostile is text that would break out of an attribute or a string.
const hostile = `"><script>alert('1')</script>&amp;` + "\u2028\u0085\\"

func samplePage(t testing.TB) *index.View {
	t.Helper()
	hosted := file("flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-linux_x86_64.whl")
	hosted.Base = ""
	hosted.Metadata = sha256.Sum256([]byte("metadata"))
	hosted.RequiresPython = ">=3.9,<4"
	hosted.Arch = []string{"80", "90a"}
	yanked := file("flash_attn-2.8.2+cu128.torch2.9-cp312-cp312-linux_x86_64.whl")
	yanked.Yanked, yanked.YankedReason = true, hostile
	yanked.UploadTime = time.Date(2026, 8, 1, 12, 0, 0, 120_000_000, time.UTC)
	silent := file("flash_attn-2.8.1.tar.gz")
	silent.Yanked, silent.Provenance = true, "https://example.org/p?x=1"
	p := project("flash-attn", hosted, yanked, silent)
	p.DisplayName, p.Status, p.StatusReason = "Flash.Attn", index.Deprecated, "moved <away>"
	return index.NewCatalog(index.Config{}, []*index.Project{p}).View("all")
}

func TestProjectPage(t *testing.T) {
	v := samplePage(t)
	for _, test := range []struct {
		golden string
		format index.Format
	}{{"project.html", index.HTML}, {"project.json", index.JSON}} {
		got, ok := v.AppendProject(nil, test.format, "all", "flash-attn")
		if !ok {
			t.Fatal("not in the view")
		}
		kilntest.Golden(t, "testdata/pages/"+test.golden, got)
	}
	if _, ok := v.AppendProject(nil, index.HTML, "all", "nothing"); ok {
		t.Error("a page of a project that is not there")
	}
	list := string(v.AppendList(nil, index.HTML))
	if !strings.Contains(list, `<a href="flash-attn/">Flash.Attn</a><br>`) {
		t.Error(list)
	}
	if got := string(v.AppendList(nil, index.JSON)); got != `{"meta":{"api-version":"1.4"},"projects":[{"name":"Flash.Attn"}]}`+"\n" {
		t.Error(got)
	}
}

var (
	anchor    = regexp.MustCompile(`^<a href="([^"<>]*)"((?: [a-z-]+="[^"<>]*")*)>([^"<>]*)</a><br>$`)
	attribute = regexp.MustCompile(` ([a-z-]+)="([^"]*)"`)
)

// readHTML reads a page back the strict way: every line of the body is one link with quoted
// attributes and no other markup.
func readHTML(t testing.TB, page string) (links []map[string]string) {
	t.Helper()
	_, body, ok := strings.Cut(page, "</h1>\n")
	body, tail, ok2 := strings.Cut(body, "</body>")
	if !ok || !ok2 || tail != "\n</html>\n" {
		t.Fatalf("not a page:\n%s", page)
	}
	for line := range strings.Lines(body) {
		m := anchor.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			t.Fatalf("not one link: %q", line)
		}
		link := map[string]string{"href": html.UnescapeString(m[1]), "text": html.UnescapeString(m[3])}
		for _, a := range attribute.FindAllStringSubmatch(m[2], -1) {
			link[a[1]] = html.UnescapeString(a[2])
		}
		links = append(links, link)
	}
	return links
}

// FuzzPage: whatever a file says, HTML and JSON stay well-formed and say the same.
func FuzzPage(f *testing.F) {
	f.Add("reason", ">=3.9", "https://example.org/w/", "why")
	f.Add(hostile, "<4", "/x/", "\x00\xff\r\n")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, reason, requires, base, status string) {
		a := file("fa-1.0-py3-none-any.whl")
		a.Yanked, a.YankedReason, a.RequiresPython, a.Base = true, reason, requires, base
		p := project("fa", a)
		p.StatusReason = status
		v := index.NewCatalog(index.Config{}, []*index.Project{p}).View("all")
		page, _ := v.AppendProject(nil, index.HTML, "all", "fa")
		links := readHTML(t, string(page))
		if len(links) != 1 || links[0]["text"] != a.Filename {
			t.Fatalf("links %q", links)
		}
		page, _ = v.AppendProject(nil, index.JSON, "all", "fa")
		var doc struct {
			Files []struct {
				URL    string `json:"url"`
				Yanked any    `json:"yanked"`
			} `json:"files"`
			Versions []string `json:"versions"`
		}
		if err := json.Unmarshal(page, &doc); err != nil {
			t.Fatalf("%v:\n%s", err, page)
		}
		if len(doc.Files) != 1 || len(doc.Versions) != 1 {
			t.Fatalf("%s", page)
		}
		yanked := any(strings.ToValidUTF8(reason, "\ufffd"))
		if reason == "" {
			yanked = true
		}
		if got, ok := doc.Files[0].Yanked.(string); ok && len(got) != len(yanked.(string)) && strings.ToValidUTF8(reason, "") == reason {
			t.Fatalf("yanked is %q, want %q", got, yanked)
		}
	})
}
