package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/engine"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/wheel"
)

// sources resolves and fetches the code of packages, each distinct one once.
type sources struct {
	dir     string // folder of packages.yml, which paths are relative to
	cache   string // where fetched code is kept
	exclude []string
	network Network
	client  *http.Client
	// git is the environment for git.
	gitEnv []string
}

// lockFile remembers to which exact bytes a name and version led.
const lockFile = "sources.json"

// resolve fixes the source of a row. What cannot change, a released version on an
// index, is asked for once and remembered; known has what earlier runs found.
func (s *sources) resolve(ctx context.Context, row matrix.Row, settings matrix.SourceSettings, known map[string]record.Source) (record.Source, error) {
	switch settings.Kind {
	case "path":
		dir := filepath.Join(s.dir, filepath.FromSlash(settings.Location))
		if filepath.IsAbs(settings.Location) {
			dir = settings.Location
		}
		digest, err := s.treeDigest(ctx, dir)
		if err != nil {
			return record.Source{}, fmt.Errorf("source of %s: %w", row.Package, err)
		}
		return record.Source{Kind: "path", Location: dir, Digest: digest}, nil
	case "sdist":
		name := path.Base(settings.Location)
		if u, err := url.Parse(settings.Location); err == nil && u.Scheme != "" {
			name = path.Base(u.Path)
		}
		source := record.Source{Kind: "sdist", Location: settings.Location, File: name, Digest: settings.SHA256}
		if _, err := s.download(ctx, source); err != nil {
			return record.Source{}, fmt.Errorf("source of %s: %w", row.Package, err)
		}
		return source, nil
	case "git":
		key := "git " + settings.Location + " " + settings.Ref
		commit, err := s.gitCommit(ctx, settings.Location, settings.Ref)
		if err != nil {
			if old, ok := known[key]; ok {
				return old, nil // offline: the commit of the last run still stands for the ref
			}
			return record.Source{}, fmt.Errorf("source of %s: %w", row.Package, err)
		}
		source := record.Source{Kind: "git", Location: settings.Location, Commit: commit, Submodules: settings.Submodules, Digest: commit}
		known[key] = source
		return source, nil
	}
	key := "index " + settings.Location + " " + row.Package + " " + row.Version
	if old, ok := known[key]; ok {
		return old, nil
	}
	source, err := s.findSdist(ctx, settings.Location, row.Package, row.Version)
	if err != nil {
		return record.Source{}, fmt.Errorf("source of %s %s: %w", row.Package, row.Version, err)
	}
	known[key] = source
	return source, nil
}

// loadKnown reads what earlier runs resolved. A damaged file only costs asking again.
func (s *sources) loadKnown() map[string]record.Source {
	known := map[string]record.Source{}
	if text, err := os.ReadFile(filepath.Join(s.cache, lockFile)); err == nil {
		// An earlier kiln kept credentials in it.
		_ = json.Unmarshal([]byte(secret.Clean(string(text))), &known)
	}
	return known
}

func (s *sources) saveKnown(known map[string]record.Source) error {
	text, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.cache, 0o777); err != nil {
		return err
	}
	return fsx.WriteFile(filepath.Join(s.cache, lockFile), append(text, '\n'), 0o666)
}

// git is a call of git that may connect to a repository, and to others on its host. The credentials
// are in its environment alone, so the clone does not have them.
func (s *sources) git(repository string, args ...string) run.Cmd {
	env, count := s.network.Credentials.GitConfig(gitConfigs, repository)
	return run.Cmd{
		Argv: append([]string{"git"}, args...), Env: slices.Concat(s.gitEnv, env, []string{"GIT_CONFIG_COUNT=" + strconv.Itoa(count)}),
		Redact: s.network.Credentials.Values(),
	}
}

// whole is an error of git with all that it printed: the last line is often the least of it.
func whole(err error) error {
	failed, ok := errors.AsType[*run.Error](err)
	if !ok || len(failed.Tail) < 2 {
		return err
	}
	return &gitError{failed}
}

type gitError struct{ failed *run.Error }

func (e *gitError) Error() string {
	return fmt.Sprintf("git ended with exit code %d:\n  %s", e.failed.State.ExitCode, strings.Join(e.failed.Tail, "\n  "))
}

func (e *gitError) Unwrap() error { return e.failed }

// gitCommit asks a repository which commit a tag, branch or commit is.
func (s *sources) gitCommit(ctx context.Context, repository, ref string) (string, error) {
	if len(ref) == 40 && strings.Trim(ref, "0123456789abcdef") == "" {
		return ref, nil
	}
	var out strings.Builder
	cmd := s.git(repository, "ls-remote", "--", repository, ref, ref+"^{}")
	cmd.Stdout, cmd.Stderr = &out, io.Discard
	if _, err := cmd.Run(ctx); err != nil {
		return "", engine.Fail(engine.CauseNetwork, fmt.Errorf("ask %s for %s: %w", repository, ref, whole(err)))
	}
	found := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if commit, name, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			found[name] = commit
		}
	}
	// A tag with its own object is followed to the commit it names.
	for _, name := range []string{"refs/tags/" + ref + "^{}", "refs/tags/" + ref, "refs/heads/" + ref, ref} {
		if commit := found[name]; commit != "" {
			return commit, nil
		}
	}
	return "", fmt.Errorf("%s has no tag, branch or commit %q", repository, ref)
}

// findSdist looks up the source distribution of a version in a simple index.
func (s *sources) findSdist(ctx context.Context, address, name, version string) (record.Source, error) {
	if address == "" {
		address = s.network.IndexURL
	}
	if address == "" {
		return record.Source{}, errors.New("no package index is known; give one with --index-url")
	}
	asked := func(err error) error {
		return fmt.Errorf("ask %s for the source distribution: %w\n  --index-url, or source: {index: …} in packages.yml, names another index", address, err)
	}
	remote, err := index.OpenRemote(ctx, s.client, address)
	if err != nil {
		return record.Source{}, engine.Fail(engine.CauseNetwork, asked(err))
	}
	files, err := remote.Files(ctx, wheel.NormalizeName(name))
	if err != nil {
		return record.Source{}, asked(err)
	}
	want, err := wheel.ParseVersion(version)
	if err != nil {
		return record.Source{}, err
	}
	var others []string
	for _, f := range files {
		sdist, err := wheel.ParseSdistName(f.Filename)
		if err != nil {
			continue
		}
		if !sdist.Version.Equal(want) {
			others = append(others, sdist.Version.String())
			continue
		}
		if f.SHA256.IsZero() {
			return record.Source{}, fmt.Errorf("%s lists %s without a sha256", address, f.Filename)
		}
		return record.Source{Kind: "index", Location: s.network.Credentials.Take(f.URL("")), File: f.Filename, Digest: f.SHA256.String()}, nil
	}
	if len(others) == 0 {
		return record.Source{}, fmt.Errorf("%s has no source distribution of %s at all\n  give the code with source: {git: …, ref: …} in packages.yml", address, name)
	}
	return record.Source{}, fmt.Errorf("%s has no source distribution of %s %s; there are %s", address, name, version, strings.Join(others[max(0, len(others)-5):], ", "))
}

// get asks for a file. The caller closes the body.
func (s *sources) get(ctx context.Context, address string) (io.ReadCloser, error) {
	stall := newStall(ctx)
	req, err := http.NewRequestWithContext(stall.ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		stall.end()
		return nil, err
	}
	client := *s.client
	client.Timeout = 0 // a large file may take long, if it does not stop
	resp, err := client.Do(req)
	if err != nil {
		if stall.ctx.Err() != nil {
			err = fmt.Errorf("get %s: %w", address, context.Cause(stall.ctx))
		}
		stall.end()
		return nil, engine.Fail(engine.CauseNetwork, err)
	}
	if resp.StatusCode != http.StatusOK {
		stall.end()
		_ = resp.Body.Close()
		err := fmt.Errorf("get %s: %s", address, resp.Status)
		if resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests {
			err = engine.Fail(engine.CauseNetwork, err)
		}
		return nil, err
	}
	stall.body = resp.Body
	return stall, nil
}

// stalled is how long a server may send nothing.
const stalled = 2 * time.Minute

// stall is the body of an answer, which ends when nothing comes any more.
type stall struct {
	ctx    context.Context //nolint:containedctx // lives as long as the answer
	cancel context.CancelCauseFunc
	timer  *time.Timer
	body   io.ReadCloser
}

func newStall(ctx context.Context) *stall {
	s := &stall{}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.timer = time.AfterFunc(stalled, func() { s.cancel(fmt.Errorf("the server sent nothing for %s", stalled)) })
	return s
}

func (s *stall) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.timer.Reset(stalled)
	if err != nil && !errors.Is(err, io.EOF) && s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	return n, err
}

func (s *stall) Close() error {
	s.end()
	return s.body.Close()
}

func (s *stall) end() {
	s.timer.Stop()
	s.cancel(nil)
}

// fetch puts the code of a source into the folder to, which must not exist, and
// returns the time of the code for SOURCE_DATE_EPOCH.
func (s *sources) fetch(ctx context.Context, source record.Source, to string) (time.Time, error) {
	if source.Kind == "path" {
		digest, err := s.copyTree(ctx, source.Location, to)
		if err != nil {
			return time.Time{}, err
		}
		if digest != source.Digest {
			return time.Time{}, fmt.Errorf("%s changed while it was being built from; run kiln build again", source.Location)
		}
		return earliest, nil
	}
	kept, err := s.download(ctx, source)
	if err != nil {
		return time.Time{}, err
	}
	if source.Kind == "git" {
		if err := copyFolder(kept, to); err != nil {
			return time.Time{}, err
		}
		return s.commitTime(ctx, to)
	}
	return unpackSdist(filepath.Join(kept, source.File), to)
}

// earliest is what a ZIP archive can hold, and the time of code that has none.
var earliest = time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)

// download brings an sdist or a commit into the cache, once for all rows and runs.
func (s *sources) download(ctx context.Context, source record.Source) (string, error) {
	kept := filepath.Join(s.cache, source.Digest)
	if source.Submodules {
		kept += "-submodules"
	}
	return kept, fsx.MakeDirOnce(ctx, kept, func(temp string) error {
		if source.Kind == "git" {
			return s.clone(ctx, source, temp)
		}
		return s.getFile(ctx, source, filepath.Join(temp, source.File))
	})
}

func (s *sources) getFile(ctx context.Context, source record.Source, to string) error {
	if source.File != filepath.Base(source.File) || !filepath.IsLocal(source.File) {
		return fmt.Errorf("%q is not a file name", source.File)
	}
	var body io.ReadCloser
	var err error
	if u, bad := url.Parse(source.Location); bad == nil && (u.Scheme == "http" || u.Scheme == "https") {
		body, err = s.get(ctx, source.Location)
	} else {
		name := source.Location
		if !filepath.IsAbs(name) {
			name = filepath.Join(s.dir, filepath.FromSlash(name))
		}
		body, err = fsx.Open(name)
	}
	if err != nil {
		return err
	}
	defer body.Close()
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	_, sum, err := fsx.CopyHash(f, body, make([]byte, 1<<20))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return engine.Fail(engine.CauseNetwork, fmt.Errorf("fetch %s: %w", source.Location, err))
	}
	if got := hex.EncodeToString(sum[:]); got != source.Digest {
		err := fmt.Errorf("fetch %s: sha256 mismatch: got %s, want %s", source.Location, got, source.Digest)
		if source.Kind == "sdist" {
			// All of it arrived, and packages.yml says the hash: it will not be another the next time.
			return fmt.Errorf("%w\n  correct sha256: of the source in packages.yml, if the new file is the one that is meant", err)
		}
		return engine.Fail(engine.CauseNetwork, err)
	}
	return nil
}

// clone fetches one commit, and its submodules at the commits it names.
func (s *sources) clone(ctx context.Context, source record.Source, to string) error {
	git := func(args ...string) error {
		cmd := s.git(source.Location, append([]string{"-C", to, "-c", "advice.detachedHead=false"}, args...)...)
		cmd.Stdout = io.Discard
		_, err := cmd.Run(ctx)
		return whole(err)
	}
	if err := git("init", "--quiet"); err != nil {
		return err
	}
	if err := git("remote", "add", "origin", source.Location); err != nil {
		return err
	}
	// Not every server hands out a bare commit; all of it is the second try.
	if err := git("fetch", "--quiet", "--depth", "1", "origin", source.Commit); err != nil {
		if err := git("fetch", "--quiet", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*"); err != nil {
			return engine.Fail(engine.CauseNetwork, fmt.Errorf("fetch %s: %w", source.Location, err))
		}
	}
	if err := git("checkout", "--quiet", source.Commit); err != nil {
		return fmt.Errorf("check out %s of %s: %w", source.Commit, source.Location, err)
	}
	if !source.Submodules {
		return nil
	}
	if _, err := os.Stat(filepath.Join(to, ".gitmodules")); err != nil {
		return nil //nolint:nilerr // no submodules
	}
	if err := git("submodule", "sync", "--quiet", "--recursive"); err != nil {
		return err
	}
	if err := git("submodule", "update", "--quiet", "--init", "--recursive", "--depth", "1"); err != nil {
		if err := git("submodule", "update", "--quiet", "--init", "--recursive"); err != nil {
			return engine.Fail(engine.CauseNetwork, fmt.Errorf("submodules of %s: %w", source.Location, err))
		}
	}
	return nil
}

func (s *sources) commitTime(ctx context.Context, dir string) (time.Time, error) {
	var out strings.Builder
	cmd := run.Cmd{Argv: []string{"git", "-C", dir, "log", "-1", "--format=%ct"}, Env: s.gitEnv, Stdout: &out}
	if _, err := cmd.Run(ctx); err != nil {
		return time.Time{}, err
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(out.String()), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("date of the commit: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// tree lists the files that belong to a local source, relative and sorted: in a git
// work tree those that git knows or would add, elsewhere all but caches, results of
// earlier builds and kiln's own folders.
func (s *sources) tree(ctx context.Context, dir string) ([]string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", dir)
	}
	var files []string
	if inGit(dir) {
		var out strings.Builder
		cmd := run.Cmd{
			Argv: []string{"git", "-C", dir, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--recurse-submodules"},
			Env:  s.gitEnv, Stdout: &out, Stderr: io.Discard,
		}
		_, err := cmd.Run(ctx)
		if err != nil { // --others and submodules exclude each other in some versions
			out.Reset()
			cmd.Argv = slices.DeleteFunc(cmd.Argv, func(a string) bool { return a == "--recurse-submodules" })
			_, err = cmd.Run(ctx)
		}
		if err == nil {
			for name := range strings.SplitSeq(strings.TrimSuffix(out.String(), "\x00"), "\x00") {
				if name == "" || s.excluded(filepath.Join(dir, name)) {
					continue
				}
				if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && !info.IsDir() {
					files = append(files, filepath.ToSlash(name))
				}
			}
			if len(files) > 0 {
				slices.Sort(files)
				return slices.Compact(files), nil
			}
		}
	}
	err = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		switch {
		case s.excluded(name), leftover(rel, d):
			if d.IsDir() {
				return filepath.SkipDir
			}
		case !d.IsDir():
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	slices.Sort(files)
	return files, err
}

func (s *sources) excluded(name string) bool {
	return slices.ContainsFunc(s.exclude, func(e string) bool { return name == e || strings.HasPrefix(name, e+string(filepath.Separator)) })
}

// leftover reports what builds, interpreters and editors leave in a source folder.
// setuptools takes objects in an old build/ folder for its own.
func leftover(rel string, d fs.DirEntry) bool {
	name := d.Name()
	if !d.IsDir() {
		return strings.HasSuffix(name, ".pyc")
	}
	switch name {
	case ".git", ".hg", ".svn", "__pycache__", ".venv", ".tox", ".pytest_cache", ".mypy_cache", ".kiln":
		return true
	}
	return rel == "build" || rel == "dist" || strings.HasSuffix(name, ".egg-info")
}

func inGit(dir string) bool {
	for {
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
			return true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return false
		}
		dir = parent
	}
}

// treeDigest hashes names, executable bits, link targets and contents.
func (s *sources) treeDigest(ctx context.Context, dir string) (string, error) {
	return s.eachFile(ctx, dir, func(string, fs.FileMode, io.Reader) error { return nil })
}

// copyTree copies the files of a local source and returns the digest of what it copied.
func (s *sources) copyTree(ctx context.Context, dir, to string) (string, error) {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return "", err
	}
	defer root.Close()
	return s.eachFile(ctx, dir, func(rel string, mode fs.FileMode, content io.Reader) error {
		return writeFile(root, filepath.FromSlash(rel), mode, content)
	})
}

func (s *sources) eachFile(ctx context.Context, dir string, visit func(rel string, mode fs.FileMode, content io.Reader) error) (string, error) {
	files, err := s.tree(ctx, dir)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, rel := range files {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		name := filepath.Join(dir, filepath.FromSlash(rel))
		info, err := os.Lstat(name)
		if err != nil {
			return "", err
		}
		var content io.ReadCloser
		mode := info.Mode()
		switch {
		case mode&fs.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return "", err
			}
			content = io.NopCloser(strings.NewReader(target))
		case mode.IsRegular():
			if content, err = fsx.Open(name); err != nil {
				return "", err
			}
		default:
			continue // sockets and pipes are no source
		}
		own := sha256.New()
		err = visit(rel, mode, io.TeeReader(content, own))
		if err == nil {
			_, err = io.Copy(own, content) // what the visitor left
		}
		_ = content.Close()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%q %v %v %x\n", rel, mode&0o100 != 0, mode&fs.ModeSymlink != 0, own.Sum(nil))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// writeFile writes one file or link below root, which nothing can lead out of.
func writeFile(root *os.Root, name string, mode fs.FileMode, content io.Reader) error {
	if dir := filepath.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	if mode&fs.ModeSymlink != 0 {
		target, err := io.ReadAll(io.LimitReader(content, 1<<16))
		if err != nil {
			return err
		}
		return root.Symlink(string(target), name)
	}
	perm := fs.FileMode(0o666)
	if mode&0o100 != 0 {
		perm = 0o777
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// copyFolder copies a folder with links and times as they are: git compares times.
func copyFolder(from, to string) error {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return root.MkdirAll(rel, 0o777)
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(name)
			if err != nil {
				return err
			}
			return root.Symlink(link, rel)
		}
		f, err := fsx.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := writeFile(root, rel, info.Mode(), f); err != nil {
			return err
		}
		return root.Chtimes(rel, info.ModTime(), info.ModTime())
	})
}
