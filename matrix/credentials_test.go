package matrix_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/diag"
	"github.com/kiln-build/kiln/internal/secret"
	"github.com/kiln-build/kiln/matrix"
)

// Credentials of addresses are in the file's list of them and nowhere else.
func TestCredentials(t *testing.T) {
	const text = `
x-mirror: &mirror https://bob:planted1@mirror.example/simple
packages:
  a:
    source: {git: "https://bob:planted2@git.example/a.git", ref: v1}
    versions: ["1.0"]
    extra_deps: ["demo @ https://planted3-planted3@files.example/demo-1.0-py3-none-any.whl"]
    test: {requires: ["x @ git+https://bob:planted4@git.example/x.git"]}
    torch_source: {index: "https://bob:planted5@torch.example/{torch_index}"}
    matrix: [{cuda: ["12.4"], python: ["3.11"], torch: ["2.6.0"]}]
  b:
    source: {index: *mirror}
    versions: ["1.0"]
    matrix: [{cuda: ["12.4"], python: ["3.11"]}]
  c:
    source: {sdist: "https://s3.example/c-1.0.tar.gz?X-Amz-Signature=planted6", sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
    versions: ["1.0"]
    matrix: [{cuda: ["12.4"], python: ["3.11"]}]
publish:
  targets:
    server: {kiln: "https://__token__:planted7@wheels.example/"}
  index: {dir: public, remote: "https://bob:planted8@git.example/pages.git"}
`
	f, list := matrix.Parse("packages.yml", []byte(text))
	if f == nil {
		t.Fatal(list)
	}
	plan := f.Plan(matrix.Options{SkipIncompatible: true})
	shown, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	all := string(shown) + fmt.Sprintf("%+v %+v %s", f.Publish(), f.Cache(), f.Text)
	for _, row := range plan.Rows {
		settings, _ := plan.Settings(row.ID)
		all += fmt.Sprintf("%+v", settings)
	}
	if i := strings.Index(all, "planted"); i >= 0 {
		t.Errorf("shown: …%s…", all[max(0, i-60):i+20])
	}
	store := &secret.Store{}
	store.Add(f.Credentials()...)
	for i, address := range []string{
		"https://mirror.example/simple", "https://git.example/a.git", "https://files.example/demo-1.0-py3-none-any.whl", "git+https://git.example/x.git",
		"https://torch.example/cu124", "https://s3.example/c-1.0.tar.gz?X-Amz-Signature=***", "https://wheels.example/", "https://git.example/pages.git",
	} {
		if full := store.URL(address).Full(); !strings.Contains(full, fmt.Sprintf("planted%d", i+1)) {
			t.Errorf("the credentials of %s are %s", address, full)
		}
	}
}

// A password is no part of what decides whether a row is built again.
func TestCredentialsOutsideDigest(t *testing.T) {
	digest := func(password string) string {
		f, list := matrix.Parse("packages.yml", []byte(`packages: {a: {source: {git: "https://bob:`+password+`@git.example/a.git", ref: v1}, versions: ["1.0"], matrix: [{cuda: ["12.4"], python: ["3.11"]}]}}`))
		if f == nil {
			t.Fatal(list)
		}
		plan := f.Plan(matrix.Options{})
		if len(plan.Rows) != 1 {
			t.Fatal(plan.Findings)
		}
		return plan.Rows[0].Digest
	}
	if digest("one") != digest("two") {
		t.Error("another password is another row")
	}
}

// Where kiln would write them down they are mistakes, which show nothing of them.
func TestCredentialsRefused(t *testing.T) {
	for _, text := range []string{
		`packages: {a: {versions: ["1.0"], env: {INDEX: "https://bob:planted@h/"}}}`,
		`packages: {a: {versions: ["1.0"], image_setup: ["curl https://bob:planted@h/x"]}}`,
		`packages: {a: {versions: ["1.0"]}}` + "\npublish: {targets: {s: {s3: bucket, endpoint: \"https://bob:planted@h\"}}}",
		`packages: {a: {versions: ["1.0"]}}` + "\npublish: {targets: {s: {dir: x, url: \"https://bob:planted@h\"}}}",
		`packages: {a: {versions: ["1.0"], sourze: {git: "https://bob:planted@h/x"}}}`,
		`packages: {a: {versions: ["1.0"], source: {git: "https://bob:planted@h/x", reff: x}}}`,
		`packages: {a: {versions: ["1.0"], source: {git: "https://bob:planted@h/x"`,
	} {
		f, list := matrix.Parse("packages.yml", []byte(text))
		var out bytes.Buffer
		p := diag.Printer{Sources: map[string][]byte{"packages.yml": secret.Mask([]byte(text))}}
		if err := p.Print(&out, list); err != nil {
			t.Fatal(err)
		}
		if f != nil || !list.HasErrors() || strings.Contains(out.String(), "planted") {
			t.Errorf("%s: %s", text, out.String())
		}
		if slices.ContainsFunc(list, func(d diag.Diagnostic) bool { return strings.Contains(d.Message+d.Hint, "planted") }) {
			t.Errorf("%s: %v", text, list)
		}
	}
}
