package build

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/kiln-build/kiln/internal/run"
)

// FindNetwork returns how the user with this environment reaches package indexes, so that builds,
// which inherit nothing, reach them the same way: the index, certificates and proxies that pip is
// configured with. indexURL, if it is set, is the index.
func FindNetwork(ctx context.Context, indexURL string, env []string) Network {
	values := variables(env)
	n := Network{IndexURL: indexURL, PythonMirror: values["UV_PYTHON_INSTALL_MIRROR"], PythonDownloads: values["UV_PYTHON_DOWNLOADS_JSON_URL"]}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		if v := values[name]; v != "" {
			n.Proxies = append(n.Proxies, name+"="+v)
		}
	}
	for _, name := range []string{"PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"} {
		if n.CertFile == "" {
			n.CertFile = values[name]
		}
	}
	if n.IndexURL == "" {
		n.IndexURL = values["PIP_INDEX_URL"]
	}
	if n.IndexURL == "" {
		n.IndexURL = pipIndex(ctx, env)
	}
	return n
}

// variables makes a map of an environment.
func variables(env []string) map[string]string {
	values := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		values[name] = value
	}
	return values
}

// pipIndex asks pip which index it uses: the configured one or its own default. It is ""
// if there is no pip; then packages.yml or --index-url must say.
func pipIndex(ctx context.Context, env []string) string {
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
	cmd := run.Cmd{Argv: []string{"python3", "-c", ask}, Env: env, Stdout: &out, Stderr: &bytes.Buffer{}}
	if _, err := cmd.Run(ctx); err != nil {
		return ""
	}
	return strings.TrimSpace(out.String())
}
