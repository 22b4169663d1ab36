"""The PEP 517 backend of the Python package: one wheel that holds the library, the module _fast and the Python files.

The library is made by the go command, so building needs Go, a C compiler, and the modules of go.sum, from the network or from
the module cache. It knows nothing of the Python that builds it, and _fast, of the stable ABI, may be missing: the wheel is
for every Python 3.

On Linux the setting platform=win_amd64 makes the wheel for Windows, with mingw-w64's compiler.
"""

import base64
import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Since glibc 2.32 and 2.34 these are new versions of symbols in libc.so.6. They do what the old
# ones in libpthread and libdl did, which every glibc still has. Linking with stand-ins for those
# libraries, which have nothing but the names, asks for the old ones, and the library runs with the
# glibc of 2012.
OLD_GLIBC = {
    "libpthread.so.0": "pthread_attr_getstack pthread_attr_getstacksize pthread_create pthread_getattr_np "
    "pthread_getspecific pthread_key_create pthread_once pthread_setspecific pthread_sigmask",
    "libdl.so.2": "dlclose dlerror dlopen dlsym",
}


def _stand_ins(folder):
    """Write the stand-ins; returns the flags for the linker."""
    for soname, names in OLD_GLIBC.items():
        stem = os.path.join(folder, soname.split(".")[0])
        with open(stem + ".c", "w") as f:
            f.writelines("void %s(void) {}\n" % name for name in names.split())
        with open(stem + ".map", "w") as f:
            f.write("GLIBC_2.2.5 { global: %s; };\n" % "; ".join(names.split()))
        subprocess.check_call(
            [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-nostdlib", "-fno-builtin", "-Wl,-soname," + soname,
             "-Wl,--version-script=" + stem + ".map", "-o", stem + ".so", stem + ".c"]
        )  # fmt: skip
    return ["-L" + folder]


WINDOWS = "win_amd64"


def platform_tag(config_settings=None):
    """The wheel's platform."""
    asked = (config_settings or {}).get("platform")
    if asked not in (None, WINDOWS):
        raise SystemExit("kiln is built for this machine or for %s, not for %s" % (WINDOWS, asked))
    if asked or sys.platform == "win32" and platform.machine() == "AMD64":
        return WINDOWS
    if sys.platform != "linux":
        raise SystemExit("libkiln is built for Linux and Windows: this is " + sys.platform)
    if platform.machine() == "x86_64":
        return "manylinux_2_17_x86_64"
    return "linux_" + platform.machine()


def library_name(tag):
    return "kiln.dll" if tag == WINDOWS else "libkiln.so"


def build_library(out, version="devel", tag=None):
    """Make libkiln as the file out."""
    tag = tag or platform_tag()
    with tempfile.TemporaryDirectory() as folder:
        made, flags, environment = os.path.join(folder, library_name(tag)), [], {**os.environ, "CGO_ENABLED": "1"}
        if tag == WINDOWS:
            environment.update(GOOS="windows", GOARCH="amd64")
            if sys.platform != "win32":
                environment.setdefault("CC", "x86_64-w64-mingw32-gcc")
        else:
            exports = os.path.join(folder, "exports.map")
            with open(exports, "w") as f:
                f.write("{ global: kiln_*; local: *; };\n")
            flags = ["-Wl,--version-script=" + exports]
        if tag.startswith("manylinux"):
            flags += _stand_ins(folder)
        command = ["go", "build", "-trimpath", "-buildvcs=false", "-buildmode=c-shared", "-ldflags",
                   "-s -w -buildid= -X main.version=%s -extldflags '%s'" % (version, " ".join(flags)),
                   "-o", made, "./cmd/libkiln"]  # fmt: skip
        try:
            subprocess.check_call(command, cwd=ROOT, env=environment)
        except FileNotFoundError:
            raise SystemExit("kiln needs the go command to build libkiln: https://go.dev/dl/") from None
        data = _read(made)
    with open(out, "wb") as f:
        f.write(data)
    os.chmod(out, 0o755)


def build_fast(out):
    """Make the module _fast as the file out. Names of the interpreter stay undefined: it has them when it loads the module."""
    subprocess.check_call(
        [os.environ.get("CC", "cc"), "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-s",
         "-Wl,--build-id=none", "-o", out, "_fast.c"], cwd=os.path.join(ROOT, "python", "kiln")
    )  # fmt: skip


def _project():
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as f:
        return tomllib.load(f)["project"]


def _metadata(project):
    return (
        "Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nSummary: {description}\n"
        "License-Expression: {license}\nLicense-File: LICENSE\nRequires-Python: {requires-python}\n"
        "Project-URL: Source, https://github.com/kiln-build/kiln\n"
    ).format_map(project)


def _time():
    """Of all files in an archive, so that the same sources give the same bytes."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", 0)), 315532800)


def _python_files(ends):
    top = os.path.join(ROOT, "python")
    for folder, folders, names in os.walk(os.path.join(top, "kiln")):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(names):
            if name.endswith(ends):
                path = os.path.join(folder, name)
                yield os.path.relpath(path, top).replace(os.sep, "/"), path


def _read(path):
    with open(path, "rb") as f:
        return f.read()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project, target = _project(), platform_tag(config_settings)
    tag = "py3-none-" + target
    stem = "%s-%s" % (project["name"].replace("-", "_"), project["version"])
    info = stem + ".dist-info/"
    files = [(name, _read(path), 0o644) for name, path in _python_files(".py")]
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, library_name(target))
        build_library(library, project["version"], target)
        files.append(("kiln/" + library_name(target), _read(library), 0o755))
        if target != WINDOWS:  # _fast is not made for Windows yet: calls go through ctypes there
            fast = os.path.join(folder, "_fast.abi3.so")
            build_fast(fast)
            files.append(("kiln/_fast.abi3.so", _read(fast), 0o755))
    files += [
        (info + "licenses/LICENSE", _read(os.path.join(ROOT, "LICENSE")), 0o644),
        (info + "METADATA", _metadata(project).encode(), 0o644),
        (info + "WHEEL", ("Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: false\nTag: %s\n" % tag).encode(), 0o644),
    ]
    record = "".join(
        "%s,sha256=%s,%d\n" % (name, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
        for name, data, _ in files
    )
    files.append((info + "RECORD", (record + info + "RECORD,,\n").encode(), 0o644))
    wheel = "%s-%s.whl" % (stem, tag)
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as z:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, time.gmtime(_time())[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            z.writestr(entry, data)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    """The Go packages that the library is made from, and the Python files."""
    project = _project()
    stem = "%s-%s" % (project["name"].replace("-", "_"), project["version"])
    fields = ".GoFiles .CgoFiles .CFiles .HFiles .SFiles .EmbedFiles .IgnoredGoFiles .IgnoredOtherFiles".split()
    listing = "{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}%s{{end}}{{end}}" % "".join(
        '{{range %s}}{{$d}}/{{.}}{{"\\n"}}{{end}}' % f for f in fields
    )
    packages = subprocess.check_output(
        ["go", "list", "-deps", "-f", listing, "./cmd/libkiln"], cwd=ROOT, env={**os.environ, "CGO_ENABLED": "1"}, text=True
    )
    paths = {os.path.join(ROOT, name) for name in ("LICENSE", "go.mod", "go.sum", "pyproject.toml", "python/backend.py")}
    paths.update(line for line in packages.split("\n") if line)
    paths.update(path for _, path in _python_files((".py", ".c")))
    name = stem + ".tar.gz"

    def add(archive, name, data):
        entry = tarfile.TarInfo(stem + "/" + name)
        entry.size, entry.mtime, entry.mode = len(data), _time(), 0o644
        archive.addfile(entry, io.BytesIO(data))

    with tarfile.open(os.path.join(sdist_directory, name), "w:gz", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "PKG-INFO", _metadata(project).encode())
        for path in sorted(paths):
            add(archive, os.path.relpath(path, ROOT).replace(os.sep, "/"), _read(path))
    return name


if __name__ == "__main__":
    # python python/backend.py FOLDER [PLATFORM] makes the wheel there without a front-end.
    print(build_wheel(sys.argv[1], {"platform": sys.argv[2]} if len(sys.argv) > 2 else None))
