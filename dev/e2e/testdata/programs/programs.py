"""Calls of torch.utils.cpp_extension.load and load_inline with the arguments that public programs use, and sources of our own.

    programs.py NAME     prints, as JSON, how the loaded module behaves; without a NAME, the names; kill is for proof.py

A name says which program has the arguments. The same call is made with torch's loader and with kiln's (python -m kiln.torch).
"""

import importlib
import json
import os
import subprocess
import sys

import torch
import torch.utils.cpp_extension
from torch.utils.cpp_extension import load, load_inline

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.getcwd()
CPP, CU, OTHER, OPS = (os.path.join(HERE, f) for f in ("value.cpp", "kernel.cu", "other.cpp", "ops.cpp"))
KERNEL = ["-DWITH_KERNEL"]
CUDA_TEXT = """
#include "header.h"
__global__ void scale_kernel(float *x, float s) { x[threadIdx.x] *= s; }
torch::Tensor scale(torch::Tensor x, double s) {
  if (x.is_cuda()) scale_kernel<<<1, x.numel()>>>(x.data_ptr<float>(), s);
  TORCH_CHECK(x.dim() == 1, "want one dimension");
  return x * s;
}
"""
CPP_TEXT = "torch::Tensor scale(torch::Tensor x, double s);"


def exllamav2():
    return load(
        name="exllamav2_ext", sources=[CPP, CU], extra_include_paths=[HERE], verbose=False, extra_ldflags=[],
        extra_cuda_cflags=["-lineinfo", "-O3"], extra_cflags=["-Ofast"] + KERNEL,
    )


def rwkv4():
    flags = ["-res-usage", "--maxrregcount 60", "--use_fast_math", "-O3", "-Xptxas -O3", "-DTmax=1024"]
    return load(name="wkv", sources=[CPP, CU], verbose=True, extra_cflags=KERNEL, extra_cuda_cflags=flags)


def rwkv7():
    flags = ["-res-usage", "-D_C_=64", "-D_CHUNK_LEN_=16", "--use_fast_math", "-O3", "-Xptxas -O3", "--extra-device-vectorization"]
    result = load(
        name="wind_backstepping", sources=[CU, OPS], is_python_module=False, verbose=True, extra_cflags=KERNEL, extra_cuda_cflags=flags,
    )
    return result, torch.ops.kiln_programs.value()


def stylegan3():
    folder = os.path.join(WORK, "stylegan3", "digest")
    os.makedirs(folder, exist_ok=True)
    torch.utils.cpp_extension.load(
        name="bias_act_plugin", build_directory=folder, verbose=False, sources=[CPP, CU], extra_cflags=KERNEL,
        extra_cuda_cflags=["--use_fast_math", "--allow-unsupported-compiler"],
    )
    return importlib.import_module("bias_act_plugin")


def nvdiffrast():
    os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"
    opts = ["-DNVDR_TORCH"]
    torch.utils.cpp_extension.load(
        name="nvdiffrast_plugin", sources=[CPP, CU], extra_cflags=opts + KERNEL, extra_cuda_cflags=opts + ["-lineinfo"],
        extra_ldflags=["-ldl"], with_cuda=True, verbose=False,
    )
    return importlib.import_module("nvdiffrast_plugin")


def torch_ngp():
    nvcc = ["-O3", "-std=c++17", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__"]
    return load(name="_grid_encoder", extra_cflags=["-O3", "-std=c++17"] + KERNEL, extra_cuda_cflags=nvcc, sources=[CU, CPP])


def megatron():
    folder = os.path.join(WORK, "megatron")
    os.makedirs(folder, exist_ok=True)
    return load(
        name="scaled_masked_softmax_cuda", sources=[CPP, CU], build_directory=folder, extra_cflags=["-O3"] + KERNEL,
        extra_cuda_cflags=["-O3", "-gencode", "arch=compute_70,code=sm_70", "--use_fast_math", "-gencode", "arch=compute_80,code=sm_80"],
        verbose=True,
    )


def direct_voxel():
    return load(name="render_utils_cuda", sources=[os.path.join(HERE, path) for path in ["value.cpp", "kernel.cu"]], verbose=True)


def colbert():
    return load(name="segmented_maxsim_cpp", sources=[CPP], extra_cflags=["-O3", "-fopenmp"], extra_ldflags=["-lgomp"], verbose=False)


def gaussian_mixtures():
    return load("em_fitting_cpu", [CPP], extra_include_paths=[HERE + "/../no-such-folder/", HERE], verbose=True,
                extra_cflags=["-fopenmp", "-O4", "-ffast-math"], extra_ldflags=["-lpthread"])


def brevitas():
    try:
        result = torch.utils.cpp_extension.load(name="autograd_ste_ops", sources=[OPS], is_python_module=False, verbose=False)
    except:  # noqa: E722
        return "not loaded"
    return result, torch.ops.kiln_programs.value()


def gptqmodel():
    result = load(
        name="gptqmodel_pack_block_cpu", sources=[OPS], extra_cflags=["-O3", "-std=c++17"], extra_ldflags=[], build_directory=None,
        verbose=False, is_python_module=False,
    )
    return result, torch.ops.kiln_programs.value()


def qtorch():
    return load(name="quant_cpu", sources=[CPP, OTHER], extra_cflags=["-DWITH_OTHER"])


def xlstm():
    defines = ["-D%s=%s" % (k, v) for k, v in {"HIDDEN_SIZE": 64, "BATCH_SIZE": 8}.items()]
    return load(
        name="slstm_HS64BS8", sources=[CPP, CU], with_cuda=True, verbose=True, extra_cflags=[*defines, *KERNEL],
        extra_ldflags=["-L/usr/local/cuda/lib", "-lcublas"],
        extra_cuda_cflags=['-Xptxas="-v"', "-gencode", "arch=compute_80,code=compute_80", "-res-usage", "--use_fast_math", "-O3",
                           "-Xptxas -O3", "--extra-device-vectorization", *defines],
    )


def pytorch_standalone():
    folder = os.path.join(WORK, "standalone")
    os.makedirs(folder, exist_ok=True)
    path = torch.utils.cpp_extension.load(
        "standalone_load_test", os.path.join(HERE, "main.cpp"), build_directory=folder, is_python_module=False, is_standalone=True,
    )
    return path == os.path.join(folder, "standalone_load_test"), subprocess.check_output([path, "x"], text=True)


def own_folder():
    folder = torch.utils.cpp_extension._get_build_directory("baseline", verbose=False)
    load(name="baseline", sources=[CPP], extra_cflags=["-O0"])
    del sys.modules["baseline"]
    sys.path.insert(0, folder)
    return importlib.import_module("baseline")


def spikingjelly():
    return load_inline(name="cpp_wrapper", cpp_sources="using namespace at; Tensor twice(Tensor x) { return x + x; }", functions=["twice"], with_cuda=True)


def kernelbench():
    return load_inline(
        name="scale", cpp_sources=CPP_TEXT, cuda_sources=CUDA_TEXT, functions=["scale"], verbose=True, extra_cflags=[""], extra_ldflags=[""],
        extra_include_paths=[HERE],
    )


def alphafold_kernels():
    return load_inline(
        name="fk_swiglu_0123456789", cpp_sources=[CPP_TEXT], cuda_sources=[CUDA_TEXT], functions=["scale"], with_pytorch_error_handling=False,
        extra_cuda_cflags=["-O3", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "--expt-relaxed-constexpr", "--use_fast_math", "-I" + HERE], verbose=False,
    )


def warp():
    folder = os.path.join(WORK, "warp")
    os.makedirs(folder, exist_ok=True)
    text = "torch::Tensor half(torch::Tensor x) { TORCH_CHECK(x.dim() == 1, \"want one dimension\"); return x / HALF; }"
    return load_inline(
        "kernels", cpp_sources=[text], cuda_sources=[], functions={"half": "divides by two"}, extra_cflags=["-DHALF=2", "-O2"],
        build_directory=folder, extra_include_paths=[HERE], verbose=True, with_pytorch_error_handling=True,
    )


def mistake():
    with open("mistake.cpp", "w") as f:
        f.write("int x = nothing;\n")
    try:
        load(name="mistake", sources=["mistake.cpp"])
    except RuntimeError as e:
        return "RuntimeError", "mistake" in str(e)


def kill():
    value = int(os.environ["KILL_ROUND"])
    module = load(
        name="killed", sources=[CPP, CU, OTHER], extra_cflags=["-DWITH_KERNEL", "-DWITH_OTHER", "-DHIDDEN_SIZE=%d" % value],
        extra_cuda_cflags=["-DTmax=%d" % value, "-lineinfo"],
    )
    assert module.kernel() // 1000 % 1000 >= value and module.other() == 11
    print("killed says", module.hidden_size())


PROGRAMS = [
    exllamav2, rwkv4, rwkv7, stylegan3, nvdiffrast, torch_ngp, megatron, colbert, gaussian_mixtures, brevitas, gptqmodel, qtorch, xlstm,
    pytorch_standalone, own_folder, spikingjelly, kernelbench, alphafold_kernels, warp, mistake, direct_voxel,
]  # fmt: skip


def behaviour(result):
    """Everything about a result that a program can see, but for the place of a file."""
    if isinstance(result, tuple):
        return [behaviour(r) for r in result]
    if isinstance(result, str):
        return os.path.basename(result)
    if not hasattr(result, "__spec__"):
        return result
    seen = {
        "type": type(result).__name__, "name": result.__name__, "doc": result.__doc__, "file": os.path.exists(result.__file__),
        "known": sys.modules.get(result.__name__) is result,
    }  # fmt: skip
    for key in sorted(k for k in vars(result) if not k.startswith("__")):
        function = getattr(result, key)
        calls = [()] if key not in ("scale", "twice", "half") else [(torch.ones(3), 3.0), (torch.ones(3),), (torch.ones(1, 1),), (torch.ones(1, 1), 1.0), ("x",)]
        seen[key] = [function.__doc__]
        for args in calls:
            try:
                value = function(*args)
                seen[key].append(value.tolist() if hasattr(value, "tolist") else value)
            except Exception as e:
                seen[key].append([type(e).__name__, str(e).split("\n")[0].split("(Exception raised")[0]])
    return seen


if __name__ == "__main__":
    programs = {p.__name__: p for p in PROGRAMS}
    if len(sys.argv) == 1:
        print("\n".join(programs))
    elif sys.argv[1] == "kill":
        kill()
    else:
        sys.stdout.flush()
        saved = os.dup(1)
        os.dup2(2, 1)  # verbose builds print
        seen = behaviour(programs[sys.argv[1]]())
        sys.stdout.flush()
        os.dup2(saved, 1)
        print(json.dumps(seen, indent=1, sort_keys=True))
