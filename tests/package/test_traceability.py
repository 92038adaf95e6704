"""Hold docs/traceability.md against the markers of the tests, both ways."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "docs" / "traceability.md"
ROW = re.compile(r"^\| (\d{4})\.(\S+) \| (.+?) \| (\w+) \| (.*?) ?\|$", re.MULTILINE)
WAITING = re.compile(r"^\| ((?:\d+(?: to \d+)?(?:, )?)+) \| (.+?) \|$", re.MULTILINE)
STATUSES = {"tested", "translated", "deferred"}
DUE = set(range(1, 231))


class Row(NamedTuple):
    """Hold one clause of the paper."""

    status: str
    reason: str


def clauses(paper: str) -> dict[tuple[str, str], Row]:
    """Return every clause row by document and clause."""
    return {(row[0], row[1]): Row(row[3], row[4]) for row in ROW.findall(paper)}


def waiting_scenarios(paper: str) -> set[int]:
    """Return the scenarios that the paper excuses, apart from those that tests play as changed."""
    excused: set[int] = set()
    for numbers, reason in WAITING.findall(paper):
        if reason.startswith("played"):
            continue
        for part in numbers.split(", "):
            first, _, last = part.partition(" to ")
            excused.update(range(int(first), int(last or first) + 1))
    return excused


def markers(source: str) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the name and the constant arguments of every `pytest.mark` call."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func).startswith("pytest.mark."):
            constants = tuple(arg.value for arg in node.args if isinstance(arg, ast.Constant))
            yield node.func.attr, constants


def all_markers() -> list[tuple[str, tuple[object, ...]]]:
    """Return the markers of every test of the project."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [marker for file in files for marker in markers(file.read_text("utf-8"))]


def played() -> set[tuple[object, ...]]:
    """Return the clauses that tests name."""
    return {arguments for name, arguments in all_markers() if name == "adr"}


def faults(paper: str, named: set[tuple[object, ...]]) -> list[str]:
    """Return every disagreement between the paper and the tests."""
    rows = clauses(paper)
    found = [
        f"{key}: unknown status {row.status}"
        for key, row in rows.items()
        if row.status not in STATUSES
    ]
    for key, row in rows.items():
        clause = ".".join(key)
        if row.status == "deferred" and key in named:
            found.append(f"{clause} is deferred and tested")
        if row.status != "deferred" and key not in named:
            found.append(f"{clause} has no test")
        if row.status != "tested" and not row.reason:
            found.append(f"{clause} is {row.status} without a reason")
    found += [f"{arguments} has no row" for arguments in sorted(map(str, named - set(rows)))]
    return found


def test_every_clause_has_its_test_and_every_test_its_clause() -> None:
    """No row without a test, no test without a row."""
    assert faults(PAPER.read_text("utf-8"), played()) == []


def test_every_due_scenario_is_played_or_excused() -> None:
    """The numbered scenarios of what is built are tests."""
    numbers = {number for name, found in all_markers() if name == "scenario" for number in found}
    excused = waiting_scenarios(PAPER.read_text("utf-8"))
    assert sorted(DUE - numbers - excused) == []


@pytest.mark.parametrize(
    "doc", sorted((ROOT / "docs" / "adr").glob("0*.md")), ids=lambda doc: doc.stem
)
def test_every_verification_clause_of_our_decisions_has_a_row(doc: Path) -> None:
    """A clause that is added to a decision must be traced."""
    listed = re.findall(
        r"^(\d+)\. ", doc.read_text("utf-8").partition("## Verification")[2], re.MULTILINE
    )
    rows = clauses(PAPER.read_text("utf-8"))
    assert listed
    assert [clause for clause in listed if (doc.stem[:4], clause) not in rows] == []


def test_a_missing_test_an_unknown_row_and_a_tested_deferral_are_seen() -> None:
    """The check itself can fail, in each of its ways."""
    rows = ["0033.1 | w | tested | ", "0033.2 | w | deferred | on ", "0033.3 | w | translated | "]
    paper = "".join(f"| {row}|\n" for row in rows)
    named: set[tuple[object, ...]] = {("0033", "2"), ("0099", "1")}
    seen = " ".join(faults(paper, named))
    for fault in (
        "0033.1 has no test",
        "0033.2 is deferred and tested",
        "0033.3 is translated without",
        "0099",
    ):
        assert fault in seen
