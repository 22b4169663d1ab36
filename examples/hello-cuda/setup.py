"""Build of hello_cuda._native, with nvcc, with hipcc or without. README.md lists the variables.

Everything is decided when the extension is compiled, never when this file is read:
metadata and sdist need no toolkit.
"""

import glob
import logging
import os
import re
import shlex
import shutil
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import OptionError, PlatformError

WINDOWS = sys.platform == "win32"

# Used without TORCH_CUDA_ARCH_LIST. Every toolkit from 11.8 to 13 can emit all of these.
DEFAULT_ARCHS = "7.5 8.0 8.6 8.9 9.0+PTX"
# Used without PYTORCH_ROCM_ARCH.
DEFAULT_GFX = "gfx90a gfx1030 gfx1100"


def command(variable):
    """Return the words of a variable that holds a command, launcher included."""
    return shlex.split(os.environ.get(variable, ""), posix=not WINDOWS)


def toolkit_root():
    """Return the root of the CUDA toolkit that the environment points to, or None."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            return os.environ[variable]
    # Links are not resolved: the directory of a link is the one that was meant.
    nvcc = command("PYTORCH_NVCC")[-1:] or [shutil.which("nvcc") or ""]
    return os.path.dirname(os.path.dirname(os.path.abspath(nvcc[0]))) if nvcc[0] else None


def want_cuda():
    """Return whether to build with CUDA. BUILD_TARGET decides; a toolkit at hand, if it is silent."""
    target = os.environ.get("BUILD_TARGET", "")
    if target not in ("", "cuda", "rocm", "cpu"):
        raise OptionError(f"BUILD_TARGET={target} is not known to hello-cuda; set it to cuda, rocm or cpu")
    return target == "cuda" or (target == "" and toolkit_root() is not None)


def find_nvcc(root):
    """Return the nvcc command: PYTORCH_NVCC as it is, else bin/nvcc of the toolkit."""
    escape = "or set BUILD_TARGET=cpu to build without CUDA"
    if root is None:
        raise PlatformError(
            "BUILD_TARGET=cuda, but there is no nvcc: CUDA_HOME, CUDA_PATH and PYTORCH_NVCC are not set "
            f"and nvcc is not on PATH; install a CUDA toolkit and set CUDA_HOME to its root, {escape}"
        )
    nvcc = command("PYTORCH_NVCC") or [os.path.join(root, "bin", "nvcc.exe" if WINDOWS else "nvcc")]
    if shutil.which(nvcc[-1]) is None:
        raise PlatformError(
            f"no nvcc at {nvcc[-1]}; point CUDA_HOME to a toolkit with its compiler "
            f"(a runtime-only installation has none), {escape}"
        )
    return nvcc


def cudart_dir(root):
    """Return the directory of the static CUDA runtime."""
    name = "cudart_static.lib" if WINDOWS else "libcudart_static.a"
    places = ["lib/x64"] if WINDOWS else ["lib64", "lib", "targets/*/lib", "lib/*-linux-gnu"]
    for place in places:
        for path in sorted(glob.glob(os.path.join(glob.escape(root), place, name))):
            return os.path.dirname(path)
    raise PlatformError(
        f"no {name} under {root}; install the toolkit's cudart development package, "
        "or point CUDA_HOME to a toolkit that has it"
    )


def parse_archs(text):
    """Parse TORCH_CUDA_ARCH_LIST into a sorted {(major, minor, suffix): with PTX}.

    Items are X.Y with an optional a or f and an optional +PTX, separated by spaces,
    semicolons or commas. X.Y+PTX includes X.Y.
    """
    archs = {}
    for item in re.split(r"[ ;,]+", text):
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", item)
        if match is None:
            raise OptionError(
                f"TORCH_CUDA_ARCH_LIST: {item!r} is not an architecture; write numbers such as '8.0 9.0+PTX'"
            )
        major, minor, suffix, ptx = match.groups()
        arch = (int(major), int(minor), suffix)
        archs[arch] = archs.get(arch, False) or ptx is not None
    return dict(sorted(archs.items()))


def gencode(archs):
    for (major, minor, suffix), ptx in archs.items():
        sm = f"{major}{minor}{suffix}"
        yield f"-gencode=arch=compute_{sm},code=sm_{sm}"
        if ptx:
            yield f"-gencode=arch=compute_{sm},code=compute_{sm}"


def max_jobs():
    text = os.environ.get("MAX_JOBS") or "1"
    if not text.isdecimal():
        raise OptionError(f"MAX_JOBS={text} is not a number")
    return max(1, int(text))


def host_compiler():
    """Return the compiler for nvcc's host pass: CUDAHOSTCXX, else the one that CXX or CC names.

    -ccbin takes one program, so of "ccache g++-12 -m64" it gets g++-12. Without a hit
    nvcc chooses (NVCC_CCBIN, then PATH).
    """
    if os.environ.get("CUDAHOSTCXX"):
        return os.environ["CUDAHOSTCXX"]
    for word in () if WINDOWS else command("CXX") + command("CC"):
        if re.search(r"(^|[-/])(c\+\+|g\+\+|clang\+\+|cc|gcc|clang)(-[\d.]+)?$", word):
            return word
    return None


class Build(build_ext):
    def finalize_options(self):
        super().finalize_options()
        # setuptools compares dates of files, not flags: a tree that was built for the
        # CPU would pass as up to date for CUDA.
        self.force = True

    def build_extension(self, ext):
        cuda_sources = [s for s in ext.sources if s.endswith(".cu")]
        ext.sources = [s for s in ext.sources if not s.endswith(".cu")]
        if os.environ.get("BUILD_TARGET") == "rocm":
            self.add_rocm(ext, cuda_sources)
        elif want_cuda():
            self.add_cuda(ext, cuda_sources)
        else:
            self.announce("hello-cuda: building without CUDA", level=logging.INFO)
        super().build_extension(ext)

    def add_cuda(self, ext, sources):
        root = toolkit_root()
        nvcc = find_nvcc(root)
        archs = parse_archs(os.environ.get("TORCH_CUDA_ARCH_LIST", "").strip(" ;,") or DEFAULT_ARCHS)
        names = [f"{a}.{b}{s}{'+PTX' * ptx}" for (a, b, s), ptx in archs.items()]
        self.announce(f"hello-cuda: building with {shlex.join(nvcc)} for {' '.join(names)}", level=logging.INFO)

        ext.define_macros += [("HELLO_WITH_CUDA", None), ("HELLO_CUDA_ARCHS", ",".join(names))]
        ext.library_dirs.append(cudart_dir(root))
        ext.libraries += ["cudart_static"] if WINDOWS else ["cudart_static", "dl", "rt", "pthread"]

        flags = ["-std=c++17", "-O3", "-DHELLO_WITH_CUDA", *gencode(archs)]
        flags.append(f"--threads={min(max_jobs(), len(archs))}")
        if WINDOWS:
            flags += ["-Xcompiler", "/MD,/EHsc"]
        else:
            flags += ["-Xcompiler", "-fPIC,-fvisibility=hidden,-fno-exceptions,-g0"]
        ccbin = host_compiler()
        if ccbin:
            flags.append(f"-ccbin={ccbin}")
        for source in sources:
            obj = os.path.join(self.build_temp, os.path.splitext(source)[0] + (".cuda.obj" if WINDOWS else ".cuda.o"))
            os.makedirs(os.path.dirname(obj), exist_ok=True)
            self.spawn([*nvcc, *flags, "-c", source, "-o", obj])
            ext.extra_objects.append(obj)


    def add_rocm(self, ext, sources):
        root = os.environ.get("ROCM_HOME") or "/opt/rocm"
        hipcc = command("HIPCC") or [os.path.join(root, "bin", "hipcc")]
        if shutil.which(hipcc[-1]) is None:
            raise PlatformError(f"BUILD_TARGET=rocm, but there is no hipcc at {hipcc[-1]}; set ROCM_HOME to the folder of ROCm")
        archs = [a for a in re.split(r"[ ;,]+", os.environ.get("PYTORCH_ROCM_ARCH", "")) if a] or DEFAULT_GFX.split()
        self.announce(f"hello-cuda: building with {shlex.join(hipcc)} for {' '.join(archs)}", level=logging.INFO)
        ext.define_macros += [("HELLO_WITH_CUDA", None), ("HELLO_TOOLKIT", '"rocm"'), ("HELLO_CUDA_ARCHS", ",".join(archs))]
        ext.library_dirs.append(os.path.join(root, "lib"))
        ext.libraries.append("amdhip64")
        flags = ["-x", "hip", "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-g0", "-DHELLO_WITH_CUDA"]
        flags += [f"--offload-arch={a}" for a in archs]
        for source in sources:
            obj = os.path.join(self.build_temp, os.path.splitext(source)[0] + ".hip.o")
            os.makedirs(os.path.dirname(obj), exist_ok=True)
            self.spawn([*hipcc, *flags, "-c", source, "-o", obj])
            ext.extra_objects.append(obj)


if WINDOWS:
    compile_args, link_args = ["/std:c++17", "/O2", "/EHsc"], []
else:
    # -g0: debug information would carry the build directory into the binary.
    # -fno-exceptions: nothing here throws, and a plain C++ wheel then needs libc and libm only.
    compile_args, link_args = ["-std=c++17", "-O3", "-g0", "-fno-exceptions", "-fvisibility=hidden"], []
if sys.platform == "linux":
    # Export the init function only, not the runtime that was linked in. Strip: nvcc leaves
    # the name of a temporary file in the symbol table, and it is another one each time.
    link_args = ["-Wl,--exclude-libs,ALL", "-Wl,--as-needed", "-Wl,-s"]

setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(
            "hello_cuda._native",
            sources=["csrc/module.cpp", "csrc/saxpy_cpu.cpp", "csrc/saxpy.cu"],
            depends=["csrc/runtime.h", "csrc/saxpy.h", "csrc/saxpy_kernel.cuh"],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            language="c++",
        )
    ],
)
