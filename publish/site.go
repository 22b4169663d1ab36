package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/compat"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// Site is the index of what a target has.
type Site struct {
	Store *index.Store
	// Pages writes the pages for people after a change.
	Pages func(ctx context.Context) error
}

// Listing is what became of an index.
type Listing struct {
	Dir     string         `json:"dir"`
	Files   int            `json:"files"`
	Bytes   int64          `json:"bytes"`
	Changes []index.Change `json:"changes"`
	// Problems are files that the index does not take.
	Problems []string `json:"problems"`
	Commit   string   `json:"commit,omitempty"`
}

// Unlist takes files out of the index. Nothing happens without one.
func (s *Site) Unlist(ctx context.Context, names []string) error {
	if s == nil || !s.Store.Exists() {
		return nil
	}
	catalog, err := s.Store.Catalog(ctx)
	if err != nil {
		return err
	}
	for project := range catalog.Projects() {
		has := func(f *index.File) bool { return slices.Contains(names, f.Filename) }
		if !slices.ContainsFunc(project.Files, func(f index.File) bool { return has(&f) }) {
			continue
		}
		if _, err := s.Store.Remove(ctx, project.Name, has); err != nil {
			return err
		}
	}
	return s.Pages(ctx)
}

// Update lists what the target has, and pushes the pages if deploy names a branch. fallback, if it
// is set, are the coordinates of the view for installers that name none. Without an index the
// listing is nil.
func (s *Site) Update(ctx context.Context, target Target, fallback string, deploy DeployOptions) (*Listing, error) {
	if s == nil {
		return nil, nil //nolint:nilnil // there is no index
	}
	releases, err := target.List(ctx, func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	config, err := s.Store.Config()
	if err != nil {
		return nil, err
	}
	if fallback != "" {
		if config.Default, err = index.ParseCoordinates(fallback); err != nil {
			return nil, fmt.Errorf("publish.index.default: %w", err)
		}
	}
	changes, problems, err := UpdateIndex(ctx, target, releases, s.Store, &config)
	if err != nil {
		return nil, err
	}
	if err := s.Pages(ctx); err != nil {
		return nil, err
	}
	out := &Listing{Dir: s.Store.Dir(), Changes: slices.DeleteFunc(changes, func(c index.Change) bool { return c.Action == "unchanged" }), Problems: []string{}}
	for _, problem := range problems {
		out.Problems = append(out.Problems, problem.Error())
	}
	if out.Bytes, out.Files, err = siteSize(out.Dir); err != nil || deploy.Branch == "" {
		return out, err
	}
	deploy.Message = "Index of " + target.String() + "\n"
	out.Commit, err = Deploy(ctx, out.Dir, deploy)
	return out, err
}

// UpdateIndex brings an index up to date with what a target has: every finished release, not only
// those of the last run. Entries point at the target. What the index already has is left alone; of
// the rest, the small files that were published with a wheel say what the index has to know, so
// that no wheel is fetched.
func UpdateIndex(ctx context.Context, target Target, releases []Release, store *index.Store, config *index.Config) ([]index.Change, []index.Problem, error) {
	catalog, err := store.Catalog(ctx)
	if err != nil {
		return nil, nil, err
	}
	var bad []index.Problem
	listed := func(yield func(index.File, error) bool) {
		for _, r := range releases {
			if r.Created.IsZero() {
				continue // begun, not finished
			}
			for _, f := range r.Files {
				if !isDistribution(f.Name) {
					continue
				}
				entry, err := indexEntry(ctx, target, &r, f, catalog)
				if problem, ok := errors.AsType[index.Problem](err); ok {
					bad = append(bad, problem)
					continue
				}
				if !yield(entry, err) || err != nil {
					return
				}
			}
		}
	}
	changes, problems, err := store.AddListed(ctx, iter.Seq2[index.File, error](listed), index.AddOptions{Config: config})
	return changes, append(bad, problems...), err
}

// indexEntry says what the index has to know of a published file.
func indexEntry(ctx context.Context, target Target, r *Release, f RemoteFile, catalog *index.Catalog) (index.File, error) {
	out := index.File{Filename: f.Name, Base: target.Base(r.Tag), Size: f.Size, UploadTime: f.Uploaded}
	if p, err := project(f.Name); err == nil {
		if known := catalog.Project(p); known != nil {
			have := known.File(f.Name)
			if have != nil && (have.SHA256.String() == f.SHA256 || f.SHA256 == "" && have.Size == f.Size && have.Base == out.Base) {
				known := *have
				known.Base, known.Size, known.UploadTime = out.Base, out.Size, out.UploadTime
				return known, nil
			}
		}
	}
	sum, err := f.SHA256, error(nil)
	if sum == "" { // a target that does not compute it
		if sum, err = readBack(ctx, target, r.Tag, f.Name); err != nil {
			return out, err
		}
	}
	if out.SHA256, err = index.ParseDigest(sum); err != nil {
		return out, fmt.Errorf("%s: %w", f.Name, err)
	}
	if !strings.HasSuffix(f.Name, ".whl") {
		return out, nil
	}
	var said []sign.Subject
	if side := r.File(f.Name + index.ProvenanceSuffix); side != nil {
		text, err := readSmall(ctx, target, r.Tag, side.Name)
		if err != nil {
			return out, err
		}
		if s, _, err := ParseStatement(text, nil); err == nil {
			out.Learn(statementFacts(s))
			said = s.Subject
		}
	}
	// What the statement says of the wheel and its papers must be so, or the file is not listed.
	differs := func(name, sum string) error {
		if s := sign.Find(said, name); s != nil && s.Digest["sha256"] != sum {
			return index.Problem{Filename: f.Name, Err: fmt.Errorf("%s has the sha256 %s, its provenance says %s", name, sum, s.Digest["sha256"])}
		}
		return nil
	}
	if err := differs(f.Name, sum); err != nil {
		return out, err
	}
	for _, p := range paperNames {
		side := r.File(f.Name + p.suffix)
		if side == nil {
			if sign.Find(said, f.Name+p.suffix) != nil {
				return out, index.Problem{Filename: f.Name, Err: fmt.Errorf("its provenance names %s, which is not there", f.Name+p.suffix)}
			}
			continue
		}
		text, err := readSmall(ctx, target, r.Tag, side.Name)
		if err != nil {
			return out, err
		}
		local := dataFile(side.Name, text)
		if err := differs(side.Name, local.SHA256); err != nil {
			return out, err
		}
		if p.suffix != index.MetadataSuffix {
			continue
		}
		m, err := wheel.ParseMetadata(text)
		if err != nil {
			return out, fmt.Errorf("%s: %w", side.Name, err)
		}
		if out.Metadata, err = index.ParseDigest(local.SHA256); err != nil {
			return out, err
		}
		out.RequiresPython = m.RequiresPython()
	}
	return out, nil
}

// statementFacts returns what the index stores of the row and the audit in a statement.
func statementFacts(s *Statement) (facts index.Facts) {
	var row matrix.Row
	text, err := json.Marshal(s.Predicate.BuildDefinition.ExternalParameters["row"])
	known := err == nil && json.Unmarshal(text, &row) == nil
	for _, b := range s.Predicate.RunDetails.Byproducts {
		var report audit.Report
		var proven []record.Reuse
		switch {
		case b.Name == "audit" && json.Unmarshal(b.Content, &report) == nil:
			facts = auditFacts(&report)
			if known {
				facts.Coordinates = rowCoordinates(&row, usesTorch(&report))
			}
		case b.Name == "proven" && known && json.Unmarshal(b.Content, &proven) == nil: // after the audit
			facts = mergeFacts(facts, compat.Minor(row.Torch))
			for _, p := range proven {
				facts = mergeFacts(facts, compat.Minor(p.Torch))
			}
		}
	}
	return facts
}

// maxSmall bounds the files that are read into memory.
const maxSmall = 16 << 20

func readSmall(ctx context.Context, target Target, tag, name string) ([]byte, error) {
	var text []byte
	retry := Retry{Wait: 100 * time.Millisecond}
	err := retry.do(ctx, "read "+name, func() error {
		f, err := target.Open(ctx, tag, name)
		if err != nil {
			return err
		}
		defer f.Close()
		text, err = io.ReadAll(io.LimitReader(f, maxSmall+1))
		if len(text) > maxSmall {
			return fmt.Errorf("%s is larger than %d bytes", name, maxSmall)
		}
		return err
	})
	return text, err
}

// siteSize returns how many bytes the pages of an index have, without its books, and the number of
// files.
func siteSize(dir string) (size int64, files int, err error) {
	err = walkSite(dir, func(_ string, d fs.DirEntry) error {
		info, err := d.Info()
		if err == nil {
			size += info.Size()
			files++
		}
		return err
	})
	return size, files, err
}

func walkSite(dir string, f func(rel string, d fs.DirEntry) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".kiln" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if d.IsDir() || fsx.IsTemp(d.Name()) {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return f(rel, d)
	})
}

// DeployOptions are options of [Deploy].
type DeployOptions struct {
	// Repository is the folder of the git checkout that has the remote, Remote its name or an
	// address, and Branch where the site goes.
	Repository, Remote, Branch string
	// Message is that of the commit, Author "NAME <ADDRESS>".
	Message, Author string
	// Env is the environment of git, as KEY=VALUE; PATH must be in it.
	Env []string
	// Credentials are those of Remote, if it is an address; nil means none.
	Credentials *secret.Store
}

// Deploy pushes the pages of an index to a branch, as one commit without history that has the whole
// tree. The branch is replaced. Nothing happens if it has these pages already.
func Deploy(ctx context.Context, site string, opts DeployOptions) (commit string, err error) {
	size, _, err := siteSize(site)
	if err != nil {
		return "", err
	}
	if size > GitHubPagesBytes {
		return "", fmt.Errorf("the site has %d bytes, and GitHub publishes sites of up to %d; keep the files out of it, or publish fewer pages", size, int64(GitHubPagesBytes))
	}
	scratch, err := os.MkdirTemp("", "kiln-pages-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	name, address, ok := strings.Cut(strings.TrimSuffix(opts.Author, ">"), " <")
	if !ok {
		name, address = "kiln", "kiln@localhost"
	}
	env := append(opts.Env, "GIT_INDEX_FILE="+filepath.Join(scratch, "index"), "GIT_WORK_TREE="+site,
		"GIT_AUTHOR_NAME="+name, "GIT_AUTHOR_EMAIL="+address, "GIT_COMMITTER_NAME="+name, "GIT_COMMITTER_EMAIL="+address)
	configured := 0
	for _, kv := range opts.Env {
		if n, ok := strings.CutPrefix(kv, "GIT_CONFIG_COUNT="); ok {
			configured, _ = strconv.Atoi(n)
		}
	}
	access, count := opts.Credentials.GitConfig(configured, opts.Remote)
	if count > configured {
		env = slices.Concat(env, access, []string{"GIT_CONFIG_COUNT=" + strconv.Itoa(count)})
	}
	git := func(stdin io.Reader, args ...string) (string, error) {
		var out, errors bytes.Buffer
		c := run.Cmd{
			Argv: append([]string{"git", "-c", "core.autocrlf=false"}, args...), Dir: opts.Repository, Env: env, Stdin: stdin, Stdout: &out, Stderr: &errors,
			Redact: opts.Credentials.Values(), TailLines: -1,
		}
		if _, err := c.Run(ctx); err != nil {
			// The remote may be one of git's own, with an address that kiln does not know.
			return "", fmt.Errorf("git %s: %w: %s", args[0], err, secret.Clean(strings.TrimSpace(errors.String())))
		}
		return strings.TrimSpace(out.String()), nil
	}
	gitDir, err := git(nil, "rev-parse", "--absolute-git-dir")
	if err != nil {
		return "", err
	}
	env = append(env, "GIT_DIR="+gitDir)
	// Paths from us, not from a walk of git's, which would honor ignore files and take the books of
	// the index.
	var paths bytes.Buffer
	if err := walkSite(site, func(rel string, _ fs.DirEntry) error {
		paths.WriteString(filepath.ToSlash(rel) + "\x00")
		return nil
	}); err != nil {
		return "", err
	}
	if _, err := git(&paths, "update-index", "--add", "-z", "--stdin"); err != nil {
		return "", err
	}
	// GitHub would run the pages through Jekyll, which leaves files out.
	empty, err := git(strings.NewReader(""), "hash-object", "-w", "--stdin")
	if err != nil {
		return "", err
	}
	if _, err := git(nil, "update-index", "--add", "--cacheinfo", "100644,"+empty+",.nojekyll"); err != nil {
		return "", err
	}
	tree, err := git(nil, "write-tree")
	if err != nil {
		return "", err
	}
	if old, err := git(nil, "ls-remote", opts.Remote, "refs/heads/"+opts.Branch); err == nil && old != "" {
		have, _, _ := strings.Cut(old, "\t")
		if oldTree, err := git(nil, "rev-parse", "--verify", "--quiet", have+"^{tree}"); err == nil && oldTree == tree {
			return "", nil
		}
	}
	if commit, err = git(strings.NewReader(opts.Message), "commit-tree", tree); err != nil {
		return "", err
	}
	_, err = git(nil, "push", "--force", opts.Remote, commit+":refs/heads/"+opts.Branch)
	return commit, err
}
