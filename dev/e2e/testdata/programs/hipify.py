"""Translates a copy of a project with torch's hipify as torch's CUDAExtension does, and compares every file with those of another
translation: hipify.py PROJECT OTHER SOURCES_DIR. Both folders end with the same path of the sources."""

import filecmp
import glob
import os
import shutil
import sys
import types

project, other, folder = sys.argv[1:]
import torch.version

top = os.path.dirname(torch.version.__file__)
for name, path in (("torch", top), ("torch.utils", os.path.join(top, "utils"))):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from torch.utils.hipify import hipify_python  # noqa: E402

reference = "/tmp/reference"
shutil.copytree(project, reference)
os.chdir(reference)
sources = [os.path.abspath(p) for ext in ("cpp", "cu") for p in glob.glob(folder + "/**/*." + ext, recursive=True)]
hipify_python.hipify(
    project_directory=reference, output_directory=reference, header_include_dirs=[folder], includes=[os.path.join(reference, "*")],
    extra_files=sources, show_detailed=True, is_pytorch_extension=True, hipify_extra_files_only=True,
)


def files(root):
    found = glob.glob(os.path.join(root, folder) + "/**/*", recursive=True)
    return {os.path.relpath(p, root) for p in found if os.path.isfile(p)}


mine, theirs = files(other), files(reference)
original = files(project)
made = sorted(theirs - original)
wrong = [f for f in made if f not in mine or not filecmp.cmp(os.path.join(reference, f), os.path.join(other, f), shallow=False)]
extra = sorted(mine - theirs)
if wrong or extra:
    sys.exit("different: %s; only in the other: %s" % (wrong, extra))
print("%d sources, %d files made, all equal" % (len(sources), len(made)))
