"""Authorization facts on SQLite: written with what they authorize, and proven when looked at."""

import sqlite3

from qinglong_edge.domain.action import needs_strong
from qinglong_edge.domain.authorization import Act, AuthorizationFact, FactKind, fact_digest
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.identity import Assurance
from qinglong_edge.domain.policy import Subject
from qinglong_edge.storage.sqlite import rows
from qinglong_edge.storage.sqlite.actions import SQL
from qinglong_edge.storage.sqlite.transaction import Tx


def add(tx: Tx, action: int, kind: FactKind, fact: AuthorizationFact) -> None:
    """Store a fact with its digest; there is at most one of a kind."""
    tx.exactly_one(
        SQL["add_fact"],
        action=action,
        kind=kind.value,
        mutation_id=fact.mutation_id,
        authorized_by=str(fact.authorized_by),
        authentication_id=fact.authentication_id,
        assurance=fact.assurance.value,
        authenticated_at_ms=fact.authenticated_at_ms,
        project_version=fact.project_version,
        binding_version=fact.binding_version,
        authorized_at_ms=fact.authorized_at_ms,
        fact_digest=rows.blob(fact_digest(fact)),
    )


def of_decision(tx: Tx, record: Record) -> AuthorizationFact | None:
    """Return the fact of an action's decision, None where it needs none.

    Raises `DamagedError`: `fact_missing`, or `fact_damaged` where it says something else than the
    decision or its digest.
    """
    approval, decision = record.approval, record.approval.decision
    if decision is None or not decision.approved or not needs_strong(approval.risk):
        return _proven(tx, record, FactKind.DECISION, None)
    act = Act(
        approval.approval_request_id,
        approval.project_id,
        decision.decision_id,
        decision.decided_at_ms,
    )
    return _proven(tx, record, FactKind.DECISION, (act, decision.decided_by))


def of_resolution(tx: Tx, record: Record) -> AuthorizationFact | None:
    """Return the fact of a person who settled an outcome; evidence needs none. Raises alike."""
    resolution = record.resolution
    if resolution is None or resolution.resolved_by is None:
        return _proven(tx, record, FactKind.RESOLUTION, None)
    act = Act(
        resolution.dispatch_id,
        resolution.project_id,
        resolution.mutation_id,
        resolution.resolved_at_ms,
    )
    return _proven(tx, record, FactKind.RESOLUTION, (act, resolution.resolved_by))


def _proven(
    tx: Tx, record: Record, kind: FactKind, due: tuple[Act, Subject] | None
) -> AuthorizationFact | None:
    """Return the fact that is due for what somebody did, proven; None where none is due."""
    row = tx.one(SQL["fact_of_action"], action=record.key, kind=kind.value)
    if due is None:
        if row is not None:
            raise DamagedError("fact_damaged", "a fact stands where nothing needed it")
        return None
    if row is None:
        raise DamagedError("fact_missing", "a decision has lost who proved what for it")
    act, by = due
    fact = _fact(row, act)
    said = (fact.mutation_id, fact.authorized_by, fact.authorized_at_ms)
    if said != (act.mutation_id, by, act.at_ms) or fact_digest(fact) != row["fact_digest"].hex():
        raise DamagedError("fact_damaged", "an authorization fact cannot be believed")
    return fact


def _fact(row: sqlite3.Row, act: Act) -> AuthorizationFact:
    try:
        return AuthorizationFact(
            act.target_id,
            act.project_id,
            row["mutation_id"],
            rows.subject_of(row["authorized_by"]),
            row["authentication_id"],
            Assurance(row["assurance"]),
            row["authenticated_at_ms"],
            row["project_version"],
            row["binding_version"],
            row["authorized_at_ms"],
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedError("fact_damaged", "an authorization fact cannot be believed") from error
