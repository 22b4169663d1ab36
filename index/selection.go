package index

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/wheel"
)

// Selection names files of one project, for [Store.Remove] and [Store.Yank].
type Selection struct {
	Project string
	Match   func(*File) bool
	Whole   bool // neither a version nor a file was named
}

// ParseSelection reads a file name or a requirement such as "flash-attn==2.8.3". glob, if not "",
// is a pattern that the names of the files must match too.
func ParseSelection(arg, glob string) (s Selection, err error) {
	if glob != "" {
		if _, err := path.Match(glob, ""); err != nil {
			return s, fmt.Errorf("pattern %q: %w", glob, err)
		}
	}
	fits := func(f *File) bool {
		ok, _ := path.Match(glob, f.Filename) // the pattern was checked
		return glob == "" || ok
	}
	if strings.HasSuffix(arg, ".whl") || strings.HasSuffix(arg, ".tar.gz") || strings.HasSuffix(arg, ".zip") {
		name := filepath.Base(arg)
		if s.Project, _, err = ParseName(name); err != nil {
			return s, fmt.Errorf("%s is not the name of a wheel or an sdist", name)
		}
		s.Match = func(f *File) bool { return f.Filename == name && fits(f) }
		return s, nil
	}
	req, err := wheel.ParseRequirement(arg)
	switch {
	case err != nil:
		return s, err
	case req.URL != "" || req.Marker != "" || len(req.Extras) > 0:
		return s, fmt.Errorf("%q: use PROJECT, PROJECT==VERSION or a file name", arg)
	}
	s.Project, s.Whole = req.Name, req.Specifier.IsEmpty() && glob == ""
	s.Match = func(f *File) bool { return req.Specifier.Contains(f.Version()) && fits(f) }
	return s, nil
}
