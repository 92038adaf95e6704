"""The values of a dispatch: what is immutable, what moves, and how a reader should see it.

`recovery_required` is never stored: it is `executing` past its lease, by the clock (ADR-0033, 1).
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import lease as leases
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import ActionBinding, Risk
from qinglong_edge.domain.approval import Approval
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence, Subject
from qinglong_edge.domain.recovery import Control, Resolution
from qinglong_edge.domain.tick import Now, Tick


class Outcome(enum.StrEnum):
    """Name what a handler may answer after the barrier; anything else is no answer."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INDETERMINATE = "indeterminate"


class Dispatch(NamedTuple):
    """Hold what a consumed approval fixed for ever; its id is the idempotency key."""

    dispatch_id: str
    approval_request_id: str
    project_id: str
    action: ActionBinding
    risk: Risk
    requested_by: Subject
    consumed_by: Subject
    created_at_ms: int
    start_deadline_ms: int
    fence: PolicyFence


class Fence(NamedTuple):
    """Prove that the speaker holds the lease it thinks it holds."""

    owner: str
    token: str
    version: int


class Execution(NamedTuple):
    """Hold where the dispatch stands."""

    status: ExecutionStatus
    version: int
    attempt_count: int
    max_attempts: int
    eligible_tick: Tick | None
    lease: Lease | None
    started_at_ms: int | None
    result_mutation_id: str | None
    last_result_code: str | None
    completed_at_ms: int | None
    created_at_ms: int
    updated_at_ms: int


class Progress(NamedTuple):
    """Hold the moving half of an action: its execution and, past the barrier, its control."""

    execution: Execution
    control: Control | None


class Record(NamedTuple):
    """Hold one action whole, as the store read it in one statement."""

    approval: Approval
    dispatch: Dispatch | None
    progress: Progress | None
    key: int  # the store's own number of the action; orders pages, means nothing to people
    resolution: Resolution | None = None


def dispatch_of(approval: Approval) -> Dispatch | None:
    """Return the immutable dispatch of a consumed approval; it is a view, not a second row."""
    used = approval.consumption
    if used is None:
        return None
    return Dispatch(
        used.dispatch_id, approval.approval_request_id, approval.project_id, approval.action,
        approval.risk, approval.requested_by, used.consumed_by, used.consumed_at_ms,
        approval.expires_at_ms, used.fence,
    )  # fmt: skip


def baseline(dispatch: Dispatch, now: Now) -> Progress:
    """Return the execution that the consume commit creates: due at once, nothing tried."""
    at_ms = dispatch.created_at_ms
    return Progress(
        Execution(
            ExecutionStatus.PENDING, 0, 0, limits.ATTEMPTS_DEFAULT, now.tick, None, None, None,
            None, None, at_ms, at_ms,
        ),
        None,
    )  # fmt: skip


def fence_of(execution: Execution) -> Fence | None:
    """Return the fence under which the holder of the lease may speak."""
    if execution.lease is None:
        return None
    return Fence(execution.lease.owner, execution.lease.token, execution.version)


def effective_state(progress: Progress, now: Now) -> str:
    """Return the state a reader should see."""
    execution, control = progress
    status = execution.status
    if status is ExecutionStatus.EXECUTING:
        if control is not None and control.status is ControlStatus.MANUAL_REQUIRED:
            return ControlStatus.MANUAL_REQUIRED.value
        return "recovery_required" if lease_expired(execution, now) else status.value
    due = execution.eligible_tick is not None and execution.eligible_tick <= now.tick
    return "due" if due else status.value


def started_at_ms(execution: Execution) -> int:
    """Return when the barrier was passed; raises `InvariantBroken` before it."""
    if execution.started_at_ms is None:
        raise InvariantBroken("an action that never started has no beginning")
    return execution.started_at_ms


def lease_expired(execution: Execution, now: Now) -> bool:
    """Tell whether nobody holds it any more."""
    return execution.lease is None or not leases.runs(execution.lease, now)
