"""The papers point at things that exist, and the tool that says so can tell."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.package.source_tree import ROOT
from tools import check_docs

MODULE = '''"""Doc."""
LIMIT = 1
def claim(): ...
class Fields:
    def take(self): ...
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "qinglong_edge" / "domain").mkdir(parents=True)
    (tmp_path / "qinglong_edge" / "domain" / "dispatch.py").write_text(MODULE)
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    (tmp_path / "docs" / "one.md").write_text("# One thing: `first`\n\n## Again\n\n## Again\n")
    return tmp_path


def faults(tree: Path, text: str) -> list[str]:
    paper = tree / "docs" / "adr" / "paper.md"
    paper.write_text(text)
    return [fault for _, fault in check_docs.faults(paper, tree)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[x](two.md)", "link two.md leads nowhere"),
        ("[x](../one.md#nothing)", "link ../one.md#nothing: no such heading"),
        ("[x](#nothing)", "link #nothing: no such heading"),
        ("[x](/docs/one.md)", "link /docs/one.md leaves the repository"),
        ("[x](../../../elsewhere.md)", "link ../../../elsewhere.md leaves the repository"),
        ("![x](picture.png 'title')", "link picture.png leads nowhere"),
        ("[x]: two.md", "link two.md leads nowhere"),
        ("`qinglong_edge/domain/two.py`", "qinglong_edge/domain/two.py does not exist"),
        (
            "| `qinglong_edge/domain/dispatch.py:start` |",
            "qinglong_edge/domain/dispatch.py has no start",
        ),
        (
            "`qinglong_edge/domain/dispatch.py:Fields.drop`",
            "qinglong_edge/domain/dispatch.py has no Fields.drop",
        ),
    ],
)
def test_a_seeded_fault_is_found(tree: Path, text: str, fault: str) -> None:
    assert faults(tree, f"# Title\n\n{text}\n") == [fault]


@pytest.mark.parametrize(
    "text",
    [
        "[x](../one.md) and [y](<../one.md>)",
        "[x](../one.md#one-thing-first) [y](../one.md#again-1) [z](#title)",
        "[x](https://example.org/a) [y](mailto:a@example.org)",
        "[x](../adr)",
        "`[x](two.md)`",
        "```\n[x](two.md) `qinglong_edge/domain/two.py`\n```",
        "`qinglong_edge/domain/dispatch.py` `qinglong_edge/domain/dispatch.py:claim`",
        "`qinglong_edge/domain/dispatch.py:Fields.take` `qinglong_edge/domain/dispatch.py:LIMIT`",
        "`qinglong_edge/domain/dispatch.py:claim()`",
    ],
)
def test_what_exists_is_not_a_fault(tree: Path, text: str) -> None:
    assert faults(tree, f"# Title\n\n{text}\n") == []


def run(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "check_docs.py"), "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_tool_prints_one_line_a_fault_and_fails(tree: Path) -> None:
    (tree / "README.md").write_text("# T\n[a](b.md)\n\n[c](d.md)\n")
    (tree / "CONTRIBUTING.md").write_text("`qinglong_edge/x.py`\n")
    done = run(tree)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "CONTRIBUTING.md:1: qinglong_edge/x.py does not exist",
        "README.md:2: link b.md leads nowhere",
        "README.md:4: link d.md leads nowhere",
    ]


def test_the_tool_fails_where_there_is_nothing_to_check(tmp_path: Path) -> None:
    assert run(tmp_path).returncode == 1


def test_our_own_papers_point_at_things_that_exist() -> None:
    done = run(ROOT)
    assert done.returncode == 0, done.stdout


def test_a_path_of_the_repository_that_is_gone_is_seen(tmp_path: Path) -> None:
    """Folders count as well as files, outside the package too."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "README.md").write_text("see `tests/crash` and `tests`\n")
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stdout == "README.md:1: tests/crash does not exist\n"
