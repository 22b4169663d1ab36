"""Prints, for every golden matrix, hashes of what kiln computes through Python: {"exl2/a": {"gemm": …, "weights": …}}.

The argument is "cpu" (numpy) or "cuda" (torch). The Go path prints the same, so the two can be compared bit for bit.
"""

import hashlib
import json
import sys

from support import Torch, error, goldens

import kiln


def main(device):
    hashes = {}
    for name, t in goldens():
        put = Torch.tensor if device == "cuda" else lambda a: a
        get = Torch.numpy if device == "cuda" else lambda a: a
        names = kiln._quant._exl2 if name.startswith("exl2") else kiln._quant._gptq
        make = kiln.QMatrix.from_exl2 if name.startswith("exl2") else kiln.QMatrix.from_gptq
        mine = {n: put(t[n]) for n in names if n in t}
        before = {n: get(a).tobytes() for n, a in mine.items()}
        with make(mine) as m:
            x = put(t["x"])
            y = get(m(x))
            w = get(m.dequantize(like=x))
        if w.tobytes() != t["recon"].tobytes():
            raise SystemExit("%s: weights differ from exllamav2" % name)
        if error(y, t["y_exact"]) > 3e-4:
            raise SystemExit("%s: error %.2e" % (name, error(y, t["y_exact"])))
        if {n: get(a).tobytes() for n, a in mine.items()} != before:
            raise SystemExit("%s: a tensor was changed" % name)
        hashes[name] = {"gemm": hashlib.sha256(y.tobytes()).hexdigest(), "weights": hashlib.sha256(w.tobytes()).hexdigest()}
    json.dump(hashes, sys.stdout, indent=1, sort_keys=True)


main(sys.argv[1])
