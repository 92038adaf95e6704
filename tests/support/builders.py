"""Values with sensible defaults: one small action, from its plan to its verdict.

The action was proposed at `at(0)`, approved and consumed at once, claimed at `at(1_000)` for thirty
seconds, started at `at(2_000)` and ended at `at(3_000)`. Every builder takes the fields to change.
"""

from typing import Any

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import ActionBinding, Plan, Risk, bind, plan_body
from qinglong_edge.domain.approval import (
    Approval,
    Cancel,
    Cancellation,
    Consume,
    Consumption,
    Decide,
    Decision,
    Propose,
)
from qinglong_edge.domain.canonical import JsonObject, canonical_bytes
from qinglong_edge.domain.dispatch import Claim, Start
from qinglong_edge.domain.execution import Dispatch, Execution, Fence, Progress
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import ApprovalState, ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.recovery import Control
from qinglong_edge.domain.tick import Now, Reading, Tick, Trust, tick_of
from tests.support.clock import BOOT_MS, WALL_MS

PROJECT = "prj-home"
HOUR_MS = 3_600_000
LEASE_MS = 30_000
PREVIEW: JsonObject = {"summary": "run /bin/true"}

ANA = Subject(SubjectType.USER, "ana")
BOB = Subject(SubjectType.USER, "bob")
BOT = Subject(SubjectType.AGENT, "bot")
EDGE = Subject(SubjectType.SYSTEM, "edge")
FENCE = PolicyFence(1, 1)


def at(
    ms: int = 0, *, epoch: int = 1, wall_ms: int | None = None, trust: Trust = Trust.TRUSTED
) -> Now:
    """Return the instant `ms` after the proposal; `wall_ms` tears deadline time from the tick."""
    at_ms = WALL_MS + ms if wall_ms is None else wall_ms
    return Now(tick(ms, epoch=epoch), at_ms, Reading(at_ms, BOOT_MS + ms, f"boot-{epoch}"), trust)


def tick(ms: int, *, epoch: int = 1) -> Tick:
    """Return the tick of that instant."""
    return tick_of(epoch, BOOT_MS + ms)


def shell_plan(*argv: str, **changes: Any) -> Plan:
    """Return a plan that runs one command."""
    params: JsonObject = {"argv": list(argv or ("/bin/true",))}
    return Plan("shell.exec", PROJECT, params, ())._replace(**changes)


def action_binding(plan: Plan | None = None, **changes: Any) -> ActionBinding:
    """Return the identity of a plan."""
    return bind(plan or shell_plan(), "tool.call:shell.exec", PREVIEW)._replace(**changes)


def propose_command(**changes: Any) -> Propose:
    return Propose(
        approval_request_id="apr-1",
        project_id=PROJECT,
        action=action_binding(),
        risk=Risk.MEDIUM,
        requested_by=BOT,
        lifetime_ms=HOUR_MS,
        repeats=None,
        fence=FENCE,
        body=plan_body(shell_plan()),
        preview=canonical_bytes(PREVIEW),
    )._replace(**changes)


def decide_command(**changes: Any) -> Decide:
    return Decide("apr-1", "dec-1", True, "reviewed", ANA, None, FENCE)._replace(**changes)


def consume_command(**changes: Any) -> Consume:
    digest = action_binding().action_digest
    return Consume("apr-1", "con-1", "dsp-1", digest, BOT, EDGE, FENCE)._replace(**changes)


def cancel_command(**changes: Any) -> Cancel:
    return Cancel("apr-1", "can-1", ANA, FENCE)._replace(**changes)


def decision(**changes: Any) -> Decision:
    return Decision("dec-1", True, "reviewed", ANA, WALL_MS)._replace(**changes)


def approval(state: ApprovalState = ApprovalState.PENDING, **changes: Any) -> Approval:
    """Return an approval in that state; withdrawn and expired ones had been pending."""
    base = Approval(
        "apr-1",
        PROJECT,
        1,
        state,
        action_binding(),
        Risk.MEDIUM,
        BOT,
        WALL_MS,
        WALL_MS + HOUR_MS,
        None,
    )
    used = Consumption("con-1", "dsp-1", EDGE, WALL_MS, FENCE)
    refused = decision(approved=False, reason_code="too_risky")
    by_state = {
        ApprovalState.PENDING: base,
        ApprovalState.APPROVED: base._replace(version=2, decision=decision()),
        ApprovalState.REJECTED: base._replace(version=2, decision=refused),
        ApprovalState.CONSUMED: base._replace(version=3, decision=decision(), consumption=used),
        ApprovalState.CANCELLED: base._replace(
            version=2, cancellation=Cancellation("can-0", ANA, WALL_MS)
        ),
        ApprovalState.EXPIRED: base._replace(version=2),
    }
    return by_state[state]._replace(**changes)


def dispatch(**changes: Any) -> Dispatch:
    """Return the dispatch of the consumed approval."""
    return Dispatch(
        "dsp-1",
        "apr-1",
        PROJECT,
        action_binding(),
        Risk.MEDIUM,
        BOT,
        EDGE,
        WALL_MS,
        WALL_MS + HOUR_MS,
        FENCE,
    )._replace(**changes)


def fence(version: int = 1, **changes: Any) -> Fence:
    return Fence("owner-1", "token-1", version)._replace(**changes)


def claim_command(**changes: Any) -> Claim:
    return Claim("dsp-1", "owner-1", "token-1", LEASE_MS)._replace(**changes)


def start_command(**changes: Any) -> Start:
    digest = action_binding().action_digest
    return Start("dsp-1", "apr-1", digest, fence(1))._replace(**changes)


def lease(**changes: Any) -> Lease:
    value = Lease("owner-1", "token-1", tick(1_000), tick(1_000 + LEASE_MS))
    return value._replace(**changes)


def control(status: ControlStatus = ControlStatus.ARMED, **changes: Any) -> Control:
    """Return the control of the started action; its own lease belongs to a resolver."""
    at_ms = WALL_MS + 2_000
    base = Control(status, 0, 2, tick(1_000 + LEASE_MS), None, 0, None, None, at_ms, at_ms)
    held = Lease("resolver", "probe-1", tick(40_000), tick(70_000))
    by_status = {
        ControlStatus.ARMED: base,
        ControlStatus.LEASED: base._replace(version=1, lease=held, next_scan_tick=tick(70_000)),
        ControlStatus.MANUAL_REQUIRED: base._replace(version=2, next_scan_tick=None),
        ControlStatus.RESOLVED: base._replace(
            version=1,
            execution_version=3,
            next_scan_tick=None,
            resolution_mutation_id="done-1",
            updated_at_ms=WALL_MS + 3_000,
        ),
    }
    return by_status[status]._replace(**changes)


def _untouched(status: ExecutionStatus) -> Execution:
    return Execution(
        status=status,
        version=0,
        attempt_count=0,
        max_attempts=limits.ATTEMPTS_DEFAULT,
        eligible_tick=tick(0),
        lease=None,
        started_at_ms=None,
        result_mutation_id=None,
        last_result_code=None,
        completed_at_ms=None,
        created_at_ms=WALL_MS,
        updated_at_ms=WALL_MS,
    )


def execution(status: ExecutionStatus = ExecutionStatus.PENDING, **changes: Any) -> Execution:
    """Return an execution in that state; the blocked one was cancelled before any claim."""
    base = _untouched(status)
    leased = base._replace(
        version=1,
        attempt_count=1,
        eligible_tick=tick(1_000 + LEASE_MS),
        lease=lease(),
        updated_at_ms=WALL_MS + 1_000,
    )
    started = WALL_MS + 2_000
    executing = leased._replace(
        version=2, eligible_tick=None, started_at_ms=started, updated_at_ms=started
    )
    ended = executing._replace(
        version=3,
        lease=None,
        result_mutation_id="done-1",
        last_result_code="done",
        completed_at_ms=WALL_MS + 3_000,
        updated_at_ms=WALL_MS + 3_000,
    )
    by_status = {
        ExecutionStatus.PENDING: base,
        ExecutionStatus.LEASED: leased,
        ExecutionStatus.EXECUTING: executing,
        ExecutionStatus.RETRY_WAIT: leased._replace(
            version=2,
            eligible_tick=tick(3_000),
            lease=None,
            result_mutation_id="rel-1",
            last_result_code="busy",
            updated_at_ms=started,
        ),
        ExecutionStatus.SUCCEEDED: ended,
        ExecutionStatus.FAILED: ended,
        ExecutionStatus.BLOCKED: base._replace(
            version=1,
            eligible_tick=None,
            result_mutation_id="can-0",
            last_result_code="cancelled_before_start",
            completed_at_ms=WALL_MS,
        ),
    }
    return by_status[status]._replace(**changes)


def progress(
    status: ExecutionStatus = ExecutionStatus.PENDING, watch: Control | None = None, **changes: Any
) -> Progress:
    """Return the moving half in that state; `changes` go to the execution."""
    by_status = {
        ExecutionStatus.EXECUTING: control(),
        ExecutionStatus.SUCCEEDED: control(ControlStatus.RESOLVED),
        ExecutionStatus.FAILED: control(ControlStatus.RESOLVED),
    }
    return Progress(execution(status, **changes), watch or by_status.get(status))
