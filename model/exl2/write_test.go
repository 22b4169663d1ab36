package exl2

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// llama is a fixture with several shards in both modes.
func llama(t testing.TB, dir string) *fixture {
	t.Helper()
	fx := &fixture{Seed: 7, Arch: "LlamaForCausalLM", Limit: 0.03, Set: map[string]any{"num_hidden_layers": 3}}
	fx.make(t, dir)
	return fx
}

func planFixture(t testing.TB, fx *fixture, opts PlanOptions) *Plan {
	t.Helper()
	inv, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work})
	if err := ps.Err(); err != nil {
		t.Fatal(err)
	}
	p, err := inv.Plan(opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// leftovers lists hidden entries beside the output.
func leftovers(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			out = append(out, e.Name())
		}
	}
	return out
}

func TestWriteDefault(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	p := planFixture(t, fx, PlanOptions{})
	if again := planFixture(t, fx, PlanOptions{}); p.Digest() != again.Digest() {
		t.Error("two plans of the same inputs differ")
	}
	var last Progress
	res, err := Write(t.Context(), p, WriteOptions{Progress: func(p Progress) {
		if p.Done < last.Done || p.Done > p.Total {
			t.Errorf("progress from %v to %v", last, p)
		}
		last = p
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last.Done != last.Total || last.Total != p.Bytes {
		t.Errorf("progress ended at %+v, plan has %d bytes", last, p.Bytes)
	}
	if res.Resumed != 0 || len(p.Shards) < 3 {
		t.Errorf("result %+v with %d shards", res, len(p.Shards))
	}
	if left := leftovers(t, dir); left != nil {
		t.Errorf("left behind: %v", left)
	}
	var names []string
	for name := range hashDir(t, fx.out) {
		if !strings.HasSuffix(name, ".safetensors") {
			names = append(names, name)
		}
	}
	want := map[string]bool{"LINK.md": true, "README.md": true, "config.json": true, "tokenizer.json": true, IndexFile: true, ManifestName: true}
	for _, n := range names {
		if !want[n] {
			t.Errorf("%s is in the output", n)
		}
		delete(want, n)
	}
	if len(want) > 0 {
		t.Errorf("missing in the output: %v", want)
	}

	// Once more: refused, then replaced; a foreign file goes with the old folder.
	if _, err := Write(t.Context(), p, WriteOptions{}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("second write: %v", err)
	}
	before := hashDir(t, fx.out)
	if err := os.WriteFile(filepath.Join(fx.out, "output_temp_3.safetensors"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), p, WriteOptions{Replace: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, hashDir(t, fx.out)); diff != "" {
		t.Errorf("replaced folder differs:\n%s", diff)
	}
	if left := leftovers(t, dir); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

// TestWriteResumes stops a write after each shard and lets the next one go on.
func TestWriteResumes(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	whole := planFixture(t, fx, PlanOptions{Out: filepath.Join(dir, "whole")})
	if _, err := Write(t.Context(), whole, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	p := planFixture(t, fx, PlanOptions{})
	var largest int64
	for _, s := range p.Shards {
		largest = max(largest, s.Size)
	}
	runs := 0
	for {
		runs++
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("enough")
		first := true
		var start int64
		res, err := Write(ctx, p, WriteOptions{Workers: 1, BufferBytes: 4096, Progress: func(pr Progress) {
			if first {
				first, start = false, pr.Done
			}
			if pr.Done-start > largest {
				cancel(stop)
			}
		}})
		cancel(nil)
		if err == nil {
			if runs > 2 && res.Resumed == 0 {
				t.Error("nothing was resumed")
			}
			break
		}
		if !errors.Is(err, stop) {
			t.Fatal(err)
		}
		if _, err := os.Lstat(fx.out); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal("an interrupted write left something at the target")
		}
		if runs > 100 {
			t.Fatal("no progress")
		}
	}
	if runs < 3 {
		t.Errorf("only %d runs", runs)
	}
	if diff := diffDirs(t, whole.Out, fx.out); diff != "" {
		t.Error(diff)
	}
}

func TestWriteIgnoresDamagedPartialOutput(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	p := planFixture(t, fx, PlanOptions{})
	stage := filepath.Join(dir, ".out.kiln-partial")
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Write(ctx, p, WriteOptions{Workers: 1, Progress: func(pr Progress) {
		if pr.Done > pr.Total/2 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	// A finished shard is touched, the journal is cut, a foreign file appears.
	shard := filepath.Join(stage, "files", p.Shards[0].Name)
	data, err := os.ReadFile(shard)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	if err := os.WriteFile(shard, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stage, "files", "foreign.safetensors"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(stage, "journal")
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, lines[:len(lines)-3], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), p, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	rep, err := Verify(t.Context(), fx.out, VerifyOptions{ModelDir: fx.model})
	if err != nil || !rep.OK() {
		t.Errorf("verify: %v %+v", err, rep)
	}
	if _, err := os.Stat(filepath.Join(fx.out, "foreign.safetensors")); err == nil {
		t.Error("a file that was not planned was published")
	}
}

// TestWriteAfterPublish is a crash between the rename and the end: the next run finds everything in
// place.
func TestWriteAfterPublish(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	p := planFixture(t, fx, PlanOptions{})
	res, err := Write(t.Context(), p, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stage := filepath.Join(dir, ".out.kiln-partial")
	if err := os.Mkdir(stage, 0o777); err != nil {
		t.Fatal(err)
	}
	j, _, err := openJournal(filepath.Join(stage, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	records := []record{{Start: &startRecord{Format: 1, Plan: p.Digest(), Hash: true}}}
	for i, s := range p.Shards {
		info, err := os.Stat(filepath.Join(fx.out, s.Name))
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record{Shard: &shardRecord{Name: s.Name, Size: s.Size, ModTime: info.ModTime(), SHA256: res.Manifest.Files[i].SHA256}})
	}
	for _, r := range append(records, record{Publish: true}) {
		if err := j.append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	again, err := Write(t.Context(), p, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if again.Resumed != len(p.Shards) {
		t.Errorf("resumed %d of %d shards", again.Resumed, len(p.Shards))
	}
	if diff := cmp.Diff(res.Manifest, again.Manifest); diff != "" {
		t.Errorf("manifest differs:\n%s", diff)
	}
	if left := leftovers(t, dir); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestWriteNoHashIsTheSame(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	a := planFixture(t, fx, PlanOptions{Out: filepath.Join(dir, "a"), Mode: Compat})
	b := planFixture(t, fx, PlanOptions{Out: filepath.Join(dir, "b"), Mode: Compat, ManifestPath: filepath.Join(dir, "manifest.json")})
	ra, err := Write(t.Context(), a, WriteOptions{NoHash: true, Workers: 3})
	if err != nil {
		t.Fatal(err)
	}
	rb, err := Write(t.Context(), b, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffDirs(t, a.Out, b.Out); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(filepath.Join(b.Out, ManifestName)); err == nil {
		t.Error("compat folder has a manifest")
	}
	if rep, err := Verify(t.Context(), a.Out, VerifyOptions{ManifestPath: b.ManifestPath, ModelDir: fx.model}); err != nil || !rep.OK() || rep.Tensors == 0 {
		t.Errorf("verify: %v %+v", err, rep)
	}
	if len(ra.NonFinite) != len(rb.NonFinite) {
		t.Errorf("non-finite values: %v and %v", ra.NonFinite, rb.NonFinite)
	}
}

func TestWriteStrict(t *testing.T) {
	dir := t.TempDir()
	fx := &fixture{Seed: 3, Arch: "LlamaForCausalLM", Limit: 1}
	fx.make(t, dir)
	p := planFixture(t, fx, PlanOptions{})
	_, err := Write(t.Context(), p, WriteOptions{Strict: true})
	if ps, ok := asProblems(err); !ok || !ps.Has(BadValue) {
		t.Errorf("strict: %v", err)
	}
	if _, err := os.Lstat(fx.out); !errors.Is(err, fs.ErrNotExist) {
		t.Error("output exists")
	}
	res, err := Write(t.Context(), p, WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.NonFinite) == 0 || res.NonFinite[0].Overflow+res.NonFinite[0].NaN == 0 {
		t.Errorf("values that overflow were not counted: %v", res.NonFinite)
	}
	want := "a.weight: 64 values are too large for half precision and become infinite, 2 values are not numbers (NaN)"
	if got := fmt.Sprint(NonFinite{Tensor: "a.weight", Overflow: 64, NaN: 2}); got != want {
		t.Errorf("it is shown as %q", got)
	}
}

func TestWriteStaleInput(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	p := planFixture(t, fx, PlanOptions{})
	path := p.Inputs[p.Shards[1].Tensors[0].From.Input].Path
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-1); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), p, WriteOptions{}); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(fx.out); !errors.Is(err, fs.ErrNotExist) {
		t.Error("output exists")
	}
}

// TestWriteMemory checks that the heap of a write does not follow the size of the model.
func TestWriteMemory(t *testing.T) {
	peak := func(scale int) (heap, bytes int64) {
		dir := t.TempDir()
		fx := &fixture{Seed: 5, Arch: "LlamaForCausalLM", Limit: 1 << 20, Scale: scale, Set: map[string]any{"num_hidden_layers": 1, "hidden_size": 128}}
		fx.make(t, dir)
		p := planFixture(t, fx, PlanOptions{})
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		step := p.Bytes / 20
		next := step
		if _, err := Write(t.Context(), p, WriteOptions{Workers: 1, BufferBytes: 64 << 10, Progress: func(pr Progress) {
			if pr.Done < next {
				return
			}
			next += step
			runtime.GC()
			metrics.Read(sample)
			heap = max(heap, int64(sample[0].Value.Uint64()))
		}}); err != nil {
			t.Fatal(err)
		}
		return heap, p.Bytes
	}
	small, smallBytes := peak(1)
	large, largeBytes := peak(48)
	t.Logf("live heap %d for %d bytes, %d for %d bytes", small, smallBytes, large, largeBytes)
	if largeBytes < 20*smallBytes {
		t.Errorf("models of %d and %d bytes say little", smallBytes, largeBytes)
	}
	if large > small+1<<20 {
		t.Errorf("heap grew from %d to %d bytes", small, large)
	}
}

func TestJournalCutAnywhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, _, err := openJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	all := []record{{Start: &startRecord{Format: 1, Plan: "x<>&", Hash: true}}, {Shard: &shardRecord{Name: "a", Size: 3}}, {Publish: true}}
	var ends []int
	for _, r := range all {
		if err := j.append(r); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, int(info.Size()))
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(data) + 1 {
		want := 0
		for _, e := range ends {
			if e <= cut {
				want++
			}
		}
		got, end, err := readJournal(strings.NewReader(string(data[:cut])))
		if err != nil || len(got) != want || want > 0 && end != int64(ends[want-1]) {
			t.Fatalf("cut at %d: %d records to %d, %v; want %d", cut, len(got), end, err, want)
		}
	}
	for i := range data {
		bad := append([]byte(nil), data...)
		bad[i] ^= 0x20
		if got, _, err := readJournal(strings.NewReader(string(bad))); err == nil && len(got) == len(all) && data[i] != '\n' && cmp.Diff(got, all) != "" {
			t.Fatalf("a changed byte at %d went unnoticed", i)
		}
	}
}
