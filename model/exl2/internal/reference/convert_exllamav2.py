#!/usr/bin/env python3
"""Runs the converter of exllamav2 on a machine without a GPU, for tests only.

    convert_exllamav2.py original|kiln LAYERS [arguments of convert.py]

It is exllamav2's own convert.py from beginning to end: arguments, job file, resuming, tokenizer, embeddings, and the model
as it is built from the source. Stand-ins are only for what needs the compiled extension or a GPU: measuring and optimizing
are passed over, and quantizing takes the files of the folder LAYERS as its result. The last step is exllamav2's own, or with
the word kiln that of kiln.exl2, put into its place as the manual says.
"""

import json
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import load_exllamav2

# All there is in the convert.py of release 0.3.2.
CONVERT = "import exllamav2.conversion.convert_exl2\n"


def write_tokenizer(folder, size):
    """A real tokenizer for a model with few tokens, in place of the empty one of the fixture."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<s>", "</s>"] + [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["the", "of", "and", "in"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words[:size])}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, f)


def stand_in(layers):
    """Replaces the three steps that compute on a GPU or in the extension."""
    import exllamav2.conversion.measure as measure
    import exllamav2.conversion.optimize as optimize
    import exllamav2.conversion.quantize as quantize

    def measured(job, save_fn, model, offload):
        job["measurement"], job["last_module_idx"] = {"model.layers.0.self_attn": [{"accuracy": 0.9}]}, len(model.modules) - 1
        save_fn()
        return "completed"

    def optimized(job, save_fn, model):
        job["strategy"] = {}

    def quantized(job, save_fn, model):
        for name in os.listdir(layers):
            shutil.copy(os.path.join(layers, name), os.path.join(job["out_dir"], "out_tensor", name))
        job["q_last_module_idx"] = len(model.modules) - 1
        save_fn()

    measure.measure_quant, optimize.optimize, quantize.quant = measured, optimized, quantized


def main():
    step, layers, args = sys.argv[1], sys.argv[2], sys.argv[3:]
    load_exllamav2.import_stubbed()
    source = args[args.index("-i") + 1]
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    write_tokenizer(source, config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 40)
    stand_in(layers)
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "convert.py")
        with open(script, "w") as f:
            f.write(CONVERT)
        if step == "kiln":
            import kiln.exl2

            kiln.exl2.main([script] + args)  # python -m kiln.exl2 convert.py …
        else:
            import runpy

            sys.argv = [script] + args
            runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
