"""Actions on this database: their effect and their receipt in one transaction (contract 11).

The same function has the effect in a commit of its own, and behind the barrier in the barrier's
commit. It proves the fence and the approved digest before it writes, and finds what it had before.
"""

import sqlite3

from qinglong_edge.domain import effect as effects
from qinglong_edge.domain import receipt as receipts
from qinglong_edge.domain.action import action_digest
from qinglong_edge.domain.canonical import canonical_bytes, parse_object, sha256_bytes
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.effect import CreateRun, Perform, PublishTask
from qinglong_edge.domain.errors import (
    DamagedError,
    InvariantBroken,
    RowDamagedError,
    UsageError,
)
from qinglong_edge.domain.execution import Execution, Fence, Outcome, Record
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.receipt import WORDS, Found
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.domain.resolution import Case
from qinglong_edge.domain.run import (
    ACTOR_ID,
    ACTOR_TYPE,
    Admitted,
    Attempt,
    AttemptStatus,
    Run,
    RunStatus,
    admit,
    created_by,
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
            return None if found is None else _found(tx, *found)

        return self._database.read(look)


def perform(tx: Tx, event: Perform) -> HandlerAnswer | DispatchRefusal:
    """Have the effect inside an open transaction; a second time answers like the first."""
    found = actions.case_of(tx, event.dispatch_id)
    if found is None:
        return DispatchRefusal.NOT_FOUND
    record, case = found
    if not _may_act(case.progress.execution, event.fence):
        return DispatchRefusal.FENCE_REJECTED
    dispatch = case.dispatch
    plan = effects.plan_of(event.effect, dispatch.project_id)
    if action_digest(plan) != dispatch.action.action_digest:
        return HandlerAnswer(Outcome.FAILED, effects.PLAN_CHANGED)
    words = WORDS[dispatch.action.action_type]
    seen = receipts.judge(dispatch, case.progress.execution, _found(tx, record, case))
    if seen.finding is Finding.VERIFIED_SUCCEEDED:
        return HandlerAnswer(Outcome.SUCCEEDED, words.done)
    if seen.finding is not Finding.MISSING:
        return HandlerAnswer(Outcome.FAILED, words.conflict)
    made = _make(tx, record, case, event)
    if made is None:
        return HandlerAnswer(Outcome.FAILED, effects.PLAN_DISAPPEARED)
    receipt = receipts.issue(dispatch, case.progress.execution, made, tx.now.at_ms)
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


def prove(tx: Tx, record: Record) -> None:
    """Prove what an action left: its revision, its receipt, and that each is its own.

    Raises `DamagedError`: `task_damaged`, `receipt_damaged`.
    """
    try:
        row = tx.one(SQL["revision_of_action"], action=record.key)
        if row is not None:
            _prove_revision(revision_from_row(row))
    except (RowDamagedError, UsageError) as error:
        raise DamagedError("task_damaged", "a task's revision cannot be believed") from error
    receipt = tx.one(SQL["receipt_of_action"], action=record.key)
    if not _receipt_holds(tx, record, receipt):
        raise DamagedError("receipt_damaged", "an action's receipt cannot be believed")


def _prove_revision(revision: TaskRevision) -> None:
    task = parse_task(parse_object(revision.body, "task", most=len(revision.body)), "task")
    if (task.task_id, task.name) != (revision.task_id, revision.name):
        raise RowDamagedError("row_damaged", "a task's revision names another task")


def _receipt_holds(tx: Tx, record: Record, row: sqlite3.Row | None) -> bool:
    """Tell whether receipt and resource prove each other; without both there is nothing to tell."""
    dispatch, progress = record.dispatch, record.progress
    if dispatch is None or progress is None or dispatch.action.action_type not in WORDS:
        return row is None
    found = _found(tx, record, Case(dispatch, progress, record.resolution))
    if row is None:
        resource = found.resource
        foreign = isinstance(resource, Run) and not created_by(resource, dispatch)
        return resource is None or foreign
    seen = receipts.judge(dispatch, progress.execution, found)
    return seen.finding is Finding.VERIFIED_SUCCEEDED


def _names(row: sqlite3.Row) -> bool:
    """Tell whether the columns beside a receipt's bytes name what the bytes do."""
    try:
        said = receipts.parse_receipt(row["body"])
    except UsageError:
        return False
    return (said.resource_type, said.resource_id) == (row["resource_type"], row["resource_id"])


def _may_act(execution: Execution, fence: Fence) -> bool:
    """Tell whether the holder that passed the barrier still may; a renewal took nothing away."""
    lease = execution.lease
    return (
        execution.status is ExecutionStatus.EXECUTING
        and lease is not None
        and (lease.owner, lease.token) == (fence.owner, fence.token)
        and execution.version >= fence.version
    )


def _make(tx: Tx, record: Record, case: Case, event: Perform) -> str | None:
    """Write the resource; return its id, or None where what it is made of is gone."""
    if isinstance(event.effect, PublishTask):
        return _publish(tx, record, case, event.effect)
    return _create_run(tx, case, event.effect)


def _publish(tx: Tx, record: Record, case: Case, effect: PublishTask) -> str:
    task = effect.task
    newest = newest_revision(tx, task.task_id)
    body = task_body(task)
    revision = TaskRevision(
        task.task_id,
        case.dispatch.project_id,
        1 if newest is None else newest.number + 1,
        task.name,
        body,
        case.dispatch.dispatch_id,
        case.progress.execution.started_at_ms or tx.now.at_ms,
    )
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
        body=body,
        digest=sha256_bytes(body),
        action=record.key,
        created_at_ms=revision.created_at_ms,
    )
    return resource_id


def _create_run(tx: Tx, case: Case, effect: CreateRun) -> str | None:
    plan = effect.plan
    number = parse_revision(plan.task_revision, "task_revision")
    revision = numbered_revision(tx, plan.task_id, number)
    if revision is None or revision.name != plan.task_name:
        return None
    started_at_ms = case.progress.execution.started_at_ms or tx.now.at_ms
    made = admit(case.dispatch, started_at_ms, plan, effect.drawn)
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


def _found(tx: Tx, record: Record, case: Case) -> Found:
    """Read receipt and resource of an action; each may stand without the other."""
    receipt = tx.one(SQL["receipt_of_action"], action=record.key)
    run = _run(tx, case)
    row = tx.one(SQL["revision_of_action"], action=record.key)
    revision = None if row is None else revision_from_row(row)
    resource = revision if run is None else run[0]
    return Found(
        None if receipt is None else receipt["body"],
        None if receipt is None or not _names(receipt) else receipt["evidence_digest"].hex(),
        resource,
        None if run is None else run[1],
        stray=resource is not None,
    )


def _run(tx: Tx, case: Case) -> tuple[Run, Attempt | None] | None:
    row = tx.one(
        SQL["run_of_key"],
        project_id=case.dispatch.project_id,
        idempotency_key=case.dispatch.dispatch_id,
    )
    if row is None:
        return None
    attempt = tx.one(SQL["latest_attempt"], run=row["key"])
    try:
        columns = {name: row[name] for name in Run._fields}
        run = Run(**{**columns, "status": RunStatus(row["status"])})
        if attempt is None:
            return run, None
        columns = {name: attempt[name] for name in Attempt._fields}
        return run, Attempt(**{**columns, "status": AttemptStatus(attempt["status"])})
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
