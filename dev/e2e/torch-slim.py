"""Makes small wheels of torch's releases on PyPI, for tests without a GPU.

Arguments: the folder for the wheels, then releases such as cp312-2.10.0. Of a wheel only the parts
that are kept are read, by range requests: all of Python, the headers, and the real libtorch_cpu,
libtorch_python and libc10. In the place of libtorch_cuda and of NVIDIA's libraries come ones with
the names that the others ask for and nothing behind them, so that torch is imported and computes on
the CPU. Needs pip, a C compiler and readelf.
"""

import base64
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import zipfile

spec = importlib.util.spec_from_file_location("standins", os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch-standins.py"))
standins = importlib.util.module_from_spec(spec)
spec.loader.exec_module(standins)

# What a CPU does without. The last ones are programs and test data.
DROPPED = re.compile(
    r"torch/lib/lib(torch_cuda\w*|torch_nvshmem|caffe2_nvrtc|nvfuser\w*|torchbind_test|jitbackend_test|backend_with_compiler|aoti_custom_ops|c10d_cuda_test)\.so$"
    r"|torch/lib/lib(cud|cub|cuf|cus|cur|nv|nccl)\w*[-.]|torch/(bin/(?!torch_shm_manager)|test/|share/)|torch/lib/.*\.a$|.*\.pyi$"
)


class Remote(io.RawIOBase):
    """A file on a server that answers range requests."""

    def __init__(self, url):
        self.url, self.at, self.start, self.data = url, 0, 0, b""
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as r:
            self.size = int(r.headers["Content-Length"])

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def read(self, n=-1):
        n = self.size - self.at if n < 0 else min(n, self.size - self.at)
        if n <= 0:
            return b""
        if not self.start <= self.at <= self.at + n <= self.start + len(self.data):
            end = min(self.size, self.at + max(n, 16 << 20))
            request = urllib.request.Request(self.url, headers={"Range": "bytes=%d-%d" % (self.at, end - 1)})
            with urllib.request.urlopen(request) as r:
                self.start, self.data = self.at, r.read()
        out = self.data[self.at - self.start : self.at - self.start + n]
        self.at += n
        return out


def address(python, requirement):
    argv = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", "--target", tempfile.gettempdir()]
    argv += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3." + python[3:], requirement]
    for platform in ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64"):
        argv += ["--platform", platform]
    report = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return report["install"][0]["download_info"]["url"]


def symbols_of(lib):
    """Return the needed libraries, and the undefined and the defined names of a library."""
    text = subprocess.run(["readelf", "-dW", "--dyn-syms", lib], capture_output=True, text=True, check=True).stdout
    undefined, defined = set(), set()
    for line in text.splitlines():
        m = re.match(r"\s*\d+: [0-9a-f]+\s+\S+\s+\S+\s+(\S+)\s+\S+\s+(\S+)\s+([\w.$]+)", line)
        if m and m.group(2) != "UND":
            defined.add(m.group(3))
        elif m and m.group(1) != "WEAK":
            undefined.add(m.group(3))
    return re.findall(r"\(NEEDED\).*\[([^\]]+)\]", text), undefined, defined


def system():
    """Return the names of the C and C++ libraries of this machine."""
    names = set()
    for lib in ("libstdc++.so.6", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"):
        path = subprocess.run(["cc", "-print-file-name=" + lib], capture_output=True, text=True, check=True).stdout.strip()
        names |= symbols_of(path)[2]
    return names


def compile_torch(soname, names, to):
    with tempfile.NamedTemporaryFile("w", suffix=".c") as f:
        # Some functions are called when torch is imported, and some objects made and looked at: the
        # former return zeroed memory, the latter have a type and functions that do the same.
        f.write("extern char _ZTVN10__cxxabiv117__class_type_infoE[];\nstatic char buf[1 << 16] __attribute__((aligned(256)));\n")
        f.write('static void *nothing(void) { return buf; }\nstatic void *type[8] = {_ZTVN10__cxxabiv117__class_type_infoE + 16, "4kiln"};\n')
        f.write("#define VTABLE {0, type, %s}\nstatic void *vtable[66] = VTABLE;\n" % ", ".join(["nothing"] * 64))
        for i, name in enumerate(sorted(names)):
            if name.startswith("_ZTI"):
                f.write('void *s%d[8] = {_ZTVN10__cxxabiv117__class_type_infoE + 16, "%s"};\n' % (i, name[4:]))
            elif name.startswith("_ZTV"):
                f.write("void *s%d[66] = VTABLE;\n" % i)
            elif re.match("_ZTS|_ZGV", name):
                f.write("char s%d[4096] __attribute__((aligned(64)));\n" % i)
            elif re.match(r"_ZN.*C[12]E", name):
                f.write("void *s%d(void **self) { *self = vtable + 2; return self; }\n" % i)
            else:
                f.write("void *s%d(void) { return buf; }\n" % i)
            f.write('__asm__(".globl %s\\n.set %s, s%d");\n' % (name, name, i))
        f.flush()
        subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", "-w", "-Wl,-soname," + soname, "-o", to, f.name], check=True)


def hashed(data):
    """Return the digest and the size of a file as RECORD has them."""
    return "sha256=%s,%d" % (base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))


def pack(folder, name, version, tag, files):
    """Write a wheel with files, path to bytes, that requires torch. Return its path."""
    info = "%s-%s.dist-info/" % (name, version)
    files = dict(files)
    files[info + "METADATA"] = ("Metadata-Version: 2.1\nName: %s\nVersion: %s\nRequires-Dist: torch\n" % (name, version)).encode()
    files[info + "WHEEL"] = ("Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: false\nTag: %s-linux_x86_64\n" % tag).encode()
    files[info + "RECORD"] = ("".join("%s,%s\n" % (p, hashed(b)) for p, b in files.items()) + info + "RECORD,,\n").encode()
    path = os.path.join(folder, "%s-%s-%s-linux_x86_64.whl" % (name, version, tag))
    with zipfile.ZipFile(path, "w") as z:
        for p, b in files.items():
            z.writestr(p, b)
    return path


def slim(out, python, version):
    target = os.path.join(out, "torch-%s-%s-%s-manylinux_2_28_x86_64.whl" % (version, python, python))
    if os.path.exists(target):
        return
    source = Remote(address(python, "torch==" + version))
    with tempfile.TemporaryDirectory(dir=out) as tmp, zipfile.ZipFile(source) as z:
        infos = sorted((i for i in z.infolist() if not i.is_dir()), key=lambda i: i.header_offset)
        kept = [i for i in infos if not DROPPED.match(i.filename) and not i.filename.endswith("/RECORD")]
        for info in kept:
            z.extract(info, tmp)
        lib = os.path.join(tmp, "torch", "lib")
        needed, undefined, defined = set(), set(), set()
        for name in sorted(os.listdir(lib)):
            if ".so" in name:
                n, u, d = symbols_of(os.path.join(lib, name))
                needed |= set(n)
                undefined |= u
                defined |= d
        made = standins.needed(tmp)
        for soname, names in made.items():
            standins.compile_library(soname, names, os.path.join(lib, soname))
            defined |= {s for s, _ in names}
        torch = {s for s in undefined - defined - system() if not re.match("_?Py|_?_?gomp|_?_?kmpc|omp_|GOMP", s)}
        dropped = sorted({os.path.basename(i.filename) for i in infos if DROPPED.match(i.filename)} & needed)
        for soname in dropped:
            if soname not in made:
                compile_torch(soname, torch if soname == "libtorch_cuda.so" else [], os.path.join(lib, soname))
        for soname in sorted(needed):  # what is bundled under another name in old wheels
            if re.match("lib(cu|nv|nccl)", soname) and not os.path.exists(os.path.join(lib, soname)):
                standins.compile_library(soname, set(), os.path.join(lib, soname))
        info = next(i.filename for i in kept if i.filename.endswith(".dist-info/METADATA"))
        meta = os.path.join(tmp, info)
        with open(meta, encoding="utf-8") as f:
            text = f.read()
        with open(meta, "w", encoding="utf-8") as f:
            f.write(re.sub(r"(?m)^Requires-Dist: (nvidia|triton|cuda)[^\n]*\n", "", text))
        record = []
        with zipfile.ZipFile(target + ".part", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as w:
            for folder, _, names in os.walk(tmp):
                for name in sorted(names):
                    path = os.path.join(folder, name)
                    rel = os.path.relpath(path, tmp)
                    with open(path, "rb") as f:
                        record.append("%s,%s" % (rel, hashed(f.read())))
                    w.write(path, rel)
            name = os.path.dirname(info) + "/RECORD"
            w.writestr(name, "\n".join(record) + "\n%s,,\n" % name)
        os.rename(target + ".part", target)
    print("%s: %d MB of %d MB; stands in: %s" % (os.path.basename(target), os.path.getsize(target) // 10**6, source.size // 10**6, ", ".join(dropped + sorted(made))), flush=True)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    for release in sys.argv[2:]:
        slim(sys.argv[1], *release.split("-", 1))
