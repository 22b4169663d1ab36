package wheel_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/wheel"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
)

// A build works with one minor version of torch only; its METADATA says so.
func ExampleMetadata_SetRequiresDist() {
	m, err := wheel.ParseMetadata([]byte("Metadata-Version: 2.1\nName: exllamav2\nVersion: 0.3.2\nRequires-Dist: torch>=2.2.0\nRequires-Dist: ninja\n"))
	if err != nil {
		panic(err)
	}
	if _, err := m.SetRequiresDist("torch", "==2.9.*"); err != nil {
		panic(err)
	}
	_, _ = os.Stdout.Write(m.Bytes())
	// Output:
	// Metadata-Version: 2.1
	// Name: exllamav2
	// Version: 0.3.2
	// Requires-Dist: torch==2.9.*
	// Requires-Dist: ninja
}

// metadataCase is a line of testdata/metadata/corpus.jsonl.
type metadataCase struct {
	Doc    string
	Doc64  []byte
	Fields [][2]string
	Body   string
	Raw    struct {
		Name           *string
		Version        *string
		RequiresPython *string  `json:"requires_python"`
		RequiresDist   []string `json:"requires_dist"`
		ProvidesExtra  []string `json:"provides_extra"`
	}
	Defects []string
}

func (c *metadataCase) data() []byte {
	if c.Doc64 != nil {
		return c.Doc64
	}
	return []byte(c.Doc)
}

func readMetadataCorpus(t testing.TB) []metadataCase {
	t.Helper()
	f, err := os.Open("testdata/metadata/corpus.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var cases []metadataCase
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c metadataCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("corpus.jsonl:%d: %v", len(cases)+1, err)
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 200 {
		t.Fatalf("corpus.jsonl has %d documents, want at least 200", len(cases))
	}
	return cases
}

// TestMetadataCorpus compares the parser with Python's email package and with
// packaging.metadata.
func TestMetadataCorpus(t *testing.T) {
	for i, c := range readMetadataCorpus(t) {
		m, err := wheel.ParseMetadata(c.data())
		if len(c.Defects) > 0 {
			if err == nil {
				t.Errorf("line %d: %.60q accepted, Python finds %v", i+1, c.data(), c.Defects)
			}
			continue
		}
		if err != nil {
			t.Errorf("line %d: %.60q: %v", i+1, c.data(), err)
			continue
		}
		if !bytes.Equal(m.Bytes(), c.data()) {
			t.Errorf("line %d: not given back as it was", i+1)
		}
		var fields [][2]string
		for _, f := range m.Fields() {
			fields = append(fields, [2]string{f.Name, f.Value})
		}
		if diff := cmp.Diff(c.Fields, fields, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("line %d: %.60q: fields (-python +kiln):\n%s", i+1, c.data(), diff)
		}
		if c.Body != "" {
			sum := sha256.Sum256([]byte(m.Description()))
			if got := hex.EncodeToString(sum[:8]); got != c.Body {
				t.Errorf("line %d: description %q has digest %s, want %s", i+1, m.Description(), got, c.Body)
			}
		}
		for name, want := range map[string]*string{"Name": c.Raw.Name, "Version": c.Raw.Version, "Requires-Python": c.Raw.RequiresPython} {
			if want != nil && m.Get(name) != *want {
				t.Errorf("line %d: %s is %q, packaging says %q", i+1, name, m.Get(name), *want)
			}
		}
		for name, want := range map[string][]string{"Requires-Dist": c.Raw.RequiresDist, "Provides-Extra": c.Raw.ProvidesExtra} {
			if diff := cmp.Diff(want, m.All(name), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("line %d: %s (-packaging +kiln):\n%s", i+1, name, diff)
			}
		}
	}
}

func mustMetadata(t testing.TB, text string) *wheel.Metadata {
	t.Helper()
	m, err := wheel.ParseMetadata([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMetadataRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"leading continuation":  " x\nName: y\n",
		"nameless field":        "Name: x\n: y\n",
		"envelope first":        "From x\nName: y\n",
		"envelope last":         "Name: y\nFrom x\n\nbody\n",
		"invalid UTF-8 in name": "Name: \xff\n",
		"too long":              "Name: x\n\n" + strings.Repeat("x", wheel.MaxMetadataSize),
	} {
		if _, err := wheel.ParseMetadata([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	m := mustMetadata(t, "Name: x\nDescription: \xff folded\n        \xfe\n")
	if got, want := m.Description(), "\xff folded\n\xfe"; got != want {
		t.Errorf("description %q, want %q", got, want)
	}
}

func TestMetadataGetters(t *testing.T) {
	m := mustMetadata(t, "Metadata-Version: 1.2\r\nName: Demo\r\nVersion:  1.0 \r\nRequires-Python: >=3.8,\r\n  <4\r\n"+
		"Requires-Dist: torch >=2 ;\r\n\textra == 'gpu'\r\nProvides-Extra: gpu\r\nDescription: first\r\n       |second\r\n       |\r\n        third\r\n")
	type got struct {
		MetadataVersion, Name, Version, RequiresPython, Description string
		RequiresDist, ProvidesExtra                                 []string
	}
	want := got{"1.2", "Demo", "1.0", ">=3.8, <4", "first\nsecond\n\nthird", []string{"torch >=2 ; extra == 'gpu'"}, []string{"gpu"}}
	have := got{m.MetadataVersion(), m.Name(), m.Version(), m.RequiresPython(), m.Description(), m.RequiresDist(), m.ProvidesExtra()}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Error(diff)
	}
	if m.Get("requires-DIST") == "" || m.Get("Nothing") != "" || m.All("Nothing") != nil {
		t.Error("lookup of fields")
	}
}

func TestMetadataEdit(t *testing.T) {
	const doc = "Metadata-Version: 2.1\nname: demo\nVersion:1.0\nClassifier: a\nX: kept\n   as it is\nClassifier: b\n\nVersion: in the body\n"
	for _, test := range []struct {
		name      string
		doc, want string
		edit      func(m *wheel.Metadata) error
	}{
		{"set", doc, strings.Replace(doc, "Version:1.0\n", "Version: 2.0+cu128\n", 1), func(m *wheel.Metadata) error { return m.Set("Version", "2.0+cu128") }},
		{"set to the same", doc, doc, func(m *wheel.Metadata) error { return m.Set("version", "1.0") }},
		{
			"set a repeated field", doc, strings.Replace(strings.Replace(doc, ": a\n", ": c\n", 1), "Classifier: b\n", "", 1),
			func(m *wheel.Metadata) error { return m.Set("Classifier", "c") },
		},
		{"set a new field", doc, strings.Replace(doc, ": b\n", ": b\nY: 1\n", 1), func(m *wheel.Metadata) error { return m.Set("Y", "1") }},
		{"add after the last of its name", doc, strings.Replace(doc, "kept\n   as it is\n", "kept\n   as it is\nx: 2\n", 1), func(m *wheel.Metadata) error { return m.Add("x", "2") }},
		{"add lines", doc, strings.Replace(doc, ": b\n", ": b\nLicense: MIT\n  x\n", 1), func(m *wheel.Metadata) error { return m.Add("License", "MIT\n  x") }},
		{"remove", doc, strings.NewReplacer("Classifier: a\n", "", "Classifier: b\n", "").Replace(doc), func(m *wheel.Metadata) error {
			if n := m.Remove("classifier"); n != 2 {
				t.Errorf("removed %d fields, want 2", n)
			}
			return nil
		}},
		{"CRLF", "A: 1\r\nB: 2\r\n\r\nbody\r\n", "A: 1\r\nB: 3\r\n x\r\n\r\nbody\r\n", func(m *wheel.Metadata) error { return m.Set("B", "3\n x") }},
		{"no line break at the end", "A: 1\nB: 2", "A: 1\nB: 2\nC: 3\n", func(m *wheel.Metadata) error { return m.Add("C", "3") }},
		{"body without a separator", "A: 1\noops\n", "A: 1\nB: 2\noops\n", func(m *wheel.Metadata) error { return m.Add("B", "2") }},
		{"byte order mark", "\ufeffA: 1\n", "\ufeffA: 2\n", func(m *wheel.Metadata) error { return m.Set("A", "2") }},
		{"empty document", "", "A: 1\n", func(m *wheel.Metadata) error { return m.Add("A", "1") }},
	} {
		m := mustMetadata(t, test.doc)
		if err := test.edit(m); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.want, string(m.Bytes())); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
	}
	for _, bad := range [][2]string{
		{"", "x"},
		{"A B", "x"},
		{"A:", "x"},
		{"Ä", "x"},
		{"A\n", "x"},
		{"A", "x\ny"},
		{"A", "x\n"},
		{"A", "x\r\n y"},
		{"A", " x"},
		{"A", "\n x"},
		{"A", "\xff"},
		{"A", "x\n\n y"},
	} {
		m := mustMetadata(t, doc)
		if err := m.Set(bad[0], bad[1]); err == nil {
			t.Errorf("Set(%q, %q) accepted", bad[0], bad[1])
		}
		if err := m.Add(bad[0], bad[1]); err == nil {
			t.Errorf("Add(%q, %q) accepted", bad[0], bad[1])
		}
		if string(m.Bytes()) != doc {
			t.Errorf("refused edit %q changed the document", bad)
		}
	}
}

func TestSetRequiresDist(t *testing.T) {
	for _, test := range []struct {
		before, name, clause, want string
		n                          int
	}{
		{"torch>=2.2.0", "torch", "==2.9.*", "torch==2.9.*", 1},
		{"torch", "Torch", "==2.9.*", "torch==2.9.*", 1},
		{"Torch (>=2.2.0)", "torch", "==2.9.*", "Torch==2.9.*", 1},
		{`torch[opt, x] (>=2.2.0) ; extra == "gpu"`, "torch", "==2.9.*", `torch[opt, x]==2.9.* ; extra == "gpu"`, 1},
		{"torch ; python_version < '3.12'", "torch", ">=2.9,<2.10", "torch>=2.9,<2.10 ; python_version < '3.12'", 1},
		{"torch>=2;extra=='a'", "torch", "", "torch;extra=='a'", 1},
		{"torchvision>=0.1", "torch", "==2.9.*", "torchvision>=0.1", 0},
		{"torch-geometric", "torch", "==2.9.*", "torch-geometric", 0},
		{"my_torch.ext >1", "My-Torch--Ext", "==2", "my_torch.ext==2", 1},
		{"torch==2.9.*", "torch", "==2.9.*", "torch==2.9.*", 1},
		{"torch >= 2.2,\n    <3", "torch", "==2.9.*", "torch==2.9.*", 1},
	} {
		prefix, suffix := "Name: x\nRequires-Dist:  numpy (>1)\nRequires-Dist: ", "\nX: y\n\nRequires-Dist: torch\n"
		m := mustMetadata(t, prefix+test.before+suffix)
		n, err := m.SetRequiresDist(test.name, test.clause)
		if err != nil || n != test.n {
			t.Errorf("%q: %d, %v; want %d", test.before, n, err, test.n)
		}
		if diff := cmp.Diff(prefix+test.want+suffix, string(m.Bytes())); diff != "" {
			t.Errorf("%q:\n%s", test.before, diff)
		}
	}
	const direct = "Requires-Dist: torch>=1\nRequires-Dist: torch @ https://example.org/torch.whl ; extra == 'x'\n"
	m := mustMetadata(t, direct)
	for _, clause := range []string{"==2.9.*", "2.9", "; extra == 'x'", "@ https://example.org", "==1\n==2"} {
		if n, err := m.SetRequiresDist("torch", clause); err == nil {
			t.Errorf("%q: %d, no error", clause, n)
		}
	}
	if string(m.Bytes()) != direct {
		t.Error("refused edit changed the document")
	}
}

// TestMetadataEditProperties: after any accepted edits, the document reads back
// to the same fields, and lines that were not edited are still there.
func TestMetadataEditProperties(t *testing.T) {
	corpus := readMetadataCorpus(t)
	rapid.Check(t, func(t *rapid.T) {
		c := corpus[rapid.IntRange(0, len(corpus)-1).Draw(t, "document")]
		m, err := wheel.ParseMetadata(c.data())
		if err != nil {
			t.Skip("refused")
		}
		body := m.Description()
		names := []string{"Name", "Version", "Requires-Dist", "X-New", "description", "K"}
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			value := rapid.StringMatching(`[a-zé:]*(\n[ \t][a-z ]*)?`).Draw(t, "value")
			switch rapid.IntRange(0, 2).Draw(t, "edit") {
			case 0:
				if m.Set(name, value) == nil && m.Get(name) != value {
					t.Fatalf("Get(%q) = %q after Set(%q)", name, m.Get(name), value)
				}
			case 1:
				_ = m.Add(name, value)
			case 2:
				m.Remove(name)
			}
		}
		again, err := wheel.ParseMetadata(m.Bytes())
		if err != nil {
			t.Fatalf("%q: %v", m.Bytes(), err)
		}
		if diff := cmp.Diff(m.Fields(), again.Fields()); diff != "" {
			t.Fatalf("%q reads back differently:\n%s", m.Bytes(), diff)
		}
		if len(c.Body) > 0 && again.Description() != body {
			t.Fatalf("body became %q", again.Description())
		}
	})
}

func FuzzMetadata(f *testing.F) {
	for _, c := range readMetadataCorpus(f) {
		f.Add(c.data(), "torch", "==2.9.*")
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, name, value string) {
		m, err := wheel.ParseMetadata(data)
		if err != nil {
			return
		}
		if !bytes.Equal(m.Bytes(), data) {
			t.Fatalf("%q became %q", data, m.Bytes())
		}
		m.Description()
		before := m.Fields()
		if err := m.Set(name, value); err != nil {
			if diff := cmp.Diff(before, m.Fields()); diff != "" {
				t.Fatalf("refused edit changed the document:\n%s", diff)
			}
		}
		_, _ = m.SetRequiresDist(name, value)
		_ = m.Add(name, value)
		again, err := wheel.ParseMetadata(m.Bytes())
		if err != nil {
			if len(m.Bytes()) > wheel.MaxMetadataSize {
				return
			}
			t.Fatalf("%q: %v", m.Bytes(), err)
		}
		if diff := cmp.Diff(m.Fields(), again.Fields()); diff != "" {
			t.Fatalf("%q reads back differently:\n%s", m.Bytes(), diff)
		}
	})
}
