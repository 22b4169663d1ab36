"""Prints what this interpreter and its packages are, as one JSON object.

Run with any Python from 3.8 on, with or without pip and torch. Arguments: the folder of
the source (or "-"), a folder that has pip (or "-"), then "torch" if torch is to be
imported, then "nvcc" and places of CUDA toolkits if those that have it are wanted.
"""

import importlib.metadata as metadata
import json
import os
import platform
import shutil
import sys
import sysconfig

facts = {
    "python": "%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    "python_full": platform.python_version(),
    "implementation": sys.implementation.name,
    "executable": sys.executable,
    "platform": sysconfig.get_platform(),
    "headers": os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")),
    "include": sysconfig.get_path("include"),
    "site_packages": sysconfig.get_path("purelib"),
    "libc": " ".join(platform.libc_ver()),
    "ninja": shutil.which("ninja") or "",
}

if os.name == "nt":
    facts["os_name"] = platform.platform()
try:
    with open("/etc/os-release", encoding="utf-8") as f:
        release = dict(line.strip().split("=", 1) for line in f if "=" in line)
    words = [release.get(k, "").strip('"') for k in ("ID", "ID_LIKE")]
    facts["distribution"] = " ".join(w for w in words if w)
    facts["os_name"] = release.get("PRETTY_NAME", "").strip('"')
except OSError:
    pass

try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401

    facts["venv"] = True
except ImportError:
    facts["venv"] = False

facts["packages"] = {}
for dist in metadata.distributions():
    name = dist.metadata["Name"] if dist.metadata is not None else None
    if name:
        facts["packages"].setdefault(name.lower().replace("_", "-").replace(".", "-"), dist.version)


def missing_requirements(source):
    """Return the build back-end and those of build-system.requires that are not installed."""
    backend, requires = "", ["setuptools"]
    path = os.path.join(source, "pyproject.toml")
    if os.path.exists(path):
        try:
            import tomllib
        except ImportError:
            from pip._vendor import tomli as tomllib
        with open(path, "rb") as f:
            file = tomllib.load(f)
        table = file.get("build-system", {})
        facts["backend_path"] = table.get("backend-path", [])
        facts["version"] = file.get("project", {}).get("version", "")
        backend = table.get("build-backend", "setuptools.build_meta:__legacy__")
        requires = table.get("requires", requires)
    else:
        backend = "setuptools.build_meta:__legacy__"
    from pip._vendor.packaging.requirements import Requirement

    missing = []
    for text in requires:
        req = Requirement(text)
        if req.marker is not None and not req.marker.evaluate():
            continue
        version = facts["packages"].get(req.name.lower().replace("_", "-").replace(".", "-"))
        if version is None:
            missing.append(text)
            continue
        if not req.specifier.contains(version, prereleases=True):
            missing.append("%s (installed: %s)" % (text, version))
    return backend, requires, missing


if sys.argv[1] != "-":
    # pip is not part of the environment; it brings readers for TOML and requirements.
    sys.path.append(sys.argv[2])
    facts["backend"], facts["requires"], facts["missing"] = missing_requirements(sys.argv[1])
    sys.path.remove(sys.argv[2])

if "torch" in sys.argv[3:]:
    try:
        import torch

        facts["torch"] = {
            "version": torch.__version__,
            "cuda": torch.version.cuda or "",
            "hip": torch.version.hip or "",
            "cxx11abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI),
            "file": torch.__file__,
        }
    except Exception as e:  # whatever a broken torch raises is the finding
        facts["torch_error"] = "%s: %s" % (type(e).__name__, e)

if "nvcc" in sys.argv[3:]:
    # Relative places are folders of this environment's packages.
    homes = [os.path.join(facts["site_packages"], home) for home in sys.argv[sys.argv.index("nvcc") + 1 :]]
    nvcc = shutil.which("nvcc")
    if nvcc:
        homes.append(os.path.dirname(os.path.dirname(nvcc)))
    program = "nvcc.exe" if os.name == "nt" else "nvcc"
    facts["cuda_homes"] = [home for home in homes if os.access(os.path.join(home, "bin", program), os.X_OK)]

json.dump(facts, sys.stdout)
