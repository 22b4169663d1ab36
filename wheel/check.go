package wheel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"slices"
	"strings"
	"unicode"
)

// A Kind says what is wrong with a wheel. The text is stable and may be stored.
type Kind string

// The kinds of problems.
const (
	KindMissing  Kind = "missing"   // a member every wheel must have is not there
	KindDistInfo Kind = "dist-info" // none or several .dist-info folders
	KindData     Kind = "data"      // the .data folder is not laid out as it must be
	KindName     Kind = "name"      // file name, folders and METADATA name different projects
	KindVersion  Kind = "version"   // they give different versions
	KindLocal    Kind = "local"     // they give versions that differ in the local label only
	KindTag      Kind = "tag"       // the tags or the build number of WHEEL are not those of the file name
	KindMetadata Kind = "metadata"  // METADATA cannot be read, or a field it needs
	KindInfo     Kind = "wheel"     // WHEEL cannot be read
	KindRecord   Kind = "record"    // RECORD cannot be read, or lists other files
	KindDigest   Kind = "digest"    // RECORD gives another size or hash
	KindCorrupt  Kind = "corrupt"   // a member cannot be inflated
	KindClash    Kind = "clash"     // two names are one file on some file systems
)

// A Problem is one fault of a wheel that [Reader.Check] found.
type Problem struct {
	Kind   Kind
	Path   string // member or folder concerned; empty for the whole wheel
	Detail string
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Detail
	}
	return p.Path + ": " + p.Detail
}

// A CheckError is the refusal of a wheel because of its problems.
type CheckError struct {
	Problems []Problem // at least one
}

func (e *CheckError) Error() string {
	if n := len(e.Problems) - 1; n > 0 {
		return fmt.Sprintf("%v (and %d more problems)", e.Problems[0], n)
	}
	return e.Problems[0].String()
}

// CheckOptions say how thoroughly [Reader.Check] looks.
type CheckOptions struct {
	// NamesOnly skips reading the members: RECORD is compared with the names and
	// announced sizes only. By default every member is inflated and hashed.
	NamesOnly bool
}

// Check compares the parts of the wheel with each other: the file name, the
// .dist-info and .data folders, METADATA, WHEEL, RECORD and the members. It
// returns all problems, in an order that depends on the wheel alone; none means
// that installers accept the wheel and install what its RECORD says. The error
// is about reading the file or about ctx, never about the wheel.
func (r *Reader) Check(ctx context.Context, opts CheckOptions) ([]Problem, error) {
	c := checker{r: r}
	c.checkFolders()
	c.problems = append(c.problems, nameClashes(r.memberNames())...)
	c.checkMetadata()
	c.checkInfo()
	c.checkRecord(ctx, opts)
	if c.err != nil {
		return nil, fmt.Errorf("check wheel %s: %w", r.name, c.err)
	}
	return c.problems, nil
}

type checker struct {
	r        *Reader
	problems []Problem
	err      error // reading failed
}

func (c *checker) add(kind Kind, path, format string, args ...any) {
	c.problems = append(c.problems, Problem{kind, path, fmt.Sprintf(format, args...)})
}

func (r *Reader) memberNames() []string {
	names := make([]string, len(r.entries))
	for i := range r.entries {
		names[i] = r.entries[i].name
	}
	return names
}

func (c *checker) checkFolders() {
	infos := c.r.topFolders(distInfoSuffix)
	switch {
	case len(infos) == 0:
		c.add(KindDistInfo, "", "no %s folder", distInfoSuffix)
	case len(infos) > 1:
		for _, folder := range infos {
			if folder != c.r.distInfo {
				c.add(KindDistInfo, folder, "more than one %s folder", distInfoSuffix)
			}
		}
	}
	if c.r.distInfo != "" {
		c.compareFolder(c.r.distInfo, distInfoSuffix)
	}
	datas := c.r.topFolders(dataSuffix)
	for i, folder := range datas {
		if i > 0 {
			c.add(KindData, folder, "more than one %s folder", dataSuffix)
			continue
		}
		c.compareFolder(folder, dataSuffix)
	}
	for i := range c.r.entries {
		e := &c.r.entries[i]
		top, rest, nested := strings.Cut(e.name, "/")
		if !strings.HasSuffix(top, dataSuffix) || nested && rest == "" {
			continue
		}
		scheme, file, _ := strings.Cut(rest, "/")
		switch {
		case !slices.Contains([]string{"purelib", "platlib", "headers", "scripts", "data"}, scheme):
			c.add(KindData, e.name, "not below purelib, platlib, headers, scripts or data")
		case file == "" && !e.isFolder():
			c.add(KindData, e.name, "a file where a folder must be")
		}
	}
}

func (c *checker) compareFolder(folder, suffix string) {
	c.compare(folder, "folder", agreement(c.r.filename, strings.TrimSuffix(folder, suffix)))
}

// compare reports a disagreement with the file name.
func (c *checker) compare(path, what string, a nameAgreement) {
	switch a {
	case otherLocal:
		c.add(KindLocal, path, "%s has another local version than the file name, %s", what, c.r.filename.Version)
	case otherVersion:
		c.add(KindVersion, path, "%s has another version than the file name, %s", what, c.r.filename.Version)
	case otherName:
		c.add(KindName, path, "%s names another project than the file name, %s", what, c.r.filename.Name)
	case notNameAndVer:
		c.add(KindName, path, "%s does not give a valid name and version", what)
	}
}

// required sorts out the error of reading a .dist-info member and reports
// whether its content can be looked at.
func (c *checker) required(file string, kind Kind, err error) bool {
	path := c.r.distInfo + "/" + file
	var format *FormatError
	switch {
	case err == nil:
		return true
	case errors.Is(err, errNoDistInfo): // reported by checkFolders
	case errors.Is(err, fs.ErrNotExist):
		c.add(KindMissing, path, "no such member")
	case errors.As(err, &format):
		c.add(KindCorrupt, path, "%s", format.Detail)
	case readFailed(err):
		if c.err == nil {
			c.err = err
		}
	default:
		c.add(kind, path, "%v", errors.Unwrap(err))
	}
	return false
}

func (c *checker) checkMetadata() {
	m, err := c.r.Metadata()
	if !c.required("METADATA", KindMetadata, err) {
		return
	}
	path := c.r.distInfo + "/METADATA"
	for _, field := range []string{"Metadata-Version", "Name", "Version"} {
		if n := len(m.All(field)); n != 1 {
			c.add(KindMetadata, path, "field %s given %d times, not once", field, n)
		}
	}
	if n := len(m.All("Requires-Python")); n > 1 {
		c.add(KindMetadata, path, "field Requires-Python given %d times", n)
	}
	if v := m.MetadataVersion(); v != "" && !knownMetadataVersion(v) {
		c.add(KindMetadata, path, "Metadata-Version %q is not 1.x or 2.x", v)
	}
	if m.Name() != "" && m.Version() != "" {
		c.compare(path, "METADATA", compareNames(c.r.filename, m.Name(), m.Version()))
	}
}

// knownMetadataVersion accepts any minor version: the standard promises that a
// reader of 2.0 can read 2.x.
func knownMetadataVersion(v string) bool {
	major, minor, ok := strings.Cut(v, ".")
	return ok && (major == "1" || major == "2") && minor != "" && strings.Trim(minor, "0123456789") == ""
}

func (c *checker) checkInfo() {
	info, err := c.r.Info()
	if !c.required("WHEEL", KindInfo, err) {
		return
	}
	path := c.r.distInfo + "/WHEEL"
	if !sameTags(info.Tags, c.r.filename.Tags()) {
		c.add(KindTag, path, "tags are %s, the file name says %s", joinTags(info.Tags), joinTags(c.r.filename.Tags()))
	}
	if build := c.r.filename.Build.String(); info.Build != build {
		c.add(KindTag, path, "build number is %q, the file name says %q", info.Build, build)
	}
}

// sameTags compares tags as sets.
func sameTags(a, b []Tag) bool {
	set := make(map[Tag]bool, len(a))
	for _, t := range a {
		set[t] = false
	}
	for _, t := range b {
		if _, ok := set[t]; !ok {
			return false
		}
		set[t] = true
	}
	for _, both := range set {
		if !both {
			return false
		}
	}
	return true
}

func joinTags(tags []Tag) string {
	if len(tags) == 0 {
		return "none"
	}
	texts := make([]string, len(tags))
	for i, t := range tags {
		texts[i] = t.String()
	}
	return strings.Join(texts, " ")
}

// recordExempt are the members RECORD need not vouch for: itself, because it
// cannot, and the signatures that PEP 815 deprecates.
func recordExempt(distInfo, name string) bool {
	file, ok := strings.CutPrefix(name, distInfo+"/")
	return ok && (file == "RECORD" || file == "RECORD.jws" || file == "RECORD.p7s")
}

func (c *checker) checkRecord(ctx context.Context, opts CheckOptions) {
	rec, err := c.r.Record()
	if !c.required("RECORD", KindRecord, err) {
		rec = nil
	}
	rows := make(map[string]*RecordEntry)
	if rec != nil {
		for i := range rec.Entries {
			rows[rec.Entries[i].Path] = &rec.Entries[i]
		}
	}
	shared := c.r.inflater()
	for i := range c.r.entries {
		e := &c.r.entries[i]
		if e.isFolder() || c.err != nil {
			continue
		}
		row := rows[e.name]
		delete(rows, e.name)
		if rec != nil {
			c.checkRow(e, row)
		}
		if opts.NamesOnly {
			continue
		}
		var sum hash.Hash
		out := io.Discard
		if row != nil && row.Algorithm != "" {
			sum = RecordHash(row.Algorithm)
			out = sum
		}
		err := shared.copy(ctx, out, shared.open(c.r.r, e, nil))
		var format *FormatError
		switch {
		case errors.As(err, &format):
			c.add(KindCorrupt, e.name, "%s", format.Detail)
		case err != nil:
			c.err = err
		case sum != nil:
			if got := sum.Sum(nil); !bytes.Equal(got, row.Digest) {
				c.problems = append(c.problems, digestProblem(e.name, row, got))
			}
		}
	}
	if rec == nil {
		return
	}
	for _, e := range rec.Entries { // in the order of RECORD
		if rows[e.Path] != nil {
			c.add(KindRecord, e.Path, "listed in RECORD, not in the archive")
		}
	}
}

// checkRow compares what can be compared without reading the member.
func (c *checker) checkRow(e *entry, row *RecordEntry) {
	exempt := recordExempt(c.r.distInfo, e.name)
	switch {
	case row == nil && !exempt:
		c.add(KindRecord, e.name, "not listed in RECORD")
	case row == nil:
	case row.Algorithm == "" && !exempt:
		c.add(KindRecord, e.name, "listed in RECORD without a hash")
	case row.Algorithm != "" && e.name == c.r.distInfo+"/RECORD":
		c.add(KindRecord, e.name, "RECORD gives a hash of itself")
	}
	if row != nil && row.Size >= 0 && row.Size != e.size {
		c.add(KindDigest, e.name, "has %d bytes, RECORD says %d", e.size, row.Size)
	}
}

// digestProblem reports that a member has another hash than its row says.
func digestProblem(name string, row *RecordEntry, got []byte) Problem {
	return Problem{KindDigest, name, fmt.Sprintf("%s mismatch: got %s, RECORD says %s", row.Algorithm,
		recordEncoding.EncodeToString(got), recordEncoding.EncodeToString(row.Digest))}
}

// nameClashes finds names that are different here and equal on a file system
// that ignores case (Windows, macOS) or the way accents are composed (macOS).
func nameClashes(names []string) []Problem {
	var problems []Problem
	first := make(map[string]string, len(names))
	for _, name := range names {
		key := strings.TrimSuffix(foldedName(name), "/")
		if other, ok := first[key]; ok {
			problems = append(problems, Problem{KindClash, name, fmt.Sprintf("same file as %q where case is ignored", other)})
			continue
		}
		first[key] = name
	}
	// Composing accents takes tables the standard library does not have. A name
	// with combining marks is compared by its skeleton, in which every accented
	// letter is alike; names without such marks cannot be equal to each other.
	composed := make(map[string]string)
	for _, name := range names {
		if !isASCII(name) && !strings.ContainsFunc(name, isMark) {
			composed[skeleton(name)] = name
		}
	}
	if len(composed) == 0 {
		return problems
	}
	for _, name := range names {
		if !strings.ContainsFunc(name, isMark) {
			continue
		}
		if other, ok := composed[skeleton(name)]; ok {
			problems = append(problems, Problem{KindClash, name, fmt.Sprintf("same file as %q where accents are composed", other)})
		}
	}
	return problems
}

// foldedName maps names that differ in case only to one name.
func foldedName(name string) string {
	if isASCII(name) {
		return strings.ToLower(name)
	}
	return strings.Map(func(r rune) rune {
		// The smallest rune of the orbit stands for all of them.
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return unicode.ToLower(least)
	}, name)
}

func isMark(r rune) bool { return unicode.Is(unicode.Mn, r) }

// skeleton replaces every letter outside ASCII, and every letter followed by
// combining marks with these, by one and the same sign.
func skeleton(name string) string {
	var out []rune
	for _, r := range foldedName(name) {
		switch {
		case isMark(r):
			if n := len(out); n > 0 && out[n-1] != '/' {
				out[n-1] = '*'
			}
		case r >= 0x80:
			out = append(out, '*')
		default:
			out = append(out, r)
		}
	}
	return string(out)
}
