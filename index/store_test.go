package index_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
)

var day = indextest.Day

func openStore(t testing.TB, dir string) *index.Store {
	t.Helper()
	store, err := index.Open(dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func publish(t testing.TB, store *index.Store, files ...index.NewFile) {
	t.Helper()
	_, problems, err := store.Add(t.Context(), files, index.AddOptions{})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
}

// checkIndex fails unless everything in the index is as it must be: check compares pages with
// an independent walk, so that this is also the test of incremental changes.
func checkIndex(t testing.TB, store *index.Store) *index.Report {
	t.Helper()
	report, err := store.Check(t.Context(), index.CheckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Findings {
		if !f.Warning {
			t.Error(f)
		}
	}
	c, err := store.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// What the incremental writer left is what the catalog renders.
	for _, v := range c.Views() {
		roots := []string{v.Path}
		if c.Config().Aliases {
			roots = append(roots, v.Aliases...)
		}
		for _, root := range roots {
			compareFile(t, store, filepath.Join(root, "simple", "index.html"), v.AppendList(nil, index.HTML))
			compareFile(t, store, filepath.Join(root, "simple", "index.v1_json"), v.AppendList(nil, index.JSON))
			for p := range v.Projects() {
				page, _ := v.AppendProject(nil, index.HTML, root, p.Name)
				compareFile(t, store, filepath.Join(root, "simple", p.Name, "index.html"), page)
				page, _ = v.AppendProject(nil, index.JSON, root, p.Name)
				compareFile(t, store, filepath.Join(root, "simple", p.Name, "index.v1_json"), page)
			}
		}
	}
	compareFile(t, store, "catalog.json", c.AppendCatalog(nil))
	return report
}

func compareFile(t testing.TB, store *index.Store, rel string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(store.Dir(), rel))
	if err != nil {
		t.Error(err)
		return
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: %s", rel, diff)
	}
	f, err := os.Open(filepath.Join(store.Dir(), rel+".gz"))
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Error(rel, err)
		return
	}
	if unpacked, err := io.ReadAll(z); err != nil || !bytes.Equal(unpacked, want) {
		t.Errorf("%s.gz is another page: %v", rel, err)
	}
}

// snapshot returns all files of a tree with their content and identity.
func snapshot(t testing.TB, dir string) (content map[string]string, times map[string]time.Time) {
	t.Helper()
	content, times = map[string]string{}, map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		content[filepath.ToSlash(rel)], times[filepath.ToSlash(rel)] = string(data), info.ModTime()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return content, times
}

const (
	fa128  = "flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-linux_x86_64.whl"
	fa130  = "flash_attn-2.8.3+cu130.torch2.9-cp312-cp312-linux_x86_64.whl"
	fa2810 = "flash_attn-2.8.3+cu128.torch2.10-cp312-cp312-linux_x86_64.whl"
	xf128  = "xformers-0.1+cu128.torch2.9-cp312-cp312-linux_x86_64.whl"
	pure   = "einops-0.8-py3-none-any.whl"
)

func TestPublish(t *testing.T) {
	store := openStore(t, filepath.Join(t.TempDir(), "not", "there", "yet"))
	files := indextest.Wheels(t, fa128, fa130, pure)
	changes, problems, err := store.Add(t.Context(), files, index.AddOptions{})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	for _, c := range changes {
		if c.Action != "added" {
			t.Error(c)
		}
	}
	checkIndex(t, store)

	before, _ := snapshot(t, store.Dir())
	if changes, _, err = store.Add(t.Context(), files, index.AddOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.Action != "unchanged" {
			t.Error(c)
		}
	}
	if after, _ := snapshot(t, store.Dir()); !maps.Equal(before, after) {
		t.Error("publishing the same again changed something")
	}

	// A reader in another process sees the next change, and rereads only that.
	reader := openStore(t, store.Dir())
	first, err := reader.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	publish(t, store, indextest.Wheels(t, xf128)...)
	second, err := reader.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first.Project("xformers") != nil || second.Project("xformers") == nil {
		t.Error("the snapshot changed, or the reader is blind")
	}
	if first.Project("flash-attn") != second.Project("flash-attn") {
		t.Error("an unchanged project was read again")
	}
	if third, _ := reader.Catalog(t.Context()); third != second {
		t.Error("a new snapshot without a change")
	}
}

func TestPublishedIsPublished(t *testing.T) {
	store := openStore(t, t.TempDir())
	publish(t, store, indextest.Wheels(t, fa128)...)
	other := filepath.Join(t.TempDir(), fa128)
	if err := os.WriteFile(other, indextest.Wheel(t, fa128, map[string]string{"more.py": "1"}), 0o644); err != nil {
		t.Fatal(err)
	}
	_, problems, err := store.Add(t.Context(), []index.NewFile{{Path: other}}, index.AddOptions{})
	if err != nil || len(problems) != 1 || !errors.Is(problems[0].Err, index.ErrExists) {
		t.Fatal(err, problems)
	}
	if _, err := store.Remove(t.Context(), "flash-attn", func(*index.File) bool { return true }); err != nil {
		t.Fatal(err)
	}
	for _, again := range [][]index.NewFile{{{Path: other}}, indextest.Wheels(t, fa128)} {
		_, problems, err = store.Add(t.Context(), again, index.AddOptions{})
		if err != nil || len(problems) != 1 || !errors.Is(problems[0].Err, index.ErrExists) {
			t.Errorf("a removed name was used again: %v %v", err, problems)
		}
	}
	checkIndex(t, store)
	if left, _ := filepath.Glob(filepath.Join(store.Dir(), "files", "*")); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
	if _, err := os.Stat(filepath.Join(store.Dir(), "cu128")); err == nil {
		t.Error("an empty view is left")
	}
}

func TestRefused(t *testing.T) {
	good := indextest.Wheel(t, fa128, nil)
	info := "flash_attn-2.8.3+cu128.torch2.9.dist-info/"
	tests := []struct {
		name, filename string
		data           []byte
		want           string
	}{
		{"dash in the label", "flash_attn-2.8.3+cu128-torch2.9.0-cp312-cp312-linux_x86_64.whl", good, "'-' inside the local version"},
		{"markup", "fa-1.0-py3-none-a<b>.whl", good, "character"},
		{"no zip", fa128, []byte("hello"), "not a ZIP"},
		{"label in the file name only", fa128, indextest.Wheel(t, "flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl", nil), "2.8.3"},
		{"other project", "xformers-2.8.3+cu128.torch2.9-cp312-cp312-linux_x86_64.whl", good, "flash"},
		{"prepended data", fa128, append([]byte("x"), good...), ""},
		{"truncated", fa128, good[:len(good)-30], ""},
		{"requires python", fa128, indextest.Wheel(t, fa128, map[string]string{info + "METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3+cu128.torch2.9\nRequires-Python: >=3.9 \u202e\n"}), "Requires-Python"},
		{"not in RECORD", fa128, indextest.Zip(t, map[string]string{"x.py": "", info + "METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3+cu128.torch2.9\n", info + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: cp312-cp312-linux_x86_64\n", info + "RECORD": ""}), "RECORD"},
		{"zip slip", fa128, indextest.Wheel(t, fa128, map[string]string{"../../x": "1"}), ".."},
		{"a device", "nul-1.0-py3-none-any.whl", indextest.Wheel(t, "fa-1.0-py3-none-any.whl", nil), "device"},
		{"sdist without PKG-INFO", "fa-1.0.tar.gz", []byte("\x1f\x8b"), "gzip"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "upload")
			if err := os.WriteFile(path, test.data, 0o644); err != nil {
				t.Fatal(err)
			}
			store := openStore(t, t.TempDir())
			_, problems, err := store.Add(t.Context(), []index.NewFile{{Path: path, Filename: test.filename}}, index.AddOptions{})
			if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), test.want) {
				t.Fatalf("%v, %v, want one with %q", err, problems, test.want)
			}
			if c, err := store.Catalog(t.Context()); err != nil || slices.Collect(c.Projects()) != nil {
				t.Error("something was published", err)
			}
			if _, err := os.Stat(filepath.Join(store.Dir(), "files")); err == nil {
				t.Error("something was placed")
			}
		})
	}
}

// TestLabelConflict: two builds that one view would have to choose between by label are refused,
// and allowed once the first is yanked.
func TestLabelConflict(t *testing.T) {
	store := openStore(t, t.TempDir())
	publish(t, store, indextest.Wheels(t, fa128)...)
	second := indextest.Wheels(t, "flash_attn-2.8.3+cu128.torch2.9.1-cp312-cp312-linux_x86_64.whl")
	_, problems, err := store.Add(t.Context(), second, index.AddOptions{})
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), "view cu128/torch2.9 has this build already") {
		t.Fatal(err, problems)
	}
	if _, err := store.Yank(t.Context(), "flash-attn", func(*index.File) bool { return true }, "rebuilt", false); err != nil {
		t.Fatal(err)
	}
	publish(t, store, second...)
	checkIndex(t, store)
}

// TestStrict: with one bad file nothing is published; without strict, the others are.
func TestStrict(t *testing.T) {
	store := openStore(t, t.TempDir())
	files := indextest.Wheels(t, fa128, fa130)
	if err := os.WriteFile(files[0].Path, []byte("damaged"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, strict := range []bool{true, false} {
		changes, problems, err := store.Add(t.Context(), files, index.AddOptions{Strict: strict})
		if err != nil || len(problems) != 1 || (len(changes) == 0) != strict {
			t.Errorf("strict %v: %v %v %v", strict, changes, problems, err)
		}
	}
	checkIndex(t, store)
}

// TestOnlyPagesConcerned: a change writes the pages of its project, in its views, and nothing else.
func TestOnlyPagesConcerned(t *testing.T) {
	store := openStore(t, t.TempDir())
	publish(t, store, indextest.Wheels(t, fa128, fa130, xf128, pure)...)
	_, before := snapshot(t, store.Dir())
	publish(t, store, indextest.Wheels(t, "flash_attn-2.8.4+cu130.torch2.9-cp312-cp312-linux_x86_64.whl")...)
	after, times := snapshot(t, store.Dir())
	var changed []string
	for path := range after {
		if !times[path].Equal(before[path]) && !strings.HasPrefix(path, ".kiln/") && !strings.HasPrefix(path, "files/") && !strings.HasSuffix(path, ".gz") {
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	want := []string{
		"all/simple/flash-attn/index.html", "all/simple/flash-attn/index.v1_json", "catalog.json",
		"cu130/simple/flash-attn/index.html", "cu130/simple/flash-attn/index.v1_json",
		"cu130/torch2.9/simple/flash-attn/index.html", "cu130/torch2.9/simple/flash-attn/index.v1_json",
		"simple/flash-attn/index.html", "simple/flash-attn/index.v1_json",
	}
	if diff := cmp.Diff(want, changed); diff != "" {
		t.Error(diff)
	}
	checkIndex(t, store)
}

// TestReproducible: the same files, published at once or one by one in another order, give the
// same pages.
func TestReproducible(t *testing.T) {
	names := []string{fa128, fa130, fa2810, xf128, pure, "flash_attn-2.8.1+cpu-cp312-cp312-linux_x86_64.whl"}
	config := index.Config{Default: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9"}}, Aliases: true}
	files := indextest.Wheels(t, names...)
	once := openStore(t, t.TempDir())
	if _, _, err := once.Add(t.Context(), files, index.AddOptions{Config: &config}); err != nil {
		t.Fatal(err)
	}
	oneByOne := openStore(t, t.TempDir())
	rng := rand.New(rand.NewPCG(1, 2))
	for _, i := range rng.Perm(len(files)) {
		publish(t, oneByOne, files[i])
	}
	publish(t, oneByOne, indextest.Wheels(t, "gone-1+cu121.torch2.1-py3-none-any.whl")...)
	if _, err := oneByOne.Remove(t.Context(), "gone", func(*index.File) bool { return true }); err != nil {
		t.Fatal(err)
	}
	publish(t, once, indextest.Wheels(t, "gone-1+cu121.torch2.1-py3-none-any.whl")...)
	if _, err := once.Remove(t.Context(), "gone", func(*index.File) bool { return true }); err != nil {
		t.Fatal(err)
	}
	if err := oneByOne.SetConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	checkIndex(t, once)
	checkIndex(t, oneByOne)
	trees := make([]map[string]string, 2)
	for i, s := range []*index.Store{once, oneByOne} {
		trees[i], _ = snapshot(t, s.Dir())
		maps.DeleteFunc(trees[i], func(path, _ string) bool { return strings.HasPrefix(path, ".kiln/") })
	}
	if diff := cmp.Diff(trees[0], trees[1]); diff != "" {
		t.Error(diff)
	}
}

// TestSettings: what is set changes pages, also of a project without files.
func TestSettings(t *testing.T) {
	store := openStore(t, t.TempDir())
	publish(t, store, indextest.Wheels(t, fa128, fa130, fa2810, pure)...)
	ctx := t.Context()
	steps := []struct {
		name string
		do   func() error
		view string
		of   string
		want []string // file names
	}{
		{"default", func() error {
			return store.SetConfig(ctx, index.Config{Default: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9"}}})
		}, "", "flash-attn", []string{fa128}},
		{"own default", func() error {
			return store.SetProject(ctx, "flash-attn", index.Settings{Default: &index.Coordinates{Toolkit: "cu130"}})
		}, "", "flash-attn", []string{fa130}},
		{"shared", func() error { return store.SetProject(ctx, "einops", index.Settings{Shared: new(true)}) }, "cu128/torch2.10", "einops", []string{pure}},
		{"new view has the shared one too", func() error {
			_, _, err := store.Add(ctx, indextest.Wheels(t, "flash_attn-2.8.3+rocm6.4.torch2.9-cp312-cp312-linux_x86_64.whl"), index.AddOptions{})
			return err
		}, "rocm6.4/torch2.9", "einops", []string{pure}},
		{"quarantined", func() error {
			return store.SetProject(ctx, "flash-attn", index.Settings{Status: new(index.Quarantined), StatusReason: new("looked at")})
		}, "cu128/torch2.9", "flash-attn", nil},
		{"back", func() error {
			return store.SetProject(ctx, "flash-attn", index.Settings{Status: new(index.Active), StatusReason: new("")})
		}, "cu128/torch2.9", "flash-attn", []string{fa128}},
		{"reserved", func() error { return store.SetProject(ctx, "mine", index.Settings{}) }, "all", "mine", nil},
		{"aliases", func() error { return store.SetConfig(ctx, index.Config{Aliases: true}) }, "cu128-torch29", "flash-attn", []string{fa128}},
		{"no aliases", func() error { return store.SetConfig(ctx, index.Config{}) }, "cu128/torch2.9", "flash-attn", []string{fa128}},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		checkIndex(t, store)
		page, err := os.ReadFile(filepath.Join(store.Dir(), step.view, "simple", step.of, "index.html"))
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		var got []string
		for _, link := range readHTML(t, string(page)) {
			got = append(got, link["text"])
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
	if _, err := os.Stat(filepath.Join(store.Dir(), "cu128-torch29")); err == nil {
		t.Error("an alias is left")
	}
	_, problems, err := store.Add(ctx, indextest.Wheels(t, "other-1-py3-none-any.whl"), index.AddOptions{})
	if err != nil || problems != nil {
		t.Fatal(err, problems)
	}
	if err := store.SetProject(ctx, "other", index.Settings{Status: new(index.Archived)}); err != nil {
		t.Fatal(err)
	}
	_, problems, _ = store.Add(ctx, indextest.Wheels(t, "other-2-py3-none-any.whl"), index.AddOptions{})
	if len(problems) != 1 || !errors.Is(problems[0].Err, index.ErrClosed) {
		t.Errorf("an archived project took a file: %v", problems)
	}
	if err := store.SetProject(ctx, "Not Normal", index.Settings{}); err == nil {
		t.Error("an invalid name was reserved")
	}
}

// TestPublishDir: the three options of the script that kiln replaces, twice, with older wheels
// gone from the folder in between.
func TestPublishDir(t *testing.T) {
	wheels, store := t.TempDir(), openStore(t, t.TempDir())
	write := func(name string) {
		path := filepath.Join(wheels, name)
		if err := os.WriteFile(path, indextest.Wheel(t, name, nil), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, day, day); err != nil {
			t.Fatal(err)
		}
	}
	write(fa128)
	for name, text := range map[string]string{"README.md": "x", "bad-name.whl": "x", "x-1.0-py3-none-any.WHL": "x"} {
		if err := os.WriteFile(filepath.Join(wheels, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	opts := index.ScanOptions{Base: "https://example.org/a b/", UploadTime: day}
	if _, problems, err := store.AddDir(t.Context(), wheels, opts); err != nil || len(problems) != 3 {
		t.Fatal("a base URL with a space was taken, or names that do not parse were skipped silently: ", err, problems)
	}
	opts.Base = "https://example.org/v1/"
	changes, problems, err := store.AddDir(t.Context(), wheels, opts)
	if err != nil || len(problems) != 2 || len(changes) != 1 {
		t.Fatal(err, problems, changes)
	}
	page := func() string {
		data, err := os.ReadFile(filepath.Join(store.Dir(), "cu128", "torch2.9", "simple", "flash-attn", "index.html"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if got := page(); !strings.Contains(got, `href="https://example.org/v1/flash_attn-2.8.3%2Bcu128.torch2.9-cp312-cp312-linux_x86_64.whl#sha256=`) || strings.Contains(got, "data-core-metadata") {
		t.Error(got)
	}
	// The next run builds something else and publishes it elsewhere.
	if err := os.Remove(filepath.Join(wheels, fa128)); err != nil {
		t.Fatal(err)
	}
	write("flash_attn-2.8.4+cu128.torch2.9-cp312-cp312-linux_x86_64.whl")
	opts.Base, opts.WriteMetadata = "https://example.org/v2/", true
	if changes, _, err = store.AddDir(t.Context(), wheels, opts); err != nil || len(changes) != 1 {
		t.Fatal(err, changes)
	}
	links := readHTML(t, page())
	if len(links) != 2 || !strings.Contains(links[0]["href"], "/v1/") || !strings.Contains(links[1]["href"], "/v2/") {
		t.Errorf("older wheels are forgotten or moved: %v", links)
	}
	sibling, err := os.ReadFile(filepath.Join(wheels, "flash_attn-2.8.4+cu128.torch2.9-cp312-cp312-linux_x86_64.whl.metadata"))
	if sum := fmt.Sprintf("sha256=%x", sha256.Sum256(sibling)); err != nil || links[1]["data-core-metadata"] != sum {
		t.Errorf("metadata announced as %q, beside the wheel is %s: %v", links[1]["data-core-metadata"], sum, err)
	}
	if changes, _, err = store.AddDir(t.Context(), wheels, opts); err != nil || len(changes) != 1 || changes[0].Action != "unchanged" {
		t.Error(err, changes)
	}
	checkIndex(t, store)
	report, err := store.Check(t.Context(), index.CheckOptions{WheelsDir: wheels})
	if err != nil || len(report.Findings) != 2 {
		t.Error(err, report.Findings)
	}
}

// TestCheck finds and repairs what was changed in the folder by hand.
func TestCheck(t *testing.T) {
	store := openStore(t, t.TempDir())
	publish(t, store, indextest.Wheels(t, fa128, fa130, pure)...)
	c, err := store.Catalog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hosted := c.Project("flash-attn").Files[0].HostedPath()
	path := func(rel string) string { return filepath.Join(store.Dir(), filepath.FromSlash(rel)) }
	good, err := os.ReadFile(path(hosted))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name     string
		do       func() error
		rule     string
		repaired bool
	}{
		{"page edited", func() error { return os.WriteFile(path("simple/flash-attn/index.html"), nil, 0o644) }, "page", true},
		{"page gone", func() error { return os.RemoveAll(path("cu130")) }, "page", true},
		{"twin edited", func() error { return os.WriteFile(path("all/simple/index.html.gz"), nil, 0o644) }, "page", true},
		{"stray page", func() error {
			return errors.Join(os.MkdirAll(path("cu130/simple/ghost"), 0o777), os.WriteFile(path("cu130/simple/ghost/index.html"), nil, 0o644))
		}, "stray", true},
		{"orphan", func() error { return os.WriteFile(path(hosted+".old"), nil, 0o644) }, "orphan", true},
		{"state damaged", func() error { return os.WriteFile(path(".kiln/projects"), []byte("kiln-index 1\tx"), 0o644) }, "", true},
		{"bytes changed", func() error {
			return os.WriteFile(path(hosted), append(slices.Clone(good[:len(good)-1]), good[len(good)-1]^1), 0o644)
		}, "hash", false},
		{"bytes missing", func() error { return os.Remove(path(hosted)) }, "missing", false},
	}
	for _, test := range tests {
		if err := test.do(); err != nil {
			t.Fatal(err)
		}
		report, err := store.Check(t.Context(), index.CheckOptions{Repair: true})
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if test.rule != "" && !slices.ContainsFunc(report.Findings, func(f index.Finding) bool { return f.Rule == test.rule && f.Repaired == test.repaired }) {
			t.Errorf("%s: %v", test.name, report.Findings)
		}
		if report.OK() != test.repaired {
			t.Errorf("%s: OK is %v: %v", test.name, report.OK(), report.Findings)
		}
		if test.repaired {
			checkIndex(t, store)
		}
	}
}

// TestCutLog: a catalog that was cut anywhere while a change was written is, after the next change,
// as if the cut change had never happened or had been completed.
func TestCutLog(t *testing.T) {
	base := t.TempDir()
	store := openStore(t, base)
	publish(t, store, indextest.Wheels(t, fa128, pure)...)
	statePath, logPath := filepath.Join(base, ".kiln", "projects"), filepath.Join(base, ".kiln", "catalog-000001.jsonl")
	state, err := os.ReadFile(statePath)
	if err != nil {
		t.Fatal(err)
	}
	short, err := os.Stat(logPath)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, store, indextest.Wheels(t, fa130, xf128)...)
	whole, err := os.ReadFile(logPath)
	if err != nil {
		t.Fatal(err)
	}
	tree, _ := snapshot(t, base)
	last := indextest.Wheels(t, "last-1-py3-none-any.whl")
	for cut := int(short.Size()); cut <= len(whole); cut += 97 {
		dir := t.TempDir()
		for rel, data := range tree {
			path := filepath.Join(dir, filepath.FromSlash(rel))
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// The pages of the change are there, its catalog in part, its state not.
		if err := os.WriteFile(filepath.Join(dir, ".kiln", "projects"), state, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ".kiln", "catalog-000001.jsonl"), whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, dir)
		publish(t, s, last...)
		report, err := s.Check(t.Context(), index.CheckOptions{Repair: true})
		if err != nil || !report.OK() {
			t.Fatalf("cut at %d: %v %v", cut, err, report)
		}
		checkIndex(t, s)
		c, _ := s.Catalog(t.Context())
		if c.Project("last") == nil || c.Project("einops") == nil {
			t.Errorf("cut at %d: lost a project", cut)
		}
	}
}

// TestTwoWriters: many goroutines and stores at once lose nothing.
func TestTwoWriters(t *testing.T) {
	dir := t.TempDir()
	const writers, each = 4, 5
	var files [writers][]index.NewFile
	for w := range writers {
		var names []string
		for i := range each {
			names = append(names, fmt.Sprintf("p%d-%d+cu128.torch2.%d-py3-none-any.whl", i%2, w*each+i, w))
		}
		files[w] = indextest.Wheels(t, names...)
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			store := openStore(t, dir)
			for _, f := range files[w] {
				if _, problems, err := store.Add(t.Context(), []index.NewFile{f}, index.AddOptions{}); err != nil || len(problems) > 0 {
					t.Error(err, problems)
				}
			}
		})
	}
	wg.Wait()
	if report := checkIndex(t, openStore(t, dir)); report.Files != writers*each {
		t.Errorf("%d files, want %d", report.Files, writers*each)
	}
}

// publisher is the child of TestKill: it publishes until it is killed.
func publisher() int {
	store, err := index.Open(os.Getenv("KILN_TEST_PUBLISHER"), index.StoreOptions{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	paths, _ := filepath.Glob(filepath.Join(os.Getenv("KILN_TEST_WHEELS"), "*.whl"))
	fmt.Fprintln(os.Stdout, "ready")
	for _, path := range paths {
		if _, problems, err := store.Add(context.Background(), []index.NewFile{{Path: path}}, index.AddOptions{}); err != nil || len(problems) > 0 {
			fmt.Fprintln(os.Stderr, err, problems)
			return 1
		}
	}
	return 0
}

// TestKill: a publisher is killed again and again. Whenever that happens, every listed file exists
// and has its hash, and in the end everything is published.
func TestKill(t *testing.T) {
	wheels, kills := indextest.Scale(16, 100), indextest.Scale(6, 100)
	dir := t.TempDir()
	var names []string
	for i := range wheels {
		names = append(names, fmt.Sprintf("p%d-%d+cu12%d.torch2.9-py3-none-any.whl", i%3, i, i%4))
	}
	source := filepath.Dir(indextest.Wheels(t, names...)[0].Path)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	killed := 0
	for round := 0; ; round++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "KILN_TEST_PUBLISHER="+dir, "KILN_TEST_WHEELS="+source)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err, stderr.String())
		}
		if killed < kills {
			time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond) // the moment is meant to be random
			_ = cmd.Process.Kill()
		}
		err = cmd.Wait()
		checkListed(t, dir)
		if err == nil {
			break
		}
		if killed++; killed > kills {
			t.Fatalf("the publisher does not end: %v\n%s", err, stderr.String())
		}
	}
	store := openStore(t, dir)
	report := checkIndex(t, store)
	if report.Files != wheels {
		t.Errorf("%d files, want %d", report.Files, wheels)
	}
	t.Logf("killed %d times", killed)
}

// checkListed follows every link of every page, as an installer would, without looking into the
// catalog, and compares pages with their compressed twins.
func checkListed(t *testing.T, dir string) {
	t.Helper()
	content, _ := snapshot(t, dir)
	for name, twin := range content {
		page, ok := strings.CutSuffix(name, ".gz")
		if !ok || strings.HasPrefix(name, ".kiln/") || strings.HasPrefix(name, "files/") {
			continue
		}
		z, err := gzip.NewReader(strings.NewReader(twin))
		if err != nil {
			t.Fatal(name, err)
		}
		if plain, err := io.ReadAll(z); err != nil || string(plain) != content[page] {
			t.Errorf("%s is not the page beside it: %v", name, err)
		}
	}
	pages, _ := filepath.Glob(filepath.Join(dir, "all", "simple", "*", "index.html"))
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range readHTML(t, string(data)) {
			url, sum, _ := strings.Cut(link["href"], "#sha256=")
			path := filepath.Join(filepath.Dir(page), filepath.FromSlash(strings.ReplaceAll(url, "%2B", "+")))
			data, err := os.ReadFile(path)
			if err != nil || fmt.Sprintf("%x", sha256.Sum256(data)) != sum {
				t.Errorf("%s is listed and not there: %v", link["text"], err)
			}
			meta, err := os.ReadFile(path + ".metadata")
			if err != nil || fmt.Sprintf("sha256=%x", sha256.Sum256(meta)) != link["data-core-metadata"] {
				t.Errorf("metadata of %s: %v", link["text"], err)
			}
		}
	}
}

// TestCompaction: the log does not grow without bound, and readers follow it to its new name.
func TestCompaction(t *testing.T) {
	store := openStore(t, t.TempDir())
	if _, problems, err := store.AddListed(t.Context(), indextest.ManyFiles(1000), index.AddOptions{}); err != nil || problems != nil {
		t.Fatal(err, problems)
	}
	reader := openStore(t, store.Dir())
	if _, err := reader.Catalog(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if _, err := store.Yank(t.Context(), "package-00000", func(f *index.File) bool { return true }, fmt.Sprint(i), false); err != nil {
			t.Fatal(err)
		}
		c, err := reader.Catalog(t.Context())
		if err != nil || c.Project("package-00000").Files[0].YankedReason != fmt.Sprint(i) {
			t.Fatal(err)
		}
	}
	logs, _ := filepath.Glob(filepath.Join(store.Dir(), ".kiln", "catalog-*"))
	if len(logs) != 1 || strings.HasSuffix(logs[0], "000001.jsonl") {
		t.Errorf("not compacted: %q", logs)
	}
	checkIndex(t, store)
}

// TestManifest reads the file objects of another index's pages.
func TestManifest(t *testing.T) {
	manifest := `{"filename": "fa-1+cu128.torch2.9-py3-none-any.whl", "url": "https://x.org/a/fa-1%2Bcu128.torch2.9-py3-none-any.whl", "hashes": {"sha256": "` + strings.Repeat("ab", 32) + `"}, "size": 5, "requires-python": null, "core-metadata": {"sha256": "` + strings.Repeat("cd", 32) + `"}, "upload-time": "2026-08-01T12:00:00.123456Z", "yanked": "bad"}

{"filename": "fa-1.tar.gz", "url": "https://x.org/a/fa-1.tar.gz", "hashes": {"sha256": "` + strings.Repeat("ab", 32) + `"}, "yanked": false, "core-metadata": false, "built": {"toolkit": "cpu"}}
{"filename": "fa-2+cu128.torch2.9-py3-none-any.whl", "url": "https://x.org/a/fa-2+cu128.torch2.9-py3-none-any.whl", "hashes": {"sha256": "` + strings.Repeat("ab", 32) + `"}, "_kiln": {"toolkit": "cu128", "torch": ["2.9"], "arch": ["90a"]}}
{"filename": "fa-3-py3-none-any.whl", "url": "https://x.org/a/fa-3-py3-none-any.whl", "hashes": {"sha256": "` + strings.Repeat("ab", 32) + `"}, "_kiln": {"toolkit": "cu128", "torch": ["2.9", "2.10"]}}
`
	var got []index.File
	for f, err := range index.ReadManifest(strings.NewReader(manifest)) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, f)
	}
	var ab, cd index.Digest
	for i := range ab {
		ab[i], cd[i] = 0xab, 0xcd
	}
	want := []index.File{
		{
			Filename: "fa-1+cu128.torch2.9-py3-none-any.whl", Base: "https://x.org/a/", SHA256: ab, Size: 5, Metadata: cd,
			UploadTime: time.Date(2026, 8, 1, 12, 0, 0, 123456000, time.UTC), Yanked: true, YankedReason: "bad",
		},
		{Filename: "fa-1.tar.gz", Base: "https://x.org/a/", SHA256: ab, Coordinates: index.Coordinates{Toolkit: "cpu"}},
		{Filename: "fa-2+cu128.torch2.9-py3-none-any.whl", Base: "https://x.org/a/", SHA256: ab, Arch: []string{"90a"}},
		{Filename: "fa-3-py3-none-any.whl", Base: "https://x.org/a/", SHA256: ab, Coordinates: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9", "2.10"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"{", `{"filename":"a","url":"https://x.org/b"}`, `{"hashes":{"sha256":"zz"}}`} {
		failed := false
		for _, err := range index.ReadManifest(strings.NewReader(bad)) {
			failed = failed || err != nil
		}
		if !failed {
			t.Errorf("%s was read", bad)
		}
	}
}
