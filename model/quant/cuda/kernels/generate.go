//go:build ignore

// Generate compiles the kernels and writes them, compressed, beside their sources, with
// images.json. It runs in model/quant/cuda (go generate does) and needs nvcc: KILN_NVCC, or the one
// on PATH. It does nothing if the images are current.
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
// Drivers since CUDA 11.8 take it.
const ptxVersion = "7.8"

var flags = []string{"-std=c++17", "-O3"}

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
	if current(source) {
		return nil // compiling takes minutes and a toolkit, and would give the same
	}
	nvcc := os.Getenv("KILN_NVCC")
	if nvcc == "" {
		nvcc = "nvcc"
	}
	version, err := run(nvcc, "--version")
	if err != nil {
		return err
	}
	release := regexp.MustCompile(`release [^\n]*V([0-9.]+)`).FindStringSubmatch(version)
	if release == nil {
		return fmt.Errorf("%s --version: no release in\n%s", nvcc, version)
	}
	out := cuda.Images{Source: source, Compiler: "nvcc " + release[1], Flags: flags, Files: []cuda.Image{
		{Module: "pack", Major: 9},
		{Module: "gemm", Major: 9},
		{Module: "wgmma", Major: 9, Specific: true},
		{Module: "tall", Major: 9, Specific: true},
		{Module: "pack", Major: 8, PTX: true},
		{Module: "gemm", Major: 8, PTX: true},
	}}
	tmp, err := os.MkdirTemp("", "kernels")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for i := range out.Files {
		g.Go(func() (err error) {
			out.Files[i].Name, err = compile(nvcc, tmp, out.Files[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile("kernels/images.json", append(text, '\n'), 0o644)
}

// current reports whether the images are those of the sources and flags as they are.
func current(source string) bool {
	old, err := cuda.EmbeddedImages()
	if err != nil || old.Source != source || !slices.Equal(old.Flags, flags) || len(old.Files) == 0 {
		return false
	}
	for _, f := range old.Files {
		if _, err := os.Stat("kernels/" + f.Name); err != nil {
			return false
		}
	}
	return true
}

func compile(nvcc, tmp string, i cuda.Image) (string, error) {
	target := fmt.Sprintf("%d%d", i.Major, i.Minor)
	if i.Specific {
		target += "a"
	}
	kind, args := "cubin", []string{"-cubin", "-gencode=arch=compute_" + target + ",code=sm_" + target}
	if i.PTX {
		kind, args = "ptx", []string{"-ptx", "-arch=compute_" + target}
	}
	name := i.Module + "_" + target + "." + kind
	path := filepath.Join(tmp, name)
	log.Printf("%s", name)
	if _, err := run(nvcc, slices.Concat(flags, args, []string{"-o", path, "kernels/" + i.Module + ".cu"})...); err != nil {
		return "", err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if i.PTX {
		// nvcc writes its own version, which older drivers refuse. The assembler says whether the
		// older one will do.
		data = regexp.MustCompile(`(?m)^\.version .*$`).ReplaceAll(data, []byte(".version "+ptxVersion))
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return "", err
		}
		if _, err := run(filepath.Join(filepath.Dir(nvcc), "ptxas"), "-arch=sm_"+target, "-o", path+".cubin", path); err != nil {
			return "", err
		}
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	_, err = w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return "", err
	}
	return name + ".gz", os.WriteFile("kernels/"+name+".gz", packed.Bytes(), 0o644)
}

func run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, text)
	}
	return string(text), nil
}
