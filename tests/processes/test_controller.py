"""Stopping by handle: the right process, or none at all."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from qinglong_edge.executor.controller import Controller, Stopped, StopVerdict, StopWaits
from qinglong_edge.executor.process_identity import ProcessIdentity, ProcessTable, RunHandle
from tests.support.children import CLOCKS, gone
from tests.support.spawning import Owner, lives, members, until

TERM, KILL, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT
TABLE = ProcessTable(CLOCKS)
WAITS = StopWaits(supervisor_ms=5_000, grace_ms=200, proof_ms=2_000)
CONTROLLER = Controller(TABLE, CLOCKS, waits=WAITS)
IGNORING = "trap '' TERM; echo up; while :; do sleep 60; done"


def stop(handle: RunHandle, controller: Controller = CONTROLLER) -> Stopped:
    return controller.stop(handle.text(), handle.supervisor.pid)


@pytest.fixture(params=["pidfd", "no group by pidfd", "no pidfd"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Try what old kernels leave."""
    send = signal.pidfd_send_signal

    def absent(_pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    def flagless(fd: int, number: int, info: None = None, flags: int = 0) -> None:
        if flags:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        send(fd, number, info, flags)

    if request.param == "no pidfd":
        monkeypatch.setattr(os, "pidfd_open", absent)
    elif request.param == "no group by pidfd":
        monkeypatch.setattr(signal, "pidfd_send_signal", flagless)
    return str(request.param)


@pytest.fixture
def bystander() -> Iterator[ProcessIdentity]:
    """Hold a process that must never get a signal: it would die of any."""
    with subprocess.Popen(["sleep", "60"], process_group=0) as child:
        identity = TABLE.capture(child.pid)
        assert identity is not None
        yield identity
        assert child.poll() is None
        child.kill()


def orphaned(owner: Owner, script: str, lines: int = 1) -> RunHandle:
    """Start a task, and kill its supervisor when that many lines were said."""
    handle = owner.shell(script)
    until(lambda: owner.log().read_bytes().count(b"\n") == lines)
    os.kill(handle.supervisor.pid, KILL)
    gone(handle.supervisor.pid)
    assert lives(handle.task.pid)
    return handle


# A supervisor that lives.


@pytest.mark.usefixtures("way")
def test_a_run_is_stopped_by_its_supervisor(owner: Owner) -> None:
    handle = owner.shell("trap 'echo bye; exit 23' TERM; echo up; while :; do sleep 0.02; done")
    until(owner.log().read_bytes)
    assert stop(handle) == Stopped(StopVerdict.TERMINATION_REQUESTED, (TERM,), True)
    assert owner.ending().exit_code == 23
    assert members(handle.task.pgid) == []
    assert stop(handle) == Stopped(StopVerdict.ALREADY_EXITED, (), True)


def test_a_task_that_ignores_term_is_killed_by_its_supervisor(owner: Owner) -> None:
    handle = owner.shell(IGNORING, grace_ms=100)
    until(owner.log().read_bytes)
    assert stop(handle) == Stopped(StopVerdict.TERMINATION_REQUESTED, (TERM,), True)
    assert owner.ending().signal == KILL.value


def test_a_stopped_supervisor_is_woken(owner: Owner) -> None:
    handle = owner.shell("exec sleep 60")
    os.kill(handle.supervisor.pid, signal.SIGSTOP)
    assert stop(handle).verdict is StopVerdict.TERMINATION_REQUESTED
    assert owner.ending().signal == TERM.value


def test_a_run_that_takes_longer_is_tried_again(owner: Owner) -> None:
    handle = owner.shell(IGNORING)
    until(owner.log().read_bytes)
    hasty = Controller(TABLE, CLOCKS, waits=StopWaits(50, 50, 50))
    assert stop(handle, hasty) == Stopped(StopVerdict.TIMED_OUT, (TERM,), False)
    assert lives(handle.task.pid)
    for pid in members(handle.task.pgid):
        os.kill(pid, KILL)
    assert stop(handle).verdict is StopVerdict.TERMINATION_REQUESTED or not lives(handle.task.pid)
    assert owner.ending().signal == KILL.value


# A supervisor that is dead.


@pytest.mark.usefixtures("way")
def test_an_orphaned_group_is_found_and_ended_by_term(owner: Owner) -> None:
    said = owner.directory / "said"
    handle = orphaned(owner, f"trap 'echo bye > {said}; exit' TERM; sleep 60 & echo up; wait")
    found = stop(handle)
    assert (found.verdict, found.group_empty) == (StopVerdict.TERMINATION_REQUESTED, True)
    assert found.signals[0] is TERM
    assert said.read_text() == "bye\n"
    assert members(handle.task.pgid) == []


@pytest.mark.usefixtures("way")
def test_an_orphaned_group_that_ignores_term_is_killed(owner: Owner) -> None:
    handle = orphaned(owner, f"({IGNORING}) & {IGNORING}", 2)
    found = stop(handle)
    assert (found.verdict, found.group_empty) == (StopVerdict.TERMINATION_REQUESTED, True)
    assert found.signals[:2] == (TERM, KILL)
    assert members(handle.task.pgid) == []


def test_members_are_reached_after_their_leader_where_the_kernel_can(owner: Owner) -> None:
    handle = orphaned(owner, f"({IGNORING}) & trap 'exit 0' TERM; echo up; wait; wait", 2)
    found = stop(handle)
    assert found.verdict is StopVerdict.TERMINATION_REQUESTED
    assert found.group_empty == (members(handle.task.pgid) == [])
    for pid in members(handle.task.pgid):
        os.kill(pid, KILL)
        gone(pid)


def test_a_group_whose_leader_is_gone_is_left_alone(owner: Owner) -> None:
    handle = orphaned(owner, "(trap '' TERM HUP; sleep 60) & echo up; exec sleep 60")
    os.kill(handle.task.pid, KILL)
    gone(handle.task.pid)
    until(lambda: TABLE.capture(handle.task.pid) is None, "the end of the zombie")
    left = members(handle.task.pgid)
    assert left
    assert stop(handle) == Stopped(StopVerdict.ALREADY_EXITED, (), False)
    assert members(handle.task.pgid) == left
    for pid in left:
        os.kill(pid, KILL)
        gone(pid)


def test_a_zombie_leader_still_names_its_group() -> None:
    script = "(trap '' TERM; echo up; sleep 60) & exit 5"
    with subprocess.Popen(
        ["/bin/sh", "-c", script], process_group=0, stdout=subprocess.PIPE
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"up\n"
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        task = TABLE.capture(leader.pid)
        assert task is not None
        dead = ProcessIdentity(task.boot_id, 2**22 + 1, 2**22 + 1, 1)
        found = stop(RunHandle(dead, task))
        assert (found.verdict, found.group_empty) == (StopVerdict.TERMINATION_REQUESTED, True)
        assert KILL in found.signals
        assert members(leader.pid) == []


# Who is never signalled.


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "other"}])
def test_a_number_of_somebody_else_is_never_signalled(
    bystander: ProcessIdentity, change: dict[str, Any]
) -> None:
    stranger = bystander._replace(**change)
    found = stop(RunHandle(stranger, stranger))
    assert (found.verdict, found.signals) == (StopVerdict.IDENTITY_MISMATCH, ())


def test_a_group_of_somebody_else_is_never_signalled(bystander: ProcessIdentity) -> None:
    dead = bystander._replace(pid=2**22 + 1, pgid=2**22 + 1)
    crooked = dead._replace(pgid=bystander.pgid)
    for handle in (RunHandle(dead, crooked), RunHandle(crooked, dead)):
        assert stop(handle) == Stopped(StopVerdict.IDENTITY_MISMATCH)
    member = bystander._replace(pgid=os.getpgrp())
    assert stop(RunHandle(dead, member)).verdict is StopVerdict.IDENTITY_MISMATCH


def test_a_number_that_was_taken_over_during_the_grace_is_not_killed(
    bystander: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only the number can be signalled, the last look decides."""
    monkeypatch.setattr(os, "pidfd_open", lambda _pid: (_ for _ in ()).throw(OSError()))
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append((pid, number)))
    looks = [bystander.start_ticks] * 3

    class Recycling(ProcessTable):
        def match(self, identity: ProcessIdentity) -> object:  # type: ignore[override]
            if identity.pid == bystander.pid and not (looks and looks.pop()):
                return super().match(identity._replace(start_ticks=1))
            return super().match(identity)

    dead = bystander._replace(pid=2**22 + 1, pgid=2**22 + 1)
    found = stop(
        RunHandle(dead, bystander),
        Controller(Recycling(CLOCKS), CLOCKS, waits=StopWaits(50, 50, 50)),
    )
    assert sent == [(bystander.pid, TERM), (bystander.pid, CONT)]
    assert found.verdict is StopVerdict.TERMINATION_REQUESTED
    assert not found.group_empty


@pytest.mark.parametrize("text", ["", "p1/x", "ql3lp1.e30", "x" * 513])
def test_a_handle_that_is_none_is_invalid(text: str) -> None:
    assert CONTROLLER.stop(text, 1) == Stopped(StopVerdict.INVALID)


def test_another_number_than_the_stored_one_is_a_mismatch(bystander: ProcessIdentity) -> None:
    handle = RunHandle(bystander, bystander)
    assert CONTROLLER.stop(handle.text(), 1) == Stopped(StopVerdict.PID_MISMATCH)


def test_without_a_process_table_nothing_is_signalled(bystander: ProcessIdentity) -> None:
    blind = Controller(ProcessTable(CLOCKS, proc="/nonexistent"), CLOCKS, waits=WAITS)
    found = stop(RunHandle(bystander, bystander), blind)
    assert (found.verdict, found.signals) == (StopVerdict.UNSUPPORTED, ())


def test_a_signal_that_the_kernel_refuses_is_an_error_of_its_own(
    bystander: ProcessIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    found = stop(RunHandle(bystander, bystander))
    assert (found.verdict, found.signals) == (StopVerdict.DISPATCH_ERROR, ())


def test_no_descriptor_stays_open(bystander: ProcessIdentity) -> None:
    before = os.listdir("/proc/self/fd")
    stop(RunHandle(bystander._replace(start_ticks=1), bystander._replace(start_ticks=1)))
    assert os.listdir("/proc/self/fd") == before
