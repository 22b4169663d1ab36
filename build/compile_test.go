package build

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/build/sandbox"
)

// TestSystemTorchFrontend: the torch of an image is enough for a source that requires torch, also
// where the image has torch's libraries from elsewhere than its metadata say.
func TestSystemTorchFrontend(t *testing.T) {
	boxes, work := sandbox.Host(sandbox.HostOptions{}), t.TempDir()
	box, err := boxes.Open(t.Context(), sandbox.Spec{Name: "b", Mounts: []sandbox.Mount{{Host: work, Inside: insideWork}}})
	if err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]bool{"system": true, "index": false} {
		a := &attempt{Recipe: &record.Recipe{}, builder: &Builder{Options: Options{Sandboxes: boxes}}, box: box, work: work, venv: filepath.Join(work, "venv")}
		a.Settings.TorchSource.Kind = kind
		if argv := a.frontend(map[string]string{}); slices.Contains(argv, "--skip-dependency-check") != want {
			t.Errorf("torch of kind %s: %q", kind, argv)
		}
	}
}
