"""Text from an EXL2 model, without a line of code:

    python -m kiln.generate DIR --prompt "Once upon a time"

On a GPU the steps after the prompt are CUDA graphs.
"""

import argparse
import json
import os
import sys
import time

__all__ = ["load", "main", "tokens"]


def load(folder, device=None, dtype=None):
    """A model of a folder: on a GPU if there is one, unless device says otherwise."""
    import torch
    import transformers

    import kiln.transformers

    path = os.path.join(folder, "config.json")
    try:
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
    except (OSError, ValueError) as e:
        raise kiln.FormatError("%s is no model's folder: %s" % (folder, e)) from None
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method == "gptq":
        kiln.transformers.use_for_gptq()
    elif method != "exl2":
        raise kiln.FormatError(
            "%s is no EXL2 model: quant_method in its config.json is %s; kiln model compile makes one of a finished quantization"
            % (folder, method)
        )
    names = config.get("architectures") or ["none"]
    kind = getattr(transformers, names[0], None)
    if kind is None:
        raise kiln.NotSupported(
            "%s: transformers %s has no %s: the model needs code of its own, as AutoModelForCausalLM.from_pretrained runs with "
            "trust_remote_code=True" % (folder, transformers.__version__, names[0])
        )
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    more = {} if dtype is None else {"dtype": dtype}
    # The class of the model knows its configuration, also where config.json has no model_type.
    return kind.from_pretrained(folder, config=kind.config_class.from_pretrained(folder), device_map=device, **more)


def tokens(model, ids, limit, temperature=0.0, graph=True):
    """Yields the tokens that follow ids, [1, length], one number at a time, at most limit of them."""
    import torch

    def choose(logits):
        if not temperature:
            return logits.argmax(-1)
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
        return (torch.softmax(logits.float() / temperature, -1) / noise).argmax(-1)

    if graph and model.device.type == "cuda" and model.config.get_text_config(decoder=True) is model.config:
        from ._graph import Steps

        steps = Steps(model, ids, -(-(ids.shape[1] + limit) // 256) * 256, choose)
        yield from _ahead(steps, limit)
        return
    with torch.no_grad():
        cache = None
        for _ in range(limit):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            ids, cache = choose(out.logits[:, -1]).view(1, 1), out.past_key_values
            yield ids.item()


def _ahead(steps, limit, depth=4):
    """The tokens of steps; the GPU has always a few steps more to do than the host has seen."""
    import torch

    waiting = []
    for i in range(limit):
        seen, done = torch.empty(steps.tokens.shape, dtype=steps.tokens.dtype, pin_memory=True), torch.cuda.Event()
        seen.copy_(steps.tokens, non_blocking=True)
        done.record()
        waiting.append((seen, done))
        if i + 1 < limit:
            steps.step()
        if len(waiting) > depth:
            seen, done = waiting.pop(0)
            done.synchronize()
            yield seen.item()
    for seen, done in waiting:
        done.synchronize()
        yield seen.item()


def main(args=None):
    parser = argparse.ArgumentParser("python -m kiln.generate", description="Prints what an EXL2 model says, and how fast.")
    parser.add_argument("folder", help="the compiled model")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prompt", help="the text to go on from")
    what.add_argument("--chat", help="a message to answer, in the model's chat template")
    what.add_argument("--tokens", help="numbers of tokens to go on from, as in 1,15,7; prints numbers and needs no tokenizer")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, takes the likeliest token each time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one")
    parser.add_argument("--adapter", help="folder of a LoRA adapter (needs peft)")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    args = parser.parse_args(args)
    import torch

    import kiln

    try:
        _run(args)
    except (kiln.Error, ImportError, OSError, ValueError) as e:
        print("kiln.generate: %s" % e, file=sys.stderr)
        return 1
    except torch.cuda.OutOfMemoryError as e:
        print("kiln.generate: %s: not enough memory on the GPU: %s" % (args.folder, str(e).split(". ")[0]), file=sys.stderr)
        return 1
    return 0


def _tokenizer(folder):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    alone = os.path.join(folder, "tokenizer.json")
    if os.path.exists(alone) and not os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        return PreTrainedTokenizerFast(tokenizer_file=alone)
    return AutoTokenizer.from_pretrained(folder)


def _run(args):
    import torch

    start = time.perf_counter()
    torch.manual_seed(args.seed)
    model = load(args.folder, args.device)
    if args.adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, args.adapter)
    loaded = time.perf_counter()
    tokenizer, ends = None, set()
    if args.tokens is None:
        tokenizer = _tokenizer(args.folder)
        if args.chat is not None:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": args.chat}], add_generation_prompt=True, tokenize=False
            )
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        else:
            ids = tokenizer(args.prompt, return_tensors="pt").input_ids
        end = model.generation_config.eos_token_id
        ends = {tokenizer.eos_token_id, *(end if isinstance(end, list) else [end])}
    else:
        ids = torch.tensor([[int(n) for n in args.tokens.split(",")]])
    if ids.shape[1] == 0 or args.max_tokens < 1:
        raise ValueError("nothing to go on from: the prompt has %d tokens and --max-tokens is %d" % (ids.shape[1], args.max_tokens))
    begin, first, made, shown = time.perf_counter(), None, [], ""
    for token in tokens(model, ids.to(model.device), args.max_tokens, args.temperature, not args.eager):
        now = time.perf_counter()
        first = first or now
        if token in ends:
            break
        made.append(token)
        if tokenizer is None:
            print(token, end=" ", flush=True)
            continue
        text = tokenizer.decode(made, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # half of a character
            print(text[len(shown) :], end="", flush=True)
            shown = text
    end = time.perf_counter()
    print(flush=True)
    rate = (len(made) - 1) / (end - first) if len(made) > 1 else 0.0
    print(
        "loaded in %.1f s; %d tokens of prompt, the first token after %.2f s; %d tokens, %.1f tokens/s on %s"
        % (loaded - start, ids.shape[1], first - begin, len(made), rate, model.device), file=sys.stderr,
    )  # fmt: skip


if __name__ == "__main__":
    from kiln import generate

    sys.exit(generate.main())
