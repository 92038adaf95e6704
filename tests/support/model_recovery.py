"""The model's recovery, effects and tasks: the domain's functions around dicts."""

from collections.abc import Callable
from typing import Protocol

from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain import effect as effects
from qinglong_edge.domain import evidence, resolution
from qinglong_edge.domain import receipt as receipts
from qinglong_edge.domain.action import action_digest
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.effect import Perform, PublishTask, Whole
from qinglong_edge.domain.execution import Execution, Fence, Outcome, Record
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.receipt import WORDS, Found
from qinglong_edge.domain.recovery import Finding, RecoveryRefusal
from qinglong_edge.domain.resolution import Case
from qinglong_edge.domain.run import admit
from qinglong_edge.domain.task import TaskRevision, parse_revision, task_body
from qinglong_edge.ports.handlers import HandlerAnswer
from qinglong_edge.ports.repositories import DispatchAnswer, RecoveryAnswer
from tests.support.model_store import ModelStore, Tx


class ModelRecoveries:
    def __init__(
        self, kept: ModelStore, page: Callable[[Tx, Cursor | None, int], Page[Record]]
    ) -> None:
        self._kept = kept
        self._page = page

    def list_due(self, after: Cursor | None, limit: int) -> Page[Record]:
        return self._kept.read(lambda tx: self._page(tx, after, limit))

    def claim(self, event: evidence.ClaimScan) -> RecoveryAnswer:
        evidence.check_claim_scan(event)
        return self._scan(
            event.dispatch_id, lambda tx, case: evidence.claim(case.progress, event, tx.now)
        )

    def renew(self, event: evidence.RenewScan) -> RecoveryAnswer:
        evidence.check_renew_scan(event)
        return self._scan(
            event.dispatch_id, lambda tx, case: evidence.renew(case.progress, event, tx.now)
        )

    def observe(self, event: evidence.Observe) -> RecoveryAnswer:
        evidence.check_observe(event)
        return self._scan(
            event.dispatch_id, lambda tx, case: evidence.observe(case.progress, event, tx.now)
        )

    def resolve_by_evidence(self, event: resolution.ResolveByEvidence) -> RecoveryAnswer:
        resolution.check_by_evidence(event)
        return self._settle(event, lambda tx, case: resolution.by_evidence(case, event, tx.now))

    def resolve_by_person(self, event: resolution.ResolveByPerson) -> RecoveryAnswer:
        resolution.check_by_person(event)

        def rule(tx: Tx, case: Case) -> resolution.Answer:
            policy = tx.fence(case.dispatch.project_id, event.principal.subject)
            return resolution.by_person(case, event, tx.now, policy=policy)

        return self._settle(event, rule)

    def _scan(
        self, dispatch_id: str, rule: Callable[[Tx, Case], evidence.Answer]
    ) -> RecoveryAnswer:
        def body(tx: Tx) -> RecoveryAnswer:
            found, case = tx.find(dispatch_id), tx.case(dispatch_id)
            if found is None or case is None:
                return RecoveryRefusal.NOT_FOUND
            answer = rule(tx, case)
            if isinstance(answer, Changed):
                return Changed(tx.move(found, answer.after))
            return Replayed(found) if isinstance(answer, Replayed) else answer

        return self._kept.write(body)

    def _settle(
        self, event: "Settlement", rule: Callable[[Tx, Case], resolution.Answer]
    ) -> RecoveryAnswer:
        def body(tx: Tx) -> RecoveryAnswer:
            found, case = tx.find(event.dispatch_id), tx.case(event.dispatch_id)
            if found is None or case is None:
                return RecoveryRefusal.NOT_FOUND
            answer = rule(tx, case)
            if isinstance(answer, Replayed):
                return Replayed(found)
            if not isinstance(answer, Changed):
                return answer
            if event.mutation_id in tx.state.ids:
                return RecoveryRefusal.MUTATION_DRIFT
            tx.take(event.mutation_id, "resolution", found.key)
            told = found._replace(resolution=answer.after.resolution)
            return Changed(tx.move(told, answer.after.progress))

        return self._kept.write(body)


class Settlement(Protocol):
    """Name the dispatch and the mutation that would end it."""

    @property
    def dispatch_id(self) -> str: ...

    @property
    def mutation_id(self) -> str: ...


class ModelEffects:
    def __init__(self, kept: ModelStore) -> None:
        self._kept = kept

    def perform(self, event: Perform) -> HandlerAnswer | rules.DispatchRefusal:
        return self._kept.write(lambda tx: perform(tx, event))

    def receipt(self, dispatch_id: str) -> Found | None:
        def look(tx: Tx) -> Found | None:
            found = tx.find(dispatch_id)
            case = tx.case(dispatch_id)
            return None if found is None or case is None else found_of(tx, found.key)

        return self._kept.read(look)


class ModelTasks:
    def __init__(self, kept: ModelStore) -> None:
        self._kept = kept

    def find(self, task_id: str, number: int | None = None) -> TaskRevision | None:
        return self._kept.read(lambda tx: revision(tx, task_id, number))

    def page(self, after: Cursor | None, limit: int) -> Page[TaskRevision]:
        def look(tx: Tx) -> Page[TaskRevision]:
            first = [
                (key, each) for key, each in sorted(tx.state.revisions.items()) if each.number == 1
            ]
            left = [(key, each) for key, each in first if after is None or key > after.key]
            shown = [revision(tx, each.task_id, None) for _, each in left[:limit]]
            cursor = Cursor(0, left[limit - 1][0]) if len(left) > limit else None
            return Page([each for each in shown if each is not None], cursor)

        return self._kept.read(look)


def complete(tx: Tx, event: rules.Complete) -> DispatchAnswer:
    found = tx.find(event.dispatch_id)
    known = None if found is None else found.resolution
    return tx.apply(
        event.dispatch_id, lambda _, row: rules.complete(row, event, tx.now, known=known)
    )


def perform_whole(tx: Tx, event: Whole, fence: Fence) -> DispatchAnswer:
    """Have the effect behind a barrier of this transaction, and record its verdict."""
    dispatch_id = event.start.dispatch_id
    answer = perform(tx, Perform(dispatch_id, fence, event.effect))
    if isinstance(answer, rules.DispatchRefusal):
        return answer
    return complete(tx, rules.Complete(dispatch_id, fence, event.mutation_id, *answer))


def perform(tx: Tx, event: Perform) -> HandlerAnswer | rules.DispatchRefusal:
    found, case = tx.find(event.dispatch_id), tx.case(event.dispatch_id)
    if found is None or case is None:
        return rules.DispatchRefusal.NOT_FOUND
    dispatch, execution = case.dispatch, case.progress.execution
    if not _may_act(execution, event.fence):
        return rules.DispatchRefusal.FENCE_REJECTED
    plan = effects.plan_of(event.effect, dispatch.project_id)
    if action_digest(plan) != dispatch.action.action_digest:
        return HandlerAnswer(Outcome.FAILED, effects.PLAN_CHANGED)
    words = WORDS[dispatch.action.action_type]
    seen = receipts.judge(dispatch, execution, found_of(tx, found.key)).finding
    if seen is Finding.VERIFIED_SUCCEEDED:
        return HandlerAnswer(Outcome.SUCCEEDED, words.done)
    if seen is not Finding.MISSING:
        return HandlerAnswer(Outcome.FAILED, words.conflict)
    made = _make(tx, found.key, case, event)
    if made is None:
        return HandlerAnswer(Outcome.FAILED, effects.PLAN_DISAPPEARED)
    body = receipts.receipt_bytes(receipts.issue(dispatch, execution, made, tx.now.at_ms))
    tx.state.receipts[found.key] = (body, receipts.receipt_digest(body))
    return HandlerAnswer(Outcome.SUCCEEDED, words.done)


def found_of(tx: Tx, key: int) -> Found:
    body, digest = tx.state.receipts.get(key, (None, None))
    made = tx.state.runs.get(key)
    resource = tx.state.revisions.get(key) if made is None else made.run
    attempt = None if made is None else made.attempt
    return Found(body, digest, resource, attempt, stray=resource is not None)


def revision(tx: Tx, task_id: str, number: int | None) -> TaskRevision | None:
    known = [each for each in tx.state.revisions.values() if each.task_id == task_id]
    asked = [each for each in known if number in {None, each.number}]
    return max(asked, key=lambda each: each.number, default=None)


def _may_act(execution: Execution, fence: Fence) -> bool:
    lease = execution.lease
    if execution.status is not ExecutionStatus.EXECUTING or lease is None:
        return False
    mine = (lease.owner, lease.token) == (fence.owner, fence.token)
    return mine and execution.version >= fence.version


def _make(tx: Tx, key: int, case: Case, event: Perform) -> str | None:
    started_at_ms = case.progress.execution.started_at_ms or 0
    if isinstance(event.effect, PublishTask):
        task = event.effect.task
        newest = revision(tx, task.task_id, None)
        number = 1 if newest is None else newest.number + 1
        made = TaskRevision(
            task.task_id, case.dispatch.project_id, number, task.name, task_body(task),
            case.dispatch.dispatch_id, started_at_ms,
        )  # fmt: skip
        tx.state.revisions[key] = made
        return receipts.resource_of_task(made)
    plan = event.effect.plan
    pinned = revision(tx, plan.task_id, parse_revision(plan.task_revision, "task_revision"))
    if pinned is None or pinned.name != plan.task_name:
        return None
    tx.state.runs[key] = admit(case.dispatch, started_at_ms, plan, event.effect.drawn)
    return tx.state.runs[key].run.run_id
