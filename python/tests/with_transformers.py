"""EXL2 and GPTQ models in transformers, on the CPU, beside the same weights in a float model. KILN names the program.

Needs torch and transformers, which the other tests do not; cmd/libkiln runs it with .cache/venv-transformers.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import tiny_models
import torch
import transformers
from safetensors.torch import load_file, save_file
from support import random_exl2, random_gptq

import kiln
import kiln.generate
import kiln.nn
import kiln.transformers
from kiln import _graph

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_grad_enabled(False)

QUICK = not tiny_models.V5  # of the release before, what differs in it


def apart(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def load(folder, **more):
    more = {"dtype": torch.float32, **more}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **more)


class Folder(unittest.TestCase):
    """With a compiled model of Llama's kind, made once."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = (
            cls.enterClassContext(tempfile.TemporaryDirectory()) if hasattr(cls, "enterClassContext") else tempfile.mkdtemp()
        )
        cls.folder, cls.float = tiny_models.compile_exl2("llama", cls.scratch)
        cls.ids = tiny_models.inputs_of("llama", cls.float.config)["input_ids"]

    def copy(self):
        to = tempfile.mkdtemp(dir=self.scratch)
        shutil.rmtree(to)
        shutil.copytree(self.folder, to)
        return to

    def tensors(self, folder):
        out = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                out.update(load_file(os.path.join(folder, name)))
                os.remove(os.path.join(folder, name))
        return out

    def changed(self, change):
        """The folder, with its tensors in one file and changed."""
        folder = self.copy()
        tensors = self.tensors(folder)
        change(tensors)
        save_file({n: t.contiguous() for n, t in tensors.items()}, os.path.join(folder, "model.safetensors"))
        return folder


class TestArchitectures(unittest.TestCase):
    def test_all(self):
        for name, (kind, *_) in tiny_models.MODELS.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                # As exllamav2 names the files, with the index of the float model, every other time.
                flags = ["--compat"] if len(name) % 2 else []
                out, want = tiny_models.compile_exl2(name, folder, *flags)
                model = getattr(transformers, kind).from_pretrained(out, dtype=torch.float32)
                inputs = tiny_models.inputs_of(name, model.config)
                self.assertLess(apart(model(**inputs).logits, want(**inputs).logits), 3e-3)
                self.assertIsInstance(model.get_output_embeddings(), kiln.nn.QLinear)


class TestLoading(Folder):
    def test_index_is_not_believed(self):
        want = load(self.folder)(self.ids).logits
        for index in (None, '{"weight_map": {"lm_head.weight": "model-00001-of-00009.safetensors"}}', "no JSON"):
            folder = self.copy()
            path = os.path.join(folder, "model.safetensors.index.json")
            os.remove(path)
            if index is not None:
                with open(path, "w") as f:
                    f.write(index)
            for name in [n for n in os.listdir(folder) if n.endswith(".safetensors")]:
                os.rename(os.path.join(folder, name), os.path.join(folder, name.replace("model-", "output-")))
            self.assertTrue(torch.equal(load(folder)(self.ids).logits, want))

    def test_half_precision_by_default(self):
        with open(os.path.join(self.folder, "config.json")) as f:
            config = json.load(f)
        folder = self.copy()
        config.update(torch_dtype="bfloat16", dtype="bfloat16")
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.assertEqual(model.dtype, torch.float16)
        self.assertLess(apart(model(self.ids).logits, self.float(self.ids).logits), 1e-2)
        self.assertFalse(any(p.requires_grad for p in model.parameters()))

    def test_layers_share_a_product(self):
        model = load(self.folder, dtype=torch.float16)
        a = model.model.layers[0].self_attn
        self.assertIs(a.q_proj.shared[0], a.k_proj.shared[0])  # the fixture gives v other widths
        self.assertIsNone(a.v_proj.shared)
        x = torch.randn(3, 64).half()
        alone = [x.float() @ layer.dequantize().float().T for layer in (a.q_proj, a.k_proj)]
        q, k = a.q_proj(x), a.k_proj(x)
        self.assertEqual(q.untyped_storage().data_ptr(), k.untyped_storage().data_ptr())
        for got, want in zip((q, k, a.k_proj(x), a.q_proj(x)), (*alone, alone[1], alone[0])):
            self.assertLess(apart(got, want), 1e-3)
        a.q_proj(x)
        x.add_(1)  # k is not that of the old x
        self.assertLess(apart(a.k_proj(x), x.float() @ a.k_proj.dequantize().float().T), 1e-3)

    def test_a_part_of_a_matrix(self):
        """Layers that are separate in the model and one matrix in the checkpoint."""
        fused = {n: torch.from_numpy(t) for n, t in random_exl2(64, 128, group=32, seed=5).items()}
        prefix = "model.layers.1.self_attn."

        def change(tensors):
            for n in [n for n in tensors if n.startswith(prefix) and n.split(".")[4] in ("q_proj", "k_proj", "v_proj")]:
                del tensors[n]
            tensors.update((prefix + "qkv_proj." + n, t) for n, t in fused.items())

        model = load(self.changed(change))
        with kiln.QMatrix.from_exl2(fused) as m:
            want = torch.from_numpy(m.dequantize()).T
        attention = model.model.layers[1].self_attn
        for layer, part in zip((attention.q_proj, attention.k_proj, attention.v_proj), want.split([64, 32, 32])):
            self.assertTrue(torch.equal(layer.dequantize(), part))

    def test_memory_map_is_told_the_size(self):
        from transformers.integrations import accelerate as a

        config = transformers.AutoConfig.from_pretrained(self.folder)
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config)
        files = [os.path.join(self.folder, n) for n in os.listdir(self.folder) if n.endswith(".safetensors")]
        job = kiln.transformers._Job(model, files, kiln.transformers.Exl2Quantizer(kiln.transformers.Exl2Config())._format())
        job.replace()
        size = sum(b.numel() for n, b in model.model.layers[0].named_buffers() if n.endswith(".size"))
        tensors = sum(n for name, n in job.checkpoint.sizes.items() if name.startswith("model.layers.0.") and "norm" not in name)
        self.assertLess(abs(size - tensors), 100)
        if hasattr(a, "compute_module_sizes"):
            sizes = a.compute_module_sizes(model)
            sizes = sizes[0] if isinstance(sizes, tuple) else sizes
            self.assertGreaterEqual(sizes["model.layers.0"], tensors - 100)


class TestErrors(Folder):
    def fails(self, kind, text, folder, **more):
        with self.assertRaisesRegex(kind, text):
            load(folder, **more)

    def test_files(self):
        self.fails(kiln.FormatError, "no EXL2 tensors", self.changed(lambda t: [t.pop(n) for n in list(t) if ".q_" in n]))
        self.fails(
            kiln.FormatError,
            "layers.1.mlp.up_proj is missing",
            self.changed(lambda t: [t.pop(n) for n in list(t) if "1.mlp.up_proj" in n]),
        )
        self.fails(
            kiln.FormatError, "q_proj lacks q_scale$", self.changed(lambda t: t.pop("model.layers.0.self_attn.q_proj.q_scale"))
        )
        self.fails(
            kiln.FormatError,
            "model.extra has no place in LlamaForCausalLM",
            self.changed(lambda t: t.update({"model.extra.q_weight": torch.zeros(1)})),
        )

        def swap(t):
            a, b = "model.layers.0.mlp.gate_proj.", "model.layers.0.mlp.down_proj."
            for n in ("q_weight", "q_scale", "q_scale_max", "q_groups", "q_invperm"):
                t[a + n], t[b + n] = t[b + n], t[a + n]

        self.fails(kiln.FormatError, "gate_proj is 96×64: the model wants 64×96", self.changed(swap))
        self.fails(
            kiln.FormatError,
            "has a bias, and the model wants none",
            self.changed(lambda t: t.update({"lm_head.bias": torch.zeros(96).half()})),
        )
        self.fails(
            kiln.FormatError,
            "model.layers.0.mlp.down_proj: .*q_invperm",
            self.changed(lambda t: t["model.layers.0.mlp.down_proj.q_invperm"].zero_()),
        )
        folder = self.copy()
        name = next(n for n in os.listdir(folder) if n.endswith(".safetensors"))
        with open(os.path.join(folder, name), "r+b") as f:
            f.truncate(2000)
        self.fails(kiln.FormatError, "is no whole safetensors file", folder)
        shutil.copy(os.path.join(self.folder, name), os.path.join(folder, name))
        shutil.copy(os.path.join(self.folder, name), os.path.join(folder, "left-over.safetensors"))
        self.fails(kiln.FormatError, "is in both .*left-over", folder)
        for n in os.listdir(folder):
            if n.endswith(".safetensors"):
                os.remove(os.path.join(folder, n))
        self.fails(kiln.FormatError, "has no \\*.safetensors files", folder)

    def test_devices(self):
        self.fails(kiln.NotSupported, "torch sees none: leave device_map away", self.folder, device_map="cuda")
        with (
            mock.patch("torch.cuda.is_available", lambda: True),
            mock.patch("torch.cuda.mem_get_info", lambda i=0: (1000, 2000)),
            mock.patch("torch.cuda.device_count", lambda: 1),
            mock.patch("torch.cuda.memory_reserved", lambda i=0: 0),
            mock.patch("torch.cuda.memory_allocated", lambda i=0: 0),
        ):
            job = mock.Mock(checkpoint=mock.Mock(sizes={"a": 5 * 10**9}), _place=lambda: "big")
            with self.assertRaisesRegex(kiln.OutOfMemory, "big needs 5.0 GB and cuda:0 has 0.0 GB free"):
                kiln.transformers._Job._check_memory(job, {"": "cuda:0"})
        layer = kiln.nn.QLinear(64, 32, [kiln.QMatrix.from_exl2(random_exl2(64, 32, group=32))])
        with self.assertRaisesRegex(RuntimeError, "stay on cpu, where they were loaded: load the model with device_map='meta'"):
            layer.to("meta")
        layer.float()
        self.assertEqual(layer.weight.dtype, torch.float32)
        self.assertIn("in_features=64, out_features=32", repr(layer))

    def test_old_transformers(self):
        code = "import transformers; transformers.__version__ = '4.40.1'; import kiln.transformers"
        done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        self.assertIn("needs transformers 4.57 or a release of version 5, and this is 4.40.1", done.stderr)

    def test_generate(self):
        with self.assertRaisesRegex(kiln.FormatError, "is no model's folder"):
            kiln.generate.load(self.scratch)
        source = os.path.join(self.scratch, "source")
        with self.assertRaisesRegex(kiln.FormatError, "quant_method in its config.json is None; kiln model compile"):
            kiln.generate.load(source)
        folder = self.copy()
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            config = json.load(f)
        config["architectures"] = ["OrionForCausalLM"]
        with open(path, "w") as f:
            json.dump(config, f)
        with self.assertRaisesRegex(kiln.NotSupported, "has no OrionForCausalLM: the model needs code of its own"):
            kiln.generate.load(folder)


class TestRunning(Folder):
    def test_generate(self):
        model = load(self.folder)
        self.assertIsInstance(model.get_compiled_call(None), _graph.Calls)
        ids = self.ids[:1]
        got = list(kiln.generate.tokens(model, ids, 8))
        want = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(ids))[
            0, ids.shape[1] :
        ].tolist()
        self.assertEqual(got, want)
        self.assertEqual(len(list(kiln.generate.tokens(model, ids, 3, temperature=1.0))), 3)
        static = model.generate(
            ids,
            max_new_tokens=8,
            min_new_tokens=8,
            do_sample=False,
            attention_mask=torch.ones_like(ids),
            cache_implementation="static",
        )
        self.assertEqual(static[0, ids.shape[1] :].tolist(), want)

    def test_command_of_transformers(self):
        got = subprocess.run([sys.executable, "-m", "kiln.transformers", "env"], capture_output=True, text=True)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("`transformers` version: " + transformers.__version__, got.stdout)

    def test_embedding_in_main_memory(self):
        """A GPU can read it there (dev/scripts/gputransformers.py does): transformers sees one device."""
        quantizer = kiln.transformers.Exl2Quantizer(kiln.transformers.Exl2Config())
        for device_map, want in (
            ({"": 0, "model.embed_tokens": "cpu"}, {"": 0}),
            ({"": "cuda:1", "transformer.wte": "cpu"}, {"": "cuda:1"}),
            ({"": 0, "lm_head": "cpu"}, None),
            ({"": "cpu", "model.embed_tokens": "cpu"}, None),
            ({"model.embed_tokens": "cpu"}, None),
            ("cuda", None),
            (None, None),
        ):
            self.assertEqual(quantizer.update_device_map(device_map), want or device_map)
            self.assertEqual(quantizer.embedding_in_main_memory, want is not None)

    def test_steps_with_fused_functions(self):
        """The step that becomes a graph on a GPU, with the functions that replace those of the model."""
        model = load(self.folder)
        greedy = lambda logits: logits.argmax(-1)  # noqa: E731
        plain, late = _graph.Steps(model, self.ids, 64, greedy), []
        want = [plain.tokens.clone()] + [plain.step().clone() for _ in range(4)]
        for attend in (None, _Decode):
            steps = _graph.Steps(model, self.ids, 64, greedy)
            got = [steps.tokens.clone()]
            add = mock.patch.object(_graph, "_add", side_effect=_graph._add)
            with add as added, _graph.fused(model, late), mock.patch.object(_graph, "_attention", _with(_graph._attention, attend)):
                self.assertIn("forward", vars(model.model.layers[0].mlp))
                for _ in range(4):
                    late.clear()
                    got.append(steps.step().clone())
                    torch._foreach_add_(late, 1) if late else None
            self.assertEqual(len(late), 2 if tiny_models.V5 else 0)
            # Of 4 steps and 2 layers, each norm with the sum before it; layers of transformers 4 are wrapped.
            self.assertEqual(added.call_count, 4 * 2 * 2 if tiny_models.V5 else 0)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, want)), (got, want))
        self.assertNotIn("forward", vars(model.model.layers[0].mlp))

    def test_eager_steps(self):
        """Norms are one operator, and attention of a few tokens is not cuDNN's; neither of other models."""
        model, on, sdpa = load(self.folder), [], torch.nn.functional.scaled_dot_product_attention

        def seen(*args, **kwargs):
            on.append(torch.backends.cuda.cudnn_sdp_enabled())
            return sdpa(*args, **kwargs)

        norm = mock.patch("torch.nn.functional.rms_norm", side_effect=torch.nn.functional.rms_norm)
        with norm as normed, mock.patch("torch.nn.functional.scaled_dot_product_attention", seen):
            got = model(self.ids).logits
            self.assertEqual((on, normed.call_count), ([False, False], 2 * 2 + 1))
            on.clear()
            want = self.float(self.ids).logits
            model(self.ids[:1, :1].expand(1, 64))
            self.assertEqual((on, normed.call_count), ([True] * 4, 2 * (2 * 2 + 1)))
        self.assertLess(apart(got, want), 3e-3)
        self.assertTrue(torch.backends.cuda.cudnn_sdp_enabled())
        self.assertEqual(repr(model.model.norm), repr(self.float.model.norm))

    def test_graphs_are_of_one_state(self):
        """A graph is made anew when the model has changed, and one for a cache that is gone serves the next."""
        model, made, now, calls = load(self.folder), [], {}, []

        class Graph:
            """Like one on a GPU it works on what is in memory."""

            def __init__(self, function, counters, model):
                made.append([t.data_ptr() for t in _graph._memory(now["past_key_values"])])
                self.replay = torch.no_grad()(function)

        def generate(of=model, ids=self.ids[:1], **more):
            more = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(ids), **more}
            return of.generate(ids, **more)

        def call(self_, **kwargs):
            now.update(kwargs)
            calls.append(kwargs.get("attention_mask") is (self_.inputs or {}).get("attention_mask", ...))
            out = plain(self_, **kwargs)
            self.assertEqual([t.data_ptr() for t in _graph._memory(now["past_key_values"])], made[-1])
            now.clear()
            return out

        mask = torch.ones_like(self.ids)
        mask[0, :2] = 0
        padded = {"ids": self.ids, "attention_mask": mask}
        want, want_padded, plain = generate(), generate(**padded), _graph.Calls.__call__
        longer = {"max_new_tokens": 9, "min_new_tokens": 9}
        want_longer = generate(**longer)
        with (
            mock.patch.object(_graph, "Graph", Graph),
            mock.patch.object(_graph, "_is_static", lambda cache: True),
            mock.patch.object(_graph.Calls, "__call__", call),
            mock.patch.object(type(model), "_valid_auto_compile_criteria", lambda *args: True),
        ):
            static = {"cache_implementation": "static"}
            for _ in range(3):
                calls.clear()
                self.assertTrue(torch.equal(generate(**static), want))
                # The mask of the first step is transformers', those of the others the graph's.
                self.assertEqual(calls, [False, tiny_models.V5, tiny_models.V5])
            self.assertTrue(torch.equal(generate(**static, **longer), want_longer))
            self.assertEqual(len(made), 1)
            self.assertTrue(torch.equal(generate(**padded, **static), want_padded))
            generate(**static)
            made[:] = made[-1:]
            if tiny_models.V5:  # the release before has one cache for all calls
                kept = generate(**static, return_dict_in_generate=True).past_key_values
                before = [t.clone() for t in _graph._memory(kept)]
                generate(**static)
                self.assertEqual(len(made), 2)
                self.assertTrue(all(map(torch.equal, before, _graph._memory(kept))))
            made[:] = made[-1:]
            from peft import LoraConfig, get_peft_model

            torch.manual_seed(1)
            wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False), "first").eval()
            wrapped.add_adapter("second", LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
            for name, count in (("first", 2), ("first", 2), ("second", 3)):
                wrapped.set_adapter(name)
                generate(wrapped, **static)
                self.assertEqual(len(made), count)
            with wrapped.disable_adapter():
                self.assertTrue(torch.equal(generate(wrapped, **static), want))
            self.assertEqual(len(made), 4)
            self.assertIsNotNone(_graph._state(model))
            with model.lm_head.register_forward_pre_hook(lambda *args: None):
                self.assertIsNone(_graph._state(model))

    def test_compile(self):
        model = load(self.folder)
        want = model(self.ids).logits
        with torch.enable_grad():
            torch.library.opcheck(torch.ops.kiln.linear.default, (torch.randn(3, 64, requires_grad=True), model.lm_head.number, 90))
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        self.assertTrue(torch.equal(compiled(self.ids).logits, want))
        with mock.patch.object(kiln.QMatrix, "__call__", autospec=True, side_effect=kiln.QMatrix.__call__) as call:
            compiled(self.ids)
        self.assertEqual(call.call_count, 2 * 5 + 1)  # q and k, v, o, gate and up, down
        self.assertIsNone(model.model.layers[0].self_attn.q_proj.shared[0].traced)
        with tempfile.TemporaryDirectory() as folder:
            out, _ = tiny_models.compile_exl2("mixtral", folder)
            model = load(out)
            want = model(self.ids).logits
            # The router of transformers 4 is a loop that torch.compile leaves.
            compiled = torch.compile(model, fullgraph=tiny_models.V5, backend="aot_eager")
            self.assertLess(apart(compiled(self.ids).logits, want), 1e-5)

    def test_gradients_of_inputs(self):
        layer = load(self.folder).model.layers[0].self_attn.k_proj
        with torch.enable_grad():
            x = torch.randn(3, 64, requires_grad=True)
            layer(x).sum().backward()
        self.assertLess(apart(x.grad, layer.dequantize().float().sum(0).expand(3, -1)), 1e-3)

    def test_command(self):
        root = tiny_models.ROOT
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "exl2")
            example = os.path.join(root, "examples/tiny-exl2")
            subprocess.run(
                [os.environ["KILN"], "model", "compile", "--job", example + "/work", "--model", example + "/model", "--out", out],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            run = lambda *args: subprocess.run(
                [sys.executable, "-m", "kiln.generate", out, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )  # noqa: E731
            done = run("--prompt", "Once upon a time", "--max-tokens", "6")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(done.stdout.rstrip("\n")), 6, done.stdout)
            self.assertRegex(done.stderr, r"16 tokens of prompt, .* 6 tokens, [0-9.]+ tokens/s on cpu")
            if not QUICK:
                done = run("--tokens", "", "--device", "cpu")
                self.assertEqual(done.returncode, 1)
                self.assertIn("kiln.generate: ", done.stderr)


class _Decode:
    """What kiln._decode computes, which needs Triton and a GPU."""

    @staticmethod
    def takes(rows, key, value, mask):
        return True

    @staticmethod
    def attend(rows, key, value, mask, scale):
        scores = rows @ key.transpose(-1, -2) * scale
        return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


def _with(function, few):
    return lambda plain, _, *args, **kwargs: function(plain, few, *args, **kwargs)


class TestGPTQ(unittest.TestCase):
    def test_formats(self):
        before = kiln.transformers.AUTO_QUANTIZER_MAPPING["gptq"]
        self.addCleanup(kiln.transformers.AUTO_QUANTIZER_MAPPING.__setitem__, "gptq", before)
        kiln.transformers.use_for_gptq()
        for act_order, version in ((False, "gptq"), (True, "gptq"), (True, "gptq_v2")):
            with self.subTest(act_order=act_order, version=version), tempfile.TemporaryDirectory() as folder:
                model = tiny_models.float_model("llama")
                state, seed = dict(model.half().state_dict()), 0
                for name, module in model.named_modules():
                    if not isinstance(module, torch.nn.Linear) or name == "lm_head":
                        continue
                    seed += 1
                    tensors = random_gptq(module.in_features, module.out_features, group=32, act_order=act_order, seed=seed)
                    del state[name + ".weight"]
                    state.update((name + "." + n, torch.from_numpy(t)) for n, t in tensors.items())
                    zero = {"gptq": "plus-one-wrap", "gptq_v2": "as-stored"}[version]
                    with kiln.QMatrix.from_gptq(tensors, zero=zero, bits=4) as m:
                        module.weight.data = torch.from_numpy(m.dequantize()).T.contiguous()
                model.config.quantization_config = {
                    "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": act_order, "sym": False, "checkpoint_format": version,
                }  # fmt: skip
                model.config.save_pretrained(folder)
                save_file(
                    {n: t.contiguous() for n, t in state.items()}, os.path.join(folder, "model.safetensors"), {"format": "pt"}
                )
                loaded = load(folder)
                self.assertIsInstance(loaded.model.layers[1].mlp.down_proj, kiln.nn.QLinear)
                ids = tiny_models.inputs_of("llama", model.config)["input_ids"]
                self.assertLess(apart(loaded(ids).logits, model.float()(ids).logits), 3e-3)


class TestLoRA(Folder):
    def test_two_adapters(self):
        from peft import LoraConfig, PeftModel, get_peft_model

        names = ["q_proj", "v_proj", "gate_proj", "down_proj"]
        torch.manual_seed(1)
        wrapped = get_peft_model(
            load(self.folder), LoraConfig(r=4, lora_alpha=8, target_modules=names, init_lora_weights=False), "first"
        )
        wrapped.add_adapter("second", LoraConfig(r=2, lora_alpha=2, target_modules=names, init_lora_weights=False))
        wrapped.eval()
        dense, got, want = self.float, {}, {}
        plain = {n: m.weight.data.clone() for n, m in dense.named_modules() if n.rpartition(".")[2] in names}
        for adapter in ("first", "second"):
            wrapped.set_adapter(adapter)
            got[adapter] = wrapped(self.ids).logits
            for n, w in plain.items():
                layer = wrapped.base_model.model.get_submodule(n)
                dense.get_submodule(n).weight.data = (
                    w + layer.scaling[adapter] * layer.lora_B[adapter].weight @ layer.lora_A[adapter].weight
                )
            want[adapter] = dense(self.ids).logits
            self.assertLess(apart(got[adapter], want[adapter]), 3e-3)
        for n, w in plain.items():
            dense.get_submodule(n).weight.data = w
        self.assertGreater(apart(got["first"], got["second"]), 1e-2)
        # Both in one batch.
        mixed = wrapped(self.ids, adapter_names=["first", "second"]).logits
        self.assertLess(apart(mixed[0], got["first"][0]), 1e-3)
        self.assertLess(apart(mixed[1], got["second"][1]), 1e-3)
        with wrapped.disable_adapter():
            self.assertLess(apart(wrapped(self.ids).logits, dense(self.ids).logits), 3e-3)
        with self.assertRaises(RuntimeError):
            wrapped.merge_adapter()
        with tempfile.TemporaryDirectory() as folder:
            wrapped.save_pretrained(folder)
            again = PeftModel.from_pretrained(load(self.folder), os.path.join(folder, "second"), adapter_name="second").eval()
            self.assertLess(apart(again(self.ids).logits, got["second"]), 1e-5)

    def test_all_linear(self):
        from peft import LoraConfig, get_peft_model

        wrapped = get_peft_model(load(self.folder), LoraConfig(r=2, target_modules="all-linear"))
        self.assertEqual(sum(hasattr(m, "lora_A") for m in wrapped.modules()), 14)


if __name__ == "__main__":
    unittest.main()
