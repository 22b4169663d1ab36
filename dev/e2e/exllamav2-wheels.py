"""Makes wheels of ExLlamaV2 0.3.2 that have the names it really takes from torch.

Arguments: a folder to work in, and torch releases. The sources are those of the wheel on PyPI, the
headers those of torch and CUDA 12.8 there, read by range requests. All C++ files are compiled by g++.
The kernels (.cu) are not: functions that do nothing stand in for them. Of torch they use the current
stream, the guard of a device and the device of a tensor, as the C++ files do. Needs pip and g++.
"""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import zipfile


spec = importlib.util.spec_from_file_location("slim", os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch-slim.py"))
slim = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slim)
TAG = "cp%d%d" % sys.version_info[:2]
CUDA = ["nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cuda-nvcc-cu12==12.8.93", "nvidia-cublas-cu12==12.8.4.1", "nvidia-cusparse-cu12==12.5.8.93"]
CUDA += ["nvidia-cusolver-cu12==11.7.3.90", "nvidia-cuda-cccl-cu12==12.8.90"]
LIBRARIES = ["libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libcudart.so.12", "libc10_cuda.so", "libtorch_cuda.so", "libcublas.so.12"]


def unpack(requirement, pattern, folder):
    if os.path.isdir(folder):
        return
    with zipfile.ZipFile(slim.Remote(slim.address(TAG, requirement))) as z:
        infos = sorted((i for i in z.infolist() if re.search(pattern, i.filename) and not i.is_dir()), key=lambda i: i.header_offset)
        for info in infos:
            z.extract(info, folder + ".part")
    os.rename(folder + ".part", folder)


def compile(work, version, sources):
    """Return the extension for a torch release."""
    out = os.path.join(work, "exllamav2-" + version)
    name = "exllamav2_ext" + sysconfig.get_config_var("EXT_SUFFIX")
    to = os.path.join(out, name)
    if os.path.exists(to):
        return to
    os.makedirs(out, exist_ok=True)
    torch = os.path.join(work, "torch-" + version)
    unpack("torch==" + version, "^torch/include/", torch)
    include = os.path.join(torch, "torch", "include")
    old = tuple(map(int, version.split(".")[:2])) < (2, 7)
    argv = ["g++", "-O2", "-w", "-fPIC", "-std=c++17", "-DTORCH_EXTENSION_NAME=exllamav2_ext", "-D_GLIBCXX_USE_CXX11_ABI=%d" % (not old)]
    argv += ["-I", include, "-I", os.path.join(include, "torch", "csrc", "api", "include"), "-I", sysconfig.get_paths()["include"], "-I", sources]
    for requirement in CUDA:
        folder = os.path.join(work, requirement)
        unpack(requirement, "/include/", folder)
        argv += ["-I", os.path.join(folder, "nvidia", os.listdir(os.path.join(folder, "nvidia"))[0], "include")]
    # One translation unit: the headers of torch are read once. Those of ExLlamaV2 must be, too.
    for folder, _, names in os.walk(sources):
        for name in names:
            if name.endswith((".h", ".cuh")):
                with open(os.path.join(folder, name), "r+") as f:
                    text = f.read()
                    if "#pragma once" not in text:
                        f.seek(0)
                        f.write("#pragma once\n" + text)
    unit, obj = os.path.join(out, "unit.cpp"), os.path.join(out, "unit.o")
    files = sorted(f for folder in (sources, os.path.join(sources, "cpp")) for f in os.listdir(folder) if f.endswith(".cpp"))
    with open(unit, "w") as f:
        f.writelines('#include "%s"\n' % (n if n.startswith("ext_") else "cpp/" + n) for n in files)
    subprocess.run(argv + ["-c", unit, "-o", obj], check=True)
    # What the kernels' files define: functions without a namespace, and methods of its own classes.
    text = subprocess.run(["nm", "-u", obj], check=True, capture_output=True, text=True).stdout
    own = sorted(n for n in re.findall(r"U (_Z\S+)", text) if re.match(r"_Z\d+(?!THP)|_ZNK?\d+(?!torch|pybind11)[A-Z]", n))
    stand = os.path.join(out, "kernels.c")
    with open(stand, "w") as f:
        f.write("static void nothing(void) {}\n")
        f.writelines('__asm__(".globl %s\\n.set %s, nothing");\n' % (n, n) for n in own)
    # Libraries with the names of torch's and nothing in them: only their names come into the module.
    lib = os.path.join(out, "lib")
    os.makedirs(lib, exist_ok=True)
    for soname in LIBRARIES:
        subprocess.run(["gcc", "-shared", "-nostdlib", "-Wl,-soname," + soname, "-x", "c", "/dev/null", "-o", os.path.join(lib, soname)], check=True)
    argv = ["g++", "-shared", "-fPIC", "-w", "-Wl,--unresolved-symbols=ignore-all", "-Wl,--no-as-needed", "-o", to + ".part", obj, stand]
    subprocess.run(argv + [os.path.join(lib, n) for n in LIBRARIES], check=True)
    os.rename(to + ".part", to)
    print("torch %s: %d files of C++, %d functions of kernels" % (version, len(files), len(own)), flush=True)
    return to


def main(work, *versions):
    os.makedirs(work, exist_ok=True)
    unpack("exllamav2==0.3.2", "^exllamav2/exllamav2_ext/", os.path.join(work, "source"))
    for version in versions:
        library = compile(work, version, os.path.join(work, "source", "exllamav2", "exllamav2_ext"))
        with open(library, "rb") as f:
            slim.pack(work, "exllamav2", "0.3.2+cu128.torch" + version, "%s-%s" % (TAG, TAG), {os.path.basename(library): f.read()})


main(*sys.argv[1:])
