//go:build linux && amd64

package cuda

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/quanttest"
)

func TestDriverNames(t *testing.T) {
	for goos, want := range map[string]string{"windows": "nvcuda.dll", "linux": "libcuda.so.1"} {
		if got := driverLibraries(goos); got[0] != want {
			t.Errorf("%s: %v, want %s first", goos, got, want)
		}
	}
}

// TestUploadInto: memory of the caller is used where the weights fit, and only then; it is written
// to after everything else was allocated, and never freed.
func TestUploadInto(t *testing.T) {
	f := newFake(t, Options{})
	load := func(k, n int) *quant.QMatrix {
		m, err := quant.LoadGPTQ(quanttest.GPTQ(rand.New(rand.NewPCG(1, 2)), k, n, 4, 32, false), "", quant.GPTQOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, c := range []struct {
		name          string
		k, n          int
		move          uintptr // of the address
		less          int64   // bytes than needed
		words, scales bool
	}{
		{"fits", 128, 128, 0, 0, true, true},
		{"two panels", 128, 512, 0, 0, true, true},
		{"columns are padded", 128, 136, 0, 0, false, false},
		{"a warp reads behind the end", 128, 96, 0, 0, false, false},
		{"too small", 128, 128, 0, 2, false, false},
		{"not aligned", 128, 128, 16, 0, false, false},
	} {
		m := load(c.k, c.n)
		size, scales := int64(c.k*c.n/2), int64(c.k/32*c.n*2)
		var place Place
		for region, bytes := range map[*Region]int64{&place.Words: size, &place.Scales: scales} {
			at, err := f.drv.alloc(bytes + 1024)
			if err != nil {
				t.Fatal(err)
			}
			*region = Region{At: at + c.move, Bytes: bytes - c.less}
		}
		before := f.live()
		w, err := f.UploadInto(t.Context(), m, place)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if words, scales := w.InPlace(); words != c.words || scales != c.scales {
			t.Errorf("%s: in place %v, %v, want %v, %v", c.name, words, scales, c.words, c.scales)
		}
		if words, scales := w.args.words == place.Words.At, w.args.scales == place.Scales.At; words != c.words || scales != c.scales {
			t.Errorf("%s: at the place of the caller %v, %v, want %v, %v", c.name, words, scales, c.words, c.scales)
		}
		if slices.Contains(w.memory, place.Words.At) || slices.Contains(w.memory, place.Scales.At) {
			t.Errorf("%s: memory of the caller will be freed", c.name)
		}
		if own := f.uploadedBytes(t, m); !c.words && own != w.Bytes() || c.words && own != w.Bytes()+wordsMargin {
			t.Errorf("%s: %d bytes, %d in memory of its own", c.name, w.Bytes(), own)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if got := f.live(); got != before {
			t.Errorf("%s: %d allocations, want %d", c.name, got, before)
		}
	}
}

func (f *fake) uploadedBytes(t *testing.T, m *quant.QMatrix) int64 {
	t.Helper()
	w, err := f.Upload(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.Bytes()
}
