import pytest

from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.dispatch import Complete, Release, claim, complete, release, start
from qinglong_edge.domain.execution import (
    Execution,
    Fence,
    Outcome,
    Progress,
    baseline,
    dispatch_of,
    effective_state,
    fence_of,
    lease_expired,
)
from qinglong_edge.domain.machines import ApprovalState, ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence
from qinglong_edge.domain.tick import Now
from tests.support.builders import (
    BOT,
    EDGE,
    FENCE,
    HOUR_MS,
    LEASE_MS,
    approval,
    at,
    claim_command,
    control,
    dispatch,
    execution,
    fence,
    progress,
    start_command,
    tick,
)
from tests.support.clock import WALL_MS

PENDING, LEASED, EXECUTING, RETRY_WAIT, SUCCEEDED, FAILED, BLOCKED = ExecutionStatus
L_MS = 1_000 + LEASE_MS


@pytest.mark.scenario(55)
def test_a_dispatch_is_a_view_of_its_consumed_approval() -> None:
    spent = approval(ApprovalState.CONSUMED)
    born = dispatch_of(spent)
    assert born == dispatch()
    assert born is not None
    assert born.action is spent.action
    assert (born.requested_by, born.consumed_by) == (BOT, EDGE)
    assert born.created_at_ms == WALL_MS


def test_a_dispatch_carries_the_deadline_and_the_fence_it_may_start_under() -> None:
    """Upstream knows neither (W2)."""
    spent = approval(ApprovalState.CONSUMED)
    assert spent.consumption is not None
    moved = spent.consumption._replace(fence=PolicyFence(7, 3))
    born = dispatch_of(spent._replace(consumption=moved))
    assert born is not None
    assert born.start_deadline_ms == spent.expires_at_ms == WALL_MS + HOUR_MS
    assert born.fence == PolicyFence(7, 3)


@pytest.mark.parametrize(
    "state", [state for state in ApprovalState if state is not ApprovalState.CONSUMED]
)
def test_no_other_approval_has_a_dispatch(state: ApprovalState) -> None:
    assert dispatch_of(approval(state)) is None


@pytest.mark.scenario(56)
def test_an_execution_begins_due_with_nothing_tried() -> None:
    born = baseline(dispatch(), at(0))
    assert born == progress(PENDING)
    run = born.execution
    assert (run.status, run.version, run.attempt_count, run.max_attempts) == (PENDING, 0, 0, 5)
    assert (run.eligible_tick, run.created_at_ms, run.updated_at_ms) == (tick(0), WALL_MS, WALL_MS)
    assert born.control is None


def test_the_builders_values_are_those_that_the_verbs_make() -> None:
    born = baseline(dispatch(), at(0))
    leased = claim(dispatch(), born, claim_command(), at(1_000))
    assert leased == Changed(progress(LEASED))
    started = start(dispatch(), progress(LEASED), start_command(), at(2_000), policy=FENCE)
    assert started == Changed(progress(EXECUTING))
    for outcome, status in ((Outcome.SUCCEEDED, SUCCEEDED), (Outcome.FAILED, FAILED)):
        done = Complete("dsp-1", fence(2), "done-1", outcome, "done")
        assert complete(progress(EXECUTING), done, at(3_000)) == Changed(progress(status))
    waiting = Release("dsp-1", fence(1), "rel-1", "busy", 1_000)
    assert release(progress(LEASED), waiting, at(2_000)) == Changed(progress(RETRY_WAIT))


@pytest.mark.parametrize("status", ExecutionStatus)
def test_only_a_lease_has_a_fence(status: ExecutionStatus) -> None:
    run = execution(status)
    expected = Fence("owner-1", "token-1", run.version) if status in {LEASED, EXECUTING} else None
    assert fence_of(run) == expected


@pytest.mark.scenario(78, 82, 87)
@pytest.mark.adr("0002", "1")
@pytest.mark.parametrize(
    ("run", "now", "expired"),
    [
        (execution(LEASED), at(0), False),
        (execution(LEASED), at(L_MS - 1), False),
        (execution(LEASED), at(L_MS), True),
        (execution(LEASED), at(L_MS - 1, wall_ms=WALL_MS * 2), False),
        (execution(LEASED), at(L_MS, wall_ms=0), True),
        (execution(EXECUTING), at(-5_000, epoch=2), True),
        (execution(PENDING), at(0), True),
    ],
)
def test_a_lease_ends_at_exactly_its_tick(run: Execution, now: Now, *, expired: bool) -> None:
    assert lease_expired(run, now) is expired


SEEN: list[tuple[Progress, Now, str]] = [
    (progress(PENDING), at(0), "due"),
    (progress(PENDING), at(-1), "pending"),
    (progress(RETRY_WAIT), at(2_999), "retry_wait"),
    (progress(RETRY_WAIT), at(3_000), "due"),
    (progress(RETRY_WAIT, eligible_tick=tick(10**9)), at(0, epoch=2), "due"),
    (progress(LEASED), at(L_MS - 1), "leased"),
    (progress(LEASED), at(L_MS), "due"),
    (progress(EXECUTING), at(L_MS - 1), "executing"),
    (progress(EXECUTING), at(L_MS), "recovery_required"),
    (progress(EXECUTING), at(0, epoch=2), "recovery_required"),
    (Progress(execution(EXECUTING), None), at(L_MS), "recovery_required"),
    (progress(EXECUTING, control(ControlStatus.LEASED)), at(L_MS), "recovery_required"),
    (progress(EXECUTING, control(ControlStatus.MANUAL_REQUIRED)), at(L_MS), "manual_required"),
    (progress(SUCCEEDED), at(L_MS), "succeeded"),
    (progress(FAILED), at(L_MS), "failed"),
    (progress(BLOCKED), at(L_MS), "blocked"),
]


@pytest.mark.scenario(75, 82, 228)
@pytest.mark.adr("0033", "1.1")
@pytest.mark.parametrize(("value", "now", "state"), SEEN)
def test_a_reader_sees_the_effective_state(value: Progress, now: Now, state: str) -> None:
    assert effective_state(value, now) == state


@pytest.mark.scenario(74, 75)
@pytest.mark.adr("0033", "1.2")
@pytest.mark.parametrize("status", [EXECUTING, SUCCEEDED, FAILED, BLOCKED])
def test_what_has_started_or_ended_is_never_due_again(status: ExecutionStatus) -> None:
    assert execution(status).eligible_tick is None
    for now in (at(L_MS), at(10**10), at(0, epoch=9)):
        assert effective_state(progress(status), now) != "due"
