package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/wheel"
)

// panicking lets what makes wheels for tests make them here.
type panicking struct{ testing.TB }

func (panicking) Helper()           {}
func (panicking) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// target is the server that is attacked, with an index that has something to lose.
type target struct {
	*server

	c      config
	dir    string
	secret string // may upload everything
	probe  *prober
}

const (
	bigProject = "big-project"
	bigFiles   = 2000
	published  = "x-1.0-py3-none-any.whl"
	largeWheel = "large-1.0-py3-none-any.whl"
)

func newTarget(ctx context.Context, c config, dir string) (*target, error) {
	store, err := index.Open(dir, index.StoreOptions{})
	if err != nil {
		return nil, err
	}
	_, problems, err := store.AddListed(ctx, func(yield func(index.File, error) bool) {
		for i := range bigFiles {
			f := index.File{
				Filename: fmt.Sprintf("big_project-1.%d+cu12%d.torch2.%d-cp31%d-cp31%[4]d-manylinux_2_28_x86_64.whl", i/50, i/25%2*2+6, 6+i/5%5, i%5),
				Base:     "https://example.org/files/", Size: int64(1_000_000 + i), RequiresPython: ">=3.10", UploadTime: time.Unix(1_700_000_000, 0),
			}
			f.SHA256 = sha256.Sum256([]byte(f.Filename))
			if !yield(f, nil) {
				return
			}
		}
	}, index.AddOptions{})
	if err != nil || len(problems) > 0 {
		return nil, fmt.Errorf("make index: %w %v", err, problems)
	}
	t := &target{c: c, dir: dir}
	if t.secret, err = newToken(ctx, c, dir, "*"); err != nil {
		return nil, err
	}
	if t.server, err = startServer(ctx, c, dir, 0); err != nil {
		return nil, err
	}
	for _, name := range []string{published, native, sdist} {
		if status, text := t.upload(ctx, t.secret, name, content(name, "first")); status != http.StatusOK {
			return nil, fmt.Errorf("upload %s: %d %s", name, status, text)
		}
	}
	large := indextest.Wheel(panicking{}, largeWheel, map[string]string{"large.bin": strings.Repeat("a wheel of some size\n", 1<<20)})
	if status, text := t.upload(ctx, t.secret, largeWheel, large); status != http.StatusOK {
		return nil, fmt.Errorf("upload %s: %d %s", largeWheel, status, text)
	}
	t.probe, err = startProber(ctx, t.url)
	return t, err
}

func newToken(ctx context.Context, c config, dir, project string, more ...string) (string, error) {
	args := append([]string{"serve", "token", "create", "--dir", dir, "--project", project}, more...)
	out, err := exec.CommandContext(ctx, c.kiln, args...).Output()
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (t *target) stop() {
	t.probe.stop()
	t.server.stop()
}

// attackAll runs attacks one after the other.
func (t *target) attackAll(ctx context.Context, list []attack) (results []*result, err error) {
	for _, a := range list {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !t.c.only.MatchString(a.name) {
			continue
		}
		r := &result{name: a.name}
		t.memory()
		t.probe.take()
		if err := a.run(ctx, t, r); err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		r.memory, r.health = t.memory(), t.probe.take()
		results = append(results, r)
		if t.c.short {
			continue
		}
		time.Sleep(500 * time.Millisecond) // what is left of one attack does not count for the next
	}
	return results, nil
}

// consistent looks whether the index is whole, as "kiln index check" sees it.
func (t *target) consistent(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, t.c.kiln, "index", "check", "--dir", t.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kiln index check: %w\n%s", err, out)
	}
	if bytes.Contains(out, []byte("not listed")) {
		return fmt.Errorf("something is left over:\n%s", out)
	}
	return nil
}

// content is a good wheel or sdist of a name; other marks give other bytes.
func content(name, mark string) []byte {
	if !strings.HasSuffix(name, ".whl") {
		return indextest.Sdist(panicking{}, name, mark)
	}
	return indextest.Wheel(panicking{}, name, map[string]string{"mark.txt": mark})
}

// client asks from an address of its own.
func client(host int) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(host))}}
	return &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DialContext: dialer.DialContext, DisableCompression: true, MaxIdleConnsPerHost: 500,
	}}
}

// dial opens a connection from an address of its own.
func (t *target) dial(ctx context.Context, host int) (net.Conn, error) {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(host))}, Timeout: 10 * time.Second}
	return dialer.DialContext(ctx, "tcp", strings.Trim(strings.TrimPrefix(t.url, "http://"), "/"))
}

var uploads = client(1)

// upload sends a file as twine does.
func (t *server) upload(ctx context.Context, secret, name string, data []byte) (status int, text string) {
	project, version, kind := "evil", "1.0", "bdist_wheel"
	if w, err := wheel.ParseFilename(name); err == nil {
		project, version = w.Name, w.Version.String()
	} else if s, err := wheel.ParseSdistName(name); err == nil {
		project, version, kind = s.Name, s.Version.String(), "sdist"
	}
	body, contentType := form(name, data, project, version, kind)
	return t.post(ctx, secret, body, contentType)
}

func form(name string, data []byte, project, version, kind string) (body []byte, contentType string) {
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	sum := sha256.Sum256(data)
	for _, field := range [][2]string{
		{":action", "file_upload"},
		{"protocol_version", "1"},
		{"metadata_version", "2.1"},
		{"name", project},
		{"version", version},
		{"filetype", kind},
		{"pyversion", "py3"},
		{"sha256_digest", fmt.Sprintf("%x", sum)},
	} {
		_ = w.WriteField(field[0], field[1]) // into memory
	}
	part, _ := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="content"; filename="` + name + `"`}})
	_, _ = part.Write(data)
	_ = w.Close()
	return buf.Bytes(), w.FormDataContentType()
}

// post sends a form. The status is 0 if there is no answer.
func (t *server) post(ctx context.Context, secret string, body []byte, contentType string) (status int, text string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url+"legacy/", bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", contentType)
	if secret != "" {
		req.SetBasicAuth("__token__", secret)
	}
	return answer(uploads, req)
}

func answer(c *http.Client, req *http.Request) (status int, text string) {
	res, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(data)
}

// get asks for a page as a client that does nothing wrong, from an address of its own.
func (t *server) get(ctx context.Context, host int, path string) (status int, text string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.url+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	return answer(client(host), req)
}

// listed returns the files of a project, by what the server says.
func (t *server) listed(ctx context.Context, project string) ([]index.File, error) {
	remote, err := index.OpenRemote(ctx, http.DefaultClient, t.url)
	if err != nil {
		return nil, err
	}
	files, err := remote.Files(ctx, project)
	if errors.Is(err, index.ErrNotFound) {
		return nil, nil
	}
	var out []index.File
	for _, f := range files {
		out = append(out, *f)
	}
	return out, err
}
