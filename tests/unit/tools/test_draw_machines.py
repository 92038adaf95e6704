import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.machines import (
    APPROVAL,
    CONTROL,
    EXECUTION,
    ApprovalState,
    ControlStatus,
    ExecutionStatus,
    Machine,
)
from tools import draw_machines

SCRIPT = Path(draw_machines.__file__)


def chapter(name: str) -> str:
    text = draw_machines.draw()
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("name", "first", "final"),
    [
        (
            "Approval",
            "[*] --> pending: propose",
            "Terminal: `rejected`, `consumed`, `cancelled`, `expired`.",
        ),
        ("Execution", "[*] --> pending: consume", "Terminal: `succeeded`, `failed`, `blocked`."),
        ("Control", "[*] --> armed: start", "Terminal: `resolved`."),
    ],
)
def test_a_chapter_draws_birth_and_ends(name: str, first: str, final: str) -> None:
    text = chapter(name)
    assert first in text
    assert final in text
    drawing = text.split("```mermaid\n")[1].split("```")[0]
    assert drawing.startswith("stateDiagram-v2\n")
    ends = {line.split()[0] for line in drawing.splitlines() if line.endswith("--> [*]")}
    assert ends == set(final.removeprefix("Terminal: ").rstrip(".").replace("`", "").split(", "))


@pytest.mark.parametrize(
    ("name", "machine"), [("Approval", APPROVAL), ("Execution", EXECUTION), ("Control", CONTROL)]
)
def test_every_row_stands_in_the_table_and_in_the_drawing(
    name: str, machine: Machine[Any, Any]
) -> None:
    text = chapter(name)
    count = 0
    for (state, event), targets in machine.rows.items():
        for target in targets:
            count += 1
            assert f"| `{state.value}` | {event.value} | `{target.value}` |" in text
            arrows = [
                line
                for line in text.splitlines()
                if f"    {state.value} --> {target.value}:" in line
            ]
            assert len(arrows) == 1
            assert event.value in arrows[0].partition(": ")[2].split(", ")
    assert text.count("\n| `") == count


@pytest.mark.parametrize("states", [ApprovalState, ExecutionStatus, ControlStatus])
def test_every_state_is_drawn(
    states: type[ApprovalState | ExecutionStatus | ControlStatus],
) -> None:
    text = draw_machines.draw()
    assert [state for state in states if f"    {state.value} --> " not in text] == []


@pytest.mark.parametrize("word", ["expired", "due", "recovery_required", "manual_required"])
def test_every_effective_reading_is_explained(word: str) -> None:
    assert f"- `{word}`: " in chapter("Effective readings")


def test_the_stored_paper_is_fresh() -> None:
    assert draw_machines.main(["--check"]) == 0


def test_a_written_paper_is_fresh_and_a_changed_or_missing_one_is_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = tmp_path / "docs" / "paper.md"
    assert draw_machines.main(["--check", "--output", str(paper)]) == 1
    assert not paper.exists()
    assert draw_machines.main(["--output", str(paper)]) == 0
    assert draw_machines.main(["--check", "--output", str(paper)]) == 0
    paper.write_text(paper.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert draw_machines.main(["--check", "--output", str(paper)]) == 1
    assert capsys.readouterr().err == "paper.md is stale: run tools/draw_machines.py\n" * 2


def test_the_script_runs_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
