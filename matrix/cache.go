package matrix

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// CacheSettings are `cache` of packages.yml.
type CacheSettings struct {
	// Remote is the address of a compile cache that machines share, as [ParseCacheAddress] reads
	// it; empty if there is none.
	Remote string
}

// Cache returns where compiled code is kept.
func (f *File) Cache() CacheSettings { return f.cache }

// CacheAddress is where a compile cache for several machines is.
type CacheAddress struct {
	// URL has the scheme http, https or redis, a host, and no credentials.
	URL *url.URL
	// Attributes are ccache's, such as layout=bazel.
	Attributes []string
}

// errCacheCredentials is the error for an address that holds a secret: its text must not be shown.
var errCacheCredentials = errors.New("the address holds credentials; they belong into the environment")

// ParseCacheAddress reads http://HOST/PATH, https://HOST/PATH or redis://HOST:PORT/DB with ccache's
// attributes behind bars, such as https://cache.example.org/kiln|layout=bazel|read-only=true.
// Credentials are refused, and no error repeats what might be one.
func ParseCacheAddress(text string) (*CacheAddress, error) {
	parts := strings.Split(text, "|")
	address := strings.TrimSpace(parts[0])
	u, err := url.Parse(address)
	switch {
	case strings.Contains(address, "@"):
		return nil, errCacheCredentials
	case err != nil || strings.ContainsAny(address, " \t\r\n"):
		return nil, errors.New("the address cannot be read")
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "redis":
		if u.Scheme == "" {
			return nil, errors.New("the address has no scheme; use http, https or redis")
		}
		return nil, fmt.Errorf("%s:// is not known; use http, https or redis", u.Scheme)
	case u.Hostname() == "":
		return nil, errors.New("the address names no host")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("the address has a query or a fragment, which a cache has not; attributes stand behind |")
	}
	out := &CacheAddress{URL: u}
	for _, part := range parts[1:] {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case name == "bearer-token" || name == "header" || strings.Contains(name, "password") || strings.Contains(name, "secret"):
			return nil, errCacheCredentials
		case !ok || !isAttribute(name) || value == "" || strings.ContainsAny(value, " \t\r\n"):
			return nil, errors.New("an attribute is not NAME=VALUE, such as layout=bazel")
		}
		out.Attributes = append(out.Attributes, name+"="+value)
	}
	return out, nil
}

// isAttribute reports whether a name is one that ccache could have: lower case with hyphens.
func isAttribute(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz-") == ""
}

func (c *checker) cache(x *Cache) CacheSettings {
	if !x.Remote.IsSet() {
		return CacheSettings{}
	}
	_, err := ParseCacheAddress(x.Remote.Value)
	switch {
	case errors.Is(err, errCacheCredentials):
		c.errorf(x.Remote.place, "cache", "set KILN_CACHE_USER and KILN_CACHE_PASSWORD, or KILN_CACHE_TOKEN", "%v", err)
		c.list[len(c.list)-1].Secret = true
	case err != nil:
		c.errorf(x.Remote.place, "cache", `write "https://HOST/PATH|layout=bazel" or "redis://HOST:PORT/DB"`, "%v", err)
		// What cannot be read may hold one too.
		c.list[len(c.list)-1].Secret = strings.Contains(x.Remote.Value, "@")
	}
	return CacheSettings{Remote: x.Remote.Value}
}
