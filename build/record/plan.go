package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/matrix"
)

const planFormat = "kiln-planned/1"

// Plan is what the last build of a state folder was asked for: packages.yml may be another by now.
type Plan struct {
	Format string `json:"format"` // set by [WritePlan]
	// File is the packages.yml, and Dist the folder of the files; empty if they are not known.
	File    string        `json:"file,omitempty"`
	Dist    string        `json:"dist,omitempty"`
	Rows    []matrix.Row  `json:"rows"`
	Skipped []matrix.Skip `json:"skipped"`
}

func planPath(state string) string { return filepath.Join(state, "plan.json") }

// WritePlan keeps the plan of a build in its state folder.
func WritePlan(state string, p *Plan) error {
	c := *p
	c.Format = planFormat
	return write(planPath(state), c)
}

// ReadPlan reads what [WritePlan] wrote. A folder without a plan has an empty one.
func ReadPlan(state string) (*Plan, error) {
	text, err := fsx.ReadFile(planPath(state), maxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return &Plan{}, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := ParsePlan(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", planPath(state), err)
	}
	return p, nil
}

// ParsePlan reads the text of a plan.
func ParsePlan(text []byte) (*Plan, error) {
	p := new(Plan)
	if err := json.Unmarshal(text, p); err != nil {
		return nil, err
	}
	if p.Format != planFormat {
		return nil, fmt.Errorf("format %q, want %q", p.Format, planFormat)
	}
	return p, nil
}
