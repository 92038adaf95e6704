"""Show values as JSON: the contract's names in snake_case, milliseconds, never a tick or token."""

from typing import TypeVar

from qinglong_edge.commands.engine import Engine
from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import ids
from qinglong_edge.domain.approval import Approval
from qinglong_edge.domain.canonical import Fields, Json, JsonObject
from qinglong_edge.domain.execution import Dispatch, Progress, Record, effective_state
from qinglong_edge.domain.paging import Cursor, Page, check_limit, cursor_text, parse_cursor
from qinglong_edge.domain.recovery import Resolution
from qinglong_edge.domain.tick import shown_at_ms
from qinglong_edge.ports.repositories import Instant

Item = TypeVar("Item")


def action(record: Record, instant: Instant) -> JsonObject:
    """Return the object of `action show`."""
    approval, dispatch, progress = record[:3]
    return {
        "approval": _approval(approval),
        "dispatch": None if dispatch is None else _dispatch(dispatch),
        "execution": None if progress is None else _execution(progress, instant),
        "recovery": None if progress is None else _recovery(progress, instant),
        "resolution": None if record.resolution is None else resolution(record.resolution),
        "effective_state": state(record, instant),
    }


def shown(engine: Engine, record: Record) -> dict[str, Json]:
    """Return the object of `action show`, with the requests that repeat this one."""
    body = dict(action(record, engine.overview.instant()))
    dispatch = record.dispatch
    again = () if dispatch is None else engine.approvals.repeated_by(dispatch.dispatch_id)
    body["repeats"], body["repeated_by"] = record.approval.repeats, list(again)
    return body


def resolution(settled: Resolution) -> JsonObject:
    """Return how recovery settled an outcome."""
    person = settled.resolved_by
    return {
        "mutation_id": settled.mutation_id,
        "source": settled.source.value,
        "decision": settled.decision.value,
        "reason_code": settled.reason_code,
        "evidence_digest": settled.evidence_digest,
        "execution_version": settled.execution_version,
        "resolved_by": None if person is None else str(person),
        "resolved_at_ms": settled.resolved_at_ms,
        "unprobed": settled.unprobed,
    }


def state(record: Record, instant: Instant) -> str:
    """Return the state a reader should see."""
    if record.progress is None:
        return approvals.effective_state(record.approval, instant.now)
    return effective_state(record.progress, instant.now)


def row(record: Record, instant: Instant) -> JsonObject:
    """Return one row of a list of actions."""
    approval, dispatch, progress = record[:3]
    return {
        "approval_request_id": approval.approval_request_id,
        "dispatch_id": None if dispatch is None else dispatch.dispatch_id,
        "action_type": approval.action.action_type,
        "action_digest": approval.action.action_digest,
        "risk": approval.risk.value,
        "requested_by": str(approval.requested_by),
        "requested_at_ms": approval.requested_at_ms,
        "expires_at_ms": approval.expires_at_ms,
        "effective_state": state(record, instant),
        "last_result_code": None if progress is None else progress.execution.last_result_code,
    }


def take_page(fields: Fields) -> tuple[Cursor | None, int]:
    """Read and remove where a list goes on, and how long it may be."""
    limit, text = check_limit(fields.take("limit")), fields.take("cursor")
    if text is not None and not isinstance(text, str):
        raise ids.invalid("cursor", "must be text")
    return None if text is None else parse_cursor(text), limit


def listed(items: list[Json], page: Page[Item]) -> JsonObject:
    """Return the body of a list; damaged rows are counted, never hidden."""
    body: dict[str, Json] = {"items": items, "next_cursor": cursor_text(page.cursor)}
    if page.damaged:
        body["damaged"] = page.damaged
    return body


def _approval(approval: Approval) -> JsonObject:
    decision, used, gone = approval.decision, approval.consumption, approval.cancellation
    return {
        "approval_request_id": approval.approval_request_id,
        "project_id": approval.project_id,
        "version": approval.version,
        "state": approval.state.value,
        **approval.action._asdict(),
        "risk": approval.risk.value,
        "requested_by": str(approval.requested_by),
        "requested_at_ms": approval.requested_at_ms,
        "expires_at_ms": approval.expires_at_ms,
        "repeats": approval.repeats,
        "decision_id": decision and decision.decision_id,
        "decision": None if decision is None else "approved" if decision.approved else "rejected",
        "decision_reason_code": decision and decision.reason_code,
        "decided_by": None if decision is None else str(decision.decided_by),
        "decided_at_ms": None if decision is None else decision.decided_at_ms,
        "consumption_id": used and used.consumption_id,
        "consumed_by": None if used is None else str(used.consumed_by),
        "consumed_at_ms": None if used is None else used.consumed_at_ms,
        "cancelled_by": None if gone is None else str(gone.cancelled_by),
        "cancelled_at_ms": None if gone is None else gone.cancelled_at_ms,
    }


def _dispatch(dispatch: Dispatch) -> JsonObject:
    return {
        "dispatch_id": dispatch.dispatch_id,
        "approval_request_id": dispatch.approval_request_id,
        "project_id": dispatch.project_id,
        "action_type": dispatch.action.action_type,
        "action_digest": dispatch.action.action_digest,
        "requested_by": str(dispatch.requested_by),
        "consumed_by": str(dispatch.consumed_by),
        "created_at_ms": dispatch.created_at_ms,
        "start_deadline_at_ms": dispatch.start_deadline_ms,
        "project_version": dispatch.fence.project_version,
        "binding_version": dispatch.fence.binding_version,
    }


def _execution(progress: Progress, instant: Instant) -> JsonObject:
    execution, lease = progress.execution, progress.execution.lease
    return {
        "status": execution.status.value,
        "version": execution.version,
        "attempt_count": execution.attempt_count,
        "max_attempts": execution.max_attempts,
        "eligible_at_ms": _at_ms(execution.eligible_tick, instant),
        "lease_expires_at_ms": None if lease is None else _at_ms(lease.expires_tick, instant),
        "started_at_ms": execution.started_at_ms,
        "last_result_code": execution.last_result_code,
        "completed_at_ms": execution.completed_at_ms,
        "created_at_ms": execution.created_at_ms,
        "updated_at_ms": execution.updated_at_ms,
    }


def _recovery(progress: Progress, instant: Instant) -> JsonObject | None:
    control = progress.control
    if control is None:
        return None
    return {
        "status": control.status.value,
        "version": control.version,
        "execution_version": control.execution_version,
        "next_scan_at_ms": _at_ms(control.next_scan_tick, instant),
        "finding_count": control.finding_count,
        "last_finding": None if control.last is None else control.last.finding.value,
        "last_result_code": None if control.last is None else control.last.result_code,
        "last_evidence_digest": None if control.last is None else control.last.evidence_digest,
        "created_at_ms": control.created_at_ms,
        "updated_at_ms": control.updated_at_ms,
    }


def _at_ms(tick: int | None, instant: Instant) -> int | None:
    return None if tick is None else shown_at_ms(tick, instant.now, instant.boots)
