"""The recovery control: armed by the start barrier, closed by the first verdict (contract 8).

The control stands in the same row as the execution it watches and carries the same version. Its
lease coordinates probing and grants no right to execute. The values stand here; observing evidence
(`evidence`) and settling an outcome (`resolution`) are rules of their own.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import CONTROL, ControlEvent, ControlStatus
from qinglong_edge.domain.policy import Subject
from qinglong_edge.domain.tick import Tick


class Finding(enum.StrEnum):
    """Name what looking for evidence may find; `missing` never means that nothing happened."""

    VERIFIED_SUCCEEDED = "verified_succeeded"
    VERIFIED_FAILED = "verified_failed"
    STILL_RUNNING = "still_running"
    MISSING = "missing"
    CONFLICT = "conflict"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"


class Decision(enum.StrEnum):
    """Name how an unknown outcome may be settled; there is no retry and no reset."""

    CONFIRM_SUCCEEDED = "confirm_succeeded"
    CONFIRM_FAILED = "confirm_failed"
    ABANDON_UNKNOWN = "abandon_unknown"


class Source(enum.StrEnum):
    """Name who settled an unknown outcome."""

    AUTOMATIC_EVIDENCE = "automatic_evidence"
    HUMAN = "human"


class Resolution(NamedTuple):
    """Hold how recovery settled an outcome; at most one a dispatch, never changed.

    `execution_version` is the one that was settled: the execution ends one higher. `unprobed` says
    that a person settled what evidence could have, before anybody looked for it (W25).
    """

    dispatch_id: str
    project_id: str
    execution_version: int
    mutation_id: str
    source: Source
    decision: Decision
    evidence_digest: str | None
    reason_code: str
    resolved_by: Subject | None
    resolved_at_ms: int
    unprobed: bool


class RecoveryRefusal(enum.Enum):
    """Name why a control did not change."""

    NOT_FOUND = "dispatch_not_found"
    ALREADY_TERMINAL = "already_terminal"
    MANUAL_REQUIRED = "manual_required"
    EXECUTION_ACTIVE = "execution_active"
    LEASED = "recovery_leased"
    NOT_DUE = "not_due"
    FENCE_REJECTED = "recovery_fence_rejected"
    FENCE_CHANGED = "policy_fence_changed"
    MUTATION_DRIFT = "recovery_mutation_conflict"
    NOT_PROBED = "not_probed"
    HUMAN_REQUIRED = "human_required"
    STRONG_REQUIRED = "strong_authentication_required"
    CLOCK_UNTRUSTED = "clock_untrusted"


class Observation(NamedTuple):
    """Hold the newest finding of a control."""

    mutation_id: str
    finding: Finding
    result_code: str
    evidence_digest: str | None


class Control(NamedTuple):
    """Hold the recovery control of one started action."""

    status: ControlStatus
    version: int
    execution_version: int
    next_scan_tick: Tick | None
    lease: Lease | None
    finding_count: int
    last: Observation | None
    resolution_mutation_id: str | None
    created_at_ms: int
    updated_at_ms: int


def arm(execution_version: int, next_scan_tick: Tick, at_ms: int) -> Control:
    """Return the control that the start barrier commits together with `executing`."""
    return Control(
        ControlStatus.ARMED, 0, execution_version, next_scan_tick, None, 0, None, None, at_ms, at_ms
    )


def rearm(before: Control, execution_version: int, next_scan_tick: Tick, at_ms: int) -> Control:
    """Follow the execution's new lease end; the manual queue keeps what it has (W28)."""
    status = CONTROL.move(before.status, ControlEvent.REARM)
    after = before._replace(
        status=status,
        execution_version=execution_version,
        next_scan_tick=next_scan_tick if status is ControlStatus.ARMED else None,
        lease=None,
    )
    return stepped(after, at_ms)


def close(before: Control, execution_version: int, mutation_id: str, at_ms: int) -> Control:
    """Close the control under the mutation that ended the execution."""
    after = before._replace(
        status=CONTROL.move(before.status, ControlEvent.CLOSE),
        execution_version=execution_version,
        next_scan_tick=None,
        lease=None,
        resolution_mutation_id=mutation_id,
    )
    return stepped(after, at_ms)


def stepped(changed: Control, at_ms: int) -> Control:
    """Count what changed as one step; its stamp never goes back."""
    stamp = max(at_ms, changed.updated_at_ms)
    return changed._replace(version=changed.version + 1, updated_at_ms=stamp)
