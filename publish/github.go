package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-github/v92/github"
)

// GitHubOptions are options of [NewGitHub].
type GitHubOptions struct {
	// Repository is OWNER/NAME.
	Repository string
	// Token may write contents of the repository; without one only reading works.
	Token string
	// Endpoint is the address of the API. Default GitHub's own.
	Endpoint string
	// WebURL is the address below which repositories are for people. Default derived from Endpoint.
	WebURL string
	// Draft leaves new releases as drafts, Prerelease marks them as such.
	Draft, Prerelease bool
	// Transport carries the requests; nil means a new one with usual settings.
	Transport http.RoundTripper
	// Retry says how patient the target is.
	Retry Retry
}

// gitHub are the releases of a repository. A release is a draft, which users do not see, until
// Finish. Assets that were cut off stay in the state "starter" and block their name; they are
// removed before the next attempt.
type gitHub struct {
	opts        GitHubOptions
	owner, repo string
	client      *github.Client
	plain       *http.Client // for downloads, without the token
	web         string
	retry       Retry

	mu       sync.Mutex
	releases map[string]*github.RepositoryRelease // by tag
	assets   map[string]int64                     // ids by tag and name
}

// NewGitHub returns the releases of a repository as a target.
func NewGitHub(opts GitHubOptions) (Target, error) {
	t := &gitHub{opts: opts, retry: opts.Retry, releases: map[string]*github.RepositoryRelease{}, assets: map[string]int64{}, web: "https://github.com/"}
	var ok bool
	if t.owner, t.repo, ok = strings.Cut(opts.Repository, "/"); !ok || t.owner == "" || t.repo == "" {
		return nil, fmt.Errorf("repository %q: want OWNER/NAME", opts.Repository)
	}
	transport := opts.Transport
	if transport == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	t.plain = &http.Client{Transport: transport}
	with := []github.ClientOptionsFunc{github.WithHTTPClient(&http.Client{Transport: transport}), github.WithUserAgent("kiln")}
	if opts.Token != "" {
		with = append(with, github.WithAuthToken(opts.Token))
	}
	if opts.Endpoint != "" {
		base := slash(opts.Endpoint)
		u, err := url.Parse(base)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("endpoint %q: want an address such as https://github.example.org/api/v3", opts.Endpoint)
		}
		with = append(with, github.WithURLs(&base, &base))
		t.web = u.Scheme + "://" + strings.TrimPrefix(u.Host, "api.") + strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/api/v3") + "/"
	}
	if opts.WebURL != "" {
		t.web = slash(opts.WebURL)
	}
	var err error
	if t.client, err = github.NewClient(with...); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *gitHub) String() string { return "github:" + t.owner + "/" + t.repo }

func (t *gitHub) Limits() Limits {
	return Limits{FileBytes: GitHubFileBytes, ReleaseFiles: GitHubReleaseFiles}
}

func (t *gitHub) Base(tag string) string {
	return t.web + t.owner + "/" + t.repo + "/releases/download/" + url.PathEscape(tag) + "/"
}

// status returns the HTTP status of an error of the API, or 0.
func status(err error) int {
	if e, ok := errors.AsType[*github.ErrorResponse](err); ok && e.Response != nil {
		return e.Response.StatusCode
	}
	return 0
}

// already reports whether the API refused to make something because it is there.
func already(err error) bool {
	e, ok := errors.AsType[*github.ErrorResponse](err)
	return ok && status(err) == http.StatusUnprocessableEntity &&
		(strings.Contains(e.Message, "already exists") || slices.ContainsFunc(e.Errors, func(e github.Error) bool { return e.Code == "already_exists" }))
}

func (t *gitHub) List(ctx context.Context, match func(string) bool) ([]Release, error) {
	all, err := t.listReleases(ctx)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", t, err)
	}
	var out []Release
	for _, r := range all {
		if !match(r.TagName) {
			continue
		}
		assets, err := t.listAssets(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", t, err)
		}
		rel := Release{Tag: r.TagName, Title: r.GetName()}
		rel.Notes, rel.Changes = splitBody(r.GetBody())
		if !r.Draft || t.opts.Draft {
			rel.Created = r.CreatedAt.Time.UTC()
		}
		for _, a := range assets {
			if a.GetState() == "uploaded" {
				rel.Files = append(rel.Files, remoteAsset(a))
			}
		}
		slices.SortFunc(rel.Files, func(a, b RemoteFile) int { return strings.Compare(a.Name, b.Name) })
		out = append(out, rel)
	}
	slices.SortFunc(out, func(a, b Release) int { return strings.Compare(a.Tag, b.Tag) })
	return out, nil
}

func remoteAsset(a *github.ReleaseAsset) RemoteFile {
	f := RemoteFile{Name: a.GetName(), Size: int64(a.GetSize()), Uploaded: a.GetUpdatedAt().UTC()}
	if sum, ok := strings.CutPrefix(a.GetDigest(), "sha256:"); ok {
		f.SHA256 = sum
	}
	return f
}

// listReleases returns one release for every tag. Drafts may share a tag; then the oldest counts,
// for everybody.
func (t *gitHub) listReleases(ctx context.Context) ([]*github.RepositoryRelease, error) {
	byTag := map[string]*github.RepositoryRelease{}
	for page := 1; page > 0; {
		var list []*github.RepositoryRelease
		var next int
		err := t.retry.do(ctx, "list releases", func() error {
			l, resp, err := t.client.Repositories.ListReleases(ctx, t.owner, t.repo, &github.ListOptions{Page: page, PerPage: 100})
			if err != nil {
				return err
			}
			list, next = l, resp.NextPage
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if have := byTag[r.TagName]; have == nil || have.Draft && (!r.Draft || r.ID < have.ID) {
				byTag[r.TagName] = r
			}
		}
		page = next
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releases = byTag
	out := make([]*github.RepositoryRelease, 0, len(byTag))
	for _, r := range byTag {
		out = append(out, r)
	}
	return out, nil
}

func (t *gitHub) listAssets(ctx context.Context, r *github.RepositoryRelease) ([]*github.ReleaseAsset, error) {
	var out []*github.ReleaseAsset
	for page := 1; page > 0; {
		var next int
		err := t.retry.do(ctx, "list files of "+r.TagName, func() error {
			list, resp, err := t.client.Repositories.ListReleaseAssets(ctx, t.owner, t.repo, r.ID, &github.ListOptions{Page: page, PerPage: 100})
			if err != nil {
				return err
			}
			out, next = append(out, list...), resp.NextPage
			return nil
		})
		if err != nil {
			return nil, err
		}
		page = next
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range out {
		t.assets[path.Join(r.TagName, a.GetName())] = a.GetID()
	}
	return out, nil
}

func (t *gitHub) release(ctx context.Context, tag string) (*github.RepositoryRelease, error) {
	t.mu.Lock()
	r := t.releases[tag]
	t.mu.Unlock()
	if r != nil {
		return r, nil
	}
	if _, err := t.listReleases(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if r = t.releases[tag]; r == nil {
		return nil, fmt.Errorf("release %s: %w", tag, fs.ErrNotExist)
	}
	return r, nil
}

// Begin makes a draft. As GitHub lets drafts share a tag, it looks afterwards whether another was
// first, and then takes that one.
func (t *gitHub) Begin(ctx context.Context, r Release) error {
	if _, err := t.listReleases(ctx); err != nil {
		return err
	}
	if _, err := t.release(ctx, r.Tag); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var made *github.RepositoryRelease
	err := t.retry.do(ctx, "make release "+r.Tag, func() (err error) {
		// An attempt whose answer was lost may have worked.
		if _, err := t.listReleases(ctx); err != nil {
			return err
		}
		t.mu.Lock()
		made = t.releases[r.Tag]
		t.mu.Unlock()
		if made != nil {
			return nil
		}
		made, _, err = t.client.Repositories.CreateRelease(ctx, t.owner, t.repo, github.CreateReleaseRequest{
			TagName: r.Tag, Name: new(r.Title), Draft: new(true), Prerelease: new(t.opts.Prerelease),
		})
		if already(err) {
			return errAgain{err}
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := t.listReleases(ctx); err != nil {
		return err
	}
	first, err := t.release(ctx, r.Tag)
	if err != nil {
		return err
	}
	if first.ID != made.ID {
		return t.retry.do(ctx, "remove second draft of "+r.Tag, func() error {
			_, err := t.client.Repositories.DeleteRelease(ctx, t.owner, t.repo, made.ID)
			if status(err) == http.StatusNotFound {
				return nil
			}
			return err
		})
	}
	return nil
}

func (t *gitHub) Upload(ctx context.Context, tag string, f LocalFile, progress func(int64)) (RemoteFile, error) {
	r, err := t.release(ctx, tag)
	if err != nil {
		return RemoteFile{}, err
	}
	from, err := f.open()
	if err != nil {
		return RemoteFile{}, err
	}
	defer from.Close()
	var out RemoteFile
	try := 0
	err = t.retry.do(ctx, "upload "+f.Name, func() error {
		if try++; try > 1 {
			if done, err := t.settle(ctx, r, f, &out); done || err != nil {
				return err
			}
		}
		if _, err := from.Seek(0, io.SeekStart); err != nil {
			return err
		}
		asset, _, err := t.client.Repositories.UploadReleaseAssetFromRelease(ctx, r, &github.UploadOptions{Name: f.Name, MediaType: contentType(f.Name)},
			io.NopCloser(&progressReader{Reader: from, tell: progress}), f.Size)
		switch {
		case already(err):
			if done, err := t.settle(ctx, r, f, &out); done || err != nil {
				return err
			}
			return errAgain{err}
		case status(err) == http.StatusUnprocessableEntity || status(err) == http.StatusBadRequest:
			// Also what GitHub says of a body that was cut off; without a reason in it, one more
			// attempt.
			return errAgain{err}
		case err != nil:
			return err
		}
		t.mu.Lock()
		t.assets[path.Join(tag, asset.GetName())] = asset.GetID()
		t.mu.Unlock()
		out = remoteAsset(asset)
		return nil
	})
	return out, err
}

// settle looks what an upload without an answer has left: done says that the file is there, an
// error that another is. What was cut off is removed.
func (t *gitHub) settle(ctx context.Context, r *github.RepositoryRelease, f LocalFile, out *RemoteFile) (done bool, err error) {
	assets, err := t.listAssets(ctx, r)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(assets, func(a *github.ReleaseAsset) bool { return a.GetName() == f.Name })
	if i < 0 {
		return false, nil
	}
	a := assets[i]
	if a.GetState() != "uploaded" {
		return false, t.deleteAsset(ctx, a.GetID())
	}
	*out = remoteAsset(a)
	sum := out.SHA256
	if sum == "" && out.Size == f.Size {
		if sum, err = readBack(ctx, t, r.TagName, f.Name); err != nil {
			return false, err
		}
	}
	if sum != f.SHA256 {
		return false, fmt.Errorf("%s: %w", f.Name, ErrExists)
	}
	return true, nil
}

func (t *gitHub) deleteAsset(ctx context.Context, id int64) error {
	return t.retry.do(ctx, "remove file", func() error {
		_, err := t.client.Repositories.DeleteReleaseAsset(ctx, t.owner, t.repo, id)
		if status(err) == http.StatusNotFound {
			return nil
		}
		return err
	})
}

// asset returns the id of a file.
func (t *gitHub) asset(ctx context.Context, tag, name string) (int64, error) {
	key := path.Join(tag, name)
	t.mu.Lock()
	id := t.assets[key]
	t.mu.Unlock()
	if id != 0 {
		return id, nil
	}
	r, err := t.release(ctx, tag)
	if err != nil {
		return 0, err
	}
	if _, err := t.listAssets(ctx, r); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if id = t.assets[key]; id == 0 {
		return 0, fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	return id, nil
}

func (t *gitHub) forget(tag, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.assets, path.Join(tag, name))
}

func (t *gitHub) Stat(ctx context.Context, tag, name string) (RemoteFile, error) {
	id, err := t.asset(ctx, tag, name)
	if err != nil {
		return RemoteFile{}, err
	}
	var out RemoteFile
	err = t.retry.do(ctx, "stat "+name, func() error {
		a, _, err := t.client.Repositories.GetReleaseAsset(ctx, t.owner, t.repo, id)
		switch {
		case status(err) == http.StatusNotFound:
			t.forget(tag, name)
			return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		case err != nil:
			return err
		case a.GetState() != "uploaded":
			return fmt.Errorf("%s is in the state %q: %w", name, a.GetState(), fs.ErrNotExist)
		}
		out = remoteAsset(a)
		return nil
	})
	return out, err
}

func (t *gitHub) Open(ctx context.Context, tag, name string) (io.ReadCloser, error) {
	id, err := t.asset(ctx, tag, name)
	if err != nil {
		return nil, err
	}
	var out io.ReadCloser
	err = t.retry.do(ctx, "read "+name, func() (err error) {
		out, _, err = t.client.Repositories.DownloadReleaseAsset(ctx, t.owner, t.repo, id, t.plain)
		if status(err) == http.StatusNotFound {
			t.forget(tag, name)
			return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		return err
	})
	return out, err
}

func (t *gitHub) Remove(ctx context.Context, tag, name string) error {
	id, err := t.asset(ctx, tag, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := t.deleteAsset(ctx, id); err != nil {
		return err
	}
	t.forget(tag, name)
	return nil
}

func (t *gitHub) Finish(ctx context.Context, r Release) error {
	have, err := t.release(ctx, r.Tag)
	if err != nil {
		return err
	}
	return t.retry.do(ctx, "finish release "+r.Tag, func() error {
		// What the release says now: changes must not get lost.
		now, _, err := t.client.Repositories.GetRelease(ctx, t.owner, t.repo, have.ID)
		if err != nil {
			return err
		}
		_, changes := splitBody(now.GetBody())
		request := github.UpdateReleaseRequest{Name: new(r.Title), Body: new(joinBody(r.Notes, mergeChanges(changes, r.Changes))), Prerelease: new(t.opts.Prerelease)}
		if now.Draft && !t.opts.Draft && !r.Created.IsZero() {
			request.Draft = new(false)
		}
		updated, _, err := t.client.Repositories.UpdateRelease(ctx, t.owner, t.repo, have.ID, request)
		if err != nil {
			return err
		}
		t.mu.Lock()
		t.releases[r.Tag] = updated
		t.mu.Unlock()
		return nil
	})
}

// The log of changes is kept in the body of a release, in a comment that readers do not see.
const (
	changesStart = "\n<!-- kiln-changes "
	changesEnd   = " -->\n"
)

func joinBody(notes string, changes []Change) string {
	if len(changes) == 0 {
		return notes
	}
	text, err := json.Marshal(changes)
	if err != nil {
		return notes
	}
	return notes + changesStart + string(text) + changesEnd // JSON escapes < and >, so it cannot end the comment
}

func splitBody(body string) (notes string, changes []Change) {
	// GitHub writes line ends as it likes.
	body = strings.ReplaceAll(body, "\r\n", "\n")
	notes, rest, ok := strings.Cut(body, changesStart)
	if !ok {
		return body, nil
	}
	text, _, _ := strings.Cut(rest, strings.TrimRight(changesEnd, "\n"))
	if json.Unmarshal([]byte(text), &changes) != nil {
		return body, nil
	}
	return notes, changes
}

// lockRefs is where locks are: refs/kiln/lock/N, each pointing to a tag object that names the
// owner. Who makes the ref with the highest number has the lock, and a ref can be made only once.
const lockRefs = "kiln/lock/"

func (t *gitHub) Lock(ctx context.Context, owner Owner) (func() error, error) {
	var commit string
	err := t.retry.do(ctx, "lock "+t.String(), func() error {
		repo, _, err := t.client.Repositories.Get(ctx, t.owner, t.repo)
		if err != nil {
			return err
		}
		ref, _, err := t.client.Git.GetRef(ctx, t.owner, t.repo, "heads/"+repo.GetDefaultBranch())
		if err != nil {
			return err
		}
		commit = ref.GetObject().GetSHA()
		return nil
	})
	if err != nil {
		return nil, err
	}
	// note makes a tag object that names the lock holder.
	note := func(ctx context.Context) (string, error) {
		owner.Time = time.Now().UTC()
		text, err := json.Marshal(owner)
		if err != nil {
			return "", err
		}
		tag, _, err := t.client.Git.CreateTag(ctx, t.owner, t.repo, github.CreateTag{Tag: "kiln-lock", Message: string(text), Object: commit, Type: "commit"})
		return tag.GetSHA(), err
	}
	mine := 0
	err = t.retry.do(ctx, "lock "+t.String(), func() error {
		number, holder, err := t.holder(ctx)
		if err != nil {
			return err
		}
		if number > 0 && holder.ID == owner.ID { // ours, of an attempt whose answer was lost
			mine = number
			return nil
		}
		if number > 0 && time.Since(holder.Time) < lockLife && !owner.Steal {
			return &LockedError{Target: t.String(), Owner: holder}
		}
		sha, err := note(ctx)
		if err != nil {
			return err
		}
		_, _, err = t.client.Git.CreateRef(ctx, t.owner, t.repo, github.CreateRef{Ref: "refs/" + lockRefs + strconv.Itoa(number+1), SHA: sha})
		if already(err) {
			return errAgain{err} // another publisher was first: read its name
		}
		if err != nil {
			return err
		}
		mine = number + 1
		if number > 0 {
			_, _ = t.client.Git.DeleteRef(ctx, t.owner, t.repo, "refs/"+lockRefs+strconv.Itoa(number)) // of a holder that is gone; it does no harm if it stays
		}
		return nil
	})
	if err != nil {
		return nil, lockError(err)
	}
	name := lockRefs + strconv.Itoa(mine)
	stop := heartbeat(ctx, func(ctx context.Context) {
		if sha, err := note(ctx); err == nil {
			_, _, _ = t.client.Git.UpdateRef(ctx, t.owner, t.repo, "refs/"+name, github.UpdateRef{SHA: sha, Force: new(true)}) // the next one may work
		}
	})
	return func() error {
		stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return t.retry.do(ctx, "unlock "+t.String(), func() error {
			_, err := t.client.Git.DeleteRef(ctx, t.owner, t.repo, "refs/"+name)
			if s := status(err); s == http.StatusNotFound || s == http.StatusUnprocessableEntity {
				return nil
			}
			return err
		})
	}, nil
}

// holder returns the holder of the lock with the highest number; 0 if there is none.
func (t *gitHub) holder(ctx context.Context) (number int, owner Owner, err error) {
	refs, _, err := t.client.Git.ListMatchingRefs(ctx, t.owner, t.repo, lockRefs)
	if err != nil && status(err) != http.StatusNotFound {
		return 0, owner, err
	}
	var sha string
	for _, r := range refs {
		if n, err := strconv.Atoi(path.Base(r.GetRef())); err == nil && n > number {
			number, sha = n, r.GetObject().GetSHA()
		}
	}
	if number == 0 {
		return 0, owner, nil
	}
	tag, _, err := t.client.Git.GetTag(ctx, t.owner, t.repo, sha)
	if err != nil {
		return 0, owner, err
	}
	if err := json.Unmarshal([]byte(cmp.Or(tag.GetMessage(), "{}")), &owner); err != nil {
		return 0, owner, fmt.Errorf("read lock: %w", err)
	}
	return number, owner, nil
}
