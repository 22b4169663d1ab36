"""ExLlamaV2 as PyPI has it, unedited, with kiln's loader in the place of torch's: proof.py [whole] [kills].

whole: eight processes at once compile once; a second start takes milliseconds; with a GPU, a product is computed. kills: a smaller
program is killed ten times while it compiles, and after each kill the next start gives the right module. PYTHONPATH has kiln and
exllamav2, KILN names the program, KILN_CACHE_DIR an empty folder.
"""

import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STORE = os.path.join(os.environ["KILN_CACHE_DIR"], "jit", "v1")
EXT = """
import time, sys, torch
import torch.utils.cpp_extension as c
real = c.load
def timed(*args, **kwargs):
    began = time.perf_counter()
    try:
        return real(*args, **kwargs)
    finally:
        print("load took %.4f s" % (time.perf_counter() - began))
assert real.__kiln__
c.load = timed
from exllamav2.ext import exllamav2_ext as e
print("functions", len([n for n in dir(e) if not n.startswith("_")]), e.__name__)
if torch.cuda.is_available():
    x, w = (torch.randn(64, 64, dtype=torch.half, device="cuda") for _ in range(2))
    y = torch.empty(64, 64, dtype=torch.half, device="cuda")
    scale = torch.ones(64, dtype=torch.half, device="cuda")
    e.rms_norm(x, scale, y, 1e-5)
    want = x / (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    print("rms_norm on the GPU: largest difference", (y.float() - want.float()).abs().max().item())
"""


def start(*argv, **options):
    argv = [sys.executable, "-m", "kiln.torch", *argv]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, **options)


def entries(name):
    return glob.glob(os.path.join(STORE, name, "*-*", "manifest.json"))


def check(ok, text):
    if not ok:
        sys.exit("proof: " + text)
    print("ok:", text, flush=True)


def whole():
    began = time.time()
    running = [start("-c", EXT) for _ in range(8)]
    said = [p.communicate()[0] for p in running]
    wall = time.time() - began
    for p, text in zip(running, said):
        check(p.returncode == 0 and "functions" in text, "a process of eight imports it: " + " ".join(text.split("\n")[-4:]))
    compiled = sum(any(line.startswith("compiling exllamav2_ext: 0 of 47") for line in text.split("\n")) for text in said)
    kept = len(entries("exllamav2_ext"))
    check(compiled == 1 and kept == 1, "%d of eight processes compiled, %d modules are kept, %.0f s" % (compiled, kept, wall))
    for _ in range(3):
        text = start("-c", EXT).communicate()[0]
        took = float(text.split("load took ")[1].split()[0])
        check(took < 0.5 and "compiling" not in text, "a later start: load takes %.1f ms" % (1000 * took))


def kills():
    random.seed(23)
    argv = [os.path.join(HERE, "programs.py"), "kill"]
    for i in range(10):
        shutil.rmtree(os.path.join(STORE, "killed"), ignore_errors=True)
        env = dict(os.environ, KILL_ROUND=str(i))
        process = start(*argv, env=env)
        for line in process.stdout:
            if line.startswith("compiling killed"):
                break
        time.sleep(random.uniform(0, 6))
        os.killpg(process.pid, signal.SIGKILL)  # Python and kiln; compilers have groups of their own, and end with kiln
        process.wait()
        process.stdout.close()
        began = time.time()
        text = start(*argv, env=env).communicate()[0]
        check("killed says %d" % i in text, "start %d after a kill gives the right module after %.1f s" % (i + 1, time.time() - began))
    deadline = time.time() + 10
    while compilers() and time.time() < deadline:
        time.sleep(0.2)
    check(not compilers() and not glob.glob(os.path.join(STORE, "tmp", "killed-*")), "no compiler and no folder of a killed process is left")


def compilers():
    """Processes that work in a folder of a killed build."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                if (STORE + "/tmp/killed").encode() in f.read():
                    found.append(path)
        except OSError:
            pass
    return found


if __name__ == "__main__":
    for part in sys.argv[1:] or ["kills", "whole"]:
        {"whole": whole, "kills": kills}[part]()
