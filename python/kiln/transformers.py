"""EXL2 models in Hugging Face's transformers: importing this module registers the quantization method "exl2".

    import kiln.transformers
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained("Llama-3.1-8B-exl2", device_map="cuda")

use_for_gptq() has kiln load GPTQ checkpoints too. See docs/transformers.md.
"""

import concurrent.futures
import functools
import glob
import json
import os
import re
import threading

import torch
import transformers
from transformers import modeling_utils
from transformers.utils import logging

from . import _eager
from ._checkpoint import Checkpoint, shared
from ._graph import Calls
from ._library import Error, FormatError, NotSupported, OutOfMemory
from ._quant import QMatrix, _exl2, _gptq
from .nn import Piece, QExperts, QLinear, Shared

__all__ = ["Exl2Config", "Exl2Quantizer", "GptqQuantizer", "use_for_gptq"]

_OLDEST = (4, 57)
_hooks = (modeling_utils, "_get_resolved_checkpoint_files"), (modeling_utils.PreTrainedModel, "_load_pretrained_model")
if tuple(int(n) for n in transformers.__version__.split(".")[:2]) < _OLDEST or not all(hasattr(*hook) for hook in _hooks):
    raise ImportError(
        "kiln.transformers needs transformers 4.57 or a release of version 5, and this is %s: pip install -U transformers kiln"
        % transformers.__version__
    )

from transformers.pytorch_utils import Conv1D  # noqa: E402
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer  # noqa: E402
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING  # noqa: E402
from transformers.utils.quantization_config import QuantizationConfigMixin  # noqa: E402

_logger = logging.get_logger("transformers.kiln")
_ROOM = 256  # tokens: static caches are multiples of it
_AHEAD = 3  # groups of layers that are read while one is made: together the four of an ordinary layer
_loading = threading.local()  # of the model that this thread loads: model_type and files

# From the names of transformers' modules, under the decoder, to those of EXL2, which are Llama's.
_names = [
    (r"^(h|blocks)\.", "layers."),
    (r"^wte$", "embed_tokens"),
    (r"^(ln_f|norm_f)$", "norm"),
    (r"\.norm_attn_norm\.norm_1$", ".input_layernorm"),
    (r"\.norm_attn_norm\.norm_2$", ".post_attention_layernorm"),
    (r"\.norm_attn_norm\.attn\.out_proj$", ".self_attn.o_proj"),
    (r"\.norm_attn_norm\.attn\.", ".self_attn."),
    (r"\.attn\.c_proj$", ".self_attn.o_proj"),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.router\.layer$", ".block_sparse_moe.gate"),
    (r"\.ffn\.experts$", ".block_sparse_moe.experts"),
]
_embeddings = ("embed_tokens", "wte")
_renamed = ("gpt2", "gpt_bigcode", "dbrx")  # whose float tensors have other names in EXL2 than in transformers
_fused = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"), "c_attn": ("q_proj", "k_proj", "v_proj"), "Wqkv": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}  # fmt: skip
# Layers beside each other that take the same input.
_companions = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "mlp", "up_proj": "mlp", "w1": "mlp", "w3": "mlp"}
_expert_parts = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("w1", "v1", "w2"))


@register_quantization_config("exl2")
class Exl2Config(QuantizationConfigMixin):
    """quantization_config of an EXL2 model: what the converter has noted. None of it is needed to load."""

    def __init__(self, **noted):
        self.quant_method = "exl2"
        self.__dict__.update(noted)


class _Format:
    """What differs between EXL2 and GPTQ in a checkpoint."""

    def __init__(self, name, weight, tensors, make):
        self.name, self.weight, self.tensors, self.make = name, "." + weight, tensors, make

    def rows(self, checkpoint, key):
        """Input features of a matrix, from the headers; None if they do not say."""
        if self.name == "EXL2":
            return checkpoint.shapes.get(key + ".q_invperm", (None,))[0]
        return None


class Exl2Quantizer(HfQuantizer):
    """Loads matrices of a checkpoint straight into kiln's."""

    requires_calibration = True
    modules_to_not_convert = ()

    def _format(self):
        return _Format("EXL2", "q_weight", _exl2, QMatrix.from_exl2)

    def validate_environment(self, *args, device_map=None, **kwargs):
        places = device_map.values() if isinstance(device_map, dict) else [device_map]
        if any("disk" == str(p) for p in places):
            raise Error("quantized layers cannot be kept on disk: use a device_map without disk")
        if any(str(p).startswith("cuda") or isinstance(p, int) for p in places) and not torch.cuda.is_available():
            raise NotSupported("device_map names a GPU and torch sees none: leave device_map away to run on the CPU")

    def update_device_map(self, device_map):
        # An embedding is looked up in main memory by the GPU itself: one device for all, as far as transformers is concerned.
        self.embedding_in_main_memory = False
        if isinstance(device_map, dict):
            rest = {n: d for n, d in device_map.items() if str(d) != "cpu" or n.rpartition(".")[2] not in _embeddings}
            if 0 < len(rest) < len(device_map) and all(_torch_device(d).type == "cuda" for d in rest.values()):
                self.embedding_in_main_memory, device_map = True, rest
        return device_map

    def update_dtype(self, dtype):
        # Products are in half precision. Gemma's activations do not fit into it, between products.
        if dtype in (None, torch.bfloat16) and not getattr(_loading, "model_type", "").startswith("gemma"):
            return torch.float16
        return dtype

    def _process_model_before_weight_loading(self, model, checkpoint_files=None, **kwargs):
        job = _Job(model, checkpoint_files or _loading.files, self._format())
        job.embedding_in_main_memory = getattr(self, "embedding_in_main_memory", False)
        job.replace()
        model._kiln_job = job
        return model

    def _process_model_after_weight_loading(self, model, **kwargs):
        for p in model.parameters():
            p.requires_grad_(False)
        _eager.prepare(model)
        if hasattr(model, "get_compiled_call"):
            _use_graphs(model)
        return model

    def is_serializable(self, *args, **kwargs):
        return False

    is_trainable = False
    is_compileable = True


register_quantizer("exl2")(Exl2Quantizer)


class GptqQuantizer(Exl2Quantizer):
    """The same for GPTQ, in the formats gptq and gptq_v2."""

    def _format(self):
        config = self.quantization_config
        stored = "gptq_v2" in (getattr(config, "format", None), getattr(config, "checkpoint_format", None))  # version 5, version 4
        group = getattr(config, "group_size", 0)
        return _Format("GPTQ", "qweight", _gptq, lambda tensors, key, **kw: QMatrix.from_gptq(
            tensors, key, bits=config.bits, group_size=max(group or 0, 0), zero="as-stored" if stored else "plus-one-wrap", **kw
        ))  # fmt: skip


def _use_graphs(model):
    """Have model.generate replay CUDA graphs where it would call a compiled model: with a static cache, on a GPU."""
    plain, prepare, calls = model.get_compiled_call, model.prepare_inputs_for_generation, []

    def get_compiled_call(compile_config=None):
        if compile_config is not None:  # the caller wants torch.compile
            return plain(compile_config)
        if not calls:
            calls.append(Calls(model, lambda **kwargs: plain(None)(**kwargs)))
        return calls[0].begin()

    @functools.wraps(prepare)
    def prepare_inputs_for_generation(input_ids, *args, **kwargs):
        ready = calls[0].prepared(input_ids, kwargs.get("past_key_values")) if calls else None
        return ready or prepare(input_ids, *args, **kwargs)

    model.get_compiled_call, model.prepare_inputs_for_generation = get_compiled_call, prepare_inputs_for_generation
    for name in ("_prepare_static_cache", "_get_cache"):  # of version 5, of version 4
        if hasattr(model, name):
            setattr(model, name, functools.partial(_larger, getattr(model, name)))


def _larger(make, *args, **kwargs):
    """A static cache with a little room, so that the next call, with a longer prompt, can have the same graph."""
    if "max_cache_len" in kwargs:
        kwargs["max_cache_len"] = -(-kwargs["max_cache_len"] // _ROOM) * _ROOM
    return make(*args, **kwargs)


def use_for_gptq():
    """Have kiln load GPTQ checkpoints from now on, in the place of transformers' own loader."""
    AUTO_QUANTIZER_MAPPING["gptq"] = GptqQuantizer


class _Job:
    """One model that is being loaded: which matrices of the checkpoint go where."""

    def __init__(self, model, files, format):
        self.model, self.format, self.checkpoint = model, format, Checkpoint(files or [])
        self.text = model.config.get_text_config(decoder=True) if hasattr(model.config, "get_text_config") else model.config
        self.problems, self.plan = [], []  # plan: layer, parts of it as (key, first column or None, width)
        # Names without the part that says "of the language model", which differs between releases of transformers.
        self.keys = {
            _plain(n[: -len(format.weight)]): n[: -len(format.weight)] for n in self.checkpoint if n.endswith(format.weight)
        }
        self.used = set()
        if not self.keys:
            raise FormatError(
                "%s has no %s tensors (none is named …%s): is it the folder that was compiled?"
                % (self._place(), format.name, format.weight)
            )

    def _place(self):
        return getattr(self.model.config, "_name_or_path", "") or "the model"

    # Which layers there are.

    def replace(self):
        """Put empty quantized layers in the place of the model's own."""
        model, decoder = self.model, self._decoder()
        prefix = next(name for name, module in model.named_modules() if module is decoder)
        head = model.get_output_embeddings()
        replaced = []
        for name, module in model.named_modules():
            if any(name.startswith(done + ".") for done in replaced[-1:]):
                continue
            if module is head:
                plain = "lm_head"
            elif name.startswith(prefix + ".") or not prefix and name:
                plain = _canonical(name[len(prefix) + 1 if prefix else 0 :])
            else:
                continue
            new = None
            if isinstance(module, (torch.nn.Linear, Conv1D)):
                new = self._linear(name, plain, module, is_head=module is head)
            elif name.endswith(".experts") and not isinstance(module, torch.nn.ModuleList):
                new = self._experts(name, plain, module)
            if new is not None:
                _set(model, name, new)
                replaced.append(name)
        if head is None:
            self.used.add("lm_head")
        for plain in sorted(self.keys.keys() - self.used):
            self.problems.append("%s has no place in %s" % (self.keys[plain], type(model).__name__))
        if self.problems:
            more = "" if len(self.problems) <= 8 else "; and %d more" % (len(self.problems) - 8)
            raise FormatError("%s cannot be loaded: %s%s" % (self._place(), "; ".join(self.problems[:8]), more))
        if isinstance(model.get_output_embeddings(), QLinear):
            _untie(model)

    def _decoder(self):
        model = self.model
        for owner in (model, getattr(model, "model", None)):
            for name in ("language_model", "text_model"):
                inner = getattr(owner, name, None)
                if inner is not None:
                    return getattr(inner, "model", inner)
        return model.base_model

    def _linear(self, name, plain, module, is_head):
        if isinstance(module, Conv1D):
            rows, cols = module.weight.shape
        else:
            rows, cols = module.in_features, module.out_features
        stem, _, last = plain.rpartition(".")
        if plain in self.keys:
            parts = [(plain, None, cols)]
        elif last in _fused and stem + "." + _fused[last][0] in self.keys:
            parts = [(stem + "." + part, None, width) for part, width in zip(_fused[last], self._widths(last, cols))]
        else:
            parts = self._slice(stem, last, cols)
            if parts is None:
                if not is_head and plain + ".weight" not in self._floats():
                    self.problems.append("%s is missing (for %s)" % (plain, name))
                return None
        return self._layer(rows, cols, parts, module.bias is not None)

    def _layer(self, rows, cols, parts, bias=False):
        layer, size = QLinear(rows, cols), 0
        for plain, first, width in parts:
            self.used.add(plain)
            key = self.keys.get(plain)
            if key is None:
                self.problems.append("%s is missing" % plain)
                continue
            shapes, missing = (
                self.checkpoint.shapes,
                [s for s in self.format.tensors[: 4 if self.format.name == "EXL2" else 3] if key + "." + s not in self.checkpoint],
            )
            if missing:
                self.problems.append("%s lacks %s" % (key, ", ".join(missing)))
                continue
            have_rows, have_cols = self.format.rows(self.checkpoint, key), shapes[key + self.format.weight][-1]
            end = (first or 0) + width
            if have_rows not in (None, rows) or not (end <= have_cols if first is not None else width <= have_cols < width + 32):
                self.problems.append("%s is %s×%d: the model wants %d×%d" % (key, have_rows or "?", have_cols, rows, end))
            if self.format.name == "EXL2" and (key + ".bias" in self.checkpoint) != bias:
                self.problems.append("%s has %s bias, and the model wants %s" % (key, *(("no", "one") if bias else ("a", "none"))))
            size += sum(self.checkpoint.sizes.get(key + "." + s, 0) for s in self.format.tensors) * width // max(have_cols, 1)
        # Says to what computes a device map how large the layer is; gone before anything is loaded.
        layer.register_buffer("size", torch.empty(size, dtype=torch.uint8, device="meta"), persistent=False)
        self.plan.append((layer, [(self.keys.get(plain), first, width) for plain, first, width in parts]))
        return layer

    def _widths(self, last, cols):
        if last == "gate_up_proj":
            return cols // 2, cols // 2
        heads = self.text.num_attention_heads
        q = heads * (getattr(self.text, "head_dim", None) or self.text.hidden_size // heads)
        return q, (cols - q) // 2, (cols - q) // 2

    def _slice(self, stem, last, cols):
        """The other way round: the layer is a part of a matrix."""
        for fused, names in _fused.items():
            plain = stem + "." + fused
            if last in names and plain in self.keys:
                widths = self._widths(fused, self.checkpoint.shapes[self.keys[plain] + self.format.weight][-1])
                return [(plain, sum(widths[: names.index(last)]), cols)]
        return None

    def _experts(self, name, plain, module):
        for plain in (plain, plain.replace(".mlp.experts", ".block_sparse_moe.experts")):
            names = next((names for names in _expert_parts if all(plain + ".0." + n in self.keys for n in names)), None)
            if names is not None:
                break
        else:
            self.problems.append("%s.0 is missing (for %s)" % (plain, name))
            return None
        inner = getattr(module, "mlp", module)  # DBRX
        first = lambda *names: next(getattr(o, n) for o in (module, inner) for n in names if getattr(o, n, None) is not None)  # noqa: E731
        count, inter = first("num_experts", "moe_num_experts"), first("intermediate_dim", "intermediate_size", "ffn_hidden_size")
        hidden, experts = self.text.hidden_size, []
        for e in range(count):
            gate, up, down = ("%s.%d.%s" % (plain, e, n) for n in names)
            experts.append(
                (
                    self._layer(hidden, 2 * inter, [(gate, None, inter), (up, None, inter)]),
                    self._layer(inter, hidden, [(down, None, hidden)]),
                )
            )
        return QExperts(experts, first("act_fn", "activation_fn"))

    # What is loaded.

    def _is_float(self, name):
        key, _, last = name.rpartition(".")
        return not (_plain(key) in self.keys and last in self.format.tensors)

    def _floats(self):
        return {_plain(n): n for n in self.checkpoint if self._is_float(n)}

    def floats(self, device_map):
        """The tensors that are not quantized, by the names of the float model."""
        for layer, _ in self.plan:
            del layer.size
        devices = set(map(str, (device_map or {"": "cpu"}).values()))
        device = _torch_device(devices.pop()) if len(devices) == 1 else "cpu"
        self._check_memory(device_map or {})
        if getattr(self.text, "model_type", "") in _renamed and self.format.name == "EXL2":
            have, wanted = self._floats(), {}
            prefix = self.model.base_model_prefix + "." if self.model.base_model is not self.model else ""
            for name in self.model.state_dict():
                module, _, last = name.rpartition(".")
                plain = (
                    "lm_head" if module == "lm_head" else _canonical(module[len(prefix) :] if module.startswith(prefix) else module)
                )
                if plain + "." + last in have:
                    wanted[name] = have[plain + "." + last]
        else:
            wanted = {n.replace("mm_input_projection.weight", "mm_input_projection_weight"): n for n in self._floats().values()}
        apart = self._embedding() if self.embedding_in_main_memory else None
        found = {name: self._float(n, device, _plain(name) == apart) for name, n in wanted.items()}
        if any(n.endswith(".q_norm.weight") and p.dim() == 1 for n, p in self.model.named_parameters()):
            # EXL2 has the norm of a head once for each head.
            norms = [n for n, t in found.items() if n.endswith((".q_norm.weight", ".k_norm.weight")) and t.dim() == 2]
            found.update((n, found[n][0].clone()) for n in norms)
        return found

    def _float(self, name, device, in_main_memory):
        if in_main_memory:
            return shared(self.checkpoint.read(name).to(self.model.get_input_embeddings().weight.dtype), device)
        return self.checkpoint.read(name, device)

    def _embedding(self):
        module = self.model.get_input_embeddings()
        return _plain(next(n for n, m in self.model.named_modules() if m is module) + ".weight")

    def _check_memory(self, device_map):
        if not torch.cuda.is_available():
            return
        for index in range(torch.cuda.device_count()):
            if {str(_torch_device(d)) for d in device_map.values()} == {"cuda:%d" % index}:
                need, free = sum(self.checkpoint.sizes.values()), torch.cuda.mem_get_info(index)[0]
                if self.embedding_in_main_memory:
                    need -= self.checkpoint.sizes.get(self._floats().get(self._embedding()), 0)
                free += torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
                if need > free:
                    raise OutOfMemory(
                        '%s needs %.1f GB and cuda:%d has %.1f GB free: end what else runs there, use device_map="auto" with several GPUs, or '
                        "a model of fewer bits" % (self._place(), need / 1e9, index, free / 1e9)
                    )

    def fill(self, device_map):
        """Read the matrices and make them, one after the other; those of the rest of a layer are read meanwhile."""
        names = {module: name for name, module in self.model.named_modules()}
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float16)
        groups = []  # of layers with the same input: [(layer, parts)]
        for layer, parts in self.plan:
            stem, _, last = names[layer].rpartition(".")
            if groups and last in _companions and groups[-1][0] == (stem, _companions[last]):
                groups[-1][1].append((layer, parts))
            else:
                groups.append(((stem, _companions.get(last)), [(layer, parts)]))
        groups, reads = [group for _, group in groups], []
        with concurrent.futures.ThreadPoolExecutor(_AHEAD) as readers:
            for i, group in enumerate(logging.tqdm(groups, desc="Loading quantized layers")):
                for later in groups[len(reads) : i + 1 + _AHEAD]:
                    reads.append(readers.submit(self._read_group, later, _device_of(names[later[0][0]], device_map)))
                made = [(bucket, self._make(tensors, device)) for bucket, tensors, device in reads[i].result()]
                reads[i] = None
                self._fill_group(group, made, dtype)
        self.checkpoint.close()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # what transformers and the reading of layers have allocated and no longer use

    def _read_group(self, group, device):
        pieces = [(layer, *part) for layer, parts in group for part in parts]
        return [(bucket, self._read(bucket, device), device) for bucket in self._alike(pieces)]

    def _fill_group(self, group, made, dtype):
        found, shared = {}, {}
        for bucket, matrix in made:
            layers, first = list(dict.fromkeys(layer for layer, *_ in bucket)), 0
            for layer, key, begin, width in bucket:
                found[layer, key, begin] = Piece(matrix, first, width)
                first += width
            if len(layers) > 1:
                common = Shared(matrix, [width for *_, width in bucket])
                shared.update((layer, (common, i)) for i, layer in enumerate(layers))
        for layer, parts in group:
            pieces = [found[layer, key, begin] for key, begin, _ in parts]
            layer.fill(_joined(pieces), dtype, shared.get(layer))

    def _alike(self, pieces):
        """Pieces whose matrices can be one: the same groups and order of rows, and no padding between them."""
        buckets = {}
        for piece in pieces:
            layer, key, first, width = piece
            whole = (
                self.format.name == "EXL2"
                and first is None
                and width % 32 == 0
                and width == self.checkpoint.shapes[key + ".q_weight"][1]
            )
            kind = key
            if whole:
                small = [
                    self.checkpoint.read(key + "." + n).numpy().tobytes()
                    for n in ("q_groups", "q_invperm")
                    if key + "." + n in self.checkpoint
                ]
                kind = (*small, key + ".bias" in self.checkpoint)
            buckets.setdefault(kind, []).append(piece)
        return list(buckets.values())

    def _read(self, bucket, device):
        """The tensors of matrices, side by side, without a key. Small ones stay in main memory, where they are looked at."""
        tensors = {}
        for name in self.format.tensors:
            there = device if name in ("q_weight", "qweight", "scales") else "cpu"
            parts = []
            for _, key, first, width in bucket:
                if key + "." + name in self.checkpoint:
                    t = self.checkpoint.read(key + "." + name, there)
                    if len(bucket) > 1 and name == "q_scale_max":
                        t = t[:, None].expand(-1, width // 32)  # for each 32 columns
                    if first is not None and name in ("q_weight", "q_scale", "qweight", "qzeros", "scales", "bias"):
                        t = _columns(t, first, width, self.checkpoint.shapes[key + self.format.weight][-1])
                    parts.append(t)
            if parts:
                side = len(parts) > 1 and name in ("q_weight", "q_scale", "q_scale_max", "bias")
                tensors[name] = torch.cat(parts, -1) if side else parts[0].contiguous()
        return bucket[0][1], tensors

    def _make(self, read, device):
        key, tensors = read
        try:
            return self.format.make(tensors, "", device=device, free=True)
        except FormatError as e:
            raise FormatError("%s: %s" % (key, e)) from None


def _joined(pieces):
    """Pieces that follow each other in one matrix are one."""
    out = [pieces[0]]
    for p in pieces[1:]:
        last = out[-1]
        if p.matrix is last.matrix and p.first == last.first + last.width:
            out[-1] = Piece(p.matrix, last.first, last.width + p.width)
        else:
            out.append(p)
    return out


def _columns(t, first, width, cols):
    """Columns of a tensor of a matrix, where it has a line of them."""
    n = t.shape[-1]
    return t[..., first * n // cols : (first + width) * n // cols]


def _plain(name):
    return name.replace("language_model.", "", 1)


def _canonical(name):
    for pattern, replacement in _names:
        name = re.sub(pattern, replacement, name)
    return "model." + name


def _set(model, name, new):
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)


def _untie(model):
    """The head of an EXL2 model is a matrix of its own, also where the float model shares it with the embedding."""
    for module in model.modules():
        if isinstance(module, modeling_utils.PreTrainedModel):
            for config in {id(c): c for c in (module.config, module.config.get_text_config(decoder=True))}.values():
                config.tie_word_embeddings = False
            tied = getattr(module, "all_tied_weights_keys", None)
            if isinstance(tied, dict):
                for name in [n for n in tied if n.endswith("lm_head.weight")]:
                    del tied[name]
            module._tied_weights_keys = None


def _torch_device(place):
    return torch.device(
        "cuda:%s" % place if str(place).isdigit() else "cuda:%d" % torch.cuda.current_device() if str(place) == "cuda" else place
    )


def _device_of(name, device_map):
    if not device_map:
        return torch.device("cpu")
    while name not in device_map and name:
        name = name.rpartition(".")[0]
    return _torch_device(device_map.get(name, "cpu"))


# Two functions of transformers are wrapped: the one that looks for files, which knows no shards named output-… and believes a
# stale index, and the one that loads tensors.

_find, _load = (getattr(*hook) for hook in _hooks)


def _find_files(*args, **kwargs):
    found = _loading.files, _ = _find_all(*args, **kwargs)
    return found


def _find_all(pretrained_model_name_or_path=None, *args, **kwargs):
    path = pretrained_model_name_or_path
    _loading.model_type = ""
    if path is None:
        return _find(path, *args, **kwargs)
    told = kwargs.get("download_kwargs") or kwargs
    folder = str(path)
    if not os.path.isdir(folder):
        from transformers.utils import cached_file

        found = cached_file(folder, "config.json", _raise_exceptions_for_missing_entries=False, **_hub(told))
        folder = os.path.dirname(found) if found else ""
    folder = os.path.join(folder, told.get("subfolder") or "")
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
    except (OSError, ValueError):
        config = {}
    _loading.model_type = str(config.get("model_type"))
    quantized = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config") or {}
    if quantized.get("quant_method") != "exl2":
        return _find(path, *args, **kwargs)
    if not os.path.isdir(str(path)):
        from huggingface_hub import snapshot_download

        told = _hub(told)
        folder = os.path.join(
            snapshot_download(
                str(path), revision=told.get("revision"), cache_dir=told.get("cache_dir"), token=told.get("token"),
                local_files_only=bool(told.get("local_files_only")), allow_patterns=["*.safetensors"],
            ),
            told.get("subfolder") or "",
        )  # fmt: skip
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "*.safetensors")))
    if not files:
        raise FormatError("%s has no *.safetensors files: is it the folder that was compiled?" % folder)
    Checkpoint(files)  # says what is wrong with them; transformers 4 opens one before it asks the quantizer
    return files, None


def _hub(told):
    return {
        k: told[k]
        for k in ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
        if told.get(k) is not None
    }


def _load_model(model, state_dict, checkpoint_files, *args, **kwargs):
    call = lambda *given: getattr(_load, "__func__", _load)(
        *((type(model),) if hasattr(_load, "__func__") else ()), *given, *args, **kwargs
    )  # noqa: E731
    job = model.__dict__.pop("_kiln_job", None)
    if job is None:
        return call(model, state_dict, checkpoint_files)
    # Version 5 passes one object; version 4 passes everything by name.
    device_map = (
        kwargs.get("device_map")
        if "device_map" in kwargs
        else getattr(args[0] if args else kwargs.get("load_config"), "device_map", None)
    )
    if "sharded_metadata" in kwargs:
        kwargs["sharded_metadata"] = None
    result = call(model, job.floats(device_map), None)
    job.fill(device_map)
    return result


modeling_utils._get_resolved_checkpoint_files = _find_files
modeling_utils.PreTrainedModel._load_pretrained_model = staticmethod(_load_model)


if __name__ == "__main__":
    # python -m kiln.transformers serve …: the command of transformers, which knows EXL2 then.
    import importlib.metadata
    import sys

    sys.modules["kiln.transformers"] = sys.modules["__main__"]
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="transformers")
    sys.argv[0] = "transformers"
    sys.exit(command.load()())
