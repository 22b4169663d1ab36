package index

import (
	"bytes"
	"crypto/sha256"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

func testProject() *Project {
	sum := func(s string) Digest { return sha256.Sum256([]byte(s)) }
	return &Project{
		Name: "flash-attn", DisplayName: "Flash.Attn", Status: Deprecated, StatusReason: "a \"b\" <c>", Shared: true,
		Default: Coordinates{Toolkit: "cu128", Torch: []string{"2.9"}},
		Files: []File{
			{Filename: "flash_attn-1.0.tar.gz", SHA256: sum("a"), Size: 1, Yanked: true, UploadTime: time.Date(2026, 8, 1, 12, 0, 0, 1000, time.UTC)},
			{
				Filename: "flash_attn-1.0+cu128.torch2.9-py3-none-any.whl", Base: "https://example.org/", SHA256: sum("b"), Size: 123456789,
				Metadata: sum("m"), RequiresPython: ">=3.9,<4", UploadTime: time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC),
			},
			{
				Filename: "flash_attn-1.1+cu128.torch2.9-py3-none-any.whl", SHA256: sum("f"), Size: 1, Arch: []string{"80", "90a", "120+ptx"},
				Audit: []AuditResult{{Check: "platform", Result: "pass"}, {Check: "linked-libraries", Result: "warn", Detail: "libfoo.so.1 is in no wheel"}},
			},
			{
				Filename: "flash_attn-2.0-py3-none-any.whl", SHA256: sum("c"), Yanked: true, YankedReason: "no \\ good", Provenance: "https://example.org/p",
				Coordinates: Coordinates{Toolkit: "rocm6.4", Torch: []string{"2.9", "2.10"}}, Arch: []string{"gfx90a"},
			},
			{
				Filename: "flash_attn-3.0-py3-none-any-cu128.whl", SHA256: sum("d"),
				Variant: &Variant{Label: "cu128", Namespaces: []string{"nvidia"}, Properties: map[string]map[string][]string{"nvidia": {"sm_arch": {"80_real"}}}},
			},
		},
		Removed: []Tombstone{{"flash_attn-0.9.tar.gz", sum("e")}},
	}
}

func TestBlockRoundTrip(t *testing.T) {
	want := testProject()
	block, err := appendBlock(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseBlock(block, interner{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Project{})); diff != "" {
		t.Error(diff)
	}
	if cut, ok := cutBlock(append(bytes.Clone(block), "more"...)); !ok || !bytes.Equal(cut, block) {
		t.Error("the block does not end where it ends")
	}
	for i := range block {
		if _, ok := cutBlock(block[:i]); ok {
			t.Errorf("a block cut at %d was taken", i)
		}
		damaged := bytes.Clone(block)
		damaged[i] ^= 0x01
		if p, err := parseBlock(damaged, interner{}); err == nil {
			if diff := cmp.Diff(want, p, cmpopts.IgnoreUnexported(Project{})); diff != "" {
				t.Errorf("byte %d changed what is read: %s", i, diff)
			}
		}
	}
}

// FuzzBlock: no bytes make the reader of the catalog panic, and what it accepts it writes
// back to the same meaning.
func FuzzBlock(f *testing.F) {
	block, err := appendBlock(nil, testProject())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(block)
	f.Add([]byte(`{"project":"a","files":0}` + "\n" + `{"end":"a","crc32c":"00000000"}` + "\n"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := tail(bytes.NewReader(data), 0, func(*Project, int64, int64) error { return nil }); err != nil {
			return
		}
		p, err := parseBlock(data, interner{})
		if err != nil {
			return
		}
		again, err := appendBlock(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parseBlock(again, interner{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, q, cmpopts.IgnoreUnexported(Project{}), cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

// FuzzState: the list of projects is read back as it was written, and nothing else is read.
func FuzzState(f *testing.F) {
	st := newState()
	st.log, st.logLen = logName(1), 1000
	p := testProject()
	p.prepare(&Config{})
	st.entries[p.Name] = newEntry(p, p.own, &entry{offset: 10, length: 20})
	f.Add(st.append(nil))
	f.Add([]byte(stateMagic + "\tx\t0\t00000000\t00000000\n"))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		st, err := parseState(data)
		if err != nil {
			return
		}
		again, err := parseState(st.append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(st, again, cmp.AllowUnexported(state{}, entry{}, viewEntry{}), cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
		st.appendCatalog(nil, &Config{Aliases: true})
	})
}

// FuzzLabel: whatever a label says, the coordinates in it are good for a path.
func FuzzLabel(f *testing.F) {
	for _, s := range []string{"cu128.torch2.9", "rocm6.2.4.torch2.4.0", "cu12torch2.8cxx11abitrue", "pt28.cu128", "cu.12.8.torch.2.9"} {
		f.Add(s)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, label string) {
		c := ParseLabel(label)
		if c.IsZero() {
			return
		}
		if again, err := ParseCoordinates(c.String()); err != nil || again.String() != c.String() {
			t.Errorf("ParseLabel(%q) = %q, which reads as %q: %v", label, c, again, err)
		}
	})
}

// FuzzVariant: what is accepted can be merged with itself and read back.
func FuzzVariant(f *testing.F) {
	f.Add([]byte(`{"$schema":"x","default-priorities":{"namespace":["nvidia"]},"variants":{"cu128":{"nvidia":{"sm_arch":["80_real","90_real"]}}}}`), "cu128")
	f.Add([]byte(`{"variants":{"null":{}}}`), "null")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, label string) {
		v, err := ParseVariant(data, label)
		if err != nil {
			return
		}
		merged, err := mergeVariants([]*Variant{v, v})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseVariant(merged, label); err != nil {
			t.Fatalf("%s: %v", merged, err)
		}
	})
}

// FuzzManifest: whatever a manifest says, what is accepted of it can be written to the catalog and
// read back.
func FuzzManifest(f *testing.F) {
	hash := `{"sha256":"` + strings.Repeat("ab", 32) + `"}`
	for _, line := range []string{
		`{"filename":"a-1-py3-none-any.whl","url":"https://x.org/a-1-py3-none-any.whl","hashes":` + hash + `,"size":12,"requires-python":">=3.9","core-metadata":` + hash + `,"upload-time":"2026-08-01T12:00:00Z"}`,
		`{ "filename" : "a" , "size": 0, "hashes": ` + hash + ` } `,
		`{"filename":"a","filename":"b","size":-1}`, `{"size":01}`, `{"size":1.5}`, `{"size":1e3}`, `{"size":999999999999999999999}`,
		`{"filename":"a\u0062","yanked":true}`, `{"Filename":"a"}`, `{"filename":"a",}`, `{"filename":"a"} x`, `{}`, `{"filename":"é"}`, `{"upload-time":""}`, `{"hashes":{}}`,
		`{"filename":"a\u0062","requires-python":"\u003e=3.9,\u003C4"}`, `{"url":"a\/b\"\\c\n"}`, `{"filename":"\u00e9"}`, `{"filename":"\u00"}`, `{"file\u006eame":"\u0000"}`,
		`{"upload-time":"2026-08-01T12:00:00\u005a"}`, `{"filename":"é\u0062"}`, `{"filename":"a`, `{"filename":"a\`, "{\"filename\":\"\"}\x00",
	} {
		f.Add([]byte(line))
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, line []byte) {
		file, err := parseManifestLine(line, interner{})
		if err != nil {
			return
		}
		c, err := listed(&file, &Config{}, time.Unix(1, 0))
		if err != nil {
			return
		}
		want := &Project{Name: c.project, DisplayName: c.project, Files: []File{c.file}}
		block, err := appendBlock(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseBlock(block, interner{})
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Project{}), cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(0)); diff != "" {
			t.Errorf("%q: %s", line, diff)
		}
	})
}

// TestSamePage: two files of which pages say something else are not taken for the same, whatever
// the field.
func TestSamePage(t *testing.T) {
	base := File{
		Filename: "a-1-py3-none-any.whl", Base: "https://x.org/", SHA256: Digest{1}, Size: 1, Metadata: Digest{2}, RequiresPython: ">=3", UploadTime: time.Unix(1, 0),
		YankedReason: "no", Provenance: "https://x.org/p", Coordinates: Coordinates{Toolkit: "cu128", Torch: []string{"2.9"}}, Arch: []string{"80"},
		Glibc: "2.28", Window: []string{"2.9"}, Papers: map[string]Digest{SBOMSuffix: {3}},
	}
	if same := base; !base.samePage(&same) {
		t.Fatal("a file is not like itself")
	}
	for i := range reflect.TypeFor[File]().NumField() {
		other := base
		field := reflect.ValueOf(&other).Elem().Field(i)
		name := reflect.TypeFor[File]().Field(i).Name
		switch name {
		case "Audit", "Variant": // not on pages; see sameHead
			continue
		case "Yanked":
			field.SetBool(true)
		default:
			field.SetZero()
		}
		if base.samePage(&other) {
			t.Errorf("files that differ in %s are taken for the same", name)
		}
	}
}
