"""EXL2 models in transformers on this machine's GPU, beside exllamav2's own model class and transformers in half precision.

    python gputransformers.py make 8b|70b 4.0|mixed FOLDER     a model with random weights
    python gputransformers.py kiln FOLDER [--short]            load, memory, prefill, decode: eager, graphs, model.generate
    python gputransformers.py embedding FOLDER                 the same with the embedding in main memory, as exllamav2 has it
    python gputransformers.py exllamav2 FOLDER                 the same there (a compiled exllamav2 on PYTHONPATH)
    python gputransformers.py fp16 FOLDER                      the same shape in half precision
    python gputransformers.py compile FOLDER                   torch.compile(mode="reduce-overhead") with a static cache
    python gputransformers.py lora FOLDER                      two adapters on one model (peft on PYTHONPATH)
    python gputransformers.py variants FOLDER                  a step with parts of it fused

Each prints lines of "name value", and fails where results are wrong; dev/scripts/gputransformers.sh runs them all.
"""

import concurrent.futures
import cProfile
import json
import os
import pstats
import struct
import sys
import threading
import time

import torch

SHAPES = {
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8),
    "70b": dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8),
    "tiny": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2),
}
WIDTHS = {"4.0": [(4, 1.0)], "mixed": [(5, 0.25), (4, 0.5), (3, 0.25)], "head": [(6, 1.0)]}
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
PROMPT = 2048 if DEVICE != "cpu" else 32


def say(name, value, unit=""):
    print("%-34s %s %s" % (name, ("%.4g" % value) if isinstance(value, float) else value, unit), flush=True)


def expect(good, what):
    if not good:
        raise SystemExit("WRONG: " + what)


def matrix(rows, cols, widths, permutation):
    """EXL2 tensors as in a file, groups of 128."""
    cols = -(-cols // 32) * 32
    groups, words, left = [], 0, rows // 128
    for bits, share in widths:
        for _ in range(round(rows // 128 * share) if bits != widths[-1][0] else left):
            groups += [bits, words]
            words, left = words + 4 * bits, left - 1
    word = lambda *shape: torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device=DEVICE)  # noqa: E731
    count = len(groups) // 2
    return {
        "q_weight": word(words, cols), "q_groups": torch.tensor(groups, dtype=torch.int16), "q_scale": word(count, cols // 8),
        "q_scale_max": (0.005 + 0.01 * torch.rand(count, device=DEVICE)).half() * (4096 / rows) ** 0.5, "q_invperm": permutation,
    }  # fmt: skip


def save(path, tensors):
    """A safetensors file. The package safetensors writes one file at a time."""
    tensors, header, at = {n: t.cpu().contiguous() for n, t in tensors.items()}, {}, 0
    for name, t in tensors.items():
        kind = {torch.float16: "F16", torch.int16: "I16", torch.int32: "I32"}[t.dtype]
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.numpy())


def make(shape, bits, folder):
    os.makedirs(folder, exist_ok=True)
    config = dict(
        SHAPES[shape], architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_theta=500000.0, torch_dtype="float16", bos_token_id=1, eos_token_id=2, hidden_act="silu", tie_word_embeddings=False,
        quantization_config={"quant_method": "exl2", "version": "0.3.2", "bits": 4.0, "head_bits": 6},
    )  # fmt: skip
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    torch.manual_seed(7)
    h, i, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv = h // heads * config["num_key_value_heads"]
    order = lambda n: torch.randperm(n, dtype=torch.int32)  # noqa: E731
    norm = lambda: (1 + 0.1 * torch.randn(h)).half()  # noqa: E731
    start, layers, writers, files = time.perf_counter(), config["num_hidden_layers"], concurrent.futures.ThreadPoolExecutor(8), []

    def write(tensors):
        if len(files) >= 8:
            files[-8].result()
        files.append(writers.submit(save, os.path.join(folder, "output-%05d.safetensors" % len(files)), tensors))

    for layer in range(layers):
        key, tensors = "model.layers.%d." % layer, {}
        for names, k, ns in ((("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), h, (h, kv, kv)), (("self_attn.o_proj",), h, (h,)),
                             (("mlp.gate_proj", "mlp.up_proj"), h, (i, i)), (("mlp.down_proj",), i, (h,))):  # fmt: skip
            permutation = order(k)
            for name, n in zip(names, ns):
                made = matrix(k, n, WIDTHS[bits], permutation.clone())
                if name == "mlp.down_proj":
                    # The mean of random codes is not 0. It adds up over the layers: at full size beyond half precision in 80 of them.
                    made["q_scale_max"] = made["q_scale_max"] / 16
                tensors.update((key + name + "." + t, v) for t, v in made.items())
        tensors[key + "input_layernorm.weight"], tensors[key + "post_attention_layernorm.weight"] = norm(), norm()
        write(tensors)
    head = matrix(h, config["vocab_size"], WIDTHS["head"], order(h))
    write({"model.embed_tokens.weight": torch.randn(config["vocab_size"], h, device=DEVICE).half(), "model.norm.weight": norm(),
          **{"lm_head." + t: v for t, v in head.items()}})  # fmt: skip
    for file in files:
        file.result()
    say("made " + folder, time.perf_counter() - start, "s")


def anonymous():
    """Main memory of this process that is not a file's."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon")) * 1024


class Watch:
    """The peak of main memory that is not a file's, and of the GPU's, while something runs."""

    def __enter__(self):
        self.host, self.gpu, self.end = 0, 0, False
        self.before = anonymous()
        self.free = torch.cuda.mem_get_info()[0] if DEVICE != "cpu" else 0
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _look(self):
        while not self.end:
            self.host = max(self.host, anonymous())
            if DEVICE != "cpu":
                self.gpu = max(self.gpu, self.free - torch.cuda.mem_get_info()[0])
            time.sleep(0.01)

    def __exit__(self, *exception):
        self.end = True
        self.thread.join()


def clock(call, count, warm=3):
    """Milliseconds of a call, the middle of several."""
    sync = torch.cuda.synchronize if DEVICE != "cpu" else (lambda: None)
    for _ in range(warm):
        call()
    sync()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        sync()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times)[len(times) // 2]


def tokens(batch, length, seed=1):
    return torch.randint(10, 100000, (batch, length), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def load(folder, device_map=DEVICE):
    import kiln.transformers  # noqa: F401
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, device_map=device_map)


def prefill(model, batch=1, length=None):
    """The model with a prompt in a dynamic cache."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        out = model(tokens(batch, length or PROMPT), past_key_values=cache, use_cache=True, logits_to_keep=1)
    return out.logits, cache


def eager(model, batch, length=128):
    logits, cache = prefill(model, batch, length)
    ids = logits[:, -1].argmax(-1, keepdim=True)

    def step():
        with torch.no_grad():
            model(ids, past_key_values=cache, use_cache=True)

    return clock(step, 10)


def graph(model, batch, length=128, room=128, label=""):
    from kiln._graph import Steps

    start = time.perf_counter()
    steps = Steps(model, tokens(batch, length), length + room, lambda logits: logits.argmax(-1))
    if DEVICE != "cpu":
        torch.cuda.synchronize()
        if not steps.captured:
            say("NOT CAPTURED", 1)
    ready = time.perf_counter() - start
    count = min(room - 20, 100)

    def run():
        for _ in range(count):
            steps.step()

    took = clock(run, 1, warm=0) / count
    say("graph decode batch %d%s" % (batch, label), took, "ms (cache %d, ready after %.1f s)" % (length + room, ready))
    return took


def check_graph(model):
    """Tokens of graphs are those of an eager model with the same static cache, and logits are close."""
    from kiln._graph import Steps
    from transformers import StaticCache

    ids, choose = tokens(2, 100, seed=5), lambda logits: logits.argmax(-1)
    steps = Steps(model, ids, 256, choose)
    got = [steps.tokens.clone()] + [steps.step().clone() for _ in range(8)]
    cache, want, x = StaticCache(config=model.config, max_cache_len=256), [], ids
    with torch.no_grad():
        for i in range(9):
            logits = model(x, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
            x = got[i]  # the same tokens on both sides
            want.append(logits)
    agree = sum((w.argmax(-1, keepdim=True) == g).float().mean().item() for w, g in zip(want, got)) / 9
    say("tokens of graphs as eager", agree)
    expect(agree >= 0.9, "tokens of graphs")  # weights are random, so two tokens may be as likely as each other


def check_attention():
    """kiln._decode beside torch, for a few shapes; what is not seen is not looked at."""
    from kiln import _decode

    worst = 0.0
    for batch, heads, group, width, length, used in ((1, 8, 4, 128, 256, 100), (2, 2, 8, 64, 200, 200), (1, 8, 8, 128, 8192, 7000),
                                                     (3, 1, 1, 256, 72, 5), (40, 8, 2, 64, 1000, 777), (1, 2, 3, 32, 64, 64)):  # fmt: skip
        draw = lambda *shape: torch.randn(*shape, device=DEVICE).half()  # noqa: E731
        q, k, v = draw(batch, heads, group, width), draw(batch, heads, length, width), draw(batch, heads, length, width)
        mask = torch.zeros(batch, 1, 1, length, dtype=torch.bool, device=DEVICE)
        for i in range(batch):
            mask[i, ..., i % 5 : used] = True
        want = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)
        k[:, :, used:], v[:, :, used:] = float("nan"), float("nan")
        expect(_decode.takes(q, k, v, mask), "attention does not take its input")
        got = _decode.attend(q, k, v, mask, width**-0.5).float()
        worst = max(worst, float((got - want).norm() / want.norm()))
    say("attention of one token", worst, "apart")
    expect(worst < 1e-3, "attention of one token")


def check_generate(model, prompts, before=lambda i: None):
    """model.generate with a static cache, whose graph is used again, says what it says without one."""

    def generate(ids, **more):
        more = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, **more}
        return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **more)[0, ids.shape[1] :]

    same = []
    for i, ids in enumerate(prompts):
        before(i)
        got, want = generate(ids, cache_implementation="static"), generate(ids)
        same.append(int((got == want).int().cumprod(0).sum()))  # after one that differs all do
    say("first tokens of generate as eager", "%s of 12" % same)
    expect(sum(same) >= 6 * len(same), "tokens of generate")


def copy_speed():
    """Bytes a second that are read and written by a copy."""
    a = torch.empty(1 << 32, dtype=torch.uint8, device=DEVICE)
    b = torch.empty_like(a)
    return 2 * a.numel() / clock(lambda: b.copy_(a), 10) * 1000


def weights(model):
    """Bytes of quantized matrices, which a step reads."""
    from kiln.nn import QLinear

    matrices = {p.matrix.handle: p.matrix for m in model.modules() if isinstance(m, QLinear) for p in m.pieces}
    return sum(m.nbytes for m in matrices.values())


def kiln_model(folder, short):
    start = time.perf_counter()
    import kiln.transformers  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401

    say("imports", time.perf_counter() - start, "s")
    torch.zeros(1, device=DEVICE)
    look = cProfile.Profile() if short else None
    with Watch() as watch:
        start = time.perf_counter()
        if look:
            look.enable()
        model = load(folder)
        if look:
            look.disable()
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        say("load", time.perf_counter() - start, "s")
        time.sleep(0.05)
    if look:
        pstats.Stats(look).sort_stats("tottime").print_stats(14)
    say("peak of main memory", watch.host / 1e9, "GB (%.2f before loading)" % (watch.before / 1e9))
    if DEVICE != "cpu":
        say("peak of GPU memory, loading", watch.gpu / 1e9, "GB")
        say("GPU memory", (watch.free - torch.cuda.mem_get_info()[0]) / 1e9, "GB")
        held, kept = torch.cuda.memory_allocated() / 1e9, torch.cuda.memory_reserved() / 1e9
        say("  tensors", held, "GB in use, %.4g GB kept by torch beside them" % (kept - held))
        say("  quantized matrices", weights(model) / 1e9, "GB, weights in place included")
    logits, _ = prefill(model, 1, 64)
    expect(logits.isfinite().all(), "logits are not finite")
    torch.save(logits[0, -1].float().cpu(), os.path.join(folder, "kiln.pt"))
    took = clock(lambda: prefill(model), 5, warm=2)
    say("prefill of %d" % PROMPT, 1000 * PROMPT / took, "tokens/s")
    for batch in (1,) if short else (1, 8, 32):
        say("eager decode batch %d" % batch, eager(model, batch), "ms")
    if DEVICE == "cpu":
        graph(model, 1)
        return
    check_attention()
    check_graph(model)
    check_generate(model, [tokens(1, 60, seed) for seed in (5, 6, 7)])
    bound = 1000 * weights(model) / copy_speed()
    for batch in (1,) if short else (1, 8, 32):
        took = graph(model, batch)
        if batch == 1:
            say("of the bandwidth bound", 100 * bound / took, "%% (%.2f ms)" % bound)
    graph(model, 1, PROMPT, 256, ", long cache")
    host(model)
    first, _ = generation(model, 72)
    again, step = generation(model, 72)
    say("model.generate, static cache", step, "ms a token (72 tokens: %.2f s at first, then %.3f)" % (first, again))
    generation(model, 256)  # whose cache is larger
    again, step = generation(model, 256)
    say("  256 tokens, all in all", 256 / again, "tokens/s (%.3g ms a token)" % step)


def generation(model, count):
    """Seconds of a call of model.generate, and milliseconds from token to token."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Clock(StoppingCriteria):
        def __call__(self, ids, scores, **kwargs):
            seen.append(time.perf_counter())
            return none

    ids, seen, none = tokens(1, 100), [], torch.zeros(1, dtype=torch.bool, device=DEVICE)
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False, cache_implementation="static",
        stopping_criteria=StoppingCriteriaList([Clock()]),
    )  # fmt: skip
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    return took, 1000 * sorted(b - a for a, b in zip(seen, seen[1:]))[len(seen) // 2]


def embedding(folder):
    import kiln.transformers  # noqa: F401
    from transformers import LlamaForCausalLM  # noqa: F401

    torch.zeros(1, device=DEVICE)
    with Watch() as watch:
        start = time.perf_counter()
        model = load(folder, {"": DEVICE, "model.embed_tokens": "cpu"})
        torch.cuda.synchronize()
        say("load, embedding in main memory", time.perf_counter() - start, "s")
        time.sleep(0.05)
    say("peak of main memory", watch.host / 1e9, "GB (%.2f before loading)" % (watch.before / 1e9))
    say("peak of GPU memory, loading", watch.gpu / 1e9, "GB")
    say("GPU memory", (watch.free - torch.cuda.mem_get_info()[0]) / 1e9, "GB")
    logits, _ = prefill(model, 1, 64)
    same = torch.equal(logits[0, -1].float().cpu(), torch.load(os.path.join(folder, "kiln.pt")))
    say("logits as with it on the GPU", int(same))
    expect(same, "logits with the embedding in main memory")
    say("prefill of %d" % PROMPT, 1000 * PROMPT / clock(lambda: prefill(model), 5, warm=2), "tokens/s")
    graph(model, 1)


def variants(folder):
    from kiln import _graph

    model, plain = load(folder), _graph.fused
    for parts in ((), *(tuple(p for p in _graph.PARTS if p != without) for without in (*_graph.PARTS, None))):
        _graph.fused = lambda m, late, parts=parts: plain(m, late, parts)
        graph(model, 1, label=" " + "+".join(parts))
    if DEVICE != "cpu":
        from torch.profiler import ProfilerActivity, profile

        steps = _graph.Steps(model, tokens(1, 128), 256, lambda logits: logits.argmax(-1))
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            for _ in range(5):
                steps.step()
            torch.cuda.synchronize()
        print(p.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=70)[:6000])


def exllamav2(folder):
    with Watch() as watch:
        start = time.perf_counter()
        from exllamav2 import ExLlamaV2, ExLlamaV2Cache, ExLlamaV2Config

        config = ExLlamaV2Config(folder)
        config.max_seq_len = PROMPT + 512
        model = ExLlamaV2(config)
        began = time.perf_counter()
        model.load()
        torch.cuda.synchronize()
        say("exllamav2 load", time.perf_counter() - began, "s (%.1f s with imports)" % (time.perf_counter() - start))
        time.sleep(0.05)
    say("exllamav2 peak of GPU memory", watch.gpu / 1e9, "GB")
    say("exllamav2 GPU memory", (watch.free - torch.cuda.mem_get_info()[0]) / 1e9, "GB")
    cache = ExLlamaV2Cache(model, max_seq_len=PROMPT + 256)

    def fill():
        cache.current_seq_len = 0
        model.forward(tokens(1, PROMPT).cpu(), cache, preprocess_only=False, last_id_only=True)

    cache.current_seq_len = 0
    mine, apart = os.path.join(folder, "kiln.pt"), None
    logits = model.forward(tokens(1, 64).cpu(), cache, last_id_only=True)[0, -1].float().cpu()[: config.vocab_size]
    if os.path.exists(mine):
        other = torch.load(mine)
        apart = float((other - logits).norm() / logits.norm())
        say("logits, kiln and exllamav2", apart, "apart")
    finite = bool(logits.isfinite().all())
    say("exllamav2 prefill", 1000 * PROMPT / clock(fill, 5, warm=2), "tokens/s")
    del cache
    for batch in (1, 8, 32):
        cache = ExLlamaV2Cache(model, batch_size=batch, max_seq_len=512)
        model.forward(tokens(batch, 128).cpu(), cache, last_id_only=True)
        ids = tokens(batch, 1).cpu()
        say("exllamav2 decode batch %d" % batch, clock(lambda: model.forward(ids, cache, last_id_only=True), 10), "ms")  # noqa: B023
        torch.backends.cuda.enable_cudnn_sdp(False)
        took = clock(lambda: model.forward(ids, cache, last_id_only=True), 10)  # noqa: B023
        torch.backends.cuda.enable_cudnn_sdp(True)
        say("exllamav2 decode batch %d" % batch, took, "ms, without cuDNN's attention")
        del cache
    expect(finite, "logits of exllamav2 are not finite")
    expect(apart is not None, "no logits of kiln to compare with: run its stage first")
    expect(apart < 1e-2, "logits of kiln and exllamav2")


def fp16(folder):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    with torch.device(DEVICE):
        torch.set_default_dtype(torch.float16)
        model = AutoModelForCausalLM.from_config(config).eval()
        torch.set_default_dtype(torch.float32)
    model.requires_grad_(False)
    say("fp16 prefill", 1000 * PROMPT / clock(lambda: prefill(model), 5, warm=2), "tokens/s")
    for batch in (1, 8, 32):
        say("fp16 eager decode batch %d" % batch, eager(model, batch), "ms")


def compiled(folder):
    from transformers import StaticCache

    model = load(folder)
    cache, ids = StaticCache(config=model.config, max_cache_len=256), tokens(1, 128)
    call = torch.compile(model.__call__, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        x = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        position = torch.tensor([[128]], device=DEVICE)
        start = time.perf_counter()

        def step():
            with torch.no_grad():
                call(x, position_ids=position, past_key_values=cache, use_cache=True)

        for _ in range(3):
            step()
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        say("torch.compile, first three calls", time.perf_counter() - start, "s, one graph")
        took = clock(step, 20)
        say("torch.compile decode batch 1", took, "ms, %.0f tokens/s" % (1000 / took))


def lora(folder):
    """Two adapters of rank 16 on all layers, switched from call to call, beside the same sums with dense weights."""
    from peft import LoraConfig, get_peft_model

    model = load(folder)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    torch.manual_seed(3)
    with torch.device(DEVICE):
        wrapped = get_peft_model(
            model, LoraConfig(r=16, lora_alpha=32, target_modules=names, init_lora_weights=False), adapter_name="a"
        )
        wrapped.add_adapter("b", LoraConfig(r=8, lora_alpha=8, target_modules=names, init_lora_weights=False))
    wrapped.eval()
    ids, results = tokens(1, 32), {}
    with torch.no_grad():
        for name in ("a", "b", "a"):
            wrapped.set_adapter(name)
            results.setdefault(name, []).append(wrapped(ids).logits[0, -1].float())
        with wrapped.disable_adapter():
            plain = wrapped(ids).logits[0, -1].float()
    again, differ = torch.equal(*results["a"]), min(float((results["a"][0] - r).norm() / r.norm()) for r in (results["b"][0], plain))
    say("adapter a again", int(again))
    say("adapters and model differ", differ)
    expect(again and differ > 5e-3, "switching adapters")
    check_generate(wrapped, [ids] * 4, lambda i: wrapped.set_adapter("abba"[i]))
    # Dense: each layer's weights dequantized, the adapter added.
    for name in ("a", "b"):
        wrapped.set_adapter(name)
        hooks = []
        for module in wrapped.modules():
            if hasattr(module, "lora_A") and name in module.lora_A:
                base, a, b, scale = module.base_layer, module.lora_A[name], module.lora_B[name], module.scaling[name]

                def dense(m, args, out, base=base, a=a, b=b, scale=scale):
                    w = base.dequantize().float() + scale * b.weight.float() @ a.weight.float()
                    return (args[0].float() @ w.T).to(args[0].dtype)

                hooks.append(module.register_forward_hook(dense))
        with torch.no_grad():
            want = wrapped(ids).logits[0, -1].float()
        for hook in hooks:
            hook.remove()
        apart = float((results[name][0] - want).norm() / want.norm())
        say("adapter %s and merged dense weights" % name, apart, "apart")
        expect(apart < 2e-3, "logits with adapters")


def host(model):
    """Microseconds of the host for a call of a layer, which eager decoding is made of."""
    x, layer = torch.zeros(1, 1, model.config.hidden_size, dtype=torch.float16, device=DEVICE), model.model.layers[0]
    linear = torch.nn.Linear(model.config.hidden_size, 1024, bias=False, device=DEVICE, dtype=torch.float16)

    def qkv():
        y = x.view(x.shape)
        return layer.self_attn.q_proj(y), layer.self_attn.k_proj(y), layer.self_attn.v_proj(y)

    with torch.no_grad():
        for name, call in (("o_proj", lambda: layer.self_attn.o_proj(x)), ("q, k and v", qkv), ("matrix of o_proj", lambda: layer.self_attn.o_proj.whole(x)),
                           ("torch.nn.Linear", lambda: linear(x)), ("add", lambda: x + x)):  # fmt: skip
            best = 1e9
            for _ in range(5):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(100):
                    call()
                best = min(best, time.perf_counter() - start)
            say("host: " + name, best * 1e4, "us")


def main():
    what, args = sys.argv[1], sys.argv[2:]
    if what == "make":
        make(*args)
    else:
        call = {"kiln": kiln_model, "embedding": embedding, "exllamav2": exllamav2, "fp16": fp16, "compile": compiled, "lora": lora, "variants": variants}[
            what
        ]
        call(args[0], "--short" in args) if what == "kiln" else call(args[0])


if __name__ == "__main__":
    main()
