"""Read the repository's own sources for the tests that judge them."""

import ast
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "qinglong_edge"
CODE = (PACKAGE, "tools", "zipapp", "bench", "tests")
SKIPPED = frozenset({"__pycache__", "build", "dist"})


class Source(NamedTuple):
    """One Python file: its path from the root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The dotted name under which the file is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def source(path: str, text: str) -> Source:
    """Make a source out of text, for rules that are tried on seeded faults."""
    return Source(path, text, ast.parse(text, path))


@cache
def python_sources(*folders: str) -> tuple[Source, ...]:
    """Return every Python file under the folders, sorted by path."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return tuple(
        source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in paths
        if not SKIPPED & set(path.parts)
    )


def package_sources() -> tuple[Source, ...]:
    """Return the Python files that are shipped."""
    return python_sources(PACKAGE)


def imports(tree: ast.Module) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield line, module and names of each absolute import, wherever in the file it stands.

    `import a.b` has no names. `import_module("a.b")` with a literal counts as an import.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0]
            if called in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value), ()


def text_files() -> Iterator[tuple[str, str]]:
    """Yield path and text of each file that is, or may become, part of the repository."""
    for path in _candidates():
        file = ROOT / path
        if file.is_symlink() or not file.is_file():
            continue
        content = file.read_bytes()
        if b"\0" not in content:
            yield path, content.decode("utf-8", "replace")


def _candidates() -> list[str]:
    """Ask git for what it tracks or would; walk the tree where there is no git, as in a tarball."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(_walk())
    return sorted(set(filter(None, listed.stdout.decode().split("\0"))))


def _walk() -> Iterator[str]:
    for folder, folders, names in os.walk(ROOT):
        kept = [name for name in folders if name not in SKIPPED]
        folders[:] = [name for name in kept if name == ".ci" or not name.startswith(".")]
        for name in names:
            yield Path(folder, name).relative_to(ROOT).as_posix()
