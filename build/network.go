package build

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kiln-build/kiln/build/sandbox"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/run"
	"github.com/kiln-build/kiln/internal/secret"
)

// FindNetwork returns how the user with this environment reaches package indexes, so that builds,
// which inherit nothing, reach them the same way: the index, certificates and proxies that pip is
// configured with. indexURL, if it is set, is the index. The credentials of all these addresses go
// into the store, and nowhere else.
func FindNetwork(ctx context.Context, indexURL string, env []string, credentials *secret.Store) Network {
	values := variables(env)
	n := Network{
		IndexURL: credentials.Take(indexURL), Credentials: credentials,
		PythonMirror: credentials.Take(values["UV_PYTHON_INSTALL_MIRROR"]), PythonDownloads: credentials.Take(values["UV_PYTHON_DOWNLOADS_JSON_URL"]),
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} {
		if v := values[name]; v != "" {
			n.Proxies = append(n.Proxies, name+"="+credentials.Take(v))
		}
	}
	for _, name := range []string{"PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"} {
		if n.CertFile == "" {
			n.CertFile = values[name]
		}
	}
	if n.IndexURL == "" {
		n.IndexURL = credentials.Take(values["PIP_INDEX_URL"])
	}
	if n.IndexURL == "" {
		n.IndexURL = credentials.Take(pipIndex(ctx, env))
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

// ProxyEnv returns the variables of the proxies as the programs need them that connect: with
// credentials.
func (n Network) ProxyEnv() []string {
	env := make([]string, len(n.Proxies))
	for i, proxy := range n.Proxies {
		name, address, _ := strings.Cut(proxy, "=")
		env[i] = name + "=" + n.Credentials.URL(address).Full()
	}
	return env
}

// client returns an HTTP client that trusts what the user trusts, and has the user's credentials.
func (n Network) client() (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = n.Credentials.Proxy
	if n.CertFile != "" {
		text, err := fsx.ReadFile(n.CertFile, 64<<20)
		if err != nil {
			return nil, fmt.Errorf("certificates: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("certificates: %s has none in PEM form", n.CertFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: n.Credentials.Transport(transport), Timeout: 10 * time.Minute}, nil
}

// pipAccess takes out of pip's arguments what needs credentials, and returns the rest with the
// variables that have them. The index becomes a variable of pip's own; a requirement that is an
// address moves into a file, in which pip replaces ${NAME} by a variable; git asks its
// configuration, which can be in variables too. The file is in dir, a folder of the box.
func (a *attempt) pipAccess(box sandbox.Box, dir string, args []string) (clean, secrets []string, err error) {
	store := a.builder.Network.Credentials
	var lines, repositories []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if u := store.URL(next(args, i)); arg == "--index-url" && u.Hidden() {
			fmt.Fprintf(a.log, "the index is %s, with credentials\n", u)
			secrets = append(secrets, "PIP_INDEX_URL="+u.Full())
			i++
			continue
		}
		line := arg
		for _, address := range secret.Addresses(arg) {
			u := store.URL(address)
			switch {
			case !u.Hidden() || strings.HasPrefix(arg, "-"):
			case strings.HasPrefix(address, "git+"):
				repositories = append(repositories, address)
			default:
				name := fmt.Sprintf("KILN_ADDRESS_%d", len(lines)+1)
				secrets = append(secrets, name+"="+u.Full())
				line = strings.Replace(line, address, "${"+name+"}", 1)
			}
		}
		if line == arg {
			clean = append(clean, arg)
		} else {
			lines = append(lines, line)
		}
	}
	git, count := store.GitConfig(0, repositories...)
	if count > 0 {
		secrets = append(secrets, append(git, fmt.Sprintf("GIT_CONFIG_COUNT=%d", count))...)
	}
	if len(lines) > 0 {
		file := filepath.Join(dir, "addresses.txt")
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o666); err != nil {
			return nil, nil, err
		}
		clean = append(clean, "--requirement", box.Inside(file))
	}
	return clean, secrets, nil
}

// next returns the argument behind one, "" at the end.
func next(args []string, i int) string {
	if i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// pipIndex asks pip which index it uses: the configured one or its own default. It is ""
// if there is no pip; then packages.yml or --index-url must say.
func pipIndex(ctx context.Context, env []string) string {
	// One process: each start of pip takes seconds on a busy machine.
	const ask = `
import sys
from pip._internal.cli.main import main
from pip._internal.models.index import PyPI
if main(["config", "get", "install.index-url"]) and main(["config", "get", "global.index-url"]):
    print(PyPI.simple_url)
`
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := run.Cmd{Argv: []string{"python3", "-c", ask}, Env: env, Stdout: &out, Stderr: &bytes.Buffer{}}
	if _, err := cmd.Run(ctx); err != nil {
		return ""
	}
	return strings.TrimSpace(out.String())
}
