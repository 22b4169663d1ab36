package secret_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/secret"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text, address, user, password string
	}{
		{"https://user:pass@host/simple/", "https://host/simple/", "user", "pass"},
		{"http://user:p%40ss%2Fw@host:8080/x?y=1#z", "http://host:8080/x?y=1#z", "user", "p@ss/w"},
		{"https://ghp_token@github.com/a/b.git", "https://github.com/a/b.git", "ghp_token", ""},
		{"https://:pw@host/", "https://host/", "", "pw"},
		{"https://user:p@ss@host/", "https://host/", "user", "p@ss"},
		{"http://user:pa/ss@host/path", "http://host/path", "user", "pa/ss"}, // not by the rules
		{"git+https://u:p@host/x.git@v1", "git+https://host/x.git@v1", "u", "p"},
		{"ssh://git:pw@host/x", "ssh://git@host/x", "git", "pw"},
		{"redis://:pw@cache:6379/0", "redis://cache:6379/0", "", "pw"},
		// No credentials.
		{"ssh://git@host/x", "ssh://git@host/x", "", ""},
		{"git@host:a/b.git", "git@host:a/b.git", "", ""},
		{"https://host/@scope/x@1.0", "https://host/@scope/x@1.0", "", ""},
		{"http://host:8080/x@y", "http://host:8080/x@y", "", ""},
		{"http://[::1]:8080/x@y", "http://[::1]:8080/x@y", "", ""},
		{"../folder", "../folder", "", ""},
		{"", "", "", ""},
	} {
		u := secret.Parse(c.text)
		user, password, _ := u.Credentials()
		if u.String() != c.address || user != c.user || password != c.password {
			t.Errorf("Parse(%q) = %s with %q, %q; want %s with %q, %q", c.text, u, user, password, c.address, c.user, c.password)
		}
		if u.Hidden() == (c.text == c.address) {
			t.Errorf("Parse(%q).Hidden() = %v", c.text, u.Hidden())
		}
		again, err := url.Parse(u.Full())
		if u.Hidden() && (err != nil || again.User.Username() != c.user) {
			t.Errorf("Parse(%q).Full() cannot be used: %v", c.text, err)
		}
	}
}

func TestQuery(t *testing.T) {
	u := secret.Parse("https://s3.example/b/x.tar.gz?X-Amz-Date=1&X-Amz-Signature=deadbeef&v=2")
	if want := "https://s3.example/b/x.tar.gz?X-Amz-Date=1&X-Amz-Signature=***&v=2"; u.String() != want {
		t.Errorf("got %s, want %s", u, want)
	}
	if !strings.Contains(u.Full(), "deadbeef") {
		t.Error("Full lacks the signature")
	}
	text, err := json.Marshal(map[string]string{"url": "https://h/x?a=1&token=topsecret&b=2"})
	if err != nil {
		t.Fatal(err)
	}
	if got := secret.Clean(string(text)); strings.Contains(got, "topsecret") || !strings.Contains(got, `u0026b=2"}`) {
		t.Errorf("JSON: %s", got)
	}
}

// No way to print the type shows what it hides.
func TestNeverShown(t *testing.T) {
	u := secret.Parse("https://user:hunter2@host/simple")
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "url", u, "in", []any{u})
	text, err := json.Marshal(struct{ U secret.URL }{u})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(text) + fmt.Sprintf("%v %+v %#v %s %q %x %d", u, u, u, u, u, u, []secret.URL{u}) + fmt.Sprint(&u, struct{ U secret.URL }{u})
	if strings.Contains(all, "hunter2") || strings.Contains(all, "68756e74657232") {
		t.Errorf("shown: %s", all)
	}
	var back struct{ U secret.URL }
	if err := json.Unmarshal([]byte(`{"U":"https://user:hunter2@host/"}`), &back); err != nil || !back.U.Hidden() {
		t.Errorf("not read back: %v", err)
	}
}

func TestExtract(t *testing.T) {
	clean, found := secret.Extract("demo[x] @ git+https://u:secret1@h/d.git#egg=demo; and 'https://t0ken@i/', kiln:http://a:b@s/")
	if want := "demo[x] @ git+https://h/d.git#egg=demo; and 'https://i/', kiln:http://s/"; clean != want {
		t.Errorf("got %s, want %s", clean, want)
	}
	if len(found) != 3 {
		t.Errorf("%d found", len(found))
	}
}

func TestMask(t *testing.T) {
	text := "  git: \"http://üser:pw@host/x\", y: https://h/?a=1&token=abc&b=2 z: http://host:80/a@b ssh://git:pw@h/ http://u:p/w@h/"
	want := "  git: \"http://*******@host/x\", y: https://h/?a=1&token=***&b=2 z: http://host:80/a@b ssh://******@h/ http://*****@h/"
	if got := string(secret.Mask([]byte(text))); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestStore(t *testing.T) {
	s := &secret.Store{}
	if got := s.Take("--index-url=https://user:pw1@host/simple/"); got != "--index-url=https://host/simple/" {
		t.Errorf("taken: %s", got)
	}
	s.Take("https://other:pw2@host/private/simple")
	for address, want := range map[string]string{
		"https://host/simple/":                  "https://user:pw1@host/simple/",
		"https://HOST:443/files/x.whl":          "https://user:pw1@HOST:443/files/x.whl",
		"https://host/private/files/x.whl":      "https://other:pw2@host/private/files/x.whl",
		"http://host/simple/":                   "http://host/simple/", // not encrypted
		"https://host:8443/simple/":             "https://host:8443/simple/",
		"https://host.example/simple/":          "https://host.example/simple/",
		"https://own:pw3@host/private/x":        "https://own:pw3@host/private/x",
		"git+https://host/private/repo.git@abc": "git+https://other:pw2@host/private/repo.git@abc",
	} {
		if got := s.URL(address).Full(); got != want {
			t.Errorf("URL(%s) = %s, want %s", address, got, want)
		}
	}
	var none *secret.Store
	if none.Take("http://a:b@h/") != "http://h/" || none.URL("http://h/").Hidden() || none.Values() != nil {
		t.Error("a nil store has something")
	}
}

func TestTransport(t *testing.T) {
	var got []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, "other:"+r.Header.Get("Authorization"))
	}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		got = append(got, user+":"+password+" "+r.URL.RawQuery)
		if r.URL.Path == "/away" {
			http.Redirect(w, r, other.URL, http.StatusFound)
		}
	}))
	defer server.Close()
	s := &secret.Store{}
	address := s.Take(strings.Replace(server.URL, "://", "://user:p%40ss@", 1) + "/away?token=abc")
	client := http.Client{Transport: s.Transport(http.DefaultTransport)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if want := []string{"user:p@ss token=abc", "other:"}; !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
}

func TestRedactor(t *testing.T) {
	s := &secret.Store{}
	s.Take("https://user:p%40ss/w0rd@host/ http://u:pw@short/ https://h/?sig=abcdefgh")
	r := s.Redactor()
	for _, text := range []string{
		"p@ss/w0rd", "p%40ss%2Fw0rd", "p%40ss%2fw0rd", "p%40ss/w0rd", "Authorization: Basic dXNlcjpwQHNzL3cwcmQ=", "http://u:pw@short", "sig=abcdefgh",
	} {
		if got := r.Text("x" + text + "y"); !strings.Contains(got, "***") {
			t.Errorf("%s stays: %s", text, got)
		}
	}
	if got := r.Text("npw is no password"); got != "npw is no password" {
		t.Errorf("a short password changed a text: %s", got)
	}
	// Over several writes, at every place.
	whole := "a p@ss/w0rd b"
	for cut := range len(whole) {
		out, rest := r.Append(nil, []byte(whole[:cut]), false)
		out, _ = r.Append(out, append(rest, whole[cut:]...), true)
		if string(out) != "a *** b" {
			t.Errorf("cut at %d: %s", cut, out)
		}
	}
}

func TestGitConfig(t *testing.T) {
	s := &secret.Store{}
	s.Take("https://user:pw@host/a.git")
	env, n := s.GitConfig(1, "https://host/a.git", "https://host/b.git", "https://elsewhere/c.git", "git@host:x")
	want := []string{"GIT_CONFIG_KEY_1=http.https://host/.extraHeader", "GIT_CONFIG_VALUE_1=Authorization: Basic dXNlcjpwdw=="}
	if n != 2 || !slices.Equal(env, want) {
		t.Errorf("%d: %s", n, cmp.Diff(want, env))
	}
}

func FuzzExtract(f *testing.F) {
	f.Add("user", "pass", "host/simple")
	f.Add("u", "p/w", "host:80/x?token=1")
	f.Add("", "é%zz", "[::1]/x@y")
	f.Fuzz(func(t *testing.T, user, password, rest string) {
		// Encoded by the rules, whatever it is, it is found, hidden, and given back.
		full := "https://" + url.UserPassword(user, password).String() + "@host/" + url.QueryEscape(rest)
		u := secret.Parse(full)
		gotUser, gotPassword, _ := u.Credentials()
		if gotUser != user || gotPassword != password || u.String() != "https://host/"+url.QueryEscape(rest) {
			t.Errorf("%q: %q, %q at %q", full, gotUser, gotPassword, u)
		}
		// As it is, nothing of it breaks, and what is clean stays so.
		clean := secret.Clean("x https://" + user + ":" + password + "@" + rest)
		if again := secret.Clean(clean); again != clean {
			t.Errorf("%q becomes %q", clean, again)
		}
	})
}
