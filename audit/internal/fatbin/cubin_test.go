package fatbin_test

import (
	"bytes"
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
		got, err := scan(data)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{want}, names(got.Entries)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// TestFlags: what the bits of an entry header say, as cuobjdump 13.2 reads them.
func TestFlags(t *testing.T) {
	type facts struct{ Compression, Suffix string }
	for flags, want := range map[uint64]facts{
		0x1:       {},
		0x11:      {},
		0x1011:    {Compression: "unknown"},
		0x2011:    {Compression: "lz4"},
		0x4011:    {Compression: "unknown"},
		0x8011:    {Compression: "zstd"},
		0x100011:  {Suffix: "a"},
		0x200011:  {Suffix: "f"},
		0x1208011: {Suffix: "f", Compression: "zstd"},
	} {
		file := makeContainer(sass80)
		copy(file[16+40:], []byte{byte(flags), byte(flags >> 8), byte(flags >> 16), byte(flags >> 24)})
		c, err := scan(file)
		if err != nil || len(c.Entries) != 1 {
			t.Errorf("%#x: %d entries, %v", flags, len(c.Entries), err)
			continue
		}
		e := c.Entries[0]
		if diff := cmp.Diff(want, facts{e.Compression, e.Suffix}); diff != "" {
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
