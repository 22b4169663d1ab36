package publish_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/kilntest"
	address "github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/publish/publishtest"
)

// TestPyPI: an index that takes uploads as PyPI does passes the suite. kiln's own server is one.
func TestPyPI(t *testing.T) {
	testKilnServer(t, func(url, secret string, transport http.RoundTripper) (publish.Target, error) {
		return publish.NewPyPI(publish.PyPIOptions{
			Upload: address.Parse(url + "/legacy/"), Token: secret, Projects: []string{"demo"}, Transport: transport,
			Retry: publishtest.QuickRetry, Appear: 50 * time.Millisecond,
		})
	})
}

// TestPyPIServer publishes to pypiserver, which lists files in HTML, without sizes, and asks for a
// password; pip installs from there.
func TestPyPIServer(t *testing.T) {
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import pypiserver, passlib").CombinedOutput(); err != nil {
		kilntest.Lacking(t, "python", "pypiserver: %s", out)
	}
	dir, port := t.TempDir(), kilntest.FreePort(t)
	hash, err := exec.CommandContext(t.Context(), python, "-c", "from passlib.hash import ldap_sha1; print(ldap_sha1.hash('secret token'))").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "passwords"), []byte("__token__:"+string(hash)), 0o600); err != nil {
		t.Fatal(err)
	}
	packages := filepath.Join(dir, "packages")
	if err := os.Mkdir(packages, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-m", "pypiserver", "run", "-i", "127.0.0.1", "-p", fmt.Sprint(port), "-P", filepath.Join(dir, "passwords"), "-a", "update", packages)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	root := fmt.Sprintf("http://127.0.0.1:%d/", port)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, root, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	project := publishtest.NewProject(t, publishtest.Document, 1000)
	inventory := project.Inventory(t)
	env := map[string]string{"KILN_PYPI_TOKEN": "secret token"}
	to := func() publish.Target {
		target, err := publish.Open(root, publish.OpenOptions{Getenv: func(name string) string { return env[name] }, Projects: []string{"demo"}, Retry: publishtest.QuickRetry})
		return open(t, target, err)
	}
	for _, want := range []int{4, 0} {
		result, err := publish.Run(t.Context(), to(), inventory, publish.Options{})
		if err != nil || len(result.Failed) > 0 || len(result.Uploaded) != want {
			t.Fatalf("want %d uploads: %v, %+v", want, err, result)
		}
	}
	got := filepath.Join(dir, "got")
	out, err := exec.CommandContext(t.Context(), python, "-m", "pip", "download", "-q", "--no-deps", "--index-url", root+"simple/", "--trusted-host", "127.0.0.1", "-d", got, "demo==1.0", "--platform", "any", "--no-cache-dir", "--isolated").CombinedOutput()
	if entries, _ := os.ReadDir(got); err != nil || len(entries) != 1 {
		t.Errorf("pip: %v, %v\n%s", err, entries, out)
	}
	project.Finish(t, &project.Plan.Rows[0], "other", 1000)
	result, err := publish.Run(t.Context(), to(), project.Inventory(t), publish.Options{})
	if err != nil || len(result.Failed) != 1 || !strings.Contains(result.Failed[0].Error, "other bytes") {
		t.Errorf("other bytes: %v, %+v", err, result)
	}
	env["KILN_PYPI_TOKEN"] = "wrong"
	next := publishtest.NewProject(t, strings.Replace(publishtest.Document, `"1.0"`, `"1.1"`, 1), 10)
	result, err = publish.Run(t.Context(), to(), next.Inventory(t), publish.Options{})
	if err != nil || len(result.Failed) != 4 || !strings.Contains(result.Failed[0].Error, "KILN_PYPI_TOKEN") {
		t.Errorf("a wrong token: %v, %+v", err, result)
	}
}

// TestTrustedPublishing exchanges the identity of a job for a token, and says what an index that
// does not trust the job said.
func TestTrustedPublishing(t *testing.T) {
	var trusts bool
	var uploaded string
	mux := http.NewServeMux()
	web := httptest.NewServer(mux)
	defer web.Close()
	mux.HandleFunc("GET /_/oidc/audience", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"audience": "testindex"}`) })
	mux.HandleFunc("GET /ci", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "bearer job" || r.FormValue("audience") != "testindex" || r.FormValue("api") != "2" {
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"value": "identity"}`)
	})
	mux.HandleFunc("POST /_/oidc/mint-token", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Token string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Token != "identity" || !trusts {
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"message": "Token request failed", "errors": [{"code": "invalid-publisher", "description": "valid token, but no corresponding publisher"}]}`)
			return
		}
		fmt.Fprint(w, `{"success": true, "token": "minted"}`)
	})
	mux.HandleFunc("GET /simple/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		if r.URL.Path != "/simple/demo/" {
			return
		}
		if uploaded == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `<a href="../../files/%s">%s</a>`, uploaded, uploaded)
	})
	var stored []byte
	mux.HandleFunc("/files/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(stored)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(stored)
		}
	})
	mux.HandleFunc("POST /legacy/", func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "__token__" || password != "minted" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		file, head, err := r.FormFile("content")
		if err != nil || r.FormValue("metadata_version") == "" || r.FormValue("name") != "demo" || r.FormValue("filetype") != "bdist_wheel" {
			http.Error(w, fmt.Sprint("form: ", err, r.Form), http.StatusBadRequest)
			return
		}
		stored, _ = io.ReadAll(file)
		uploaded = head.Filename
	})
	project := publishtest.NewProject(t, `packages: {demo: {versions: ["1.0"], matrix: [{os: debian-12, python: "3.11"}]}}`, 10)
	env := map[string]string{}
	run := func() (*publish.Result, error) {
		target, err := publish.Open(web.URL+"/legacy/", publish.OpenOptions{Getenv: func(name string) string { return env[name] }, Projects: []string{"demo"}, Retry: publishtest.QuickRetry})
		return publish.Run(t.Context(), open(t, target, err), project.Inventory(t), publish.Options{})
	}
	for _, want := range []string{"KILN_PYPI_TOKEN", "the CI gave no identity", "no corresponding publisher"} {
		result, err := run()
		if err != nil || len(result.Failed) != 1 || !strings.Contains(result.Failed[0].Error, want) {
			t.Errorf("want %q: %v, %+v", want, err, result)
		}
		env["ACTIONS_ID_TOKEN_REQUEST_URL"] = web.URL + "/ci?api=2"
		if env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] == "wrong" {
			env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] = "job"
		} else {
			env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] = "wrong"
		}
	}
	env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"], trusts = "job", true
	if result, err := run(); err != nil || len(result.Failed) > 0 || len(result.Uploaded) != 1 {
		t.Errorf("trusted: %v, %+v", err, result)
	}
}

// TestPyPINames: what PyPI does not take is said before anything is uploaded.
func TestPyPINames(t *testing.T) {
	target, err := publish.Open("testpypi", publish.OpenOptions{Getenv: func(string) string { return "" }})
	limits := open(t, target, err).Limits()
	for document, want := range map[string]string{
		`packages: {demo: {versions: ["1.0"], matrix: [{os: debian-12, python: "3.11"}]}}`:                                                      "repair: auto",
		`packages: {demo: {versions: ["1.0"], local_version: cpu, matrix: [{platform: manylinux_2_28_x86_64, os: debian-12, python: "3.11"}]}}`: `local_version: ""`,
		`packages: {demo: {versions: ["1.0"], matrix: [{platform: manylinux_2_28_x86_64, os: debian-12, python: "3.11"}]}}`:                     "",
	} {
		plan, err := publish.NewPlan("testpypi", limits, publishtest.NewProject(t, document, 10).Inventory(t), nil, publish.PlanOptions{})
		if err != nil || len(plan.Actions) != 1 {
			t.Fatalf("%v, %+v", err, plan)
		}
		if a := plan.Actions[0]; want == "" && a.Do != publish.DoUpload || want != "" && (a.Do != publish.DoRefuse || !strings.Contains(a.Why, want)) {
			t.Errorf("%s: %s, %s; want %q", a.File.Name, a.Do, a.Why, want)
		}
	}
}

// TestAttestations: what another tool signed as PyPI wants it goes with the file.
func TestAttestations(t *testing.T) {
	var forms []string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if err := r.ParseMultipartForm(1 << 20); err != nil {
				t.Error(err)
			}
			forms = append(forms, r.FormValue("attestations"))
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(web.Close)
	target, err := publish.NewPyPI(publish.PyPIOptions{Upload: address.Parse(web.URL), Index: web.URL + "/simple/", Token: "x", Retry: publishtest.QuickRetry})
	must(t, err)
	const name = "demo-1.0-py3-none-any.whl"
	data := indextest.Wheel(t, name, nil)
	f := publish.LocalFile{Name: name, Size: int64(len(data)), SHA256: publishtest.Sum(data), Path: filepath.Join(t.TempDir(), name)}
	must(t, os.WriteFile(f.Path, data, 0o600))
	upload := func() error {
		_, err := target.Upload(t.Context(), "", f, nil) // which this server does not take
		return err
	}
	_ = upload()
	must(t, os.WriteFile(f.Path+".build.attestation", []byte(`{"version":1}`), 0o600))
	must(t, os.WriteFile(f.Path+".publish.attestation", []byte(`{"version":2}`), 0o600))
	_ = upload()
	if want := []string{"", `[{"version":1},{"version":2}]`}; !slices.Equal(forms, want) {
		t.Errorf("got %q, want %q", forms, want)
	}
	must(t, os.WriteFile(f.Path+".publish.attestation", []byte(`{"version":`), 0o600))
	if err := upload(); err == nil || !strings.Contains(err.Error(), "publish.attestation is no JSON") || len(forms) != 2 {
		t.Errorf("a torn one: %v", err)
	}
}
