package record

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/matrix"
)

// Standing is what a dist folder has of a row.
type Standing string

// What a dist folder may have of a row.
const (
	StandingNone  Standing = ""
	StandingBuilt Standing = "built"
	// StandingStale is a row whose files were built from another configuration, or are not there
	// any more.
	StandingStale Standing = "stale"
)

// Stands compares the record of a row with the row as it is planned now. It looks for the files,
// not into them.
func Stands(dist string, row *matrix.Row) Standing {
	text, err := fsx.ReadFile(Path(dist, row.ID), maxBytes)
	if err != nil {
		return StandingNone
	}
	var r struct {
		Recipe struct{ Row matrix.Row }
		Files  []File
	}
	if json.Unmarshal(text, &r) != nil || r.Recipe.Row.Digest != row.Digest {
		return StandingStale
	}
	for _, f := range r.Files {
		if info, err := os.Stat(filepath.Join(dist, f.Name)); err != nil || info.Size() != f.Size {
			return StandingStale
		}
	}
	return StandingBuilt
}
