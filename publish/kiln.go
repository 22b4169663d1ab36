package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/wheel"
)

// KilnOptions are options of [NewKiln].
type KilnOptions struct {
	// URL is the address of the server, that of its index. Its credentials are used if there is no
	// Token.
	URL secret.URL
	// Token is one of `kiln serve token create`.
	Token string
	// Projects are those that List looks at.
	Projects []string
	// Transport carries the requests; nil means a new one with usual settings.
	Transport http.RoundTripper
	// Retry says how patient the target is.
	Retry Retry
}

// kilnServer is an index that `kiln serve` serves. It has no releases, checks what it gets, and
// never replaces a file.
type kilnServer struct {
	opts   KilnOptions
	root   *url.URL
	client *http.Client
	retry  Retry
	papers atomic.Bool // it takes what goes with wheels
}

// NewKiln returns a kiln server as a target. It is flat: its files are in the release with the
// empty tag.
func NewKiln(opts KilnOptions) (Target, error) {
	u, err := url.Parse(slash(opts.URL.String()))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("kiln server %q: want an address such as https://wheels.example.org/", opts.URL)
	}
	transport := opts.Transport
	if transport == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	var own secret.Store // for reading from a server that asks who does
	own.Add(opts.URL)
	transport = own.Transport(transport)
	return &kilnServer{opts: opts, root: u, client: &http.Client{Transport: statusTransport{transport}}, retry: opts.Retry}, nil
}

// statusTransport turns answers that ask for another attempt into errors.
type statusTransport struct{ http.RoundTripper }

func (t statusTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil && (resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout) {
		defer resp.Body.Close()
		return nil, newHTTPError(resp)
	}
	return resp, err
}

func (t *kilnServer) String() string { return "kiln:" + t.root.String() }

func (t *kilnServer) Limits() Limits {
	papers := t.papers.Load()
	return Limits{WheelsOnly: !papers, PapersAfter: papers, Flat: true, NoOverwrite: true}
}

func (t *kilnServer) Base(string) string { return "" }

func (t *kilnServer) List(ctx context.Context, _ func(string) bool) ([]Release, error) {
	if err := t.askPapers(ctx); err != nil {
		return nil, fmt.Errorf("list %s: %w", t, err)
	}
	return listIndex(ctx, t, t.opts.Projects, t.files)
}

// askPapers asks whether the server takes provenance and bill of materials. One of an early version
// does not.
func (t *kilnServer) askPapers(ctx context.Context) error {
	return t.retry.do(ctx, "ask "+t.root.String(), func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.uploads(), http.NoBody)
		if err != nil {
			return err
		}
		if t.opts.Token != "" {
			req.SetBasicAuth("__token__", t.opts.Token)
		}
		resp, err := t.client.Do(req)
		if err != nil {
			return err
		}
		t.papers.Store(strings.Contains(resp.Header.Get(index.PapersHeader), index.ProvenanceSuffix))
		return resp.Body.Close()
	})
}

func (t *kilnServer) uploads() string { return t.root.JoinPath("legacy/").String() }

// indexFiles returns what an index lists of a project.
type indexFiles func(ctx context.Context, project string) ([]*index.File, error)

// listIndex is the one release of an index.
func listIndex(ctx context.Context, t Target, projects []string, list indexFiles) ([]Release, error) {
	r := Release{Created: time.Unix(0, 0).UTC()} // always finished
	for _, project := range projects {
		files, err := list(ctx, project)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", t, err)
		}
		for _, f := range files {
			r.Files = append(r.Files, remoteIndexed(f, ""))
			for suffix := range f.Papers {
				r.Files = append(r.Files, remoteIndexed(f, suffix))
			}
		}
	}
	if len(r.Files) == 0 {
		return nil, nil
	}
	slices.SortFunc(r.Files, func(a, b RemoteFile) int { return strings.Compare(a.Name, b.Name) })
	return []Release{r}, nil
}

// remoteIndexed is a file of an index, or the paper of it with that suffix, whose size a page does
// not say.
func remoteIndexed(f *index.File, suffix string) RemoteFile {
	out := RemoteFile{Name: f.Filename + suffix, SHA256: f.Paper(suffix).String(), Uploaded: f.UploadTime}
	if suffix == "" {
		out.Size = f.Size
	}
	return out
}

func (t *kilnServer) files(ctx context.Context, project string) ([]*index.File, error) {
	return readIndex(ctx, t.client, &t.retry, t.root.String(), project)
}

// readIndex reads what the index at an address lists of a project; one that it does not have has no
// files.
func readIndex(ctx context.Context, client *http.Client, retry *Retry, address, project string) (files []*index.File, err error) {
	err = retry.do(ctx, "list "+project, func() error {
		remote, err := index.OpenRemote(ctx, client, address)
		if err != nil {
			return err
		}
		files, err = remote.Files(ctx, project)
		if errors.Is(err, index.ErrNoProject) {
			return nil
		}
		return err
	})
	return files, err
}

// Begin and Finish have nothing to do: the server keeps its own books.
func (t *kilnServer) Begin(context.Context, Release) error { return nil }

func (t *kilnServer) Finish(context.Context, Release) error { return nil }

func (t *kilnServer) Upload(ctx context.Context, tag string, f LocalFile, progress func(int64)) (RemoteFile, error) {
	fields, err := kilnForm(f)
	if err != nil {
		return RemoteFile{}, err
	}
	post := uploadRequest{client: t.client, retry: &t.retry, address: t.uploads(), token: t.opts.Token, fields: fields}
	if err := post.do(ctx, f, progress); err != nil {
		return RemoteFile{}, err
	}
	return t.Stat(ctx, tag, f.Name)
}

// uploadRequest is an upload in the format of PyPI's legacy API.
type uploadRequest struct {
	client  *http.Client
	retry   *Retry
	address string
	token   string
	fields  [][2]string
}

func (u *uploadRequest) do(ctx context.Context, f LocalFile, progress func(int64)) error {
	head, tail, boundary, err := uploadForm(u.fields, f.Name)
	if err != nil {
		return err
	}
	from, err := f.open()
	if err != nil {
		return err
	}
	defer from.Close()
	refused := 0
	return u.retry.do(ctx, "upload "+f.Name, func() error {
		if _, err := from.Seek(0, io.SeekStart); err != nil {
			return err
		}
		body := io.MultiReader(bytes.NewReader(head), &progressReader{Reader: io.LimitReader(from, f.Size), tell: progress}, bytes.NewReader(tail))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.address, body)
		if err != nil {
			return err
		}
		req.ContentLength = int64(len(head)) + f.Size + int64(len(tail))
		req.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		if u.token != "" {
			req.SetBasicAuth("__token__", u.token)
		}
		resp, err := u.client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated {
			_, err := io.Copy(io.Discard, resp.Body)
			return err
		}
		answer := newHTTPError(resp)
		switch {
		case strings.Contains(answer.text, "already exists") || answer.status == http.StatusConflict:
			return fmt.Errorf("%w: %s", ErrExists, strings.TrimSpace(answer.text))
		case strings.Contains(answer.text, "ended before its end"), strings.Contains(answer.text, "the file that arrived has"):
			return errAgain{answer} // cut off or changed on the way
		case answer.status == http.StatusBadRequest:
			// The form itself may have been changed on the way; the second time it is meant.
			if refused++; refused == 1 {
				return errAgain{answer}
			}
		}
		return answer
	})
}

// kilnForm is what the form of an upload says about a file to a kiln server, which reads the rest
// itself.
func kilnForm(f LocalFile) ([][2]string, error) {
	fields := [][2]string{{":action", "file_upload"}, {"protocol_version", "1"}, {"metadata_version", "2.1"}, {"sha256_digest", f.SHA256}}
	if name, _, ok := index.CutPaper(f.Name); ok {
		w, err := wheel.ParseFilename(name)
		return append(fields, [2]string{"filetype", "paper"}, [2]string{"name", w.Name}, [2]string{"version", w.Version.String()}), err
	}
	if strings.HasSuffix(f.Name, ".whl") {
		w, err := wheel.ParseFilename(f.Name)
		if err != nil {
			return nil, err
		}
		facts, err := json.Marshal(f.Facts)
		if err != nil {
			return nil, err
		}
		fields = append(fields, [2]string{index.FactsField, string(facts)}, [2]string{"filetype", "bdist_wheel"}, [2]string{"pyversion", strings.Join(w.Python, ".")}, [2]string{"name", w.Name}, [2]string{"version", w.Version.String()})
	} else {
		s, err := wheel.ParseSdistName(f.Name)
		if err != nil {
			return nil, err
		}
		fields = append(fields, [2]string{"filetype", "sdist"}, [2]string{"pyversion", "source"}, [2]string{"name", s.Name}, [2]string{"version", s.Version.String()})
	}
	return fields, nil
}

// uploadForm is what stands before and after the bytes of a file.
func uploadForm(fields [][2]string, name string) (head, tail []byte, boundary string, err error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, field := range fields {
		if err := w.WriteField(field[0], field[1]); err != nil {
			return nil, nil, "", err
		}
	}
	if _, err := w.CreateFormFile("content", name); err != nil {
		return nil, nil, "", err
	}
	n := b.Len()
	if err := w.Close(); err != nil {
		return nil, nil, "", err
	}
	return b.Bytes()[:n:n], b.Bytes()[n:], w.Boundary(), nil
}

func project(name string) (string, error) {
	if w, err := wheel.ParseFilename(name); err == nil {
		return w.Name, nil
	}
	s, err := wheel.ParseSdistName(name)
	return s.Name, err
}

// find returns a file, or the wheel that a paper belongs to and the suffix of the paper.
func (t *kilnServer) find(ctx context.Context, name string) (*index.File, string, error) {
	distribution, suffix, _ := index.CutPaper(name)
	f, err := findIndexed(ctx, distribution, t.files)
	if err == nil && f.Paper(suffix).IsZero() {
		err = fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return f, suffix, err
}

// findIndexed returns a file as an index lists it.
func findIndexed(ctx context.Context, name string, list indexFiles) (*index.File, error) {
	p, err := project(name)
	if err != nil {
		return nil, err
	}
	files, err := list(ctx, p)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(files, func(f *index.File) bool { return f.Filename == name })
	if i < 0 {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return files[i], nil
}

func (t *kilnServer) Stat(ctx context.Context, _, name string) (RemoteFile, error) {
	f, suffix, err := t.find(ctx, name)
	if err != nil {
		return RemoteFile{}, err
	}
	out := remoteIndexed(f, suffix)
	if out.Size == 0 {
		out.Size, err = sizeAt(ctx, t.client, &t.retry, f.URL("")+suffix)
	}
	return out, err
}

// sizeAt asks for the size of a file.
func sizeAt(ctx context.Context, client *http.Client, retry *Retry, address string) (size int64, err error) {
	err = retry.do(ctx, "ask for "+address, func() error {
		resp, err := request(ctx, client, http.MethodHead, address)
		if err != nil {
			return err
		}
		size = resp.ContentLength
		return resp.Body.Close()
	})
	return size, err
}

func (t *kilnServer) Open(ctx context.Context, _, name string) (io.ReadCloser, error) {
	f, suffix, err := t.find(ctx, name)
	if err != nil {
		return nil, err
	}
	return openAt(ctx, t.client, &t.retry, f.URL("")+suffix)
}

// openAt reads a file of an index.
func openAt(ctx context.Context, client *http.Client, retry *Retry, address string) (out io.ReadCloser, err error) {
	err = retry.do(ctx, "read "+address, func() error {
		resp, err := request(ctx, client, http.MethodGet, address) //nolint:bodyclose // the caller closes it
		if err != nil {
			return err
		}
		out = resp.Body
		return nil
	})
	return out, err
}

// Remove refuses, but for papers: the only ones that are replaced are statements without a signature,
// and the upload does it.
func (t *kilnServer) Remove(_ context.Context, _, name string) error {
	if _, _, ok := index.CutPaper(name); ok {
		return nil
	}
	return errors.New("a kiln server takes no removals; run `kiln index remove` where it is")
}

// Lock has nothing to do: the server takes one change at a time, each as a whole.
func (t *kilnServer) Lock(context.Context, Owner) (func() error, error) {
	return func() error { return nil }, nil
}
