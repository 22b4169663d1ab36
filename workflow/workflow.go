package workflow

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/kiln-build/kiln/matrix"
)

//go:embed workflow.yml.tmpl
var workflowText string

// DefaultActions are the actions of the generated workflow, each by the hash of a commit, with its
// version.
var DefaultActions = map[string]string{
	"checkout":              "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1",
	"setup-python":          "actions/setup-python@5fda3b95a4ea91299a34e894583c3862153e4b97 # v7.0.0",
	"upload-artifact":       "actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f # v7.0.0",
	"download-artifact":     "actions/download-artifact@3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c # v8.0.1",
	"upload-pages-artifact": "actions/upload-pages-artifact@fc324d3547104276b827a68afc52ff2a11cc49c9 # v5.0.0",
	"deploy-pages":          "actions/deploy-pages@cd2ce8fcbc39b97be8ca5fce6e763baed58fa128 # v5.0.0",
	"cache":                 "actions/cache@27d5ce7f107fe9357f9df03efb73ab90386fccae # v5.0.5",
	"attest":                "actions/attest-build-provenance@a2bbfa25375fe432b6a289bc6b6cd05ecd0c4c32 # v4.1.0",
	"msvc":                  "ilammy/msvc-dev-cmd@0b201ec74fa43914dc39ae48a89fd1d8cb592756 # v1.13.0",
}

// Options are what a workflow is made of.
type Options struct {
	// Plan is that of the file without inputs; it says which kinds of jobs there are.
	Plan *matrix.Plan
	// After are the rows that another one's wheel may serve, each with that one.
	After    map[string]string
	Workflow matrix.WorkflowSettings
	Publish  matrix.PublishSettings
	// File is the path of packages.yml in the repository, with forward slashes.
	File string
	// Version is that of the running kiln, which jobs get where the configuration names none, and
	// Sums are the hashes of its programs that are known, by platform: its own.
	Version string
	Sums    map[string]string
}

// Job is a job with a matrix of rows. Larger matrices than GitHub takes become several jobs.
type Job struct {
	ID      string
	Windows bool
	Rows    []matrix.GitHubJob
	// Needs are the jobs whose rows come first: their wheels may serve the rows of this one.
	Needs []string
}

// Jobs groups the rows of a plan into jobs, in the order of the plan. There is always a job for
// Linux. Rows that another one's wheel may serve, which after names, are in jobs of their own, as
// rows of one matrix cannot wait for each other.
func Jobs(plan *matrix.Plan, after map[string]string) []Job {
	rows := map[string][]matrix.GitHubJob{}
	for _, job := range plan.HostedJobs() {
		name := "linux"
		if job.IsWindows() {
			name = "windows"
		}
		if job.After = after[job.Row]; job.After != "" {
			name += "_proven"
		}
		rows[name] = append(rows[name], job)
	}
	out := split("linux", rows["linux"])
	if len(out) == 0 {
		out = []Job{{ID: "linux"}}
	}
	out = append(out, split("windows", rows["windows"])...)
	for _, system := range []string{"linux", "windows"} {
		var first []string
		for _, j := range out {
			if strings.HasPrefix(j.ID, system) {
				first = append(first, j.ID)
			}
		}
		for _, j := range split(system+"_proven", rows[system+"_proven"]) {
			j.Needs = first
			out = append(out, j)
		}
	}
	return out
}

func split(name string, rows []matrix.GitHubJob) []Job {
	var out []Job
	for part := range slices.Chunk(rows, matrix.GitHubMaxJobs) {
		id := name
		if len(out) > 0 {
			id += strconv.Itoa(len(out) + 1)
		}
		out = append(out, Job{ID: id, Windows: strings.HasPrefix(name, "windows"), Rows: part})
	}
	return out
}

// Matrix returns the job's rows as a value for strategy.matrix; "" if it has none.
func (j *Job) Matrix() (string, error) {
	if len(j.Rows) == 0 {
		return "", nil
	}
	text, err := json.Marshal(map[string]any{"include": j.Rows})
	return string(text), err
}

// plainWord is a text that YAML and a shell take as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./@:-]+$`)

// release is a version that has files. One that git describes by a later commit has none.
var release = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?)$`)

// releaseFiles is where the programs of a release are.
const releaseFiles = "https://github.com/kiln-build/kiln/releases/download/v%[1]s/kiln-%[1]s-{platform}{exe}"

// New writes a workflow for GitHub Actions: a job that plans, a job per row, then release, index
// and pages. Equal options give equal bytes.
func New(opts Options) ([]byte, error) {
	w := opts.Workflow
	if !plainWord.MatchString(opts.File) {
		return nil, fmt.Errorf("the path %q cannot stand in a workflow; use letters, digits and _ . / -", opts.File)
	}
	target, _ := opts.Publish.Target(opts.Publish.To)
	folder := path.Dir(opts.File)
	data := map[string]any{
		"File": opts.File, "Name": w.Name, "Branch": w.Branch, "MSVC": cmp.Or(w.MSVC, "14.39"), "GPU": w.GPURunner, "Minutes": int(w.Timeout.Minutes()),
		"Jobs": Jobs(opts.Plan, opts.After), "Host": hostLabels(w), "Dist": path.Join(folder, "dist"), "Attempts": path.Join(folder, ".kiln/attempts"), "To": "",
		"Index": "", "BranchPush": opts.Publish.Index.Branch != "", "Push": false,
		"Dispatch": slices.Contains(w.ReleaseOn, "dispatch"), "Releases": releases(w.ReleaseOn), "MaxParallel": cmp.Or(w.MaxParallel, matrix.GitHubMaxJobs),
		"Cache": w.Cache, "CacheDir": path.Join(folder, ".kiln/cache/ccache"), "Attest": w.Attest, "SignKey": w.SignKey,
		"Rows": "", "KilnURL": "", "KilnSHA256": "", "KilnWheel": "", "KilnIndex": cmp.Or(w.KilnIndex, "https://pypi.org/simple/"),
		// Rows in containers have ROCm in their image.
		"ROCm": slices.ContainsFunc(opts.Plan.HostedJobs(), func(j matrix.GitHubJob) bool { return j.ROCm != "" && j.Sandbox == "host" }),
	}
	if w.Rows != nil {
		data["Rows"] = w.Rows.String()
	}
	if w.CacheRemote {
		data["CacheSecrets"] = []string{"KILN_CACHE_USER", "KILN_CACHE_PASSWORD", "KILN_CACHE_TOKEN"}
	}
	if len(opts.Publish.Targets) == 0 {
		data["To"] = "github:${{ github.repository }}"
	}
	if opts.Publish.Index.Dir != "" {
		data["Index"] = path.Join(folder, opts.Publish.Index.Dir)
	}
	var build []string
	for _, j := range data["Jobs"].([]Job) {
		build = append(build, j.ID)
	}
	data["BuildJobs"] = build
	switch target.Kind {
	case "s3":
		data["Secrets"] = []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
	case "kiln":
		data["Secrets"] = []string{"KILN_TOKEN"}
	case "pypi":
		// The token of a secret wins; without it the job proves who it is.
		data["Secrets"], data["TrustedPublishing"] = []string{"KILN_PYPI_TOKEN"}, true
	}
	if w.Kiln != "path" {
		if err := kilnSource(&opts, data); err != nil {
			return nil, err
		}
	}
	actions := maps.Clone(DefaultActions)
	for name, ref := range w.Actions {
		if actions[name] == "" {
			return nil, fmt.Errorf("workflow.actions: the workflow has no action %q", name)
		}
		actions[name] = ref
	}
	t, err := template.New("workflow").Funcs(template.FuncMap{
		"yaml":  yamlText,
		"quote": shellWord,
		// The job that pushes pages keeps its right to do so.
		"pushing": func(data map[string]any) map[string]any {
			out := maps.Clone(data)
			out["Push"] = data["BranchPush"]
			return out
		},
		"labels": yamlList,
		"needs": func(parts ...any) string {
			var all []string
			for _, p := range parts {
				switch p := p.(type) {
				case string:
					all = append(all, p)
				case []string:
					all = append(all, p...)
				}
			}
			return "[" + strings.Join(all, ", ") + "]"
		},
		"has": func(trigger string) bool { return slices.Contains(w.Triggers, trigger) },
		"action": func(name string) (string, error) {
			if actions[name] == "" {
				return "", errors.New("no action " + name)
			}
			return actions[name], nil
		},
	}).Parse(workflowText)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// releases is the expression for "this run publishes".
func releases(on []string) string {
	var all []string
	for _, kind := range []struct{ name, condition string }{
		{"dispatch", "inputs.release == '1'"}, {"tag", "github.ref_type == 'tag'"}, {"push", "(github.event_name == 'push' && github.ref_type == 'branch')"},
	} {
		if slices.Contains(on, kind.name) {
			all = append(all, kind.condition)
		}
	}
	return strings.Join(all, " || ")
}

// kilnSource says where jobs get kiln: a program from an address, or a wheel. Every platform that a
// job runs on needs a hash.
func kilnSource(opts *Options, data map[string]any) error {
	w := &opts.Workflow
	sums := maps.Clone(w.KilnSHA256)
	address, more := w.KilnURL, ""
	if address == "" && w.KilnWheel == "" {
		m, own := release.FindStringSubmatch(cmp.Or(w.Kiln, opts.Version)), release.FindStringSubmatch(opts.Version)
		if m == nil && w.Kiln == "" {
			return fmt.Errorf("workflow.kiln is not set, and this kiln (%s) is not from a release that jobs could fetch\n"+
				"  set workflow: {kiln: {version: VERSION, sha256: {linux-amd64: …}}} to a release, {url: …} or {wheel: …} with its hashes, or kiln: path if the runners have it", opts.Version)
		}
		if m == nil {
			return fmt.Errorf("workflow.kiln: %q is no release; write one such as v0.1.0, or path", w.Kiln)
		}
		address, more = fmt.Sprintf(releaseFiles, m[1]), "\n  it is in SHA256SUMS of the release: workflow: {kiln: {version: "+m[1]+", sha256: {PLATFORM: …}}}"
		if own != nil && own[1] == m[1] {
			for platform, sum := range opts.Sums {
				if sums[platform] == "" && slices.Contains(matrix.KilnPlatforms, platform) {
					sums[platform] = sum
				}
			}
		}
	}
	need := map[string]string{"linux-amd64": "the jobs that plan and release"}
	for _, j := range opts.Plan.HostedJobs() {
		switch arm := strings.HasSuffix(j.Platform(), "aarch64"); {
		case j.IsWindows():
			need["windows-amd64"] = j.Row
		case arm:
			need["linux-arm64"] = j.Row
		}
	}
	for _, platform := range slices.Sorted(maps.Keys(need)) {
		if sums[platform] == "" {
			return fmt.Errorf("workflow.kiln.sha256 has no hash for %s, which is needed for %s%s", platform, need[platform], more)
		}
	}
	var words []string
	for _, platform := range slices.Sorted(maps.Keys(sums)) {
		if w.KilnWheel != "" {
			words = append(words, "--hash=sha256:"+sums[platform]) // pip takes the file that fits
		} else {
			words = append(words, platform+"="+sums[platform])
		}
	}
	if w.KilnWheel != "" {
		data["KilnWheel"] = w.KilnWheel + " " + strings.Join(words, " ")
	} else {
		data["KilnURL"], data["KilnSHA256"] = address, strings.Join(words, " ")
	}
	return nil
}

// hostLabels are those of jobs that are not about a row.
func hostLabels(w matrix.WorkflowSettings) []string {
	if labels := w.Runners["host"]; len(labels) > 0 {
		return labels
	}
	return []string{"ubuntu-24.04"}
}

// yamlText writes a text as YAML, quoted where it could be read as something else.
func yamlText(s string) string {
	if plainWord.MatchString(s) && strings.ContainsAny(s[:1], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.") && !slices.Contains([]string{"true", "false", "yes", "no", "on", "off", "null", "y", "n"}, strings.ToLower(s)) && !strings.HasSuffix(s, ":") {
		return s
	}
	text, _ := json.Marshal(s) // JSON texts are YAML
	return string(text)
}

func yamlList(list []string) string {
	if len(list) == 1 {
		return yamlText(list[0])
	}
	var out []string
	for _, s := range list {
		out = append(out, yamlText(s))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// shellWord quotes a word for bash.
func shellWord(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
