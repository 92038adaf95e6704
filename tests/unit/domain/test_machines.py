"""Each row of the three tables taken through its real function, and every other pair refused."""

import enum
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as dispatches
from qinglong_edge.domain import evidence as looking
from qinglong_edge.domain import machines
from qinglong_edge.domain import resolution as settling
from qinglong_edge.domain.approval import Approval
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.execution import Outcome, Progress
from qinglong_edge.domain.machines import (
    APPROVAL,
    CONTROL,
    EXECUTION,
    ApprovalEvent,
    ApprovalState,
    ControlEvent,
    ControlStatus,
    ExecutionEvent,
    ExecutionStatus,
    Machine,
)
from qinglong_edge.domain.recovery import Decision
from qinglong_edge.domain.resolution import Case, Settled
from qinglong_edge.domain.tick import Now
from tests.support.builders import (
    FENCE,
    HOUR_MS,
    LEASE_MS,
    approval,
    at,
    cancel_command,
    claim_command,
    consume_command,
    control,
    decide_command,
    dispatch,
    fence,
    progress,
    start_command,
)
from tests.support.clock import WALL_MS
from tests.support.recovering import (
    CONFLICT,
    MISSING,
    claim_scan,
    observe_command,
    person_command,
    principal,
    scan_fence,
)

A, E, C = ApprovalState, ExecutionStatus, ControlStatus
MACHINES: tuple[Machine[Any, Any], ...] = (APPROVAL, EXECUTION, CONTROL)
Key = tuple[str, enum.StrEnum, enum.StrEnum, enum.StrEnum]


class Variant(NamedTuple):
    """One way to send an event: which outcome is asked for, and past the start deadline or not."""

    to: ExecutionStatus
    late: bool


VARIANTS = [Variant(to, late) for to in ExecutionStatus for late in (False, True)]
OUTCOMES = {E.FAILED: Outcome.FAILED, E.BLOCKED: Outcome.INDETERMINATE}
DECISIONS = {E.FAILED: Decision.CONFIRM_FAILED, E.BLOCKED: Decision.ABANDON_UNKNOWN}
Sender = Callable[[Any], object]


def approval_senders(version: int) -> dict[ApprovalEvent, Sender]:
    """Return, by event, a call with everything right about it but perhaps the state."""

    def decide(approved: bool) -> Sender:
        event = decide_command(decision_id="new", approved=approved, expected_version=version)
        return lambda before: approvals.decide(before, event, at(5))

    spend = consume_command(consumption_id="new", expected_version=version)
    return {
        ApprovalEvent.APPROVE: decide(approved=True),
        ApprovalEvent.REJECT: decide(approved=False),
        ApprovalEvent.CONSUME: lambda before: approvals.consume(before, spend, at(5)),
        ApprovalEvent.CANCEL: lambda before: approvals.cancel(
            before, cancel_command(cancel_id="new"), at(5)
        ),
        ApprovalEvent.VOID: lambda before: Changed(approvals.void(before)),
    }


def execution_senders(version: int, variant: Variant) -> dict[ExecutionEvent, Sender]:
    """Return the same for an execution: the lease is held for a start, and over for the rest."""
    wall_ms = WALL_MS + HOUR_MS if variant.late else None
    held, early, now = fence(version), at(2_000, wall_ms=wall_ms), at(40_000, wall_ms=wall_ms)
    retry = None if variant.to is E.BLOCKED else 1_000
    outcome = OUTCOMES.get(variant.to, Outcome.SUCCEEDED)
    return {
        ExecutionEvent.CLAIM: lambda before: dispatches.claim(
            dispatch(), before, claim_command(token="new"), now
        ),
        ExecutionEvent.START: lambda before: dispatches.start(
            dispatch(), before, start_command(fence=held), early, policy=FENCE
        ),
        ExecutionEvent.RENEW: lambda before: dispatches.renew(
            before, dispatches.Renew("dsp-1", held, LEASE_MS), now
        ),
        ExecutionEvent.RELEASE: lambda before: dispatches.release(
            before, dispatches.Release("dsp-1", held, "new", "busy", retry), now
        ),
        ExecutionEvent.PUT_BACK: lambda before: dispatches.put_back(
            before, dispatches.PutBack("dsp-1", held), now
        ),
        ExecutionEvent.COMPLETE: lambda before: dispatches.complete(
            before, dispatches.Complete("dsp-1", held, "new", outcome, "done"), now
        ),
        ExecutionEvent.EXPIRE: lambda before: dispatches.expire(
            before, dispatches.Expire("dsp-1", held), now
        ),
        ExecutionEvent.CANCEL: lambda before: dispatches.cancel(before, "new", now),
        ExecutionEvent.VOID: lambda before: Changed(
            dispatches.void(before, "restored_from_backup", now)
        ),
        ExecutionEvent.RESOLVE: by_person(version, variant.to, now),
    }


def by_person(version: int, to: ExecutionStatus, now: Now) -> Sender:
    event = person_command(
        execution_version=version,
        decision=DECISIONS.get(to, Decision.CONFIRM_SUCCEEDED),
        principal=principal(authenticated_at_ms=now.at_ms, authenticated_tick=now.tick),
    )
    return lambda before: settling.by_person(
        Case(dispatch(), before, None), event, now, policy=FENCE
    )


def control_senders(before: Progress) -> list[tuple[ControlEvent, Sender]]:
    """Return what moves a control: its resolver, and what becomes of its execution.

    The scan lease of the builders is over, so that the next resolver may claim.
    """
    execution, watch = before
    assert watch is not None
    cause = execution_senders(execution.version, Variant(E.SUCCEEDED, late=False))
    held = scan_fence(watch.version, execution_version=execution.version)

    def look(found: looking.Evidence) -> Sender:
        event = observe_command(fence=held, evidence=found)
        return lambda row: looking.observe(row, event, at(70_000))

    return [
        (ControlEvent.REARM, cause[ExecutionEvent.RENEW]),
        (ControlEvent.REARM, cause[ExecutionEvent.EXPIRE]),
        (ControlEvent.CLOSE, cause[ExecutionEvent.COMPLETE]),
        (ControlEvent.CLOSE, cause[ExecutionEvent.RESOLVE]),
        (ControlEvent.CLAIM, lambda row: looking.claim(row, claim_scan(token="new"), at(70_000))),
        (ControlEvent.OBSERVE, look(MISSING)),
        (ControlEvent.OBSERVE, look(CONFLICT)),
    ]


class Taken(NamedTuple):
    """What became of one event sent to one value; `after` is None where it was refused."""

    key: Key | None
    before: Approval | Progress
    after: Approval | Progress | None


def sent(sender: Sender, before: Approval | Progress, *, may_raise: bool = False) -> Any:
    """Return the new value, or None for a refusal; only a void may be a bug instead of one."""
    try:
        answer = sender(before)
    except InvariantBroken:
        assert may_raise
        return None
    if type(answer) is Changed:
        after = answer.after
        return after.progress if isinstance(after, Settled) else after
    assert isinstance(answer, enum.Enum)
    return None


def send_to_approvals(state: ApprovalState, event: ApprovalEvent) -> Taken:
    before = approval(state)
    sender = approval_senders(before.version)[event]
    after = sent(sender, before, may_raise=event is ApprovalEvent.VOID)
    key = (APPROVAL.name, state, event, after.state) if isinstance(after, Approval) else None
    return Taken(key, before, after)


def send_to_executions(state: ExecutionStatus, event: ExecutionEvent) -> Iterator[Taken]:
    for variant in VARIANTS:
        before = progress(state)
        sender = execution_senders(before.execution.version, variant)[event]
        after = sent(sender, before, may_raise=event is ExecutionEvent.VOID)
        key = None
        if isinstance(after, Progress):
            key = (EXECUTION.name, state, event, after.execution.status)
        yield Taken(key, before, after)


def watched(status: ControlStatus) -> Progress:
    return progress(E.SUCCEEDED if status is C.RESOLVED else E.EXECUTING, control(status))


def send_to_controls(status: ControlStatus) -> Iterator[tuple[ControlEvent, Taken]]:
    before = watched(status)
    for event, sender in control_senders(before):
        after = sent(sender, before)
        key = None
        if isinstance(after, Progress) and after.control is not None:
            key = (CONTROL.name, status, event, after.control.status)
        yield event, Taken(key, before, after)


def all_taken() -> Iterator[Taken]:
    for state in ApprovalState:
        yield from (send_to_approvals(state, event) for event in ApprovalEvent)
    for status in ExecutionStatus:
        for event in ExecutionEvent:
            yield from send_to_executions(status, event)
    for watch in ControlStatus:
        yield from (taken for _, taken in send_to_controls(watch))


def rows(machine: Machine[Any, Any]) -> set[Key]:
    return {
        (machine.name, state, event, to)
        for (state, event), targets in machine.rows.items()
        for to in targets
    }


@pytest.mark.adr("0009", "1")
@pytest.mark.adr("0001", "6")
def test_every_row_is_taken_through_its_real_function_and_no_other() -> None:
    """The coverage of the tables: what is not taken is a row without a function."""
    wanted = {row for machine in MACHINES for row in rows(machine)}
    assert {taken.key for taken in all_taken()} - {None} == wanted


EXECUTION_PAIRS = [(s, e) for s in ExecutionStatus for e in ExecutionEvent]
APPROVAL_PAIRS = [(s, e) for s in ApprovalState for e in ApprovalEvent]


@pytest.mark.scenario(48, 49, 83, 103, 156)
@pytest.mark.adr("0001", "6")
@pytest.mark.parametrize(("state", "event"), APPROVAL_PAIRS)
def test_an_approval_moves_by_its_table_only(state: ApprovalState, event: ApprovalEvent) -> None:
    taken = send_to_approvals(state, event)
    assert taken.before == approval(state)
    if APPROVAL.allows(state, event):
        assert isinstance(taken.after, Approval)
        assert taken.key in rows(APPROVAL)
        assert isinstance(taken.before, Approval)
        assert taken.after.version == taken.before.version + (taken.after.state is not state)
    else:
        assert taken.after is None


@pytest.mark.scenario(83, 103, 156)
@pytest.mark.adr("0001", "6")
@pytest.mark.parametrize(("state", "event"), EXECUTION_PAIRS)
def test_an_execution_moves_by_its_table_only(
    state: ExecutionStatus, event: ExecutionEvent
) -> None:
    for taken in send_to_executions(state, event):
        assert taken.before == progress(state)
        if taken.after is None:
            assert not EXECUTION.allows(state, event)
            continue
        assert isinstance(taken.after, Progress)
        assert isinstance(taken.before, Progress)
        assert taken.key in rows(EXECUTION)
        assert taken.after.execution.version == taken.before.execution.version + 1


@pytest.mark.adr("0001", "6")
@pytest.mark.parametrize("status", ControlStatus)
def test_a_control_moves_by_its_table_only(status: ControlStatus) -> None:
    for event, taken in send_to_controls(status):
        if taken.after is None:
            assert not CONTROL.allows(status, event)
            continue
        assert isinstance(taken.after, Progress)
        assert isinstance(taken.before, Progress)
        assert taken.before.control is not None
        assert taken.after.control is not None
        assert taken.key in rows(CONTROL)
        assert taken.after.control.version == taken.before.control.version + 1
        assert taken.after.control.execution_version == taken.after.execution.version


@pytest.mark.scenario(156)
@pytest.mark.adr("0001", "6")
@pytest.mark.parametrize("status", ControlStatus)
def test_every_pair_of_a_control_is_sent(status: ControlStatus) -> None:
    """Whichever event has no row here was refused above, not left out."""
    answers = list(send_to_controls(status))
    assert {event for event, _ in answers} == set(ControlEvent)
    moved = {event for event, taken in answers if taken.after is not None}
    assert moved == {event for event in ControlEvent if CONTROL.allows(status, event)}


@pytest.mark.scenario(156)
@pytest.mark.adr("0033", "7.2")
def test_nothing_leads_back_over_the_barrier_or_out_of_a_verdict() -> None:
    past = {E.EXECUTING, E.SUCCEEDED, E.FAILED, E.BLOCKED}
    for (state, _), targets in EXECUTION.rows.items():
        assert state not in {E.SUCCEEDED, E.FAILED, E.BLOCKED}
        if state is E.EXECUTING:
            assert set(targets) <= past
    assert {state for state, _ in CONTROL.rows} == set(ControlStatus) - {C.RESOLVED}
    final = {A.REJECTED, A.CONSUMED, A.CANCELLED, A.EXPIRED}
    left = {(state, to) for (state, _), targets in APPROVAL.rows.items() for to in targets}
    assert {state for state, to in left if state is not to} == set(ApprovalState) - final


@pytest.mark.adr("0033", "2.2")
def test_only_the_barrier_leads_to_executing() -> None:
    into = {row[1:3] for row in rows(EXECUTION) if row[3] is E.EXECUTING}
    assert into == {
        (E.LEASED, ExecutionEvent.START),
        (E.EXECUTING, ExecutionEvent.RENEW),
        (E.EXECUTING, ExecutionEvent.EXPIRE),
    }


def test_the_named_sets_are_those_of_the_tables() -> None:
    assert set(ExecutionStatus) - {state for state, _ in EXECUTION.rows} == machines.TERMINAL
    starts = {state for state, event in EXECUTION.rows if event is ExecutionEvent.CANCEL}
    assert starts == machines.NOT_STARTED
    opens = {state for state, event in APPROVAL.rows if event is ApprovalEvent.VOID}
    assert opens == machines.OPEN_APPROVALS


@pytest.mark.adr("0033", "1.1")
def test_effective_readings_are_no_rows() -> None:
    words = {word.value for row in rows(EXECUTION) for word in (row[1], row[3])}
    assert not words & {"recovery_required", "due", "manual_required", "expired"}


MOVES: list[tuple[Machine[Any, Any], enum.StrEnum, enum.StrEnum, enum.StrEnum | None]] = [
    (EXECUTION, E.LEASED, ExecutionEvent.START, None),
    (EXECUTION, E.LEASED, ExecutionEvent.START, E.SUCCEEDED),
    (EXECUTION, E.EXECUTING, ExecutionEvent.CLAIM, None),
    (EXECUTION, E.SUCCEEDED, ExecutionEvent.COMPLETE, E.FAILED),
    (EXECUTION, E.LEASED, ExecutionEvent.RENEW, E.EXECUTING),
    (APPROVAL, A.REJECTED, ApprovalEvent.APPROVE, A.APPROVED),
    (CONTROL, C.RESOLVED, ControlEvent.CLAIM, C.LEASED),
]


@pytest.mark.parametrize(("machine", "state", "event", "to"), MOVES)
def test_a_move_without_its_row_is_a_bug(
    machine: Machine[Any, Any],
    state: enum.StrEnum,
    *,
    event: enum.StrEnum,
    to: enum.StrEnum | None,
) -> None:
    with pytest.raises(InvariantBroken):
        machine.move(state, event, to)


def test_a_move_chooses_among_the_targets_of_its_row() -> None:
    assert EXECUTION.move(E.LEASED, ExecutionEvent.START, E.BLOCKED) is E.BLOCKED
    assert EXECUTION.move(E.LEASED, ExecutionEvent.RENEW) is E.LEASED
    assert EXECUTION.move(E.LEASED, ExecutionEvent.RENEW, E.LEASED) is E.LEASED
    assert EXECUTION.allows(E.LEASED, ExecutionEvent.START)
    assert not EXECUTION.allows(E.PENDING, ExecutionEvent.START)
