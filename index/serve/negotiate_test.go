package serve

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func TestNegotiate(t *testing.T) {
	j, h, latest := index.TypeJSON, index.TypeHTML, "application/vnd.pypi.simple.latest+json"
	tests := []struct {
		accept, query string
		want          string // "" is a 406
	}{
		{accept: "", want: index.TypeText},
		{accept: "*/*", want: index.TypeText},
		{accept: " , ", want: index.TypeText},
		{accept: j + ", " + h + "; q=0.1, text/html; q=0.01", want: j}, // pip
		{accept: j + ", " + h + ";q=0.2, text/html;q=0.01", want: j},   // uv
		{accept: j + ", */*;q=0.1", want: j},                           // poetry
		{accept: "text/html;q=0.9, " + j + ";q=0.5", want: index.TypeText},
		{accept: j + ", text/html", want: j},
		{accept: h + ", text/html", want: h},
		{accept: j + ";q=0, text/html", want: index.TypeText},
		{accept: j + ";q=0, */*", want: index.TypeText},
		{accept: latest, want: j},
		{accept: strings.ToUpper(latest), want: j},
		{accept: "application/*", want: h},
		{accept: "text/*", want: index.TypeText},
		{accept: "*/*;q=0.1, text/html;q=0", want: h},
		{accept: "*/*, " + j + ";q=0.1", want: index.TypeText},
		{accept: "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", want: index.TypeText},
		{accept: "application/json", want: ""},
		{accept: "text/html;q=0", want: ""},
		{accept: "text/html;level=1;q=0.5", want: index.TypeText},
		{accept: "text/html;q=2", want: ""},
		{accept: "text/html;q=x, " + j + ";q=0.1", want: j},
		{accept: "text/html;q=0.0001", want: ""},
		{accept: "text/html ; q = 0.5 , " + j + "\t;\tq=0.6", want: j},
		{accept: strings.Repeat("a/b,", 100) + j, want: index.TypeText},
		{accept: strings.Repeat("a", 9000), want: index.TypeText},
		{accept: j, query: "format=text/html", want: index.TypeText},
		{accept: "application/json", query: "x=1&format=application/vnd.pypi.simple.v1+json", want: j},
		{query: "format=application%2Fvnd.pypi.simple.v1%2Bhtml", want: h},
		{query: "format=json", want: ""},
		{query: "format=", want: ""},
		{query: "format=%zz", want: ""},
	}
	for _, test := range tests {
		header := http.Header{}
		if test.accept != "" {
			header.Set("Accept", test.accept)
		}
		got := ""
		if r, ok := negotiate(header, test.query); ok {
			got = repTypes[r]
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("Accept %.80q, query %q (-want +got):\n%s", test.accept, test.query, diff)
		}
	}
}

// TestNegotiateOrder: the order of the ranges in a header has no meaning.
func TestNegotiateOrder(t *testing.T) {
	ranges := []string{index.TypeJSON, index.TypeHTML, index.TypeText, "*/*", "application/*", "text/*", "a/b", "application/vnd.pypi.simple.latest+html"}
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
			return rapid.SampledFrom(ranges).Draw(t, "range") + rapid.SampledFrom([]string{"", ";q=0", ";q=0.5", ";q=1.000", ";q=.5"}).Draw(t, "q")
		}), 1, 8).Draw(t, "parts")
		r, ok := negotiateAccept(strings.Join(parts, ","))
		rand.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		if r2, ok2 := negotiateAccept(strings.Join(parts, ", ")); r != r2 || ok != ok2 {
			t.Fatalf("%q: %v %v, in another order %v %v", parts, r, ok, r2, ok2)
		}
	})
}

func FuzzNegotiate(f *testing.F) {
	f.Add("application/json;q=0.5, */*", "format=x")
	f.Add(";;=,q=;", "&format")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, accept, query string) {
		r, ok := negotiate(http.Header{"Accept": {accept}}, query)
		if ok && (r < 0 || r >= repCount) {
			t.Errorf("representation %d", r)
		}
	})
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"":                            false,
		"gzip, deflate":               true,
		"gzip, deflate, zstd":         true,
		"identity":                    false,
		"gzip;q=0":                    false,
		"gzip;q=0, *":                 false,
		"*":                           true,
		"*;q=0":                       false,
		"br;q=1.0, GZIP;q=0.5, *;q=0": true,
		"gzip;q=bad":                  false,
	} {
		h := http.Header{}
		if header != "" {
			h.Set("Accept-Encoding", header)
		}
		if got := AcceptsGzip(h); got != want {
			t.Errorf("Accept-Encoding %q: %v, want %v", header, got, want)
		}
	}
}
