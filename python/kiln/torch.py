"""torch's loader of extensions, done by `kiln jit`.

A program that calls torch.utils.cpp_extension.load or load_inline runs unedited:

    python -m kiln.torch PROGRAM ...      # a script, -m MODULE, -c CODE, or a program on PATH

From Python, also after the program imported torch's functions:

    import kiln.torch
    kiln.torch.install()

A package that ships its sources gets its module, compiled elsewhere or here, with

    _C = kiln.torch.extension("_C", sources=["csrc/*.cpp", "csrc/*.cu"])

torch is imported when something is loaded, and never before.
"""

import functools
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings

from ._jit import BuildError, _ask, _import, _list
from ._site import sitecustomize as _hook

__all__ = ["BuildError", "extension", "install", "load", "load_inline", "path"]

_originals = {}


def load(*args, **kwargs):
    """Do what torch.utils.cpp_extension.load does, with the arguments of the installed torch."""
    return _load(_bind("load", args, kwargs))


def load_inline(*args, **kwargs):
    """Do what torch.utils.cpp_extension.load_inline does, with the arguments of the installed torch."""
    a = _bind("load_inline", args, kwargs)
    cpp, cuda = _texts(a.get("cpp_sources")), _texts(a.get("cuda_sources"))
    functions = a.get("functions")
    if isinstance(functions, str):
        functions = [functions]
    if functions is not None and not isinstance(functions, (list, dict)):
        raise ValueError("Expected 'functions' to be a list or dict, but was %s" % type(functions))
    implicit = not a.get("no_implicit_headers")
    if implicit:
        cpp.insert(0, "#include <torch/extension.h>")
        cuda[:0] = ["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>"] if cuda else []
    if functions is not None:
        wrap = "torch::wrap_pybind_function(%s)" if a.get("with_pytorch_error_handling", True) else "%s"
        named = functions.items() if isinstance(functions, dict) else ((f, f) for f in functions)
        cpp.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        cpp += ['m.def("%s", %s, "%s");' % (f, wrap % f, doc) for f, doc in named]
        cpp.append("}")
    inline = {"main.cpp": "\n".join(cpp) + "\n"}
    if cuda:
        inline["cuda.cu"] = "\n".join(cuda) + "\n"
    return _load(a, inline)


def _texts(value):
    return [value] if isinstance(value, str) else list(value or ())


# What torch 2.6 has; an installed torch says it itself.
_LOAD = "name sources extra_cflags extra_cuda_cflags extra_ldflags extra_include_paths build_directory verbose=False with_cuda \
is_python_module=True is_standalone=False keep_intermediates=True"
_LOAD_INLINE = "name cpp_sources cuda_sources functions extra_cflags extra_cuda_cflags extra_ldflags extra_include_paths \
build_directory verbose=False with_cuda is_python_module=True with_pytorch_error_handling=True keep_intermediates=True use_pch=False"


def _signature(text):
    kind, parameters = inspect.Parameter.POSITIONAL_OR_KEYWORD, []
    for i, word in enumerate(text.split()):
        name, _, value = word.partition("=")
        default = inspect.Parameter.empty if i < 2 else {"True": True, "False": False, "": None}[value]
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


def _original(name):
    """torch's own function; None if it cannot be imported."""
    if name not in _originals:
        try:
            import torch.utils.cpp_extension as theirs
        except ImportError:
            return None
        _originals.setdefault(name, getattr(theirs, name))
    return _originals[name]


def _bind(name, args, kwargs):
    """The arguments by name. Releases of torch have them in different orders."""
    theirs = _original(name)
    signature = inspect.signature(theirs) if theirs else _signature(_LOAD if name == "load" else _LOAD_INLINE)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    why = _beyond(given)
    if why and theirs:
        said = "kiln.torch leaves %s to torch's own loader: %s" % (given["name"], why)
        given["_torch"] = functools.partial(theirs, *args, **kwargs), said
    elif why:
        raise BuildError("%s: %s" % (given["name"], why))
    return given


_COMPILED = (".c", ".cc", ".cpp", ".cxx", ".c++", ".cu", ".hip")


def _beyond(a):
    """What kiln jit does not compile, if there is something."""
    if os.name == "nt":
        return "kiln jit does not compile on Windows"
    if a.get("with_sycl") or a.get("sycl_sources") or a.get("extra_sycl_cflags"):
        return "kiln jit does not compile SYCL"
    others = [s for s in _list(a.get("sources")) if not s.lower().endswith(_COMPILED)]
    return "kiln jit does not compile %s" % others[0] if others else None


def _load(a, inline=None):
    if "_torch" in a:
        theirs, why = a["_torch"]
        warnings.warn(why, RuntimeWarning, stacklevel=3)
        return theirs()
    if a.get("is_standalone") and a["is_python_module"]:
        raise ValueError("`is_python_module` and `is_standalone` are mutually exclusive.")
    kind = "program" if a.get("is_standalone") else "module" if a["is_python_module"] else "library"
    cxx, cuda = _words(a["extra_cflags"]), _words(a["extra_cuda_cflags"])
    spec = {
        "name": a["name"],
        "kind": kind,
        "torch": True,
        "cuda": bool(a["with_cuda"]),
        "c_as_cxx": True,
        # A folder that is not there is no mistake for a compiler.
        "include": [p for p in map(os.path.abspath, (p.strip() for p in _list(a["extra_include_paths"]))) if os.path.isdir(p)],
        # torch gives the flags of C++ to hipcc too, but not to nvcc.
        "flags": {"cxx": cxx, "nvcc": cuda, "hip": cxx + cuda, "link": _words(a["extra_ldflags"])},
        "prebuilt": False,
    }
    if inline:
        spec["inline"] = inline
    else:
        sources = [os.path.abspath(s) for s in _list(a["sources"])]
        # The module is the same in whatever folder the program is started.
        spec["root"] = os.path.commonpath([os.path.dirname(s) for s in sources]) if sources else os.getcwd()
        spec["sources"] = sources
    answer = _ask(spec, a["build_directory"], a["verbose"])
    link = _place(answer["path"], a["name"] + ("" if kind == "program" else ".so"), a["name"], a["build_directory"])
    if kind == "module":
        return _import(answer)
    if kind == "library":
        _import(answer, False)
    return link or answer["path"]


_ninja = re.compile(r"\$(?:([$ :])|\{[\w.-]+\}|[\w-]+)")


def _words(flags):
    """Flags as compilers get them from torch, which writes them into a ninja file as they are: ninja and a shell read them."""
    line = _ninja.sub(lambda m: m[1] or "", " ".join(f.strip() for f in _list(flags)))
    if re.search(r"[$`]", line) and os.name != "nt":
        script = "for word in " + line + '; do printf "%s\\0" "$word"; done'
        out = subprocess.run(["/bin/sh", "-c", script], stdout=subprocess.PIPE, check=True)
        return [os.fsdecode(w) for w in out.stdout.split(b"\0")[:-1]]
    return shlex.split(line)


def _place(path, file, name, folder):
    """Leave a link where torch would have left the file, for programs that look there; None where that cannot be done."""
    try:
        if not folder:
            import torch.utils.cpp_extension as theirs

            folder = theirs._get_build_directory(name, False)
        os.makedirs(folder, exist_ok=True)
        link = os.path.join(folder, file)
        if not os.path.islink(link) or os.readlink(link) != path:
            temporary = "%s.%d" % (link, os.getpid())
            os.symlink(path, temporary)
            os.replace(temporary, link)
        return link
    except (ImportError, AttributeError, OSError):
        return None


def install():
    """Put load and load_inline in the place of torch's for this process, now or as soon as torch.utils.cpp_extension is imported.

    Modules that imported torch's functions by name get them too.
    """
    theirs = sys.modules.get(_hook.TARGET)
    if theirs is None:
        if not any(isinstance(f, _hook.Finder) for f in sys.meta_path):
            sys.meta_path.insert(0, _hook.Finder(install))
        return
    for name, ours in (("load", load), ("load_inline", load_inline)):
        original = getattr(theirs, name)
        if getattr(original, "__kiln__", False):
            continue
        _originals[name] = original
        stand_in = functools.wraps(original)(lambda *args, ours=ours, **kwargs: ours(*args, **kwargs))
        stand_in.__kiln__ = True
        for module in list(sys.modules.values()):
            known = getattr(module, "__dict__", None)
            for key in [k for k, v in list(known.items()) if v is original] if isinstance(known, dict) else ():
                known[key] = stand_in


def extension(
    name,
    sources,
    include_dirs=(),
    define_macros=(),
    libraries=(),
    library_dirs=(),
    extra_compile_args=(),
    extra_link_args=(),
    *,
    package=None,
    root=None,
    cuda=None,
    archs=None,
    wheels=(),
    verbose=False,
):
    """Return the extension of a package, and make it importable: from its __init__, with the arguments of torch's CUDAExtension.

    A module that was compiled elsewhere is taken if it fits this Python, torch and GPUs: from the package's own folder, from
    site-packages, or from the folders of wheels. Otherwise the sources are compiled, once. Paths are relative to the file of the
    caller, or to root. A name without dots is inside of the package of the caller. If there is no module, the error is a
    BuildError with everything that was found and what to do.
    """
    caller = sys._getframe(1).f_globals
    if package is None:
        package = caller.get("__package__") or ""
    full = name if "." in name or not package else package + "." + name
    if full in sys.modules:
        return sys.modules[full]
    folder = os.path.dirname(os.path.abspath(caller.get("__file__") or "."))
    root = os.path.abspath(os.path.join(folder, root)) if root else folder
    args = extra_compile_args if isinstance(extra_compile_args, dict) else {"cxx": extra_compile_args, "nvcc": extra_compile_args}
    macros = ["-D%s" % k if v is None else "-D%s=%s" % (k, v) for k, v in define_macros]
    parent, _, tail = full.rpartition(".")
    spec = {
        "name": tail,
        "torch": True,
        "root": root,
        "sources": _list(sources),
        "include": _list(include_dirs),
        "flags": {
            "cxx": macros + _list(args.get("cxx")), "nvcc": macros + _list(args.get("nvcc")),
            "hip": macros + _list(args.get("hip", args.get("nvcc"))), "link": _list(extra_link_args),
        },
        "libraries": _list(libraries),
        "library_dirs": _list(library_dirs),
        "cuda": bool(cuda),
        "prebuilt": {"modules": [full] if full == tail else [full, tail], "folders": [folder], "wheels": _list(wheels)},
    }
    if archs:
        spec["archs"] = archs
    module = _import(_ask(spec, verbose=verbose), name=full)
    if parent in sys.modules:
        setattr(sys.modules[parent], tail, module)
    return module


def path():
    """A folder for PYTHONPATH: every Python that is started with it has kiln's loader in the place of torch's."""
    return os.path.dirname(os.path.abspath(_hook.__file__))


_USAGE = "usage: python -m kiln.torch PROGRAM [arguments]\nPROGRAM is a script, -m MODULE, -c CODE, or a program on PATH"


def _check(args):
    """Python's own options may precede a program, but for those with which it would not see the folder of path()."""
    words = iter(args)
    for word in words:
        if not word.startswith("-") or word == "-":
            return
        for i, letter in enumerate("" if word.startswith("--") else word[1:]):
            if letter in "EIS":
                raise SystemExit("kiln.torch: with Python's option -%s it would not reach the program: leave it out" % letter)
            if letter in "cm":
                return
            if letter in "WX":
                if i + 2 == len(word):
                    next(words, None)
                break
        if word == "--check-hash-based-pycs":
            next(words, None)
    raise SystemExit(_USAGE)


def main(args):
    """Run a program, and the programs that it starts, with kiln's loader in the place of torch's."""
    if not args or args[0] in ("-h", "--help"):
        raise SystemExit(_USAGE)
    if args[0].startswith("-") or os.path.exists(args[0]):
        _check(args)
        argv = [sys.executable] + subprocess._args_from_interpreter_flags() + args
    else:
        found = shutil.which(args[0])
        if not found:
            raise SystemExit("kiln.torch: %s is neither a file nor a program on PATH" % args[0])
        argv = [found] + args[1:]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = path() + (os.pathsep + before if before else "")
    sys.stdout.flush()
    if os.name == "nt":
        raise SystemExit(subprocess.call(argv))
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main(sys.argv[1:])
