package quant_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/quanttest"
)

func TestCPU(t *testing.T) {
	for _, set := range quant.Features().Available {
		for _, threads := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, threads: %d", set, threads), func(t *testing.T) {
				t.Parallel()
				quanttest.TestBackend(t, func(t testing.TB) quant.Backend {
					return newCPU(t, quant.CPUOptions{Kernels: set, Threads: threads})
				})
			})
		}
	}
}

// TestCPUThreads holds the promise that neither threads nor other rows of the call change a result.
func TestCPUThreads(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	groups, err := quant.MixGroups(352, quant.Share{Bits: 5, GroupRows: 64, Fraction: 0.3}, quant.Share{Bits: 3, GroupRows: 128})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{96, 288, 640, 4128} {
		m, err := quant.LoadEXL2(quanttest.EXL2(rng, n, groups), "", quant.EXL2Options{})
		if err != nil {
			t.Fatal(err)
		}
		const rows = 70
		x := quanttest.Normal(rng, rows*m.Rows(), 1)
		for _, path := range []quant.Path{quant.PathFused, quant.PathReconstruct} {
			opts := quant.GemmOptions{Path: path}
			for _, set := range quant.Features().Available {
				cpu := newCPU(t, quant.CPUOptions{Kernels: set, Threads: 1})
				want := gemm(t, cpu, m, x, opts)
				for _, threads := range []int{2, 3, 7, 64} {
					if !bytes.Equal(gemm(t, newCPU(t, quant.CPUOptions{Kernels: set, Threads: threads}), m, x, opts), want) {
						t.Errorf("%s, %d columns, %v: %d threads give another result than one", set, n, path, threads)
					}
				}
				for _, part := range [][2]int{{0, 1}, {33, 34}, {69, 70}, {5, 7}, {5, 8}, {60, 65}, {62, 70}, {0, 9}, {20, 33}} {
					got := gemm(t, cpu, m, x[2*part[0]*m.Rows():2*part[1]*m.Rows()], opts)
					if !bytes.Equal(got, want[2*part[0]*n:2*part[1]*n]) {
						t.Errorf("%s, %d columns, %v: rows %d to %d alone give another result", set, n, path, part[0], part[1]-1)
					}
				}
			}
		}
	}
}

// TestCPUExact holds what Exact promises, that products in integers are the same with all kernels
// that have them, and that they are another way to compute at all.
func TestCPUExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	groups, err := quant.MixGroups(352, quant.Share{Bits: 5, GroupRows: 64, Fraction: 0.3}, quant.Share{Bits: 3, GroupRows: 128})
	if err != nil {
		t.Fatal(err)
	}
	m, err := quant.LoadEXL2(quanttest.EXL2(rng, 288, groups), "", quant.EXL2Options{})
	if err != nil {
		t.Fatal(err)
	}
	x := quanttest.Normal(rng, 7*m.Rows(), 1)
	var ints []byte
	for _, set := range quant.Features().Available {
		cpu := newCPU(t, quant.CPUOptions{Kernels: set})
		got := gemm(t, cpu, m, x, quant.GemmOptions{})
		exact := gemm(t, newCPU(t, quant.CPUOptions{Kernels: set, Exact: true}), m, x, quant.GemmOptions{})
		if !strings.Contains(cpu.Name(), "in integers") {
			if !bytes.Equal(got, exact) {
				t.Errorf("%s: Exact changes a product that is exact", set)
			}
			continue
		}
		if bytes.Equal(got, exact) {
			t.Errorf("%s: Exact changes nothing", set)
		}
		if ints == nil {
			ints = got
		}
		if !bytes.Equal(got, ints) {
			t.Errorf("%s: products in integers differ from those of other kernels", set)
		}
	}
	if name := newCPU(t, quant.CPUOptions{Exact: true}).Name(); !strings.Contains(name, "exact") {
		t.Errorf("exact products with %s", name)
	}
}

// TestCPUHelpers lets many calls share helpers, some after pauses in which these end.
func TestCPUHelpers(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	m, err := quant.LoadEXL2(quanttest.EXL2(rng, 512, []quant.Group{{Bits: 4, Rows: 128}}), "", quant.EXL2Options{})
	if err != nil {
		t.Fatal(err)
	}
	cpu := newCPU(t, quant.CPUOptions{Threads: 4})
	x := quanttest.Normal(rng, m.Rows(), 1)
	want := gemm(t, cpu, m, x, quant.GemmOptions{})
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() {
			for range 100 {
				if !bytes.Equal(gemm(t, cpu, m, x, quant.GemmOptions{}), want) {
					t.Error("a product differs when others run")
				}
				time.Sleep(time.Duration(i) * 300 * time.Microsecond)
			}
		})
	}
	group.Wait()
}

func TestCPUOverlap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m, err := quant.LoadEXL2(quanttest.EXL2(rng, 64, []quant.Group{{Bits: 4, Rows: 64}}), "", quant.EXL2Options{})
	if err != nil {
		t.Fatal(err)
	}
	cpu := newCPU(t, quant.CPUOptions{})
	w, err := cpu.Upload(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 4*64)
	for offset, fails := range map[int]bool{0: true, 64: true, 126: true, 128: false} {
		x, err := quant.NewHalf(1, 64, data[:128])
		if err != nil {
			t.Fatal(err)
		}
		dst, err := quant.NewHalf(1, 64, data[offset:][:128])
		if err != nil {
			t.Fatal(err)
		}
		if err := cpu.Gemm(t.Context(), dst, x, w, quant.GemmOptions{}); (err != nil) != fails {
			t.Errorf("result %d bytes after the activations: error %v", offset, err)
		}
	}
}

func TestNewCPU(t *testing.T) {
	for _, opts := range []quant.CPUOptions{{Threads: -1}, {Kernels: "abacus"}} {
		if _, err := quant.NewCPU(opts); err == nil {
			t.Errorf("%+v: no error", opts)
		}
	}
}

func BenchmarkGemm(b *testing.B) {
	quanttest.BenchmarkBackend(b, func(t testing.TB) quant.Backend { return newCPU(t, quant.CPUOptions{}) })
}

func BenchmarkDequantize(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, bits := range []int{2, 3, 4, 5, 6, 8} {
		b.Run(fmt.Sprintf("bits=%d", bits), func(b *testing.B) {
			groups, err := quant.MixGroups(4096, quant.Share{Bits: bits, GroupRows: 128})
			if err != nil {
				b.Fatal(err)
			}
			m, err := quant.LoadEXL2(quanttest.EXL2(rng, 4096, groups), "", quant.EXL2Options{})
			if err != nil {
				b.Fatal(err)
			}
			out := make([]byte, 2*m.Rows()*m.Cols())
			b.SetBytes(m.Bytes())
			for b.Loop() {
				if err := m.Dequantize(out); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096/4096, "ns/weight")
		})
	}
}
