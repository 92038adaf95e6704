"""Run real children in tests, and prove that none is left."""

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.executor.process import Command, End, StopTimes, run

CLOCKS = SystemClocks()
PATIENCE_S = 10
QUICK = StopTimes(grace_ms=100, proof_ms=2_000, drain_ms=200)
PIDFD_OPEN = os.pidfd_open


class Output:
    """Keep what a child wrote; `on_write` sees every piece."""

    def __init__(self, on_write: Callable[[bytes], None] | None = None) -> None:
        self.data = bytearray()
        self.count = 0
        self._on_write = on_write

    def write(self, data: bytes, /) -> None:
        self.count += len(data)
        if self.count <= 1_000_000:
            self.data += data
        if self._on_write is not None:
            self._on_write(data)


def marked(mark: str) -> list[int]:
    """Return the living processes that were started with a mark in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment:
            found.append(int(name))
    return found


@contextmanager
def nothing_left(mark: str) -> Iterator[None]:
    """Prove that no process, no zombie and no descriptor was left behind."""
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert marked(mark) == []


def plain(*argv: str, cwd: str = "/", timeout_ms: int = 10_000) -> tuple[End, bytes]:
    output = Output()
    command = Command(argv[0], argv, cwd, {})
    ending = run(command, output, timeout_ms=timeout_ms, clocks=CLOCKS, times=QUICK)
    return ending, bytes(output.data)


def gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        fd = PIDFD_OPEN(pid)
    except ProcessLookupError:
        return
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    ended = poller.poll(PATIENCE_S * 1_000)
    os.close(fd)
    assert ended
