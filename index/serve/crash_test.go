package serve_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/serve"
)

// TestServeChild is not a test: it is the server that TestServerKill starts and kills.
func TestServeChild(t *testing.T) {
	dir := os.Getenv("KILN_TEST_SERVE")
	if dir == "" {
		t.Skip("not started by TestServerKill")
	}
	store, err := index.Open(dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := serve.OpenTokens(filepath.Join(dir, ".kiln", "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := serve.New(t.Context(), store, serve.Options{Tokens: tokens})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(os.Stdout, "listening at http://%s\n", listener.Addr())
	if err := server.HTTPServer().Serve(server.Listener(listener)); err != nil {
		t.Fatal(err)
	}
}

// startChild runs a server in a process of its own.
func startChild(t *testing.T, dir string) (cmd *exec.Cmd, url string) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServeChild$")
	cmd.Env = append(os.Environ(), "KILN_TEST_SERVE="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "listening at "); ok {
			return cmd, at
		}
	}
	t.Fatalf("the server did not start: %v", cmd.Wait())
	return nil, ""
}

// TestServerKill kills the server at random moments during uploads, 100 in KILN_E2E. After every
// kill each listed file is there whole, and each upload that was confirmed is listed; at the end
// all are there, once, and nothing is left over.
func TestServerKill(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills servers")
	}
	uploads := indextest.Scale(24, 400)
	dir := t.TempDir()
	tokens, err := serve.OpenTokens(filepath.Join(dir, ".kiln", "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := tokens.Create(t.Context(), serve.NewToken{Projects: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, secret: secret}
	names := make([]string, uploads)
	contents := make([][]byte, uploads)
	for i := range names {
		names[i] = fmt.Sprintf("crash_%d-1.%d+cu128.torch2.9-cp312-cp312-linux_x86_64.whl", i%7, i)
		contents[i] = indextest.Wheel(t, names[i], map[string]string{fmt.Sprintf("crash_%d_data.bin", i%7): strings.Repeat(names[i], 2000)})
	}
	confirmed := map[string]bool{}
	kills := 0
	for len(confirmed) < uploads {
		cmd, url := startChild(t, dir)
		// Kill after so many confirmations, while others are under way; never in the last round.
		left := 1 + rand.IntN(indextest.Scale(10, 3))
		var mu sync.Mutex
		var wait sync.WaitGroup
		next := make(chan int)
		dead := make(chan struct{})
		for range 4 {
			wait.Go(func() {
				for i := range next {
					body, contentType := f.form(names[i], contents[i]).encode(t)
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/legacy/", strings.NewReader(string(body)))
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Content-Type", contentType)
					req.SetBasicAuth("__token__", secret)
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						continue // killed
					}
					res.Body.Close()
					mu.Lock()
					if res.StatusCode == 200 {
						confirmed[names[i]] = true
						if left--; left == 0 && len(confirmed) < uploads {
							_ = cmd.Process.Kill()
							kills++
							close(dead)
						}
					} else {
						t.Errorf("%s: %d", names[i], res.StatusCode)
					}
					mu.Unlock()
				}
			})
		}
	feed:
		for i := range names {
			mu.Lock()
			done := confirmed[names[i]]
			mu.Unlock()
			if done {
				continue
			}
			select {
			case next <- i:
			case <-dead:
				break feed
			}
		}
		close(next)
		wait.Wait()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		http.DefaultClient.CloseIdleConnections()
		checkConsistent(t, dir)
		listed := listedFiles(t, dir)
		for name := range confirmed {
			if !listed[name] {
				t.Errorf("%s was confirmed and is not listed after a kill", name)
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills", kills)
	if n := checkConsistent(t, dir); n != uploads {
		t.Errorf("%d files, want %d", n, uploads)
	}
	// The next server removes what the killed ones left.
	cmd, _ := startChild(t, dir)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	left, err := filepath.Glob(filepath.Join(dir, ".kiln", "uploads", "*", "upload-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left over: %q %v", left, err)
	}
	if kills < indextest.Scale(1, 100) {
		t.Errorf("only %d kills", kills)
	}
}

func listedFiles(t *testing.T, dir string) map[string]bool {
	t.Helper()
	store, err := index.Open(dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := store.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for p := range catalog.Projects() {
		for i := range p.Files {
			out[p.Files[i].Filename] = true
		}
	}
	return out
}

// TestUploadSlots: no more uploads than allowed run at once; who comes later is told to try again.
func TestUploadSlots(t *testing.T) {
	f := newFixture(t, serve.Options{MaxUploads: 1, Stall: 30 * time.Second})
	// The first upload holds the only place until its body ends.
	body, contentType := f.form(wheel128, indextest.Wheel(t, wheel128, padding)).encode(t)
	r, w := net.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.http.URL+"/legacy/", r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.SetBasicAuth("__token__", f.secret)
	first := make(chan answer)
	go func() { first <- f.send(req) }()
	if _, err := w.Write(body[:len(body)/2]); err != nil { // returns when it was sent
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		got := f.upload(f.form(wheel130, indextest.Wheel(t, wheel130, nil)))
		if got.StatusCode == 503 && got.Header.Get("Retry-After") != "" {
			break
		}
		if got.StatusCode != 200 || time.Now().After(deadline) {
			t.Fatalf("a second upload: %d %s", got.StatusCode, got.body)
		}
	}
	if _, err := w.Write(body[len(body)/2:]); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got := <-first; got.StatusCode != 200 {
		t.Errorf("the first upload: %d %s", got.StatusCode, got.body)
	}
	if got := f.upload(f.form(wheel130, indextest.Wheel(t, wheel130, nil))); got.StatusCode != 200 {
		t.Errorf("after the first: %d %s", got.StatusCode, got.body)
	}
}

// padding makes half of a form more than what the client's library keeps back before it sends.
var padding = map[string]string{"padding.txt": strings.Repeat("x", 64<<10)}

// slowUpload begins an upload and returns a function that sends the rest and one that gives the
// answer.
func slowUpload(f *fixture, filename, secret string) (finish func(), done chan answer) {
	f.t.Helper()
	body, contentType := f.form(filename, indextest.Wheel(f.t, filename, padding)).encode(f.t)
	r, w := net.Pipe()
	req, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.http.URL+"/legacy/", r)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.SetBasicAuth("__token__", secret)
	done = make(chan answer, 1)
	go func() { done <- f.send(req) }()
	if _, err := w.Write(body[:len(body)/2]); err != nil { // returns when it was sent
		f.t.Fatal(err)
	}
	return func() {
		_, _ = w.Write(body[len(body)/2:])
		_ = w.Close()
	}, done
}

// TestUploadTokens: one token cannot take all places, and a token that is revoked during an upload
// is worth nothing at its end.
func TestUploadTokens(t *testing.T) {
	f := newFixture(t, serve.Options{MaxUploads: 2, Stall: 30 * time.Second})
	tokens, err := serve.OpenTokens(filepath.Join(f.dir, ".kiln", "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	other, made, err := tokens.Create(t.Context(), serve.NewToken{Projects: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	finish, done := slowUpload(f, wheel128, other)
	form := f.form(wheel130, indextest.Wheel(t, wheel130, nil))
	form.secret = other
	for deadline := time.Now().Add(30 * time.Second); ; {
		got := f.upload(form)
		if got.StatusCode == 503 {
			break
		}
		if got.StatusCode != 200 || time.Now().After(deadline) {
			t.Fatalf("a second upload with the token: %d %s", got.StatusCode, got.body)
		}
	}
	if got := f.upload(f.form(wheel130, indextest.Wheel(t, wheel130, nil))); got.StatusCode != 200 {
		t.Errorf("an upload with another token: %d %s", got.StatusCode, got.body)
	}
	if err := tokens.Revoke(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	finish()
	if got := <-done; got.StatusCode != 401 {
		t.Errorf("an upload whose token was revoked: %d %s", got.StatusCode, got.body)
	}
	if f.server.Catalog().Project("flash-attn").File(wheel128) != nil {
		t.Error("its file is in the index")
	}
}

// TestRefusedUpload: a client without a token is not asked for its file, and does not hold a
// connection by sending a byte now and then.
func TestRefusedUpload(t *testing.T) {
	f := newFixture(t, serve.Options{Stall: 300 * time.Millisecond})
	const head = "POST /legacy/ HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000000000\r\n"
	for _, test := range []struct{ name, more string }{{"expects", "Expect: 100-continue\r\n"}, {"trickles", ""}} {
		conn := f.dial()
		if _, err := io.WriteString(conn, head+test.more+"\r\n"); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		if test.more == "" {
			go func() {
				for ctx.Err() == nil {
					_, _ = conn.Write([]byte{'x'})
					time.Sleep(20 * time.Millisecond)
				}
			}()
		}
		_ = conn.SetReadDeadline(time.Now().Add(15 * time.Second))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if !strings.Contains(line, " 401 ") {
			t.Errorf("%s: %q %v", test.name, line, err)
		}
		stop()
		_ = conn.Close()
	}
}
