package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/wheel"
)

// What a plan does with a file.
const (
	DoUpload  = "upload"
	DoPresent = "present" // the same bytes are there
	DoCheck   = "check"   // it is there, and the target cannot tell its hash: read it
	DoReplace = "replace" // other bytes are there, and may be replaced
	DoRefuse  = "refuse"  // other bytes are there, also in another spelling, or it is too large
)

// unknownSum stands for the hash of a file of which the target does not know it.
const unknownSum = "unknown"

// Action is what a plan does with one file.
type Action struct {
	Do   string    `json:"do"`
	Tag  string    `json:"tag"`
	File LocalFile `json:"file"`
	Why  string    `json:"why,omitempty"`
	// Old is the hash of what is replaced or refused.
	Old string `json:"old,omitempty"`
	// Unit is the distribution that the file belongs to; it equals File.Name for the
	// distribution itself.
	Unit string `json:"unit"`

	// leftover says that what is replaced was never published.
	leftover bool
}

// PlannedRelease is a release that a plan touches or looks at.
type PlannedRelease struct {
	Tag   string `json:"tag"`
	Title string `json:"title"`
	New   bool   `json:"new"`

	pkg, version string
}

// Plan is what a publication does: a value that can be printed and compared.
type Plan struct {
	Target   string           `json:"target"`
	Releases []PlannedRelease `json:"releases"`
	Actions  []Action         `json:"actions"`
	Rows     []RowState       `json:"rows"`
	// Strangers are files that belong to no row.
	Strangers []string `json:"strangers,omitempty"`

	existing []Release
}

// Count returns how many actions are of these kinds.
func (p *Plan) Count(kinds ...string) int {
	n := 0
	for i := range p.Actions {
		if slices.Contains(kinds, p.Actions[i].Do) {
			n++
		}
	}
	return n
}

// Bytes returns how many bytes are to be uploaded.
func (p *Plan) Bytes() int64 {
	var n int64
	for i := range p.Actions {
		if do := p.Actions[i].Do; do == DoUpload || do == DoReplace {
			n += p.Actions[i].File.Size
		}
	}
	return n
}

// Missing returns the rows of which nothing is published.
func (p *Plan) Missing() []RowState {
	return slices.DeleteFunc(slices.Clone(p.Rows), func(r RowState) bool { return r.State == RowReady || r.State == RowSkipped })
}

// PlanOptions are options of [NewPlan].
type PlanOptions struct {
	// Tag and Title are templates. Default "v{version}" and "{package} {version}".
	Tag, Title string
	// Overwrite replaces files that are published with other bytes.
	Overwrite bool
	// Now is the time for dates in tags.
	Now time.Time

	// unsigned are published statements that the inventory has with a signature, and that say the
	// same of the same files.
	unsigned map[string]bool
}

func (o *PlanOptions) tag() string   { return cmp.Or(o.Tag, "v{version}") }
func (o *PlanOptions) title() string { return cmp.Or(o.Title, "{package} {version}") }

// Families returns a function that says which releases a plan for the inventory has to see.
func Families(inv *Inventory, limits Limits, opts PlanOptions) (func(tag string) bool, error) {
	if limits.Flat {
		return func(string) bool { return true }, nil
	}
	families, err := inv.families(&opts)
	if err != nil {
		return nil, err
	}
	return func(tag string) bool {
		for _, f := range families {
			if f.match(tag) {
				return true
			}
		}
		return false
	}, nil
}

type familyKey struct{ pkg, version string }

func (inv *Inventory) families(opts *PlanOptions) (map[familyKey]*family, error) {
	out := map[familyKey]*family{}
	for i := range inv.Units {
		r := &inv.Units[i].Row
		key := familyKey{r.Package, r.Version}
		if out[key] == nil {
			f, err := newFamily(opts.tag(), r.Package, r.Version)
			if err != nil {
				return nil, err
			}
			out[key] = f
		}
	}
	return out, nil
}

// NewPlan compares what there is to publish with what the target has. It is a pure function: equal
// inputs give equal plans.
func NewPlan(target string, limits Limits, inv *Inventory, existing []Release, opts PlanOptions) (*Plan, error) {
	p := &Plan{Target: target, Rows: inv.Rows, Strangers: inv.Strangers, existing: existing}
	families, err := inv.families(&opts)
	if err != nil {
		return nil, err
	}
	keys := slices.SortedFunc(maps.Keys(families), func(a, b familyKey) int {
		return cmp.Or(strings.Compare(a.pkg, b.pkg), strings.Compare(a.version, b.version))
	})
	// How many files each release has, with those of this plan.
	count := map[string]int{}
	for i := range existing {
		count[existing[i].Tag] = len(existing[i].Files)
	}
	used := map[string]*PlannedRelease{}
	for _, key := range keys {
		d := &differ{plan: p, limits: limits, opts: &opts, family: families[key], count: count, used: used}
		for i := range existing {
			if limits.Flat || d.family.match(existing[i].Tag) {
				d.releases = append(d.releases, existing[i])
			}
		}
		for i := range inv.Units {
			if u := &inv.Units[i]; u.Row.Package == key.pkg && u.Row.Version == key.version {
				if err := d.unit(u); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(used)) {
		p.Releases = append(p.Releases, *used[tag])
	}
	return p, nil
}

// differ plans the files of one package and version.
type differ struct {
	plan     *Plan
	limits   Limits
	opts     *PlanOptions
	family   *family
	releases []Release
	count    map[string]int
	used     map[string]*PlannedRelease
	fresh    string            // tag for new files, once chosen
	places   map[string]string // names of published files, by project and place in an index
}

// rival returns a published file that an index does not list together with one of another name.
func (d *differ) rival(name string) string {
	if d.places == nil {
		d.places = map[string]string{}
		for i := range d.releases {
			for _, f := range d.releases[i].Files {
				if project, _, err := index.ParseName(f.Name); err == nil {
					for _, place := range index.Places(f.Name) {
						d.places[project+" "+place] = f.Name
					}
				}
			}
		}
	}
	project, _, err := index.ParseName(name)
	if err != nil {
		return ""
	}
	for _, place := range index.Places(name) {
		if have := d.places[project+" "+place]; have != "" && have != name {
			return have
		}
	}
	return ""
}

// find returns where a file is published.
func (d *differ) find(name string) (tag string, file *RemoteFile) {
	for i := range d.releases {
		if f := d.releases[i].File(name); f != nil {
			return d.releases[i].Tag, f
		}
	}
	return "", nil
}

func (d *differ) add(a Action) {
	if d.used[a.Tag] == nil {
		isNew := !slices.ContainsFunc(d.releases, func(r Release) bool { return r.Tag == a.Tag })
		title := d.family.fill(d.opts.title(), d.opts.Now, 1)
		if n := d.family.group(a.Tag, "part"); n != "" {
			title += ", part " + n
		}
		d.used[a.Tag] = &PlannedRelease{Tag: a.Tag, Title: title, New: isNew, pkg: d.family.pkg, version: d.family.version}
	}
	d.plan.Actions = append(d.plan.Actions, a)
}

// unit plans a distribution with what goes with it.
func (d *differ) unit(u *Unit) error {
	side := u.Side
	switch {
	case d.limits.WheelsOnly:
		side = nil
	case d.limits.PapersAfter:
		side = slices.DeleteFunc(slices.Clone(side), func(f LocalFile) bool { return strings.HasSuffix(f.Name, index.MetadataSuffix) })
	}
	if limit := d.limits.FileBytes; limit > 0 && u.File.Size > limit {
		d.add(Action{Do: DoRefuse, Tag: d.family.render(d.opts.Now, 1), File: u.File, Unit: u.File.Name, Why: fmt.Sprintf("it has %d bytes, and the target takes files of up to %d", u.File.Size, limit)})
		return nil
	}
	if why := private(u.File.Name); d.limits.PublicNames && why != "" {
		d.add(Action{Do: DoRefuse, Tag: d.family.render(d.opts.Now, 1), File: u.File, Unit: u.File.Name, Why: why})
		return nil
	}
	tag, have := d.find(u.File.Name)
	main := Action{Tag: tag, File: u.File, Unit: u.File.Name}
	rival := ""
	if have == nil {
		rival = d.rival(u.File.Name)
	}
	switch {
	case rival != "":
		main.Do, main.Tag = DoRefuse, d.family.render(d.opts.Now, 1)
		main.Why = "it would compete with " + rival + ", which is published for the same version and tag; give the build another version"
	case have == nil:
		main.Do = DoUpload
		if err := d.place(&main, 1+len(side)); err != nil {
			return err
		}
	case sameSize(have.Size, u.File.Size) && have.SHA256 == u.File.SHA256:
		main.Do = DoPresent
	case sameSize(have.Size, u.File.Size) && have.SHA256 == "":
		main.Do = DoCheck
	case d.opts.Overwrite && !d.limits.NoOverwrite:
		main.Do, main.Old = DoReplace, cmp.Or(have.SHA256, unknownSum)
	default:
		main.Do, main.Old = DoRefuse, cmp.Or(have.SHA256, unknownSum)
		main.Why = "it is published with other bytes; give the build another version, or say --overwrite"
		if d.limits.NoOverwrite {
			main.Why = "it is published with other bytes, and this target never replaces a file"
		}
	}
	// What goes with a file comes first, where it can: who sees the file finds it complete.
	if d.limits.PapersAfter {
		d.add(main)
	} else {
		defer func() { d.add(main) }()
	}
	other := d.papersOfAnother(main.Tag, side)
	for _, f := range side {
		a := Action{Do: DoUpload, Tag: main.Tag, File: f, Unit: u.File.Name}
		if main.Do == DoRefuse {
			break
		}
		if tag, have := d.find(f.Name); have != nil && tag == main.Tag {
			switch {
			case sameSize(have.Size, f.Size) && have.SHA256 == f.SHA256:
				a.Do = DoPresent
			case main.Do == DoReplace:
				a.Do, a.Old = DoReplace, cmp.Or(have.SHA256, unknownSum)
			case main.Do == DoUpload:
				// Left over from a run that was killed before it came to the file itself.
				a.Do, a.leftover = DoReplace, true
			case d.opts.unsigned[f.Name]:
				a.Do, a.Old, a.Why = DoReplace, cmp.Or(have.SHA256, unknownSum), "adds a signature"
			default:
				// The same file was built or tested again: its first papers stay.
				a.Do, a.Why = DoPresent, "the first one stays"
			}
		} else if main.Do != DoUpload {
			if other != "" && main.Do != DoReplace && !strings.HasSuffix(f.Name, index.MetadataSuffix) {
				a.Do, a.Why = DoRefuse, "it is missing there, and "+other+" is of another build, with which this one does not go; put the first one back"
			} else {
				d.count[main.Tag]++
			}
		}
		d.add(a)
	}
	return nil
}

// sameSize compares the size that a target says with that of a file. No published file is empty: zero
// means that the target does not say.
func sameSize(remote, local int64) bool { return remote == local || remote == 0 }

// private says why a public index does not take a file of that name; "" if it does.
func private(name string) string {
	w, err := wheel.ParseFilename(name)
	if err != nil {
		return ""
	}
	if w.Version.Local() != "" {
		return "PyPI takes no local versions such as +" + w.Version.Local() + "; set local_version: \"\" in packages.yml, and publish one variant of each version there"
	}
	for _, tag := range w.Platform {
		if strings.HasPrefix(tag, "linux_") {
			return "PyPI takes no wheels tagged " + tag + "; set repair: auto in packages.yml, which makes a manylinux wheel of it"
		}
	}
	return ""
}

// papersOfAnother returns the name of a paper that is published with other bytes than ours. A
// statement and the papers that it names by their hashes go together, so none of them is added to
// those of another build. The metadata follow from the wheel alone.
func (d *differ) papersOfAnother(tag string, side []LocalFile) string {
	for _, f := range side {
		if at, have := d.find(f.Name); have != nil && at == tag && have.SHA256 != f.SHA256 && !strings.HasSuffix(f.Name, index.MetadataSuffix) {
			return f.Name
		}
	}
	return ""
}

// place chooses the release for n new files.
func (d *differ) place(a *Action, n int) error {
	if d.limits.Flat {
		return nil
	}
	// A leftover of an earlier run says where the rest belongs.
	for i := range d.releases {
		r, left := &d.releases[i], 0
		for _, f := range r.Files {
			if strings.HasPrefix(f.Name, a.File.Name+".") {
				left++
			}
		}
		if left > 0 {
			d.count[r.Tag] += n - left
			a.Tag = r.Tag
			return nil
		}
	}
	if d.fresh == "" {
		tag, err := d.family.next(d.releases, d.opts.Now)
		if err != nil {
			return err
		}
		d.fresh = tag
	}
	for i := 1; ; i++ {
		tag := part(d.fresh, i)
		if limit := d.limits.ReleaseFiles; limit == 0 || d.count[tag]+n <= limit {
			d.count[tag] += n
			a.Tag = tag
			return nil
		}
	}
}
