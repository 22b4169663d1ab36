// Package cuda multiplies with EXL2 and GPTQ matrices on NVIDIA GPUs. It needs the driver and
// nothing else: no toolkit, no cgo, no PyTorch. Its kernels are embedded as machine code and PTX.
//
// It serves programs that run quantized models on a GPU. [Open] gives a [Device], which is a
// [quant.Backend]: Upload repacks a matrix into a layout of the package's own on the device, and
// Gemm computes with it on the device's stream. Few rows of activations run at the speed of memory;
// many on the tensor cores, with weights unpacked in registers. Results do not depend on timing:
// sums are float32, in a fixed order.
//
// Where there is no driver, Open fails with [ErrNotSupported] and says which library it looked for.
//
// A program that imports this package needs the C library's dynamic loader (see purego), which is
// why kiln itself does not import it and kiln-gpu does.
package cuda

//go:generate go run ./kernels/generate.go
