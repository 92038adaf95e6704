"""Settle an unknown outcome: by evidence bound to it, or by a person who proved themselves.

Both roads lead from `executing@version` to the end, once: whoever is first wins, and a late answer
of the handler counts only while nobody settled (ADR-0033, 5 to 7). A resolution is never taken
back, and nothing here leads to a second execution.
"""

from typing import NamedTuple

from qinglong_edge.domain import dispatch as dispatches
from qinglong_edge.domain import evidence, ids
from qinglong_edge.domain.action import is_automatic
from qinglong_edge.domain.authorization import Act, AuthorizationFact, authorize
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.evidence import Evidence, ScanFence
from qinglong_edge.domain.execution import (
    Dispatch,
    Progress,
    lease_expired,
)
from qinglong_edge.domain.identity import Principal
from qinglong_edge.domain.limits import VERSION_MAX
from qinglong_edge.domain.machines import TERMINAL, ExecutionEvent, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence, SubjectType
from qinglong_edge.domain.recovery import (
    Decision,
    Finding,
    Observation,
    RecoveryRefusal,
    Resolution,
    Source,
)
from qinglong_edge.domain.tick import Now, Trust

_DECIDED = {
    Finding.VERIFIED_SUCCEEDED: Decision.CONFIRM_SUCCEEDED,
    Finding.VERIFIED_FAILED: Decision.CONFIRM_FAILED,
}
_STATUS = {
    Decision.CONFIRM_SUCCEEDED: ExecutionStatus.SUCCEEDED,
    Decision.CONFIRM_FAILED: ExecutionStatus.FAILED,
    Decision.ABANDON_UNKNOWN: ExecutionStatus.BLOCKED,
}


class ResolveByEvidence(NamedTuple):
    """Ask to settle by what a provider verified, under a held scan lease."""

    dispatch_id: str
    fence: ScanFence
    mutation_id: str
    evidence: Evidence


class ResolveByPerson(NamedTuple):
    """Ask to settle on a person's word.

    `recovery_version` None accepts whatever looking for evidence did meanwhile; `fence` is the
    person's, as their permission was decided under.
    """

    dispatch_id: str
    execution_version: int
    recovery_version: int | None
    mutation_id: str
    decision: Decision
    reason_code: str
    evidence_digest: str | None
    principal: Principal
    fence: PolicyFence
    unprobed: bool


class Settled(NamedTuple):
    """Hold an outcome that was settled, how, and what a person proved for it."""

    progress: Progress
    resolution: Resolution
    fact: AuthorizationFact | None = None


class Case(NamedTuple):
    """Hold one dispatch as it stands: what is immutable, what moves, how it was settled."""

    dispatch: Dispatch
    progress: Progress
    resolution: Resolution | None


Answer = Changed[Settled] | Replayed[Settled] | RecoveryRefusal


def check_by_evidence(event: ResolveByEvidence) -> ResolveByEvidence:
    """Return the command with every field proven; raises `UsageError`."""
    ids.check_ident(event.mutation_id, "mutation_id")
    if evidence.check_evidence(event.evidence).finding not in evidence.VERIFIED:
        raise ids.invalid("finding", "must be verified to settle anything")
    return event


def check_by_person(event: ResolveByPerson) -> ResolveByPerson:
    """Return the command with every field proven; raises `UsageError`."""
    ids.check_ident(event.dispatch_id, "dispatch_id")
    ids.check_int(event.execution_version, "expected_version", least=1, most=VERSION_MAX)
    if event.recovery_version is not None:
        ids.check_int(
            event.recovery_version, "expected_recovery_version", least=0, most=VERSION_MAX
        )
    ids.check_ident(event.mutation_id, "mutation_id")
    ids.check_ident(event.reason_code, "reason")
    if event.evidence_digest is not None:
        ids.check_digest(event.evidence_digest, "evidence")
    return event


def by_evidence(case: Case, event: ResolveByEvidence, now: Now) -> Answer:
    """Settle by verified evidence; the holder of the scan lease is the only one who may."""
    known = case.resolution
    if known is not None:
        return _again(case, known, _from_evidence(case.dispatch, event, known.resolved_at_ms))
    control = case.progress.control
    if control is None:
        return RecoveryRefusal.NOT_FOUND
    if case.progress.execution.status in TERMINAL:
        return RecoveryRefusal.ALREADY_TERMINAL
    held = evidence.holds(case.progress, event.fence)
    if not held or not lease_expired(case.progress.execution, now):
        return RecoveryRefusal.FENCE_REJECTED
    last = Observation(event.mutation_id, *event.evidence)
    seen = control._replace(finding_count=evidence.counted(control), last=last)
    resolution = _from_evidence(case.dispatch, event, _stamp(case, now))
    return Changed(_settle(case.progress._replace(control=seen), resolution, now))


def by_person(
    case: Case, event: ResolveByPerson, now: Now, *, policy: PolicyFence | None
) -> Answer:
    """Settle on the word of a user who proved themselves within the last five minutes.

    `policy` is the person's fence as the same transaction reads it. It pre-empts whoever looks for
    evidence, but never an execution whose lease still runs.
    """
    if event.principal.subject.type is not SubjectType.USER:
        return RecoveryRefusal.HUMAN_REQUIRED
    known = case.resolution
    if known is not None:
        return _again(case, known, _from_person(case.dispatch, event, known.resolved_at_ms))
    refusal = _refuse_person(case, event, now)
    if refusal is not None:
        return refusal
    if policy != event.fence:
        return RecoveryRefusal.FENCE_CHANGED
    resolution = _from_person(case.dispatch, event, _stamp(case, now))
    fact = authorize(act_of(resolution), event.principal, event.fence, now)
    if fact is None:
        return RecoveryRefusal.STRONG_REQUIRED
    return Changed(_settle(case.progress, resolution, now)._replace(fact=fact))


def _refuse_person(case: Case, event: ResolveByPerson, now: Now) -> RecoveryRefusal | None:
    execution, control = case.progress
    if control is None:
        return RecoveryRefusal.NOT_FOUND
    if execution.status in TERMINAL:
        return RecoveryRefusal.ALREADY_TERMINAL
    if now.trust is not Trust.TRUSTED:
        return RecoveryRefusal.CLOCK_UNTRUSTED
    if not lease_expired(execution, now):
        return RecoveryRefusal.EXECUTION_ACTIVE
    expected = event.recovery_version
    if event.execution_version != execution.version or expected not in {None, control.version}:
        return RecoveryRefusal.FENCE_REJECTED
    probed = control.finding_count > 0 or event.unprobed
    if not probed and is_automatic(case.dispatch.action.action_type):
        return RecoveryRefusal.NOT_PROBED
    return None


def _again(case: Case, known: Resolution, asked: Resolution) -> Answer:
    """Answer a second settlement: the same one is a replay, whoever else comes is too late."""
    if known == asked:
        return Replayed(Settled(case.progress, known))
    return RecoveryRefusal.ALREADY_TERMINAL


def _stamp(case: Case, now: Now) -> int:
    return now.stamp(case.progress.execution.updated_at_ms)


def _from_evidence(dispatch: Dispatch, event: ResolveByEvidence, at_ms: int) -> Resolution:
    return Resolution(
        dispatch.dispatch_id,
        dispatch.project_id,
        event.fence.execution_version,
        event.mutation_id,
        Source.AUTOMATIC_EVIDENCE,
        _DECIDED[event.evidence.finding],
        event.evidence.evidence_digest,
        event.evidence.result_code,
        None,
        at_ms,
        unprobed=False,
    )


def _from_person(dispatch: Dispatch, event: ResolveByPerson, at_ms: int) -> Resolution:
    return Resolution(
        dispatch.dispatch_id,
        dispatch.project_id,
        event.execution_version,
        event.mutation_id,
        Source.HUMAN,
        event.decision,
        event.evidence_digest,
        event.reason_code,
        event.principal.subject,
        at_ms,
        event.unprobed,
    )


def _settle(before: Progress, resolution: Resolution, now: Now) -> Settled:
    ended = dispatches.end(
        before,
        ExecutionEvent.RESOLVE,
        (resolution.mutation_id, resolution.reason_code),
        now=now,
        to=_STATUS[resolution.decision],
    )
    return Settled(ended.after, resolution)


def act_of(resolution: Resolution | None) -> Act | None:
    """Return what a person's word needs a fact for; evidence needs none."""
    if resolution is None or resolution.resolved_by is None:
        return None
    return Act(
        resolution.dispatch_id,
        resolution.project_id,
        resolution.mutation_id,
        resolution.resolved_by,
        resolution.resolved_at_ms,
    )


def settles(resolution: Resolution, progress: Progress) -> bool:
    """Tell whether a stored resolution and a stored execution speak of the same end."""
    execution, control = progress
    said = (
        _STATUS[resolution.decision], resolution.execution_version + 1,
        resolution.mutation_id, resolution.reason_code,
    )  # fmt: skip
    known = (
        execution.status, execution.version,
        execution.result_mutation_id, execution.last_result_code,
    )  # fmt: skip
    return control is not None and said == known
