package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/model/quant"
	"github.com/kiln-build/kiln/model/quant/cuda"
	"github.com/kiln-build/kiln/model/quant/quanttest"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

// TestWithoutDriver holds that each command says what is missing and ends with the code for that.
func TestWithoutDriver(t *testing.T) {
	if _, _, err := cuda.Probe(); err == nil {
		t.Skip("there is a driver")
	}
	for _, command := range []string{"probe", "check", "bench"} {
		out, err := run(t, command)
		if !errors.Is(err, cuda.ErrNotSupported) || exitCode(err) != 3 || !strings.Contains(err.Error(), "cuda") {
			t.Errorf("%s: error %v, want one that names the library", command, err)
		}
		if out != "" {
			t.Errorf("%s printed %q", command, out)
		}
	}
}

func TestParseShape(t *testing.T) {
	for _, s := range []string{"4096x14336", "4096×14336"} {
		if k, n, err := parseShape(s); k != 4096 || n != 14336 || err != nil {
			t.Errorf("%s: %d, %d, %v", s, k, n, err)
		}
	}
	for _, s := range []string{"", "4096", "4096x", "0x32", "-32x32", "33x32", "32x31", "32x32x32"} {
		if _, _, err := parseShape(s); err == nil {
			t.Errorf("%q: no error", s)
		}
	}
}

func TestRandomMatrix(t *testing.T) {
	for format, widths := range map[string][]int{"exl2-4": {4}, "exl2-8/5/4": {8, 5, 4}, "gptq": {4}} {
		m, err := randomMatrix(1280, 64, format)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]bool{}
		for _, g := range m.Groups() {
			seen[g.Bits] = true
		}
		for _, b := range widths {
			if !seen[b] {
				t.Errorf("%s has no %d bit", format, b)
			}
		}
		if m.Rows() != 1280 || m.Cols() != 64 || len(seen) != len(widths) {
			t.Errorf("%s is %d×%d with %v", format, m.Rows(), m.Cols(), seen)
		}
	}
	for _, format := range []string{"", "exl2", "exl2-", "exl2-7", "awq"} {
		if _, err := randomMatrix(128, 64, format); err == nil {
			t.Errorf("%q: no error", format)
		}
	}
}

func cpu(t *testing.T) quant.Backend {
	t.Helper()
	b, err := quant.NewCPU(quant.CPUOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// spoiled is a backend whose products are changed by spoil, which gets activations, the result and
// the number of the call.
type spoiled struct {
	quant.Backend
	calls int
	spoil func(x, dst []byte, rows, call int)
}

func (s *spoiled) Gemm(ctx context.Context, dst, x quant.Matrix, w quant.Weight, opts quant.GemmOptions) error {
	if err := s.Backend.Gemm(ctx, dst, x, w, opts); err != nil {
		return err
	}
	in, out := make([]byte, 2*x.Rows()*x.Cols()), make([]byte, 2*dst.Rows()*dst.Cols())
	if err := errors.Join(x.CopyTo(in), dst.CopyTo(out)); err != nil {
		return err
	}
	s.spoil(in, out, x.Rows(), s.calls)
	s.calls++
	return dst.CopyFrom(out)
}

// TestConditions runs the checks on the CPU, which passes, and on backends with a fault each, which
// must not.
func TestConditions(t *testing.T) {
	const k, n = 96, 64
	everything := func(b quant.Backend) error {
		return errors.Join(
			checkRepeats(t.Context(), io.Discard, b, k, n, 4),
			checkSpecial(t.Context(), io.Discard, b, k, n))
	}
	if err := everything(cpu(t)); err != nil {
		t.Error(err)
	}
	for name, test := range map[string]struct {
		spoil func(x, dst []byte, rows, call int)
		want  string
	}{
		"other bits once": {func(_, dst []byte, _, call int) {
			if call == 2 {
				dst[len(dst)-2] ^= 1
			}
		}, "time 3 gives other bits"},
		"nothing written": {func(_, dst []byte, rows, _ int) {
			copy(dst, bytes.Repeat([]byte{0xFF, 0x7F}, rows*n))
		}, "element 0, 0 is not written"},
		"NaN swallowed": {func(_, dst []byte, rows, _ int) {
			for i := range rows * n {
				if dst[2*i+1]&0x7C == 0x7C {
					dst[2*i], dst[2*i+1] = 0, 0
				}
			}
		}, "gives 0 at"},
		"NaN in all rows": {func(x, dst []byte, rows, _ int) {
			for i := range rows * k {
				if x[2*i+1]&0x7C == 0x7C {
					copy(dst, bytes.Repeat([]byte{0, 0x7E}, rows*n))
				}
			}
		}, "changes row"},
	} {
		err := everything(&spoiled{Backend: cpu(t), spoil: test.spoil})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
}

// TestFreshReference holds that a product is compared with the weights that it was computed with.
// With this seed there is a matrix whose exact product differs by 5.3e-4 from that with rounded
// weights.
func TestFreshReference(t *testing.T) {
	const seed = 1794796198041815500
	rng := rand.New(rand.NewPCG(seed, 1))
	errFound := errors.New("found")
	err := freshMatrices(rng, func(f freshMatrix) error {
		if !strings.HasPrefix(f.name, "exl2 1472×224 8/5/4/3") {
			for _, rows := range f.rows { // what checkMatrix takes from rng
				quanttest.Normal(rng, rows*f.matrix.Rows(), 1)
			}
			return nil
		}
		f.rows = f.rows[:1]
		if _, err := checkMatrix(t.Context(), cpu(t), f, rng); err != nil {
			t.Error(err)
		}
		return errFound
	})
	if !errors.Is(err, errFound) {
		t.Errorf("there is no such matrix: %v", err)
	}
}

// TestFresh multiplies some of the fresh matrices on the CPU, and on a backend that forgets the
// last element.
func TestFresh(t *testing.T) {
	forgetful := &spoiled{Backend: cpu(t), spoil: func(_, dst []byte, _, _ int) { dst[len(dst)-2], dst[len(dst)-1] = 0xFF, 0x7F }}
	good := cpu(t)
	rng := rand.New(rand.NewPCG(1, 1))
	i, all, widths := 0, 0, map[string]bool{}
	err := freshMatrices(rng, func(f freshMatrix) error {
		all++
		widths[strings.Fields(f.name)[2]] = true
		if f.matrix.Rows()%32 != 0 || f.matrix.Cols()%32 != 0 {
			t.Errorf("%s: not multiples of 32", f.name)
		}
		if i++; i%9 != 0 || f.matrix.Rows()*f.matrix.Cols() > 1<<19 {
			return nil
		}
		f.rows = f.rows[:3]
		if _, err := checkMatrix(t.Context(), good, f, rng); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		if _, err := checkMatrix(t.Context(), forgetful, f, rng); err == nil || !strings.Contains(err.Error(), "NaN") {
			t.Errorf("%s: an element that was not written: error %v", f.name, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if all < 63+8+7 || !widths["8/6/5/4/3/2"] || !widths["2"] {
		t.Errorf("%d matrices of %d mixtures", all, len(widths))
	}
}
