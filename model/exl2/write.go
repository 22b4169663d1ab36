package exl2

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// ErrStale is the error for an input that changed after it was planned.
var ErrStale = errors.New("changed since it was planned")

// ErrNoSpace is the error for a target whose file system has less free space than the plan needs.
// Nothing was written.
var ErrNoSpace = errors.New("not enough space")

// WriteOptions control how a plan is executed, never what comes out.
type WriteOptions struct {
	// NoHash turns digests off. Then copies stay in the kernel where it can do them, and the
	// manifest has sizes only.
	NoHash bool
	// Strict makes infinities and NaNs that arise in conversion an error instead of a count in the
	// result.
	Strict bool
	// Replace allows an output folder that exists and is not empty. It is replaced whole, in one
	// step. For a plan with Merge it allows to overwrite files, and to remove weights of an earlier
	// compile.
	Replace bool
	// Workers is how many shards (or, without hashing, ranges) are written at the same time; 0
	// means one for each two processors with hashing, and one for each without.
	Workers int
	// BufferBytes is the size of a buffer, of which all workers together have 64, but each at least
	// 8; 0 means 256 KiB.
	BufferBytes int
	// Progress is called from one goroutine at a time, often; nil means not at all.
	Progress func(Progress)
	// Log receives what happened, nil means nowhere.
	Log *slog.Logger
}

// Progress says how far a write is. Shards that an earlier run finished count as done.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// Result is what a write has done.
type Result struct {
	Out     string `json:"out"`
	Bytes   int64  `json:"bytes"`
	Shards  int    `json:"shards"`
	Resumed int    `json:"resumed"` // shards taken over from an interrupted run
	// Unchanged means that there was nothing to do.
	Unchanged bool `json:"unchanged,omitempty"`
	// Removed are weights of an earlier compile that were in the folder, with Merge and Replace.
	Removed []string `json:"removed,omitempty"`
	// NonFinite counts, by tensor, values that did not survive the conversion.
	NonFinite []NonFinite   `json:"non_finite,omitempty"`
	Elapsed   time.Duration `json:"elapsed_ns"`
	Manifest  *Manifest     `json:"-"`
}

// Buffers bound the memory of shards that are being written. They hold enough to go on hashing
// while the disk pauses for some milliseconds, as disks do.
const (
	allBuffers          = 64
	minBuffersPerWorker = 8
	bufferBytes         = 256 << 10
)

// Write executes the plan. The folder is built beside the target under a hidden name and appears
// under its own name in one rename, after everything is on disk. An interrupted write leaves the
// hidden folder behind; the next Write of the same plan goes on from it, any other plan starts
// over. The inputs are only read.
func Write(ctx context.Context, p *Plan, opts WriteOptions) (*Result, error) {
	start := time.Now()
	w := &writer{plan: p, opts: opts, digest: p.Digest(), shards: make([]*shardRecord, len(p.Shards))}
	if w.opts.BufferBytes <= 0 {
		w.opts.BufferBytes = bufferBytes
	}
	w.opts.BufferBytes = max(w.opts.BufferBytes, 4096) &^ 4095
	if w.opts.Workers <= 0 {
		w.opts.Workers = runtime.GOMAXPROCS(0)
		if !opts.NoHash {
			w.opts.Workers = (w.opts.Workers + 1) / 2
		}
	}
	if w.opts.Log == nil {
		w.opts.Log = slog.New(slog.DiscardHandler)
	}
	res, err := w.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", p.Out, err)
	}
	res.Elapsed = time.Since(start)
	return res, nil
}

type writer struct {
	plan   *Plan
	opts   WriteOptions
	digest string
	stage  string // hidden folder beside the target
	files  string // inside it, what will become the target
	log    *journal
	shards []*shardRecord // by index in the plan; nil until finished
	done   atomic.Int64
	report sync.Mutex

	mu      sync.Mutex // guards the journal and shards
	resumed int
}

func (w *writer) run(ctx context.Context) (*Result, error) {
	out, err := filepath.Abs(w.plan.Out)
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(out); err == nil {
		out = real // the folder is replaced, not the link to it
	}
	parent, base := filepath.Split(out)
	w.stage = filepath.Join(parent, "."+base+".kiln-partial")
	if w.plan.Merge {
		w.stage = filepath.Join(out, ".kiln-partial")
	}
	w.files = filepath.Join(w.stage, "files")
	w.opts.Replace = w.opts.Replace || w.plan.InPlace
	if err := w.checkTarget(out); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(w.stage); w.plan.Unchanged && errors.Is(err, fs.ErrNotExist) {
		return w.unchanged(), nil
	}
	if err := os.MkdirAll(w.stage, 0o777); err != nil {
		return nil, err
	}
	lock, err := fsx.TryLock(filepath.Join(w.stage, lockName))
	if err != nil {
		return nil, err
	}
	defer lock.Unlock()   //nolint:errcheck // the lock goes with the process at the latest
	if w.plan.Unchanged { // a run was killed after it had put the folder into its place
		return w.unchanged(), errors.Join(w.clean(lock), fsx.SyncDir(parent))
	}

	published, err := w.open(out)
	if err != nil {
		return nil, err
	}
	defer w.log.close() //nolint:errcheck // every record was synced when it was written; closed before on success
	if !published {
		if err := w.checkTarget(out); err != nil { // again, now that the lock is held
			return nil, err
		}
		if err := w.build(ctx); err != nil {
			return nil, err
		}
	}
	res := &Result{Out: w.plan.Out, Bytes: w.plan.Bytes, Shards: len(w.plan.Shards), Resumed: w.resumed}
	if res.Manifest, err = w.manifest(ctx, published, out); err != nil {
		return nil, err
	}
	res.NonFinite = res.Manifest.NonFinite
	if !published {
		if res.Removed, err = w.publish(out); err != nil {
			return nil, err
		}
	}
	// Windows removes no file that is open.
	return res, errors.Join(w.log.close(), w.clean(lock), fsx.SyncDir(parent))
}

func (w *writer) unchanged() *Result {
	return &Result{Out: w.plan.Out, Bytes: w.plan.Bytes, Shards: len(w.plan.Shards), Unchanged: true, Manifest: w.plan.manifest}
}

// lockName is the file in the hidden folder that belongs to one run at a time.
const lockName = "lock"

// clean removes the hidden folder, the journal last: as long as there is one, a run that was killed
// meanwhile can be repeated.
func (w *writer) clean(lock *fsx.FileLock) error {
	entries, err := os.ReadDir(w.stage)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != journalName && e.Name() != lockName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(w.stage, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(w.stage, journalName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return lock.RemoveDir()
}

// checkTarget refuses a target that holds something, unless it may be replaced.
func (w *writer) checkTarget(out string) error {
	info, err := os.Stat(out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return Problems{{Kind: BadOutput, File: w.plan.Out, Message: "exists and is not a folder"}}
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	if len(entries) == 0 || w.opts.Replace {
		return nil
	}
	records, err := peekJournal(filepath.Join(w.stage, journalName))
	if w.plan.Merge {
		if err == nil && w.publishing(records) {
			return nil // the last run ended while it moved its files, or before it cleaned up
		}
		return w.checkMerge(entries)
	}
	if err == nil && w.publishedBy(records, out) {
		return nil // the last run ended between the rename and its own cleaning up
	}
	return Problems{{Kind: BadOutput, File: w.plan.Out, Message: "exists and is not empty; allow replacement or choose another folder"}}
}

// checkMerge refuses a folder in which files would have to be overwritten or removed.
func (w *writer) checkMerge(entries []fs.DirEntry) error {
	planned := w.names()
	var there []string
	for _, e := range entries {
		if planned[e.Name()] || shardNames.MatchString(e.Name()) {
			there = append(there, e.Name())
		}
	}
	if len(there) == 0 {
		return nil
	}
	return Problems{{Kind: BadOutput, File: w.plan.Out, Message: fmt.Sprintf(
		"has files of an earlier compile (%s); allow replacement or choose another folder", strings.Join(there, ", "))}}
}

// names are the files of the plan.
func (w *writer) names() map[string]bool {
	names := map[string]bool{}
	for _, s := range w.plan.Shards {
		names[s.Name] = true
	}
	for _, f := range w.plan.Files {
		names[f.Name] = true
	}
	if w.plan.manifestInside() {
		names[ManifestName] = true
	}
	return names
}

// publishing reports whether a run of this very plan had everything on disk.
func (w *writer) publishing(records []record) bool {
	return len(records) > 0 && w.sameRun(records[0]) && records[len(records)-1].Publish
}

// publishedBy reports whether the journal and the target agree that this very plan was published.
func (w *writer) publishedBy(records []record, out string) bool {
	if !w.publishing(records) {
		return false
	}
	intact := 0
	for _, r := range records {
		if i := w.shardIndex(r); i >= 0 && w.intact(out, &w.plan.Shards[i], r.Shard) {
			intact++
		}
	}
	return intact == len(w.plan.Shards)
}

// shardIndex returns the place in the plan of the shard that r records, or −1.
func (w *writer) shardIndex(r record) int {
	return slices.IndexFunc(w.plan.Shards, func(s Shard) bool { return r.Shard != nil && s.Name == r.Shard.Name })
}

func (w *writer) sameRun(r record) bool {
	return r.Start != nil && *r.Start == startRecord{Format: 1, Plan: w.digest, Hash: !w.opts.NoHash}
}

// open reads the journal, takes over what an earlier run of the same plan finished and removes
// everything else.
func (w *writer) open(out string) (published bool, err error) {
	var records []record
	if w.log, records, err = openJournal(filepath.Join(w.stage, journalName)); err != nil {
		return false, err
	}
	if w.plan.Merge {
		if w.publishing(records) { // some shards may be in their place already
			w.take(records, out)
		}
	} else if w.publishedBy(records, out) {
		w.take(records, out)
		return true, nil
	}
	if len(records) == 0 || !w.sameRun(records[0]) {
		if err := w.log.restart(); err != nil {
			return false, err
		}
		if err := w.log.append(record{Start: &startRecord{Format: 1, Plan: w.digest, Hash: !w.opts.NoHash}}); err != nil {
			return false, err
		}
	} else {
		w.take(records, w.files)
	}
	return false, w.sweep()
}

// take enters the finished shards of the journal whose files in dir are what they were.
func (w *writer) take(records []record, dir string) {
	for _, r := range records {
		i := w.shardIndex(r)
		if i < 0 || w.shards[i] != nil || !w.intact(dir, &w.plan.Shards[i], r.Shard) {
			continue
		}
		w.resumed++
		w.done.Add(r.Shard.Size)
		w.shards[i] = r.Shard
	}
}

// sweep removes everything from the hidden folder that is not a finished shard.
func (w *writer) sweep() error {
	if err := os.MkdirAll(w.files, 0o777); err != nil {
		return err
	}
	entries, err := os.ReadDir(w.files)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if slices.ContainsFunc(w.shards, func(r *shardRecord) bool { return r != nil && r.Name == e.Name() }) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(w.files, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// intact looks whether a finished shard is still the file that was synced: size, time of
// modification and header.
func (w *writer) intact(dir string, s *Shard, r *shardRecord) bool {
	f, err := os.Open(filepath.Join(dir, s.Name))
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() != s.Size || r.Size != s.Size || !info.ModTime().Equal(r.ModTime) {
		return false
	}
	want, err := w.plan.shardHeader(s)
	if err != nil {
		return false
	}
	got := make([]byte, len(want))
	_, err = f.ReadAt(got, 0)
	return err == nil && string(got) == string(want)
}

// build brings every file into the hidden folder.
func (w *writer) build(ctx context.Context) error {
	var need int64
	for i, s := range w.plan.Shards {
		if w.shards[i] == nil {
			need += s.Size
		}
	}
	for _, f := range w.plan.Files {
		if f.Action != actionLink {
			need += f.Size
		}
	}
	if free, err := fsx.FreeSpace(w.stage); err == nil && free < need {
		return fmt.Errorf("%w: %d bytes are needed and %d are free", ErrNoSpace, need, free)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workers := w.opts.Workers
	if w.opts.NoHash {
		workers = 1 // parallel inside the shard
	}
	parallel(ctx, workers, len(w.plan.Shards), func(i int) {
		if w.shards[i] != nil {
			return
		}
		if err := w.shard(ctx, i); err != nil {
			cancel(fmt.Errorf("%s: %w", w.plan.Shards[i].Name, err))
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if w.opts.Strict {
		if err := w.strict(); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) strict() error {
	var ps Problems
	for _, s := range w.shards {
		for _, v := range s.Values {
			ps.add(BadValue, "", v.Tensor, "%s", v.loss())
		}
	}
	return ps.Err()
}

// shard writes one shard and records it.
func (w *writer) shard(ctx context.Context, i int) (err error) {
	s := &w.plan.Shards[i]
	f, err := os.OpenFile(filepath.Join(w.files, s.Name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := fsx.Preallocate(f, s.Size); err != nil {
		return err
	}
	rec := &shardRecord{Name: s.Name, Size: s.Size}
	if w.opts.NoHash {
		err = w.copyShard(ctx, f, s, rec)
	} else {
		err = w.streamShard(ctx, f, s, rec)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != s.Size {
		return fmt.Errorf("%d bytes on disk, want %d", info.Size(), s.Size)
	}
	err = f.Close()
	f = nil
	if err != nil {
		return err
	}
	if err := s.compare(rec); err != nil {
		return err
	}
	rec.ModTime = info.ModTime()
	w.opts.Log.Debug("shard written", "name", s.Name, "bytes", s.Size)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shards[i] = rec
	return w.log.append(record{Shard: rec})
}

// advance reports progress.
func (w *writer) advance(n int64) {
	done := w.done.Add(n)
	if w.opts.Progress == nil {
		return
	}
	w.report.Lock()
	defer w.report.Unlock()
	w.opts.Progress(Progress{Done: done, Total: w.plan.Bytes})
}

// manifest writes the other files and the manifest; for an output that is already in place it only
// describes it.
func (w *writer) manifest(ctx context.Context, published bool, out string) (*Manifest, error) {
	sums := map[string]string{}
	for i := range w.plan.Files {
		f := &w.plan.Files[i]
		if f.SHA256 != "" {
			sums[f.Name] = f.SHA256
		}
		if published {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var sum string
		var err error
		if f.link != "" {
			sum, err = w.link(f)
		} else {
			sum, err = w.file(f)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		if !w.opts.NoHash && sum != "" {
			sums[f.Name] = sum
		}
		w.advance(f.Size)
	}
	path := w.plan.ManifestPath
	if w.plan.manifestInside() {
		path = filepath.Join(w.files, path)
		if published {
			path = filepath.Join(out, w.plan.ManifestPath)
		}
	}
	if published && path != "" {
		return ReadManifest(path)
	}
	m := newManifest(w.plan, w.shards, sums)
	if path == "" {
		return m, nil
	}
	data, err := m.encode()
	if err != nil {
		return nil, err
	}
	return m, fsx.WriteFile(path, data, 0o666)
}

// place makes room for a file that is not a shard.
func (w *writer) place(f *File) (path string, err error) {
	path = filepath.Join(w.files, filepath.FromSlash(f.Name))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return path, os.MkdirAll(filepath.Dir(path), 0o777)
}

// file writes one file that is not a shard and returns its digest.
func (w *writer) file(f *File) (string, error) {
	path, err := w.place(f)
	if err != nil {
		return "", err
	}
	var src io.Reader
	if f.Action == actionCopy {
		in, err := openInput(w.plan.Inputs[f.Input])
		if err != nil {
			return "", err
		}
		defer in.Close()
		src = in
	} else {
		src = bytes.NewReader(f.content)
	}
	dst, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(dst, h), src)
	if err == nil && n != f.Size {
		err = fmt.Errorf("%d bytes, planned %d: %w", n, f.Size, ErrStale)
	}
	if err == nil {
		err = dst.Chmod(f.Mode)
	}
	if err == nil {
		err = dst.Sync()
	}
	return hex.EncodeToString(h.Sum(nil)), errors.Join(err, dst.Close())
}

// publish makes the hidden folder the target, or moves its files there. It returns the weights of
// an earlier compile that it removed.
func (w *writer) publish(out string) (removed []string, err error) {
	if w.plan.DirMode != 0 {
		if err := os.Chmod(w.files, w.plan.DirMode); err != nil {
			return nil, err
		}
	}
	if err := w.log.append(record{Publish: true}); err != nil {
		return nil, err
	}
	if !w.plan.Merge {
		return nil, fsx.RenameDir(w.files, out, fsx.RenameDirOptions{Replace: w.opts.Replace})
	}
	if err := fsx.SyncDir(w.files); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(w.files)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(w.files, e.Name()), filepath.Join(out, e.Name())); err != nil {
			return nil, err
		}
	}
	if entries, err = os.ReadDir(out); err != nil {
		return nil, err
	}
	planned := w.names()
	for _, e := range entries {
		if planned[e.Name()] || e.IsDir() || !shardNames.MatchString(e.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(out, e.Name())); err != nil {
			return nil, err
		}
		removed = append(removed, e.Name())
	}
	return removed, fsx.SyncDir(out)
}

// openInput opens an input and makes sure that it is the file that was planned. The plan has decided
// about links.
func openInput(in Input) (*os.File, error) {
	f, info, err := AllLinks.open(in.Path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", in.Path, err)
	}
	if info.Size() != in.Size || !info.ModTime().Equal(in.ModTime) || fileID(in.Path) != in.ID {
		return nil, errors.Join(fmt.Errorf("%s: %w", in.Path, ErrStale), f.Close())
	}
	return f, nil
}
