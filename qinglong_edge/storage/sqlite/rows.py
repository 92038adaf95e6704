"""Rows to values and back; what does not fit is damage, and stays closed (W9)."""

import re
import sqlite3

from qinglong_edge.domain.action import ActionBinding, Risk
from qinglong_edge.domain.approval import Approval, Cancellation, Consumption
from qinglong_edge.domain.approval import Decision as ApprovalDecision
from qinglong_edge.domain.errors import DamagedError, RowDamagedError
from qinglong_edge.domain.execution import Dispatch, Execution, Progress, Record, dispatch_of
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import ApprovalState, ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.recovery import (
    Control,
    Decision,
    Finding,
    Observation,
    Resolution,
    Source,
)
from qinglong_edge.domain.resolution import settles
from qinglong_edge.domain.soundness import approval_is_sound, progress_is_sound
from qinglong_edge.storage.sqlite.transaction import Value

Columns = dict[str, Value]

_NOT_TEXT = re.compile("[\ud800-\udfff]")  # what a byte that is no UTF-8 was read as


def record_from_row(row: sqlite3.Row) -> Record:
    """Return one action; raises `DamagedError` (`row_damaged`, with its key) where it cannot be."""
    if any(type(value) is str and _NOT_TEXT.search(value) for value in row):
        raise _damaged(row)
    try:
        approval = _approval(row)
        progress = None if row["status"] is None else Progress(_execution(row), _control(row))
        dispatch = dispatch_of(approval)
        resolution = None if dispatch is None else _resolution(row, dispatch)
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(row) from error
    if not approval_is_sound(approval):
        raise _damaged(row)
    if dispatch is None or progress is None:
        if dispatch is not None or progress is not None or row["source"] is not None:
            raise _damaged(row)
        return Record(approval, None, None, row["key"])
    if dispatch.created_at_ms != progress.execution.created_at_ms:
        raise _damaged(row)
    if not progress_is_sound(progress):
        raise _damaged(row)
    if resolution is not None and not settles(resolution, progress):
        raise _damaged(row)
    return Record(approval, dispatch, progress, row["key"], resolution)


def _damaged(row: sqlite3.Row) -> DamagedError:
    return RowDamagedError("row_damaged", "an action's row cannot be believed", {"row": row["key"]})


def _require(row: sqlite3.Row, *names: str) -> None:
    """Refuse half a group of columns."""
    if any(row[name] is None for name in names):
        message = "half a group of columns"
        raise ValueError(message)


def _refuse(row: sqlite3.Row, *names: str) -> None:
    """Refuse the other half, which nobody would read."""
    if any(row[name] is not None for name in names):
        message = "half a group of columns"
        raise ValueError(message)


def _flag(value: int) -> bool:
    """Return yes or no; anything else is neither."""
    if value not in {0, 1}:
        message = "neither yes nor no"
        raise ValueError(message)
    return value == 1


def subject_of(text: str) -> Subject:
    """Return the subject of its stored `type:id` form."""
    kind, _, name = text.partition(":")
    return Subject(SubjectType(kind), name)


def blob(hexadecimal: str | None) -> bytes | None:
    """Return a digest's 32 bytes for storing."""
    return None if hexadecimal is None else bytes.fromhex(hexadecimal)


def _approval(row: sqlite3.Row) -> Approval:
    digest = row["action_digest"].hex()
    ref = digest if row["action_ref"] is None else row["action_ref"]
    preview = row["preview_digest"].hex()
    return Approval(
        row["approval_request_id"],
        row["project_id"],
        row["version"],
        ApprovalState(row["state"]),
        ActionBinding(row["permission"], row["action_type"], ref, digest, preview),
        Risk(row["risk"]),
        subject_of(row["requested_by"]),
        row["requested_at_ms"],
        row["expires_at_ms"],
        row["repeats"],
        _decision(row),
        _consumption(row),
        _cancellation(row),
    )


def _decision(row: sqlite3.Row) -> ApprovalDecision | None:
    if row["decision_id"] is None:
        return None
    _require(row, "approved", "decision_reason", "decided_by", "decided_at_ms")
    return ApprovalDecision(
        row["decision_id"],
        _flag(row["approved"]),
        row["decision_reason"],
        subject_of(row["decided_by"]),
        row["decided_at_ms"],
    )


def _consumption(row: sqlite3.Row) -> Consumption | None:
    if row["consumption_id"] is None:
        return None
    _require(row, "dispatch_id", "consumed_by", "consumed_at_ms", "fence_project_version")
    return Consumption(
        row["consumption_id"],
        row["dispatch_id"],
        subject_of(row["consumed_by"]),
        row["consumed_at_ms"],
        PolicyFence(row["fence_project_version"], row["fence_binding_version"]),
    )


def _cancellation(row: sqlite3.Row) -> Cancellation | None:
    if row["cancel_id"] is None:
        return None
    _require(row, "cancelled_by", "cancelled_at_ms")
    return Cancellation(row["cancel_id"], subject_of(row["cancelled_by"]), row["cancelled_at_ms"])


def _lease(row: sqlite3.Row, name: str) -> Lease | None:
    if row[f"{name}_owner"] is None:
        return None
    _require(row, f"{name}_token", f"{name}_from_tick", f"{name}_expires_tick")
    return Lease(
        row[f"{name}_owner"],
        row[f"{name}_token"],
        row[f"{name}_from_tick"],
        row[f"{name}_expires_tick"],
    )


def _execution(row: sqlite3.Row) -> Execution:
    return Execution(
        ExecutionStatus(row["status"]),
        row["execution_version"],
        row["attempt_count"],
        row["max_attempts"],
        row["eligible_tick"],
        _lease(row, "lease"),
        row["started_at_ms"],
        row["result_mutation_id"],
        row["last_result_code"],
        row["completed_at_ms"],
        row["created_at_ms"],
        row["updated_at_ms"],
    )


def _control(row: sqlite3.Row) -> Control | None:
    if row["control_status"] is None:
        _refuse(row, "control_version", "next_scan_tick", "scan_owner", "finding_count", "finding")
        return None
    _require(row, "control_version", "finding_count", "control_updated_at_ms")
    status = ControlStatus(row["control_status"])
    last = None
    if row["finding"] is not None:
        _require(row, "finding_mutation_id", "finding_code")
        evidence = row["evidence_digest"]
        last = Observation(
            row["finding_mutation_id"],
            Finding(row["finding"]),
            row["finding_code"],
            None if evidence is None else evidence.hex(),
        )
    return Control(
        status,
        row["control_version"],
        row["execution_version"],
        row["next_scan_tick"],
        _lease(row, "scan"),
        row["finding_count"],
        last,
        row["result_mutation_id"] if status is ControlStatus.RESOLVED else None,
        row["started_at_ms"],
        row["control_updated_at_ms"],
    )


def _resolution(row: sqlite3.Row, dispatch: Dispatch) -> Resolution | None:
    if row["source"] is None:
        return None
    _require(row, "settled_version", "settled_id", "decision", "reason_code", "resolved_at_ms")
    evidence, person = row["settled_digest"], row["resolved_by"]
    if (Source(row["source"]) is Source.HUMAN) != (person is not None):
        message = "a person's word without a person, or the other way round"
        raise ValueError(message)
    return Resolution(
        dispatch.dispatch_id,
        dispatch.project_id,
        row["settled_version"],
        row["settled_id"],
        Source(row["source"]),
        Decision(row["decision"]),
        None if evidence is None else evidence.hex(),
        row["reason_code"],
        None if person is None else subject_of(person),
        row["resolved_at_ms"],
        _flag(row["unprobed"]),
    )


def resolution_columns(resolution: Resolution) -> Columns:
    """Return the columns of `add_resolution`."""
    return {
        "execution_version": resolution.execution_version,
        "mutation_id": resolution.mutation_id,
        "source": resolution.source.value,
        "decision": resolution.decision.value,
        "evidence_digest": blob(resolution.evidence_digest),
        "reason_code": resolution.reason_code,
        "resolved_by": None if resolution.resolved_by is None else str(resolution.resolved_by),
        "resolved_at_ms": resolution.resolved_at_ms,
        "unprobed": int(resolution.unprobed),
    }


def action_columns(approval: Approval) -> Columns:
    """Return the columns of `move_action` that describe the approval as it is now."""
    decision, used, gone = approval.decision, approval.consumption, approval.cancellation
    return {
        "version": approval.version,
        "state": approval.state.value,
        "decision_id": decision and decision.decision_id,
        "approved": None if decision is None else int(decision.approved),
        "decision_reason": decision and decision.reason_code,
        "decided_by": None if decision is None else str(decision.decided_by),
        "decided_at_ms": None if decision is None else decision.decided_at_ms,
        "consumption_id": used and used.consumption_id,
        "dispatch_id": used and used.dispatch_id,
        "consumed_by": None if used is None else str(used.consumed_by),
        "consumed_at_ms": None if used is None else used.consumed_at_ms,
        "fence_project_version": None if used is None else used.fence.project_version,
        "fence_binding_version": None if used is None else used.fence.binding_version,
        "cancel_id": gone and gone.cancel_id,
        "cancelled_by": None if gone is None else str(gone.cancelled_by),
        "cancelled_at_ms": None if gone is None else gone.cancelled_at_ms,
    }


def new_action_columns(approval: Approval, project: int) -> Columns:
    """Return the columns of `add_action`."""
    action = approval.action
    return {
        "project": project,
        "approval_request_id": approval.approval_request_id,
        "version": approval.version,
        "state": approval.state.value,
        "permission": action.permission,
        "action_type": action.action_type,
        "action_ref": None if action.action_ref == action.action_digest else action.action_ref,
        "action_digest": blob(action.action_digest),
        "preview_digest": blob(action.preview_digest),
        "risk": approval.risk.value,
        "requested_by": str(approval.requested_by),
        "requested_at_ms": approval.requested_at_ms,
        "expires_at_ms": approval.expires_at_ms,
        "repeats": approval.repeats,
    }


def progress_columns(progress: Progress) -> Columns:
    """Return the columns of `move_execution` that describe execution and control as they are."""
    execution, control = progress
    columns: Columns = {
        "status": execution.status.value,
        "version": execution.version,
        "attempt_count": execution.attempt_count,
        "eligible_tick": execution.eligible_tick,
        "started_at_ms": execution.started_at_ms,
        "result_mutation_id": execution.result_mutation_id,
        "last_result_code": execution.last_result_code,
        "completed_at_ms": execution.completed_at_ms,
        "updated_at_ms": execution.updated_at_ms,
        "control_status": None if control is None else control.status.value,
        "control_version": None if control is None else control.version,
        "next_scan_tick": None if control is None else control.next_scan_tick,
        "finding_count": None if control is None else control.finding_count,
        "control_updated_at_ms": None if control is None else control.updated_at_ms,
    }
    columns.update(_lease_columns("lease", execution.lease))
    columns.update(_lease_columns("scan", None if control is None else control.lease))
    last = None if control is None else control.last
    columns.update(
        finding_mutation_id=last and last.mutation_id,
        finding=None if last is None else last.finding.value,
        finding_code=last and last.result_code,
        evidence_digest=None if last is None else blob(last.evidence_digest),
    )
    return columns


def _lease_columns(name: str, lease: Lease | None) -> Columns:
    owner, token, from_tick, expires_tick = lease or (None, None, None, None)
    return {
        f"{name}_owner": owner,
        f"{name}_token": token,
        f"{name}_from_tick": from_tick,
        f"{name}_expires_tick": expires_tick,
    }
