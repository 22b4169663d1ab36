package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/quant/cuda"
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
