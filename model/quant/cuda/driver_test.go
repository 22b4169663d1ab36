//go:build linux && amd64

package cuda

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/internal/kilntest"
	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/tensor"
)

// fake is a device of testdata/fakedriver.c, which writes down what is asked of it.
type fake struct {
	*Device
	library
}

// library is one that compileC made.
type library struct {
	t   *testing.T
	lib uintptr
}

//go:uintptrescapes
func (l library) call(name string, args ...uintptr) int {
	l.t.Helper()
	f, err := findSymbol(l.lib, name)
	if err != nil {
		l.t.Fatal(err)
	}
	return int(int32(call(f, args...)))
}

func (f *fake) log() string {
	f.t.Helper()
	at, err := findSymbol(f.lib, "fake_log")
	if err != nil {
		f.t.Fatal(err)
	}
	text := call(at)
	return goString(*(**byte)(unsafe.Pointer(&text)))
}

func (f *fake) clear()         { f.call("fake_clear") }
func (f *fake) live() int      { return f.call("fake_live") }
func (f *fake) contexts() int  { return f.call("fake_contexts") }
func (f *fake) fail(after int) { f.call("fake_fail", uintptr(after)) }
func (f *fake) work()          { f.call("fake_work") }
func (f *fake) newStream() uintptr {
	s, err := f.drv.newStream()
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// compileC makes a library of a file in testdata, with more flags of the compiler.
func compileC(t *testing.T, source string, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		kilntest.Lacking(t, "cc", "no C compiler")
	}
	path := filepath.Join(t.TempDir(), "libfake.so")
	args := append(flags, "-shared", "-fPIC", "-O1", "-o", path, filepath.Join("testdata", source))
	if out, err := exec.CommandContext(t.Context(), cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func newFake(t *testing.T, opts Options) *fake {
	t.Helper()
	path := compileC(t, "fakedriver.c")
	drv, err := openDriver([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	d, err := drv.open(opts)
	if err != nil {
		t.Fatal(err)
	}
	return &fake{d, openC(t, path)}
}

func openC(t *testing.T, path string) library {
	t.Helper()
	lib, err := openLibrary(path)
	if err != nil {
		t.Fatal(err)
	}
	return library{t, lib}
}

func (f *fake) uploaded(t *testing.T, name string) quant.Weight {
	t.Helper()
	w, err := f.Upload(t.Context(), matrices(t)[name])
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// product queues one of m rows on a stream and returns what the driver was asked for.
func (f *fake) product(t *testing.T, s *Stream, w quant.Weight, m int, opts quant.GemmOptions) (string, error) {
	t.Helper()
	x, err := s.NewMatrix(m, w.Rows())
	if err != nil {
		t.Fatal(err)
	}
	dst, err := s.NewMatrix(m, w.Cols())
	if err != nil {
		t.Fatal(err)
	}
	f.clear()
	err = s.Gemm(t.Context(), dst, x, w, opts)
	log := f.log()
	return log, errors.Join(err, x.Close(), dst.Close())
}

var numbers = regexp.MustCompile(`(grid|block|shared) [0-9 ]*[0-9]`)

// TestLaunches holds what a product is: kernels on the stream of the caller, and after the first
// call nothing else, no allocation and no waiting.
func TestLaunches(t *testing.T) {
	f := newFake(t, Options{})
	handle := f.newStream()
	s := f.On(handle)
	w := f.uploaded(t, "all widths")
	for _, m := range []int{1, 8, 16, 64, 300} {
		first, err := f.product(t, s, w, m, quant.GemmOptions{})
		if err != nil {
			t.Fatal(err)
		}
		again, err := f.product(t, s, w, m, quant.GemmOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(again) {
			if !strings.HasPrefix(line, "launch kiln_") || !strings.Contains(line, " stream 3 ") || !strings.Contains(line, " overlapped 1") {
				t.Errorf("%d rows: %q, want launches on stream 3 and nothing else", m, line)
			}
		}
		if !strings.HasSuffix(first, again) || again == "" {
			t.Errorf("%d rows: first\n%sthen\n%s", m, first, again)
		}
	}
	if f.contexts() != 0 {
		t.Errorf("%d contexts are still current", f.contexts())
	}
}

// TestMany holds that products of one input with several weights are those of Gemm, but for the
// activations, which are brought into an order once, and that a refused call queues nothing.
func TestMany(t *testing.T) {
	f := newFake(t, Options{})
	handle := f.newStream()
	s := f.On(handle)
	same := f.uploaded(t, "all widths")
	weights := []quant.Weight{same, f.uploaded(t, "all widths"), same}
	const m = 16
	one, err := f.product(t, s, same, m, quant.GemmOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.NewMatrix(m, same.Rows())
	if err != nil {
		t.Fatal(err)
	}
	var results []quant.Matrix
	for _, w := range weights {
		dst, err := s.NewMatrix(m, w.Cols())
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, dst)
	}
	f.clear()
	if err := s.GemmMany(t.Context(), results, x, weights, quant.GemmOptions{}); err != nil {
		t.Fatal(err)
	}
	permute, product, _ := strings.Cut(one[strings.Index(one, "launch"):], "\n")
	if diff := cmp.Diff(permute+"\n"+strings.Repeat(product, 3), f.log()); diff != "" {
		t.Errorf("launches (-want +got):\n%s", diff)
	}
	f.clear()
	for name, refused := range map[string]func() error{
		"too few results": func() error { return s.GemmMany(t.Context(), results[:2], x, weights, quant.GemmOptions{}) },
		"a result twice": func() error {
			return s.GemmMany(t.Context(), []quant.Matrix{results[0], results[1], results[0]}, x, weights, quant.GemmOptions{})
		},
		"a result of another shape": func() error {
			return s.GemmMany(t.Context(), []quant.Matrix{results[0], results[1], x}, x, weights, quant.GemmOptions{})
		},
	} {
		if err := refused(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if f.log() != "" {
		t.Errorf("a refused call queued\n%s", f.log())
	}
}

// TestOlder holds which kernels a device gets that is taken for an older one, and that they neither
// overlap nor form clusters, which they know nothing of.
func TestOlder(t *testing.T) {
	for capability, kernel := range map[int]string{60: "kiln_simt_", 70: "kiln_simt_", 75: "kiln_gemm_", 80: "kiln_gemm_"} {
		f := newFake(t, Options{Capability: capability})
		if got := 10*f.Info().Major + f.Info().Minor; got != capability || strings.Contains(f.log(), "cubin") {
			t.Errorf("%d: capability %d\n%s", capability, got, f.log())
		}
		w := f.uploaded(t, "all widths")
		for _, path := range []quant.Path{quant.PathAuto, quant.PathFused, quant.PathReconstruct} {
			for _, m := range []int{1, 3, 8, 40, 500} {
				log, err := f.product(t, f.main, w, m, quant.GemmOptions{Path: path})
				if err != nil {
					t.Fatal(err)
				}
				log = log[strings.Index(log, "launch"):]
				kernel := kernel
				if capability == 75 && m == 1 && path != quant.PathReconstruct {
					kernel = "kiln_simt_"
				}
				if !strings.Contains(log, "launch "+kernel) || strings.Contains(log, "overlapped 1") || regexp.MustCompile(`cluster [2-9]`).MatchString(log) {
					t.Errorf("%d, %d rows, %v:\n%s", capability, m, path, log)
				}
			}
		}
	}
	path := compileC(t, "fakedriver.c")
	drv, err := openDriver([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range []Options{{Capability: 100}, {Capability: 52}, {Capability: 75, JIT: &JIT{}}} {
		if _, err := drv.open(opts); err == nil {
			t.Errorf("%+v: no error", opts)
		}
	}
}

// TestNoTensorMaps: a driver of CUDA 11 does not know what wgmma.cu and tall.cu fetch activations
// with, so gemm.cu does everything.
func TestNoTensorMaps(t *testing.T) {
	drv, err := openDriver([]string{compileC(t, "fakedriver.c", "-DCUDA_11")})
	if err != nil {
		t.Fatal(err)
	}
	nvrtc := compileC(t, "fakenvrtc.c")
	for _, opts := range []Options{{}, {JIT: &JIT{Library: nvrtc}}} {
		d, err := drv.open(opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, kernel := range d.Kernels() {
			if strings.HasPrefix(kernel, "kiln_wide_") || strings.HasPrefix(kernel, "kiln_tall_") {
				t.Errorf("%s is loaded", kernel)
			}
		}
		w, err := d.Upload(t.Context(), matrices(t)["one width"])
		if err != nil {
			t.Fatal(err)
		}
		x, err := d.NewMatrix(300, w.Rows())
		if err != nil {
			t.Fatal(err)
		}
		dst, err := d.NewMatrix(300, w.Cols())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Gemm(t.Context(), dst, x, w, quant.GemmOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// TestRecorded holds that a product can be recorded as PyTorch records, in the global mode, also as
// the first one on its stream, and that what is recorded are its kernels only.
func TestRecorded(t *testing.T) {
	f := newFake(t, Options{})
	w := f.uploaded(t, "all widths")
	const global = 0
	handle := f.newStream()
	s := f.On(handle)
	x, err := f.NewMatrix(16, w.Rows())
	if err != nil {
		t.Fatal(err)
	}
	dst, err := f.NewMatrix(16, w.Cols())
	if err != nil {
		t.Fatal(err)
	}
	f.clear()
	f.call("cuStreamBeginCapture_v2", handle, global)
	gemmErr := s.Gemm(t.Context(), dst, x, w, quant.GemmOptions{Path: quant.PathFused})
	biasErr := s.Gemm(t.Context(), dst, x, w, quant.GemmOptions{Bias: make([]byte, 2*w.Cols())})
	var graph uintptr
	if r := f.call("cuStreamEndCapture", handle, uintptr(unsafe.Pointer(&graph))); r != 0 || gemmErr != nil {
		t.Fatalf("recording: %d, %v\n%s", r, gemmErr, f.log())
	}
	if biasErr == nil || !strings.Contains(biasErr.Error(), "bias") {
		t.Errorf("a bias in memory of the caller was recorded: error %v", biasErr)
	}
	var recorded []string
	for line := range strings.Lines(f.log()) {
		if after, ok := strings.CutPrefix(line, "record "); ok {
			after, _, _ = strings.Cut(strings.TrimSpace(after), " cluster ") // how a product is divided is the model's business
			recorded = append(recorded, numbers.ReplaceAllString(after, "$1"))
		} else if strings.HasPrefix(line, "launch") {
			t.Errorf("not recorded: %s", line)
		}
	}
	want := []string{
		"kiln_permute stream 3 grid block shared overlapped 1",
		"kiln_gemm_2x2_0_fs stream 3 grid block shared overlapped 1",
	}
	if diff := cmp.Diff(want, recorded); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

// TestScratch holds that scratch memory stays where recorded graphs expect it when more is needed,
// is clear when it is new, and is all given back in the end.
func TestScratch(t *testing.T) {
	f := newFake(t, Options{})
	w := f.uploaded(t, "all widths")
	before := f.live()
	for _, m := range []int{1, 100, 5000} {
		log, err := f.product(t, f.main, w, m, quant.GemmOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(log, "free") {
			t.Errorf("%d rows: memory was freed\n%s", m, log)
		}
	}
	if f.live() == before || len(f.main.outgrown) == 0 {
		t.Error("no scratch memory, or none outgrown: the test is too small")
	}
	at, err := f.main.need(&f.main.arrivals, f.main.arrivals.bytes+1)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 64)
	if err := errors.Join(f.drv.download(unsafe.Pointer(&got[0]), at, int64(len(got)), f.main.handle), w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(make([]byte, 64), got); diff != "" {
		t.Errorf("new scratch memory (-want +got):\n%s", diff)
	}
	if f.live() != 0 {
		t.Errorf("%d allocations are left", f.live())
	}
}

// TestOutOfMemory lets each allocation of an upload and of a product fail in turn.
func TestOutOfMemory(t *testing.T) {
	f := newFake(t, Options{})
	m := matrices(t)["all widths"]
	before := f.live()
	failures := 0
	for after := 0; ; after++ {
		f.fail(after)
		w, err := f.Upload(t.Context(), m)
		f.work()
		if err == nil {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			break
		}
		failures++
		var e *Error
		if !errors.As(err, &e) || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" || e.Func != "cuMemAlloc" {
			t.Errorf("error %v, want that of cuMemAlloc", err)
		}
		if f.live() != before {
			t.Fatalf("allocation %d failed: %d allocations are left", after, f.live()-before)
		}
	}
	if failures < 5 {
		t.Errorf("%d allocations could fail: want at least 5", failures)
	}
	w := f.uploaded(t, "all widths")
	x, err := f.NewMatrix(64, w.Rows())
	if err != nil {
		t.Fatal(err)
	}
	dst, err := f.NewMatrix(64, w.Cols())
	if err != nil {
		t.Fatal(err)
	}
	before = f.live()
	f.fail(0)
	if err := f.Gemm(t.Context(), dst, x, w, quant.GemmOptions{}); err == nil {
		t.Error("a product without scratch memory is no error")
	}
	f.work()
	if f.live() != before {
		t.Errorf("%d allocations are left", f.live()-before)
	}
	if err := f.Gemm(t.Context(), dst, x, w, quant.GemmOptions{}); err != nil {
		t.Errorf("a product after one that failed: %v", err)
	}
}

// TestJIT holds what the cache of compiled kernels does, with a compiler that counts.
func TestJIT(t *testing.T) {
	path := compileC(t, "fakenvrtc.c")
	lib := openC(t, path)
	compiled := func() int { return lib.call("fake_compiled") }
	j := &JIT{Library: path, Cache: filepath.Join(t.TempDir(), "new", "folder")}

	step := func(what string, want int) []jitted {
		t.Helper()
		out, err := j.compileFor(9, 0)
		if err != nil {
			t.Fatal(err)
		}
		if compiled() != want {
			t.Errorf("%s: %d modules were compiled so far, want %d", what, compiled(), want)
		}
		return out
	}
	first := step("first", 4)
	var modules []string
	for _, m := range first {
		modules = append(modules, m.module+" "+strings.Fields(string(m.image))[1])
	}
	want := []string{"pack --gpu-architecture=sm_90", "gemm --gpu-architecture=sm_90", "wgmma --gpu-architecture=sm_90a", "tall --gpu-architecture=sm_90a"}
	if diff := cmp.Diff(want, modules); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(first, step("again", 4), cmp.AllowUnexported(jitted{})); diff != "" {
		t.Errorf("from the cache (-want +got):\n%s", diff)
	}
	files, err := filepath.Glob(filepath.Join(j.Cache, "*"))
	if err != nil || len(files) != 4 {
		t.Fatalf("files in the cache: %v, %v", files, err)
	}
	if err := os.Truncate(files[0], 40); err != nil {
		t.Fatal(err)
	}
	step("with a torn file", 5)
	step("after it was replaced", 5)
	lib.call("fake_version", 1)
	step("with another compiler", 9)
	if _, err := j.compileFor(8, 0); err != nil || compiled() != 11 {
		t.Errorf("8.0: %d modules were compiled so far, want 11; error %v", compiled(), err)
	}
	_, err = j.compileFor(8, 6)
	var e *Error
	if !errors.As(err, &e) || e.Name != "NVRTC_ERROR_COMPILATION" || !strings.Contains(err.Error(), "no such processor") {
		t.Errorf("error %v, want that of the compiler with its log", err)
	}
	j.Cache = ""
	step("without a cache", 15)
	step("without a cache, again", 19)

	f := newFake(t, Options{JIT: j})
	if diff := cmp.Diff(strings.Repeat("load cubin\n", 4), f.log()); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	if _, err := NewCompiler(filepath.Join(t.TempDir(), "libnvrtc.so")); !errors.Is(err, ErrNotSupported) {
		t.Errorf("no library: error %v, want ErrNotSupported", err)
	}
}

// TestBLAS holds that cuBLAS, which is column-major, is called so that the product is right, and
// when it is called.
func TestBLAS(t *testing.T) {
	if f := newFake(t, Options{BLAS: "loaded"}); f.blas != nil {
		t.Error("there is a cuBLAS that the process has not loaded")
	}
	path := compileC(t, "fakeblas.c")
	lib := openC(t, path)
	handles := func() int { return lib.call("fake_handles") }
	products := func() int { return lib.call("fake_products") }
	f := newFake(t, Options{BLAS: path})

	const m, n, k = 3, 5, 4
	rng := rand.New(rand.NewPCG(1, 2))
	numbers := func(rows, cols int) (*Matrix, []float32) {
		values, half := make([]float32, rows*cols), make([]byte, 2*rows*cols)
		for i := range values {
			values[i] = float32(rng.IntN(9) - 4)
		}
		tensor.EncodeF16(half, values)
		a, err := f.NewMatrix(rows, cols)
		if err == nil {
			err = a.CopyFrom(half)
		}
		if err != nil {
			t.Fatal(err)
		}
		return a.(*Matrix), values
	}
	x, xs := numbers(m, k)
	w, ws := numbers(k, n)
	out, outs := numbers(m, n)
	blas, err := f.NewBLAS(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, accumulate := range []bool{true, false} {
		want := make([]float32, m*n)
		for i := range m {
			for j := range n {
				if accumulate {
					want[i*n+j] = outs[i*n+j]
				}
				for l := range k {
					want[i*n+j] += xs[i*k+l] * ws[l*n+j]
				}
			}
		}
		got, half := make([]float32, m*n), make([]byte, 2*m*n)
		if err := errors.Join(blas.gemm(out.at, x.at, w.at, m, n, k, accumulate), out.CopyTo(half)); err != nil {
			t.Fatal(err)
		}
		tensor.DecodeF16(got, half)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("accumulate %v (-want +got):\n%s", accumulate, diff)
		}
	}
	if err := blas.Close(); err != nil {
		t.Fatal(err)
	}

	weight := f.uploaded(t, "one width")
	for _, test := range []struct {
		rows  int
		opts  quant.GemmOptions
		dense bool
	}{
		{2048, quant.GemmOptions{}, true},
		{2048, quant.GemmOptions{Path: quant.PathReconstruct, Accumulate: true}, true},
		{2047, quant.GemmOptions{}, false},
		{2048, quant.GemmOptions{Path: quant.PathFused}, false},
		{2048, quant.GemmOptions{Bias: make([]byte, 2*weight.Cols())}, false},
	} {
		before := products()
		log, err := f.product(t, f.main, weight, test.rows, test.opts)
		if err != nil {
			t.Fatal(err)
		}
		if dense := products() > before; dense != test.dense || dense != strings.Contains(log, "launch kiln_dequantize") {
			t.Errorf("%d rows, %+v: cuBLAS %v, want %v\n%s", test.rows, test.opts, dense, test.dense, log)
		}
	}
	if err := errors.Join(weight.Close(), x.Close(), w.Close(), out.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if f.live() != 0 || handles() != 0 {
		t.Errorf("%d allocations and %d handles are left", f.live(), handles())
	}
}

// TestDenser holds for which products dequantized weights and cuBLAS are taken, as measured.
func TestDenser(t *testing.T) {
	f := newFake(t, Options{})
	for _, test := range []struct {
		width         int
		rows, columns int
		from          int // rows of activations
	}{
		{4, 4096, 6144, 2048},
		{4, 14336, 4096, 4096},
		{0, 4096, 6144, 1024},
		{0, 14336, 4096, 2048},
		{0, 4096, 28672, 4096},
		{0, 28672, 8192, 2048},
	} {
		w := &Weight{d: f.Device, width: test.width}
		w.args.rows, w.args.columns, w.args.perm = int32(test.rows), int32(test.columns), 1
		if f.denser(test.from-1, w) || !f.denser(test.from, w) {
			t.Errorf("%+v: %v and %v", test, f.denser(test.from-1, w), f.denser(test.from, w))
		}
	}
}

// TestTune holds what is measured and what the fastest is used for. All take the same time on the
// fake, so the first wins, which is what the table says; a plan put in its place must be used.
func TestTune(t *testing.T) {
	f := newFake(t, Options{})
	w := f.uploaded(t, "one width")
	before := f.live()
	if err := f.Tune(t.Context(), w, 8, 64); err != nil {
		t.Fatal(err)
	}
	if f.live() > before+4 { // scratch memory may stay
		t.Errorf("%d allocations are left", f.live()-before)
	}
	weight := w.(*Weight)
	for _, m := range []int{8, 64} {
		want, err := f.choose(m, weight, quant.PathAuto, true)
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := f.tunedPlan(weight.tuneKey(m)); !ok || p != want {
			t.Errorf("%d rows: tuned %v, %v, want %v", m, p, ok, want)
		}
	}
	other, err := f.makeWide(weight, 16, 1)
	if err != nil {
		t.Fatal(err)
	}
	f.tuned[weight.tuneKey(8)] = other
	same := f.uploaded(t, "one width")
	for _, test := range []struct {
		name string
		w    quant.Weight
		rows int
		opts quant.GemmOptions
		used bool
	}{
		{"the weight", w, 8, quant.GemmOptions{}, true},
		{"another of its shape", same, 8, quant.GemmOptions{}, true},
		{"one of another shape", f.uploaded(t, "all widths"), 8, quant.GemmOptions{}, false},
		{"other rows", w, 7, quant.GemmOptions{}, false},
		{"a path", w, 8, quant.GemmOptions{Path: quant.PathFused}, false},
	} {
		log, err := f.product(t, f.main, test.w, test.rows, test.opts)
		if err != nil {
			t.Fatal(err)
		}
		if used := strings.Contains(log, other.kernel); used != test.used {
			t.Errorf("%s: tuned plan used: %v, want %v\n%s", test.name, used, test.used, log)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := f.Tune(ctx, w, 8); !errors.Is(err, cause) {
		t.Errorf("tuning after the context ended: error %v, want its cause", err)
	}
	if err := f.Tune(t.Context(), w, 0); err == nil {
		t.Error("tuning for no rows is no error")
	}
}
