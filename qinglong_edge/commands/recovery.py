"""The `recovery` commands: what has no known outcome, since when, and a person's word on it.

There is no retry and no reset: a person says what happened, or that nobody will ever know.
"""

from qinglong_edge.commands import views
from qinglong_edge.commands.actions import visible
from qinglong_edge.commands.authority import Authorized, identify, require
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain import ids
from qinglong_edge.domain.action import is_automatic
from qinglong_edge.domain.canonical import Fields, JsonObject
from qinglong_edge.domain.decisions import Replayed
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.errors import Details, InvariantBroken
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.identity import is_strong
from qinglong_edge.domain.limits import VERSION_MAX
from qinglong_edge.domain.machines import TERMINAL
from qinglong_edge.domain.policy import SubjectType
from qinglong_edge.domain.recovery import Decision, RecoveryRefusal
from qinglong_edge.domain.resolution import ResolveByPerson
from qinglong_edge.ports.repositories import Instant, Listing, Queue

QUEUES = {"due": Queue.RECOVERY_DUE, "manual": Queue.MANUAL_REQUIRED}


def list_(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """List what waits for evidence (`due`) or for a person (`manual`), oldest first."""
    fields = Fields(args, "recovery")
    after, limit = views.take_page(fields)
    word = fields.take("queue")
    fields.done()
    if not isinstance(word, str) or word not in QUEUES:
        raise ids.invalid("queue", "must be due or manual")
    authorized = require(engine, caller, "project.read")
    page = engine.approvals.page(Listing(QUEUES[word], after, limit))
    instant = engine.overview.instant()
    shown = [record for record in page.items if visible(record, authorized)]
    return Answer(views.listed([_row(record, instant) for record in shown], page))


def show(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Show one action past its barrier, with what may settle it."""
    fields = Fields(args, "recovery")
    name = ids.check_ident(fields.take("id"), "id")
    fields.done()
    authorized = require(engine, caller, "project.read")
    record = engine.approvals.find(name)
    if record is None or record.dispatch is None or not visible(record, authorized):
        raise refused(DispatchRefusal.NOT_FOUND)
    stored = engine.approvals.plan(record.approval.approval_request_id)
    body = views.shown(engine, record)
    body["preview"] = None if stored is None else stored[1]
    return Answer({**body, "settled_by": _settled_by(record)})


def resolve(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Settle an unknown outcome on a user's word, strongly proven within five minutes.

    Order: shape, who, how proven, permission, and only then whether there is such a dispatch, so
    that no answer tells a stranger what exists (W26).
    """
    fields = Fields(args, "resolve")
    dispatch_id = ids.check_ident(fields.take("id"), "id")
    word = fields.take("decision")
    reason = ids.check_ident(fields.take("reason"), "reason")
    versions = (
        _take_version(fields, "expected_version"),
        _take_version(fields, "expected_recovery_version"),
    )
    mutation_id = ids.check_ident(fields.take("mutation_id"), "mutation_id")
    digest, unprobed = fields.take("evidence"), fields.take("unprobed")
    fields.done()
    if not isinstance(word, str) or word not in set(Decision):
        raise ids.invalid("decision", "must be one of " + ", ".join(Decision))
    if not isinstance(unprobed, bool) or versions[0] is None:
        raise ids.invalid("resolve", "must say which version, and whether it was probed")
    authorized = _require_person(engine, caller)
    named = engine.approvals.find(dispatch_id)
    if named is not None and named.dispatch is not None:
        dispatch_id = named.dispatch.dispatch_id  # a request's id names its dispatch
    event = ResolveByPerson(
        dispatch_id,
        versions[0],
        versions[1],
        mutation_id,
        Decision(word),
        reason,
        None if digest is None else ids.check_digest(digest, "evidence"),
        authorized.principal,
        authorized.fence,
        unprobed,
    )
    answer = engine.recoveries.resolve_by_person(event)
    if isinstance(answer, RecoveryRefusal):
        raise refused(answer, _winner(engine, dispatch_id))
    return Answer(_settled(answer.after, replayed=isinstance(answer, Replayed)))


def _take_version(fields: Fields, name: str) -> int | None:
    value = fields.take(name)
    return None if value is None else ids.check_int(value, name, least=0, most=VERSION_MAX)


def _require_person(engine: Engine, caller: Caller) -> Authorized:
    principal = identify(engine, caller)
    if principal.subject.type is not SubjectType.USER:
        raise refused(RecoveryRefusal.HUMAN_REQUIRED)
    if not is_strong(principal, engine.overview.instant().now):
        raise refused(RecoveryRefusal.STRONG_REQUIRED)
    return require(engine, caller, "approval.recover")


def _winner(engine: Engine, dispatch_id: str) -> Details:
    """Tell where a dispatch stands that was not settled: who won, or what to name instead."""
    record = engine.approvals.find(dispatch_id)
    if record is None or record.dispatch is None or record.progress is None:
        return {}
    execution, control = record.progress
    details: Details = {
        "dispatch_id": record.dispatch.dispatch_id,
        "execution_status": execution.status.value,
        "execution_version": execution.version,
        "recovery_version": None if control is None else control.version,
        "result_code": execution.last_result_code,
    }
    if record.resolution is not None:
        details["source"] = record.resolution.source.value
        details["decision"] = record.resolution.decision.value
    return details


def _settled(record: Record, *, replayed: bool) -> JsonObject:
    if record.progress is None or record.dispatch is None or record.resolution is None:
        raise InvariantBroken("an outcome was settled that is not there")
    return {
        "dispatch_id": record.dispatch.dispatch_id,
        "status": "replayed" if replayed else "resolved",
        "execution_status": record.progress.execution.status.value,
        "execution_version": record.progress.execution.version,
        "resolution": views.resolution(record.resolution),
    }


def _row(record: Record, instant: Instant) -> JsonObject:
    row = dict(views.row(record, instant))
    execution = None if record.progress is None else record.progress.execution
    started_at_ms = None if execution is None else execution.started_at_ms
    control = None if record.progress is None else record.progress.control
    row["started_at_ms"] = started_at_ms
    row["age_ms"] = None if started_at_ms is None else max(0, instant.now.at_ms - started_at_ms)
    row["finding_count"] = 0 if control is None else control.finding_count
    last = None if control is None else control.last
    row["last_finding"] = None if last is None else last.finding.value
    row["last_finding_code"] = None if last is None else last.result_code
    row["settled_by"] = _settled_by(record)
    return row


def _settled_by(record: Record) -> str:
    """Name what ended an action, or what may end an unknown outcome; never a second execution."""
    if record.resolution is not None:
        return record.resolution.source.value
    if record.progress is not None and record.progress.execution.status in TERMINAL:
        return "completion"
    automatic = is_automatic(record.approval.action.action_type)
    return "evidence_or_person" if automatic else "person"
