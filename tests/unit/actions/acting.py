"""What handlers of database actions are given, and what they leave behind."""

import json
import sqlite3
from contextlib import closing
from typing import Any

from qinglong_edge.actions.run_create import RunCreate
from qinglong_edge.domain.execution import Fence, fence_of
from qinglong_edge.domain.receipt import Found
from qinglong_edge.ports.evidence import EvidenceContext
from qinglong_edge.ports.handlers import HandlerContext
from tests.contract.adapters import Ports, SqliteRepositories
from tests.contract.story import Story
from tests.support.entropy import CounterEntropy

LEFT = ("task_revisions", "runs", "run_attempts", "run_events", "action_receipts")


def run_create(ports: Ports, start: int = 0) -> RunCreate:
    """Return the handler; it draws drawn-1, drawn-2 and so on."""
    draws = CounterEntropy(start)
    return RunCreate(ports.tasks, ports.effects, lambda: f"drawn-{int.from_bytes(draws(4), 'big')}")


def context_of(story: Story, n: int, **changes: Any) -> HandlerContext:
    """Return what `execute` is given for a started action."""
    record = story.record(n)
    stored = story.ports.approvals.plan(f"apr-{n}")
    assert record.dispatch is not None
    assert record.progress is not None
    assert stored is not None
    execution = record.progress.execution
    fence = fence_of(execution) or Fence("nobody", "none", execution.version)
    return HandlerContext(
        record.dispatch, stored[0], execution, fence, record.dispatch.dispatch_id, lambda: False
    )._replace(**changes)


def evidence_context(story: Story, n: int = 1, **changes: Any) -> EvidenceContext:
    """Return what a provider is given for a started action."""
    record = story.record(n)
    assert record.dispatch is not None
    assert record.progress is not None
    return EvidenceContext(
        record.dispatch, record.progress.execution, record.dispatch.dispatch_id, 0
    )._replace(**changes)


def table(sqlite: SqliteRepositories, name: str) -> list[dict[str, Any]]:
    """Return every row of a table by its columns."""
    with closing(sqlite3.connect(sqlite.path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {name}")]


def left(sqlite: SqliteRepositories) -> dict[str, int]:
    """Count the rows that effects leave."""
    counts = {name: len(table(sqlite, name)) for name in LEFT}
    return {name: n for name, n in counts.items() if n}


def found(story: Story, n: int) -> Found:
    seen = story.ports.effects.receipt(f"dsp-{n}")
    assert seen is not None
    return seen


def receipt(story: Story, n: int) -> dict[str, Any]:
    """Return the members of an action's receipt."""
    body = found(story, n).body
    assert body is not None
    members: dict[str, Any] = json.loads(body)
    return members
