// Command benchindex compares "kiln index" with other makers of static indexes.
//
// It makes a list of synthetic files in the form that each program reads and runs them in turns, in
// a folder that it removes again; dumb-pypi is installed from PyPI into .cache/bench/venv. It fails
// if kiln misses a goal: a third of the processor time of dumb-pypi, 250 MB, 100 ms of processor
// time for one more wheel, and 2 s of it and 250 MB for a server from its start to its first
// answer. Goals are of processor time, because the time on the clock depends on what else the
// machine does.
package main

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/dev/internal/measure"
)

// The goals, at 100,000 files.
const (
	speedGoal    = 3
	rssGoal      = 250e6
	addGoal      = 100 * time.Millisecond
	coldGoal     = 2 * time.Second
	coldRSSGoal  = 250e6
	goalsAtFiles = 100_000
)

func main() {
	files := flag.Int("files", 100_000, "how many files the index has")
	projects := flag.Int("projects", 200, "how many projects they belong to")
	dir := flag.String("dir", ".cache/bench", "a folder on the disk to measure")
	runs := flag.Int("runs", 3, "how often each program runs; the median counts")
	kiln := flag.String("kiln", "bin/kiln", "the kiln to measure")
	python := flag.String("python", "python3", "a Python to install dumb-pypi with; empty leaves it out")
	limit := flag.Duration("limit", 10*time.Minute, "how long one program may run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	b := &bench{files: *files, projects: *projects, runs: *runs, limit: *limit, out: os.Stdout, progress: os.Stderr}
	err := b.run(ctx, *dir, *kiln, *python)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchindex:", err)
		os.Exit(1)
	}
}

type bench struct {
	files, projects, runs int
	limit                 time.Duration // of one program
	out, progress         io.Writer
	dir, kiln             string
}

// row is a line of the result.
type row struct {
	name      string
	wall, cpu []time.Duration
	rss       int64
}

// step gives the program to run in the i-th run and prepares for it.
type step func(i int) (program string, args []string, err error)

func (b *bench) run(ctx context.Context, dir, kiln, python string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cache, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if b.kiln, err = filepath.Abs(kiln); err != nil {
		return err
	}
	if b.dir, err = os.MkdirTemp(cache, "index-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	fmt.Fprintf(b.progress, "%s: writing the lists of %d files\n", loadAverage(), b.files)
	if err := b.writeLists(); err != nil {
		return err
	}
	dumbPyPI := ""
	if python != "" {
		if dumbPyPI, err = install(ctx, filepath.Join(cache, "venv-dumb-pypi"), python, "dumb-pypi==1.15.0", "dumb-pypi"); err != nil {
			return err
		}
	}
	index := b.path("index")
	generate := []string{"index", "generate", "--manifest", b.path("kiln.jsonl"), "--output-dir", index, "--default", "cu128/torch2.9"}
	var dumb, made, added, cold row
	// In turns, so that whatever else the machine does hits all of them.
	for i := range b.runs {
		if dumbPyPI != "" {
			err := b.measure(ctx, &dumb, "dumb-pypi: pages from a list", i, func(int) (string, []string, error) {
				return dumbPyPI, []string{"--package-list-json", b.path("dumb.jsonl"), "--packages-url", "https://example.org/files/", "--output-dir", b.path("dumb")},
					os.RemoveAll(b.path("dumb"))
			})
			if err := errors.Join(err, os.RemoveAll(b.path("dumb"))); err != nil {
				return err
			}
		}
		err := b.measure(ctx, &made, "kiln: pages from a list", i, func(int) (string, []string, error) {
			return b.kiln, generate, os.RemoveAll(index)
		})
		if err != nil {
			return err
		}
	}
	var again row
	for i := range b.runs {
		err := b.measure(ctx, &again, "kiln: the same again, nothing to do", i, func(int) (string, []string, error) { return b.kiln, generate, nil })
		if err != nil {
			return err
		}
	}
	for i := range max(b.runs, 5) {
		err := b.measure(ctx, &added, "kiln: one wheel added", i, func(i int) (string, []string, error) {
			name := b.path(fmt.Sprintf("package_%05d-9.0+cu128.torch2.9-py3-none-any.whl", i))
			return b.kiln, []string{"index", "add", "--dir", index, "--base-url", "https://example.org/files/", name}, writeWheel(name)
		})
		if err != nil {
			return err
		}
	}
	for i := range max(b.runs, 5) {
		err := b.measure(ctx, &cold, "kiln: catalog read whole by a new process", i, func(int) (string, []string, error) {
			return b.kiln, []string{"index", "list", "--dir", index, "--views"}, nil
		})
		if err != nil {
			return err
		}
	}
	var served row
	for i := range max(b.runs, 5) {
		if err := b.measureServer(ctx, &served, i, index); err != nil {
			return err
		}
	}
	return b.report([]*row{&dumb, &made, &again, &added, &cold, &served}, &dumb, &made, &added, &served)
}

// measureServer starts a server and asks it for a page, once.
func (b *bench) measureServer(ctx context.Context, r *row, i int, index string) error {
	r.name = "kiln: server, from its start to its first page"
	fmt.Fprintf(b.progress, "%s: run %d of %s … ", loadAverage(), i+1, r.name)
	ctx, cancel := context.WithTimeoutCause(ctx, b.limit, fmt.Errorf("it took longer than %v", b.limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, b.kiln, "serve", "--dir", index, "--addr", "127.0.0.1:0", "--read-only")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	page, size := "", 0
	for lines := bufio.NewScanner(out); page == "" && lines.Scan(); {
		if name, url, ok := strings.Cut(strings.TrimSpace(lines.Text()), " "); ok && name == "pages" {
			page = strings.TrimSpace(url) + "cu128/torch2.9/simple/package-00000/"
		}
	}
	if page == "" {
		return fmt.Errorf("kiln serve did not start: %w", cmd.Wait())
	}
	size, err = fetch(ctx, page)
	wall := time.Since(start)
	cancel()
	_ = cmd.Wait() // it was interrupted
	if err != nil {
		return err
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	fmt.Fprintf(b.progress, "%.2f s, %.3f s of CPU, %d bytes\n", wall.Seconds(), cpu.Seconds(), size)
	r.wall, r.cpu = append(r.wall, wall), append(r.cpu, cpu)
	r.rss = max(r.rss, measure.PeakMemory(cmd.ProcessState))
	return nil
}

// fetch asks for a page and returns its size.
func fetch(ctx context.Context, url string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, res.Status)
	}
	return len(body), err
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// labels are the builds of each version.
var labels = []string{"cu126.torch2.8", "cu128.torch2.8", "cu128.torch2.9", "cu130.torch2.9", "rocm6.4.torch2.9"}

// writeLists writes the same files in the forms that the programs read.
func (b *bench) writeLists() error {
	lists := make(map[string]*bufio.Writer)
	for _, name := range []string{"dumb.jsonl", "kiln.jsonl"} {
		f, err := os.Create(b.path(name))
		if err != nil {
			return err
		}
		defer f.Close()
		lists[name] = bufio.NewWriter(f)
	}
	each := max(1, b.files/b.projects)
	for i := range b.files {
		k := i % each
		name := fmt.Sprintf("package_%05d-1.%d.0+%s-cp%d-cp%[4]d-manylinux_2_28_%s.whl", i/each, k/50, labels[k/10%5], 310+k/2%5, []string{"x86_64", "aarch64"}[k%2])
		sum, metadata := fmt.Sprintf("%x", sha256.Sum256([]byte(name))), fmt.Sprintf("%x", sha256.Sum256([]byte("metadata of "+name)))
		when := time.Unix(1_780_000_000+int64(i), 0).UTC()
		for list, value := range map[string]any{
			"dumb.jsonl": map[string]any{
				"filename": name, "hash": "sha256=" + sum, "requires_python": ">=3.10", "core_metadata": "sha256=" + metadata, "upload_timestamp": when.Unix(),
			},
			"kiln.jsonl": map[string]any{
				"filename": name, "url": "https://example.org/files/" + strings.ReplaceAll(name, "+", "%2B"), "hashes": map[string]string{"sha256": sum},
				"size": 1_000_000 + i, "requires-python": ">=3.10", "core-metadata": map[string]string{"sha256": metadata}, "upload-time": when,
			},
		} {
			text, err := json.Marshal(value)
			if err != nil {
				return err
			}
			if _, err := lists[list].Write(append(text, '\n')); err != nil {
				return err
			}
		}
	}
	for _, w := range lists {
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// install makes a virtual environment with a package, once, and returns the path of its program.
func install(ctx context.Context, venv, python, requirement, program string) (string, error) {
	bin := "bin"
	if runtime.GOOS == "windows" {
		bin = "Scripts"
	}
	path := filepath.Join(venv, bin, program)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fmt.Fprintf(os.Stderr, "installing %s\n", requirement)
	for _, args := range [][]string{{python, "-m", "venv", venv}, {filepath.Join(venv, bin, "python"), "-m", "pip", "-q", "install", requirement}} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("install %s: %w\n%s", requirement, err, out)
		}
	}
	return path, nil
}

// measure runs a program once and adds the result to a row.
func (b *bench) measure(ctx context.Context, r *row, name string, i int, next step) error {
	program, args, err := next(i)
	if err != nil {
		return err
	}
	r.name = name
	fmt.Fprintf(b.progress, "%s: run %d of %s … ", loadAverage(), i+1, name)
	ctx, cancel := context.WithTimeoutCause(ctx, b.limit, fmt.Errorf("it took longer than %v", b.limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w\n%s", name, err, out.Bytes())
	}
	wall, cpu := time.Since(start), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	fmt.Fprintf(b.progress, "%.2f s, %.3f s of CPU\n", wall.Seconds(), cpu.Seconds())
	r.wall, r.cpu = append(r.wall, wall), append(r.cpu, cpu)
	r.rss = max(r.rss, measure.PeakMemory(cmd.ProcessState))
	return nil
}

// loadAverage says how busy the machine is, where it says so itself.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return "load " + load
}

// report prints the table and says which goals were missed.
func (b *bench) report(rows []*row, dumb, made, added, cold *row) error {
	fmt.Fprintf(b.out, "on %s\n", measure.Processor())
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%d files in %d projects, median of %d runs, "+loadAverage()+"\tseconds\tCPU s\tpeak RSS\t\n", b.files, b.projects, b.runs)
	for _, r := range rows {
		if len(r.wall) > 0 {
			fmt.Fprintf(w, "%s\t%.2f\t%.3f\t%d MB\t\n", r.name, measure.Median(r.wall).Seconds(), measure.Median(r.cpu).Seconds(), r.rss/1e6)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var missed []error
	miss := func(bad bool, format string, args ...any) {
		if bad && b.files >= goalsAtFiles {
			missed = append(missed, fmt.Errorf(format, args...))
		}
	}
	if len(dumb.wall) > 0 {
		wall, cpu := measure.Median(dumb.wall).Seconds()/measure.Median(made.wall).Seconds(), measure.Median(dumb.cpu).Seconds()/measure.Median(made.cpu).Seconds()
		fmt.Fprintf(b.out, "dumb-pypi needs %.1f times the processor time of kiln (%.1f times the time)\n", cpu, wall)
		miss(cpu < speedGoal, "dumb-pypi needs %.1f times the processor time, goal %d", cpu, speedGoal)
	}
	miss(made.rss > rssGoal, "%d MB to make the index, goal %d", made.rss/1e6, int64(rssGoal/1e6))
	miss(measure.Median(added.cpu) > addGoal, "%v of CPU for one more wheel, goal %v", measure.Median(added.cpu), addGoal)
	miss(measure.Median(cold.cpu) > coldGoal, "%v of CPU from the start of a server to its first page, goal %v", measure.Median(cold.cpu), coldGoal)
	miss(cold.rss > coldRSSGoal, "%d MB for a server that starts, goal %d", cold.rss/1e6, int64(coldRSSGoal/1e6))
	return errors.Join(missed...)
}

// writeWheel writes a small wheel of the name that path has.
func writeWheel(path string) error {
	parts := strings.SplitN(filepath.Base(path), "-", 3)
	info := parts[0] + "-" + parts[1] + ".dist-info/"
	members := []struct{ name, text string }{
		{parts[0] + ".py", "answer = 42\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + parts[0] + "\nVersion: " + parts[1] + "\nRequires-Python: >=3.10\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: benchindex\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	record := &strings.Builder{}
	for _, m := range members {
		sum := sha256.Sum256([]byte(m.text))
		fmt.Fprintf(record, "%s,sha256=%s,%d\n", m.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(m.text))
	}
	members = append(members, struct{ name, text string }{info + "RECORD", record.String() + info + "RECORD,,\n"})
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, m := range members {
		w, err := z.CreateHeader(&zip.FileHeader{Name: m.name, Method: zip.Deflate})
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, m.text); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, buf.Bytes(), 0o644)
}
