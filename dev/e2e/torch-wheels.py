"""Prints the table of docs/audit.md of real wheels that link torch.

Arguments: kiln and a folder to work in. Every wheel of the list is fetched, audited and removed
again, one at a time; the folder keeps the reports, and a second call asks for those only that are
missing. Needs pip.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.version import Version

WHEELS = """
aphrodite-engine==0.24.1 auto-gptq==0.7.1 autoawq-kernels==0.0.9 dgl==2.1.0 executorch==1.5.1 fbgemm-gpu==0.8.0
fbgemm-gpu-cpu==1.9.0 fbgemm-gpu-genai==1.9.0 intel-extension-for-pytorch==2.8.0 lmcache==0.5.6
mooncake-transfer-engine==0.3.13.post1 sgl-kernel==0.3.5 tensordict==0.5.0 torch-directml==0.2.5.dev240914
torch-tensorrt==2.14.0 torch-xla==2.9.0 torchao==0.13.0 torchao==0.15.0 torchao==0.18.0 torchao==0.7.0
torchaudio==2.10.0 torchaudio==2.2.2 torchaudio==2.5.1 torchaudio==2.8.0 torchaudio==2.9.1 torchcodec==0.17.0
torchcodec==0.3.0 torchcodec==0.7.0 torchcodec==0.9.1 torchrl==0.14.1 torchrl==0.6.0 torchtext==0.17.2
torchtext==0.18.0 torchvision==0.17.2 torchvision==0.20.1 torchvision==0.21.0 torchvision==0.23.0
torchvision==0.24.1 torchvision==0.25.0 vllm==0.32.0 vllm-flash-attn==2.6.2 vptq==0.0.5.post1
xformers==0.0.28.post3 xformers==0.0.30 xformers==0.0.32.post2 xformers==0.0.35
""".split()

# What the releases do not tell.
REMARKS = {"dgl": "it has libraries named for torch 2.0.0 to 2.2.1 each, and all are judged"}


def address(requirement):
    for python in ("3.12", "3.10", "3.9"):
        argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", "--target", tempfile.gettempdir()]
        argv += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
        for platform in ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"):
            argv += ["--platform", platform]
        run = subprocess.run(argv + [requirement], capture_output=True, text=True)
        if run.returncode == 0:
            return json.loads(run.stdout)["install"][0]["download_info"]["url"]
    raise SystemExit("pip finds no wheel of %s: %s" % (requirement, run.stderr))


def examine(kiln, requirement, work):
    """Return the report on a wheel and its requirement on torch."""
    kept = os.path.join(work, requirement + ".json")
    if not os.path.exists(kept):
        url = address(requirement)
        wheel = os.path.join(work, urllib.parse.unquote(url.rsplit("/", 1)[1]))
        urllib.request.urlretrieve(url, wheel)
        run = subprocess.run([kiln, "audit", "--no-digests", "--json", wheel], capture_output=True, text=True)
        with zipfile.ZipFile(wheel) as z:
            meta = z.read(next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))).decode()
        os.remove(wheel)
        if run.returncode not in (0, 1):
            raise SystemExit("kiln audit %s: %s" % (wheel, run.stderr))
        requires = [r for r in map(Requirement, re.findall(r"(?m)^Requires-Dist: (.*?)\r?$", meta)) if r.name == "torch" and (not r.marker or r.marker.evaluate({"extra": ""}))]
        report = json.loads(run.stdout)["wheels"][0]
        with open(kept + ".part", "w") as f:
            json.dump({"requires": [str(r.specifier) for r in requires], "abi": report["torch_abi"], "works_with": report.get("works_with") or []}, f)
        os.rename(kept + ".part", kept)
    with open(kept) as f:
        return json.load(f)


def spans(minors, every):
    """Return minor releases that follow each other as 2.3 to 2.5."""
    out, at = [], 0
    while at < len(every):
        end = at
        while end < len(every) and every[end] in minors:
            end += 1
        if end > at:
            out.append(every[at] if end == at + 1 else every[at] + " to " + every[end - 1])
        at = end + 1
    return ", ".join(out)


def compare(name, found, releases):
    every = list(dict.fromkeys(".".join(r.split(".")[:2]) for r in releases))
    abi = found["abi"]
    if abi["kind"] == "stable":
        works = {m for m in every if Version(m) >= Version(abi["from"])}
    else:
        works = {".".join(v["torch"].split(".")[:2]) for v in found["works_with"] if v["ok"]}
    if not found["requires"]:
        return "; ".join(filter(None, ["requires none", REMARKS.get(name)])), None, None
    specifier = Requirement("torch" + ",".join(found["requires"])).specifier
    allowed = {".".join(r.split(".")[:2]) for r in releases if specifier.contains(r)}
    more, less = allowed - works, works - allowed
    words = []
    if more:
        words.append("allows %s, predicted not to work" % spans(more, every))
    if less:
        words.append("leaves out " + spans(less, every))
    return "; ".join(words) or "the same", more, less


def main(kiln, work):
    os.makedirs(work, exist_ok=True)
    rows, releases = [], []
    for requirement in WHEELS:
        found = examine(kiln, requirement, work)
        releases = max(releases, [v["torch"].split("+")[0] for v in found["works_with"]], key=len)
        rows.append((requirement, found))
        print("%s: %s" % (requirement, found["abi"]["summary"]), file=sys.stderr, flush=True)
    counts = {"the same": 0, "allows more": 0, "leaves out only": 0, "requires none": 0}
    print("| wheel | requires torch | predicted | difference |\n| --- | --- | --- | --- |")
    for requirement, found in rows:
        name, version = requirement.split("==")
        text, more, less = compare(name, found, releases)
        counts["requires none" if more is None else "allows more" if more else "leaves out only" if less else "the same"] += 1
        requires = "–" if not found["requires"] else "any" if not any(found["requires"]) else "`%s`" % ",".join(found["requires"])
        print("| %s-%s | %s | %s | %s |" % (name.replace("-", "_"), version, requires, found["abi"]["summary"], text))
    print("%d wheels; %s" % (len(rows), ", ".join("%s: %d" % c for c in counts.items())), file=sys.stderr)


main(*sys.argv[1:])
