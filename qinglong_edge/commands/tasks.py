"""The reading `task` commands: which tasks there are, and what a revision of one says."""

from qinglong_edge.commands import views
from qinglong_edge.commands.authority import require
from qinglong_edge.commands.engine import Answer, Caller, Engine
from qinglong_edge.domain import limits
from qinglong_edge.domain.canonical import Fields, Json, JsonObject, parse_object, sha256_hex
from qinglong_edge.domain.errors import RefusedError
from qinglong_edge.domain.task import (
    TaskRevision,
    check_task_id,
    parse_revision,
    revision_text,
)


def list_(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """List tasks with their newest revisions, the first published first."""
    fields = Fields(args, "tasks")
    after, limit = views.take_page(fields)
    fields.done()
    require(engine, caller, "task.read")
    page = engine.tasks.page(after, limit)
    return Answer(views.listed([_row(revision) for revision in page.items], page))


def show(engine: Engine, caller: Caller, args: JsonObject) -> Answer:
    """Show one revision of a task whole, the newest where none is named."""
    fields = Fields(args, "task")
    task_id = check_task_id(fields.take("id"), "id")
    asked = fields.take("revision")
    fields.done()
    number = None if asked is None else parse_revision(asked, "revision")
    require(engine, caller, "task.read")
    revision = engine.tasks.find(task_id, number)
    if revision is None:
        raise RefusedError("task_not_found", "there is no such task, or no such revision")
    body = parse_object(revision.body, "task", most=limits.TASK_BODY_BYTES_MAX)
    return Answer({**_row(revision), "task": body})


def _row(revision: TaskRevision) -> dict[str, Json]:
    return {
        "task_id": revision.task_id,
        "task_revision": revision_text(revision.number),
        "task_name": revision.name,
        "digest": sha256_hex(revision.body),
        "dispatch_id": revision.dispatch_id,
        "created_at_ms": revision.created_at_ms,
    }
