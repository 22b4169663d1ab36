#!/usr/bin/env python3
"""Write the differential corpus of package wheel.

    python make_corpus.py DIRECTORY

needs packaging 26.3, the reference implementation, and nothing else. The output
depends on nothing but that version: all choices come from random.random() of a
fixed seed, the one method whose sequence Python promises to keep.

Every file holds one JSON array per line (pairs.txt: see pairs()). A line with a
single string is an input the reference rejects. Inputs that the reference
accepts and kiln does not, each for a reason stated in STRICTER, are kept apart
in stricter.jsonl, so that the other files must agree without exception.
"""

import json
import random
import re
import sys
from itertools import groupby
from pathlib import Path
from unittest import mock

import packaging
from packaging import _manylinux, _musllinux, tags
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

rng = random.Random(440)


def chance(p):
    return rng.random() < p


def pick(seq):
    return seq[int(rng.random() * len(seq))]


def between(low, high):
    return low + int(rng.random() * (high - low + 1))


def shuffled(seq):
    return [x for _, x in sorted((rng.random(), x) for x in seq)]


# --- where kiln is stricter ---------------------------------------------------

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])\.", re.I)
ODD_SPACE = re.compile(r"[^\S \t\n\r\f\v]")
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")
QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")


def tag_members(name):
    return [part.split(".") for part in name[:-4].split("-")[-3:]]


def tag_product(name):
    python, abi, platform = tag_members(name)
    return len(python) * len(abi) * len(platform)


FILE_RULES = [
    ("longer than 240 bytes", lambda s: len(s.encode()) > 240),
    ("character outside A-Za-z0-9._+!-", lambda s: re.search(r"[^A-Za-z0-9._+!-]", s)),
    ("starts with . or -", lambda s: s[:1] in (".", "-")),
    ("device name on Windows", DEVICE.match),
]
STRICTER = {
    "version": [("white space other than ASCII", ODD_SPACE.search)],
    "specifier": [
        ("white space other than ASCII", ODD_SPACE.search),
        ("control character", CONTROL.search),
        ("letter outside ASCII in a version", lambda s: "\u017f" in s),
    ],
    "wheel": [
        *FILE_RULES,
        ("more than 1000 tags", lambda s: tag_product(s) > 1000),
        ("invalid project name", lambda s: not NAME.match(s.split("-")[0])),
        ("python tag starts with _", lambda s: any(t[:1] == "_" for t in tag_members(s)[0])),
        ("character in a tag or build tag", lambda s: re.search(r"[+!]", "-".join(s.split("-")[2:]))),
    ],
    "sdist": [*FILE_RULES, ("invalid project name", lambda s: not NAME.match(s.rpartition("-")[0]))],
    "requirement": [
        ("name ends with _", re.compile(r"[ \t]*[A-Za-z0-9._-]*_(?![A-Za-z0-9._-])").match),
        ("extra ends with _", re.compile(r"[^\]'\"@;]*\[[^\]]*_[ \t]*[,\]]").match),
        ("backslash or control character in a string",
         lambda s: any(re.search(r"[\\\x00-\x08\x0b-\x1f\x7f-\x9f]", a + b) for a, b in QUOTED.findall(s))),
        ("white space other than ASCII", ODD_SPACE.search),
        ("line break or control character in a URL", lambda s: re.search(r"@[ \t]*[^ \t]*[\x00-\x08\x0a-\x1f\x7f-\x9f]", s)),
        ("control character", CONTROL.search),
        ("more than 100 nested parentheses", lambda s: "(" * 101 in s),
    ],
}
stricter = {}


def split(kind, inputs, parse, error):
    """Parse distinct inputs; keep those on which kiln must agree."""
    rows = []
    for text in dict.fromkeys(inputs):
        try:
            row = [text, *parse(text)]
        except error:
            row = [text]
        reason = len(row) > 1 and next((why for why, rule in STRICTER[kind] if rule(text)), None)
        if reason:
            stricter.setdefault((kind, reason), []).append(text)
        else:
            rows.append(row)
    return rows


# --- versions -----------------------------------------------------------------

SPELLINGS = ["a", "b", "c", "rc", "alpha", "beta", "pre", "preview"]
LOCALS = ["cu128", "cu92", "torch2", "9", "10", "007", "0", "abc", "Ubuntu", "5", "1a", "a1", "rocm6", "cpu",
          "99999999999999999999", "cxx11abiTRUE"]


def digits():
    return pick(["0", "1", "2", "3", "9", "10", "12", "01", "00", "007", "128", "2024", str(between(0, 400)),
                 "18446744073709551616", "99999999999999999999"] if chance(0.3) else ["0", "1", "2", "3", "10"])


def case(s):
    return pick([str.upper, str.title])(s) if chance(0.1) else s


def sep():
    return pick(["", "", "", ".", "-", "_"])


def local():
    return "".join((pick(".-_") if i else "") + case(pick(LOCALS)) for i in range(between(1, 3)))


def version(with_local=0.25):
    s = pick(["", "", "", "", "v", "V"]) if chance(0.2) else ""
    s += f"{digits()}!" if chance(0.06) else ""
    s += ".".join(digits() for _ in range(pick([1, 2, 2, 3, 3, 3, 4, 5])))
    s += sep() + case(pick(SPELLINGS)) + sep() + (digits() if chance(0.8) else "") if chance(0.3) else ""
    if chance(0.25):
        s += "-" + digits() if chance(0.3) else sep() + case(pick(["post", "rev", "r"])) + sep() + digits()
    s += sep() + case("dev") + sep() + (digits() if chance(0.8) else "") if chance(0.2) else ""
    return s + ("+" + local() if chance(with_local) else "")


def mutate(s, alphabet=".-_+!*v 019aberctpsd\t\n,é\u017f\u0660"):
    """Damage s in one to three places."""
    for _ in range(between(1, 3)):
        i = between(0, len(s))
        s = pick([lambda: s[:i] + pick(alphabet) + s[i:], lambda: s[:i] + s[i + 1:],
                  lambda: s[:i] + pick(alphabet) + s[i + 1:], lambda: s[:i] + s[:i][-2:] + s[i:]])()
    return s


def versions():
    fixed = """1.dev0 1.0.dev456 1.0a1 1.0a2.dev456 1.0a12.dev456 1.0a12 1.0b1.dev456 1.0b2 1.0b2.post345.dev456
        1.0b2.post345 1.0rc1.dev456 1.0rc1 1.0 1.0+abc.5 1.0+abc.7 1.0+5 1.0.post456.dev34 1.0.post456 1.0.15 1.1.dev1
        01.0.0 V1.0 1.0a 1.0.A-1 1.0-b_2 1.0preview 1.0.RC.4 1.0-1 1.0_rev-2 1.0post 1.0-dev_4 0!1.0 1.0+Ubuntu-1
        1.0+007 1.0+cu128_torch2.9 1.0.dev99999999999999999999 1.0. 1.0- 1.0+ 1.0+a..b 1.0+a+b 1..0 1.0-1-2 1.0_1
        1.0-torch 1.0.* !1.0 1! vv1.0 1.0+é 1.0.post1.post2 1,0 1.0a- 1.0a--1 1.0a..post1 1.0rc.post.dev 1.0.poſt1
        2.8.3+cu128.torch2.9.0 2.8.3+cu128.torch2.10.0 2.8.3+cu130.torch2.9.0 2.8.3+cu12torch2.8cxx11abiTRUE
        2.8.3+cu12torch2.10cxx11abiTRUE 1.2.0+cu92 1.2.0+cu100 1.8.0+rocm6.4 1.8.0+cu128 1.8.0+xpu 1.8.0+cpu""".split()
    fixed += ["", " ", " 1.0 ", "\t1.0\n", "1.0\v", "\f1.0\r", "1 .0", "1.0\x00", "1.0\x1f", "\u00a01.0", "1.0\u2003", "1.0\x85",
              "1." + "9" * 300, "0" * 300 + ".1", "1.0.post" + "0" * 50 + "7"]
    valid = [version() for _ in range(3600)]
    bad = [mutate(version()) for _ in range(2400)]
    return split("version", fixed + valid + bad, lambda s: describe(Version(s)), InvalidVersion)


def describe(v):
    flags = "".join(c for c, on in zip("rpd", (v.is_prerelease, v.is_postrelease, v.is_devrelease)) if on)
    return str(v), v.public, v.local or "", flags


def pairs(rows):
    """Lines "i <j =k >l": how version i of versions.jsonl compares to others.

    Half of the partners are close in the order, where mistakes hide."""
    parsed = {i: Version(row[0]) for i, row in enumerate(rows) if len(row) > 1}
    order = sorted(parsed, key=lambda i: (parsed[i], i))
    lines = []
    for at, i in enumerate(order):
        partners = [order[at + d] for d in range(-4, 5) if d and 0 <= at + d < len(order)]
        partners += [pick(order) for _ in range(8)]
        def sign(j):
            return "<" if parsed[i] < parsed[j] else ">" if parsed[i] > parsed[j] else "="
        lines.append(" ".join([str(i), *(sign(j) + str(j) for j in partners)]))
    return lines


# --- specifiers ---------------------------------------------------------------

OPERATORS = ["==", "!=", "<=", ">=", "<", ">", "~=", "==="]


def plain_version():
    s = ".".join(pick(["0", "1", "2", "3", "10"]) for _ in range(pick([1, 2, 2, 3])))
    s += pick(["a1", "b2", "rc1", "rc10"]) if chance(0.25) else ""
    s += pick([".post1", ".post2"]) if chance(0.2) else ""
    return s + (pick([".dev0", ".dev1", ".dev2"]) if chance(0.15) else "")


def clause():
    op = pick(OPERATORS)
    v = plain_version() if chance(0.8) else version(0)
    if op in ("==", "!="):
        v = ".".join(re.findall(r"\d+", v)[:3]) + ".*" if chance(0.3) else v + ("+" + local() if chance(0.2) else "")
    elif op == "===":
        v = case(v + ("+" + local() if chance(0.3) else "")) if chance(0.9) else pick(["", "foobar", "1.0.*", "a|b"])
    elif op == "~=" and chance(0.7):
        v = pick(["1.", "2.", "0."]) + v
    return pick(["", "", "", " "]) + op + pick(["", "", "", " ", "\t"]) + v + pick(["", "", "", " "])


def near(spec):
    """Versions around the ones a specifier names."""
    base = pick(re.findall(r"[0-9][0-9a-zA-Z.!]*", spec) or ["1.0"]).strip(".")
    if chance(0.15):
        return version()
    release = re.match(r"[0-9.!]*[0-9]|", base)[0] or "1"
    kind = between(0, 9)
    if kind == 0:
        numbers = release.split(".")
        last = re.sub(r"\D", "", numbers[-1]) or "1"
        return ".".join([*numbers[:-1], str(max(0, int(last) + pick([-1, 1])))]) + pick(["", ".dev0", "rc1", "+cu128"])
    return [base, base + "+cu128", release + ".0", release + ".1", release + "a1", release + ".post1",
            release + ".dev0", base + ".post1", base + ".dev1", release + "rc1.dev1"][kind] + pick(["", "", ".0", "+9", ".dev1"])


def specifiers():
    fixed = """==2.8.3 ==2.8.3+cu128.torch2.9 ==2.8.3+cu128-torch2.9 ===2.8.3 >=2.8.3 <=2.8.3 ~=2.8.3 <2.8.4 >2.8.3 !=2.8.3
        ==2.8.3+cu128.* >=2.8.3+cu128 ~=2.8.3+cu128 ~=1 ~=1.0.* >=1.* ==1.0a1.* ==1.*.0 =1.0 1.0 => ==== === ~= == ==1.0,==1.0.0
        ~=1.0,~=1.0.0 , >=1,,<2 ===1.0;x ===1) <0 <0.dev0 >0.dev0 <1.0.post1 >1.0.post1 >1.0.dev1 >1.0a1 ==0.* !=0.*""".split()
    fixed += ["", " ", ">= 1.0 , < 2", ">=1.0 <2", ">=\n1.0", ">=1.0\u00a0", "===1.0\x01", "===1.0\u2003", "~=1.0.poſt1", ">=1.0.poſt1"]
    made = [",".join(clause() for _ in range(pick([1, 1, 1, 2, 2, 3]))) for _ in range(1900)]
    bad = [mutate(clause(), ".*+,=<>!~ ;)v1a") for _ in range(700)]

    def parse(text):
        s = SpecifierSet(text)
        if "\u017f" in text:  # accepted by ~= only, to fail an assertion when asked anything
            return [text]
        seen = []
        for candidate in [*(near(text) for _ in range(11)), "2.8.3+cu128.torch2.9"]:
            try:
                seen.append(Version(candidate))
            except InvalidVersion:
                pass
        spell = [str(v) for v in seen]
        bits = lambda **kw: "".join("01"[s.contains(v, **kw)] for v in seen)
        picked = list(s.filter(seen))
        return [str(s), "01"[bool(s.prereleases)], " ".join(spell), bits(), bits(prereleases=False),
                "".join("01"[any(v is p for p in picked)] for v in seen)]

    return split("specifier", fixed + made + bad, parse, InvalidSpecifier)


# --- names, files, tags -------------------------------------------------------

NAMES = ["flash_attn", "Flash.Attn", "foo", "zope.interface", "FrIeNdLy._.bArD", "a", "torch", "exllamav2", "x.y_z", "A1", "3to2"]
PYTHONS = ["py3", "py2.py3", "cp312", "cp39.cp310", "cp313", "pp311", "CP312", "cp314", "py2", "cp27", "py3.py2"]
ABIS = ["none", "abi3", "cp312", "cp313t", "cp39.cp310", "none.abi3", "cp27mu", "pypy311_pp73"]
PLATFORMS = ["any", "linux_x86_64", "win_amd64", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64.manylinux2014_x86_64",
             "macosx_11_0_arm64", "musllinux_1_2_aarch64", "win32", "macosx_10_9_x86_64.macosx_11_0_arm64", "any.any"]


def names():
    fixed = ["Flash.Attn_extra", "FrIeNdLy-._.-bArD", "zope.interface", "_private", "foo-", "", "föö", "foo\n", "a", "-", "a--b", "..", "A.B"]
    made = ["".join(pick("abzAZ09-_.") for _ in range(between(1, 12))) for _ in range(1000)]
    rows = []
    for text in dict.fromkeys(fixed + made + [mutate(n) for n in made[:300]]):
        try:
            rows.append([text, canonicalize_name(text, validate=True)])
        except ValueError:
            rows.append([text])
    return rows


def file_version():
    v = version() if chance(0.5) else plain_version() + pick(["", "", "+cu128.torch2.9", "+rocm6.1.torch2.4.0"])
    return v.replace("-", "_") if chance(0.9) else v


def wheel():
    parts = [pick(NAMES), file_version()]
    parts += [pick(["1", "2", "10", "1abc", "007", "1_2", "3.4", "99999999999999999999", "x1"])] if chance(0.15) else []
    parts += [pick(PYTHONS), pick(ABIS), pick(PLATFORMS)]
    parts += [pick(["cu128", "null"])] if chance(0.03) else []
    return "-".join(parts) + ".whl"


def wheels():
    fixed = """flash_attn-2.8.3-cp312-cp312-linux_x86_64.whl flash_attn-2.8.3+cu128.torch2.9-cp312-cp312-manylinux_2_28_x86_64.whl
        Flash.Attn-2.8.3-cp312-cp312-linux_x86_64.whl foo-1.0-1-py3-none-any.whl foo-1.0-1abc-py3-none-any.whl
        foo-1.0-py2.py3-none-any.whl flash_attn-2.8.3+cu128-torch2.9.0-cp312-cp312-linux_x86_64.whl
        flash-attn-2.8.3-cp312-cp312-linux_x86_64.whl foo__bar-1.0-py3-none-any.whl -1.0-py3-none-any.whl
        foo--py3-none-any.whl foo-1.0--none-any.whl foo-1.0-py3.-none-any.whl foo-1.0_1-py3-none-any.whl
        playlyfe-0.1.1-2.7.6-none-any.whl foo-1.0-py3-none-any.WHL foo-1.0-py3-none-a<b>.whl ../foo-1.0-py3-none-any.whl
        foo-1.0-cp312-cp312-linux_x86_64-cu128.whl foo-1.0+cu128-2.1-cp312-cp312-linux_x86_64.whl _foo-1.0-py3-none-any.whl
        foo_-1.0-py3-none-any.whl nul.x-1.0-py3-none-any.whl foo-1.0-_py3-none-any.whl foo-1.0-py3-no+ne-any.whl
        foo-1.0-1!-py3-none-any.whl föö-1.0-py3-none-any.whl .foo-1.0-py3-none-any.whl .whl foo.whl
        exllamav2-0.3.2+cu128.torch2.9.0-cp313-cp313-linux_x86_64.whl exllamav2-0.3.2-py3-none-any.whl""".split()
    fixed += ["foo-1.0-py3-none-any.whl\n", "foo-1.0-py3-none-an y.whl", "foo-1.0-py3-none-a%2f.whl",
              "foo-1.0-py3-none-" + "a" * 240 + ".whl", "foo-1.0-" + ".".join("p" * 11) + "-" + ".".join("a" * 10) + "-" + ".".join("x" * 10) + ".whl"]
    good = [wheel() for _ in range(3600)]
    bad = [mutate(wheel(), "-._+!<> a1") for _ in range(2200)]

    def parse(text):
        name, v, build, found = parse_wheel_filename(text)
        return [name, str(v), "" if not build else f"{build[0]} {build[1]}", " ".join(sorted(map(str, found)))]

    return split("wheel", fixed + good + bad, parse, InvalidWheelFilename)


def sdists():
    fixed = """foo-1.0.tar.gz foo-1.0.zip foo-bar-1.0.tar.gz foo-1.0-1.tar.gz foo-1.0.tgz foo-1.0.tar.bz2 foo-1.0.TAR.GZ foo.tar.gz
        -1.0.tar.gz foo-.tar.gz flash_attn-2.8.3+cu128-torch2.9.0.tar.gz exllamav2-0.3.2.tar.gz foo_-1.0.tar.gz con.x-1.0.zip
        a<b-1.0.tar.gz ../foo-1.0.tar.gz foo__bar-1.0.tar.gz .foo-1.0.tar.gz""".split() + ["f" * 240 + "-1.0.zip"]
    make = lambda: f"{pick(NAMES)}-{file_version()}{pick(['.tar.gz', '.tar.gz', '.zip', '.tgz', '.tar.xz'] if chance(0.2) else ['.tar.gz'])}"
    made = [make() for _ in range(700)]
    bad = [mutate(make(), "-._+!<> a1") for _ in range(500)]

    def parse(text):
        name, v = parse_sdist_filename(text)
        return [name, str(v)]

    return split("sdist", fixed + made + bad, parse, InvalidSdistFilename)


def linux(arch, glibc=(-1, -1), musl=None):
    """Platform tags of a Linux machine other than this one."""
    with (
        mock.patch.object(tags.sysconfig, "get_platform", lambda: "linux-" + arch),
        mock.patch.object(_manylinux, "_get_glibc_version", lambda: _manylinux._GLibCVersion(*glibc)),
        mock.patch.object(_manylinux, "_get_manylinux_module", lambda: None),
        mock.patch.object(_manylinux, "_is_linux_armhf", lambda _: True),
        mock.patch.object(_manylinux, "_is_linux_i686", lambda _: True),
        mock.patch.object(_musllinux, "_get_musl_version", lambda _: musl and _musllinux._MuslVersion(*musl)),
    ):
        return list(tags._linux_platforms(is_32bit=False))


def supported():
    """Lines [facts, platforms, tags]; "*" stands for all platforms in turn."""
    systems = [({"OS": "linux", "Arch": a, "Glibc": g}, linux(a, g)) for a, g in [
        ("x86_64", (2, 36)), ("x86_64", (2, 17)), ("x86_64", (2, 4)), ("aarch64", (2, 39)), ("i686", (2, 28)),
        ("armv7l", (2, 31)), ("armv8l", (2, 31)), ("ppc64le", (2, 28)), ("riscv64", (2, 41)), ("mips64", (2, 36))]]
    systems += [({"OS": "linux", "Arch": a, "Musl": m}, linux(a, musl=m)) for a, m in [("x86_64", (1, 2)), ("aarch64", (1, 1))]]
    systems += [({"OS": "linux", "Arch": "x86_64"}, linux("x86_64"))]
    systems += [({"OS": "macosx", "Arch": a, "MacOS": v}, list(tags.mac_platforms(v, a))) for a, v in [
        ("arm64", (14, 0)), ("x86_64", (13, 2)), ("x86_64", (10, 15)), ("arm64", (11, 0)), ("x86_64", (10, 4)), ("arm64", (26, 1))]]
    systems += [({"OS": "win", "Arch": a}, [t]) for a, t in [("amd64", "win_amd64"), ("arm64", "win_arm64"), ("32", "win32")]]
    pythons = [(3, 12, ""), (3, 9, ""), (3, 13, "t"), (3, 14, ""), (3, 15, "t"), (3, 7, "m"), (3, 2, "m")]
    for facts, platforms in systems:
        for major, minor, flag in pythons:
            who = {"Implementation": "cp", "Major": major, "Minor": minor, "FreeThreaded": flag == "t", "Platform": facts}
            found = [*tags.cpython_tags((major, minor), [f"cp{major}{minor}{flag}"], platforms),
                     *tags.compatible_tags((major, minor), f"cp{major}{minor}", platforms)]
            yield [who, platforms, grouped(found, platforms)]
        who = {"Implementation": "pp", "Major": 3, "Minor": 11, "ABI": "pypy311_pp73", "Platform": facts}
        found = [*tags.generic_tags("pp311", ["pypy311_pp73"], platforms), *tags.compatible_tags((3, 11), "pp3", platforms)]
        yield [who, platforms, grouped(found, platforms)]


def grouped(found, platforms):
    out = []
    for key, run in groupby(found, key=lambda t: f"{t.interpreter}-{t.abi}"):
        run = [t.platform for t in run]
        while run[: len(platforms)] == platforms:
            out.append(key + "-*")
            run = run[len(platforms):]
        out += [f"{key}-{p}" for p in run]
    return " ".join(out)


# --- requirements -------------------------------------------------------------

VARIABLES = ["python_version", "python_full_version", "os_name", "os.name", "sys_platform", "sys.platform", "platform_release",
             "platform_system", "platform_version", "platform.version", "platform_machine", "platform.machine", "extra", "extras",
             "platform_python_implementation", "platform.python_implementation", "python_implementation", "implementation_name",
             "implementation_version", "dependency_groups", "variant_label"]


def blank():
    return pick(["", "", " ", " ", "\t", "  "])


def comparison():
    value = pick("'\"") + pick(["3.13", "linux", "x86_64", "", "a b", "2.7 3.6", "dev", "é", "#;,"])
    left, right = pick(VARIABLES), value + value[0]
    op = pick(["==", "!=", "<", ">=", "~=", "===", " in ", " not in ", " not\tin", "in", " is ", "="])
    left, right = (right, left) if chance(0.2) else (left, right)
    return left + blank() + op + blank() + right


def marker(depth=0):
    if depth < 3 and chance(0.25):
        return "(" + blank() + marker(depth + 1) + blank() + ")"
    parts = [comparison() if chance(0.8) else marker(depth + 1) for _ in range(pick([1, 1, 2, 3]))]
    return parts[0] + "".join(blank() + pick(["and", "or"]) + pick([" ", " ", ""]) + p for p in parts[1:])


def requirement():
    s = pick(["", "", " "]) + pick([*NAMES, "foo-bar", "Foo_Bar", "x_"]) + blank()
    if chance(0.3):
        s += "[" + blank() + (blank() + "," + blank()).join(pick(["x", "Foo_Bar", "a.b", "foo-bar", "test"]) for _ in range(pick([0, 1, 1, 2, 3]))) + blank() + "]"
    s += blank()
    if chance(0.15):
        s += "@" + blank() + pick(["https://example.org/a-1.0.whl", "file:///a;b", "git+https://h/x@v1#egg=y", "x"]) + pick([" ", "", "  "])
    elif chance(0.8):
        many = pick([",", ", ", " , "]).join(clause() for _ in range(pick([1, 1, 2, 3]))) + pick(["", "", "", ",", " "])
        s += "(" + many + ")" if chance(0.2) else many
    return s + (blank() + ";" + blank() + marker() + blank() if chance(0.4) else blank())


def requirements():
    fixed = ["torch[x]>=2.2,<3 ; python_version < '3.13'", "foo", "", ";", "foo;", "foo[]", "foo[", "foo[a", "foo[a,]", "foo[a b]", "foo[,a]",
             "foo()", "foo(>=1", "foo>=1)", "foo (>=1) ,<2", "foo>=1,", "foo,", "foo>=1,,<2", "foo===1.0,>=2", "foo===1.0, >=2", "foo===1.0 , >=2",
             "foo===", "foo>=\n1.0", "foo>=1.0\n", "foo\n", "foo @", "foo@x", "foo @ x ; os_name=='a'", "foo @ x;os_name=='a'", "foo @ x y",
             "foo-", "foo.", "foo_", "-foo", "foo[a_]", "foo[a-]", "foo~=1", "foo>=1.*", "foo==1.*", "foo==1.0a1.*", "foo>=1+a", "foo==1+a", "foo 1.0",
             "foo; 'a' == 'b'", "foo; os_name == sys_platform", "foo; os_name", "foo; os_name == a", "foo; os_name == 'a", "foo; (os_name == 'a'",
             "foo; os_name == 'a')", "foo; os_name == 'a' and", "foo; os_name == 'a'and os_name == 'b'", "foo; os_name == 'a' andos_name == 'b'",
             "foo; 'a'in os_name", "foo; 'a' inos_name", "foo; 'a' notin os_name", "foo; 'a' not in os_name", "foo; os_name in'a'", "foo; os_nameé == 'a'",
             "foo; os_name == 'a\\'", "foo; os_name == 'a\\n'", "foo; os_name == 'a\nb'", "foo; os_name == 'a\\x41'", "foo @ x\ny", "foo @ x\x01",
             "foo;" + "(" * 100 + "os_name=='a'" + ")" * 100, "foo;" + "(" * 101 + "os_name=='a'" + ")" * 101, "fooé", "foo ; os_name == 'é'",
             "foo===1.0\u00a0", "foo>=\u00a01.0", "foo===\x01", "nvidia-cublas-cu12==12.8.4.1; platform_system == \"Linux\" and platform_machine == \"x86_64\""]
    made = [requirement() for _ in range(2200)]
    bad = [mutate(requirement(), "[](),;@'\"=<>~! .-a1") for _ in range(1200)]

    def parse(text):
        r = Requirement(text)
        return [r.name, ",".join(sorted({canonicalize_name(e) for e in r.extras})), str(r.specifier), r.url or "", "01"[r.marker is not None]]

    return split("requirement", fixed + made + bad, parse, InvalidRequirement)


def main(directory):
    assert packaging.__version__ == "26.3", packaging.__version__
    rows = versions()
    out = {
        "versions.jsonl": rows, "specifiers.jsonl": specifiers(), "names.jsonl": names(), "wheels.jsonl": wheels(),
        "sdists.jsonl": sdists(), "tags.jsonl": list(supported()), "requirements.jsonl": requirements(),
    }
    out["stricter.jsonl"] = [[kind, why, text] for (kind, why), texts in sorted(stricter.items()) for text in texts[:20]]
    text = {name: [json.dumps(row, separators=(",", ":")) for row in lines] for name, lines in out.items()}
    text["pairs.txt"] = pairs(rows)
    for name, lines in text.items():
        Path(directory, name).write_bytes("".join(line + "\n" for line in lines).encode())


if __name__ == "__main__":
    main(sys.argv[1])
