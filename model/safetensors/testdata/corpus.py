"""Makes the tables that the Go tests compare with, by asking the reference library.

    python corpus.py        # needs safetensors; writes headers.jsonl and layouts.jsonl here

headers.jsonl: headers, valid and invalid, with the library's verdict.
  {"header": text (or "hex": bytes), "data": length of the data, "ok": bool,
   "tensors": [[name, dtype, shape, sha256 of the data]], "metadata": {...} or null, "error": text}
  Data byte i is i * 7 % 251. A record with "file" is a whole file in hex instead.
layouts.jsonl: what the library writes.
  {"tensors": [[name, dtype, shape]], "metadata": {...} or null, "header": text, "sha256": of the file}
  Byte i of a tensor is (i * 31 + number of the tensor in the list) % 256.
"""
import ctypes, hashlib, json, os, random, struct, tempfile

import safetensors
from safetensors import _safetensors_rust as rust

random.seed(20)
HERE = os.path.dirname(os.path.abspath(__file__))

# What the Python binding calls the types that it can write; F6 has no name there.
NAMES = {
    "BOOL": "bool", "I8": "int8", "U8": "uint8", "I16": "int16", "U16": "uint16", "I32": "int32", "U32": "uint32",
    "I64": "int64", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu", "F4": "float4_e2m1fn_x2", "C64": "complex64",
}
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}


def product(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


def verdict(raw):
    """What the library says about a whole file."""
    try:
        tensors = rust.deserialize(raw)
    except safetensors.SafetensorError as e:
        return {"ok": False, "error": str(e).removeprefix("Error while deserializing: ")[:120]}
    out = [[name, t["dtype"], t["shape"], hashlib.sha256(t["data"]).hexdigest()[:16]] for name, t in tensors]
    metadata = None
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as f:
        f.write(raw)
        f.flush()
        with safetensors.safe_open(f.name, "np") as s:
            metadata = s.metadata()
    return {"ok": True, "tensors": sorted(out), "metadata": metadata}


def data(n):
    return bytes(i * 7 % 251 for i in range(n))


def serialize(specs, metadata):
    """specs: (name, dtype, shape); byte i of tensor k is (i*31+k)%256."""
    keep, table = [], {}
    for k, (name, dtype, shape) in enumerate(specs):
        size = product(shape) * BITS[dtype] // 8
        buf = ctypes.create_string_buffer(bytes((i * 31 + k) % 256 for i in range(size)), max(size, 1))
        keep.append(buf)
        if dtype == "F4":  # the binding counts bytes in the last dimension
            shape = shape[:-1] + [shape[-1] // 2]
        table[name] = rust.TensorSpec(dtype=NAMES[dtype], shape=shape, data_ptr=ctypes.addressof(buf), data_len=size)
    return rust.serialize(table, metadata)


ONE = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'


def entry(dtype="F32", shape="[1]", offsets="[0,4]", more=""):
    return '{"dtype":"%s","shape":%s,"data_offsets":%s%s}' % (dtype, shape, offsets, more)


def cases():
    """(header text or bytes, length of data)"""
    a = '{"a":%s}' % ONE
    # The object and the space around it.
    for h in ["", " ", "{}", "{} ", " {}", "\t\n\r {}\t\n\r ", "{ }", "[]", "null", "1", '"a"', "true", "{", "}", "{}}", "{}{}", "{},",
              "{}x", "{}\0", "{}\x0b", "{}\x0c", "\ufeff{}", "{}\u00a0", "\0", "{,}", '{"a"}', '{"a":}', '{"a":1}', '{"a":null}',
              '{"a":"b"}', '{"a":[]}', '{"a":{}}', '{"a":true}', "{a:1}", "{'a':1}", "// x\n{}", "{}// x", "{/**/}"]:
        yield h, 0
    for i in range(len(a)):  # cut at every byte
        yield a[:i], 4
    for i in range(0, len(a), 2):  # one byte more
        for c in random.sample(' ,:"{}[]0a\\', 2):
            yield a[:i] + c + a[i:], 4
    for i in range(0, len(a), 3):  # one byte less
        yield a[:i] + a[i + 1:], 4
    yield a, 4
    for n in (0, 3, 5, 8):
        yield a, n
    # Types.
    for d in BITS:
        for n in (0, 1, 2, 3, 4, 8):
            size, rest = divmod(n * BITS[d], 8)
            if n in (0, 4, 8) or rest:
                yield '{"t":%s}' % entry(d, "[%d]" % n, "[0,%d]" % size), size
        yield '{"t":%s}' % entry(d, "[]", "[0,%d]" % (BITS[d] // 8)), BITS[d] // 8
    for d in ["", "f32", "F33", "F8", "F16 ", "float32", "F6_E4M3", "BOOLEAN", "I4", "C128", "F8_E4M3FN"]:
        yield '{"t":%s}' % entry(d), 4
    for d in ["null", "1", "[]", "{}", '{"F32":null}', '{"F32":[]}', '["F32"]', "true"]:
        yield '{"t":{"dtype":%s,"shape":[1],"data_offsets":[0,4]}}' % d, 4
    # Shapes.
    for s in ["[1]", "[1,1,1]", "[ 1 ]", "[2]", "[0]", "[1,]", "[,1]", "[1 1]", "[1.0]", "[1e0]", "[-1]", "[-0]", "[01]", "[+1]", "[0x1]",
              '["1"]', "[null]", "[[1]]", "1", "null", '"1"', "{}", "[true]", "[18446744073709551616]", "[1.5]", "[.5]", "[1.]", "[1e]", "[NaN]"]:
        yield '{"t":%s}' % entry(shape=s), 4
    big = 2**64 - 1
    for s in ["[0,%d]" % big, "[%d,0]" % big, "[%d,2,0]" % big, "[0,%d,%d]" % (big, big), "[%d,0]" % 2**63, "[%d,2,0]" % 2**62, "[%d,4,0]" % 2**62,
              "[0,%d]" % 2**63, "[0,%d]" % (2**63 - 1), "[%d]" % 2**62, "[%d]" % 2**59, "[0,%d]" % 2**64, "[4294967296,4294967296]", "[4294967296,4294967295]"]:
        yield '{"t":%s}' % entry(shape=s, offsets="[0,0]"), 0
    yield '{"t":%s}' % entry(shape="[%s]" % ",".join(["1"] * 300)), 4
    # Offsets.
    for o in ["[0,4]", "[4,0]", "[0]", "[]", "[0,4,4]", "[0,4,5]", "[0,3]", "[0,5]", "[1,5]", "[4,8]", "[-0,4]", "[-1,3]", "[0.0,4]", "[0,4.0]", "[0,4e0]",
              '["0",4]', "null", "{}", "[null,4]", "[0,18446744073709551615]", "[18446744073709551612,18446744073709551616]",
              "[18446744073709551612,0]", "[9223372036854775807,9223372036854775811]"]:
        yield '{"t":%s}' % entry(offsets=o), 4
        yield '{"t":%s}' % entry(offsets=o), 8
    # Entries.
    for e in ['{"shape":[1],"data_offsets":[0,4]}', '{"dtype":"F32","data_offsets":[0,4]}', '{"dtype":"F32","shape":[1]}',
              '{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}', '["F32",[1],[0,4]]', '["F32",[1],[0,4],1]', '["F32",[1]]', '"F32"',
              '{"dtype":"F32","shape":[1],"data_offset":[0,4]}', '{"DTYPE":"F32","shape":[1],"data_offsets":[0,4]}',
              '{"\\u0064type":"F32","shape":[1],"data_offsets":[0,4]}',
              entry(more=',"dtype":"F32"'), entry(more=',"shape":[1]'), entry(more=',"data_offsets":[0,4]'), entry(more=",")]:
        yield '{"t":%s}' % e, 4
    for v in ["null", "true", "false", "1", "-1", "-0", "1.5", "1e5", "1E+5", "1e-999", "1e999", "-1e999", "9" * 400, "0." + "1" * 400, "0e999", "tru", "nul", "NULL",
              "+1", "-", "1.", ".1", "01", "1e+", "Infinity", "[]", "[1,[2,{}]]", "[1,]", "{}", '{"x":1,"x":2}', '{"x":{"dtype":1}}', '{"x"}', "{1:2}",
              '""', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00"', '"\\ud800\\u0041"', '"\\ud800x"', '"\\ud800\\n"', '"\\udc00\\ud800"',
              '"\\uD83D\\uDE00"', '"\\u12"', '"\\u12G4"', '"\\u+123"', '"\\x41"', '"\\"', '"\\/\\b\\f\\n\\r\\t\\"\\\\"', '"\\v"', '"\\\'"', '"\x01"', '"\x1f"', '"\x7f"', '"\n"', "'x'",
              "[" * 125 + "]" * 125, "[" * 126 + "]" * 126, "[" * 127 + "]" * 127, "[" * 300, '{"x":' * 125 + "1" + "}" * 125,
              '{"x":' * 126 + "1" + "}" * 126, "[" * 300 + "]" * 300]:
        yield '{"t":%s}' % entry(more=',"extra":' + v), 4
        yield '{"t":%s,"extra":%s}' % (ONE, v), 4
    # Several tensors.
    def two(first, second, more=""):
        return '{"a":%s,"b":%s%s}' % (entry(offsets=first), entry(offsets=second), more)
    for f, s in [("[0,4]", "[4,8]"), ("[4,8]", "[0,4]"), ("[0,4]", "[0,4]"), ("[0,4]", "[8,12]"), ("[4,8]", "[8,12]"), ("[0,4]", "[2,6]"), ("[0,4]", "[3,7]"), ("[0,4]", "[5,9]")]:
        for n in (8, 12):
            yield two(f, s), n
    empty = entry(shape="[0]", offsets="[%d,%d]")
    for at in (0, 1, 4, 8, 9):
        yield '{"e":%s,"a":%s,"b":%s}' % (empty % (at, at), entry(offsets="[0,4]"), entry(offsets="[4,8]")), 8
    yield '{"z":%s,"y":%s,"x":%s}' % ((empty % (0, 0),) * 3), 0
    yield '{"e":%s}' % (empty % (1, 1)), 1
    yield '{"e":%s}' % (empty % (1, 0)), 0
    # Names.
    for n in ["", " ", "a.b/c", "ä", "日本語", "😀", "\u2028", "\x7f", "<>&", "\\u0061", "\\ud83d\\ude00", "\\\\", '\\"', "\\u0000", "a" * 300, "\ufffd", "\ufeff", "\\/"]:
        yield '{"%s":%s}' % (n, ONE), 4
    for n in ["\x00", "\n", "\t", "\\ud800", "\\x", "\\"]:
        yield '{"%s":%s}' % (n, ONE), 4
    yield '{"a":%s,"a":%s}' % (ONE, ONE), 4
    yield '{"a":%s,"\\u0061":%s}' % (ONE, ONE), 4
    yield '{"a":%s,"a":%s}' % (ONE, entry(offsets="[4,8]")), 8
    yield '{"a":%s,"a":%s}' % (entry(offsets="[4,8]"), ONE), 4
    for raw in [b'{"\xff":1}', b"{}\xff", b'{"\xc0\x80":%s}' % ONE.encode(), b'{"\xed\xa0\x80":%s}' % ONE.encode(), b'{"\xf4\x90\x80\x80":%s}' % ONE.encode(),
                b'{"\xc3":%s}' % ONE.encode(), b'{"\xe6\x97\xa5":%s}' % ONE.encode(), b'{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"\x80"}}']:
        yield raw, 4
    # Metadata.
    for m in ["null", "{}", '{"a":"b"}', '{"a":"b","c":"d"}', '{"b":"2","a":"1"}', '{"a":1}', '{"a":null}', '{"a":["b"]}', '{"a":{}}', '{"a":true}', "[]", '"a"', "1", '{"a":"1","a":"1"}',
              '{"a":"1","a":"2"}', '{"":""}', '{"ä":"日本"}', '{"a":"\\ud800"}', '{"a":"\\u00e4"}', '{"a":"\n"}', '{"a"}', '{"a":"b",}', ONE, '{"format":"pt"}', "{1:2}", "[[]]", "false"]:
        yield '{"__metadata__":%s}' % m, 0
        yield '{"t":%s,"__metadata__":%s}' % (ONE, m), 4
    yield '{"__metadata__":{},"__metadata__":{}}', 0
    yield '{"__metadata__":null,"__metadata__":{"a":"b"}}', 0
    yield '{"\\u005f_metadata__":{"a":"b"}}', 0
    yield '{"__METADATA__":{"a":"b"}}', 0
    # Random mixtures of tensors, in random order, with random space.
    for _ in range(60):
        parts, at = [], 0
        for k in range(random.randrange(1, 7)):
            d = random.choice(list(BITS))
            shape = [random.randrange(0, 4) for _ in range(random.randrange(0, 4))]
            if product(shape) * BITS[d] % 8:
                shape.append(4)
            size = product(shape) * BITS[d] // 8
            parts.append('"t%d":%s' % (k, entry(d, json.dumps(shape), "[%d,%d]" % (at, at + size))))
            at += size
        if random.random() < 0.3:
            parts.append('"__metadata__":{"k":"v"}')
        random.shuffle(parts)
        text = "{" + random.choice([",", " , ", ",\n"]).join(parts) + "}" + " " * random.randrange(9)
        yield text, at if random.random() < 0.8 else at + random.choice([-1, 1, 8]) if at else 1


def files():
    """Whole files, where the length in front is the point."""
    for n in range(9):
        yield b"\2\0\0\0\0\0\0\0{}"[:n]
    for n in (0, 1, 3, 100, 100_000_000, 100_000_001, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1):
        yield struct.pack("<Q", n) + b"{}"
    yield b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
    yield b"PK\3\4 a zip file, as torch.save writes"


def random_name():
    pool = ["model.layers.%d.mlp.up_proj.q_weight", "a%d", "ä%d", "日本%d", "😀%d", 'q"%d', "b\\%d", "\x01%d", "\x7f%d", "\u2028<&>%d", "\n\r\t\b\f%d", "Z%d", "_%d", "/%d"]
    return random.choice(pool) % random.randrange(100)


def layouts():
    for _ in range(150):
        specs = {}
        for _ in range(random.randrange(0, 12)):
            d = random.choice(list(NAMES))
            shape = [random.randrange(0, 5) for _ in range(random.randrange(0, 4))]
            if d == "F4":
                shape.append(random.choice([0, 2, 4]))
            specs[random_name()] = (d, shape)
        metadata = random.choice([None, None, {"format": "pt"}, {random_name(): random_name()}])
        yield [[n, d, s] for n, (d, s) in specs.items()], metadata
    yield [["t", "F32", [1]]], {}
    yield [[d, d, [2] if d == "F4" else []] for d in NAMES], None


def main():
    seen = set()
    with open(os.path.join(HERE, "headers.jsonl"), "w") as out:
        for header, n in cases():
            raw = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
            if (raw, n) in seen:
                continue
            seen.add((raw, n))
            record = {"header": header} if isinstance(header, str) else {"hex": raw.hex()}
            record |= {"data": n} | verdict(struct.pack("<Q", len(raw)) + raw + data(n))
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
        for raw in files():
            out.write(json.dumps({"file": raw.hex()} | verdict(raw), separators=(",", ":")) + "\n")
    with open(os.path.join(HERE, "layouts.jsonl"), "w") as out:
        for specs, metadata in layouts():
            raw = serialize(specs, metadata)
            n = struct.unpack("<Q", raw[:8])[0]
            record = {"tensors": specs, "metadata": metadata, "header": raw[8:8 + n].decode(), "sha256": hashlib.sha256(raw).hexdigest()}
            out.write(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
