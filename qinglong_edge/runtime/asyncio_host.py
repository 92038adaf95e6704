"""Carry the lifecycle in an asyncio loop, for programs that embed the engine (ADR-0036, 4).

The only file that knows asyncio. It serves no sources and takes no signals: both are the
embedding program's own. Neither its timer nor its worker keeps a loop or the process alive.
"""

import asyncio
import contextlib
from collections.abc import Callable

from qinglong_edge.domain import lifecycle
from qinglong_edge.domain.lifecycle import ClearTimer, End, Finish, Options, Phase, SetTimer
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.runtime.carrier import Carrier, Hooks, OnSettled, isolated


class AsyncioHost:
    """Run the lifecycle in the loop that starts it.

    A loop that ends without `stop` leaves the host started, and it cannot be started in another.
    """

    def __init__(self, options: Options, hooks: Hooks, clocks: Clocks) -> None:
        """Stay inert; raises `UsageError` for options out of their ranges."""
        self._hooks = hooks
        self._clocks = clocks
        self._carrier = Carrier(options, hooks, self._wake, self._carry)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[End]] = []

    @property
    def timer_at_ms(self) -> int | None:
        """Return the monotonic instant of the next cycle; None while one is in flight."""
        return self._carrier.life.timer_at_ms

    async def start(self) -> bool:
        """Start to schedule; False where that is done already or a cycle is still in flight."""
        if self._carrier.life.phase is Phase.INERT:
            self._loop = asyncio.get_running_loop()
        return self._carrier.start(self._now_ms())

    async def stop(self) -> End:
        """Begin no more cycles; return when the one in flight settled or the wait timed out.

        Every caller gets the same answer; asking again while one waits does not prolong the wait.
        """
        waiting: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._carrier.stop(self._now_ms())
        return await waiting

    def early_tick(self) -> None:
        """Say, from any thread, that the next cycle has news to find."""
        self._soon(lambda: self._carrier.apply(lifecycle.EarlyTick(self._now_ms())))

    def request_cycle(self, on_settled: OnSettled) -> None:
        """Ask, from any thread, for a cycle that begins after this call.

        `on_settled` is called in the loop with the outcome, before another cycle begins and after
        `on_cycle`; or with `Unsettled`, in the caller's thread where there is no loop.
        """
        if not self._soon(lambda: self._carrier.request(on_settled)):
            isolated(self._hooks, on_settled, lifecycle.Unsettled(began=False))

    def _now_ms(self) -> int:
        return self._clocks.monotonic_ms()

    def _soon(self, call: Callable[[], None]) -> bool:
        """Have the loop make a call; False where there is none, or none any more."""
        if self._loop is None:
            return False
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)
            return True
        return False

    def _wake(self) -> None:
        """Have the loop settle the cycle; where it is closed, the next start does."""
        self._soon(lambda: self._carrier.collect(self._now_ms()))

    def _carry(self, command: SetTimer | ClearTimer | Finish) -> None:
        if isinstance(command, Finish):
            self._carrier.worker.dismiss(wait=False)
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():  # its caller may have been cancelled
                    each.set_result(command.end)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(command, SetTimer) and self._loop is not None:
            wait_ms = max(0, command.at_ms - self._now_ms())
            self._timer = self._loop.call_later(wait_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._carrier.apply(lifecycle.Fire(self._now_ms()))
