package serve

import (
	"context"
	"crypto/md5" //nolint:gosec // old clients send it; SHA-256 is always computed as well
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/blake2b"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/wheel"
)

// Limits of the form around an uploaded file.
const (
	maxFormBytes = 4 << 20
	maxFormParts = 200

	// What is read of a refused upload, so that a client which sends before it reads gets the
	// answer.
	maxDrain     = 64 << 20
	maxDrainTime = 10 * time.Second

	// maxChecks is how many received files are looked into at once, one with each token: a wheel with
	// very many members takes memory, and a bomb takes time.
	maxChecks    = 2
	maxCheckTime = 15 * time.Minute

	// minUploadRate is what a client must send on average, in bytes a second.
	minUploadRate = 16 << 10
)

// uploadLimits bound the memory for looking into an uploaded wheel.
var uploadLimits = wheel.Limits{Directory: 16 << 20, Record: 16 << 20}

// uploadBuffer is what an upload needs of memory, whatever the size of the file.
const uploadBuffer = 256 << 10

// uploader receives files into a folder of its own and publishes them.
type uploader struct {
	server   *Server
	store    *index.Store
	dir      string
	lock     *fsx.FileLock
	slots    chan struct{}
	quota    sync.Mutex               // guards the maps
	running  map[string]int           // uploads by the ID of their token
	checking map[string]chan struct{} // one place for each token with uploads
	checks   chan struct{}            // slots of maxChecks
	reserved map[string]int64         // bytes of files on their way into the index, by project

	bufs sync.Pool
}

// uploadError is an answer other than success.
type uploadError struct {
	status int
	text   string
}

func (e *uploadError) Error() string { return e.text }

func refuse(status int, format string, args ...any) error {
	return &uploadError{status, fmt.Sprintf(format, args...)}
}

// newUploader makes the folder for files that are being received, on the volume of the index
// so that a finished one only changes its name, and removes those of servers that are gone.
func newUploader(s *Server, store *index.Store) (*uploader, error) {
	parent := filepath.Join(store.Dir(), ".kiln", "uploads")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fmt.Errorf("make folder for uploads: %w", err)
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("read folder of uploads: %w", err)
	}
	for _, entry := range entries {
		removeAbandoned(filepath.Join(parent, entry.Name()))
	}
	dir, err := os.MkdirTemp(parent, "server-")
	if err != nil {
		return nil, fmt.Errorf("make folder for uploads: %w", err)
	}
	lock, err := fsx.TryLock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock folder for uploads: %w", err)
	}
	return &uploader{
		reserved: map[string]int64{}, running: map[string]int{}, checking: map[string]chan struct{}{}, checks: make(chan struct{}, maxChecks),
		server: s, store: store, dir: dir, lock: lock, slots: make(chan struct{}, s.opts.MaxUploads),
		bufs: sync.Pool{New: func() any { return new([uploadBuffer]byte) }},
	}, nil
}

// removeAbandoned removes the folder of a server that does not run anymore.
func removeAbandoned(dir string) {
	lock, err := fsx.TryLock(filepath.Join(dir, "lock"))
	if err != nil {
		return // it runs
	}
	_ = lock.Unlock()
	_ = os.RemoveAll(dir)
}

func (u *uploader) close() error {
	err := u.lock.Unlock()
	return errors.Join(err, os.RemoveAll(u.dir))
}

// upload answers a POST in the format of PyPI's legacy API.
func (s *Server) upload(w *recorder, r *http.Request) {
	control := http.NewResponseController(w)
	body := &steadyReader{r: r.Body, control: control, stall: s.opts.Stall, begin: time.Now()}
	change, err := s.receive(w, r, body)
	if err != nil {
		s.metrics.uploadsRefused.Add(1)
		_ = control.EnableFullDuplex() // the answer goes out before the rest of the body is read
		w.Header().Set("Connection", "close")
		defer func() {
			_ = control.Flush()
			// Reading from a client that waits for "100 Continue" would make it send everything.
			if body.read > 0 || !strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
				s.gate.idle(r, body.drain)
			}
		}()
	}
	refusal := new(uploadError)
	switch {
	case err == nil:
		w.Header()["Content-Type"] = headerText
		_, _ = fmt.Fprintf(w, "%s %s\n", change.Action, change.Filename)
	case errors.As(err, &refusal):
		s.opts.Log.Info("upload refused", "status", refusal.status, "reason", refusal.text, "remote", r.RemoteAddr, "token", w.token)
		uploadFailed(w, r, refusal.status, refusal.text)
	case r.Context().Err() != nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded):
		s.opts.Log.Info("upload broken off", "error", err, "remote", r.RemoteAddr, "token", w.token)
		uploadFailed(w, r, http.StatusBadRequest, "the upload ended before its end")
	case diskFull(err):
		s.opts.Log.Error("upload not stored", "error", err, "remote", r.RemoteAddr, "token", w.token)
		uploadFailed(w, r, http.StatusInsufficientStorage, "the disk of the server is full; nothing was published")
	case outOfDescriptors(err):
		s.opts.Log.Error("upload not stored", "error", err, "remote", r.RemoteAddr, "token", w.token)
		w.Header().Set("Retry-After", "10")
		uploadFailed(w, r, http.StatusServiceUnavailable, "the server has too many open files; try again in a moment")
	default:
		s.opts.Log.Error("upload not stored", "error", err, "remote", r.RemoteAddr, "token", w.token)
		uploadFailed(w, r, http.StatusInternalServerError, "the file could not be stored; the log of the server says why")
	}
}

// uploadFailed answers in the form the client prefers. HTTP/2 has no reason phrase, so the
// reason is in the body.
func uploadFailed(w *recorder, r *http.Request, status int, text string) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="kiln"`)
	}
	if !prefersJSON(r.Header.Get("Accept")) {
		plainError(w, status, text)
		return
	}
	body, err := json.Marshal(map[string]string{"detail": text})
	if err != nil {
		body = []byte("{}")
	}
	w.Header()["Content-Type"] = headerJSON
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func prefersJSON(accept string) bool {
	quality := map[string]int{}
	for part := range strings.SplitSeq(accept[:min(len(accept), maxAcceptBytes)], ",") {
		mediaType, params, _ := strings.Cut(part, ";")
		if q, ok := qualityParam(params); ok {
			quality[strings.ToLower(strings.Trim(mediaType, " \t"))] = q
		}
	}
	return quality["application/json"] > quality["text/plain"]
}

// receive does everything for one upload and says what came of it.
func (s *Server) receive(w *recorder, r *http.Request, body io.Reader) (index.Change, error) {
	u := s.uploads
	if s.opts.ReadOnly {
		return index.Change{}, refuse(http.StatusForbidden, "this index is read-only")
	}
	if u == nil {
		return index.Change{}, refuse(http.StatusForbidden, "this server takes no uploads")
	}
	token, err := s.authenticate(w, r, "uploads need a token: user __token__ and the token as password")
	if err != nil {
		return index.Change{}, err
	}
	if !u.enter(token.ID) {
		w.Header().Set("Retry-After", "10")
		return index.Change{}, refuse(http.StatusServiceUnavailable, "too many uploads with this token at once; try again in a moment")
	}
	defer u.leave(token.ID)
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	default:
		w.Header().Set("Retry-After", "10")
		return index.Change{}, refuse(http.StatusServiceUnavailable, "too many uploads at once; try again in a moment")
	}
	if r.ContentLength > s.opts.MaxFileBytes+maxFormBytes {
		return index.Change{}, refuse(http.StatusRequestEntityTooLarge, "%d bytes are more than this index takes: a file may have %d", r.ContentLength, s.opts.MaxFileBytes)
	}
	form := uploadForm{u: u, token: token, ctx: r.Context()}
	defer form.discard()
	if err := form.read(r, body); err != nil {
		return index.Change{}, err
	}
	if _, err := s.authenticate(w, r, "the token is gone"); err != nil { // it may have been revoked meanwhile
		return index.Change{}, err
	}
	return form.publish()
}

// enter counts an upload with a token. One token has at most half of all places, so that it cannot
// keep others from uploading.
func (u *uploader) enter(token string) bool {
	u.quota.Lock()
	defer u.quota.Unlock()
	if u.running[token] >= max(1, u.server.opts.MaxUploads/2) {
		return false
	}
	u.running[token]++
	if u.checking[token] == nil {
		u.checking[token] = make(chan struct{}, 1)
	}
	return true
}

func (u *uploader) leave(token string) {
	u.quota.Lock()
	defer u.quota.Unlock()
	if u.running[token]--; u.running[token] == 0 {
		delete(u.running, token)
		delete(u.checking, token)
	}
}

// check waits until a file that came with a token may be looked into. The function ends that.
func (u *uploader) check(ctx context.Context, token string) (end func(), err error) {
	u.quota.Lock()
	own := u.checking[token]
	u.quota.Unlock()
	for _, slot := range []chan struct{}{own, u.checks} {
		select {
		case slot <- struct{}{}:
		case <-ctx.Done():
			if slot == u.checks {
				<-own
			}
			return nil, context.Cause(ctx)
		}
	}
	return func() {
		<-u.checks
		<-own
	}, nil
}

// Wrong tokens of one address within the window beyond which it is told to wait.
const (
	failureWindow    = time.Minute
	failureLimit     = 10
	failureAddresses = 10_000
)

// failures counts wrong tokens by address.
type failures struct {
	mu    sync.Mutex
	count map[netip.Addr]int
	since time.Time
}

// add counts one and reports whether there were too many.
func (f *failures) add(addr netip.Addr, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.since) > failureWindow || len(f.count) > failureAddresses {
		f.count, f.since = map[netip.Addr]int{}, now
	}
	f.count[addr]++
	return f.count[addr] > failureLimit
}

// uploadForm is an upload on its way: the fields that matter and the file.
type uploadForm struct {
	u      *uploader
	token  Token
	ctx    context.Context //nolint:containedctx // lives as long as its request
	fields map[string]string

	filename string
	project  string
	version  wheel.Version
	path     string // of the received file
	size     int64
	sha256   index.Digest
	paper    bool              // the file is one that goes with a wheel
	facts    index.Facts       // what the client says of a wheel
	digests  map[string]string // by the name of the field, computed while receiving
}

func (f *uploadForm) discard() {
	if f.path != "" {
		_ = os.Remove(f.path) // moved if it was published
	}
}

// digestFields are the digests a client can send, besides SHA-256.
var digestFields = map[string]func() hash.Hash{
	"md5_digest": md5.New,
	"blake2_256_digest": func() hash.Hash {
		h, _ := blake2b.New256(nil) // fails for a long key only
		return h
	},
}

// keptFields are the fields that are looked at. The others repeat METADATA, which is read from
// the file itself.
var keptFields = []string{
	":action", "protocol_version", "filetype", "pyversion", "metadata_version", "name", "version",
	"sha256_digest", "md5_digest", "blake2_256_digest", index.FactsField,
}

// read takes in the form. The fields may come in any order, also after the file.
func (f *uploadForm) read(r *http.Request, body io.Reader) error {
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "multipart/form-data" || params["boundary"] == "" {
		return refuse(http.StatusBadRequest, "an upload is multipart/form-data with a boundary")
	}
	f.fields = map[string]string{}
	if action, ok := queryValue(r.URL.RawQuery, ":action"); ok {
		f.fields[":action"] = action
	}
	reader := multipart.NewReader(body, params["boundary"])
	budget := int64(maxFormBytes)
	for parts := 0; ; parts++ {
		part, err := reader.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return brokenForm(err)
		}
		if parts >= maxFormParts {
			return refuse(http.StatusBadRequest, "the form has more than %d parts", maxFormParts)
		}
		if err := f.readPart(part, &budget); err != nil {
			return err
		}
	}
}

// brokenForm keeps what happened to the connection apart from what the client wrote.
func brokenForm(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, new(net.Error)) {
		return err
	}
	return refuse(http.StatusBadRequest, "the form cannot be read: %v", err)
}

func (f *uploadForm) readPart(part *multipart.Part, budget *int64) error {
	name := part.FormName()
	if name == "content" {
		return f.receiveFile(part)
	}
	var value strings.Builder
	dst := io.Discard
	if slices.Contains(keptFields, name) {
		dst = &value
	}
	n, err := io.Copy(dst, io.LimitReader(part, *budget+1))
	if err != nil {
		return brokenForm(err)
	}
	if *budget -= n; *budget < 0 {
		return refuse(http.StatusRequestEntityTooLarge, "the fields of the form are larger than %d bytes", maxFormBytes)
	}
	if dst != io.Discard {
		f.fields[name] = strings.TrimSpace(value.String())
	}
	return nil
}

// receiveFile writes the file to the folder of uploads, after everything that can be said from
// its name alone.
func (f *uploadForm) receiveFile(part *multipart.Part) error {
	if f.path != "" {
		return refuse(http.StatusBadRequest, "the form has two files")
	}
	// Not part.FileName, which silently drops folders.
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return refuse(http.StatusBadRequest, "the file has no readable Content-Disposition")
	}
	if err := f.setName(params["filename"]); err != nil {
		return err
	}
	if !f.token.Allows(ScopeUpload, f.project) {
		return refuse(http.StatusForbidden, "this token may not upload to %s", f.project)
	}
	f.u.quota.Lock()
	limit, why := f.u.room(f.project)
	f.u.quota.Unlock()
	if f.paper {
		limit, why = index.MaxPaper, fmt.Sprintf("%s is larger than %d bytes", f.filename, index.MaxPaper)
	}
	if limit <= 0 {
		return refuse(http.StatusRequestEntityTooLarge, "%s", why)
	}
	file, err := os.CreateTemp(f.u.dir, "upload-")
	if err != nil {
		return fmt.Errorf("receive %s: %w", f.filename, err)
	}
	f.path = file.Name()
	err = f.copyFile(file, part, limit, why)
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("receive %s: %w", f.filename, closeErr)
	}
	return err
}

func (f *uploadForm) copyFile(file *os.File, part io.Reader, limit int64, why string) error {
	// The digests that were announced before the file are computed on the way; one that
	// comes after it costs reading the file again.
	sum := sha256.New()
	writers := []io.Writer{file, sum}
	hashes := map[string]hash.Hash{}
	for field, newHash := range digestFields {
		if f.fields[field] != "" {
			hashes[field] = newHash()
			writers = append(writers, hashes[field])
		}
	}
	buf := f.u.bufs.Get().(*[uploadBuffer]byte)
	defer f.u.bufs.Put(buf)
	for {
		n, err := fill(part, buf[:])
		f.size += int64(n)
		if f.size > limit {
			return refuse(http.StatusRequestEntityTooLarge, "%s", why)
		}
		for _, w := range writers {
			if _, err := w.Write(buf[:n]); err != nil {
				return fmt.Errorf("receive %s: %w", f.filename, err)
			}
		}
		if err == io.EOF { //nolint:errorlint // io.Reader's own
			break
		}
		if err != nil {
			return brokenForm(err)
		}
	}
	f.u.server.metrics.uploadBytes.Add(f.size)
	if err := file.Sync(); err != nil {
		return fmt.Errorf("receive %s: %w", f.filename, err)
	}
	sum.Sum(f.sha256[:0])
	f.digests = map[string]string{}
	for field, h := range hashes {
		f.digests[field] = hex.EncodeToString(h.Sum(nil))
	}
	return nil
}

// fill reads until buf is full. Unlike io.ReadFull it tells the end of a part, io.EOF, from
// that of a connection, io.ErrUnexpectedEOF.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// reservedNames cannot be folders on Windows, where an index may be copied to.
var reservedNames = []string{
	"con", "prn", "aux", "nul",
	"com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9",
	"lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
}

// setName checks the name of the file, which later becomes part of paths, URLs and pages.
func (f *uploadForm) setName(whole string) error {
	var raw string
	var version wheel.Version
	filename, _, paper := index.CutPaper(whole)
	f.paper = paper
	switch {
	case strings.HasSuffix(filename, ".whl"):
		w, err := wheel.ParseFilenameOptions(filename, wheel.FilenameOptions{Variants: f.u.server.Catalog().Config().Variants})
		if err != nil {
			return refuse(http.StatusBadRequest, "%v", err)
		}
		f.project, raw, version = w.Name, w.RawName, w.Version
	case strings.HasSuffix(filename, ".tar.gz"):
		s, err := wheel.ParseSdistName(filename)
		if err != nil {
			return refuse(http.StatusBadRequest, "%v", err)
		}
		f.project, raw, version = s.Name, s.RawName, s.Version
	default:
		return refuse(http.StatusBadRequest, "%.100q is neither a wheel (.whl) nor a source distribution (.tar.gz)", filename)
	}
	if want := wheel.FileName(f.project); raw != want {
		return refuse(http.StatusBadRequest, "%q: the project is %q in the name of the file and must be written %q", filename, raw, want)
	}
	if version.Raw() != version.String() {
		return refuse(http.StatusBadRequest, "%q: the version is %q in the name of the file and must be written %q", filename, version.Raw(), version)
	}
	if slices.Contains(reservedNames, f.project) {
		return refuse(http.StatusBadRequest, "%q is the name of a device on Windows", f.project)
	}
	f.filename, f.version = whole, version
	return nil
}

// reserve counts a received file until release, so that uploads at the same time do not exceed
// a quota together.
func (u *uploader) reserve(project string, size int64) error {
	u.quota.Lock()
	defer u.quota.Unlock()
	if limit, why := u.room(project); size > limit {
		return refuse(http.StatusRequestEntityTooLarge, "%s", why)
	}
	u.reserved[project] += size
	return nil
}

func (u *uploader) release(project string, size int64) {
	u.quota.Lock()
	defer u.quota.Unlock()
	if u.reserved[project] -= size; u.reserved[project] == 0 {
		delete(u.reserved, project)
	}
}

// room returns how large a file of a project may be, and what to say of a larger one. u.quota
// is held.
func (u *uploader) room(project string) (int64, string) {
	opts, catalog := u.server.opts, u.server.Catalog()
	limit, why := opts.MaxFileBytes, fmt.Sprintf("the file is larger than %d bytes, the most this index takes", opts.MaxFileBytes)
	if opts.MaxProjectBytes > 0 {
		used := u.reserved[project]
		if p := catalog.Project(project); p != nil {
			used += projectBytes(p)
		}
		if left := opts.MaxProjectBytes - used; left < limit {
			limit, why = left, fmt.Sprintf("the quota of %s is used up: %d bytes are left of %d", project, max(left, 0), opts.MaxProjectBytes)
		}
	}
	if opts.MaxTotalBytes > 0 {
		left := opts.MaxTotalBytes - catalogBytes(catalog)
		for _, n := range u.reserved {
			left -= n
		}
		if left < limit {
			limit, why = left, fmt.Sprintf("the quota of the index is used up: %d bytes are left of %d", max(left, 0), opts.MaxTotalBytes)
		}
	}
	return limit, why
}

// publish checks what the client says about the file and adds it to the index.
func (f *uploadForm) publish() (index.Change, error) {
	if err := f.check(); err != nil {
		return index.Change{}, err
	}
	s := f.u.server
	if !f.paper && !f.published() {
		if err := f.u.reserve(f.project, f.size); err != nil {
			return index.Change{}, err
		}
		defer f.u.release(f.project, f.size)
	}
	end, err := f.u.check(f.ctx, f.token.ID)
	if err != nil {
		return index.Change{}, fmt.Errorf("publish %s: %w", f.filename, err)
	}
	// The client cannot take it back by going away now.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), maxCheckTime)
	defer cancel()
	changes, problems, err := f.add(ctx)
	end()
	if err != nil {
		return index.Change{}, fmt.Errorf("publish %s: %w", f.filename, err)
	}
	if err := s.Reload(ctx); err != nil {
		s.opts.Log.Error("uploaded file is not served yet", "file", f.filename, "error", err) // soon it is
	}
	if len(problems) > 0 {
		return index.Change{}, refusal(problems[0])
	}
	if len(changes) != 1 {
		return index.Change{}, fmt.Errorf("publish %s: %d changes", f.filename, len(changes))
	}
	if changes[0].Action == "added" {
		s.metrics.uploadsAdded.Add(1)
	} else {
		s.metrics.uploadsUnchanged.Add(1)
	}
	s.opts.Log.Info("uploaded", "file", f.filename, "sha256", f.sha256.String(), "size", f.size, "action", changes[0].Action, "token", f.token.ID)
	return changes[0], nil
}

// add puts the file into the index.
func (f *uploadForm) add(ctx context.Context) ([]index.Change, []index.Problem, error) {
	if !f.paper {
		return f.u.store.Add(ctx, []index.NewFile{{Filename: f.filename, Path: f.path, SHA256: f.sha256, Move: true, Facts: f.facts}}, index.AddOptions{Limits: uploadLimits})
	}
	data, err := fsx.ReadFile(f.path, index.MaxPaper)
	if err != nil {
		return nil, nil, err
	}
	change, err := f.u.store.AddPaper(ctx, f.filename, data)
	if problem, ok := errors.AsType[index.Problem](err); ok {
		return nil, []index.Problem{problem}, nil
	}
	return []index.Change{change}, nil, err
}

// published reports whether the index has exactly this file.
func (f *uploadForm) published() bool {
	p := f.u.server.Catalog().Project(f.project)
	if p == nil {
		return false
	}
	file := p.File(f.filename)
	return file != nil && file.SHA256 == f.sha256
}

// refusal is the answer for a file that the index does not take.
func refusal(p index.Problem) error {
	switch {
	case errors.Is(p.Err, index.ErrExists):
		// twine --skip-existing looks for these words.
		return refuse(http.StatusBadRequest, "File already exists: %s was published with other content, and a published file never changes", p.Filename)
	case errors.Is(p.Err, index.ErrClosed):
		return refuse(http.StatusForbidden, "%s: %v", p.Filename, p.Err)
	}
	return refuse(http.StatusBadRequest, "%s: %v", p.Filename, p.Err)
}

// check compares the form with the file.
func (f *uploadForm) check() error {
	bad := func(format string, args ...any) error { return refuse(http.StatusBadRequest, format, args...) }
	if action := f.fields[":action"]; action != "file_upload" {
		return bad(":action is %.40q, want file_upload", action)
	}
	if v := f.fields["protocol_version"]; v != "" && v != "1" {
		return bad("protocol_version is %.40q, want 1", v)
	}
	if f.path == "" {
		return bad("the form has no file in the field content")
	}
	for _, field := range []string{"filetype", "metadata_version", "name", "version"} {
		if f.fields[field] == "" {
			return bad("the form has no %s", field)
		}
	}
	isWheel, want := strings.HasSuffix(f.filename, ".whl"), "sdist"
	if f.paper {
		want = "paper"
	} else if isWheel {
		want = "bdist_wheel"
	}
	if f.fields["filetype"] != want {
		return bad("filetype is %.40q, but %s is a %s", f.fields["filetype"], f.filename, want)
	}
	if isWheel && f.fields["pyversion"] == "" {
		return bad("the form has no pyversion")
	}
	if name := f.fields["name"]; !wheel.ValidName(name) || wheel.NormalizeName(name) != f.project {
		return bad("name is %.100q, but the file is of %s", name, f.project)
	}
	if v, err := wheel.ParseVersion(f.fields["version"]); err != nil || v.String() != f.version.String() {
		return bad("version is %.100q, but the file is of %s", f.fields["version"], f.version)
	}
	if text := f.fields[index.FactsField]; text != "" {
		if err := json.Unmarshal([]byte(text), &f.facts); err != nil {
			return bad("%s cannot be read: %v", index.FactsField, err)
		}
	}
	return f.checkDigests()
}

func (f *uploadForm) checkDigests() error {
	found := false
	if want := f.fields["sha256_digest"]; want != "" {
		found = true
		if !strings.EqualFold(want, f.sha256.String()) {
			return refuse(http.StatusBadRequest, "sha256_digest is %.64q, but the file that arrived has %s", want, f.sha256)
		}
	}
	for field, newHash := range digestFields {
		want := f.fields[field]
		if want == "" {
			continue
		}
		found = true
		got := f.digests[field]
		if got == "" {
			var err error
			if got, err = hashFile(f.path, newHash()); err != nil {
				return err
			}
		}
		if !strings.EqualFold(want, got) {
			return refuse(http.StatusBadRequest, "%s is %.64q, but the file that arrived has %s", field, want, got)
		}
	}
	if !found {
		return refuse(http.StatusBadRequest, "the form has no digest; send sha256_digest")
	}
	return nil
}

func hashFile(path string, h hash.Hash) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("hash upload: %w", err)
	}
	defer file.Close()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("hash upload: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// steadyReader reads a body that may take long but must neither stop nor trickle.
type steadyReader struct {
	r       io.Reader
	control *http.ResponseController
	stall   time.Duration
	begin   time.Time
	read    int64     // bytes so far
	next    time.Time // when the deadline is set again
}

func (s *steadyReader) Read(p []byte) (int, error) {
	if now := time.Now(); now.After(s.next) {
		deadline := s.begin.Add(s.stall + time.Duration(s.read)*(time.Second/minUploadRate))
		if d := now.Add(s.stall); d.Before(deadline) {
			deadline = d
		}
		_ = s.control.SetReadDeadline(deadline) // not every connection has deadlines
		s.next = now.Add(s.stall / 16)
	}
	n, err := s.r.Read(p)
	s.read += int64(n)
	return n, err
}

// drain reads what a refused client still sends, up to limits that more bytes do not extend.
func (s *steadyReader) drain() {
	_ = s.control.SetReadDeadline(time.Now().Add(min(s.stall, maxDrainTime)))
	_, _ = io.CopyN(io.Discard, s.r, maxDrain)
}
