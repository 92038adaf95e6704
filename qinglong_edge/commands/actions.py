"""The `action` commands: propose, look, decide, dispatch, cancel.

Order in every command: shape of the arguments, authority, then the store. What a caller may not see
is answered like what does not exist.
"""

from qinglong_edge.commands import views
from qinglong_edge.commands.authority import Authorized, require, require_proposer
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain import action, ids, limits
from qinglong_edge.domain.action import ACTION_TYPES, RISK_RANK, Plan, Risk, least_risk
from qinglong_edge.domain.approval import (
    Approval,
    ApprovalRefusal,
    Cancel,
    Consume,
    Decide,
    Propose,
)
from qinglong_edge.domain.canonical import Fields, Json, JsonObject, canonical_bytes, ordered
from qinglong_edge.domain.decisions import Replayed
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.errors import Details, RefusedError, UsageError
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.machines import ApprovalState
from qinglong_edge.domain.policy import (
    Effect,
    PolicyFence,
    Subject,
    SubjectType,
    decide_effect,
)
from qinglong_edge.ports.handlers import ActionHandler
from qinglong_edge.ports.repositories import ApprovalAnswer, Listing, Queue

CONSUMER = Subject(SubjectType.SYSTEM, "qinglong-edge")
QUEUES = tuple(queue.value for queue in Queue if queue is not Queue.RECOVERY_DUE)
APPROVED_REASON = "approved"


def propose(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Store a plan and its preview for a person to decide on."""
    fields = Fields(args, "propose")
    text = fields.take("plan")
    if not isinstance(text, str):
        raise ids.invalid("plan", "must be the text of a plan")
    plan = action.parse_plan(_utf8(text, "plan"), engine.facts.project_id)
    request_id = ids.check_ident(fields.take("approval_request_id"), "approval_request_id")
    asked, repeats = fields.take("risk"), fields.take("repeats")
    lifetime_ms = ids.check_int(
        fields.take("expires_in_ms"), "expires_in", least=1, most=limits.APPROVAL_LIFETIME_MS_MAX
    )
    if repeats is not None:
        ids.check_ident(repeats, "repeats")
    fields.done()
    handler = engine.registry.require(plan.action_type)
    handler.check(plan)
    risk = _risk(plan.action_type, asked, repeats=repeats is not None)
    authorized = require_proposer(engine, caller, ACTION_TYPES[plan.action_type].permission)
    plan = _pinned(engine, handler, plan, request_id)
    preview = handler.preview(plan)
    if isinstance(repeats, str):
        preview = {"repeats": repeats, **preview}
    shown = canonical_bytes(ordered(preview))
    if len(shown) > limits.PREVIEW_BYTES_MAX:
        raise UsageError("too_large", f"preview: over {limits.PREVIEW_BYTES_MAX} bytes")
    event = Propose(
        request_id,
        plan.project_id,
        action.bind(plan, ACTION_TYPES[plan.action_type].permission, preview),
        risk,
        authorized.principal.subject,
        lifetime_ms,
        repeats if isinstance(repeats, str) else None,
        authorized.fence,
        action.plan_body(plan),
        shown,
    )
    return _proposed(engine, engine.approvals.propose(event), request_id)


def _pinned(engine: Engine, handler: ActionHandler, plan: Plan, request_id: str) -> Plan:
    """Fix what the plan leaves open; under an id that stands, as it was fixed then."""
    known = engine.approvals.plan(request_id)
    pinned = handler.pin(plan, None if known is None else known[0])
    if len(action.plan_body(pinned)) > limits.PLAN_BYTES_MAX:
        raise UsageError("too_large", f"plan: over {limits.PLAN_BYTES_MAX} bytes")
    return pinned


def _risk(action_type: str, asked: Json, *, repeats: bool) -> Risk:
    least = least_risk(action_type, repeats=repeats)
    if asked is None:
        return least
    if not isinstance(asked, str) or asked not in set(Risk):
        raise ids.invalid("risk", "must be low, medium, high or critical")
    risk = Risk(asked)
    if RISK_RANK[risk] < RISK_RANK[least]:
        raise UsageError("risk_too_low", f"{action_type} is at least {least.value} risk here")
    return risk


def _proposed(engine: Engine, answer: ApprovalAnswer, request_id: str) -> Answer:
    if isinstance(answer, ApprovalRefusal):
        raise refused(answer, {"approval_request_id": request_id})
    approval = answer.after.approval
    stored = engine.approvals.plan(request_id)
    if stored is None:
        raise RefusedError("plan_missing", "the request has no plan any more")
    return Answer(
        {
            "approval_request_id": approval.approval_request_id,
            "state": approval.state.value,
            "version": approval.version,
            "action_type": approval.action.action_type,
            "action_digest": approval.action.action_digest,
            "preview_digest": approval.action.preview_digest,
            "preview": stored[1],
            "risk": approval.risk.value,
            "requested_at_ms": approval.requested_at_ms,
            "expires_at_ms": approval.expires_at_ms,
            "replayed": isinstance(answer, Replayed),
        }
    )


def list_(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """List actions of one queue, or all of them, newest first."""
    fields = Fields(args, "list")
    after, limit = views.take_page(fields)
    word = fields.take("state")
    fields.done()
    if word is not None and word not in QUEUES:
        raise ids.invalid("state", "must be one of " + ", ".join(QUEUES))
    authorized = require(engine, caller, "project.read")
    page = engine.approvals.page(Listing(None if word is None else Queue(str(word)), after, limit))
    instant = engine.overview.instant()
    shown = [record for record in page.items if visible(record, authorized)]
    return Answer(views.listed([views.row(record, instant) for record in shown], page))


def show(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Show one action whole, by its approval id or its dispatch id."""
    record, _ = _found(engine, caller, args, "project.read")
    body = views.shown(engine, record)
    stored = engine.approvals.plan(record.approval.approval_request_id)
    body["preview"] = None if stored is None else stored[1]
    return Answer(body)


def logs(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Return the captured output of an action that was started here."""
    record, _ = _found(engine, caller, args, "artifact.read")
    if record.dispatch is None:
        raise RefusedError("not_started", "the action has not been dispatched")
    text, truncated = engine.read_log(record.dispatch.dispatch_id)
    return Answer(
        {
            "dispatch_id": record.dispatch.dispatch_id,
            "text": text.decode("utf-8", "replace"),
            "truncated": truncated,
        }
    )


def approve(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Approve a pending request and, unless it is held, spend it in the same commit."""
    fields = Fields(args, "approve")
    request_id = ids.check_ident(fields.take("id"), "id")
    digest, hold = fields.take("action_digest"), fields.take("hold")
    decision_id = ids.check_ident(fields.take("decision_id"), "decision_id")
    spend = _take_spend(fields)
    fields.done()
    if digest is not None:
        ids.check_digest(digest, "action_digest")
    if not isinstance(hold, bool):
        raise ids.invalid("hold", "must be true or false")
    authorized = require(engine, caller, "approval.decide")
    approval = _approval(engine, request_id)
    decision = Decide(
        approval.approval_request_id,
        decision_id,
        approved=True,
        reason_code=APPROVED_REASON,
        decided_by=authorized.principal.subject,
        action_digest=digest if isinstance(digest, str) else None,
        fence=authorized.fence,
        principal=authorized.principal,
    )
    if hold:
        return _decided(engine.approvals.decide(decision), approval)
    made = approval.decision is not None and approval.decision.decision_id == decision_id
    consumption = _consume(engine, approval, spend, again=made)
    return _decided(engine.approvals.approve_and_consume(decision, consumption), approval)


def reject(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Reject a pending request for good."""
    fields = Fields(args, "reject")
    request_id = ids.check_ident(fields.take("id"), "id")
    reason = ids.check_ident(fields.take("reason"), "reason")
    decision_id = ids.check_ident(fields.take("decision_id"), "decision_id")
    fields.done()
    authorized = require(engine, caller, "approval.decide")
    approval = _approval(engine, request_id)
    decision = Decide(
        approval.approval_request_id,
        decision_id,
        approved=False,
        reason_code=reason,
        decided_by=authorized.principal.subject,
        action_digest=None,
        fence=authorized.fence,
    )
    return _decided(engine.approvals.decide(decision), approval)


def dispatch(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Spend an approved request that was held."""
    fields = Fields(args, "dispatch")
    request_id = ids.check_ident(fields.take("id"), "id")
    spend = _take_spend(fields)
    fields.done()
    require(engine, caller, "approval.decide")
    approval = _approval(engine, request_id)
    made = approval.consumption is not None and approval.consumption.consumption_id == spend[0]
    return _decided(
        engine.approvals.consume(_consume(engine, approval, spend, again=made)), approval
    )


def cancel(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Withdraw an action before its start barrier.

    Its requester may withdraw it while it is pending; everything else needs `approval.decide`.
    """
    fields = Fields(args, "cancel")
    request_id = ids.check_ident(fields.take("id"), "id")
    cancel_id = ids.check_ident(fields.take("cancel_id"), "cancel_id")
    fields.done()
    reader = require(engine, caller, "project.read")
    record = engine.approvals.find(request_id)
    own = record is not None and record.approval.requested_by == reader.principal.subject
    pending = record is not None and record.approval.state is ApprovalState.PENDING
    authorized = reader if own and pending else require(engine, caller, "approval.decide")
    if record is None:
        raise refused(ApprovalRefusal.NOT_FOUND)
    event = Cancel(request_id, cancel_id, authorized.principal.subject, authorized.fence)
    answer = engine.approvals.cancel(event)
    if isinstance(answer, ApprovalRefusal | DispatchRefusal):
        raise refused(answer, _winner(record.approval))
    return Answer(_decision_body(answer.after, replayed=isinstance(answer, Replayed)))


def _take_spend(fields: Fields) -> tuple[str, str]:
    return (
        ids.check_ident(fields.take("consumption_id"), "consumption_id"),
        ids.check_ident(fields.take("dispatch_id"), "dispatch_id"),
    )


def _consume(engine: Engine, approval: Approval, spend: tuple[str, str], *, again: bool) -> Consume:
    """Build the consumption; one that was made under these ids before is named by its own."""
    used = approval.consumption
    if again and used is not None:
        spend = (used.consumption_id, used.dispatch_id)
    return Consume(
        approval.approval_request_id,
        *spend,
        approval.action.action_digest,
        approval.requested_by,
        CONSUMER,
        _requester_fence(engine, approval),
    )


def _requester_fence(engine: Engine, approval: Approval) -> PolicyFence:
    """Prove that the requester may still ask for this, and return the fence of that answer."""
    project, binding = engine.policy.resolve(approval.project_id, approval.requested_by)
    permission = ACTION_TYPES[approval.action.action_type].permission
    answer = decide_effect(project, binding, approval.requested_by, permission)
    if answer.effect is Effect.DENY or answer.fence is None:
        raise RefusedError(
            "requester_not_allowed",
            "the requester may no longer ask for this action",
            {"reason": answer.reason},
        )
    return answer.fence


def _decided(answer: ApprovalAnswer, before: Approval) -> Answer:
    if isinstance(answer, ApprovalRefusal):
        raise refused(answer, _winner(before))
    return Answer(_decision_body(answer.after, replayed=isinstance(answer, Replayed)))


def _winner(approval: Approval) -> Details:
    return {
        "approval_request_id": approval.approval_request_id,
        "state": approval.state.value,
        "version": approval.version,
    }


def _decision_body(record: Record, *, replayed: bool) -> JsonObject:
    approval, used = record.approval, record.approval.consumption
    cancelled = approval.cancellation is not None
    return {
        "approval_request_id": approval.approval_request_id,
        "state": "cancelled" if cancelled else approval.state.value,
        "version": approval.version,
        "dispatch_id": None if used is None else used.dispatch_id,
        "replayed": replayed,
    }


def _approval(engine: Engine, request_id: str) -> Approval:
    record = engine.approvals.find(request_id)
    if record is None:
        raise refused(ApprovalRefusal.NOT_FOUND)
    return record.approval


def _found(
    engine: Engine, caller: Caller, args: JsonObject, permission: str
) -> tuple[Record, Authorized]:
    fields = Fields(args, "action")
    name = ids.check_ident(fields.take("id"), "id")
    fields.done()
    authorized = require(engine, caller, permission)
    record = engine.approvals.find(name)
    if record is None or not visible(record, authorized):
        raise refused(ApprovalRefusal.NOT_FOUND)
    return record, authorized


def visible(record: Record, authorized: Authorized) -> bool:
    """Tell whether the caller may see an action: an agent sees only its own requests."""
    subject = authorized.principal.subject
    return subject.type is not SubjectType.AGENT or record.approval.requested_by == subject


def _utf8(text: str, field: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ids.invalid(field, "must be UTF-8") from error
