package serve_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
)

// TestPaperUploads: what goes with a wheel is taken after it, served beside it, and nothing else is.
func TestPaperUploads(t *testing.T) {
	f := newFixture(t, serve.Options{})
	name := "demo-1.0-py3-none-any.whl"
	bom := []byte(`{"bomFormat": "CycloneDX"}`)
	paper := func(file string, content []byte) *form {
		m := f.form(name, content)
		m.filename = file
		return m.set("filetype", "paper").set("sha256_digest", sum(content))
	}
	if a := f.upload(paper(name+".cdx.json", bom)); a.StatusCode != http.StatusBadRequest || !strings.Contains(a.body, "upload that first") {
		t.Errorf("before its wheel: %d %s", a.StatusCode, a.body)
	}
	if a := f.upload(f.form(name, indextest.Wheel(t, name, nil))); a.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	for what, test := range map[string]struct {
		form   *form
		status int
		says   string
	}{
		"no bill":        {paper(name+".cdx.json", []byte("{}")), http.StatusBadRequest, "is no bill of materials"},
		"no statement":   {paper(name+".intoto.jsonl", []byte("{}")), http.StatusBadRequest, "statement"},
		"too large":      {paper(name+".cdx.json", bytes.Repeat([]byte{' '}, index.MaxPaper+1)), http.StatusRequestEntityTooLarge, "larger"},
		"not as a wheel": {paper(name+".cdx.json", bom).set("filetype", "bdist_wheel"), http.StatusBadRequest, "filetype"},
		"of an sdist":    {paper("demo-1.0.tar.gz.cdx.json", bom), http.StatusBadRequest, "neither a wheel"},
		"another suffix": {paper(name+".asc", bom), http.StatusBadRequest, "neither a wheel"},
	} {
		if a := f.upload(test.form); a.StatusCode != test.status || !strings.Contains(a.body, test.says) {
			t.Errorf("%s: %d %s", what, a.StatusCode, a.body)
		}
	}
	for _, want := range []string{"added", "unchanged"} {
		if a := f.upload(paper(name+".cdx.json", bom)); a.StatusCode != http.StatusOK || !strings.HasPrefix(a.body, want) {
			t.Errorf("%d %s, want %s", a.StatusCode, a.body, want)
		}
	}
	file := f.server.Catalog().Project("demo").File(name)
	if a := f.do(http.MethodGet, file.URL("/")+".cdx.json"); a.StatusCode != http.StatusOK || a.body != string(bom) || !strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") {
		t.Errorf("%d %s %s", a.StatusCode, a.Header, a.body)
	}
	if a := f.do(http.MethodGet, file.URL("/")+".intoto.jsonl"); a.StatusCode != http.StatusNotFound {
		t.Errorf("a paper that is not there: %d", a.StatusCode)
	}
	if a := f.do(http.MethodGet, "/all/simple/demo/", "Accept", index.TypeJSON); !strings.Contains(a.body, `"papers":{".cdx.json":"`+sum(bom)+`"}`) {
		t.Errorf("the page does not say it: %s", a.body)
	}
	f.consistent()
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
