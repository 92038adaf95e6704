"""A command line runs once, as approved, and only an end that says something is an answer."""

import os
import signal
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.actions.shell_exec import (
    NoAnswerError,
    ShellExec,
    answer_of,
)
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import Plan, PlanFile, action_digest
from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.command_line import ENV_ITEMS_MAX
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.executor import process
from qinglong_edge.executor.logs import ActionLogs, read_log
from qinglong_edge.ports.handlers import (
    ActionHandler,
    HandlerAnswer,
    HandlerContext,
    Inspection,
    Readiness,
)
from tests.support import builders
from tests.support.children import CLOCKS, QUICK, nothing_left

SH = "/bin/sh"
MARK = "TEST_MARK"


@pytest.fixture(autouse=True)
def mark() -> Iterator[str]:
    mark = uuid.uuid4().hex
    with nothing_left(mark):
        yield mark


@pytest.fixture
def logs_dir(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def handler(logs_dir: Path) -> ActionHandler:
    return ShellExec(ActionLogs(str(logs_dir)), CLOCKS, times=QUICK)


def plan(*argv: Any, files: tuple[PlanFile, ...] = (), **params: Any) -> Plan:
    return Plan("shell.exec", builders.PROJECT, {"argv": list(argv), **params}, files)


def context(what: Plan) -> HandlerContext:
    return HandlerContext(
        builders.dispatch(),
        what,
        builders.execution(ExecutionStatus.EXECUTING),
        builders.fence(2),
        "dsp-1",
        lambda: False,
    )


def covered(path: Path, text: str = "#!/bin/sh\necho covered\n", mode: int = 0o755) -> PlanFile:
    path.write_text(text)
    path.chmod(mode)
    return PlanFile(str(path), sha256_hex(text.encode()))


def failed(code: str) -> HandlerAnswer:
    return HandlerAnswer(Outcome.FAILED, code)


# check.


@pytest.mark.parametrize(
    "params",
    [
        {"argv": ["true"]},
        {"argv": ["sh", "-c", "", "new\nline", "青龙", "\x7f"]},
        {"argv": ["x"] * limits.ARGV_ITEMS_MAX},
        {"argv": ["x"], "cwd": "/tmp", "env": {}, "timeout_ms": 1},
        {"argv": ["x"], "env": {"_a1": "", "B": "new\nline"}},
        {"argv": ["x"], "env": {f"N{at}": "" for at in range(ENV_ITEMS_MAX)}},
        {"argv": ["x"], "timeout_ms": limits.SHELL_TIMEOUT_MS_MAX},
    ],
)
def test_a_well_formed_plan_passes(handler: ActionHandler, params: dict[str, Any]) -> None:
    handler.check(Plan("shell.exec", builders.PROJECT, params, ()))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"argv": []},
        {"argv": None},
        {"argv": "true"},
        {"argv": {"0": "x"}},
        {"argv": [""]},
        {"argv": ["x", 1]},
        {"argv": ["x", None]},
        {"argv": ["x", ["y"]]},
        {"argv": ["x", "a\0b"]},
        {"argv": ["x", "\ud800"]},
        {"argv": ["x"] * (limits.ARGV_ITEMS_MAX + 1)},
        {"argv": ["x"], "cwd": ""},
        {"argv": ["x"], "cwd": "tmp"},
        {"argv": ["x"], "cwd": None},
        {"argv": ["x"], "cwd": "/a\0b"},
        {"argv": ["x"], "env": []},
        {"argv": ["x"], "env": None},
        {"argv": ["x"], "env": {"": "x"}},
        {"argv": ["x"], "env": {"1A": "x"}},
        {"argv": ["x"], "env": {"A=B": "x"}},
        {"argv": ["x"], "env": {"A\n": "x"}},
        {"argv": ["x"], "env": {"Ä": "x"}},
        {"argv": ["x"], "env": {"A": 1}},
        {"argv": ["x"], "env": {"A": "\0"}},
        {"argv": ["x"], "env": {"QINGLONG_EDGE_DISPATCH_ID": "x"}},
        {"argv": ["x"], "env": {"QINGLONG_EDGE_": "x"}},
        {"argv": ["x"], "env": {f"N{at}": "" for at in range(ENV_ITEMS_MAX + 1)}},
        {"argv": ["x"], "timeout_ms": 0},
        {"argv": ["x"], "timeout_ms": True},
        {"argv": ["x"], "timeout_ms": "1"},
        {"argv": ["x"], "timeout_ms": limits.SHELL_TIMEOUT_MS_MAX + 1},
        {"argv": ["x"], "shell": True},
    ],
)
def test_any_other_shape_is_a_usage_error(handler: ActionHandler, params: dict[str, Any]) -> None:
    bad = Plan("shell.exec", builders.PROJECT, params, ())
    with pytest.raises(UsageError):
        handler.check(bad)
    assert handler.inspect(builders.dispatch(), bad) == Inspection(
        Readiness.BLOCKED, None, "plan_invalid"
    )


@pytest.mark.adr("0007", "5")
def test_the_handlers_deadline_comes_after_the_plans_own(handler: ActionHandler) -> None:
    assert handler.deadline_ms(plan("x", timeout_ms=5)) == 5 + limits.SHELL_STOP_MS
    assert handler.deadline_ms(plan("x")) == limits.SHELL_TIMEOUT_MS_DEFAULT + limits.SHELL_STOP_MS
    longest = handler.deadline_ms(plan("x", timeout_ms=limits.SHELL_TIMEOUT_MS_MAX))
    assert longest <= limits.HANDLER_DEADLINE_MS_MAX


# inspect.


def test_a_plan_whose_parts_are_there_is_ready(handler: ActionHandler, tmp_path: Path) -> None:
    what = plan("true", files=(covered(tmp_path / "tool"),))
    assert handler.inspect(builders.dispatch(), what) == Inspection(
        Readiness.READY, action_digest(what), None
    )


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"argv": ["no-such-program"]}, "program_missing"),
        ({"argv": ["/no/such/program"]}, "program_missing"),
        ({"argv": ["/tmp"]}, "program_missing"),
        ({"argv": ["true"], "cwd": "/no/such/directory"}, "cwd_missing"),
        ({"argv": ["true"], "cwd": "/dev/null"}, "cwd_missing"),
    ],
)
def test_what_may_still_come_is_waited_for(
    handler: ActionHandler, params: dict[str, Any], code: str
) -> None:
    what = Plan("shell.exec", builders.PROJECT, params, ())
    assert handler.inspect(builders.dispatch(), what) == Inspection(Readiness.RETRY, None, code)


def damage(path: Path, how: str) -> str:
    """Spoil a covered file; return the code that says so."""
    if how == "changed":
        path.write_text("something else")
    elif how == "missing":
        path.unlink()
        return "file_missing"
    else:
        other = path.rename(path.with_name("other"))
        if how == "symlink":
            path.symlink_to(other)
        elif how == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()
    return "file_digest_mismatch"


DAMAGES = ["changed", "missing", "symlink", "fifo", "directory"]


@pytest.mark.adr("0007", "3")
@pytest.mark.parametrize("how", DAMAGES)
def test_a_file_that_is_not_the_approved_one_keeps_the_plan_from_starting(
    handler: ActionHandler, tmp_path: Path, how: str
) -> None:
    what = plan("true", files=(covered(tmp_path / "a"), covered(tmp_path / "b")))
    code = damage(tmp_path / "b", how)
    readiness = Readiness.RETRY if code == "file_missing" else Readiness.BLOCKED
    assert handler.inspect(builders.dispatch(), what) == Inspection(readiness, None, code)


# execute.


@pytest.mark.adr("0007", "3")
@pytest.mark.parametrize("how", DAMAGES)
def test_drift_behind_the_barrier_fails_and_nothing_runs(
    handler: ActionHandler, tmp_path: Path, how: str
) -> None:
    file = covered(tmp_path / "a")
    what = plan(SH, "-c", f"echo ran > {tmp_path}/ran", files=(file,))
    code = damage(tmp_path / "a", how)
    assert handler.execute(context(what)) == failed(code)
    assert not (tmp_path / "ran").exists()


@pytest.mark.adr("0007", "1")
def test_exit_zero_is_success_and_the_output_is_in_the_log(
    handler: ActionHandler, logs_dir: Path
) -> None:
    answer = handler.execute(context(plan("sh", "-c", "echo out; echo err >&2")))
    assert answer == HandlerAnswer(Outcome.SUCCEEDED, "exit_0")
    found = read_log(str(logs_dir), "dsp-1.log", most=100)
    assert found is not None
    assert found.data == b"out\nerr\n"


@pytest.mark.adr("0007", "1")
@pytest.mark.parametrize("code", [1, 126, 255])
def test_any_other_exit_code_is_a_failure(handler: ActionHandler, code: int) -> None:
    assert handler.execute(context(plan("sh", "-c", f"exit {code}"))) == failed(f"exit_{code}")


def test_the_environment_of_the_child_is_exact(handler: ActionHandler, logs_dir: Path) -> None:
    what = plan("env", "-0", env={"HOME": "/tmp", "EXTRA": "a\nb"}, cwd="/tmp")
    assert handler.execute(context(what)).outcome is Outcome.SUCCEEDED
    data = (logs_dir / "dsp-1.log").read_bytes()
    assert set(data.split(b"\0")) == {
        b"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        b"HOME=/tmp",
        b"LANG=C.UTF-8",
        b"EXTRA=a\nb",
        b"QINGLONG_EDGE_DISPATCH_ID=dsp-1",
        b"",
    }


def test_a_plans_own_path_does_not_decide_what_runs(
    handler: ActionHandler, logs_dir: Path, tmp_path: Path
) -> None:
    covered(tmp_path / "env", "#!/bin/sh\necho wrong\n")
    what = plan("env", env={"PATH": str(tmp_path)}, cwd=str(tmp_path))
    assert handler.execute(context(what)).outcome is Outcome.SUCCEEDED
    assert f"PATH={tmp_path}\n" in (logs_dir / "dsp-1.log").read_text()


@pytest.mark.adr("0007", "1")
@pytest.mark.adr("0007", "4")
@pytest.mark.adr("0007", "5")
def test_a_command_past_its_deadline_failed_when_its_group_is_empty(
    handler: ActionHandler, mark: str
) -> None:
    script = "(trap '' TERM; sleep 60) & exec sleep 60"
    what = plan("sh", "-c", script, timeout_ms=100, env={MARK: mark})
    assert handler.execute(context(what)) == failed("deadline_exceeded")


def test_files_that_take_longer_than_the_deadline_start_nothing(
    handler: ActionHandler, tmp_path: Path
) -> None:
    """A hole of 64 GiB is read for longer than a millisecond."""
    with (tmp_path / "hole").open("wb") as hole:
        hole.truncate(2**36)
    file = PlanFile(str(tmp_path / "hole"), "0" * 64)
    what = plan(SH, "-c", f"echo ran > {tmp_path}/ran", files=(file,), timeout_ms=1)
    assert handler.execute(context(what)) == failed("deadline_exceeded")
    assert not (tmp_path / "ran").exists()


@pytest.mark.adr("0007", "1")
def test_a_command_that_a_signal_ended_gave_no_answer(handler: ActionHandler) -> None:
    with pytest.raises(NoAnswerError) as caught:
        handler.execute(context(plan("sh", "-c", "kill -9 $$")))
    assert caught.value.ending == process.Signalled(signal.SIGKILL.value)


@pytest.mark.adr("0007", "1")
@pytest.mark.parametrize(
    "ending", [process.DeadlineExceeded(False), process.Signalled(0), process.Lost(None)]
)
def test_no_other_end_is_an_answer(ending: process.End) -> None:
    with pytest.raises(NoAnswerError):
        answer_of(ending)


@pytest.mark.adr("0007", "1")
@pytest.mark.parametrize(
    ("argv", "cwd", "reason"),
    [
        ("no-such-program", "/", "not_found"),
        ("/no/such/program", "/", "not_found"),
        ("/etc/passwd", "/", "not_executable"),
        ("true", "/no/such/directory", "cwd_missing"),
    ],
)
def test_a_program_that_could_not_start_failed(
    handler: ActionHandler, argv: str, cwd: str, reason: str
) -> None:
    assert handler.execute(context(plan(argv, cwd=cwd))) == failed(f"not_started_{reason}")


@pytest.mark.adr("0007", "2")
def test_a_log_that_cannot_be_written_changes_no_outcome(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    logs = ActionLogs(str(tmp_path / "logs"))
    answer = ShellExec(logs, CLOCKS).execute(context(plan("sh", "-c", "echo lost")))
    assert answer == HandlerAnswer(Outcome.SUCCEEDED, "exit_0")
    assert logs.faults().refused == 1


def test_result_codes_have_the_shape_that_the_store_takes(handler: ActionHandler) -> None:
    assert handler.action_type == "shell.exec"
    for code in ("exit_255", "deadline_exceeded", "not_started_sigchld_ignored"):
        assert len(code) <= limits.ID_CHARS_MAX


@pytest.mark.adr("0007", "2")
def test_output_goes_nowhere_else(
    handler: ActionHandler, logs_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    handler.execute(context(plan("sh", "-c", "echo secret; echo secret >&2")))
    assert capfd.readouterr() == ("", "")
    assert stat.S_IMODE((logs_dir / "dsp-1.log").stat().st_mode) == 0o600
