//go:build ignore

// Generate compiles the kernels and writes them, compressed, beside their sources, with
// images.json. It runs in model/quant/cuda (go generate does) and compiles what is not current:
// with nvcc (KILN_NVCC, or the one on PATH), and for devices that nvcc 13 no longer knows with NVRTC
// 12, the library KILN_NVRTC12. Each may run on a machine of its own: what one of them compiled stays
// while the sources are the same.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-build/kiln/model/quant/cuda"
)

// ptxVersion is the oldest PTX that has all instructions of the kernels for compute capability 8.0.
// Drivers since CUDA 11.8 take it, which is the oldest that has all functions that kiln calls.
const ptxVersion = "7.8"

var flags = []string{"-std=c++17", "-O3"}

// wanted are all images, in the order in which they are tried.
var wanted = []cuda.Image{
	{Module: "pack", Major: 9},
	{Module: "gemm", Major: 9},
	{Module: "wgmma", Major: 9, Specific: true},
	{Module: "tall", Major: 9, Specific: true},
	{Module: "pack", Major: 8, PTX: true},
	{Module: "gemm", Major: 8, PTX: true},
	{Module: "gemm", Major: 7, Minor: 5, PTX: true},
	{Module: "pack", Major: 6, PTX: true},
	{Module: "simt", Major: 6, PTX: true},
}

func main() {
	log.SetFlags(0)
	if err := generate(); err != nil {
		log.Fatal(err)
	}
}

func generate() error {
	// The sources as this program was compiled with, which is now.
	source, err := cuda.SourceHash()
	if err != nil {
		return err
	}
	old, err := cuda.EmbeddedImages()
	if err != nil {
		log.Printf("%v: all are compiled", err)
	}
	nvcc, nvrtc := os.Getenv("KILN_NVCC"), os.Getenv("KILN_NVRTC12")
	if nvcc == "" {
		nvcc, _ = exec.LookPath("nvcc")
	}
	tmp, err := os.MkdirTemp("", "kernels")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	out := slices.Clone(wanted)
	errs := make([]error, len(out))
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for i := range out {
		image := &out[i]
		image.Name = fileName(*image)
		at := slices.IndexFunc(old.Files, func(f cuda.Image) bool { return f.Name == image.Name })
		if at >= 0 {
			image.Source, image.Compiler = old.Files[at].Source, old.Files[at].Compiler
		}
		if _, err := os.Stat("kernels/" + image.Name); err == nil && image.Source == source {
			continue
		}
		g.Go(func() error {
			data, compiler, err := compile(nvcc, nvrtc, tmp, *image)
			if err == nil {
				err = write(image.Name, data)
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", image.Name, err)
				return nil
			}
			image.Source, image.Compiler = source, compiler
			return nil
		})
	}
	_ = g.Wait()
	text, err := json.MarshalIndent(cuda.Images{Files: out}, "", "  ")
	if err != nil {
		return err
	}
	errs = append(errs, os.WriteFile("kernels/images.json", append(text, '\n'), 0o644))
	return errors.Join(errs...)
}

func target(i cuda.Image) string {
	t := fmt.Sprintf("%d%d", i.Major, i.Minor)
	if i.Specific {
		t += "a"
	}
	return t
}

func fileName(i cuda.Image) string {
	kind := "cubin"
	if i.PTX {
		kind = "ptx"
	}
	return i.Module + "_" + target(i) + "." + kind + ".gz"
}

// compile returns an image and what compiled it.
func compile(nvcc, nvrtc, tmp string, i cuda.Image) (data []byte, compiler string, err error) {
	log.Printf("%s", i.Name)
	path := filepath.Join(tmp, i.Name)
	old := 10*i.Major+i.Minor < 75
	switch {
	case old && nvrtc == "":
		return nil, "", errors.New("KILN_NVRTC12 does not name an NVRTC 12")
	case !old && nvcc == "":
		return nil, "", errors.New("no nvcc: KILN_NVCC does not name one, and there is none on PATH")
	case old:
		c, err := cuda.NewCompiler(nvrtc)
		if err != nil {
			return nil, "", err
		}
		if data, err = c.Compile(i.Module, "compute_"+target(i)); err != nil {
			return nil, "", err
		}
		if _, err := c.Compile(i.Module, "sm_"+target(i)); err != nil { // its assembler takes it
			return nil, "", err
		}
		data = oldest(data)
		if nvcc != "" { // and so does that of today, in the version that it says it is
			err = errors.Join(os.WriteFile(path, data, 0o644), assemble(nvcc, "75", path))
		}
		return data, "NVRTC " + c.Version(), err
	}
	version, err := run(nvcc, "--version")
	if err != nil {
		return nil, "", err
	}
	release := regexp.MustCompile(`release [^\n]*V([0-9.]+)`).FindStringSubmatch(version)
	if release == nil {
		return nil, "", fmt.Errorf("%s --version: no release in\n%s", nvcc, version)
	}
	args := []string{"-cubin", "-gencode=arch=compute_" + target(i) + ",code=sm_" + target(i)}
	if i.PTX {
		args = []string{"-ptx", "-arch=compute_" + target(i)}
	}
	if _, err := run(nvcc, slices.Concat(flags, args, []string{"-o", path, "kernels/" + i.Module + ".cu"})...); err != nil {
		return nil, "", err
	}
	if data, err = os.ReadFile(path); err != nil || !i.PTX {
		return data, "nvcc " + release[1], err
	}
	data = oldest(data)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return nil, "", err
	}
	return data, "nvcc " + release[1], assemble(nvcc, target(i), path)
}

func assemble(nvcc, target, path string) error {
	_, err := run(filepath.Join(filepath.Dir(nvcc), "ptxas"), "-arch=sm_"+target, "-o", path+".cubin", path)
	return err
}

// oldest replaces the version of PTX, which is that of the compiler, and which older drivers refuse,
// and takes out a hint that the older version does not know.
func oldest(ptx []byte) []byte {
	ptx = regexp.MustCompile(`(?m)^\s*\.pragma "used_bytes_mask [^\n]*\n`).ReplaceAll(ptx, nil)
	return regexp.MustCompile(`(?m)^\.version .*$`).ReplaceAll(ptx, []byte(".version "+ptxVersion))
}

// write compresses.
func write(name string, data []byte) error {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return os.WriteFile("kernels/"+name, packed.Bytes(), 0o644)
}

func run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, text)
	}
	return string(text), nil
}
