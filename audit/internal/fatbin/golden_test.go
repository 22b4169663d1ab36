package fatbin_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
)

// goldens says what is in the files of testdata, which generate.sh made. Kinds, targets,
// identifiers and options were compared with cuobjdump 13.2, AMD targets with
// clang-offload-bundler 22; cuobjdump does not read the Windows files, and lists no bare
// cubin. Sizes of NVIDIA images are proved by their payloads.
var goldens = []struct {
	file   string
	format fatbin.Format
	want   []string
}{
	{"nvcc118.o", fatbin.FormatELF, []string{
		".nv_fatbin 0: SASS sm_60, 3272 bytes",
		".nv_fatbin 0: SASS sm_80, 4136 bytes",
		".nv_fatbin 0: PTX compute_80 7.8, 1397 bytes, lz4 658",
	}},
	{"nvcc118-lto.o", fatbin.FormatELF, []string{
		`__nv_relfatbin 0: LTO-IR lto_80, 4052 bytes, lz4 4067, options "-ftz=0 -prec_div=1 -prec_sqrt=1 -fmad=1 "`,
	}},
	{"nvcc124-90a.o", fatbin.FormatELF, []string{
		".nv_fatbin 0: SASS sm_90a, 4656 bytes, lz4 1273, of axpy.cu",
		".nv_fatbin 0: PTX compute_90a 8.4, 1414 bytes, lz4 666, of axpy.cu",
	}},
	{"nvcc124.so", fatbin.FormatELF, []string{
		"__nv_relfatbin 0: SASS sm_80, 4032 bytes, lz4 1225",
		`__nv_relfatbin 0: PTX compute_80 8.4, 1413 bytes, lz4 665, options "--compile-only  "`,
		".nv_fatbin 1: SASS sm_80, 4200 bytes, device link",
	}},
	{"nvcc130.o", fatbin.FormatELF, []string{
		".nv_fatbin 0: SASS sm_90a, 5480 bytes",
		".nv_fatbin 0: SASS sm_100f, 8320 bytes",
		".nv_fatbin 0: PTX compute_120 9.0, 1432 bytes, zstd 489",
	}},
	{"nvcc130-size.fatbin", fatbin.FormatFatbin, []string{
		" 0: SASS sm_120f, 8320 bytes, zstd 1619",
		" 0: PTX compute_120f 9.0, 1433 bytes, zstd 478",
	}},
	{"nvcc130-speed.fatbin", fatbin.FormatFatbin, []string{
		" 0: SASS sm_80, 4712 bytes",
		` 0: PTX compute_80 9.0, 1397 bytes, lz4 684, options " -maxrregcount=32 "`,
	}},
	{"nvcc130-100f.cubin", fatbin.FormatCubin, []string{" 0: SASS sm_100f, 8320 bytes"}},
	{"nvcc130-90a.cubin", fatbin.FormatCubin, []string{" 0: SASS sm_90a, 5480 bytes"}},
	{"nvcc130.a", fatbin.FormatArchive, []string{
		"axpy.o:__nv_relfatbin 0: SASS sm_75, 4288 bytes, zstd 1074",
		"axpy.o:__nv_relfatbin 0: SASS sm_90, 5392 bytes, zstd 1267",
		`axpy.o:__nv_relfatbin 0: PTX compute_90 9.0, 1397 bytes, zstd 480, options "--compile-only  "`,
		"a_longer_name_of_a_member.o:.nv_fatbin 1: PTX compute_80 9.0, 1397 bytes, zstd 480",
	}},
	{"windows.dll", fatbin.FormatPE, []string{
		".nv_fatbin 0: SASS sm_80, 4712 bytes",
		`.nv_fatbin 0: PTX compute_80 9.0, 1397 bytes, lz4 684, options " -maxrregcount=32 "`,
		".nv_fatbin 1: SASS sm_120f, 8320 bytes, zstd 1619, device link",
		".nv_fatbin 1: PTX compute_120f 9.0, 1433 bytes, zstd 478, device link",
	}},
	{"windows.obj", fatbin.FormatCOFF, []string{
		".nv_fatbin 0: SASS sm_80, 4712 bytes",
		`.nv_fatbin 0: PTX compute_80 9.0, 1397 bytes, lz4 684, options " -maxrregcount=32 "`,
		".nv_fatbin 1: SASS sm_120f, 8320 bytes, zstd 1619",
		".nv_fatbin 1: PTX compute_120f 9.0, 1433 bytes, zstd 478",
	}},
	{"clang17.o", fatbin.FormatELF, []string{
		"0: hipv4 amdgcn-amd-amdhsa gfx1100, 2984 bytes",
		"0: hipv4 amdgcn-amd-amdhsa gfx90a:sramecc+:xnack-, 3560 bytes",
	}},
	{"clang19.o", fatbin.FormatELF, []string{
		"0: hipv4 amdgcn-amd-amdhsa gfx1100, 3440 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx906, 2968 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx90a:xnack+, 4016 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx90a:xnack-, 4016 bytes, zstd",
	}},
	{"clang19-rdc.o", fatbin.FormatELF, []string{
		"0: hip amdgcn-amd-amdhsa gfx1100, 3756 bytes",
		"0: hip amdgcn-amd-amdhsa gfx906, 3688 bytes",
		"0: hip amdgcn-amd-amdhsa gfx90a:xnack+, 3900 bytes",
		"0: hip amdgcn-amd-amdhsa gfx90a:xnack-, 3900 bytes",
	}},
	{"clang22.o", fatbin.FormatELF, []string{
		"0: hipv4 amdgcn-amd-amdhsa gfx1100, 3744 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx9-4-generic, 4448 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx9-generic, 3400 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx906, 3400 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx90a:xnack+, 4448 bytes, zstd",
		"0: hipv4 amdgcn-amd-amdhsa gfx90a:xnack-, 4448 bytes, zstd",
	}},
}

// render writes entries and targets as goldens has them.
func render(entries []fatbin.Entry, targets []fatbin.ROCmTarget) []string {
	var lines []string
	for _, e := range entries {
		line := fmt.Sprintf("%s %d: %v %s", e.Section, e.Container, e.Kind, e.Target())
		if e.Member != "" {
			line = e.Member + ":" + line
		}
		if e.Kind == fatbin.PTX {
			line += fmt.Sprintf(" %d.%d", e.Major, e.Minor)
		}
		line += fmt.Sprintf(", %d bytes", e.RawSize)
		if e.Compression != "" {
			line += fmt.Sprintf(", %s %d", e.Compression, e.Size)
		}
		if e.Ident != "" {
			line += ", of " + e.Ident
		}
		if e.Options != "" {
			line += fmt.Sprintf(", options %q", e.Options)
		}
		if e.DeviceLink {
			line += ", device link"
		}
		lines = append(lines, line)
	}
	for _, r := range targets {
		line := fmt.Sprintf("%d: %s %s %s, %d bytes", r.Bundle, r.Offload, r.Triple, r.ID(), r.Size)
		if r.Member != "" {
			line = r.Member + ":" + line
		}
		if r.Compression != "" {
			line += ", " + r.Compression
		}
		lines = append(lines, line)
	}
	return lines
}

// golden returns a file of testdata.
func golden(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// scan reads bytes as a file.
func scan(data []byte) (fatbin.Contents, error) {
	return fatbin.Scan(bytes.NewReader(data), int64(len(data)))
}

func TestGolden(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.file, func(t *testing.T) {
			got := scanFile(t, filepath.Join("testdata", g.file))
			if got.Format != g.format {
				t.Errorf("format %q, want %q", got.Format, g.format)
			}
			if diff := cmp.Diff(g.want, render(got.Entries, got.ROCm)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnknown: other files are refused.
func TestUnknown(t *testing.T) {
	for _, text := range []string{"", "x", "MZ but not much more", "\x7fEL", "#!/bin/sh\n"} {
		_, err := scan([]byte(text))
		if !errors.Is(err, fatbin.ErrUnknownFormat) && !errors.Is(err, fatbin.ErrMalformed) {
			t.Errorf("Scan(%q): %v", text, err)
		}
	}
}

// TestDeviceLinkRelocated: lld leaves the address of a container to the relocation.
func TestDeviceLinkRelocated(t *testing.T) {
	data := golden(t, "nvcc124.so")
	want, err := scan(data)
	if err != nil {
		t.Fatal(err)
	}
	wrapper := []byte{0xb1, 0x43, 0x62, 0x46, 2, 0, 0, 0}
	at := bytes.Index(data, wrapper)
	if at < 0 || bytes.Count(data, wrapper) != 1 {
		t.Fatal("not one wrapper of version 2")
	}
	address := data[at+8 : at+16]
	if bytes.Equal(address, make([]byte, 8)) {
		t.Fatal("the address is not stored")
	}
	clear(address)
	got, err := scan(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-stored +relocated):\n%s", diff)
	}
}

// TestLoadable: the device link step's container counts if it was made from something.
func TestLoadable(t *testing.T) {
	for file, want := range map[string][]string{
		"nvcc124.so": {".nv_fatbin 1: SASS sm_80, 4200 bytes, device link"},
		"windows.dll": {
			".nv_fatbin 0: SASS sm_80, 4712 bytes",
			`.nv_fatbin 0: PTX compute_80 9.0, 1397 bytes, lz4 684, options " -maxrregcount=32 "`,
		},
		"nvcc118-lto.o": nil,
	} {
		got, err := scan(golden(t, file))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, render(fatbin.Loadable(got.Entries), nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}
