"""What a reader believes of a stored row: legal values of every state, and each contradiction.

A table of contradictions changes one field of a legal value, or as few as leave one rule to object.
"""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import Risk
from qinglong_edge.domain.approval import Approval, Cancellation, Consumption
from qinglong_edge.domain.execution import Progress
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import ApprovalState, ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.recovery import Control, Finding, Observation
from qinglong_edge.domain.soundness import approval_is_sound, progress_is_sound
from qinglong_edge.domain.tick import Tick
from tests.support.builders import (
    ANA,
    BOB,
    BOT,
    EDGE,
    FENCE,
    LEASE_MS,
    action_binding,
    approval,
    control,
    decision,
    lease,
    progress,
    tick,
)
from tests.support.clock import WALL_MS

A, E, C = ApprovalState, ExecutionStatus, ControlStatus
LIFETIME_MS = limits.APPROVAL_LIFETIME_MS_MAX
VERSION = limits.VERSION_MAX
CANCELLED = Cancellation("can-0", ANA, WALL_MS)
USED = Consumption("con-1", "dsp-1", EDGE, WALL_MS, FENCE)
WORKER = Subject(SubjectType.WORKER, "w-1")
REFUSED = decision(approved=False)
SEEN = Observation("see-1", Finding.MISSING, "nothing_there", None)
STARTED = WALL_MS + 2_000


def used_by(subject: Subject) -> Consumption:
    return USED._replace(consumed_by=subject)


SOUND_APPROVALS = [
    *map(approval, A),
    approval(A.CONSUMED, consumption=used_by(WORKER)),
    approval(A.CONSUMED, cancellation=CANCELLED),
    approval(A.CANCELLED, version=3, decision=decision()),
    approval(A.EXPIRED, version=3, decision=decision()),
    approval(requested_by=ANA),
    *(approval(requested_by=BOT._replace(id="x" * chars)) for chars in (1, 255)),
    approval(A.CONSUMED, consumption=USED._replace(fence=PolicyFence(1, None))),
    approval(A.APPROVED, requested_by=ANA, decision=decision(decided_by=BOB)),
    approval(expires_at_ms=WALL_MS + 1),
    approval(expires_at_ms=WALL_MS + LIFETIME_MS),
    approval(requested_at_ms=0, expires_at_ms=1),
    approval(risk=Risk.CRITICAL),
    approval(risk=Risk.HIGH, repeats="dsp-0"),
    approval(risk=Risk.LOW, action=action_binding(action_type="another.build")),
]

UNSOUND_APPROVALS = [
    approval(expires_at_ms=WALL_MS),
    approval(expires_at_ms=WALL_MS + LIFETIME_MS + 1),
    approval(requested_at_ms=-1, expires_at_ms=1),
    *(approval(A.APPROVED, decision=decision(decided_by=who)) for who in (BOT, EDGE, WORKER)),
    approval(A.APPROVED, requested_by=ANA),
    *(approval(A.CONSUMED, consumption=used_by(who)) for who in (ANA, BOT)),
    *(approval(requested_by=BOT._replace(id=name)) for name in ("", "x" * 256, "x\0")),
    approval(A.APPROVED, decision=decision(decided_by=ANA._replace(id=""))),
    approval(A.CANCELLED, cancellation=CANCELLED._replace(cancelled_by=ANA._replace(id=""))),
    approval(A.CONSUMED, consumption=used_by(EDGE._replace(id=""))),
    approval(A.CONSUMED, consumption=USED._replace(fence=PolicyFence(0, 1))),
    approval(A.CONSUMED, consumption=USED._replace(fence=PolicyFence(1, 0))),
    approval(risk=Risk.LOW),
    approval(risk=Risk.MEDIUM, repeats="dsp-0"),
    approval(version=0),
    approval(version=2),
    approval(decision=decision()),
    approval(consumption=USED),
    approval(cancellation=CANCELLED),
    approval(A.APPROVED, version=1),
    approval(A.APPROVED, version=3),
    approval(A.APPROVED, decision=None),
    approval(A.APPROVED, decision=REFUSED),
    approval(A.APPROVED, consumption=USED),
    approval(A.APPROVED, cancellation=CANCELLED),
    approval(A.REJECTED, version=3),
    approval(A.REJECTED, decision=None),
    approval(A.REJECTED, decision=decision()),
    approval(A.REJECTED, consumption=USED),
    approval(A.REJECTED, cancellation=CANCELLED),
    approval(A.CONSUMED, version=2),
    approval(A.CONSUMED, version=4),
    approval(A.CONSUMED, decision=None),
    approval(A.CONSUMED, decision=REFUSED),
    approval(A.CONSUMED, consumption=None),
    *(approval(state, version=1) for state in (A.CANCELLED, A.EXPIRED)),
    *(approval(state, version=3) for state in (A.CANCELLED, A.EXPIRED)),
    *(approval(state, decision=decision()) for state in (A.CANCELLED, A.EXPIRED)),
    *(approval(state, version=3, decision=REFUSED) for state in (A.CANCELLED, A.EXPIRED)),
    *(approval(state, version=4, decision=decision()) for state in (A.CANCELLED, A.EXPIRED)),
    *(approval(state, consumption=USED) for state in (A.CANCELLED, A.EXPIRED)),
    approval(A.CANCELLED, cancellation=None),
    approval(A.EXPIRED, cancellation=CANCELLED),
]


def leased(held: Lease) -> Progress:
    """Return a claimed action whose next turn comes when that lease ends, as it must."""
    return progress(E.LEASED, lease=held, eligible_tick=held.expires_tick)


def seen(**changes: Any) -> Control:
    return control(finding_count=1, last=SEEN._replace(**changes))


def lasting(ms: int) -> Lease:
    return lease(expires_tick=tick(1_000 + ms))


SOUND_PROGRESS = [
    *map(progress, E),
    progress(E.BLOCKED, control(C.RESOLVED), started_at_ms=STARTED),
    *(progress(E.EXECUTING, control(status)) for status in C if status is not C.RESOLVED),
    *(progress(status, last_result_code="busy") for status in (E.LEASED, E.EXECUTING)),
    progress(E.RETRY_WAIT, version=1, attempt_count=0),
    progress(E.RETRY_WAIT, version=VERSION - 1, attempt_count=4, max_attempts=5),
    progress(eligible_tick=Tick(0)),
    progress(E.BLOCKED, version=VERSION),
    progress(E.LEASED, attempt_count=1, max_attempts=1),
    progress(E.LEASED, attempt_count=limits.ATTEMPTS_MAX, max_attempts=limits.ATTEMPTS_MAX),
    *(progress(E.BLOCKED, result_mutation_id="x" * chars) for chars in (1, 64)),
    *(progress(E.BLOCKED, last_result_code="x" * chars) for chars in (1, 64)),
    *(leased(lease(owner="x" * chars)) for chars in (1, 128)),
    *(leased(lease(token="x" * chars)) for chars in (1, 128)),
    *(leased(lasting(ms)) for ms in (0, limits.LEASE_MS_MAX)),
    progress(E.EXECUTING, control(version=VERSION - 1, finding_count=VERSION, last=SEEN)),
    progress(E.EXECUTING, seen()),
    progress(E.EXECUTING, seen(result_code="x" * 64, evidence_digest="a" * 64)),
    progress(E.SUCCEEDED, control(C.RESOLVED, version=VERSION)),
    progress(E.SUCCEEDED, control(C.RESOLVED, version=0)),
]

UNSOUND_NUMBERS = [
    *(progress(status, version=0) for status in E if status is not E.PENDING),
    progress(E.RETRY_WAIT, version=VERSION),
    progress(E.BLOCKED, version=VERSION + 1),
    progress(eligible_tick=Tick(-1)),
    progress(max_attempts=0),
    progress(max_attempts=limits.ATTEMPTS_MAX + 1),
    progress(E.RETRY_WAIT, attempt_count=-1),
    progress(E.LEASED, attempt_count=6, max_attempts=5),
    *(progress(E.BLOCKED, result_mutation_id="x" * chars) for chars in (0, 65)),
    *(progress(E.BLOCKED, last_result_code="x" * chars) for chars in (0, 65)),
    *(leased(lease(owner="x" * chars)) for chars in (0, 129)),
    *(leased(lease(token="x" * chars)) for chars in (0, 129)),
    progress(E.BLOCKED, last_result_code="x\0"),
    leased(lease(token="x\0")),
    *(leased(lasting(ms)) for ms in (-1, limits.LEASE_MS_MAX + 1)),
]

UNSOUND_EXECUTIONS = [
    progress(version=1),
    progress(attempt_count=1),
    progress(result_mutation_id="rel-1"),
    progress(last_result_code="busy"),
    progress(E.LEASED, lease=None),
    progress(E.LEASED, eligible_tick=None),
    progress(E.LEASED, eligible_tick=tick(1_000 + LEASE_MS + 1)),
    progress(E.LEASED, attempt_count=0),
    progress(E.LEASED, result_mutation_id="rel-1"),
    progress(E.EXECUTING, attempt_count=0),
    progress(E.EXECUTING, result_mutation_id="rel-1"),
    progress(E.EXECUTING, lease=None),
    progress(E.RETRY_WAIT, attempt_count=5, max_attempts=5),
    *(progress(status, eligible_tick=None) for status in (E.PENDING, E.RETRY_WAIT)),
    *(
        progress(status, eligible_tick=tick(0))
        for status in (E.EXECUTING, E.SUCCEEDED, E.FAILED, E.BLOCKED)
    ),
    *(
        progress(status, lease=lease())
        for status in (E.PENDING, E.RETRY_WAIT, E.SUCCEEDED, E.FAILED, E.BLOCKED)
    ),
    *(
        progress(status, control(), started_at_ms=STARTED)
        for status in (E.PENDING, E.LEASED, E.RETRY_WAIT)
    ),
    *(
        progress(status, completed_at_ms=STARTED)
        for status in (E.PENDING, E.LEASED, E.EXECUTING, E.RETRY_WAIT)
    ),
    *(progress(status, completed_at_ms=None) for status in (E.SUCCEEDED, E.FAILED, E.BLOCKED)),
    *(
        progress(status, result_mutation_id=None)
        for status in (E.RETRY_WAIT, E.SUCCEEDED, E.FAILED, E.BLOCKED)
    ),
    *(
        progress(status, last_result_code=None)
        for status in (E.RETRY_WAIT, E.SUCCEEDED, E.FAILED, E.BLOCKED)
    ),
    *(
        progress(status, started_at_ms=None)._replace(control=None)
        for status in (E.EXECUTING, E.SUCCEEDED, E.FAILED)
    ),
]

HELD = Lease("resolver", "probe-1", tick(40_000), tick(70_000))
UNSOUND_CONTROLS = [
    *(progress(status)._replace(control=None) for status in (E.EXECUTING, E.SUCCEEDED, E.FAILED)),
    progress(E.BLOCKED, started_at_ms=STARTED),
    progress(E.BLOCKED, control(C.RESOLVED)),
    progress(E.EXECUTING, control(C.RESOLVED)),
    *(
        progress(status, control(watch), started_at_ms=STARTED)
        for status in (E.SUCCEEDED, E.FAILED, E.BLOCKED)
        for watch in C
        if watch is not C.RESOLVED
    ),
    *(
        progress(E.EXECUTING, watch)
        for watch in (
            control(version=-1),
            control(version=VERSION),
            control(finding_count=1),
            control(finding_count=0, last=SEEN),
            control(finding_count=-1, last=SEEN),
            control(finding_count=VERSION + 1, last=SEEN),
            *(seen(result_code=code) for code in ("", "x" * 65, "x\0")),
            *(seen(evidence_digest="a" * chars) for chars in (0, 62, 66)),
            control(next_scan_tick=Tick(-1)),
            control(next_scan_tick=None),
            control(lease=HELD),
            control(C.LEASED, lease=None),
            control(C.LEASED, next_scan_tick=None),
            control(C.LEASED, next_scan_tick=tick(69_999)),
            control(C.LEASED, lease=HELD._replace(token="")),
            control(C.MANUAL_REQUIRED, next_scan_tick=tick(70_000)),
            control(C.MANUAL_REQUIRED, lease=HELD),
        )
    ),
    *(
        progress(E.SUCCEEDED, watch)
        for watch in (
            control(C.RESOLVED, version=VERSION + 1),
            control(C.RESOLVED, next_scan_tick=tick(70_000)),
            control(C.RESOLVED, lease=HELD),
        )
    ),
]


@pytest.mark.parametrize("value", SOUND_APPROVALS)
def test_an_approval_that_the_rules_lead_to_is_believed(value: Approval) -> None:
    assert approval_is_sound(value)


@pytest.mark.parametrize("value", UNSOUND_APPROVALS)
def test_an_approval_that_contradicts_itself_is_not_believed(value: Approval) -> None:
    assert not approval_is_sound(value)


@pytest.mark.parametrize("value", SOUND_PROGRESS)
def test_an_execution_that_the_rules_lead_to_is_believed(value: Progress) -> None:
    assert progress_is_sound(value)


@pytest.mark.parametrize("value", [*UNSOUND_NUMBERS, *UNSOUND_EXECUTIONS])
def test_an_execution_that_contradicts_itself_is_not_believed(value: Progress) -> None:
    assert not progress_is_sound(value)


@pytest.mark.parametrize("value", UNSOUND_CONTROLS)
def test_a_control_that_contradicts_its_execution_is_not_believed(value: Progress) -> None:
    assert not progress_is_sound(value)
