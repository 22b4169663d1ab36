// Command benchmodel compares "kiln model compile" and "kiln model reshard" with copying the same
// bytes:
//
//	   6.02 GB, median of 3 runs  seconds  GB/s  of cat  CPU s  peak RSS
//	                         cat     9.10  0.66    1.00   4.10     13 MB
//	             kiln --hash=off     9.05  0.67    0.99   4.20     31 MB
//	                        kiln     9.40  0.64    1.03  12.00     38 MB
//	python safe_open → save_file    14.80  0.41    1.63  14.00   6230 MB
//	                cat of shards     9.00  0.67    1.00   4.10     13 MB
//	                 kiln reshard     9.10  0.66    1.01   4.20     31 MB
//
// It makes a job with the layers of a real model and random contents in a folder that it removes
// again, and runs every program on it in turns, each with an empty page cache (where it may empty
// it) and with the output synced to disk at the end. A virtual machine gives memory that is not
// used back to its host and gets it back slowly, page by page; so that every program finds the
// same, the memory that the page cache will need is used once before each run. It fails if kiln
// misses a goal: 1.05 of cat without hashing and for other shards, 1.2 with, and 100 MB of memory.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kiln-build/kiln/dev/internal/measure"
	"github.com/kiln-build/kiln/internal/fsx"
	"github.com/kiln-build/kiln/internal/memory"
	"github.com/kiln-build/kiln/internal/units"
	"github.com/kiln-build/kiln/model/safetensors"
	"github.com/kiln-build/kiln/model/tensor"
)

// The goals of a compile.
const (
	copyGoal = 1.05
	hashGoal = 1.2
	rssGoal  = 100e6
)

func main() {
	size := flag.String("size", "6GB", "about how large the compiled model is")
	dir := flag.String("dir", ".cache/bench", "a folder on the disk to measure; needs three times the size, with -only twice")
	runs := flag.Int("runs", 3, "how often each program runs")
	kiln := flag.String("kiln", "bin/kiln", "the kiln to measure")
	python := flag.String("python", "python3", "a Python with numpy and safetensors; empty leaves it out")
	only := flag.String("only", "", "measure only this: compile or reshard")
	keep := flag.Bool("keep", false, "keep the job, for looking into a result")
	claim := flag.Int64("claim", 0, "only use this many bytes of memory, once")
	flag.Parse()
	if *claim > 0 {
		use(make([]byte, *claim))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout, *size, *dir, *runs, *kiln, *python, *only, *keep)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmodel:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, size, dir string, runs int, kiln, python, only string, keep bool) (err error) {
	want, err := units.ParseBytes(size)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	need := 3*want + want/4
	if only != "" {
		need -= want
	}
	if free, err := fsx.FreeSpace(dir); err == nil && free < need {
		return fmt.Errorf("%s has %d MB free, %d are needed", dir, free/1e6, need/1e6)
	}
	if dir, err = os.MkdirTemp(dir, "model-"); err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if keep {
		fmt.Fprintln(os.Stderr, "the job is in", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	j := &job{dir: dir, rng: rand.NewChaCha8([32]byte{1})}
	if err := j.make(ctx, want); err != nil {
		return err
	}
	if kiln, err = filepath.Abs(kiln); err != nil {
		return err
	}

	out, compiled := filepath.Join(dir, "out"), filepath.Join(dir, "compiled")
	cat := func(inputs ...string) []string {
		return append([]string{"sh", "-c", `mkdir "$0" && cat "$@" >"$0/all" && sync "$0/all"`, out}, inputs...)
	}
	programs := []program{
		{"cat", cat(j.inputs...), 0, 0},
		{"kiln --hash=off", []string{kiln, "model", "compile", "--job", j.work(), "--out", out, "--hash=off"}, copyGoal, 0},
		{"kiln", []string{kiln, "model", "compile", "--job", j.work(), "--out", out}, hashGoal, 0},
	}
	if python != "" {
		programs = append(programs, program{"python safe_open → save_file", []string{python, "-c", pythonLoop, j.work(), j.model(), out}, 0, 0})
	}
	switch only {
	case "", "compile":
	case "reshard":
		programs = nil
	default:
		return fmt.Errorf("-only %s: want compile or reshard", only)
	}
	if only != "compile" {
		more, err := j.reshard(ctx, kiln, compiled, out, len(programs), cat)
		if err != nil {
			return err
		}
		programs = append(programs, more...)
		if only == "reshard" { // the job has done its part
			if err := os.RemoveAll(j.work()); err != nil {
				return err
			}
		}
	}
	cold := true
	results := make([][]result, len(programs))
	for i := range runs {
		for k, p := range programs {
			cold = dropCaches(ctx) && cold
			if err := claimMemory(ctx, 2*j.bytes); err != nil {
				return err
			}
			r, err := p.run(ctx)
			if err != nil {
				return err
			}
			results[k] = append(results[k], r)
			fmt.Fprintf(os.Stderr, "run %d: %-28s %7.2f s\n", i+1, p.name, r.elapsed.Seconds())
			if err := os.RemoveAll(out); err != nil {
				return err
			}
		}
	}
	if !cold {
		fmt.Fprintln(os.Stderr, "the page cache could not be emptied (that needs root): inputs came from memory")
	}
	return report(w, j.bytes, programs, results)
}

// reshard makes a finished model in one file, and returns the programs that copy it: as it is, and
// into files of a gigabyte. at is the place of the first.
func (j *job) reshard(ctx context.Context, kiln, compiled, out string, at int, cat func(...string) []string) ([]program, error) {
	whole := program{"compile", []string{kiln, "model", "compile", "--job", j.work(), "--out", compiled, "--compat", "--shard-size", "none"}, 0, 0}
	if _, err := whole.run(ctx); err != nil {
		return nil, err
	}
	return []program{
		{"cat of the model", cat(filepath.Join(compiled, "output.safetensors")), 0, at},
		{"kiln reshard", []string{kiln, "model", "reshard", compiled, "--shard-size", "1 GB", "--out", out}, copyGoal, at},
	}, nil
}

// program is one way to bring the bytes to the other folder.
type program struct {
	name string
	args []string
	goal float64 // times of cat, 0 means none
	cat  int     // the program that copies the same bytes
}

type result struct {
	elapsed time.Duration
	cpu     time.Duration // of all threads, in the program and in the kernel for it
	rss     int64         // largest, in bytes; not less than that of this program, from which it is forked
}

func (p *program) run(ctx context.Context) (result, error) {
	cmd := exec.CommandContext(ctx, p.args[0], p.args[1:]...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return result{}, fmt.Errorf("%s: %w\n%s", p.name, err, log.String())
	}
	state := cmd.ProcessState
	return result{elapsed: time.Since(start), cpu: state.UserTime() + state.SystemTime(), rss: measure.PeakMemory(state)}, nil
}

// dropCaches writes out everything and empties the page cache; it reports whether that was
// possible.
func dropCaches(ctx context.Context) bool {
	return exec.CommandContext(ctx, "sh", "-c", "sync && echo 3 >/proc/sys/vm/drop_caches").Run() == nil
}

// claimMemory has a child use n bytes of memory, or what can be had without harm.
func claimMemory(ctx context.Context, n int64) error {
	free, err := memory.Read()
	if err != nil {
		return err
	}
	n = min(n, free.AvailableBytes*3/4)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return exec.CommandContext(ctx, self, "-claim", fmt.Sprint(n)).Run()
}

func use(memory []byte) {
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
}

func report(w io.Writer, size int64, programs []program, results [][]result) error {
	var missed []string
	medians := make([]float64, len(programs))
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "%.2f GB, median of %d runs\tseconds\tGB/s\tof cat\tCPU s\tpeak RSS\truns\t\n", float64(size)/1e9, len(results[0]))
	for k, p := range programs {
		var times, cpu []time.Duration
		var rss []int64
		var each []string
		for _, r := range results[k] {
			times, cpu, rss = append(times, r.elapsed), append(cpu, r.cpu), append(rss, r.rss)
			each = append(each, fmt.Sprintf("%.2f", r.elapsed.Seconds()))
		}
		s, m := measure.Median(times).Seconds(), measure.Median(rss)
		medians[k] = s
		cat := medians[p.cat]
		fmt.Fprintf(tw, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%d MB\t%s\t\n", p.name, s, float64(size)/1e9/s, s/cat,
			measure.Median(cpu).Seconds(), m/1e6, strings.Join(each, " "))
		if p.goal == 0 {
			continue
		}
		if s/cat > p.goal {
			missed = append(missed, fmt.Sprintf("%s takes %.2f times as long as cat, the goal is %.2f", p.name, s/cat, p.goal))
		}
		if m >= rssGoal {
			missed = append(missed, fmt.Sprintf("%s needs %d MB, the goal is below %d", p.name, m/1e6, int64(rssGoal/1e6)))
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(missed) > 0 {
		return errors.New(strings.Join(missed, "; "))
	}
	return nil
}

// pythonLoop is the original's way: all tensors of a shard in memory, then save_file. Its arguments
// are the working folder, the source model and the output folder.
const pythonLoop = `
import glob, json, os, struct, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

work, model, out = sys.argv[1:]
os.mkdir(out)
tensors = {}
for path in glob.glob(os.path.join(model, "*.safetensors")):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        for name, e in header.items():
            if e["shape"] == [1]:
                continue
            a, b = e["data_offsets"]
            f.seek(8 + n + a)
            wide = np.fromfile(f, "<u2", (b - a) // 2).astype(np.uint32) << 16
            tensors[name] = wide.view(np.float32).astype(np.float16).reshape(e["shape"])
            del wide
for path in glob.glob(os.path.join(work, "out_tensor", "*.safetensors")):
    with safe_open(path, framework="np") as f:
        for name in f.keys():
            tensors[name] = f.get_tensor(name)
path = os.path.join(out, "output.safetensors")
save_file(tensors, path)
fd = os.open(path, os.O_RDONLY)
os.fsync(fd)
`

// shape is a Llama of a given size.
type shape struct {
	hidden, kv, inter, vocab int64
}

// job is a finished quantization with random contents.
type job struct {
	dir    string
	rng    *rand.ChaCha8
	inputs []string
	bytes  int64 // of all inputs
}

func (j *job) work() string  { return filepath.Join(j.dir, "work") }
func (j *job) model() string { return filepath.Join(j.dir, "model") }

// Bits per weight of layers and head.
const layerBits, headBits = 5, 6

// make writes a job whose tensors have about the given size: as many layers as fit into it.
func (j *job) make(ctx context.Context, size int64) error {
	s := shape{hidden: 2048, kv: 512, inter: 8192, vocab: 32000}
	if size >= 3e9 {
		s = shape{hidden: 4096, kv: 1024, inter: 14336, vocab: 128256}
	}
	layer := map[string][2]int64{
		"self_attn.q_proj": {s.hidden, s.hidden}, "self_attn.k_proj": {s.hidden, s.kv}, "self_attn.v_proj": {s.hidden, s.kv},
		"self_attn.o_proj": {s.hidden, s.hidden}, "mlp.gate_proj": {s.hidden, s.inter}, "mlp.up_proj": {s.hidden, s.inter},
		"mlp.down_proj": {s.inter, s.hidden},
	}
	var weights int64
	for _, d := range layer {
		weights += d[0] * d[1]
	}
	layers := max(1, (size-s.vocab*s.hidden*2-s.vocab*s.hidden*headBits/8)/(weights*layerBits/8))

	for _, d := range []string{filepath.Join(j.work(), "out_tensor"), j.model()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	source := []safetensors.Spec{
		{Name: "model.embed_tokens.weight", DType: tensor.BF16, Shape: []int64{s.vocab, s.hidden}},
		{Name: "model.norm.weight", DType: tensor.BF16, Shape: []int64{s.hidden}},
		{Name: "lm_head.weight", DType: tensor.BF16, Shape: []int64{1}}, // of source linears only the name matters
	}
	if err := j.layer("lm_head", s.hidden, s.vocab, headBits); err != nil {
		return err
	}
	for i := range layers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		prefix := fmt.Sprintf("model.layers.%d.", i)
		for _, name := range slices.Sorted(maps.Keys(layer)) {
			d := layer[name]
			if err := j.layer(prefix+name, d[0], d[1], layerBits); err != nil {
				return err
			}
			source = append(source, safetensors.Spec{Name: prefix + name + ".weight", DType: tensor.BF16, Shape: []int64{1}})
		}
		for _, norm := range []string{"input_layernorm", "post_attention_layernorm"} {
			source = append(source, safetensors.Spec{Name: prefix + norm + ".weight", DType: tensor.BF16, Shape: []int64{s.hidden}})
		}
	}
	normals := j.normals()
	err := j.file(filepath.Join(j.model(), "model.safetensors"), source, func(string) io.Reader { return &repeat{data: normals} })
	if err != nil {
		return err
	}
	for path, v := range map[string]any{
		filepath.Join(j.model(), "config.json"): map[string]any{
			"architectures": []string{"LlamaForCausalLM"}, "hidden_size": s.hidden, "intermediate_size": s.inter, "num_hidden_layers": layers,
			"num_attention_heads": s.hidden / 128, "num_key_value_heads": s.kv / 128, "head_dim": 128, "vocab_size": s.vocab, "rms_norm_eps": 1e-5,
		},
		filepath.Join(j.work(), "job_new.json"): map[string]any{
			"in_dir": j.model(), "out_dir": j.work(), "compile_full": filepath.Join(j.dir, "out"), "shard_size": 8192, "progress": "compile",
			"bits": layerBits, "head_bits": headBits, "dataset_rows": 115, "length": 2048, "cal_dataset": nil, "status_output": false,
			"q_last_module_idx": 2*layers + 2, "strategy": map[string]any{},
		},
	} {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// layer writes the file of a quantized layer: groups of 128 rows, all of one width.
func (j *job) layer(key string, in, out, bits int64) error {
	const group = 128
	groups := in / group
	var table, perm []byte
	for g := range groups {
		table = binary.LittleEndian.AppendUint16(table, uint16(bits))
		table = binary.LittleEndian.AppendUint16(table, uint16(g*group*bits/32))
	}
	for _, i := range rand.New(j.rng).Perm(int(in)) {
		perm = binary.LittleEndian.AppendUint32(perm, uint32(i))
	}
	specs := []safetensors.Spec{
		{Name: key + ".q_weight", DType: tensor.I32, Shape: []int64{in * bits / 32, out}},
		{Name: key + ".q_invperm", DType: tensor.I32, Shape: []int64{in}},
		{Name: key + ".q_scale", DType: tensor.I32, Shape: []int64{groups, out / 8}},
		{Name: key + ".q_scale_max", DType: tensor.F16, Shape: []int64{groups}},
		{Name: key + ".q_groups", DType: tensor.I16, Shape: []int64{2 * groups}},
	}
	return j.file(filepath.Join(j.work(), "out_tensor", key+".safetensors"), specs, func(name string) io.Reader {
		switch {
		case strings.HasSuffix(name, ".q_groups"):
			return bytes.NewReader(table)
		case strings.HasSuffix(name, ".q_invperm"):
			return bytes.NewReader(perm)
		}
		return j.rng
	})
}

func (j *job) file(path string, specs []safetensors.Spec, open func(name string) io.Reader) error {
	l, err := safetensors.NewLayout(specs, nil)
	if err != nil {
		return err
	}
	j.inputs = append(j.inputs, path)
	j.bytes += l.FileSize()
	return safetensors.WriteFile(path, l, func(name string) (io.Reader, error) {
		_, size, _ := l.Offset(name)
		return io.LimitReader(open(name), size), nil
	})
}

// normals are BF16 numbers as they are in an embedding.
func (j *job) normals() []byte {
	r := rand.New(j.rng)
	var b []byte
	for range 1<<20 + 7 { // not a divisor of anything
		b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(0.02*r.NormFloat64()))>>16))
	}
	return b
}

// repeat reads data again and again.
type repeat struct {
	data []byte
	at   int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.data[r.at:])
	r.at = (r.at + n) % len(r.data)
	return n, nil
}
