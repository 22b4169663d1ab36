package tensor_test

import (
	"fmt"

	"github.com/kiln-build/kiln/model/tensor"
)

func Example() {
	size, _ := tensor.Size(tensor.BF16, []int64{1, 4})
	src := make([]byte, size)
	tensor.EncodeBF16(src, []float32{1, -0.5, 3.140625, 70000})

	dst := make([]byte, size)
	loss := tensor.BF16ToF16(dst, src)

	values := make([]float32, 4)
	tensor.DecodeF16(values, dst)
	fmt.Println(values, loss.Overflow)
	// Output: [1 -0.5 3.140625 +Inf] 1
}
