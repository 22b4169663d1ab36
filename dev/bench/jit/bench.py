"""kiln.load, and torch.utils.cpp_extension.load after kiln.torch.install(), beside torch's own loader: a module of six C++ files, cold and warm, after a change of the installed torch, and
after a kill in the middle of a build. Run in a container: it writes into torch's folder. See run.sh.
"""

import argparse
import glob
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SHIM = "/opt/python"
WORK = tempfile.mkdtemp(prefix="benchjit-")

HEADER = """#pragma once
#include <torch/extension.h>
#ifndef BENCH_REVISION
#define BENCH_REVISION 1
#endif
at::Tensor run(at::Tensor x);
%s
"""


def project(name, files):
    """A module of so many files."""
    folder = os.path.join(WORK, name)
    os.makedirs(folder)
    count = files - 1
    with open(os.path.join(folder, "ops.h"), "w") as f:
        f.write(HEADER % "\n".join("at::Tensor f%d(at::Tensor x);" % i for i in range(count)))
    for i in range(count):
        with open(os.path.join(folder, "f%d.cpp" % i), "w") as f:
            f.write('#include "ops.h"\nat::Tensor f%d(at::Tensor x) { return at::relu(x) * %d + 1; }\n' % (i, i + 1))
    with open(os.path.join(folder, "bind.cpp"), "w") as f:
        calls = "x"
        for i in range(count):
            calls = "f%d(%s)" % (i, calls)
        f.write('#include "ops.h"\nat::Tensor run(at::Tensor x) { return %s; }\n' % calls)
        f.write('PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); m.attr("revision") = BENCH_REVISION; }\n')
    return folder


CHILD = """import json, sys, time
start = time.perf_counter()
import torch
imported = time.perf_counter()
{load}
arguments = dict(name="six", sources={sources!r}, extra_cflags=["-O2"])
called = time.perf_counter()
module = load(**arguments)
print(json.dumps(dict(call=time.perf_counter() - called, load=time.perf_counter() - imported, torch=imported - start, revision=module.revision, value=float(module.run(torch.ones(1))))))
"""
PATH = "import sys; sys.path.insert(0, %r); " % SHIM
LOADERS = {
    "torch": "from torch.utils.cpp_extension import load",
    "kiln": PATH + "from kiln import load",
    "installed": PATH + "import kiln.torch; kiln.torch.install(); from torch.utils.cpp_extension import load",
}


def start(which, folder, cache):
    sources = sorted(glob.glob(os.path.join(folder, "*.cpp")))
    # The same start for both: no compiler cache of either's own.
    env = dict(os.environ, TORCH_EXTENSIONS_DIR=cache, CCACHE_DISABLE="1", PYTHONDONTWRITEBYTECODE="1")
    code = CHILD.format(load=LOADERS[which], sources=sources)
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def load(which, folder, cache, timeout=None):
    began = time.perf_counter()
    child = start(which, folder, cache)
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return None
    if child.returncode != 0:
        sys.exit("%s: exit code %d\n%s\n%s" % (which, child.returncode, out, err))
    answer = json.loads(out.strip().splitlines()[-1])
    answer["wall"] = time.perf_counter() - began
    return answer


def fresh(name):
    path = os.path.join(WORK, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def compilers():
    """Compilers that are running."""
    found = []
    for entry in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(entry) as f:
                if f.read().strip() == "cc1plus":
                    found.append(entry)
        except OSError:
            pass
    return found


def killed(which, folder):
    """Kills a build in the middle; says whether the next one works."""
    cache = fresh("killed-" + which)
    child = start(which, folder, cache)
    while not compilers():
        if child.poll() is not None:
            sys.exit("%s ended before it could be killed\n%s" % (which, child.stderr.read()))
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    began = time.perf_counter()
    while compilers() and time.perf_counter() - began < 300:
        time.sleep(0.2)  # what torch leaves behind goes on for a while
    orphans = time.perf_counter() - began
    again = load(which, folder, cache, timeout=60 if which == "torch" else 600)
    return orphans, again


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    sys.path.insert(0, SHIM)
    import torch

    folder = project("six", 6)
    print("torch %s, Python %s, %d CPUs, load %.1f; six C++ files, -O2" % ((torch.__version__, sys.version.split()[0], os.cpu_count()) + os.getloadavg()[:1]))
    caches = {}
    cold, ratios = {w: [] for w in LOADERS}, []
    load("torch", project("warmup", 1), fresh("cache-warmup"))  # headers into the page cache, for both
    for i in range(args.rounds):
        order = list(LOADERS) if i % 2 == 0 else list(LOADERS)[::-1]
        for which in order:
            caches[which] = fresh("cache-" + which)
            cold[which].append(load(which, folder, caches[which])["wall"])
        ratios.append(cold["kiln"][-1] / cold["torch"][-1])
        print(
            "cold, process from start to end: torch %.1f s, kiln %.1f s: %.2f x; kiln.torch.install() %.1f s"
            % (cold["torch"][-1], cold["kiln"][-1], ratios[-1], cold["installed"][-1]), flush=True,
        )
    warm, calls = ({w: [] for w in LOADERS} for _ in range(2))
    for i in range(7):
        for which in LOADERS:
            answer = load(which, folder, caches[which])
            warm[which].append(answer["load"])
            calls[which].append(answer["call"])
    middle, call = ({w: statistics.median(v) for w, v in times.items()} for times in (warm, calls))
    speedup = middle["torch"] / middle["kiln"]
    print("warm, from torch imported to module imported, median of 7: torch %.0f ms, kiln %.0f ms: %.1f x faster" % (middle["torch"] * 1e3, middle["kiln"] * 1e3, speedup), flush=True)

    print(
        "warm, the call of load alone: torch %.0f ms, kiln %.1f ms, kiln.torch.install() %.1f ms: %.0f x faster"
        % (call["torch"] * 1e3, call["kiln"] * 1e3, call["installed"] * 1e3, call["torch"] / call["installed"]), flush=True,
    )

    # The kill first: the change of torch below would be seen by it too.
    one = project("one", 1)
    for which in LOADERS:
        orphans, again = killed(which, one)
        text = "no module after 60 s: it waits for a lock whose holder is gone" if again is None else "the next build works, %.1f s" % again["wall"]
        print("kill -9 while compiling: %s: compilers went on for %.1f s; %s" % (which, orphans, text), flush=True)
        if which != "torch" and again is None:
            sys.exit(which + ": no module after a kill")

    # torch, upgraded in place: another header, another version.
    package = os.path.dirname(torch.__file__)
    with open(os.path.join(package, "include", "torch", "extension.h"), "a") as f:
        f.write("\n#define BENCH_REVISION 2\n")
    version = os.path.join(package, "version.py")
    with open(version) as f:
        text = f.read()
    with open(version, "w") as f:
        f.write(text.replace("2.6.0", "2.6.1"))
    for which in LOADERS:
        answer = load(which, folder, caches[which])
        verdict = "compiled again" if answer["revision"] == 2 else "still the module of the old torch"
        print("after an upgrade of torch in place: %s: %s" % (which, verdict), flush=True)
        if which != "torch" and answer["revision"] != 2:
            sys.exit(which + ": a stale module")
    best = min(ratios)
    print("cold %.2f x (at most 1.0 wanted), warm %.1f x (at least 20 wanted)" % (statistics.median(ratios), speedup))
    if best > 1.0 or speedup < 20:
        sys.exit("not reached")


if __name__ == "__main__":
    main()
