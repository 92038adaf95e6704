"""The recovery control: armed by the start barrier, closed by the first verdict (contract 8).

The control stands in the same row as the execution it watches and carries the same version. Its
lease coordinates probing and grants no right to execute. Observing evidence and resolving from it
stand in their own modules.
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain.machines import CONTROL, ControlEvent, ControlStatus
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


class Lease(NamedTuple):
    """Hold a fence: who may speak (owner, token), and from when until when, in ticks."""

    owner: str
    token: str
    from_tick: Tick
    expires_tick: Tick


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
    return before._replace(
        status=status,
        version=before.version + 1,
        execution_version=execution_version,
        next_scan_tick=next_scan_tick if status is ControlStatus.ARMED else None,
        lease=None,
        updated_at_ms=max(at_ms, before.updated_at_ms),
    )


def close(before: Control, execution_version: int, mutation_id: str, at_ms: int) -> Control:
    """Close the control under the mutation that ended the execution."""
    return before._replace(
        status=CONTROL.move(before.status, ControlEvent.CLOSE),
        version=before.version + 1,
        execution_version=execution_version,
        next_scan_tick=None,
        lease=None,
        resolution_mutation_id=mutation_id,
        updated_at_ms=max(at_ms, before.updated_at_ms),
    )
