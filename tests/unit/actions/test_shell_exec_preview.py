"""An approver is shown the whole command, and what others could make of it."""

from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.actions.shell_exec import WARNINGS_MAX, ShellExec, parse_params, warnings
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import Plan, PlanFile, preview_digest
from qinglong_edge.domain.canonical import canonical_bytes, parse_object, sha256_hex
from qinglong_edge.executor.logs import ActionLogs
from qinglong_edge.ports.handlers import ActionHandler
from tests.support import builders
from tests.support.children import CLOCKS


@pytest.fixture
def handler(tmp_path: Path) -> ActionHandler:
    return ShellExec(ActionLogs(str(tmp_path / "logs")), CLOCKS)


def plan(*argv: Any, files: tuple[PlanFile, ...] = (), **params: Any) -> Plan:
    return Plan("shell.exec", builders.PROJECT, {"argv": list(argv), **params}, files)


def covered(path: Path, text: str = "#!/bin/sh\necho covered\n", mode: int = 0o755) -> PlanFile:
    path.write_text(text)
    path.chmod(mode)
    return PlanFile(str(path), sha256_hex(text.encode()))


def test_a_preview_shows_everything_with_its_defaults(handler: ActionHandler) -> None:
    shown = handler.preview(plan("/bin/true", "a", env={"B": "1", "A": "2"}))
    assert shown == {
        "action_type": "shell.exec",
        "argv": ["/bin/true", "a"],
        "cwd": "/",
        "env": {"A": "2", "B": "1"},
        "timeout_ms": limits.SHELL_TIMEOUT_MS_DEFAULT,
        "files": [],
        "warnings": [],
    }
    stored = parse_object(canonical_bytes(shown), "preview")
    assert preview_digest(stored) == preview_digest(shown)


def test_the_same_plan_has_the_same_preview(handler: ActionHandler, tmp_path: Path) -> None:
    file = covered(tmp_path / "tool")
    one = handler.preview(plan(file.path, files=(file,), env={"B": "1", "A": "2"}))
    two = handler.preview(plan(file.path, files=(file,), env={"A": "2", "B": "1"}))
    assert preview_digest(one) == preview_digest(two)
    assert one["files"] == [{"path": file.path, "sha256": file.sha256}]


def codes(*argv: str, **params: Any) -> list[tuple[str, str]]:
    rows = warnings(parse_params(plan(*argv, **params)))
    return [(str(row["code"]), str(row.get("path", ""))) for row in rows]


@pytest.mark.parametrize(
    "argv",
    [
        ("sh", "-c", "x"),
        ("/bin/sh", "-ec", "x"),
        ("bash", "-e", "-c", "x"),
        ("dash", "--posix", "-c", "x"),
        ("busybox", "ash", "-c", "x"),
        ("/usr/bin/env", "sh", "-c", "x"),
    ],
)
def test_a_command_string_is_pointed_out(argv: tuple[str, ...]) -> None:
    assert ("shell_command_string", "") in codes(*argv)


@pytest.mark.parametrize(
    "argv",
    [("sh", "script", "-c"), ("sh",), ("grep", "-c", "x"), ("env", "true"), ("busybox",), ("env",)],
)
def test_other_commands_are_not_taken_for_one(argv: tuple[str, ...]) -> None:
    assert ("shell_command_string", "") not in codes(*argv)


def test_a_program_that_does_not_exist_is_pointed_out(tmp_path: Path) -> None:
    assert codes("no-such-program") == [("program_missing", "no-such-program")]
    assert ("program_missing", str(tmp_path)) in codes(str(tmp_path))
    covered(tmp_path / "tool")
    assert ("program_missing", "./tool") not in codes("./tool", cwd=str(tmp_path))
    assert ("program_missing", "./tool") in codes("./tool")


def test_a_file_that_others_may_write_is_pointed_out(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    link = tmp_path / "link"
    covered(tool, mode=0o757)
    link.symlink_to(tool)
    loose = ("file_writable_by_others", str(tool))
    assert loose in codes(str(tool))
    assert loose in codes("true", str(tool))
    assert loose in codes("true", str(link))
    assert loose in codes("./tool", cwd=str(tmp_path))
    assert codes("true", str(tool), str(link)).count(loose) == 1
    tool.chmod(0o755)
    assert loose not in codes(str(tool))
    tool.chmod(0o775)
    assert loose in codes(str(tool))


def test_a_directory_that_others_may_write_is_pointed_out(tmp_path: Path) -> None:
    inner = tmp_path / "loose" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o777)
    covered(inner / "tool")
    loose = ("directory_writable_by_others", str(tmp_path / "loose"))
    assert loose in codes(str(inner / "tool"))
    assert loose in codes("true", str(inner / "absent"))
    assert loose not in codes("true", str(inner))
    inner.parent.chmod(0o755)
    assert loose not in codes(str(inner / "tool"))


def test_directories_and_devices_are_no_files() -> None:
    assert codes("/bin/ls", "/tmp", "/dev/null", "/") == []


def test_warnings_are_bounded(tmp_path: Path) -> None:
    paths = [tmp_path / f"file-{at}" for at in range(WARNINGS_MAX + 8)]
    for path in paths:
        covered(path, mode=0o666)
    found = codes("true", *map(str, paths))
    assert len(found) == WARNINGS_MAX
    assert found[-1] == ("more_warnings", "")
