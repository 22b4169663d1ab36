package build_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/wheel"
)

// plainIndex is an index of wheels that no client may keep. It counts the bytes of wheels that it
// sends.
type plainIndex struct {
	wheels   map[string][]byte
	metadata bool // beside the wheels
	sent     atomic.Int64
}

func (x *plainIndex) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	name := path.Base(r.URL.Path)
	if data, ok := x.wheels[name]; ok {
		http.ServeContent(counter{w, &x.sent}, r, name, time.Time{}, bytes.NewReader(data))
		return
	}
	if data, ok := x.wheels[strings.TrimSuffix(name, ".metadata")]; ok && x.metadata {
		_, _ = w.Write(metadataOf(data, strings.TrimSuffix(name, ".metadata")))
		return
	}
	w.Header().Set("Content-Type", "text/html")
	for file, data := range x.wheels {
		if f, err := wheel.ParseFilename(file); err != nil || f.Name != name {
			continue
		}
		fmt.Fprintf(w, `<a href="/files/%s#sha256=%x"`, file, sha256.Sum256(data))
		if x.metadata {
			fmt.Fprintf(w, ` data-core-metadata="sha256=%x"`, sha256.Sum256(metadataOf(data, file)))
		}
		fmt.Fprintf(w, ">%s</a>\n", file)
	}
}

type counter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func metadataOf(data []byte, file string) []byte {
	r, err := wheel.NewReader(bytes.NewReader(data), int64(len(data)), file, wheel.Limits{})
	if err != nil {
		panic(err)
	}
	m, err := r.Metadata()
	if err != nil {
		panic(err)
	}
	return m.Bytes()
}

// TestDownloadsOnce: every wheel comes to the machine once, also from an index that forbids caches.
func TestDownloadsOnce(t *testing.T) {
	dir := t.TempDir()
	python := os.Getenv("KILN_PYTHON")
	pythonVersion(t)
	out, err := exec.CommandContext(t.Context(), python, "-m", "pip", "download", "-q", "-d", dir, "pip>=26", "setuptools", "build").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	heavy := make([]byte, 4<<20)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // bytes that cannot be compressed
	for i := range heavy {
		heavy[i] = byte(random.Uint32())
	}
	for _, metadata := range []bool{true, false} {
		t.Run(fmt.Sprintf("metadata=%t", metadata), func(t *testing.T) {
			x := &plainIndex{wheels: map[string][]byte{}, metadata: metadata}
			files, err := filepath.Glob(filepath.Join(dir, "*.whl"))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if x.wheels[filepath.Base(f)], err = os.ReadFile(f); err != nil {
					t.Fatal(err)
				}
			}
			x.wheels["heavy-1.0-py3-none-any.whl"] = indextest.Wheel(t, "heavy-1.0-py3-none-any.whl", map[string]string{"heavy/data": string(heavy), "heavy/__init__.py": ""})
			server := httptest.NewServer(x)
			defer server.Close()
			p := newProject(t, map[string]string{
				"packages.yml": `
packages:
  demo:
    versions: ["1.0"]
    source: {path: src}
    extra_deps: [build, setuptools, heavy]
    local_version: ""
    test_import: thing
    matrix: [{python: "PYTHON", wheel_tag: py3-none, platform: any}]
`,
				"src/setup.py": `
from setuptools import setup
setup(name="demo", version="1.0", py_modules=["thing"], install_requires=["heavy"])
`,
				"src/thing.py": "import heavy\n",
			})
			p.opts.Network.IndexURL = server.URL + "/simple/"
			p.opts.StoreDir = t.TempDir()
			// The environments of the build and of the test both have heavy.
			result := p.build()
			if got := statuses(result)["demo"]; got != "done passed" {
				t.Fatalf("%s\n%s", got, p.log(result.Rows[0]))
			}
			var once int64
			for _, data := range x.wheels {
				once += int64(len(data))
			}
			// Without metadata, pip reads the ends of wheels.
			if more := x.sent.Load() - once; more > 0 && metadata || more > 1<<20 {
				t.Errorf("%d bytes more than once each", more)
			}
			for _, in := range result.Rows[0].Record.Installed {
				if in.SHA256 == "" || !strings.HasPrefix(in.URL, server.URL) {
					t.Errorf("installed %+v", in)
				}
			}
		})
	}
}
