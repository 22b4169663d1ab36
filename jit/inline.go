package jit

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
)

// inFolder is the spec with its texts as files of a folder that is named after their content. Other
// paths stay what they are.
func (s *Spec) inFolder(parent string) *Spec {
	c := *s
	names := slices.Sorted(maps.Keys(s.Inline))
	var parts []string
	for _, name := range names {
		parts = append(parts, name, s.Inline[name])
	}
	absolute := func(list []string) []string {
		var out []string
		for _, p := range list {
			out = append(out, s.path(p))
		}
		return out
	}
	c.Include, c.LibraryDirs = absolute(s.Include), absolute(s.LibraryDirs)
	c.Prebuilt.Folders, c.Prebuilt.Wheels = absolute(s.Prebuilt.Folders), absolute(s.Prebuilt.Wheels)
	c.Root, c.Sources = filepath.Join(parent, question(parts...)[:keyLength]), names
	return &c
}

// writeInline makes the files. A later cleanup of the store sees that they are used.
func (l *loader) writeInline() error {
	if len(l.spec.Inline) == 0 {
		return nil
	}
	if err := os.MkdirAll(l.spec.Root, 0o777); err != nil {
		return err
	}
	now := time.Now()
	_ = os.Chtimes(l.spec.Root, now, now)
	for name, text := range l.spec.Inline {
		path := filepath.Join(l.spec.Root, name)
		if old, err := os.ReadFile(path); err == nil && string(old) == text {
			continue
		}
		if err := fsx.WriteFile(path, []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// isModule reports whether Python imports what is made.
func (s *Spec) isModule() bool { return s.Kind == "" || s.Kind == KindModule }
