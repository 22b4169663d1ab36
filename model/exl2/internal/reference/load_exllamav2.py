#!/usr/bin/env python3
"""Loads compiled models with the real exllamav2, for tests only.

    load_exllamav2.py serve                        one JSON request per line on standard input, one answer per line
    load_exllamav2.py --real-extension FOLDER...   on a machine with a GPU: load each folder and run a few tokens

Requests: {"op": "load", "folder": DIR, "work": DIR, "model": DIR}
              Loads the compiled folder with exllamav2's own Python code and compares everything that arrives in its
              modules with the job and the source model.
          {"op": "original", "folder": DIR, "work": DIR, "out": DIR, "shard_size": MIB}
              Runs exllamav2's own compile step on the job into DIR out and compares folder with it, file by file. With
              "weights": true the job has no folder of its own and DIR out, a working folder, gets the weights.
Answers:  {"status": "ok", "layers": N, "floats": N, "extras": N, "files": N} or {"status": "error", "message": TEXT};
          {"status": "fatal"} where the original finds no place for a tensor and ends the process

In serve mode the compiled extension is replaced by stand-ins that check and record what they are given, and all tensors
stay in main memory. Nothing else of exllamav2 is replaced: reading the configuration, the map of tensors, the modules
and their loading are its own. The packages are in dev/python/exllamav2.txt.
"""

import argparse
import ctypes
import glob
import json
import os
import struct
import sys
import time
import traceback
import types

# PyTorch names many CUDA libraries that a machine without a GPU can do without. Found as empty files they are enough
# as long as their functions are looked up on the first call, not on loading.
sys.setdlopenflags(os.RTLD_LAZY)

import numpy as np  # noqa: E402
import torch  # noqa: E402

NUMPY = {"I16": "<i2", "I32": "<i4", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "U8": "u1", "I64": "<i8"}
TORCH = {"I16": torch.int16, "I32": torch.int32, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
QUANT = ("q_weight", "q_invperm", "q_scale", "q_scale_max", "q_groups")


class Wrong(Exception):
    """Something that was loaded is not what it should be."""


class Fatal(Exception):
    """The original has ended the process."""


def check(good, *what):
    if not good:
        raise Wrong(" ".join(str(w) for w in what))


# ---- files, read without exllamav2 ------------------------------------------------------------------------------------


def read_header(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        raw = f.read(n)
    header = json.loads(raw.decode("utf-8"))
    header.pop("__metadata__", None)
    return 8 + n, raw, header


def read_tensors(path):
    """Name -> (dtype, shape, bytes) of a file."""
    start, _, header = read_header(path)
    data = open(path, "rb").read()
    out = {}
    for name, e in header.items():
        a, b = e["data_offsets"]
        out[name] = (e["dtype"], tuple(e["shape"]), data[start + a : start + b])
    return out


def plain_nan(dtype, data):
    """The bytes with every NaN of a half-precision tensor written the same way: its payload is not defined."""
    if dtype != "F16":
        return data
    bits = np.frombuffer(data, "<u2").copy()
    nan = (bits & 0x7FFF) > 0x7C00
    bits[nan] = (bits[nan] & 0x8000) | 0x7E00
    return bits.tobytes()


def same_tensor(name, want, got):
    check(want[0] == got[0], name, "has dtype", got[0], "and not", want[0])
    check(tuple(want[1]) == tuple(got[1]), name, "has shape", got[1], "and not", want[1])
    check(plain_nan(want[0], want[2]) == plain_nan(got[0], got[2]), name, "has other values")


def of_tensor(t):
    """A torch tensor as (dtype, shape, bytes)."""
    t = t.detach().contiguous()
    (dtype,) = [k for k, v in TORCH.items() if v == t.dtype]
    return dtype, tuple(t.shape), ctypes.string_at(t.data_ptr(), t.numel() * t.element_size())


# ---- stand-ins for the extension --------------------------------------------------------------------------------------


def absent(t):
    return t.device.type == "meta"


def need(t, dtype, shape, what):
    check(t.dtype == dtype, what, "has dtype", t.dtype)
    check(tuple(t.shape) == tuple(shape), what, "has shape", tuple(t.shape), "and not", tuple(shape))
    check(t.is_contiguous() and t.device.type == "cpu", what, "is not a plain tensor")


class Extension(types.ModuleType):
    """What exllamav2 imports as its compiled extension."""

    def __init__(self):
        super().__init__("exllamav2_ext")
        self.forget()

    def forget(self):
        self.reads = []  # (file, offset, dtype, shape, bytes)
        self.matrices = {}  # handle -> arrays as they were when the matrix was made
        self.blocks = {}  # handle -> kind

    def handle(self, table, value):
        h = 1 + len(self.matrices) + len(self.blocks)
        table[h] = value
        return h

    def stloader_read(self, filename, offset, size, target):
        check(target.is_contiguous() and target.numel() * target.element_size() == size, filename, "target of a wrong size")
        with open(filename, "rb") as f:
            f.seek(offset)
            data = f.read(size)
        check(len(data) == size, filename, "ends inside a tensor")
        ctypes.memmove(target.data_ptr(), data, size)
        self.reads.append((filename, offset) + of_tensor(target))

    def make_group_map(self, q_groups, rows):
        check(q_groups.dtype == torch.int16 and q_groups.dim() == 1 and q_groups.numel() % 2 == 0, "q_groups")
        groups = q_groups.numpy().reshape(-1, 2).astype(int)
        ends = np.append(groups[1:, 1], rows)
        out = []
        for i, ((bits, first), end) in enumerate(zip(groups, ends)):
            check(bits in (2, 3, 4, 5, 6, 8) and end > first and (end - first) * 32 % bits == 0, "group", i)
            n = (end - first) * 32 // bits
            out += [(i, n - k) for k in range(n)]
        return torch.tensor(out, dtype=torch.int16).reshape(-1)

    def make_q_matrix(
        self, weight, perm, invperm, scale, scale_max, groups, group_map, qzeros, scales, g_idx, bias, temp_dq, max_dq_rows
    ):
        check(absent(qzeros) and absent(scales) and absent(g_idx), "tensors of another format")
        check(weight.dim() == 2, "q_weight has shape", tuple(weight.shape))
        rows, width = weight.shape
        need(weight, torch.int32, (rows, width), "q_weight")
        count = groups.numel() // 2
        height = group_map.numel() // 2
        need(groups, torch.int16, (2 * count,), "q_groups")
        need(group_map, torch.int16, (2 * height,), "q_group_map")
        need(scale, torch.int32, (count, width // 8), "q_scale")
        need(scale_max, torch.float16, (count,), "q_scale_max")
        check(width % 32 == 0, "width", width)
        check(absent(perm) == absent(invperm), "one permutation without the other")
        if not absent(perm):
            need(perm, torch.int16, (height,), "q_perm")
            need(invperm, torch.int16, (height,), "q_invperm")
            p, q = (t.numpy().view(np.uint16) for t in (perm, invperm))
            check((np.sort(p) == np.arange(height)).all() and (p[q] == np.arange(height)).all(), "permutations")
        if not absent(bias):
            need(bias, torch.float16, (width,), "bias")
        check(temp_dq.dtype == torch.float16 and temp_dq.numel() >= width * min(max_dq_rows, height), "temp_dq is too small")
        given = {
            "q_weight": weight, "q_perm": perm, "q_invperm": invperm, "q_scale": scale, "q_scale_max": scale_max,
            "q_groups": groups, "bias": bias,
        }  # fmt: skip
        m = {k: of_tensor(t) for k, t in given.items() if not absent(t)}
        m["height"], m["width"] = height, width
        return self.handle(self.matrices, m)

    def tensor_remap(self, t, index):
        need(index, torch.int32, (t.shape[1],), "column map")
        t.copy_(t[:, index.long()].clone())

    def tensor_remap_4bit(self, t, index):
        need(index, torch.int32, (8 * t.shape[1],), "column map")
        t.copy_(torch.from_numpy(remap_4bit(t.numpy(), index.numpy())))

    def norm(self, weight, bias, hidden, what):
        if not absent(weight):
            need(weight, torch.float16, (hidden,), what)
        if not absent(bias):
            need(bias, torch.float16, (hidden,), what + " bias")

    def linear(self, handle, height, width, what):
        m = self.matrices[handle]
        check((m["height"], m["width"]) == (height, (width + 31) // 32 * 32), what, "is", m["height"], "x", m["width"])

    def make_q_attn(
        self, norm, norm_bias, is_rms, head_is_rms, eps, q, k, v, o, temp_state, temp_dq, max_rows, hidden, heads, kv_heads,
        head_dim, max_seq_len, has_residual, rope_style, sincos, q_norm, k_norm, post, post_bias, fp32, graphs,
    ):  # fmt: skip
        self.norm(norm, norm_bias, hidden, "attention norm")
        self.norm(post, post_bias, hidden, "post-attention norm")
        for handle, inner, outer, what in (
            (q, hidden, heads * head_dim, "q"),
            (k, hidden, kv_heads * head_dim, "k"),
            (v, hidden, kv_heads * head_dim, "v"),
            (o, heads * head_dim, hidden, "o"),
        ):
            self.linear(handle, inner, outer, what)
        for t, n in ((q_norm, heads), (k_norm, kv_heads)):
            if not absent(t):
                need(t, torch.float16, (n, head_dim), "head norm")
        return self.handle(self.blocks, "attention")

    def make_q_mlp(
        self, norm, norm_bias, is_rms, eps, gate, up, down, temp_state, temp_a, temp_b, temp_dq, max_rows, gelu, has_residual,
        post, post_bias, fp32, graphs,
    ):  # fmt: skip
        inner, hidden = self.matrices[down]["height"], self.matrices[up]["height"]
        self.norm(norm, norm_bias, hidden, "MLP norm")
        self.norm(post, post_bias, hidden, "post-MLP norm")
        for handle in (gate, up) if gate else (up,):
            self.linear(handle, hidden, inner, "gate or up")
        self.linear(down, inner, hidden, "down")
        return self.handle(self.blocks, "mlp")

    def make_q_moe_mlp(
        self, norm, norm_bias, is_rms, eps, router, experts, per_token, w1, w2, w3, temp_state, temp_gathered, temp_a, temp_b,
        temp_logits, temp_dq, max_rows, gelu,
    ):  # fmt: skip
        check(experts == len(w1) == len(w2) == len(w3), "experts")
        inner, hidden = self.matrices[w2[0]]["height"], self.matrices[w1[0]]["height"]
        self.norm(norm, norm_bias, hidden, "MoE norm")
        need(router, torch.float16, (experts, hidden), "router")
        for a, b, c in zip(w1, w2, w3):
            self.linear(a, hidden, inner, "w1")
            self.linear(b, inner, hidden, "w2")
            self.linear(c, hidden, inner, "w3")
        return self.handle(self.blocks, "moe")

    def free_q_matrix(self, handle):
        del self.matrices[handle]

    def free_q_attn(self, handle):
        del self.blocks[handle]

    free_q_mlp = free_q_moe_mlp = free_q_attn


def remap_4bit(words, index):
    """Moves the eight 4-bit columns of each word: column c of the result is column index[c]."""
    words = np.ascontiguousarray(words).view(np.uint32)
    shifts = np.arange(8, dtype=np.uint32) * 4
    columns = ((words[:, :, None] >> shifts) & 15).reshape(words.shape[0], -1)[:, index]
    packed = (columns.reshape(words.shape[0], -1, 8) << shifts).sum(axis=2, dtype=np.uint64)
    return packed.astype(np.uint32).view(np.int32)


class NoDevice:
    """Stands for a stream or the choice of a device."""

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False


def import_stubbed():
    """Imports exllamav2 with the stand-in extension and makes it use main memory wherever it wants a GPU."""
    extension = Extension()
    sys.modules["exllamav2_ext"] = extension
    import exllamav2
    import exllamav2.device
    import exllamav2.model
    import exllamav2.module

    torch.cuda.Stream = torch.cuda.device = torch.cuda.stream = NoDevice
    torch.cuda.synchronize = torch.cuda.set_device = torch.cuda.set_stream = torch.cuda.empty_cache = lambda *a, **k: None
    for m in (exllamav2.device, exllamav2.model, exllamav2.module):
        check(m._torch_device(-1) == "cpu", "another exllamav2")
        m._torch_device = lambda idx: "cpu"
    # The order of files in a folder is not defined; ours is by name.
    unsorted = glob.glob
    glob.glob = lambda *a, **k: sorted(unsorted(*a, **k))
    return extension


# ---- expectations -----------------------------------------------------------------------------------------------------


def leaves(modules):
    """Every module with tensors of its own."""
    from exllamav2.parallel_decoder import ExLlamaV2ParallelDecoder

    for m in modules:
        if isinstance(m, ExLlamaV2ParallelDecoder):
            yield m.input_layernorm
        if m.submodules:
            yield from leaves(m.submodules)
        else:
            yield m


def open_model(folder):
    from exllamav2 import ExLlamaV2, ExLlamaV2Config

    config = ExLlamaV2Config(folder)
    config.max_input_len = 64  # scratch space only
    config.max_seq_len = min(config.max_seq_len, 64)
    return ExLlamaV2(config)


def float_tensors(model):
    """What the original's modules hand out as their tensors, by name."""
    from exllamav2.linear import ExLlamaV2Linear

    out = {}
    for m in leaves(model.modules):
        if isinstance(m, ExLlamaV2Linear) and not hasattr(m, "is_router"):
            continue
        m.load()
        w = m.get_weight()
        for suffix, t in zip(("weight", "bias"), w if isinstance(w, tuple) else (w,)):
            out[f"{m.key}.{suffix}"] = of_tensor(t)
    return out


def mark_routers(model):
    from exllamav2.moe_mlp import ExLlamaV2MoEMLP

    for m in model.modules:
        if isinstance(m, ExLlamaV2MoEMLP):
            m.gate.is_router = True


def job_tensors(work):
    out = {}
    for path in glob.glob(os.path.join(work, "out_tensor", "*.safetensors")):
        out.update(read_tensors(path))
    return out


def expected(work, model_dir):
    """Every tensor that a compiled folder must have: (from the job, from the source by its own rules, copied)."""
    source = open_model(model_dir)
    mark_routers(source)
    source.load(lazy=True)
    arch = source.config.arch
    extras = {}
    for key, path in source.config.tensor_file_map.items():
        if any(p and key.startswith(p) for p in (arch.mmp_prefix, arch.vt_prefix)):
            name = key
            for a, b in arch.compile_fix_keymap or ():
                if key.endswith(b):
                    name = key[: -len(b)] + a
            extras[key] = read_tensors(path)[name]
    return job_tensors(work), float_tensors(source), extras


# ---- loading ----------------------------------------------------------------------------------------------------------


def loaded_tensors(extension, renamed):
    """What was read from files, by tensor name."""
    places, out = {}, {}
    for filename, offset, dtype, shape, data in extension.reads:
        if filename not in places:
            start, _, header = read_header(filename)
            places[filename] = {start + e["data_offsets"][0]: n for n, e in header.items() if e["data_offsets"][0] < e["data_offsets"][1]}
        check(offset in places[filename], filename, "no tensor at", offset)
        name = renamed(places[filename][offset])
        if name in out:
            check(out[name] == (dtype, shape, data), name, "was read twice with other values")
        out[name] = (dtype, shape, data)
    return out


def array(t):
    return np.frombuffer(t[2], NUMPY[t[0]]).reshape(t[1])


def check_linear(linear, matrix, job, columns):
    """Compares a quantized layer with its file; columns is the order its consumer has asked for, or None."""
    key = linear.key
    t = {s: job.get(f"{key}.{s}") for s in QUANT + ("bias",)}
    check(all(t[s] is not None for s in QUANT), key, "is not a layer of the job")
    check((matrix["height"], matrix["width"]) == (linear.in_features, linear.out_features), key, "has another size")
    check(("bias" in matrix) == (t["bias"] is not None) == linear.has_bias, key, "bias")
    weight, scale = array(t["q_weight"]), array(t["q_scale"])
    if columns is not None:
        weight, scale = weight[:, columns], remap_4bit(scale, columns)
    check((array(matrix["q_weight"]) == weight).all(), key, "q_weight")
    check((array(matrix["q_scale"]) == scale).all(), key, "q_scale")
    same_tensor(key + ".q_groups", t["q_groups"], matrix["q_groups"])
    if t["bias"] is not None:
        same_tensor(key + ".bias", t["bias"], matrix["bias"])
    factor = linear.prev_prescale / 256
    largest = torch.frombuffer(bytearray(t["q_scale_max"][2]), dtype=torch.float16) * factor
    same_tensor(key + ".q_scale_max", of_tensor(largest), matrix["q_scale_max"])
    if "q_invperm" in matrix:
        invperm = array(t["q_invperm"])
        check((array(matrix["q_invperm"]).view(np.uint16) == invperm).all(), key, "q_invperm")
        check((array(matrix["q_perm"]).view(np.uint16) == np.argsort(invperm)).all(), key, "q_perm")


def load(extension, request):
    from exllamav2 import ExLlamaV2VisionTower
    from exllamav2.linear import ExLlamaV2Linear
    from exllamav2.mlp import ExLlamaV2MLP
    from exllamav2.parallel_decoder import ExLlamaV2ParallelDecoder
    from exllamav2.stloader import STFile, cleanup_stfiles

    extension.forget()
    job, floats, extras = expected(request["work"], request["model"])
    everything = {**job, **floats, **extras}
    check(len(everything) == len(job) + len(floats) + len(extras), "a tensor has two origins")

    extension.forget()
    cleanup_stfiles()
    model = open_model(request["folder"])
    mark_routers(model)
    check(json.load(open(os.path.join(request["folder"], "config.json")))["quantization_config"]["quant_method"] == "exl2", "config")
    known = model.config.tensor_file_map
    check(known.keys() == everything.keys(), "tensors of the folder:", sorted(known.keys() ^ everything.keys()))
    model.load()
    towers = []
    if extras and model.config.vision_model_type:
        tower = ExLlamaV2VisionTower(model.config)
        tower.load()
        towers.append(tower)

    # Every tensor was read, with the bytes of its origin. Of a tower's folder only what the tower uses is.
    fixes = model.config.arch.compile_fix_keymap or ()
    renamed = lambda n: next((n[: -len(a)] + b for a, b in fixes if n.endswith(a)), n)  # noqa: E731
    got = loaded_tensors(extension, renamed)
    for name, want in everything.items():
        if name in extras and want[0] not in TORCH:  # which exllamav2 cannot read; it is there all the same
            same_tensor(name, want, read_tensors(known[name])[name])
            continue
        if name in extras and name not in got:
            t = STFile.open(known[name], keymap=model.config.arch.keymap).get_tensor(name, "cpu")
            same_tensor(name, want, of_tensor(t))
            continue
        check(name in got, name, "was never read")
        same_tensor(name, want, got[name])
    if towers:
        read = sum(name in got for name in extras)
        check(read >= request.get("tower", 1), "the tower has read", read, "tensors")

    # The layers, as the extension got them.
    layers = 0
    columns = {}
    for m in model.modules:
        mlp = m.mlp if isinstance(m, ExLlamaV2ParallelDecoder) else m
        if isinstance(mlp, ExLlamaV2MLP):
            order = np.argsort(array(job[mlp.down_proj.key + ".q_invperm"]))
            columns.update({x.key: order for x in (mlp.gate_proj, mlp.up_proj) if x is not None})
    for m in leaves(model.modules):
        if isinstance(m, ExLlamaV2Linear) and not hasattr(m, "is_router"):
            check(m.is_quant(), m.key, "is not quantized")
            check_linear(m, extension.matrices[m.q_handle], job, columns.get(m.key))
            layers += 1
    check(layers * len(QUANT) + sum(k.endswith(".bias") for k in job) == len(job), layers, "layers,", len(job), "tensors")

    # What float modules compute with is what they would compute with had they been loaded from the source.
    source = open_model(request["model"])
    mark_routers(source)
    source.load(lazy=True)
    for a, b in zip(leaves(source.modules), leaves(model.modules)):
        if f"{a.key}.weight" in floats and model.config.scale_emb == 1:
            a.load()
            for x, y in zip(numbers(a), numbers(b)):
                same_tensor(a.key, of_tensor(x), of_tensor(y))

    return {"layers": layers, "floats": len(floats), "extras": len(extras), "files": len(model.config.tensor_files)}


def numbers(m):
    if getattr(m, "embedding", None) is not None:
        return [m.embedding.weight]
    if getattr(m, "linear", None) is not None:
        return [m.linear.weight]
    return [m.weight] + ([m.bias] if m.bias is not None else [])


def original(extension, request):
    """The original step on the same job, and the folder beside it."""
    from exllamav2.conversion.compile import compile_model

    extension.forget()
    job = json.load(open(os.path.join(request["work"], "job_new.json"), encoding="utf-8"))
    job["out_dir"], job["compile_full"] = request["work"], request["out"]
    if request.get("weights"):
        job["out_dir"], job["compile_full"] = request["out"], None
    job["shard_size"] = request.get("shard_size", job["shard_size"])
    model = open_model(job["in_dir"])
    model.load(lazy=True)
    leave = os._exit

    def refuse(code):
        raise Fatal(f"the original ends with status {code}")

    os._exit = refuse
    try:
        compile_model(job, None, model)
    finally:
        os._exit = leave

    if request["folder"] is None:
        raise Wrong("the original compiles this job")
    names = [sorted(n for n in os.listdir(d) if os.path.isfile(os.path.join(d, n))) for d in (request["out"], request["folder"])]
    check(names[0] == names[1], "files:", *names)
    for name in names[0]:
        a, b = (os.path.join(d, name) for d in (request["out"], request["folder"]))
        if not name.endswith(".safetensors") or name.startswith("."):
            check(open(a, "rb").read() == open(b, "rb").read(), name, "is another file")
            continue
        check(read_header(a)[:2] == read_header(b)[:2], name, "has another header")
        check(os.path.getsize(a) == os.path.getsize(b), name, "has another size")
        other = read_tensors(b)
        for key, t in read_tensors(a).items():
            same_tensor(key, t, other[key])
    return {"files": len(names[0])}


def serve():
    answers, sys.stdout = sys.stdout, sys.stderr  # exllamav2 prints
    extension = import_stubbed()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"status": "ok", **{"load": load, "original": original}[request["op"]](extension, request)}
        except Fatal as e:
            answer = {"status": "fatal", "message": str(e)}
        except Exception as e:
            answer = {"status": "error", "message": f"{type(e).__name__}: {e}\n{traceback.format_exc()}"}
        print(json.dumps(answer), file=answers, flush=True)


# ---- with a GPU -------------------------------------------------------------------------------------------------------


def real(folders):
    """Loads each folder with the real extension and lets it predict; returns whether all results are good."""
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name(0)}", flush=True)
    start = time.monotonic()
    import exllamav2
    from exllamav2 import ExLlamaV2, ExLlamaV2Cache, ExLlamaV2Config

    print(f"exllamav2 {exllamav2.__version__}, extension ready after {time.monotonic() - start:.0f} s", flush=True)
    good, seen = True, {}
    for folder in folders:
        try:
            config = ExLlamaV2Config(folder)
            config.max_seq_len = min(config.max_seq_len, 256)
            # Its own attention: with newer releases of PyTorch the other kind is not causal here.
            config.no_sdpa = config.no_flash_attn = config.no_xformers = True
            model = ExLlamaV2(config)
            start = time.monotonic()
            model.load()
            took = time.monotonic() - start
            tokens = torch.arange(1, 17).unsqueeze(0) * 7 % config.vocab_size
            logits = model.forward(tokens).float().cpu()[..., : config.vocab_size]
            check(tuple(logits.shape) == (1, 16, config.vocab_size), "logits have shape", tuple(logits.shape))
            check(torch.isfinite(logits).all(), "logits are not finite")
            spread = logits.std().item()
            check(1e-4 < spread < 1e4, "logits have a standard deviation of", spread)
            # The same tokens one after the other, through the kernels for single rows and the cache.
            cache = ExLlamaV2Cache(model, max_seq_len=256)
            steps = torch.cat([model.forward(tokens[:, i : i + 1], cache).float().cpu() for i in range(16)], dim=1)
            steps = steps[..., : config.vocab_size]
            check(torch.isfinite(steps).all(), "logits of single tokens are not finite")
            apart = (steps - logits).abs().max().item() / spread
            check(apart < 0.1, "single tokens and all at once differ by", apart, "standard deviations")
            # Folders of one job agree in whatever mode, as far as its kernels repeat themselves.
            base = os.path.basename(folder.rstrip("/")).partition("-")[0]
            if base in seen:
                off = (seen[base] - logits).abs().max().item() / spread
                check(off < 0.1, "logits differ from those of the other folder of the job by", off, "standard deviations")
            seen[base] = logits
            layers = sum(m.is_quant() for m in leaves(model.modules))
            print(f"ok {folder}: {layers} layers in {took:.2f} s, logits deviate by {spread:.3g}, single steps differ by {apart:.2g} of that", flush=True)
            model.unload()
        except Exception as e:
            good = False
            print(f"FAILED {folder}: {type(e).__name__}: {e}", flush=True)
            traceback.print_exc()
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real-extension", action="store_true", help="use the GPU and the compiled extension")
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="compiled models, or the word serve")
    args = parser.parse_args()
    if args.real_extension:
        sys.exit(not real(args.folders))
    if args.folders != ["serve"]:
        parser.error("without --real-extension the only command is serve")
    serve()


if __name__ == "__main__":
    main()
