"""One HIP kernel behind a plain CPython module, compiled by hipcc for the row's targets."""

import os
import re
import subprocess
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class build_hip(build_ext):
    def build_extension(self, ext):
        output = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(output), exist_ok=True)
        archs = re.split("[; ,]+", os.environ["PYTORCH_ROCM_ARCH"].strip())
        command = [os.path.join(os.environ["ROCM_HOME"], "bin", "hipcc"), "-shared", "-fPIC", "-O2", "-std=c++17"]
        command += ["--offload-arch=" + a for a in archs]
        command += ["-DTARGETS=\"%s\"" % " ".join(archs), "-I" + sysconfig.get_path("include"), *ext.sources, "-o", output]
        print(*command)
        subprocess.run(command, check=True)


setup(
    name="hello-hip",
    version="0.1.0",
    packages=["hello_hip"],
    ext_modules=[Extension("hello_hip._native", ["native.hip"])],
    cmdclass={"build_ext": build_hip},
)
