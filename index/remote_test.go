package index_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
)

func TestInstallLines(t *testing.T) {
	f := file("flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-linux_x86_64.whl")
	g := file("flash_attn-2.8.3+cu128.torch2.9-cp313-cp313-linux_x86_64.whl")
	hashes := []string{f.SHA256.String(), g.SHA256.String()}
	if hashes[0] > hashes[1] {
		hashes[0], hashes[1] = hashes[1], hashes[0]
	}
	const simple = "https://HOST/cu128/torch2.9/simple/"
	want := index.Install{
		Pip: "pip install flash-attn==2.8.3+cu128.torch2.9 --only-binary flash-attn --extra-index-url " + simple,
		UV:  "uv pip install flash-attn==2.8.3+cu128.torch2.9 --index " + simple,
		UVProject: `[project]
dependencies = ["flash-attn==2.8.3+cu128.torch2.9"]

[[tool.uv.index]]
name = "kiln-cu128-torch29"
url = "` + simple + `"
explicit = true

[tool.uv.sources]
flash-attn = { index = "kiln-cu128-torch29" }
`,
		Poetry: "poetry source add --priority=explicit kiln-cu128-torch29 " + simple + "\npoetry add --source kiln-cu128-torch29 flash-attn==2.8.3+cu128.torch2.9",
		Requirements: "--extra-index-url " + simple + "\n--only-binary flash-attn\nflash-attn==2.8.3+cu128.torch2.9 \\\n    --hash=sha256:" +
			hashes[0] + " \\\n    --hash=sha256:" + hashes[1] + "\n",
	}
	if diff := cmp.Diff(want, index.InstallLines("flash-attn", simple, &f, &g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRemoteHTML: an index of another program, with pages as people write them.
func TestRemoteHTML(t *testing.T) {
	page := `<!DOCTYPE html><html><body><!-- <a href="no.whl">no.whl</a> -->
<A class=x HREF='../../packages/fa-1.0-py3-none-any.whl#sha256=` + strings.Repeat("ab", 32) + `' data-requires-python="&gt;=3.8">fa-1.0-py3-none-any.whl</A>
<a href="https://example.org/fa-1.1-py3-none-any.whl" data-yanked="bad &amp; old">fa-1.1-py3-none-any.whl</a><a>no link</a><a href=x>readme</a>
<abbr href="fa-9-py3-none-any.whl">fa-9-py3-none-any.whl</abbr>`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/root/pypi/fa/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, page)
	}))
	defer server.Close()
	remote, err := index.OpenRemote(t.Context(), server.Client(), server.URL+"/root/pypi")
	if err != nil {
		t.Fatal(err)
	}
	files, err := remote.Files(t.Context(), "fa")
	if err != nil {
		t.Fatal(err)
	}
	sum, _ := index.ParseDigest(strings.Repeat("ab", 32))
	want := []*index.File{
		{Filename: "fa-1.0-py3-none-any.whl", Base: server.URL + "/root/packages/", SHA256: sum, RequiresPython: ">=3.8"},
		{Filename: "fa-1.1-py3-none-any.whl", Base: "https://example.org/", Yanked: true, YankedReason: "bad & old"},
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := remote.SimpleURL(index.Coordinates{Toolkit: "cu128"}, "2.9"); got != server.URL+"/root/pypi/" {
		t.Errorf("install from %s", got)
	}
}

// TestLargeHTMLPage: pages of projects with many files are read in one pass, without a copy of the
// rest of the page for every file.
func TestLargeHTMLPage(t *testing.T) {
	const files = 20_000
	var page bytes.Buffer
	page.WriteString("<!DOCTYPE html><html><body>\n")
	for i := range files {
		fmt.Fprintf(&page, "<a href=\"../../packages/demo-1.%d-py3-none-any.whl#sha256=%064d\" data-requires-python=\"&gt;=3.8\">demo-1.%d-py3-none-any.whl</a><br>\n", i, i, i)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/simple/demo/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write(page.Bytes())
	}))
	defer server.Close()
	remote, err := index.OpenRemote(t.Context(), server.Client(), server.URL+"/simple/")
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := remote.Files(t.Context(), "demo")
	runtime.ReadMemStats(&after)
	if err != nil || len(got) != files {
		t.Fatalf("%d files, %v", len(got), err)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 200<<20 {
		t.Errorf("reading a page of %d bytes allocated %d", page.Len(), allocated)
	}
}
