package index_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// TestNginx: nginx with the lines of docs/index.md serves an index in both formats, compressed, to
// installers.
func TestNginx(t *testing.T) {
	if !indextest.E2E() {
		t.Skip("KILN_E2E does not name index")
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			kilntest.Lacking(t, "nginx", "no nginx on this machine")
		}
	}
	manual, err := os.ReadFile("../docs/index.md")
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut(string(manual), "```nginx\n")
	lines, _, found := strings.Cut(lines, "```\n")
	first, second, two := strings.Cut(lines, "\n")
	if !found || !two {
		t.Fatalf("docs/index.md: %q", lines)
	}
	dir, err := os.MkdirTemp("", "kiln-nginx") //nolint:usetesting // its workers are another user, who may not look into the folders of tests
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, filepath.Join(dir, "index"))
	files := []index.NewFile{indextest.DependWheel(t, t.TempDir(), "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl"), indextest.DependWheel(t, t.TempDir(), "demo_ext-1.0+cu130.torch2.9-py3-none-any.whl")}
	if _, problems, err := store.Add(t.Context(), files, index.AddOptions{}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf("daemon off; pid %[1]s/pid; error_log %[1]s/error.log;\nevents { }\nhttp {\naccess_log off; gzip_static on;\n%[3]s\nserver { listen %[2]s; root %[1]s/index;\n%[4]s}\n}\n", dir, address, first, second)
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text = strings.Replace(text, "access_log off;", "access_log off; "+name+"_temp_path "+dir+"/"+name+";", 1)
	}
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), nginx, "-e", dir+"/error.log", "-c", conf)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // ends its workers too
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of a test ends before
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if ctx.Err() != nil {
			log, _ := os.ReadFile(dir + "/error.log")
			t.Fatalf("nginx does not listen: %v\n%s", err, log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	view := "http://" + address + "/cu128/torch2.9/simple/"
	for accept, want := range map[string]string{"*/*": "text/html", index.TypeJSON + ", text/html;q=0.1": index.TypeJSON} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, view+"demo-ext/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		res, err := http.DefaultClient.Do(req) // asks for gzip and unpacks it
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.Header.Get("Content-Type") != want || !res.Uncompressed || res.Header.Get("Vary") != "Accept" || !strings.Contains(string(body), "demo_ext-1.0") {
			t.Errorf("Accept %s: %s, %v, %v\n%s", accept, res.Status, res.Header, err, body)
		}
	}
	for _, c := range clients(t) {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.fetch(t, view, "demo-ext")
			if err != nil || len(got) != 1 || got[0] != "demo_ext-1.0+cu128.torch2.9-py3-none-any.whl" {
				t.Errorf("%v: %v", got, err)
			}
		})
	}
}
