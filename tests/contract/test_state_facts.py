"""Facts that nothing may change, rows that nothing may remove, and the words of the CHECKs."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from qinglong_edge.domain.action import LOCAL_PROCESS, Risk
from qinglong_edge.domain.authorization import FactKind
from qinglong_edge.domain.identity import STRONG, IdentityState
from qinglong_edge.domain.machines import ApprovalState, ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import BindingState, ProjectStatus, Role
from qinglong_edge.domain.profile import Profile
from qinglong_edge.domain.receipt import WORDS as WORDS_OF
from qinglong_edge.domain.recovery import Decision, Finding, Source
from qinglong_edge.domain.run import AttemptStatus, RunStatus
from qinglong_edge.storage import statements
from tests.contract.rows_of_states import (
    CANCELLATION,
    CONSUMPTION,
    DECISION,
    Row,
    accepted,
    action,
    empty,
    execution,
    insert,
    update,
)

PLAN: Row = {"action": 1, "body": b"{}", "preview": b"{}"}
ID: Row = {"id": "apr-1", "kind": "approval", "action": 1}
BINDING: Row = {
    "project": 1,
    "subject": "user:ana",
    "version": 1,
    "state": "active",
    "role": "owner",
    "mutation_id": "m-1",
    "changed_by": "user:ana",
    "created_at_ms": 0,
}
FACT: Row = {
    "action": 1,
    "kind": "decision",
    "mutation_id": "dec-1",
    "authorized_by": "user:ana",
    "authentication_id": "ses-1",
    "assurance": "multi_factor",
    "authenticated_at_ms": 1_000,
    "project_version": 1,
    "binding_version": 1,
    "authorized_at_ms": 1_000,
    "fact_digest": b"\1" * 32,
}
BEN: Row = {
    "key": 7,
    "subject": "user:ben",
    "state": "active",
    "version": 2,
    "password_scheme": "scrypt:4:8:1",
    "password_salt": b"s",
    "password_value": b"v",
    "created_at_ms": 0,
    "updated_at_ms": 0,
}
RESET: Row = {"reset_id": "res-1", "subject": "user:ben", "version": 2, "at_ms": 0}
RESOLUTION: Row = {
    "action": 1,
    "execution_version": 3,
    "mutation_id": "res-1",
    "source": "human",
    "decision": "confirm_succeeded",
    "evidence_digest": b"\3" * 32,
    "reason_code": "looked_myself",
    "resolved_by": "user:ana",
    "resolved_at_ms": 1_000,
    "unprobed": 0,
}
RECEIPT: Row = {
    "action": 1,
    "resource_type": "run",
    "resource_id": "run-1",
    "body": b"{}",
    "evidence_digest": b"\3" * 32,
}
REVISION: Row = {
    "key": 1,
    "project": 1,
    "task_id": "task-1",
    "number": 1,
    "name": "Task 1",
    "body": b"{}",
    "digest": b"\4" * 32,
    "action": 1,
    "created_at_ms": 1_000,
}
RUN: Row = {
    "key": 1,
    "run_id": "run-1",
    "project": 1,
    "task_id": "task-1",
    "task_revision": "r1",
    "task_name": "Task 1",
    "priority": 0,
    "trigger_type": "approved_action",
    "execution_origin": "system",
    "execution_owner": "runtime",
    "triggered_by": "approved-action:dsp-1",
    "request_id": "apr-1",
    "idempotency_key": "dsp-1",
    "status": "queued",
    "version": 2,
    "event_sequence": 2,
    "created_at_ms": 1_000,
    "queued_at_ms": 1_000,
}
ATTEMPT: Row = {
    "attempt_id": "att-1",
    "run": 1,
    "number": 1,
    "status": "claimed",
    "executor_type": "local_process",
    "callback_sequence": 0,
    "created_at_ms": 1_000,
}
EVENT: Row = {
    "run": 1,
    "sequence": 1,
    "event_id": "ev-1",
    "type": "run.created",
    "dedupe_key": "primary-run-created:run-1",
    "actor_type": "system",
    "actor_id": "approved-action-dispatcher",
    "payload": "{}",
    "created_at_ms": 1_000,
}
FOR_EVER = {"role_bindings", "identity_resets"}
ROWS = {
    "actions": action(ApprovalState.CONSUMED) | CANCELLATION,
    "executions": execution(ExecutionStatus.EXECUTING),
    "plans": PLAN,
    "ids": ID,
    "role_bindings": BINDING,
    "authorization_facts": FACT,
    "identity_resets": RESET,
    "resolutions": RESOLUTION,
    "action_receipts": RECEIPT,
    "task_revisions": REVISION,
    "runs": RUN,
    "run_attempts": ATTEMPT,
    "run_events": EVENT,
}
IMMUTABLE: dict[str, Row] = {
    "actions": {
        "key": 2, "project": 2, "approval_request_id": "apr-2", "permission": "run.start",
        "action_type": "other", "action_ref": "other", "action_digest": b"\5" * 32,
        "preview_digest": b"\5" * 32, "risk": "low", "requested_by": "agent:other",
        "requested_at_ms": 999, "expires_at_ms": 2_001, "repeats": "dsp-9",
        **{name: f"{value}-x" for name, value in DECISION.items() if isinstance(value, str)},
        "decided_at_ms": 1_001,
        **{name: f"{value}-x" for name, value in CONSUMPTION.items() if isinstance(value, str)},
        "consumed_at_ms": 1_001, "fence_project_version": 2, "fence_binding_version": 2,
        **{name: f"{value}-x" for name, value in CANCELLATION.items() if isinstance(value, str)},
        "cancelled_at_ms": 1_001,
    },
    "executions": {
        "action": 2, "max_attempts": 16, "created_at_ms": 999, "started_at_ms": 1_001,
    },
    "plans": {"action": 2, "body": b"[]", "preview": b"[]"},
    "ids": {"id": "apr-2", "kind": "dispatch", "action": 2},
    "role_bindings": {
        "project": 2, "subject": "user:bob", "version": 2, "role": "admin", "mutation_id": "m-2",
        "changed_by": "user:bob", "created_at_ms": 1,
    },
    "authorization_facts": {
        "action": 2, "mutation_id": "dec-2", "authorized_by": "user:bob",
        "authentication_id": "ses-2", "assurance": "hardware", "authenticated_at_ms": 999,
        "project_version": 2, "binding_version": 2, "authorized_at_ms": 999,
        "fact_digest": b"\2" * 32,
    },
    "identity_resets": {"reset_id": "res-2", "subject": "user:bob", "version": 3, "at_ms": 1},
    "resolutions": {
        "action": 2, "execution_version": 4, "mutation_id": "res-2", "decision": "confirm_failed",
        "evidence_digest": None, "reason_code": "other", "resolved_by": "user:bob",
        "resolved_at_ms": 1_001, "unprobed": 1,
    },
    "action_receipts": {
        "action": 2, "resource_type": "task_revision", "resource_id": "run-2", "body": b"[]",
        "evidence_digest": b"\5" * 32,
    },
    "task_revisions": {
        "key": 2, "project": 2, "task_id": "task-2", "number": 2, "name": "Other", "body": b"[]",
        "digest": b"\5" * 32, "action": 2, "created_at_ms": 1_001,
    },
    "run_events": {
        "run": 2, "sequence": 2, "event_id": "ev-2", "type": "run.queued", "dedupe_key": None,
        "actor_type": "user", "actor_id": None, "payload": "[]", "created_at_ms": 1_001,
    },
}  # fmt: skip


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(empty()) as connection:
        insert(connection, "identities", BEN)
        for table, row in ROWS.items():
            insert(connection, table, row)
        yield connection


@pytest.mark.scenario(188)
@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table, values in IMMUTABLE.items() for column in values],
)
def test_a_fact_is_never_changed(db: sqlite3.Connection, table: str, column: str) -> None:
    other = IMMUTABLE[table][column]
    assert not accepted(db, lambda at: update(at, table, {column: other}))


def test_what_moves_can_still_move(db: sqlite3.Connection) -> None:
    """The refusals above come from the facts, not from a database that refuses everything."""
    row: Row = {"updated_at_ms": 1_001, "version": 4}
    assert accepted(db, lambda at: update(at, "executions", row))
    unchanged: Row = {"state": "consumed"}
    assert accepted(db, lambda at: update(at, "actions", unchanged))


REPLACEMENTS: dict[str, Row] = {
    "plans": PLAN | {"body": b"[]"},
    "ids": ID | {"action": 2},
    "role_bindings": BINDING | {"role": None, "state": "revoked"},
    "authorization_facts": FACT | {"authentication_id": "ses-2"},
    "identity_resets": RESET | {"at_ms": 1},
    "resolutions": RESOLUTION | {"mutation_id": "res-2"},
    "action_receipts": RECEIPT | {"resource_id": "run-2"},
    "task_revisions": REVISION | {"key": 2, "body": b"[]"},
    "run_events": EVENT | {"event_id": "ev-2"},
}
SECOND_KEYS: list[tuple[str, Row]] = [
    ("action_receipts", RECEIPT | {"action": 2}),
    ("task_revisions", REVISION | {"key": 2, "number": 2}),
    ("task_revisions", REVISION | {"key": 2, "action": 2}),
    ("task_revisions", REVISION | {"number": 2, "action": 2}),
]


@pytest.mark.scenario(188)
@pytest.mark.parametrize(("table", "row"), [*REPLACEMENTS.items(), *SECOND_KEYS])
def test_a_fact_is_not_replaced_by_an_insert(db: sqlite3.Connection, table: str, row: Row) -> None:
    """`INSERT OR REPLACE` removes a row without its DELETE triggers, so it needs a guard too."""
    names, marks = ", ".join(row), ", ".join("?" * len(row))

    def replace(at: sqlite3.Connection) -> None:
        at.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", [*row.values()])

    assert not accepted(db, replace)


@pytest.mark.parametrize("table", sorted(ROWS))
@pytest.mark.parametrize("permitted", [False, True])
def test_rows_go_only_inside_a_prune(db: sqlite3.Connection, table: str, permitted: bool) -> None:
    if permitted:
        db.execute("INSERT INTO prune_permit VALUES (1)")
    took = accepted(db, lambda at: at.execute(f"DELETE FROM {table}"))
    assert took is (permitted and table not in FOR_EVER)


def test_there_is_one_permit_at_most(db: sqlite3.Connection) -> None:
    assert not accepted(db, lambda at: at.execute("INSERT INTO prune_permit VALUES (2)"))


LOCAL_PROFILES = {Profile.EDGE, Profile.STANDALONE}
WORDS: dict[tuple[str, str], set[str]] = {
    ("projects", "status"): {*ProjectStatus},
    ("meta", "profile"): {each.value for each in LOCAL_PROFILES},
    ("role_bindings", "state"): {*BindingState},
    ("role_bindings", "role"): {*Role},
    ("identities", "state"): {*IdentityState},
    ("authorization_facts", "kind"): {*FactKind},
    ("authorization_facts", "assurance"): {*STRONG},
    ("actions", "state"): {*ApprovalState},
    ("actions", "risk"): {*Risk},
    ("executions", "status"): {*ExecutionStatus},
    ("executions", "control_status"): {*ControlStatus},
    ("executions", "finding"): {*Finding},
    ("resolutions", "source"): {*Source},
    ("resolutions", "decision"): {*Decision},
    ("action_receipts", "resource_type"): {each.resource_type for each in WORDS_OF.values()},
    ("runs", "status"): {*RunStatus},
    ("run_attempts", "status"): {*AttemptStatus},
    ("run_attempts", "executor_type"): {LOCAL_PROCESS},
}
COLUMN = re.compile(r"\n  (\w+) (?:TEXT|INTEGER)[^\n]*?(?:\n\s+)?CHECK \((\w+) IN\s*\(([^)]*)\)")


def checked_words() -> dict[tuple[str, str], set[str]]:
    """Read the word lists of the schema's columns."""
    schema = statements.text("qinglong_edge.storage.sqlite", "sql/schema.sql")
    found = {}
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema, re.DOTALL):
        for column, checked, words in COLUMN.findall(body):
            assert column == checked
            found[table, column] = set(re.findall(r"'(\w+)'", words))
    return found


@pytest.mark.parametrize(("table", "column"), sorted(WORDS))
def test_the_words_of_a_check_are_those_of_its_enum(table: str, column: str) -> None:
    assert checked_words()[table, column] == WORDS[table, column]


def test_a_state_of_no_enum_is_refused(db: sqlite3.Connection) -> None:
    for table, column in (("actions", "state"), ("executions", "status")):
        row: Row = {column: "done"}
        assert not accepted(db, lambda at, t=table, r=row: update(at, t, r))


AUTOMATIC: Row = RESOLUTION | {"source": "automatic_evidence", "resolved_by": None}
IMPOSSIBLE: list[tuple[str, Row]] = [
    ("resolutions", AUTOMATIC | {"decision": "abandon_unknown"}),
    ("resolutions", AUTOMATIC | {"evidence_digest": None}),
    ("resolutions", AUTOMATIC | {"resolved_by": "user:ana"}),
    ("resolutions", AUTOMATIC | {"unprobed": 1}),
    ("resolutions", RESOLUTION | {"resolved_by": None}),
    ("resolutions", RESOLUTION | {"resolved_by": "agent:bot"}),
    ("resolutions", RESOLUTION | {"decision": "retry"}),
    ("resolutions", RESOLUTION | {"execution_version": 0}),
    ("resolutions", RESOLUTION | {"evidence_digest": b"\3" * 31}),
    ("action_receipts", RECEIPT | {"body": b"x" * 4_097}),
    ("action_receipts", RECEIPT | {"evidence_digest": b"\3" * 31}),
    ("task_revisions", REVISION | {"number": 0}),
    ("task_revisions", REVISION | {"digest": b"\4" * 31}),
    ("runs", RUN | {"status": "created"}),
    ("run_attempts", ATTEMPT | {"number": 0}),
    ("run_events", EVENT | {"sequence": 0}),
]


@pytest.mark.scenario(145, 188)
@pytest.mark.parametrize(("table", "row"), IMPOSSIBLE)
def test_an_impossible_settlement_or_effect_is_refused(table: str, row: Row) -> None:
    with closing(empty()) as connection:
        assert not accepted(connection, lambda at: insert(at, table, row))
        legal = AUTOMATIC if row.get("source") == "automatic_evidence" else ROWS[table]
        assert accepted(connection, lambda at: insert(at, table, legal))


@pytest.mark.parametrize("table", ["runs", "run_attempts", "task_revisions"])
def test_one_key_names_one_run_and_one_number_one_revision(table: str) -> None:
    other: dict[str, Row] = {
        "runs": {"key": 2, "run_id": "run-2"},
        "run_attempts": {"attempt_id": "att-2"},
        "task_revisions": {"key": 2, "action": 2},
    }
    with closing(empty()) as connection:
        insert(connection, table, ROWS[table])
        assert not accepted(connection, lambda at: insert(at, table, ROWS[table] | other[table]))
