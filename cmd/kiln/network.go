package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build"
	children "github.com/kiln-build/kiln/internal/run"
)

// networkSettings finds out how this user reaches package indexes, so that builds, which
// inherit nothing, reach them the same way: the index, certificates and proxies that pip
// is configured with.
func networkSettings(ctx context.Context, indexURL string) build.Network {
	n := build.Network{IndexURL: indexURL}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		if v := os.Getenv(name); v != "" {
			n.Proxies = append(n.Proxies, name+"="+v)
		}
	}
	for _, name := range []string{"PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"} {
		if v := os.Getenv(name); v != "" && n.CertFile == "" {
			n.CertFile = v
		}
	}
	if n.IndexURL == "" {
		n.IndexURL = os.Getenv("PIP_INDEX_URL")
	}
	if n.IndexURL == "" {
		n.IndexURL = pipIndex(ctx)
	}
	return n
}

// pipIndex asks pip which index it uses: the configured one or its own default. It is ""
// if there is no pip; then packages.yml or --index-url must say.
func pipIndex(ctx context.Context) string {
	const ask = `
import subprocess, sys
for key in "install.index-url", "global.index-url":
    got = subprocess.run([sys.executable, "-m", "pip", "config", "get", key], capture_output=True, text=True)
    if got.returncode == 0 and got.stdout.strip():
        print(got.stdout.strip())
        break
else:
    from pip._internal.models.index import PyPI
    print(PyPI.simple_url)
`
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := children.Cmd{Argv: []string{"python3", "-c", ask}, Env: os.Environ(), Stdout: &out, Stderr: &bytes.Buffer{}}
	if _, err := cmd.Run(ctx); err != nil {
		return ""
	}
	return strings.TrimSpace(out.String())
}
