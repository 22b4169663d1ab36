package build_test

import (
	"testing"

	"github.com/kiln-build/kiln/build"
	"github.com/kiln-build/kiln/matrix"
)

func TestImageFor(t *testing.T) {
	for _, tt := range []struct {
		row            matrix.Row
		template, want string
	}{
		{matrix.Row{CUDA: "12.8.1"}, "", "nvidia/cuda:12.8.1-devel-ubuntu22.04"},
		{matrix.Row{CUDA: "12.8.1"}, "mirror/cuda:{version}", "mirror/cuda:12.8.1"},
		{matrix.Row{ROCm: "6.2.4"}, "mirror/cuda:{version}", "rocm/dev-ubuntu-22.04:6.2.4-complete"},
		{matrix.Row{}, "", ""},
	} {
		if got := build.ImageFor(&tt.row, tt.template); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.row, got, tt.want)
		}
	}
}
