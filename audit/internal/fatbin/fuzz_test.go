package fatbin_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// seed adds the files of testdata that have a format, and files made here.
func seed(f *testing.F, made [][]byte, formats ...fatbin.Format) {
	f.Helper()
	for _, g := range goldens {
		for _, format := range formats {
			if g.format == format {
				f.Add(golden(f, g.file))
			}
		}
	}
	for _, data := range made {
		f.Add(data)
	}
	fuzzcorpus.Add(f)
}

// fuzzScan holds what is found in any bytes against the promises of the package.
func fuzzScan(t *testing.T, data []byte) {
	got, err := scan(data)
	if err != nil && !errors.Is(err, fatbin.ErrMalformed) && !errors.Is(err, fatbin.ErrNotSupported) && !errors.Is(err, fatbin.ErrUnknownFormat) {
		t.Errorf("error without a cause: %v", err)
	}
	if len(got.Entries) > fatbin.MaxEntries || len(got.ROCm) > fatbin.MaxEntries {
		t.Errorf("%d entries, %d targets", len(got.Entries), len(got.ROCm))
	}
	for _, e := range got.Entries {
		if e.Offset < 0 || e.Size < 0 || e.RawSize < 0 || e.Offset+e.Size > int64(len(data)) {
			t.Errorf("entry outside the file: %+v", e)
		}
	}
	for _, r := range got.ROCm {
		if r.Size < 0 || r.Offload == "host" {
			t.Errorf("target %+v", r)
		}
	}
}

func FuzzELF(f *testing.F) {
	container := makeContainer(sass80, ptx90)
	seed(f, [][]byte{
		makeELF(progbits(".nv_fatbin", container), progbits("__nv_relfatbin", makeContainer(sass90a))),
		makeELF(progbits(".nv_fatbin", append(append(container, make([]byte, 8)...), container...))),
		makeELF(progbits(".hip_fatbin", makeBundle(sample...))),
	}, fatbin.FormatELF, fatbin.FormatCubin)
	f.Fuzz(fuzzScan)
}

func FuzzPE(f *testing.F) {
	seed(f, nil, fatbin.FormatPE, fatbin.FormatCOFF)
	f.Fuzz(fuzzScan)
}

func FuzzArchive(f *testing.F) {
	object := makeELF(progbits(".nv_fatbin", makeContainer(sass80)))
	seed(f, [][]byte{
		append([]byte("!<arch>\n"), member("a.o/", object)...),
		append([]byte("!<arch>\n"), append(member("//", []byte("a_name_that_is_long.o/\n")), member("/0", object)...)...),
		append([]byte("!<arch>\n"), member("#1/4", append([]byte("name"), object...))...),
	}, fatbin.FormatArchive)
	f.Fuzz(fuzzScan)
}

func FuzzROCm(f *testing.F) {
	bundle := makeBundle(sample[:3]...)
	made := [][]byte{bundle, append(page(bytes.Clone(bundle)), bundle...), makeELF(progbits(".hip_fatbin", bundle))}
	for version := 1; version <= 3; version++ {
		for _, method := range []string{fatbin.Zlib, fatbin.Zstd} {
			made = append(made, compressBundle(f, bundle, version, method))
		}
	}
	for _, name := range []string{"clang19.o", "clang22.o", "clang19-rdc.o"} {
		made = append(made, golden(f, name))
	}
	seed(f, made)
	f.Fuzz(fuzzScan)
}

// FuzzScan is for bare containers, and for bytes of any format.
func FuzzScan(f *testing.F) {
	seed(f, [][]byte{
		makeContainer(sass80, ptx90),
		append(makeContainer(), makeContainer(image{kind: 1, arch: 90, flags: 0x2000, payload: []byte("\x10a\x01\x00\x00"), raw: 5})...),
	}, fatbin.FormatFatbin)
	f.Fuzz(fuzzScan)
}
