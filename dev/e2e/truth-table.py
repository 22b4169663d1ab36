"""Compares what kiln audit predicts with what happens, for two extensions and some torch releases.

Arguments: kiln, a folder with the wheels of torch-slim.py, a folder to work in, and releases. The
extensions in testdata/reuse are compiled against every release; then every one is loaded and run
under every release. A cell is right if kiln audit --explain says the same. Needs the Python of the
wheels with what torch requires of others, and g++.
"""

import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata", "reuse")
TAG = "cp%d%d" % sys.version_info[:2]

RUN = {
    "ordinary": "import torch, sys; sys.path[:0] = [%r, %r]; import ordinary; ordinary.check()",
    "stable": "import torch, ctypes; r = ctypes.CDLL(%r + '/_stable.so').stable_check(); assert r == 0, r  # %r",
}


def unpack(wheels, work, version):
    folder = os.path.join(work, "torch-" + version)
    if not os.path.isdir(folder):
        with zipfile.ZipFile(glob.glob(os.path.join(wheels, "torch-%s-%s-*.whl" % (version, TAG)))[0]) as z:
            z.extractall(folder + ".part")
        os.rename(folder + ".part", folder)
    return os.path.join(folder, "torch")


def compile(kind, torch, out):
    """Make the library as torch's builder does."""
    if kind == "ordinary":
        source, name = os.path.join(HERE, kind, kind + ".cpp"), "_ordinary" + sysconfig.get_config_var("EXT_SUFFIX")
        flags = ["-DTORCH_EXTENSION_NAME=_ordinary", "-ltorch_python"]
    else:
        source, name, flags = os.path.join(HERE, kind, kind + ".cpp"), "_stable.so", ["-ldl"]
    to = os.path.join(out, name)
    if os.path.exists(to):
        return to
    os.makedirs(out, exist_ok=True)
    include = os.path.join(torch, "include")
    argv = ["g++", "-shared", "-fPIC", "-O1", "-w", "-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI=1", "-I", include, "-I", os.path.join(include, "torch", "csrc", "api", "include")]
    argv += ["-I", sysconfig.get_paths()["include"], source, "-o", to + ".part", "-L", os.path.join(torch, "lib"), "-lc10", "-ltorch_cpu", "-ltorch"]
    subprocess.run(argv + flags, check=True)
    os.rename(to + ".part", to)
    return to


def wheel(kind, version, library, out):
    """Put the library into a wheel that names its torch, for the audit."""
    tag = "%s-%s" % (TAG, TAG) if kind == "ordinary" else "py3-none"
    name = "%s-1.0+cpu.torch%s" % (kind, version)
    info = name + ".dist-info/"
    with open(library, "rb") as f:
        files = {os.path.basename(library): f.read()}
    files[info + "METADATA"] = ("Metadata-Version: 2.1\nName: %s\nVersion: 1.0+cpu.torch%s\nRequires-Dist: torch\n" % (kind, version)).encode()
    files[info + "WHEEL"] = ("Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: false\nTag: %s-linux_x86_64\n" % tag).encode()
    record = "".join("%s,sha256=%s,%d\n" % (p, base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b"=").decode(), len(b)) for p, b in files.items())
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    path = os.path.join(out, "%s-%s-linux_x86_64.whl" % (name, tag))
    with zipfile.ZipFile(path, "w") as z:
        for p, b in files.items():
            z.writestr(p, b)
    return path


def main(kiln, wheels, work, *versions):
    os.makedirs(work, exist_ok=True)
    torches = {v: unpack(wheels, work, v) for v in versions}
    wrong = 0
    for kind in ("stable", "ordinary"):
        for built in versions:
            out = os.path.join(work, kind + "-" + built)
            library = compile(kind, torches[built], out)
            path = wheel(kind, built, library, out)
            line = next(l for l in subprocess.run([kiln, "audit", path], capture_output=True, text=True).stdout.splitlines() if re.match(r"\s*torch ", l))
            print("%s built with %s: %s" % (kind, built, line.strip()), flush=True)
            for under in versions:
                said = subprocess.run([kiln, "audit", path, "--explain", "torch=" + under], capture_output=True, text=True)
                env = dict(os.environ, PYTHONPATH=os.path.dirname(torches[under]))
                run = subprocess.run([sys.executable, "-c", RUN[kind] % (out, os.path.join(HERE, kind))], capture_output=True, text=True, env=env)
                last = (run.stderr.strip().splitlines() or ["signal %d" % -run.returncode if run.returncode < 0 else ""])[-1]
                right = (said.returncode == 0) == (run.returncode == 0)
                wrong += not right
                print("  %s under %s: predicted %s, %s%s%s" % (
                    "right" if right else "WRONG", under, "works" if said.returncode == 0 else "fails", "works" if run.returncode == 0 else "fails",
                    "" if said.returncode == 0 else " | " + said.stdout.strip().splitlines()[0].partition("  ")[2], "" if run.returncode == 0 else " | " + last[-150:]), flush=True)
    print("%d cells, %d wrong" % (2 * len(versions) ** 2, wrong))
    return 1 if wrong else 0


sys.exit(main(*sys.argv[1:]))
