package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/machine"
	"github.com/kiln-build/kiln/matrix"
)

const failureFormat = "kiln-failure/1"

// Failure is why a row has no record. A build on another machine leaves it in the folder of its
// attempt, with all that is known; a job that does not publish leaves the reason in the dist folder
// for the job that does.
type Failure struct {
	Format string `json:"format"` // set by [Failure.Write]
	Row    string `json:"row"`
	// Digest is that of the row: what became of another configuration says nothing.
	Digest string `json:"digest"`
	// Reason is the text of the error.
	Reason string `json:"reason"`

	Stage     string             `json:"stage,omitempty"`
	Diagnosis *machine.Diagnosis `json:"diagnosis,omitempty"`
	Error     string             `json:"error,omitempty"` // what the stage returned, before its diagnosis
	Log       string             `json:"log,omitempty"`
}

// FailurePath is where the failure of a row is in a dist folder.
func FailurePath(dist, row string) string { return filepath.Join(dist, "failures", row+".json") }

// Write writes the failure to a file.
func (f Failure) Write(path string) error {
	f.Format = failureFormat
	return write(path, f)
}

// ShortReason returns the first line of the reason of a row, without the row's name.
func ShortReason(row, reason string) string {
	reason, _, _ = strings.Cut(strings.TrimSpace(reason), "\n")
	return strings.TrimPrefix(reason, row+": ")
}

// ReadFailure returns why the build of a row failed, nil if that is not known for its
// configuration.
func ReadFailure(path string, row *matrix.Row) (*Failure, error) {
	text, err := fsx.ReadFile(path, maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing is known
	}
	if err != nil {
		return nil, err
	}
	f, err := ParseFailure(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", path, err)
	case f.Row != row.ID || f.Digest != row.Digest:
		return nil, nil //nolint:nilnil // it is about another configuration
	}
	return f, nil
}

// ParseFailure reads the text of a failure.
func ParseFailure(text []byte) (*Failure, error) {
	f := new(Failure)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, err
	}
	if f.Format != failureFormat {
		return nil, fmt.Errorf("format %q, want %q", f.Format, failureFormat)
	}
	return f, nil
}
