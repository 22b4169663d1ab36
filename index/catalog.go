package index

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/wheel"
)

// Digest is a SHA-256. The zero value stands for none.
type Digest [32]byte

// ParseDigest reads 64 hexadecimal digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	err := d.UnmarshalText([]byte(s))
	return d, err
}

// IsZero reports whether there is no digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// String returns lower-case hex, or "" for the zero value.
func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return hex.EncodeToString(d[:])
}

// MarshalText is [Digest.String].
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is [ParseDigest]; the empty text gives the zero value.
func (d *Digest) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = Digest{}
		return nil
	}
	if len(text) != 2*len(d) {
		return fmt.Errorf("sha256 has %d characters, not 64", len(text))
	}
	if _, err := hex.Decode(d[:], text); err != nil {
		return errors.New("sha256 is not hexadecimal")
	}
	return nil
}

// File is one distribution of a project: a wheel or an sdist. Its name determines its
// content for ever.
type File struct {
	// Filename is the name, not escaped.
	Filename string

	// Base is the URL of the folder in which the file is, ending in "/". Each file
	// has its own. Empty means that the index has the file itself, at [File.HostedPath].
	Base string

	// SHA256 is the hash of the bytes; every file has one. Size is their number.
	SHA256 Digest
	Size   int64

	// Metadata is the hash of the METADATA of a wheel that can be fetched beside the
	// file, at its URL with ".metadata" appended. Zero means that there is no such
	// file (PEP 658).
	Metadata Digest

	// RequiresPython is that field of the METADATA, as written.
	RequiresPython string

	// UploadTime is when the file entered this index, in UTC. It never changes.
	UploadTime time.Time

	// Yanked says that installers take the file only for an exact pin (PEP 592).
	Yanked bool
	// YankedReason is shown to users; it may be empty.
	YankedReason string

	// Provenance is the https URL of the provenance object (PEP 740), if there is one.
	Provenance string

	// Coordinates are set where the version label does not say for which toolkit and torch
	// the file was built, or says it wrong. See [File.Built].
	Coordinates Coordinates

	// Arch are the GPU architectures in the file as package compat writes them, such as "8.0",
	// "9.0+PTX" or "gfx90a".
	Arch []string

	// Glibc is the oldest glibc that has what the wheel asks for, such as "2.32", whatever its tag
	// says. Empty means not known, or that it asks for none.
	Glibc string

	// Window are the torch versions, such as "2.9", in which the names that the wheel uses were
	// found. Empty means not looked at, or that it uses none. It is not what the wheel was built
	// for: names alone do not make a wheel work.
	Window []string

	// Audit is what a look into the wheel found, if there was one.
	Audit []AuditResult

	// Papers are the hashes of what was published with a hosted wheel, by [ProvenanceSuffix] and
	// [SBOMSuffix]. They can be fetched at its URL with the suffix appended.
	Papers map[string]Digest

	// Variant is the variant.json of a wheel with a variant label (PEP 825).
	Variant *Variant
}

// Facts are what a look into a wheel, and the record of its build, say of it.
type Facts struct {
	// Coordinates are those of the row that it was built for. They count as far as neither the
	// publisher nor the label of the version says otherwise.
	Coordinates Coordinates `json:"built,omitzero"`
	// The others are as in [File].
	Arch   []string      `json:"arch,omitempty"`
	Glibc  string        `json:"glibc,omitempty"`
	Window []string      `json:"window,omitempty"`
	Audit  []AuditResult `json:"audit,omitempty"`
}

// What the names of the papers of a wheel end in, after its own.
const (
	MetadataSuffix   = ".metadata"     // PEP 658
	ProvenanceSuffix = ".intoto.jsonl" // in-toto statement, in a DSSE envelope if signed
	SBOMSuffix       = ".cdx.json"     // CycloneDX
)

// PapersHeader is a header of the answer to a GET at the URL for uploads, with the suffixes of the
// papers that the server takes. Servers of early versions take none.
const PapersHeader = "Kiln-Papers"

// CutPaper returns the name of the wheel that a paper belongs to, and its suffix. It is not ok for
// other names.
func CutPaper(name string) (wheel, suffix string, ok bool) {
	for _, suffix := range []string{ProvenanceSuffix, SBOMSuffix} {
		if name, ok := strings.CutSuffix(name, ".whl"+suffix); ok {
			return name + ".whl", suffix, true
		}
	}
	return name, "", false
}

// FactsField is the field of an upload that has the [Facts] of a wheel as JSON.
const FactsField = "kiln_facts"

// Learn fills in what is not known of the file.
func (f *File) Learn(facts Facts) {
	if f.Arch == nil {
		f.Arch = facts.Arch
	}
	f.Glibc, f.Window, f.Audit = facts.Glibc, facts.Window, facts.Audit
	have := f.Built()
	merged := Coordinates{Toolkit: cmp.Or(have.Toolkit, facts.Coordinates.Toolkit), Torch: have.Torch}
	// A label names one torch; a wheel that was proven with others is for these, too.
	if all := facts.Coordinates.Torch; !slices.ContainsFunc(merged.Torch, func(t string) bool { return !slices.Contains(all, t) }) {
		merged.Torch = all
	}
	if merged.String() != have.String() {
		f.Coordinates = merged
	}
}

// AuditResult is one result of a look into a wheel.
type AuditResult struct {
	// Check is what was looked at, such as "symbols against torch 2.9.0".
	Check string `json:"check"`
	// Result is "pass", "warn" or "fail".
	Result string `json:"result"`
	// Detail says more; it may be empty.
	Detail string `json:"detail,omitempty"`
}

// The most that a file has of results, and a text of one in bytes.
const (
	MaxAuditResults = 50
	MaxAuditText    = 500
)

// URL returns where the file is. For hosted files it is relative to the root of the index;
// root is the path from the page to there, such as "../../". Everything outside
// A-Z a-z 0-9 . _ ~ - is percent-encoded in the name, as some stores read "+" as a space.
func (f *File) URL(root string) string {
	if f.Base != "" {
		return f.Base + escapeName(f.Filename)
	}
	h := f.SHA256.String()
	return root + "files/" + h[:2] + "/" + h[2:] + "/" + escapeName(f.Filename)
}

// HostedPath is where the index has the file, relative to its root and with forward
// slashes: files/{first 2 digits of the hash}/{other 62}/{name}. Its METADATA is
// at the same path with ".metadata" appended.
func (f *File) HostedPath() string {
	h := f.SHA256.String()
	return path.Join("files", h[:2], h[2:], f.Filename)
}

// Paper returns the hash of what can be fetched at the URL of the file with a suffix appended, of the
// file itself without one. It is zero if there is nothing.
func (f *File) Paper(suffix string) Digest {
	switch suffix {
	case "":
		return f.SHA256
	case MetadataSuffix:
		return f.Metadata
	}
	return f.Papers[suffix]
}

// IsWheel reports whether the file is a wheel, as opposed to an sdist.
func (f *File) IsWheel() bool { return strings.HasSuffix(f.Filename, ".whl") }

// Wheel returns the parsed name of a wheel. It is not ok for an sdist.
func (f *File) Wheel() (name wheel.Filename, ok bool) {
	name, err := wheel.ParseFilenameOptions(f.Filename, wheel.FilenameOptions{Variants: true})
	return name, err == nil
}

// Version returns the version in the name of the file.
func (f *File) Version() wheel.Version {
	_, v, _ := ParseName(f.Filename)
	return v
}

// Built returns for which toolkit and torch versions the file was built: the coordinates
// it was published with, else those of its version label. They are zero for files that
// do not depend on either.
func (f *File) Built() Coordinates {
	if !f.Coordinates.IsZero() {
		return f.Coordinates
	}
	return ParseLabel(f.label())
}

// label returns the local version label in the name of the file.
func (f *File) label() string {
	_, label, ok := strings.Cut(f.Filename, "+")
	if !ok {
		return ""
	}
	if f.IsWheel() {
		label, _, _ = strings.Cut(label, "-")
	} else {
		label = strings.TrimSuffix(strings.TrimSuffix(label, ".tar.gz"), ".zip")
	}
	return strings.ReplaceAll(strings.ToLower(label), "_", ".")
}

// escapeName percent-encodes a file name for a URL.
func escapeName(name string) string {
	const hexDigits = "0123456789ABCDEF"
	plain := func(c byte) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '~' || c == '-'
	}
	n := 0
	for i := range len(name) {
		if !plain(name[i]) {
			n++
		}
	}
	if n == 0 {
		return name
	}
	out := make([]byte, 0, len(name)+2*n)
	for i := range len(name) {
		if c := name[i]; plain(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(out)
}

// ParseName returns the normalized project name and the version that a file name
// gives, for wheels, variant wheels and sdists alike.
func ParseName(filename string) (project string, v wheel.Version, err error) {
	if strings.HasSuffix(filename, ".whl") {
		w, err := wheel.ParseFilenameOptions(filename, wheel.FilenameOptions{Variants: true})
		return w.Name, w.Version, err
	}
	s, err := wheel.ParseSdistName(filename)
	return s.Name, s.Version, err
}

// Status is the state of a project (PEP 792).
type Status string

// The states of a project. The zero value means active.
const (
	Active      Status = "active"
	Archived    Status = "archived"    // refuses uploads
	Deprecated  Status = "deprecated"  // users should move on
	Quarantined Status = "quarantined" // refuses uploads and lists no files
)

// Project is everything published under one name. It is immutable once in a [Catalog].
type Project struct {
	// Name is normalized (PEP 503).
	Name string
	// DisplayName is the name as its authors write it.
	DisplayName string

	// Status is [Active] unless set. StatusReason is shown to users.
	Status       Status
	StatusReason string

	// Shared puts the wheels that were built for no toolkit and torch in particular into
	// every view, which is right for dependencies in pure Python.
	Shared bool

	// Default replaces the default combination of the index for this project.
	Default Coordinates

	// Files are sorted by version, then by name.
	Files []File

	// Removed are the names that were published and are gone. They stay taken.
	Removed []Tombstone

	revision string // where it was read

	// Computed by prepare.
	built    []Coordinates // of Files
	own      membership    // views, apart from those of loose files
	loose    []int32       // files for any toolkit, or any torch
	floating bool          // there are loose files
}

// Tombstone is a file name that must not be used again.
type Tombstone struct {
	Filename string
	SHA256   Digest
}

// File returns the file of that name, or nil. It must not be modified.
func (p *Project) File(filename string) *File {
	for i := range p.Files {
		if p.Files[i].Filename == filename {
			return &p.Files[i]
		}
	}
	return nil
}

// Revision changes whenever the project does. It is "" for a project that was not read from a
// [Store].
func (p *Project) Revision() string { return p.revision }

// AcceptsUploads reports whether the status of the project lets files be added.
func (p *Project) AcceptsUploads() bool {
	return p.Status != Archived && p.Status != Quarantined
}

// Config is what is decided for an index as a whole. It is stored with it.
type Config struct {
	// BaseURL is the base of files that are added without one of their own.
	// Empty means that the index has such files itself.
	BaseURL string `json:"base_url,omitempty"`

	// Default is the combination that /simple/ shows of projects with several.
	Default Coordinates `json:"default,omitzero"`

	// Variants turns on wheel variants (PEP 825, a draft): variant wheels are accepted
	// and shown in /all/ and in /variants/.
	Variants bool `json:"variants,omitempty"`

	// OldMetadataAttribute repeats data-core-metadata under the name that pip before
	// 23.2 reads, in HTML only.
	OldMetadataAttribute bool `json:"old_metadata_attribute,omitempty"`

	// Web says whether pages for people are to be written beside those for installers: [WebOn],
	// [WebOff], or "" for indexes that are not too large. The store itself does not write them.
	Web string `json:"web,omitempty"`

	// Aliases writes the pages of views under their second names too, cu128-torch2.9 and
	// cu128-torch29 for cu128/torch2.9. A server answers to these names in any case.
	Aliases bool `json:"aliases,omitempty"`
}

// Values of Config.Web.
const (
	WebOn  = "on"
	WebOff = "off"
)

// Catalog is a state of an index: an immutable snapshot, safe for concurrent use.
type Catalog struct {
	config   Config
	projects []*Project // by name
	byName   map[string]*Project
	views    []*View
	byPath   map[string]*View // aliases too
	floating map[*Project]membership
}

// NewCatalog makes a catalog of projects, which it owns from then on. They need not be
// sorted, but must be valid, and their names different.
func NewCatalog(config Config, projects []*Project) *Catalog {
	projects = slices.Clone(projects)
	slices.SortFunc(projects, func(a, b *Project) int { return strings.Compare(a.Name, b.Name) })
	c := &Catalog{config: config, projects: projects, byName: make(map[string]*Project, len(projects))}
	for _, p := range projects {
		if p.own == nil {
			p.prepare(&c.config)
		}
		c.byName[p.Name] = p
	}
	c.makeViews()
	return c
}

// Config returns the configuration of the index.
func (c *Catalog) Config() Config { return c.config }

// Projects iterates over all projects by name. They must not be modified.
func (c *Catalog) Projects() iter.Seq[*Project] { return slices.Values(c.projects) }

// Len returns the number of projects and of files.
func (c *Catalog) Len() (projects, files int) {
	for _, p := range c.projects {
		files += len(p.Files)
	}
	return len(c.projects), files
}

// Project returns the project with this normalized name, or nil.
func (c *Catalog) Project(name string) *Project { return c.byName[name] }

// Views returns the views of the index: the default, all, then by toolkit and torch.
func (c *Catalog) Views() []*View { return slices.Clone(c.views) }

// View returns the view at a path such as "", "all", "cu128" or "cu128/torch2.9", or at one
// of its aliases. It is nil if there is none.
func (c *Catalog) View(path string) *View { return c.byPath[path] }
