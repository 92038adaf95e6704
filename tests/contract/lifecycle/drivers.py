"""Both hosts behind one set of calls, each in a thread of its own, on a clock in the test's hand.

A cycle waits in the worker until the test says how it ends. Time passes when the test says so; the
host is then woken, and reads the clock like after any sleep.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from qinglong_edge.domain.errors import RefusedError
from qinglong_edge.domain.lifecycle import Cursors, End, Options, Outcome, Phase, Unsettled
from qinglong_edge.runtime.asyncio_host import AsyncioHost
from qinglong_edge.runtime.carrier import Hooks, OnSettled
from qinglong_edge.runtime.poll_host import PollHost
from tests.support.clock import FakeClocks

PATIENCE_S = 10.0


class Driver(Protocol):
    """What the suite asks of a host."""

    @property
    def timer_at_ms(self) -> int | None: ...

    def start(self) -> bool: ...

    def stop(self) -> Callable[[], End]:
        """Ask for a stop; the answer waits for its end."""
        ...

    def soon(self, call: Callable[[], object]) -> bool: ...

    def early_tick(self) -> None: ...

    def request_cycle(self, on_settled: OnSettled) -> None: ...

    def close(self) -> None: ...


class PollDriver:
    """Run a `PollHost` in a thread; each start is a run of its own."""

    def __init__(self, options: Options, hooks: Hooks, clocks: FakeClocks) -> None:
        self._host = PollHost(options, hooks, clocks)
        self._ends: SimpleQueue[End] = SimpleQueue()
        self._runs: list[threading.Thread] = []
        self.early_tick = self._host.early_tick
        self.request_cycle = self._host.request_cycle
        self.soon = self._host.call_soon

    @property
    def timer_at_ms(self) -> int | None:
        return self._host.timer_at_ms

    def start(self) -> bool:
        refused: SimpleQueue[bool] = SimpleQueue()
        runs = [each for each in self._runs if each.is_alive()]
        thread = threading.Thread(target=self._run, args=(refused,), daemon=True)
        thread.start()
        if not runs:
            while thread.is_alive() and not self._host.call_soon(lambda: self._running(refused)):
                pass
        started = not refused.get(timeout=PATIENCE_S)
        if started:
            self._runs.append(thread)
        return started

    def stop(self) -> Callable[[], End]:
        if not any(each.is_alive() for each in self._runs):
            return lambda: End.DRAINED  # no run, no loop: nothing to be asked
        self._host.stop()
        return self._wait

    def close(self) -> None:
        self._host.stop()
        for each in self._runs:
            each.join(PATIENCE_S)
            assert not each.is_alive()

    def _run(self, refused: "SimpleQueue[bool]") -> None:
        try:
            self._ends.put(self._host.run())
        except RefusedError:
            refused.put(True)

    def _running(self, refused: "SimpleQueue[bool]") -> None:
        if self._host._carrier.life.phase is Phase.RUNNING:
            refused.put(False)

    def _wait(self) -> End:
        end = self._ends.get(timeout=PATIENCE_S)
        self._runs[-1].join(PATIENCE_S)
        return end


class ClockedLoop(asyncio.SelectorEventLoop):
    """Measure a loop's timers on the test's clock."""

    def __init__(self, clocks: FakeClocks) -> None:
        self._clocks = clocks
        super().__init__()

    def time(self) -> float:
        return self._clocks.monotonic_ms() / 1_000


class AsyncioDriver:
    """Run an `AsyncioHost` in a loop in a thread."""

    def __init__(self, options: Options, hooks: Hooks, clocks: FakeClocks) -> None:
        self._host = AsyncioHost(options, hooks, clocks)
        self._loop = ClockedLoop(clocks)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.early_tick = self._host.early_tick
        self.request_cycle = self._host.request_cycle

    @property
    def timer_at_ms(self) -> int | None:
        return self._host.timer_at_ms

    def start(self) -> bool:
        return asyncio.run_coroutine_threadsafe(self._host.start(), self._loop).result(PATIENCE_S)

    def stop(self) -> Callable[[], End]:
        ending = asyncio.run_coroutine_threadsafe(self._host.stop(), self._loop)
        return lambda: ending.result(PATIENCE_S)

    def soon(self, call: Callable[[], object]) -> bool:
        self._loop.call_soon_threadsafe(call)
        return True

    def close(self) -> None:
        self.stop()()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._loop.close()


DRIVERS: dict[str, type[PollDriver] | type[AsyncioDriver]] = {
    "poll": PollDriver,
    "asyncio": AsyncioDriver,
}


class Stage:
    """Hold a driver, its clock, and the other ends of everything that it calls."""

    def __init__(self, name: str, options: Options) -> None:
        self.clocks = FakeClocks()
        self.options = options
        self.begun: SimpleQueue[Cursors] = SimpleQueue()
        self.reported: SimpleQueue[Cursors] = SimpleQueue()
        self.errors: SimpleQueue[BaseException] = SimpleQueue()
        self.threads: set[threading.Thread] = set()
        self.stopping: Callable[[], bool] = lambda: False
        self.work: Callable[[Cursors, Callable[[], bool]], Cursors] = self._wait_for_the_test
        self.on_cycle: Callable[[], object] = lambda: None
        self.on_error: Callable[[], object] = lambda: None
        self._ends: SimpleQueue[Cursors | BaseException] = SimpleQueue()
        hooks = Hooks(self._run_cycle, self._on_cycle, self._on_error)
        self.driver: Driver = DRIVERS[name](options, hooks, self.clocks)

    @property
    def now_ms(self) -> int:
        return self.clocks.monotonic_ms()

    def timer_at_ms(self) -> int | None:
        return self.driver.timer_at_ms

    def start(self) -> None:
        """Start, and see the first cycle begin."""
        assert self.driver.start()
        self.begins()

    def begins(self) -> Cursors:
        """Wait for the next cycle to begin."""
        return self.begun.get(timeout=PATIENCE_S)

    def end(self, how: Cursors | BaseException) -> None:
        """End the cycle in flight, and wait until the loop has reported it."""
        self._ends.put(how)
        if isinstance(how, BaseException):
            assert self.errors.get(timeout=PATIENCE_S) is how
        else:
            assert self.reported.get(timeout=PATIENCE_S) == how
        self.sync()

    def end_unseen(self, how: Cursors) -> None:
        """End a cycle that nobody waits for any more; its worker ends as well."""
        self._ends.put(how)
        for thread in self.threads:
            thread.join(PATIENCE_S)

    def advance(self, ms: int) -> None:
        """Let time pass, and let the loop do all that is due."""
        self.clocks.advance(ms)
        self.sync()

    def sync(self) -> None:
        """Wait for two turns of the loop: one that sees the news, and its end."""
        for _ in range(2):
            turned = threading.Event()
            if self.driver.soon(turned.set):
                assert turned.wait(PATIENCE_S)

    def settled(self) -> tuple[OnSettled, "SimpleQueue[Outcome | Unsettled]"]:
        """Return a callback for a request, and where its outcome will be."""
        outcomes: SimpleQueue[Outcome | Unsettled] = SimpleQueue()
        return outcomes.put, outcomes

    def close(self) -> None:
        self._ends.put(Cursors())  # for a cycle that a test left in flight
        self.driver.close()

    def _run_cycle(self, cursors: Cursors, stopping: Callable[[], bool]) -> Cursors:
        return self.work(cursors, stopping)

    def _wait_for_the_test(self, cursors: Cursors, stopping: Callable[[], bool]) -> Cursors:
        self.threads.add(threading.current_thread())
        self.stopping = stopping
        self.begun.put(cursors)
        how = self._ends.get(timeout=PATIENCE_S)
        if isinstance(how, BaseException):
            raise how
        return how

    def _on_cycle(self, cursors: Cursors) -> None:
        self.reported.put(cursors)
        self.on_cycle()

    def _on_error(self, error: BaseException) -> None:
        self.errors.put(error)
        self.on_error()
