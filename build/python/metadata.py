"""Asks the build back-end what it still needs and which version it would build, as JSON.

Reads a JSON object from its first argument: source, pip (a folder that has it), backend,
backend_path, version (if it is known already) and settings for the back-end. What the back-end
prints goes to the standard error. Nothing is compiled.
"""

import importlib
import importlib.metadata as metadata
import json
import os
import sys
import tempfile
import traceback

task = json.loads(sys.argv[1])
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
answer = {"missing": [], "version": task["version"]}
settings = task["settings"] or None


def normal(name):
    return name.lower().replace("_", "-").replace(".", "-")


os.chdir(task["source"])
sys.path[:0] = [os.path.join(task["source"], p) for p in task["backend_path"] or []]
name, _, attribute = task["backend"].partition(":")
backend = importlib.import_module(name)
for part in attribute.split("."):
    backend = getattr(backend, part) if part else backend

wanted = []
if hasattr(backend, "get_requires_for_build_wheel"):
    wanted = list(backend.get_requires_for_build_wheel(settings))

# Some back-ends configure the whole project for its metadata; the version is not worth that.
hook = getattr(backend, "prepare_metadata_for_build_wheel", None)
if hook is not None and not answer["version"] and name not in ("mesonpy", "maturin"):
    try:
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, hook(folder, settings), "METADATA"), encoding="utf-8") as f:
                for line in f:
                    if line.lower().startswith("version:"):
                        answer["version"] = line.split(":", 1)[1].strip()
                        break
    except BaseException:  # the build will say it, with the whole log
        traceback.print_exc()

# pip is not part of the environment; it brings a reader for requirements. It comes last, because
# setuptools keeps away from distutils where it finds pip.
sys.path.append(task["pip"])
from pip._vendor.packaging.requirements import Requirement  # noqa: E402

sys.path.remove(task["pip"])
have = {normal(d.metadata["Name"]): d.version for d in metadata.distributions() if d.metadata and d.metadata["Name"]}
for text in wanted:
    req = Requirement(text)
    if req.marker is not None and not req.marker.evaluate():
        continue
    version = have.get(normal(req.name))
    if version is None:
        answer["missing"].append(text)
    elif not req.specifier.contains(version, prereleases=True):
        answer["missing"].append("%s (installed: %s)" % (text, version))

json.dump(answer, out)
