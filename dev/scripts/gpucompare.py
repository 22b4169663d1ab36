"""Puts a report of kiln-gpu bench beside times of other kernels, and holds what is wanted of kiln's.

    gpucompare.py REPORT BASELINE

BASELINE is JSON with "device" and two lists of times in microseconds by K, N and m: "machete" (machete, fp16) and
"side_by_side" (exl2, lorax_gptq, marlin, fp16). A time counts where the dense product of the report took as long as that
of the baseline, within 5 %: cards of one kind differ, and so does one card from day to day. The other goals are within the
report: the dense product, the speed of a copy, and EXL2 beside GPTQ. Other formats are printed and have no goals. The exit
code is 1 if a ratio that counts misses its goal, 2 if the two files have nothing in common.
"""

import json
import sys

DRIFT = 0.05
LARGE = {(4096, 14336), (8192, 8192), (8192, 28672)}
MIDDLE = {(4096, 14336), (14336, 4096), (8192, 8192)}


def goals(k, n, m, fmt):
    """The least ratios: of the others' times to kiln's, of kiln's speed to the copy's, of GPTQ's time to EXL2's."""
    want = {"exl2": 1.5 if m == 1 else 1.0, "lorax": 1.5 if m == 1 else 1.0}
    if fmt == "gptq":
        want["machete"] = 1.3 if m <= 16 else 1.0
        want["marlin"] = 1.0
        if (k, n) == (8192, 28672) and m <= 16:
            want["copy"] = 0.85
        if (k, n) in MIDDLE and m <= 8:
            want["copy"] = 0.7
    if fmt == "exl2-4" and m >= 64:
        want["gptq"] = 1 / 1.05
    if m >= 512:
        want["fp16"] = 0.95 if (k, n) in LARGE else 0.85
    elif m <= 128 and (k, n) != (4096, 4096):
        want["fp16"] = 1.0
    return want


def main(report, baseline):
    report, baseline = (json.load(open(path)) for path in (report, baseline))
    if report["device"]["name"] != baseline["device"]:
        sys.exit("the report is of a card %r, the baseline of %r" % (report["device"]["name"], baseline["device"]))
    others = {}
    for line in baseline["machete"] + baseline["side_by_side"]:
        cell = others.setdefault((line["K"], line["N"], line["m"]), {})
        for name in ("machete", "exl2", "lorax_gptq", "marlin"):
            if line.get(name):
                cell[name.removesuffix("_gptq")] = line[name], line["fp16"]
    names = {"gptq": ("machete", "marlin", "lorax"), "exl2-4": ("exl2",)}
    gptq = {(r["k"], r["n"], r["m"]): r["kiln"]["seconds"] for r in report["measurements"] if r["format"] == "gptq"}
    totals = {}
    for r in report["measurements"]:
        key, judged = (r["k"], r["n"], r["m"]), r["format"] in names
        if "cublas" not in r:
            continue
        us, fp16 = r["kiln"]["seconds"] * 1e6, r["cublas"]["seconds"] * 1e6
        ratios = {"fp16": (fp16 / us, judged), "copy": (r["copy_fraction"], judged)}
        if r["format"] != "gptq" and key in gptq:
            ratios["gptq"] = gptq[key] * 1e6 / us, judged
        for name in names.get(r["format"], ()):
            if name in others.get(key, ()):
                time, dense = others[key][name]
                ratios[name] = time / us, abs(fp16 / dense - 1) <= DRIFT
        text = "%5d %5d %-10s %5d %9.2f" % (*key[:2], r["format"], key[2], us)
        for name, (ratio, counts) in ratios.items():
            goal = goals(*key, r["format"]).get(name)
            met = ratio >= (goal or 0)
            text += "  %s %.2f%s" % (name, ratio, "" if not counts or goal is None else " ok" if met else " missed")
            if goal is not None and judged:
                total = totals.setdefault(name, [0, 0, 0])
                total[0], total[1], total[2] = total[0] + 1, total[1] + counts, total[2] + (counts and not met)
        print(text + ("  by cuBLAS" if "cuBLAS" in r["kiln"]["kernel"] else ""))
    for name, (all_, counted, missed) in totals.items():
        print("%-8s %3d ratios, %3d count, %3d miss their goal" % (name, all_, counted, missed))
    lines, missed = (sum(t[i] for t in totals.values()) for i in (0, 2))
    print("%d ratios, %d count (dense product within %.0f %%), %d miss their goal" % (lines, sum(t[1] for t in totals.values()), 100 * DRIFT, missed))
    return 2 if lines == 0 else missed > 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
