"""Change the program of one child: other ways that it has, and faults that the suite must find."""

import threading
from collections.abc import Callable
from functools import partialmethod
from typing import Any

from qinglong_edge.actions.database import ReceiptEvidence
from qinglong_edge.actions.shell_exec import ShellExec
from qinglong_edge.commands import cycle
from qinglong_edge.domain.action import Plan
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Dispatch, Record, fence_of
from qinglong_edge.domain.lifecycle import Cursors
from qinglong_edge.domain.resolution import Case, ResolveByEvidence, Settled
from qinglong_edge.executor.invoke import Outstanding
from qinglong_edge.ports.evidence import EvidenceContext
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection, Readiness
from qinglong_edge.ports.probe import Step
from qinglong_edge.ports.repositories import RecoveryAnswer
from qinglong_edge.storage.sqlite import actions, effects, recoveries
from qinglong_edge.storage.sqlite.recoveries import SqliteRecoveries
from qinglong_edge.storage.sqlite.transaction import Database, Tx

PATIENCE_S = 20
TICK_MS = 20


def _split() -> None:
    """Have barrier, effect and verdict of an action on the database in commits of their own."""
    begin = cycle.Runner.__init__
    cycle.Runner.__init__ = partialmethod(begin, whole=False)  # type: ignore[method-assign, assignment]


def _slow_look() -> None:
    """Let a look for evidence take until its lease has been prolonged."""
    call, inspect = Outstanding.call, ReceiptEvidence.inspect
    ticked = threading.Event()

    def often(self: Outstanding, name: str, work: Any, **times: Any) -> Any:
        on_tick = times["on_tick"]

        def tick() -> None:
            on_tick()
            ticked.set()

        if name.startswith("evidence:"):
            times |= {"tick_ms": TICK_MS, "on_tick": tick}
        return call(self, name, work, **times)

    def slowly(self: ReceiptEvidence, context: EvidenceContext) -> Evidence:
        ticked.wait(PATIENCE_S)
        return inspect(self, context)

    Outstanding.call = often  # type: ignore[method-assign, assignment]
    ReceiptEvidence.inspect = slowly  # type: ignore[method-assign]


WAYS: dict[str, Callable[[], None]] = {"split": _split, "slow_look": _slow_look}


def _execute_before_start() -> None:
    """Seed the fault of a side effect that comes before its durable barrier."""
    inspect, execute = ShellExec.inspect, ShellExec.execute
    answers: dict[str, HandlerAnswer] = {}

    def early(self: ShellExec, dispatch: Dispatch, plan: Plan) -> Inspection:
        seen = inspect(self, dispatch, plan)
        if seen.readiness is Readiness.READY:
            nothing: Any = None
            name = dispatch.dispatch_id
            context = HandlerContext(dispatch, plan, nothing, nothing, name, lambda: False)
            answers[name] = execute(self, context)
        return seen

    def late(self: ShellExec, context: HandlerContext) -> HandlerAnswer:
        return answers[context.dispatch.dispatch_id]

    ShellExec.inspect = early  # type: ignore[method-assign]
    ShellExec.execute = late  # type: ignore[method-assign]


def _execute_twice() -> None:
    """Seed the fault of an action that is tried again."""
    execute = ShellExec.execute

    def twice(self: ShellExec, context: HandlerContext) -> HandlerAnswer:
        execute(self, context)
        return execute(self, context)

    ShellExec.execute = twice  # type: ignore[method-assign]


def _execute_in_recovery() -> None:
    """Seed the fault of a recovery that sends again what it should only look for."""
    run = cycle.Runner.run

    def again(self: cycle.Runner, cursors: Cursors, stopping: Callable[[], bool]) -> Cursors:
        engine = self._engine
        engine.dispatches.settle_dead_owners(self._owner)
        for record in engine.recoveries.list_due(None, 16).items:
            _send_again(engine, record)
        return run(self, cursors, stopping)

    cycle.Runner.run = again  # type: ignore[method-assign]


def _send_again(engine: Any, record: Record) -> None:
    if record.dispatch is None or record.progress is None:
        return
    dispatch, execution = record.dispatch, record.progress.execution
    handler = engine.registry.find(dispatch.action.action_type)
    plan, _ = engine.approvals.plan(dispatch.approval_request_id)
    fence: Any = fence_of(execution)
    name = dispatch.dispatch_id
    handler.execute(HandlerContext(dispatch, plan, execution, fence, name, lambda: False))


def _forget_commits() -> None:
    """Seed the fault of a commit that is acknowledged and lost."""

    def forget(self: Database) -> None:
        self.connection.execute("ROLLBACK")

    Database._commit = forget  # type: ignore[method-assign]


def _resolve_in_two_commits() -> None:
    """Seed the fault of a resolution that is stored before the end it speaks of."""
    move, resolve = actions.move_execution, SqliteRecoveries.resolve_by_evidence
    moves: list[tuple[Any, ...]] = []

    def store(tx: Tx, record: Record, case: Case, settled: Settled) -> None:
        actions.move_execution = lambda _tx, *values: moves.append(values)
        try:
            whole(tx, record, case, settled)
        finally:
            actions.move_execution = move

    def apart(self: SqliteRecoveries, event: ResolveByEvidence) -> RecoveryAnswer:
        answer = resolve(self, event)
        self._database.write(Step.RESOLVE_EVIDENCE, lambda tx: move(tx, *moves.pop()))
        return answer

    whole = recoveries._store
    recoveries._store = store
    SqliteRecoveries.resolve_by_evidence = apart  # type: ignore[method-assign]


def _person_without_fact() -> None:
    """Seed the fault of a person's resolution whose fact is not written."""
    whole = recoveries._store

    def store(tx: Tx, record: Record, case: Case, settled: Settled) -> None:
        whole(tx, record, case, settled._replace(fact=None))

    recoveries._store = store


def _effect_without_receipt() -> None:
    """Seed the fault of an effect whose receipt is not in its commit."""
    nothing = "UPDATE clock SET one = 1 WHERE one = 1"
    effects.SQL = {**effects.SQL, "add_receipt": nothing}


FAULTS: dict[str, Callable[[], None]] = {
    "execute_before_start": _execute_before_start,
    "execute_twice": _execute_twice,
    "execute_in_recovery": _execute_in_recovery,
    "forget_commits": _forget_commits,
    "resolve_in_two_commits": _resolve_in_two_commits,
    "person_without_fact": _person_without_fact,
    "effect_without_receipt": _effect_without_receipt,
}
