package publishtest

import (
	"crypto/md5" //nolint:gosec // what S3 calls ETag
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bucket is the only one that there is.
const Bucket = "wheels"

// S3 is a server that stores objects as S3 does, as far as single requests go: it compares bytes
// with the hashes of the request, keeps SHA-256, and knows conditions. It does not check
// signatures.
type S3 struct {
	// NoChecksum forgets SHA-256, as some stores do.
	NoChecksum bool

	mu      sync.Mutex
	objects map[string]*s3Object
	url     string
}

type s3Object struct {
	data     []byte
	etag     string
	checksum string
	modified time.Time
}

// NewS3 starts a server; faults may be nil.
func NewS3(t testing.TB, faults *Faults) *S3 {
	s := &S3{objects: map[string]*s3Object{}}
	server := httptest.NewServer(faults.Wrap(s))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// URL is the address of the server.
func (s *S3) URL() string { return s.url }

// Published returns the sums of all objects of releases by tag and name.
func (s *S3) Published() (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for key, o := range s.objects {
		if strings.HasPrefix(key, ".kiln/") {
			continue
		}
		sum := sha256.Sum256(o.data)
		out[key] = hex.EncodeToString(sum[:])
	}
	return out, nil
}

// Tamper changes the bytes of an object behind everybody's back.
func (s *S3) Tamper(key string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = newObject(data, "")
}

func newObject(data []byte, checksum string) *s3Object {
	sum := md5.Sum(data) //nolint:gosec // what S3 calls ETag
	return &s3Object{data: data, etag: `"` + hex.EncodeToString(sum[:]) + `"`, checksum: checksum, modified: time.Now().UTC().Truncate(time.Second)}
}

func s3Fail(w http.ResponseWriter, r *http.Request, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>%s</Message></Error>`, code, code)
	}
}

// ServeHTTP answers one request.
func (s *S3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if bucket != Bucket {
		s3Fail(w, r, http.StatusNotFound, "NoSuchBucket")
		return
	}
	if _, ok := r.URL.Query()["location"]; ok {
		fmt.Fprint(w, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></LocationConstraint>`)
		return
	}
	if r.Method == http.MethodPut {
		s.put(w, r, key)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if key == "" {
		s.list(w, r)
		return
	}
	o := s.objects[key]
	switch {
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case o == nil:
		s3Fail(w, r, http.StatusNotFound, "NoSuchKey")
	default:
		h := w.Header()
		h.Set("ETag", o.etag)
		h.Set("Last-Modified", o.modified.Format(http.TimeFormat))
		h.Set("Content-Length", strconv.Itoa(len(o.data)))
		h.Set("Content-Type", "application/octet-stream")
		if r.Header.Get("X-Amz-Checksum-Mode") == "ENABLED" && o.checksum != "" && !s.NoChecksum {
			h.Set("X-Amz-Checksum-Sha256", o.checksum)
		}
		w.WriteHeader(http.StatusOK)
		if r.Method == http.MethodGet {
			_, _ = w.Write(o.data)
		}
	}
}

func (s *S3) put(w http.ResponseWriter, r *http.Request, key string) {
	data, err := io.ReadAll(r.Body)
	if err != nil || int64(len(data)) != r.ContentLength {
		s3Fail(w, r, http.StatusBadRequest, "IncompleteBody")
		return
	}
	sum := sha256.Sum256(data)
	if want := r.Header.Get("X-Amz-Content-Sha256"); len(want) == 64 && want != hex.EncodeToString(sum[:]) {
		s3Fail(w, r, http.StatusBadRequest, "XAmzContentSHA256Mismatch")
		return
	}
	checksum := r.Header.Get("X-Amz-Checksum-Sha256")
	if checksum != "" && checksum != base64.StdEncoding.EncodeToString(sum[:]) {
		s3Fail(w, r, http.StatusBadRequest, "BadDigest")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.objects[key]
	if r.Header.Get("If-None-Match") == "*" && have != nil {
		s3Fail(w, r, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	if match := r.Header.Get("If-Match"); match != "" && (have == nil || strings.Trim(match, `"`) != strings.Trim(have.etag, `"`)) {
		s3Fail(w, r, http.StatusPreconditionFailed, "PreconditionFailed")
		return
	}
	o := newObject(data, checksum)
	s.objects[key] = o
	w.Header().Set("ETag", o.etag)
	w.WriteHeader(http.StatusOK)
}

type s3List struct {
	XMLName               xml.Name   `xml:"ListBucketResult"`
	Name                  string     `xml:"Name"`
	Prefix                string     `xml:"Prefix"`
	IsTruncated           bool       `xml:"IsTruncated"`
	NextContinuationToken string     `xml:"NextContinuationToken,omitempty"`
	Contents              []s3Entry  `xml:"Contents"`
	CommonPrefixes        []s3Prefix `xml:"CommonPrefixes"`
}

type s3Entry struct {
	Key          string
	LastModified time.Time
	ETag         string
	Size         int
}

type s3Prefix struct{ Prefix string }

// list answers ListObjectsV2 with pages of eight, to be sure that clients ask for the next.
func (s *S3) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	prefix, delimiter := q.Get("prefix"), q.Get("delimiter")
	out := s3List{Name: Bucket, Prefix: prefix}
	seen := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		name := key
		folder, _, isFolder := strings.Cut(rest, delimiter)
		if isFolder = isFolder && delimiter != ""; isFolder {
			name = prefix + folder + delimiter
		}
		if seen[name] || q.Get("continuation-token") != "" && name <= q.Get("continuation-token") {
			continue
		}
		if len(seen) == 8 {
			out.IsTruncated = true
			break
		}
		seen[name] = true
		out.NextContinuationToken = name
		if isFolder {
			out.CommonPrefixes = append(out.CommonPrefixes, s3Prefix{name})
		} else {
			o := s.objects[key]
			out.Contents = append(out.Contents, s3Entry{key, o.modified, o.etag, len(o.data)})
		}
	}
	if !out.IsTruncated {
		out.NextContinuationToken = ""
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(out)
}
