package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/matrix"
)

// serving is a "kiln serve" that runs in this process.
type serving struct {
	t            *testing.T
	app          *app
	url, metrics string
	stop         context.CancelFunc // as an interrupt does
	ended        chan error
}

// startServe serves an index with one wheel of some megabytes.
func startServe(t *testing.T, f serveFlags) (s *serving, wheel []byte) {
	t.Helper()
	const name = "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl"
	path := filepath.Join(t.TempDir(), name)
	if err := writeTestWheel(path, strings.Repeat("some megabytes ", 1<<20)); err != nil {
		t.Fatal(err)
	}
	wheel, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f.dir, f.addr, f.metricsAddr, f.maxUploads, f.pageAge = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", 16, time.Minute
	store, err := index.Open(f.dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, problems, err := store.Add(t.Context(), []index.NewFile{{Path: path}}, index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	out, in := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	s = &serving{t: t, app: &app{stdout: in, stderr: io.Discard, log: slog.New(slog.DiscardHandler)}, stop: stop, ended: make(chan error, 1)}
	go func() {
		err := s.app.serve(ctx, f)
		_ = in.CloseWithError(io.EOF)
		s.ended <- err
	}()
	t.Cleanup(func() {
		stop()
		_, _ = io.Copy(io.Discard, out)
	})
	address := regexp.MustCompile(`^\s+(pages|metrics)\s+(\S+)$`)
	for lines := bufio.NewScanner(out); s.metrics == "" && lines.Scan(); {
		switch m := address.FindStringSubmatch(lines.Text()); {
		case m == nil:
		case m[1] == "pages":
			s.url = strings.Replace(m[2], "localhost", "127.0.0.1", 1)
		default:
			s.metrics = strings.Replace(m[2], "localhost", "127.0.0.1", 1)
		}
	}
	if s.metrics == "" {
		t.Fatal("does not start:", <-s.ended)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return s, wheel
}

// reply is an answer with its body.
type reply struct {
	status, major int // major version of HTTP
	body          string
}

func (s *serving) do(client *http.Client, method, url string) reply {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{res.StatusCode, res.ProtoMajor, string(body)}
}

// writeCertificate writes a key pair for 127.0.0.1 and returns the pool that trusts it.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64, mtime time.Time) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(certFile, mtime, mtime); err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

// TestServeTLS: HTTP/1.1 and 2 with a certificate, read-only, with a log and metrics.
func TestServeTLS(t *testing.T) {
	dir := t.TempDir()
	f := serveFlags{certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem"), accessLog: filepath.Join(dir, "access.jsonl"), readOnly: true}
	pool := writeCertificate(t, f.certFile, f.keyFile, 1, time.Now())
	s, _ := startServe(t, f)
	if !strings.HasPrefix(s.url, "https://") {
		t.Errorf("announces %s", s.url)
	}
	for major := 1; major <= 2; major++ {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: major == 2}}
		got := s.do(client, http.MethodGet, s.url+"cu128/torch2.9/simple/demo-ext/")
		if got.status != http.StatusOK || got.major != major || !strings.Contains(got.body, "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl</a>") {
			t.Errorf("HTTP/%d: %+v", major, got)
		}
		if got := s.do(client, http.MethodPost, s.url+"legacy/"); got.status != http.StatusForbidden {
			t.Errorf("an upload to a server that is read-only: %+v", got)
		}
		client.CloseIdleConnections()
	}
	if got := s.do(http.DefaultClient, http.MethodGet, s.metrics); !strings.Contains(got.body, "\nkiln_http_requests_total{handler=\"page\",code=\"2xx\"} 2\n") {
		t.Errorf("metrics: %+v", got)
	}
	s.stop()
	if err := <-s.ended; err != nil || !s.app.stopped {
		t.Errorf("ends with %v", err)
	}
	log, err := os.ReadFile(f.accessLog)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range bytes.Lines(log) {
		var record struct {
			Method, URL string
			Status      int
		}
		if err := json.Unmarshal(line, &record); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		got = append(got, fmt.Sprint(record.Method, " ", record.URL, " ", record.Status))
	}
	slices.Sort(got)
	page, upload := "GET /cu128/torch2.9/simple/demo-ext/ 200", "POST /legacy/ 403"
	if diff := cmp.Diff([]string{page, page, upload, upload}, got); diff != "" {
		t.Error(diff)
	}
}

// TestServeFinishes: a download that is under way when the server is told to stop is finished, and
// nothing new begins.
func TestServeFinishes(t *testing.T) {
	s, wheel := startServe(t, serveFlags{})
	sum := fmt.Sprintf("%x", sha256.Sum256(wheel))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"files/"+sum[:2]+"/"+sum[2:]+"/demo_ext-1.0+cu128.torch2.9-py3-none-any.whl", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(res.Body, first); err != nil {
		t.Fatal(err)
	}
	s.stop()
	address := strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/")
	for { // until the listener is closed
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	rest, err := io.ReadAll(res.Body)
	if err != nil || !bytes.Equal(append(first, rest...), wheel) {
		t.Errorf("%s: %d of %d bytes: %v", res.Status, len(rest)+1, len(wheel), err)
	}
	if err := <-s.ended; err != nil || !s.app.stopped {
		t.Errorf("ends with %v", err)
	}
}

// TestCertificate: a renewed certificate is used, one that is half written is not.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	c := &certificate{certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem")}
	if _, err := c.get(nil); err == nil {
		t.Error("no files, no error")
	}
	now := time.Now()
	serial := func() string {
		t.Helper()
		c.checked = time.Time{} // as if time had passed
		pair, err := c.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber.String()
	}
	writeCertificate(t, c.certFile, c.keyFile, 1, now)
	if got := serial(); got != "1" {
		t.Errorf("serial number %s", got)
	}
	if err := os.WriteFile(c.certFile, []byte("-----BEGIN CERT"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(c.certFile, now.Add(time.Minute), now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got := serial(); got != "1" {
		t.Errorf("half written: serial number %s", got)
	}
	writeCertificate(t, c.certFile, c.keyFile, 2, now.Add(2*time.Minute))
	if got := serial(); got != "2" {
		t.Errorf("renewed: serial number %s", got)
	}
}

// TestServeBuilds: the builds of a project are shown if the server was told where they are, and
// other sites cannot read them.
func TestServeBuilds(t *testing.T) {
	project := t.TempDir()
	rows := []matrix.Row{{ID: "demo-1.0-cpu-cp312-linux_x86_64", Package: "demo", Version: "1.0", OS: "ubuntu-22.04", Python: "3.12"}}
	if err := record.WritePlan(filepath.Join(project, ".kiln"), &record.Plan{Rows: rows}); err != nil {
		t.Fatal(err)
	}
	s, _ := startServe(t, serveFlags{builds: project})
	if got := s.do(http.DefaultClient, http.MethodGet, s.url); !strings.Contains(got.body, `href="./builds/"`) {
		t.Error("the first page does not link to the builds")
	}
	for _, path := range []string{"builds", "builds/", "builds/state.json"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK || !bytes.Contains(body, []byte("demo-1.0-cpu-cp312-linux_x86_64")) || res.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %v", path, res.StatusCode, res.Header)
		}
	}
	without, _ := startServe(t, serveFlags{})
	if got := without.do(http.DefaultClient, http.MethodGet, without.url+"builds/"); got.status != http.StatusNotFound {
		t.Errorf("without builds: %d", got.status)
	}
	if got := without.do(http.DefaultClient, http.MethodGet, without.url); strings.Contains(got.body, "builds/") {
		t.Error("a link to builds that are not there")
	}
}

// TestServeLocal: what builds say is shown without being asked for only where strangers get no
// answer.
func TestServeLocal(t *testing.T) {
	for _, test := range []struct {
		flags serveFlags
		want  bool
	}{
		{serveFlags{addr: "localhost:8080"}, true},
		{serveFlags{addr: "127.0.0.1:0"}, true},
		{serveFlags{addr: "[::1]:80"}, true},
		{serveFlags{addr: ":8080", private: true}, true},
		{serveFlags{addr: ":8080"}, false},
		{serveFlags{addr: "0.0.0.0:8080"}, false},
		{serveFlags{addr: "builder:8080"}, false},
		{serveFlags{addr: "localhost"}, false},
		{serveFlags{addr: "localhost:8080", baseURL: "https://wheels.example.org/"}, false},
		{serveFlags{addr: "localhost:8080", proxies: []string{"127.0.0.1"}}, false},
	} {
		if got := test.flags.local(); got != test.want {
			t.Errorf("%+v: %v", test.flags, got)
		}
	}
}
