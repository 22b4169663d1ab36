package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/matrix"
	"github.com/kiln-build/kiln/matrix/schema"
)

const root = "../../.."

// TestUpToDate: the committed files are what the generator writes.
func TestUpToDate(t *testing.T) {
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		got = bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n")) // a checkout may have changed the line ends
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s is stale, run `make generate` (-want +got):\n%s", name, diff)
		}
	}
}

// packagesSchema returns the schema that kiln ships.
func packagesSchema(t testing.TB) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(schema.Packages, &s); err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

// validate holds a YAML text against the schema.
func validate(s *jsonschema.Resolved, text []byte) error {
	v, err := jsonValue(text)
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// accepted fails the test unless kiln and the schema take the document.
func accepted(t *testing.T, s *jsonschema.Resolved, text string) {
	t.Helper()
	if _, list := matrix.Parse("packages.yml", []byte(text)); list.HasErrors() {
		t.Errorf("kiln: %v\n%s", list.Err(), text)
	}
	if err := validate(s, []byte(text)); err != nil {
		t.Errorf("schema: %v\n%s", err, text)
	}
}

// document returns a complete document in which an example for a struct stands at its
// place.
func document(owner, example string) (string, error) {
	value, err := jsonValue([]byte(example))
	if err != nil {
		return "", err
	}
	keys, ok := value.(map[string]any)
	if !ok {
		return "", errors.New("not a map")
	}
	indent := func(n int, first string) string {
		lines := strings.Split(strings.TrimRight(example, "\n"), "\n")
		return strings.Repeat(" ", n-len(first)) + first + strings.Join(lines, "\n"+strings.Repeat(" ", n)) + "\n"
	}
	const versions = "    versions: [\"1.0\"]\n"
	var body string
	switch owner {
	case "Document":
		return example, nil
	case "Publish", "Workflow", "Cache":
		return "packages: {demo: {versions: [\"1.0\"]}}\n" + strings.ToLower(owner) + ":\n" + indent(2, ""), nil
	case "PublishTarget":
		return "packages: {demo: {versions: [\"1.0\"]}}\npublish:\n  targets:\n    there:\n" + indent(6, ""), nil
	case "PublishIndex":
		return "packages: {demo: {versions: [\"1.0\"]}}\npublish:\n  index:\n" + indent(4, ""), nil
	case "WorkflowKiln":
		return "packages: {demo: {versions: [\"1.0\"]}}\nworkflow:\n  kiln:\n" + indent(4, ""), nil
	case "Keep":
		return "packages: {demo: {versions: [\"1.0\"]}}\npublish:\n  keep:\n" + indent(4, ""), nil
	case "Package":
		body = indent(4, "")
		if keys["versions"] == nil && keys["version_from"] == nil {
			body += versions
		}
		if keys["exclude"] != nil {
			body += "    matrix:\n      - {os: [ubuntu-22.04, windows-2022], python: [\"3.12\", \"3.13\"]}\n"
		}
	case "Source":
		body = versions + "    source:\n" + indent(6, "")
	case "TorchSource":
		body = versions + "    torch_source:\n" + indent(6, "")
	case "Python":
		body = versions + "    python:\n" + indent(6, "")
	case "VersionFrom":
		body = "    source: {path: .}\n    version_from:\n" + indent(6, "")
	case "Group":
		body = versions + "    matrix:\n" + indent(8, "- ")
	case "Single":
		body = versions + "    include:\n" + indent(8, "- ")
		if keys["python"] == nil {
			body += "        python: \"3.12\"\n"
		}
	case "Reuse":
		body = versions + "    matrix: [{torch: [\"2.11.0\", \"2.12.0\"]}]\n    reuse:\n" + indent(6, "")
	case "TorchAxis":
		body = versions + "    matrix:\n      - torch:\n" + indent(12, "")
	case "PythonAxis":
		body = versions + "    matrix:\n      - python:\n" + indent(12, "")
	case "Match":
		body = versions + "    matrix:\n      - axes: {blas: [mkl, openblas]}\n        exclude:\n" + indent(12, "- ")
		body += "    exclude:\n" + indent(8, "- ")
	case "Build":
		body = versions + "    build:\n" + indent(6, "")
	case "Patch":
		body = versions + "    build:\n      patches:\n" + indent(10, "- ")
	case "Test":
		body = versions + "    test:\n" + indent(6, "")
	case "Resources":
		body = versions + "    resources:\n" + indent(6, "")
	default:
		return "", fmt.Errorf("no place for %s", owner)
	}
	return "packages:\n  demo:\n" + body, nil
}

// TestFieldExamples: every example in a comment of document.go is right at its place.
func TestFieldExamples(t *testing.T) {
	src, err := readSource(filepath.Join(root, "matrix"))
	if err != nil {
		t.Fatal(err)
	}
	s := packagesSchema(t)
	tested := map[string]bool{}
	for i := range parts {
		st := src.structs[parts[i].name]
		for _, f := range st.fields {
			tested[f.id()] = true
			t.Run(st.name+"."+f.key, func(t *testing.T) {
				doc, err := document(st.name, f.example)
				if err != nil {
					t.Fatal(err)
				}
				accepted(t, s, doc)
			})
		}
	}
	for _, st := range src.structs {
		for _, f := range st.fields {
			if !tested[f.id()] {
				t.Errorf("the example of %s is not tested", f.id())
			}
		}
	}
}

// TestShippedExamples: the files below examples/ are right.
func TestShippedExamples(t *testing.T) {
	s := packagesSchema(t)
	for _, name := range glob(t, filepath.Join(root, "examples", "*", "packages.yml")) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		accepted(t, s, string(text))
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatalf("no files %s", pattern)
	}
	return names
}

// manualBlocks returns the YAML blocks of the manual as complete documents.
func manualBlocks(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "packages-yml.md"))
	if err != nil {
		t.Fatal(err)
	}
	owner := "Document"
	var out []string
	var block []string
	inside := false
	for line := range strings.Lines(strings.ReplaceAll(string(page), "\r\n", "\n")) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case inside && line == "```":
			doc, err := document(owner, strings.Join(block, "\n")+"\n")
			if err != nil {
				t.Fatalf("%v in\n%s", err, strings.Join(block, "\n"))
			}
			out = append(out, doc)
			inside, block = false, nil
		case inside:
			block = append(block, line)
		case line == "```yaml":
			inside = true
		case strings.HasPrefix(line, "### "):
			owner = "Document"
			for i := range parts {
				if line == "### "+parts[i].heading {
					owner = parts[i].name
				}
			}
		}
	}
	return out
}

// TestManualBlocks: every YAML block of the manual is right.
func TestManualBlocks(t *testing.T) {
	blocks := manualBlocks(t)
	if len(blocks) < 70 {
		t.Errorf("the manual has %d YAML blocks, want more", len(blocks))
	}
	s := packagesSchema(t)
	for _, block := range blocks {
		accepted(t, s, block)
	}
}

// TestBrokenStructure: what can be seen at one place of the file, kiln and the schema
// both refuse.
func TestBrokenStructure(t *testing.T) {
	s := packagesSchema(t)
	for _, name := range glob(t, "../../testdata/broken/structure/*.yml") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, list := matrix.Parse(name, text); !list.HasErrors() {
				t.Error("kiln takes it")
			}
			if err := validate(s, text); err == nil {
				t.Error("the schema takes it: if no schema can refuse it, it belongs to ../meaning")
			}
		})
	}
}

// spellingRules are the rules of kiln about single values, which patterns of the schema
// can see too.
var spellingRules = []string{
	"package-name", "version", "python", "cuda", "rocm", "torch", "os", "axis", "env", "pattern", "toolkit-pattern",
	"unquoted-version", "requirement", "test-import", "platform", "wheel-tag", "size", "duration", "source", "patch", "zip",
}

// TestBrokenMeaning: the rest is for kiln to refuse or to warn of. The schema refuses
// it only where one value is misspelt.
func TestBrokenMeaning(t *testing.T) {
	s := packagesSchema(t)
	accepted := 0
	for _, name := range glob(t, "../../testdata/broken/meaning/*.yml") {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			list := findings(name, text)
			if len(list) == 0 {
				t.Error("kiln says nothing about it")
			}
			misspelt := slices.ContainsFunc(list, func(d diag.Diagnostic) bool {
				return d.Severity == diag.Error && slices.Contains(spellingRules, d.Rule)
			})
			switch err := validate(s, text); {
			case err == nil:
				accepted++
			case !misspelt && !errors.Is(err, errTooLarge):
				t.Errorf("the schema refuses it, so it belongs to ../structure: %v", err)
			}
		})
	}
	if accepted < 25 {
		t.Errorf("the schema takes %d of the files, want 25 or more", accepted)
	}
}

// findings returns all that kiln says of a file.
func findings(name string, text []byte) diag.List {
	file, list := matrix.Parse(name, text)
	if file == nil {
		return list
	}
	versions, more := file.ReadVersions()
	return slices.Concat(list, more, file.Plan(matrix.Options{Versions: versions}).Findings)
}

// TestUnescapeHTML: only escapes are touched.
func TestUnescapeHTML(t *testing.T) {
	in := `"a \u003c b \\u003c \u0026 \" \\\u003e"`
	want := `"a < b \\u003c & \" \\>"`
	if got := string(unescapeHTML([]byte(in))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestSpellingsAreUsed: a definition that nothing refers to is a mistake in rules.go.
func TestSpellingsAreUsed(t *testing.T) {
	for name := range maps.Keys(spellings) {
		if !bytes.Contains(schema.Packages, []byte(`"#/$defs/`+name+`"`)) {
			t.Errorf("no key has the spelling %s", name)
		}
	}
}
