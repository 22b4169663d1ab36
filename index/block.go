package index

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/wheel"
)

// The catalog on disk is a log of blocks. A block is the complete state of one project: a line
// with the project, a line for each file, and a line with a checksum of the lines before.
// A later block of the same project replaces an earlier one. All lines are JSON objects,
// so that a catalog can be read and compared with ordinary tools.

// castagnoli is the polynomial with hardware support.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	blockStart = `{"project":`
	blockEnd   = `{"end":`
)

// projectLine is the first line of a block.
type projectLine struct {
	Name    string          `json:"project"`
	Display string          `json:"display,omitempty"`
	Status  Status          `json:"status,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	Shared  bool            `json:"shared,omitempty"`
	Default Coordinates     `json:"default,omitzero"`
	Files   int             `json:"files"`
	Removed []tombstoneLine `json:"removed,omitempty"`
}

type tombstoneLine struct {
	Filename string `json:"filename"`
	SHA256   Digest `json:"sha256"`
}

// fileLine is the line of a file.
type fileLine struct {
	Filename       string  `json:"filename"`
	Base           string  `json:"base,omitempty"`
	SHA256         Digest  `json:"sha256"`
	Size           int64   `json:"size"`
	Metadata       Digest  `json:"metadata,omitzero"`
	RequiresPython string  `json:"requires-python,omitempty"`
	UploadTime     string  `json:"upload-time,omitempty"`
	Yanked         *string `json:"yanked,omitempty"`
	Provenance     string  `json:"provenance,omitempty"`

	Built   Coordinates   `json:"built,omitzero"`
	Arch    []string      `json:"arch,omitempty"`
	Glibc   string        `json:"glibc,omitempty"`
	Window  []string      `json:"window,omitempty"`
	Audit   []AuditResult `json:"audit,omitempty"`
	Variant *Variant      `json:"variant,omitempty"`

	Papers map[string]Digest `json:"papers,omitempty"`
}

// appendBlock appends the block of a project.
func appendBlock(dst []byte, p *Project) ([]byte, error) {
	start := len(dst)
	head := projectLine{
		Name: p.Name, Status: p.Status, Reason: p.StatusReason, Shared: p.Shared, Default: p.Default, Files: len(p.Files),
	}
	if p.DisplayName != p.Name {
		head.Display = p.DisplayName
	}
	for _, t := range p.Removed {
		head.Removed = append(head.Removed, tombstoneLine(t))
	}
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(head); err != nil {
		return nil, err
	}
	for i := range p.Files {
		if err := enc.Encode(newFileLine(&p.Files[i])); err != nil {
			return nil, err
		}
	}
	dst = buf.Bytes()
	sum := crc32.Checksum(dst[start:], castagnoli)
	return fmt.Appendf(dst, blockEnd+"%q,\"crc32c\":\"%08x\"}\n", p.Name, sum), nil
}

// newFileLine returns the line of a file.
func newFileLine(f *File) fileLine {
	l := fileLine{
		Filename: f.Filename, Base: f.Base, SHA256: f.SHA256, Size: f.Size, Metadata: f.Metadata, RequiresPython: f.RequiresPython,
		Provenance: f.Provenance, Built: f.Coordinates, Arch: f.Arch, Glibc: f.Glibc, Window: f.Window,
		Audit: f.Audit, Variant: f.Variant, Papers: f.Papers,
	}
	if !f.UploadTime.IsZero() {
		l.UploadTime = f.UploadTime.UTC().Format(timeFormat)
	}
	if f.Yanked {
		l.Yanked = &f.YankedReason
	}
	return l
}

// cutBlock splits the first block off data and returns its length. It is not ok if there
// is no whole block with the right checksum, as after a write that was cut short.
func cutBlock(data []byte) (block []byte, ok bool) {
	if !bytes.HasPrefix(data, []byte(blockStart)) {
		return nil, false
	}
	at := bytes.Index(data, []byte("\n"+blockEnd))
	if at < 0 {
		return nil, false
	}
	at++
	length := bytes.IndexByte(data[at:], '\n')
	if length < 0 {
		return nil, false
	}
	block = data[:at+length+1]
	return block, checkBlock(block) == nil
}

// checkBlock compares a block with its checksum.
func checkBlock(block []byte) error {
	at := bytes.LastIndex(block, []byte("\n"+blockEnd)) + 1
	if at == 0 {
		return errors.New("has no end")
	}
	trailer, ok := bytes.CutSuffix(block[at:], []byte("\"}\n"))
	if !ok || len(trailer) < 8 {
		return errors.New("has no checksum")
	}
	want, err := strconv.ParseUint(string(trailer[len(trailer)-8:]), 16, 32)
	if err != nil {
		return errors.New("has no checksum")
	}
	if got := crc32.Checksum(block[:at], castagnoli); got != uint32(want) {
		return fmt.Errorf("checksum is %08x, not %08x", got, want)
	}
	return nil
}

// interner keeps one copy of strings that are repeated in almost every line.
type interner map[string]string

func (in interner) get(s string) string {
	if s == "" {
		return ""
	}
	if have, ok := in[s]; ok {
		return have
	}
	if len(in) < 10_000 {
		in[s] = s
	}
	return s
}

// parseBlock reads a block. Everything in it is checked again, as it becomes paths and
// pages: another program may have written to the disk.
func parseBlock(block []byte, in interner) (*Project, error) {
	if err := checkBlock(block); err != nil {
		return nil, fmt.Errorf("block of the catalog %w", err)
	}
	line, rest, _ := bytes.Cut(block, []byte("\n"))
	var head projectLine
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, fmt.Errorf("project in the catalog: %w", err)
	}
	p := &Project{
		Name: head.Name, DisplayName: head.Display, Status: head.Status, StatusReason: head.Reason, Shared: head.Shared, Default: head.Default,
	}
	if p.DisplayName == "" {
		p.DisplayName = p.Name
	}
	if head.Files < 0 || head.Files > bytes.Count(rest, []byte("\n")) {
		return nil, fmt.Errorf("project %q in the catalog: announces %d files", p.Name, head.Files)
	}
	for _, t := range head.Removed {
		p.Removed = append(p.Removed, Tombstone(t))
	}
	p.Files = make([]File, 0, head.Files)
	for {
		line, rest, _ = bytes.Cut(rest, []byte("\n"))
		if bytes.HasPrefix(line, []byte(blockEnd)) {
			break
		}
		f, err := parseFileLine(line, in)
		if err != nil {
			return nil, fmt.Errorf("project %q in the catalog: %w", p.Name, err)
		}
		p.Files = append(p.Files, f)
	}
	if len(p.Files) != head.Files {
		return nil, fmt.Errorf("project %q in the catalog: has %d files, not %d", p.Name, len(p.Files), head.Files)
	}
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("project %q in the catalog: %w", p.Name, err)
	}
	return p, nil
}

func parseFileLine(line []byte, in interner) (File, error) {
	var l fileLine
	if err := json.Unmarshal(line, &l); err != nil {
		return File{}, err
	}
	f := File{
		Filename: l.Filename, Base: in.get(l.Base), SHA256: l.SHA256, Size: l.Size, Metadata: l.Metadata,
		RequiresPython: in.get(l.RequiresPython), Provenance: l.Provenance, Coordinates: l.Built, Arch: l.Arch,
		Glibc: in.get(l.Glibc), Window: l.Window, Audit: l.Audit, Variant: l.Variant, Papers: l.Papers,
	}
	for i, a := range f.Arch {
		f.Arch[i] = in.get(a)
	}
	for i, v := range f.Window {
		f.Window[i] = in.get(v)
	}
	for i, r := range f.Audit {
		f.Audit[i] = AuditResult{in.get(r.Check), in.get(r.Result), in.get(r.Detail)}
	}
	if l.Yanked != nil {
		f.Yanked, f.YankedReason = true, *l.Yanked
	}
	if l.UploadTime != "" {
		t, err := time.Parse(timeFormat, l.UploadTime)
		if err != nil {
			return File{}, fmt.Errorf("%s: upload-time: %w", l.Filename, err)
		}
		f.UploadTime = t
	}
	return f, nil
}

// validate checks everything that must hold of a project, and sorts nothing: files out of
// order are an error.
func (p *Project) validate() error {
	if err := validProject(p.Name, p.DisplayName); err != nil {
		return err
	}
	switch p.Status {
	case "", Active, Archived, Deprecated, Quarantined:
	default:
		return fmt.Errorf("status %q is not active, archived, deprecated or quarantined", p.Status)
	}
	if !p.Default.IsZero() {
		if err := p.Default.validate(); err != nil {
			return fmt.Errorf("default: %w", err)
		}
	}
	var last *File
	var lastVersion wheel.Version
	for i := range p.Files {
		f := &p.Files[i]
		project, version, err := ParseName(f.Filename)
		switch {
		case err != nil:
			return err
		case project != p.Name:
			return fmt.Errorf("file %s is of another project", f.Filename)
		}
		if last != nil {
			c := version.Compare(lastVersion)
			if c < 0 || c == 0 && last.Filename >= f.Filename {
				return fmt.Errorf("file %s is out of order or listed twice", f.Filename)
			}
		}
		last, lastVersion = f, version
		if err := f.validate(); err != nil {
			return fmt.Errorf("file %s: %w", f.Filename, err)
		}
	}
	for _, t := range p.Removed {
		if project, _, err := ParseName(t.Filename); err != nil || project != p.Name {
			return fmt.Errorf("removed file %q is of another project", t.Filename)
		}
	}
	return nil
}

// sortFiles orders files, whose versions are given, by version and name.
func sortFiles(files []File, versions []wheel.Version) []File {
	compare := func(a, b int) int {
		return cmp.Or(versions[a].Compare(versions[b]), strings.Compare(files[a].Filename, files[b].Filename))
	}
	order := make([]int, len(files))
	for i := range order {
		order[i] = i
	}
	if slices.IsSortedFunc(order, compare) {
		return files
	}
	slices.SortFunc(order, compare)
	sorted := make([]File, len(files))
	for i, k := range order {
		sorted[i] = files[k]
	}
	return sorted
}

// validProject checks a normalized name and the one to show. The name becomes a folder.
func validProject(name, display string) error {
	switch {
	case !wheel.ValidName(name) || wheel.NormalizeName(name) != name:
		return fmt.Errorf("%q is not a normalized project name", name)
	case !wheel.ValidName(display) || wheel.NormalizeName(display) != name:
		return fmt.Errorf("%q is not another spelling of %s", display, name)
	case len(name) > 200:
		return fmt.Errorf("project name has %d characters, more than 200", len(name))
	}
	switch name {
	case "con", "prn", "aux", "nul":
		return fmt.Errorf("%q is a device on Windows", name)
	}
	if len(name) == 4 && (name[:3] == "com" || name[:3] == "lpt") && isDigit(name[3]) {
		return fmt.Errorf("%q is a device on Windows", name)
	}
	return nil
}

// validate checks a file apart from its name.
func (f *File) validate() error {
	switch {
	case f.SHA256.IsZero():
		return errors.New("has no sha256")
	case f.Size < 0:
		return errors.New("has a negative size")
	case !plainText(f.YankedReason, 2000):
		return errors.New("the reason for yanking is not one line of text")
	case len(f.RequiresPython) > 1000 || strings.ContainsFunc(f.RequiresPython, func(r rune) bool { return r < ' ' || r > '~' }):
		return errors.New("the field Requires-Python is not one line of ASCII")
	case f.Variant != nil && !f.IsWheel():
		return errors.New("is a variant and not a wheel")
	}
	if f.Base != "" {
		if err := validBase(f.Base); err != nil {
			return err
		}
	}
	if f.Provenance != "" {
		if !strings.HasPrefix(f.Provenance, "https://") || validURL(f.Provenance) != nil {
			return fmt.Errorf("provenance %q is not an https URL", f.Provenance)
		}
	}
	if !f.Coordinates.IsZero() {
		if err := f.Coordinates.validate(); err != nil {
			return err
		}
	}
	if err := f.validateNeeds(); err != nil {
		return err
	}
	if len(f.Audit) > MaxAuditResults {
		return fmt.Errorf("has %d results of an audit, more than %d", len(f.Audit), MaxAuditResults)
	}
	for _, r := range f.Audit {
		switch {
		case r.Result != "pass" && r.Result != "warn" && r.Result != "fail":
			return fmt.Errorf("result %q of an audit is not pass, warn or fail", r.Result)
		case r.Check == "" || !plainText(r.Check, MaxAuditText) || !plainText(r.Detail, MaxAuditText):
			return errors.New("result of an audit is not one line of text")
		}
	}
	for _, a := range f.Arch {
		if a == "" || len(a) > 40 || strings.ContainsFunc(a, func(r rune) bool {
			return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '.' && r != '_' && r != '+' && r != '-' && r != ':'
		}) {
			return fmt.Errorf("architecture %q", a)
		}
	}
	for suffix := range f.Papers {
		if suffix != ProvenanceSuffix && suffix != SBOMSuffix || f.Base != "" || !f.IsWheel() {
			return fmt.Errorf("paper %.40q is none of a hosted wheel", suffix)
		}
	}
	return nil
}

// validateNeeds checks what is said of the C library and of torch.
func (f *File) validateNeeds() error {
	if f.Glibc != "" && !isMinor(f.Glibc) {
		return fmt.Errorf("glibc version %.20q is none of the form 2.32", f.Glibc)
	}
	if len(f.Window) > maxWindow {
		return fmt.Errorf("lists %d torch versions, more than %d", len(f.Window), maxWindow)
	}
	for _, t := range f.Window {
		if !isMinor(t) {
			return fmt.Errorf("torch version %.20q is none of the form 2.9", t)
		}
	}
	return nil
}

// maxWindow is the most that a file has of torch versions.
const maxWindow = 200

// isMinor reports whether s is of the form 2.32.
func isMinor(s string) bool {
	major, minor, ok := strings.Cut(s, ".")
	number := func(s string) bool { return s != "" && len(s) < 6 && strings.Trim(s, "0123456789") == "" }
	return ok && number(major) && number(minor)
}
