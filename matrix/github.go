package matrix

import (
	"encoding/json"
)

// GitHubMaxJobs is how many jobs GitHub Actions makes from one matrix.
const GitHubMaxJobs = 256

// gitHubMatrix is a value for strategy.matrix. The jobs are in Include, as every row
// is its own combination.
type gitHubMatrix struct {
	Include []gitHubJob `json:"include"`
}

// gitHubJob is what one job needs to know. `kiln build ROW` finds out the rest.
type gitHubJob struct {
	Row    string `json:"row"`
	Name   string `json:"name"`
	OS     string `json:"os"`
	Kind   string `json:"kind"`
	Python string `json:"python"`
	CUDA   string `json:"cuda"`
	ROCm   string `json:"rocm"`
	Torch  string `json:"torch"`
	Arch   string `json:"arch"`
	Image  string `json:"image,omitempty"`
}

// GitHubMatrix returns the plan as JSON for a dynamic matrix of GitHub Actions.
//
// Up to 256 rows it is one matrix, {"include": […]}, for strategy.matrix of the build
// job. A larger plan is split, never cut: {"parts": [{"include": […]}, …]} is itself a
// matrix whose jobs call a reusable workflow, which takes matrix.parts as its own
// matrix. parts says how many matrices there are.
func (p *Plan) GitHubMatrix() (text []byte, parts int, err error) {
	matrices := []gitHubMatrix{{Include: []gitHubJob{}}}
	for i := range p.Rows {
		r := &p.Rows[i]
		last := &matrices[len(matrices)-1]
		if len(last.Include) == GitHubMaxJobs {
			matrices = append(matrices, gitHubMatrix{})
			last = &matrices[len(matrices)-1]
		}
		settings, _ := p.Settings(r.ID)
		last.Include = append(last.Include, gitHubJob{
			Row: r.ID, Name: r.ID, OS: r.OS, Kind: r.Kind, Python: r.Python, CUDA: r.CUDA, ROCm: r.ROCm, Torch: r.Torch,
			Arch: r.Arch, Image: settings.Image,
		})
	}
	var value any = matrices[0]
	if len(matrices) > 1 {
		value = map[string][]gitHubMatrix{"parts": matrices}
	}
	text, err = json.Marshal(value)
	return text, len(matrices), err
}
