package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/fuzzcorpus"
	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/sign"
)

// signedModel compiles the small example and signs it.
func signedModel(t *testing.T) (model, public string) {
	t.Helper()
	dir := t.TempDir()
	example := filepath.Join("..", "..", "examples", "tiny-exl2")
	model, key := filepath.Join(dir, "model"), filepath.Join(dir, "release")
	for _, args := range [][]string{
		{"key", "create", key},
		{"model", "compile", "--job", filepath.Join(example, "work"), "--model", filepath.Join(example, "model"), "--out", model},
		{"model", "sign", model, "--sign-key", key + ".pem"},
	} {
		var out bytes.Buffer
		if code := run(args, strings.NewReader(""), &out, &out); code != 0 {
			t.Fatalf("kiln %q: %d\n%s", args, code, &out)
		}
	}
	return model, key + ".pub"
}

// TestModelSigstore: the tools of Sigstore and in-toto read the signature of a model, and find each of
// its files in it.
func TestModelSigstore(t *testing.T) {
	interpreter := python(t)
	if out, err := exec.CommandContext(t.Context(), interpreter, "-c", "import sigstore, securesystemslib, in_toto_attestation").CombinedOutput(); err != nil {
		kilntest.Lacking(t, "sigstore", "sigstore is not installed: %s", out)
	}
	model, public := signedModel(t)
	args := []string{"../../publish/testdata/attest.py", public, filepath.Join(model, "kiln-manifest.json.intoto.jsonl")}
	files, err := os.ReadDir(model)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".intoto.jsonl") {
			args = append(args, filepath.Join(model, f.Name()))
		}
	}
	out, err := exec.CommandContext(t.Context(), interpreter, args...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "files are subjects of a signed statement") || !strings.Contains(string(out), "valid statement https://github.com/kiln-build/kiln/model/v1") {
		t.Errorf("%v\n%s", err, out)
	}
}

func FuzzModelStatement(f *testing.F) {
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"name":"kiln-manifest.json","digest":{"sha256":""}}],"predicateType":"https://github.com/kiln-build/kiln/model/v1","predicate":{"signedOn":"2026-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"sig":"AAAA"}]}`))
	fuzzcorpus.Add(f)
	trust, err := sign.ParseTrust([]byte(`{"format":"kiln-trust/1","keys":[{"id":"66687aadf862bd77","public":"MCowBQYDK2VwAyEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","revoked":"2026-01-01T00:00:00Z"}]}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if signer, err := checkModelStatement(text, "kiln-manifest.json", nil, trust); err == nil {
			t.Fatalf("a forged signature of %s", signer)
		}
	})
}
