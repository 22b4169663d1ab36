"""Plays the reference library for TestLive: one JSON request a line in, one answer a line out.

  {"verdict": path}                  what corpus.verdict says about a file
  {"write": path, "seed": n}         writes a random file; answers its tensors
  {"rewrite": path, "to": path}      reads a file and writes it again
  {"index": {...}}                   the index as the usual Python writers print it
"""
import hashlib, json, random, sys

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from corpus import verdict

for line in sys.stdin:
    ask = json.loads(line)
    if "verdict" in ask:
        with open(ask["verdict"], "rb") as f:
            answer = verdict(f.read())
    elif "write" in ask:
        rng = random.Random(ask["seed"])
        gen = np.random.default_rng(ask["seed"])
        tensors = {}
        for k in range(rng.randrange(0, 20)):
            dtype = rng.choice(["bool", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8"])
            shape = [rng.randrange(0, 9) for _ in range(rng.randrange(0, 4))]
            n = int(np.prod(shape)) * np.dtype(dtype).itemsize
            raw = gen.bytes(n) if dtype != "bool" else bytes(b & 1 for b in gen.bytes(n))
            tensors["%s.%d" % (rng.choice(["a", "é", "層", "z.w"]), k)] = np.frombuffer(raw, dtype).reshape(shape)
        metadata = rng.choice([None, {"format": "np"}, {"ключ": 'w"ert', "a\n": "b", "z": ""}])
        save_file(tensors, ask["write"], metadata)
        answer = {
            "tensors": {k: [list(v.shape), hashlib.sha256(v.tobytes()).hexdigest()] for k, v in tensors.items()},
            "metadata": metadata,
        }
    elif "rewrite" in ask:
        tensors = {}
        with safe_open(ask["rewrite"], "np") as f:
            for name in f.keys():
                tensors[name] = f.get_tensor(name)
            save_file(tensors, ask["to"], f.metadata())
        answer = {}
    else:
        answer = {"text": json.dumps(ask["index"], indent=2, sort_keys=True) + "\n"}
    print(json.dumps(answer), flush=True)
