package compat_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/compat"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// minimal is the smallest table.
const minimal = `{"format": "kiln-compat/1", "date": "2026-11-15"}`

func TestEmbedded(t *testing.T) {
	if _, err := time.Parse(time.DateOnly, compat.Default().Date()); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile("compat.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := compat.Load(strings.NewReader(string(raw))); err != nil {
		t.Error(err)
	}
	var doc map[string]map[string]map[string]any
	var top map[string]any
	if err := json.Unmarshal(raw, &top); err != nil {
		t.Fatal(err)
	}
	delete(top, "format")
	delete(top, "date")
	if src, ok := top["source"].(map[string]any); !ok || len(src) == 0 {
		t.Error("no sources given")
	}
	delete(top, "source")
	rest, _ := json.Marshal(top)
	if err := json.Unmarshal(rest, &doc); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for section, entries := range doc {
		for key, row := range entries {
			rows++
			if row["confidence"] == nil {
				t.Errorf("%s %s has no confidence", section, key)
			}
		}
	}
	if rows < 80 {
		t.Errorf("only %d rows seen", rows)
	}
}

func TestLookups(t *testing.T) {
	tab := compat.Default()
	for in, want := range map[string]string{"12.8.1": "12.8", "12.8": "12.8", "2.10.0": "2.10", "13": "13", "": "", "x": "x"} {
		if got := compat.Minor(in); got != want {
			t.Errorf("Minor(%q) = %q, want %q", in, got, want)
		}
	}
	for _, tt := range []struct{ cuda, rocm, tag, index string }{
		{"12.8.1", "", "cu128", "cu128"},
		{"11.8", "", "cu118", "cu118"},
		{"", "6.2.4", "rocm6.2.4", "rocm6.2.4"},
		{"", "5.6", "rocm5.6", "rocm5.6"},
		{"", "", "", "cpu"},
	} {
		if tag, index := compat.ToolkitTag(tt.cuda, tt.rocm), compat.TorchIndexSuffix(tt.cuda, tt.rocm); tag != tt.tag || index != tt.index {
			t.Errorf("%v: got %q, %q", tt, tag, index)
		}
	}
	for _, tt := range []struct{ os, tag, system string }{
		{"linux", "linux_x86_64", "linux"},
		{"linux-arm", "linux_aarch64", "linux-arm"},
		{"windows", "win_amd64", "windows"},
		{"macos", "macosx_11_0_arm64", "macos"},
		{"ubuntu-22.04", "linux_x86_64", "linux"},
		{"ubuntu-24.04-arm", "linux_aarch64", "linux-arm"},
		{"ubuntu-22.04-large", "linux_x86_64", "linux"},
		{"windows-2022", "win_amd64", "windows"},
		{"windows-11-arm", "win_arm64", "windows-arm"},
		{"macos-15-intel", "macosx_10_9_x86_64", "macos-intel"},
	} {
		if p, ok := tab.Platform(tt.os); !ok || p.Tag != tt.tag || p.System != tt.system {
			t.Errorf("%s: got %+v, %v", tt.os, p, ok)
		}
	}
	for _, os := range []string{"", "ubuntu", "linux-mint", "ubuntu-22.04-arm64", "rocky-9-aarch64"} {
		if p, ok := tab.Platform(os); ok {
			t.Errorf("%q: got %+v, want nothing", os, p)
		}
	}
	for _, tt := range []struct {
		torch, cuda, rocm, os string
		val, known            bool
	}{
		{"2.5.1", "12.4.0", "", "ubuntu-22.04", false, true},
		{"2.6.0", "12.4.0", "", "ubuntu-22.04", false, true},
		{"2.6.0", "12.6.3", "", "ubuntu-22.04", true, true},
		{"2.6.0", "", "", "linux", false, true},
		{"2.6.0", "", "6.2.4", "linux", true, true},
		{"2.6.0", "", "", "linux-arm", true, true},
		{"2.7.0", "12.8.1", "", "linux", true, true},
		{"2.7.0", "12.8.1", "", "windows", false, false},
		{"2.99.0", "12.8.1", "", "linux", false, false},
	} {
		if val, known := tab.CXX11ABI(tt.torch, tt.cuda, tt.rocm, tt.os); val != tt.val || known != tt.known {
			t.Errorf("%+v: got %v, %v", tt, val, known)
		}
	}
	for cuda, want := range map[string]string{"11.8.0": hopper, "12.6": hopper, "12.8.1": blackwell, "12.9.1": blackwell, "13.4.1": "7.5 8.0 8.6 8.9 9.0 10.0 12.0+PTX"} {
		if l, ok := tab.DefaultArchs(cuda); !ok || l.Text() != want {
			t.Errorf("%s: got %q, %v", cuda, l, ok)
		}
	}
	if _, ok := tab.DefaultArchs("15.0"); ok {
		t.Error("a default for an unknown CUDA")
	}
	if h, ok := tab.HostCompilers("13.4"); !ok || h.GCC != [2]int{6, 16} || h.MSC != [2]int{1920, 1960} {
		t.Errorf("got %+v, %v", h, ok)
	}
	if d, ok := tab.Driver("12.8.1"); !ok || d != (compat.Driver{MinLinux: "525.60.13", MinWindows: "527.41", Linux: "570.124.06", Windows: "572.61"}) {
		t.Errorf("got %+v, %v", d, ok)
	}
	if v, ok := tab.PTXISA("12.6.3"); !ok || v != "8.5" {
		t.Errorf("got %q, %v", v, ok)
	}
	if n, ok := tab.CXXStandard("2.11.0"); !ok || n != 17 {
		t.Errorf("got %d, %v", n, ok)
	}
	if l, ok := tab.TorchArchs("2.7.1", "12.8.1", "windows-2022"); !ok || l.String() != "7.5 8.0 8.6 9.0 10.0 12.0" {
		t.Errorf("got %q, %v: PyTorch puts PTX into its Linux builds only", l, ok)
	}
	if g, ok := tab.GPU(compat.CC{Major: 9}); !ok || g.Family != "Hopper" {
		t.Errorf("got %+v, %v", g, ok)
	}
	if l, ok := tab.Emits("13.4"); !ok || !l.Has(compat.Arch{Major: 10, Minor: 7, Suffix: "f"}) {
		t.Errorf("got %q, %v", l, ok)
	}
	if !slices.IsSorted(tab.KnownOS()) || !slices.Contains(tab.KnownOS(), "debian-13") {
		t.Error(tab.KnownOS())
	}
}

func TestArchNamesByTorch(t *testing.T) {
	for torch, want := range map[string]string{
		"2.6.0":  "10.0+PTX",
		"2.7.1":  "10.0 12.0+PTX",
		"2.14.0": "10.0 10.3 12.0 12.1+PTX",
		"":       "10.0 10.3 12.0 12.1+PTX",
	} {
		l, err := compat.Default().ArchList("Blackwell", torch)
		if err != nil || l.String() != want {
			t.Errorf("torch %s: got %q, %v, want %q", torch, l, err, want)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	head := `{"format": "kiln-compat/1", "date": "2026-11-15",` + "\n "
	for _, tt := range []struct{ name, in, want string }{
		{"empty", ``, "1:1: the file ends too early"},
		{"not a map", `[]`, "1:1: want a map, found a list"},
		{"cut", `{"format": "kiln-compat/1"`, "1:27: "},
		{"syntax", "{\n\"format\" 1}", "2:10: "},
		{"trailing", minimal + "\n{}", "2:1: text after the end"},
		{"twice", `{"date": "2026-11-15", "date": "2026-11-15"}`, `1:24: key "date" is there twice`},
		{"no format", `{"date": "2026-11-15"}`, "1:1: format: missing"},
		{"other format", `{"format": "kiln-compat/2", "date": "2026-11-15"}`, "1:12: format: "},
		{"bad date", `{"format": "kiln-compat/1", "date": "soon"}`, `1:37: date: "soon" is not a date`},
		{"deep", strings.Repeat(`{"a":`, 40), "nested more than"},
		{"unknown section", head + `"tourch": {}}`, `2:2: tourch: unknown key "tourch", did you mean "torch"?`},
		{"unknown key", head + `"torch": {"2.6": {"confidence": "verified", "published": [], "pyton": []}}}`, `2:63: torch.2.6.pyton: unknown key "pyton", did you mean "python"?`},
		{"no confidence", head + `"os": {"beos": {"platform": "linux_x86_64"}}}`, "2:17: os.beos.confidence: missing"},
		{"bad confidence", head + `"gfx": {"gfx900": {"confidence": "sure"}}}`, `"sure" is none of verified, documented, inferred`},
		{"bad key", head + `"cuda": {"12": {}}}`, `2:11: cuda.12: "12" is not a series`},
		{"foreign patch", head + `"cuda": {"12.8": {"confidence": "verified", "published": ["12.9.0"]}}}`, `2:60: cuda.12.8.published[0]: "12.9.0" is not a version of 12.8`},
		{"bad archs", head + `"cuda": {"12.8": {"confidence": "verified", "published": [], "emit": {"confidence": "verified", "archs": "9.0+PTXX"}}}}`, `cuda.12.8.emit.archs: arch list: byte 0`},
		{"wrong type", head + `"cuda": {"12.8": {"confidence": "verified", "published": "12.8.0"}}}`, "2:59: cuda.12.8.published: want a list, found a string"},
		{"bounds", head + `"cuda": {"12.8": {"confidence": "verified", "published": [], "host": {"confidence": "verified", "gcc": [9, 6]}}}}`, "lowest 9 is above highest 6"},
		{"platform", head + `"os": {"beos": {"confidence": "verified", "platform": "beos"}}}`, `os.beos.platform: "beos" is not a platform tag`},
	} {
		_, err := compat.Load(strings.NewReader(tt.in))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
			continue
		}
		if e, ok := errors.AsType[*compat.LoadError](err); !ok || e.Line < 1 || e.Column < 1 {
			t.Errorf("%s: no position in %v", tt.name, err)
		}
	}
	_, err := compat.Load(strings.NewReader(head + `"torch": {"2": {}, "2.6": {"confidence": 1}}, "what": 0}`))
	if n := strings.Count(err.Error(), "\n") + 1; n != 4 {
		t.Errorf("want all four faults reported, got %d: %v", n, err)
	}
}

func TestOverride(t *testing.T) {
	o, err := compat.LoadOverride(strings.NewReader(`{"format": "kiln-compat/1", "override": true,
		"source": {"os": "our own runners"},
		"cuda": {"13.5": {"confidence": "documented", "published": ["13.5.0"]}},
		"torch": {"2.14": {"cuda": {"13.4": {"confidence": "verified", "channel": "extra"}}}},
		"os": {"bigbox": {"confidence": "verified", "platform": "linux_x86_64", "gcc": 13}, "debian-11": null}}`))
	if err != nil {
		t.Fatal(err)
	}
	base := compat.Default()
	tab, err := base.Merge(o)
	if err != nil {
		t.Fatal(err)
	}
	want := []compat.Change{
		{Section: "cuda", Key: "13.5", Action: "added"},
		{Section: "torch", Key: "2.14", Action: "changed"},
		{Section: "os", Key: "bigbox", Action: "added"},
		{Section: "os", Key: "debian-11", Action: "removed"},
	}
	if d := cmp.Diff(want, tab.Changes()); d != "" {
		t.Error(d)
	}
	row := compat.Combo{OS: "bigbox", Torch: "2.14.0", CUDA: "13.4.2", Python: "3.12"}
	if got := summary(tab.Check(row)); got != "note torch-cuda-build torch,cuda\n" {
		t.Errorf("with the override: %s", got)
	}
	if got := summary(base.Check(row)); got != "error torch-cuda-build torch,cuda\nwarning os-unknown os\n" {
		t.Errorf("the base table changed: %s", got)
	}
	if got := tab.Check(compat.Combo{CUDA: "13.5.0"}); got != nil {
		t.Errorf("got %v", got)
	}
	if _, ok := tab.Platform("debian-11"); ok || len(base.Changes()) != 0 {
		t.Error("null does not remove, or removes from the base")
	}

	for in, want := range map[string]string{
		`{"format": "kiln-compat/1"}`: "1:1: override: want true",
		`{"override": true}`:          "1:1: format: want",
		`{`:                           "ends too early",
	} {
		if _, err := compat.LoadOverride(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
	o, err = compat.LoadOverride(strings.NewReader("{\"format\": \"kiln-compat/1\", \"override\": true,\n \"cuda\": {\"13.9\": {\"publishd\": []}}}"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = base.Merge(o)
	for _, want := range []string{`2:20: cuda.13.9.publishd: unknown key "publishd", did you mean "published"?`, "2:19: cuda.13.9.confidence: missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(minimal)
	raw, err := os.ReadFile("compat.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(raw))
	f.Add(`{"format": "kiln-compat/1", "override": true, "torch": {"2.14": null}}`)
	f.Add(`{"format": "kiln-compat/1", "date": "2026-11-15", "cuda": {"12.8": {"confidence": "inferred", "published": [], "host": {"confidence": "verified", "gcc": [1, 2]}}}}`)
	row := compat.Combo{OS: "linux", Python: "3.12", CUDA: "12.8.1", Torch: "2.9.0", Arch: blackwell}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if tab, err := compat.Load(strings.NewReader(s)); err == nil {
			tab.Check(row)
			tab.Check(compat.Combo{OS: "linux", ROCm: "6.4", Torch: "2.9.0", Arch: "gfx90a"})
			tab.Driver("12.8")
		} else if len(err.Error()) > 10_000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
		if o, err := compat.LoadOverride(strings.NewReader(s)); err == nil {
			if tab, err := compat.Default().Merge(o); err == nil {
				tab.Check(row)
			}
		}
	})
}
