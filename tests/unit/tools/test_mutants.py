import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tools import mutants
from tools.guards import Guard
from tools.mutants import ALLOWED, ROOT, Mutant, Trial, all_mutants, chosen, report

DOMAIN = all_mutants(ROOT)


def guard(name: str) -> Guard:
    return Guard(f"gate.opens: {name}", "gate", "opens", 7, ())


def options(**changes: Any) -> Namespace:
    asked = {"root": ROOT, "module": [], "changed": None, "sample": None, "seed": "0", **changes}
    return Namespace(**asked)


def names(found: list[Mutant]) -> list[str]:
    return [each.guard.name for each in found]


def test_every_allowed_guard_exists_and_has_its_reason() -> None:
    assert set(ALLOWED) - set(names(DOMAIN)) == set()
    assert all(ALLOWED.values())


def test_guards_have_different_names() -> None:
    assert len(DOMAIN) > 500
    assert len(set(names(DOMAIN))) == len(DOMAIN)


def test_a_module_can_be_chosen() -> None:
    found = chosen(DOMAIN, options(module=["dispatch", "tick"]))
    assert {each.guard.module for each in found} == {"dispatch", "tick"}
    assert chosen(DOMAIN, options()) == DOMAIN


def test_a_sample_is_the_same_for_the_same_seed_and_keeps_the_order() -> None:
    first = names(chosen(DOMAIN, options(sample=40, seed="a")))
    assert first == names(chosen(DOMAIN, options(sample=40, seed="a")))
    assert first != names(chosen(DOMAIN, options(sample=40, seed="b")))
    assert first == [name for name in names(DOMAIN) if name in set(first)]
    assert len(first) == 40
    assert chosen(DOMAIN, options(sample=10_000)) == DOMAIN


def test_the_report_names_each_survivor_and_each_allowance_that_is_none() -> None:
    trials = [
        Trial(guard("if a"), "tests/unit/domain/test_gate.py::test_a"),
        Trial(guard("if b"), "tests/contract/test_b.py::test_b"),
        Trial(guard("if c"), None),
        Trial(guard("if d"), None),
        Trial(guard("if e"), "signal 14"),
    ]
    allowed = ["gate.opens: if d", "gate.opens: if e"]
    assert report(trials, allowed) == (
        [
            "qinglong_edge/domain/gate.py:7: [gate.opens: if c] no test misses it",
            "qinglong_edge/domain/gate.py:7: [gate.opens: if e] allowed, but missed by signal 14",
            "5 guards: 3 noticed (1 of them by tests/contract only), 1 survivors, 1 allowed",
        ],
        False,
    )
    assert report(trials[:2], allowed)[1]


GATE = """
def opens(age, card):
    if age < 18:
        return False
    while card and card != "gold":
        card = card[:-1] if age < 100 else ""
    return bool(card)
"""
GATE_TEST = """
from qinglong_edge.domain.gate import opens

def test_gold_opens():
    assert opens(18, "gold")

def test_nothing_else_does():
    assert not opens(18, "tin")
    assert not opens(100, "tin")
"""
CHILD_TEST = """
from qinglong_edge.domain.gate import opens

def test_children_wait():
    assert not opens(17, "gold")
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"qinglong_edge/__init__.py": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


# As `python -m tools.mutants`, but an endless loop notices sooner.
SCRIPT = """
import sys
from tools import mutants
mutants.TEST_SECONDS = 1
sys.exit(mutants.main(sys.argv[1:]))
"""


def tried(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, "--root", str(root)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.adr("0009", "10")
def test_a_tree_is_tried_and_stays_as_it_was(tmp_path: Path) -> None:
    files = {
        "qinglong_edge/domain/__init__.py": "",
        "qinglong_edge/domain/gate.py": GATE,
        "tests/unit/domain/test_gate.py": GATE_TEST,
        "tests/contract/test_children.py": CHILD_TEST,
    }
    done = tried(tree(tmp_path, files))
    assert done.returncode == 1, done.stderr
    *survivors, last = done.stdout.splitlines()
    place = "qinglong_edge/domain/gate.py"
    assert survivors == [
        f"{place}:6: [gate.opens: always card[:-1], whatever age < 100] no test misses it",
        f"{place}:6: [gate.opens: always '', whatever age < 100] no test misses it",
        f"{place}:6: [gate.opens: boundary of age < 100] no test misses it",
    ]
    counts = "7 guards: 4 noticed (1 of them by tests/contract only), 3 survivors, 0 allowed, "
    assert last.startswith(counts)
    written = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert written == {"qinglong_edge/__init__.py", *files}
    assert (tmp_path / place).read_text(encoding="utf-8") == GATE


@pytest.mark.slow
def test_tests_that_fail_with_every_guard_in_place_prove_nothing(tmp_path: Path) -> None:
    files = {
        "qinglong_edge/domain/__init__.py": "",
        "qinglong_edge/domain/gate.py": GATE,
        "tests/unit/domain/test_gate.py": "def test_no():\n    assert False",
    }
    done = tried(tree(tmp_path, files))
    assert done.returncode == 2
    assert "fails with every guard in place" in done.stderr
    assert "test_gate.py::test_no" in done.stderr


def test_no_guards_are_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "no guards to try\n"
