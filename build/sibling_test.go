package build_test

import (
	"strings"
	"testing"
)

// TestSibling: the test of a package gets the wheel of another one that it requires, which no index
// has, and waits for it, wherever it stands in the file.
func TestSibling(t *testing.T) {
	const setup = "from setuptools import setup\nsetup(name='NAME', version='1.0', py_modules=['NAME'])\n"
	files := map[string]string{"packages.yml": `
packages:
  kiln-sibling-a: &pure
    versions: ["1.0"]
    source: {path: a}
    extra_deps: [setuptools]
    wheel_tag: py3-none
    test_import: kiln_sibling_a
    test: {requires: "kiln-sibling-b>=1"}
    matrix: [{python: "PYTHON", platform: any}]
  kiln-sibling-b:
    <<: *pure
    source: {path: b}
    test_import: kiln_sibling_b
    test: {}
`}
	for _, name := range []string{"a", "b"} {
		files[name+"/setup.py"] = strings.ReplaceAll(setup, "NAME", "kiln_sibling_"+name)
	}
	files["a/kiln_sibling_a.py"], files["b/kiln_sibling_b.py"] = "import kiln_sibling_b\n", ""
	p := newProject(t, files)
	result := p.build()
	for name, status := range statuses(result) {
		if status != "done passed" {
			t.Errorf("%s: %s", name, status)
		}
	}
	for _, r := range result.Rows {
		if r.Err != nil {
			t.Log(p.log(r))
		}
	}
}
