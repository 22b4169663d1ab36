# Stands in for flash-attn in TestE2EWorkflowBaseForm: its name and what its setup.py needs, and one small kernel.
import psutil
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

print("%d processors" % psutil.cpu_count())
setup(
    name="flash-attn",
    version="2.8.3",
    packages=["flash_attn"],
    ext_modules=[CUDAExtension("flash_attn_2_cuda", ["csrc/flash_api.cpp", "csrc/flash_fwd.cu"], extra_compile_args={"cxx": ["-O1"], "nvcc": ["-O1"]})],
    cmdclass={"build_ext": BuildExtension},
    install_requires=["torch"],
)
