package matrix

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/compat"
)

// GitHubMaxJobs is how many jobs GitHub Actions makes from one matrix.
const GitHubMaxJobs = 256

// gitHubMatrix is a value for strategy.matrix. The jobs are in Include, as every row
// is its own combination.
type gitHubMatrix struct {
	Include []GitHubJob `json:"include"`
}

// GitHubJob is what one job needs to know. `kiln build ROW` finds out the rest.
type GitHubJob struct {
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
	// RunsOn are the labels of the runner, as JSON: the matrix of a workflow has texts only, and
	// fromJSON makes a list of it.
	RunsOn string `json:"runs_on"`
	// Sandbox is for `kiln build --runner`.
	Sandbox string `json:"sandbox"`
	// Group is the same for rows whose compiles can be shared: it names their compile cache.
	Group string `json:"group"`
	// After is the row whose wheel may serve this one: its job comes first and hands its files over.
	After string `json:"after,omitempty"`

	platform string
	stands   bool // the runner stands in for another system
	files    []string
	pkg      string
}

// hostedRunners are the labels of runners that GitHub hosts (November 2026).
var hostedRunners = []string{
	"ubuntu-22.04", "ubuntu-24.04", "ubuntu-22.04-arm", "ubuntu-24.04-arm", "windows-2022", "windows-2025", "windows-11-arm",
	"macos-14", "macos-15", "macos-15-intel", "macos-26",
}

// runsOn returns the labels of a runner for a row: those of the configuration, the name of the
// system if GitHub has such runners, else the newest of the same kind, on which the row's container
// runs.
func runsOn(r *Row, runners map[string][]string) []string {
	if labels := runners[r.OS]; len(labels) > 0 {
		return labels
	}
	if slices.Contains(hostedRunners, r.OS) {
		return []string{r.OS}
	}
	arm := strings.HasSuffix(r.Platform, "aarch64") || strings.HasSuffix(r.Platform, "arm64")
	switch {
	case strings.HasPrefix(r.Platform, "win") && arm:
		return []string{"windows-11-arm"}
	case strings.HasPrefix(r.Platform, "win"):
		return []string{"windows-2022"}
	case strings.HasPrefix(r.Platform, "macosx") && arm:
		return []string{"macos-15"}
	case strings.HasPrefix(r.Platform, "macosx"):
		return []string{"macos-15-intel"}
	case arm:
		return []string{"ubuntu-24.04-arm"}
	}
	return []string{"ubuntu-24.04"}
}

// IsWindows reports whether the job needs a Windows runner.
func (j *GitHubJob) IsWindows() bool { return strings.HasPrefix(j.platform, "win") }

// Platform returns the wheel platform tag of the row.
func (j *GitHubJob) Platform() string { return j.platform }

// Package returns the package of the row.
func (j *GitHubJob) Package() string { return j.pkg }

// Files returns the names of the files of the row.
func (j *GitHubJob) Files() []string { return j.files }

// StandsIn reports whether the runner has another operating system than the row names, because no
// hosted runner has that one.
func (j *GitHubJob) StandsIn() bool { return j.stands }

// HostedJobs returns a job for every row that the hosted workflow builds (workflow.rows), in the
// order of the plan.
func (p *Plan) HostedJobs() []GitHubJob {
	s := p.workflow.Rows
	return p.jobs(func(r *Row) bool { return s == nil || s.Match(r) })
}

// GitHubJobs returns a job for every row, in the order of the plan.
func (p *Plan) GitHubJobs() []GitHubJob { return p.jobs(func(*Row) bool { return true }) }

func (p *Plan) jobs(wanted func(*Row) bool) []GitHubJob {
	jobs := make([]GitHubJob, 0, len(p.Rows))
	for i := range p.Rows {
		r := &p.Rows[i]
		if !wanted(r) {
			continue
		}
		settings, _ := p.Settings(r.ID)
		runner := runsOn(r, p.workflow.Runners)
		labels, _ := json.Marshal(runner) // texts, cannot fail
		sandbox := p.workflow.Sandbox
		if sandbox == "" {
			sandbox = "host"
			if strings.HasPrefix(r.Platform, "linux") && (settings.Image != "" || r.CUDA != "" || r.ROCm != "") {
				sandbox = "docker"
			}
		}
		jobs = append(jobs, GitHubJob{
			Row: r.ID, Name: r.ID, OS: r.OS, Kind: r.Kind, Python: r.Python, CUDA: r.CUDA, ROCm: r.ROCm, Torch: r.Torch,
			Arch: r.Arch, Image: settings.Image, RunsOn: string(labels), Sandbox: sandbox, Group: r.Package + "-" + cmp.Or(compat.ToolkitTag(r.CUDA, r.ROCm), "cpu"), platform: r.Platform,
			stands: !slices.Contains(hostedRunners, r.OS) && len(p.workflow.Runners[r.OS]) == 0, files: r.Files(), pkg: r.Package,
		})
	}
	return jobs
}

// GitHubMatrix returns the plan as JSON for a dynamic matrix of GitHub Actions.
//
// Up to 256 rows it is one matrix, {"include": […]}, for strategy.matrix of the build
// job. A larger plan is split, never cut: {"parts": [{"include": […]}, …]} is itself a
// matrix whose jobs call a reusable workflow, which takes matrix.parts as its own
// matrix. parts says how many matrices there are.
func (p *Plan) GitHubMatrix() (text []byte, parts int, err error) {
	matrices := []gitHubMatrix{{Include: []GitHubJob{}}}
	for _, job := range p.GitHubJobs() {
		last := &matrices[len(matrices)-1]
		if len(last.Include) == GitHubMaxJobs {
			matrices = append(matrices, gitHubMatrix{})
			last = &matrices[len(matrices)-1]
		}
		last.Include = append(last.Include, job)
	}
	var value any = matrices[0]
	if len(matrices) > 1 {
		value = map[string][]gitHubMatrix{"parts": matrices}
	}
	text, err = json.Marshal(value)
	return text, len(matrices), err
}
