# Stands in for ExLlamaV2 in TestE2EWorkflowExLlamaV2: its names, its variable, and two small kernels.
import os

from setuptools import setup

extensions, commands = [], {}
if "EXLLAMA_NOCOMPILE" not in os.environ:
    from torch.utils.cpp_extension import BuildExtension, CUDAExtension

    folder = "exllamav2/exllamav2_ext/"
    broken = ["-DBROKEN"] if "EXLLAMA_BROKEN" in os.environ else []
    extensions = [CUDAExtension("exllamav2_ext", [folder + n for n in ("ext.cpp", "scale.cu", "sum.cu")], extra_compile_args={"cxx": ["-O1"], "nvcc": ["-O1", *broken]})]
    commands = {"build_ext": BuildExtension}

setup(
    name="exllamav2",
    version="0.3.2",
    packages=["exllamav2"],
    package_data={"": ["exllamav2_ext/*"]},
    ext_modules=extensions,
    cmdclass=commands,
    install_requires=["torch>=2.2.0", "safetensors>=0.4.3", "numpy"],
)
