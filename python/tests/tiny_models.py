"""Tiny random models of transformers' architectures, and folders of the same in EXL2, made by `kiln model compile`."""

import json
import os
import subprocess

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import kiln

V5 = not transformers.__version__.startswith("4.")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

_text = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=90,
    max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
_clip = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8)
_qwen_vl = dict(rope_scaling={"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}, rope_theta=10000.0)

# Name: model class, config class, arguments of the config.
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _text),
    "llama-tied": ("LlamaForCausalLM", "LlamaConfig", dict(_text, tie_word_embeddings=True)),
    "llama-biases": ("LlamaForCausalLM", "LlamaConfig", dict(_text, attention_bias=True, mlp_bias=True)),
    "mistral": ("MistralForCausalLM", "MistralConfig", dict(_text, sliding_window=None)),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(_text, num_local_experts=4, num_experts_per_tok=2)),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _text),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(_text, head_dim=32)),
    "qwen3-moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", dict(_text, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(_text, head_dim=32)),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(_text, head_dim=32, query_pre_attn_scalar=32)),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", _text),
    "cohere": ("CohereForCausalLM", "CohereConfig", dict(_text, use_qk_norm=True)),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", dict(_text, sliding_window=64)),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _text),
    "granite": ("GraniteForCausalLM", "GraniteConfig", _text),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", dict(_text, head_dim=16, attention_bias=True)),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", dict(n_embd=64, n_layer=2, n_head=4, n_inner=128, n_positions=128, vocab_size=90)),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", dict(n_embd=64, n_layer=2, n_head=2, n_inner=128, n_positions=128, vocab_size=90)),
    "dbrx": ("DbrxForCausalLM", "DbrxConfig", dict(
        d_model=64, n_heads=4, n_layers=2, max_seq_len=128, vocab_size=90, attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        ffn_config={**({"hidden_size": 64} if V5 else {}), "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "ffn_act_fn": {"name": "silu"}},
    )),
    "llava": ("LlavaForConditionalGeneration", "LlavaConfig", dict(
        text_config=dict(_text, model_type="llama"), vision_config=dict(_clip, model_type="pixtral", head_dim=16), image_token_id=89,
        image_token_index=89, vision_feature_layer=-1, vision_feature_select_strategy="full",
    )),
    "mistral3": ("Mistral3ForConditionalGeneration", "Mistral3Config", dict(
        text_config=dict(_text, model_type="mistral"), image_token_id=89, image_token_index=89, vision_feature_layer=-1, spatial_merge_size=1,
        vision_config=dict(_clip, model_type="pixtral", head_dim=16),
    )),
    "gemma3": ("Gemma3ForConditionalGeneration", "Gemma3Config", dict(
        text_config=dict(_text, model_type="gemma3_text", head_dim=16, query_pre_attn_scalar=16, sliding_window=64),
        vision_config=dict(_clip, model_type="siglip_vision_model"), mm_tokens_per_image=4, image_token_index=89, image_token_id=89,
    )),
    "qwen2-vl": ("Qwen2VLForConditionalGeneration", "Qwen2VLConfig", dict(
        text_config=dict(_text, **_qwen_vl), image_token_id=89, vision_start_token_id=88, vision_end_token_id=87, video_token_id=86,
        vision_config=dict(depth=2, embed_dim=32, hidden_size=64, num_heads=2, mlp_ratio=2, patch_size=4, spatial_merge_size=2, temporal_patch_size=2),
    )),
    "qwen2.5-vl": ("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLConfig", dict(
        text_config=dict(_text, **_qwen_vl), image_token_id=89, vision_start_token_id=88, vision_end_token_id=87, video_token_id=86,
        vision_config=dict(
            depth=2, hidden_size=32, intermediate_size=64, out_hidden_size=64, num_heads=2, patch_size=4, spatial_merge_size=2,
            temporal_patch_size=2, window_size=16, fullatt_block_indexes=[1],
        ),
    )),
}  # fmt: skip


def config_of(name):
    _, config, arguments = MODELS[name]
    return getattr(transformers, config)(**arguments)


def float_model(name, seed=1):
    """The model in float32, with the weights that the source folder has in half precision."""
    torch.manual_seed(seed)
    config = config_of(name)
    config.architectures = [MODELS[name][0]]
    model = getattr(transformers, MODELS[name][0])(config).eval()
    for n, p in model.named_parameters():
        if "norm" in n or "ln_" in n or p.dim() == 1:  # else all of them are one and zero
            p.data.add_(torch.randn_like(p) / 10)
        if ".gate.weight" in n or "router" in n:
            p.data.mul_(50)  # a choice that rounding does not change
        p.data = p.data.half().float()
    return model


def random_matrix(rows, cols, rng, bias, like=None):
    """EXL2 tensors as the converter writes them, of two widths, and the weights they stand for, [cols, rows]. like are the tensors of a
    matrix with the same input, whose order of rows and widths it has."""
    padded = -(-cols // 32) * 32
    first = rows // 2 // 32 * 32
    groups = [(bits, n) for bits, n in ((5, first), (int(rng.choice([3, 4])), rows - first)) if n]
    if like is not None:
        bits = like["q_groups"][::2].tolist()
        groups = [(b, n) for b, (_, n) in zip(bits, groups)]
    words, starts = 0, []
    for bits, n in groups:
        starts += [bits, words]
        words += n * bits // 32
    word = lambda *shape: torch.from_numpy(rng.integers(-(2**31), 2**31, shape, np.int64).astype(np.int32))  # noqa: E731
    tensors = {
        "q_weight": word(words, padded),
        "q_groups": torch.tensor(starts, dtype=torch.int16),
        "q_scale": word(len(groups), padded // 8),
        "q_scale_max": torch.from_numpy((0.01 + 0.02 * rng.random(len(groups))).astype(np.float16)),
        "q_invperm": torch.from_numpy(rng.permutation(rows).astype(np.int32)) if like is None else like["q_invperm"],
    }
    if bias:
        tensors["bias"] = torch.from_numpy((rng.standard_normal(padded) / 10).astype(np.float16))
    with kiln.QMatrix.from_exl2({n: t for n, t in tensors.items() if n != "bias"}) as m:
        weight = torch.from_numpy(m.dequantize().astype(np.float32)).T[:cols].contiguous()
    return tensors, (weight, tensors["bias"][:cols].float() if bias else None)


def _architecture(name):
    with open(os.path.join(ROOT, "model/exl2/internal/reference/architectures.json"), encoding="utf-8") as f:
        return next(a for a in json.load(f)["architectures"] if a["architecture"] == name)


def _features(config):
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv = getattr(text, "num_key_value_heads", None) or (1 if getattr(text, "multi_query", False) else heads)
    inter = (
        getattr(text, "moe_intermediate_size", None) or getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None)
    )
    if text.model_type == "dbrx":
        kv, inter = text.attn_config.kv_n_heads, text.ffn_config.ffn_hidden_size
    return {"hidden": text.hidden_size, "q": heads * head, "kv": kv * head, "inter": inter, "vocab": text.vocab_size}


def _edit(path, **changes):
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config.update(changes)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)


def compile_exl2(name, folder, *flags, seed=2):
    """Quantize a model at random and compile it. Returns the folder and the float model with the same weights."""
    model, rng = float_model(name), np.random.default_rng(seed)
    config, architecture = model.config, _architecture(MODELS[name][0])
    source, work, out = (os.path.join(folder, n) for n in ("source", "work", "exl2"))
    model.half().save_pretrained(source)
    model.float()
    _edit(os.path.join(source, "config.json"), architectures=[MODELS[name][0]])
    if name == "gpt2":  # published without a prefix, which exllamav2 expects
        path = os.path.join(source, "model.safetensors")
        save_file({n.removeprefix("transformer."): t for n, t in load_file(path).items()}, path)
    if architecture["multimodal"]:
        with open(os.path.join(source, "preprocessor_config.json"), "w") as f:
            f.write("{}")
    text, sizes = config.get_text_config(decoder=True), _features(config)
    bias = {k: bool(v) for k, v in architecture["bias"].items() if k in ("qkv", "o", "mlp")}
    if architecture["bias"].get("qkv_from_config"):
        bias["qkv"] = bool(getattr(text, architecture["bias"]["qkv_from_config"]))
    elif getattr(text, "attention_bias", False) and not (bias["qkv"] or bias["o"]):
        bias["qkv"] = bias["o"] = True
    bias["mlp"] = bias["mlp"] or bool(getattr(text, "mlp_bias", False))
    os.makedirs(os.path.join(work, "out_tensor"))
    weights, experts, made = {}, 0, {}
    if architecture["experts"]:
        experts = next(
            getattr(o, n)
            for o in (text, getattr(text, "ffn_config", text))
            for n in ("num_local_experts", "num_experts", "moe_num_experts")
            if getattr(o, n, None)
        )
    for layer in range(text.num_hidden_layers):
        for module in architecture["layer_modules"] + (architecture["tail_modules"] if layer == 0 else []):
            parts = [(p, 0) for p in module["parts"]] + [(p, e) for e in range(experts) for p in module.get("expert_parts", [])]
            for part, expert in parts:
                if part["kind"] != "quant":
                    continue
                key = part["key"].format(lm=architecture["lm_prefix"], layer=layer, expert=expert)
                has_bias = bias.get(part["bias"], False)
                # As the converter does it, k has the order and widths of q, and up those of gate; v is on its own here.
                stem, _, last = key.rpartition(".")
                like = made.get(stem + "." + {"k_proj": "q_proj", "up_proj": "gate_proj", "w3": "w1", "v1": "w1"}.get(last, "none"))
                made[key], weights[key[len(architecture["lm_prefix"]) :]] = random_matrix(
                    sizes[part["in"]], sizes[part["out"]], rng, has_bias, like
                )
                tensors = made[key]
                save_file({key + "." + n: t for n, t in tensors.items()}, os.path.join(work, "out_tensor", key + ".safetensors"))
    job = dict(bits=4.0, head_bits=6, cal_dataset=None, compile_full=out, dataset_rows=1, in_dir=source, length=64, out_dir=work,
               measurement={}, progress="compile", shard_size=0.0625, status_output=False, strategy={})  # fmt: skip
    with open(os.path.join(work, "job_new.json"), "w") as f:
        json.dump(job, f)
    done = subprocess.run(
        [os.environ["KILN"], "model", "compile", "--job", work, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError("kiln model compile %s:\n%s" % (name, done.stdout))
    put_weights(model, weights)
    return out, model


def put_weights(model, weights):
    """The weights of EXL2's matrices, by their names, into a float model of transformers."""
    weights = dict(weights)

    def put(linear, *keys, transposed=False):
        found = [weights.pop(k) for k in keys]
        w = torch.cat([w for w, _ in found])
        target = w.T if transposed else w
        assert linear.weight.shape == target.shape, (keys, linear.weight.shape, target.shape)
        linear.weight = torch.nn.Parameter(target.contiguous())
        assert (linear.bias is not None) == (found[0][1] is not None), keys
        if linear.bias is not None:
            linear.bias = torch.nn.Parameter(torch.cat([b for _, b in found]))

    kind = model.config.model_type
    decoder = model
    for inner in ("model", "transformer", "language_model", "model"):
        decoder = getattr(decoder, inner, decoder)
    qkv = lambda k: [k + ".self_attn." + p for p in ("q_proj", "k_proj", "v_proj")]  # noqa: E731
    for i, layer in enumerate(getattr(decoder, {"gpt2": "h", "gpt_bigcode": "h", "dbrx": "blocks"}.get(kind, "layers"))):
        key = "model.layers.%d" % i
        if kind in ("gpt2", "gpt_bigcode"):
            across = kind == "gpt2"
            put(layer.attn.c_attn, *qkv(key), transposed=across)
            put(layer.attn.c_proj, key + ".self_attn.o_proj", transposed=across)
            put(layer.mlp.c_fc, key + ".mlp.c_fc", transposed=across)
            put(layer.mlp.c_proj, key + ".mlp.c_proj", transposed=across)
            continue
        if kind == "dbrx":
            put(layer.norm_attn_norm.attn.Wqkv, *qkv(key))
            put(layer.norm_attn_norm.attn.out_proj, key + ".self_attn.o_proj")
            mlp, moe = layer.ffn.experts.mlp, key + ".block_sparse_moe.experts.%d."
            for name in ("w1", "v1"):
                getattr(mlp, name).data = torch.cat([weights.pop(moe % e + name)[0] for e in range(4)])
            mlp.w2.data = torch.cat([weights.pop(moe % e + "w2")[0].T for e in range(4)])
            continue
        if kind == "phi3":
            put(layer.self_attn.qkv_proj, *qkv(key))
        else:
            for part in ("q_proj", "k_proj", "v_proj"):
                put(getattr(layer.self_attn, part), key + ".self_attn." + part)
        put(layer.self_attn.o_proj, key + ".self_attn.o_proj")
        if kind in ("mixtral", "qwen3_moe"):
            block = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
            moe, names = (
                (key + ".block_sparse_moe.experts.%d.", ("w1", "w3", "w2"))
                if kind == "mixtral"
                else (key + ".mlp.experts.%d.", ("gate_proj", "up_proj", "down_proj"))
            )
            gate, up, down = ([weights.pop(moe % e + n)[0] for e in range(4)] for n in names)
            if hasattr(block.experts, "gate_up_proj"):
                block.experts.gate_up_proj.data = torch.stack([torch.cat(p) for p in zip(gate, up)])
                block.experts.down_proj.data = torch.stack(down)
            else:
                for e, expert in enumerate(block.experts):
                    for n, w in zip(names, (gate[e], up[e], down[e])):
                        getattr(expert, n).weight.data = w
        elif kind == "starcoder2":
            put(layer.mlp.c_fc, key + ".mlp.c_fc")
            put(layer.mlp.c_proj, key + ".mlp.c_proj")
        else:
            if hasattr(layer.mlp, "gate_up_proj"):
                put(layer.mlp.gate_up_proj, key + ".mlp.gate_proj", key + ".mlp.up_proj")
            else:
                put(layer.mlp.gate_proj, key + ".mlp.gate_proj")
                put(layer.mlp.up_proj, key + ".mlp.up_proj")
            put(layer.mlp.down_proj, key + ".mlp.down_proj")
    put(model.lm_head, "lm_head")
    assert not weights, sorted(weights)


def inputs_of(name, config, batch=2, length=12):
    """Tokens, and a picture for models that see."""
    torch.manual_seed(3)
    vocab = config.get_text_config(decoder=True).vocab_size
    ids = torch.randint(3, vocab - 10, (batch, length))
    if not _architecture(MODELS[name][0])["multimodal"]:
        return {"input_ids": ids}
    ids = ids[:1]
    if name.startswith("qwen"):
        ids[0, 2:8] = torch.tensor([88, 89, 89, 89, 89, 87])
        out = {"input_ids": ids, "pixel_values": torch.randn(16, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]])}
        return dict(out, mm_token_type_ids=(ids == 89).int()) if V5 else out
    ids[0, 2:6] = 89
    out = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 16, 16)}
    if name in ("mistral3", "llava"):
        out["image_sizes"] = torch.tensor([[16, 16]])
    if name == "gemma3":
        out["token_type_ids"] = (ids == 89).int()
    return out
