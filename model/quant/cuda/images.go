package cuda

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
)

// files has the kernels as CUDA C++, as machine code and as PTX, and images.json.
//
//go:embed kernels/*.cu kernels/*.cuh kernels/images.json kernels/*.gz
var files embed.FS

// Images describes the compiled kernels that are part of the package.
type Images struct {
	// Files are in the order in which they are tried.
	Files []Image `json:"files"`
}

// Image is one compiled file.
type Image struct {
	// Name is the file, Module the source that it was made from, without extension.
	Name   string `json:"name"`
	Module string `json:"module"`
	// Major and Minor are the compute capability it was compiled for.
	Major int `json:"major"`
	Minor int `json:"minor"`
	// PTX runs on that capability and on all later ones, machine code on those of the same major
	// version. Specific machine code (sm_90a) runs on that capability alone.
	PTX      bool `json:"ptx,omitempty"`
	Specific bool `json:"specific,omitempty"`
	// Source is the SHA-256 of all sources when it was compiled, and Compiler by what: "nvcc
	// 13.0.88" for instance, or "NVRTC 12.4".
	Source   string `json:"source_sha256"`
	Compiler string `json:"compiler"`
}

// Compilers returns what compiled the images, each once.
func (i Images) Compilers() []string {
	var out []string
	for _, f := range i.Files {
		if !slices.Contains(out, f.Compiler) {
			out = append(out, f.Compiler)
		}
	}
	return out
}

// runsOn reports whether a device of the capability takes the image.
func (i Image) runsOn(major, minor int) bool {
	switch {
	case i.PTX:
		return major > i.Major || major == i.Major && minor >= i.Minor
	case i.Specific:
		return major == i.Major && minor == i.Minor
	}
	return major == i.Major && minor >= i.Minor
}

// EmbeddedImages returns what kernels the package has.
func EmbeddedImages() (Images, error) { return readImages(embedded()) }

// embedded has the files without their folder.
func embedded() fs.FS {
	sub, err := fs.Sub(files, "kernels")
	if err != nil {
		panic(err) // only for a malformed name
	}
	return sub
}

func readImages(from fs.FS) (Images, error) {
	var out Images
	data, err := fs.ReadFile(from, "images.json")
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		return out, fmt.Errorf("compiled kernels: %w", err)
	}
	return out, nil
}

// SourceHash returns the hash of the embedded sources, which Image.Source has to be.
func SourceHash() (string, error) {
	var names []string
	for _, pattern := range []string{"kernels/*.cu", "kernels/*.cuh"} {
		found, err := fs.Glob(files, pattern)
		if err != nil {
			return "", err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", path.Base(name), len(data))
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// readImage returns a decompressed image. PTX gets the NUL that the driver wants.
func readImage(from fs.FS, i Image) ([]byte, error) {
	data, err := fs.ReadFile(from, i.Name)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("compiled kernels: %s: %w", i.Name, err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("compiled kernels: %s: %w", i.Name, err)
	}
	if i.PTX {
		out = append(out, 0)
	}
	return out, nil
}
