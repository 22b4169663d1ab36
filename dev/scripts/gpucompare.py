"""Puts a report of kiln-gpu bench beside times of other kernels, and holds what is wanted of kiln's.

    gpucompare.py REPORT BASELINE

BASELINE is JSON with "device" and two lists of times in microseconds by K, N and m: "machete" (machete, fp16) and
"side_by_side" (exl2, lorax_gptq, marlin, fp16). A time counts where the dense product of the report took as long as that
of the baseline, within 5 %: cards of one kind differ, and so does one card from day to day. The exit code is 1 if a
ratio that counts misses its goal, 2 if the two files have nothing in common.
"""

import json
import sys

DRIFT = 0.05
LARGE = {(4096, 14336), (8192, 8192), (8192, 28672)}


def goals(k, n, m, fmt):
    """The least ratios of the others' times to kiln's."""
    want = {"exl2": 1.5 if m == 1 else 1.0, "lorax_gptq": 1.5 if m == 1 else 1.0}
    if fmt == "gptq":
        want["machete"] = 1.3 if m <= 16 else 1.0
        want["marlin"] = 1.0
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
                cell[name] = line[name], line["fp16"]
    names = {"gptq": ("machete", "marlin", "lorax_gptq"), "exl2-4": ("exl2",)}
    lines = counted = missed = 0
    for r in report["measurements"]:
        key = r["k"], r["n"], r["m"]
        if r["format"] not in names or key not in others or "cublas" not in r:
            continue
        us, fp16 = r["kiln"]["seconds"] * 1e6, r["cublas"]["seconds"] * 1e6
        ratios = {"fp16": (fp16 / us, True)}
        for name in names[r["format"]]:
            if name in others[key]:
                time, dense = others[key][name]
                ratios[name] = time / us, abs(fp16 / dense - 1) <= DRIFT
        text = "%5d %5d %-7s %5d %9.2f" % (*key[:2], r["format"], key[2], us)
        for name, (ratio, counts) in ratios.items():
            goal = goals(*key, r["format"]).get(name, 0)
            lines, counted, missed = lines + 1, counted + counts, missed + (counts and ratio < goal)
            text += "  %s %.2f%s" % (name, ratio, "" if not counts else " missed" if ratio < goal else " ok")
        print(text)
    print("%d ratios, %d count (dense product within %.0f %%), %d miss their goal" % (lines, counted, 100 * DRIFT, missed))
    return 2 if lines == 0 else missed > 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
