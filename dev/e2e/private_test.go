//go:build linux

package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/internal/kilntest"
)

// privateClient is an account on a machine: its home folder, and what it knows of the index.
type privateClient struct {
	t    *testing.T
	home string
	env  []string
}

func (c *privateClient) write(name, text string) string {
	c.t.Helper()
	file := filepath.Join(c.home, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

func (c *privateClient) run(ok bool, argv ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), argv[0], argv[1:]...)
	cmd.Dir = c.home
	cmd.Env = append(append(indextest.Environment(), "HOME="+c.home, "XDG_CONFIG_HOME="+c.home, "XDG_CACHE_HOME="+c.home, "XDG_DATA_HOME="+c.home, "PIP_NO_INPUT=1",
		"PIP_FIND_LINKS=", "PYTHON_KEYRING_BACKEND=keyring.backends.null.Keyring"), c.env...)
	out, err := cmd.CombinedOutput()
	if (err == nil) != ok {
		c.t.Errorf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// TestE2EPrivate: all clients read a private index and upload to it, with the token where each of
// them keeps it: in the address, ~/.netrc, variables, ~/.pypirc, keyring; and none does without.
func TestE2EPrivate(t *testing.T) {
	kilntest.NeedE2E(t, "index")
	kiln := buildKiln(t)
	python := indextest.Venv(t, "private", "pip", "uv", "twine", "keyring", "keyrings.alt")
	poetry := indextest.Venv(t, "poetry", "poetry==2.2.1")
	uv, keyring := filepath.Join(filepath.Dir(python), "uv"), filepath.Join(filepath.Dir(python), "keyring")

	site, wheels := filepath.Join(t.TempDir(), "index"), t.TempDir()
	wheelFile := func(name string) string {
		file := filepath.Join(wheels, name)
		if err := os.WriteFile(file, indextest.Wheel(t, name, nil), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	owner := &privateClient{t: t, home: t.TempDir()}
	owner.run(true, kiln, "index", "add", "--dir", site, wheelFile("tiny-1.0-py3-none-any.whl"))
	token := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), kiln, append([]string{"serve", "token", "create", "--dir", site, "--project", "*"}, args...)...)
		out, err := cmd.Output() // the token alone; what to do with it is on the other
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	read, upload := token("--read"), token()
	address := serveFolder(t, kiln, site, "--private")
	base := "http://" + address
	simple, legacy := base+"/simple/", base+"/legacy/"
	with := func(secret, url string) string {
		return strings.Replace(url, "http://", "http://__token__:"+secret+"@", 1)
	}
	user := strings.Replace(simple, "http://", "http://__token__@", 1)
	netrc := "machine localhost login __token__ password " + read + "\n"

	pip := func(index string, more ...string) []string {
		return append([]string{python, "-m", "pip", "download", "--no-deps", "--dest", "pip", "--index-url", index, "tiny"}, more...)
	}
	uvInstall := func(index string, more ...string) []string {
		return append([]string{uv, "pip", "install", "--no-deps", "--target", "uv", "--python", python, "--default-index", index, "tiny"}, more...)
	}
	pick := func(index string) []string {
		return []string{kiln, "pick", "tiny", "--index", index, "--no-probe", "--os", "linux", "--glibc", "2.36", "--python", "3.11"}
	}
	twine := []string{python, "-m", "twine", "upload", "--non-interactive", "--disable-progress-bar", "--repository-url", legacy}
	project := "[project]\nname = \"sender\"\nversion = \"1.0\"\nrequires-python = \">=3.10,<4\"\ndependencies = [\"tiny\"]\n" +
		"[[tool.poetry.source]]\nname = \"mine\"\nurl = \"" + simple + "\"\npriority = \"primary\"\n"
	poetryAuth := []string{"POETRY_HTTP_BASIC_MINE_USERNAME=__token__", "POETRY_HTTP_BASIC_MINE_PASSWORD=" + upload, "POETRY_REPOSITORIES_MINE_URL=" + legacy}

	files := 0
	next := func() string { // a file that the index does not have
		files++
		return wheelFile("tiny-1." + string(rune('0'+files)) + "-py3-none-any.whl")
	}
	for _, test := range []struct {
		name  string
		argv  []string
		netrc bool
		ring  string // the token that keyring has
		env   []string
		files map[string]string
		got   string // a file that is there afterwards
		fails bool
	}{
		{name: "pip without", argv: pip(simple), fails: true},
		{name: "pip, wrong", argv: pip(with("kiln_wrong", simple)), fails: true},
		{name: "pip, address", argv: pip(with(read, simple)), got: "pip/tiny-1.0-py3-none-any.whl"},
		{name: "pip, netrc", argv: pip(simple), netrc: true, got: "pip/tiny-1.0-py3-none-any.whl"},
		{name: "pip, keyring as a module", argv: pip(user, "--keyring-provider", "import"), ring: read, got: "pip/tiny-1.0-py3-none-any.whl"},
		{name: "pip, keyring as a program", argv: pip(user, "--keyring-provider", "subprocess"), ring: read, got: "pip/tiny-1.0-py3-none-any.whl"},
		{name: "uv without", argv: uvInstall(simple), fails: true},
		{name: "uv, address", argv: uvInstall(with(read, simple)), got: "uv/tiny-1.0.dist-info/RECORD"},
		{name: "uv, netrc", argv: uvInstall(simple), netrc: true, got: "uv/tiny-1.0.dist-info/RECORD"},
		{name: "uv, keyring", argv: uvInstall(user, "--keyring-provider", "subprocess"), ring: read, got: "uv/tiny-1.0.dist-info/RECORD"},
		{name: "uv, variables", argv: uvInstall("mine=" + simple), env: []string{"UV_INDEX_MINE_USERNAME=__token__", "UV_INDEX_MINE_PASSWORD=" + read}, got: "uv/tiny-1.0.dist-info/RECORD"},
		{name: "poetry without", argv: []string{poetry, "-m", "poetry", "lock"}, files: map[string]string{"pyproject.toml": project}, fails: true},
		{name: "poetry", argv: []string{poetry, "-m", "poetry", "lock"}, files: map[string]string{"pyproject.toml": project}, env: poetryAuth, got: "poetry.lock"},
		{name: "poetry sync", argv: []string{poetry, "-m", "poetry", "sync", "--no-root"}, files: map[string]string{"pyproject.toml": project}, env: append([]string{"POETRY_VIRTUALENVS_IN_PROJECT=true"}, poetryAuth...), got: ".venv/bin/python"},
		{name: "kiln pick without", argv: pick(base + "/"), fails: true},
		{name: "kiln pick, address", argv: pick(with(read, base+"/"))},
		{name: "kiln pick, netrc", argv: pick(base + "/"), netrc: true},
		{name: "twine without", argv: append(twine, next()), fails: true},
		{name: "twine, read token", argv: append(twine, "-u", "__token__", "-p", read, next()), fails: true},
		{name: "twine, option", argv: append(twine, "-u", "__token__", "-p", upload, next())},
		{name: "twine, keyring", argv: append(twine, "-u", "__token__", next()), ring: upload},
		{
			name: "twine, pypirc", argv: []string{python, "-m", "twine", "upload", "--non-interactive", "--disable-progress-bar", "--repository", "mine", next()},
			files: map[string]string{".pypirc": "[distutils]\nindex-servers = mine\n[mine]\nrepository = " + legacy + "\nusername = __token__\npassword = " + upload + "\n"},
		},
		{name: "uv publish without", argv: []string{uv, "publish", "--publish-url", legacy, next()}, fails: true},
		{name: "uv publish, token", argv: []string{uv, "publish", "--publish-url", legacy, "--check-url", with(upload, simple), "--token", upload, next()}},
		{name: "uv publish, keyring", argv: []string{uv, "publish", "--publish-url", strings.Replace(legacy, "http://", "http://__token__@", 1), "--keyring-provider", "subprocess", "--username", "__token__", next()}, ring: upload},
		{name: "poetry publish", argv: []string{poetry, "-m", "poetry", "publish", "--repository", "mine", "--dist-dir", "out"}, files: map[string]string{"pyproject.toml": project}, env: poetryAuth},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &privateClient{t: t, home: t.TempDir(), env: append([]string{"PATH=" + filepath.Dir(python) + ":/usr/bin:/bin"}, test.env...)}
			for name, text := range test.files {
				c.write(name, text)
			}
			if test.name == "poetry publish" {
				if err := os.Mkdir(filepath.Join(c.home, "out"), 0o755); err != nil {
					t.Fatal(err)
				}
				c.write("out/sender-1.0-py3-none-any.whl", string(indextest.Wheel(t, "sender-1.0-py3-none-any.whl", nil)))
			}
			if test.netrc {
				c.write(".netrc", netrc)
			}
			if test.ring != "" {
				// pip runs no keyring of its own environment, which it would import.
				if err := os.Symlink(keyring, filepath.Join(c.home, "keyring")); err != nil {
					t.Fatal(err)
				}
				c.env[0] = "PATH=" + c.home + ":/usr/bin:/bin"
				c.env = append(c.env, "PYTHON_KEYRING_BACKEND=keyrings.alt.file.PlaintextKeyring")
				for _, service := range []string{simple, base, address, "localhost", legacy} { // each client asks in its own way
					c.run(true, "sh", "-c", "echo "+test.ring+" | "+keyring+" set "+service+" __token__")
				}
			}
			out := c.run(!test.fails, test.argv...)
			if test.got != "" {
				if _, err := os.Stat(filepath.Join(c.home, test.got)); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
			for _, secret := range []string{read, upload} {
				if strings.Contains(out, secret) && test.argv[0] == kiln {
					t.Errorf("the token is printed:\n%s", out)
				}
			}
		})
	}
	// What was uploaded is there, and nothing of what was refused.
	listed := owner.run(true, kiln, "index", "list", "--dir", site)
	for i, there := range []bool{false, false, true, true, true, false, true, true} {
		if name := "tiny-1." + string(rune('1'+i)); strings.Contains(listed, name) != there {
			t.Errorf("%s is in the index: %v\n%s", name, !there, listed)
		}
	}
	if !strings.Contains(listed, "sender") {
		t.Errorf("poetry has published nothing:\n%s", listed)
	}
}
