package index_test

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/kiln-build/kiln/index"
)

// manyFiles yields n files of CUDA and ROCm builds that are elsewhere, 500 a project.
func manyFiles(n int) iter.Seq2[index.File, error] {
	return func(yield func(index.File, error) bool) {
		for i := range n {
			k := i % 500
			f := index.File{
				Filename: fmt.Sprintf("package_%05d-1.%d.0+%s-cp%d-cp%[4]d-manylinux_2_28_%s.whl", i/500, k/50,
					[]string{"cu126.torch2.8", "cu128.torch2.8", "cu128.torch2.9", "cu130.torch2.9", "rocm6.4.torch2.9"}[k/10%5], 310+k/2%5,
					[]string{"x86_64", "aarch64"}[k%2]),
				Base: "https://example.org/files/", Size: int64(1_000_000 + i), RequiresPython: ">=3.10",
				UploadTime: time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC),
			}
			f.SHA256 = sha256.Sum256([]byte(f.Filename))
			f.Metadata = sha256.Sum256([]byte("metadata of " + f.Filename))
			if !yield(f, nil) {
				return
			}
		}
	}
}

const benchFiles = 20_000

func benchStore(b *testing.B) *index.Store {
	b.Helper()
	store, err := index.Open(b.TempDir(), index.StoreOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if _, problems, err := store.PublishListed(b.Context(), manyFiles(benchFiles), index.PublishOptions{}); err != nil || len(problems) > 0 {
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
