"""Makes a small GPTQ matrix, multiplies with it on the CPU, and compares with numpy."""

import numpy as np

import kiln

K, N, M, GROUP = 512, 256, 4, 128
rng = np.random.default_rng(1)
codes = rng.integers(0, 16, (K, N), dtype=np.uint32)
scales = (0.001 + 0.02 * rng.random((K // GROUP, N))).astype(np.float16)

shifts = np.arange(0, 32, 4, dtype=np.uint32)
tensors = {
    "qweight": (codes.reshape(K // 8, 8, N) << shifts[:, None]).sum(axis=1, dtype=np.uint32).view(np.int32),
    "qzeros": np.full((K // GROUP, N // 8), 0x77777777, np.int32),  # zero point 8
    "scales": scales,
}
x = rng.standard_normal((M, K)).astype(np.float16)

with kiln.QMatrix.from_gptq(tensors) as w:
    y = w(x)
    print(w, "on", kiln.backend())

want = x.astype(np.float64) @ ((codes.astype(np.float64) - 8) * np.repeat(scales.astype(np.float64), GROUP, axis=0))
error = np.linalg.norm(y - want) / np.linalg.norm(want)
print("%d×%d times %d×%d: relative error %.1e" % (M, K, K, N, error))
assert error < 5e-4
