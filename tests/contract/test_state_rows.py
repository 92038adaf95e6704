"""What the database itself refuses: illegal states, illegal moves, changed facts, deletions.

The expectations are the contract's tables (4.1, 6.1, 8.1) and `domain.machines`, written down here
once more; the schema is only tried.
"""

import enum
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import product

import pytest

from qinglong_edge.domain.machines import (
    APPROVAL,
    CONTROL,
    EXECUTION,
    ApprovalState,
    ControlStatus,
    ExecutionStatus,
    Machine,
)
from tests.contract.rows_of_states import (
    CANCELLATION,
    CONSUMPTION,
    DECISION,
    FINDING,
    LEASE,
    NOTHING,
    SCAN,
    TICK,
    Row,
    accepted,
    action,
    control,
    empty,
    execution,
    insert,
    moved,
    update,
)

A = ApprovalState
E = ExecutionStatus
C = ControlStatus


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(empty()) as connection:
        yield connection


def pairs(machine: Machine, states: type[enum.StrEnum]) -> list[tuple[str, str, bool]]:  # type: ignore[type-arg]
    """Return every pair of states, and whether some event of the machine leads that way."""
    legal = {(state, to) for (state, _), targets in machine.rows.items() for to in targets}
    return [(a, b, (a, b) in legal) for a, b in product(states, states)]


def from_to(machine: Machine, states: type[enum.StrEnum]) -> pytest.MarkDecorator:  # type: ignore[type-arg]
    cases = pairs(machine, states)
    ids = [f"{a}-{b}-{'legal' if legal else 'illegal'}" for a, b, legal in cases]
    return pytest.mark.parametrize(("state", "to", "legal"), cases, ids=ids)


@pytest.mark.adr("0001", "6")
@from_to(APPROVAL, ApprovalState)
def test_an_approval_moves_by_its_machine(
    db: sqlite3.Connection, state: A, to: A, legal: bool
) -> None:
    before = action(state)
    targets = [action(to), action(to, decided=True)]
    if state is to:  # staying is a move only where a withdrawal is recorded
        targets = [{**before, **CANCELLATION, "cancelled_at_ms": 1_001}]
    insert(db, "actions", before)
    took = [
        accepted(db, lambda at, after=after: update(at, "actions", moved(before, after)))
        for after in targets
    ]
    assert any(took) is legal


@pytest.mark.parametrize("state", [each for each in A if each is not A.CONSUMED])
def test_only_a_consumed_approval_takes_a_fact_without_moving(
    db: sqlite3.Connection, state: A
) -> None:
    insert(db, "actions", action(state))
    assert not accepted(db, lambda at: update(at, "actions", CANCELLATION))
    db.execute("DROP TRIGGER actions_stay")
    db.execute("DELETE FROM actions")
    insert(db, "actions", action(A.CONSUMED))
    assert accepted(db, lambda at: update(at, "actions", CANCELLATION))


@pytest.mark.parametrize("step", [0, -1, 2])
def test_an_approval_counts_each_move(db: sqlite3.Connection, step: int) -> None:
    before, after = action(A.PENDING), action(A.APPROVED)
    insert(db, "actions", before)
    skewed = {**moved(before, after), "version": 1 + step}
    assert not accepted(db, lambda at: update(at, "actions", skewed))


@pytest.mark.adr("0001", "6")
@from_to(EXECUTION, ExecutionStatus)
def test_an_execution_moves_by_its_machine(
    db: sqlite3.Connection, state: E, to: E, legal: bool
) -> None:
    before = execution(state)
    insert(db, "executions", before)
    version = int(str(before["version"])) + 1
    took = []
    for started in (False, True):
        after = execution(to, started=started)
        after |= {"version": 0 if to is E.PENDING else version, "updated_at_ms": 1_001}
        took.append(accepted(db, lambda at, a=after: update(at, "executions", moved(before, a))))
    assert any(took) is legal


@pytest.mark.parametrize("version", [0, 2, 5])
def test_an_execution_counts_each_move(db: sqlite3.Connection, version: int) -> None:
    before, after = execution(E.LEASED), execution(E.EXECUTING)
    insert(db, "executions", before)
    for skewed in (version, 3):
        row = {**moved(before, after), "version": skewed}
        assert not accepted(db, lambda at, row=row: update(at, "executions", row))


@pytest.mark.adr("0001", "6")
@from_to(CONTROL, ControlStatus)
def test_a_control_moves_by_its_machine(
    db: sqlite3.Connection, state: C, to: C, legal: bool
) -> None:
    """An observed control keeps its finding, so the rows of both sides carry one."""
    seen = {**FINDING, "evidence_digest": None}
    ended = dict.fromkeys(LEASE) | {"completed_at_ms": 1_000, "status": "succeeded"}
    ended |= {"result_mutation_id": "done-1", "last_result_code": "exit_0"}
    base = execution(E.EXECUTING)

    def row(status: C) -> Row:
        fresh: Row = {"next_scan_tick": None, **dict.fromkeys(SCAN)}
        over: Row = ended if status is C.RESOLVED else {}
        return {**base, **fresh, **control(status), **seen, **over}

    before, after = row(state), {**row(to), "version": 4, "control_version": 2}
    insert(db, "executions", before)
    assert accepted(db, lambda at: update(at, "executions", moved(before, after))) is legal


SET, NULL, FREE = "set", "null", "free"
SAMPLES: Row = {
    "eligible_tick": TICK,
    "lease_owner": "x",
    "lease_token": "x",
    "lease_from_tick": TICK,
    "lease_expires_tick": TICK + 1,
    "started_at_ms": 1_000,
    "result_mutation_id": "x",
    "last_result_code": "x",
    "completed_at_ms": 1_000,
    "control_status": "armed",
    "control_version": 0,
    "next_scan_tick": TICK,
    "scan_owner": "x",
    "scan_token": "x",
    "scan_from_tick": TICK,
    "scan_expires_tick": TICK + 1,
    "finding_count": 1,
    "finding_mutation_id": "x",
    "finding": "missing",
    "finding_code": "x",
    "evidence_digest": b"\3" * 32,
    "control_updated_at_ms": 1_000,
}
FREE_IN: dict[E, set[str]] = {E.LEASED: {"last_result_code"}, E.EXECUTING: {"last_result_code"}}


def toggled() -> Iterator[tuple[str, E, bool, str]]:
    for status, column in product(E, SAMPLES):
        variants = (False, True) if status is E.BLOCKED else (False,)
        for started in variants:
            yield f"{status}-{'started-' if started else ''}{column}", status, started, column


TOGGLES = list(toggled())


@pytest.mark.parametrize(
    ("status", "started", "column"),
    [case[1:] for case in TOGGLES],
    ids=[case[0] for case in TOGGLES],
)
def test_each_column_is_set_exactly_where_its_state_says(
    db: sqlite3.Connection, status: E, started: bool, column: str
) -> None:
    """A legal row with one column emptied, or filled, is refused: no CHECK has a NULL hole."""
    row = execution(status, started=started)
    assert accepted(db, lambda at: insert(at, "executions", row))
    other = SAMPLES[column] if row[column] is None else None
    free = column in FREE_IN.get(status, set())
    changed_row = {**row, column: other}
    assert accepted(db, lambda at: insert(at, "executions", changed_row)) is free


CONTROL_COLUMNS = sorted({*SCAN, *FINDING, "next_scan_tick", "control_version", "evidence_digest"})


@pytest.mark.parametrize(("status", "column"), list(product(C, CONTROL_COLUMNS)))
def test_each_control_column_is_set_exactly_where_its_state_says(
    db: sqlite3.Connection, status: C, column: str
) -> None:
    ended = status is C.RESOLVED
    row = {**execution(E.SUCCEEDED if ended else E.EXECUTING), "next_scan_tick": None}
    row |= control(status) | FINDING
    assert accepted(db, lambda at: insert(at, "executions", row))
    other = SAMPLES[column] if row[column] is None else None
    free = column == "evidence_digest"
    changed_row = {**row, column: other}
    assert accepted(db, lambda at: insert(at, "executions", changed_row)) is free


@pytest.mark.parametrize(
    ("state", "decided", "column"),
    [
        (state, decided, column)
        for state, column in product(A, NOTHING)
        for decided in ((False, True) if state in {A.CANCELLED, A.EXPIRED} else (False,))
    ],
)
def test_each_fact_stands_exactly_where_its_state_says(
    db: sqlite3.Connection, state: A, decided: bool, column: str
) -> None:
    row = action(state, decided=decided)
    samples = {**DECISION, **CONSUMPTION, **CANCELLATION}
    assert accepted(db, lambda at: insert(at, "actions", row))
    other = samples[column] if row[column] is None else None
    free = column == "fence_binding_version" and state is A.CONSUMED
    changed_row = {**row, column: other}
    assert accepted(db, lambda at: insert(at, "actions", changed_row)) is free


WRONG_ACTIONS: list[Row] = [
    *({**action(state), "version": version} for state, version in [
        (A.PENDING, 2), (A.APPROVED, 1), (A.APPROVED, 3), (A.REJECTED, 3), (A.CONSUMED, 2),
        (A.CANCELLED, 1), (A.CANCELLED, 3), (A.EXPIRED, 1), (A.EXPIRED, 3),
    ]),
    *({**action(state, decided=True), "version": 2} for state in (A.CANCELLED, A.EXPIRED)),
    *({**action(state, decided=True), "approved": 0} for state in (A.CANCELLED, A.EXPIRED)),
    {**action(A.APPROVED), "approved": 0},
    {**action(A.REJECTED), "approved": 1},
    {**action(A.CONSUMED), "approved": 0},
    {**action(A.PENDING), **DECISION},
    {**action(A.APPROVED), **CONSUMPTION},
    {**action(A.REJECTED), **CANCELLATION},
    {**action(A.CANCELLED, decided=True), **CONSUMPTION},
    {**action(A.APPROVED), "decided_by": "agent:x"},
    {**action(A.APPROVED), "decided_by": "user:", "requested_by": "agent:bot"},
    {**action(A.APPROVED), "decided_by": "user:x", "requested_by": "user:x"},
    {**action(A.CONSUMED), "consumed_by": "user:x"},
    {**action(A.PENDING), "expires_at_ms": 1_000},
    {**action(A.PENDING), "expires_at_ms": 1_001 + 86_400_000},
    {**action(A.PENDING), "action_digest": b"\1" * 31},
    {**action(A.PENDING), "action_digest": "1" * 32},
    {**action(A.PENDING), "preview_digest": b""},
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG_ACTIONS)
def test_an_impossible_action_is_refused(db: sqlite3.Connection, row: Row) -> None:
    assert not accepted(db, lambda at: insert(at, "actions", row))


WRONG_EXECUTIONS: list[Row] = [
    {**execution(E.PENDING), "version": 1},
    {**execution(E.PENDING), "attempt_count": 1},
    {**execution(E.LEASED), "attempt_count": 0},
    {**execution(E.LEASED), "eligible_tick": TICK},
    {**execution(E.LEASED), "lease_expires_tick": TICK - 1, "eligible_tick": TICK - 1},
    {**execution(E.LEASED), "lease_expires_tick": TICK + 600_001, "eligible_tick": TICK + 600_001},
    {**execution(E.LEASED), "lease_owner": ""},
    {**execution(E.LEASED), "lease_token": "x" * 129},
    {**execution(E.EXECUTING), "attempt_count": 0},
    {**execution(E.EXECUTING), **control(C.RESOLVED), "next_scan_tick": None},
    {**execution(E.RETRY_WAIT), "attempt_count": 5},
    {**execution(E.RETRY_WAIT), "attempt_count": 6},
    {**execution(E.RETRY_WAIT), "attempt_count": -1},
    {**execution(E.SUCCEEDED), **control(C.ARMED)},
    {**execution(E.FAILED), **control(C.MANUAL_REQUIRED)},
    {**execution(E.BLOCKED), **control(C.RESOLVED)},
    {**execution(E.BLOCKED), "started_at_ms": 1_000},
    {**execution(E.SUCCEEDED), "result_mutation_id": "x" * 65},
    {**execution(E.SUCCEEDED), "last_result_code": ""},
    {**execution(E.EXECUTING), **control(C.LEASED), "next_scan_tick": TICK},
    {**execution(E.EXECUTING), **control(C.LEASED), "scan_expires_tick": TICK + 600_001,
     "next_scan_tick": TICK + 600_001},
    {**execution(E.EXECUTING), "finding_count": 1},
    {**execution(E.EXECUTING), **FINDING, "finding_count": 0},
    {**execution(E.EXECUTING), **FINDING, "evidence_digest": b"\3" * 31},
    {**execution(E.EXECUTING), "evidence_digest": b"\3" * 32},
    {**execution(E.PENDING), "max_attempts": 17},
    {**execution(E.PENDING), "max_attempts": 0},
]  # fmt: skip


@pytest.mark.parametrize("row", WRONG_EXECUTIONS)
def test_an_impossible_execution_is_refused(db: sqlite3.Connection, row: Row) -> None:
    assert not accepted(db, lambda at: insert(at, "executions", row))
