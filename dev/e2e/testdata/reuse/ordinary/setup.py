from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="ordinary",
    version="1.0",
    py_modules=["ordinary"],
    ext_modules=[CppExtension("_ordinary", ["ordinary.cpp"], extra_compile_args=["-O1"])],
    cmdclass={"build_ext": BuildExtension},
)
