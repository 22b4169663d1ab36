"""Writes golden.json: hashes of numpy's conversions, which convert_test.go compares with.

    python golden.py > golden.json        # needs numpy and ml_dtypes

float32 inputs are the 2**22 bit patterns (k * 0x9E3779B1) mod 2**32, in order of k, grouped
by their upper nine bits (sign and exponent), so that a difference names the exponent. NaN
results are set to the canonical ones, since numpy's payloads are not part of the contract.
"""
import hashlib, json
import ml_dtypes
import numpy as np

np.seterr(all="ignore")

def digest(a):
    return hashlib.sha256(a.tobytes()).hexdigest()[:16]

def canonical(bits, nan, quiet):
    return np.where(nan, (bits & 0x8000) | quiet, bits).astype("<u2")

every16 = np.arange(1 << 16, dtype="<u4").astype("<u2")
half = every16.view("<f2")
brain = every16.view(ml_dtypes.bfloat16)

x = (np.arange(1 << 22, dtype="<u8") * 0x9E3779B1 & 0xFFFFFFFF).astype("<u4")
f = x.view("<f4")
f16 = canonical(f.astype("<f2").view("<u2"), np.isnan(f), 0x7E00)
bf16 = canonical(f.astype(ml_dtypes.bfloat16).view("<u2"), np.isnan(f), 0x7FC0)
# The sign of a NaN is the sign of its source.
f16 = np.where(np.isnan(f), (x >> 16 & 0x8000) | 0x7E00, f16).astype("<u2")
bf16 = np.where(np.isnan(f), (x >> 16 & 0x8000) | 0x7FC0, bf16).astype("<u2")

def offset(h, c):
    y = (h.astype("<f4") + np.float32(c)).astype("<f2")
    return canonical((y.astype("<f4") - np.float32(c)).astype("<f2").view("<u2"), False, 0)

def scale(h, c):
    y = (h.astype("<f4") * np.float32(c)).astype("<f2")
    return canonical((y.astype("<f4") / np.float32(c)).astype("<f2").view("<u2"), False, 0)

number = ~np.isnan(half)
wide = brain.astype("<f4")
out = {
    "numpy": np.__version__,
    "ml_dtypes": ml_dtypes.__version__,
    # NaN left out: whether a signalling one is made quiet depends on the processor.
    "f16_to_f32": digest(half[number].astype("<f4")),
    "bf16_to_f32": digest(wide[~np.isnan(wide)]),
    "bf16_to_f16": digest(wide[~np.isnan(wide)].astype("<f2")),
    "offset_1": digest(offset(half[number], 1)),
    "scale_12": digest(scale(half[number], 12)),
    "scale_0.1": digest(scale(half[number], 0.1)),
    "f32_to_f16": [digest(f16[x >> 23 == i]) for i in range(512)],
    "f32_to_bf16": [digest(bf16[x >> 23 == i]) for i in range(512)],
}
print(json.dumps(out, indent=1))
