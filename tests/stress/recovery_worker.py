"""One of the processes that race for outcomes: it executes, looks for evidence, or is a person.

Called as `recovery_worker.py STORE LOG NAME`; the first letter of NAME is the part it plays. An
action's number decides what happens behind its barrier; `Fate` names it.
"""

import enum
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable

from qinglong_edge.actions.database import ReceiptEvidence
from qinglong_edge.actions.task_publish import TaskPublish
from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain.action import TASK_PUBLISH, Plan
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.effect import PublishTask
from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.domain.execution import Dispatch, Outcome, Record, lease_expired
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.recovery import Decision, RecoveryRefusal
from qinglong_edge.domain.resolution import ResolveByPerson
from qinglong_edge.executor.ambient import system_entropy
from qinglong_edge.executor.invoke import Outstanding
from qinglong_edge.ports.evidence import EvidenceProvider
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection
from qinglong_edge.ports.probe import no_probe
from qinglong_edge.ports.repositories import DispatchAnswer, Listing, Queue
from qinglong_edge.runtime.dispatcher import Dispatcher
from qinglong_edge.runtime.execution import Desk
from qinglong_edge.runtime.reconciler import Reconciler
from qinglong_edge.storage.sqlite.dispatches import SqliteDispatches
from qinglong_edge.storage.sqlite.transaction import Database
from tests.contract.adapters import Ports, ports_of
from tests.stress.worker import One, SteadyClocks, open_store
from tests.support.builders import ANA, FENCE
from tests.support.handlers import Plain

PAGE = 4
IDLE_S = 0.05
BOUND_S = 50  # a quiet machine needs five


class Fate(enum.Enum):
    """Name what becomes of an action: number modulo 4."""

    DONE = 0
    ANSWER_LOST = 1
    NO_EFFECT = 2
    ANSWER_LATE = 3


def number_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def fate_of(name: str) -> Fate:
    """Return the fate of an action, by the id of its dispatch or of its task."""
    return Fate(number_of(name) % 4)


class Fated(Plain):
    """Publish a task, note the call in a file, and answer as fate has it."""

    action_type = TASK_PUBLISH

    def __init__(self, ports: Ports, log: str) -> None:
        self._real = TaskPublish(ports.effects)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def check(self, plan: Plan) -> None:
        raise NotImplementedError

    def preview(self, plan: Plan) -> JsonObject:
        raise NotImplementedError

    def deadline_ms(self, plan: Plan) -> int:
        return self._real.deadline_ms(plan)

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        return self._real.inspect(dispatch, plan)

    def effect(self, plan: Plan) -> PublishTask | None:
        task = self._real.effect(plan)
        return task if fate_of(task.task.task_id) is Fate.DONE else None

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        os.write(self._log, f"{context.idempotency_key}\n".encode())
        fate = fate_of(context.idempotency_key)
        if fate is Fate.NO_EFFECT:
            raise TimeoutError
        answer = self._real.execute(context)
        if fate is not Fate.DONE:
            raise TimeoutError
        return answer


class LateDispatches(SqliteDispatches):
    """Remember what is handed to recovery while its answer is still on the way."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.late: list[rules.Complete] = []

    def expire(self, event: rules.Expire) -> DispatchAnswer:
        answer = super().expire(event)
        if fate_of(event.dispatch_id) is Fate.ANSWER_LATE:
            fence = event.fence._replace(version=event.fence.version + 1)
            name = f"late-{event.dispatch_id}"
            late = rules.Complete(
                event.dispatch_id, fence, name, Outcome.SUCCEEDED, "task_published"
            )
            self.late.append(late)
        return answer


class Looking:
    """Know the one provider."""

    def __init__(self, provider: EvidenceProvider) -> None:
        self._provider = provider

    def provider(self, action_type: str) -> EvidenceProvider | None:
        return self._provider if action_type == TASK_PUBLISH else None

    def inspect_deadline_ms(self, action_type: str) -> int:
        return 5_000


Work = Callable[[Counter[str]], None]


def executing(opened: Database, ports: Ports, desk: Desk, log: str) -> Work:
    """Dispatch a page, then say what came too late for the page before."""
    dispatches = LateDispatches(opened)
    merges = desk.owner.endswith("0")
    desk = desk._replace(dispatches=dispatches)
    dispatcher = Dispatcher(desk, ports.approvals, One(Fated(ports, log)), whole=merges)

    def work(counts: Counter[str]) -> None:
        waiting = len(dispatches.late)
        counts += Counter(dispatcher.dispatch_page(None, PAGE, lambda: True).counts)
        for _ in range(waiting):
            answer = dispatches.complete(dispatches.late[0])[0]
            counts[f"late_{type(answer).__name__}"] += 1
            del dispatches.late[0]

    return work


def looking(ports: Ports, desk: Desk) -> Work:
    providers = Looking(ReceiptEvidence(TASK_PUBLISH, ports.effects))
    reconciler = Reconciler(desk, ports.recoveries, providers)

    def work(counts: Counter[str]) -> None:
        counts += Counter(reconciler.reconcile_page(None, PAGE, lambda: True).counts)

    return work


def deciding(ports: Ports, desk: Desk) -> Work:
    """Settle what is unknown: all that had no effect, and half of the rest, looked for or not."""

    def work(counts: Counter[str]) -> None:
        now = ports.overview.instant().now
        for record in ports.approvals.page(Listing(Queue.EXECUTING, None, 64)).items:
            if record.progress is None or not lease_expired(record.progress.execution, now):
                continue
            if record.dispatch is not None and by_person(record.dispatch.dispatch_id):
                counts[decide(ports, record, desk.draw_id())] += 1

    return work


def by_person(name: str) -> bool:
    return fate_of(name) is Fate.NO_EFFECT or number_of(name) % 8 < 4


def decide(ports: Ports, record: Record, mutation_id: str) -> str:
    if record.dispatch is None or record.progress is None:
        return "gone"
    now = ports.overview.instant().now
    nothing = fate_of(record.dispatch.dispatch_id) is Fate.NO_EFFECT
    answer = ports.recoveries.resolve_by_person(
        ResolveByPerson(
            record.dispatch.dispatch_id,
            record.progress.execution.version,
            None,
            mutation_id,
            Decision.ABANDON_UNKNOWN if nothing else Decision.CONFIRM_SUCCEEDED,
            "looked_myself",
            None,
            Principal(ANA, Assurance.MULTI_FACTOR, "ses-1", now.at_ms, now.tick),
            FENCE,
            unprobed=not nothing,
        )
    )
    return answer.value if isinstance(answer, RecoveryRefusal) else "settled"


def open_outcomes(ports: Ports) -> int:
    backlog = ports.overview.backlog()
    return sum(backlog) - backlog.oldest_age_ms


def moved(total: Counter[str]) -> int:
    return total["claimed"] + total["settled"]


def main(path: str, log: str, name: str) -> None:
    """Work until every outcome is known; print what was counted."""
    opened = open_store(path, SteadyClocks())
    ports, clocks = ports_of(opened), SteadyClocks()
    desk = Desk(ports.dispatches, Outstanding(clocks), clocks, system_entropy, no_probe, name)
    parts = {
        "executor": lambda: executing(opened, ports, desk, log),
        "resolver": lambda: looking(ports, desk),
        "person": lambda: deciding(ports, desk),
    }
    work = parts[name.partition("-")[0]]()
    total: Counter[str] = Counter()
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + BOUND_S
    while time.monotonic() < end:
        before = moved(total)
        try:
            if not open_outcomes(ports):
                break
            work(total)
        except UnavailableError:
            total["busy"] += 1  # nothing happened, so nothing is concluded
        if moved(total) == before:
            time.sleep(IDLE_S)  # let those work who have something
    work(total)  # what came too late for everything
    print(json.dumps(total), flush=True)
    opened.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
