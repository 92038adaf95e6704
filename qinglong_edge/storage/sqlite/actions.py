"""The steps that approvals and dispatches share on SQLite: find a record, move it, page it."""

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as dispatches
from qinglong_edge.domain import paging
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import InvariantBroken, RowDamagedError
from qinglong_edge.domain.execution import Progress, Record
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.policy import PolicyFence, Subject
from qinglong_edge.domain.resolution import Case
from qinglong_edge.ports.repositories import DispatchAnswer, Settlement
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import rows
from qinglong_edge.storage.sqlite.transaction import Tx, Value

SQL = statements.load("qinglong_edge.storage.sqlite", "sql/actions.sql")

Rule = Callable[[Case], dispatches.Answer]
Item = TypeVar("Item")


def find(tx: Tx, name: str) -> tuple[int, Record] | None:
    """Return the action of an approval id or a dispatch id, with its key."""
    row = tx.one(SQL["record_of_id"], id=name)
    return None if row is None else (row["key"], rows.record_from_row(row))


def fence(tx: Tx, project_id: str, subject: Subject) -> tuple[int, PolicyFence] | None:
    """Return the project's key and the subject's policy fence as this transaction sees them."""
    row = tx.one(SQL["policy_fence"], project_id=project_id, subject=str(subject))
    if row is None:
        return None
    return row["key"], PolicyFence(row["version"], row["binding_version"])


def taken(tx: Tx, name: str) -> bool:
    """Tell whether any action drew this id before."""
    return tx.one(SQL["owner_of_id"], id=name) is not None


def move_action(tx: Tx, key: int, before: approvals.Approval, after: approvals.Approval) -> None:
    """Store an approval transition."""
    tx.exactly_one(
        SQL["move_action"],
        key=key,
        expected_version=before.version,
        expected_state=before.state.value,
        **rows.action_columns(after),
    )


def move_execution(tx: Tx, key: int, before: Progress, after: Progress) -> None:
    """Store an execution transition."""
    tx.exactly_one(
        SQL["move_execution"],
        action=key,
        expected_version=before.execution.version,
        expected_status=before.execution.status.value,
        expected_control_version=None if before.control is None else before.control.version,
        **rows.progress_columns(after),
    )


def apply(tx: Tx, dispatch_id: str, rule: Rule) -> DispatchAnswer:
    """Find a dispatch, ask its rule, store what the rule decided."""
    found = case_of(tx, dispatch_id)
    if found is None:
        return dispatches.DispatchRefusal.NOT_FOUND
    record, case = found
    answer = rule(case)
    if isinstance(answer, dispatches.DispatchRefusal):
        return answer
    if isinstance(answer, Replayed):
        return Replayed(record)
    move_execution(tx, record.key, case.progress, answer.after)
    return Changed(record._replace(progress=answer.after))


def case_of(tx: Tx, dispatch_id: str) -> tuple[Record, Case] | None:
    """Return a dispatch by its own id, as its rules see it."""
    found = find(tx, dispatch_id)
    if found is None:
        return None
    record = found[1]
    dispatch, progress = record.dispatch, record.progress
    if dispatch is None or progress is None or dispatch.dispatch_id != dispatch_id:
        return None
    return record, Case(dispatch, progress, record.resolution)


def page(tx: Tx, name: str, limit: int, order: str, **values: Value) -> Page[Record]:
    """Return one page; a row that cannot be believed is skipped and counted, never fatal.

    `order` names the column that leads the keyset.
    """
    found = tx.rows(SQL[name], limit=paging.check_limit(limit) + 1, **values)
    shown = found[:limit]
    items, damaged = believable(shown)
    cursor = Cursor(shown[-1][order], shown[-1]["key"]) if len(found) > limit else None
    return Page(items, cursor, damaged)


def due_page(tx: Tx, name: str, order: str, *, after: Cursor | None, limit: int) -> Page[Record]:
    """Return one page of a queue whose keyset begins with a tick, up to now."""
    start = after or Cursor(-1, -1)
    return page(
        tx, name, limit, order, tick=tx.now.tick, after_order=start.order, after_key=start.key
    )


def believable(found: list[sqlite3.Row]) -> tuple[list[Record], int]:
    """Return the actions of the rows that hold, and how many do not."""
    return read_each(found, rows.record_from_row)


def read_each(
    found: list[sqlite3.Row], from_row: Callable[[sqlite3.Row], Item]
) -> tuple[list[Item], int]:
    """Return the values of the rows that hold, and how many do not."""
    items = []
    for row in found:
        try:
            items.append(from_row(row))
        except RowDamagedError:
            continue
    return items, len(found) - len(items)


def settle(tx: Tx, code: str) -> Settlement:
    """Close what a reset of the clock makes unbelievable: approvals, dispatches, sessions.

    Rows that cannot be believed stay as they are, closed by their own damage.
    """
    closed = blocked = 0
    for row in tx.rows(SQL["open_actions"]):
        for record in believable([row])[0]:
            move_action(tx, row["key"], record.approval, approvals.void(record.approval))
            closed += 1
    for row in tx.rows(SQL["not_started"]):
        for record in believable([row])[0]:
            if record.progress is None:
                raise InvariantBroken("a dispatch without an execution was believed")
            after = dispatches.void(record.progress, code, tx.now)
            move_execution(tx, row["key"], record.progress, after)
            blocked += 1
    return Settlement(closed, blocked, tx.run(SQL["void_sessions"]), tx.now)
