"""Values of recovery, beside those of `builders`: who looks, who settles, and how it ends.

The action started at `at(2_000)`, its lease is over at `at(LEASE_END_MS)`. The resolver claimed at
`at(40_000)` for thirty seconds, a person who settles proved themselves at that moment.
"""

from typing import Any

from qinglong_edge.domain.evidence import ClaimScan, Evidence, Observe, RenewScan, ScanFence
from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Decision, Finding, Resolution, Source
from qinglong_edge.domain.resolution import Case, ResolveByEvidence, ResolveByPerson
from tests.support.builders import (
    ANA,
    FENCE,
    LEASE_MS,
    PROJECT,
    at,
    control,
    dispatch,
    progress,
    tick,
)

LEASE_END_MS = 1_000 + LEASE_MS
CLAIM_MS = 40_000
PROOF = "a" * 64
MISSING = Evidence(Finding.MISSING, "nothing_there")
CONFLICT = Evidence(Finding.CONFLICT, "receipt_conflict")
VERIFIED = Evidence(Finding.VERIFIED_SUCCEEDED, "receipt_verified", PROOF)


def scan_fence(recovery_version: int = 1, **changes: Any) -> ScanFence:
    return ScanFence("resolver", "probe-1", 2, recovery_version)._replace(**changes)


def claim_scan(**changes: Any) -> ClaimScan:
    return ClaimScan("dsp-1", "resolver", "probe-1", LEASE_MS)._replace(**changes)


def renew_scan(**changes: Any) -> RenewScan:
    return RenewScan("dsp-1", scan_fence(), LEASE_MS)._replace(**changes)


def observe_command(**changes: Any) -> Observe:
    return Observe("dsp-1", scan_fence(), "see-1", MISSING)._replace(**changes)


def evidence_command(**changes: Any) -> ResolveByEvidence:
    return ResolveByEvidence("dsp-1", scan_fence(), "res-1", VERIFIED)._replace(**changes)


def principal(**changes: Any) -> Principal:
    """Return somebody who proved themselves strongly."""
    now = at(CLAIM_MS)
    value = Principal(ANA, Assurance.MULTI_FACTOR, "ses-1", now.at_ms, tick(CLAIM_MS))
    return value._replace(**changes)


def person_command(**changes: Any) -> ResolveByPerson:
    event = ResolveByPerson(
        "dsp-1", 2, None, "man-1", Decision.ABANDON_UNKNOWN, "looked_myself", None, principal(),
        FENCE, unprobed=False,
    )  # fmt: skip
    return event._replace(**changes)


def case(
    watch: ControlStatus = ControlStatus.ARMED, of: Dispatch | None = None, **changes: Any
) -> Case:
    """Return a started action without a verdict; `changes` go to its control."""
    before = progress(ExecutionStatus.EXECUTING, control(watch, **changes))
    return Case(of or dispatch(), before, None)


def resolution(**changes: Any) -> Resolution:
    """Return how the commands above settle it: by evidence, at the moment of the claim."""
    value = Resolution(
        "dsp-1", PROJECT, 2, "res-1", Source.AUTOMATIC_EVIDENCE, Decision.CONFIRM_SUCCEEDED, PROOF,
        "receipt_verified", None, at(CLAIM_MS).at_ms, unprobed=False,
    )  # fmt: skip
    return value._replace(**changes)
