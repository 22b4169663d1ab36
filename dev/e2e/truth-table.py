"""Compares what kiln predicts for extensions of torch with what happens.

Arguments: kiln, a folder with the wheels of torch-slim.py, a folder to work in, and releases. The
extensions in testdata/reuse are compiled against every release; then every one is loaded and run
under every release. A cell is right if kiln audit --explain says the same: that it works, that the
loader refuses it, or that it is loaded and goes wrong. Needs the Python of the wheels with what
torch requires of others, and g++.
"""

import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

spec = importlib.util.spec_from_file_location("slim", os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch-slim.py"))
slim = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slim)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "testdata", "reuse")
TAG = "cp%d%d" % sys.version_info[:2]

RUN = {
    "ordinary": "import torch, sys; sys.path[:0] = [%r, %r]; import ordinary; ordinary.check()",
    "stable": "import torch, ctypes; r = ctypes.CDLL(%r + '/_stable.so').stable_check(); assert r == 0, r  # %r",
}
RUN["cuda"] = RUN["ordinary"]

# CUDA for torch's default of each major release: the runtime with its headers, and those of crt/.
CUDA = {
    "12": ["nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cuda-nvcc-cu12==12.8.93"],
    "13": ["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88"],
}


def cuda(work, major):
    """Unpack the headers and the runtime of CUDA, which does without a GPU, and return the folder."""
    folder = os.path.join(work, "cuda-" + major)
    if not os.path.isdir(folder):
        for requirement in CUDA[major]:
            with zipfile.ZipFile(slim.Remote(slim.address(TAG, requirement))) as z:
                z.extractall(folder + ".part", [n for n in z.namelist() if re.search(r"/include/|/libcudart\.so\.", n)])
        os.rename(folder + ".part", folder)
    return folder


def unpack(wheels, work, version):
    """Unpack a torch and return its folder and the major release of its CUDA."""
    folder = os.path.join(work, "torch-" + version)
    if not os.path.isdir(folder):
        with zipfile.ZipFile(glob.glob(os.path.join(wheels, "torch-%s-%s-*.whl" % (version, TAG)))[0]) as z:
            z.extractall(folder + ".part")
        os.rename(folder + ".part", folder)
    runtime = glob.glob(os.path.join(folder, "torch", "lib", "libcudart.so.*"))[0]
    major = runtime.rpartition(".")[2]
    # The extension for CUDA calls it: the real one in the place of the one that stands in.
    shutil.copy(glob.glob(os.path.join(cuda(work, major), "nvidia", "*", "lib", os.path.basename(runtime)))[0], runtime)
    env = dict(os.environ, PYTHONPATH=folder)
    subprocess.run([sys.executable, "-c", "import torch; assert torch.cuda.device_count() == 0"], check=True, env=env)
    return os.path.join(folder, "torch"), major


def compile(kind, torch, major, out):
    """Make the library as torch's builder does."""
    if kind == "stable":
        source, name, flags = "stable", "_stable.so", ["-ldl"]
    else:
        source, name = "ordinary", "_ordinary" + sysconfig.get_config_var("EXT_SUFFIX")
        flags = ["-DTORCH_EXTENSION_NAME=_ordinary", "-ltorch_python"]
    if kind == "cuda":
        flags += ["-DWITH_CUDA", "-Wl,--no-as-needed", "-lc10_cuda", "-ltorch_cuda", "-l:libcudart.so." + major]
        for folder in glob.glob(os.path.join(cuda(os.path.dirname(out), major), "nvidia", "*", "include")):
            flags += ["-I", folder]
    source, to = os.path.join(HERE, source, source + ".cpp"), os.path.join(out, name)
    if os.path.exists(to) and os.path.getmtime(to) > os.path.getmtime(source):
        return to
    os.makedirs(out, exist_ok=True)
    include = os.path.join(torch, "include")
    argv = ["g++", "-shared", "-fPIC", "-O1", "-w", "-std=c++20", "-D_GLIBCXX_USE_CXX11_ABI=1", "-I", include, "-I", os.path.join(include, "torch", "csrc", "api", "include")]
    argv += ["-I", sysconfig.get_paths()["include"], source, "-o", to + ".part", "-L", os.path.join(torch, "lib"), "-lc10", "-ltorch_cpu", "-ltorch"]
    subprocess.run(argv + flags, check=True)
    os.rename(to + ".part", to)
    return to


def predicted(kiln, path, under):
    """Return what kiln says of a wheel under a release, and why."""
    said = subprocess.run([kiln, "audit", path, "--explain", "torch=" + under], capture_output=True, text=True)
    text = said.stdout.strip().splitlines()[0].partition("  ")[2]
    for result, begin, code in (("works", "loads with", 0), ("refused", "does not load with", 1), ("goes wrong", "is not safe with", 1)):
        if text.startswith(begin) and said.returncode == code:
            return result, text
    raise SystemExit("kiln audit --explain: exit code %d: %s%s" % (said.returncode, said.stdout, said.stderr))


def happens(kind, out, torch):
    """Return what a library does under a release, and the last line that it left."""
    env = dict(os.environ, PYTHONPATH=os.path.dirname(torch))
    script = RUN[kind] % (out, os.path.join(HERE, "stable" if kind == "stable" else "ordinary"))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    if run.returncode == 0:
        return "works", ""
    if run.returncode < 0:
        return "goes wrong", "signal %d" % -run.returncode
    last = run.stderr.strip().splitlines()[-1]
    refused = re.search("undefined symbol|cannot open shared object file|symbol lookup error", last)
    return "refused" if refused else "goes wrong", last[-150:]


def main(kiln, wheels, work, *versions):
    os.makedirs(work, exist_ok=True)
    torches = {v: unpack(wheels, work, v) for v in versions}
    cells, wrong = 0, 0
    for kind in os.environ.get("KINDS", " ".join(RUN)).split():
        for built in versions:
            out = os.path.join(work, kind + "-" + built)
            library = compile(kind, *torches[built], out)
            with open(library, "rb") as f:  # in a wheel that names its torch, for the audit
                path = slim.pack(out, kind, "1.0+cpu.torch" + built, "py3-none" if kind == "stable" else "%s-%s" % (TAG, TAG), {os.path.basename(library): f.read()})
            line = next(l for l in subprocess.run([kiln, "audit", path], capture_output=True, text=True).stdout.splitlines() if re.match(r"\s*torch ", l))
            print("%s built with %s: %s" % (kind, built, line.strip()), flush=True)
            for under in versions:
                said, why = predicted(kiln, path, under)
                real, last = happens(kind, out, torches[under][0])
                cells += 1
                wrong += said != real
                if said == real == "works":
                    why = ""
                print("  " + " | ".join(filter(None, ["right" if said == real else "WRONG", "under " + under, "predicted: " + said, "happens: " + real, why, last])), flush=True)
    print("%d cells, %d wrong" % (cells, wrong))
    return 1 if wrong else 0


sys.exit(main(*sys.argv[1:]))
