"""Authorization facts on SQLite: written with what they authorize, and proven when looked at."""

import sqlite3

from qinglong_edge.domain.authorization import Act, AuthorizationFact, FactKind, fact_digest
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.identity import Assurance
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


def proven(tx: Tx, action: int, kind: FactKind, act: Act | None) -> AuthorizationFact | None:
    """Return the fact of what somebody did to an action, None where it needs none.

    Raises `DamagedError`: `fact_missing`, or `fact_damaged` where it says something else than the
    act or its digest, or stands where nothing needed it.
    """
    row = tx.one(SQL["fact_of_action"], action=action, kind=kind.value)
    if act is None:
        if row is not None:
            raise DamagedError("fact_damaged", "a fact stands where nothing needed it")
        return None
    if row is None:
        raise DamagedError("fact_missing", "who proved what for an authorized act is lost")
    fact = _fact(row, act)
    said = (fact.mutation_id, fact.authorized_by, fact.authorized_at_ms)
    done = (act.mutation_id, act.by, act.at_ms)
    if said != done or fact_digest(fact) != row["fact_digest"].hex():
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
