from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="stock-torch",
    version="0.1.0",
    py_modules=["stock_torch"],
    ext_modules=[CppExtension("stock_torch_ops", ["ops.cpp"])],
    cmdclass={"build_ext": BuildExtension},
    install_requires=["torch"],
)
