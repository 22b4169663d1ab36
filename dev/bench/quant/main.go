// Command benchquant compares kiln's products with 4-bit matrices on this processor with two
// others, in one run: numpy's OpenBLAS, with the weights dequantized for every product or before,
// and ggml of llama.cpp with Q4_0 weights, as they are or repacked for this processor:
//
//	cpu (amd64, avx512, threads: 2); numpy 2.4.6; load average before 0.10, after 1.90
//
//	     milliseconds   kiln   GB/s  memory  share  GFLOP/s  ggml plain  ggml CPU_REPACK  dequantize+openblas  openblas  kiln ahead
//	 4096×4096, m = 1  0.434  19.53    26.2   75 %     77.3       0.641            0.581               46.498     2.281       1.34×
//
// GB/s are of quantized bytes, beside what the memory gives when it is only read.
//
// Each number is the fastest of many products. The programs take turns, so that a busy moment of
// the machine meets all of them. ggml rounds activations to 8 bits, for which its error is 5e-3
// where kiln's is 2e-4.
//
// It fails if kiln misses a goal: one row at 70 % of the speed at which memory is read, and ahead
// of both others for every number of rows. Times of OpenBLAS alone, without dequantizing, are
// printed but are no goal.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// readGoal is the share of the memory's speed for one row.
const readGoal = 0.7

var shapes = [][2]int{{4096, 4096}, {4096, 14336}, {14336, 4096}}

func main() {
	threads := flag.Int("threads", 2, "threads of every program")
	rounds := flag.Int("rounds", 3, "how often each program has its turn")
	turn := flag.Duration("time", time.Second, "how long a turn lasts")
	ms := flag.String("m", "1,8,64,512", "rows of activations")
	python := flag.String("python", ".cache/venv-quant/bin/python", "a Python with numpy")
	ggml := flag.String("ggml", ".cache/venv-quant/ggml", "a folder with the libraries of ggml; empty leaves it out")
	kiln := flag.String("kiln", "bin/kiln", "the kiln to measure")
	script := flag.String("peers", "dev/bench/quant/peers.py", "the program that runs the others")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	program := kilnProgram{*kiln, *threads, *turn}
	err := run(ctx, os.Stdout, program, *rounds, *ms, []string{*python, *script, strconv.Itoa(*threads), *ggml})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchquant:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, kiln kilnProgram, rounds int, list string, command []string) error {
	var ms []int
	for s := range strings.SplitSeq(list, ",") {
		m, err := strconv.Atoi(s)
		if err != nil || m < 1 {
			return fmt.Errorf("rows of activations %q: want numbers", list)
		}
		ms = append(ms, m)
	}
	others, err := startPeers(ctx, command)
	if err != nil {
		return err
	}
	defer others.stop()
	before := load()

	var results []result
	backend := ""
	for _, shape := range shapes {
		for _, m := range ms {
			r := result{k: shape[0], n: shape[1], m: m, peers: map[string]float64{}}
			r.kiln = math.Inf(1)
			for range rounds {
				one, err := kiln.measure(ctx, r.k, r.n, m)
				if err != nil {
					return err
				}
				backend = one.Backend
				r.read = max(r.read, one.Read)
				r.kiln = min(r.kiln, one.Results[0].Seconds)
				r.bytes = one.Results[0].Seconds * one.Results[0].BytesPerSecond
				for _, name := range others.names {
					t, err := others.measure(name, r.k, r.n, m, kiln.turn)
					if err != nil {
						return err
					}
					if old, ok := r.peers[name]; !ok || t < old {
						r.peers[name] = t
					}
				}
			}
			fmt.Fprintf(os.Stderr, "%s: %.3f ms\n", r.name(), 1e3*r.kiln)
			results = append(results, r)
		}
	}
	fmt.Fprintf(w, "%s; %s; load average before %s, after %s\n\n", backend, others.about, before, load())
	return report(w, others.names, results)
}

// kilnProgram is the kiln that is measured.
type kilnProgram struct {
	path    string
	threads int
	turn    time.Duration
}

// kilnReport is what "kiln quant bench --json" prints, as far as it is used.
type kilnReport struct {
	Backend string  `json:"backend"`
	Read    float64 `json:"read_bytes_per_second"`
	Results []struct {
		Seconds        float64 `json:"seconds"`
		BytesPerSecond float64 `json:"bytes_per_second"`
	} `json:"results"`
}

func (p kilnProgram) measure(ctx context.Context, k, n, m int) (*kilnReport, error) {
	cmd := exec.CommandContext(ctx, p.path, "quant", "bench", "--json", "--shape", fmt.Sprintf("%dx%d", k, n), "--m", strconv.Itoa(m),
		"--threads", strconv.Itoa(p.threads), "--time", p.turn.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s (make build makes it): %w", cmd, err)
	}
	var r kilnReport
	if err := json.Unmarshal(out, &r); err != nil || len(r.Results) != 1 {
		return nil, fmt.Errorf("%s: unexpected output %q: %w", cmd, out, err)
	}
	return &r, nil
}

// load returns the load average, which says how busy the machine is with other things.
func load() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(data), " ")
	return first
}

// result has the times for one size in seconds.
type result struct {
	k, n, m int
	bytes   float64
	read    float64 // bytes a second that the memory gave, measured in turns too
	kiln    float64
	peers   map[string]float64
}

func (r result) name() string { return fmt.Sprintf("%d×%d, m = %d", r.k, r.n, r.m) }

// rival is a peer that kiln has to be ahead of.
func rival(name string) bool { return name != "openblas" }

func report(w io.Writer, names []string, results []result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "milliseconds\tkiln\tGB/s\tmemory\tshare\tGFLOP/s\t%s\tkiln ahead\t\n", strings.Join(names, "\t"))
	var missed []error
	for _, r := range results {
		speed := r.bytes / r.kiln
		fmt.Fprintf(table, "%s\t%.3f\t%.2f\t%.1f\t%.0f %%\t%.1f\t", r.name(), 1e3*r.kiln, speed/1e9, r.read/1e9, 100*speed/r.read, 2*float64(r.m)*float64(r.k)*float64(r.n)/r.kiln/1e9)
		fastest, by := math.Inf(1), ""
		for _, name := range names {
			fmt.Fprintf(table, "%.3f\t", 1e3*r.peers[name])
			if rival(name) && r.peers[name] < fastest {
				fastest, by = r.peers[name], name
			}
		}
		fmt.Fprintf(table, "%.2f×\t\n", fastest/r.kiln)
		if fastest < r.kiln {
			missed = append(missed, fmt.Errorf("%s: behind %s by %.2f", r.name(), by, r.kiln/fastest))
		}
		if r.m == 1 && speed < readGoal*r.read {
			missed = append(missed, fmt.Errorf("%s: %.0f %% of the memory's speed: the goal is %.0f %%", r.name(), 100*speed/r.read, 100*readGoal))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return errors.Join(missed...)
}

// peers is the program that runs the others.
type peers struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	names []string
	about string
}

func startPeers(ctx context.Context, command []string) (*peers, error) {
	p := &peers{cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	p.cmd.Stderr = io.Discard // ggml names every tensor that it repacks
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	var hello struct {
		OpenBLAS string   `json:"openblas"`
		GGML     []string `json:"ggml"`
	}
	if err := p.read(&hello); err != nil {
		p.stop()
		return nil, fmt.Errorf("%s (make bench-quant installs what it needs): %w", strings.Join(command, " "), err)
	}
	p.about = hello.OpenBLAS
	slices.Sort(hello.GGML)
	for _, kind := range slices.Backward(hello.GGML) {
		p.names = append(p.names, "ggml "+kind)
	}
	p.names = append(p.names, "dequantize+openblas", "openblas")
	return p, nil
}

func (p *peers) read(answer any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, answer)
}

func (p *peers) measure(name string, k, n, m int, turn time.Duration) (float64, error) {
	request, err := json.Marshal(map[string]any{"peer": name, "k": k, "n": n, "m": m, "seconds": turn.Seconds()})
	if err != nil {
		return 0, err
	}
	if _, err := p.in.Write(append(request, '\n')); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	var answer struct {
		Seconds float64 `json:"seconds"`
	}
	if err := p.read(&answer); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if answer.Seconds <= 0 {
		return 0, fmt.Errorf("%s has no such product", name)
	}
	return answer.Seconds, nil
}

// stop ends the program by closing its input.
func (p *peers) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
