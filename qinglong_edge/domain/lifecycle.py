"""The lifecycle: one timer, one cycle in flight, a bounded stop (ADR-0036, 4; contract 13).

A pure machine: an event in, the next state and commands out. It knows no loop, thread or clock:
its times are monotonic milliseconds that come with the events, and a host (`runtime/poll_host.py`,
`runtime/asyncio_host.py`) carries the commands out. While it runs, there is either a timer or a
cycle in flight, never both; while it stops, the one timer bounds the wait for the last cycle.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.paging import Cursor
from qinglong_edge.domain.profile import ResourcePolicy

INTERVAL_MS_MIN = 250  # nothing repeats by itself more often than four times a second
STOP_MS_MAX = 60_000  # init systems kill what takes longer


class Cursors(NamedTuple):
    """Hold where the phases go on; kept in memory only, and only after a cycle that succeeded."""

    recovery: Cursor | None = None
    dispatch: Cursor | None = None


class Options(NamedTuple):
    """Bound a lifecycle; lengths in milliseconds."""

    interval_ms: int
    initial_delay_ms: int
    stop_ms: int
    early_gap_ms: int


def check_options(options: Options) -> Options:
    """Return the options; raises `UsageError` where one is out of its range."""
    most = limits.INTERVAL_MS_MAX
    ids.check_int(options.interval_ms, "interval_ms", least=INTERVAL_MS_MIN, most=most)
    ids.check_int(options.initial_delay_ms, "initial_delay_ms", least=0, most=most)
    ids.check_int(options.stop_ms, "stop_ms", least=1, most=STOP_MS_MAX)
    ids.check_int(options.early_gap_ms, "early_gap_ms", least=INTERVAL_MS_MIN, most=most)
    return options


def options_of(policy: ResourcePolicy) -> Options:
    """Return the lifecycle's part of a local profile."""
    return Options(policy.interval_ms, policy.initial_delay_ms, policy.stop_ms, policy.early_gap_ms)


class Phase(enum.StrEnum):
    """Name whether the lifecycle begins cycles."""

    INERT = "inert"  # not started, or stopped; a cycle that outlived its stop may be in flight
    RUNNING = "running"
    STOPPING = "stopping"  # waits for the cycle in flight, not longer than the timer


class End(enum.StrEnum):
    """Name how a stop ended."""

    DRAINED = "drained"
    TIMED_OUT = "timed_out"  # the cycle in flight goes on


class Succeeded(NamedTuple):
    """Say that a cycle came back, and where the next one goes on."""

    cursors: Cursors


class Failed(NamedTuple):
    """Say that a cycle raised; the next one repeats the same boundary."""

    error: BaseException


class Unsettled(NamedTuple):
    """Say that a stop came before the outcome; `began` tells whether the cycle is still out."""

    began: bool


Outcome = Succeeded | Failed


class Start(NamedTuple):
    """Begin to schedule; nothing happens where `can_start` says no."""

    now_ms: int


class Fire(NamedTuple):
    """The timer's time has come."""

    now_ms: int


class EarlyTick(NamedTuple):
    """Something was committed elsewhere: the next cycle should not wait for its whole interval."""

    now_ms: int


class Request(NamedTuple):
    """Somebody wants a cycle that begins after this moment."""


class Settle(NamedTuple):
    """The cycle in flight ended."""

    now_ms: int
    outcome: Outcome


class Stop(NamedTuple):
    """Begin no cycle any more, and wait for the one in flight."""

    now_ms: int


Event = Start | Fire | EarlyTick | Request | Settle | Stop


class SetTimer(NamedTuple):
    """Fire at this instant; replaces the timer that was set."""

    at_ms: int


class ClearTimer(NamedTuple):
    """Fire no more."""


class RunCycle(NamedTuple):
    """Begin a cycle, and hand in `Settle` when it ended."""

    cursors: Cursors


class Report(NamedTuple):
    """Tell the callbacks; what they raise has no consequence for what follows."""

    outcome: Outcome


class Finish(NamedTuple):
    """Tell who waits for the stop how it ended."""

    end: End


Command = SetTimer | ClearTimer | RunCycle | Report | Finish


class Lifecycle(NamedTuple):
    """Hold all that the lifecycle knows; a fresh one is inert."""

    phase: Phase = Phase.INERT
    cursors: Cursors = Cursors()
    in_flight: bool = False
    timer_at_ms: int | None = None
    gap_from_ms: int = 0  # the last settle, or the start where none settled since
    requested: bool = False  # a cycle is wanted as soon as this one settled
    early: bool = False  # an early tick came during this cycle


class Step(NamedTuple):
    """Hold the next state, and what to do now, in this order."""

    after: Lifecycle
    commands: tuple[Command, ...] = ()


def can_start(state: Lifecycle) -> bool:
    """Tell whether a start would begin anything: not while started, nor with a cycle in flight."""
    return state.phase is Phase.INERT and not state.in_flight


def advance(options: Options, before: Lifecycle, event: Event) -> Step:
    """Return what an event leads to; an event that changes nothing returns the state as it was.

    Raises `InvariantBroken` for a settle without a cycle.
    """
    match event:
        case Start():
            return _start(options, before, event.now_ms)
        case Fire():
            return _fire(before, event.now_ms)
        case EarlyTick():
            return _early_tick(options, before, event.now_ms)
        case Request():
            return _request(before)
        case Settle():
            return _settle(options, before, event)
        case Stop():
            return _stop(options, before, event.now_ms)


def _start(options: Options, before: Lifecycle, now_ms: int) -> Step:
    if not can_start(before):
        return Step(before)
    started = before._replace(phase=Phase.RUNNING, gap_from_ms=now_ms)
    return _timed(started, now_ms + options.initial_delay_ms)


def _fire(before: Lifecycle, now_ms: int) -> Step:
    if before.timer_at_ms is None:
        return Step(before)
    if now_ms < before.timer_at_ms:
        return Step(before, (SetTimer(before.timer_at_ms),))  # a coarse timer came too soon
    if before.phase is Phase.STOPPING:
        over = before._replace(phase=Phase.INERT, timer_at_ms=None)
        return Step(over, (ClearTimer(), Finish(End.TIMED_OUT)))
    return _run(before)


def _early_tick(options: Options, before: Lifecycle, now_ms: int) -> Step:
    """Bring the timer forward, but not into the gap after the last settle, and never back."""
    if before.phase is not Phase.RUNNING:
        return Step(before)
    if before.timer_at_ms is None:
        return Step(before._replace(early=True))
    at_ms = max(now_ms, before.gap_from_ms + options.early_gap_ms)
    return _timed(before, at_ms) if at_ms < before.timer_at_ms else Step(before)


def _request(before: Lifecycle) -> Step:
    if before.phase is not Phase.RUNNING:
        return Step(before)
    return Step(before._replace(requested=True)) if before.in_flight else _run(before)


def _settle(options: Options, before: Lifecycle, event: Settle) -> Step:
    """Report first: whoever waits for this outcome sees it before another cycle begins."""
    if not before.in_flight:
        raise InvariantBroken("lifecycle: a cycle settled that was not in flight")
    cursors = event.outcome.cursors if isinstance(event.outcome, Succeeded) else before.cursors
    idle = before._replace(in_flight=False, cursors=cursors, gap_from_ms=event.now_ms)
    report = Report(event.outcome)
    if before.phase is Phase.INERT:
        return Step(idle, (report,))
    if before.phase is Phase.STOPPING:
        drained = idle._replace(phase=Phase.INERT, timer_at_ms=None)
        return Step(drained, (ClearTimer(), report, Finish(End.DRAINED)))
    if before.requested:
        after, commands = _run(idle)
    else:
        early_ms = options.early_gap_ms if before.early else options.interval_ms
        wait_ms = min(early_ms, options.interval_ms)
        after, commands = _timed(idle._replace(early=False), event.now_ms + wait_ms)
    return Step(after, (report, *commands))


def _stop(options: Options, before: Lifecycle, now_ms: int) -> Step:
    """Wait only where there is something to wait for; asking again does not prolong a stop."""
    if before.phase is Phase.STOPPING:
        return Step(before)
    quiet = before._replace(requested=False, early=False)
    if before.in_flight:
        return _timed(quiet._replace(phase=Phase.STOPPING), now_ms + options.stop_ms)
    stopped = quiet._replace(phase=Phase.INERT, timer_at_ms=None)
    cleared = () if before.timer_at_ms is None else (ClearTimer(),)
    return Step(stopped, (*cleared, Finish(End.DRAINED)))


def _timed(before: Lifecycle, at_ms: int) -> Step:
    return Step(before._replace(timer_at_ms=at_ms), (SetTimer(at_ms),))


def _run(before: Lifecycle) -> Step:
    """Begin a cycle; whatever was asked for before this moment is served by it."""
    after = before._replace(in_flight=True, timer_at_ms=None, requested=False, early=False)
    cleared = () if before.timer_at_ms is None else (ClearTimer(),)
    return Step(after, (*cleared, RunCycle(before.cursors)))
