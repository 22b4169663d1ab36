"""Stages the documentation for MkDocs: README.md is the home page, and links out of docs/ lead to the repository.

    python dev/scripts/site.py FOLDER

docs/index.md is about package indexes; MkDocs would take it for the home page, so it is wheel-index.md on the site.
"""

import pathlib
import re
import shutil
import sys

REPOSITORY = "https://github.com/kiln-build/kiln/blob/main/"
PICTURES = "docs/pictures/"
LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")


def name(page):
    return {"README.md": "index.md", "docs/index.md": "wheel-index.md"}.get(page, page.removeprefix("docs/"))


def stage(page, pages, to):
    folder = pathlib.PurePosixPath(page).parent

    def address(path):
        if path in pages:
            return name(path)
        return path.removeprefix("docs/") if path.startswith(PICTURES) else REPOSITORY + path

    def link(match):
        opening, target, anchor, closing = match.groups()
        if not target or ":" in target:
            return match.group(0)
        parts = []
        for part in (folder / target).parts:
            parts = parts[:-1] if part == ".." else parts + [part]
        path = "/".join(parts)
        return opening + address(path) + (anchor or "") + closing

    # Only prose: a link in a block of code is code.
    blocks = pathlib.Path(page).read_text("utf-8").split("\n```")
    blocks[::2] = [LINK.sub(link, text) for text in blocks[::2]]
    (to / name(page)).write_text("\n```".join(blocks), "utf-8")


def main():
    to = pathlib.Path(sys.argv[1])
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    shutil.copytree(PICTURES, to / "pictures")
    pages = ["README.md", *sorted(str(p) for p in pathlib.Path("docs").glob("*.md"))]
    for page in pages:
        stage(page, pages, to)


main()
