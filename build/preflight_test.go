package build

import (
	"io"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/matrix"
)

// TestReplaced: a torch that the wheel itself brings is not one that it replaced.
func TestReplaced(t *testing.T) {
	if replaced("", "2.11.0") || replaced("2.11.0", "2.11.0") || !replaced("2.11.0", "2.12.0") || !replaced("2.11.0", "") {
		t.Error("replaced is wrong")
	}
}

// TestTorchOfCPURow: a row for the CPU that gets a torch with CUDA is built, with a warning.
func TestTorchOfCPURow(t *testing.T) {
	for torch, want := range map[*record.Torch]string{
		{Version: "2.11.0+cu130", CUDA: "13.0"}:     "the row is for the CPU, and torch 2.11.0+cu130 was built for CUDA 13.0",
		{Version: "2.11.0+rocm7.0", HIP: "7.0.123"}: "was built for ROCm 7.0.123",
		{Version: "2.11.0+cpu"}:                     "",
	} {
		a := &attempt{Recipe: &record.Recipe{Row: matrix.Row{Torch: "2.11.0"}, Torch: []string{"torch==2.11.0"}}, log: &tailWriter{to: io.Discard}}
		a.facts.Torch = torch
		if err := a.checkTorch(); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(a.record.Warnings, "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("torch %s: %q, want %q", torch.Version, got, want)
		}
	}
}
