"""Stop a run that is known by its handle only, and never signal a process that is not proven.

The supervisor does the stopping: it is asked with TERM, through a descriptor that was opened before
its identity was verified, so the signal cannot reach a successor of its number. Only where it is
dead is the task's group signalled from here, and only while its leader is there and verified (a
zombie counts: it holds the number). The kernel is given the leader's descriptor for that; one that
cannot do it (before 6.9) gets the number, at once after another look. Without pidfds (before 5.3)
the supervisor is signalled by number in the same way.
"""

import enum
import errno
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.executor.process_group import group_empty
from qinglong_edge.executor.process_identity import (
    ProcessIdentity,
    ProcessStat,
    ProcessTable,
    Verdict,
    open_pidfd,
    parse_handle,
)
from qinglong_edge.ports.ambient import Clocks

LOOK_MS = 50
_SIGNAL_GROUP = 1 << 2  # PIDFD_SIGNAL_PROCESS_GROUP


class StopVerdict(enum.Enum):
    """Say what stopping came to."""

    TERMINATION_REQUESTED = "termination_requested"  # signalled, and the task is gone
    ALREADY_EXITED = "already_exited"  # nothing was signalled, or nobody was there any more
    TIMED_OUT = "timed_out"  # signalled, and still there: to be tried again
    IDENTITY_MISMATCH = "identity_mismatch"
    PID_MISMATCH = "pid_mismatch"
    INVALID = "invalid"
    UNSUPPORTED = "unsupported"  # nothing can be proven here
    DISPATCH_ERROR = "dispatch_error"  # the kernel refused a signal


class Stopped(NamedTuple):
    """Hold the verdict, the TERM and KILL sent from here, and whether the group is proven empty."""

    verdict: StopVerdict
    signals: tuple[signal.Signals, ...] = ()
    group_empty: bool = False


class StopWaits(NamedTuple):
    """Bound the stop by a supervisor; without one, TERM to KILL and KILL to giving up."""

    supervisor_ms: int = 10_000
    grace_ms: int = 5_000
    proof_ms: int = 3_000


STOP_WAITS = StopWaits()


class Controller:
    """Stop runs; takes the sum of the waits at most."""

    def __init__(
        self, table: ProcessTable, clocks: Clocks, *, waits: StopWaits = STOP_WAITS
    ) -> None:
        """Take where processes are found, and the clocks that measure the waits."""
        self._table = table
        self._clocks = clocks
        self._waits = waits

    def stop(self, handle: str, pid: int) -> Stopped:
        """Stop the run of a handle; `pid` is its supervisor's number as it was stored apart."""
        found = parse_handle(handle)
        if found is None:
            return Stopped(StopVerdict.INVALID)
        if found.supervisor.pid != pid:
            return Stopped(StopVerdict.PID_MISMATCH)
        if any(each.pgid != each.pid for each in found):
            return Stopped(StopVerdict.IDENTITY_MISMATCH)
        with (
            _Held(self._table, found.supervisor) as supervisor,
            _Held(self._table, found.task) as task,
        ):
            try:
                verdict = self._stop(supervisor, task)
            except UnavailableError:
                verdict = StopVerdict.UNSUPPORTED
            except OSError:
                verdict = StopVerdict.DISPATCH_ERROR
            return Stopped(verdict, (*supervisor.sent, *task.sent), _empty(found.task.pgid))

    def _stop(self, supervisor: "_Held", task: "_Held") -> StopVerdict:
        verdict = StopVerdict.ALREADY_EXITED
        if supervisor.running():
            supervisor.send(signal.SIGTERM)
            supervisor.send(signal.SIGCONT)
            if not self._until(lambda: not supervisor.running(), self._waits.supervisor_ms):
                return StopVerdict.TIMED_OUT
            verdict = StopVerdict.TERMINATION_REQUESTED
        found = task.look()
        if isinstance(found, ProcessStat):
            return self._stop_group(task) if not (found.dead and task.alone()) else verdict
        if verdict is StopVerdict.ALREADY_EXITED and found is Verdict.IDENTITY_MISMATCH:
            return StopVerdict.IDENTITY_MISMATCH
        return verdict

    def _stop_group(self, task: "_Held") -> StopVerdict:
        """Stop what a dead supervisor left.

        Only a look after KILL is proof: before it a member may fork while the table is read.
        """
        task.send_group(signal.SIGTERM)
        task.send_group(signal.SIGCONT)
        self._until(task.alone, self._waits.grace_ms)
        self._until(task.killed, self._waits.proof_ms)
        return StopVerdict.TIMED_OUT if task.running() else StopVerdict.TERMINATION_REQUESTED

    def _until(self, done: Callable[[], bool], most_ms: int) -> bool:
        until_ms = self._clocks.monotonic_ms() + most_ms
        while not done():
            if self._clocks.monotonic_ms() >= until_ms:
                return False
            select.poll().poll(LOOK_MS)
        return True


class _Held:
    """Hold on to a recorded process: first its descriptor, then every look at what it names."""

    def __init__(self, table: ProcessTable, identity: ProcessIdentity) -> None:
        self._table = table
        self._identity = identity
        self._fd = open_pidfd(identity.pid)
        self.sent: list[signal.Signals] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def look(self) -> ProcessStat | Verdict:
        """Return what is left of the process, or why it is not there; raises if it cannot look."""
        found = self._table.match(self._identity)
        if found is Verdict.UNAVAILABLE:
            raise UnavailableError("proc_unavailable", "the process table cannot be read")
        return found

    def running(self) -> bool:
        """Tell whether the process is there and lives."""
        found = self.look()
        return isinstance(found, ProcessStat) and not found.dead

    def alone(self) -> bool:
        """Tell whether no member of its group lives."""
        return _empty(self._identity.pgid)

    def killed(self) -> bool:
        """Send KILL to the group and tell whether no member lives."""
        self.send_group(signal.SIGKILL)
        return self.alone()

    def send(self, number: signal.Signals) -> None:
        """Signal the process, which `running` has verified; one that is gone is none."""
        self._deliver(number, lambda: signal.pidfd_send_signal(self._fd, number), os.kill)

    def send_group(self, number: signal.Signals) -> None:
        """Signal the group of the process, which `look` has verified."""
        self._deliver(
            number,
            lambda: signal.pidfd_send_signal(self._fd, number, None, _SIGNAL_GROUP),
            os.killpg,
        )

    def _deliver(
        self,
        number: signal.Signals,
        by_descriptor: Callable[[], None],
        by_number: Callable[[int, int], None],
    ) -> None:
        with suppress(ProcessLookupError):
            if not (self._fd >= 0 and _understood(by_descriptor)):
                if not isinstance(self.look(), ProcessStat):
                    return
                by_number(self._identity.pid, number)
            if number is not signal.SIGCONT:  # which only lets the stopped heed the other one
                self.sent.append(number)


def _understood(send: Callable[[], None]) -> bool:
    """Send; False where the kernel does not know the way."""
    try:
        send()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return False
    return True


def _empty(pgid: int) -> bool:
    with suppress(OSError):  # not looked is not proven
        return group_empty(pgid)
    return False
