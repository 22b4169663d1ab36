// Command dist makes the files of a release of kiln: static binaries, wheels that carry them, man
// pages and shell completions, checksums, a bill of materials and a statement of provenance.
//
//	go run ./dev/dist -out .cache/dist
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/sign"
)

// target is a system that kiln is released for, and the platform tags of its wheel. Static binaries
// run with every C library; the oldest kernels and systems are those of Go.
type target struct{ os, arch, tags string }

var targets = []target{
	{"linux", "amd64", "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64"},
	{"linux", "arm64", "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"},
	{"darwin", "amd64", "macosx_12_0_x86_64"},
	{"darwin", "arm64", "macosx_12_0_arm64"},
	{"windows", "amd64", "win_amd64"},
	{"windows", "arm64", "win_arm64"},
}

type config struct {
	out, version, key, tag string
	only                   *regexp.Regexp
	modified               time.Time // of everything in archives
	commit                 string
	changed                bool // the checkout has changes that are in no commit
}

func main() {
	var c config
	flag.StringVar(&c.out, "out", ".cache/dist", "the folder to write; it is replaced")
	flag.StringVar(&c.version, "version", "", "the version (default: that of pyproject.toml)")
	flag.StringVar(&c.key, "sign-key", "", "a file with an Ed25519 key that signs the provenance")
	flag.StringVar(&c.tag, "tag", "", "the tag that the release is for; it must be v and the version")
	only := flag.String("only", "", "only targets such as linux/amd64 that match")
	flag.Parse()
	c.only = regexp.MustCompile(*only)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, c)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, c config) error {
	if err := c.complete(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.out), 0o755); err != nil {
		return err
	}
	dir, err := fsx.MkdirTemp(c.out)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var native string
	var binaries []string
	for _, t := range targets {
		if !c.only.MatchString(t.os + "/" + t.arch) {
			continue
		}
		binary, err := c.build(ctx, dir, t)
		if err != nil {
			return err
		}
		if t.os == runtime.GOOS && t.arch == runtime.GOARCH {
			native = binary
		}
		binaries = append(binaries, binary)
		if err := c.writeWheel(dir, t, binary); err != nil {
			return err
		}
	}
	if len(binaries) == 0 {
		return fmt.Errorf("-only %s matches no target", c.only)
	}
	if native != "" { // it describes itself
		if err := c.writeManuals(ctx, dir, native); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(out, "no man pages and completions: kiln for %s/%s was not built\n", runtime.GOOS, runtime.GOARCH)
	}
	if err := c.writeSBOM(dir, binaries); err != nil {
		return err
	}
	subjects, err := writeSums(dir)
	if err != nil {
		return err
	}
	if err := c.writeProvenance(dir, subjects); err != nil {
		return err
	}
	if err := fsx.RenameDir(dir, c.out, fsx.RenameDirOptions{Replace: true}); err != nil {
		return err
	}
	for _, s := range subjects {
		fmt.Fprintln(out, s.Digest["sha256"], "", s.Name)
	}
	if c.changed {
		fmt.Fprintf(out, "the checkout has changes: this is not a release of %s\n", c.commit)
	}
	return nil
}

// complete finds the version, the commit and its time, which all files in archives get.
func (c *config) complete(ctx context.Context) error {
	if c.version == "" {
		text, err := os.ReadFile("pyproject.toml")
		if err != nil {
			return err
		}
		m := regexp.MustCompile(`(?m)^version = "([^"]+)"`).FindSubmatch(text)
		if m == nil {
			return fmt.Errorf("pyproject.toml has no version")
		}
		c.version = string(m[1])
	}
	if c.tag != "" && c.tag != "v"+c.version {
		return fmt.Errorf("the tag is %s, and pyproject.toml has version %s", c.tag, c.version)
	}
	line, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%H %cI").Output()
	if err != nil {
		return fmt.Errorf("git log: %w; a release is made from a checkout", err)
	}
	commit, when, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
	if c.modified, err = time.Parse(time.RFC3339, when); err != nil {
		return err
	}
	c.commit, c.modified = commit, c.modified.UTC()
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
	if err != nil {
		return fmt.Errorf("git status: %w", err)
	}
	c.changed = len(changes) > 0
	return nil
}

func (c *config) build(ctx context.Context, dir string, t target) (string, error) {
	name := filepath.Join(dir, fmt.Sprintf("kiln-%s-%s-%s", c.version, t.os, t.arch))
	if t.os == "windows" {
		name += ".exe"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.released=yes -X main.version="+c.version, "-o", name, "./cmd/kiln")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+t.os, "GOARCH="+t.arch)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go build for %s/%s: %w", t.os, t.arch, err)
	}
	return name, nil
}

// writeManuals writes an archive with the man pages and completions that a binary makes of itself.
func (c *config) writeManuals(ctx context.Context, dir, binary string) error {
	files := map[string][]byte{}
	text, err := exec.CommandContext(ctx, binary, "commands").Output()
	if err != nil {
		return fmt.Errorf("kiln commands: %w", err)
	}
	var root command
	if err := json.Unmarshal(text, &root); err != nil {
		return err
	}
	manPages(root, c.version, c.modified, files)
	for shell, path := range map[string]string{
		"bash": "bash-completion/completions/kiln", "zsh": "zsh/site-functions/_kiln", "fish": "fish/vendor_completions.d/kiln.fish", "powershell": "kiln.ps1",
	} {
		if files[path], err = exec.CommandContext(ctx, binary, "completion", shell).Output(); err != nil {
			return fmt.Errorf("kiln completion %s: %w", shell, err)
		}
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	t := tar.NewWriter(z)
	for _, name := range names {
		if err := t.WriteHeader(&tar.Header{Name: "share/" + name, Mode: 0o644, Size: int64(len(files[name])), ModTime: c.modified}); err != nil {
			return err
		}
		if _, err := t.Write(files[name]); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kiln-"+c.version+"-share.tar.gz"), packed.Bytes(), 0o644)
}

// component is a part of a bill of materials in CycloneDX.
type component map[string]any

// linked returns what is linked into any of the binaries, each once.
func linked(binaries []*buildinfo.BuildInfo) (components []component, refs []string) {
	add := func(name, version string) {
		ref := "pkg:golang/" + name + "@" + version
		if !slices.Contains(refs, ref) {
			refs = append(refs, ref)
			components = append(components, component{"type": "library", "bom-ref": ref, "name": name, "version": version, "purl": ref})
		}
	}
	for _, info := range binaries {
		add("std", info.GoVersion)
		for _, d := range info.Deps {
			add(d.Path, d.Version)
		}
	}
	return components, refs
}

// writeSBOM writes what is linked into the binaries, as the linker recorded it.
func (c *config) writeSBOM(dir string, binaries []string) error {
	var infos []*buildinfo.BuildInfo
	for _, binary := range binaries {
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			return err
		}
		infos = append(infos, info)
	}
	components, refs := linked(infos)
	self := "pkg:golang/github.com/kiln-build/kiln@" + c.version
	return writeJSON(filepath.Join(dir, "kiln-"+c.version+".cdx.json"), map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   map[string]any{"timestamp": c.modified, "component": component{"type": "application", "bom-ref": self, "name": "kiln", "version": c.version, "purl": self}},
		"components": components, "dependencies": []any{map[string]any{"ref": self, "dependsOn": refs}},
	})
}

// writeSums writes SHA256SUMS, as sha256sum -c reads it.
func writeSums(dir string) ([]sign.Subject, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var subjects []sign.Subject
	var sums strings.Builder
	for _, e := range entries {
		sum, _, err := fsx.SHA256(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, sign.NewSubject(e.Name(), sum))
		fmt.Fprintf(&sums, "%s  %s\n", sum, e.Name())
	}
	return subjects, os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}

// writeProvenance writes a SLSA statement about all files, signed if there is a key.
func (c *config) writeProvenance(dir string, subjects []sign.Subject) error {
	source := map[string]any{"uri": "git+https://github.com/kiln-build/kiln", "digest": map[string]string{"gitCommit": c.commit}}
	if c.changed {
		source["annotations"] = map[string]bool{"changed": true}
	}
	statement := map[string]any{
		"_type": sign.StatementType, "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":            "https://github.com/kiln-build/kiln/dev/dist/v1",
				"externalParameters":   map[string]any{"version": c.version},
				"resolvedDependencies": []any{source},
			},
			"runDetails": map[string]any{"builder": map[string]any{"id": "https://github.com/kiln-build/kiln/dev/dist", "version": map[string]string{"go": runtime.Version()}}},
		},
	}
	name := filepath.Join(dir, "kiln-"+c.version+".provenance.json")
	if c.key == "" {
		return writeJSON(name, statement)
	}
	key, err := sign.ReadPrivateKey(c.key)
	if err != nil {
		return fmt.Errorf("-sign-key: %w", err)
	}
	text, err := json.Marshal(statement)
	if err != nil {
		return err
	}
	sealed, err := sign.Seal(text, key)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kiln-"+c.version+".intoto.jsonl"), sealed, 0o644)
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
