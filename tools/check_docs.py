#!/usr/bin/env python3
"""Check that the papers point at things that exist.

In the Markdown files of the root and of `docs/`: each relative link leads to a file, and its
fragment to a heading; each path in backticks of the form `qinglong_edge/....py` is a file, and the
name after its colon (`:claim`, `:Fields.take`) is a function, class or constant in it; each path
in backticks below `tests`, `tools`, `zipapp`, `bench` or `docs` exists. Prints one line a fault;
exit 1 if there was one.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

FENCE = re.compile(r"\s*(```|~~~)")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\s*\[[^\]]+\]:\s*<?(\S+?)>?\s*$")
CODE = re.compile(r"`[^`]*`")
FOREIGN = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
SOURCE = re.compile(r"`(qinglong_edge/[\w/.-]*?\.py)(?::([\w.]+)(?:\(\))?)?`")
PLACE = re.compile(r"`((?:tests|tools|zipapp|bench|docs)/[\w/.-]+)`")
HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*\s*$")

Fault = tuple[int, str]


def papers(root: Path) -> list[Path]:
    """Return the Markdown files that are checked."""
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line outside fenced blocks."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark and fence in {"", mark[1]}:
            fence = "" if fence else mark[1]
        elif not fence:
            yield number, line


def anchors(text: str) -> set[str]:
    """Return the fragments under which the headings can be reached, as GitHub forms them."""
    found: set[str] = set()
    for _, line in prose(text):
        if heading := HEADING.match(line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            count = 0
            while (name := f"{slug}-{count}" if count else slug) in found:
                count += 1
            found.add(name)
    return found


def link_fault(paper: Path, target: str, *, root: Path) -> str | None:
    """Return what is wrong with a link, or None."""
    if FOREIGN.match(target):
        return None
    place, _, fragment = unquote(target).partition("#")
    file = (paper.parent / place).resolve() if place else paper
    if place.startswith("/") or not file.is_relative_to(root):
        return f"link {target} leaves the repository"
    if not file.exists():
        return f"link {target} leads nowhere"
    if fragment and file.suffix == ".md" and fragment not in anchors(file.read_text("utf-8")):
        return f"link {target}: no such heading"
    return None


def names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield the functions, classes, methods and constants that a module defines."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + each.id for each in targets if isinstance(each, ast.Name))


def source_fault(path: str, name: str | None, *, root: Path) -> str | None:
    """Return what is wrong with a path in backticks, or None."""
    file = root / path
    if not file.is_file():
        return f"{path} does not exist"
    if name and name not in names(ast.parse(file.read_text("utf-8")).body):
        return f"{path} has no {name}"
    return None


def faults(paper: Path, root: Path) -> Iterator[Fault]:
    """Yield line and fault of one paper."""
    for number, line in prose(paper.read_text("utf-8")):
        for link in LINK.finditer(CODE.sub("``", line)):
            if fault := link_fault(paper, link[1] or link[2], root=root):
                yield number, fault
        for source in SOURCE.finditer(line):
            if fault := source_fault(source[1], source[2], root=root):
                yield number, fault
        for place in PLACE.finditer(line):
            if not (root / place[1]).exists():
                yield number, f"{place[1]} does not exist"


def main(argv: list[str]) -> int:
    """Print the faults of every paper; return 1 if there is one or nothing was there to check."""
    parser = argparse.ArgumentParser(description="Check links and source paths in the papers.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to check")
    root = parser.parse_args(argv).root.resolve()
    found = papers(root)
    lines = [
        f"{paper.relative_to(root)}:{number}: {fault}"
        for paper in found
        for number, fault in faults(paper, root)
    ]
    if not found:
        lines = [f"no papers under {root}"]
    print("\n".join(lines) if lines else f"{len(found)} papers point at things that exist")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
