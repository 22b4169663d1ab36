package sandbox_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/sandbox"
)

// What the host's sandboxes do is tested by the conformance suite in sandboxtest; here is what they
// refuse.
func TestHostMistakes(t *testing.T) {
	host := sandbox.Host(sandbox.HostOptions{})
	if _, err := host.Open(t.Context(), sandbox.Spec{Name: "b", Mounts: []sandbox.Mount{{Host: "rel"}}}); err == nil {
		t.Error("a mount with a relative path: no error")
	}
	if _, err := host.Sweep(t.Context(), ""); err == nil {
		t.Error("sweep of nobody: no error")
	}
	if n, err := host.Sweep(t.Context(), "an owner that nobody is"); n != 0 || err != nil {
		t.Errorf("sweep of nothing: %d, %v", n, err)
	}
	box, err := host.Open(t.Context(), sandbox.Spec{Name: "b", Owner: "me"})
	if err != nil {
		t.Fatal(err)
	}
	if box.Image() != "" || !slices.Equal(box.Env(), []string{"KILN_BOX_OWNER=me"}) {
		t.Errorf("image %q, environment %q", box.Image(), box.Env())
	}
	if argv := box.Shell("/some folder", []string{"A=b"}); !slices.Contains(argv, "/some folder") || strings.Contains(argv[0], " ") {
		t.Errorf("shell %q", argv)
	}
}
