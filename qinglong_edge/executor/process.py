"""Run one bounded child process and tell exactly how it ended.

The rule: the leader stays unreaped until its group is settled, so the number of the group cannot
be given to somebody else while signals are still sent to it. The leader decides: when it exits,
that is the ending; members of its group that still run are left alone, and their pipe is closed.
At the deadline the whole group gets TERM (and CONT, for the stopped), after the grace KILL, and
then the proof is looked for that no member lives. What left the group (`setsid`) is outside it.

The child has exactly the given argv, cwd and environment; the null device as input; one pipe as
output and error; no other descriptor; a process group of its own; umask 022, as under cron; no
signal blocked; SIGPIPE, SIGXFSZ and every signal that this program handles at its default (what
this program was started to ignore stays ignored). No SIGCHLD handler is used; where SIGCHLD is
ignored, the kernel would throw the exit status away, so nothing is started.

`Child` is shared with the supervisor of a task, which has no deadline but may be told to stop.
"""

import errno
import os
import select
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.executor.process_group import group_empty
from qinglong_edge.executor.process_identity import open_pidfd
from qinglong_edge.ports.ambient import Clocks

if TYPE_CHECKING:
    import subprocess

Fact = TypeVar("Fact")

CHILD_UMASK = 0o022
READ_BYTES = 65_536
LOOK_MS = 25  # between two looks where the kernel cannot wake us

_REASONS = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG), "not_found"),
    **dict.fromkeys((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE), "resources"),
    errno.E2BIG: "resources",
}


class Command(NamedTuple):
    """Hold what to run; `program` is a path (from `cwd`, if relative) and never searched for."""

    program: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]


class Sink(Protocol):
    """Take the child's output."""

    def write(self, data: bytes, /) -> None:
        """Take the next bytes; never raises."""
        ...


class StopTimes(NamedTuple):
    """Bound the end of a child: TERM to KILL, KILL to giving up, emptying the pipe."""

    grace_ms: int = limits.SHELL_TERM_GRACE_MS
    proof_ms: int = 3_000
    drain_ms: int = 200


STOP_TIMES = StopTimes()

if sum(STOP_TIMES) >= limits.SHELL_STOP_MS:
    raise InvariantBroken("a child must be stopped and proven before its handler's deadline")


class Ending(Generic[Fact]):
    """Say how a child ended; equal only to the same kind with the same value."""

    __slots__ = ("value",)
    __match_args__ = ("value",)

    def __init__(self, value: Fact) -> None:
        """Hold the one fact of this kind."""
        self.value = value

    def __eq__(self, other: object) -> bool:
        """Compare by type first: exit 9 is not signal 9."""
        return type(other) is type(self) and other.value == self.value

    def __hash__(self) -> int:
        """Hash like equality: by type and value."""
        return hash((type(self), self.value))

    def __repr__(self) -> str:
        """Show the ending as it would be built."""
        return f"{type(self).__name__}({self.value!r})"


class Exited(Ending[int]):
    """Say that the leader exited by itself; the value is its exit code, 0..255."""

    __slots__ = ()


class Signalled(Ending[int]):
    """Say that a signal that was not ours ended the leader; the value is its number."""

    __slots__ = ()


class DeadlineExceeded(Ending[bool]):
    """Say that the deadline passed; the value tells whether the group is proven empty."""

    __slots__ = ()


class NotStarted(Ending[str]):
    """Say that the program certainly did not run; the value is the reason.

    It is `not_found`, `not_executable`, `cwd_missing`, `resources` or `sigchld_ignored`.
    """

    __slots__ = ()


class Lost(Ending[None]):
    """Say that somebody else took the exit status: the leader ended, nobody knows how."""

    __slots__ = ()


LeaderEnd = Exited | Signalled | Lost
End = LeaderEnd | DeadlineExceeded | NotStarted
Started: TypeAlias = "tuple[subprocess.Popen[bytes], int]"


def run(
    command: Command,
    sink: Sink,
    *,
    timeout_ms: int,
    clocks: Clocks,
    times: StopTimes = STOP_TIMES,
) -> End:
    """Start the command, pass its output to `sink`, and wait for its end.

    Takes at most `timeout_ms` plus the three stop times. May be called from any thread. Leaves no
    child unreaped, unless one cannot be killed. What it raises (no memory) comes after a KILL.
    """
    deadline_ms = clocks.monotonic_ms() + timeout_ms
    started = start(command)
    if isinstance(started, NotStarted):
        return started
    child = Child(started, sink=sink, clocks=clocks)
    try:
        return child.carry(deadline_ms, times)
    finally:
        child.release()


def start(command: Command) -> "Started | NotStarted":
    """Start the leader; return it with the reading end of its output pipe.

    A `Child` has to be made of them at once: nothing else waits for the leader.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        return NotStarted("sigchld_ignored")
    fds: list[int] = []
    leader = None
    try:
        fds += os.pipe2(os.O_CLOEXEC)
        fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        reading, writing, null = fds
        os.set_blocking(reading, False)
        leader = _fork(command, null, writing)
    except OSError as error:
        return NotStarted(_reason(error, command))
    finally:
        for fd in fds if leader is None else fds[1:]:
            os.close(fd)
    return leader, reading


def prepare() -> None:
    """Load what starting a process needs; whoever looks before a barrier calls this there.

    Nothing may be loaded for the first time behind the barrier: where the interpreter's own files
    cannot be read, or memory is short, that would be an end without an answer.
    """
    import subprocess  # noqa: F401, PLC0415 - a third of a start's cost, and most run nothing


def _fork(command: Command, null: int, writing: int) -> "subprocess.Popen[bytes]":
    import subprocess  # noqa: PLC0415 - see `prepare`

    mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        return subprocess.Popen(  # UTF-8 whatever the locale says: as it was approved
            [argument.encode() for argument in command.argv],
            executable=_path(command),
            cwd=command.cwd.encode(),
            env={name.encode(): value.encode() for name, value in command.env.items()},
            stdin=null,
            stdout=writing,
            stderr=writing,
            umask=CHILD_UMASK,
            process_group=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _path(command: Command) -> bytes:
    """Return the program's path from the root, so that nobody searches for it."""
    return os.path.join(command.cwd, command.program).encode()


def _reason(error: OSError, command: Command) -> str:
    """Name why nothing ran."""
    reason = _REASONS.get(error.errno or 0, "not_executable")
    if reason == "resources":
        return reason
    cwd = command.cwd.encode()
    if not (os.path.isdir(cwd) and os.access(cwd, os.X_OK)):
        return "cwd_missing"
    if reason == "not_found" and os.path.exists(_path(command)):
        return "not_executable"  # a script whose interpreter is missing
    return reason


class Child:
    """Hold an unreaped leader, its pipe, and what wakes us when it ends."""

    def __init__(self, started: Started, *, sink: Sink, clocks: Clocks, wake_fd: int = -1) -> None:
        """Take what was started; bytes in `wake_fd`, where one is given, are a call to stop."""
        self._leader, self._pipe = started
        self.pid = self._leader.pid  # and the number of its group
        self._sink = sink
        self._clocks = clocks
        self._exit_fd = open_pidfd(self.pid)
        self._wake_fd = wake_fd
        self._poller = select.poll()
        for fd in (self._pipe, self._exit_fd, wake_fd):
            if fd >= 0:
                self._poller.register(fd, select.POLLIN)
        self.called = False

    def carry(self, deadline_ms: int, times: StopTimes) -> End:
        """Wait for the leader or the deadline, settle the group, reap."""
        ending = self.follow(deadline_ms)
        if ending is None:
            return DeadlineExceeded(self.settle(times)[1])
        self._drain(times.drain_ms)
        self._reap()
        return ending

    def linger(self, most_ms: int) -> None:
        """Let the others of the group finish after their leader, until a call to stop."""
        until_ms = self._clocks.monotonic_ms() + most_ms
        while not (self.called or self._empty()) and self._clocks.monotonic_ms() < until_ms:
            self._rest(LOOK_MS)

    def settle(self, times: StopTimes) -> tuple[LeaderEnd | None, bool]:
        """Stop the group, take its last output, reap the leader.

        Return how the leader ended (None: it could not be killed, and is still held) and whether
        the group is proven empty.
        """
        self.called = False
        empty = self._stop(times)
        self._drain(times.drain_ms)
        ending = self._ended()
        return ending, self._reap() and empty and not self._hidden()

    def release(self) -> None:
        """Close what is open; a leader that is not reaped yet gets KILL."""
        self._close_pipe()
        if self._leader.returncode is None:
            self._signal(signal.SIGKILL)
            self.follow(self._clocks.monotonic_ms() + STOP_TIMES.drain_ms)
            self._reap()
        if self._exit_fd >= 0:
            os.close(self._exit_fd)

    def follow(self, until_ms: int) -> LeaderEnd | None:
        """Pass output on until the leader ended, the instant came, or a call to stop."""
        while (ending := self._ended()) is None:
            left_ms = until_ms - self._clocks.monotonic_ms()
            if left_ms <= 0 or self.called:
                return None
            self._wait(left_ms if self._exit_fd >= 0 else min(left_ms, LOOK_MS))
        return ending

    def _ended(self) -> LeaderEnd | None:
        """Look how the leader ended, and leave it unreaped."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return Lost(None)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return Exited(found.si_status)
        return Signalled(found.si_status)

    def _wait(self, most_ms: int) -> None:
        """Sleep until there is output, the leader ended, or the time is over."""
        for fd, _ in self._poller.poll(most_ms):
            if fd == self._pipe:
                self._pump()
            elif fd == self._wake_fd:
                self.called = bool(os.read(fd, READ_BYTES))
            else:  # one wake-up is all it gives; a leader that is not reapable yet is polled for
                self._poller.unregister(fd)
                os.close(fd)
                self._exit_fd = -1

    def _pump(self) -> bool:
        """Pass one piece of output on; False where none is there."""
        try:
            data = os.read(self._pipe, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._sink.write(data)
        else:
            self._close_pipe()
        return bool(data)

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            self._poller.unregister(self._pipe)
            os.close(self._pipe)
        self._pipe = -1

    def _drain(self, most_ms: int) -> None:
        """Take what the leader left in the pipe; others may keep filling it, so not for long."""
        until_ms = self._clocks.monotonic_ms() + most_ms
        while self._pipe >= 0 and self._pump() and self._clocks.monotonic_ms() < until_ms:
            pass

    def _stop(self, times: StopTimes) -> bool:
        """Stop the group; return whether every member is proven dead.

        The proof counts only after KILL: a member with KILL pending cannot fork any more, so one
        look at the process table cannot miss a newcomer.
        """
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        until_ms = self._clocks.monotonic_ms() + times.grace_ms
        self.follow(until_ms)
        while not self._empty() and self._clocks.monotonic_ms() < until_ms:
            self._rest(LOOK_MS)
        until_ms = self._clocks.monotonic_ms() + times.proof_ms
        while True:
            self._signal(signal.SIGKILL)
            if self._empty():
                return True
            if self._clocks.monotonic_ms() >= until_ms:
                return False
            self._rest(LOOK_MS)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group, and the leader in case it moved to another one."""
        if isinstance(self._ended(), Lost):
            return  # the number is nobody's, or already somebody else's
        for send in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)

    def _rest(self, span_ms: int) -> None:
        until_ms = self._clocks.monotonic_ms() + span_ms
        while (left_ms := until_ms - self._clocks.monotonic_ms()) > 0:
            self._wait(left_ms)

    def _empty(self) -> bool:
        with suppress(OSError):  # not looked is not proven
            return self._ended() is not None and group_empty(self.pid)
        return False

    def _reap(self) -> bool:
        """Let the leader go; False where it still runs."""
        if self._ended() is None:
            return False
        self._leader.wait()
        return True

    def _hidden(self) -> bool:
        """Tell whether a member of another user lives that this process table does not show."""
        try:
            os.killpg(self.pid, 0)
        except OSError as error:
            return error.errno == errno.EPERM
        return False
