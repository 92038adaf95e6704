"""A store in memory that answers the ports, held to the contract suite (a verified fake).

It passes the same cases as the adapters, so it may stand in for one elsewhere. It knows no user,
no session and no file: `Identities` and the questions about bytes are not its part.
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain import dispatch_checks as checks
from qinglong_edge.domain.action import Plan, plan_from_body
from qinglong_edge.domain.canonical import Json, JsonObject, parse_object
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.effect import Whole, ended_by
from qinglong_edge.domain.errors import RowDamagedError
from qinglong_edge.domain.execution import (
    Dispatch,
    Progress,
    Record,
    fence_of,
    lease_expired,
)
from qinglong_edge.domain.machines import ApprovalState, ControlStatus
from qinglong_edge.domain.machines import ExecutionStatus as Status
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.policy import BindRole, PolicyRefusal, Project, RoleBinding, Subject
from qinglong_edge.domain.tick import ClockRefusal, Now
from qinglong_edge.ports.repositories import (
    ApprovalAnswer,
    Backlog,
    Begin,
    DispatchAnswer,
    Instant,
    Listing,
    Settlement,
    TrustClock,
)
from tests.support import model_recovery as recovering
from tests.support import model_store as store
from tests.support.model_recovery import ModelEffects, ModelRecoveries, ModelTasks
from tests.support.model_store import ModelStore, RolledBack, Tx

Order = Callable[[Record, Now], int | None]


def _due(record: Record, now: Now) -> int | None:
    at = None if record.progress is None else record.progress.execution.eligible_tick
    return at if at is not None and at <= now.tick else None


def _scan(record: Record, now: Now) -> int | None:
    control = None if record.progress is None else record.progress.control
    return None if control is None else control.next_scan_tick


def _recovery_due(record: Record, now: Now) -> int | None:
    at = _scan(record, now)
    if at is None or record.progress is None or not lease_expired(record.progress.execution, now):
        return None
    return at if at <= now.tick else None


def _manual(record: Record, now: Now) -> int | None:
    control = None if record.progress is None else record.progress.control
    waits = control is not None and control.status is ControlStatus.MANUAL_REQUIRED
    return record.key if waits else None


def _open(state: ApprovalState) -> Order:
    def order(record: Record, now: Now) -> int | None:
        expires = record.approval.expires_at_ms
        return expires if record.approval.state is state and expires > now.at_ms else None

    return order


QUEUES: dict[str, Order] = {
    "due": _due,
    "executing": _scan,
    "recovery_due": _recovery_due,
    "manual_required": _manual,
    "pending": _open(ApprovalState.PENDING),
    "approved": _open(ApprovalState.APPROVED),
}


def _page(tx: Tx, order: Order, after: Cursor | None, limit: int) -> Page[Record]:
    """Return one keyset page; damaged rows keep their place, are skipped and counted."""
    found = []
    for key, record in tx.state.actions.items():
        place = order(record, tx.now)
        if place is not None and (after is None or (place, key) > after):
            found.append(Cursor(place, key))
    return _shown(tx, sorted(found), limit)


def _shown(tx: Tx, found: list[Cursor], limit: int) -> Page[Record]:
    shown = found[:limit]
    items = [tx.state.actions[each.key] for each in shown if each.key not in tx.state.damaged]
    cursor = shown[-1] if len(found) > limit else None
    return Page(items, cursor, len(shown) - len(items))


class ModelApprovals:
    def __init__(self, kept: ModelStore) -> None:
        self._kept = kept

    def propose(self, event: approvals.Propose) -> ApprovalAnswer:
        approvals.check_propose(event)
        return self._kept.write(lambda tx: store.propose(tx, event))

    def decide(self, event: approvals.Decide) -> ApprovalAnswer:
        return self._kept.write(lambda tx: store.decide(tx, event))

    def consume(self, event: approvals.Consume) -> ApprovalAnswer:
        return self._kept.write(lambda tx: store.consume(tx, event))

    def approve_and_consume(
        self, decision: approvals.Decide, consumption: approvals.Consume
    ) -> ApprovalAnswer:
        try:
            return self._kept.write(lambda tx: store.decide_and_consume(tx, decision, consumption))
        except RolledBack as rolled_back:
            return rolled_back.refusal

    def cancel(self, event: approvals.Cancel) -> ApprovalAnswer | rules.DispatchRefusal:
        return self._kept.write(lambda tx: store.cancel(tx, event))

    def find(self, approval_request_id: str) -> Record | None:
        return self._kept.read(lambda tx: tx.find(approval_request_id))

    def plan(self, approval_request_id: str) -> tuple[Plan, JsonObject] | None:
        def look(tx: Tx) -> tuple[Plan, JsonObject] | None:
            found = tx.find(approval_request_id)
            stored = None if found is None else tx.state.plans.get(found.key)
            if stored is None:
                return None
            return plan_from_body(stored[0]), parse_object(stored[1], "preview")

        return self._kept.read(look)

    def repeated_by(self, dispatch_id: str) -> tuple[str, ...]:
        def look(tx: Tx) -> tuple[str, ...]:
            said = [each.approval for each in tx.records() if each.approval.repeats == dispatch_id]
            return tuple(each.approval_request_id for each in reversed(said))[:8]

        return self._kept.read(look)

    def page(self, listing: Listing) -> Page[Record]:
        after, limit = listing.after, listing.limit
        if listing.queue is not None:
            order = QUEUES[listing.queue]
            return self._kept.read(lambda tx: _page(tx, order, after, limit))

        def newest(tx: Tx) -> Page[Record]:
            keys = (key for key in tx.state.actions if after is None or key < after.key)
            return _shown(tx, [Cursor(key, key) for key in sorted(keys, reverse=True)], limit)

        return self._kept.read(newest)


class ModelDispatches:
    def __init__(self, kept: ModelStore) -> None:
        self._kept = kept

    def list_due(self, after: Cursor | None, limit: int) -> Page[Record]:
        return self._kept.read(lambda tx: _page(tx, _due, after, limit))

    def claim_page(
        self, claims: tuple[rules.Claim, ...], start: Begin | None = None
    ) -> tuple[tuple[DispatchAnswer, ...], DispatchAnswer | None]:
        for event in claims:
            checks.check_claim(event)

        def page(tx: Tx) -> tuple[tuple[DispatchAnswer, ...], DispatchAnswer | None]:
            answers = tuple(_claim(tx, event) for event in claims)
            return answers, None if start is None else _begin(tx, start)

        return self._kept.write(page)

    def start(self, event: Begin) -> DispatchAnswer:
        return self._kept.write(lambda tx: _begin(tx, event))

    def renew(self, event: rules.Renew) -> DispatchAnswer:
        return self._kept.write(
            lambda tx: tx.apply(event.dispatch_id, lambda _, row: rules.renew(row, event, tx.now))
        )

    def release(self, event: rules.Release) -> DispatchAnswer:
        return self._kept.write(
            lambda tx: tx.apply(event.dispatch_id, lambda _, row: rules.release(row, event, tx.now))
        )

    def put_back(self, events: tuple[rules.PutBack, ...]) -> tuple[DispatchAnswer, ...]:
        return self._kept.write(lambda tx: tuple(_put_back(tx, event) for event in events))

    def expire(self, event: rules.Expire) -> DispatchAnswer:
        return self._kept.write(lambda tx: _expire(tx, event))

    def complete(
        self, event: rules.Complete, start: Begin | None = None
    ) -> tuple[DispatchAnswer, DispatchAnswer | None]:
        def both(tx: Tx) -> tuple[DispatchAnswer, DispatchAnswer | None]:
            done = recovering.complete(tx, event)
            return done, None if start is None else _guarded_begin(tx, start)

        return self._kept.write(both)

    def settle_dead_owners(self, owner: str) -> int:
        return self._kept.write(lambda tx: _settle_dead_owners(tx, owner))


def _claim(tx: Tx, event: rules.Claim) -> DispatchAnswer:
    return tx.apply(event.dispatch_id, lambda born, row: rules.claim(born, row, event, tx.now))


def _guarded_begin(tx: Tx, event: Begin) -> DispatchAnswer:
    try:
        return _begin(tx, event)
    except RowDamagedError:
        return rules.DispatchRefusal.FENCE_REJECTED


def _begin(tx: Tx, event: Begin) -> DispatchAnswer:
    if not isinstance(event, Whole):
        return _start(tx, event)
    case, found = tx.case(event.start.dispatch_id), tx.find(event.start.dispatch_id)
    if case is not None and found is not None:
        if ended_by(event, case.dispatch, case.progress.execution):
            return Replayed(found)
    started = _start(tx, event.start)
    if isinstance(started, rules.DispatchRefusal) or started.after.progress is None:
        return started
    fence = fence_of(started.after.progress.execution)
    return started if fence is None else recovering.perform_whole(tx, event, fence)


def _start(tx: Tx, event: rules.Start) -> DispatchAnswer:
    def rule(born: Dispatch, row: Progress) -> rules.Answer:
        seen = tx.fence(born.project_id, born.requested_by)
        assert seen is not None
        return rules.start(born, row, event, tx.now, policy=seen)

    return tx.apply(event.dispatch_id, rule)


def _put_back(tx: Tx, event: rules.PutBack) -> DispatchAnswer:
    return tx.apply(event.dispatch_id, lambda _, row: rules.put_back(row, event, tx.now))


def _expire(tx: Tx, event: rules.Expire) -> DispatchAnswer:
    return tx.apply(event.dispatch_id, lambda _, row: rules.expire(row, event, tx.now))


def _settle_dead_owners(tx: Tx, owner: str) -> int:
    """Expire what runs under other owners, put back what they held, the first at its expense."""
    answers: list[DispatchAnswer] = []
    left = [
        (each.dispatch.dispatch_id, each.progress)
        for each in tx.records()
        if each.dispatch and each.progress
    ]
    reached = True
    for dispatch_id, progress in sorted(left, key=lambda each: each[0]):
        fence = fence_of(progress.execution)
        if fence is None or fence.owner == owner:
            continue
        if progress.execution.status is Status.EXECUTING:
            if _watched(progress, tx.now):
                answers.append(_expire(tx, rules.Expire(dispatch_id, fence)))
        elif reached:
            reached = False
            name = f"{rules.OWNER_DIED}:{fence.version}"
            died = rules.Release(dispatch_id, fence, name, rules.OWNER_DIED, 0)
            rule = _released(died, tx.now)
            answers.append(tx.apply(dispatch_id, rule))
        else:
            answers.append(_put_back(tx, rules.PutBack(dispatch_id, fence)))
    return sum(isinstance(answer, Changed) for answer in answers)


def _watched(progress: Progress, now: Now) -> bool:
    """Tell whether a live execution is one that recovery will look at."""
    control = progress.control
    scanned = control is not None and control.next_scan_tick is not None
    return scanned and not lease_expired(progress.execution, now)


def _released(event: rules.Release, now: Now) -> Callable[[Dispatch, Progress], rules.Answer]:
    return lambda _, row: rules.release(row, event, now)


class ModelPolicy:
    def __init__(self, kept: ModelStore) -> None:
        self._kept = kept

    def resolve(
        self, project_id: str, subject: Subject
    ) -> tuple[Project | None, RoleBinding | None]:
        def look(tx: Tx) -> tuple[Project | None, RoleBinding | None]:
            history = tx.state.histories.get((project_id, subject), ())
            project = tx.state.projects.get(project_id)
            return project, history[-1] if history else None

        return self._kept.read(look)

    def bind(self, event: BindRole) -> Changed[RoleBinding] | Replayed[RoleBinding] | PolicyRefusal:
        return self._kept.write(lambda tx: store.bind(tx, event, self._kept.owners))


class ModelOverview:
    def __init__(self, kept: ModelStore) -> None:
        self._kept = kept

    def instant(self) -> Instant:
        return self._kept.read(lambda tx: Instant(tx.now, (self._kept.time.newest,)))

    def backlog(self) -> Backlog:
        return self._kept.read(_backlog)

    def work_waits(self, owner: str) -> bool:
        def waits(progress: Progress, now: Now) -> bool:
            execution = progress.execution
            fence = fence_of(execution)
            theirs = fence is not None and fence.owner != owner
            if execution.status is Status.EXECUTING:
                return theirs and _watched(progress, now)
            due = execution.eligible_tick is not None and execution.eligible_tick <= now.tick
            return due or theirs

        def look(tx: Tx) -> bool:
            moving = [each.progress for each in tx.records() if each.progress]
            scans = any(_recovery_due(each, tx.now) is not None for each in tx.records())
            return scans or any(waits(progress, tx.now) for progress in moving)

        return self._kept.waits() or self._kept.read(look)

    def problems(self) -> list[Json]:
        return []

    def bytes_on_disk(self) -> int:
        return 0


def _backlog(tx: Tx) -> Backlog:
    records, now = tx.records(), tx.now
    moving = [each.progress.execution for each in records if each.progress]
    waiting = [each for each in moving if each.eligible_tick is not None]
    running = [each for each in records if _scan(each, now) is not None]
    manual = [each for each in records if _manual(each, now) is not None]
    past = sum(lease_expired(each.progress.execution, now) for each in running if each.progress)
    open_ones = [*waiting, *(each.progress.execution for each in running + manual if each.progress)]
    due = sum(_due(each, now) is not None for each in records)
    return Backlog(
        due,
        len(waiting) - due,
        len(running) - past,
        sum(QUEUES["pending"](each, now) is not None for each in records),
        past,
        len(manual),
        max([0, *(now.at_ms - each.created_at_ms for each in open_ones)]),
    )


class ModelClock:
    def __init__(self, kept: ModelStore) -> None:
        self._kept = kept

    def trust(self, event: TrustClock) -> Settlement | ClockRefusal:
        return self._kept.trust_clock(lambda tx: store.trust_clock(tx, event))


class Model(NamedTuple):
    """Hold one session's ports on a store in memory."""

    approvals: ModelApprovals
    dispatches: ModelDispatches
    recoveries: ModelRecoveries
    effects: ModelEffects
    tasks: ModelTasks
    policy: ModelPolicy
    overview: ModelOverview
    clock: ModelClock


def open_model(kept: ModelStore) -> Model:
    return Model(
        ModelApprovals(kept),
        ModelDispatches(kept),
        ModelRecoveries(kept, lambda tx, after, limit: _page(tx, _recovery_due, after, limit)),
        ModelEffects(kept),
        ModelTasks(kept),
        ModelPolicy(kept),
        ModelOverview(kept),
        ModelClock(kept),
    )
