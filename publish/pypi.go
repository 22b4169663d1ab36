package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/wheel"
)

// Addresses of the public indexes.
const (
	pypiUpload     = "https://upload.pypi.org/legacy/"
	pypiIndex      = "https://pypi.org/simple/"
	testPyPIUpload = "https://test.pypi.org/legacy/"
	testPyPIIndex  = "https://test.pypi.org/simple/"
)

// PyPIOptions are options of [NewPyPI].
type PyPIOptions struct {
	// Upload is the address that takes files, as twine and uv publish know it; "pypi" and "testpypi"
	// are the public ones. Its credentials are used if there is no Token.
	Upload secret.URL
	// Index is where the files are listed (PEP 503). By default it is looked for near Upload.
	Index string
	// Token is an API token. Without it, and without credentials, Identity is exchanged for one that
	// is valid for some minutes (trusted publishing).
	Token    string
	Identity Identity
	// Projects are those that List looks at.
	Projects []string
	// Transport carries the requests; nil means a new one with usual settings.
	Transport http.RoundTripper
	// Retry says how patient the target is.
	Retry Retry
	// Appear is how long a file may take to be listed after its upload. Default two minutes.
	Appear time.Duration
}

// Identity is how a job of hosted CI proves who it is.
type Identity struct {
	// RequestURL and RequestToken are GitHub's ACTIONS_ID_TOKEN_REQUEST_URL and _TOKEN; Token is one
	// that was made already, as GitLab does.
	RequestURL, RequestToken, Token string
}

func (i Identity) known() bool { return i.Token != "" || i.RequestURL != "" && i.RequestToken != "" }

// pypi is an index that takes uploads as PyPI does. It has no releases and never replaces a file.
type pypi struct {
	opts   PyPIOptions
	upload *url.URL
	public bool // one of the public indexes, with their rules
	client *http.Client

	mu    sync.Mutex
	index string // "" until it was found
	token string
}

// NewPyPI returns an index that takes uploads as a target. It is flat: its files are in the release
// with the empty tag.
func NewPyPI(opts PyPIOptions) (Target, error) {
	address := opts.Upload.String()
	switch address {
	case "pypi":
		address, opts.Index = pypiUpload, pypiIndex
	case "testpypi":
		address, opts.Index = testPyPIUpload, testPyPIIndex
	}
	u, err := url.Parse(slash(address))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("upload address %q: want pypi, testpypi or an address such as https://upload.example.org/legacy/", opts.Upload)
	}
	transport := opts.Transport
	if transport == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	var own secret.Store
	own.Add(opts.Upload)
	t := &pypi{opts: opts, upload: u, index: opts.Index, token: opts.Token, client: &http.Client{Transport: statusTransport{own.Transport(transport)}}}
	t.public = u.Host == "upload.pypi.org" || u.Host == "test.pypi.org" || u.Host == "pypi.org"
	if t.opts.Appear == 0 {
		t.opts.Appear = 2 * time.Minute
	}
	return t, nil
}

func (t *pypi) String() string { return "pypi:" + t.upload.String() }

func (t *pypi) Limits() Limits {
	return Limits{WheelsOnly: true, Flat: true, NoOverwrite: true, PublicNames: t.public}
}

func (t *pypi) Base(string) string { return "" }

func (t *pypi) Begin(context.Context, Release) error { return nil }

func (t *pypi) Finish(context.Context, Release) error { return nil }

func (t *pypi) Lock(context.Context, Owner) (func() error, error) {
	return func() error { return nil }, nil // it takes each file as a whole
}

func (t *pypi) Remove(_ context.Context, _, name string) error {
	return fmt.Errorf("%s: an index such as PyPI takes no removals from here; yank or delete the file on its pages", name)
}

// simple returns the address of the index: the one that was given, or the first of the usual places
// that answers.
func (t *pypi) simple(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.index != "" {
		return t.index, nil
	}
	var tried []string
	for _, place := range []string{"simple/", "../simple/", "+simple/"} {
		address := t.upload.JoinPath(place).String()
		tried = append(tried, address)
		var answer *httpError
		err := t.opts.Retry.Get(ctx, t.client, address, func(io.Reader) error { return nil })
		switch {
		case err == nil:
			t.index = address
			return address, nil
		case !errors.As(err, &answer) || answer.status/100 != 4:
			return "", err
		}
	}
	return "", fmt.Errorf("where %s lists its files is not known: none of %s answers; say url: of the target in packages.yml", t, strings.Join(tried, ", "))
}

func (t *pypi) files(ctx context.Context, project string) ([]*index.File, error) {
	address, err := t.simple(ctx)
	if err != nil {
		return nil, err
	}
	return readIndex(ctx, t.client, &t.opts.Retry, address, project)
}

func (t *pypi) List(ctx context.Context, _ func(string) bool) ([]Release, error) {
	return listIndex(ctx, t, t.opts.Projects, t.files)
}

func (t *pypi) find(ctx context.Context, name string) (*index.File, error) {
	return findIndexed(ctx, name, t.files)
}

func (t *pypi) Stat(ctx context.Context, _, name string) (RemoteFile, error) {
	f, err := t.find(ctx, name)
	if err != nil {
		return RemoteFile{}, err
	}
	out := remoteIndexed(f, "")
	if out.Size == 0 { // pages in HTML have no sizes
		out.Size, err = sizeAt(ctx, t.client, &t.opts.Retry, f.URL(""))
	}
	return out, err
}

func (t *pypi) Open(ctx context.Context, _, name string) (io.ReadCloser, error) {
	f, err := t.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return openAt(ctx, t.client, &t.opts.Retry, f.URL(""))
}

func (t *pypi) Upload(ctx context.Context, tag string, f LocalFile, progress func(int64)) (RemoteFile, error) {
	fields, err := metadataForm(ctx, f)
	if err != nil {
		return RemoteFile{}, err
	}
	token, err := t.credential(ctx)
	if err != nil {
		return RemoteFile{}, err
	}
	post := uploadRequest{client: t.client, retry: &t.opts.Retry, address: t.upload.String(), token: token, fields: fields}
	if err := post.do(ctx, f, progress); err != nil {
		if errors.Is(err, ErrExists) { // some servers refuse also the same bytes, as after an answer that was lost
			if have, statErr := t.Stat(ctx, tag, f.Name); statErr == nil && have.SHA256 == f.SHA256 {
				return have, nil
			}
		}
		var answer *httpError
		if errors.As(err, &answer) && (answer.status == http.StatusForbidden || answer.status == http.StatusUnauthorized) {
			return RemoteFile{}, fmt.Errorf("%w\n  the token is wrong, or not for this project; KILN_PYPI_TOKEN has it", err)
		}
		return RemoteFile{}, err
	}
	// The page that lists the file may be a copy of some seconds ago.
	for end := time.Now().Add(t.opts.Appear); ; {
		out, err := t.Stat(ctx, tag, f.Name)
		if !errors.Is(err, fs.ErrNotExist) || time.Now().After(end) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return RemoteFile{}, context.Cause(ctx)
		case <-time.After(2 * time.Second):
		}
	}
}

// credential returns the token to upload with; "" if the address has credentials of its own.
func (t *pypi) credential(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != "" || t.opts.Upload.Hidden() {
		return t.token, nil
	}
	if !t.opts.Identity.known() {
		return "", fmt.Errorf("%s: there is no token\n  set KILN_PYPI_TOKEN, or publish from a job of hosted CI that PyPI trusts, with permission id-token: write", t)
	}
	token, err := t.mint(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: trusted publishing: %w", t, err)
	}
	t.token = token
	return token, nil
}

// maxAnswer bounds what is read of the answers about tokens.
const maxAnswer = 1 << 20

// mint exchanges the identity of this job for a token, as PyPI documents it: the index says for whom
// the identity must be made out, the CI makes it, and the index gives a token for it.
func (t *pypi) mint(ctx context.Context) (string, error) {
	site := *t.upload
	site.Host = strings.TrimPrefix(site.Host, "upload.")
	site.Path, site.RawQuery = "/", ""
	ask := func(method, address, bearer string, body []byte, out any) error {
		return t.opts.Retry.do(ctx, "ask "+secret.Clean(address), func() error {
			req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
			if err != nil {
				return err
			}
			if bearer != "" {
				req.Header.Set("Authorization", "bearer "+bearer)
			}
			if body != nil {
				req.Header.Set("Content-Type", "application/json")
			}
			resp, err := t.client.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode/100 != 2 {
				return newHTTPError(resp)
			}
			return json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out)
		})
	}
	identity := t.opts.Identity.Token
	if identity == "" {
		var audience struct{ Audience string }
		if err := ask(http.MethodGet, site.JoinPath("_/oidc/audience").String(), "", nil, &audience); err != nil {
			return "", err
		}
		u, err := url.Parse(t.opts.Identity.RequestURL)
		if err != nil {
			return "", err
		}
		q := u.Query()
		q.Set("audience", audience.Audience)
		u.RawQuery = q.Encode()
		var answer struct{ Value string }
		if err := ask(http.MethodGet, u.String(), t.opts.Identity.RequestToken, nil, &answer); err != nil {
			return "", fmt.Errorf("the CI gave no identity: %w", err)
		}
		identity = answer.Value
	}
	body, err := json.Marshal(map[string]string{"token": identity})
	if err != nil {
		return "", err
	}
	var minted struct {
		Success bool
		Token   string
	}
	if err := ask(http.MethodPost, site.JoinPath("_/oidc/mint-token").String(), "", body, &minted); err != nil {
		return "", fmt.Errorf("the index does not trust this job; add it as a publisher of the project there: %w", err)
	}
	if minted.Token == "" {
		return "", errors.New("the index answered without a token")
	}
	return minted.Token, nil
}

// formNames are the fields of metadata that the form of an upload calls otherwise.
var formNames = map[string]string{"classifier": "classifiers", "project_url": "project_urls"}

// metadataForm is what the form of an upload says about a file: its metadata, whole.
func metadataForm(ctx context.Context, f LocalFile) ([][2]string, error) {
	from, err := f.open()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	at, ok := from.(io.ReaderAt)
	if !ok {
		text, err := io.ReadAll(from)
		if err != nil {
			return nil, err
		}
		at = bytes.NewReader(text)
	}
	var m *wheel.Metadata
	kind, python := "sdist", "source"
	if name, bad := wheel.ParseFilename(f.Name); bad == nil {
		r, err := wheel.NewReader(at, f.Size, f.Name, wheel.Limits{})
		if err != nil {
			return nil, err
		}
		if m, err = r.Metadata(); err != nil {
			return nil, err
		}
		kind, python = "bdist_wheel", strings.Join(name.Python, ".")
	} else if m, err = wheel.ReadSdist(ctx, at, f.Size, f.Name, wheel.Limits{}); err != nil {
		return nil, err
	}
	fields := [][2]string{{":action", "file_upload"}, {"protocol_version", "1"}, {"sha256_digest", f.SHA256}, {"filetype", kind}, {"pyversion", python}}
	for _, field := range m.Fields() {
		name := strings.ReplaceAll(strings.ToLower(field.Name), "-", "_")
		if name == "description" {
			continue
		}
		if other, ok := formNames[name]; ok {
			name = other
		}
		fields = append(fields, [2]string{name, strings.TrimSpace(field.Value)})
	}
	if text := m.Description(); text != "" {
		fields = append(fields, [2]string{"description", text})
	}
	attestations, err := readAttestations(&f)
	if err == nil && attestations != "" {
		fields = append(fields, [2]string{"attestations", attestations})
	}
	return fields, err
}

// readAttestations collects what was made for a file by a tool that signs as PyPI wants it (PEP
// 740): FILE.publish.attestation and the like, beside the file.
func readAttestations(f *LocalFile) (string, error) {
	if f.Path == "" {
		return "", nil
	}
	entries, err := os.ReadDir(filepath.Dir(f.Path))
	if err != nil {
		return "", err
	}
	var list []json.RawMessage
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), f.Name+".") || !strings.HasSuffix(e.Name(), ".attestation") {
			continue
		}
		path := filepath.Join(filepath.Dir(f.Path), e.Name())
		text, err := fsx.ReadFile(path, maxSmall)
		if err != nil {
			return "", err
		}
		if !json.Valid(text) {
			return "", fmt.Errorf("%s is no JSON; make it anew, or remove it", path)
		}
		list = append(list, text)
	}
	if len(list) == 0 {
		return "", nil
	}
	text, err := json.Marshal(list)
	return string(text), err
}
