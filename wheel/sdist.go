package wheel

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// maxSdistInflated is the most that an sdist may unpack to, in bytes, however large the file is.
const maxSdistInflated = 4 << 30

// ReadSdist reads a source distribution whole, a .tar.gz (PEP 625) or an older .zip, and returns
// its PKG-INFO. name is the name of the file without a folder.
//
// An error that wraps a [*FormatError] says that the archive is damaged, hostile or larger than
// the limits. What passes has one folder at the top that is named like the file, a PKG-INFO in it
// that says the same, and no name twice. It unpacks into that folder and nowhere else, as PEP 721
// wants it: no name or link leads out of the folder, no member lies below a link, and there are no
// devices. All checksums were compared. Memory is needed for the names and one buffer.
func ReadSdist(ctx context.Context, r io.ReaderAt, size int64, name string, limits Limits) (*Metadata, error) {
	parsed, err := ParseSdistName(name)
	if err != nil {
		return nil, fmt.Errorf("read sdist: %w", err)
	}
	s := &sdist{name: parsed, limits: limits.withDefaults(), kinds: map[string]sdistKind{}}
	s.limits.FileSize = min(s.limits.FileSize, maxSdistInflated)
	if parsed.Ext == ".zip" {
		err = s.readZip(ctx, r, size)
	} else {
		err = s.readTar(ctx, r, size)
	}
	if err != nil {
		return nil, fmt.Errorf("read sdist %s: %w", name, err)
	}
	m, err := s.finish()
	if err != nil {
		return nil, fmt.Errorf("read sdist %s: %w", name, err)
	}
	return m, nil
}

// An sdist is what is known of the members read so far.
type sdist struct {
	name   SdistName
	limits Limits
	top    string               // the folder at the top
	kinds  map[string]sdistKind // by name, without a slash at the end
	names  int64                // bytes of all names
	info   []byte               // PKG-INFO, nil until it was read
}

type sdistKind byte

const (
	sdistFile sdistKind = iota + 1
	sdistFolder
	sdistLink
)

// add notes a member, whose name has no "./" before it and no slash after it.
func (s *sdist) add(name string, kind sdistKind) error {
	if err := checkMemberName(name); err != nil {
		return refuse(name, "%v", err)
	}
	top, rest, below := strings.Cut(name, "/")
	if s.top == "" {
		if agreement(Filename{Name: s.name.Name, Version: s.name.Version}, top) != agree {
			return refuse(name, "the folder at the top is not named like the file")
		}
		s.top = top
	}
	switch {
	case top != s.top:
		return refuse(name, "not in the folder %s", s.top)
	case !below && kind != sdistFolder:
		return refuse(name, "not a folder")
	case rest != "PKG-INFO" && strings.EqualFold(rest, "PKG-INFO"):
		return refuse(name, "PKG-INFO in another spelling")
	}
	if before, ok := s.kinds[name]; ok && (before != sdistFolder || kind != sdistFolder) {
		return refuse(name, "duplicate name")
	}
	s.kinds[name] = kind
	if len(s.kinds) > s.limits.Entries {
		return refuse("", "more than %d members", s.limits.Entries)
	}
	if s.names += int64(len(name)); s.names > s.limits.Directory {
		return refuse("", "more than %d bytes of names", s.limits.Directory)
	}
	return nil
}

// content reads a file to its end and keeps it if it is PKG-INFO.
func (s *sdist) content(ctx context.Context, in *inflater, name string, size int64, r io.Reader) error {
	if name != s.top+"/PKG-INFO" {
		return in.copy(ctx, io.Discard, r)
	}
	if size > s.limits.Metadata {
		return refuse(name, "%d bytes, limit %d", size, s.limits.Metadata)
	}
	var info bytes.Buffer
	err := in.copy(ctx, &info, r)
	s.info = info.Bytes()
	return err
}

// finish judges all members together.
func (s *sdist) finish() (*Metadata, error) {
	for name := range s.kinds {
		for i := strings.LastIndexByte(name, '/'); i >= 0; i = strings.LastIndexByte(name[:i], '/') {
			if kind := s.kinds[name[:i]]; kind == sdistFile || kind == sdistLink {
				return nil, refuse(name, "lies below %q, which is not a folder", name[:i])
			}
		}
	}
	if s.kinds[s.top+"/PKG-INFO"] != sdistFile {
		return nil, refuse("", "no PKG-INFO in the folder at the top")
	}
	m, err := parseFields("PKG-INFO", string(s.info))
	if err != nil {
		return nil, err
	}
	if compareNames(Filename{Name: s.name.Name, Version: s.name.Version}, m.Name(), m.Version()) != agree {
		return nil, refuse(s.top+"/PKG-INFO", "it is of %s %s", quote(m.Name()), quote(m.Version()))
	}
	return m, nil
}

func (s *sdist) readZip(ctx context.Context, r io.ReaderAt, size int64) error {
	limits := s.limits
	limits.Ratio = min(limits.Ratio, max(1, maxSdistInflated/max(size, 1)))
	entries, err := readZip(r, size, &limits)
	if err != nil {
		return err
	}
	in := new(inflater)
	for i := range entries {
		e := &entries[i]
		if e.isFolder() {
			err = s.add(strings.TrimSuffix(e.name, "/"), sdistFolder)
		} else if err = s.add(e.name, sdistFile); err == nil {
			err = s.content(ctx, in, e.name, e.size, in.open(r, e, nil))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sdist) readTar(ctx context.Context, r io.ReaderAt, size int64) error {
	if size > s.limits.FileSize {
		return refuse("", "%d bytes, limit %d", size, s.limits.FileSize)
	}
	file := &sourceReader{ctx: ctx, r: io.NewSectionReader(r, 0, size)}
	err := s.readMembers(ctx, file, min(s.limits.inflated(size), maxSdistInflated))
	var format *FormatError
	switch {
	case file.err != nil:
		return file.err // the file could not be read; what follows from it does not matter
	case err == nil || errors.As(err, &format) || ctx.Err() != nil:
		return err
	}
	return refuse("", "damaged: %v", err)
}

func (s *sdist) readMembers(ctx context.Context, file io.Reader, limit int64) error {
	gz, err := gzip.NewReader(file)
	if err != nil {
		return refuse("", "not a gzip file: %v", err)
	}
	inflated := &limitReader{r: gz, left: limit, limit: limit}
	archive := tar.NewReader(inflated)
	in := new(inflater)
	var total int64 // what the members announce: sparse files could be larger than the archive
	for {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if total += h.Size; h.Size > limit || total > limit {
			return refuse(h.Name, "unpacks to more than %d bytes", limit)
		}
		if err := s.member(ctx, in, h, archive); err != nil {
			return err
		}
	}
	// Other programs may look for members after the end.
	if err := in.copy(ctx, zeros{}, inflated); err != nil {
		return err
	}
	if inflated.zeros < 1024 {
		return refuse("", "damaged: the archive has no end")
	}
	return nil
}

func (s *sdist) member(ctx context.Context, in *inflater, h *tar.Header, content io.Reader) error {
	name := strings.TrimPrefix(h.Name, "./")
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		// git writes one with a comment. Anything else would hold for all members, to some
		// programs.
		for key := range h.PAXRecords {
			if key != "comment" {
				return refuse(h.Name, "global header with %q", key)
			}
		}
		return nil
	case tar.TypeDir:
		if name = strings.TrimSuffix(name, "/"); name == "" || name == "." {
			return nil // the folder that it is unpacked into
		}
		return s.add(name, sdistFolder)
	case tar.TypeReg:
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return refuse(h.Name, "sparse file")
			}
		}
		if err := s.add(name, sdistFile); err != nil {
			return err
		}
		return s.content(ctx, in, name, h.Size, content)
	case tar.TypeSymlink:
		if err := s.add(name, sdistLink); err != nil {
			return err
		}
		return s.checkLink(name, h.Linkname)
	case tar.TypeLink:
		if err := s.add(name, sdistLink); err != nil {
			return err
		}
		if target := strings.TrimPrefix(h.Linkname, "./"); s.kinds[target] != sdistFile {
			return refuse(name, "hard link to %q, which is not a file before it", h.Linkname)
		}
		return nil
	}
	return refuse(h.Name, "neither a file nor a folder nor a link (type %q)", h.Typeflag)
}

// checkLink refuses a symbolic link that could lead out of the folder at the top. Members never
// lie below links, so the link's own folder is a real one. If ".." is at the beginning of the
// target only, it leaves real folders, and the rest cannot lead further up.
func (s *sdist) checkLink(name, target string) error {
	if target == "" || path.IsAbs(target) || strings.ContainsAny(target, "\\:") {
		return refuse(name, "link to %q", target)
	}
	up := true
	for part := range strings.SplitSeq(target, "/") {
		if part == ".." && !up {
			return refuse(name, "link to %q, with .. after a name", target)
		}
		up = up && (part == ".." || part == ".")
	}
	if to := path.Join(path.Dir(name), target); to != s.top && !strings.HasPrefix(to, s.top+"/") {
		return refuse(name, "link to %q, out of the folder %s", target, s.top)
	}
	return nil
}

// sourceReader keeps the error that reading the file ended with, if it was not its end.
type sourceReader struct {
	ctx context.Context
	r   io.Reader
	err error
}

func (f *sourceReader) Read(p []byte) (int, error) {
	n, err := 0, error(nil)
	if f.ctx.Err() != nil {
		err = context.Cause(f.ctx)
	} else {
		n, err = f.r.Read(p)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// limitReader refuses an archive that unpacks to more than the limit.
type limitReader struct {
	r           io.Reader
	left, limit int64
	zeros       int // how many zeros were read last
}

func (l *limitReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, refuse("", "unpacks to more than %d bytes", l.limit)
	}
	if rest := len(bytes.TrimRight(p[:n], "\x00")); rest > 0 {
		l.zeros = n - rest
	} else {
		l.zeros += n
	}
	return n, err
}

// zeros refuses anything but zeros.
type zeros struct{}

func (zeros) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != 0 {
			return 0, refuse("", "bytes after the end of the archive")
		}
	}
	return len(p), nil
}
