package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
)

// Target is a place that files are published to. Files belong to releases, which have a tag.
//
// All methods may be called again after an error, and after a process that was killed in
// the middle of them: each first looks at what is there. They may be called from several
// goroutines, with one exception: [Target.Begin] and [Target.Finish] of one tag are called one at a
// time. Errors that a second attempt may cure have been retried already when a method returns;
// an error for which errors.Is(err, ErrExists) holds is permanent.
//
// A target never shows a file that was uploaded in part: List leaves such leftovers out, and
// Upload replaces them.
type Target interface {
	// String names the target for people: "github:octo/wheels".
	String() string
	// Limits are those of the target. They do not change after the first List.
	Limits() Limits
	// List returns the releases whose tags match says true for, with their complete files. Releases
	// are sorted by tag, files by name. A target that has nothing yet has no releases.
	List(ctx context.Context, match func(tag string) bool) ([]Release, error)
	// Begin makes sure that a release exists, and that there is only one with that tag, even
	// if another publisher does the same at the same time.
	Begin(ctx context.Context, r Release) error
	// Upload stores a file under its name in a release that Begin has made. The same name with
	// other bytes is ErrExists; with the same bytes nothing happens. What it returns is
	// what the target says of the file, and the name may be another than was asked for.
	Upload(ctx context.Context, tag string, f LocalFile, progress func(int64)) (RemoteFile, error)
	// Stat asks the target anew about one file. The error wraps fs.ErrNotExist if there is none.
	// SHA256 is set only if the target has computed it from the bytes that it stores.
	Stat(ctx context.Context, tag, name string) (RemoteFile, error)
	// Open reads a file as users would get it. The caller closes it.
	Open(ctx context.Context, tag, name string) (io.ReadCloser, error)
	// Remove removes a file. One that is not there is no error.
	Remove(ctx context.Context, tag, name string) error
	// Finish stores what is said about a release: title, notes, and the files that have been
	// verified. From then on they count as published. Changes are kept for ever: those that the
	// release has stay, whatever r has.
	Finish(ctx context.Context, r Release) error
	// Lock keeps other publishers away from the target until the returned function is called. The
	// error is a *LockedError that names the one who has it. A lock whose owner was killed frees
	// itself after a while.
	Lock(ctx context.Context, owner Owner) (unlock func() error, err error)
	// Base returns the URL of the folder in which users find the files of a release, ending
	// in "/"; empty if there is none, as the target is an index itself.
	Base(tag string) string
}

// Limits are what a target takes. Zero means no limit.
type Limits struct {
	// FileBytes is the size of one file, ReleaseFiles the number of files of one release.
	FileBytes    int64
	ReleaseFiles int
	// WheelsOnly says that the target takes distributions and nothing beside them.
	WheelsOnly bool
	// PapersAfter says that what goes with a wheel comes after it, without the metadata, which the
	// target reads from the wheel.
	PapersAfter bool
	// Flat says that the target has no releases: everything is in the one with the empty tag.
	Flat bool
	// PublicNames says that the target takes only names that are for everyone: no local versions, no
	// tags of one machine's kind.
	PublicNames bool
	// NoOverwrite says that a file can never be replaced.
	NoOverwrite bool
}

// Limits of hosts, as they publish them.
const (
	// GitHubFileBytes is the size that an asset of a release must be under: 2 GiB.
	GitHubFileBytes = 2<<30 - 1
	// GitHubReleaseFiles is how many assets one release may have.
	GitHubReleaseFiles = 1000
	// GitHubPagesBytes is the size that a published site may have.
	GitHubPagesBytes = 1 << 30
	// S3FileBytes is the largest object that one request can store.
	S3FileBytes = 5 << 30
)

// Release is a set of files with a tag.
type Release struct {
	Tag     string    `json:"tag"`
	Title   string    `json:"title"`
	Notes   string    `json:"notes"`
	Created time.Time `json:"created"`
	// Files are those that are complete.
	Files []RemoteFile `json:"files"`
	// Changes are the files that were replaced or removed after they had been published.
	Changes []Change `json:"changes,omitempty"`
}

// File returns the file of that name, or nil.
func (r *Release) File(name string) *RemoteFile {
	for i := range r.Files {
		if r.Files[i].Name == name {
			return &r.Files[i]
		}
	}
	return nil
}

// RemoteFile is a file as a target knows it.
type RemoteFile struct {
	Name     string    `json:"name"`
	Size     int64     `json:"size"`
	SHA256   string    `json:"sha256,omitempty"` // "" if the target cannot tell
	Uploaded time.Time `json:"uploaded,omitzero"`
}

// Change is a file that did not stay as it was published. These lines are never removed.
type Change struct {
	Time   time.Time `json:"time"`
	Name   string    `json:"name"`
	Action string    `json:"action"` // "replaced" or "removed"
	Old    string    `json:"old"`    // SHA-256
	New    string    `json:"new,omitempty"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// LocalFile is a file to be uploaded.
type LocalFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Path is where the bytes are, unless Data has them.
	Path string `json:"-"`
	Data []byte `json:"-"`
	// Facts are what an index is to know of a wheel.
	Facts index.Facts `json:"-"`
}

// open returns the bytes. They can be read again after an error, from the start.
func (f *LocalFile) open() (io.ReadSeekCloser, error) {
	if f.Data != nil {
		return nopCloser{strings.NewReader(string(f.Data))}, nil
	}
	return fsx.Open(f.Path)
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// ErrExists is the error for a name that is published with other bytes.
var ErrExists = errors.New("published with other content")

// Owner says who holds a lock.
type Owner struct {
	Name string    `json:"name"` // user and host, or the address of a CI run
	ID   string    `json:"id"`   // of this run
	Time time.Time `json:"time"` // last sign of life
	// Steal takes the lock from its holder, for a user who knows that the holder is gone.
	Steal bool `json:"-"`
}

// LockedError is the error for a target that another publisher has locked.
type LockedError struct {
	Target string
	Owner  Owner
}

// Error names the owner, so that a user knows whom to ask.
func (e *LockedError) Error() string {
	return fmt.Sprintf("%s is locked by %s, last seen %s", e.Target, e.Owner.Name, e.Owner.Time.UTC().Format(time.RFC3339))
}

// lockLife is how long a lock outlives its owner's last sign of life, and lockBeat how often there
// is one.
const (
	lockLife = 10 * time.Minute
	lockBeat = lockLife / 5
)

// progressReader tells how far a reader is.
type progressReader struct {
	io.Reader
	n    int64
	tell func(int64)
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if p.n += int64(n); n > 0 && p.tell != nil {
		p.tell(p.n)
	}
	return n, err
}
