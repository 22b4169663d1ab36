package web_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
	"github.com/kiln-build/kiln/index/web"
)

// TestTwoWriters: several processes add to one index and write its pages. In the end the pages are
// those of the last state, as if one had written all of them.
func TestTwoWriters(t *testing.T) {
	dir := t.TempDir()
	var wait sync.WaitGroup
	for w := range 3 {
		var names []string
		for i := range 4 {
			names = append(names, fmt.Sprintf("p%d-%d+cu128.torch2.%d-py3-none-any.whl", i%2, i, w))
		}
		files := indextest.Wheels(t, names...)
		wait.Go(func() {
			store, err := index.Open(dir, index.StoreOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			for _, f := range files {
				if _, problems, err := store.Add(t.Context(), []index.NewFile{f}, index.AddOptions{}); err != nil || len(problems) > 0 {
					t.Error(err, problems)
				}
				if foreign, err := web.Write(t.Context(), store, false); err != nil || len(foreign) > 0 {
					t.Error(err, foreign)
				}
			}
		})
	}
	wait.Wait()
	store, err := index.Open(dir, index.StoreOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if report, err := store.Check(t.Context(), index.CheckOptions{}); err != nil || !report.OK() || report.Files != 12 {
		t.Errorf("%+v %v", report, err)
	}
	before := readAll(t, dir)
	if _, err := web.Write(t.Context(), store, true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, readAll(t, dir)); diff != "" {
		t.Errorf("writing all pages anew changes some:\n%s", diff)
	}
}

func readAll(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		if out[rel] = string(data); filepath.Base(filepath.Dir(path)) == ".kiln" {
			delete(out, rel) // what the index notes for itself
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
