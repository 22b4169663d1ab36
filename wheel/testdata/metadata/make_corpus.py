"""Makes corpus.jsonl: METADATA documents and how Python reads them.

    python -m pip install packaging==26.3
    python make_corpus.py > corpus.jsonl

Each line is one document:

    doc          the document; doc64 instead, in base64, if it is not UTF-8
    fields       [name, value] pairs as email.message gives them
    body         sha256 of the payload, first 16 hex digits; absent if empty
    raw          name, version, requires_python, requires_dist and provides_extra
                 as packaging.metadata.parse_email gives them
    defects      what the email parser had to drop; kiln refuses such documents

Documents are read as importlib.metadata reads them: UTF-8, universal newlines. A
byte order mark, which importlib.metadata trips over, is removed first. White
space before a value is dropped, because Python versions differ in whether they
drop it when it spans lines. The output does not depend on the Python version.
"""

import base64
import email
import hashlib
import io
import json
import random
import sys

import packaging
import packaging.metadata

assert packaging.__version__ == "26.3", packaging.__version__

RAW = ("name", "version", "requires_python", "requires_dist", "provides_extra")

VERSIONS = ["1.0", "1.1", "1.2", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6"]
NAMES = ["flash-attn", "Flash.Attn_Extra", "torch", "zope.interface", "a", "A-1", "exllamav2"]
RELEASES = ["1.0", "2.8.3+cu128.torch2.9", "0.3.2.dev1", "1!2.0rc1", "01.0", "2024.1.post1"]
REQUIRES = [
    "torch", "torch>=2.2.0", "torch (>=2.2.0)", "numpy~=1.26 ; python_version < '3.12'",
    'ninja ; extra == "build"', "einops[all,dev]>=0.6,<1; sys_platform == 'linux'",
    "pkg @ https://example.org/pkg-1.0.zip", "safetensors >=0.3.2 ; (python_version>='3.8')",
    "torch>=2.2.0 ;\n        extra == 'gpu'", "pandas",
]
SUMMARIES = ["Fast kernels", "", "Schnelle Kerne für größere Modelle", "注意力", "a: b: c", "x" * 300, "tab\tinside", "trailing  "]
EXTRA_FIELDS = [
    ("Home-page", "https://example.org/"), ("Home-page", "UNKNOWN"), ("Author", "Zoë Ångström"),
    ("Author-email", '"Doe, Jane" <jane@example.org>'), ("License", "MIT"),
    ("License", "MIT\n        Permission is hereby granted\n        \n        to anyone"),
    ("License-Expression", "Apache-2.0 OR MIT"), ("License-File", "LICENSE"), ("License-File", "licenses/a, b.txt"),
    ("Classifier", "Programming Language :: Python :: 3"), ("Classifier", "Environment :: GPU"),
    ("Keywords", "cuda,attention , gpu"), ("Platform", "any"), ("Dynamic", "version"),
    ("Project-URL", "Source, https://example.org/src"), ("Project-URL", "no comma"), ("Import-Name", "flash_attn"),
    ("Import-Namespace", "zope"), ("Provides-Extra", "gpu"), ("Provides-Extra", "build"), ("Requires-Python", ">=3.8"),
    ("Requires-Python", ">=3.9,\n  <4"), ("Requires-External", "libcuda (>=12)"), ("Obsoletes-Dist", "old"),
    ("X-Private", "kept"), ("x-private", "in another case"), ("Description-Content-Type", "text/markdown; charset=UTF-8"),
    ("Wheel-Version", "2.0"), ("Empty", ""), ("Odd!#$%&'*+.^_`|~Name", "value"), ("=?utf-8?q?Name?=", "=?utf-8?q?v=C3=A4lue?="),
]
BODIES = [
    "", "", "# Title\n\nText.\n", "no line break at the end", "\nleading empty line\n", "Name: not-a-field\nVersion: 9\n",
    "Umlaute äöü, 漢字, 🔥\n", "trailing spaces   \n\n\n", "From here on\n", "  indented\n\ttab\n", "a\x0bb\x0cc\x1cd\x85e\u2028f\n",
]
DESCRIPTIONS = [
    "one line", "first\n        second\n        \n        third", "first\n       |second\n       |\n       |third",
    "first\n\ttabbed", "first\n  two\n    four",
]
# Documents made by hand: the corners of the format.
CORNERS = [
    "", "\n", "Name: x", "Name: x\n", "Name: x\n\n", "Name: x\n\n\n", "Name:x\n", "Name:\tx\n", "Name:   x  \n", "Name:\n x\n",
    "Name:\n\n x\n", "Name: \n  x\n  y\n", " Name: x\n", "\tName: x\nVersion: 1\n", ": x\n", ":\n", "Name : x\nVersion: 1\n",
    "Näme: x\nVersion: 1\n", "Name: x\nbroken line\nVersion: 1\n", "Name: x\n::\nVersion: 1\n", "Name: x\n:empty\nVersion: 1\n",
    "Name: x\nVersion: 1\nName: y\n", "NAME: x\nvErSiOn: 1\n", "Name: x\n \n \nVersion: 1\n", "Name: x\n\t\n\nbody\n",
    "Name: x\r\nVersion: 1\r\n\r\nbody\r\nline\r\n", "Name: x\rVersion: 1\r\rbody\r", "Name: x\nVersion: 1\r\n\rbody\n\r\n",
    "Name: x\r\r\nVersion: 1\n", "Name: x\r\n continued\r\n\tagain\r\nVersion: 1\r\n", "\ufeffName: x\nVersion: 1\n\nbody\n",
    "\ufeff\ufeffName: x\n", "\ufeff", "From someone\nName: x\n", "Name: x\nFrom someone\nVersion: 1\n", "From: someone\nName: x\n",
    "From\nName: x\n", "Name: x\n\nFrom someone\n", "Name: x\x00y\nVersion: 1\n", "Name\x7f: x\nVersion: 1\n", "Name: x\x0bVersion: 1\n",
    "Name: x\x85Version: 1\n", "Name: x\u2028Version: 1\n", "Name: x\x1cVersion: 1\n", "Name: x\nVersion: 1\n\x0c\nbody\n",
    "Name: " + "x" * 5000 + "\n", "K: v\n" * 200, "Name: x\n" + " line\n" * 300, "a" * 9000 + ": long name\n\nbody\n",
    "Name: x\nDescription: header\n\nbody too\n", "Name: x\nDescription: one\nDescription: two\n",
]
BROKEN = [  # not UTF-8
    b"Name: x\nVersion: 1\n\nlatin \xe9 body\n", b"Name: x\n\n\xff\xfe\x00\n", b"Name: x\n\ncut \xf0\x9f\x94\n",
]


def document(rng):
    fields = [("Metadata-Version", rng.choice(VERSIONS)), ("Name", rng.choice(NAMES)), ("Version", rng.choice(RELEASES))]
    fields.append(("Summary", rng.choice(SUMMARIES)))
    fields += rng.sample(EXTRA_FIELDS, rng.randint(0, 8))
    fields += [("Requires-Dist", r) for r in rng.sample(REQUIRES, rng.randint(0, 5))]
    body = rng.choice(BODIES)
    if rng.random() < 0.15:
        fields.append(("Description", rng.choice(DESCRIPTIONS)))
        body = rng.choice(["", "", body])
    if rng.random() < 0.1:
        fields.append(rng.choice(fields))
    if rng.random() < 0.2:
        rng.shuffle(fields)
    sep = rng.choice([": ", ": ", ": ", ":", ":  ", ":\t"])
    text = "".join(name + sep + value + "\n" for name, value in fields)
    text += "\n" + body if body or rng.random() < 0.5 else ""
    eol = rng.choice(["\n", "\n", "\n", "\r\n", "\r\n", "\r"])
    return text.replace("\n", eol)


def expect(data):
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    text = io.StringIO(text, newline=None).read()
    out = {}
    try:
        out["doc"] = data.decode("utf-8")
    except UnicodeDecodeError:
        out["doc64"] = base64.b64encode(data).decode()
    message = email.message_from_string(text)
    defects = sorted({type(d).__name__ for d in message.defects} - {"MissingHeaderBodySeparatorDefect"})
    if message.get_unixfrom():
        defects.append("UnixFrom")
    if defects:
        return out | {"defects": defects}
    strip = lambda s: s.lstrip(" \t\r\n")
    out["fields"] = [[name, strip(value)] for name, value in message.items()]
    if "doc" in out:
        body = message.get_payload().encode()
    else:  # get_payload() would replace the bytes that are not UTF-8
        body = email.message_from_bytes(data).get_payload(decode=True)
    if body:
        out["body"] = hashlib.sha256(body).hexdigest()[:16]
    raw, _ = packaging.metadata.parse_email(text)
    raw = {k: raw[k] for k in RAW if k in raw}
    out["raw"] = {k: strip(v) if isinstance(v, str) else [strip(x) for x in v] for k, v in raw.items()}
    return out


def main():
    rng = random.Random(20261115)
    documents = [d.encode() for d in CORNERS] + BROKEN + [document(rng).encode() for _ in range(240)]
    for data in documents:
        json.dump(expect(data), sys.stdout, ensure_ascii=False, separators=(",", ":"))
        print()


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    main()
