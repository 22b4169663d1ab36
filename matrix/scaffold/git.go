package scaffold

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/secret"
)

// repository is what the git folder of a checkout says. Its files are read; git does not run, as
// the configuration of a strange checkout can make it start programs.
type repository struct {
	remote string // as an https address, without credentials
	pos    diag.Pos
	tags   map[string]bool
}

var sectionPattern = regexp.MustCompile(`^\[\s*remote\s+"([^"]*)"\s*\]`)

// scpPattern is the short form of an ssh address: git@host:owner/name.git.
var scpPattern = regexp.MustCompile(`^(?:[A-Za-z0-9_.-]+@)?([A-Za-z0-9.-]+):([^/].*)$`)

func readRepository(root string) repository {
	r := repository{tags: map[string]bool{}}
	dir := filepath.Join(root, ".git")
	if text, err := fsx.ReadFile(dir, maxSmallFile); err == nil { // a worktree, or a submodule
		if link, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir:"); ok {
			if dir = strings.TrimSpace(link); !filepath.IsAbs(dir) {
				dir = filepath.Join(root, dir)
			}
			if common, err := fsx.ReadFile(filepath.Join(dir, "commondir"), maxSmallFile); err == nil {
				dir = filepath.Join(dir, strings.TrimSpace(string(common)))
			}
		}
	}
	config := filepath.Join(dir, "config")
	text, err := fsx.ReadFile(config, maxSmallFile)
	if err != nil {
		return r
	}
	remote, n := "", 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if m := sectionPattern.FindStringSubmatch(line); m != nil {
			remote = m[1]
		} else if strings.HasPrefix(line, "[") {
			remote = ""
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || strings.TrimSpace(key) != "url" || remote == "" || r.remote != "" && remote != "origin" {
			continue
		}
		if address := httpsAddress(strings.TrimSpace(value)); address != "" {
			r.remote, r.pos = address, diag.Pos{File: config, Line: n}
		}
	}
	if packed, err := fsx.ReadFile(filepath.Join(dir, "packed-refs"), maxFile); err == nil {
		for line := range strings.Lines(string(packed)) {
			if _, tag, ok := strings.Cut(line, " refs/tags/"); ok {
				r.tags[strings.TrimSpace(tag)] = true
			}
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "refs", "tags")); err == nil {
		for _, e := range entries {
			r.tags[e.Name()] = true
		}
	}
	return r
}

// httpsAddress turns the address of a public repository into one that needs no key, or "".
func httpsAddress(text string) string {
	if m := scpPattern.FindStringSubmatch(text); m != nil && !strings.Contains(text, "://") {
		text = "https://" + m[1] + "/" + m[2]
	}
	u, err := url.Parse(secret.Clean(text))
	if err != nil || u.Host == "" {
		return ""
	}
	switch u.Scheme {
	case "ssh", "git", "git+ssh":
		u = &url.URL{Scheme: "https", Host: u.Hostname(), Path: u.Path}
	case "https", "http":
	default:
		return ""
	}
	u.User = nil
	return strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), ".git")
}
