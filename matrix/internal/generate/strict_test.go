package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
	"pgregory.net/rapid"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/matrix"
)

// mutator changes documents at random.
type mutator struct {
	documents []string
	keys      []string
	values    []string
}

func newMutator(t *testing.T) *mutator {
	m := &mutator{documents: manualBlocks(t)}
	for _, name := range glob(t, filepath.Join(root, "examples", "*", "packages.yml")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m.documents = append(m.documents, string(text))
	}
	src, err := readSource(filepath.Join(root, "matrix"))
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range src.structs {
		for _, f := range st.fields {
			m.keys = append(m.keys, f.key)
		}
	}
	slices.Sort(m.keys)
	m.keys = slices.Compact(m.keys)
	m.keys = append(m.keys, "x-more", "blas", "BLAS", "2fast", "a b", "MAX_JOBS", "-", "a..b", "A", "flash_attn-",
		"12.8", ">=12.8", "rocm >= 6", "rocm", "cuda12", " cuda ", "none", "default", "defaults", "<", "12.x", "<<", "")
	m.values = []string{
		"", " ", "a", "A-b", "a b", "x.y", "_x", "ü", "*", "[a]", "{version}", "{nothing}", "}",
		"1", "0", "-1", "1.0", "3.10", "3.12", "3.13t", "3.13.1", "2.9.0", "2.9.0rc1", "2.9.0+cu128", "v1.0", " 1.0 ", "1.0-1",
		"\v1.0", "\u00a01.0", "2!1.0", "01.0", "1.0.dev1", "1.0.post1", "12", "12.8", "12.8.1", "12.8.1.2", "12.x", "6.4",
		">=2.5,<2.7", ">=", ",", ">= 3.10", "==3.*", "~=3.1", "3.13t,", "\t>3", "latest",
		"4 GiB", "4GiB", "4  MB", "1.5 TB", "4", "4 gib", ".5 GiB", "5. GiB", "1e3 MB", "0x10 B", "NaN GiB", "inf GB", "0 B", "0.1 B", "+4 GiB",
		"90s", "2h30m", "1.5h", ".5h", "1.h", "+1m", "-1m", "0", "0s", "1", "1d", "2 h", "1µs", "1μs",
		"true", "false", "True", "yes", "null", "~", ".inf", ".nan", "2024-01-01", "0x10", "0o7", "1_000", "1e3",
		"wheel", "sdist", "build", "uv", "exact", "any", "Wheel", "ubuntu-22.04", "windows-*", "win?", "a/b", "a\\b",
		"cp39-abi3", "cp39.cp39-abi3", "cp39", "cp39-abi3-any", "9-x", "py3-none", "linux_x86_64", "linux.x", "linux-x",
		"8.0 9.0+PTX", "gfx90a", "hopper", "numpy>=1", "numpy >=", "torch[x]", "(", "torch @ https://a.example/b.whl",
		strings.Repeat("aB", 32), strings.Repeat("a", 63), strings.Repeat("g", 64), "\n", "line\n", "a\nb", "'", "\"", "#", "a: b", "- a",
	}
	return m
}

// draw makes a random document: some changes to one of the examples.
func (m *mutator) draw(t *rapid.T) []byte {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(rapid.SampledFrom(m.documents).Draw(t, "document")), &doc); err != nil {
		t.Fatal(err)
	}
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		m.change(t, &doc)
	}
	text, err := yaml.Marshal(&doc)
	if err != nil {
		t.Skip("not YAML any more")
	}
	return text
}

// nodes lists what is below a node, with keys apart.
func nodes(n *yaml.Node) (values, keys []*yaml.Node) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			keys = append(keys, c)
			continue
		}
		values = append(values, c)
		v, k := nodes(c)
		values, keys = append(values, v...), append(keys, k...)
	}
	return values, keys
}

func (m *mutator) change(t *rapid.T, doc *yaml.Node) {
	values, keys := nodes(doc)
	n := rapid.SampledFrom(values).Draw(t, "place")
	maps := slices.DeleteFunc(slices.Clone(values), func(n *yaml.Node) bool { return n.Kind != yaml.MappingNode })
	if n.Anchor != "" || n.Kind == yaml.AliasNode {
		return
	}
	switch rapid.IntRange(0, 9).Draw(t, "change") {
	case 0, 1, 2: // another value, quoted or not
		*n = *m.scalar(t)
	case 3: // another key
		if len(keys) > 0 {
			k := rapid.SampledFrom(keys).Draw(t, "key")
			*k = *m.key(t)
		}
	case 4: // a new key with a value from elsewhere
		if len(maps) > 0 {
			into := rapid.SampledFrom(maps).Draw(t, "map")
			into.Content = append(into.Content, m.key(t), m.other(t, values))
		}
	case 5: // a key less, or an item less
		step := 1
		if n.Kind == yaml.MappingNode {
			step = 2
		}
		if len(n.Content) >= step {
			i := step * rapid.IntRange(0, len(n.Content)/step-1).Draw(t, "item")
			n.Content = slices.Delete(n.Content, i, i+step)
		}
	case 6: // a list around it
		inner := *n
		*n = yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{&inner}}
	case 7: // the first of a list instead of the list
		if n.Kind == yaml.SequenceNode && len(n.Content) > 0 && n.Content[0].Kind != yaml.AliasNode {
			*n = *n.Content[0]
		}
	case 8: // something from elsewhere
		*n = *m.other(t, values)
	case 9: // nothing
		n.Content = nil
	}
}

func (m *mutator) scalar(t *rapid.T) *yaml.Node {
	text := rapid.SampledFrom(m.values).Draw(t, "value")
	if rapid.Bool().Draw(t, "text") {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	}
	var n yaml.Node
	if yaml.Unmarshal([]byte(text), &n) != nil || len(n.Content) != 1 || n.Content[0].Kind != yaml.ScalarNode {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: n.Content[0].Tag, Value: n.Content[0].Value}
}

func (m *mutator) key(t *rapid.T) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: rapid.SampledFrom(m.keys).Draw(t, "new key")}
}

// other returns a copy of another part of the document, or a new value.
func (m *mutator) other(t *rapid.T, values []*yaml.Node) *yaml.Node {
	n := copyNode(rapid.SampledFrom(values).Draw(t, "from"))
	if n == nil || rapid.Bool().Draw(t, "new") {
		return m.scalar(t)
	}
	return n
}

// copyNode returns a copy without anchors, or nil if there are aliases in it.
func copyNode(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return nil
	}
	out := *n
	out.Anchor, out.Content = "", nil
	for _, c := range n.Content {
		inner := copyNode(c)
		if inner == nil {
			return nil
		}
		out.Content = append(out.Content, inner)
	}
	return &out
}

// TestSchemaIsNotStricter: what the schema refuses, kiln refuses too. Otherwise an
// editor would mark files that work.
func TestSchemaIsNotStricter(t *testing.T) {
	m, s := newMutator(t), packagesSchema(t)
	refused, taken := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := m.draw(t)
		err := validate(s, text)
		if err == nil {
			taken++
			return
		}
		refused++
		if _, list := matrix.Parse("packages.yml", text); !list.HasErrors() {
			t.Fatalf("kiln takes what the schema refuses: %v\n%s", err, text)
		}
	})
	if refused == 0 || taken == 0 {
		t.Errorf("%d documents refused and %d taken: the test shows nothing", refused, taken)
	}
}

// shapeRules are the rules of kiln about the shape of the file.
var shapeRules = []string{"unknown-key", "missing-key", "type", "choice", "empty-list", "empty-value", "unquoted-version"}

// TestSchemaSeesTheShape: the other way round, what kiln refuses for its shape, the
// schema refuses too. Whole numbers are apart: to JSON, 2.0 and 0x2 are as good as 2.
func TestSchemaSeesTheShape(t *testing.T) {
	m, s := newMutator(t), packagesSchema(t)
	rapid.Check(t, func(t *rapid.T) {
		text := m.draw(t)
		_, list := matrix.Parse("packages.yml", text)
		i := slices.IndexFunc(list, func(d diag.Diagnostic) bool {
			return slices.Contains(shapeRules, d.Rule) && !strings.Contains(d.Message, "whole number")
		})
		if i >= 0 && validate(s, text) == nil {
			t.Fatalf("the schema takes what kiln refuses: %v\n%s", list[i], text)
		}
	})
}
