"""Dispatches on SQLite: every method is one transaction; the domain decides."""

import sqlite3
from collections.abc import Callable
from typing import Protocol, TypeVar

from qinglong_edge.domain import approval
from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain import dispatch_checks as checks
from qinglong_edge.domain.authorization import FactKind
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.effect import Perform, Whole, ended_by
from qinglong_edge.domain.errors import DamagedError, InvariantBroken, RowDamagedError
from qinglong_edge.domain.execution import Fence, Progress, Record, fence_of
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.resolution import Case
from qinglong_edge.domain.tick import Now
from qinglong_edge.ports.probe import Step
from qinglong_edge.ports.repositories import Begin, DispatchAnswer
from qinglong_edge.storage.sqlite import actions, effects, facts
from qinglong_edge.storage.sqlite.actions import SQL
from qinglong_edge.storage.sqlite.transaction import Database, Tx


class SqliteDispatches:
    """Keep dispatches on their way to a verdict in the one database."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def list_due(self, after: Cursor | None, limit: int) -> Page[Record]:
        """Return one page of due dispatches in (eligible, action) order."""
        return self._database.read(
            lambda tx: actions.due_page(tx, "list_due", "eligible_tick", after=after, limit=limit)
        )

    def claim_page(
        self, claims: tuple[rules.Claim, ...], start: Begin | None = None
    ) -> tuple[tuple[DispatchAnswer, ...], DispatchAnswer | None]:
        """Claim a page in one commit; `start` also passes the first item's barrier in it."""
        for event in claims:
            checks.check_claim(event)

        def page(tx: Tx) -> tuple[tuple[DispatchAnswer, ...], DispatchAnswer | None]:
            answers = tuple(_claim(tx, event) for event in claims)
            return answers, None if start is None else _guarded_begin(tx, start)

        step = Step.CLAIM if start is None else Step.CLAIM_START
        return self._database.write(step, page)

    def start(self, event: Begin) -> DispatchAnswer:
        """Pass the barrier: `executing` and the armed control in one commit."""
        step = Step.WHOLE if isinstance(event, Whole) else Step.START
        return self._database.write(step, lambda tx: _begin(tx, event))

    def renew(self, event: rules.Renew) -> DispatchAnswer:
        """Prolong a held lease."""
        checks.check_renew(event)
        return self._database.write(Step.RENEW, lambda tx: _apply(tx, event, rules.renew))

    def release(self, event: rules.Release) -> DispatchAnswer:
        """Let a leased dispatch go before its barrier."""
        checks.check_release(event)
        return self._database.write(Step.RELEASE, lambda tx: _apply(tx, event, rules.release))

    def put_back(self, events: tuple[rules.PutBack, ...]) -> tuple[DispatchAnswer, ...]:
        """Return unreached items in one commit."""
        return self._database.write(
            Step.PUT_BACK,
            lambda tx: tuple(_apply(tx, event, rules.put_back) for event in events),
        )

    def expire(self, event: rules.Expire) -> DispatchAnswer:
        """Hand an execution without an answer to recovery."""
        return self._database.write(Step.EXPIRE, lambda tx: _apply(tx, event, rules.expire))

    def complete(
        self, event: rules.Complete, start: Begin | None = None
    ) -> tuple[DispatchAnswer, DispatchAnswer | None]:
        """Record a verdict; `start` passes the next item's barrier in the same commit."""
        checks.check_complete(event)

        def both(tx: Tx) -> tuple[DispatchAnswer, DispatchAnswer | None]:
            done = _complete(tx, event)
            return done, None if start is None else _guarded_begin(tx, start)

        step = Step.COMPLETE if start is None else Step.COMPLETE_START
        return self._database.write(step, both)

    def settle_dead_owners(self, owner: str) -> int:
        """Take over what earlier owners left, in one commit; return how many rows moved."""
        return self._database.write(Step.SETTLE_OWNERS, lambda tx: _settle(tx, owner))


def _claim(tx: Tx, event: rules.Claim) -> DispatchAnswer:
    return actions.apply(
        tx,
        event.dispatch_id,
        lambda case: rules.claim(case.dispatch, case.progress, event, tx.now),
    )


def _start(tx: Tx, event: rules.Start) -> DispatchAnswer:
    def rule(case: Case) -> rules.Answer:
        dispatch = case.dispatch
        seen = actions.fence(tx, dispatch.project_id, dispatch.requested_by)
        if seen is None:
            raise RowDamagedError("row_damaged", "a dispatch names a project that is not there")
        _prove_decision(tx, dispatch.dispatch_id)
        return rules.start(dispatch, case.progress, event, tx.now, policy=seen[1])

    return actions.apply(tx, event.dispatch_id, rule)


def _prove_decision(tx: Tx, dispatch_id: str) -> None:
    """Refuse what was approved on a proof that is gone: nothing starts on a decision without it."""
    found = actions.find(tx, dispatch_id)
    if found is None:
        return
    key, record = found
    try:
        facts.proven(tx, key, FactKind.DECISION, approval.act_of(record.approval))
    except DamagedError as error:
        raise RowDamagedError(error.code, error.message, {"row": key}) from error


def _begin(tx: Tx, event: Begin) -> DispatchAnswer:
    """Pass the barrier; a `Whole` has its effect and its verdict behind it at once."""
    if not isinstance(event, Whole):
        return _start(tx, event)
    before = actions.case_of(tx, event.start.dispatch_id)
    if before is not None:
        record, case = before
        if ended_by(event, case.dispatch, case.progress.execution):
            return Replayed(record)
    started = _start(tx, event.start)
    if isinstance(started, rules.DispatchRefusal) or started.after.progress is None:
        return started
    held = fence_of(started.after.progress.execution)
    if held is None:
        return started
    answer = effects.perform(tx, Perform(event.start.dispatch_id, held, event.effect))
    if isinstance(answer, rules.DispatchRefusal):
        raise InvariantBroken("an effect was refused behind its own barrier")
    verdict = rules.Complete(event.start.dispatch_id, held, event.mutation_id, *answer)
    return _complete(tx, verdict)


def _guarded_begin(tx: Tx, event: Begin) -> DispatchAnswer:
    """Begin beside something that must not fall with it: a row without belief is only refused."""
    try:
        with tx.savepoint():
            return _begin(tx, event)
    except RowDamagedError:
        return rules.DispatchRefusal.FENCE_REJECTED


class _Named(Protocol):
    """Name the dispatch that an event is about."""

    @property
    def dispatch_id(self) -> str: ...


Event = TypeVar("Event", bound=_Named)


def _apply(
    tx: Tx, event: Event, rule: Callable[[Progress, Event, Now], rules.Answer]
) -> DispatchAnswer:
    """Apply a rule that looks at the execution alone."""
    return actions.apply(tx, event.dispatch_id, lambda case: rule(case.progress, event, tx.now))


def _complete(tx: Tx, event: rules.Complete) -> DispatchAnswer:
    return actions.apply(
        tx,
        event.dispatch_id,
        lambda case: rules.complete(case.progress, event, tx.now, known=case.resolution),
    )


def _settle(tx: Tx, owner: str) -> int:
    """Take over: the first unstarted item pays, because it may be what killed its owner."""
    executing = _held(tx.rows(SQL["executing_by_others"], owner=owner, tick=tx.now.tick))
    leased = _held(tx.rows(SQL["leased_by_others"], owner=owner))
    answers = [_apply(tx, rules.Expire(*held), rules.expire) for held in executing]
    for dispatch_id, fence in leased[:1]:
        name = f"{rules.OWNER_DIED}:{fence.version}"
        event = rules.Release(dispatch_id, fence, name, rules.OWNER_DIED, 0)
        answers.append(_apply(tx, event, rules.release))
    answers += [_apply(tx, rules.PutBack(*held), rules.put_back) for held in leased[1:]]
    return sum(isinstance(answer, Changed) for answer in answers)


def _held(found: list[sqlite3.Row]) -> list[tuple[str, Fence]]:
    held = []
    for record in actions.believable(found)[0]:
        if record.dispatch is None or record.progress is None:
            continue
        fence = fence_of(record.progress.execution)
        if fence is not None:
            held.append((record.dispatch.dispatch_id, fence))
    return held
