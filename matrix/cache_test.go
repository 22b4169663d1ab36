package matrix_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/matrix"
)

func TestParseCacheAddress(t *testing.T) {
	for _, tt := range []struct{ text, url, attributes, err string }{
		{text: "http://cache.example.org", url: "http://cache.example.org"},
		{text: "https://cache.example.org:8443/a/b|layout=bazel|read-only=true", url: "https://cache.example.org:8443/a/b", attributes: "layout=bazel read-only=true"},
		{text: " redis://[::1]:6379/2 | connect-timeout=100", url: "redis://[::1]:6379/2", attributes: "connect-timeout=100"},
		{text: "", err: "the address has no scheme; use http, https or redis"},
		{text: "cache.example.org", err: "the address has no scheme; use http, https or redis"},
		{text: "ftp://cache.example.org", err: "ftp:// is not known; use http, https or redis"},
		{text: "file:///cache", err: "file:// is not known; use http, https or redis"},
		{text: "http://", err: "the address names no host"},
		{text: "http://:80", err: "the address names no host"},
		{text: "http://ho st/", err: "the address cannot be read"},
		{text: "http://host:port", err: "the address cannot be read"},
		{text: "http://host/?token=hunter2", err: "the address has a query or a fragment, which a cache has not; attributes stand behind |"},
		{text: "http://user:hunter2@host", err: "the address holds credentials; they belong into the environment"},
		{text: "redis://:hunter2@host", err: "the address holds credentials; they belong into the environment"},
		{text: "http://user:hun%ter2@host", err: "the address holds credentials; they belong into the environment"},
		{text: "http://host|bearer-token=hunter2", err: "the address holds credentials; they belong into the environment"},
		{text: "http://host|header=hunter2", err: "the address holds credentials; they belong into the environment"},
		{text: "http://host|hunter2", err: "an attribute is not NAME=VALUE, such as layout=bazel"},
		{text: "http://host|", err: "an attribute is not NAME=VALUE, such as layout=bazel"},
		{text: "http://host|layout=", err: "an attribute is not NAME=VALUE, such as layout=bazel"},
	} {
		got, err := matrix.ParseCacheAddress(tt.text)
		if err != nil {
			if diff := cmp.Diff(tt.err, err.Error()); diff != "" {
				t.Errorf("%q (-want +got):\n%s", tt.text, diff)
			}
			continue
		}
		if tt.err != "" || got.URL.String() != tt.url || strings.Join(got.Attributes, " ") != tt.attributes {
			t.Errorf("%q: %s %q, want %s %q %s", tt.text, got.URL, got.Attributes, tt.url, tt.attributes, tt.err)
		}
	}
}

// What is wrong with the address is said with its place, and a secret is not shown.
func TestCache(t *testing.T) {
	const packages = "packages: {demo: {versions: [\"1.0\"]}}\n"
	for _, tt := range []struct{ name, yml, want string }{
		{
			"scheme", "cache:\n  remote: \"ftp://cache.example.org\"\n",
			"packages.yml:2:11: error: ftp:// is not known; use http, https or redis\n  2 |   remote: \"ftp://cache.example.org\"\n    |           ^^^^^^^^^^^^^^^^^^^^^^^^^\n" +
				"  hint: write \"https://HOST/PATH|layout=bazel\" or \"redis://HOST:PORT/DB\"\n",
		},
		{
			"password", "cache: {remote: \"https://ci:hunter2@cache.example.org\"}\n",
			"packages.yml:1:17: error: the address holds credentials; they belong into the environment\n  hint: set KILN_CACHE_USER and KILN_CACHE_PASSWORD, or KILN_CACHE_TOKEN\n",
		},
		{
			"token", "cache: {remote: \"https://cache.example.org|bearer-token=hunter2\"}\n",
			"packages.yml:1:17: error: the address holds credentials; they belong into the environment\n  hint: set KILN_CACHE_USER and KILN_CACHE_PASSWORD, or KILN_CACHE_TOKEN\n",
		},
		{
			"key", "cache: {remot: \"https://cache.example.org\"}\n",
			"packages.yml:1:9: error: unknown key \"remot\"\n  1 | cache: {remot: \"https://cache.example.org\"}\n    |         ^^^^^\n  hint: did you mean \"remote\"?\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := []byte(tt.yml + packages)
			file, list := matrix.Parse("packages.yml", text)
			if file != nil {
				t.Error("the file was taken")
			}
			var out bytes.Buffer
			if err := (&diag.Printer{Sources: map[string][]byte{"packages.yml": text}}).Print(&out, list); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	file, list := matrix.Parse("packages.yml", []byte("cache: {remote: \"redis://cache.example.org/1\"}\n"+packages))
	if list.HasErrors() || file.Cache() != (matrix.CacheSettings{Remote: "redis://cache.example.org/1"}) {
		t.Errorf("%v, %+v", list, file)
	}
}

func FuzzParseCacheAddress(f *testing.F) {
	f.Add("https://cache.example.org/kiln|layout=bazel|read-only=true")
	f.Add("redis://:secret@host:6379/1")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := matrix.ParseCacheAddress(text)
		if err != nil {
			return
		}
		if a.URL.User != nil || a.URL.Host == "" {
			t.Errorf("%q gives %s", text, a.URL)
		}
		// It is given on by a flag.
		again, err := matrix.ParseCacheAddress(strings.Join(append([]string{a.URL.String()}, a.Attributes...), "|"))
		if err != nil || again.URL.String() != a.URL.String() {
			t.Errorf("%q is read as %s, then as %v, %v", text, a.URL, again, err)
		}
	})
}
