from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

setup(
    name="torch-ext",
    version="0.1.0",
    ext_modules=[CUDAExtension("torch_ext", ["binding.cpp", "kernel.cu"])],
    cmdclass={"build_ext": BuildExtension},
    install_requires=["torch"],
)
