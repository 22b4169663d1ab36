"""Compile csrc/saxpy_kernel.cuh with NVRTC: no nvcc, no host compiler, no GPU.

    python tests/nvrtc_cubin.py OUT 7.5 8.0 9.0

writes OUT/sm_75.cubin and so on and prints one line for each. NVRTC comes from the
package nvidia-cuda-nvrtc of this interpreter, or from the file in HELLO_CUDA_NVRTC.
"""

import argparse
import ctypes
import glob
import importlib.util
import os
import pathlib
import sys
import time

KERNEL = pathlib.Path(__file__).parent.parent / "csrc" / "saxpy_kernel.cuh"


def find():
    """Return the path of libnvrtc."""
    if os.environ.get("HELLO_CUDA_NVRTC"):
        return os.environ["HELLO_CUDA_NVRTC"]
    package = importlib.util.find_spec("nvidia")
    for place in package.submodule_search_locations if package else ():
        # nvidia/cu13/lib since CUDA 13, nvidia/cuda_nvrtc/lib before; the .alt twin is left out.
        for path in sorted(glob.glob(os.path.join(place, "cu*", "lib", "libnvrtc.so.*"))):
            return path
    sys.exit("no NVRTC: install nvidia-cuda-nvrtc or set HELLO_CUDA_NVRTC to libnvrtc.so")


class Nvrtc:
    def __init__(self, path):
        # NVRTC opens its builtins by bare name at the first compile. A library that is
        # loaded already is found under that name wherever it lies.
        for builtins in glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so.*")):
            ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(path)
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name}: {self.lib.nvrtcGetErrorString(status).decode()}")

    def text(self, program, what):
        """Return one of a program's results (CUBIN, ProgramLog, ...), which come as size and bytes."""
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def cubin(self, source, name, arch):
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, name, 0, None, None)
        try:
            options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
            try:
                self.call("nvrtcCompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
            except RuntimeError as error:
                log = self.text(program, "ProgramLog").rstrip(b"\0\n").decode()
                raise RuntimeError(f"{arch}: {error}\n{log}") from None
            return self.text(program, "CUBIN")
        finally:
            self.call("nvrtcDestroyProgram", ctypes.byref(program))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("archs", nargs="+", metavar="X.Y")
    args = parser.parse_args()

    nvrtc = Nvrtc(find())
    source = KERNEL.read_bytes()
    args.out.mkdir(parents=True, exist_ok=True)
    for arch in args.archs:
        sm = "sm_" + arch.replace(".", "")
        start = time.perf_counter()
        try:
            cubin = nvrtc.cubin(source, KERNEL.name.encode(), sm)
        except RuntimeError as error:
            sys.exit(str(error))
        (args.out / f"{sm}.cubin").write_bytes(cubin)
        print(f"{sm}: {len(cubin)} bytes in {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
