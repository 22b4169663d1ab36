package publish_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/publish/publishtest"
)

// shape is one operation of GitHub's REST API, as its published description has it (version
// 2022-11-28).
type shape struct {
	Operation string   `json:"operation"` // its name in the description
	Method    string   `json:"method"`
	Path      string   `json:"path"`
	Query     []string `json:"query"`
	Required  []string `json:"required"`
	Body      []string `json:"body"`
	Status    []int    `json:"status"`
	Accept    string   `json:"accept"`
	Binary    bool     `json:"binary"`
}

func readShapes(t *testing.T) []shape {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "github-api.json"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Operations []shape }
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Operations
}

// pattern turns a path of the description into a regular expression.
func (s *shape) pattern() *regexp.Regexp {
	p := regexp.QuoteMeta(s.Path)
	p = regexp.MustCompile(`\\\{ref\\\}`).ReplaceAllString(p, `.+`)
	p = regexp.MustCompile(`\\\{(release_id|asset_id)\\\}`).ReplaceAllString(p, `\d+`)
	p = regexp.MustCompile(`\\\{[a-z_]+\\\}`).ReplaceAllString(p, `[^/]+`)
	return regexp.MustCompile("^" + p + "$")
}

// checkShapes compares every request with the published description of the API.
func checkShapes(t *testing.T, log []publishtest.Request) {
	t.Helper()
	shapes := readShapes(t)
	complained := map[string]bool{}
	complain := func(r publishtest.Request, format string, args ...any) {
		if key := r.Method + r.Path + format; !complained[key] && len(complained) < 20 {
			complained[key] = true
			t.Errorf(r.Method+" "+r.Path+": "+format, args...)
		}
	}
	for _, r := range log {
		if strings.HasPrefix(r.Path, "/blob/") { // where downloads are redirected to
			if r.Authorization != "" {
				complain(r, "the token was sent to another host")
			}
			continue
		}
		i := slices.IndexFunc(shapes, func(s shape) bool { return s.Method == r.Method && s.pattern().MatchString(r.Path) })
		if i < 0 {
			complain(r, "the API has no such operation")
			continue
		}
		s := shapes[i]
		for name := range r.Query {
			if !slices.Contains(s.Query, name) {
				complain(r, "query %s is not of %s", name, s.Operation)
			}
		}
		for _, name := range r.Body {
			if !slices.Contains(s.Body, name) {
				complain(r, "the body has %s, which is not of %s", name, s.Operation)
			}
		}
		for _, name := range s.Required {
			if !slices.Contains(r.Body, name) && r.Query[name] == "" && r.Status < 400 {
				complain(r, "%s is missing", name)
			}
		}
		if r.Status < 500 && !slices.Contains(s.Status, r.Status) && r.Status != 400 {
			complain(r, "status %d is not of %s", r.Status, s.Operation)
		}
		if r.Version == "" {
			complain(r, "no X-GitHub-Api-Version")
		}
		if r.Authorization != "Bearer "+publishtest.Token {
			complain(r, "authorization %q", r.Authorization)
		}
		if s.Binary && (r.ContentType == "" || r.ContentType == "application/json" && !strings.HasSuffix(r.Query["name"], ".json")) {
			complain(r, "content type %q", r.ContentType)
		}
		if s.Binary && r.ContentLength < 0 {
			complain(r, "no Content-Length, which uploads need")
		}
		if r.Accept != "application/vnd.github+json" && r.Accept != "application/octet-stream" && !strings.HasPrefix(r.Accept, "application/vnd.github") {
			complain(r, "accept %q", r.Accept)
		}
	}
}
