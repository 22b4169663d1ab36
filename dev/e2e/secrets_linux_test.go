package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-build/kiln/internal/kilntest"
)

// planted are the secrets of the run, each in another place. The punctuation is what addresses have
// to escape.
var planted = map[string]string{
	"index":    "Zi/nd@ex:1%w0rd",
	"git":      "Zg-it#2?w0rd",
	"gituser":  "ZghpToken3AsUserName",
	"sdist":    "Zsignature4deadbeef",
	"dep":      "Zd&ep=5/w0rd",
	"proxy":    "Zpr@oxy6w0rd",
	"kiln":     "", // made by the server
	"github":   "Zgithub8token0000",
	"aws":      "Zaws9secretkey00000",
	"cachepw":  "Zcache10password",
	"foreign":  "Zforeign11deploytoken",
	"cacheurl": "Zcache12@remote",
	"torch":    "Ztorch13index",
	"pages":    "Zpages14/branch",
	"uv":       "Zuv15indexurl",
	"wrong":    "Zwrong16token",
}

const wheelName = "fromgit-1.0-cp311-cp311-linux_x86_64.whl"

// thief is a setup.py that looks for secrets wherever a build can, and puts what it finds where it
// stays: in the log, and in the wheel.
const thief = `
import glob, os, sys
from setuptools import Extension, setup
found = ["%s=%s" % kv for kv in os.environ.items()]
for name in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        found.append(open(name, "rb").read().replace(b"\0", b"\n").decode("utf-8", "replace"))
    except OSError:
        pass
os.makedirs("NAME", exist_ok=True)
open("NAME/__init__.py", "w").write("found = %r\n" % found)
print("\n".join(found))
open("c.c", "w").write("#include <Python.h>\nstatic struct PyModuleDef d = {PyModuleDef_HEAD_INIT, \"c\", 0, -1, 0};\nPyMODINIT_FUNC PyInit_c(void) { return PyModule_Create(&d); }\n")
setup(name="NAME", version="1.0", packages=["NAME"], ext_modules=[Extension("NAME.c", ["c.c"])])
`

// site is the world of a run: an index, git repositories and files that ask who comes, and a proxy.
type site struct {
	server, proxy *httptest.Server
	files         map[string][]byte
	denied        sync.Map // paths that were refused
	passed        sync.Map // users that came through
}

func userinfo(user, password string) string { return url.UserPassword(user, password).String() + "@" }

// newSite starts it. The index is the one that pip uses here, behind a password.
func newSite(t *testing.T, repositories string) *site {
	t.Helper()
	s := &site{files: map[string][]byte{}}
	upstream := "https://pypi.org/simple/"
	if out, err := exec.CommandContext(t.Context(), os.Getenv("KILN_PYTHON"), "-m", "pip", "config", "get", "global.index-url").Output(); err == nil && len(out) > 0 {
		upstream = strings.TrimRight(strings.TrimSpace(string(out)), "/") + "/"
	}
	mux := http.NewServeMux()
	only := func(who map[string]string, h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			if want, ok := who[user]; !ok || want != password {
				s.denied.Store(r.URL.Path, user)
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
			s.passed.Store(user, true)
			h(w, r)
		}
	}
	index := map[string]string{"indexuser": planted["index"]}
	mux.HandleFunc("/simple/", only(index, func(w http.ResponseWriter, r *http.Request) {
		text, err := fetch(r.Context(), upstream+strings.TrimPrefix(r.URL.Path, "/simple/"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write(bytes.ReplaceAll(text, []byte("https://files.pythonhosted.org/"), []byte("/files/")))
	}))
	mux.HandleFunc("/files/", only(index, func(w http.ResponseWriter, r *http.Request) {
		text, err := fetch(r.Context(), "https://files.pythonhosted.org/"+strings.TrimPrefix(r.URL.Path, "/files/"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(text)
	}))
	backend, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		kilntest.Lacking(t, "git", "%v", err)
	}
	git := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(backend)), "git-http-backend"), Root: "/git", Stderr: io.Discard,
		Env: []string{
			"GIT_PROJECT_ROOT=" + repositories, "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=x",
			"GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_CONFIG_KEY_1=http.receivepack", "GIT_CONFIG_VALUE_1=true",
		},
	}
	mux.HandleFunc("/git/", only(map[string]string{"gituser": planted["git"], planted["gituser"]: "", "pagesuser": planted["pages"]}, git.ServeHTTP))
	mux.HandleFunc("/signed/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("X-Amz-Signature") != planted["sdist"] {
			http.Error(w, "not signed", http.StatusForbidden)
			return
		}
		s.passed.Store("signature", true)
		_, _ = w.Write(s.files[r.URL.Path])
	})
	mux.HandleFunc("/deps/", only(map[string]string{"depuser": planted["dep"]}, func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(s.files[r.URL.Path]) }))
	s.server = httptest.NewServer(mux)
	t.Cleanup(s.server.Close)
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.Header.Del("Proxy-Authorization") }}
	s.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}})
		if _, password, _ := auth.BasicAuth(); password != planted["proxy"] {
			s.denied.Store("proxy", r.URL.String())
			w.Header().Set("Proxy-Authenticate", `Basic realm="x"`)
			http.Error(w, "who are you?", http.StatusProxyAuthRequired)
			return
		}
		s.passed.Store("proxyuser", true)
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(s.proxy.Close)
	return s
}

// with returns an address of the site with credentials.
func (s *site) with(info, path string) string {
	return strings.Replace(s.server.URL, "://", "://"+info, 1) + path
}

func fetch(ctx context.Context, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/html, */*;q=0.1")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", address, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// hunt is a run of kiln commands in one folder, and the search for what they leave.
type hunt struct {
	*testing.T
	kiln     string
	dir      string // everything that is written is below it
	inputs   string // what the user wrote; secrets belong there
	env      []string
	needles  map[string][]string
	mu       sync.Mutex
	finds    map[string]int
	commands int
}

// forms are the ways in which a secret could be written.
func forms(s string) []string {
	lower := strings.NewReplacer("%2F", "%2f", "%3A", "%3a", "%3F", "%3f", "%3D", "%3d").Replace(url.QueryEscape(s))
	return []string{s, url.QueryEscape(s), url.PathEscape(s), lower, url.UserPassword("", s).String()[1:]}
}

// search looks for secrets in a text.
func (h *hunt) search(where string, text []byte) {
	for name, list := range h.needles {
		for _, needle := range list {
			if bytes.Contains(text, []byte(needle)) {
				h.mu.Lock()
				h.finds[name+" in "+where]++
				h.mu.Unlock()
				break
			}
		}
	}
}

// run runs kiln, and says whether it succeeded; its output is searched.
func (h *hunt) run(args ...string) (string, bool) {
	h.Helper()
	cmd := exec.CommandContext(h.Context(), h.kiln, args...)
	cmd.Dir, cmd.Env = filepath.Join(h.dir, "project"), h.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	h.commands++
	h.search("the output of kiln "+args[0], out.Bytes())
	return out.String(), err == nil
}

func (h *hunt) must(args ...string) string {
	h.Helper()
	out, ok := h.run(args...)
	if !ok {
		h.Errorf("kiln %s failed:\n%s", args[0], out)
	}
	return out
}

// fails runs kiln for what cannot work: errors are where secrets are shown.
func (h *hunt) fails(args ...string) {
	h.Helper()
	if out, ok := h.run(args...); ok {
		h.Errorf("kiln %s works and should not:\n%s", args[0], out)
	}
}

// watch looks at all processes below this one until the returned function is called: no argument may
// be a secret, and no environment may have one but that of the program that uses it.
func (h *hunt) watch() (stop func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for {
			h.lookAtProcesses()
			select {
			case <-done:
				return
			case <-time.After(15 * time.Millisecond):
			}
		}
	})
	return func() { close(done); all.Wait() }
}

func (h *hunt) lookAtProcesses() {
	entries, _ := os.ReadDir("/proc")
	parents := map[int]int{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if stat, err := os.ReadFile("/proc/" + e.Name() + "/stat"); err == nil {
				if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(f) > 1 {
					parents[pid], _ = strconv.Atoi(f[1])
				}
			}
		}
	}
	for pid := range parents {
		up, depth, trusted := pid, 0, false
		for ; up > 1 && up != os.Getpid(); up, depth = parents[up], depth+1 {
			trusted = trusted || needsSecrets(up)
		}
		file := fmt.Sprintf("/proc/%d/", pid)
		cmdline, _ := os.ReadFile(file + "cmdline")
		// Containers are not below this process; they have names that only kiln gives.
		if up != os.Getpid() && !bytes.Contains(cmdline, []byte("kiln")) || pid == os.Getpid() {
			continue
		}
		environ, _ := os.ReadFile(file + "environ")
		argv := strings.Split(string(cmdline), "\x00")
		switch program := filepath.Base(argv[0]); {
		case program == "git-http-backend" || program == "versitygw" || depth == 1 && program == filepath.Base(h.kiln) && !bytes.Contains(environ, []byte("KILN_SECRETS_FD=")) && h.young(pid):
			continue // the server; what the user typed, before kiln has taken it away
		case trusted:
			environ = nil
		}
		h.search("the arguments of "+filepath.Base(argv[0]), cmdline)
		h.search("the environment of "+filepath.Base(argv[0]), environ)
	}
	configs, _ := filepath.Glob("/var/lib/containers/storage/overlay-containers/*/userdata/config.json")
	for _, name := range configs {
		text, _ := os.ReadFile(name)
		h.search("the container's "+filepath.Base(name), text)
	}
}

// needsSecrets reports whether a process is a program that connects with credentials. Its children
// have its environment.
func needsSecrets(pid int) bool {
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	argv := strings.Split(string(cmdline), "\x00")
	return strings.HasPrefix(filepath.Base(argv[0]), "git") || slices.Contains(argv, "pip") ||
		slices.ContainsFunc(argv, func(arg string) bool { return filepath.Base(arg) == "sbatch" })
}

// young reports whether a process is younger than kiln needs to begin, on a machine with other work.
func (h *hunt) young(pid int) bool {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err != nil || time.Since(info.ModTime()) < 3*time.Second
}

// searchFiles looks into everything that was written.
func (h *hunt) searchFiles() (n int) {
	h.Helper()
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == h.inputs || d.IsDir() && d.Name() == "go-build" {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || d.Name() == "packages.yml" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n++
		rel, _ := filepath.Rel(h.dir, path)
		h.search(rel, text)
		return nil
	})
	if err != nil {
		h.Error(err)
	}
	return n
}

func (h *hunt) write(name, text string) {
	h.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
		h.Fatal(err)
	}
}

func (h *hunt) sh(script string) string {
	h.Helper()
	cmd := exec.CommandContext(h.Context(), "sh", "-ec", script)
	cmd.Dir = h.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		h.Fatalf("%s: %v\n%s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newHunt makes the packages, the repositories and the environment.
func newHunt(t *testing.T) (*hunt, *site) {
	t.Helper()
	python := os.Getenv("KILN_PYTHON")
	if python == "" {
		kilntest.Lacking(t, "python", "KILN_PYTHON is not set")
	}
	h := &hunt{T: t, dir: t.TempDir(), finds: map[string]int{}}
	h.inputs = filepath.Join(h.dir, "inputs")
	h.kiln = os.Getenv("KILN_SECRETS_PROGRAM") // another kiln, for comparison
	if h.kiln == "" {
		var err error
		if h.kiln, err = makeKiln(); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	version := h.sh(python + ` -c 'import sys; print("%d.%d" % sys.version_info[:2])'`)
	if version != "3.11" {
		kilntest.Lacking(t, "python3.11", "the image of the container has Python 3.11, and KILN_PYTHON is %s", version)
	}
	base := h.sh(python + " -c 'import sys; print(sys.base_prefix)'")
	s := newSite(t, filepath.Join(h.inputs, "git"))
	commit := func(name string) {
		h.sh("cd inputs/git/" + name + " && git init -q && git add . && git -c user.name=n -c user.email=e@x commit -qm one && git tag v1.0")
	}
	for _, name := range []string{"fromgit", "fromtoken", "fromsdist"} {
		h.write("inputs/git/"+name+"/setup.py", strings.ReplaceAll(thief, "NAME", name))
	}
	commit("fromgit")
	commit("fromtoken")
	h.sh("git init -q --bare inputs/git/pages.git")
	h.sh("mkdir inputs/sdist && cp -r inputs/git/fromsdist inputs/sdist/fromsdist-1.0 && printf 'Metadata-Version: 2.1\\nName: fromsdist\\nVersion: 1.0\\n' >inputs/sdist/fromsdist-1.0/PKG-INFO && tar -C inputs/sdist -czf inputs/fromsdist-1.0.tar.gz fromsdist-1.0")
	s.files["/signed/fromsdist-1.0.tar.gz"] = h.read("inputs/fromsdist-1.0.tar.gz")
	h.write("inputs/dep/setup.py", "from setuptools import setup\nsetup(name='depdemo', version='1.0', py_modules=[])\n")
	h.sh("cd inputs/dep && " + python + " -c 'import setuptools' && " + python + " setup.py -q bdist_wheel -d ../deps 2>/dev/null")
	s.files["/deps/depdemo-1.0-py3-none-any.whl"] = h.read("inputs/deps/depdemo-1.0-py3-none-any.whl")
	sum := sha256.Sum256(s.files["/signed/fromsdist-1.0.tar.gz"])

	h.write("project/packages.yml", strings.NewReplacer(
		"GITUSER", s.with(userinfo("gituser", planted["git"]), "/git/fromgit"), "GITTOKEN", s.with(planted["gituser"]+"@", "/git/fromtoken"),
		"SDIST", s.server.URL+"/signed/fromsdist-1.0.tar.gz?X-Amz-Date=1&X-Amz-Signature="+planted["sdist"], "SUM", hex.EncodeToString(sum[:]),
		"DEP", s.with(userinfo("depuser", planted["dep"]), "/deps/depdemo-1.0-py3-none-any.whl"),
		"PAGES", s.with(userinfo("pagesuser", planted["pages"]), "/git/pages.git"),
	).Replace(`
x-shared: &shared {versions: ["1.0"], image: localhost/kiln-e2e/ci, test: {image: localhost/kiln-e2e/ci}, matrix: [{os: debian-12, python: "3.11"}]}
packages:
  fromgit: {<<: *shared, source: {git: "GITUSER", ref: v1.0}, extra_deps: [setuptools, "depdemo @ DEP"]}
  fromtoken: {<<: *shared, source: {git: "GITTOKEN", ref: v1.0}, extra_deps: [setuptools], build: {frontend: pip}}
  fromsdist: {<<: *shared, source: {sdist: "SDIST", sha256: SUM}, extra_deps: [setuptools]}
publish:
  targets: {folder: {dir: ../public}}
  to: folder
  index: {dir: ../pages, branch: gh-pages, remote: "PAGES"}
`))
	h.sh("cd project && git init -q && git add packages.yml && git -c user.name=n -c user.email=e@x commit -qm one && mkdir -p ../home ../tmp")
	path := base + "/bin:" + filepath.Dir(h.kiln) + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
	proxy := strings.Replace(s.proxy.URL, "://", "://"+userinfo("proxyuser", planted["proxy"]), 1)
	h.env = []string{
		"PATH=" + path, "HOME=" + filepath.Join(h.dir, "home"), "TMPDIR=" + filepath.Join(h.dir, "tmp"), "LANG=C.UTF-8",
		"http_proxy=" + proxy, "HTTP_PROXY=" + proxy, "XDG_RUNTIME_DIR=" + os.Getenv("XDG_RUNTIME_DIR"),
		"GITHUB_TOKEN=" + planted["github"], "AWS_ACCESS_KEY_ID=ZAKIAplanted", "AWS_SECRET_ACCESS_KEY=" + planted["aws"], "AWS_REGION=us-east-1",
		"KILN_CACHE_PASSWORD=" + planted["cachepw"], "MY_DEPLOY_TOKEN=" + planted["foreign"],
		"UV_INDEX_URL=https://u:" + planted["uv"] + "@uv.example/simple", "PIP_EXTRA_INDEX_URL=https://u:" + planted["uv"] + "@extra.example/simple",
	}
	return h, s
}

func (h *hunt) read(name string) []byte {
	h.Helper()
	text, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		h.Fatal(err)
	}
	return text
}

// plant makes the needles of all secrets.
func (h *hunt) plant() {
	h.needles = map[string][]string{}
	for name, value := range planted {
		if value != "" {
			h.needles[name] = forms(value)
		}
	}
}

// report ends the hunt.
func (h *hunt) report() {
	h.Helper()
	n := h.searchFiles()
	for what, times := range h.finds {
		h.Errorf("found: %s (%d times)", what, times)
	}
	h.Logf("%d secrets planted, %d commands of kiln, %d files searched, %d finds", len(h.needles), h.commands, n, len(h.finds))
	if n < 20 {
		h.Errorf("only %d files were written", n)
	}
}

// indexArgs have secrets in the arguments of kiln itself.
func indexArgs(s *site) []string {
	return []string{
		"--index-url", s.with(userinfo("indexuser", planted["index"]), "/simple/"),
		"--torch-index=" + s.with(userinfo("torchuser", planted["torch"]), "/torch"),
		"--cache-remote=" + s.with(userinfo("cacheuser", planted["cacheurl"]), "/cache|read-only=true"),
	}
}

// slurmPrograms are a Slurm that takes a job and writes down what it was given.
var slurmPrograms = map[string]string{
	"scontrol": "#!/bin/sh\ncase \"$*\" in *partition*) echo 'PartitionName=p Default=YES MaxTime=1:00:00';; *node*) echo 'NodeName=n CPUTot=2 RealMemory=4000 Partitions=p';; *) echo 'MaxArraySize = 1001';; esac\n",
	"sbatch":   "#!/bin/sh\nfor last; do :; done\n{ echo \"$@\"; cat \"$last\"; } >>\"$TMPDIR/sbatch.txt\"\nenv | cut -d= -f1 >>\"$TMPDIR/sbatch-names.txt\"\necho 'Invalid account or account/partition combination specified' >&2\nexit 1\n",
	"squeue":   "#!/bin/sh\nexit 0\n",
	"sacct":    "#!/bin/sh\nexit 0\n",
	"scancel":  "#!/bin/sh\nexit 0\n",
	"sinfo":    "#!/bin/sh\nexit 0\n",
}

// TestSecrets builds on this machine from sources and an index that ask for passwords, publishes,
// verifies, and makes a workflow and a job of Slurm. Of no secret anything is left, or shown.
func TestSecrets(t *testing.T) {
	if testing.Short() {
		t.Skip("builds three rows")
	}
	h, s := newHunt(t)
	planted["kiln"] = "Zkiln7token00000000"
	h.env = append(h.env, "KILN_TOKEN="+planted["kiln"])
	h.plant()
	stop := h.watch()
	h.host(s)
	stop()
	h.report()
}

func (h *hunt) host(s *site) {
	h.Helper()
	h.must("plan", "--json")
	build := append([]string{"build", "--json", "--keep-work", "--log-level", "debug", "--jobs", "2"}, indexArgs(s)...)
	h.must(build...)
	for _, who := range []string{"indexuser", "gituser", planted["gituser"], "signature", "depuser", "proxyuser"} {
		if _, ok := s.passed.Load(who); !ok {
			h.Errorf("%s was never let in: the password was not used", who)
		}
	}
	for _, row := range []string{"fromgit*", "fromtoken*", "fromsdist*"} {
		h.must("logs", row)
	}
	h.must("status", "--json")
	h.must("publish", "--release", "1")
	if h.sh("git -C inputs/git/pages.git branch --list gh-pages") == "" {
		h.Error("the pages were not pushed")
	}
	h.must("verify", "--json", filepath.Join(h.dir, "project", "dist", wheelName))
	h.must("workflow", "generate")
	// What fails.
	h.fails("publish", "--release", "1", "--to", "kiln:"+strings.Replace(s.server.URL, "://", "://"+userinfo("__token__", planted["wrong"]), 1)+"/")
	h.fails("publish", "--release", "1", "--to", "kiln:http://"+userinfo("__token__", planted["wrong"])+"127.0.0.1:1/")
	h.fails("publish", "--release", "1", "--to", "nowhere:http://"+userinfo("__token__", planted["wrong"])+"127.0.0.1:1/")
	h.fails("pick", "fromgit", "--index", s.with(userinfo("indexuser", planted["wrong"]), "/simple/"))
	wrong := []string{"build", "--rebuild", "--state", "../wrong", "--dist", "../wrong-dist", "--index-url", s.with(userinfo("indexuser", planted["wrong"]), "/simple/")}
	h.fails(wrong...)
	h.write("project/broken.yml", strings.Replace(string(h.read("project/packages.yml")), "ref: v1.0}", "ref: nothing}", 1))
	h.fails(append([]string{"build", "-f", "broken.yml", "--state", "../broken"}, indexArgs(s)...)...)
	h.write("project/broken.yml", strings.Replace(string(h.read("project/packages.yml")), "ref: v1.0}", "reff: v1.0}", 1))
	h.fails("plan", "-f", "broken.yml")
	h.sh("rm project/broken.yml")
	// A job of Slurm is submitted, with what it needs and nothing else.
	for name, script := range slurmPrograms {
		h.write("slurm/"+name, script)
	}
	env := h.env
	h.env = append(slices.Clone(env), "PATH="+filepath.Join(h.dir, "slurm")+":"+strings.TrimPrefix(env[0], "PATH="))
	h.fails(append([]string{"build", "--runner", "slurm", "--rebuild", "--state", "../slurm-state", "--dist", "../slurm-dist"}, indexArgs(s)...)...)
	h.env = env
	names := string(h.read("tmp/sbatch-names.txt"))
	if !strings.Contains(names, "KILN_CREDENTIALS") || strings.Contains(names, "GITHUB_TOKEN") || strings.Contains(names, "AWS_SECRET") {
		h.Errorf("sbatch has the variables\n%s", names)
	}
}

// TestE2ESecrets is the same with containers, a kiln server and a bucket.
func TestE2ESecrets(t *testing.T) {
	kilntest.NeedE2E(t, "secrets")
	h, s := newHunt(t)
	h.needles = map[string][]string{}
	token := ""
	for word := range strings.FieldsSeq(h.must("serve", "token", "create", "--dir", "../store", "--project", "*")) {
		if strings.HasPrefix(word, "kiln_") {
			token = word
		}
	}
	planted["kiln"] = token
	port := kilntest.FreePort(t)
	address := "127.0.0.1:" + strconv.Itoa(port)
	serve := exec.CommandContext(t.Context(), h.kiln, "serve", "--dir", filepath.Join(h.dir, "store"), "--addr", address)
	serve.Env = h.env
	log, err := os.Create(filepath.Join(h.dir, "serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	serve.Stdout, serve.Stderr = log, log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serve.Process.Kill(); _ = serve.Wait() }()
	kilntest.WaitForPort(t, port, "kiln serve")
	s3 := h.startS3()
	h.plant()
	stop := h.watch()
	container := []string{
		"build", "--json", "--runner", "podman", "--container-network", "host", "--state", "../podman", "--dist", "../podman-dist", "--keep-work", "--log-level", "debug",
	}
	h.must(append(container, indexArgs(s)...)...)
	h.fails("build", "--runner", "podman", "--container-network", "host", "--state", "../podman-wrong", "--dist", "../podman-wrong-dist", "--index-url", s.with(userinfo("indexuser", planted["wrong"]), "/simple/"))
	// The token by the environment, and in the address.
	h.must("publish", "--release", "1", "--dist", "../podman-dist", "--to", "kiln:http://"+userinfo("__token__", token)+address+"/")
	h.env = append(h.env, "KILN_TOKEN="+token)
	h.must("publish", "--release", "1", "--dist", "../podman-dist", "--to", "kiln:http://"+address+"/")
	h.env = append(h.env, "AWS_ENDPOINT_URL="+s3)
	h.must("publish", "--release", "1", "--dist", "../podman-dist", "--to", "s3:wheels/x", "--no-index")
	h.env = append(h.env, "AWS_SECRET_ACCESS_KEY="+planted["wrong"])
	h.fails("publish", "--release", "1", "--dist", "../podman-dist", "--to", "s3:wheels/y", "--no-index")
	h.env = h.env[:len(h.env)-1]
	h.must("verify", filepath.Join(h.dir, "podman-dist", wheelName))
	h.host(s)
	stop()
	for _, name := range []string{"/var/lib/containers/storage/libpod/bolt_state.db", "/var/lib/containers/storage/db.sql"} {
		if text, err := os.ReadFile(name); err == nil {
			h.search(name, text)
		}
	}
	h.report()
}

// startS3 starts a real S3 server with the planted key.
func (h *hunt) startS3() string {
	h.Helper()
	program, err := filepath.Abs(filepath.Join("..", "..", ".cache", "tools", "versitygw"))
	if err != nil {
		h.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		kilntest.Lacking(h, "versitygw", "%v; make e2e-publish makes it", err)
	}
	h.sh("mkdir -p bucket/wheels")
	port := kilntest.FreePort(h.T)
	cmd := exec.CommandContext(h.Context(), program, "--region", "us-east-1", "--port", "127.0.0.1:"+strconv.Itoa(port), "--quiet", "posix", filepath.Join(h.dir, "bucket"))
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY=ZAKIAplanted", "ROOT_SECRET_KEY="+planted["aws"], "ROOT_ACCESS_KEY_ID=ZAKIAplanted", "ROOT_SECRET_ACCESS_KEY="+planted["aws"])
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	kilntest.WaitForPort(h, port, "the S3 server")
	return "http://127.0.0.1:" + strconv.Itoa(port)
}
