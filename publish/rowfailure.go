package publish

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/matrix"
)

// failureFormat is the form of what is kept of failed rows.
const failureFormat = "kiln-failure/1"

// rowFailure is what is kept of a row that failed where it was built, for those who publish elsewhere: dist/failures/ROW.json.
type rowFailure struct {
	Format string `json:"format"`
	Row    string `json:"row"`
	// Digest is that of the row: what became of another configuration says nothing.
	Digest string `json:"digest"`
	// Reason is one line.
	Reason string `json:"reason"`
}

func failurePath(dist, row string) string { return filepath.Join(dist, "failures", row+".json") }

// WriteFailure keeps why a row failed; only the first line of the reason.
func WriteFailure(dist string, row *matrix.Row, reason string) error {
	reason, _, _ = strings.Cut(strings.TrimSpace(reason), "\n")
	text, err := json.Marshal(rowFailure{Format: failureFormat, Row: row.ID, Digest: row.Digest, Reason: reason})
	if err != nil {
		return err
	}
	path := failurePath(dist, row.ID)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return fsx.WriteFile(path, append(text, '\n'), 0o666)
}

// readFailure returns what was kept of a row, nil if nothing was.
func readFailure(dist string, row *matrix.Row) (*rowFailure, error) {
	path := failurePath(dist, row.ID)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing is known
	}
	if err != nil {
		return nil, err
	}
	f, err := parseFailure(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("why it failed cannot be read: %w", err)
	case f.Row != row.ID || f.Digest != row.Digest:
		return nil, nil //nolint:nilnil // it is about another configuration
	}
	return f, nil
}

func parseFailure(text []byte) (*rowFailure, error) {
	f := new(rowFailure)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, err
	}
	if f.Format != failureFormat {
		return nil, fmt.Errorf("format %q, want %q", f.Format, failureFormat)
	}
	return f, nil
}
