package publish

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/matrix"
)

// OpenOptions are options of [Open].
type OpenOptions struct {
	// Targets are those of packages.yml, and Dir its folder.
	Targets []matrix.TargetSettings
	Dir     string
	// Projects are those that are published.
	Projects []string
	// Credentials are those of addresses, which have none themselves; nil means none.
	Credentials *secret.Store
	// Getenv gives the credentials and addresses of the environment.
	Getenv func(string) string
	Retry  Retry
}

// Open returns the target of a name: one of packages.yml, or a kind with a location, such as
// dir:public or github:OWNER/REPOSITORY.
func Open(name string, opts OpenOptions) (Target, error) {
	if name == "" {
		return nil, errors.New("no target: give --to, such as dir:public or github:OWNER/REPOSITORY, or publish: {to: …} in packages.yml")
	}
	var t matrix.TargetSettings
	var names []string
	for _, have := range opts.Targets {
		names = append(names, have.Name)
		if have.Name == name {
			t = have
		}
	}
	if t.Kind == "dir" && !filepath.IsAbs(t.Location) {
		t.Location = filepath.Join(opts.Dir, filepath.FromSlash(t.Location))
	}
	if kind, location, ok := strings.Cut(name, ":"); ok && t.Kind == "" && slices.Contains([]string{"dir", "github", "s3", "kiln"}, kind) {
		t = matrix.TargetSettings{Kind: kind, Location: location}
		if kind == "s3" {
			t.Location, t.Prefix, _ = strings.Cut(location, "/")
		}
	}
	if address := strings.HasPrefix(name, "https://") || strings.HasPrefix(name, "http://"); t.Kind == "" && (address || name == "pypi" || name == "testpypi") {
		t = matrix.TargetSettings{Kind: "pypi", Location: name}
	}
	env := opts.Getenv
	if u := opts.Credentials.URL(cmp.Or(t.Endpoint, map[string]string{"s3": env("AWS_ENDPOINT_URL"), "github": env("GITHUB_API_URL")}[t.Kind])); u.Hidden() {
		return nil, fmt.Errorf("endpoint %s: it holds credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GITHUB_TOKEN", u)
	}
	switch t.Kind {
	case "dir":
		return NewDir(t.Location, DirOptions{URL: t.URL})
	case "github":
		return NewGitHub(GitHubOptions{
			Repository: t.Location, Token: cmp.Or(env("GITHUB_TOKEN"), env("GH_TOKEN")), Endpoint: cmp.Or(t.Endpoint, env("GITHUB_API_URL")),
			WebURL: env("GITHUB_SERVER_URL"), Draft: t.Draft, Prerelease: t.Prerelease, Retry: opts.Retry,
		})
	case "s3":
		return NewS3(S3Options{
			Endpoint: cmp.Or(t.Endpoint, env("AWS_ENDPOINT_URL")), Bucket: t.Location, Prefix: t.Prefix, Region: cmp.Or(t.Region, env("AWS_REGION")), URL: t.URL,
			AccessKey: env("AWS_ACCESS_KEY_ID"), SecretKey: env("AWS_SECRET_ACCESS_KEY"), SessionToken: env("AWS_SESSION_TOKEN"), Retry: opts.Retry,
		})
	case "kiln":
		return NewKiln(KilnOptions{URL: opts.Credentials.URL(t.Location), Token: env("KILN_TOKEN"), Projects: opts.Projects, Retry: opts.Retry})
	case "pypi":
		return NewPyPI(PyPIOptions{
			Upload: opts.Credentials.URL(t.Location), Index: t.URL, Token: cmp.Or(env("KILN_PYPI_TOKEN"), env("TWINE_PASSWORD"), env("UV_PUBLISH_TOKEN")),
			Identity: Identity{RequestURL: env("ACTIONS_ID_TOKEN_REQUEST_URL"), RequestToken: env("ACTIONS_ID_TOKEN_REQUEST_TOKEN"), Token: env("PYPI_ID_TOKEN")},
			Projects: opts.Projects, Retry: opts.Retry,
		})
	}
	hint := "write dir:PATH, github:OWNER/REPOSITORY, s3:BUCKET/FOLDER, kiln:URL, pypi, testpypi or the address of an upload, or a name of publish.targets"
	if near := diag.Suggest(name, names); near != "" {
		hint = "did you mean " + near + "?"
	}
	return nil, fmt.Errorf("there is no target %q\n  %s", secret.Clean(name), hint)
}
