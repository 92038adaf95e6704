"""Tell one process from every other, past and future: boot id, number, start and group.

A number alone is soon another process's. With the boot and the start of the process in ticks of the
kernel it names one process for ever, and that is what a run keeps about its processes: no command,
argument, environment, path or token. What cannot be looked at is `unavailable`, never gone.
"""

import enum
import os
import re
from typing import NamedTuple

from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.ports.ambient import Clocks

HANDLE_BYTES_MAX = 512

_STAT_BYTES = 1_024
_STATE, _PGRP, _THREADS, _START = 0, 2, 17, 19  # fields 3, 5, 20 and 22, counted after the name
_DEAD = (b"Z", b"X", b"x")
_NUMBER = "([1-9][0-9]{0,18})"
_IDENTITY = re.compile(rf"p1/([A-Za-z0-9][A-Za-z0-9._:-]{{0,63}})/{_NUMBER}/{_NUMBER}/{_NUMBER}")
_PID_MAX = 2**31 - 1


class Verdict(enum.Enum):
    """Say what became of a recorded process."""

    RUNNING = "running"
    EXITED = "exited"
    IDENTITY_MISMATCH = "identity_mismatch"  # the number is another process's, or of another boot
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"


class ProcessStat(NamedTuple):
    """Hold what the process table says about one process; a dead one is not reaped yet."""

    pgid: int
    start_ticks: int
    dead: bool


class ProcessIdentity(NamedTuple):
    """Name one process of one boot."""

    boot_id: str
    pid: int
    pgid: int
    start_ticks: int

    def text(self) -> str:
        """Return the durable form."""
        return f"p1/{self.boot_id}/{self.pid}/{self.pgid}/{self.start_ticks}"


class RunHandle(NamedTuple):
    """Name the two processes of a run; both lead a group."""

    supervisor: ProcessIdentity
    task: ProcessIdentity

    def text(self) -> str:
        """Return the durable form."""
        return f"{self.supervisor.text()} {self.task.text()}"


def parse_identity(text: str) -> ProcessIdentity | None:
    """Read the durable form; None for anything else."""
    found = _IDENTITY.fullmatch(text)
    if found is None:
        return None
    identity = ProcessIdentity(found[1], int(found[2]), int(found[3]), int(found[4]))
    return identity if max(identity.pid, identity.pgid) <= _PID_MAX else None


def parse_handle(text: str) -> RunHandle | None:
    """Read the durable form of both; None for anything else."""
    if len(text) > HANDLE_BYTES_MAX:
        return None
    first, _, second = text.partition(" ")
    supervisor, task = parse_identity(first), parse_identity(second)
    return None if supervisor is None or task is None else RunHandle(supervisor, task)


def parse_stat(text: bytes) -> ProcessStat:
    """Read `/proc/PID/stat`; the name in it may hold blanks and parentheses.

    A leader that ended while threads of it still run is not dead. Raises `ValueError`.
    """
    fields = text[text.rindex(b")") + 1 :].split()
    if len(fields) <= _START:
        raise ValueError("a line of the process table is too short")
    dead = fields[_STATE] in _DEAD and int(fields[_THREADS]) <= 1
    return ProcessStat(int(fields[_PGRP]), int(fields[_START]), dead)


def read_stat(pid: int | str, *, proc: str = "/proc") -> ProcessStat:
    """Look one process up; raises `OSError` (`FileNotFoundError`, `ProcessLookupError`)."""
    fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parse_stat(os.read(fd, _STAT_BYTES))
    finally:
        os.close(fd)


class ProcessTable:
    """Find processes and judge recorded ones."""

    def __init__(self, clocks: Clocks, *, proc: str = "/proc") -> None:
        """Take who knows the boot id, and where the process table is."""
        self._clocks = clocks
        self._proc = proc

    def capture(self, pid: int) -> ProcessIdentity | None:
        """Return the identity of a process, None where it is gone; raises `UnavailableError`."""
        boot_id = self._clocks.read().boot_id
        found = self._find(pid)
        return found and ProcessIdentity(boot_id, pid, found.pgid, found.start_ticks)

    def match(self, identity: ProcessIdentity) -> ProcessStat | Verdict:
        """Return what is left of a recorded process, be it dead; else why it is not there.

        While it is there, its number and that of its group are nobody else's.
        """
        try:
            if self._clocks.read().boot_id != identity.boot_id:
                return Verdict.IDENTITY_MISMATCH
            found = self._find(identity.pid)
        except UnavailableError:
            return Verdict.UNAVAILABLE
        if found is None:
            return Verdict.EXITED
        if (found.pgid, found.start_ticks) != (identity.pgid, identity.start_ticks):
            return Verdict.IDENTITY_MISMATCH
        return found

    def inspect(self, identity: ProcessIdentity | None) -> Verdict:
        """Judge a recorded process: boot, then presence, then start and group, then state."""
        if identity is None:
            return Verdict.INVALID
        found = self.match(identity)
        if isinstance(found, Verdict):
            return found
        return Verdict.EXITED if found.dead else Verdict.RUNNING

    def _find(self, pid: int) -> ProcessStat | None:
        """Return what the table shows; None is proof, because the kernel was asked as well."""
        try:
            return read_stat(pid, proc=self._proc)
        except (FileNotFoundError, ProcessLookupError):
            if _nobody(pid):
                return None
            cause = "the process table does not show a process that is there"
        except (OSError, ValueError):
            cause = "the process table cannot be read"
        raise UnavailableError("proc_unavailable", cause)


def open_pidfd(pid: int) -> int:
    """Return a descriptor of that very process, readable when it ended, or -1."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # an interpreter or a kernel (before 5.3) without it
        return -1


def _nobody(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
