package index_test

import (
	"os"
	"testing"

	"github.com/kiln-build/kiln/index"
)

func TestZZGenerate(t *testing.T) {
	f, err := os.Open("/tmp/prof.jsonl")
	if err != nil {
		t.Skip()
	}
	defer f.Close()
	dir := os.Getenv("ZZDIR")
	os.RemoveAll(dir)
	store := openStore(t, dir)
	if _, problems, err := store.PublishListed(t.Context(), index.ReadManifest(f), index.PublishOptions{Config: &index.Config{Default: index.Coordinates{Toolkit: "cu128", Torch: []string{"2.9"}}}}); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
}
