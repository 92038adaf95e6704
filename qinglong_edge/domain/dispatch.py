"""Claim, start, renew, release, put back, complete, expire: the lease rule and the start barrier.

The barrier: `start` moves a leased execution to `executing` and arms its recovery control; the
store commits both in one transaction *before* `execute` is called. No event leads back from there
to due: an action past the barrier ends by its own answer, by evidence, or by a person.

The lease deadline decides when others may take over or look. It never decides who may speak after
the barrier: only the fence (owner, token, version) does that.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import lease as leases
from qinglong_edge.domain import recovery
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.execution import (
    Dispatch,
    Execution,
    Fence,
    Outcome,
    Progress,
    fence_of,
    lease_expired,
)
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import (
    EXECUTION,
    NOT_STARTED,
    TERMINAL,
    ExecutionEvent,
    ExecutionStatus,
)
from qinglong_edge.domain.policy import PolicyFence
from qinglong_edge.domain.recovery import Resolution
from qinglong_edge.domain.tick import Now, Trust


class DispatchRefusal(enum.Enum):
    """Name why an execution did not change."""

    NOT_FOUND = "dispatch_not_found"
    NOT_DUE = "not_due"
    LEASED = "leased"
    EXECUTING = "executing"
    RECOVERY_REQUIRED = "recovery_required"
    ALREADY_TERMINAL = "already_terminal"
    ALREADY_STARTED = "already_started"
    FENCE_REJECTED = "fence_rejected"
    BINDING_CONFLICT = "binding_conflict"
    MUTATION_DRIFT = "dispatch_mutation_conflict"
    CLOCK_UNTRUSTED = "clock_untrusted"


class Claim(NamedTuple):
    """Ask for the lease of one due dispatch."""

    dispatch_id: str
    owner: str
    token: str
    lease_ms: int


class Start(NamedTuple):
    """Ask for the barrier; approval and digest prove that the caller means this very action."""

    dispatch_id: str
    approval_request_id: str
    action_digest: str
    fence: Fence


class Renew(NamedTuple):
    """Ask for more time under a held fence; an expiry never moves closer."""

    dispatch_id: str
    fence: Fence
    lease_ms: int


class Release(NamedTuple):
    """Let a leased dispatch go before its barrier.

    `retry_after_ms` None blocks it; `spend` False gives the attempt back (W10).
    """

    dispatch_id: str
    fence: Fence
    mutation_id: str
    result_code: str
    retry_after_ms: int | None
    spend: bool = True


class PutBack(NamedTuple):
    """Return an unreached item of a page: due now, attempt given back."""

    dispatch_id: str
    fence: Fence


class Complete(NamedTuple):
    """Record the handler's answer."""

    dispatch_id: str
    fence: Fence
    mutation_id: str
    outcome: Outcome
    result_code: str


class Expire(NamedTuple):
    """Say that no answer came: hand the unknown outcome to recovery at once (W1)."""

    dispatch_id: str
    fence: Fence


Answer = Changed[Progress] | Replayed[Progress] | DispatchRefusal

NOT_REACHED = "not_reached"
OWNER_DIED = "owner_died"
ATTEMPTS_EXHAUSTED = "attempt_budget_exhausted"
START_DEADLINE_PASSED = "start_deadline_passed"
FENCE_CHANGED = "policy_fence_changed"
CANCELLED = "cancelled_before_start"
_STATUS = {
    Outcome.SUCCEEDED: ExecutionStatus.SUCCEEDED,
    Outcome.FAILED: ExecutionStatus.FAILED,
    Outcome.INDETERMINATE: ExecutionStatus.BLOCKED,
}


def claim(dispatch: Dispatch, before: Progress, event: Claim, now: Now) -> Answer:
    """Lease a due dispatch, or block one whose budget or start deadline is spent."""
    execution = before.execution
    if execution.status in TERMINAL:
        return DispatchRefusal.ALREADY_TERMINAL
    if execution.status is ExecutionStatus.EXECUTING:
        expired = lease_expired(execution, now)
        return DispatchRefusal.RECOVERY_REQUIRED if expired else DispatchRefusal.EXECUTING
    lease = execution.lease
    if lease is not None and leases.runs(lease, now):
        mine = leases.is_of(lease, event.owner, event.token)
        return Replayed(before) if mine else DispatchRefusal.LEASED
    if execution.eligible_tick is None or execution.eligible_tick > now.tick:
        return DispatchRefusal.NOT_DUE
    if now.trust is not Trust.TRUSTED:
        return DispatchRefusal.CLOCK_UNTRUSTED
    if now.at_ms >= dispatch.start_deadline_ms:
        return _block(before, ExecutionEvent.CLAIM, "claim", START_DEADLINE_PASSED, now=now)
    if execution.attempt_count >= execution.max_attempts:
        return _block(before, ExecutionEvent.CLAIM, "exhausted", ATTEMPTS_EXHAUSTED, now=now)
    taken = leases.take(event.owner, event.token, event.lease_ms, now)
    held = execution._replace(
        status=EXECUTION.move(execution.status, ExecutionEvent.CLAIM, ExecutionStatus.LEASED),
        attempt_count=execution.attempt_count + 1,
        eligible_tick=taken.expires_tick,
        lease=taken,
        result_mutation_id=None,
    )
    return _next(before, held, now)


def start(
    dispatch: Dispatch, before: Progress, event: Start, now: Now, *, policy: PolicyFence
) -> Answer:
    """Pass the barrier, or block: the last look at deadline and policy happens here (W2).

    `policy` is the requester's fence as the same transaction reads it.
    """
    asked = (event.approval_request_id, event.action_digest)
    if asked != (dispatch.approval_request_id, dispatch.action.action_digest):
        return DispatchRefusal.BINDING_CONFLICT
    execution = before.execution
    if _started_by(before, event.fence) or _ended_by(
        execution, f"start:{event.fence.version}", event.fence.version
    ):
        return Replayed(before)
    if not EXECUTION.allows(execution.status, ExecutionEvent.START):
        return DispatchRefusal.FENCE_REJECTED
    if fence_of(execution) != event.fence or lease_expired(execution, now):
        return DispatchRefusal.FENCE_REJECTED
    if now.trust is not Trust.TRUSTED:
        return DispatchRefusal.CLOCK_UNTRUSTED
    if now.at_ms >= dispatch.start_deadline_ms:
        return _block(before, ExecutionEvent.START, "start", START_DEADLINE_PASSED, now=now)
    if policy != dispatch.fence:
        return _block(before, ExecutionEvent.START, "start", FENCE_CHANGED, now=now)
    at_ms = now.stamp(execution.updated_at_ms)
    started = execution._replace(
        status=EXECUTION.move(execution.status, ExecutionEvent.START, ExecutionStatus.EXECUTING),
        eligible_tick=None,
        started_at_ms=at_ms,
    )
    after = _next(before, started, now).after
    next_scan = execution.eligible_tick if execution.eligible_tick is not None else now.tick
    control = recovery.arm(after.execution.version, next_scan, at_ms)
    return Changed(after._replace(control=control))


def renew(before: Progress, event: Renew, now: Now) -> Answer:
    """Prolong a held lease, expired or not, as long as nobody replaced it."""
    execution, lease = before.execution, before.execution.lease
    if lease is None or not _may_prolong(before, ExecutionEvent.RENEW):
        return DispatchRefusal.FENCE_REJECTED
    if _follows(before, event.fence) and _was_renewed(before, lease, event.lease_ms):
        return Replayed(before)
    if fence_of(execution) != event.fence:
        return DispatchRefusal.FENCE_REJECTED
    prolonged = leases.prolong(lease, event.lease_ms, now)
    if execution.status is ExecutionStatus.LEASED:
        held = execution._replace(lease=prolonged, eligible_tick=prolonged.expires_tick)
        return _next(before, held, now)
    return _watched(before, prolonged, now)


def expire(before: Progress, event: Expire, now: Now) -> Answer:
    """End the lease of an execution that gave no answer; the outcome stays open."""
    execution, lease = before.execution, before.execution.lease
    if lease is None or not _may_prolong(before, ExecutionEvent.EXPIRE):
        return DispatchRefusal.FENCE_REJECTED
    if _follows(before, event.fence) and lease.expires_tick == lease.from_tick:
        return Replayed(before)
    if fence_of(execution) != event.fence:
        return DispatchRefusal.FENCE_REJECTED
    return _watched(before, lease._replace(from_tick=now.tick, expires_tick=now.tick), now)


def release(before: Progress, event: Release, now: Now) -> Answer:
    """Let go before the barrier: wait for a retry while the budget lasts, else block."""
    execution = before.execution
    if _ended_by(execution, event.mutation_id, event.fence.version):
        waits = event.retry_after_ms is not None
        spent = execution.attempt_count >= execution.max_attempts
        status = ExecutionStatus.RETRY_WAIT if waits and not spent else ExecutionStatus.BLOCKED
        same = (execution.last_result_code, execution.status) == (event.result_code, status)
        return Replayed(before) if same else DispatchRefusal.MUTATION_DRIFT
    if execution.status is ExecutionStatus.EXECUTING:
        return DispatchRefusal.ALREADY_STARTED
    if not _held(execution, event.fence, ExecutionEvent.RELEASE):
        return DispatchRefusal.FENCE_REJECTED
    attempts = execution.attempt_count - (0 if event.spend else 1)
    if event.retry_after_ms is None or attempts >= execution.max_attempts:
        return end(before, ExecutionEvent.RELEASE, (event.mutation_id, event.result_code), now=now)
    return _wait(before, ExecutionEvent.RELEASE, event, attempts=attempts, now=now)


def put_back(before: Progress, event: PutBack, now: Now) -> Answer:
    """Return an unreached item: eligible now, its attempt given back."""
    execution = before.execution
    mutation_id = f"put_back:{event.fence.version}"
    if _ended_by(execution, mutation_id, event.fence.version):
        return Replayed(before)
    if not _held(execution, event.fence, ExecutionEvent.PUT_BACK):
        return DispatchRefusal.FENCE_REJECTED
    as_release = Release(event.dispatch_id, event.fence, mutation_id, NOT_REACHED, 0)
    attempts = execution.attempt_count - 1
    return _wait(before, ExecutionEvent.PUT_BACK, as_release, attempts=attempts, now=now)


def complete(
    before: Progress, event: Complete, now: Now, *, known: Resolution | None = None
) -> Answer:
    """Close an execution exactly once; the first verdict wins.

    The lease deadline is deliberately not consulted: it decides when recovery may look, never who
    may speak (ADR-0033, 6). `known` is how recovery settled it meanwhile: an answer that says the
    same under the fence that was settled is a replay, another one comes too late (W1).
    """
    execution, control = before
    if known is not None:
        settled = (execution.status, known.execution_version)
        same = settled == (_STATUS[event.outcome], event.fence.version)
        return Replayed(before) if same else DispatchRefusal.FENCE_REJECTED
    if execution.status in TERMINAL:
        if execution.result_mutation_id != event.mutation_id:
            return DispatchRefusal.ALREADY_TERMINAL
        same = (
            execution.status is _STATUS[event.outcome]
            and execution.last_result_code == event.result_code
        )
        return Replayed(before) if same else DispatchRefusal.MUTATION_DRIFT
    if control is None or not _held(execution, event.fence, ExecutionEvent.COMPLETE):
        return DispatchRefusal.FENCE_REJECTED
    result = (event.mutation_id, event.result_code)
    return end(before, ExecutionEvent.COMPLETE, result, now=now, to=_STATUS[event.outcome])


def cancel(before: Progress, cancel_id: str, now: Now) -> Answer:
    """Block a dispatch that has not passed its barrier; a holder's start is then refused (W20)."""
    execution = before.execution
    if execution.status in TERMINAL:
        mine = (execution.result_mutation_id, execution.last_result_code) == (cancel_id, CANCELLED)
        return Replayed(before) if mine else DispatchRefusal.ALREADY_TERMINAL
    if execution.status not in NOT_STARTED:
        return DispatchRefusal.ALREADY_STARTED
    return end(before, ExecutionEvent.CANCEL, (cancel_id, CANCELLED), now=now)


def void(before: Progress, code: str, now: Now) -> Progress:
    """Block a dispatch that has not started, because time or history was reset."""
    return _block(before, ExecutionEvent.VOID, "void", code, now=now).after


def _held(execution: Execution, fence: Fence, event: ExecutionEvent) -> bool:
    return EXECUTION.allows(execution.status, event) and fence_of(execution) == fence


def _follows(before: Progress, fence: Fence) -> bool:
    """Tell whether the row is one step past what this fence names, by the same holder."""
    return fence_of(before.execution) == fence._replace(version=fence.version + 1)


def _was_renewed(before: Progress, lease: Lease, lease_ms: int) -> bool:
    """Tell whether the last step can have been this renewal, and no start or expiry."""
    began = before.control is not None and before.control.version == 0
    return not began and leases.covers(lease, lease_ms)


def _may_prolong(before: Progress, event: ExecutionEvent) -> bool:
    watched = before.control is not None or before.execution.status is ExecutionStatus.LEASED
    return watched and EXECUTION.allows(before.execution.status, event)


def _started_by(before: Progress, fence: Fence) -> bool:
    """Tell whether this very start was the last step: its control has not moved since."""
    fresh = before.control is not None and before.control.version == 0
    executing = before.execution.status is ExecutionStatus.EXECUTING
    return executing and fresh and _follows(before, fence)


def _ended_by(execution: Execution, mutation_id: str, version: int) -> bool:
    return execution.result_mutation_id == mutation_id and execution.version == version + 1


def _next(before: Progress, changed: Execution, now: Now) -> Changed[Progress]:
    at_ms = now.stamp(changed.updated_at_ms)
    after = changed._replace(version=changed.version + 1, updated_at_ms=at_ms)
    return Changed(before._replace(execution=after))


def _watched(before: Progress, lease: Lease, now: Now) -> Changed[Progress]:
    moved = _next(before, before.execution._replace(lease=lease), now).after
    if moved.control is None:
        return Changed(moved)
    at_ms = moved.execution.updated_at_ms
    control = recovery.rearm(moved.control, moved.execution.version, lease.expires_tick, at_ms)
    return Changed(moved._replace(control=control))


def _wait(
    before: Progress, event: ExecutionEvent, why: Release, *, attempts: int, now: Now
) -> Changed[Progress]:
    waiting = before.execution._replace(
        status=EXECUTION.move(before.execution.status, event, ExecutionStatus.RETRY_WAIT),
        attempt_count=attempts,
        eligible_tick=now.tick + (why.retry_after_ms or 0),
        lease=None,
        result_mutation_id=why.mutation_id,
        last_result_code=why.result_code,
    )
    return _next(before, waiting, now)


def _block(
    before: Progress, event: ExecutionEvent, prefix: str, code: str, *, now: Now
) -> Changed[Progress]:
    return end(before, event, (f"{prefix}:{before.execution.version}", code), now=now)


def end(
    before: Progress,
    event: ExecutionEvent,
    result: tuple[str, str],
    *,
    now: Now,
    to: ExecutionStatus = ExecutionStatus.BLOCKED,
) -> Changed[Progress]:
    """Close an execution, and its control with it, under one mutation id and result code."""
    mutation_id, code = result
    execution = before.execution
    at_ms = now.stamp(execution.updated_at_ms)
    over = execution._replace(
        status=EXECUTION.move(execution.status, event, to),
        eligible_tick=None,
        lease=None,
        result_mutation_id=mutation_id,
        last_result_code=code,
        completed_at_ms=at_ms,
    )
    ended = _next(before, over, now).after
    if ended.control is None:
        return Changed(ended)
    control = recovery.close(ended.control, ended.execution.version, mutation_id, at_ms)
    return Changed(ended._replace(control=control))
