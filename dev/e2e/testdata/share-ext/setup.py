from glob import glob

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="share-ext",
    version="0.1.0",
    ext_modules=[CUDAExtension("share_ext", sorted(glob("kernels/*.cu") + glob("bindings/*.cpp")), include_dirs=[])],
    cmdclass={"build_ext": BuildExtension},
    install_requires=["torch"],
)
