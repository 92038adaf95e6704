"""Carry the lifecycle in one loop over `select.poll`; the host of `serve` (ADR-0036, 4).

The loop sleeps exactly until the timer or the nearest deadline of a source. Everything else that
wakes it is news: a readable descriptor, a call from another thread, a signal, the end of a cycle.
No cycle, callback or source ends the loop by raising; each is reported through `on_error`.
"""

import collections
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Protocol

from qinglong_edge.domain import lifecycle
from qinglong_edge.domain.errors import InvariantBroken, RefusedError
from qinglong_edge.domain.lifecycle import ClearTimer, End, Finish, Options, SetTimer
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.runtime.carrier import Call, Carrier, Hooks, OnSettled, isolated, tell

SOURCE_FAULTS_MAX = 2  # a source that fails twice in a row would fail for ever, at full speed
_SLEEP_MS_MAX = 2**31 - 1  # what poll takes
_DRAIN_BYTES = 4_096  # a page; what is left in the pipe wakes the loop again
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Mailbox:
    """Take calls from any thread, and wake the loop for them."""

    def __init__(self) -> None:
        """Hold calls until there is a loop; no descriptor is opened before."""
        self.fd = -1
        self._lock = threading.Lock()
        self._wake_fd = -1
        self._woken = False
        self._over = False
        self._calls: list[Call] = []

    def open(self) -> int:
        """Make the pipe and return its writing end, for signals.

        Raises `RefusedError` (`already_started`) where a loop has it open.
        """
        with self._lock:
            if self.fd >= 0:
                raise RefusedError("already_started", "this host runs already")
            self.fd, self._wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._over = False
            self._wake_locked()  # for what came before there was a loop
            return self._wake_fd

    def close(self) -> list[Call]:
        """Close the pipe; return the calls that were accepted and not taken."""
        with self._lock:
            os.close(self.fd)
            os.close(self._wake_fd)
            self.fd = self._wake_fd = -1
            self._woken, self._over = False, True
            calls, self._calls = self._calls, []
            return calls

    def post(self, call: Call) -> bool:
        """Accept a call; False after the end of the loop."""
        with self._lock:
            if not self._over:
                self._calls.append(call)
                self._wake_locked()
            return not self._over

    def wake(self) -> None:
        """Wake the loop, if there is one."""
        with self._lock:
            self._wake_locked()

    def take(self) -> list[Call]:
        """Return what came in; everything that comes later wakes the loop again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, _DRAIN_BYTES)
        with self._lock:
            self._woken = False
            calls, self._calls = self._calls, []
            return calls

    def _wake_locked(self) -> None:
        if self._wake_fd >= 0 and not self._woken:
            self._woken = True
            with contextlib.suppress(BlockingIOError):  # full: the loop wakes anyway
                os.write(self._wake_fd, b"\0")


class Source(Protocol):
    """Offer descriptors and a deadline to the loop; every method is called in its thread.

    A method must not block. One that raises is reported; a source that fails twice with no success
    of `ready` or `expire` between is detached, and `on_error` is told so by an `InvariantBroken`.
    The same holds for a closed descriptor and for a deadline that `expire` leaves in the past:
    both would make the loop spin.
    """

    def interests(self) -> Iterable[tuple[int, int]]:
        """Return descriptors and poll masks; asked before each sleep."""
        ...

    def ready(self, fd: int, mask: int) -> None:
        """Serve a descriptor; an earlier call of the same turn may have closed it."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return the nearest monotonic instant at which `expire` has something to do."""
        ...

    def expire(self, now_ms: int) -> None:
        """Do what is due; afterwards the next deadline is later than `now_ms`."""
        ...


class PollHost:
    """Run the lifecycle and serve sources until a stop; the main thread's run takes signals."""

    def __init__(
        self, options: Options, hooks: Hooks, clocks: Clocks, on_hangup: Call = lambda: None
    ) -> None:
        """Stay inert; raises `UsageError` for options out of their ranges."""
        self._hooks = hooks
        self._clocks = clocks
        self._on_hangup = on_hangup
        self._mail = _Mailbox()
        self._carrier = Carrier(options, hooks, self._mail.wake, self._carry)
        self._faults: dict[Source, int] = {}
        self._signals: collections.deque[int] = collections.deque()
        self._end: End | None = None

    @property
    def timer_at_ms(self) -> int | None:
        """Return the monotonic instant of the next cycle; None while one is in flight."""
        return self._carrier.life.timer_at_ms

    def attach(self, source: Source) -> None:
        """Serve a source from the next sleep on; only before `run` or in the loop's thread."""
        self._faults[source] = 0

    def detach(self, source: Source) -> None:
        """Forget a source, attached or not; its descriptors stay its own affair."""
        self._faults.pop(source, None)

    def call_soon(self, call: Call) -> bool:
        """Have the loop make a call, from any thread; False after its end: the call is not made.

        Calls that come before `run` are kept for it.
        """
        return self._mail.post(call)

    def early_tick(self) -> None:
        """Say, from any thread, that the next cycle has news to find."""
        self.call_soon(lambda: self._carrier.apply(lifecycle.EarlyTick(self._now_ms())))

    def request_cycle(self, on_settled: OnSettled) -> None:
        """Ask, from any thread, for a cycle that begins after this call.

        `on_settled` is called in the loop with the outcome, before another cycle begins and after
        `on_cycle`; or with `Unsettled`, in the caller's thread where the loop has ended.
        """
        if not self.call_soon(lambda: self._carrier.request(on_settled)):
            isolated(self._hooks, on_settled, lifecycle.Unsettled(began=False))

    def stop(self) -> None:
        """Ask, from any thread, for the end of `run`; the cycle in flight is told at once."""
        if self.call_soon(self._stop):
            self._carrier.stop_asked = True

    def run(self) -> End:
        """Start, and return when a stop has drained the cycle in flight or has timed out.

        Raises `RefusedError` where it runs already (`already_started`), or where a cycle that
        outlived an earlier stop has not settled (`cycle_in_flight`).
        """
        wake_fd = self._mail.open()
        self._end = None
        try:
            if not self._carrier.start(self._now_ms()):
                raise RefusedError("cycle_in_flight", "a cycle outlived its stop and still runs")
            with self._listening(wake_fd):
                return self._loop()
        finally:
            for call in self._mail.close():
                isolated(self._hooks, call)
            self._carrier.worker.dismiss(wait=self._end is End.DRAINED)

    def _loop(self) -> End:
        while self._end is None:
            self._turn()
        return self._end

    def _turn(self) -> None:
        """Sleep once, then serve calls, signals, the worker, sources and the timer."""
        poller = select.poll()
        poller.register(self._mail.fd, select.POLLIN)
        owners: dict[int, Source] = {}
        due_ms = [at_ms for at_ms in (self.timer_at_ms,) if at_ms is not None]
        for source in list(self._faults):
            self._tried(source, self._prepare, source, poller, owners, due_ms)
        sleep_ms = max(0, min(due_ms) - self._now_ms()) if due_ms else None
        ready = poller.poll(None if sleep_ms is None else min(sleep_ms, _SLEEP_MS_MAX))
        for call in self._mail.take():
            isolated(self._hooks, call)
        while self._signals:
            self._signalled(self._signals.popleft())
        self._carrier.collect(self._now_ms())
        for fd, mask in ready:
            if fd in owners and owners[fd] in self._faults:
                self._tried(owners[fd], self._ready, owners[fd], fd, mask)
        now_ms = self._now_ms()
        for source in list(self._faults):
            self._tried(source, self._expire, source, now_ms)
        if self.timer_at_ms is not None and self.timer_at_ms <= now_ms:
            self._carrier.apply(lifecycle.Fire(now_ms))

    def _now_ms(self) -> int:
        return self._clocks.monotonic_ms()

    def _carry(self, command: SetTimer | ClearTimer | Finish) -> None:
        """Note the end of a stop; the timer needs nothing, the loop sleeps until its instant."""
        if isinstance(command, Finish):
            self._end = command.end

    def _stop(self) -> None:
        if self._end is None:
            self._carrier.stop(self._now_ms())

    def _signalled(self, number: int) -> None:
        if number == signal.SIGHUP:
            isolated(self._hooks, self._on_hangup)
        else:
            self._stop()

    @contextlib.contextmanager
    def _listening(self, wake_fd: int) -> Iterator[None]:
        """Take the signals for the time of the loop, where this is the main thread.

        What counts is the handler's note. The wake-up descriptor only ends the sleep: a child that
        was not executed yet shares it, and a signal for the child is none for us.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)
            self._carrier.stop_asked |= number != signal.SIGHUP
            with contextlib.suppress(BlockingIOError):
                os.write(wake_fd, b"\0")

        self._signals.clear()
        fd_before = signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        before = [signal.signal(number, note) for number in _SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(fd_before)

    def _prepare(
        self, source: Source, poller: select.poll, owners: dict[int, Source], due_ms: list[int]
    ) -> None:
        """Add what a source waits for; one that cannot say it is asked again at once."""
        due_ms.append(0)
        for fd, mask in source.interests():
            poller.register(fd, mask)
            owners[fd] = source
        deadline_ms = source.next_deadline_ms()
        due_ms.pop()
        if deadline_ms is not None:
            due_ms.append(deadline_ms)

    def _ready(self, source: Source, fd: int, mask: int) -> None:
        if mask & select.POLLNVAL:
            raise InvariantBroken("poll host: a source watches a closed descriptor")
        source.ready(fd, mask)
        self._absolve(source)

    def _expire(self, source: Source, now_ms: int) -> None:
        deadline_ms = source.next_deadline_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            return
        source.expire(now_ms)
        deadline_ms = source.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            raise InvariantBroken("poll host: a source left its deadline in the past")
        self._absolve(source)

    def _absolve(self, source: Source) -> None:
        if source in self._faults:  # it may have detached itself
            self._faults[source] = 0

    def _tried(self, source: Source, call: Callable[..., object], *args: object) -> None:
        """Make a call into a source; one that fails again and again is detached."""
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001 - one source does not end the service of others
            tell(self._hooks, error)
            if source not in self._faults:
                return
            self._faults[source] += 1
            if self._faults[source] >= SOURCE_FAULTS_MAX:
                self.detach(source)
                name = type(source).__name__
                tell(self._hooks, InvariantBroken("poll host: detached", {"source": name}))
