//go:build unix

package exl2

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRefusedInputs puts something else in the place of a file. It is refused at once: opening a
// named pipe would wait.
func TestRefusedInputs(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	places := map[string]func(*fixture) string{
		"job":    func(fx *fixture) string { return filepath.Join(fx.work, JobFile) },
		"config": func(fx *fixture) string { return filepath.Join(fx.model, ConfigFile) },
		"layer":  func(fx *fixture) string { return fx.layer(qProj) },
		"source": func(fx *fixture) string { return filepath.Join(fx.model, "model-00001-of-00001.safetensors") },
		"other":  func(fx *fixture) string { return filepath.Join(fx.model, "tokenizer.json") },
	}
	makers := []struct {
		name string
		make func(path string) error
		want string
	}{
		{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "is a named pipe"},
		{"device", func(path string) error { return os.Symlink("/dev/zero", path) }, "/dev/zero, outside of its folder"},
		{"link", func(path string) error { return os.Symlink(secret, path) }, "outside of its folder"},
	}
	for place, at := range places {
		for _, m := range makers {
			t.Run(place+" "+m.name, func(t *testing.T) {
				fx := &fixture{Seed: 7, Arch: "LlamaForCausalLM", Limit: 1, Plain: true}
				fx.make(t, t.TempDir())
				path := at(fx)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := m.make(path); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- compileFixture(t, fx, PlanOptions{}, WriteOptions{}) }()
				select {
				case err := <-done:
					if err == nil || !strings.Contains(err.Error(), path+": "+"is a") || !strings.Contains(err.Error(), m.want) {
						t.Errorf("want %q, got %v", m.want, err)
					}
				case <-time.After(60 * time.Second):
					t.Fatal("it waits")
				}
			})
		}
	}
}

// TestAllLinks moves every file of a job and its model elsewhere and leaves links. With AllLinks the
// result is that of the files themselves; a link to a device is refused still.
func TestAllLinks(t *testing.T) {
	fx := &fixture{Seed: 7, Arch: "LlamaForCausalLM", Limit: 1, Plain: true}
	fx.make(t, t.TempDir())
	if err := compileFixture(t, fx, PlanOptions{}, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	moveAway(t, fx.work)
	moveAway(t, fx.model)
	if _, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work}); !strings.Contains(ps.Error(), "--follow-links") {
		t.Errorf("want a hint at --follow-links, got %v", ps)
	}
	inv, ps := ReadInventory(t.Context(), Options{WorkDir: fx.work, Links: AllLinks})
	if err := ps.Err(); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(t.TempDir(), "linked")
	p, err := inv.Plan(PlanOptions{Out: linked})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), p, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := diffDirs(t, fx.out, linked); d != "" {
		t.Error(d)
	}

	// The finished model behind links: verified, inspected, compared and resharded alike.
	moveAway(t, linked)
	if rep, err := Verify(t.Context(), linked, VerifyOptions{}); err == nil && rep.OK() {
		t.Error("links out of the folder verify")
	}
	rep, err := Verify(t.Context(), linked, VerifyOptions{Links: AllLinks, ModelDir: fx.model})
	if err != nil || !rep.OK() {
		t.Errorf("%v, %v", err, rep)
	}
	if info, err := Inspect(t.Context(), linked, AllLinks); err != nil || len(info.Problems) > 0 {
		t.Errorf("%v, %v", err, info)
	}
	if d, err := Diff(t.Context(), fx.out, linked, DiffOptions{Links: AllLinks}); err != nil || !d.Same() {
		t.Errorf("%v, %v", err, d)
	}
	out := filepath.Join(t.TempDir(), "resharded")
	if p, err = PlanReshard(t.Context(), linked, ReshardOptions{Out: out, ShardBytes: 1 << 16, Links: AllLinks}); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(t.Context(), p, WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if d, err := Diff(t.Context(), fx.out, out, DiffOptions{}); err != nil || len(d.Tensors) > 0 {
		t.Errorf("%v, %v", err, d)
	}

	path := filepath.Join(fx.model, "tokenizer.json")
	if err := errors.Join(os.Remove(path), os.Symlink("/dev/zero", path)); err != nil {
		t.Fatal(err)
	}
	if inv, ps = ReadInventory(t.Context(), Options{WorkDir: fx.work, Links: AllLinks}); ps.Err() == nil {
		_, err = inv.Plan(PlanOptions{Out: out})
	}
	if err = errors.Join(ps.Err(), err); err == nil || !strings.Contains(err.Error(), "is a") {
		t.Errorf("a device is taken: %v", err)
	}
}

// moveAway moves the files of a folder to another and leaves links to them.
func moveAway(t *testing.T, dir string) {
	t.Helper()
	away := t.TempDir()
	n := 0
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		n++
		target := filepath.Join(away, strconv.Itoa(n))
		return errors.Join(os.Rename(path, target), os.Symlink(target, path))
	})
	if err != nil || n == 0 {
		t.Fatalf("%d files moved: %v", n, err)
	}
}

// TestVerifyRefusesPipe has a pipe where the manifest names a file.
func TestVerifyRefusesPipe(t *testing.T) {
	fx := llama(t, t.TempDir())
	if _, err := Write(t.Context(), planFixture(t, fx, PlanOptions{}), WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(fx.out, "tokenizer.json")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan *Report, 1)
	go func() {
		rep, _ := Verify(t.Context(), fx.out, VerifyOptions{})
		done <- rep
	}()
	select {
	case rep := <-done:
		if rep == nil || !strings.Contains(rep.Problems.Error(), "tokenizer.json: is a named pipe") {
			t.Errorf("got %+v", rep)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("it waits")
	}
}

// TestSizeLimits has files that are too large to be what they should be.
func TestSizeLimits(t *testing.T) {
	for name, size := range map[string]int64{JobFile: maxJobBytes, ConfigFile: maxConfigBytes} {
		fx := &fixture{Seed: 7, Arch: "LlamaForCausalLM", Limit: 1, Plain: true}
		fx.make(t, t.TempDir())
		path := filepath.Join(fx.work, name)
		if name == ConfigFile {
			path = filepath.Join(fx.model, name)
		}
		if err := os.Truncate(path, size+1); err != nil { // sparse
			t.Fatal(err)
		}
		if err := compileFixture(t, fx, PlanOptions{}, WriteOptions{}); err == nil || !strings.Contains(err.Error(), "is this the right file?") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestResumeNoticesChangedSource changes a weight between two runs and puts size and time back, as
// copying tools do. What the first run wrote must not be taken over.
func TestResumeNoticesChangedSource(t *testing.T) {
	dir := t.TempDir()
	fx := llama(t, dir)
	p := planFixture(t, fx, PlanOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Write(ctx, p, WriteOptions{Workers: 1, Progress: func(pr Progress) {
		if pr.Done > pr.Total/2 {
			cancel()
		}
	}}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	at := p.Shards[0].Tensors[slices.IndexFunc(p.Shards[0].Tensors, func(t PlannedTensor) bool { return strings.HasSuffix(t.Name, ".q_weight") })].From
	path := p.Inputs[at.Input].Path
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[at.Offset] ^= 1
	time.Sleep(50 * time.Millisecond) // file systems may count time in steps of some milliseconds
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	res, err := Write(t.Context(), planFixture(t, fx, PlanOptions{}), WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if res.Resumed != 0 {
		t.Errorf("%d shards of the old source were taken over", res.Resumed)
	}
}
