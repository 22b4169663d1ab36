package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/audit"
	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/matrix"
)

// TestIndexAudit: what `kiln build` recorded of a wheel is on its page and in the catalog; a record
// of other bytes is not; a wheel without one is looked at.
func TestIndexAudit(t *testing.T) {
	dist, site := t.TempDir(), filepath.Join(t.TempDir(), "site")
	const recorded, rebuilt = "demo_ext-1.0-cp312-cp312-linux_x86_64.whl", "demo_ext-1.1+cu128.torch2.9-cp312-cp312-linux_x86_64.whl"
	for _, name := range []string{recorded, rebuilt} {
		if err := writeTestWheel(filepath.Join(dist, name), ""); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dist, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == rebuilt {
			data = append(data, "other bytes"...)
		}
		report := &audit.Report{
			File: name, Torch: "2.9.1+cu128", Platform: &audit.Platform{GLIBC: "2.28"},
			WorksWith: []audit.TorchVerdict{{Torch: "2.8.0+cu128"}, {Torch: "2.9.0+cu128", OK: true}, {Torch: "2.9.1+cu128", OK: true}, {Torch: "2.10.0+cu128", OK: true}, {Torch: "2.10.1+cu128"}},
			Objects: []audit.Object{
				{Path: "demo_ext/a.so", Kind: "elf", GPU: []audit.GPUCode{{Target: "8.0", Kind: "sass"}, {Target: "9.0a", Kind: "sass"}, {Target: "12.0", Kind: "sass"}, {Target: "12.0", Kind: "ptx"}}},
				{Path: "demo_ext/b.so", Kind: "elf", Needed: []string{"libtorch_cpu.so", "libc.so.6"}},
			},
			Findings: []audit.Finding{
				{Rule: audit.RuleRunPath, Severity: audit.Warning, File: "demo_ext/b.so", Message: "run path leads <out>\nof the wheel", Details: []string{"/opt/lib"}},
				{Rule: audit.RuleDebugInfo, Severity: audit.Note, Message: "debug information"},
			},
		}
		built := record.Record{
			Recipe: record.Recipe{Row: matrix.Row{ID: name, CUDA: "12.8.1", Torch: "2.9.1"}}, Audit: report, Files: []record.File{{Name: name, SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}},
		}
		if err := record.Write(dist, &built); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dist, "records", "broken.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out, stderr strings.Builder
	if code := run([]string{"index", "generate", "--wheels-dir", dist, "--output-dir", site}, strings.NewReader(""), &out, &stderr); code != exitDone {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	read := func(path ...string) string {
		data, err := os.ReadFile(filepath.Join(append([]string{site}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	page := read("project", "demo-ext", recorded, "index.html")
	for _, want := range []string{
		"symbols against torch 2.9.1&#43;cu128", "needs glibc 2.28", "8.0 9.0a 12.0&#43;PTX", "sm_90a", "run-path", "demo_ext/b.so: run path leads &lt;out&gt; of the wheel: /opt/lib",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of the file does not say %q", want)
		}
	}
	// The row says what the name does not: view, page and choice know it.
	if !strings.Contains(page, "glibc 2.28 or newer") || !strings.Contains(page, "<dt>torch</dt><dd>2.9</dd>") || !strings.Contains(page, "CUDA 12.8") {
		t.Error("the page does not say for which torch, CUDA and glibc the file is")
	}
	if view := read("cu128", "torch2.9", "simple", "demo-ext", "index.v1_json"); !strings.Contains(view, `"_kiln":{"toolkit":"cu128","torch":["2.9"],"arch":["8.0","9.0a","12.0+PTX"],"glibc":"2.28","window":["2.9"]}`) {
		t.Errorf("the view does not have the facts: %s", view)
	}
	for _, test := range []struct{ args, want string }{
		{"--torch 2.15.0+cu128 --glibc 2.39", "was built for torch 2.9, this has 2.15.0+cu128"},
		{"--torch 2.9.1+cu128 --glibc 2.17", "needs glibc 2.28, this has 2.17"},
		{"--torch 2.9.1+cu128 --glibc 2.39 --driver 580.65", ""},
	} {
		out.Reset()
		stderr.Reset()
		args := append([]string{"pick", "demo-ext==1.0", "--index", site, "--no-probe", "--os", "linux", "--arch", "x86_64", "--python", "3.12"}, strings.Fields(test.args)...)
		code := run(args, strings.NewReader(""), &out, &stderr)
		if code == exitDone != (test.want == "") || !strings.Contains(stderr.String(), test.want) {
			t.Errorf("pick %s: exit code %d: %s, want %q", test.args, code, stderr.String(), test.want)
		}
	}
	if strings.Contains(page, "debug information") {
		t.Error("a note is on the page")
	}
	if page := read("project", "demo-ext", rebuilt, "index.html"); strings.Contains(page, "torch 2.9.1") || !strings.Contains(page, audit.RuleNoNative) {
		t.Error("a record of other bytes was used, or the wheel was not looked at")
	}
	if catalog := read("catalog.json"); !strings.Contains(catalog, `"sm":["8.0","9.0a","12.0+PTX"]`) {
		t.Errorf("catalog.json: %s", catalog)
	}
	// A new process reads it back, and publishing again changes nothing.
	out.Reset()
	if code := run([]string{"index", "check", "--dir", site}, strings.NewReader(""), &out, &stderr); code != exitDone {
		t.Errorf("exit code %d: %s%s", code, out.String(), stderr.String())
	}
}
