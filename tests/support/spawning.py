"""Own a spawner from outside: start its owner, order tasks, wait for what becomes of them."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from qinglong_edge.executor.process import Command
from qinglong_edge.executor.process_identity import ProcessStat, RunHandle, read_stat
from qinglong_edge.executor.run_order import (
    Order,
    Refused,
    RunEnding,
    Spawned,
    decode_report,
    encode_order,
)
from tests.package.source_tree import ROOT
from tests.support.children import CLOCKS, PATIENCE_S

MARK = "QINGLONG_EDGE_TEST_MARK"
TOKEN = "t0ken" * 8
DRIVER = ("-P", "-B", "-m", "tests.support.spawn_driver")


def until(done: Callable[[], object], what: str = "the condition") -> None:
    """Wait, for a bounded time, until a condition holds."""
    until_ms = CLOCKS.monotonic_ms() + PATIENCE_S * 1_000
    while not done():
        assert CLOCKS.monotonic_ms() < until_ms, f"{what} did not come"
        select.poll().poll(5)


def open_gate(gate: Path) -> None:
    """Let whoever reads from a FIFO go on, once it is there."""

    def there() -> bool:
        try:
            fd = os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        os.write(fd, b"go\n")
        os.close(fd)
        return True

    until(there, "a reader")


def order_of(attempt_id: str, argv: Iterable[str], env: dict[str, str], **changes: int) -> Order:
    words = tuple(argv)
    command = Command(words[0], words, "/", env)
    return Order("run-1", attempt_id, 1, TOKEN, command, changes.pop("most", 65_536), **changes)


class Owner:
    """Hold a running owner of a spawner."""

    def __init__(self, directory: Path, mark: str) -> None:
        self.directory = directory
        self._mark = mark
        self.process = subprocess.Popen(
            [sys.executable, *DRIVER, str(directory)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), MARK: mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.spawner_pid = int(self._line())

    def send(self, *orders: Order) -> None:
        assert self.process.stdin is not None
        for order in orders:
            self.process.stdin.write(encode_order(order).decode() + "\n")
        self.process.stdin.flush()

    def report(self) -> tuple[str, Spawned | Refused]:
        attempt_id, _, report = self._line().partition(" ")
        return attempt_id, decode_report(report.encode())

    def spawn(self, order: Order) -> Spawned | Refused:
        self.send(order)
        attempt_id, report = self.report()
        assert attempt_id == order.attempt_id
        return report

    def shell(self, script: str, attempt_id: str = "att-1", **changes: int) -> RunHandle:
        """Start a script of the shell; it must start."""
        env = {"PATH": "/usr/bin:/bin", MARK: self._mark, "PYTHON": sys.executable}
        report = self.spawn(order_of(attempt_id, ("/bin/sh", "-c", script), env, **changes))
        assert isinstance(report, Spawned)
        return report.handle

    def ending(self, attempt_id: str = "att-1") -> RunEnding:
        path = self.directory / f"{attempt_id}.ending"
        until(path.exists, "an ending")
        return RunEnding(*json.loads(path.read_text()))

    def log(self, attempt_id: str = "att-1") -> Path:
        return self.directory / "logs" / f"{attempt_id}.log"

    def close(self) -> None:
        """End the owner, in order, or what is left of one that was killed."""
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(PATIENCE_S)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


def stat_of(pid: int) -> ProcessStat | None:
    try:
        return read_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None


def lives(pid: int) -> bool:
    found = stat_of(pid)
    return found is not None and not found.dead


def members(pgid: int) -> list[int]:
    """Return the living members of a group."""
    pids = [int(name) for name in filter(str.isdigit, os.listdir("/proc"))]
    found = {pid: stat_of(pid) for pid in pids}
    return [pid for pid, stat in found.items() if stat and stat.pgid == pgid and not stat.dead]
