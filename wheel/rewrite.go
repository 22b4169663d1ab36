package wheel

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// RewriteOptions say what [Rewrite] changes. The zero value changes nothing but
// what the file name says already and the archive does not: it repairs a wheel
// that was renamed by hand.
type RewriteOptions struct {
	// Local, if not nil, is the new local label of the version, without the "+";
	// a pointer to "" removes the label. Any separator is accepted.
	Local *string

	// Python, ABI and Platform, if not nil, are the new tag sets.
	Python, ABI, Platform []string

	// Build, if not nil, is the new build number; a pointer to "" removes it.
	Build *string

	// EditMetadata, if not nil, changes METADATA. The version has been changed
	// before; name and version must not be changed to others.
	EditMetadata func(*Metadata) error

	// EditInfo, if not nil, changes WHEEL, for example its generator. The tags
	// and the build number have been changed before and must stay.
	EditInfo func(*WheelInfo) error

	// Add are files to put into the .dist-info folder, by their path below it,
	// for example "sboms/build.json". They replace members of that name; METADATA,
	// WHEEL and RECORD cannot be replaced this way.
	Add map[string][]byte

	// Merge are wheels of the same version, up to its local label, whose members outside of the
	// .dist-info folder are added. Two wheels may have a member of one name if its bytes are equal;
	// otherwise the error is a [*MergeError].
	Merge []*Reader

	// Time is given to all members, in UTC and with a resolution of two seconds.
	// It is what SOURCE_DATE_EPOCH asks for. The default, and the earliest a
	// wheel can hold, is the start of 1980.
	Time time.Time

	// Overwrite lets [RewriteFile] replace an existing file that has other bytes.
	Overwrite bool
}

// MergeError is the error for a member that two merged wheels have with different bytes.
type MergeError struct {
	Member string
	// First and Second are the names of the wheels.
	First, Second string
}

func (e *MergeError) Error() string {
	return fmt.Sprintf("merge: %s has other bytes in %s than in %s", e.Member, e.Second, e.First)
}

// Rewritten describes the wheel that [Rewrite] wrote.
type Rewritten struct {
	Filename Filename
	Name     string // the file name, which the wheel must have
	SHA256   string // of the file, lower-case hex
	Size     int64  // of the file, in bytes
}

// Rewrite writes a changed copy of src to dst. Equal input and options give equal
// bytes, on every machine and with every version of Go:
//
//   - Members that do not change keep their compressed bytes. METADATA and WHEEL,
//     when they change, and RECORD, always, are stored without compression.
//   - Members are sorted by name, the .dist-info folder after all others and
//     RECORD last. Entries for folders are dropped.
//   - All members have the time of the options and the mode 0644, or 0755 if they
//     were executable.
//
// The name of the file and of the .dist-info and .data folders take their
// canonical form. RECORD is made new, with SHA-256; signatures of the old one
// are dropped.
//
// Every member is inflated and compared with the RECORD of src on the way, so a
// damaged or altered wheel does not get a RECORD that vouches for it. Rewrite
// refuses a source with a problem it does not repair with a [*CheckError]; it
// repairs local labels and tags that differ from the file name. After an error,
// what was written to dst is no wheel.
func Rewrite(ctx context.Context, src *Reader, dst io.Writer, opts RewriteOptions) (Rewritten, error) {
	plan, err := planRewrite(ctx, src, opts)
	if err != nil {
		return Rewritten{}, fmt.Errorf("rewrite wheel %s: %w", src.name, err)
	}
	done, err := plan.write(ctx, dst)
	if err != nil {
		return Rewritten{}, fmt.Errorf("rewrite wheel %s: %w", src.name, err)
	}
	return done, nil
}

// RewriteFile rewrites the wheel at path into the folder dir, under the name that
// follows from the options. The file appears complete, flushed to the disk, or
// not at all; nothing else is left in dir, also when ctx ends.
//
// If a file of that name with the same bytes exists, RewriteFile leaves it
// alone. If its bytes differ, the error wraps [fs.ErrExist], unless the options
// say to overwrite.
func RewriteFile(ctx context.Context, path, dir string, opts RewriteOptions) (Rewritten, error) {
	src, err := Open(path)
	if err != nil {
		return Rewritten{}, err
	}
	defer src.Close()
	plan, err := planRewrite(ctx, src, opts)
	if err != nil {
		return Rewritten{}, fmt.Errorf("rewrite wheel %s: %w", src.name, err)
	}
	var done Rewritten
	target := filepath.Join(dir, plan.name)
	err = writeFile(target, func(tmp *os.File) error {
		if done, err = plan.write(ctx, tmp); err != nil {
			return err
		}
		if opts.Overwrite {
			return nil
		}
		return compareExisting(target, done)
	})
	if errors.Is(err, errSameFile) {
		err = nil
	}
	if err != nil {
		return Rewritten{}, fmt.Errorf("rewrite wheel %s: %w", src.name, err)
	}
	return done, nil
}

// A rewritePlan is everything Rewrite decides before it reads member contents.
type rewritePlan struct {
	src      *Reader
	filename Filename
	name     string
	distInfo string
	date     uint16
	time     uint16
	members  []plannedMember // without RECORD
}

// A plannedMember is a member of the source under its new name, perhaps with new
// content, or a new member.
type plannedMember struct {
	name       string
	source     *entry       // nil for a new member
	from       *Reader      // that has the source
	record     *RecordEntry // of the source
	isNew      bool         // has content of its own
	content    []byte
	executable bool
}

func planRewrite(ctx context.Context, src *Reader, opts RewriteOptions) (*rewritePlan, error) {
	problems, err := src.Check(ctx, CheckOptions{NamesOnly: true})
	if err != nil {
		return nil, err
	}
	problems = slices.DeleteFunc(problems, func(p Problem) bool { return p.Kind == KindLocal || p.Kind == KindTag })
	if len(problems) > 0 {
		return nil, &CheckError{problems}
	}
	p := &rewritePlan{src: src}
	if p.date, p.time, err = dosTime(opts.Time); err != nil {
		return nil, err
	}
	if err := p.planName(opts); err != nil {
		return nil, err
	}
	replaced, err := p.planDistInfo(opts)
	if err != nil {
		return nil, err
	}
	for _, r := range append([]*Reader{src}, opts.Merge...) {
		if err := p.takeMembers(ctx, r); err != nil {
			return nil, err
		}
	}
	return p, p.planMembers(replaced)
}

// takeMembers adds the members of the source, or of a wheel that is merged.
func (p *rewritePlan) takeMembers(ctx context.Context, r *Reader) error {
	merged := r != p.src
	if merged {
		problems, err := r.Check(ctx, CheckOptions{NamesOnly: true})
		if err != nil {
			return err
		}
		if problems = slices.DeleteFunc(problems, func(p Problem) bool { return p.Kind == KindTag }); len(problems) > 0 {
			return fmt.Errorf("merge %s: %w", r.name, &CheckError{problems})
		}
		if err := p.sameKind(r); err != nil {
			return err
		}
	}
	rec, err := r.Record()
	if err != nil {
		return err
	}
	records := make(map[string]*RecordEntry, len(rec.Entries))
	for i := range rec.Entries {
		records[rec.Entries[i].Path] = &rec.Entries[i]
	}
	have := make(map[string]*plannedMember, len(p.members))
	for i := range p.members {
		have[p.members[i].name] = &p.members[i]
	}
	for i := range r.entries {
		e := &r.entries[i]
		if e.isFolder() || recordExempt(r.distInfo, e.name) || merged && strings.HasPrefix(e.name, r.distInfo+"/") {
			continue
		}
		m := plannedMember{name: p.rename(r, e.name), source: e, from: r, record: records[e.name], executable: e.executable}
		if err := checkMemberName(m.name); err != nil {
			return fmt.Errorf("rename %q: %w", e.name, err)
		}
		if other := have[m.name]; other != nil {
			// The digests are those of the bytes, or writing fails.
			if other.record.Algorithm != m.record.Algorithm || !bytes.Equal(other.record.Digest, m.record.Digest) {
				return &MergeError{m.name, other.from.name, r.name}
			}
			continue
		}
		p.members = append(p.members, m)
	}
	return nil
}

// sameKind refuses to merge wheels that are not of one version, or that are installed to different
// places.
func (p *rewritePlan) sameKind(r *Reader) error {
	f, own := r.filename, p.src.filename
	if f.Name != own.Name || f.Version.Public() != own.Version.Public() {
		return fmt.Errorf("merge %s: it is not of %s %s", r.name, own.Name, own.Version.Public())
	}
	a, err := p.src.Info()
	if err != nil {
		return err
	}
	b, err := r.Info()
	if err != nil {
		return err
	}
	if a.RootIsPurelib != b.RootIsPurelib {
		return fmt.Errorf("merge %s: Root-Is-Purelib differs from that of %s", r.name, p.src.name)
	}
	return nil
}

// planName decides the new file name.
func (p *rewritePlan) planName(opts RewriteOptions) error {
	f := p.src.filename
	if opts.Local != nil {
		v, err := f.Version.WithLocal(*opts.Local)
		if err != nil {
			return err
		}
		f.Version = v
	}
	if opts.Python != nil {
		f.Python = opts.Python
	}
	if opts.ABI != nil {
		f.ABI = opts.ABI
	}
	if opts.Platform != nil {
		f.Platform = opts.Platform
	}
	if opts.Build != nil {
		f.Build = BuildTag{Number: *opts.Build} // split by parsing below
	}
	tags := joinSorted(f.Python) + "-" + joinSorted(f.ABI) + "-" + joinSorted(f.Platform)
	if _, err := ParseTag(tags); err != nil {
		return err
	}
	var err error
	p.name = f.String()
	if p.filename, err = ParseFilename(p.name); err != nil {
		return err
	}
	if opts.Build != nil && p.filename.Build.String() != *opts.Build {
		return fmt.Errorf("build number %q is not a digit followed by letters, digits, '_' and '.'", *opts.Build)
	}
	p.distInfo = p.stem() + distInfoSuffix
	return nil
}

// stem is the canonical name of the .dist-info and .data folders, without suffix.
func (p *rewritePlan) stem() string {
	return FileName(p.filename.Name) + "-" + p.filename.Version.String()
}

// planDistInfo makes the new contents in the .dist-info folder, by new name.
// Members that stay as they are have none.
func (p *rewritePlan) planDistInfo(opts RewriteOptions) (map[string][]byte, error) {
	replaced := make(map[string][]byte)
	meta, err := p.src.Metadata()
	if err != nil {
		return nil, err
	}
	before := meta.Bytes()
	if compareNames(p.filename, meta.Name(), meta.Version()) != agree {
		if err := meta.Set("Version", p.filename.Version.String()); err != nil {
			return nil, err
		}
	}
	if opts.EditMetadata != nil {
		if err := opts.EditMetadata(meta); err != nil {
			return nil, fmt.Errorf("edit METADATA: %w", err)
		}
	}
	if after := meta.Bytes(); !bytes.Equal(before, after) {
		if int64(len(after)) > p.src.limits.Metadata {
			return nil, fmt.Errorf("edit METADATA: %d bytes, limit %d", len(after), p.src.limits.Metadata)
		}
		if len(meta.All("Name")) != 1 || len(meta.All("Version")) != 1 || len(meta.All("Metadata-Version")) != 1 ||
			compareNames(p.filename, meta.Name(), meta.Version()) != agree {
			return nil, fmt.Errorf("edit METADATA: it no longer describes %s %s", p.filename.Name, p.filename.Version)
		}
		replaced[p.distInfo+"/METADATA"] = after
	}

	info, err := p.src.Info()
	if err != nil {
		return nil, err
	}
	tags := p.filename.Tags()
	before, err = info.Bytes()
	if err != nil {
		return nil, err
	}
	if !sameTags(info.Tags, tags) {
		info.Tags = tags
	}
	info.Build = p.filename.Build.String()
	if opts.EditInfo != nil {
		if err := opts.EditInfo(info); err != nil {
			return nil, fmt.Errorf("edit WHEEL: %w", err)
		}
		if !sameTags(info.Tags, tags) || info.Build != p.filename.Build.String() {
			return nil, fmt.Errorf("edit WHEEL: it no longer describes %s", p.name)
		}
	}
	after, err := info.Bytes()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(before, after) {
		replaced[p.distInfo+"/WHEEL"] = after
	}

	for path, content := range opts.Add {
		switch strings.ToUpper(path) {
		case "METADATA", "WHEEL", "RECORD", "RECORD.JWS", "RECORD.P7S":
			return nil, fmt.Errorf("add %s: not a file to add", path)
		}
		name := p.distInfo + "/" + path
		if err := checkMemberName(name); err != nil {
			return nil, fmt.Errorf("add %q: %w", path, err)
		}
		if strings.HasSuffix(name, "/") {
			return nil, fmt.Errorf("add %q: names a folder", path)
		}
		if limit := p.src.limits.member(name); int64(len(content)) > limit {
			return nil, fmt.Errorf("add %s: %d bytes, limit %d", path, len(content), limit)
		}
		replaced[name] = content
	}
	return replaced, nil
}

// planMembers lists the members of the new wheel in their order.
func (p *rewritePlan) planMembers(replaced map[string][]byte) error {
	left := make(map[string][]byte, len(replaced))
	maps.Copy(left, replaced)
	for i := range p.members {
		m := &p.members[i]
		if content, ok := left[m.name]; ok {
			m.isNew, m.content = true, content
			delete(left, m.name)
		}
	}
	for name, content := range left {
		p.members = append(p.members, plannedMember{name: name, isNew: true, content: content})
	}
	slices.SortFunc(p.members, func(a, b plannedMember) int {
		return cmp.Or(compareBool(p.inDistInfo(a.name), p.inDistInfo(b.name)), cmp.Compare(a.name, b.name))
	})
	names := make([]string, 0, len(p.members)+1)
	folders := make(map[string]bool)
	for _, m := range p.members {
		names = append(names, m.name)
		for i, c := range m.name {
			if c == '/' {
				folders[m.name[:i]] = true
			}
		}
	}
	names = append(names, p.distInfo+"/RECORD")
	for _, name := range names {
		if folders[name] {
			return fmt.Errorf("member %q would be both a file and a folder", name)
		}
	}
	if len(names) > p.src.limits.Entries {
		return fmt.Errorf("%d members, limit %d", len(names), p.src.limits.Entries)
	}
	if clashes := nameClashes(names); len(clashes) > 0 {
		return &CheckError{clashes}
	}
	return nil
}

func (p *rewritePlan) inDistInfo(name string) bool { return strings.HasPrefix(name, p.distInfo+"/") }

// rename moves a member of the .dist-info or .data folder.
func (p *rewritePlan) rename(r *Reader, name string) string {
	top, rest, _ := strings.Cut(name, "/")
	switch {
	case top == r.distInfo:
		return p.distInfo + "/" + rest
	case strings.HasSuffix(top, dataSuffix): // the only one, Check says
		return p.stem() + dataSuffix + "/" + rest
	}
	return name
}

// write executes the plan.
func (p *rewritePlan) write(ctx context.Context, dst io.Writer) (Rewritten, error) {
	digest := sha256.New()
	z := &zipWriter{w: io.MultiWriter(dst, digest), date: p.date, time: p.time}
	rec := &Record{Entries: make([]RecordEntry, 0, len(p.members)+1)}
	shared := p.src.inflater()
	var inflated int64
	for i := range p.members {
		if ctx.Err() != nil {
			return Rewritten{}, context.Cause(ctx)
		}
		row, err := p.writeMember(ctx, z, &p.members[i], shared)
		if err != nil {
			return Rewritten{}, err
		}
		rec.Entries = append(rec.Entries, row)
		inflated += row.Size
	}
	path := p.distInfo + "/RECORD"
	rec.Entries = append(rec.Entries, RecordEntry{Path: path, Size: -1})
	content, err := rec.Bytes()
	if err != nil {
		return Rewritten{}, err
	}
	if int64(len(content)) > p.src.limits.Record {
		return Rewritten{}, fmt.Errorf("write RECORD: %d bytes, limit %d", len(content), p.src.limits.Record)
	}
	if err := writeStored(z, path, content, false); err != nil {
		return Rewritten{}, err
	}
	if err := z.finish(); err != nil {
		return Rewritten{}, err
	}
	if z.offset > p.src.limits.FileSize {
		return Rewritten{}, fmt.Errorf("%d bytes, limit %d", z.offset, p.src.limits.FileSize)
	}
	if inflated > p.src.limits.inflated(z.offset) {
		return Rewritten{}, fmt.Errorf("contents exceed %d times the archive's %d bytes", p.src.limits.Ratio, z.offset)
	}
	return Rewritten{p.filename, p.name, hex.EncodeToString(digest.Sum(nil)), z.offset}, nil
}

// writeMember writes one member and returns its row for RECORD. A member of the
// source is compared with the old RECORD even if its content is replaced: the new
// content was derived from it.
func (p *rewritePlan) writeMember(ctx context.Context, z *zipWriter, m *plannedMember, shared *inflater) (RecordEntry, error) {
	row := RecordEntry{Path: m.name, Algorithm: "sha256"}
	sum := sha256.New()
	if m.source != nil {
		raw := io.Writer(z)
		if m.isNew {
			raw = nil
		} else {
			e := *m.source
			e.name = m.name
			if err := z.begin(&e); err != nil {
				return row, err
			}
		}
		old := m.record
		check, out := sum, io.Writer(sum)
		if old.Algorithm != row.Algorithm {
			check = RecordHash(old.Algorithm)
			out = io.MultiWriter(sum, check)
		}
		if err := shared.copy(ctx, out, shared.open(m.from.r, m.source, raw)); err != nil {
			return row, err
		}
		if got := check.Sum(nil); !bytes.Equal(got, old.Digest) {
			return row, &CheckError{[]Problem{digestProblem(m.source.name, old, got)}}
		}
		row.Size = m.source.size
	}
	if m.isNew {
		sum.Reset()
		sum.Write(m.content)
		row.Size = int64(len(m.content))
		if err := writeStored(z, m.name, m.content, m.executable); err != nil {
			return row, err
		}
	}
	row.Digest = sum.Sum(nil)
	return row, nil
}

func writeStored(z *zipWriter, name string, content []byte, executable bool) error {
	size := int64(len(content))
	err := z.begin(&entry{name: name, method: methodStored, crc: crc32.ChecksumIEEE(content), size: size, packed: size, executable: executable})
	if err != nil {
		return err
	}
	_, err = z.Write(content)
	return err
}

// dosTime encodes t as ZIP headers do.
func dosTime(t time.Time) (date, clock uint16, err error) {
	t = t.UTC()
	if t.Year() < 1980 {
		t = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if t.Year() > 2107 {
		return 0, 0, fmt.Errorf("time %s is after the year 2107", t.Format(time.DateOnly))
	}
	date = uint16(t.Day() | int(t.Month())<<5 | (t.Year()-1980)<<9)
	clock = uint16(t.Second()/2 | t.Minute()<<5 | t.Hour()<<11)
	return date, clock, nil
}

// errSameFile makes writeFile keep the file that is there.
var errSameFile = errors.New("the file exists with the same content")

// compareExisting returns nil if there is no file at path.
func compareExisting(path string, want Rewritten) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) == want.SHA256 {
		return errSameFile
	}
	return fmt.Errorf("%s has other content: %w", path, fs.ErrExist)
}

// writeFile creates path with what fill writes: temporary file in the same
// folder, flush, rename, flush of the folder. On any error the temporary file is
// removed and path is as before.
func writeFile(path string, fill func(*os.File) error) (err error) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	// Not os.CreateTemp: the file gets the permissions the umask leaves.
	tmp, err := os.OpenFile(filepath.Join(dir, "."+rand.Text()[:12]+".tmp"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("create %s: %w", base, err)
	}
	defer func() {
		if err != nil {
			_ = tmp.Close() // the error at hand matters more
			os.Remove(tmp.Name())
		}
	}()
	if err := fill(tmp); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncFolder(dir)
}

// syncFolder makes a rename survive a power cut, where the system can.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
