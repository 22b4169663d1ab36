package build

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/internal/fsx"
)

// intact returns an error if a file in dist/ is not what was recorded.
func (b *Builder) intact(files []record.File) error {
	if len(files) == 0 {
		return errors.New("no files are recorded")
	}
	for _, f := range files {
		sum, size, err := fsx.SHA256(filepath.Join(b.DistDir, f.Name))
		if err != nil {
			return err
		}
		if sum != f.SHA256 || size != f.Size {
			return fmt.Errorf("%s is not the file that was built", f.Name)
		}
	}
	return nil
}

// made reports whether a record in dist/ has a file of these bytes. A record that cannot be read
// proves nothing.
func (b *Builder) made(name, sum string) bool {
	for r, err := range record.All(b.DistDir) {
		if err == nil && slices.ContainsFunc(r.Files, func(f record.File) bool { return f.Name == name && f.SHA256 == sum }) {
			return true
		}
	}
	return false
}
