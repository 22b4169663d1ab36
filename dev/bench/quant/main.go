// Command benchquant compares kiln's products with 4-bit matrices on this processor with two
// others, in one run: numpy's OpenBLAS, with the weights dequantized for every product or before,
// and ggml of llama.cpp with Q4_0 weights, as they are or repacked for this processor. It prints
// one table for each set of kernels:
//
//	AMD EPYC (family 25, model 17); cpu (amd64, avx512-vnni, in integers, threads: 2); error 2.0e-04, ggml CPU_REPACK 5.5e-03
//
//	     milliseconds   kiln   GB/s  memory  share  GFLOP/s  ggml plain  ggml CPU_REPACK  dequantize+openblas  openblas  kiln ahead
//	 4096×4096, m = 1  0.221  38.35    52.2   73 %    151.8       0.461            0.250               46.498     2.281       1.13×
//
// GB/s are of quantized bytes, beside what the memory gives when it is only read. Errors are those
// of one row, as the norm of the difference to the exact product over the norm of that product;
// both round activations, ggml to 8 bits.
//
// Kernels for AVX2 are compared with a ggml that was built for AVX2: so one machine shows two kinds
// of processors.
//
// Each number is the fastest of many products. The programs take short turns, so that a busy moment
// of the machine meets all of them.
//
// It fails if kiln misses a goal: one row at 70 % of the speed at which memory is read, ahead of
// both others for every number of rows, and an error of at most 5e-4 and a tenth of ggml's. Times
// of OpenBLAS alone, without dequantizing, are no goal.
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
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/quanttest"
	"github.com/kiln-build/kiln/model/tensor"
)

// The goals: the share of the memory's speed for one row, and the error.
const (
	readGoal  = 0.7
	errorGoal = 5e-4
)

var shapes = [][2]int{{4096, 4096}, {4096, 14336}, {14336, 4096}}

// options are the flags.
type options struct {
	threads, rounds int
	turn            time.Duration
	rows, kernels   string
	python, script  string
	ggml            string
}

func main() {
	var o options
	flag.IntVar(&o.threads, "threads", 2, "threads of every program")
	flag.IntVar(&o.rounds, "rounds", 20, "how often each program has its turn")
	flag.DurationVar(&o.turn, "time", 100*time.Millisecond, "how long a turn lasts")
	flag.StringVar(&o.rows, "m", "1,8,64,512", "rows of activations")
	flag.StringVar(&o.kernels, "kernels", "", "sets of kernels (default: the best and, where it is another, avx2-int)")
	flag.StringVar(&o.python, "python", ".cache/venv-quant/bin/python", "a Python with numpy")
	flag.StringVar(&o.ggml, "ggml", ".cache/venv-quant/ggml", "a folder with the libraries of ggml, beside it one with -avx2; empty leaves it out")
	flag.StringVar(&o.script, "peers", "dev/bench/quant/peers.py", "the program that runs the others")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchquant:", err)
		os.Exit(1)
	}
}

// contest is one set of kernels and the programs that it is compared with.
type contest struct {
	cpu     *quant.CPU
	peers   *peers
	err     float64 // of kiln
	results []result
}

func run(ctx context.Context, w io.Writer, o options) error {
	var ms []int
	for s := range strings.SplitSeq(o.rows, ",") {
		m, err := strconv.Atoi(s)
		if err != nil || m < 1 {
			return fmt.Errorf("rows of activations %q: want numbers", o.rows)
		}
		ms = append(ms, m)
	}
	features := quant.Features()
	sets := []string{features.Kernels}
	if o.kernels != "" {
		sets = strings.Split(o.kernels, ",")
	} else if features.Kernels != "avx2-int" && slices.Contains(features.Available, "avx2-int") {
		sets = append(sets, "avx2-int")
	}
	var contests []*contest
	for _, set := range sets {
		cpu, err := quant.NewCPU(quant.CPUOptions{Threads: o.threads, Kernels: set})
		if err != nil {
			return err
		}
		folder := o.ggml
		if folder != "" && strings.HasPrefix(set, "avx2") {
			folder += "-avx2"
		}
		others, err := startPeers(ctx, []string{o.python, o.script, strconv.Itoa(o.threads), folder})
		if err != nil {
			return err
		}
		defer others.stop()
		c := &contest{cpu: cpu, peers: others}
		if c.err, err = relativeError(ctx, cpu); err != nil {
			return err
		}
		contests = append(contests, c)
	}
	before := load()
	for _, shape := range shapes {
		if err := measure(ctx, contests, shape, ms, o); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "%s; load average before %s, after %s\n", processor(), before, load())
	var missed []error
	for _, c := range contests {
		missed = append(missed, c.report(w))
	}
	return errors.Join(missed...)
}

// measure lets all programs take turns with products of one shape.
func measure(ctx context.Context, contests []*contest, shape [2]int, ms []int, o options) error {
	m, err := matrix(shape[0], shape[1])
	if err != nil {
		return err
	}
	benches := make([]*bench, len(contests))
	for i, c := range contests {
		if benches[i], err = newBench(ctx, c.cpu, m); err != nil {
			return err
		}
	}
	for _, rows := range ms {
		first := len(contests[0].results)
		for _, c := range contests {
			r := result{k: shape[0], n: shape[1], m: rows, bytes: m.Bytes(), kiln: math.Inf(1), peers: map[string]float64{}}
			c.results = append(c.results, r)
		}
		read := 0.0
		for round := range o.rounds {
			if rows == 1 && round%5 == 0 {
				speed, err := quant.ReadBandwidth(ctx, o.threads, 3*o.turn)
				if err != nil {
					return err
				}
				read = max(read, speed)
			}
			for i, c := range contests {
				r := &c.results[first]
				t, err := benches[i].run(ctx, rows, o.turn)
				if err != nil {
					return err
				}
				r.kiln, r.read = min(r.kiln, t), read
				for _, name := range c.peers.names {
					if round > 2 && r.peers[name] > 2*r.kiln {
						continue // far behind, and slow
					}
					t, err := c.peers.measure(name, r.k, r.n, rows, o.turn)
					if err != nil {
						return err
					}
					if old, ok := r.peers[name]; !ok || t < old {
						r.peers[name] = t
					}
				}
			}
		}
		for _, c := range contests {
			r := &c.results[first]
			fmt.Fprintf(os.Stderr, "%s: %s: %.3f ms\n", c.cpu.Name(), r.name(), 1e3*r.kiln)
		}
	}
	return nil
}

// matrix returns a random matrix of 4 bits in groups of 128 rows.
func matrix(k, n int) (*quant.QMatrix, error) {
	groups, err := quant.MixGroups(k, quant.Share{Bits: 4, GroupRows: 128})
	if err != nil {
		return nil, err
	}
	return quant.LoadEXL2(quanttest.EXL2(rand.New(rand.NewPCG(1, 2)), n, groups), "", quant.EXL2Options{})
}

// bench has copies of one matrix that are used in turn, so that weights come from memory as in a
// model.
type bench struct {
	cpu     *quant.CPU
	weights []quant.Weight
	next    int
}

func newBench(ctx context.Context, cpu *quant.CPU, m *quant.QMatrix) (*bench, error) {
	b := &bench{cpu: cpu}
	for total := int64(0); total < 256<<20; total += m.Bytes() {
		w, err := cpu.Upload(ctx, m)
		if err != nil {
			return nil, err
		}
		b.weights = append(b.weights, w)
	}
	return b, nil
}

// run multiplies for some time, at least three times, and returns the shortest in seconds.
func (b *bench) run(ctx context.Context, rows int, d time.Duration) (float64, error) {
	k, n := b.weights[0].Rows(), b.weights[0].Cols()
	x, err := quant.NewHalf(rows, k, quanttest.Normal(rand.New(rand.NewPCG(3, 4)), rows*k, 1))
	if err != nil {
		return 0, err
	}
	y, err := b.cpu.NewMatrix(rows, n)
	if err != nil {
		return 0, err
	}
	shortest := math.Inf(1)
	for start, count := time.Now(), 0; time.Since(start) < d || count < 4; count++ {
		begin := time.Now()
		if err := b.cpu.Gemm(ctx, y, x, b.weights[b.next%len(b.weights)], quant.GemmOptions{}); err != nil {
			return 0, err
		}
		if count > 0 { // the first one allocates
			shortest = min(shortest, time.Since(begin).Seconds())
		}
		b.next++
	}
	return shortest, nil
}

// relativeError returns the error of the product of one row.
func relativeError(ctx context.Context, cpu *quant.CPU) (float64, error) {
	const k, n = 4096, 1024
	m, err := matrix(k, n)
	if err != nil {
		return 0, err
	}
	half := make([]byte, 2*k*n)
	if err := m.Dequantize(half); err != nil {
		return 0, err
	}
	weights, values := make([]float32, k*n), make([]float32, k)
	tensor.DecodeF16(weights, half)
	data := quanttest.Normal(rand.New(rand.NewPCG(3, 4)), k, 1)
	tensor.DecodeF16(values, data)
	want := make([]float64, n)
	for i, v := range values {
		for j, weight := range weights[i*n:][:n] {
			want[j] += float64(v) * float64(weight)
		}
	}
	x, err := quant.NewHalf(1, k, data)
	if err != nil {
		return 0, err
	}
	out := make([]byte, 2*n)
	y, err := quant.NewHalf(1, n, out)
	if err != nil {
		return 0, err
	}
	w, err := cpu.Upload(ctx, m)
	if err != nil {
		return 0, err
	}
	if err := cpu.Gemm(ctx, y, x, w, quant.GemmOptions{}); err != nil {
		return 0, err
	}
	got := make([]float32, n)
	tensor.DecodeF16(got, out)
	var diff, norm float64
	for j, v := range got {
		diff += (float64(v) - want[j]) * (float64(v) - want[j])
		norm += want[j] * want[j]
	}
	return math.Sqrt(diff / norm), nil
}

// processor returns the name of the processor.
func processor() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	about := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			about[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return fmt.Sprintf("%s (family %s, model %s)", about["model name"], about["cpu family"], about["model"])
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
	bytes   int64
	read    float64 // bytes a second that the memory gave, for one row
	kiln    float64
	peers   map[string]float64
}

func (r result) name() string { return fmt.Sprintf("%d×%d, m = %d", r.k, r.n, r.m) }

// rival is a peer that kiln has to be ahead of.
func rival(name string) bool { return name != "openblas" }

// report prints the table and returns the goals that were missed.
func (c *contest) report(w io.Writer) error {
	names := c.peers.names
	fmt.Fprintf(w, "\n%s; error %.1e", c.cpu.Name(), c.err)
	var missed []error
	miss := func(format string, args ...any) {
		missed = append(missed, fmt.Errorf(c.cpu.Name()+": "+format, args...))
	}
	limit := errorGoal
	for _, name := range names {
		if e, ok := c.peers.errors[name]; ok {
			fmt.Fprintf(w, ", %s %.1e", name, e)
			limit = min(limit, e/10)
		}
	}
	if c.err > limit {
		miss("error %.1e: the goal is %.1e", c.err, limit)
	}
	fmt.Fprintf(w, "; %s\n\n", c.peers.about)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "milliseconds\tkiln\tGB/s\tmemory\tshare\tGFLOP/s\t%s\tkiln ahead\t\n", strings.Join(names, "\t"))
	for _, r := range c.results {
		speed := float64(r.bytes) / r.kiln
		fmt.Fprintf(table, "%s\t%.3f\t%.2f\t", r.name(), 1e3*r.kiln, speed/1e9)
		if r.m == 1 {
			fmt.Fprintf(table, "%.1f\t%.0f %%\t", r.read/1e9, 100*speed/r.read)
		} else {
			fmt.Fprint(table, "\t\t")
		}
		fmt.Fprintf(table, "%.1f\t", 2*float64(r.m)*float64(r.k)*float64(r.n)/r.kiln/1e9)
		fastest, by := math.Inf(1), ""
		for _, name := range names {
			fmt.Fprintf(table, "%.3f\t", 1e3*r.peers[name])
			if rival(name) && r.peers[name] < fastest {
				fastest, by = r.peers[name], name
			}
		}
		fmt.Fprintf(table, "%.2f×\t\n", fastest/r.kiln)
		if fastest < r.kiln {
			miss("%s: behind %s by %.2f", r.name(), by, r.kiln/fastest)
		}
		if r.m == 1 && speed < readGoal*r.read {
			miss("%s: %.0f %% of the memory's speed: the goal is %.0f %%", r.name(), 100*speed/r.read, 100*readGoal)
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
	// errors are those of products, where the program gave them.
	errors map[string]float64
}

func startPeers(ctx context.Context, command []string) (*peers, error) {
	p := &peers{cmd: exec.CommandContext(ctx, command[0], command[1:]...), errors: map[string]float64{}}
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
		Error   float64 `json:"error"`
	}
	if err := p.read(&answer); err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	if answer.Seconds <= 0 {
		return 0, fmt.Errorf("%s has no such product", name)
	}
	if answer.Error > 0 {
		p.errors[name] = answer.Error
	}
	return answer.Seconds, nil
}

// stop ends the program by closing its input.
func (p *peers) stop() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
