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
    """Yield name and version of what gets a stand-in; the real ones of some are small."""
    with zipfile.ZipFile(wheel) as z:
        name = next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
        text = z.read(name).decode()
    for line in text.splitlines():
        m = re.match(r"Requires-Dist: ((?:nvidia|triton|cuda-toolkit)[a-z0-9-]*)(?:\[[^]]*\])? ?\(?[=~]=([^;) ]+)", line)
        if m and not re.match("nvidia-(cuda-runtime|nvtx)", m.group(1)):
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
        "libnvJitLink.so": "nvJitLink|__nvJitLink", "libnvshmem_host.so": "nvshmem",
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
    info, platform = stem + ".dist-info/", "manylinux_2_28_x86_64"
    # Before the real one, which has an older platform in its name, or a Python.
    tags = ["py3-none"] if name != "triton" else ["%s-%s" % (p, p) for p in ("cp310", "cp311", "cp312", "cp313")]
    files = dict(files)
    text = "Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: stands in for the real one\n" % (name, version)
    if name == "cuda-toolkit":  # a package of packages, of which some are small
        text += "".join("Requires-Dist: nvidia-%s==%s.*\n" % (n, version.rpartition(".")[0]) for n in ("cuda-runtime", "nvtx"))
    files[info + "METADATA"] = text.encode()
    wheel = "Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: false\nBuild: 99\n" + "".join("Tag: %s-%s\n" % (t, platform) for t in tags)
    files[info + "WHEEL"] = wheel.encode()
    record = "".join(
        "%s,sha256=%s,%d\n" % (p, base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b"=").decode(), len(b)) for p, b in files.items()
    )
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    for tag in tags:
        with zipfile.ZipFile(os.path.join(folder, "%s-99-%s-%s.whl" % (stem, tag, platform)), "w", zipfile.ZIP_DEFLATED) as z:
            for p, b in files.items():
                z.writestr(p, b)


# Which libraries a package has. Those of CUDA 13 are in one folder, and one package has most of them.
FOLDERS = {
    "cublas": ["libcublas.so", "libcublasLt.so"], "cuda_cupti": ["libcupti.so"], "cuda_nvrtc": ["libnvrtc.so"], "cudnn": ["libcudnn.so"],
    "cufft": ["libcufft.so"], "curand": ["libcurand.so"], "cusolver": ["libcusolver.so"], "cusparse": ["libcusparse.so"],
    "cusparselt": ["libcusparseLt.so"], "nccl": ["libnccl.so"], "nvjitlink": ["libnvJitLink.so"], "cufile": ["libcufile.so"],
    "nvshmem": ["libnvshmem_host.so"],
}
FOLDERS["cuda_toolkit"] = [n for p in ("cublas", "cuda_cupti", "cuda_nvrtc", "cufft", "curand", "cusolver", "cusparse", "nvjitlink", "cufile") for n in FOLDERS[p]]


def main(source, out):
    """One torch of every version is read. Two versions may require the same library: it has the symbols of both."""
    packages, seen = {}, set()
    for wheel in sorted(glob.glob(os.path.join(source, "torch-*.whl"))):
        version = os.path.basename(wheel).split("-")[1]
        if version in seen:
            continue
        seen.add(version)
        with tempfile.TemporaryDirectory(dir=out) as tmp:
            with zipfile.ZipFile(wheel) as z:
                z.extractall(tmp, [n for n in z.namelist() if re.fullmatch(r"torch/lib/[^/]*\.so[^/]*", n)])
            libraries = needed(tmp)
        for requirement in requirements(wheel):
            short = re.sub(r"^nvidia-|-cu\d+$", "", requirement[0]).replace("-", "_")
            files = packages.setdefault(requirement, {})
            for soname in libraries:
                if soname.split(".so")[0] + ".so" in FOLDERS.get(short, []):
                    folder = {"cuda_toolkit": "nvidia/cu13", "cusparselt": "cusparselt" if requirement[0].endswith("cu12") else "nvidia/cusparselt"}
                    path = folder.get(short, "nvidia/" + short) + "/lib/" + soname
                    files.setdefault(path, set()).update(libraries[soname])
    for (name, version), wanted in sorted(packages.items()):
        files = {}
        for path, symbols in wanted.items():
            with tempfile.TemporaryDirectory() as tmp:
                library = os.path.join(tmp, "lib.so")
                compile_library(os.path.basename(path), symbols, library)
                with open(library, "rb") as f:
                    files[path] = f.read()
        if name == "triton":
            files["triton/__init__.py"] = b'raise ImportError("this triton is a stand-in")\n'
        write_wheel(out, name, version, files)
        print(name, version, sorted(wanted))


if __name__ == "__main__":
    main(*sys.argv[1:])
