package index

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/wheel"
)

// Pin returns the wheels of one version of a project in the view, for every Python and platform.
// version is a version with or without its label, or "" for the newest, where final releases count
// more than others. Yanked wheels are taken only if version names the label. The error wraps
// [ErrNotFound] if there are none.
//
// A view with several builds of a version gives an error unless version names the label: which of
// them is the right one, it cannot know.
func (v *View) Pin(project, version string) ([]*File, error) {
	files, ok := v.Files(project)
	if !ok {
		return nil, fmt.Errorf("project %q: %w", project, ErrNotFound)
	}
	var want wheel.Version
	if version != "" {
		var err error
		if want, err = wheel.ParseVersion(version); err != nil {
			return nil, err
		}
	}
	versions := map[*File]wheel.Version{}
	for _, f := range files {
		have := f.Version()
		switch {
		case !f.IsWheel() || f.Variant != nil:
		case version != "" && want.Local() != "":
			if have.Equal(want) {
				versions[f] = have
			}
		case f.Yanked || version != "" && have.Public() != want.Public():
		default:
			versions[f] = have
		}
	}
	files = slices.DeleteFunc(files, func(f *File) bool { _, ok := versions[f]; return !ok })
	if len(files) == 0 {
		return nil, fmt.Errorf("project %s has no wheel of version %q here: %w", project, version, ErrNotFound)
	}
	newest := slices.MaxFunc(files, func(a, b *File) int {
		x, y := versions[a], versions[b]
		if x.IsPrerelease() != y.IsPrerelease() {
			if x.IsPrerelease() {
				return -1
			}
			return 1
		}
		return x.Compare(y)
	})
	var out []*File
	var labels []string
	for _, f := range files {
		if versions[f].Public() != versions[newest].Public() {
			continue
		}
		out = append(out, f)
		if text := versions[f].String(); !slices.Contains(labels, text) {
			labels = append(labels, text)
		}
	}
	if len(labels) > 1 {
		return nil, fmt.Errorf("project %s has several builds of this version here: %s; name one, or use the view of one toolkit and torch", project, strings.Join(labels, ", "))
	}
	return out, nil
}

// URL returns the URL of the view's repository in an index whose root is at that URL, which ends in
// "/".
func (v *View) URL(root string) string { return root + pageFolder(v.Path, "") + "/" }

// AppendPylock appends a lock file (PEP 751) that has one package: the given wheels, which are of
// one version. root is the URL of the root of the index, ending in "/".
func (v *View) AppendPylock(dst []byte, root, project string, files []*File) ([]byte, error) {
	base, err := url.Parse(root)
	if err != nil || base.Host == "" {
		return nil, fmt.Errorf("%q is not the URL of an index", root)
	}
	line := func(key, value string) {
		if value != "" {
			dst = append(appendJSONString(append(append(dst, key...), " = "...), value), '\n')
		}
	}
	line("lock-version", "1.0")
	line("created-by", "kiln")
	dst = append(dst, "\n[[packages]]\n"...)
	line("name", project)
	line("version", files[0].Version().String())
	python := files[0].RequiresPython
	if !slices.ContainsFunc(files, func(f *File) bool { return f.RequiresPython != python }) {
		line("requires-python", python)
	}
	line("index", v.URL(root))
	for _, f := range files {
		at, err := base.Parse(f.URL(root))
		if err != nil {
			return nil, err
		}
		dst = append(dst, "\n[[packages.wheels]]\n"...)
		line("name", f.Filename)
		if !f.UploadTime.IsZero() {
			dst = append(appendTime(append(dst, "upload-time = "...), f.UploadTime), '\n')
		}
		line("url", at.String())
		dst = fmt.Appendf(dst, "size = %d\nhashes = { sha256 = \"%s\" }\n", f.Size, f.SHA256)
	}
	return dst, nil
}
