"""Whether a stored action can be believed: the legal tuples of its states (contract 4, 6, 8).

The database refuses the same on writing. Readers ask here, because a file may be changed by
whoever holds it, and a device may forget: what contradicts itself stays closed, and the rest goes
on (W9).
"""

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import ACTION_TYPES, RISK_RANK, least_risk
from qinglong_edge.domain.approval import Approval, Consumption
from qinglong_edge.domain.execution import Execution, Progress
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import (
    TERMINAL,
    ApprovalState,
    ControlStatus,
    ExecutionStatus,
)
from qinglong_edge.domain.policy import Subject, SubjectType
from qinglong_edge.domain.recovery import Control, Observation
from qinglong_edge.domain.tick import Tick

_CONSUMERS = frozenset({SubjectType.SYSTEM, SubjectType.WORKER})
_DECIDED = {ApprovalState.APPROVED: 2, ApprovalState.REJECTED: 2, ApprovalState.CONSUMED: 3}
_DIGEST_CHARS = 64  # SHA-256 in hexadecimal


def approval_is_sound(approval: Approval) -> bool:
    """Tell whether an approval's fields can stand together."""
    decision, used, gone = approval.decision, approval.consumption, approval.cancellation
    lifetime_ms = approval.expires_at_ms - approval.requested_at_ms
    if not 1 <= lifetime_ms <= limits.APPROVAL_LIFETIME_MS_MAX or approval.requested_at_ms < 0:
        return False
    if decision is not None and (
        decision.decided_by.type is not SubjectType.USER
        or decision.decided_by == approval.requested_by
    ):
        return False
    if used is not None and not _consumption_is_sound(used):
        return False
    speakers = (
        approval.requested_by,
        None if decision is None else decision.decided_by,
        None if gone is None else gone.cancelled_by,
    )
    if not all(speaker is None or _subject_is_sound(speaker) for speaker in speakers):
        return False
    return _risk_is_sound(approval) and _state_is_sound(approval)


def _consumption_is_sound(used: Consumption) -> bool:
    known = used.fence.binding_version
    return (
        used.consumed_by.type in _CONSUMERS
        and _subject_is_sound(used.consumed_by)
        and used.fence.project_version >= 1
        and (known is None or known >= 1)
    )


def _subject_is_sound(subject: Subject) -> bool:
    return _text_is_sound(subject.id, limits.SUBJECT_ID_CHARS_MAX)


def _text_is_sound(text: str, most: int) -> bool:
    """Tell whether a text has 1 to `most` characters, to the database too: it counts to a NUL."""
    return 1 <= len(text) <= most and "\0" not in text


def _risk_is_sound(approval: Approval) -> bool:
    if approval.action.action_type not in ACTION_TYPES:
        return True  # carried by another build, and reachable by none here
    least = least_risk(approval.action.action_type, repeats=approval.repeats is not None)
    return RISK_RANK[approval.risk] >= RISK_RANK[least]


def _state_is_sound(approval: Approval) -> bool:
    decision, used, gone = approval.decision, approval.consumption, approval.cancellation
    state, approved = approval.state, approval.decision is not None and approval.decision.approved
    if state is ApprovalState.PENDING:
        return (approval.version, decision, used, gone) == (1, None, None, None)
    if state in _DECIDED:
        right = approved is (state is not ApprovalState.REJECTED) and decision is not None
        spent = (used is not None) is (state is ApprovalState.CONSUMED)
        withdrawn = gone is not None and state is not ApprovalState.CONSUMED
        return right and spent and not withdrawn and approval.version == _DECIDED[state]
    closed = used is None and (gone is not None) is (state is ApprovalState.CANCELLED)
    from_pending = approval.version == 2 and decision is None  # noqa: PLR2004 - closed at once
    from_approved = approval.version == 3 and approved  # noqa: PLR2004 - closed after a decision
    return closed and (from_pending or from_approved)


def progress_is_sound(progress: Progress) -> bool:
    """Tell whether an execution and its control can stand together."""
    execution, control = progress
    if not _numbers_are_sound(execution) or not _execution_is_sound(execution):
        return False
    if control is None:
        return execution.started_at_ms is None
    over = execution.status in TERMINAL
    if execution.started_at_ms is None or over != (control.status is ControlStatus.RESOLVED):
        return False
    return _control_is_sound(control)


def _numbers_are_sound(execution: Execution) -> bool:
    room = 0 if execution.status in TERMINAL else 1  # what goes on needs a next version
    steps = 0 if execution.status is ExecutionStatus.PENDING else 1  # what moved has counted it
    return (
        steps <= execution.version <= limits.VERSION_MAX - room
        and 1 <= execution.max_attempts <= limits.ATTEMPTS_MAX
        and 0 <= execution.attempt_count <= execution.max_attempts
        and _turn_is_sound(execution.eligible_tick)
        and _name_is_sound(execution.result_mutation_id)
        and _name_is_sound(execution.last_result_code)
        and _lease_is_sound(execution.lease)
    )


def _turn_is_sound(tick: Tick | None) -> bool:
    """Tell whether the queues, which begin with tick 0, can ever come to it."""
    return tick is None or tick >= 0


def _name_is_sound(name: str | None) -> bool:
    return name is None or _text_is_sound(name, limits.ID_CHARS_MAX)


def _lease_is_sound(lease: Lease | None) -> bool:
    if lease is None:
        return True
    length_ms = lease.expires_tick - lease.from_tick
    names = (lease.owner, lease.token)
    named = all(_text_is_sound(name, limits.LEASE_NAME_CHARS_MAX) for name in names)
    return named and 0 <= length_ms <= limits.LEASE_MS_MAX


def _execution_is_sound(execution: Execution) -> bool:
    """Compare which fields are there with what the status says."""
    lease, eligible = execution.lease, execution.eligible_tick
    started = execution.started_at_ms is not None
    result = (execution.result_mutation_id is not None, execution.last_result_code is not None)
    there = (
        eligible is not None,
        lease is not None,
        started,
        execution.completed_at_ms is not None,
    )
    match execution.status:
        case ExecutionStatus.PENDING:
            fresh = (execution.version, execution.attempt_count, result) == (0, 0, (False, False))
            return fresh and there == (True, False, False, False)
        case ExecutionStatus.LEASED:
            held = lease is not None and eligible == lease.expires_tick and not result[0]
            return held and there == (True, True, False, False) and execution.attempt_count >= 1
        case ExecutionStatus.EXECUTING:
            going = execution.attempt_count >= 1 and not result[0]
            return going and there == (False, True, True, False)
        case ExecutionStatus.RETRY_WAIT:
            left = execution.attempt_count < execution.max_attempts
            return left and all(result) and there == (True, False, False, False)
        case ExecutionStatus.BLOCKED:
            return all(result) and there == (False, False, started, True)
        case ExecutionStatus.SUCCEEDED | ExecutionStatus.FAILED:
            return all(result) and there == (False, False, True, True)


def _control_is_sound(control: Control) -> bool:
    room = 0 if control.status is ControlStatus.RESOLVED else 1
    counted = 0 <= control.finding_count <= limits.VERSION_MAX
    found = (control.last is None) == (control.finding_count == 0)
    if not 0 <= control.version <= limits.VERSION_MAX - room or not counted or not found:
        return False
    if control.last is not None and not _observation_is_sound(control.last):
        return False
    lease, next_scan = control.lease, control.next_scan_tick
    if not _lease_is_sound(lease) or not _turn_is_sound(next_scan):
        return False
    match control.status:
        case ControlStatus.ARMED:
            return next_scan is not None and lease is None
        case ControlStatus.LEASED:
            return lease is not None and next_scan == lease.expires_tick
        case ControlStatus.MANUAL_REQUIRED | ControlStatus.RESOLVED:
            return next_scan is None and lease is None


def _observation_is_sound(last: Observation) -> bool:
    digest = last.evidence_digest
    return _text_is_sound(last.result_code, limits.ID_CHARS_MAX) and (
        digest is None or len(digest) == _DIGEST_CHARS
    )
