package publish_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/kilntest"
	address "github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/publish/publishtest"
)

// TestE2EDevpi publishes to devpi, which never takes a name twice, and installs from it with pip.
func TestE2EDevpi(t *testing.T) {
	kilntest.NeedE2E(t, "publish")
	venv := filepath.Join(t.TempDir(), "venv")
	output(t, os.Getenv("KILN_PYTHON"), "-m", "venv", venv)
	bin := filepath.Join(venv, "bin")
	output(t, filepath.Join(bin, "pip"), "install", "--quiet", "devpi-server==6.20.3")
	data := filepath.Join(t.TempDir(), "devpi")
	output(t, filepath.Join(bin, "devpi-init"), "--serverdir", data, "--no-root-pypi")
	root := startServer(t, "+api", filepath.Join(bin, "devpi-server"), "--serverdir", data, "--host", "127.0.0.1", "--port", "PORT")
	secret := devpi(t, http.MethodPost, root+"+login", `{"user":"root","password":""}`, "")
	var indexes atomic.Int32
	var simple string
	fixture := func(t *testing.T) *publishtest.Fixture {
		own := fmt.Sprintf("%sroot/dev%d/", root, indexes.Add(1))
		devpi(t, http.MethodPut, strings.TrimSuffix(own, "/"), `{"type":"stage","bases":[],"volatile":false}`, secret)
		simple = own + "+simple/"
		return otherFixture(publish.PyPIOptions{Upload: address.Parse(strings.Replace(own, "://", "://"+url.UserPassword("root", secret).String()+"@", 1))}, func() (map[string]string, error) {
			remote, err := index.OpenRemote(t.Context(), nil, simple)
			if err != nil {
				return nil, err
			}
			files, err := remote.Files(t.Context(), "demo")
			out := map[string]string{}
			for _, f := range files {
				out[f.Filename] = f.SHA256.String()
			}
			return out, err
		})
	}
	publishtest.Test(t, fixture, ofOthers...)
	f := fixture(t) // sets simple
	install(t, bin, simple, f)
}

// ofOthers are the parts of the suite that need no faults on the way.
var ofOthers = []string{"Twice", "Contract", "Conflict"}

func otherFixture(opts publish.PyPIOptions, published func() (map[string]string, error)) *publishtest.Fixture {
	return &publishtest.Fixture{
		Open: func(t testing.TB, transport http.RoundTripper) publish.Target {
			o := opts
			o.Projects, o.Transport, o.Retry = []string{"demo"}, transport, publishtest.QuickRetry
			target, err := publish.NewPyPI(o)
			return open(t, target, err)
		},
		Published: published,
	}
}

// install publishes a wheel and gets it back with pip.
func install(t *testing.T, bin, simple string, f *publishtest.Fixture) {
	t.Helper()
	const name = "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
	data := indextest.Wheel(t, name, nil)
	local := publish.LocalFile{Name: name, Size: int64(len(data)), SHA256: publishtest.Sum(data), Data: data}
	if _, err := f.Open(t, nil).Upload(t.Context(), "", local, nil); err != nil {
		t.Fatal(err)
	}
	got := t.TempDir()
	output(t, filepath.Join(bin, "pip"), "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--index-url", simple, "--dest", got,
		"--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "demo==1.0")
	if sum, _, err := fsx.SHA256(filepath.Join(got, local.Name)); err != nil || sum != local.SHA256 {
		t.Errorf("pip got %s, %v", sum, err)
	}
}

// startServer starts a server on a free port, which its arguments call PORT, and waits for an
// answer from the path.
func startServer(t *testing.T, path, program string, args ...string) (root string) {
	t.Helper()
	port := strconv.Itoa(kilntest.FreePort(t))
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "PORT", port)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	root = "http://127.0.0.1:" + port + "/"
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, root+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
			return root
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s does not answer:\n%s", program, text)
		}
	}
}

// devpi calls the API of devpi and returns the password that it gives, if it does.
func devpi(t *testing.T, method, address, body, secret string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if secret != "" {
		req.Header.Set("X-Devpi-Auth", base64.StdEncoding.EncodeToString([]byte("root:"+secret)))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Result struct{ Password string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode >= 400 {
		t.Fatalf("%s %s: %s, %v", method, address, resp.Status, err)
	}
	return answer.Result.Password
}

func output(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}
