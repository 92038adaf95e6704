"""Judge what killed processes left, by nothing but SQLite and the marks that actions made."""

import sqlite3
from collections import Counter
from typing import Any, NamedTuple

from qinglong_edge.domain.machines import APPROVAL, EXECUTION, TERMINAL

SHELL = "shell.exec"
_STATUS_OF = {
    "confirm_succeeded": "succeeded",
    "confirm_failed": "failed",
    "abandon_unknown": "blocked",
}


class Beside(NamedTuple):
    """Hold what stands beside an execution: its effect, the proof of it, and who settled it."""

    receipts: int
    revisions: int
    runs: int
    attempts: int
    events: int
    source: str | None
    decision: str | None
    settled_version: int | None
    settled_by: str | None
    facts: int

    @property
    def effects(self) -> int:
        return self.revisions + self.runs


class Row(NamedTuple):
    """Hold what one action is, read straight from its rows."""

    action_type: str
    state: str
    version: int
    cancel_id: str | None
    dispatch_id: str | None
    status: str | None
    execution_version: int | None
    attempt_count: int | None
    result: str | None
    result_id: str | None
    control: str | None
    finding: str | None
    started_at_ms: int | None
    completed_at_ms: int | None
    updated_at_ms: int | None
    beside: Beside

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def shape(self) -> "Row":
        """Return the row without its times and without what each process draws."""
        beside = self.beside._replace(settled_by=None)
        return self._replace(
            result_id=None, started_at_ms=None, completed_at_ms=None, updated_at_ms=None,
            beside=beside,
        )  # fmt: skip


class View(NamedTuple):
    """Hold a state while no process lives: actions, rows a table, how often each dispatch began."""

    actions: dict[str, Row]
    sizes: dict[str, int]
    begun: Counter[str]

    @property
    def shape(self) -> tuple[dict[str, Row], dict[str, int]]:
        sizes = {name: size for name, size in self.sizes.items() if name != "boots"}
        return {name: row.shape for name, row in self.actions.items()}, sizes

    @property
    def statuses(self) -> dict[str, str | None]:
        return {name: row.status for name, row in self.actions.items()}


TABLES = (
    "migrations", "boots", "meta", "role_bindings", "identities", "sessions", "ids", "actions",
    "executions", "plans", "resolutions", "authorization_facts", "action_receipts",
    "task_revisions", "runs", "run_attempts", "run_events",
)  # fmt: skip
_ACTIONS = """
SELECT a.approval_request_id, a.action_type, a.state, a.version, a.cancel_id, a.dispatch_id,
  e.status, e.version, e.attempt_count, e.last_result_code, e.result_mutation_id,
  e.control_status, e.finding, e.started_at_ms, e.completed_at_ms, e.updated_at_ms,
  (SELECT count(*) FROM action_receipts WHERE action = a.key),
  (SELECT count(*) FROM task_revisions WHERE action = a.key),
  (SELECT count(*) FROM runs WHERE idempotency_key = a.dispatch_id),
  (SELECT count(*) FROM run_attempts t JOIN runs r ON t.run = r.key
    WHERE r.idempotency_key = a.dispatch_id),
  (SELECT count(*) FROM run_events t JOIN runs r ON t.run = r.key
    WHERE r.idempotency_key = a.dispatch_id),
  s.source, s.decision, s.execution_version, s.mutation_id,
  (SELECT count(*) FROM authorization_facts WHERE action = a.key AND kind = 'resolution')
FROM actions a LEFT JOIN executions e ON e.action = a.key
  LEFT JOIN resolutions s ON s.action = a.key
"""


def read_view(connection: sqlite3.Connection, begun: Counter[str]) -> View:
    """Return what a database holds, beside what the actions themselves wrote down."""
    there = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    sizes = {
        name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        for name in TABLES
        if name in there
    }
    return View(_actions(connection) if "actions" in there else {}, sizes, begun)


def _actions(connection: sqlite3.Connection) -> dict[str, Row]:
    own = len(Row._fields) - 1
    return {
        name: Row._make([*found[:own], Beside._make(found[own:])])
        for name, *found in connection.execute(_ACTIONS)
    }


def reachable(rows: dict[tuple[Any, Any], tuple[Any, ...]]) -> dict[str, set[str]]:
    """Return which states each state may become, itself included, by any number of rows."""
    states = {state for state, _ in rows} | {to for targets in rows.values() for to in targets}
    closed: dict[str, set[str]] = {state: {state} for state in states}
    for _ in states:
        for (state, _event), targets in rows.items():
            closed[state] |= set().union(*(closed[to] for to in targets))
    return closed


_APPROVALS = reachable(dict(APPROVAL.rows))
_EXECUTIONS = reachable(dict(EXECUTION.rows))


def check_view(view: View) -> None:
    """Hold one state against what must be true of every state."""
    dispatches = {row.dispatch_id: row for row in view.actions.values()}
    for name, row in view.actions.items():
        started = row.started_at_ms is not None
        assert (row.control is not None) == started, f"{name}: control without barrier: {row}"
        closed = row.control == "resolved"
        assert closed == (started and row.terminal), f"{name}: control against verdict: {row}"
        assert (row.completed_at_ms is not None) == row.terminal, f"{name}: {row}"
        assert (row.dispatch_id is None) == (row.state != "consumed"), f"{name}: {row}"
        _check_effect(name, row, view.begun[row.dispatch_id or ""])
        _check_settlement(name, row)
    for dispatch_id, times in view.begun.items():
        assert times == 1, f"{dispatch_id} was executed {times} times"
        owner = dispatches.get(dispatch_id)
        assert owner is not None, f"{dispatch_id} was executed and is not stored"
        assert owner.started_at_ms is not None, f"{dispatch_id} was executed without a barrier"


def _check_effect(name: str, row: Row, begun: int) -> None:
    """An effect on the database stands with its receipt, behind a barrier, or not at all."""
    beside = row.beside
    assert beside.effects <= 1, f"{name} had {beside.effects} effects"
    assert beside.receipts == beside.effects, f"{name}: effect and receipt differ: {row}"
    assert beside.attempts == beside.runs, f"{name}: a torn run: {row}"
    assert beside.events == 2 * beside.runs, f"{name}: a torn run: {row}"
    assert not beside.effects or row.started_at_ms is not None, f"{name}: effect without a barrier"
    if beside.source == "human":
        return
    did = beside.effects if row.action_type != SHELL else begun
    if row.status == "succeeded":
        assert did == 1, f"{name}: succeeded without executing"
    elif row.terminal and row.action_type != SHELL:
        assert did == 0, f"{name}: {row.status} and had its effect"


def _check_settlement(name: str, row: Row) -> None:
    """A resolution stands with the end it speaks of, a person's with their fact, or not at all."""
    beside = row.beside
    if beside.source is None:
        assert beside.facts == 0, f"{name}: a fact without its resolution"
        return
    ended = (row.status, row.execution_version, row.result_id)
    said = (
        _STATUS_OF[beside.decision or ""],
        (beside.settled_version or 0) + 1,
        beside.settled_by,
    )
    assert said == ended, f"{name}: the resolution says another end: {row}"
    human = beside.source == "human"
    assert beside.facts == human, f"{name}: a resolution without its fact, or the reverse: {row}"
    assert human or beside.receipts == 1, f"{name}: settled without evidence: {row}"


def check_moved(before: View, after: View) -> None:
    """Hold two states of one history against what may happen between two processes' ends."""
    check_view(after)
    for name, old in before.actions.items():
        assert name in after.actions, f"{name} was acknowledged and is lost"
        new = after.actions[name]
        assert new.state in _APPROVALS[old.state], f"{name}: {old} became {new}"
        assert new.version >= old.version, f"{name}: {old} became {new}"
        if old.status is None:
            continue
        assert new.status in _EXECUTIONS[old.status], f"{name}: {old} became {new}"
        assert (new.updated_at_ms or 0) >= (old.updated_at_ms or 0), f"{name}: time went back"
        assert (new.execution_version or 0) >= (old.execution_version or 0), f"{old} -> {new}"
        if old.terminal:
            assert new == old, f"{name}: a terminal action changed: {old} -> {new}"
        if old.status == "executing":
            settled = new.beside.source is not None
            assert new.terminal == settled, f"{name}: an unknown outcome was given a verdict"
            begun = before.begun[old.dispatch_id or ""]
            assert after.begun[old.dispatch_id or ""] == begun, f"{name} was executed after a crash"
            had = old.beside.effects
            assert new.beside.effects == had, f"{name} was executed after a crash: {new}"


def check_converged(view: View) -> None:
    """Hold a state that a cycle has left, and that no dead process holds: nothing is stuck."""
    for name, row in view.actions.items():
        assert row.status not in {"pending", "leased"}, f"{name}: left for nobody: {row}"
        if row.status != "executing":
            continue
        assert row.beside.receipts == 0, f"{name}: proven, and not settled: {row}"
        looked = (row.control, row.finding)
        shell = row.action_type == SHELL
        wanted = ("manual_required", "unsupported") if shell else ("armed", "missing")
        assert looked == wanted, f"{name}: nobody looked: {row}"
