"""Look for damage, page by page, and name it; nothing is repaired (cli `verify`)."""

import sqlite3

from qinglong_edge.domain import approval, resolution
from qinglong_edge.domain.action import Plan
from qinglong_edge.domain.authorization import FactKind
from qinglong_edge.domain.canonical import Json, JsonObject
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.policy import SubjectType
from qinglong_edge.storage.sqlite import effects, facts, meta, migrations
from qinglong_edge.storage.sqlite.actions import SQL
from qinglong_edge.storage.sqlite.approvals import SqliteApprovals
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.transaction import Database, Tx

PROBLEMS_MAX = 100
_PAGE = 64


def problems(database: Database) -> list[Json]:
    """Return at most 100 problems of file, references, actions, users and history."""
    found: list[Json] = [*database.read(_file_problems)]
    approvals = SqliteApprovals(database)
    after = 0
    while len(found) < PROBLEMS_MAX:
        page = database.read(lambda tx, after=after: _page(tx, after))  # type: ignore[misc]
        for row in page:
            problem = _action_problem(database, approvals, row)
            if problem is not None:
                found.append({"row": row["key"], "problem": problem})
        if len(page) < _PAGE:
            break
        after = page[-1]["key"]
    return [*found, *_identity_problems(database), *_history_problems(database)][:PROBLEMS_MAX]


def _identity_problems(database: Database) -> list[Json]:
    identities, found = SqliteIdentities(database), list[Json]()
    for kind in (SubjectType.USER, SubjectType.AGENT):
        page = identities.page(kind, None, _PAGE)
        found += [{"row": None, "problem": f"{kind}_damaged"}] * page.damaged
        while page.cursor is not None:
            page = identities.page(kind, page.cursor, _PAGE)
            found += [{"row": None, "problem": f"{kind}_damaged"}] * page.damaged
    return found


def _history_problems(database: Database) -> list[Json]:
    try:
        migrations.check_history(database.connection)
    except DamagedError as error:
        return [{"row": None, "problem": error.code}]
    return []


def _page(tx: Tx, after_key: int) -> list[sqlite3.Row]:
    return tx.rows(meta.SQL["plans_in_order"], after_key=after_key, limit=_PAGE)


def _file_problems(tx: Tx) -> list[JsonObject]:
    unsound: list[JsonObject] = [
        {"row": None, "problem": "database_integrity"}
        for row in tx.rows(f"PRAGMA integrity_check({PROBLEMS_MAX})")
        if row[0] != "ok"
    ]
    dangling: list[JsonObject] = [
        {"row": row[1], "problem": f"dangling_reference_in_{row[0]}"}
        for row in tx.rows("PRAGMA foreign_key_check")
    ]
    lost: list[JsonObject] = [
        {"row": row["action"], "problem": "resolution_missing"}
        for row in tx.rows(SQL["lost_resolutions"], limit=PROBLEMS_MAX)
    ]
    return unsound + dangling + lost


def _action_problem(database: Database, approvals: SqliteApprovals, row: sqlite3.Row) -> str | None:
    if row["plan"] is None:
        return "plan_missing"
    try:
        record = approvals.find(row["id"])
        if record is None or record.approval.approval_request_id != row["id"]:
            return "id_missing"
        if not database.read(lambda tx: _ids_hold(tx, record)):
            return "id_missing"
        stored = approvals.plan(row["id"])
        if stored is None:
            return "plan_missing"
        database.read(lambda tx: _prove(tx, record, stored[0]))
    except DamagedError as error:
        return error.code
    return None


def _ids_hold(tx: Tx, record: Record) -> bool:
    """Tell whether the ids of dispatch and resolution name this action."""
    known = {}
    if record.dispatch is not None:
        known[record.dispatch.dispatch_id] = "dispatch"
    if record.resolution is not None:
        known[record.resolution.mutation_id] = "resolution"
    for name, kind in known.items():
        row = tx.one(SQL["owner_of_id"], id=name)
        if row is None or (row["kind"], row["action"]) != (kind, record.key):
            return False
    return True


def _prove(tx: Tx, record: Record, plan: Plan) -> None:
    """Prove who authorized an action and its end, and what it left in this database."""
    facts.proven(tx, record.key, FactKind.DECISION, approval.act_of(record.approval))
    facts.proven(tx, record.key, FactKind.RESOLUTION, resolution.act_of(record.resolution))
    effects.prove(tx, record, plan)
