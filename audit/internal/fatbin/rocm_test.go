package fatbin_test

import (
	"bytes"
	"compress/zlib"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// codeObject is an entry of a bundle.
type codeObject struct {
	id   string
	data []byte
}

// makeBundle writes a bundle as clang does.
func makeBundle(objects ...codeObject) []byte {
	size := 32
	for _, o := range objects {
		size += 24 + len(o.id)
	}
	head := []byte("__CLANG_OFFLOAD_BUNDLE__")
	head = binary.LittleEndian.AppendUint64(head, uint64(len(objects)))
	var body []byte
	for _, o := range objects {
		for (size+len(body))%64 != 0 {
			body = append(body, 0)
		}
		head = binary.LittleEndian.AppendUint64(head, uint64(size+len(body)))
		head = binary.LittleEndian.AppendUint64(head, uint64(len(o.data)))
		head = binary.LittleEndian.AppendUint64(head, uint64(len(o.id)))
		head = append(head, o.id...)
		body = append(body, o.data...)
	}
	return append(head, body...)
}

// compressBundle packs a bundle in a version of the format and with a method.
func compressBundle(t testing.TB, bundle []byte, version int, method string) []byte {
	t.Helper()
	var packed bytes.Buffer
	number := uint16(0)
	var z io.WriteCloser = zlib.NewWriter(&packed)
	if method == fatbin.Zstd {
		number = 1
		var err error
		if z, err = zstd.NewWriter(&packed, zstd.WithEncoderConcurrency(1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := z.Write(bundle); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	out := []byte("CCOB")
	out = le.AppendUint16(out, uint16(version))
	out = le.AppendUint16(out, number)
	switch version {
	case 1:
		out = le.AppendUint32(out, uint32(len(bundle)))
	case 2:
		out = le.AppendUint32(out, uint32(24+packed.Len()))
		out = le.AppendUint32(out, uint32(len(bundle)))
	case 3:
		out = le.AppendUint64(out, uint64(32+packed.Len()))
		out = le.AppendUint64(out, uint64(len(bundle)))
	}
	sum := md5.Sum(bundle)
	out = append(out, sum[:8]...)
	return append(out, packed.Bytes()...)
}

// page fills up to the next page, as linkers do between bundles.
func page(b []byte) []byte {
	return append(b, make([]byte, (4096-len(b)%4096)%4096)...)
}

var sample = []codeObject{
	{"host-x86_64-unknown-linux-gnu-", nil},
	{"hipv4-amdgcn-amd-amdhsa--gfx906", bytes.Repeat([]byte("CCOB and __CLANG_OFFLOAD_BUNDLE__ "), 300)},
	{"hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", bytes.Repeat([]byte{1, 2, 3}, 5000)},
	{"hipv4-amdgcn-amd-amdhsa--gfx9-4-generic:xnack+", []byte("x")},
	{"hip-spirv64-amd-amdhsa--amdgcnspirv", []byte("spirv")},
	{"openmp-amdgcn-amd-amdhsa-gfx1100", []byte("no environment")},
	{"hipv4-amdgcn-amd-amdhsa-unknown-gfx1201", []byte("unknown environment")},
}

// targetsOf is what should be found of sample.
func targetsOf(bundle int, compression string) []fatbin.ROCmTarget {
	want := []fatbin.ROCmTarget{
		{Triple: "amdgcn-amd-amdhsa", GFX: "gfx906", Size: 10200, Offload: "hipv4"},
		{Triple: "amdgcn-amd-amdhsa", GFX: "gfx90a", Features: []string{"sramecc+", "xnack-"}, Size: 15000, Offload: "hipv4"},
		{Triple: "amdgcn-amd-amdhsa", GFX: "gfx9-4-generic", Features: []string{"xnack+"}, Size: 1, Offload: "hipv4"},
		{Triple: "spirv64-amd-amdhsa", GFX: "amdgcnspirv", Size: 5, Offload: "hip"},
		{Triple: "amdgcn-amd-amdhsa", GFX: "gfx1100", Size: 14, Offload: "openmp"},
		{Triple: "amdgcn-amd-amdhsa", GFX: "gfx1201", Size: 19, Offload: "hipv4"},
	}
	for i := range want {
		want[i].Bundle, want[i].Compression = bundle, compression
	}
	return want
}

// TestBundles: bundles of every kind one after another, on pages and without a gap. What
// looks like a magic inside a code object is not one.
func TestBundles(t *testing.T) {
	bundle := makeBundle(sample...)
	for _, gap := range []bool{false, true} {
		var file []byte
		var want []fatbin.ROCmTarget
		add := func(b []byte, compression string) {
			if gap {
				file = page(file)
			}
			file = append(file, b...)
			want = append(want, targetsOf(len(want)/6, compression)...)
		}
		add(bundle, "")
		for version := 1; version <= 3; version++ {
			for _, method := range []string{fatbin.Zlib, fatbin.Zstd} {
				add(compressBundle(t, bundle, version, method), method)
			}
		}
		add(bundle, "")
		got, err := scan(file)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got.ROCm); diff != "" {
			t.Errorf("gap %t (-want +got):\n%s", gap, diff)
		}
	}
}

// bundlers returns the programs that KILN_OFFLOAD_BUNDLERS lists, separated as in PATH, or
// the one in PATH.
func bundlers(t *testing.T) []string {
	t.Helper()
	list := filepath.SplitList(os.Getenv("KILN_OFFLOAD_BUNDLERS"))
	if len(list) == 0 {
		path, err := exec.LookPath("clang-offload-bundler")
		if err != nil {
			kilntest.Lacking(t, "clang-offload-bundler", "%v", err)
		}
		list = []string{path}
	}
	return list
}

// TestOffloadBundler compares with clang's own tool: what it makes is read, and what is
// written here in the forms that it no longer makes, it reads alike.
func TestOffloadBundler(t *testing.T) {
	for _, bundler := range bundlers(t) {
		t.Run(filepath.Base(bundler), func(t *testing.T) {
			version := command(t, t.TempDir(), bundler, "--version")
			t.Log(strings.TrimSpace(strings.SplitN(version, "\n", 2)[0]))
			dir := t.TempDir()
			agreed := 0
			agree := func(name string) {
				t.Helper()
				var want []string
				for id := range strings.Lines(command(t, dir, bundler, "--list", "--type=o", "--input="+name)) {
					if id = strings.TrimSpace(id); id != "" && !strings.HasPrefix(id, "host-") {
						want = append(want, strings.ReplaceAll(strings.ReplaceAll(id, "-unknown-gfx", "--gfx"), "hsa-gfx", "hsa--gfx"))
					}
				}
				var got []string
				for _, r := range scanFile(t, filepath.Join(dir, name)).ROCm {
					got = append(got, fmt.Sprintf("%s-%s--%s", r.Offload, r.Triple, r.ID()))
				}
				slices.Sort(want)
				slices.Sort(got)
				if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
					t.Errorf("%s (-bundler +got):\n%s", name, diff)
					return
				}
				agreed++
			}
			write := func(name string, data []byte) string {
				t.Helper()
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
				return name
			}

			// Written here. A bundle without compression comes first: a bundler too old
			// for compressed ones says so when asked to make one.
			objects := sample[:4]
			agree(write("plain", makeBundle(objects...)))
			agree(write("rdc.o", golden(t, "clang19-rdc.o")))
			help := command(t, dir, bundler, "--help")
			if strings.Contains(help, "--compress ") {
				newest := 2
				if !strings.Contains(version, "version 19") {
					newest = 3
				}
				for v := 1; v <= newest; v++ {
					for _, method := range []string{fatbin.Zlib, fatbin.Zstd} {
						agree(write(fmt.Sprintf("v%d.%s", v, method), compressBundle(t, makeBundle(objects...), v, method)))
					}
				}
			}

			// Made by the bundler.
			write("a", bytes.Repeat([]byte("a code object"), 1000))
			write("b", golden(t, "axpy.cu"))
			write("none", nil)
			for i, options := range [][]string{nil, {"-compress"}, {"-compress", "-compression-level=19"}, {"-bundle-align=4096"}} {
				if i == 1 && !strings.Contains(help, "--compress ") {
					continue
				}
				if i == 2 && !strings.Contains(help, "--compression-level") {
					continue
				}
				out := fmt.Sprintf("made%d", i)
				command(t, dir, bundler, append([]string{
					"--type=bc",
					"--targets=host-x86_64-unknown-linux-gnu-,hipv4-amdgcn-amd-amdhsa--gfx906:xnack+,hipv4-amdgcn-amd-amdhsa--gfx1100",
					"--input=none", "--input=a", "--input=b", "--output=" + out,
				}, options...)...)
				agree(out)
			}
			t.Logf("%d bundles agree", agreed)
		})
	}
}

// TestBundleDamage: damage is told, and the bundle behind it is still found.
func TestBundleDamage(t *testing.T) {
	le := binary.LittleEndian
	objects := slices.Clone(sample)
	objects[1].data = make([]byte, len(objects[1].data)) // nothing that looks like a magic
	bundle := makeBundle(objects...)
	plain := func(f func(b []byte)) []byte {
		b := bytes.Clone(bundle)
		f(b)
		return b
	}
	packed := func(version int, method string, f func(b []byte)) []byte {
		b := compressBundle(t, bundle, version, method)
		f(b)
		return b
	}
	for name, damaged := range map[string][]byte{
		"count":             plain(func(b []byte) { le.PutUint64(b[24:], 1<<60) }),
		"code object size":  plain(func(b []byte) { le.PutUint64(b[40:], 1<<60) }),
		"name length":       plain(func(b []byte) { le.PutUint64(b[48:], 1<<60) }),
		"name":              plain(func(b []byte) { copy(b[56:], "no dashes here, none at all...") }),
		"version":           packed(3, fatbin.Zstd, func(b []byte) { b[4] = 9 }),
		"method":            packed(3, fatbin.Zstd, func(b []byte) { b[6] = 9 }),
		"size":              packed(3, fatbin.Zstd, func(b []byte) { le.PutUint64(b[8:], 1<<60) }),
		"size of nothing":   packed(2, fatbin.Zstd, func(b []byte) { le.PutUint32(b[8:], 0) }),
		"raw size":          packed(2, fatbin.Zstd, func(b []byte) { le.PutUint32(b[12:], 100) }),
		"no zstd frame":     packed(3, fatbin.Zstd, func(b []byte) { b[32] = 0 }),
		"zstd dictionary":   packed(3, fatbin.Zstd, func(b []byte) { b[36] |= 1 }),
		"zstd block":        packed(3, fatbin.Zstd, func(b []byte) { clear(b[40:60]) }),
		"no zlib stream":    packed(2, fatbin.Zlib, func(b []byte) { b[24] = 0 }),
		"zlib data":         packed(2, fatbin.Zlib, func(b []byte) { clear(b[26:60]) }),
		"zlib of version 1": packed(1, fatbin.Zlib, func(b []byte) { le.PutUint32(b[8:], uint32(len(bundle)+1)) }),
	} {
		t.Run(name, func(t *testing.T) {
			file := append(page(damaged), bundle...)
			contents, err := scan(file)
			got := contents.ROCm
			if !errors.Is(err, fatbin.ErrMalformed) {
				t.Errorf("error %v", err)
			}
			if len(got) < 6 {
				t.Fatalf("%d targets", len(got))
			}
			last := got[len(got)-6:]
			if diff := cmp.Diff(targetsOf(last[0].Bundle, ""), last); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
