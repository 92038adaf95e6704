"""Propose, approve, reject, consume, cancel: how an approval lives (contract 4).

Every mutation carries its own id and replays by id and meaning: the same id with the same meaning
answers `Replayed` with the row as it is now, the same id with another meaning is drift. Times are
never part of identity; the store's clock is read under its lock and handed in as `now`.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.action import ActionBinding, Risk, needs_strong
from qinglong_edge.domain.authorization import Act, AuthorizationFact, authorize
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.identity import Principal
from qinglong_edge.domain.machines import (
    APPROVAL,
    OPEN_APPROVALS,
    ApprovalEvent,
    ApprovalState,
)
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType, check_subject
from qinglong_edge.domain.tick import Now, Trust


class ApprovalRefusal(enum.Enum):
    """Name why an approval did not change."""

    NOT_FOUND = "approval_not_found"
    EXPIRED = "approval_expired"
    VERSION_CONFLICT = "approval_version_conflict"
    STATE_CONFLICT = "approval_state_conflict"
    MUTATION_DRIFT = "approval_mutation_conflict"
    FENCE_CHANGED = "policy_fence_changed"
    SELF_DECISION = "self_decision_rejected"
    HUMAN_REQUIRED = "human_decision_required"
    DIGEST_MISMATCH = "action_digest_mismatch"
    TOO_MANY_PENDING = "too_many_pending"
    REPEATS_REQUIRED = "repeats_required"
    REPEATS_MISMATCH = "repeats_mismatch"
    STRONG_REQUIRED = "strong_authentication_required"
    CONSUMER_DENIED = "consumer_denied"
    CLOCK_UNTRUSTED = "clock_untrusted"


class Decision(NamedTuple):
    """Hold who decided what, under which id."""

    decision_id: str
    approved: bool
    reason_code: str
    decided_by: Subject
    decided_at_ms: int


class Consumption(NamedTuple):
    """Hold how the approval was spent and the policy fence of its requester at that moment."""

    consumption_id: str
    dispatch_id: str
    consumed_by: Subject
    consumed_at_ms: int
    fence: PolicyFence


class Cancellation(NamedTuple):
    """Hold who withdrew the action before its start barrier."""

    cancel_id: str
    cancelled_by: Subject
    cancelled_at_ms: int


class Approval(NamedTuple):
    """Hold one approval request whole."""

    approval_request_id: str
    project_id: str
    version: int
    state: ApprovalState
    action: ActionBinding
    risk: Risk
    requested_by: Subject
    requested_at_ms: int
    expires_at_ms: int
    repeats: str | None
    decision: Decision | None = None
    consumption: Consumption | None = None
    cancellation: Cancellation | None = None


class Propose(NamedTuple):
    """Ask for a person's approval of one exact plan."""

    approval_request_id: str
    project_id: str
    action: ActionBinding
    risk: Risk
    requested_by: Subject
    lifetime_ms: int
    repeats: str | None
    fence: PolicyFence
    body: bytes
    preview: bytes


class Decide(NamedTuple):
    """Approve or reject, under the decider's fence; `action_digest` None approves what is stored.

    `principal` says how the decider proved who they are; how strong that is, the rule judges.
    `expected_version` is always 1: only a pending approval is decided.
    """

    approval_request_id: str
    decision_id: str
    approved: bool
    reason_code: str
    decided_by: Subject
    action_digest: str | None
    fence: PolicyFence
    principal: Principal | None = None
    expected_version: int = 1


class Consume(NamedTuple):
    """Spend an approved request on one dispatch, under the requester's fence."""

    approval_request_id: str
    consumption_id: str
    dispatch_id: str
    action_digest: str
    requested_by: Subject
    consumed_by: Subject
    fence: PolicyFence
    expected_version: int = 2


class Cancel(NamedTuple):
    """Withdraw an approval, or its dispatch before the start barrier."""

    approval_request_id: str
    cancel_id: str
    cancelled_by: Subject
    fence: PolicyFence


class Openness(NamedTuple):
    """Hold how many approvals are open: pending or approved, and not expired."""

    by_requester: int
    in_project: int


Answer = Changed[Approval] | Replayed[Approval] | ApprovalRefusal


def check_propose(event: Propose) -> Propose:
    """Return the command with every field proven; raises `UsageError`."""
    ids.check_ident(event.approval_request_id, "approval_request_id")
    ids.check_text(event.project_id, "project_id", most=limits.PROJECT_ID_CHARS_MAX)
    ids.check_permission(event.action.permission, "permission")
    ids.check_ident(event.action.action_type, "action_type")
    ids.check_ident(event.action.action_ref, "action_ref", most=limits.ACTION_REF_CHARS_MAX)
    ids.check_digest(event.action.action_digest, "action_digest")
    ids.check_digest(event.action.preview_digest, "preview_digest")
    ids.check_int(event.lifetime_ms, "expires_in", least=1, most=limits.APPROVAL_LIFETIME_MS_MAX)
    if event.repeats is not None:
        ids.check_ident(event.repeats, "repeats")
    check_subject(event.requested_by)
    if len(event.body) > limits.PLAN_BYTES_MAX or len(event.preview) > limits.PREVIEW_BYTES_MAX:
        raise UsageError("too_large", "plan or preview: over its bound")
    return event


def propose(
    event: Propose, openness: Openness, unknown: frozenset[str], now: Now
) -> Changed[Approval] | ApprovalRefusal:
    """Admit a new request; the store answers replays of a known id before asking.

    `unknown` names the dispatches of the same digest whose outcome nobody knows: proposing it
    again must name one of them and carry at least high risk (ADR-0033, 7).
    """
    if now.trust is not Trust.TRUSTED:
        return ApprovalRefusal.CLOCK_UNTRUSTED
    if event.repeats is None and unknown:
        return ApprovalRefusal.REPEATS_REQUIRED
    if event.repeats is not None and (event.repeats not in unknown or not needs_strong(event.risk)):
        return ApprovalRefusal.REPEATS_MISMATCH
    if (
        openness.by_requester >= limits.OPEN_APPROVALS_PER_REQUESTER_MAX
        or openness.in_project >= limits.OPEN_APPROVALS_PER_PROJECT_MAX
    ):
        return ApprovalRefusal.TOO_MANY_PENDING
    requested_at_ms = now.stamp()
    return Changed(
        Approval(
            event.approval_request_id,
            event.project_id,
            1,
            ApprovalState.PENDING,
            event.action,
            event.risk,
            event.requested_by,
            requested_at_ms,
            requested_at_ms + event.lifetime_ms,
            event.repeats,
        )
    )


def replay_propose(before: Approval, event: Propose) -> Replayed[Approval] | ApprovalRefusal:
    """Answer a known id: the same request is a replay, whatever became of it; else drift.

    The preview is ours, not the caller's: its warnings may read differently today, and what was
    stored stays what the approver sees.
    """
    asked = event.action._replace(preview_digest=before.action.preview_digest)
    same = (
        before.project_id == event.project_id
        and before.action == asked
        and before.risk is event.risk
        and before.requested_by == event.requested_by
        and before.expires_at_ms - before.requested_at_ms == event.lifetime_ms
        and before.repeats == event.repeats
    )
    return Replayed(before) if same else ApprovalRefusal.MUTATION_DRIFT


def decide(before: Approval, event: Decide, now: Now) -> Answer:
    """Approve or reject a pending request; expiry is looked at before version and state."""
    if before.decision is not None and before.decision.decision_id == event.decision_id:
        return _replay_decision(before, before.decision, event)
    refusal = _undecidable(before, event, now)
    if refusal is not None:
        return refusal
    happened = ApprovalEvent.APPROVE if event.approved else ApprovalEvent.REJECT
    decision = Decision(
        event.decision_id, event.approved, event.reason_code, event.decided_by,
        now.stamp(before.requested_at_ms),
    )  # fmt: skip
    state = APPROVAL.move(before.state, happened)
    after = before._replace(version=before.version + 1, state=state, decision=decision)
    if act_of(after) is not None and decision_fact(after, event, now) is None:
        return ApprovalRefusal.STRONG_REQUIRED
    return Changed(after)


def _replay_decision(before: Approval, made: Decision, event: Decide) -> Answer:
    same = (
        event.expected_version == 1
        and made.approved is event.approved
        and made.reason_code == event.reason_code
        and made.decided_by == event.decided_by
        and event.action_digest in {None, before.action.action_digest}
    )
    return Replayed(before) if same else ApprovalRefusal.MUTATION_DRIFT


def _undecidable(before: Approval, event: Decide, now: Now) -> ApprovalRefusal | None:
    if event.decided_by.type is not SubjectType.USER:
        return ApprovalRefusal.HUMAN_REQUIRED
    if event.decided_by == before.requested_by:
        return ApprovalRefusal.SELF_DECISION
    if event.approved and now.trust is not Trust.TRUSTED:
        return ApprovalRefusal.CLOCK_UNTRUSTED
    if _expired(before, now):
        return ApprovalRefusal.EXPIRED
    if before.version != event.expected_version:
        return ApprovalRefusal.VERSION_CONFLICT
    if not APPROVAL.allows(before.state, ApprovalEvent.APPROVE):
        return ApprovalRefusal.STATE_CONFLICT
    if event.action_digest not in {None, before.action.action_digest}:
        return ApprovalRefusal.DIGEST_MISMATCH
    return None


def act_of(approval: Approval) -> Act | None:
    """Return what a decision needs a fact for: a high or critical approval has one, only it."""
    made = approval.decision
    if made is None or not made.approved or not needs_strong(approval.risk):
        return None
    return Act(
        approval.approval_request_id, approval.project_id, made.decision_id, made.decided_by,
        made.decided_at_ms,
    )  # fmt: skip


def decision_fact(decided: Approval, event: Decide, now: Now) -> AuthorizationFact | None:
    """Return the fact to store with a decision that was just made.

    Where `act_of` names an act, None says that the proof is missing, too weak or another's.
    """
    return authorize(act_of(decided), event.principal, event.fence, now)


def consume(before: Approval, event: Consume, now: Now) -> Answer:
    """Spend an approved request once; the dispatch it names is born in the same transaction."""
    if before.consumption is not None and before.consumption.consumption_id == event.consumption_id:
        return _replay_consumption(before, before.consumption, event)
    if event.consumed_by.type not in {SubjectType.SYSTEM, SubjectType.WORKER}:
        return ApprovalRefusal.CONSUMER_DENIED
    if now.trust is not Trust.TRUSTED:
        return ApprovalRefusal.CLOCK_UNTRUSTED
    if _expired(before, now):
        return ApprovalRefusal.EXPIRED
    if before.version != event.expected_version:
        return ApprovalRefusal.VERSION_CONFLICT
    if before.decision is None or not APPROVAL.allows(before.state, ApprovalEvent.CONSUME):
        return ApprovalRefusal.STATE_CONFLICT
    if not _same_action(before, event):
        return ApprovalRefusal.MUTATION_DRIFT
    consumption = Consumption(
        event.consumption_id, event.dispatch_id, event.consumed_by,
        now.stamp(before.decision.decided_at_ms), event.fence,
    )  # fmt: skip
    state = APPROVAL.move(before.state, ApprovalEvent.CONSUME)
    return Changed(
        before._replace(version=before.version + 1, state=state, consumption=consumption)
    )


def _replay_consumption(before: Approval, made: Consumption, event: Consume) -> Answer:
    same = (
        event.expected_version == before.version - 1
        and made.dispatch_id == event.dispatch_id
        and made.consumed_by == event.consumed_by
        and _same_action(before, event)
    )
    return Replayed(before) if same else ApprovalRefusal.MUTATION_DRIFT


def _same_action(before: Approval, event: Consume) -> bool:
    return (
        before.action.action_digest == event.action_digest
        and before.requested_by == event.requested_by
    )


def cancel(before: Approval, event: Cancel, now: Now) -> Answer:
    """Withdraw an open request; a consumed one is withdrawn through its execution.

    For a consumed one the caller asks `dispatch.cancel` first, in the same transaction.
    """
    if before.cancellation is not None:
        if before.cancellation.cancel_id != event.cancel_id:
            return ApprovalRefusal.STATE_CONFLICT
        same = before.cancellation.cancelled_by == event.cancelled_by
        return Replayed(before) if same else ApprovalRefusal.MUTATION_DRIFT
    withdrawn = _withdrawn(before, event, now)
    if before.state is ApprovalState.CONSUMED:
        state = APPROVAL.move(before.state, ApprovalEvent.CANCEL)
        return Changed(before._replace(state=state, cancellation=withdrawn))
    if _expired(before, now):
        return ApprovalRefusal.EXPIRED
    if not APPROVAL.allows(before.state, ApprovalEvent.CANCEL):
        return ApprovalRefusal.STATE_CONFLICT
    state = APPROVAL.move(before.state, ApprovalEvent.CANCEL)
    return Changed(before._replace(version=before.version + 1, state=state, cancellation=withdrawn))


def _withdrawn(before: Approval, event: Cancel, now: Now) -> Cancellation:
    earlier = before.decision.decided_at_ms if before.decision else before.requested_at_ms
    used = before.consumption.consumed_at_ms if before.consumption else None
    return Cancellation(event.cancel_id, event.cancelled_by, now.stamp(earlier, used))


def _expired(approval: Approval, now: Now) -> bool:
    """Tell whether the time of a request is over, or was closed; at exactly its end it is."""
    return now.at_ms >= approval.expires_at_ms or approval.state is ApprovalState.EXPIRED


def void(before: Approval) -> Approval:
    """Close an open request as expired: the clock was reset, or the past was restored."""
    state = APPROVAL.move(before.state, ApprovalEvent.VOID)
    return before._replace(version=before.version + 1, state=state)


def effective_state(approval: Approval, now: Now) -> str:
    """Return the state a reader should see: an open request past its time is expired."""
    if approval.state in OPEN_APPROVALS and _expired(approval, now):
        return ApprovalState.EXPIRED.value
    return approval.state.value
