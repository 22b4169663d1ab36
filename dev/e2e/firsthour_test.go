//go:build linux

package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestE2EFirstHour does what a stranger does first: gets kiln from a release and follows the
// tutorial, on a bare Debian. With Python, kiln is a wheel that pip gets from a server that another
// kiln runs on the folder of the release; without Python, it is the program, and kiln brings the
// Python of the row. make dist makes the release.
func TestE2EFirstHour(t *testing.T) {
	kilntest.NeedE2E(t, "first-hour")
	release := repository(t, ".cache", "dist")
	programs, err := filepath.Glob(filepath.Join(release, "kiln-*-linux-amd64"))
	if err != nil || len(programs) != 1 {
		t.Fatalf("%v: %q in %s; make dist makes them", err, programs, release)
	}
	program := filepath.Base(programs[0])
	address := serveFolder(t, programs[0], release)
	for _, test := range []struct{ name, image, install string }{
		{"wheel", "ci", "python3 -m venv ~/.kiln-venv\n~/.kiln-venv/bin/pip install --quiet --disable-pip-version-check --index-url http://" + address + "/simple/ kiln-build\n" +
			"mkdir -p ~/bin && ln -s ~/.kiln-venv/bin/kiln ~/bin/kiln"},
		{"binary", "bookworm-cc", "if command -v python3 python3.11 pip uv; then exit 1; fi\n" +
			"cd /release && sha256sum --check --ignore-missing --strict SHA256SUMS\nmkdir -p ~/bin && install -m 755 " + program + " ~/bin/kiln"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := launch(t, "", test.image, append(pythonList(t), "--volume", release+":/release:ro")...)
			v.must(test.install)
			if got := v.must("~/bin/kiln version"); !strings.HasPrefix(got, "kiln "+regexp.MustCompile(`[0-9.]+[0-9]`).FindString(program)) {
				t.Fatalf("installed: %s", got)
			}
			port := strconv.Itoa(kilntest.FreePort(t))
			page := kilntest.ReadPage(t, filepath.FromSlash("../../docs/tutorial.md"), func(text string) string { return strings.ReplaceAll(text, "8765", port) })
			start := time.Now()
			cmd := exec.CommandContext(t.Context(), "podman", "--runtime", "runc", "exec", "--interactive", "--env", "NO_COLOR=1", "--env", "COLUMNS=300", v.id,
				"bash", "-c", "mkdir ~/pairsum && cd ~/pairsum && PATH=~/bin:$PATH exec bash -s")
			cmd.Stdin = strings.NewReader(page.Script)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("the shell: %v", err)
			}
			ran := page.Compare(t, out)
			t.Logf("%d commands of the tutorial in %.0f s", ran, time.Since(start).Seconds())
		})
	}
}

// serveFolder serves a folder of wheels or an index and returns the address.
func serveFolder(t *testing.T, kiln, folder string, args ...string) string {
	t.Helper()
	address := fmt.Sprintf("localhost:%d", kilntest.FreePort(t))
	var log bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), kiln, append([]string{"serve", folder, "--addr", address}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Errorf("kiln serve: %v\n%s", err, log.String())
		}
	})
	for range 100 {
		if c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address); err == nil {
			c.Close()
			return address
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("kiln serve does not answer:\n%s", log.String())
	return ""
}

// pythonList mounts the Pythons of stock-images.sh, in place of those that uv fetches.
func pythonList(t *testing.T) []string {
	t.Helper()
	pythons := filepath.Join(stockCache(t), "pythons")
	text, err := os.ReadFile(filepath.Join(pythons, "downloads.json"))
	if err != nil {
		t.Fatalf("%v; dev/e2e/stock-images.sh pythons makes it", err)
	}
	list := filepath.Join(t.TempDir(), "downloads.json")
	text = regexp.MustCompile(`file://[^"]*/`).ReplaceAll(text, []byte("file:///pythons/"))
	if err := os.WriteFile(list, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"--volume", pythons + ":/pythons:ro", "--volume", list + ":/downloads.json:ro", "--env", "UV_PYTHON_DOWNLOADS_JSON_URL=/downloads.json"}
}
