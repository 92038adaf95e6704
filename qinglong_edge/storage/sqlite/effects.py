"""Actions on this database: their effect and their receipt in one transaction (contract 11).

The same function has the effect in a commit of its own, and behind the barrier in the barrier's
commit. It proves the fence and the approved digest before it writes, and finds what it had before.
"""

import sqlite3

from qinglong_edge.domain import effect as effects
from qinglong_edge.domain import receipt as receipts
from qinglong_edge.domain.action import RUN_CREATE, Plan
from qinglong_edge.domain.canonical import canonical_bytes, sha256_bytes
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.effect import CreateRun, Perform, PublishTask
from qinglong_edge.domain.errors import (
    DamagedError,
    InvariantBroken,
    RowDamagedError,
    UsageError,
)
from qinglong_edge.domain.execution import Dispatch, Execution, Outcome, Record, started_at_ms
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.receipt import WORDS, Found
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.domain.resolution import Case
from qinglong_edge.domain.run import (
    ACTOR_ID,
    ACTOR_TYPE,
    TRIGGER_TYPE,
    Admitted,
    AttemptStatus,
    Run,
    RunStatus,
    admit,
    created_by,
    run_plan,
)
from qinglong_edge.domain.task import TaskRevision, parse_revision, parse_task, task_body
from qinglong_edge.ports.handlers import HandlerAnswer
from qinglong_edge.ports.probe import Step
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import actions, rows
from qinglong_edge.storage.sqlite.transaction import Database, Tx

SQL = statements.load("qinglong_edge.storage.sqlite", "sql/effects.sql")


class SqliteEffects:
    """Have an effect at most once, and prove it."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def perform(self, event: Perform) -> HandlerAnswer | DispatchRefusal:
        """Have the effect of a started action, with its receipt, in one commit."""
        return self._database.write(Step.EFFECT, lambda tx: perform(tx, event))

    def receipt(self, dispatch_id: str) -> Found | None:
        """Return in one read what a dispatch left; raises `DamagedError`."""

        def look(tx: Tx) -> Found | None:
            found = actions.case_of(tx, dispatch_id)
            return None if found is None else _found(tx, found[0].key, found[1].dispatch)

        return self._database.read(look)


def perform(tx: Tx, event: Perform) -> HandlerAnswer | DispatchRefusal:
    """Have the effect inside an open transaction; a second time answers like the first."""
    found = actions.case_of(tx, event.dispatch_id)
    if found is None:
        return DispatchRefusal.NOT_FOUND
    record, case = found
    dispatch, execution = case.dispatch, case.progress.execution
    known = effects.had_before(dispatch, execution, event, _found(tx, record.key, dispatch))
    if known is not None:
        return known if isinstance(known, DispatchRefusal) else HandlerAnswer(*known)
    words = WORDS[dispatch.action.action_type]
    made = _make(tx, record, case, event)
    if made is None:
        return HandlerAnswer(Outcome.FAILED, words.plan_disappeared)
    receipt = receipts.issue(dispatch, execution, made, tx.now.at_ms)
    body = receipts.receipt_bytes(receipt)
    tx.exactly_one(
        SQL["add_receipt"],
        action=record.key,
        resource_type=receipt.resource_type,
        resource_id=receipt.resource_id,
        body=body,
        evidence_digest=rows.blob(receipts.receipt_digest(body)),
    )
    return HandlerAnswer(Outcome.SUCCEEDED, words.done)


def prove(tx: Tx, record: Record, plan: Plan) -> None:
    """Prove what an action left: its revision, its receipt, and that each is its own.

    Raises `DamagedError`: `task_damaged`, `receipt_damaged`.
    """
    dispatch, progress = record.dispatch, record.progress
    if dispatch is None or progress is None:
        if tx.one(SQL["receipt_of_action"], action=record.key) is not None:
            raise DamagedError("receipt_damaged", "what never started has left a receipt")
        return
    try:
        found = _found(tx, record.key, dispatch)
        if found.resource is not None and not _is_of(found.resource, plan):
            raise RowDamagedError("row_damaged", "a resource is not what the plan says")
    except (RowDamagedError, UsageError) as error:
        raise DamagedError("task_damaged", "what an action made cannot be believed") from error
    if not _receipt_holds(dispatch, progress.execution, found) or _contradicts(record, found):
        raise DamagedError("receipt_damaged", "an action's receipt cannot be believed")


def _is_of(resource: Run | TaskRevision, plan: Plan) -> bool:
    """Tell whether a resource says what the approved plan says; a stranger's says nothing here."""
    if isinstance(resource, TaskRevision):
        task = parse_task(plan.params, "plan.params")
        said = (resource.task_id, resource.name, resource.body)
        return said == (task.task_id, task.name, task_body(task))
    if plan.action_type != RUN_CREATE or resource.trigger_type != TRIGGER_TYPE:
        return True
    said_of_run = (
        resource.task_id, resource.task_revision, resource.task_name, resource.priority,
    )  # fmt: skip
    return said_of_run == run_plan(plan)


def _contradicts(record: Record, found: Found) -> bool:
    """Tell whether an action ended otherwise than its receipt says, and nobody settled it so."""
    if found.body is None or record.resolution is not None or record.progress is None:
        return False
    return record.progress.execution.status in {ExecutionStatus.FAILED, ExecutionStatus.BLOCKED}


def _receipt_holds(dispatch: Dispatch, execution: Execution, found: Found) -> bool:
    """Tell whether receipt and resource prove each other; without both there is nothing to tell."""
    if dispatch.action.action_type not in WORDS:
        return found.body is None
    if found.body is None:
        resource = found.resource
        foreign = isinstance(resource, Run) and not created_by(resource, dispatch)
        return resource is None or foreign
    return receipts.judge(dispatch, execution, found).finding is Finding.VERIFIED_SUCCEEDED


def _make(tx: Tx, record: Record, case: Case, event: Perform) -> str | None:
    """Write the resource; return its id, or None where what it is made of is gone."""
    if isinstance(event.effect, PublishTask):
        return _publish(tx, record, case, event.effect)
    return _create_run(tx, case, event.effect)


def _publish(tx: Tx, record: Record, case: Case, effect: PublishTask) -> str:
    newest = newest_revision(tx, effect.task.task_id)
    execution = case.progress.execution
    revision = effects.next_revision(effect.task, newest, case.dispatch, execution)
    resource_id = receipts.resource_of_task(revision)
    resource_type = WORDS[case.dispatch.action.action_type].resource_type
    if tx.one(SQL["receipt_of_resource"], resource_type=resource_type, resource_id=resource_id):
        raise RowDamagedError("row_damaged", "a task has lost a revision that was published")
    tx.exactly_one(
        SQL["add_revision"],
        project=_project(tx, case),
        task_id=revision.task_id,
        number=revision.number,
        name=revision.name,
        body=revision.body,
        digest=sha256_bytes(revision.body),
        action=record.key,
        created_at_ms=revision.created_at_ms,
    )
    return resource_id


def _create_run(tx: Tx, case: Case, effect: CreateRun) -> str | None:
    plan = effect.plan
    number = parse_revision(plan.task_revision, "task_revision")
    revision = numbered_revision(tx, plan.task_id, number)
    if not effects.is_pinned(plan, revision):
        return None
    began_ms = started_at_ms(case.progress.execution)
    made = admit(case.dispatch, began_ms, plan, effect.drawn)
    _add_run(tx, _project(tx, case), made)
    return made.run.run_id


def _add_run(tx: Tx, project: int, made: Admitted) -> None:
    run = made.run._asdict()
    del run["project_id"]
    key = tx.insert(SQL["add_run"], **{**run, "status": made.run.status.value, "project": project})
    attempt = made.attempt._asdict()
    tx.exactly_one(
        SQL["add_attempt"], **{**attempt, "status": made.attempt.status.value, "run": key}
    )
    for event in made.events:
        payload = canonical_bytes(event.payload).decode()
        fields = {**event._asdict(), "payload": payload, "run": key}
        tx.exactly_one(SQL["add_event"], actor_type=ACTOR_TYPE, actor_id=ACTOR_ID, **fields)


def _project(tx: Tx, case: Case) -> int:
    row = tx.one(SQL["project_key"], project_id=case.dispatch.project_id)
    if row is None:
        raise InvariantBroken("a started action names a project that is not there")
    return int(row["key"])


def _found(tx: Tx, key: int, dispatch: Dispatch) -> Found:
    """Read receipt and resource of an action; each may stand without the other."""
    receipt = tx.one(SQL["receipt_of_action"], action=key)
    run, has_attempt = _run(tx, dispatch)
    row = tx.one(SQL["revision_of_action"], action=key)
    resource = revision_from_row(row) if run is None and row is not None else run
    if receipt is None:
        return Found(None, None, None, resource, has_attempt)
    named = (receipt["resource_type"], receipt["resource_id"])
    digest = receipt["evidence_digest"].hex()
    return Found(receipt["body"], digest, named, resource, has_attempt)


def _run(tx: Tx, dispatch: Dispatch) -> tuple[Run | None, bool]:
    """Return the run under a dispatch's key, and whether it has its attempt."""
    key = dispatch.dispatch_id
    row = tx.one(SQL["run_of_key"], project_id=dispatch.project_id, idempotency_key=key)
    if row is None:
        return None, False
    try:
        columns = {name: row[name] for name in Run._fields}
        run = Run(**{**columns, "status": RunStatus(row["status"])})
        attempt = tx.one(SQL["latest_attempt"], run=row["key"])
        return run, attempt is not None and AttemptStatus(attempt["status"]) in AttemptStatus
    except (ValueError, TypeError) as error:
        raise RowDamagedError("row_damaged", "a run's row cannot be believed") from error


def newest_revision(tx: Tx, task_id: str) -> TaskRevision | None:
    """Return the newest revision of a task; raises `DamagedError`."""
    row = tx.one(SQL["newest_revision"], task_id=task_id)
    return None if row is None else revision_from_row(row)


def numbered_revision(tx: Tx, task_id: str, number: int) -> TaskRevision | None:
    """Return one revision of a task; raises `DamagedError`."""
    row = tx.one(SQL["numbered_revision"], task_id=task_id, number=number)
    return None if row is None else revision_from_row(row)


def revision_from_row(row: sqlite3.Row) -> TaskRevision:
    """Return a revision whose body has the digest it was stored with; raises `DamagedError`."""
    if sha256_bytes(row["body"]) != row["digest"]:
        raise RowDamagedError("row_damaged", "a task's revision does not match its digest")
    return TaskRevision(
        row["task_id"],
        row["project_id"],
        row["number"],
        row["name"],
        row["body"],
        row["dispatch_id"],
        row["created_at_ms"],
    )
