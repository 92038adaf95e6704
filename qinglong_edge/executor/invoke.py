"""The handler boundary: whatever a handler does ends here as one of four values.

A handler runs in a daemon thread of its own, and its caller waits no longer than the deadline. A
thread cannot be stopped from outside; one that overruns is left alone, its type is not called
again until it returned, and its late answer can still be asked for. This is the only place besides
the program's entry that catches everything: after the barrier an exception says nothing about the
world, so it is "no answer" and never "failed" (ADR-0032).
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from qinglong_edge.ports.ambient import Clocks

Value = TypeVar("Value")

_KIND_CHARS_MAX = 64


class Returned(Generic[Value]):
    """Say that the handler came back; `value` is what it said, unchecked."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        """Hold the handler's value."""
        self.value = value

    def __repr__(self) -> str:
        """Show the value."""
        return f"Returned({self.value!r})"


class Raised:
    """Say that the handler raised: no answer.

    `kind` names the exception's class and `place` the file and line that raised it; both come from
    code, never from data, so they may stand in an event.
    """

    __slots__ = ("kind", "place")

    def __init__(self, error: BaseException) -> None:
        """Keep the names and let the exception go, with all that its frames hold."""
        self.kind = type(error).__name__[:_KIND_CHARS_MAX]
        self.place = _place(error)

    def __repr__(self) -> str:
        """Show what was raised and where."""
        return f"Raised({self.kind} at {self.place})"


class NotCalled:
    """Say that the handler was certainly not called: `busy` or `no_thread`."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        """Hold the word for why."""
        self.reason = reason

    def __repr__(self) -> str:
        """Show the reason."""
        return f"NotCalled({self.reason})"


class Overran(Generic[Value]):
    """Say that the deadline passed first: no answer yet, and perhaps never one."""

    __slots__ = ("_running",)

    def __init__(self, running: "_Running[Value]") -> None:
        """Keep the way to a late answer."""
        self._running = running

    def late(self) -> Returned[Value] | Raised | None:
        """Return how the handler ended after all, or None while it is still out."""
        return self._running.ending if self._running.ended.is_set() else None


Ending = Returned[Value] | Raised | Overran[Value] | NotCalled


class _Running(Generic[Value]):
    """Carry one call into its thread and its end back."""

    def __init__(self, work: Callable[[], Value], on_end: Callable[[], None]) -> None:
        self.ended = threading.Event()
        self.ending: Returned[Value] | Raised | None = None
        self._work = work
        self._on_end = on_end

    def start(self) -> bool:
        """Start the thread; False where the machine has none left, and then nothing ran."""
        thread = threading.Thread(target=self._run, name="handler", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            self._on_end()
            return False
        return True

    def _run(self) -> None:
        try:
            self.ending = Returned(self._work())
        except BaseException as error:  # noqa: BLE001 - SystemExit of a handler is its own affair
            self.ending = Raised(error)
        self._on_end()
        self.ended.set()


class Outstanding:
    """Call handlers, and know which action types have one that is still out.

    A type is out from before its thread starts until its work has ended, however the caller left.
    Safe to ask and to call from several threads.
    """

    def __init__(self, clocks: Clocks) -> None:
        """Start with nothing out; `clocks` measure the deadlines."""
        self._clocks = clocks
        self._lock = threading.Lock()
        self._out: set[str] = set()

    def busy(self, action_type: str) -> bool:
        """Tell whether a handler of this type has not returned yet."""
        with self._lock:
            return action_type in self._out

    def call(
        self,
        action_type: str,
        work: Callable[[], Value],
        *,
        deadline_ms: int,
        tick_ms: int,
        on_tick: Callable[[], None],
    ) -> Ending[Value]:
        """Run `work` in a thread and wait for it at most `deadline_ms` on the monotonic clock.

        Every `tick_ms` (at least 1) `on_tick` is called in the caller's thread; what it raises, and
        what a signal handler of the main thread raises meanwhile, passes through and leaves `work`
        running. The wait ends the moment `work` does. A type that is out is answered `NotCalled`.
        """
        with self._lock:
            if action_type in self._out:
                return NotCalled("busy")
            self._out.add(action_type)
        running = _Running(work, lambda: self._returned(action_type))
        if not running.start():
            return NotCalled("no_thread")
        return _follow(
            running,
            deadline_ms=deadline_ms,
            tick_ms=tick_ms,
            on_tick=on_tick,
            clocks=self._clocks,
        )

    def _returned(self, action_type: str) -> None:
        with self._lock:
            self._out.discard(action_type)


def _follow(
    running: _Running[Value],
    *,
    deadline_ms: int,
    tick_ms: int,
    on_tick: Callable[[], None],
    clocks: Clocks,
) -> Returned[Value] | Raised | Overran[Value]:
    now_ms = clocks.monotonic_ms()
    end_ms = now_ms + deadline_ms
    next_tick_ms = now_ms + tick_ms
    while True:
        wait_ms = max(0, min(end_ms, next_tick_ms) - now_ms)
        ending = running.ending if running.ended.wait(wait_ms / 1000) else None
        if ending is not None:
            return ending
        now_ms = clocks.monotonic_ms()
        if now_ms >= end_ms:
            return Overran(running)
        if now_ms >= next_tick_ms:
            on_tick()
            now_ms = clocks.monotonic_ms()
            next_tick_ms = now_ms + max(1, tick_ms)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return "unknown"
    while trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f"{name[:_KIND_CHARS_MAX]}:{trace.tb_lineno}"
