package workflow

import (
	"archive/zip"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/publish"
)

//go:embed windows-cuda.json
var windowsCUDAText []byte

// CUDAComponent is one archive of a toolkit.
type CUDAComponent struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Path    string `json:"path"`
	SHA256  string `json:"sha256"`
}

// CUDAToolkit is a toolkit that was put together from components: what was really installed.
type CUDAToolkit struct {
	Format     string          `json:"format"`
	Version    string          `json:"version"`
	Components []CUDAComponent `json:"components"`
}

const cudaToolkitFormat = "kiln-cuda/1"

// CUDAOptions are options of [InstallCUDA].
type CUDAOptions struct {
	// Version is that of the toolkit, 12.8.1.
	Version string
	// Source is the address of the redistributable archives. Default NVIDIA's.
	Source string
	// Dir is where the toolkit comes to be.
	Dir string
	// Client carries the requests; nil means the usual one.
	Client *http.Client
	Retry  publish.Retry
}

// InstallCUDA puts a toolkit for Windows together from the redistributable archives that
// windows-cuda.json lists. Every archive has the hash that its publisher's list gives. A toolkit
// that is there already is left alone.
func InstallCUDA(ctx context.Context, opts CUDAOptions) (*CUDAToolkit, error) {
	var data struct {
		Source, Platform     string
		Components, Required []string
	}
	if err := json.Unmarshal(windowsCUDAText, &data); err != nil {
		return nil, err
	}
	source := strings.TrimSuffix(cmp.Or(opts.Source, data.Source), "/") + "/"
	done := filepath.Join(opts.Dir, "kiln-cuda.json")
	if text, err := os.ReadFile(done); err == nil {
		var have CUDAToolkit
		if json.Unmarshal(text, &have) == nil && have.Format == cudaToolkitFormat && have.Version == opts.Version {
			return &have, nil
		}
		return nil, fmt.Errorf("%s has another toolkit; give another folder", opts.Dir)
	}
	client := opts.Client
	if client == nil {
		client = &http.Client{Timeout: 30 * time.Minute}
	}
	list := map[string]json.RawMessage{}
	err := opts.Retry.Get(ctx, client, source+"redistrib_"+opts.Version+".json", func(body io.Reader) error { return json.NewDecoder(body).Decode(&list) })
	if err != nil {
		return nil, fmt.Errorf("list CUDA %s: %w", opts.Version, err)
	}
	toolkit := &CUDAToolkit{Format: cudaToolkitFormat, Version: opts.Version}
	for _, name := range data.Components {
		var c struct {
			Version string `json:"version"`
		}
		var platforms map[string]json.RawMessage
		if list[name] == nil || json.Unmarshal(list[name], &c) != nil || json.Unmarshal(list[name], &platforms) != nil || platforms[data.Platform] == nil {
			if slices.Contains(data.Required, name) {
				return nil, fmt.Errorf("CUDA %s has no component %s for %s", opts.Version, name, data.Platform)
			}
			continue
		}
		var file struct {
			Path   string `json:"relative_path"`
			SHA256 string `json:"sha256"`
		}
		if err := json.Unmarshal(platforms[data.Platform], &file); err != nil || file.Path == "" || file.SHA256 == "" {
			return nil, fmt.Errorf("CUDA %s: component %s has no archive with a hash", opts.Version, name)
		}
		toolkit.Components = append(toolkit.Components, CUDAComponent{name, c.Version, file.Path, file.SHA256})
	}
	if err := os.MkdirAll(opts.Dir, 0o777); err != nil {
		return nil, err
	}
	for _, c := range toolkit.Components {
		if err := installComponent(ctx, client, source, c, opts); err != nil {
			return nil, fmt.Errorf("CUDA %s: %s: %w", opts.Version, c.Name, err)
		}
	}
	text, err := json.MarshalIndent(toolkit, "", "  ")
	if err != nil {
		return nil, err
	}
	return toolkit, fsx.WriteFile(done, append(text, '\n'), 0o666)
}

// installComponent fetches an archive and unpacks it into the toolkit.
func installComponent(ctx context.Context, client *http.Client, source string, c CUDAComponent, opts CUDAOptions) (err error) {
	archive, err := os.CreateTemp(opts.Dir, ".component-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, archive.Close(), os.Remove(archive.Name())) }()
	var size int64
	err = opts.Retry.Get(ctx, client, source+c.Path, func(body io.Reader) error {
		if _, err := archive.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := archive.Truncate(0); err != nil {
			return err
		}
		h := sha256.New()
		if size, err = io.Copy(io.MultiWriter(archive, h), body); err != nil {
			return err
		}
		if sum := hex.EncodeToString(h.Sum(nil)); sum != strings.ToLower(c.SHA256) {
			return publish.Again(fmt.Errorf("sha256 mismatch: got %s, want %s", sum, c.SHA256))
		}
		return nil
	})
	if err != nil {
		return err
	}
	z, err := zip.NewReader(archive, size)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(opts.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range z.File {
		// Every archive has one folder around everything.
		_, name, ok := strings.Cut(f.Name, "/")
		if name = path.Clean(name); !ok || name == "." || f.FileInfo().IsDir() {
			continue
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return fmt.Errorf("%q leads out of the folder", f.Name)
		}
		if err := unpack(root, f, name); err != nil {
			return err
		}
	}
	return nil
}

func unpack(root *os.Root, f *zip.File, name string) error {
	if err := root.MkdirAll(filepath.FromSlash(path.Dir(name)), 0o777); err != nil {
		return err
	}
	from, err := f.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := root.Create(filepath.FromSlash(name))
	if err != nil {
		return err
	}
	_, err = io.CopyN(to, from, int64(f.UncompressedSize64)) //nolint:gosec // the size that the archive with a known hash says
	return errors.Join(err, to.Close())
}
