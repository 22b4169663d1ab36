package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestTutorial does what docs/tutorial.md says, from the first to the last command, in one shell
// and an empty folder: writes its files, runs its commands, and compares what they print with what
// the page shows. TestE2EFirstHour does the same on a bare Debian.
func TestTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("builds wheels")
	}
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, "kiln"), ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	port := strconv.Itoa(kilntest.FreePort(t))
	page := kilntest.ReadPage(t, filepath.FromSlash("../../docs/tutorial.md"), func(text string) string { return strings.ReplaceAll(text, "8765", port) })
	cmd := exec.CommandContext(t.Context(), "bash", "-s")
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(page.Script)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+filepath.Dir(python)+":"+os.Getenv("PATH"), "HOME="+cmd.Dir, "NO_COLOR=1", "COLUMNS=300")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the shell: %v", err)
	}
	if ran := page.Compare(t, out); ran < 12 {
		t.Errorf("%d commands", ran)
	}
}
