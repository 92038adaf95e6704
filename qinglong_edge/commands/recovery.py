"""The reading half of the `recovery` commands: what has no known outcome, and since when."""

from qinglong_edge.commands import views
from qinglong_edge.commands.actions import visible
from qinglong_edge.commands.authority import require
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.commands.refusals import refused
from qinglong_edge.domain import ids
from qinglong_edge.domain.action import ACTION_TYPES
from qinglong_edge.domain.canonical import Fields, JsonObject
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.execution import Record
from qinglong_edge.ports.repositories import Instant, Listing, Queue

QUEUES = {"due": Queue.RECOVERY_DUE, "manual": Queue.MANUAL_REQUIRED}


def list_(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """List what waits for evidence (`due`) or for a person (`manual`), oldest first."""
    fields = Fields(args, "recovery")
    after, limit = views.take_page(fields)
    word = fields.take("queue")
    fields.done()
    if word not in QUEUES:
        raise ids.invalid("queue", "must be due or manual")
    authorized = require(engine, caller, "project.read")
    page = engine.approvals.page(Listing(QUEUES[str(word)], after, limit))
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
    instant = engine.overview.instant()
    return Answer({**views.action(record, instant), "settled_by": _settled_by(record)})


def _row(record: Record, instant: Instant) -> JsonObject:
    row = dict(views.row(record, instant))
    execution = None if record.progress is None else record.progress.execution
    started_at_ms = None if execution is None else execution.started_at_ms
    control = None if record.progress is None else record.progress.control
    row["started_at_ms"] = started_at_ms
    row["age_ms"] = None if started_at_ms is None else max(0, instant.now.at_ms - started_at_ms)
    row["finding_count"] = 0 if control is None else control.finding_count
    row["settled_by"] = _settled_by(record)
    return row


def _settled_by(record: Record) -> str:
    """Name what may end an unknown outcome of this type; never a second execution."""
    known = ACTION_TYPES.get(record.approval.action.action_type)
    automatic = known is not None and known.capability.value == "automatic"
    return "evidence_or_person" if automatic else "person"
