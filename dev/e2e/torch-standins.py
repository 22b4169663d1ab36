"""Makes wheels that stand in for what torch requires of NVIDIA and triton.

Arguments: a folder with torch wheels, and the folder for the new ones. Every library has the name,
the symbols and the symbol versions that torch's own libraries ask for, and no function behind any of
them: enough to import torch and to compile against it. Needs a C compiler and readelf.
"""

import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile



def requirements(wheel):
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
        text = z.read(name).decode()
    for line in text.splitlines():
        m = re.match(r"Requires-Dist: ((?:nvidia|triton)[a-z0-9-]*) ?\(?==([^;) ]+)", line)
        if m:
            yield m.group(1), m.group(2)


def needed(folder):
    """Return the libraries that torch's name, with the symbols that they must have, by version."""
    wanted, symbols = {}, {}
    for lib in glob.glob(os.path.join(folder, "torch", "lib", "*.so*")):
        text = subprocess.run(["readelf", "-dW", "--dyn-syms", lib], capture_output=True, text=True, check=True).stdout
        for name in re.findall(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)[^\]]+)\]", text):
            wanted.setdefault(name, set())
        for line in text.splitlines():
            m = re.search(r" UND ([A-Za-z_]\w*)(?:@(\S+))?", line)
            if m:
                symbols.setdefault(m.group(1), m.group(2) or "")
    prefixes = {
        "libcublas.so": r"cublas(?!Lt)", "libcublasLt.so": "cublasLt", "libcudnn.so": "cudnn", "libcufft.so": "cufft", "libcurand.so": "curand",
        "libcusolver.so": "cusolver", "libcusparse.so": "cusparse(?!Lt)", "libcusparseLt.so": "cusparseLt", "libnccl.so": "nccl",
        "libnvrtc.so": "nvrtc", "libcudart.so": "(?:cuda|__cuda)", "libcupti.so": "cupti", "libnvToolsExt.so": "nvtx", "libcufile.so": "cuFile",
        "libnvJitLink.so": "nvJitLink|__nvJitLink",
    }
    for lib in wanted:
        pattern = prefixes.get(lib.split(".so")[0] + ".so")
        if pattern:
            wanted[lib] = {(s, v) for s, v in symbols.items() if re.match(pattern, s)}
    return wanted


def compile_library(soname, symbols, to):
    with tempfile.TemporaryDirectory() as tmp:
        source, script = os.path.join(tmp, "a.c"), os.path.join(tmp, "a.map")
        with open(source, "w") as f:
            f.writelines("int %s(void) { return 1; }\n" % s for s, _ in sorted(symbols))
        versions = {}
        for symbol, version in symbols:
            versions.setdefault(version or soname, []).append(symbol)
        with open(script, "w") as f:
            for version, names in sorted(versions.items()) or [(soname, ["kiln_nothing"])]:
                f.write("%s { global: %s; };\n" % (version, "; ".join(sorted(names))))
        argv = ["cc", "-shared", "-fPIC", "-nostdlib", "-w", "-Wl,-soname," + soname, "-o", to, source]
        if any(v for _, v in symbols):
            argv.append("-Wl,--version-script=" + script)
        subprocess.run(argv, check=True)


def write_wheel(folder, name, version, files):
    """files: path in the wheel to bytes."""
    stem = "%s-%s" % (name.replace("-", "_"), version)
    info = stem + ".dist-info/"
    files = dict(files)
    files[info + "METADATA"] = ("Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: stands in for the real one\n" % (name, version)).encode()
    files[info + "WHEEL"] = b"Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_28_x86_64\nBuild: 99\n"
    record = "".join(
        "%s,sha256=%s,%d\n" % (p, base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b"=").decode(), len(b)) for p, b in files.items()
    )
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    # Before the real one, which has an older platform in its name.
    path = os.path.join(folder, stem + "-99-py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for p, b in files.items():
            z.writestr(p, b)


def main(source, out):
    wheels = sorted(glob.glob(os.path.join(source, "torch-*.whl")))
    with tempfile.TemporaryDirectory() as tmp:
        with zipfile.ZipFile(wheels[0]) as z:
            z.extractall(tmp, [n for n in z.namelist() if re.fullmatch(r"torch/lib/[^/]*\.so[^/]*", n)])
        libraries = needed(tmp)
    folders = {
        "cublas": ["libcublas.so", "libcublasLt.so"], "cuda_cupti": ["libcupti.so"], "cuda_nvrtc": ["libnvrtc.so"], "cuda_runtime": ["libcudart.so"],
        "cudnn": ["libcudnn.so"], "cufft": ["libcufft.so"], "curand": ["libcurand.so"], "cusolver": ["libcusolver.so"], "cusparse": ["libcusparse.so"],
        "cusparselt": ["libcusparseLt.so"], "nccl": ["libnccl.so"], "nvtx": ["libnvToolsExt.so"], "nvjitlink": ["libnvJitLink.so"], "cufile": ["libcufile.so"],
    }
    for name, version in sorted({r for w in wheels for r in requirements(w)}):
        files = {}
        short = re.sub(r"^nvidia-|-cu\d+$", "", name).replace("-", "_")
        for stem in folders.get(short, []):
            for soname in (s for s in libraries if s.split(".so")[0] + ".so" == stem):
                with tempfile.TemporaryDirectory() as tmp:
                    path = os.path.join(tmp, "lib.so")
                    compile_library(soname, libraries[soname], path)
                    base = "cusparselt/lib/" if short == "cusparselt" else "nvidia/%s/lib/" % short
                    with open(path, "rb") as f:
                        files[base + soname] = f.read()
        if name == "triton":
            files["triton/__init__.py"] = b'raise ImportError("this triton is a stand-in")\n'
        write_wheel(out, name, version, files)
        print(name, version, sorted(files)[:2])


main(*sys.argv[1:])
