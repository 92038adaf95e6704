"""Named statements: read whole, from a tree and from an archive, and never twice the same name."""

import zipfile
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.storage import statements

GOOD = """-- Words about the file.
-- name: find_one
-- One row.
SELECT 1

-- name: find_two
-- Two rows;
-- said in two lines.
SELECT 1
UNION SELECT 2
"""


def package(root: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """Make an importable package of its own that holds `a.sql`."""
    name = f"sql_of_{abs(hash((root, text))):x}"
    (root / name).mkdir()
    (root / name / "__init__.py").touch()
    (root / name / "a.sql").write_text(text)
    monkeypatch.syspath_prepend(str(root))
    return name


def test_statements_are_found_by_name_without_their_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert statements.load(package(tmp_path, monkeypatch, GOOD), "a.sql") == {
        "find_one": "SELECT 1",
        "find_two": "SELECT 1\nUNION SELECT 2",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-- name: a\n-- Nothing.\n", "a is empty"),
        ("-- name: a\n-- name: b\nSELECT 1\n", "a is empty"),
        ("-- name: a\nSELECT 1\n-- name: a\nSELECT 2\n", "a stands twice"),
    ],
)
def test_a_malformed_file_is_a_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    with pytest.raises(InvariantBroken, match=words):
        statements.load(package(tmp_path, monkeypatch, text), "a.sql")


def test_an_archive_serves_as_well_as_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "program.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("sql_of_an_archive/__init__.py", "")
        file.writestr("sql_of_an_archive/sql/a.sql", GOOD)
    monkeypatch.syspath_prepend(str(archive))
    assert set(statements.load("sql_of_an_archive", "sql/a.sql")) == {"find_one", "find_two"}


def test_bytes_beyond_ascii_are_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(tmp_path, monkeypatch, "-- name: a\nSELECT '青龙'\n")
    assert statements.text(name, "a.sql").endswith("'青龙'\n")


def test_every_statement_file_of_the_program_can_be_read() -> None:
    assert "add_boot" in statements.load("qinglong_edge.storage.sqlite", "sql/clock.sql")
