"""Imports point down the ranks, and packages of equal rank are strangers."""

import ast

import pytest

from tests.package.source_tree import PACKAGE, Source, imports, package_sources, source

RANKS = {
    "domain": 0,
    "ports": 1,
    "storage": 2,
    "receipts": 2,
    "executor": 2,
    "runtime": 3,
    "actions": 4,
    "commands": 5,
    "control": 6,
    "cli": 7,
}
TOP = 8  # `__main__` may start anything; `__init__` is handled like any stranger of rank 0


def own_package(module: str) -> str:
    """Return the second word of a dotted name: `domain`, `cli`, `__main__`, or nothing."""
    return module.split(".")[1] if "." in module else ""


def imported_packages(found: Source) -> list[tuple[int, str]]:
    """Return line and package of each import from inside the program."""
    pairs = []
    for line, module, names in imports(found.tree):
        if module == PACKAGE:
            # `from qinglong_edge import x`: x is a package or an attribute of the root.
            pairs += [(line, name) for name in names if name in RANKS or name == "__main__"]
        elif module.startswith(f"{PACKAGE}."):
            pairs.append((line, own_package(module)))
    return pairs


def offences(found: Source) -> list[str]:
    """Return one line for each import that does not point down."""
    here = own_package(found.module)
    rank = TOP if here == "__main__" else RANKS.get(here, 0)
    lines = [
        f"{found.path}:{node.lineno}: relative import"
        for node in ast.walk(found.tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    for line, target in imported_packages(found):
        if target not in RANKS:
            lines.append(f"{found.path}:{line}: {target} has no rank")
        elif target != here and RANKS[target] >= rank:
            lines.append(f"{found.path}:{line}: {here or PACKAGE} may not import {target}")
    if here and here != "__main__" and here not in RANKS:
        lines.append(f"{found.path}:1: package {here} has no rank")
    return lines


@pytest.mark.adr("0001", "1")
def test_every_import_points_down() -> None:
    found = package_sources()
    assert [line for each in found for line in offences(each)] == []


def test_the_program_was_read_and_has_arrows_to_judge() -> None:
    arrows = [pair for each in package_sources() for pair in imported_packages(each)]
    assert len(arrows) > len(RANKS)


@pytest.mark.adr("0001", "1")
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("qinglong_edge/domain/a.py", "import qinglong_edge.ports.b"),
        ("qinglong_edge/domain/a.py", "from qinglong_edge.storage.sqlite import rows"),
        ("qinglong_edge/domain/a.py", "from qinglong_edge import ports"),
        ("qinglong_edge/receipts/a.py", "from qinglong_edge.storage import statements"),
        ("qinglong_edge/receipts/a.py", "from .codec import x"),
        ("qinglong_edge/runtime/a.py", "def f():\n    from qinglong_edge.actions import b"),
        ("qinglong_edge/runtime/a.py", "if TYPE_CHECKING:\n    import qinglong_edge.cli.main"),
        ("qinglong_edge/runtime/a.py", "importlib.import_module('qinglong_edge.commands.x')"),
        ("qinglong_edge/commands/a.py", "__import__('qinglong_edge.cli')"),
        ("qinglong_edge/__init__.py", "from qinglong_edge.domain import ids"),
        ("qinglong_edge/extra/a.py", "import os"),
        ("qinglong_edge/cli/a.py", "import qinglong_edge.extra"),
    ],
)
def test_an_import_that_does_not_point_down_is_found(path: str, text: str) -> None:
    assert len(offences(source(path, text))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("qinglong_edge/domain/a.py", "from qinglong_edge.domain.b import c\nimport re"),
        ("qinglong_edge/storage/sqlite/a.py", "from qinglong_edge.storage import statements"),
        ("qinglong_edge/cli/a.py", "from qinglong_edge import __version__"),
        ("qinglong_edge/control/a.py", "from qinglong_edge.commands import x"),
        ("qinglong_edge/__main__.py", "from qinglong_edge.cli.main import run"),
    ],
)
def test_an_import_that_points_down_is_allowed(path: str, text: str) -> None:
    assert offences(source(path, text)) == []
