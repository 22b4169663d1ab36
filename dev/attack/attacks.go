package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-build/kiln/index/indextest"
)

// What was published before, besides [published].
const (
	native = "x-2.0+cu128.torch2.9-cp312-cp312-manylinux_2_17_x86_64.whl"
	sdist  = "x-1.0.tar.gz"
)

// attacks are the attacks on one server, in order.
func attacks(c config) []attack {
	return []attack{
		{"hostile names", attackNames},
		{"hostile wheels", attackWheels},
		{"hostile sdists", attackSdists},
		{"hostile forms", attackForms},
		{"hostile requests", attackRequests},
		{"respelled names", attackRespelled},
		{"tokens", attackTokens},
		{"races on one name", attackRaces},
		{"many members", attackMembers},
		{"silent connections", slow("")},
		{"slow headers", slow("GET / HTTP/1.1\r\nHost: x\r\nX-A: ")},
		{"slow posts, no token", slow("POST /legacy/ HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 4000000000\r\n\r\n")},
		{"slow posts elsewhere", slow("POST /simple/ HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n")},
		{"slow uploads, one token", attackSlowUploads},
		{"slow readers of a file", attackSlowReaders("")},
		{"slow readers of a page", attackSlowReaders("project/" + bigProject + "/?python=3.12")},
		{"flood: hosts", flood("project/"+bigProject+"/", func(i int, req *http.Request) { req.Host = fmt.Sprintf("h%d.example", i) })},
		{"flood: page and query", flood("project/"+bigProject+"/?x=", number)},
		{"flood: choices", flood("project/"+bigProject+"/?python=", number)},
		{"flood: search", flood("?q=", number)},
		{"flood: not found", flood("none/", number)},
		{"flood: not found, simple", flood("all/simple/none", number)},
		{"flood: simple page", flood("all/simple/"+bigProject+"/", gzipped)},
		{"flood: simple and query", flood("all/simple/"+bigProject+"/?x=", func(i int, req *http.Request) { number(i, req); gzipped(i, req) })},
		{"flood: simple, plain", flood("all/simple/"+bigProject+"/", func(int, *http.Request) {})},
		{"flood: export", flood("all/requirements/"+bigProject+".txt?version=", number)},
		{"flood: catalog", flood("catalog.json?x=", number)},
	}
}

func number(i int, req *http.Request) {
	if req.URL.RawQuery != "" {
		req.URL.RawQuery += fmt.Sprint(i)
	} else {
		req.URL.Path += fmt.Sprint(i) + "/"
	}
}

func gzipped(_ int, req *http.Request) { req.Header.Set("Accept-Encoding", "gzip") }

// refused says whether an answer refuses what it answers, without a fault of the server.
func refused(status int) bool { return status >= 400 && status < 500 }

// some returns every tenth name of a short run.
func some[T any](c config, list []T) []T {
	if !c.short {
		return list
	}
	var out []T
	for i := 0; i < len(list); i += 10 {
		out = append(out, list[i])
	}
	return out
}

func attackNames(ctx context.Context, t *target, r *result) error {
	data := content(indextest.Evil, "x")
	for _, name := range some(t.c, indextest.HostileNames) {
		if strings.ContainsAny(name, "\r\n\x00") {
			continue // the form itself is another attack
		}
		body, contentType := form(name, data, "evil", "1.0", "bdist_wheel")
		status, text := t.post(ctx, t.secret, body, contentType)
		r.add(refused(status), "%q: %d %s", name, status, text)
	}
	return nil
}

func attackWheels(ctx context.Context, t *target, r *result) error {
	for name, data := range indextest.HostileWheels(panicking{}) {
		status, text := t.upload(ctx, t.secret, indextest.Evil, data)
		r.add(refused(status), "%s: %d %s", name, status, text)
	}
	for _, python := range []string{"3.9", ">=3.9 and <4", ">=3.6.*", "python>3", ">=", "<script>"} {
		data := indextest.Wheel(panicking{}, indextest.Evil, map[string]string{"evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\nRequires-Python: " + python + "\n"})
		status, text := t.upload(ctx, t.secret, indextest.Evil, data)
		r.add(refused(status), "Requires-Python %s: %d %s", python, status, text)
	}
	return nil
}

func attackSdists(ctx context.Context, t *target, r *result) error {
	for name, data := range indextest.HostileSdists(panicking{}) {
		status, text := t.upload(ctx, t.secret, "evil-1.0.tar.gz", data)
		r.add(refused(status), "%s: %d %s", name, status, text)
	}
	return nil
}

func attackForms(ctx context.Context, t *target, r *result) error {
	for name, body := range indextest.HostileForms() {
		status, text := t.post(ctx, t.secret, []byte(body), "multipart/form-data; boundary=b")
		r.add(refused(status), "%s: %d %s", name, status, text)
	}
	return nil
}

func attackRequests(ctx context.Context, t *target, r *result) error {
	requests := indextest.HostileRequests()
	for _, name := range some(t.c, slices.Sorted(maps.Keys(requests))) {
		conn, err := t.dial(ctx, 2)
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, requests[name])
		_ = conn.(*net.TCPConn).CloseWrite()
		status := 0 // what is no HTTP may get no answer
		if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
			status = res.StatusCode
			_ = res.Body.Close()
		}
		_ = conn.Close()
		known := status == 0 || status == http.StatusNotImplemented || status == http.StatusHTTPVersionNotSupported
		// A long search is a page, and an unknown method or format none.
		r.add(refused(status) || known || strings.HasPrefix(name, "GET /?q="), "%.80q: %d", name, status)
	}
	return nil
}

// respellings are other names of what was published, all of other bytes.
func respellings() (out []string) {
	for _, version := range []string{"1.0", "1.0.0", "1"} {
		for _, build := range []string{"", "1-", "2x-", "0-"} {
			for _, tags := range []string{"py3-none-any", "py3.py3-none-any", "PY3-none-any", "py3-none-any.any", "py3-none.none-any", "py2.py3-none-any", "Py3.py2-NONE-any"} {
				if name := "x-" + version + "-" + build + tags + ".whl"; name != published {
					out = append(out, name)
				}
			}
		}
	}
	for _, label := range []string{"cu128.torch2.9", "CU128.Torch2.9", "cu128_torch2.9"} {
		for _, tags := range []string{
			"cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux2014_x86_64", "CP312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64",
			"cp311.cp312-cp312-manylinux_2_17_x86_64", "3-cp312-cp312-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_17_x86_64.manylinux_2_28_x86_64",
		} {
			for _, version := range []string{"2.0", "2", "2.0.0"} {
				if name := "x-" + version + "+" + label + "-" + tags + ".whl"; name != native {
					out = append(out, name)
				}
			}
		}
	}
	return append(out, "x-1.0.0.tar.gz", "x-1.tar.gz", "x-1.0.zip", "X-1.0.tar.gz", published, native, sdist)
}

func attackRespelled(ctx context.Context, t *target, r *result) error {
	names := some(t.c, respellings())
	for _, name := range names {
		data := content(strings.TrimSuffix(name, ".zip"), "other bytes")
		status, text := t.upload(ctx, t.secret, name, data)
		r.add(refused(status), "%s: %d %s", name, status, text)
	}
	files, err := t.listed(ctx, "x")
	if err == nil && len(files) != 3 {
		r.add(false, "%d files of x, want 3", len(files))
	}
	return err
}

func attackTokens(ctx context.Context, t *target, r *result) error {
	good := content(indextest.Evil, "x")
	other, err := newToken(ctx, t.c, t.dir, "another")
	if err != nil {
		return err
	}
	expired, err := newToken(ctx, t.c, t.dir, "*", "--valid", "1s")
	if err != nil {
		return err
	}
	time.Sleep(1100 * time.Millisecond)
	for name, secret := range map[string]string{"none": "", "another project": other, "expired": expired, "cut": t.secret[:len(t.secret)-1], "longer": t.secret + "x", "upper case": strings.ToUpper(t.secret), "hash": fmt.Sprintf("%x", sha256.Sum256([]byte(t.secret)))} {
		status, text := t.upload(ctx, secret, indextest.Evil, good)
		r.add(status == 401 || status == 403 || status == 429, "%s: %d %s", name, status, text)
	}
	for _, valid := range []string{"-1h", "0s", "-1ns"} {
		_, err := newToken(ctx, t.c, t.dir, "*", "--valid="+valid)
		r.add(err != nil, "--valid=%s made a token", valid)
	}
	for i := range 20 {
		status, text := t.upload(ctx, fmt.Sprintf("kiln_guess%d", i), indextest.Evil, good)
		r.add(status == 401 || status == 429, "guess %d: %d %s", i, status, text)
	}
	// Revoked while its upload is under way.
	secret, err := newToken(ctx, t.c, t.dir, "*", "--note", "revoked")
	if err != nil {
		return err
	}
	body, contentType := form(indextest.Evil, good, "evil", "1.0", "bdist_wheel")
	conn, err := t.dial(ctx, 3)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "POST /legacy/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", secret, contentType, len(body))
	_, _ = conn.Write(body[:len(body)/2])
	list, err := exec.CommandContext(ctx, t.c.kiln, "serve", "token", "list", "--dir", t.dir).Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		if id, rest, _ := strings.Cut(line, " "); strings.Contains(rest, "revoked") {
			if err := exec.CommandContext(ctx, t.c.kiln, "serve", "token", "revoke", "--dir", t.dir, id).Run(); err != nil {
				return err
			}
		}
	}
	_, _ = conn.Write(body[len(body)/2:])
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	r.add(res.StatusCode == 401 || res.StatusCode == 429, "revoked during its upload: %d", res.StatusCode)
	return nil
}

// attackRaces uploads different bytes of one name at once: one of them is published, and it is the
// one whose client was told so.
func attackRaces(ctx context.Context, t *target, r *result) error {
	races := 40
	if t.c.short {
		races = 4
	}
	for race := range races {
		name := fmt.Sprintf("race-1.%d-py3-none-any.whl", race)
		names := []string{name, name, fmt.Sprintf("race-1.%d.0-py3-none-any.whl", race), fmt.Sprintf("race-1.%d-1-py3.py3-none-any.whl", race)}
		var accepted atomic.Int32
		var winner atomic.Value
		var wait sync.WaitGroup
		for i, name := range names {
			wait.Go(func() {
				data := content(name, fmt.Sprint(i))
				if status, _ := t.upload(ctx, t.secret, name, data); status == http.StatusOK {
					accepted.Add(1)
					winner.Store(fmt.Sprintf("%x", sha256.Sum256(data)))
				}
			})
		}
		wait.Wait()
		files, err := t.listed(ctx, "race")
		if err != nil {
			return err
		}
		ok := false
		for _, f := range files {
			ok = ok || f.SHA256.String() == winner.Load()
		}
		r.add(accepted.Load() == 1 && ok && len(files) == race+1, "%s: %d accepted, %d files", name, accepted.Load(), len(files))
	}
	return nil
}

// attackMembers uploads wheels with very many members at once, good ones and bad ones.
func attackMembers(ctx context.Context, t *target, r *result) error {
	n, members := 12, 60_000
	if t.c.short {
		n, members = 2, 5_000
	}
	secrets := []string{t.secret}
	for range 2 {
		secret, err := newToken(ctx, t.c, t.dir, "*")
		if err != nil {
			return err
		}
		secrets = append(secrets, secret)
	}
	many := map[string]string{}
	for i := range members {
		many[fmt.Sprintf("members/folder%03d/file%05d.py", i%100, i)] = ""
	}
	data := indextest.Wheel(panicking{}, "many-1.0-py3-none-any.whl", many)
	hostile := indextest.HostileWheels(panicking{})["200,000 members"]
	var wait sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		wait.Go(func() {
			name, body, want := indextest.Evil, hostile, http.StatusBadRequest
			if i%2 == 0 {
				name, body, want = "many-1.0-py3-none-any.whl", data, http.StatusOK
			}
			status, text := t.upload(ctx, secrets[i%len(secrets)], name, body)
			mu.Lock()
			defer mu.Unlock()
			r.add(status == want || status == http.StatusServiceUnavailable, "%s with %d members: %d %s", name, members, status, text)
		})
	}
	wait.Wait()
	return nil
}

// good asks as a client that does nothing wrong, from an address that nothing bad comes from.
func (t *target) good(ctx context.Context, r *result, path string) {
	begin := time.Now()
	status, text := t.get(ctx, 200, path)
	r.add(status == http.StatusOK, "a good client asks for %s: %d %.100s after %v", path, status, text, time.Since(begin))
}

// slow opens many connections from eleven addresses that begin a request and then send a byte now
// and then.
func slow(head string) func(context.Context, *target, *result) error {
	return func(ctx context.Context, t *target, r *result) error {
		n, seconds := 1100, max(t.c.seconds, 5*time.Second)
		if t.c.short {
			n, seconds = 110, 2*time.Second
		}
		ctx, cancel := context.WithTimeout(ctx, seconds)
		defer cancel()
		var conns []net.Conn
		defer func() {
			for _, c := range conns {
				_ = c.Close()
			}
		}()
		for i := range n {
			c, err := t.dial(ctx, 10+i%11)
			if err != nil {
				continue // refused, which is right
			}
			conns = append(conns, c)
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = io.WriteString(c, head)
		}
		for ctx.Err() == nil {
			if head != "" {
				for _, c := range conns {
					_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
					_, _ = c.Write([]byte{'x'})
				}
			}
			t.good(context.WithoutCancel(ctx), r, "all/simple/"+bigProject+"/")
			time.Sleep(seconds / 10)
		}
		return nil
	}
}

// attackSlowUploads holds as many uploads as one token can; another one gets through.
func attackSlowUploads(ctx context.Context, t *target, r *result) error {
	secret, err := newToken(ctx, t.c, t.dir, "slow")
	if err != nil {
		return err
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range 32 {
		c, err := t.dial(ctx, 30+i%4)
		if err != nil {
			return err
		}
		conns = append(conns, c)
		fmt.Fprintf(c, "POST /legacy/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000000\r\n\r\n--b\r\n", secret)
	}
	rounds := 20
	if t.c.short {
		rounds = 3
	}
	for i := range rounds {
		for _, c := range conns {
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			_, _ = c.Write([]byte{'x'})
		}
		name := fmt.Sprintf("quick-1.%d-py3-none-any.whl", i)
		status, text := t.upload(ctx, t.secret, name, content(name, "x"))
		r.add(status == http.StatusOK, "an upload with another token: %d %s", status, text)
		time.Sleep(t.c.seconds / 40)
	}
	return nil
}

// attackSlowReaders asks for something large and does not read it.
func attackSlowReaders(path string) func(context.Context, *target, *result) error {
	return func(ctx context.Context, t *target, r *result) error {
		n := 1000
		if t.c.short {
			n = 50
		}
		path := path
		if path == "" {
			files, err := t.listed(ctx, "large")
			if err != nil || len(files) == 0 {
				return fmt.Errorf("files of large: %d %w", len(files), err)
			}
			path = files[0].HostedPath()
		}
		var conns []net.Conn
		defer func() {
			for _, c := range conns {
				_ = c.Close()
			}
		}()
		for i := range n {
			c, err := t.dial(ctx, 40+i%10)
			if err != nil {
				continue
			}
			conns = append(conns, c)
			_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
			_, _ = fmt.Fprintf(c, "GET /%s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		}
		for range 10 {
			t.good(ctx, r, "all/simple/"+bigProject+"/")
			time.Sleep(t.c.seconds / 10)
		}
		return nil
	}
}

// flood asks on 200 connections from four addresses, as fast as it gets answers. A good client gets
// its pages meanwhile.
func flood(path string, change func(i int, req *http.Request)) func(context.Context, *target, *result) error {
	return func(ctx context.Context, t *target, r *result) error {
		connections, seconds := 200, t.c.seconds
		if t.c.short {
			connections, seconds = 20, time.Second
		}
		ctx, cancel := context.WithTimeout(ctx, seconds)
		defer cancel()
		var asked, bad atomic.Int64
		var wait sync.WaitGroup
		clients := make([]*http.Client, 4)
		for i := range clients {
			clients[i] = client(60 + i)
			clients[i].CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			defer clients[i].CloseIdleConnections()
		}
		for i := range connections {
			wait.Go(func() {
				for ctx.Err() == nil {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url+path, nil)
					if err != nil {
						return
					}
					change(int(asked.Add(1)), req)
					res, err := clients[i%len(clients)].Do(req)
					if err != nil {
						continue
					}
					if res.StatusCode >= 500 && res.StatusCode != http.StatusServiceUnavailable {
						bad.Add(1)
					}
					_, _ = io.Copy(io.Discard, res.Body)
					_ = res.Body.Close()
				}
			})
		}
		for ctx.Err() == nil {
			t.good(context.WithoutCancel(ctx), r, "all/simple/"+bigProject+"/")
			time.Sleep(seconds / 5)
		}
		wait.Wait()
		r.add(bad.Load() == 0 && asked.Load() > 0, "%d of %d answers are faults of the server", bad.Load(), asked.Load())
		return nil
	}
}
