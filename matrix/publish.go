package matrix

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/diag"
)

// PublishSettings are `publish` of packages.yml, with defaults filled in.
type PublishSettings struct {
	// Tag and Title are templates; see [TagVariables].
	Tag, Title string
	// To is the target of a run that names none; empty if there is none or more than one.
	To      string
	Targets []TargetSettings
	Index   IndexSettings
	Keep    KeepSettings
	// Untested allows files whose test did not run.
	Untested bool
}

// TargetSettings are one place for files.
type TargetSettings struct {
	Name string
	// Kind is "github", "dir", "s3", "kiln" or "pypi", and Location the repository, folder, bucket or
	// address.
	Kind, Location string
	Endpoint       string
	Region         string
	Prefix         string
	URL            string
	Draft          bool
	Prerelease     bool
}

// IndexSettings say how the index of published files is kept. Dir is empty if there is none.
type IndexSettings struct {
	Dir, Default   string
	Branch, Remote string
}

// KeepSettings say which published files stay; zero is no limit.
type KeepSettings struct {
	Days, Releases int
}

// WorkflowSettings are `workflow` of packages.yml, with defaults filled in.
type WorkflowSettings struct {
	Name string
	// Kiln is a release, "path", or empty for the release that makes the workflow. KilnURL is the
	// address of its program instead, with {platform} in it; KilnWheel is its wheel as NAME==VERSION
	// and KilnIndex where that is. KilnSHA256 are the hashes by platform.
	Kiln                          string
	KilnURL, KilnWheel, KilnIndex string
	KilnSHA256                    map[string]string
	// Rows are those that the workflow builds, nil for all.
	Rows *Selection
	// MaxParallel is how many rows are built at a time, 0 for as many as the host allows.
	MaxParallel int
	// ReleaseOn are the kinds of runs that publish: "push", "tag", "dispatch".
	ReleaseOn []string
	// Cache says that build jobs keep their compile cache with the host's cache action.
	Cache bool
	// CacheRemote says that packages.yml names a compile cache, for which jobs need secrets.
	CacheRemote bool
	// Attest says that released files get an attestation of the host.
	Attest bool
	// SignKey is the secret with the key that signs provenance, or empty.
	SignKey   string
	Runners   map[string][]string
	GPURunner []string
	// Sandbox is "docker", "podman", "host", or empty for what the row says.
	Sandbox string
	// Actions are references by their short names.
	Actions     map[string]string
	Triggers    []string
	Branch      string
	MSVC        string
	WindowsCUDA map[string]string
	Timeout     time.Duration
}

// TagVariables are the values that tags and titles of releases may use.
var TagVariables = []string{"package", "version", "date", "counter"}

// Publish returns where finished files go.
func (f *File) Publish() PublishSettings { return f.publish }

// Workflow returns what the hosted-CI workflow is made of.
func (f *File) Workflow() WorkflowSettings { return f.workflow }

// Target returns the settings of a target by its name.
func (s *PublishSettings) Target(name string) (TargetSettings, bool) {
	i := slices.IndexFunc(s.Targets, func(t TargetSettings) bool { return t.Name == name })
	if i < 0 {
		return TargetSettings{}, false
	}
	return s.Targets[i], true
}

func (c *checker) publish(p *Publish) PublishSettings {
	out := PublishSettings{
		Tag: cmp.Or(p.Tag.Value, "v{version}"), Title: cmp.Or(p.Title.Value, "{package} {version}"), Untested: p.Untested.Value,
		Keep: KeepSettings{Days: p.Keep.Days.Value, Releases: p.Keep.Releases.Value},
	}
	for _, t := range []Text{p.Tag, p.Title} {
		c.tagTemplate(t)
	}
	if p.Tag.IsSet() && p.Tag.Value == "" {
		c.errorf(p.Tag.place, "publish", "the default is v{version}", "the tag is empty")
	}
	if strings.Contains(out.Tag, "{date}") && !strings.Contains(out.Tag, "{counter}") {
		c.warnf(p.Tag.place, "publish", `write "v{date}.{counter}"`, "two releases on one day would have the same tag; the second is refused")
	}
	for i := range p.Targets {
		e := &p.Targets[i]
		out.Targets = append(out.Targets, c.target(e.Key, &e.Value))
	}
	names := make([]string, len(out.Targets))
	for i, t := range out.Targets {
		names[i] = t.Name
	}
	switch {
	case p.To.IsSet() && !slices.Contains(names, p.To.Value):
		hint := "add it to targets"
		if near := diag.Suggest(p.To.Value, names); near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		}
		c.errorf(p.To.place, "publish", hint, "there is no target %q", p.To.Value)
	case p.To.IsSet():
		out.To = p.To.Value
	case len(names) == 1:
		out.To = names[0]
	}
	x := &p.Index
	out.Index = IndexSettings{Dir: x.Dir.Value, Default: x.Default.Value, Branch: x.Branch.Value, Remote: cmp.Or(x.Remote.Value, "origin")}
	if x.IsSet() && x.Dir.Value == "" {
		c.errorf(x.place, "publish", "add dir:, a folder for the pages", "the index has no folder")
	}
	return out
}

// tagTemplate checks the values in braces.
func (c *checker) tagTemplate(t Text) {
	for _, m := range tagValue.FindAllStringSubmatch(t.Value, -1) {
		if !slices.Contains(TagVariables, m[1]) {
			c.errorf(t.place, "template", "known values: "+strings.Join(TagVariables, ", "), "unknown value {%s}", m[1])
		}
	}
	if rest := tagValue.ReplaceAllString(t.Value, ""); strings.ContainsAny(rest, "{}") {
		c.errorf(t.place, "template", "", "a brace without its other half")
	}
}

var tagValue = regexp.MustCompile(`\{([^{}]*)\}`)

func (c *checker) target(name Text, t *PublishTarget) TargetSettings {
	out := TargetSettings{
		Name: name.Value, Endpoint: t.Endpoint.Value, Region: t.Region.Value, Prefix: strings.Trim(t.Prefix.Value, "/"), URL: t.URL.Value,
		Draft: t.Draft.Value, Prerelease: t.Prerelease.Value,
	}
	given := 0
	for _, k := range []struct {
		kind string
		text Text
	}{{"github", t.GitHub}, {"dir", t.Dir}, {"s3", t.S3}, {"kiln", t.Kiln}, {"pypi", t.PyPI}} {
		if !k.text.IsSet() {
			continue
		}
		given++
		out.Kind, out.Location = k.kind, k.text.Value
		if k.text.Value == "" {
			c.errorf(k.text.place, "publish", "", "%q is empty", k.kind)
		}
	}
	if given != 1 {
		c.errorf(name.place, "publish", "give one of github, dir, s3, kiln and pypi", "the target %q has %d places for files", name.Value, given)
	}
	if owner, repo, ok := strings.Cut(out.Location, "/"); out.Kind == "github" && (!ok || owner == "" || repo == "" || strings.Contains(repo, "/")) {
		c.errorf(t.GitHub.place, "publish", "write OWNER/REPOSITORY", "%q is no repository", out.Location)
	}
	return out
}

// pinned is an action by the hash of a commit.
var pinned = regexp.MustCompile(`^[A-Za-z0-9._-]+/[A-Za-z0-9._/-]+@[0-9a-f]{40}$`)

func (c *checker) workflow(w *Workflow, cache *Cache, customAxes []string) WorkflowSettings {
	out := WorkflowSettings{
		Name: cmp.Or(w.Name.Value, "wheels"), Kiln: w.Kiln.Version.Value, KilnURL: w.Kiln.URL.Value, KilnWheel: w.Kiln.Wheel.Value, KilnIndex: w.Kiln.Index.Value, KilnSHA256: map[string]string{}, Runners: map[string][]string{}, GPURunner: values(w.GPURunner), Sandbox: w.Sandbox.Value,
		Actions: map[string]string{}, Branch: cmp.Or(w.Branch.Value, "main"), MSVC: w.MSVC.Text.Value,
		WindowsCUDA: map[string]string{}, Timeout: w.Timeout.Value,
		MaxParallel: w.MaxParallel.Value, Cache: !w.Cache.IsSet() || w.Cache.Value, CacheRemote: cache.Remote.Value != "",
		Attest: w.Attest.Value, SignKey: w.SignKey.Value,
	}
	if out.CacheRemote && !w.Cache.IsSet() {
		out.Cache = false
	}
	c.workflowKiln(&w.Kiln, &out)
	if w.SignKey.IsSet() && !envName.MatchString(w.SignKey.Value) {
		c.errorf(w.SignKey.place, "workflow", "write the name of the secret, such as KILN_SIGN_KEY", "%q is no name of a secret", w.SignKey.Value)
	}
	if w.Rows.IsSet() {
		out.Rows = c.selection(w.Rows, customAxes)
	}
	if out.Timeout == 0 {
		out.Timeout = 6 * time.Hour
	}
	for _, e := range w.Runners {
		out.Runners[e.Key.Value] = values(e.Value)
	}
	for _, e := range w.Actions {
		if !pinned.MatchString(e.Value.Value) {
			c.errorf(e.Value.place, "workflow", "write OWNER/NAME@ and the 40 digits of a commit", "the action %q is not pinned by the hash of a commit", e.Value.Value)
		}
		out.Actions[e.Key.Value] = e.Value.Value
	}
	for _, t := range w.Triggers {
		out.Triggers = append(out.Triggers, t.Value)
	}
	for _, r := range w.ReleaseOn {
		out.ReleaseOn = append(out.ReleaseOn, r.Value)
		if r.Value != "dispatch" && !slices.Contains(out.Triggers, r.Value) {
			out.Triggers = append(out.Triggers, r.Value)
		}
	}
	if len(out.ReleaseOn) == 0 {
		out.ReleaseOn = []string{"dispatch"}
		if slices.Contains(out.Triggers, "tag") {
			out.ReleaseOn = append(out.ReleaseOn, "tag")
		}
	}
	for _, e := range w.WindowsCUDA {
		out.WindowsCUDA[e.Key.Value] = e.Value.Value
	}
	return out
}

// KilnPlatforms are the platforms for which a workflow can fetch a program of kiln.
var KilnPlatforms = []string{"linux-amd64", "linux-arm64", "windows-amd64"}

// workflowKiln checks how jobs get kiln.
func (c *checker) workflowKiln(k *WorkflowKiln, out *WorkflowSettings) {
	for _, e := range k.SHA256 {
		if !slices.Contains(KilnPlatforms, e.Key.Value) {
			c.errorf(e.Key.place, "workflow", "use "+strings.Join(KilnPlatforms, ", "), "%q is no platform of kiln", e.Key.Value)
		}
		if !sha256Text.MatchString(e.Value.Value) {
			c.errorf(e.Value.place, "workflow", "write the 64 hexadecimal digits", "%q is no SHA-256", e.Value.Value)
		}
		out.KilnSHA256[e.Key.Value] = e.Value.Value
	}
	ways := 0
	for _, way := range []Text{k.Version, k.URL, k.Wheel} {
		if way.IsSet() {
			ways++
		}
	}
	switch {
	case ways > 1:
		c.errorf(k.place, "workflow", "keep one of version, url and wheel", "kiln comes from several places")
	case k.URL.IsSet() && len(k.SHA256) == 0:
		c.errorf(k.URL.place, "workflow", "add sha256: {linux-amd64: …}", "a program from an address needs its hash")
	case k.Wheel.IsSet() && len(k.SHA256) == 0:
		c.errorf(k.Wheel.place, "workflow", "add sha256: {linux-amd64: …}", "a wheel needs its hash")
	case k.Wheel.IsSet() && !exactWheel.MatchString(k.Wheel.Value):
		c.errorf(k.Wheel.place, "workflow", "write NAME==VERSION, such as kiln-build==0.1.0", "%q is no exact version of a wheel", k.Wheel.Value)
	case k.Index.IsSet() && !k.Wheel.IsSet():
		c.errorf(k.Index.place, "workflow", "add wheel:", "there is an index and no wheel")
	case len(k.SHA256) > 0 && (ways == 0 || k.Version.Value == "path"):
		c.errorf(k.place, "workflow", "add version:, url: or wheel:", "there are hashes and nothing to fetch")
	case len(k.SHA256) > 1 && k.URL.IsSet() && !strings.Contains(k.URL.Value, "{platform}"):
		c.errorf(k.URL.place, "workflow", "put {platform} into the address", "one address cannot serve several platforms")
	}
}

var exactWheel = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*==[0-9A-Za-z.!+]+$`)

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

// selection reads an expression that is written in the file.
func (c *checker) selection(t Text, customAxes []string) *Selection {
	s, err := ParseSelection(t.Value)
	if err == nil {
		err = s.Check(customAxes)
	}
	if bad, ok := errors.AsType[*diag.ListError](err); ok {
		for _, d := range bad.Diagnostics {
			at := t.at(d.Pos.Column-1, d.Width)
			c.errorf(at, "selection", d.Hint, "%s", d.Message)
		}
		return nil
	}
	return s
}
