"""Look for evidence of what happened: claim a control, hold it, record what was found (contract 8).

Looking never executes, resends or repairs anything, and whoever holds the scan lease may do nothing
but speak about what it saw. `missing` is a finding like any other: it never means that nothing
happened. Times are the store's own: a command carries none.
"""

from typing import NamedTuple

from qinglong_edge.domain import backoff, ids, limits
from qinglong_edge.domain import lease as leases
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.execution import Progress, lease_expired
from qinglong_edge.domain.machines import CONTROL, ControlEvent, ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import (
    Control,
    Finding,
    Observation,
    RecoveryRefusal,
    stepped,
)
from qinglong_edge.domain.tick import Now

VERIFIED = frozenset({Finding.VERIFIED_SUCCEEDED, Finding.VERIFIED_FAILED})
PERSON_NEEDED = frozenset({Finding.CONFLICT, Finding.UNSUPPORTED})
EVIDENCE_EXHAUSTED = "recovery_evidence_exhausted"


class Evidence(NamedTuple):
    """Hold what a provider found; only `verified_*` settle anything, and they name a digest."""

    finding: Finding
    result_code: str
    evidence_digest: str | None = None


class ScanFence(NamedTuple):
    """Prove that the speaker holds the scan lease it thinks it holds."""

    owner: str
    token: str
    execution_version: int
    recovery_version: int


class ClaimScan(NamedTuple):
    """Ask for the right to look."""

    dispatch_id: str
    owner: str
    token: str
    lease_ms: int


class RenewScan(NamedTuple):
    """Ask for more time to look; an expiry never moves closer."""

    dispatch_id: str
    fence: ScanFence
    lease_ms: int


class Observe(NamedTuple):
    """Record a finding that settles nothing."""

    dispatch_id: str
    fence: ScanFence
    mutation_id: str
    evidence: Evidence


Answer = Changed[Progress] | Replayed[Progress] | RecoveryRefusal


def check_claim_scan(event: ClaimScan) -> ClaimScan:
    """Return the command with every field proven; raises `UsageError`."""
    leases.check(*event)
    return event


def check_renew_scan(event: RenewScan) -> RenewScan:
    """Return the command with its length proven; raises `UsageError`."""
    leases.check_length(event.lease_ms)
    return event


def check_observe(event: Observe) -> Observe:
    """Return the command with every field proven; raises `UsageError`."""
    ids.check_ident(event.mutation_id, "mutation_id")
    if check_evidence(event.evidence).finding in VERIFIED:
        raise ids.invalid("finding", "settles the outcome and is no observation")
    return event


def check_evidence(value: object) -> Evidence:
    """Return what a provider answered when it has exactly the shape; raises `UsageError`."""
    if type(value) is not Evidence or not isinstance(value.finding, Finding):
        raise ids.invalid("evidence", "must be a finding with its code")
    ids.check_ident(value.result_code, "result_code")
    if value.evidence_digest is not None:
        ids.check_digest(value.evidence_digest, "evidence_digest")
    elif value.finding in VERIFIED:
        raise ids.invalid("evidence_digest", "must prove what is verified")
    return value


def believed(value: object) -> Evidence:
    """Return what a provider answered; anything malformed is a conflict, never a verdict."""
    try:
        return check_evidence(value)
    except UsageError:
        return Evidence(Finding.CONFLICT, "recovery_evidence_invalid")


def claim(before: Progress, event: ClaimScan, now: Now) -> Answer:
    """Lease a control whose scan is due, or say why nobody may look now."""
    execution, control = before
    if control is None:
        return RecoveryRefusal.NOT_FOUND
    if execution.status is not ExecutionStatus.EXECUTING:
        return RecoveryRefusal.ALREADY_TERMINAL
    if control.status is ControlStatus.MANUAL_REQUIRED:
        return RecoveryRefusal.MANUAL_REQUIRED
    if not lease_expired(execution, now):
        return RecoveryRefusal.EXECUTION_ACTIVE
    lease = control.lease
    if lease is not None and leases.runs(lease, now):
        mine = leases.is_of(lease, event.owner, event.token)
        return Replayed(before) if mine else RecoveryRefusal.LEASED
    if control.next_scan_tick is None or control.next_scan_tick > now.tick:
        return RecoveryRefusal.NOT_DUE
    status = CONTROL.move(control.status, ControlEvent.CLAIM)
    taken = leases.take(event.owner, event.token, event.lease_ms, now)
    held = control._replace(status=status, next_scan_tick=taken.expires_tick, lease=taken)
    return _next(before, held, now)


def renew(before: Progress, event: RenewScan, now: Now) -> Answer:
    """Prolong a held scan lease, expired or not, as long as nobody replaced it."""
    control = before.control
    if control is None or control.lease is None:
        return RecoveryRefusal.FENCE_REJECTED
    spoken = event.fence._replace(recovery_version=event.fence.recovery_version + 1)
    if holds(before, spoken) and leases.covers(control.lease, event.lease_ms):
        return Replayed(before)
    if not holds(before, event.fence):
        return RecoveryRefusal.FENCE_REJECTED
    prolonged = leases.prolong(control.lease, event.lease_ms, now)
    held = control._replace(next_scan_tick=prolonged.expires_tick, lease=prolonged)
    return _next(before, held, now)


def observe(before: Progress, event: Observe, now: Now) -> Answer:
    """Count a finding and look again later, or hand the outcome to a person.

    A person is needed where the evidence contradicts itself, where nobody can look, and after the
    sixteenth finding (W6). The outcome stays unknown all the while.
    """
    control = before.control
    if control is None:
        return RecoveryRefusal.NOT_FOUND
    if control.last is not None and control.last.mutation_id == event.mutation_id:
        same = control.last == _observation(event, control.finding_count)
        return Replayed(before) if same else RecoveryRefusal.MUTATION_DRIFT
    if not holds(before, event.fence):
        return RecoveryRefusal.FENCE_REJECTED
    count = counted(control)
    last = _observation(event, count)
    by_person = last.finding in PERSON_NEEDED or count >= limits.FINDINGS_MAX
    to = ControlStatus.MANUAL_REQUIRED if by_person else ControlStatus.ARMED
    seen = control._replace(
        status=CONTROL.move(control.status, ControlEvent.OBSERVE, to),
        next_scan_tick=None if by_person else now.tick + backoff.next_scan_ms(count),
        lease=None,
        finding_count=count,
        last=last,
    )
    return _next(before, seen, now)


def holds(before: Progress, fence: ScanFence) -> bool:
    """Tell whether this fence still holds the control; its expiry alone takes nothing away."""
    return scan_fence_of(before) == fence


def counted(control: Control) -> int:
    """Return how many findings there are with one more; the count saturates."""
    return min(control.finding_count + 1, limits.VERSION_MAX)


def scan_fence_of(progress: Progress) -> ScanFence | None:
    """Return the fence under which the holder of the scan lease may speak (contract 8.5, 8.6).

    None where nobody may: what is not executing, not leased, or watched in another version.
    """
    execution, control = progress
    if execution.status is not ExecutionStatus.EXECUTING or control is None:
        return None
    if control.status is not ControlStatus.LEASED or control.lease is None:
        return None
    if control.execution_version != execution.version:
        return None
    lease = control.lease
    return ScanFence(lease.owner, lease.token, execution.version, control.version)


def _observation(event: Observe, count: int) -> Observation:
    finding, code, digest = event.evidence
    if count >= limits.FINDINGS_MAX and finding not in PERSON_NEEDED:
        code = EVIDENCE_EXHAUSTED
    return Observation(event.mutation_id, finding, code, digest)


def _next(before: Progress, changed: Control, now: Now) -> Changed[Progress]:
    return Changed(before._replace(control=stepped(changed, now.stamp())))
