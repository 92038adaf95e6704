"""Projects and role bindings on SQLite (contract 3): histories grow, rows never change."""

import sqlite3
from typing import NamedTuple

from qinglong_edge.domain import policy as rules
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.policy import (
    BindingState,
    BindRole,
    PolicyFence,
    PolicyRefusal,
    Project,
    ProjectStatus,
    Role,
    RoleBinding,
    Subject,
)
from qinglong_edge.ports.probe import Step
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import rows
from qinglong_edge.storage.sqlite.transaction import Database, Tx

SQL = statements.load("qinglong_edge.storage.sqlite", "sql/policy.sql")


class NextBinding(NamedTuple):
    """Hold a decided row of a role history and the key of its project."""

    project: int
    row: RoleBinding


class SqlitePolicy:
    """Keep projects and role bindings in the one database."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def resolve(
        self, project_id: str, subject: Subject
    ) -> tuple[Project | None, RoleBinding | None]:
        """Return the project and the subject's newest binding in one read.

        Raises `DamagedError` (`policy_damaged`) where either cannot be believed.
        """
        rules.check_subject(subject)
        return self._database.read(lambda tx: resolved(tx, project_id, subject)[1:])

    def bind(self, event: BindRole) -> Changed[RoleBinding] | Replayed[RoleBinding] | PolicyRefusal:
        """Append the next row of a role history; one commit."""
        rules.check_bind(event)
        return self._database.write(Step.BIND_ROLE, lambda tx: _bind(tx, event))


def replay(tx: Tx, event: BindRole) -> Replayed[RoleBinding] | PolicyRefusal | None:
    """Tell whether this mutation id was used: for the same row, or for another one."""
    row = tx.one(
        SQL["binding_of_mutation"], project_id=event.project_id, mutation_id=event.mutation_id
    )
    if row is None:
        return None
    binding = _binding(row)
    same = rules.same_binding(binding, event)
    return Replayed(binding) if same else PolicyRefusal.MUTATION_DRIFT


def decide(tx: Tx, event: BindRole) -> NextBinding | PolicyRefusal:
    """Ask the rules for the next row of a role history; nothing is written."""
    key, project, current = resolved(tx, event.project_id, event.subject)
    if project is None:
        return PolicyRefusal.PROJECT_NOT_FOUND
    if event.authority is not None:
        _, _, own = resolved(tx, event.project_id, event.changed_by)
        seen = PolicyFence(project.version, None if own is None else own.version)
        if seen != event.authority.fence:
            return PolicyRefusal.FENCE_CHANGED
    row = rules.append_binding(current, event, tx.now.stamp())
    if isinstance(row, PolicyRefusal):
        return row
    owners = [
        rows.subject_of(each["subject"]) for each in tx.rows(SQL["active_owners"], project=key)
    ]
    if rules.leaves_no_owner(owners, event.subject, event.role):
        return PolicyRefusal.LAST_OWNER
    return NextBinding(key, row)


def store(tx: Tx, decided: NextBinding) -> None:
    """Write a decided row."""
    row = decided.row
    tx.exactly_one(
        SQL["add_binding"],
        project=decided.project,
        subject=str(row.subject),
        version=row.version,
        state=row.state.value,
        role=None if row.role is None else row.role.value,
        mutation_id=row.mutation_id,
        changed_by=str(row.changed_by),
        created_at_ms=row.created_at_ms,
    )


def _bind(tx: Tx, event: BindRole) -> Changed[RoleBinding] | Replayed[RoleBinding] | PolicyRefusal:
    known = replay(tx, event)
    if known is not None:
        return known
    decided = decide(tx, event)
    if isinstance(decided, PolicyRefusal):
        return decided
    store(tx, decided)
    return Changed(decided.row)


def resolved(
    tx: Tx, project_id: str, subject: Subject
) -> tuple[int, Project | None, RoleBinding | None]:
    """Return the project with its key, and the subject's newest binding, in this transaction."""
    row = tx.one(SQL["resolve"], project_id=project_id, subject=str(subject))
    if row is None:
        return 0, None, None
    return row["key"], _project(row), None if row["version"] is None else _binding(row)


def _project(row: sqlite3.Row) -> Project:
    try:
        status = ProjectStatus(row["status"])
    except ValueError as error:
        raise _damaged("a project") from error
    return Project(
        row["project_id"],
        row["name"],
        row["slug"],
        status,
        row["project_version"],
        row["project_created_at_ms"],
        row["updated_at_ms"],
    )


def _binding(row: sqlite3.Row) -> RoleBinding:
    try:
        binding = RoleBinding(
            row["project_id"],
            rows.subject_of(row["subject"]),
            row["version"],
            BindingState(row["state"]),
            None if row["role"] is None else Role(row["role"]),
            row["mutation_id"],
            rows.subject_of(row["changed_by"]),
            row["created_at_ms"],
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged("a role binding") from error
    if (binding.state is BindingState.ACTIVE) != (binding.role is not None):
        raise _damaged("a role binding")
    return binding


def _damaged(what: str) -> DamagedError:
    return DamagedError("policy_damaged", f"{what} cannot be believed")
