"""Recovery on SQLite: the right to look, what was found, and how an outcome was settled."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from qinglong_edge.domain import evidence, resolution
from qinglong_edge.domain.authorization import FactKind
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.execution import Progress, Record
from qinglong_edge.domain.paging import Cursor, Page
from qinglong_edge.domain.recovery import RecoveryRefusal
from qinglong_edge.domain.resolution import Case, Settled
from qinglong_edge.domain.tick import Now
from qinglong_edge.ports.probe import Step
from qinglong_edge.ports.repositories import RecoveryAnswer
from qinglong_edge.storage.sqlite import actions, facts, rows
from qinglong_edge.storage.sqlite.actions import SQL
from qinglong_edge.storage.sqlite.transaction import Database, Tx


class SqliteRecoveries:
    """Keep what is past the barrier without a verdict."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def list_due(self, after: Cursor | None, limit: int) -> Page[Record]:
        """Return one page of expired executions whose next scan is due."""
        return self._database.read(
            lambda tx: actions.due_page(
                tx, "list_recovery_due", "next_scan_tick", after=after, limit=limit
            )
        )

    def claim(self, event: evidence.ClaimScan) -> RecoveryAnswer:
        """Lease the right to look; one commit."""
        evidence.check_claim_scan(event)
        return self._database.write(Step.CLAIM_SCAN, lambda tx: _apply(tx, event, evidence.claim))

    def renew(self, event: evidence.RenewScan) -> RecoveryAnswer:
        """Prolong a held scan lease; one commit."""
        evidence.check_renew_scan(event)
        return self._database.write(Step.RENEW_SCAN, lambda tx: _apply(tx, event, evidence.renew))

    def observe(self, event: evidence.Observe) -> RecoveryAnswer:
        """Record a finding that settles nothing; one commit."""
        evidence.check_observe(event)
        return self._database.write(Step.OBSERVE, lambda tx: _apply(tx, event, evidence.observe))

    def resolve_by_evidence(self, event: resolution.ResolveByEvidence) -> RecoveryAnswer:
        """Store resolution, terminal state and closed control in one commit."""
        resolution.check_by_evidence(event)

        def settle(tx: Tx) -> RecoveryAnswer:
            return _settle(tx, event, lambda case: resolution.by_evidence(case, event, tx.now))

        return self._database.write(Step.RESOLVE_EVIDENCE, settle)

    def resolve_by_person(self, event: resolution.ResolveByPerson) -> RecoveryAnswer:
        """Store the same together with the authorization fact, under the person's fence."""
        resolution.check_by_person(event)

        def rule(tx: Tx, case: Case) -> resolution.Answer:
            seen = actions.fence(tx, case.dispatch.project_id, event.principal.subject)
            policy = None if seen is None else seen[1]
            return resolution.by_person(case, event, tx.now, policy=policy)

        return self._database.write(
            Step.RESOLVE_PERSON, lambda tx: _settle(tx, event, lambda case: rule(tx, case))
        )


class _Scan(Protocol):
    """Name the dispatch that an event is about."""

    @property
    def dispatch_id(self) -> str: ...


class _Settlement(_Scan, Protocol):
    """Name the mutation that would end a dispatch."""

    @property
    def mutation_id(self) -> str: ...


Event = TypeVar("Event", bound=_Scan)


def _apply(
    tx: Tx, event: Event, rule: Callable[[Progress, Event, Now], evidence.Answer]
) -> RecoveryAnswer:
    found = actions.case_of(tx, event.dispatch_id)
    if found is None:
        return RecoveryRefusal.NOT_FOUND
    record, case = found
    answer = rule(case.progress, event, tx.now)
    if isinstance(answer, RecoveryRefusal):
        return answer
    if isinstance(answer, Replayed):
        return Replayed(record)
    actions.move_execution(tx, record.key, case.progress, answer.after)
    return Changed(record._replace(progress=answer.after))


def _settle(
    tx: Tx, event: _Settlement, rule: Callable[[Case], resolution.Answer]
) -> RecoveryAnswer:
    """Close execution and control, and keep why: one mutation id settles one outcome, for ever."""
    found = actions.case_of(tx, event.dispatch_id)
    if found is None:
        return RecoveryRefusal.NOT_FOUND
    record, case = found
    answer = rule(case)
    if isinstance(answer, RecoveryRefusal):
        return answer
    if isinstance(answer, Replayed):
        return Replayed(record) if _proven(tx, record) else RecoveryRefusal.ALREADY_TERMINAL
    if actions.taken(tx, event.mutation_id):
        return RecoveryRefusal.MUTATION_DRIFT
    _store(tx, record, case, answer.after)
    settled = answer.after
    return Changed(record._replace(progress=settled.progress, resolution=settled.resolution))


def _proven(tx: Tx, record: Record) -> bool:
    """Tell whether a person's word still has its fact; one that was lost is never filled in."""
    try:
        act = resolution.act_of(record.resolution)
        facts.proven(tx, record.key, FactKind.RESOLUTION, act)
    except DamagedError:
        return False
    return True


def _store(tx: Tx, record: Record, case: Case, settled: Settled) -> None:
    tx.exactly_one(
        SQL["add_id"], id=settled.resolution.mutation_id, kind="resolution", action=record.key
    )
    actions.move_execution(tx, record.key, case.progress, settled.progress)
    tx.exactly_one(
        SQL["add_resolution"], action=record.key, **rows.resolution_columns(settled.resolution)
    )
    if settled.fact is not None:
        facts.add(tx, record.key, FactKind.RESOLUTION, settled.fact)
