"""kiln.load: a native module for this Python and torch, through the command `kiln jit`.

It stands where a package calls torch.utils.cpp_extension.load: the first call compiles, later ones of any process
take a few milliseconds. Nothing is imported here but the standard library; torch is imported by load, for modules that need it.
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time

__all__ = ["BuildError", "load"]


class BuildError(ImportError, RuntimeError):
    """There is no module, and why. diagnoses is a list of maps with id, title, detail and fix.

    It is a RuntimeError too, because that is what torch's loader raises."""

    def __init__(self, message, diagnoses=(), log=None, name=None):
        super().__init__(message, name=name)
        self.diagnoses = list(diagnoses)
        self.log = log


def _kiln():
    """The program: KILN, or kiln on PATH or beside the interpreter."""
    named = os.environ.get("KILN")
    if named:
        if not shutil.which(named):
            raise BuildError("KILN is %s, which is no program" % named)
        return named
    beside = os.path.dirname(sys.executable)
    found = shutil.which("kiln") or shutil.which("kiln", path=beside)
    if not found:
        raise BuildError("the program kiln is neither on PATH nor in %s; KILN can name it" % beside)
    return found


def load(
    name,
    sources=None,
    extra_cflags=None,
    extra_cuda_cflags=None,
    extra_ldflags=None,
    extra_include_paths=None,
    build_directory=None,
    verbose=False,
    with_cuda=None,
    is_python_module=True,
    *,
    torch=True,
    libraries=None,
    library_dirs=None,
    archs=None,
    prebuilt=None,
    retry=False,
):
    """Return an imported module.

    load("spec.yml") takes everything from a spec. load(name=..., sources=[...]) takes the arguments of
    torch.utils.cpp_extension.load, and torch=False for a module that does not use torch. Relative paths are relative to the working
    folder. build_directory is where compiled modules are kept. With is_python_module=False the library is loaded for its
    operators, and its path is returned.
    """
    if sources is None:
        return _import(_ask(name, build_directory, verbose, retry), is_python_module)
    spec = {
        "name": name,
        "sources": _list(sources),
        "torch": torch,
        "include": _list(extra_include_paths),
        "flags": {
            "cxx": _list(extra_cflags), "nvcc": _list(extra_cuda_cflags), "hip": _list(extra_cuda_cflags), "link": _list(extra_ldflags),
        },
        "libraries": _list(libraries),
        "library_dirs": _list(library_dirs),
        "cuda": bool(with_cuda),
        "prebuilt": False if prebuilt is None else prebuilt,
    }  # fmt: skip
    if archs:
        spec["archs"] = archs
    if not is_python_module:
        spec["kind"] = "library"
    return _import(_ask(spec, build_directory, verbose, retry), is_python_module)


def _ask(spec, build_directory=None, verbose=False, retry=False):
    """The answer of kiln jit for a spec, or for the path of one: a map with name, path and torch."""
    argv, text = [_kiln(), "jit", "--json", "--python", sys.executable], None
    if isinstance(spec, dict):
        argv.append("-")
        text = _yaml(spec)
        asked = text.encode()
    else:
        argv.append(os.fspath(spec))
        with open(spec, "rb") as f:
            asked = f.read()
    if build_directory:
        argv += ["--cache-dir", os.fspath(build_directory)]
    question = _question(argv, asked, os.environ)
    answer = None if retry else _recall(build_directory, question)
    if answer is None:
        argv += ["--remember-as", question] + ["--verbose"] * bool(verbose) + ["--retry"] * bool(retry)
        done = subprocess.run(argv, input=text, stdout=subprocess.PIPE, text=True)
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if done.returncode != 0 or "path" not in answer:
            raise BuildError(
                answer.get("error") or "kiln jit ended with exit code %d" % done.returncode,
                answer.get("diagnoses", ()), answer.get("log"), answer.get("name"),
            )
    return answer


_escape = re.compile(r"""\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|\x7f""")


def _yaml(spec):
    """A spec as JSON that is YAML too, which has no surrogate pairs."""

    def one(m):
        if m[0] == "\x7f":
            return "\\u007f"
        if not m[1]:
            return m[0]
        return "\\U%08x" % (0x10000 + ((int(m[1], 16) - 0xD800) << 10) + int(m[2], 16) - 0xDC00)

    return _escape.sub(one, json.dumps(spec))


def _question(argv, asked, env):
    """A name for everything that decides the answer and is no file that kiln looks at."""
    parts = [argv, os.getcwd(), sorted(env.items())]
    try:
        program = os.stat(shutil.which(argv[0]) or argv[0])
        parts.append((program.st_mtime_ns, program.st_size))
    except OSError:
        pass
    for folder in ("/proc/driver/nvidia/gpus", "/sys/class/kfd/kfd/topology/nodes"):
        try:
            parts.append(sorted(os.listdir(folder)))
        except OSError:
            pass
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape") + b"\0" + asked).hexdigest()[:32]


def _store(build_directory):
    """Where kiln jit keeps compiled modules."""
    cache = build_directory or os.environ.get("KILN_CACHE_DIR")
    if cache:
        return os.path.join(cache, "jit")
    if os.environ.get("TORCH_EXTENSIONS_DIR"):
        return os.environ["TORCH_EXTENSIONS_DIR"]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "kiln", "jit")


def _recall(build_directory, question):
    """The answer of an earlier call, if every file that it depended on is as it was. Anything else is left to kiln itself."""
    try:
        with open(os.path.join(_store(build_directory), "v1", "memory", question), encoding="utf-8", errors="surrogateescape") as f:
            lines = f.read().split("\n")
        if lines[0] != "kiln-jit-memory/2" or lines[-1] != "":
            return None
        for line in lines[2:-1]:
            size, modified, changed, inode, flag, path = line.split(" ", 5)
            try:
                now = os.stat(path)
            except OSError:
                if flag != "a":
                    return None
                continue
            folder = now.st_mode & 0o170000 == 0o040000
            if (
                flag != "-" or int(modified, 36) != now.st_mtime_ns or int(changed, 36) != now.st_ctime_ns
                or int(inode, 36) != now.st_ino or not folder and int(size, 36) != now.st_size
            ):
                return None
        answer = json.loads(lines[1])
        # kiln notes once an hour that a module in its folder is still used, beside the folder of the module or of the wheel that has it.
        kept = os.path.join(os.path.abspath(_store(build_directory)), "v1")
        parts = os.path.relpath(answer["path"], kept).split(os.sep)
        if parts[0] != os.pardir and time.time() - os.stat(os.path.join(kept, *parts[:2]) + ".used").st_mtime >= 3600:
            return None
        return answer
    except (OSError, ValueError, IndexError, KeyError):
        return None


def _list(value):
    if value is None:
        return []
    if isinstance(value, (str, os.PathLike)):
        value = [value]
    return [os.fspath(v) for v in value]


def _import(answer, is_python_module=True, name=None):
    name, path = name or answer["name"], answer["path"]
    if answer["torch"]:
        import torch

        if not is_python_module:
            torch.ops.load_library(path)
            return path
    known = sys.modules.get(name)
    if getattr(known, "__file__", None) == path:
        return known
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[name] = module
    return module
