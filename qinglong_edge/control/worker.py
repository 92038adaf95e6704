"""The one thread in which commands run, one after the other, beside the loop and the cycle.

It is a daemon thread: a command that never returns cannot keep the process alive.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.commands.engine import Caller
from qinglong_edge.control.connection import Connection
from qinglong_edge.control.protocol import Request


class Job(NamedTuple):
    """Hold one command on its way to the worker, and who waits for it."""

    connection: Connection
    request: Request
    caller: Caller


class Done(NamedTuple):
    """Hold a command that was carried out or refused: exit code and text, ready to be cut."""

    job: Job
    exit_code: int
    text: bytes


class Worker:
    """Carry jobs in a thread that starts with the first of them."""

    def __init__(self, carry: Callable[[Job], Done], wake: Callable[[], None]) -> None:
        """Keep what carries a job and what tells the loop to collect; neither ever raises."""
        self._carry = carry
        self._wake = wake
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: deque[Done] = deque()
        self._thread: threading.Thread | None = None

    def give(self, job: Job) -> None:
        """Hand in the next job."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="control", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def collect(self) -> Done | None:
        """Return a job that is done, or None."""
        return self._done.popleft() if self._done else None

    def stop(self) -> None:
        """Let the thread end after the job it has."""
        self._jobs.put(None)

    def join(self, most_ms: int) -> bool:
        """Wait for the end of the thread; tell whether it has ended, or never began."""
        if self._thread is None:
            return True
        self._thread.join(most_ms / 1000)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._done.append(self._carry(job))
            self._wake()
