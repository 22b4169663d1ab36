package secret

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNetRC(t *testing.T) {
	const file = `# people
machine wheels.example.org login __token__ password "kiln_a b\"c" # the team
machine Other.example.org
	login me
	account x
	password #hash
macdef init
machine evil.example.org login a password b

machine late.example.org login z
default login anonymous password guest
machine after.example.org login never password reached
`
	for host, want := range map[string]string{
		"wheels.example.org": `__token__ kiln_a b"c`, "other.example.org": "me #hash", "evil.example.org": "anonymous guest",
		"late.example.org": "z ", "unknown.example.org": "anonymous guest", "after.example.org": "anonymous guest",
	} {
		user, password, ok := netrc(file, host)
		if got := user + " " + password; !ok || got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	if _, _, ok := netrc("machine a login x password y", "b"); ok {
		t.Error("an entry of another host")
	}

	path := filepath.Join(t.TempDir(), "netrc")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NETRC", path)
	s := &Store{}
	s.AddNetRC("https://wheels.example.org/simple/")
	if user, password, _ := s.URL("https://wheels.example.org/files/x").Credentials(); user != "__token__" || password != `kiln_a b"c` {
		t.Errorf("%q %q", user, password)
	}
	s.AddNetRC("https://wheels.example.org/simple/")
	own := &Store{}
	own.Add(Parse("https://me:mine@wheels.example.org/"))
	own.AddNetRC("https://wheels.example.org/simple/")
	if user, _, _ := own.URL("https://wheels.example.org/simple/").Credentials(); user != "me" {
		t.Errorf("credentials of the address lose to those of the file: %q", user)
	}
}

func FuzzNetRC(f *testing.F) {
	f.Add("machine a login b password c", "a")
	f.Add("default login \"b\\\"", "a")
	f.Add("macdef x\n\nmachine a login", "a")
	f.Fuzz(func(t *testing.T, text, host string) {
		user, password, ok := netrc(text, host)
		if !ok && host != "" {
			return
		}
		if again, p, _ := netrc(text, host); again != user || p != password {
			t.Error("not the same twice")
		}
	})
}
