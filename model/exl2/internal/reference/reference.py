#!/usr/bin/env python3
"""Second implementation of the EXL2 compile step, for tests only.

It follows the description of the original step and knows nothing of the Go package beside it: it is driven by the full
architectures.json in this folder, does its arithmetic with numpy and encodes files with the safetensors library.

    reference.py compile WORKDIR       compile the job as the original does
    reference.py serve                 one JSON request per line on standard input, one answer per line

Requests: {"op": "compile", "work": DIR}  -> {"status": "ok" | "fatal" | "error", "message": ...}
          {"op": "same", "compat": DIR, "default": DIR, "limit": BYTES} -> {"status": "ok" | "error", ...}
          {"op": "json", "texts": [TEXT, ...]} -> {"status": "ok", "texts": [TEXT or null, ...]}, as config.json is rewritten
Needs numpy and safetensors.
"""

import glob
import json
import os
import shutil
import struct
import sys
import traceback

import numpy as np
import safetensors

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = json.load(open(os.path.join(HERE, "architectures.json"), encoding="utf-8"))
LONG = {
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "I16": "int16", "I32": "int32",
    "I64": "int64", "U8": "uint8", "BOOL": "bool", "I8": "int8", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


class Fatal(Exception):
    """The original's exit with status 1."""


# ---- reading -------------------------------------------------------------------------------------------------------


def read_header(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        return n, json.loads(f.read(n).decode("utf-8"))


def read_tensor(path, name):
    n, header = read_header(path)
    e = header[name]
    with open(path, "rb") as f:
        f.seek(8 + n + e["data_offsets"][0])
        data = f.read(e["data_offsets"][1] - e["data_offsets"][0])
    return e["dtype"], e["shape"], data


def field(config, name):
    """Value of a config field by the rules of the table, or None."""
    spec = TABLE["config_fields"][name]
    places = [config]
    if "also_under" in spec and isinstance(config.get(spec["also_under"]), dict):
        places.append(config[spec["also_under"]])
    for place in places:
        for path in spec["paths"]:
            v = place
            for step in path.split("."):
                v = v.get(step) if isinstance(v, dict) else None
            if v is not None:
                if spec["type"] == "int":
                    assert int(v) == v
                    v = int(v)
                return v
    return spec.get("default")


def source_map(model_dir, arch):
    """Rewritten name -> (file, name in the file); later files win, as in a dict the place is that of the first."""
    rules = TABLE["keymaps"][arch["source_keymap"]] if arch["source_keymap"] else []
    out = {}
    for path in sorted(glob.glob(os.path.join(model_dir, "*.safetensors"))):
        for name in read_header(path)[1]:
            if name == "__metadata__":
                continue
            new = name
            for r in rules:
                if r["anchor"] == "anywhere":
                    new = new.replace(r["from"], r["to"])
                elif new.startswith(r["from"]):
                    new = r["to"] + new[len(r["from"]):]
            out[new] = (path, name)
    return out


# ---- float parts ---------------------------------------------------------------------------------------------------


def fix_nan(h, sign_of):
    bits = h.view(np.uint16).copy()
    nan = np.isnan(h)
    bits[nan] = (sign_of.view(np.uint16)[nan] & 0x8000) | 0x7E00
    return bits.view(np.float16)


def to_half(dtype, data):
    if dtype == "F16":
        return np.frombuffer(data, "<f2").copy()
    if dtype == "BF16":
        wide = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype == "F32":
        wide = np.frombuffer(data, "<f4")
    elif dtype == "I16":
        wide = np.frombuffer(data, "<i2").astype(np.float32)
    elif dtype == "I32":
        wide = np.frombuffer(data, "<i4").astype(np.float32)
    else:
        raise ValueError("unreadable dtype " + dtype)
    half = wide.astype(np.float16)
    bits = half.view(np.uint16).copy()
    nan = np.isnan(wide)
    bits[nan] = ((wide.view(np.uint32)[nan] >> 16) & 0x8000).astype(np.uint16) | 0x7E00
    return bits.view(np.float16)


def offset_round_trip(x, c):
    y = (x.astype(np.float32) + np.float32(c)).astype(np.float16)
    return fix_nan((y.astype(np.float32) - np.float32(c)).astype(np.float16), x)


def scale_round_trip(x, s):
    s = np.float32(s)
    y = (x.astype(np.float32) * s).astype(np.float16)
    return fix_nan((y.astype(np.float32) / s).astype(np.float16), x)


# ---- the step ------------------------------------------------------------------------------------------------------


class Model:
    def __init__(self, model_dir):
        self.config = json.load(open(os.path.join(model_dir, "config.json"), encoding="utf-8"))
        c = self.config
        (name,) = c["architectures"]
        entry = None
        for a in TABLE["architectures"]:
            if a["architecture"] == name:
                entry = a
        for m in (entry or {}).get("match", []):
            v = c
            for step in m["path"].split("."):
                v = v.get(step) if isinstance(v, dict) else None
            if v != m["equals"]:
                entry = None
        if entry is None:
            (entry,) = [a for a in TABLE["architectures"] if a["architecture"] == TABLE["fallback_architecture"]]
        self.arch = a = entry
        d = a["defaults"]
        hidden = field(c, "hidden_size")
        heads = field(c, "num_attention_heads") or d.get("num_attention_heads")
        self.head_dim = field(c, "head_dim") or d.get("head_dim") or hidden // heads
        heads = heads or hidden // self.head_dim
        kv = 1 if a["multi_query"] else field(c, "num_key_value_heads") or d.get("num_key_value_heads") or heads
        self.count = {"num_attention_heads": heads, "num_key_value_heads": kv}
        self.layers = field(c, "num_layers")
        self.experts = field(c, a["experts"]["count_field"]) if a["experts"] else 0
        qk = field(c, "use_qk_norm")
        self.conditions = {"use_qk_norm": a["use_qk_norm_default"] if qk is None else qk}
        self.scale = field(c, "scale_emb")
        self.source = source_map(model_dir, a)

    def modules(self):
        a = self.arch

        def expand(m, layer):
            def key(p, expert=None):
                return p["key"].replace("{lm}", a["lm_prefix"]).replace("{layer}", str(layer)).replace("{expert}", str(expert))

            parts = [(p, key(p)) for p in m["parts"] if "when" not in p or self.conditions[p["when"]]]
            for e in range(self.experts if "expert_parts" in m else 0):
                parts += [(p, key(p, e)) for p in m["expert_parts"]]
            return parts

        out = [expand(m, None) for m in a["head_modules"]]
        for layer in range(self.layers):
            out += [expand(m, layer) for m in a["layer_modules"]]
        return out + [expand(m, None) for m in a["tail_modules"]]

    def float_part(self, p, key):
        assert key + ".weight" in self.source, "missing " + key
        out = {}
        for suffix in ("weight", "bias"):
            if f"{key}.{suffix}" not in self.source:
                continue
            kind = p["type"]
            offset = p.get("offset_roundtrip", 0)
            if suffix == "bias":
                assert kind in ("layernorm", "headnorm"), "unexpected bias of " + key
                if kind == "headnorm" and self.arch["norm_constant_bias"]:
                    continue
            dtype, shape, data = read_tensor(*self.source[f"{key}.{suffix}"])
            x = to_half(dtype, data)
            if "scale_roundtrip" in p and self.scale != 1:
                x = scale_round_trip(x, self.scale)
            if kind == "headnorm":
                n = self.count[p["heads"]]
                if len(shape) == 1:
                    assert shape[0] == self.head_dim
                    x = np.tile(x, n)
                    shape = [n, self.head_dim]
                assert list(shape) == [n, self.head_dim]
            if offset and suffix == "weight":
                x = offset_round_trip(x, offset)
            out[f"{key}.{suffix}"] = ("F16", shape, x.tobytes())
        return out


def write_shard(path, tensors):
    spec, keep = {}, []
    for name, (dtype, shape, data) in tensors.items():
        keep.append(np.frombuffer(data, np.uint8))  # the library takes addresses
        spec[name] = safetensors.TensorSpec(
            dtype=LONG[dtype], shape=list(shape), data_ptr=keep[-1].ctypes.data, data_len=len(data)
        )
    with open(path, "wb") as f:
        f.write(safetensors.serialize(spec, None))


def compile_model(work):
    job = json.load(open(os.path.join(work, "job_new.json"), encoding="utf-8"))
    out_dir = job["compile_full"]
    os.makedirs(out_dir, exist_ok=True)
    model = Model(job["in_dir"])
    limit = job["shard_size"] * 1024**2

    steps = []
    for parts in model.modules():
        tensors = {}
        for p, key in parts:
            if p["kind"] == "float":
                tensors.update(model.float_part(p, key))
            else:
                path = os.path.join(work, "out_tensor", key + ".safetensors")
                for name in sorted(n for n in read_header(path)[1] if n != "__metadata__"):
                    tensors[name] = read_tensor(path, name)
        steps.append((tensors, True))
    if model.arch["multimodal"]:
        for prefix in model.arch["multimodal"]["copy_prefixes_in_order"]:
            for name, place in model.source.items():
                if name.startswith(prefix):
                    steps.append(({name: read_tensor(*place)}, False))

    pending, counter, files = {}, 0, []

    def emit(tensors):
        files.append(os.path.join(out_dir, f"output_temp_{len(files) + 1}.safetensors"))
        write_shard(files[-1], tensors)

    for i, (tensors, counts) in enumerate(steps):
        last = i == len(steps) - 1
        for name, t in tensors.items():
            pending[name] = t
            if counts:
                counter += len(t[2])
        if counter > limit or last:
            shard, used = {}, 0
            for name in list(pending):
                size = len(pending[name][2])
                if used + size <= limit:
                    shard[name] = pending.pop(name)
                    used += size
                    counter -= size
            if not shard:
                raise Fatal()
            emit(shard)
            if last and pending:
                emit(pending)

    for i, path in enumerate(files):
        n = len(files)
        name = "output.safetensors" if n == 1 else f"output-{i + 1:05d}-of-{n:05d}.safetensors"
        os.rename(path, os.path.join(out_dir, name))

    drop = set()
    for pattern in ("*.safetensors", "*.bin"):
        drop.update(glob.glob(os.path.join(job["in_dir"], pattern)))
    for name in os.listdir(job["in_dir"]):
        path = os.path.join(job["in_dir"], name)
        if os.path.isfile(path) and path not in drop:
            shutil.copy(path, os.path.join(out_dir, name))

    path = os.path.join(out_dir, "config.json")
    config = json.load(open(path, encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "exl2",
        "version": "0.3.2",
        "bits": job["bits"],
        "head_bits": job["head_bits"],
        "calibration": {
            "rows": job["dataset_rows"],
            "length": job["length"],
            "dataset": "(default)" if job["cal_dataset"] is None else os.path.split(job["cal_dataset"])[1],
        },
    }
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps(config, indent=4))


# ---- the default mode, checked against the compatible one ----------------------------------------------------------


def load_dir(path):
    tensors, files = {}, {}
    for p in sorted(glob.glob(os.path.join(path, "*.safetensors"))):
        data = open(p, "rb").read()
        size = 0
        for name, t in safetensors.deserialize(data):
            key = (t["dtype"], tuple(t["shape"]), bytes(t["data"]))
            if name in tensors:  # the original can write an extra twice
                assert tensors[name] == key, name
            tensors[name] = key
            files[name] = os.path.basename(p)
            size += len(t["data"])
        n, header = read_header(p)
        files[os.path.basename(p)] = (size, len(header) - ("__metadata__" in header), header.get("__metadata__"))
    return tensors, files


def same(compat, default, limit):
    want, _ = load_dir(compat)
    got, files = load_dir(default)
    assert want.keys() == got.keys(), want.keys() ^ got.keys()
    for name in want:
        assert want[name] == got[name], name
    shards = sorted(n for n in files if n.endswith(".safetensors"))
    n = len(shards)
    assert shards == [f"model-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)], shards
    for name in shards:
        size, count, meta = files[name]
        assert meta == {"format": "pt"}, meta
        assert size <= limit or count == 1, (name, size, count, limit)
    index = json.load(open(os.path.join(default, "model.safetensors.index.json"), encoding="utf-8"))
    assert index["metadata"] == {"total_size": sum(len(t[2]) for t in got.values())}, index["metadata"]
    assert index["weight_map"] == {name: files[name] for name in got}
    a, b = (open(os.path.join(d, "config.json"), "rb").read() for d in (compat, default))
    assert a == b, "config.json"


def rewrite(text):
    """The text of a config file after a round trip, or None if it cannot be read."""
    try:
        return json.dumps(json.loads(text), indent=4)
    except ValueError:
        return None


def answer(request):
    try:
        if request["op"] == "json":
            return {"status": "ok", "texts": [rewrite(t) for t in request["texts"]]}
        if request["op"] == "compile":
            compile_model(request["work"])
        else:
            same(request["compat"], request["default"], request["limit"])
        return {"status": "ok"}
    except Fatal:
        return {"status": "fatal"}
    except Exception as e:  # reported to the driver
        return {"status": "error", "message": f"{type(e).__name__}: {e}\n{traceback.format_exc()}"}


def main():
    np.seterr(all="ignore")
    if sys.argv[1] == "compile":
        print(json.dumps(answer({"op": "compile", "work": sys.argv[2]})))
    else:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
