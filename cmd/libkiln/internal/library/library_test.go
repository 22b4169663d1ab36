package library_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/cmd/libkiln/internal/library"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/quanttest"
	"github.com/kiln-build/kiln/model/tensor"
)

// request puts tensors of Go's memory into a request, as C would those of its own.
func request(tensors quant.TensorMap) library.Request {
	r := library.Request{Device: library.Host, Tensors: map[string]library.Tensor{}}
	for name, t := range tensors {
		r.Tensors[name] = library.Tensor{Data: unsafe.Pointer(unsafe.SliceData(t.Data)), DType: t.DType, Shape: t.Shape, Device: library.Host}
	}
	return r
}

func half(data []byte, rows, cols int) library.Half {
	return library.Half{Data: unsafe.Pointer(unsafe.SliceData(data)), Rows: int64(rows), Cols: int64(cols)}
}

func TestMatrix(t *testing.T) {
	l := library.New()
	rng := rand.New(rand.NewPCG(1, 2))
	groups := []quant.Group{{Bits: 5, Rows: 32}, {Bits: 4, Rows: 96}}
	handle, err := l.MakeEXL2(request(quanttest.EXL2(rng, 64, groups)), quant.EXL2Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.Info(handle)
	if err != nil {
		t.Fatal(err)
	}
	got.Bytes, got.Bits = 0, 0
	want := library.Info{Format: quant.EXL2, Rows: 128, Cols: 64, Device: library.Host, Groups: 2, Permuted: true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
}

// TestFreeInUse: a matrix that is freed while others compute with it stays until they are done, and
// then it is gone.
func TestFreeInUse(t *testing.T) {
	l := library.New()
	rng := rand.New(rand.NewPCG(1, 2))
	tensors := quanttest.GPTQ(rng, 128, 32, 4, 32, true)
	x := quanttest.Normal(rng, 4*128, 1)
	for range 20 {
		handle, err := l.MakeGPTQ(request(tensors), quant.GPTQOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				out := make([]byte, 2*4*32)
				for {
					err := l.Gemm(handle, half(out, 4, 32), half(x, 4, 128), quant.GemmOptions{}, 0)
					if err != nil {
						if got := library.StatusOf(err); got != library.Handle {
							t.Errorf("status %d (%v), want %d", got, err, library.Handle)
						}
						return
					}
				}
			})
		}
		if err := l.Free(handle); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

func TestStatus(t *testing.T) {
	l := library.New()
	rng := rand.New(rand.NewPCG(1, 2))
	good := quanttest.GPTQ(rng, 128, 32, 4, 32, false)
	handle, err := l.MakeGPTQ(request(good), quant.GPTQOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x, y := make([]byte, 2*128), make([]byte, 2*32)
	change := func(name string, f func(*library.Tensor)) error {
		r := request(good)
		bad := r.Tensors[name]
		f(&bad)
		r.Tensors[name] = bad
		_, err := l.MakeGPTQ(r, quant.GPTQOptions{})
		return err
	}
	for _, c := range []struct {
		name string
		err  error
		want library.Status
	}{
		{"good", l.Gemm(handle, half(y, 1, 32), half(x, 1, 128), quant.GemmOptions{}, 0), library.OK},
		{"columns", l.Gemm(handle, half(y, 1, 32), half(x, 1, 64), quant.GemmOptions{}, 0), library.Argument},
		{"negative", l.Gemm(handle, half(y, -1, 32), half(x, -1, 128), quant.GemmOptions{}, 0), library.Argument},
		{"no data", l.Gemm(handle, half(y, 1, 32), library.Half{Rows: 1, Cols: 128}, quant.GemmOptions{}, 0), library.Argument},
		{"huge", l.Gemm(handle, half(y, 1<<40, 32), half(x, 1<<40, 128), quant.GemmOptions{}, 0), library.Argument},
		{"handle", l.Free(handle + 1), library.Handle},
		{"missing", change("qzeros", func(t *library.Tensor) { t.Data = nil }), library.Format},
		{"type", change("qzeros", func(t *library.Tensor) { t.DType = tensor.F32 }), library.Format},
		{"negative shape", change("scales", func(t *library.Tensor) { t.Shape = []int64{-1, 4} }), library.Format},
		{"overflow", change("scales", func(t *library.Tensor) { t.Shape = []int64{1 << 40, 1 << 40} }), library.Format},
		{"too large", change("scales", func(t *library.Tensor) { t.Shape = []int64{1 << 40, 4} }), library.Format},
	} {
		if got := library.StatusOf(c.err); got != c.want {
			t.Errorf("%s: status %d (%v), want %d", c.name, got, c.err, c.want)
		}
	}
}
