"""Writes table.json: how Python's shlex and a POSIX shell split texts into words.

Run it from anywhere: python3 make.py. The texts use nothing that a shell would expand.
"""

import json
import pathlib
import shlex
import subprocess

TEXTS = [
    "",
    " ",
    "\t\n",
    "a",
    "--no-build-isolation",
    "--no-build-isolation --verbose",
    "  a   b\tc\nd  ",
    "-C--build-option=-j4",
    '-C "--build-option=-j 4"',
    "-C '--build-option=-j 4'",
    "-C--build-option='-j 4'",
    '"a b"c',
    "a'b c'd\"e f\"g",
    '""',
    "''",
    'a "" b',
    "a '' b",
    "\"\"''",
    '"it\'s"',
    "'say \"hi\"'",
    "a\\ b",
    "a\\\\b",
    "\\a",
    "\\'",
    '\\"',
    '"a\\"b"',
    '"a\\\\b"',
    '"a\\b"',
    '"a\\$b"',
    '"a\\`b"',
    '"a\\\'b"',
    "'a\\'",
    "'a\\nb'",
    "'a'\\''b'",
    '"a\nb"',
    "'a\nb'",
    "--flag \\\n  --other",
    "a\\\nb",
    '"a\\\nb"',
    "é 日本 \"ü ö\"",
    "a=b",
    "-D\"NAME=value with blanks\" -I/usr/include",
    "C:\\\\path\\\\file",
    "'C:\\path\\file'",
    # Not closed.
    "'",
    '"',
    "a 'b",
    'a "b',
    'a "b\\"',
    "a\\",
    '"a\\',
]


def by_shlex(text):
    try:
        return shlex.split(text)
    except ValueError:
        return None


def by_shell(text):
    # At the end of a file a shell keeps a lone backslash; at a prompt it asks for more.
    if text.endswith("\\") and not text.endswith("\\\\"):
        return None
    done = subprocess.run(
        ["sh", "-c", "printf '%s\\0' . " + text], capture_output=True, check=False
    )
    if done.returncode != 0:
        return None
    return done.stdout.decode().split("\0")[1:-1]


def main():
    lines = []
    for text in TEXTS:
        # A newline outside quotes ends a command of the shell; for words it is a blank.
        quoted = "'" in text or '"' in text or "\\" in text
        shell = by_shell(text if quoted else text.replace("\n", " "))
        lines.append(json.dumps({"text": text, "shlex": by_shlex(text), "sh": shell}))
    table = pathlib.Path(__file__).parent / "table.json"
    table.write_text("[\n " + ",\n ".join(lines) + "\n]\n", encoding="ascii")


if __name__ == "__main__":
    main()
