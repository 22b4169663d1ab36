package index_test

import (
	"testing"

	"github.com/kiln-build/kiln/index"
	"github.com/kiln-build/kiln/index/indextest"
)

const benchFiles = 20_000

func benchStore(b *testing.B) *index.Store {
	b.Helper()
	store, err := index.Open(b.TempDir(), index.StoreOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if _, problems, err := store.AddListed(b.Context(), indextest.ManyFiles(benchFiles), index.AddOptions{}); err != nil || len(problems) > 0 {
		b.Fatal(err, problems)
	}
	return store
}

// BenchmarkGenerate makes an index of 20,000 files.
func BenchmarkGenerate(b *testing.B) {
	for b.Loop() {
		benchStore(b)
	}
	b.ReportMetric(benchFiles*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}

// BenchmarkLoad reads the catalog of 20,000 files.
func BenchmarkLoad(b *testing.B) {
	dir := benchStore(b).Dir()
	b.ReportAllocs()
	for b.Loop() {
		store, err := index.Open(dir, index.StoreOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := store.Catalog(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(benchFiles*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}
