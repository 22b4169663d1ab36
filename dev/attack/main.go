// Command attack attacks a running "kiln serve" with everything that has hurt it or could: hostile
// uploads, respelled names, races, slow clients, floods, an exhausted disk and exhausted descriptors.
//
//	attack            tried  refused  wrong  memory  health p99  longest
//	hostile wheels       42       42      0  121 MB        3 ms     9 ms
//
// Tried are the cases; refused those that got the answer they must get; wrong those that were
// accepted or got another answer. Memory is the peak of the server during the attack. Meanwhile
// another process asks /healthz 50 times a second, each time on a new connection. It fails if a case
// is wrong, if the 99th percentile of the health check reaches 200 ms in any row, if the server takes
// 300 MB, or if there are fewer than 400 cases. Attackers have addresses of their own (127.0.1.x);
// the disk needs root.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/dev/internal/measure"
)

// The goals.
const (
	healthGoal = 200 * time.Millisecond
	memoryGoal = 300e6
	casesGoal  = 400
)

// config is what a run does.
type config struct {
	kiln    string
	dir     string
	only    *regexp.Regexp // which attacks
	short   bool           // a tenth of everything, without goals for time
	seconds time.Duration  // of each flood
}

func main() {
	var c config
	probe := flag.String("probe", "", "only ask this URL for its health, and print the times")
	flag.StringVar(&c.kiln, "kiln", "bin/kiln", "the kiln to attack")
	flag.StringVar(&c.dir, "dir", ".cache/bench", "where to put the index, which is removed again")
	only := flag.String("only", "", "only attacks whose names match, without the goal for their number")
	flag.BoolVar(&c.short, "short", false, "a tenth of everything, without goals for time")
	flag.DurationVar(&c.seconds, "time", 8*time.Second, "how long each flood takes")
	flag.Parse()
	c.only = regexp.MustCompile(*only)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if *probe != "" {
		err = runProbe(ctx, os.Stdout, *probe)
	} else {
		err = run(ctx, os.Stdout, c)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

// result is a row of the table.
type result struct {
	name           string
	tried, refused int
	wrong          []string
	memory         float64
	health         []time.Duration
}

func (r *result) add(ok bool, format string, args ...any) {
	r.tried++
	if ok {
		r.refused++
	} else {
		r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
	}
}

// attack is one row of the table: what it does to a server.
type attack struct {
	name string
	run  func(ctx context.Context, t *target, r *result) error
}

func run(ctx context.Context, out io.Writer, c config) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.dir, "attack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	t, err := newTarget(ctx, c, filepath.Join(dir, "index"))
	if err != nil {
		return err
	}
	defer t.stop()
	fmt.Fprintf(out, "on %s\n", measure.Processor())
	results, err := t.attackAll(ctx, attacks(c))
	if err != nil {
		return errors.Join(err, t.logTail())
	}
	own, err := attackOthers(ctx, c, dir)
	if err != nil {
		return err
	}
	results = append(results, own...)
	if err := t.consistent(ctx); err != nil {
		return err
	}
	if len(results) == 0 {
		return errors.New("there is no such attack")
	}
	return report(out, c, results)
}

func report(out io.Writer, c config, results []*result) error {
	var missed []error
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "attack\ttried\trefused\twrong\tmemory\thealth p99\tlongest\t")
	tried, refused, wrong, memory := 0, 0, 0, 0.0
	var worst, longest time.Duration
	for _, r := range results {
		p99, most := percentile(r.health)
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%.0f MB\t%d ms\t%d ms\t\n", r.name, r.tried, r.refused, len(r.wrong), r.memory/1e6, p99.Milliseconds(), most.Milliseconds())
		tried, refused, wrong, memory = tried+r.tried, refused+r.refused, wrong+len(r.wrong), max(memory, r.memory)
		worst, longest = max(worst, p99), max(longest, most)
		if p99 >= healthGoal && !c.short {
			missed = append(missed, fmt.Errorf("%s: the health check took %v at the 99th percentile, the goal is %v", r.name, p99, healthGoal))
		}
		for _, w := range r.wrong {
			missed = append(missed, fmt.Errorf("%s: %s", r.name, w))
		}
	}
	fmt.Fprintf(table, "all\t%d\t%d\t%d\t%.0f MB\t%d ms\t%d ms\t\n", tried, refused, wrong, memory/1e6, worst.Milliseconds(), longest.Milliseconds())
	_ = table.Flush()
	if memory >= memoryGoal {
		missed = append(missed, fmt.Errorf("the server took %.0f MB, the goal is %.0f MB", memory/1e6, memoryGoal/1e6))
	}
	if tried < casesGoal && !c.short && c.only.String() == "" {
		missed = append(missed, fmt.Errorf("%d cases, the goal is %d", tried, casesGoal))
	}
	return errors.Join(missed...)
}

func percentile(times []time.Duration) (p99, longest time.Duration) {
	if len(times) == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)*99+99)/100-1], sorted[len(sorted)-1]
}

// server is a "kiln serve" that runs.
type server struct {
	cmd     *exec.Cmd
	url     string // ends in /
	metrics string
	log     string // path
}

var announced = regexp.MustCompile(`^\s+(pages|metrics)\s+(\S+)$`)

// startServer runs kiln on a folder; limit, if not 0, is its number of descriptors.
func startServer(ctx context.Context, c config, dir string, limit int, args ...string) (*server, error) {
	s := &server{log: dir + ".log"}
	args = append([]string{"serve", "--dir", dir, "--addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"}, args...)
	s.cmd = exec.CommandContext(ctx, c.kiln, args...)
	if limit > 0 {
		s.cmd = exec.CommandContext(ctx, "bash", append([]string{"-c", `ulimit -n "$1"; shift; exec "$@"`, "bash", strconv.Itoa(limit), c.kiln}, args...)...)
	}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd.Stderr = log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start kiln (make build): %w", err)
	}
	for lines := bufio.NewScanner(out); s.metrics == "" && lines.Scan(); {
		if m := announced.FindStringSubmatch(lines.Text()); m != nil {
			url := strings.Replace(m[2], "localhost", "127.0.0.1", 1)
			if m[1] == "pages" {
				s.url = url
			} else {
				s.metrics = url
			}
		}
	}
	if s.metrics == "" {
		return nil, errors.Join(errors.New("kiln did not start"), s.cmd.Wait(), s.logTail())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return s, nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(os.Interrupt)
	late := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	late.Stop()
}

// logTail is the end of what the server logged, as an error.
func (s *server) logTail() error {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err
	}
	return fmt.Errorf("log of the server:\n%s", text[max(0, len(text)-2000):])
}

// memory is the largest resident size since the last call.
func (s *server) memory() float64 {
	proc := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
	text, err := os.ReadFile(proc + "status")
	if err != nil {
		return 0
	}
	_ = os.WriteFile(proc+"clear_refs", []byte("5"), 0) // the peak begins anew
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kb * 1024
		}
	}
	return 0
}

// prober is the process that asks for the health of a server.
type prober struct {
	cmd   *exec.Cmd
	mu    sync.Mutex
	times []time.Duration
}

func startProber(ctx context.Context, url string) (*prober, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &prober{cmd: exec.CommandContext(ctx, self, "-probe", url)}
	p.cmd.Env = append(os.Environ(), probeVariable+"="+url)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				p.mu.Lock()
				p.times = append(p.times, time.Duration(n))
				p.mu.Unlock()
			}
		}
	}()
	return p, nil
}

// take returns the times since the last call.
func (p *prober) take() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	times := p.times
	p.times = nil
	return times
}

func (p *prober) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// probeVariable makes a test that was started again a prober.
const probeVariable = "KILN_ATTACK_PROBE"

// runProbe asks for the health 50 times a second and prints how long each answer took, in
// nanoseconds. No answer in ten seconds counts as ten seconds.
func runProbe(ctx context.Context, out io.Writer, url string) error {
	const limit = 10 * time.Second
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		begin := time.Now()
		took := limit
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"healthz", nil)
		if err != nil {
			return err
		}
		if res, err := client.Do(req); err == nil {
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if string(body) == "ok\n" {
				took = time.Since(begin)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if _, err := fmt.Fprintln(out, took.Nanoseconds()); err != nil {
			return nil // the one who asks has ended
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
