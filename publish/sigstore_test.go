package publish_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/internal/sign"
	"github.com/kiln-build/kiln/publish"
	"github.com/kiln-build/kiln/publish/publishtest"
)

// TestSigstore: the tools of Sigstore and in-toto read what kiln signs, find the signature good,
// and find the wheel and its papers in it.
func TestSigstore(t *testing.T) {
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	if out, err := exec.CommandContext(t.Context(), python, "-c", "import sigstore, securesystemslib, in_toto_attestation").CombinedOutput(); err != nil {
		kilntest.Lacking(t, "sigstore", "sigstore is not installed: %s", out)
	}
	private, public := publishtest.Keys(t, t.TempDir(), "release")
	key, err := sign.ReadPrivateKey(private)
	must(t, err)
	p := newPapers(t, publish.StatementOptions{Key: key, Signed: time.Now()})
	out, err := exec.CommandContext(t.Context(), python, "testdata/attest.py", public, p.wheel+".intoto.jsonl", p.wheel, p.wheel+".cdx.json", p.wheel+".metadata").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"securesystemslib: signature good", "sigstore: 3 files", "in-toto-attestation: valid statement", "in-toto-attestation: valid provenance"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
