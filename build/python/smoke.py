"""The smoke test of one wheel, run by the interpreter of the runtime environment.

Reads a JSON object from the file named by the first argument: distribution, torch
(whether torch is imported first), imports, expressions, native (module names that the
wheel holds as compiled code). Writes the verdict as JSON to the file named by the second
argument, however the test ends; a process that dies without it has failed.
"""

import importlib
import importlib.metadata as metadata
import json
import os
import platform
import sys
import sysconfig
import traceback

with open(sys.argv[1], encoding="utf-8") as f:
    task = json.load(f)

verdict = {"ok": False, "python": platform.python_version(), "versions": {}, "modules": {}, "values": {}}


def finish():
    with open(sys.argv[2] + ".part", "w", encoding="utf-8") as f:
        json.dump(verdict, f)
    os.replace(sys.argv[2] + ".part", sys.argv[2])


def fail(step, error, **more):
    verdict.update(step=step, error="%s: %s" % (type(error).__name__, error), **more)
    traceback.print_exc()
    finish()
    sys.exit(1)


for name in ("torch", "numpy", task["distribution"]):
    try:
        verdict["versions"][name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print("Python", verdict["python"], *("%s %s" % v for v in verdict["versions"].items()), sep=", ")

if task.get("torch"):
    try:
        # First, because an extension finds libc10 and the CUDA libraries through it.
        torch = importlib.import_module("torch")
        print("torch", torch.__version__, "CUDA", torch.version.cuda, "HIP", getattr(torch.version, "hip", None))
    except BaseException as e:
        fail("import torch", e)

names = {}
for name in task["imports"]:
    try:
        importlib.import_module(name)
        top = name.split(".")[0]
        names[top] = sys.modules[top]
        print("import", name)
    except BaseException as e:
        fail("import " + name, e)

# Every compiled module of the wheel is loaded, also those that the package imports
# lazily or whose errors it hides, and each must come from the installed package.
site = {os.path.realpath(sysconfig.get_path(k)) for k in ("purelib", "platlib")}
for name in task["native"]:
    try:
        module = importlib.import_module(name)
    except BaseException as e:
        fail("import " + name, e)
    file = os.path.realpath(getattr(module, "__file__", None) or "")
    verdict["modules"][name] = file
    inside = any(file.startswith(s + os.sep) for s in site)
    if not inside:
        fail("import " + name, ImportError("%s was loaded from %s, outside of the installed package" % (name, file)), outside=file)
    print("import", name, "from", os.path.basename(file))

for text in task["expressions"]:
    try:
        value = eval(text, dict(names))
        verdict["values"][text] = repr(value)[:200]
        print(text, "=", repr(value)[:200])
    except BaseException as e:
        fail(text, e)

verdict["ok"] = True
finish()
