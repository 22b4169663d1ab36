// Package quant holds matrices that are quantized in the EXL2 and GPTQ formats and multiplies
// half-precision activations with them on the CPU, without cgo: in assembly for x86-64 and arm64,
// in plain Go elsewhere.
//
// It serves programs that run or examine quantized models without Python and without a GPU.
// [LoadEXL2] and [LoadGPTQ] check every invariant of the format and give an immutable [QMatrix];
// [QMatrix.Dequantize] is the reference, bit for bit what exllamav2 reconstructs. A [Backend] takes
// a QMatrix with Upload and computes C = A·W with Gemm; [NewCPU] is the backend of this package,
// and the suite in package quanttest is what any other has to pass. [QuantizeEXL2] makes a matrix
// from float weights by rounding to nearest. [Inspect] lists the quantized layers of a file and
// [DequantizeFile] writes them back in half precision.
//
// # Conventions
//
// A weight matrix W has K rows (input features) and N columns (output features), so it is the
// transpose of the weight of a PyTorch Linear layer. Matrices are dense and row-major.
// Half-precision data is little-endian float16 in byte slices, as on disk and as package tensor
// converts it.
//
// Natural order is the layer's own order of input features; stored order is the order in which a
// format keeps its rows, where all rows of one quantization group are consecutive.
//
// # Ownership
//
// Everything that a QMatrix needs is copied when it is made. No function of this package changes a
// tensor it was given, so any number of matrices can be made from the same tensors. (exllamav2
// rewrites the weight tensor in place and keeps pointers to all others; code written for that works
// here too.)
//
// What the package does not do: it searches no optimal quantization, holds no model and knows no
// layer but the linear one.
package quant
