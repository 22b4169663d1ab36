// Command benchserve compares "kiln serve" with nginx, pypiserver and devpi:
//
//	project page of 2000 files, 127 kB compressed, median of 3 rounds of 2 s, 32 connections
//	         requests/s   MB/s  CPU µs  of nginx's
//	   kiln      3503.9  450.4      50        1.71
//	  nginx      7625.7  979.9      29        1.00
//	upload of 300 MB: 9.7 s, 31 MB/s; peak memory of the server 32 MB before, 32 MB after
//
// All serve the same wheels on the loopback interface and are asked by wrk, in turns, so that what
// else the machine does meets all of them. nginx has exactly the bytes that kiln sends, in a file,
// a worker for each processor, and no log; kiln counts and measures requests as always. wrk has the
// same two threads and connections for both, on the same processors as the servers: what it needs
// to read the answers is part of both rates. CPU is what the server alone needs for a request. It
// fails if kiln misses a goal: 2.5 times the processor time of nginx for a request, a hundredth of
// that of pypiserver, and 64 MB more memory for the upload. It needs wrk and nginx (Debian: wrk,
// nginx-light); pypiserver and devpi are installed from PyPI. A server that is not there is left
// out, and said to be.
package main

import (
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/dev/internal/measure"
	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/internal/fsx"
)

// The goals.
const (
	nginxGoal      = 2.5 // times its processor time
	pypiserverGoal = 100 // times less
	memoryGoal     = 64e6
)

const (
	project    = "big-project"
	uploadSize = 300_000_000
)

type config struct {
	kiln, python, nginx, wrk, dir string
	without                       string
	files, rounds, connections    int
	seconds                       float64
	failing                       bool // the requests are for what is not there
}

func main() {
	var c config
	flag.StringVar(&c.kiln, "kiln", "bin/kiln", "the kiln to measure")
	flag.StringVar(&c.python, "python", "python3", "a Python to install pypiserver and devpi with")
	flag.StringVar(&c.nginx, "nginx", "nginx", "the nginx to compare with")
	flag.StringVar(&c.wrk, "wrk", "wrk", "the load generator")
	flag.StringVar(&c.dir, "dir", ".cache/bench", "where to put the wheels and the index, which are removed again")
	flag.StringVar(&c.without, "without", "", "servers to leave out, such as devpi, which takes minutes to fill")
	flag.IntVar(&c.files, "files", 2000, "files of the project")
	flag.IntVar(&c.rounds, "rounds", 5, "how often each server is asked")
	flag.IntVar(&c.connections, "connections", 32, "connections of the load generator")
	flag.Float64Var(&c.seconds, "seconds", 3, "how long a round takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, c)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchserve:", err)
		os.Exit(1)
	}
}

// server is one of the programs.
type server struct {
	name  string
	url   string // of the page
	cmd   *exec.Cmd
	rates []float64 // requests per second
	bytes []float64 // bytes per second
	cpu   []float64 // seconds of processor a request
}

func run(ctx context.Context, out io.Writer, c config) error {
	if _, err := exec.LookPath(c.wrk); err != nil {
		return fmt.Errorf("no wrk on this machine (Debian: apt-get install wrk): %w", err)
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.dir, "serve-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	wheels, data := filepath.Join(dir, "wheels"), filepath.Join(dir, "index")
	if err := makeIndex(ctx, wheels, data, c.files); err != nil {
		return err
	}
	kiln, base, err := startKiln(ctx, c, data)
	if err != nil {
		return err
	}
	defer kiln.stop()
	page, err := get(ctx, kiln.url, accept, "gzip")
	if err != nil {
		return err
	}
	html, err := get(ctx, kiln.url, "text/html", "identity")
	if err != nil {
		return err
	}
	servers := []*server{kiln}
	for _, peer := range []struct {
		name  string
		start func() (*server, error)
	}{
		{"nginx", func() (*server, error) { return startNginx(ctx, c, dir, page, html) }},
		{"pypiserver", func() (*server, error) { return startPypiserver(ctx, c, wheels) }},
		{"devpi", func() (*server, error) { return startDevpi(ctx, c, dir, wheels) }},
	} {
		if strings.Contains(c.without, peer.name) {
			fmt.Fprintln(out, "left out:", peer.name)
			continue
		}
		s, err := peer.start()
		if err != nil {
			fmt.Fprintln(out, "left out:", err)
			continue
		}
		defer s.stop()
		servers = append(servers, s)
	}
	for range c.rounds {
		for _, s := range servers {
			if err := s.measure(ctx, c); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(out, "on %s, load %s\n", measure.Processor(), loadAverage())
	fmt.Fprintf(out, "project page of %d files, %d kB compressed, median of %d rounds of %g s, %d connections\n", c.files, len(page)/1000, c.rounds, c.seconds, c.connections)
	missed := report(out, servers)
	if err := measureLoads(ctx, out, c, servers); err != nil {
		return err
	}
	err = measureUpload(ctx, out, c, kiln, base, data)
	return errors.Join(append(missed, err)...)
}

// loadAverage says how busy the machine is, where it says so itself.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

func report(out io.Writer, servers []*server) (missed []error) {
	rate, cpu := map[string]float64{}, map[string]float64{}
	for _, s := range servers {
		rate[s.name], cpu[s.name] = measure.Median(s.rates), measure.Median(s.cpu)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\trequests/s\tMB/s\tCPU µs\tof nginx's\t")
	for _, s := range servers {
		of := "-"
		if cpu["nginx"] > 0 {
			of = fmt.Sprintf("%.2f", cpu[s.name]/cpu["nginx"])
		}
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.0f\t%s\t\n", s.name, rate[s.name], measure.Median(s.bytes)/1e6, cpu[s.name]*1e6, of)
	}
	_ = table.Flush()
	if n := cpu["nginx"]; n > 0 && cpu["kiln"] > nginxGoal*n {
		missed = append(missed, fmt.Errorf("kiln needs %.2f times the processor time of nginx, the goal is %v", cpu["kiln"]/n, nginxGoal))
	}
	for _, name := range []string{"pypiserver", "devpi"} {
		if c := cpu[name]; c > 0 {
			fmt.Fprintf(out, "%s needs %.0f times the processor time of kiln\n", name, c/cpu["kiln"])
		}
	}
	if c := cpu["pypiserver"]; c > 0 && c < pypiserverGoal*cpu["kiln"] {
		missed = append(missed, fmt.Errorf("pypiserver needs %.0f times the processor time of kiln, the goal is %d", c/cpu["kiln"], pypiserverGoal))
	}
	return missed
}

// makeIndex makes wheels of one project and publishes them.
func makeIndex(ctx context.Context, wheels, data string, n int) error {
	if err := os.MkdirAll(wheels, 0o755); err != nil {
		return err
	}
	var files []index.NewFile
	for i := range n {
		name := fmt.Sprintf("big_project-1.%d+cu12%d.torch2.%d-cp31%d-cp31%d-manylinux_2_28_x86_64.whl", i/50, i/25%2*2+6, 6+i/5%5, i%5, i%5)
		path := filepath.Join(wheels, name)
		if err := writeWheel(path, 0); err != nil {
			return err
		}
		files = append(files, index.NewFile{Path: path})
	}
	store, err := index.Open(data, index.StoreOptions{})
	if err != nil {
		return err
	}
	_, problems, err := store.Add(ctx, files, index.AddOptions{})
	if err == nil && len(problems) > 0 {
		err = problems[0]
	}
	return err
}

// writeWheel writes a wheel with so many random bytes in it.
func writeWheel(path string, size int) error {
	name := filepath.Base(path)
	parts := strings.Split(strings.TrimSuffix(name, ".whl"), "-")
	info := parts[0] + "-" + parts[1] + ".dist-info/"
	tag := strings.Join(parts[2:], "-")
	payload := make([]byte, size)
	random := rand.NewChaCha8([32]byte([]byte("wheels for measuring a server...")))
	_, _ = random.Read(payload) // never fails
	members := []struct {
		name string
		data []byte
	}{
		{parts[0] + ".bin", payload},
		{info + "METADATA", []byte("Metadata-Version: 2.1\nName: " + strings.ReplaceAll(parts[0], "_", "-") + "\nVersion: " + parts[1] + "\nRequires-Python: >=3.9\n")},
		{info + "WHEEL", []byte("Wheel-Version: 1.0\nGenerator: benchserve\nRoot-Is-Purelib: false\nTag: " + tag + "\n")},
		{info + "RECORD", nil},
	}
	var record bytes.Buffer
	for _, m := range members[:3] {
		sum := sha256.Sum256(m.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", m.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(m.data))
	}
	members[3].data = append(record.Bytes(), info+"RECORD,,\n"...)
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	z := zip.NewWriter(file)
	for _, m := range members {
		w, err := z.CreateRaw(&zip.FileHeader{
			Name: m.name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(m.data),
			CompressedSize64: uint64(len(m.data)), UncompressedSize64: uint64(len(m.data)),
		})
		if err == nil {
			_, err = w.Write(m.data)
		}
		if err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return errors.Join(z.Close(), file.Close())
}

func startKiln(ctx context.Context, c config, data string) (s *server, base string, err error) {
	cmd := exec.CommandContext(ctx, c.kiln, "serve", "--dir", data, "--addr", "127.0.0.1:0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("start kiln (make build): %w", err)
	}
	address := regexp.MustCompile(`pages\s+(\S+)`)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			base = strings.Replace(m[1], "localhost", "127.0.0.1", 1)
			return &server{name: "kiln", url: base + "all/simple/" + project + "/", cmd: cmd}, base, nil
		}
	}
	return nil, "", fmt.Errorf("kiln did not start: %w", cmd.Wait())
}

// stop ends a server that was started, and its workers, which it ends itself if it is asked to.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	late := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	late.Stop()
}

const accept = index.TypeJSON

// get returns a page as it is sent.
func get(ctx context.Context, url, kind, coding string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", kind)
	req.Header.Set("Accept-Encoding", coding)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %w: %s", url, errStatus, res.Status)
	}
	return body, err
}

var errStatus = errors.New("not a page")

// startNginx serves the same page, compressed beforehand, from a file.
func startNginx(ctx context.Context, c config, dir string, page, html []byte) (*server, error) {
	path, err := exec.LookPath(c.nginx)
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return nil, fmt.Errorf("no nginx on this machine (Debian: apt-get install nginx-light): %w", err)
		}
	}
	root := filepath.Join(dir, "nginx")
	folder := filepath.Join(root, "simple", project)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for d := root; d != filepath.Dir(dir); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // its workers are another user
			return nil, err
		}
	}
	z, err := gzip.NewReader(bytes.NewReader(page))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{"index.v1_json": plain, "index.v1_json.gz": page, "index.html": html} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o644); err != nil {
			return nil, err
		}
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	user := ""
	if os.Getuid() == 0 {
		user = "user root;\n"
	}
	conf := filepath.Join(root, "nginx.conf")
	text := user + `daemon off;
pid ` + root + `/pid;
error_log ` + root + `/error.log;
worker_processes auto;
events { worker_connections 1024; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 100000000;
  open_file_cache max=100;
  map $http_accept $simple { default index.html; "~json" index.v1_json; }
  types { }
  default_type ` + accept + `;
  server {
    listen 127.0.0.1:` + port + `;
    root ` + root + `;
    index $simple;
    gzip_static on;
    gzip_vary on;
    etag on;
    add_header Cache-Control "public, max-age=60";
  }
}
`
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return start(ctx, "nginx", "http://127.0.0.1:"+port+"/simple/"+project+"/", exec.CommandContext(ctx, path, "-p", root, "-e", root+"/error.log", "-c", conf))
}

// venv makes a virtual environment with a package, once, and returns the path of one of its
// programs.
func venv(ctx context.Context, c config, requirement, program string) (string, error) {
	name, _, _ := strings.Cut(requirement, "==")
	dir := filepath.Join(c.dir, "venv-"+name)
	path := filepath.Join(dir, "bin", program)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	for _, args := range [][]string{{c.python, "-m", "venv", dir}, {filepath.Join(dir, "bin", "python"), "-m", "pip", "-q", "install", requirement}} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("install %s: %w\n%s", requirement, err, out)
		}
	}
	return path, nil
}

func startPypiserver(ctx context.Context, c config, wheels string) (*server, error) {
	python, err := venv(ctx, c, "pypiserver==2.4.2", "python")
	if err != nil {
		return nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	return start(ctx, "pypiserver", "http://127.0.0.1:"+port+"/simple/"+project+"/",
		exec.CommandContext(ctx, python, "-m", "pypiserver", "run", "-i", "127.0.0.1", "-p", port, "--disable-fallback", "-a", ".", "-P", ".", wheels))
}

// startDevpi gives devpi the wheels as its users do, by uploads to an index of its own.
func startDevpi(ctx context.Context, c config, dir, wheels string) (*server, error) {
	program, err := venv(ctx, c, "devpi-server==6.20.3", "devpi-server")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "devpi")
	if out, err := exec.CommandContext(ctx, filepath.Join(filepath.Dir(program), "devpi-init"), "--serverdir", data, "--no-root-pypi").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("devpi-init: %w\n%s", err, out)
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	base := "http://127.0.0.1:" + port + "/"
	s, err := start(ctx, "devpi", base+"+api", exec.CommandContext(ctx, program, "--serverdir", data, "--host", "127.0.0.1", "--port", port))
	if err != nil {
		return nil, err
	}
	s.url = base + "root/dev/+simple/" + project + "/"
	if err := fillDevpi(ctx, base, wheels); err != nil {
		s.stop()
		return nil, fmt.Errorf("devpi: %w", err)
	}
	return s, nil
}

func fillDevpi(ctx context.Context, base, wheels string) error {
	var login struct {
		Result struct{ Password string }
	}
	if err := callDevpi(ctx, http.MethodPost, base+"+login", `{"user":"root","password":""}`, "", &login); err != nil {
		return err
	}
	secret := login.Result.Password
	if err := callDevpi(ctx, http.MethodPut, base+"root/dev", `{"type":"stage","bases":[],"volatile":true}`, secret, nil); err != nil {
		return err
	}
	entries, err := os.ReadDir(wheels)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(wheels, e.Name())
		sum, _, err := fsx.SHA256(path)
		if err != nil {
			return err
		}
		if err := upload(ctx, base+"root/dev/", "root", secret, path, sum); err != nil {
			return err
		}
	}
	return nil
}

func callDevpi(ctx context.Context, method, url, body, secret string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if secret != "" {
		req.Header.Set("X-Devpi-Auth", base64.StdEncoding.EncodeToString([]byte("root:"+secret)))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, url, res.Status)
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(answer)
}

// start runs a server and waits until it answers.
func start(ctx context.Context, name, url string, cmd *exec.Cmd) (*server, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// Its workers end with it.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{name: name, url: url, cmd: cmd}
	var err error
	for range 900 {
		if _, err = get(ctx, url, accept, "gzip"); err == nil || errors.Is(err, errStatus) {
			return s, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("%s did not start: %w\n%s", name, err, stderr.String())
}

func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

var (
	wrkRate  = regexp.MustCompile(`(\d+) requests in ([\d.]+)(ms|s|m), ([\d.]+)(B|KB|MB|GB|TB) read`)
	wrkError = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
)

// measure asks a server for one round.
func (s *server) measure(ctx context.Context, c config) error {
	if s.name == "pypiserver" || s.name == "devpi" {
		return s.measureSlowly(ctx, c)
	}
	return s.measureFast(ctx, c, []string{"Accept: " + accept, "Accept-Encoding: gzip"})
}

// measureFast asks with wrk.
func (s *server) measureFast(ctx context.Context, c config, headers []string) error {
	args := []string{"-t2", "-c", strconv.Itoa(c.connections), "-d", fmt.Sprintf("%ds", max(1, int(c.seconds))), "--timeout", "60s"}
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	before := processorTime(s.cmd.Process.Pid)
	out, err := exec.CommandContext(ctx, c.wrk, append(args, s.url)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("wrk: %w\n%s", err, out)
	}
	if m := wrkError.FindSubmatch(out); m != nil && !c.failing {
		return fmt.Errorf("%s: %s requests failed", s.name, m[1])
	}
	m := wrkRate.FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("wrk says:\n%s", out)
	}
	n, _ := strconv.ParseFloat(string(m[1]), 64)
	s.cpu = append(s.cpu, (processorTime(s.cmd.Process.Pid)-before)/n)
	took, _ := strconv.ParseFloat(string(m[2]), 64)
	took *= map[string]float64{"ms": 1e-3, "s": 1, "m": 60}[string(m[3])]
	read, _ := strconv.ParseFloat(string(m[4]), 64)
	read *= map[string]float64{"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}[string(m[5])]
	s.rates, s.bytes = append(s.rates, n/took), append(s.bytes, read/took)
	return nil
}

// measureSlowly asks one request after the other: a page takes these servers about as long as a
// round of wrk, and Python makes one at a time.
func (s *server) measureSlowly(ctx context.Context, c config) error {
	before := processorTime(s.cmd.Process.Pid)
	begin, n, size := time.Now(), 0, 0
	for n == 0 || time.Since(begin).Seconds() < c.seconds {
		body, err := get(ctx, s.url, accept, "gzip")
		if err != nil {
			return err
		}
		n++
		size += len(body)
	}
	took := time.Since(begin).Seconds()
	s.cpu = append(s.cpu, (processorTime(s.cmd.Process.Pid)-before)/float64(n))
	s.rates, s.bytes = append(s.rates, float64(n)/took), append(s.bytes, float64(size)/took)
	return nil
}

// load is a kind of request that many clients make at once.
type load struct {
	name    string
	change  func(url string) string
	headers []string
	status  int
}

var loads = []load{
	{"page", func(url string) string { return url }, []string{"Accept: " + accept, "Accept-Encoding: gzip"}, http.StatusOK},
	{"page with a query", func(url string) string { return url + "?x=1" }, []string{"Accept: " + accept, "Accept-Encoding: gzip"}, http.StatusOK},
	{"HTML, not compressed", func(url string) string { return url }, []string{"Accept: text/html", "Accept-Encoding: identity"}, http.StatusOK},
	{"not found", func(url string) string { return strings.Replace(url, project, "none", 1) }, []string{"Accept: " + accept}, http.StatusNotFound},
}

const loadConnections = 200

// measureLoads asks kiln and nginx on 200 connections, and the others one request after the other.
func measureLoads(ctx context.Context, out io.Writer, c config, servers []*server) error {
	fmt.Fprintf(out, "%d connections, one round of %g s each; pypiserver and devpi one request at a time\n", loadConnections, c.seconds)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\t\trequests/s\tCPU µs\t")
	for _, l := range loads {
		for _, s := range servers {
			one := &server{name: s.name, url: l.change(s.url), cmd: s.cmd}
			if err := one.ask(ctx, c, l); err != nil {
				return fmt.Errorf("%s of %s: %w", l.name, s.name, err)
			}
			fmt.Fprintf(table, "%s\t%s\t%.1f\t%.0f\t\n", l.name, s.name, one.rates[0], one.cpu[0]*1e6)
		}
	}
	return table.Flush()
}

// ask measures one round of a load.
func (s *server) ask(ctx context.Context, c config, l load) error {
	if s.name == "kiln" || s.name == "nginx" {
		if l.status != http.StatusOK {
			c.failing = true
		}
		c.connections = loadConnections
		return s.measureFast(ctx, c, l.headers)
	}
	before := processorTime(s.cmd.Process.Pid)
	begin, n := time.Now(), 0
	for n == 0 || time.Since(begin).Seconds() < c.seconds {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
		if err != nil {
			return err
		}
		for _, h := range l.headers {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != l.status {
			return fmt.Errorf("%s: %s", s.url, res.Status)
		}
		n++
	}
	s.cpu = append(s.cpu, (processorTime(s.cmd.Process.Pid)-before)/float64(n))
	s.rates = append(s.rates, float64(n)/time.Since(begin).Seconds())
	return nil
}

// measureUpload uploads a large wheel and looks at the memory of the server.
func measureUpload(ctx context.Context, out io.Writer, c config, s *server, base, data string) error {
	secret, err := exec.CommandContext(ctx, c.kiln, "serve", "token", "create", "--dir", data, "--project", "*").Output()
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	name := "large-1.0-py3-none-any.whl"
	path := filepath.Join(filepath.Dir(data), name)
	if err := writeWheel(path, uploadSize); err != nil {
		return err
	}
	sum, _, err := fsx.SHA256(path)
	if err != nil {
		return err
	}
	before := peakMemory(s.cmd.Process.Pid)
	begin := time.Now()
	if err := upload(ctx, base+"legacy/", "__token__", strings.TrimSpace(string(secret)), path, sum); err != nil {
		return err
	}
	took := time.Since(begin)
	after := peakMemory(s.cmd.Process.Pid)
	fmt.Fprintf(out, "upload of %d MB: %.1f s, %.0f MB/s; peak memory of the server %.0f MB before, %.0f MB after\n",
		uploadSize/1_000_000, took.Seconds(), uploadSize/1e6/took.Seconds(), before/1e6, after/1e6)
	if after-before > memoryGoal {
		return fmt.Errorf("the upload took %.0f MB of memory, the goal is %.0f MB", (after-before)/1e6, memoryGoal/1e6)
	}
	return nil
}

// upload sends a file as twine does, without having it in memory.
func upload(ctx context.Context, url, user, secret, path, sum string) error {
	parts := strings.SplitN(filepath.Base(path), "-", 4)
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	go func() {
		err := func() error {
			for _, kv := range [][2]string{
				{":action", "file_upload"},
				{"protocol_version", "1"},
				{"metadata_version", "2.1"},
				{"name", strings.ReplaceAll(parts[0], "_", "-")},
				{"version", parts[1]},
				{"filetype", "bdist_wheel"},
				{"pyversion", parts[2]},
				{"sha256_digest", sum},
			} {
				if err := form.WriteField(kv[0], kv[1]); err != nil {
					return err
				}
			}
			part, err := form.CreateFormFile("content", filepath.Base(path))
			if err != nil {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			if _, err := io.Copy(part, file); err != nil {
				return err
			}
			return form.Close()
		}()
		_ = w.CloseWithError(err)
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, r)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	req.SetBasicAuth(user, secret)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("upload: %s: %s", res.Status, body)
	}
	return nil
}

// processorTime is what a process and its children have used so far, in seconds; 0 where it is not
// known.
func processorTime(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	sum := (user + system) / 100 // Linux counts in hundredths of a second for programs, whatever it does itself
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	for child := range strings.FieldsSeq(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			sum += processorTime(n)
		}
	}
	return sum
}

// peakMemory is the largest resident size of a process so far, in bytes; 0 where it is not known.
func peakMemory(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024
		}
	}
	return 0
}
