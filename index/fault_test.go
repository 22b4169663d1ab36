package index_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
)

// TestFault ends every kind of change before each single file that it would write, replace or
// remove. At any of these moments every listed file is there; and whatever is done next, the pages
// are then those of the catalog. It is what TestKill finds by luck.
func TestFault(t *testing.T) {
	base := t.TempDir()
	store := openStore(t, base)
	publish(t, store, indextest.Wheels(t, fa128, fa130, pure)...)
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
	newer := indextest.Wheels(t, "flash_attn-2.8.4+cu130.torch2.10-cp312-cp312-linux_x86_64.whl", xf128)
	other := indextest.Wheels(t, "other-1+cu128.torch2.9-py3-none-any.whl")

	type change = func(ctx context.Context, s *index.Store) error
	add := func(files []index.NewFile) change {
		return func(ctx context.Context, s *index.Store) error {
			_, problems, err := s.Add(ctx, files, index.AddOptions{})
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
	paper := func(ctx context.Context, s *index.Store) error {
		for _, signed := range []bool{false, true} {
			catalog, err := s.Catalog(ctx)
			if err != nil {
				return err
			}
			f := catalog.Project("flash-attn").File(fa130)
			_, err = s.AddPaper(ctx, fa130+index.ProvenanceSuffix, statement(t, signed, fa130, f.SHA256.String()))
			if err != nil && !errors.Is(err, index.ErrExists) { // the first attempt came to the signature
				return err
			}
		}
		return nil
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
		{"papers", paper, remove, math.MaxInt},
		{"status", status(index.Quarantined), status(index.Active), math.MaxInt},
		{"default", configure(another), configure(config), math.MaxInt},
		{"aliases", configure(aliases), configure(config), math.MaxInt},
		{"compact", func(ctx context.Context, s *index.Store) error { return s.Compact(ctx) }, remove, math.MaxInt},
	}
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
						return errCut
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
				if !errors.Is(err, errCut) {
					t.Fatal(err)
				}
				checkListed(t, dir)
				found, _ := snapshot(t, dir)
				for _, then := range then[:indextest.Scale(1, 3)] {
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

// TestIncremental makes changes at random, some of which are cut short. Only pages that change are
// written; after each change they are all those of the catalog.
func TestIncremental(t *testing.T) {
	for seed := range uint64(indextest.Scale(8, 200)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 0))
			pick := func(list ...string) string { return list[r.IntN(len(list))] }
			dir := memoryDir(t)
			for step := range 15 {
				s := openStore(t, dir)
				s.SetBulk([]int{0, math.MaxInt}[r.IntN(2)])
				if left := r.IntN(40); r.IntN(3) == 0 {
					s.SetFault(func(string) error {
						if left--; left < 0 {
							return errCut
						}
						return nil
					})
				}
				what, err := randomChange(t.Context(), s, r, pick)
				t.Logf("step %d: %s: %v", step, what, err)
				if err != nil && !errors.Is(err, errCut) && !errors.Is(err, index.ErrNotFound) {
					t.Fatal(err)
				}
				if errors.Is(err, errCut) {
					continue // the next change completes it
				}
				if s = openStore(t, dir); s.Exists() {
					checkIndex(t, s)
				}
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestNameReturns: a view gets its short name back when the one that contested it is gone, with the
// pages of projects that did not change.
func TestNameReturns(t *testing.T) {
	store := openStore(t, t.TempDir())
	if err := store.SetConfig(t.Context(), index.Config{Aliases: true}); err != nil {
		t.Fatal(err)
	}
	short := func(want bool) {
		t.Helper()
		checkIndex(t, store)
		if _, err := os.Stat(filepath.Join(store.Dir(), "cu128-torch211", "simple", "one", "index.html")); (err == nil) != want {
			t.Errorf("page of one at the short name: %v, want it there: %v", err, want)
		}
	}
	publish(t, store, indextest.Wheels(t, "one-1+cu128.torch2.11-py3-none-any.whl")...)
	short(true)
	publish(t, store, indextest.Wheels(t, "two-1+cu128.torch21.1-py3-none-any.whl")...)
	short(false)
	if _, err := store.Remove(t.Context(), "two", func(*index.File) bool { return true }); err != nil {
		t.Fatal(err)
	}
	short(true)
}

var errCut = errors.New("cut short")

// randomChange changes an index of a few projects somehow.
func randomChange(ctx context.Context, s *index.Store, r *rand.Rand, pick func(...string) string) (what string, err error) {
	project := pick("alpha", "beta", "gamma")
	match := func(f *index.File) bool { return f.SHA256[0]%3 == 0 }
	switch n := r.IntN(12); {
	case n < 6:
		var files []index.File
		for range 1 + r.IntN(20) { // more than sixteen are sorted in another way
			name := pick("alpha", "beta", "gamma") + "-1." + pick("0", "1", "2", "10") + pick("", "+cu128.torch2.9", "+cu128.torch2.10", "+cu130.torch2.9", "+cu128", "+cpu.torch2.9", "+cu128.torch2.11", "+cu128.torch21.1") +
				"-cp31" + pick("1", "2") + "-none-any.whl"
			files = append(files, index.File{
				Filename: name, Base: "https://example.org/" + pick("a/", "b/"), SHA256: sha256.Sum256([]byte(name)), Size: 1, UploadTime: day,
				RequiresPython: ">=3.9", Arch: []string{pick("80", "90")},
			})
		}
		_, _, err := s.AddListed(ctx, func(yield func(index.File, error) bool) {
			for _, f := range files {
				if !yield(f, nil) {
					return
				}
			}
		}, index.AddOptions{})
		return fmt.Sprintf("publish %d", len(files)), err
	case n < 7:
		_, err := s.Remove(ctx, project, match)
		return "remove from " + project, err
	case n < 8:
		_, err := s.Yank(ctx, project, match, pick("", "broken"), r.IntN(2) == 0)
		return "yank of " + project, err
	case n < 9:
		config := index.Config{Aliases: r.IntN(2) == 0}
		if r.IntN(2) == 0 {
			config.Default = index.Coordinates{Toolkit: pick("cu128", "cu130"), Torch: []string{"2.9"}}
		}
		return fmt.Sprintf("configuration %+v", config), s.SetConfig(ctx, config)
	default:
		settings := index.Settings{}
		switch r.IntN(4) {
		case 0:
			settings.Shared = new(r.IntN(2) == 0)
		case 1:
			settings.Status = new(index.Status(pick("active", "archived", "deprecated", "quarantined")))
		case 2:
			settings.DisplayName = new(pick(project, strings.ToUpper(project)))
		default:
			settings.Default = &index.Coordinates{Toolkit: pick("cu128", "cu130")}
		}
		return "settings of " + project, s.SetProject(ctx, project, settings)
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
