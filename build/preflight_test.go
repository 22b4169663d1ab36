package build

import (
	"io"
	"strings"
	"testing"

	"github.com/kiln-build/kiln/build/record"
	"github.com/kiln-build/kiln/matrix"
)

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
