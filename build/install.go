package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/wheel"
)

// pip installs requirements and returns what it installed: wheels whose hashes the index says from
// the store, so that every file is downloaded once, and the rest from the index.
func (e *environment) pip(ctx context.Context, args []string) ([]record.Installed, error) {
	stored, complete, err := e.fromStore(ctx, args)
	if err != nil || complete {
		return stored, err
	}
	got, err := e.runPip(ctx, true, args)
	return append(stored, got...), err
}

// fromStore lets pip say what it would install, and installs the wheels of that from the store.
// What it cannot do is left to pip alone.
func (e *environment) fromStore(ctx context.Context, args []string) (stored []record.Installed, complete bool, err error) {
	if pipMajor(e.pipHome) < 26 || slices.Contains(args, "--no-index") {
		return nil, false, nil // earlier ones download everything to say it
	}
	// Where the index has no metadata beside the wheels, pip reads them out of these, in parts.
	wanted, err := e.runPip(ctx, true, append([]string{"--dry-run", "--use-feature", "fast-deps"}, args...))
	if err != nil {
		return nil, false, contextCause(ctx) // it fails again, or its way to the metadata was the reason
	}
	var pins, missing []string
	for _, p := range wanted {
		if _, err := wheelName(p); err == nil {
			stored, pins = append(stored, p), append(pins, p.Name+"=="+p.Version)
		}
	}
	if len(pins) == 0 {
		return nil, len(wanted) == 0, nil
	}
	group, fetch := errgroup.WithContext(ctx)
	group.SetLimit(4)
	places := make([]string, len(stored))
	for i, p := range stored {
		if !e.builder.store.hasWheel(p) {
			missing = append(missing, path.Base(p.URL))
		}
		group.Go(func() error {
			var err error
			places[i], err = e.builder.store.wheel(fetch, p)
			return err
		})
	}
	fmt.Fprintf(e.log, "%d wheels, %d of them fetched to the store: %s\n", len(stored), len(missing), strings.Join(missing, " "))
	if err = group.Wait(); err == nil {
		// By folders, as a wheel that is named itself would be noted in the environment.
		install := []string{"--no-deps", "--no-index"}
		for _, dir := range places {
			install = append(install, "--find-links", e.box.Inside(dir))
		}
		_, err = e.runPip(ctx, false, append(install, pins...))
	}
	if err != nil {
		fmt.Fprintf(e.log, "not from the store: %v\n", err)
		return nil, false, contextCause(ctx)
	}
	return stored, len(stored) == len(wanted), nil
}

// contextCause is why a context ended, nil if it did not.
func contextCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// runPip runs pip install, and returns what it says it installed or would install.
func (e *environment) runPip(ctx context.Context, network bool, args []string) ([]record.Installed, error) {
	box, dir, env := e.box, filepath.Dir(e.venv), e.env()
	proxies := e.netEnv(box, env)
	args, secrets, err := e.pipAccess(box, dir, args)
	if err != nil {
		return nil, err
	}
	report := filepath.Join(dir, "pip-report.json")
	os.Remove(report)
	argv := []string{venvPython(box, e.pipHome), "-m", "pip", "--python", venvPython(box, e.venv), "install", "--no-compile", "--report", box.Inside(report)}
	if _, err := e.command(ctx, box, sandbox.Command{Argv: append(argv, args...), Dir: dir, Env: sortedEnv(env), Secrets: slices.Concat(proxies, secrets), Network: network}); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	var r struct {
		Install []struct {
			Metadata struct {
				Name    string `json:"name"`
				Version string `json:"version"`
			} `json:"metadata"`
			Download struct {
				URL     string `json:"url"`
				Archive struct {
					Hashes map[string]string `json:"hashes"`
				} `json:"archive_info"`
			} `json:"download_info"`
		} `json:"install"`
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read pip's report: %w", err)
	}
	out := make([]record.Installed, len(r.Install))
	for i, p := range r.Install {
		out[i] = record.Installed{Name: wheel.NormalizeName(p.Metadata.Name), Version: p.Metadata.Version, URL: secret.Clean(p.Download.URL), SHA256: p.Download.Archive.Hashes["sha256"]}
	}
	return out, nil
}

// pipMajor returns the major version of the pip in an environment, 0 if it is not known.
func pipMajor(dir string) int {
	for _, pattern := range []string{"lib*/python*/site-packages", "Lib/site-packages"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern, "pip-*.dist-info"))
		for _, name := range found {
			major, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), "pip-"), ".")
			n, _ := strconv.Atoi(major)
			return n
		}
	}
	return 0
}

// wheelsDir is the folder of the wheels in the store, by their hashes.
const wheelsDir = "wheels"

// wheelName returns the file name of a wheel that the store can have.
func wheelName(p record.Installed) (string, error) {
	u, err := url.Parse(p.URL)
	if err != nil || len(p.SHA256) != 64 || strings.Trim(p.SHA256, "0123456789abcdef") != "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("not at an address with a hash")
	}
	name := path.Base(u.Path)
	_, err = wheel.ParseFilename(name)
	return name, err
}

func (s *toolStore) wheelDir(p record.Installed) string {
	return filepath.Join(s.dir, wheelsDir, p.SHA256)
}

func (s *toolStore) hasWheel(p record.Installed) bool {
	_, err := os.Stat(s.wheelDir(p))
	return err == nil
}

// wheel returns the folder of a wheel, which it fetches if the store does not have it as it must be.
func (s *toolStore) wheel(ctx context.Context, p record.Installed) (string, error) {
	name, err := wheelName(p)
	if err != nil {
		return "", err
	}
	dir := s.wheelDir(p)
	if sum, _, err := fsx.SHA256(filepath.Join(dir, name)); err == nil && sum == p.SHA256 {
		return dir, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, fsx.MakeDirOnce(ctx, dir, func(temp string) error {
		return s.sources.getFile(ctx, record.Source{Location: p.URL, File: name, Digest: p.SHA256}, filepath.Join(temp, name))
	})
}
