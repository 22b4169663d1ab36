package quanttest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-build/kiln/model/tensor"
)

// TestExact holds that the weights of the suite, rounded, are those of Dequantize.
func TestExact(t *testing.T) {
	all, err := samples()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		want := make([]byte, 2*s.matrix.Rows()*s.matrix.Cols())
		if err := s.matrix.Dequantize(want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		tensor.EncodeF16(got, Exact(s.matrix))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, diff)
		}
	}
}
