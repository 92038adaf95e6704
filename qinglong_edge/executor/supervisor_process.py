"""Carry one task from its start to its receipt, whatever becomes of the daemon.

The supervisor leads a session of its own and the task a group of its own, so the end of the daemon
and the stop of the task each reach one of them only. It reads the task's output into the log up to
the cap, then counts and discards, so a task never waits for a reader and never dies of SIGPIPE for
its quota. It decides no deadline: TERM (or INT, HUP) asks it to stop the task, and it does: TERM to
the group, grace, KILL, proof.

The leader decides how the task ended: its exit code or its signal, whichever it was, also when it
was stopped. What it leaves in its group has a short time to finish and is then stopped too, because
a run that has ended must not leave anything behind that nobody can name. The leader is reaped only
then: until that moment the number of the group cannot be another's. Not promised: what left the
group (`setsid`) is neither stopped nor waited for.
"""

import errno
import os
import select
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import NamedTuple

from qinglong_edge.domain.errors import InvariantBroken, QinglongError
from qinglong_edge.domain.tick import Reading
from qinglong_edge.executor import process
from qinglong_edge.executor.logs import RunLog
from qinglong_edge.executor.process_identity import ProcessTable, RunHandle
from qinglong_edge.executor.run_order import (
    NO_SPAWN,
    Order,
    Refused,
    RunEnding,
    Spawned,
    encode_report,
)
from qinglong_edge.ports.ambient import Clocks

Publish = Callable[[RunEnding], None]

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_MS = 3_600_000  # where nothing happens the supervisor sleeps


class Patience(NamedTuple):
    """Bound what comes after a task's end."""

    linger_ms: int = 2_000  # for what the leader left in its group
    publish_waits_ms: tuple[int, ...] = (100, 1_000, 5_000, 15_000)  # between the tries


class Site(NamedTuple):
    """Hold what every supervisor here works with.

    `receipt` is entered before the task starts and keeps the room for the receipt; what it gives
    is called at the end, and again where it raises `OSError` or one of our errors.
    """

    logs_dir: str
    clocks: Clocks
    receipt: Callable[[Order], AbstractContextManager[Publish]]
    patience: Patience = Patience()


def supervise(order: Order, site: Site, report: Callable[[bytes], None]) -> None:
    """Run the order in this process, which does nothing else; `report` is called at most once.

    A report `no_spawn` is proof that nothing ran; without a report nobody knows.
    """
    os.setsid()
    table = ProcessTable(site.clocks)
    with ExitStack() as held:
        try:
            wake_fd = _wake_on_stop()
            supervisor = table.capture(os.getpid())
            started_at_ms = site.clocks.read().wall_ms
            publish = held.enter_context(site.receipt(order))
            log = RunLog(site.logs_dir, order.attempt_id, order.log_bytes_max)
        except (OSError, QinglongError) as error:
            report(encode_report(Refused(NO_SPAWN, _reason(error))))
            return
        started = process.start(order.command)
        if isinstance(started, process.NotStarted):
            log.discard()
            report(encode_report(Refused(NO_SPAWN, started.value)))
            return
        child = process.Child(started, sink=log, clocks=site.clocks, wake_fd=wake_fd)
        try:
            task = table.capture(child.pid)  # it is there, be it dead: nobody has reaped it
            if supervisor is None or task is None:
                raise InvariantBroken("a process that is there has no identity")
            report(encode_report(Spawned(RunHandle(supervisor, task))))
            end = _carry(child, site, process.StopTimes(grace_ms=order.grace_ms))
        finally:
            child.release()
        truncated_bytes = log.close()
        ending = _ending(end, site.clocks.read(), started_at_ms, truncated_bytes)
        if ending is not None:
            _publish(publish, ending, site.patience.publish_waits_ms)


def _carry(
    child: process.Child, site: Site, times: process.StopTimes
) -> tuple[process.LeaderEnd, bool]:
    """Follow the task to its end, stop it when asked; return how it ended and the proof."""
    while True:
        ended = child.follow(site.clocks.monotonic_ms() + _LOOK_MS)
        if ended is not None:
            child.linger(site.patience.linger_ms)
        if ended is not None or child.called:
            ending, empty = child.settle(times)
            if ending is not None:
                return ending, empty


def _ending(
    end: tuple[process.LeaderEnd, bool], now: Reading, started_at_ms: int, truncated_bytes: int
) -> RunEnding | None:
    """Return what is published; None where nobody knows how the task ended."""
    leader, empty = end
    if isinstance(leader, process.Lost):
        return None
    exited = isinstance(leader, process.Exited)
    return RunEnding(
        exit_code=leader.value if exited else None,
        signal=None if exited else leader.value,
        started_at_ms=started_at_ms,
        finished_at_ms=max(started_at_ms, now.wall_ms),
        boot_id=now.boot_id,
        truncated_bytes=truncated_bytes,
        group_empty=empty,
        descendants_proven=False,  # `prctl` is out of reach: only ctypes has it
    )


def _publish(publish: Publish, ending: RunEnding, waits_ms: tuple[int, ...]) -> None:
    """Publish, with a bounded number of tries; the exit truth is the same whatever happens."""
    for wait_ms in (0, *waits_ms):
        select.poll().poll(wait_ms)
        with suppress(OSError, QinglongError):
            publish(ending)
            return


def _wake_on_stop() -> int:
    """Return a descriptor that holds a byte for each signal that asks to stop the task."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    return reading


def _reason(error: OSError | QinglongError) -> str:
    if isinstance(error, QinglongError):
        return error.code
    return errno.errorcode.get(error.errno or 0, "os_error").lower()
