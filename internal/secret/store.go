package secret

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Store has the credentials of one run. It is safe for concurrent use; a nil one has none, and keeps
// none. Nothing of it is ever written to a file.
type Store struct {
	mu   sync.Mutex
	urls []URL
	env  map[string]string // variables that were secrets, or had one in them: as they were
}

// Take returns a text without the credentials of the addresses in it, and keeps them.
func (s *Store) Take(text string) string {
	clean, found := Extract(text)
	s.Add(found...)
	return clean
}

// Add keeps the credentials of addresses.
func (s *Store) Add(urls ...URL) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range urls {
		if !u.Hidden() {
			continue
		}
		// Of two for one address the later one counts.
		s.urls = slices.DeleteFunc(s.urls, func(old URL) bool { return old.address == u.address })
		s.urls = append(s.urls, u)
	}
}

// URL returns an address with the credentials that belong to it: its own, else those of the address
// of the same scheme, host and port that has most of its path in common. An index may have its files
// beside its pages, so the path need not be below.
func (s *Store) URL(address string) URL {
	own := Parse(address)
	if own.Hidden() || s == nil {
		return own
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	origin, path := splitOrigin(own.address)
	best, length := -1, -1
	for i, u := range s.urls {
		if u.address == own.address {
			return u
		}
		other, otherPath := splitOrigin(u.address)
		if n := commonPath(path, otherPath); other == origin && origin != "" && n > length && u.user+u.password != "" {
			best, length = i, n
		}
	}
	if best < 0 {
		return own
	}
	u := URL{address: own.address, user: s.urls[best].user, password: s.urls[best].password}
	scheme, rest, _ := strings.Cut(own.address, "://")
	info := url.User(u.user)
	if u.password != "" {
		info = url.UserPassword(u.user, u.password)
	}
	u.full = scheme + "://" + info.String() + "@" + rest
	return u
}

// splitOrigin returns scheme, host and port of an address in one form, and its path.
func splitOrigin(address string) (origin, path string) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || slices.Contains(keptUser, u.Scheme) {
		return "", ""
	}
	scheme := strings.TrimPrefix(strings.ToLower(u.Scheme), "git+")
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port, u.Path
}

// commonPath counts the leading folders that two paths share.
func commonPath(a, b string) int {
	x, y := strings.Split(strings.Trim(a, "/"), "/"), strings.Split(strings.Trim(b, "/"), "/")
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	return n
}

// Getenv returns a variable as the user has set it.
func (s *Store) Getenv(name string) string {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if v, ok := s.env[name]; ok {
			return v
		}
	}
	return os.Getenv(name)
}

// Environ returns the environment of this process, with the secrets among its variables that keep
// says true for; nil keeps all. It is for programs that are the user's own tools and need them.
func (s *Store) Environ(keep func(name string) bool) []string {
	env := os.Environ()
	if s == nil {
		return env
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, value := range s.env {
		if keep == nil || keep(name) {
			env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
			env = append(env, name+"="+value)
		}
	}
	return env
}

// Values returns every form in which a secret of this run could appear in a text, for a
// [Redactor].
func (s *Store) Values() []string {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, u := range s.urls {
		out = append(out, u.forms()...)
	}
	for name, value := range s.env {
		least := minToken // what others call a secret may be a word
		if slices.Contains(secretNames, name) {
			least = minValue
		}
		if isSecretName(name) && len(value) >= least {
			out = append(out, escapes(value)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Redactor returns one for the secrets that are known now.
func (s *Store) Redactor() *Redactor { return NewRedactor(s.Values()) }

// HandoverEnv is the variable by which another kiln, on a node of a cluster, gets the credentials of
// addresses: see [Store.Handover]. That kiln takes it out of its environment as it does with others.
const HandoverEnv = "KILN_CREDENTIALS"

// Handover returns the credentials of addresses as the value of [HandoverEnv], "" if there are none.
func (s *Store) Handover() string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, u := range s.urls {
		list = append(list, u.full)
	}
	if len(list) == 0 {
		return ""
	}
	text, _ := json.Marshal(list) // plain strings, cannot fail
	return string(text)
}

// Proxy is the Proxy of an [http.Transport]: that of the environment, with its credentials.
func (s *Store) Proxy(req *http.Request) (*url.URL, error) {
	proxy, err := http.ProxyFromEnvironment(req)
	if err != nil || proxy == nil {
		return proxy, err
	}
	return url.Parse(s.URL(proxy.String()).Full())
}

// Transport adds the credentials of addresses to requests that have none of their own.
func (s *Store) Transport(base http.RoundTripper) http.RoundTripper { return &transport{s, base} }

type transport struct {
	store *Store
	base  http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]. A redirect passes here again, so another host gets what
// belongs to it and nothing else.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.User != nil || req.Header.Get("Authorization") != "" {
		return t.base.RoundTrip(req)
	}
	u := t.store.URL(req.URL.String())
	if !u.Hidden() {
		return t.base.RoundTrip(req)
	}
	req = req.Clone(req.Context())
	if full, err := url.Parse(u.Full()); err == nil {
		req.URL.RawQuery = full.RawQuery
	}
	if basic := u.Basic(); basic != "" {
		req.Header.Set("Authorization", basic)
	}
	return t.base.RoundTrip(req)
}

// GitConfig returns the variables by which git gets the credentials of repositories, behind those
// that env has already. All of a repository's host gets them, as with git's own store: submodules
// may be elsewhere on it.
func (s *Store) GitConfig(count int, repositories ...string) (env []string, total int) {
	seen := map[string]bool{}
	for _, repository := range repositories {
		u := s.URL(strings.TrimPrefix(repository, "git+"))
		origin, _ := splitOrigin(u.address)
		basic := u.Basic()
		if basic == "" || !strings.HasPrefix(origin, "http") || seen[origin] {
			continue
		}
		seen[origin] = true
		parsed, err := url.Parse(u.address)
		if err != nil {
			continue
		}
		n := strconv.Itoa(count)
		env = append(env, "GIT_CONFIG_KEY_"+n+"=http."+parsed.Scheme+"://"+parsed.Host+"/.extraHeader", "GIT_CONFIG_VALUE_"+n+"=Authorization: "+basic)
		count++
	}
	return env, count
}
