package index

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/wheel"
)

// identity is what a file is to an installer, however its name is spelled: 1.0 and 1.0.0, py3 and
// PY3.py3, manylinux2014 and manylinux_2_17 are the same. Files of one project are one and the same
// build if their identities are equal, and installers choose between them by chance if only their
// places overlap.
type identity struct {
	version string // without the label
	local   string // label of the version
	build   string // number of the build
	// places are the tags of a wheel, sorted, each with the label of a variant; an sdist has one
	// place.
	places []string
}

// sdistPlace is the one place of sdists: a version has one sdist.
const sdistPlace = "sdist"

// newIdentity reads the name of a file, which is valid.
func newIdentity(filename string) identity {
	if !strings.HasSuffix(filename, ".whl") {
		_, version, _ := ParseName(filename)
		return identity{version: publicKey(version), local: version.Local(), places: []string{sdistPlace}}
	}
	name, _ := wheel.ParseFilenameOptions(filename, wheel.FilenameOptions{Variants: true})
	id := identity{version: publicKey(name.Version), local: name.Version.Local(), build: buildKey(name.Build)}
	id.places = make([]string, 0, len(name.Python)*len(name.ABI)*len(name.Platform))
	for _, platform := range name.Platform {
		platform = wheel.PlatformAliases(platform)[0]
		for _, python := range name.Python {
			for _, abi := range name.ABI {
				place := python + "-" + abi + "-" + platform
				if name.Label != "" {
					place += "-" + name.Label
				}
				id.places = append(id.places, place)
			}
		}
	}
	if len(id.places) > 1 {
		slices.Sort(id.places)
		id.places = slices.Compact(id.places)
	}
	return id
}

// Places returns what a file is to an installer: its version and each tag it can be chosen for, in
// a spelling of their own. An index does not list two files of a project that share a place, apart
// from the cases that its manual names. The name is valid.
func Places(filename string) []string {
	id := newIdentity(filename)
	out := make([]string, len(id.places))
	for i, place := range id.places {
		out[i] = id.version + "+" + id.local + " " + place
	}
	return out
}

// publicKey is the version without its label, equal for equal versions: 1.0 and 1.0.0.
func publicKey(v wheel.Version) string {
	base := v.Base()
	rest, _, _ := strings.Cut(strings.TrimPrefix(v.String(), base), "+")
	for strings.HasSuffix(base, ".0") {
		base = strings.TrimSuffix(base, ".0")
	}
	return base + rest
}

// buildKey is a build number without the zeros in front, which installers do not see.
func buildKey(b wheel.BuildTag) string {
	if b.IsZero() {
		return ""
	}
	number := strings.TrimLeft(b.Number, "0")
	if number == "" {
		number = "0"
	}
	return number + strings.ToLower(b.Suffix)
}

func (id *identity) equal(o *identity) bool {
	return id.version == o.version && id.local == o.local && id.build == o.build && slices.Equal(id.places, o.places)
}

// taken returns why a file cannot be published beside one that was: "published is published" holds
// for what installers see and not only for a spelling. A yanked file leaves its places, so that an
// operator can replace it by a build with a number, but not its identity. Nor do builds for
// different toolkits or torch versions meet, if the operator said so of both: no view shows both.
func (m *merge) taken(f *File, id *identity) error {
	for _, place := range id.places {
		for _, i := range m.byPlace[id.version+" "+place] {
			other := &m.project.Files[i]
			have := newIdentity(other.Filename)
			switch {
			case have.local != id.local:
			case have.equal(id):
				return fmt.Errorf("this build was published as %s: only the spelling of the name differs, and a published file never changes", other.Filename)
			case other.Yanked || otherTarget(f, other):
			case place == sdistPlace:
				return fmt.Errorf("this version has a source distribution, %s; give this one another version", other.Filename)
			default:
				return fmt.Errorf("%s was published for %s, and an installer would take one of the two; give this one another version, or yank the other first", other.Filename, place)
			}
		}
	}
	for _, name := range m.gone {
		if have := newIdentity(name); have.equal(id) {
			return fmt.Errorf("this build was published as %s and removed: only the spelling of the name differs, and a name is used once", name)
		}
	}
	return nil
}

// otherTarget reports whether two files were declared to be built for different combinations.
func otherTarget(a, b *File) bool {
	return !a.Coordinates.IsZero() && !b.Coordinates.IsZero() && a.Coordinates.String() != b.Coordinates.String()
}

// rival returns a file that one of the views of one toolkit and torch cannot show together with f,
// and that view: installers would choose between the two by the text of their labels.
func (m *merge) rival(f *File, id *identity) (view string, other *File) {
	if !f.IsWheel() || f.Yanked || f.Variant != nil {
		return "", nil
	}
	built := f.Built()
	if built.Toolkit == "" {
		return "", nil
	}
	for _, place := range id.places {
		for _, i := range m.byPlace[id.version+" "+place] {
			other := &m.project.Files[i]
			if other.Yanked || other.Variant != nil {
				continue
			}
			b := other.Built()
			for _, torch := range built.Torch {
				if b.Toolkit == built.Toolkit && slices.Contains(b.Torch, torch) {
					return combination{b.Toolkit, torch}.path(), other
				}
			}
		}
	}
	return "", nil
}
