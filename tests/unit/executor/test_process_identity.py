"""A recorded process is this process, or it is not: never a guess by its number."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.executor.process_identity import (
    HANDLE_BYTES_MAX,
    ProcessIdentity,
    ProcessStat,
    ProcessTable,
    RunHandle,
    Verdict,
    parse_handle,
    parse_identity,
    parse_stat,
)
from tests.support.children import CLOCKS

TABLE = ProcessTable(CLOCKS)
BOOT = "01234567-89ab-cdef-0123-456789abcdef"
IDENTITY = ProcessIdentity(BOOT, 12, 12, 345)
REST = " 1 0 0 0 0 0 0 0 0 0 0 0 0 0 {threads} 0 {start} 0"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"], process_group=0) as child:
        yield child
        child.kill()


def captured(child: "subprocess.Popen[bytes]") -> ProcessIdentity:
    identity = TABLE.capture(child.pid)
    assert identity is not None
    return identity


# The text.


def test_an_identity_comes_back_as_it_was_written() -> None:
    assert parse_identity(IDENTITY.text()) == IDENTITY
    handle = RunHandle(IDENTITY, IDENTITY._replace(pid=13, pgid=13))
    assert parse_handle(handle.text()) == handle


def test_the_longest_handle_fits() -> None:
    longest = ProcessIdentity("b" * 64, 2**31 - 1, 2**31 - 1, 10**19 - 1)
    handle = RunHandle(longest, longest)
    assert len(handle.text()) <= HANDLE_BYTES_MAX
    assert parse_handle(handle.text()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p1",
        f"p2/{BOOT}/12/12/345",
        f"p1/{BOOT}/12/12",
        f"p1/{BOOT}/12/12/345/6",
        f"p1/{BOOT}/12/12/345\n",
        f" p1/{BOOT}/12/12/345",
        f"p1/{BOOT}/0/12/345",
        f"p1/{BOOT}/12/0/345",
        f"p1/{BOOT}/12/12/0",
        f"p1/{BOOT}/-1/12/345",
        f"p1/{BOOT}/012/12/345",
        f"p1/{BOOT}/+12/12/345",
        f"p1/{BOOT}/1_2/12/345",
        f"p1/{BOOT}/\u0661/12/345",
        f"p1/{BOOT}/{2**31}/12/345",
        f"p1/{BOOT}/12/{2**31}/345",
        f"p1/{BOOT}/12/12/{10**19}",
        "p1//12/12/345",
        f"p1/{'b' * 65}/12/12/345",
        "p1/bo ot/12/12/345",
        "p1/../12/12/345",
    ],
)
def test_anything_else_is_no_identity(text: str) -> None:
    assert parse_identity(text) is None
    assert parse_handle(f"{IDENTITY.text()} {text}") is None
    assert TABLE.inspect(parse_identity(text)) is Verdict.INVALID


def test_a_handle_over_its_bound_is_none() -> None:
    text = f"{IDENTITY.text()} {IDENTITY.text()}"
    assert parse_handle(text) is not None
    assert parse_handle(text.ljust(HANDLE_BYTES_MAX + 1, "0")) is None


# The process table.


@pytest.mark.parametrize("name", ["x", "", "a) (b c", ")", ") S 1 2", "a\nb)"])
def test_a_name_does_not_confuse_the_reader(name: str) -> None:
    line = f"12 ({name}) S 1 77" + REST.format(threads=1, start=345)
    assert parse_stat(line.encode()) == ProcessStat(77, 345, False)


@pytest.mark.parametrize(
    ("state", "threads", "dead"),
    [("Z", 1, True), ("X", 0, True), ("x", 1, True), ("Z", 2, False), ("D", 1, False)],
)
def test_only_zombies_without_threads_are_dead(state: str, threads: int, *, dead: bool) -> None:
    line = f"12 (x) {state} 1 77" + REST.format(threads=threads, start=345)
    assert parse_stat(line.encode()).dead is dead


@pytest.mark.parametrize("line", [b"", b"12 (x", b"12 (x) S 1 2 3", b"12 (x) S 1 y" + b" 1" * 30])
def test_a_line_that_is_none_is_told(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_stat(line)


def test_a_process_with_a_strange_name_is_captured(tmp_path: Path) -> None:
    program = tmp_path / "a) (b c"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"], process_group=0) as child:
        identity = captured(child)
        assert (identity.pid, identity.pgid) == (child.pid, child.pid)
        assert TABLE.inspect(identity) is Verdict.RUNNING
        child.kill()


# Verdicts, in their order.


def test_this_process_is_running() -> None:
    identity = TABLE.capture(os.getpid())
    assert identity is not None
    assert identity.boot_id == CLOCKS.read().boot_id
    assert TABLE.inspect(identity) is Verdict.RUNNING


def test_the_verdicts_of_a_life(child: "subprocess.Popen[bytes]") -> None:
    identity = captured(child)
    assert TABLE.inspect(identity) is Verdict.RUNNING
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert TABLE.inspect(identity) is Verdict.EXITED
    zombie = TABLE.match(identity)
    assert isinstance(zombie, ProcessStat)
    assert zombie.dead
    assert TABLE.inspect(identity._replace(start_ticks=1)) is Verdict.IDENTITY_MISMATCH
    child.wait()
    assert TABLE.inspect(identity) is Verdict.EXITED
    assert TABLE.capture(child.pid) is None


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"pgid": 1}, {"boot_id": "other"}])
def test_one_difference_is_another_process(
    child: "subprocess.Popen[bytes]", change: dict[str, Any]
) -> None:
    identity = captured(child)._replace(**change)
    assert TABLE.inspect(identity) is Verdict.IDENTITY_MISMATCH


def test_another_boot_is_judged_before_anything_is_looked_up() -> None:
    table = ProcessTable(CLOCKS, proc="/nonexistent")
    assert table.inspect(IDENTITY) is Verdict.IDENTITY_MISMATCH


def test_a_table_that_is_missing_proves_nothing_about_a_living_process(
    child: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    identity = captured(child)
    (tmp_path / str(child.pid)).mkdir()
    for proc in ("/nonexistent", tmp_path):
        table = ProcessTable(CLOCKS, proc=str(proc))
        assert table.inspect(identity) is Verdict.UNAVAILABLE
        with pytest.raises(UnavailableError):
            table.capture(child.pid)
    (tmp_path / str(child.pid) / "stat").write_text("nonsense")
    assert ProcessTable(CLOCKS, proc=str(tmp_path)).inspect(identity) is Verdict.UNAVAILABLE


def test_without_a_boot_id_nothing_is_known(tmp_path: Path) -> None:
    clocks = SystemClocks(boot_id_path=str(tmp_path / "absent"))
    assert ProcessTable(clocks).inspect(IDENTITY) is Verdict.UNAVAILABLE


def test_an_identity_names_nothing_of_the_command() -> None:
    secret = "s3cret"
    words = [sys.executable, "-c", "input()", secret]
    with subprocess.Popen(words, env={"S": secret}, stdin=subprocess.PIPE) as child:
        text = captured(child).text()
        child.send_signal(signal.SIGKILL)
    assert secret not in text
    assert len(text) < HANDLE_BYTES_MAX // 2
