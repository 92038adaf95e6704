"""Carry out what the lifecycle commands: the part that every host shares.

A cycle runs in one worker thread; everything else happens in the host's loop. What a cycle or a
callback raises is reported through `on_error` and has no other consequence.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import lifecycle
from qinglong_edge.domain.errors import InvariantBroken, UnavailableError
from qinglong_edge.domain.lifecycle import (
    ClearTimer,
    Command,
    Cursors,
    Event,
    Failed,
    Finish,
    Options,
    Outcome,
    Phase,
    Report,
    RunCycle,
    SetTimer,
    Succeeded,
    Unsettled,
)

Call = Callable[[], object]
OnSettled = Callable[[Outcome | Unsettled], object]


class Hooks(NamedTuple):
    """Hold what a host calls.

    `run_cycle` runs in the worker thread and should return soon after its second argument answers
    true; the others run in the loop, between cycles, and must not block.
    """

    run_cycle: Callable[[Cursors, Callable[[], bool]], Cursors]
    on_cycle: Callable[[Cursors], object]
    on_error: Callable[[BaseException], object]


def tell(hooks: Hooks, error: BaseException) -> None:
    """Report an error; a report that fails ends here, or failing would become a loop of its own."""
    with contextlib.suppress(Exception):
        hooks.on_error(error)


def isolated(hooks: Hooks, call: Callable[..., object], *args: object) -> None:
    """Make a call whose failure is reported and has no other consequence."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - whatever it is, the schedule goes on
        tell(hooks, error)


class Worker:
    """Run one cycle after another in one daemon thread, which is started by the first of them."""

    def __init__(self, hooks: Hooks, stopping: Callable[[], bool], wake: Call) -> None:
        """Take whom to wake, from the worker thread, when a cycle has ended."""
        self._hooks = hooks
        self._stopping = stopping
        self._wake = wake
        self._jobs: queue.SimpleQueue[Cursors | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended: Outcome | None = None

    def begin(self, cursors: Cursors) -> None:
        """Begin a cycle; where no thread can be had, it has failed."""
        if self._thread is None:
            jobs: queue.SimpleQueue[Cursors | None] = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(jobs,), name="cycle", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                failed = UnavailableError("no_thread", "no thread can be started for the cycle")
                failed.__cause__ = error
                self._end(Failed(failed))
                return
            self._jobs, self._thread = jobs, thread
        self._jobs.put(cursors)

    def take(self) -> Outcome | None:
        """Return the outcome of the cycle that ended since the last look."""
        ended, self._ended = self._ended, None
        return ended

    def dismiss(self, *, wait: bool) -> None:
        """Let the thread end, after the cycle that it may still be in; a next one gets another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            if wait:
                thread.join()

    def _work(self, jobs: "queue.SimpleQueue[Cursors | None]") -> None:
        while (cursors := jobs.get()) is not None:
            self._end(self._outcome(cursors))

    def _outcome(self, cursors: Cursors) -> Outcome:
        try:
            following = self._hooks.run_cycle(cursors, self._stopping)
            if not isinstance(following, Cursors):
                raise InvariantBroken("lifecycle: a cycle returned no cursors")
        except BaseException as error:  # noqa: BLE001 - SystemExit of a cycle is its own affair
            return Failed(error)
        return Succeeded(following)

    def _end(self, outcome: Outcome) -> None:
        self._ended = outcome
        self._wake()


class Carrier:
    """Carry out the machine's commands, all but those about the timer and the end of a stop.

    Belongs to one thread, the loop's; only `stop_asked` is read and set by others.
    """

    def __init__(
        self,
        options: Options,
        hooks: Hooks,
        wake: Call,
        carry: Callable[[SetTimer | ClearTimer | Finish], None],
    ) -> None:
        """Hold a fresh lifecycle; raises `UsageError` for options out of their ranges."""
        self.life = lifecycle.Lifecycle()
        self.stop_asked = False
        self.worker = Worker(hooks, lambda: self.stop_asked, wake)
        self._options = lifecycle.check_options(options)
        self._hooks = hooks
        self._carry = carry
        self._asking: list[OnSettled] = []
        self._riding: list[OnSettled] = []

    def start(self, now_ms: int) -> bool:
        """Start to schedule; False where that is done already or a cycle is still in flight."""
        self.collect(now_ms)
        if not lifecycle.can_start(self.life):
            return False
        self.stop_asked = False
        self.apply(lifecycle.Start(now_ms))
        return True

    def request(self, on_settled: OnSettled) -> None:
        """Ask for a cycle that begins after this moment; one that began before does not count."""
        if self.life.phase is Phase.RUNNING:
            self._asking.append(on_settled)
            self.apply(lifecycle.Request())
        else:
            isolated(self._hooks, on_settled, Unsettled(began=False))

    def stop(self, now_ms: int) -> None:
        """Ask for the stop; who still waits for a cycle to begin waits in vain."""
        self.stop_asked = True
        self._asking, asking = [], self._asking
        self.apply(lifecycle.Stop(now_ms))
        for each in asking:
            isolated(self._hooks, each, Unsettled(began=False))

    def collect(self, now_ms: int) -> None:
        """Settle the cycle that ended, if one did."""
        outcome = self.worker.take()
        if outcome is not None:
            self.apply(lifecycle.Settle(now_ms, outcome))

    def apply(self, event: Event) -> None:
        """Hand an event to the machine and carry out its commands in their order."""
        self.life, commands = lifecycle.advance(self._options, self.life, event)
        for command in commands:
            self._do(command)

    def _do(self, command: Command) -> None:
        match command:
            case RunCycle():
                self._riding, self._asking = self._asking, []
                self.worker.begin(command.cursors)
            case Report():
                self._report(command.outcome)
            case Finish():
                self._answer(Unsettled(began=True))
                self._carry(command)
            case SetTimer() | ClearTimer():
                self._carry(command)

    def _report(self, outcome: Outcome) -> None:
        if isinstance(outcome, Failed):
            tell(self._hooks, outcome.error)
        else:
            isolated(self._hooks, self._hooks.on_cycle, outcome.cursors)
        self._answer(outcome)

    def _answer(self, outcome: Outcome | Unsettled) -> None:
        riding, self._riding = self._riding, []
        for each in riding:
            isolated(self._hooks, each, outcome)
