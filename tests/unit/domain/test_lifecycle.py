"""The lifecycle's clauses one by one, then every short life: one timer, one cycle, never both."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from qinglong_edge.domain import lifecycle
from qinglong_edge.domain.errors import InvariantBroken, UsageError
from qinglong_edge.domain.lifecycle import (
    ClearTimer,
    Command,
    Cursors,
    EarlyTick,
    End,
    Event,
    Failed,
    Finish,
    Fire,
    Lifecycle,
    Options,
    Phase,
    Report,
    Request,
    RunCycle,
    SetTimer,
    Settle,
    Start,
    Step,
    Stop,
    Succeeded,
    advance,
    check_options,
    options_of,
)
from qinglong_edge.domain.paging import Cursor
from qinglong_edge.domain.profile import Profile, local_policy

OPTIONS = Options(interval_ms=30_000, initial_delay_ms=100, stop_ms=5_000, early_gap_ms=1_000)
KEPT = Cursors(Cursor(1, 2), Cursor(3, 4))
NEXT = Cursors(None, Cursor(5, 6))
DONE, FAILED = Succeeded(NEXT), Failed(ValueError("no"))

INERT = Lifecycle(cursors=KEPT)
IDLE = INERT._replace(phase=Phase.RUNNING, timer_at_ms=30_000)
BUSY = INERT._replace(phase=Phase.RUNNING, in_flight=True)
STOPPING = INERT._replace(phase=Phase.STOPPING, in_flight=True, timer_at_ms=7_000)
OUTLIVED = INERT._replace(in_flight=True)
ASKED = BUSY._replace(requested=True)
HURRIED = BUSY._replace(early=True)


class Clause(NamedTuple):
    """One line of the table: what happens in a state, what changes, what is commanded."""

    name: str
    before: Lifecycle
    event: Event
    changes: Mapping[str, object]
    commands: tuple[Command, ...] = ()


BEGUN = {"in_flight": True, "timer_at_ms": None, "requested": False, "early": False}
OVER = {"phase": Phase.INERT, "timer_at_ms": None}
SETTLED = {"in_flight": False, "gap_from_ms": 6_000}
CLEARED = ClearTimer()

CLAUSES = [
    Clause("start sets the one timer", INERT, Start(50),
           {"phase": Phase.RUNNING, "timer_at_ms": 150, "gap_from_ms": 50}, (SetTimer(150),)),
    Clause("a second start does nothing", IDLE, Start(50), {}),
    Clause("nor while a cycle is in flight", BUSY, Start(50), {}),
    Clause("nor while stopping", STOPPING, Start(50), {}),
    Clause("nor while an old cycle is in flight", OUTLIVED, Start(50), {}),
    Clause("the timer runs a cycle", IDLE, Fire(30_000), BEGUN, (CLEARED, RunCycle(KEPT))),
    Clause("a late timer too", IDLE, Fire(99_000), BEGUN, (CLEARED, RunCycle(KEPT))),
    Clause("too early a timer is set again", IDLE, Fire(29_999), {}, (SetTimer(30_000),)),
    Clause("a stale timer is nothing", BUSY, Fire(30_000), {}),
    Clause("inert means inert", INERT, Fire(30_000), {}),
    Clause("success replaces the cursors", BUSY, Settle(6_000, DONE),
           {**SETTLED, "cursors": NEXT, "timer_at_ms": 36_000}, (Report(DONE), SetTimer(36_000))),
    Clause("completion clears them", BUSY, Settle(6_000, Succeeded(Cursors())),
           {**SETTLED, "cursors": Cursors(), "timer_at_ms": 36_000},
           (Report(Succeeded(Cursors())), SetTimer(36_000))),
    Clause("failure keeps them and the interval", BUSY, Settle(6_000, FAILED),
           {**SETTLED, "timer_at_ms": 36_000}, (Report(FAILED), SetTimer(36_000))),
    Clause("a request runs at once", IDLE, Request(), BEGUN, (CLEARED, RunCycle(KEPT))),
    Clause("a request waits for the cycle", BUSY, Request(), {"requested": True}),
    Clause("and then runs with its cursors", ASKED, Settle(6_000, DONE),
           {**BEGUN, "cursors": NEXT, "gap_from_ms": 6_000}, (Report(DONE), RunCycle(NEXT))),
    Clause("after a failure as well", ASKED, Settle(6_000, FAILED),
           {**BEGUN, "gap_from_ms": 6_000}, (Report(FAILED), RunCycle(KEPT))),
    Clause("a request to an inert one is lost", INERT, Request(), {}),
    Clause("a request during a stop is lost", STOPPING, Request(), {}),
    Clause("an early tick brings the timer forward", IDLE, EarlyTick(4_000),
           {"timer_at_ms": 4_000}, (SetTimer(4_000),)),
    Clause("but not into the gap", IDLE, EarlyTick(400), {"timer_at_ms": 1_000},
           (SetTimer(1_000),)),
    Clause("and never postpones it", IDLE._replace(timer_at_ms=700), EarlyTick(400), {}),
    Clause("nor sets it again where it is", IDLE._replace(timer_at_ms=1_000), EarlyTick(400), {}),
    Clause("an early tick waits for the cycle", BUSY, EarlyTick(4_000), {"early": True}),
    Clause("and for the gap after it", HURRIED, Settle(6_000, DONE),
           {**SETTLED, "cursors": NEXT, "timer_at_ms": 7_000, "early": False},
           (Report(DONE), SetTimer(7_000))),
    Clause("a cycle that failed does not shorten the gap", HURRIED, Settle(6_000, FAILED),
           {**SETTLED, "timer_at_ms": 7_000, "early": False}, (Report(FAILED), SetTimer(7_000))),
    Clause("early ticks to an inert one are lost", INERT, EarlyTick(4_000), {}),
    Clause("early ticks during a stop are lost", STOPPING, EarlyTick(4_000), {}),
    Clause("a stop clears the timer", IDLE, Stop(2_000), OVER, (CLEARED, Finish(End.DRAINED))),
    Clause("a stop of an inert one is over", INERT, Stop(2_000), {}, (Finish(End.DRAINED),)),
    Clause("a stop waits for the cycle", BUSY, Stop(2_000),
           {"phase": Phase.STOPPING, "timer_at_ms": 7_000}, (SetTimer(7_000),)),
    Clause("and forgets what was asked for", ASKED._replace(early=True), Stop(2_000),
           {"phase": Phase.STOPPING, "timer_at_ms": 7_000, "requested": False, "early": False},
           (SetTimer(7_000),)),
    Clause("a second stop prolongs nothing", STOPPING, Stop(3_000), {}),
    Clause("a settle ends the stop", STOPPING, Settle(6_000, DONE),
           {**OVER, **SETTLED, "cursors": NEXT}, (CLEARED, Report(DONE), Finish(End.DRAINED))),
    Clause("a failure ends it too", STOPPING, Settle(6_000, FAILED), {**OVER, **SETTLED},
           (CLEARED, Report(FAILED), Finish(End.DRAINED))),
    Clause("the wait is bounded", STOPPING, Fire(7_000), OVER, (CLEARED, Finish(End.TIMED_OUT))),
    Clause("an old cycle settles at last", OUTLIVED, Settle(6_000, DONE),
           {**SETTLED, "cursors": NEXT}, (Report(DONE),)),
    Clause("an old cycle can be waited for again", OUTLIVED, Stop(2_000),
           {"phase": Phase.STOPPING, "timer_at_ms": 7_000}, (SetTimer(7_000),)),
]  # fmt: skip


@pytest.mark.scenario(210, 211, 212, 213, 214, 215)
@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.name)
@pytest.mark.adr("0036", "4.1")
@pytest.mark.adr("0008", "1")
def test_the_clause(clause: Clause) -> None:
    after, commands = advance(OPTIONS, clause.before, clause.event)
    assert after == clause.before._replace(**clause.changes)  # type: ignore[arg-type]
    assert [(type(each), each) for each in commands] == [
        (type(each), each) for each in clause.commands
    ]


def test_an_interval_shorter_than_the_gap_is_not_prolonged_by_an_early_tick() -> None:
    options = OPTIONS._replace(interval_ms=500)
    assert advance(options, HURRIED, Settle(6_000, DONE)).after.timer_at_ms == 6_500


def test_a_settle_without_a_cycle_is_a_broken_rule() -> None:
    for state in (INERT, IDLE):
        with pytest.raises(InvariantBroken):
            advance(OPTIONS, state, Settle(1, DONE))


@pytest.mark.scenario(217)
@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("interval_ms", 250, 86_400_000),
        ("initial_delay_ms", 0, 86_400_000),
        ("stop_ms", 1, 60_000),
        ("early_gap_ms", 250, 86_400_000),
    ],
)
def test_options_have_ranges(field: str, least: int, most: int) -> None:
    for fine in (least, most):
        options = OPTIONS._replace(**{field: fine})
        assert check_options(options) == options
    for wrong in (least - 1, most + 1, True, 300.0, "300", None):
        with pytest.raises(UsageError) as caught:
            check_options(OPTIONS._replace(**{field: wrong}))  # type: ignore[arg-type]
        assert caught.value.details == {"field": field}


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        (Profile.EDGE, Options(30_000, 0, 5_000, 1_000)),
        (Profile.STANDALONE, Options(2_000, 0, 5_000, 250)),
    ],
)
def test_the_local_profiles_have_fine_options(profile: Profile, options: Options) -> None:
    assert check_options(options_of(local_policy(profile))) == options


# Every life of a few events: whoever hosts the machine sees one timer, one cycle, one end a stop.

DEPTH = 6
WAITS_MS = (0, 300, 5_000, 31_000)


class Watch(NamedTuple):
    """What a host has seen so far."""

    state: Lifecycle
    now_ms: int = 0
    timer: bool = False
    in_flight: bool = False
    settled_ms: int = 0  # since the start
    asked: bool = False  # a request since the last cycle began


def events(seen: Watch) -> Iterator[Event]:
    for wait_ms in WAITS_MS:
        now_ms = seen.now_ms + wait_ms
        yield Start(now_ms)
        yield Stop(now_ms)
        yield EarlyTick(now_ms)
        if seen.timer:
            yield Fire(now_ms)
        if seen.in_flight:
            yield Settle(now_ms, DONE)
            yield Settle(now_ms, FAILED)
    yield Request()


def watched(seen: Watch, event: Event) -> Watch:
    """Carry the commands out as a host would, and look at every step."""
    now_ms = seen.now_ms if isinstance(event, Request) else event.now_ms
    timer, in_flight = seen.timer, seen.in_flight
    after, commands = advance(OPTIONS, seen.state, event)
    asked = seen.asked or isinstance(event, Request)
    settled_ms = seen.settled_ms
    if isinstance(event, Settle):
        in_flight, settled_ms = False, now_ms
    if isinstance(event, Start) and commands:
        settled_ms = 0  # who starts again has said when
    if isinstance(event, Fire) and now_ms >= (seen.state.timer_at_ms or 0):
        timer = False
    for command in commands:
        if isinstance(command, SetTimer):
            timer = True
            assert command.at_ms >= now_ms or isinstance(event, Fire)
        elif isinstance(command, ClearTimer):
            timer = False
        elif isinstance(command, RunCycle):
            assert not in_flight
            assert not timer
            assert command.cursors == after.cursors
            assert seen.state.phase is after.phase is Phase.RUNNING
            in_flight = True
            asked = False
    check(Step(after, commands), timer=timer, in_flight=in_flight)
    if after.phase is not Phase.RUNNING:
        asked = False
    return Watch(after, now_ms, timer, in_flight, settled_ms, asked)


def check(step: Step, *, timer: bool, in_flight: bool) -> None:
    after = step.after
    assert (timer, in_flight) == (after.timer_at_ms is not None, after.in_flight)
    if after.phase is Phase.RUNNING:
        assert timer != in_flight
    elif after.phase is Phase.STOPPING:
        assert timer
        assert in_flight
    else:
        assert not timer
    assert lifecycle.can_start(after) == (after.phase is Phase.INERT and not in_flight)
    if any(isinstance(each, Finish) for each in step.commands):
        assert after.phase is Phase.INERT


@pytest.mark.adr("0036", "4.1")
@pytest.mark.adr("0008", "1")
def test_every_short_life_keeps_the_invariants() -> None:
    """Breadth first over the distinct sights of a host."""
    layer = {Watch(Lifecycle())}
    seen = set(layer)
    for _ in range(DEPTH):
        reached = {watched(each, event) for each in layer for event in events(each)}
        layer = reached - seen
        seen |= layer
    assert len(seen) > 1_000
    phases = {(each.state.phase, each.in_flight) for each in seen}
    assert len(phases) == 5
    for each in seen:
        assert each.asked == (each.state.requested and each.in_flight)
        timer_at_ms = each.state.timer_at_ms
        if each.state.phase is Phase.RUNNING and timer_at_ms is not None and each.settled_ms:
            assert timer_at_ms >= each.settled_ms + min(OPTIONS.early_gap_ms, OPTIONS.interval_ms)
