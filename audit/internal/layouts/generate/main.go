// Command layouts records how torch's releases lay out the classes that extensions inline:
//
//	go run ./audit/internal/layouts/generate            # every release that a snapshot is built in for
//	go run ./audit/internal/layouts/generate 2.15.0
//
// It reads the headers out of the wheels on the package index, by range requests, compiles a probe
// against them with g++ -g, and reads sizes, bases, members, virtual functions and enumerators from
// the debug information. The result is audit/snapshots/layouts.json. Run it in the root of the
// repository. KILN_PYTHON names the Python with pip, python3 otherwise.
package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/internal/fsx"
)

//go:embed probe.cpp.txt
var probe []byte

const target = "audit/snapshots/layouts.json"

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "layouts:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, versions []string) error {
	if len(versions) == 0 {
		for _, v := range audit.Builtins() {
			public, _, _ := strings.Cut(v, "+")
			versions = append(versions, public)
		}
	}
	var all audit.Layouts
	data, err := os.ReadFile(target)
	if err == nil {
		err = json.Unmarshal(data, &all)
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "kiln-layouts-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cuda := filepath.Join(dir, "cuda")
	for _, wheel := range []string{"nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cuda-nvcc-cu12==12.8.93"} {
		if err := headers(ctx, wheel, "/include/", cuda); err != nil {
			return err
		}
	}
	for _, version := range versions {
		torch := filepath.Join(dir, "torch-"+version)
		if err := headers(ctx, "torch=="+version, "torch/include/", torch); err != nil {
			return err
		}
		types, err := compile(ctx, torch, cuda)
		if err != nil {
			return fmt.Errorf("torch %s: %w", version, err)
		}
		all.Set(version, types)
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", " ")
		if err := enc.Encode(&all); err != nil {
			return err
		}
		if err := fsx.WriteFile(target, text.Bytes(), 0o666); err != nil {
			return err
		}
		fmt.Printf("torch %s: %d types\n", version, len(types))
		if err := os.RemoveAll(torch); err != nil {
			return err
		}
	}
	return nil
}

// compile compiles the probe and reads its debug information.
func compile(ctx context.Context, torch, cuda string) (map[string]audit.Layout, error) {
	source, object := filepath.Join(torch, "probe.cpp"), filepath.Join(torch, "probe.o")
	if err := os.WriteFile(source, probe, 0o666); err != nil {
		return nil, err
	}
	args := []string{
		"-std=c++20", "-g", "-gdwarf-5", "-O0", "-c", "-w", "-fno-access-control", "-femit-class-debug-always", "-DKILN_CUDA",
		"-I", filepath.Join(torch, "torch", "include"), "-I", filepath.Join(torch, "torch", "include", "torch", "csrc", "api", "include"),
	}
	// Each Python package of CUDA has a folder of its own.
	folders, err := filepath.Glob(filepath.Join(cuda, "nvidia", "*", "include"))
	if err != nil {
		return nil, err
	}
	for _, folder := range folders {
		args = append(args, "-I", folder)
	}
	args = append(args, "-o", object, source)
	if out, err := exec.CommandContext(ctx, cmp.Or(os.Getenv("CXX"), "g++"), args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out[:min(len(out), 3000)])
	}
	return read(object)
}

// headers unpacks the files of a wheel whose names contain part into dir.
func headers(ctx context.Context, requirement, part, dir string) error {
	address, err := find(ctx, requirement)
	if err != nil {
		return err
	}
	r, err := openRemote(ctx, address)
	if err != nil {
		return fmt.Errorf("%s: %w", requirement, err)
	}
	z, err := zip.NewReader(r, r.size)
	if err != nil {
		return fmt.Errorf("%s: %w", requirement, err)
	}
	wanted := slices.DeleteFunc(z.File, func(f *zip.File) bool {
		return !strings.Contains(f.Name, part) || strings.HasSuffix(f.Name, "/") || !filepath.IsLocal(f.Name)
	})
	if len(wanted) == 0 {
		return fmt.Errorf("%s: no %s in it", requirement, part)
	}
	// Headers lie next to each other: ReadAt loads ahead.
	for _, f := range wanted {
		if err := unpack(f, filepath.Join(dir, filepath.FromSlash(f.Name))); err != nil {
			return fmt.Errorf("%s: %s: %w", requirement, f.Name, err)
		}
	}
	return nil
}

func unpack(f *zip.File, name string) error {
	src, err := f.Open()
	if err != nil {
		return err
	}
	defer src.Close()
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	dst, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// find asks pip for the address of a wheel, without downloading it.
func find(ctx context.Context, requirement string) (string, error) {
	args := []string{"-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", "--target", os.TempDir(), "--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.12"}
	for _, platform := range []string{"manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"} {
		args = append(args, "--platform", platform)
	}
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("KILN_PYTHON"), "python3"), append(args, requirement)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("pip install --dry-run %s: %w", requirement, err)
	}
	var report struct {
		Install []struct {
			Download struct {
				URL string `json:"url"`
			} `json:"download_info"`
		} `json:"install"`
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Install) != 1 {
		return "", errors.Join(err, fmt.Errorf("pip reports %d wheels of %s, want 1", len(report.Install), requirement))
	}
	return report.Install[0].Download.URL, nil
}

// A remote is a file on a server that answers range requests. It keeps what it has read.
type remote struct {
	ctx     context.Context
	address string
	size    int64
	parts   []part
}

type part struct {
	at   int64
	data []byte
}

// openRemote reads the end of the file, where the directory of an archive is.
func openRemote(ctx context.Context, address string) (*remote, error) {
	r := &remote{ctx: ctx, address: address}
	const tail = 4 << 20
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	if r.size = resp.ContentLength; r.size <= 0 {
		return nil, fmt.Errorf("the server does not say how large the file is (%s)", resp.Status)
	}
	return r, r.load(max(0, r.size-tail), r.size)
}

// load reads a part of the file.
func (r *remote) load(from, to int64) error {
	req, err := http.NewRequestWithContext(r.ctx, http.MethodGet, r.address, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("want a part of the file, got %s", resp.Status)
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, resp.Body); err != nil {
		return err
	}
	if int64(data.Len()) != to-from {
		return fmt.Errorf("%d bytes of %d", data.Len(), to-from)
	}
	r.parts = append(r.parts, part{from, data.Bytes()})
	return nil
}

// ReadAt reads from what was loaded, and loads a little more where that is not enough.
func (r *remote) ReadAt(p []byte, off int64) (int, error) {
	if off >= r.size {
		return 0, io.EOF
	}
	end := min(off+int64(len(p)), r.size)
	for _, have := range r.parts {
		if off >= have.at && end <= have.at+int64(len(have.data)) {
			n := copy(p, have.data[off-have.at:end-have.at])
			if n < len(p) {
				return n, io.EOF
			}
			return n, nil
		}
	}
	if err := r.load(off, min(max(end, off+8<<20), r.size)); err != nil {
		return 0, err
	}
	return r.ReadAt(p, off)
}
