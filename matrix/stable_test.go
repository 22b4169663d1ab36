package matrix_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/matrix"
)

// TestStableRows: a stable ABI is one row in place of an axis, and its names say so.
func TestStableRows(t *testing.T) {
	const text = `
packages:
  demo:
    versions: ["1.0"]
    matrix:
      - cuda: "12.8.1"
        torch: {stable: "2.10"}
        python: {abi3: "3.10"}
      - {torch: {stable: "2.10"}, python: ["3.12", "3.13"]}
      - {torch: "2.10.0", python: {abi3: "3.11"}, local_version: "cpu-torch{torch}"}
    include:
      - {torch: {stable: "2.9.1"}, python: {abi3: "3.12"}, local_version: "cpu"}
`
	p := plan(t, text, matrix.Options{})
	want := []string{
		"demo-1.0-cu128-stable2.10-cp310-abi3-linux_x86_64 demo-1.0+cu128-cp310-abi3-linux_x86_64.whl 2.10.0 3.10",
		"demo-1.0-cpu-stable2.10-cp312-linux_x86_64 demo-1.0-cp312-cp312-linux_x86_64.whl 2.10.0 3.12",
		"demo-1.0-cpu-stable2.10-cp313-linux_x86_64 demo-1.0-cp313-cp313-linux_x86_64.whl 2.10.0 3.13",
		"demo-1.0-cpu-torch2.10.0-cp311-abi3-linux_x86_64 demo-1.0+cpu.torch2.10.0-cp311-abi3-linux_x86_64.whl 2.10.0 3.11",
		"demo-1.0-cpu-stable2.9.1-cp312-abi3-linux_x86_64 demo-1.0+cpu-cp312-abi3-linux_x86_64.whl 2.9.1 3.12",
	}
	for i, r := range p.Rows {
		if got := strings.Join([]string{r.ID, r.Files()[0], r.Torch, r.Python}, " "); i >= len(want) || got != want[i] {
			t.Errorf("row %d: %s", i, got)
		}
		var back matrix.Row
		data, err := json.Marshal(r)
		if err == nil {
			err = json.Unmarshal(data, &back)
		}
		if err != nil || back != r {
			t.Errorf("%s is read as %+v, %v", data, back, err)
		}
	}
	if len(p.Rows) != len(want) {
		t.Errorf("%d rows, want %d", len(p.Rows), len(want))
	}
}

// TestStableDigest: the same versions without the promise are another build.
func TestStableDigest(t *testing.T) {
	digest := func(torch, python, tag string) string {
		p := plan(t, `packages: {demo: {versions: ["1.0"], matrix: [{torch: `+torch+`, python: `+python+tag+`}]}}`, matrix.Options{})
		return p.Rows[0].Digest
	}
	plain := digest(`"2.10.0"`, `"3.10"`, ``)
	if stable := digest(`{stable: "2.10"}`, `"3.10"`, ``); stable == plain {
		t.Error("torch: {stable} has the digest of the plain row")
	}
	if tagged, abi3 := digest(`"2.10.0"`, `"3.10"`, `, wheel_tag: cp310-abi3`), digest(`"2.10.0"`, `{abi3: "3.10"}`, ``); tagged == abi3 {
		t.Error("python: {abi3} has the digest of a row with that tag")
	}
}

// TestServed: what one row stands for is counted from the releases that there are.
func TestServed(t *testing.T) {
	for text, want := range map[string][2]int{
		`torch: {stable: "2.10"}, python: {abi3: "3.13"}`: {1, 0},
		`torch: "2.9.0", python: ["3.12", "3.13"]`:        {2, 2},
	} {
		p := plan(t, `packages: {demo: {versions: ["1.0"], matrix: [{`+text+`}]}}`, matrix.Options{})
		rows, served := len(p.Rows), p.Served(nil)
		if rows != want[0] || want[1] > 0 && served != want[1] || want[1] == 0 && served < 4 {
			t.Errorf("%s: %d rows serve %d", text, rows, served)
		}
	}
}
