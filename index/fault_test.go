package index_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/index"
)

// TestFault ends every kind of change before each single file that it would write, replace or remove. At
// any of these moments every listed file is there; and whatever is done next, the
// pages are then those of the catalog. It is what TestKill finds by luck.
func TestFault(t *testing.T) {
	base := t.TempDir()
	store := openStore(t, base)
	publish(t, store, writeWheels(t, fa128, fa130, pure)...)
	if err := store.SetProject(t.Context(), "einops", index.Settings{Shared: new(true)}); err != nil {
		t.Fatal(err)
	}
	// With this default flash-attn is not in /simple/.
	config := index.Config{Default: index.Coordinates{Toolkit: "cu126"}}
	another := index.Config{Default: index.Coordinates{Toolkit: "cu130"}}
	aliases := index.Config{Default: config.Default, Aliases: true}
	if err := store.SetConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	before, _ := snapshot(t, base)
	newer := writeWheels(t, "flash_attn-2.8.4+cu130.torch2.10-cp312-cp312-linux_x86_64.whl", xf128)
	other := writeWheels(t, "other-1+cu128.torch2.9-py3-none-any.whl")

	type change = func(ctx context.Context, s *index.Store) error
	add := func(files []index.NewFile) change {
		return func(ctx context.Context, s *index.Store) error {
			_, problems, err := s.Publish(ctx, files, index.PublishOptions{})
			if len(problems) > 0 {
				return problems[0]
			}
			return err
		}
	}
	only := func(part string) func(*index.File) bool {
		return func(f *index.File) bool { return strings.Contains(f.Filename, part) }
	}
	yank := func(undo bool) change {
		return func(ctx context.Context, s *index.Store) error {
			_, err := s.Yank(ctx, "flash-attn", only("+cu130"), "", undo)
			return err
		}
	}
	configure := func(config index.Config) change {
		return func(ctx context.Context, s *index.Store) error { return s.SetConfig(ctx, config) }
	}
	status := func(status index.Status) change {
		return func(ctx context.Context, s *index.Store) error {
			return s.SetProject(ctx, "flash-attn", index.Settings{Status: &status})
		}
	}
	remove := func(ctx context.Context, s *index.Store) error {
		_, err := s.Remove(ctx, "flash-attn", only("+cu130"))
		if errors.Is(err, index.ErrNotFound) {
			return nil // the first attempt came far enough
		}
		return err
	}
	tests := []struct {
		name     string
		do, undo change
		bulk     int
	}{
		{"publish", add(newer), remove, math.MaxInt},
		{"publish in bulk", add(newer), remove, 0},
		{"yank", yank(false), yank(true), math.MaxInt},
		{"remove", remove, add(newer), math.MaxInt},
		{"remove in bulk", remove, add(newer), 0},
		{"status", status(index.Quarantined), status(index.Active), math.MaxInt},
		{"default", configure(another), configure(config), math.MaxInt},
		{"aliases", configure(aliases), configure(config), math.MaxInt},
		{"compact", func(ctx context.Context, s *index.Store) error { return s.Compact(ctx) }, remove, math.MaxInt},
	}
	cut := errors.New("cut short")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			then := []struct {
				name string
				do   change
			}{{"the opposite", test.undo}, {"something else", add(other)}, {"the same", test.do}}
			for n := 0; ; n++ {
				dir := memoryDir(t)
				restore(t, dir, before)
				s := openStore(t, dir)
				s.SetBulk(test.bulk)
				left, at := n, ""
				s.SetFault(func(path string) error {
					if left == 0 {
						at, _ = filepath.Rel(dir, path)
						return cut
					}
					left--
					return nil
				})
				err := test.do(t.Context(), s)
				if err == nil {
					t.Logf("%d steps", n)
					if n < 3 {
						t.Error("too few")
					}
					break
				}
				if !errors.Is(err, cut) {
					t.Fatal(err)
				}
				checkListed(t, dir)
				found, _ := snapshot(t, dir)
				for _, then := range then[:scale(1, 3)] {
					dir := memoryDir(t)
					restore(t, dir, found)
					s := openStore(t, dir)
					s.SetBulk(test.bulk)
					if err := then.do(t.Context(), s); err != nil {
						t.Fatal(err)
					}
					checkIndex(t, s)
					if t.Failed() {
						t.Fatalf("cut before step %d, %s; then %s", n, at, then.name)
					}
				}
			}
		})
	}
}

// memoryDir returns a folder where waiting for the disk takes no time, if there is one.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kiln-index-*") //nolint:usetesting // TempDir is on the disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// restore writes what snapshot read.
func restore(t testing.TB, dir string, content map[string]string) {
	t.Helper()
	for rel, data := range content {
		path := filepath.Join(dir, filepath.FromSlash(rel))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(data), 0o644)); err != nil {
			t.Fatal(fmt.Errorf("restore: %w", err))
		}
	}
}
