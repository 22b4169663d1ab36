package fatbin_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/audit/internal/fatbin"
)

// TestCubinSuffix: without the note of ptxas's command line, "a" is still known from the
// compatibility attributes, and "f" is not.
func TestCubinSuffix(t *testing.T) {
	for file, want := range map[string]string{"nvcc130-90a.cubin": "sm_90a", "nvcc130-100f.cubin": "sm_100"} {
		data := golden(t, file)
		if bytes.Count(data, []byte("-arch sm_")) != 1 {
			t.Fatalf("%s: not one command line", file)
		}
		data = bytes.Replace(data, []byte("-arch sm_"), []byte("-arch xx_"), 1)
		got, err := fatbin.ReadCubin(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Error(err)
		}
		if got.Target() != want {
			t.Errorf("%s: %s, want %s", file, got.Target(), want)
		}
	}
	object := golden(t, "nvcc130.o")
	if _, err := fatbin.ReadCubin(bytes.NewReader(object), int64(len(object))); !errors.Is(err, fatbin.ErrUnknownFormat) {
		t.Errorf("host object: %v", err)
	}
}

// TestFlags: what the bits of an entry header say, as cuobjdump 13.2 reads them.
func TestFlags(t *testing.T) {
	type facts struct {
		Host, Compression, Suffix string
		Debug                     bool
	}
	for flags, want := range map[uint64]facts{
		0x1:       {},
		0x11:      {Host: "linux"},
		0x21:      {Host: "mac"},
		0x41:      {Host: "windows"},
		0x13:      {Host: "linux", Debug: true},
		0x1011:    {Host: "linux", Compression: "unknown"},
		0x2011:    {Host: "linux", Compression: "lz4"},
		0x4011:    {Host: "linux", Compression: "unknown"},
		0x8011:    {Host: "linux", Compression: "zstd"},
		0x100011:  {Host: "linux", Suffix: "a"},
		0x200011:  {Host: "linux", Suffix: "f"},
		0x1208011: {Host: "linux", Suffix: "f", Compression: "zstd"},
	} {
		file := makeContainer(sass80)
		copy(file[16+40:], []byte{byte(flags), byte(flags >> 8), byte(flags >> 16), byte(flags >> 24)})
		c, err := scan(file)
		if err != nil || len(c.Entries) != 1 {
			t.Errorf("%#x: %d entries, %v", flags, len(c.Entries), err)
			continue
		}
		e := c.Entries[0]
		if diff := cmp.Diff(want, facts{e.Host(), e.Compression, e.Suffix, e.Debug()}); diff != "" {
			t.Errorf("%#x (-want +got):\n%s", flags, diff)
		}
	}
}

// TestKinds: names and targets of every kind of image, also of an unknown one.
func TestKinds(t *testing.T) {
	var got []string
	for _, k := range []fatbin.Kind{1, 2, 4, 8, 16, 32, 64, 128, 256} {
		got = append(got, k.String()+" "+fatbin.Entry{Kind: k, Arch: 90, Suffix: "a"}.Target())
	}
	want := []string{
		"PTX compute_90a", "SASS sm_90a", "old cubin sm_90a", "LTO-IR lto_90a", "kind 16 sm_90a", "index sm_90a",
		"relocatable PTX compute_90a", "tile IR compute_90a", "concatenated sm_90a",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
