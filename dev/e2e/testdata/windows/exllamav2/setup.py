# Stands in for ExLlamaV2 in TestE2EWindowsWorkflow: its names, two small kernels of plain C++, and torch's stable interface, which is
# the part of torch that another compiler than Visual C++ can link.
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

folder = "exllamav2/exllamav2_ext/"
setup(
    name="exllamav2",
    version="0.3.2",
    packages=["exllamav2"],
    package_data={"": ["exllamav2_ext/*"]},
    ext_modules=[CUDAExtension("exllamav2_ext", [folder + n for n in ("ext.cpp", "scale.cu", "sum.cu")], extra_compile_args={"cxx": ["/O2"], "nvcc": ["-O3"]})],
    cmdclass={"build_ext": BuildExtension},
    install_requires=["torch>=2.2.0", "safetensors>=0.4.3"],
)
