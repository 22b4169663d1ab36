"""Prints what auditwheel says about wheels, one JSON object a line.

    python auditwheel_tags.py WHEEL...

"strict" is the tag of `auditwheel show`, "tag" the one with the libraries of torch, CUDA, ROCm and the
driver excluded, as their patterns stand below, and "symbols" the one by symbol versions. The libraries of
this machine are hidden from it, so the answer does not depend on where it is asked.
"""

import json
import sys
from pathlib import Path

from auditwheel.error import AuditwheelError
from auditwheel.wheel_abi import analyze_wheel_abi
from auditwheel.wheeltools import get_wheel_architecture, get_wheel_libc

EXCLUDED = """
libc10 libc10_cuda libc10_hip libc10_xpu libtorch libtorch_cpu libtorch_cuda libtorch_hip libtorch_xpu
libtorch_cuda_linalg libtorch_python libtorch_global_deps libtorch_nvshmem libshm libcaffe2_nvrtc libtorch_cuda_cpp
libtorch_cuda_cu libcudart libcublas libcublasLt libcufft libcufftw libcurand libcusparse libcusparseLt libcusolver
libcusolverMg libnvrtc libnvrtc-builtins libnvJitLink libnvToolsExt libcupti libcufile libnccl libcudnn libnvshmem_host
libcudnn_adv libcudnn_ops libcudnn_cnn libcudnn_graph libcudnn_adv_infer libcudnn_adv_train libcudnn_ops_infer
libcudnn_ops_train libcudnn_cnn_infer libcudnn_cnn_train libcudnn_engines_precompiled
libcudnn_engines_runtime_compiled libcudnn_heuristic libnvfatbin libnvjpeg libnppc libnppicc libnppig libnppial
libnppidei libnppif libnppist libnpps libamdhip64 libhsa-runtime64 libhiprtc librocblas libhipblas libhipblaslt
libhipfft librocfft libhiprand librocrand libhipsparse librocsparse libhipsolver librocsolver libMIOpen librccl
libroctx64 libroctracer64 libamd_comgr librocm_smi64 libhipsparselt librocprofiler-register libcuda libnvcuvid
""".split()
PATTERNS = frozenset(f"{name}.so*" for name in EXCLUDED) | {"libnvidia-*"}


def analyze(path, exclude):
    return analyze_wheel_abi(
        get_wheel_libc(path.name) if "linux_" in path.name and "many" in path.name else None,
        get_wheel_architecture(path.name),
        path,
        exclude,
        disable_isa_ext_check=False,
        allow_graft=False,
        args_ldpaths="",
    )


for name in sys.argv[1:]:
    path = Path(name)
    try:
        strict, excluded = analyze(path, frozenset()), analyze(path, PATTERNS)
        out = {
            "strict": strict.overall_policy.name,
            "tag": excluded.overall_policy.name,
            "symbols": excluded.sym_policy.name,
        }
    except (AuditwheelError, RuntimeError) as e:
        out = {"error": str(e)}
    print(json.dumps({"wheel": path.name, **out}), flush=True)
