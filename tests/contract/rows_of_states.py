"""Legal rows of every state, as plain columns, for what the database itself must refuse."""

import sqlite3
from typing import Any

from qinglong_edge.domain.machines import ApprovalState, ControlStatus, ExecutionStatus
from qinglong_edge.storage.sqlite.transaction import Value
from tests.support.store import schema_statements

Row = dict[str, Value]
TICK = 1 << 42

DECISION: Row = {
    "decision_id": "dec-1",
    "approved": 1,
    "decision_reason": "reviewed",
    "decided_by": "user:ana",
    "decided_at_ms": 1_000,
}
CONSUMPTION: Row = {
    "consumption_id": "con-1",
    "dispatch_id": "dsp-1",
    "consumed_by": "system:edge",
    "consumed_at_ms": 1_000,
    "fence_project_version": 1,
    "fence_binding_version": 1,
}
CANCELLATION: Row = {"cancel_id": "can-1", "cancelled_by": "user:ana", "cancelled_at_ms": 1_000}
LEASE: Row = {
    "lease_owner": "owner",
    "lease_token": "token",
    "lease_from_tick": TICK,
    "lease_expires_tick": TICK + 1_000,
}
SCAN: Row = {
    "scan_owner": "resolver",
    "scan_token": "probe",
    "scan_from_tick": TICK,
    "scan_expires_tick": TICK + 500,
}
FINDING: Row = {
    "finding_mutation_id": "find-1",
    "finding": "missing",
    "finding_code": "no_trace",
    "finding_count": 1,
}
RESULT: Row = {"result_mutation_id": "done-1", "last_result_code": "exit_0"}
NOTHING: Row = dict.fromkeys([*DECISION, *CONSUMPTION, *CANCELLATION])


def action(state: ApprovalState, *, decided: bool = False) -> Row:
    """Return an action in a state; a cancelled or expired one may have been approved before."""
    identity: Row = {
        "key": 1,
        "project": 1,
        "approval_request_id": "apr-1",
        "permission": "tool.call:shell.exec",
        "action_type": "shell.exec",
        "action_ref": None,
        "action_digest": b"\1" * 32,
        "preview_digest": b"\2" * 32,
        "risk": "medium",
        "requested_by": "agent:bot",
        "requested_at_ms": 1_000,
        "expires_at_ms": 2_000,
        "repeats": None,
    }
    refused: Row = {**DECISION, "approved": 0}
    decision = DECISION if decided else {}
    version = 3 if decided else 2
    by_state: dict[ApprovalState, Row] = {
        ApprovalState.PENDING: {"version": 1},
        ApprovalState.APPROVED: {"version": 2, **DECISION},
        ApprovalState.REJECTED: {"version": 2, **refused},
        ApprovalState.CONSUMED: {"version": 3, **DECISION, **CONSUMPTION},
        ApprovalState.CANCELLED: {"version": version, **decision, **CANCELLATION},
        ApprovalState.EXPIRED: {"version": version, **decision},
    }
    return {**identity, **NOTHING, "state": state.value, **by_state[state]}


def control(status: ControlStatus) -> Row:
    """Return the control's columns of a started execution."""
    by_status: dict[ControlStatus, Row] = {
        ControlStatus.ARMED: {"next_scan_tick": TICK + 1_000},
        ControlStatus.LEASED: {"next_scan_tick": TICK + 500, **SCAN},
        ControlStatus.MANUAL_REQUIRED: FINDING,
        ControlStatus.RESOLVED: {},
    }
    own: Row = {
        "control_status": status.value,
        "control_version": 1,
        "finding_count": 0,
        "control_updated_at_ms": 1_000,
    }
    return {**own, **by_status[status]}


def execution(status: ExecutionStatus, *, started: bool = False) -> Row:
    """Return an execution in a state; a blocked one may have started."""
    ended: Row = {"completed_at_ms": 1_000, **RESULT}
    behind: Row = {"started_at_ms": 1_000, **control(ControlStatus.RESOLVED)}
    by_status: dict[ExecutionStatus, Row] = {
        ExecutionStatus.PENDING: {"version": 0, "attempt_count": 0, "eligible_tick": TICK},
        ExecutionStatus.LEASED: {"eligible_tick": TICK + 1_000, **LEASE},
        ExecutionStatus.EXECUTING: {
            "started_at_ms": 1_000,
            **LEASE,
            **control(ControlStatus.ARMED),
        },
        ExecutionStatus.RETRY_WAIT: {"eligible_tick": TICK, **RESULT},
        ExecutionStatus.SUCCEEDED: {**ended, **behind},
        ExecutionStatus.FAILED: {**ended, **behind},
        ExecutionStatus.BLOCKED: {**ended, **(behind if started else {})},
    }
    names = (
        *LEASE, *SCAN, *FINDING, *RESULT, "eligible_tick", "started_at_ms", "completed_at_ms",
        "control_status", "control_version", "next_scan_tick", "evidence_digest",
        "control_updated_at_ms",
    )  # fmt: skip
    base: Row = {
        **dict.fromkeys(names),
        "action": 1,
        "status": status.value,
        "version": 3,
        "attempt_count": 1,
        "max_attempts": 5,
        "created_at_ms": 1_000,
        "updated_at_ms": 1_000,
    }
    return {**base, **by_status[status]}


def empty() -> sqlite3.Connection:
    """Open a store that holds the schema and nothing else; its references are not asked for."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in schema_statements():
        connection.execute(statement)
    connection.execute("PRAGMA foreign_keys = OFF")
    return connection


def insert(connection: sqlite3.Connection, table: str, row: Row) -> None:
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*row.values()])


def update(connection: sqlite3.Connection, table: str, row: Row) -> None:
    """Write columns of the only row; none but those named."""
    assigned = ", ".join(f"{name} = ?" for name in row)
    hit = connection.execute(f"UPDATE {table} SET {assigned}", [*row.values()]).rowcount
    assert hit == 1


def moved(before: Row, after: Row) -> Row:
    """Return the columns of a move: everything that differs."""
    return {name: value for name, value in after.items() if before[name] != value}


def accepted(connection: sqlite3.Connection, write: Any) -> bool:
    """Tell whether the database took a write; only its own guards may refuse it."""
    connection.execute("SAVEPOINT trial")
    try:
        write(connection)
    except sqlite3.IntegrityError:
        return False
    else:
        return True
    finally:
        connection.execute("ROLLBACK TO trial")
        connection.execute("RELEASE trial")
