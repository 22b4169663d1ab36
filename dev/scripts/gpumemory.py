"""Memory of a process like LoRAX's on this machine's GPU, with torch: the embedding and the head of Llama 3 8B in half precision,
and 200 of its matrices in GPTQ's format, made with make_q_matrix and kept, as LoRAX's layers keep theirs.

With the argument "original", "kiln" or "in-place" it is that process and prints what nvidia-smi, torch and kiln count. "original"
makes no matrices: the originals take none of their own but a small object on the host for each. Without an argument
all three are started, one after the other, and the exit code is 1 if the process in place takes more than 3 % beside the original, or
gives other results. Run by dev/scripts/gpupython.sh.
"""

import json
import os
import subprocess
import sys

# A layer's q, k, v, o, gate, up and down of Llama 3 8B, [K, N]; 200 matrices are 28 layers and four
# more.
SHAPES = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (14336, 4096)]
COUNT, GROUP = 200, 128


def used():
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def process(kind, act_order, symmetric):
    import numpy as np
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    start = used()
    if kind != "original":
        import kiln.compat

        kiln.compat.install(in_place=kind == "in-place")
        import exllamav2_kernels

        import kiln
    generator = torch.Generator("cuda").manual_seed(1)
    none = torch.empty((1, 1), device="meta")
    scratch = torch.empty(max(k * n for k, n in SHAPES) + 64, dtype=torch.float16, device="cuda")  # temp_dq, which LoRAX has anyway
    layers, sums = [], []
    rest = [torch.zeros((128256, 4096), dtype=torch.float16, device="cuda") for _ in range(2)]
    for i in range(COUNT):
        k, n = SHAPES[i % len(SHAPES)]
        word = lambda *shape: torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device="cuda", generator=generator)  # noqa: E731
        q, s = word(k // 8, n), torch.rand((k // GROUP, n), device="cuda", generator=generator).mul_(0.01).add_(0.001).half()
        z = torch.full((k // GROUP, n // 8), 0x77777777, dtype=torch.int32, device="cuda") if symmetric else word(k // GROUP, n // 8)
        perm = inverse = index = none
        if act_order:
            perm, inverse = (torch.empty(k, dtype=torch.int16, device="cuda") for _ in range(2))
            index = torch.from_numpy(np.random.default_rng(i).permutation(np.arange(k, dtype=np.int32) // GROUP).astype(np.int32))
        layer = [q, z, s, perm, inverse]
        if kind != "original":
            layer.append(exllamav2_kernels.make_q_matrix(q, perm, inverse, none, none, none, none, z, s, index, scratch))
        layers.append(layer)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    out = {"kind": kind, "loaded": used() - start, "rest": sum(t.nbytes for t in rest) + scratch.nbytes}
    if kind != "original":
        inputs = [torch.randn((4096, k), device="cuda", generator=torch.Generator("cuda").manual_seed(i)).half() for i, (k, _) in enumerate(SHAPES)]
        results = [torch.empty((4096, n), dtype=torch.float16, device="cuda") for _, n in SHAPES]
        torch.cuda.empty_cache()
        before = used()
        for rows in (1, 40, 4096):
            for i, (x, y) in enumerate(zip(inputs, results)):
                exllamav2_kernels.gemm_half_q_half(x[:rows], layers[i][5], y[:rows], False)
            torch.cuda.synchronize()
            out[str(rows)] = used() - before
            for i, (x, y) in enumerate(zip(inputs, results)):
                w = torch.empty(SHAPES[i], dtype=torch.float16, device="cuda")
                kiln.reconstruct(layers[i][5], w)
                some = slice(0, min(rows, 64))
                want = x[some].double() @ w.double()
                error = ((y[some].double() - want).norm() / want.norm()).item()
                if not error < 5e-4:
                    sys.exit("%d rows of %d×%d: error %.2e" % (rows, *SHAPES[i], error))
                sums += [y[:rows].double().abs().sum().item(), w.double().abs().sum().item()]
                del w, want
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = used() - out[str(rows)]
        out["in place"] = sum(bool(kiln._quant._info(layer[5]).in_place) for layer in layers)
    out["sums"] = sums
    print(json.dumps(out))


def main():
    failed = False
    for name, act_order, symmetric in (("symmetric", 0, 1), ("asymmetric, act-order", 1, 0)):
        results = {}
        for kind in ("original", "kiln", "in-place"):
            command = [sys.executable, os.path.abspath(__file__), kind, str(act_order), str(symmetric)]
            text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[kind] = r = json.loads(text.splitlines()[-1])
            more = r["loaded"] / results["original"]["loaded"] - 1
            alone = (r["loaded"] - r["rest"]) / (results["original"]["loaded"] - r["rest"]) - 1
            print("%-22s %-9s %7.1f MiB loaded (%+.1f %%; of the matrices alone %+.1f %%)%s" % (
                name, kind, r["loaded"] / 2**20, 100 * more, 100 * alone,
                "" if kind == "original" else "; scratch memory of 40 rows %.0f MiB, of 4,096 %.0f; %d in place" % (
                    r["40"] / 2**20, r["4096"] / 2**20, r["in place"])), flush=True)  # fmt: skip
        if more > 0.03 or results["kiln"]["sums"] != results["in-place"]["sums"]:
            failed = True
            print("%s: FAILED: %.1f %% more in place, results %s" % (
                name, 100 * more, "equal" if results["kiln"]["sums"] == results["in-place"]["sums"] else "differ"))  # fmt: skip
    sys.exit(failed)


if len(sys.argv) > 1:
    process(sys.argv[1], sys.argv[2] == "1", sys.argv[3] == "1")
else:
    main()
