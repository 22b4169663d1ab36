package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(probeVariable); url != "" {
		_ = runProbe(context.Background(), os.Stdout, url)
		return
	}
	os.Exit(m.Run())
}

// TestAttack is the short form of "make attack": a real server, every kind of attack, nothing wrong
// and little memory. How fast the health check is depends on what else the machine does.
func TestAttack(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers and attacks them for a minute")
	}
	dir := t.TempDir()
	kiln := filepath.Join(dir, "kiln")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", kiln, "../../cmd/kiln").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var out strings.Builder
	err := run(t.Context(), &out, config{kiln: kiln, dir: dir, only: regexp.MustCompile(""), short: true, seconds: 2 * time.Second})
	t.Logf("%s", out.String())
	if err != nil {
		t.Fatal(err)
	}
}
