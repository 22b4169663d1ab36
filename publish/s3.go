package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/kiln-build/kiln/index"
)

// S3Options are options of [NewS3].
type S3Options struct {
	// Endpoint is the address of the store. Default Amazon's.
	Endpoint string
	// Bucket exists already. Prefix is a folder in it; it may be empty.
	Bucket, Prefix string
	// Region is found out if it is empty.
	Region string
	// AccessKey, SecretKey and SessionToken are the credentials. Without them requests are not
	// signed, which is enough to read what is public.
	AccessKey, SecretKey, SessionToken string
	// URL is where users find the folder Prefix. Default the address of the bucket.
	URL string
	// Transport carries the requests; nil means a new one with usual settings.
	Transport http.RoundTripper
	// Retry says how patient the target is.
	Retry Retry
}

// s3Target is a bucket with a folder for each release. Every object is stored by one request, which
// the store takes as a whole or not at all.
type s3Target struct {
	opts  S3Options
	core  *minio.Core
	base  string
	retry Retry
}

// NewS3 returns a bucket of an S3-compatible store as a target.
func NewS3(opts S3Options) (Target, error) {
	endpoint := opts.Endpoint
	if endpoint == "" {
		endpoint = "https://s3.amazonaws.com"
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("endpoint %q: want an address such as https://s3.example.org", endpoint)
	}
	creds := credentials.NewStaticV4(opts.AccessKey, opts.SecretKey, opts.SessionToken)
	if opts.AccessKey == "" {
		creds = credentials.New(&credentials.Static{})
	}
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds: creds, Secure: u.Scheme == "https", Region: opts.Region, Transport: opts.Transport, MaxRetries: 1,
		BucketLookup: minio.BucketLookupAuto,
	})
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	t := &s3Target{opts: opts, core: core, base: opts.URL, retry: opts.Retry}
	if t.base == "" {
		t.base = strings.TrimSuffix(endpoint, "/") + "/" + path.Join(opts.Bucket, opts.Prefix)
	}
	t.base = slash(t.base)
	return t, nil
}

func (t *s3Target) String() string { return "s3:" + path.Join(t.opts.Bucket, t.opts.Prefix) }
func (t *s3Target) Limits() Limits { return Limits{FileBytes: S3FileBytes} }

func (t *s3Target) Base(tag string) string { return t.base + url.PathEscape(tag) + "/" }

func (t *s3Target) key(parts ...string) string {
	return path.Join(append([]string{t.opts.Prefix}, parts...)...)
}

// missing turns the store's answer for what is not there into fs.ErrNotExist.
func missing(err error) error {
	if r := minio.ToErrorResponse(err); r.Code == "NoSuchKey" || r.StatusCode == http.StatusNotFound && r.Code != "NoSuchBucket" {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

// get reads a small object with its ETag.
func (t *s3Target) get(ctx context.Context, key string) (text []byte, etag string, err error) {
	err = t.retry.do(ctx, "read "+key, func() error {
		body, info, _, err := t.core.GetObject(ctx, t.opts.Bucket, key, minio.GetObjectOptions{})
		if err != nil {
			return missing(err)
		}
		defer body.Close()
		etag = info.ETag
		text, err = io.ReadAll(body)
		return err
	})
	return text, etag, err
}

// put stores an object by one request. The store compares the bytes with the hash in the request,
// and keeps the hash.
func (t *s3Target) put(ctx context.Context, key string, body io.Reader, size int64, sum [sha256.Size]byte, condition func(*minio.PutObjectOptions)) (minio.UploadInfo, error) {
	opts := minio.PutObjectOptions{
		// The checksum is part of what is signed, and the store compares it with the bytes: signing
		// these as well would have them hashed twice.
		ContentType: contentType(key), DisableContentSha256: true,
		UserMetadata: map[string]string{"x-amz-checksum-sha256": base64.StdEncoding.EncodeToString(sum[:])},
	}
	if condition != nil {
		condition(&opts)
	}
	return t.core.PutObject(ctx, t.opts.Bucket, key, body, size, "", "", opts)
}

func contentType(name string) string {
	switch {
	case strings.HasSuffix(name, ".json"):
		return "application/json"
	case strings.HasSuffix(name, index.MetadataSuffix):
		return "text/plain; charset=utf-8"
	case strings.HasSuffix(name, index.ProvenanceSuffix):
		return "application/jsonl"
	}
	return "application/octet-stream"
}

func (t *s3Target) List(ctx context.Context, match func(string) bool) ([]Release, error) {
	prefix := t.key()
	if prefix != "" {
		prefix += "/"
	}
	// Folders first, then only those that are asked for.
	tags, _, err := t.listFolder(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", t, err)
	}
	var out []Release
	for _, tag := range tags {
		if !validTag(tag) || !match(tag) {
			continue
		}
		_, files, err := t.listFolder(ctx, prefix+tag+"/")
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", t, err)
		}
		m, _, err := t.manifest(ctx, tag)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", t, err)
		}
		delete(files, manifestName)
		if len(files) == 0 && m.Created.IsZero() {
			continue
		}
		out = append(out, m.join(tag, slices.Collect(maps.Values(files))))
	}
	return out, nil
}

// listFolder returns the names of folders and the files in a folder.
func (t *s3Target) listFolder(ctx context.Context, prefix string) (folders []string, files map[string]RemoteFile, err error) {
	files = map[string]RemoteFile{}
	for token := ""; ; {
		var page minio.ListBucketV2Result
		err := t.retry.do(ctx, "list "+prefix, func() (err error) {
			page, err = t.core.ListObjectsV2(t.opts.Bucket, prefix, "", token, "/", 1000)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		for _, p := range page.CommonPrefixes {
			folders = append(folders, strings.TrimSuffix(strings.TrimPrefix(p.Prefix, prefix), "/"))
		}
		for _, o := range page.Contents {
			if name := strings.TrimPrefix(o.Key, prefix); name != "" && !strings.Contains(name, "/") {
				files[name] = RemoteFile{Name: name, Size: o.Size, Uploaded: o.LastModified.UTC().Truncate(time.Second)}
			}
		}
		if !page.IsTruncated || page.NextContinuationToken == "" {
			slices.Sort(folders)
			return folders, files, nil
		}
		token = page.NextContinuationToken
	}
}

func (t *s3Target) manifest(ctx context.Context, tag string) (m *manifest, etag string, err error) {
	text, etag, err := t.get(ctx, t.key(tag, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return &manifest{}, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	m, err = parseManifest(text)
	if err != nil {
		return nil, "", fmt.Errorf("read %s/%s: %w", tag, manifestName, err)
	}
	return m, etag, nil
}

// Begin has nothing to do: a folder is there when something is in it.
func (t *s3Target) Begin(_ context.Context, r Release) error {
	if !validTag(r.Tag) {
		return fmt.Errorf("%q is no tag", r.Tag)
	}
	return nil
}

func (t *s3Target) Upload(ctx context.Context, tag string, f LocalFile, progress func(int64)) (RemoteFile, error) {
	sum, err := hex.DecodeString(f.SHA256)
	if err != nil || len(sum) != sha256.Size {
		return RemoteFile{}, fmt.Errorf("upload %s: no hash", f.Name)
	}
	from, err := f.open()
	if err != nil {
		return RemoteFile{}, err
	}
	defer from.Close()
	err = t.retry.do(ctx, "upload "+f.Name, func() error {
		if _, err := from.Seek(0, io.SeekStart); err != nil {
			return err
		}
		// Only if there is none: two who write the same name cannot overtake each other.
		_, err := t.put(ctx, t.key(tag, f.Name), &progressReader{Reader: from, tell: progress}, f.Size, [sha256.Size]byte(sum),
			func(o *minio.PutObjectOptions) { o.SetMatchETagExcept("*") })
		if r := minio.ToErrorResponse(err); r.StatusCode == http.StatusPreconditionFailed || r.Code == "PreconditionFailed" {
			return t.same(ctx, tag, f)
		}
		return err
	})
	if err != nil {
		return RemoteFile{}, err
	}
	return RemoteFile{Name: f.Name, Size: f.Size}, nil
}

// same looks whether what is there is what was to be uploaded.
func (t *s3Target) same(ctx context.Context, tag string, f LocalFile) error {
	have, err := t.Stat(ctx, tag, f.Name)
	if err == nil && have.SHA256 == "" && have.Size == f.Size {
		have.SHA256, err = readBack(ctx, t, tag, f.Name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errAgain{err}
	case err != nil:
		return err
	case have.SHA256 != f.SHA256:
		return fmt.Errorf("%s: %w", f.Name, ErrExists)
	}
	return nil
}

func (t *s3Target) Stat(ctx context.Context, tag, name string) (RemoteFile, error) {
	var out RemoteFile
	err := t.retry.do(ctx, "stat "+name, func() error {
		info, err := t.core.StatObject(ctx, t.opts.Bucket, t.key(tag, name), minio.StatObjectOptions{Checksum: true})
		if err != nil {
			return missing(err)
		}
		out = RemoteFile{Name: name, Size: info.Size, Uploaded: info.LastModified.UTC().Truncate(time.Second)}
		// A hash of parts has a dash; it is of no use here.
		if sum, err := base64.StdEncoding.DecodeString(info.ChecksumSHA256); err == nil && len(sum) == sha256.Size {
			out.SHA256 = hex.EncodeToString(sum)
		}
		return nil
	})
	return out, err
}

func (t *s3Target) Open(ctx context.Context, tag, name string) (io.ReadCloser, error) {
	var out io.ReadCloser
	err := t.retry.do(ctx, "read "+name, func() error {
		body, _, _, err := t.core.GetObject(ctx, t.opts.Bucket, t.key(tag, name), minio.GetObjectOptions{})
		out = body
		return missing(err)
	})
	return out, err
}

func (t *s3Target) Remove(ctx context.Context, tag, name string) error {
	return t.retry.do(ctx, "remove "+name, func() error {
		err := missing(t.core.RemoveObject(ctx, t.opts.Bucket, t.key(tag, name), minio.RemoveObjectOptions{}))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

func (t *s3Target) Finish(ctx context.Context, r Release) error {
	m, _, err := t.manifest(ctx, r.Tag)
	if err != nil {
		return err
	}
	text, err := m.next(r)
	if err != nil {
		return err
	}
	return t.retry.do(ctx, "write "+manifestName, func() error {
		_, err := t.put(ctx, t.key(r.Tag, manifestName), bytes.NewReader(text), int64(len(text)), sha256.Sum256(text), nil)
		return err
	})
}

// Lock writes an object under the condition that there is none, or that the one there is that of
// an owner who is gone. The store decides who was first.
func (t *s3Target) Lock(ctx context.Context, owner Owner) (func() error, error) {
	key := t.key(".kiln", "lock.json")
	write := func(ctx context.Context, condition func(*minio.PutObjectOptions)) (etag string, err error) {
		owner.Time = time.Now().UTC()
		text, err := json.Marshal(owner)
		if err != nil {
			return "", err
		}
		info, err := t.put(ctx, key, bytes.NewReader(text), int64(len(text)), sha256.Sum256(text), condition)
		return info.ETag, err
	}
	var etag string
	err := t.retry.do(ctx, "lock "+t.String(), func() error {
		text, have, err := t.get(ctx, key)
		condition := func(o *minio.PutObjectOptions) { o.SetMatchETagExcept("*") }
		if err == nil {
			var holder Owner
			if err := json.Unmarshal(text, &holder); err != nil {
				return fmt.Errorf("read lock: %w", err)
			}
			if holder.ID == owner.ID { // our own, of an attempt whose answer was lost
				etag = have
				return nil
			}
			if time.Since(holder.Time) < lockLife && !owner.Steal {
				return &LockedError{Target: t.String(), Owner: holder}
			}
			condition = func(o *minio.PutObjectOptions) { o.SetMatchETag(have) }
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		etag, err = write(ctx, condition)
		if r := minio.ToErrorResponse(err); r.StatusCode == http.StatusPreconditionFailed || r.StatusCode == http.StatusConflict {
			return errAgain{err} // another publisher was first: read its name
		}
		return err
	})
	if err != nil {
		return nil, lockError(err)
	}
	var mu sync.Mutex
	stop := heartbeat(ctx, func(ctx context.Context) {
		mu.Lock()
		defer mu.Unlock()
		if now, err := write(ctx, func(o *minio.PutObjectOptions) { o.SetMatchETag(etag) }); err == nil {
			etag = now
		}
	})
	return func() error {
		stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		// Only if it is still ours.
		text, _, err := t.get(ctx, key)
		var holder Owner
		if err != nil || json.Unmarshal(text, &holder) != nil || holder.ID != owner.ID {
			return nil
		}
		return t.retry.do(ctx, "unlock "+t.String(), func() error {
			return t.core.RemoveObject(ctx, t.opts.Bucket, key, minio.RemoveObjectOptions{})
		})
	}, nil
}

// lockError takes away what was said around a LockedError.
func lockError(err error) error {
	if locked, ok := errors.AsType[*LockedError](err); ok {
		return locked
	}
	return err
}

// heartbeat calls f now and then until the returned function is called.
func heartbeat(ctx context.Context, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(lockBeat)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				f(ctx)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
