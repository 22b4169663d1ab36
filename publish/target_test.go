package publish_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
	address "github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/publish/publishtest"
)

func open(t testing.TB, target publish.Target, err error) publish.Target {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// withoutHashes are the parts of the suite that run also with servers that do not compute SHA-256.
var withoutHashes = []string{"Twice", "Contract", "Conflict", "Places"}

// folder returns the sums of all files in a folder of releases.
func folder(dir string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") || strings.Contains(path, ".kiln") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		rel, err := filepath.Rel(dir, path)
		out[filepath.ToSlash(rel)] = hex.EncodeToString(sum[:])
		return err
	})
	if os.IsNotExist(err) {
		err = nil
	}
	return out, err
}

func TestDir(t *testing.T) {
	publishtest.Test(t, func(t *testing.T) *publishtest.Fixture {
		dir := filepath.Join(t.TempDir(), "public")
		return &publishtest.Fixture{
			Open: func(t testing.TB, _ http.RoundTripper) publish.Target {
				target, err := publish.NewDir(dir, publish.DirOptions{})
				return open(t, target, err)
			},
			Published: func() (map[string]string, error) { return folder(dir) },
		}
	})
}

func TestGitHub(t *testing.T) {
	for name, only := range map[string][]string{"Digest": nil, "NoDigest": withoutHashes} {
		noDigest := len(only) > 0
		t.Run(name, func(t *testing.T) {
			publishtest.Test(t, func(t *testing.T) *publishtest.Fixture {
				faults := &publishtest.Faults{}
				server := publishtest.NewGitHub(t, faults)
				server.NoDigest = noDigest
				t.Cleanup(func() { checkShapes(t, server.Log()) })
				return &publishtest.Fixture{
					Open: func(t testing.TB, transport http.RoundTripper) publish.Target {
						target, err := publish.NewGitHub(publish.GitHubOptions{
							Repository: publishtest.Repository, Token: publishtest.Token, Endpoint: server.URL(), Transport: transport, Retry: publishtest.QuickRetry,
						})
						return open(t, target, err)
					},
					Published: server.Published, Faults: faults,
				}
			}, only...)
		})
	}
}

func TestS3(t *testing.T) {
	for name, only := range map[string][]string{"Checksum": nil, "NoChecksum": withoutHashes} {
		noChecksum := len(only) > 0
		t.Run(name, func(t *testing.T) {
			publishtest.Test(t, func(t *testing.T) *publishtest.Fixture {
				faults := &publishtest.Faults{}
				server := publishtest.NewS3(t, faults)
				server.NoChecksum = noChecksum
				return &publishtest.Fixture{
					Open: func(t testing.TB, transport http.RoundTripper) publish.Target {
						target, err := publish.NewS3(publish.S3Options{
							Endpoint: server.URL(), Bucket: publishtest.Bucket, Region: "us-east-1", AccessKey: "key", SecretKey: "secret", Transport: transport, Retry: publishtest.QuickRetry,
						})
						return open(t, target, err)
					},
					Published: server.Published, Faults: faults,
				}
			}, only...)
		})
	}
}

// kilnServer is a server of an empty index, and a token for all of it.
func kilnServer(t testing.TB) (server *serve.Server, secret, dir string) {
	t.Helper()
	dir = t.TempDir()
	store, err := index.Open(dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := serve.OpenTokens(filepath.Join(t.TempDir(), "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err = tokens.Create(t.Context(), serve.NewToken{Projects: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	server, err = serve.New(t.Context(), store, serve.Options{Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	return server, secret, dir
}

// TestKilnFacts: a wheel that is uploaded to a server brings what its build knows of it.
func TestKilnFacts(t *testing.T) {
	server, secret, _ := kilnServer(t)
	web := httptest.NewServer(server)
	t.Cleanup(func() { web.Close(); server.Close() })
	target, err := publish.NewKiln(publish.KilnOptions{URL: address.Parse(web.URL), Token: secret, Projects: []string{"demo"}, Retry: publishtest.QuickRetry})
	if err != nil {
		t.Fatal(err)
	}
	const name = "demo-1.0-cp312-cp312-linux_x86_64.whl"
	data := indextest.Wheel(t, name, nil)
	facts := index.Facts{Coordinates: index.Coordinates{Toolkit: "cu130", Torch: []string{"2.11"}}, Arch: []string{"9.0"}, Glibc: "2.32", Window: []string{"2.11"}}
	file := publish.LocalFile{Name: name, Size: int64(len(data)), SHA256: fmt.Sprintf("%x", sha256.Sum256(data)), Data: data, Facts: facts}
	if _, err := target.Upload(t.Context(), "", file, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	f := server.Catalog().Project("demo").File(name)
	got := index.Facts{Coordinates: f.Coordinates, Arch: f.Arch, Glibc: f.Glibc, Window: f.Window}
	if diff := cmp.Diff(facts, got); diff != "" {
		t.Error(diff)
	}
	if server.Catalog().View("cu130/torch2.11") == nil {
		t.Error("there is no view of what the wheel was built for")
	}
}

// TestKilnPapers: provenance and bill of materials go to a server with the wheel, and people get them
// beside it; a server of an early version takes wheels alone.
func TestKilnPapers(t *testing.T) {
	inv := publishtest.NewProject(t, publishtest.Document, 10).Inventory(t)
	for _, early := range []bool{false, true} {
		server, secret, _ := kilnServer(t)
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if early && r.Method == http.MethodGet && r.URL.Path == "/legacy/" {
				http.Error(w, "this is the URL for uploads", http.StatusMethodNotAllowed)
				return
			}
			server.ServeHTTP(w, r)
		}))
		defer func() { web.Close(); server.Close() }()
		target, err := publish.NewKiln(publish.KilnOptions{URL: address.Parse(web.URL), Token: secret, Projects: []string{"demo"}, Retry: publishtest.QuickRetry})
		must(t, err)
		result, err := publish.Run(t.Context(), target, inv, publish.Options{Owner: "tester"})
		must(t, err)
		for _, f := range result.Failed {
			t.Error(f.Error)
		}
		want := 4 + 3*2
		if early {
			want = 4
		}
		if len(result.Uploaded) != want {
			t.Errorf("early %t: %d files uploaded, want %d", early, len(result.Uploaded), want)
		}
		if early {
			continue
		}
		// As someone who installs: download, and verify.
		dir := t.TempDir()
		name := inv.Units[0].File.Name
		f := server.Catalog().Project("demo").File(name)
		for _, suffix := range []string{"", ".metadata", ".cdx.json", ".intoto.jsonl"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL(web.URL+"/")+suffix, http.NoBody)
			must(t, err)
			resp, err := http.DefaultClient.Do(req)
			must(t, err)
			text, err := io.ReadAll(resp.Body)
			must(t, errors.Join(err, resp.Body.Close(), os.WriteFile(filepath.Join(dir, name+suffix), text, 0o600)))
		}
		v, err := publish.Verify(t.Context(), filepath.Join(dir, name), publish.VerifyOptions{})
		must(t, err)
		if !v.OK() || v.SBOM == "" || v.Provenance == "" {
			t.Errorf("%+v", v)
		}
	}
}

func TestKiln(t *testing.T) {
	testKilnServer(t, func(url, secret string, transport http.RoundTripper) (publish.Target, error) {
		return publish.NewKiln(publish.KilnOptions{URL: address.Parse(url), Token: secret, Projects: []string{"demo"}, Transport: transport, Retry: publishtest.QuickRetry})
	})
}

// testKilnServer runs the suite with a target that uploads to a kiln server.
func testKilnServer(t *testing.T, newTarget func(url, secret string, transport http.RoundTripper) (publish.Target, error)) {
	publishtest.Test(t, func(t *testing.T) *publishtest.Fixture {
		server, secret, _ := kilnServer(t)
		faults := &publishtest.Faults{}
		web := httptest.NewServer(faults.Wrap(server))
		t.Cleanup(func() { web.Close(); server.Close() })
		return &publishtest.Fixture{
			Open: func(t testing.TB, transport http.RoundTripper) publish.Target {
				target, err := newTarget(web.URL, secret, transport)
				return open(t, target, err)
			},
			Published: func() (map[string]string, error) {
				out := map[string]string{}
				for p := range server.Catalog().Projects() {
					for _, f := range p.Files {
						out[f.Filename] = f.SHA256.String()
						for suffix, sum := range f.Papers {
							out[f.Filename+suffix] = sum.String()
						}
					}
				}
				return out, nil
			},
			Faults: faults,
		}
	})
}

// TestKilnCredentials: those of the address let in, and no name and no error has them.
func TestKilnCredentials(t *testing.T) {
	var users []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		users = append(users, user+":"+password)
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer web.Close()
	credentials := &address.Store{}
	name := credentials.Take("kiln:" + strings.Replace(web.URL, "://", "://__token__:planted@", 1))
	target, err := publish.Open(name, publish.OpenOptions{Credentials: credentials, Getenv: func(string) string { return "" }, Projects: []string{"demo"}, Retry: publishtest.QuickRetry})
	if err != nil {
		t.Fatal(err)
	}
	_, err = target.List(t.Context(), func(string) bool { return true })
	if err == nil || strings.Contains(err.Error()+target.String()+name, "planted") {
		t.Errorf("%s: %v", target, err)
	}
	if len(users) == 0 || users[0] != "__token__:planted" {
		t.Errorf("the server saw %q", users)
	}
	_, err = publish.Open("s3:bucket", publish.OpenOptions{Credentials: credentials, Getenv: func(name string) string {
		return map[string]string{"AWS_ENDPOINT_URL": "https://u:planted@s3.example"}[name]
	}})
	if err == nil || strings.Contains(err.Error(), "planted") {
		t.Errorf("an endpoint with credentials: %v", err)
	}
}
