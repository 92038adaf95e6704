"""The scan lease: who may look for evidence, and until when their word counts."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.dispatch import Renew
from qinglong_edge.domain.dispatch import renew as renew_execution
from qinglong_edge.domain.evidence import (
    Answer,
    ScanFence,
    claim,
    holds,
    observe,
    renew,
    scan_fence_of,
)
from qinglong_edge.domain.execution import Execution, Progress
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Control, RecoveryRefusal
from qinglong_edge.domain.tick import Trust
from tests.support.builders import LEASE_MS, at, control, execution, fence, progress, tick
from tests.support.clock import WALL_MS
from tests.support.recovering import (
    CLAIM_MS,
    LEASE_END_MS,
    case,
    claim_scan,
    observe_command,
    renew_scan,
    scan_fence,
)

ARMED, LEASED, MANUAL_REQUIRED, RESOLVED = ControlStatus
EXECUTING = ExecutionStatus.EXECUTING
FR = RecoveryRefusal.FENCE_REJECTED
SCAN_END_MS = CLAIM_MS + LEASE_MS


def armed(**changes: Any) -> Progress:
    return case(ARMED, **changes).progress


def leased(**changes: Any) -> Progress:
    return case(LEASED, **changes).progress


def changed(answer: Answer) -> Progress:
    assert type(answer) is Changed
    return answer.after


def watch_of(answer: Answer) -> Control:
    after = changed(answer)
    assert after.control is not None
    return after.control


@pytest.mark.scenario(131, 132)
@pytest.mark.adr("0033", "5.3")
def test_a_claim_leases_the_right_to_look_and_touches_no_execution() -> None:
    before = armed()
    after = changed(claim(before, claim_scan(), at(CLAIM_MS)))
    assert after.execution is before.execution
    assert before.control is not None
    assert after.control == before.control._replace(
        status=LEASED,
        version=1,
        next_scan_tick=tick(SCAN_END_MS),
        lease=Lease("resolver", "probe-1", tick(CLAIM_MS), tick(SCAN_END_MS)),
        updated_at_ms=WALL_MS + CLAIM_MS,
    )
    assert scan_fence_of(after) == scan_fence(1)


CLAIM_REFUSALS: list[tuple[Progress, int, RecoveryRefusal]] = [
    (progress(ExecutionStatus.PENDING), CLAIM_MS, RecoveryRefusal.NOT_FOUND),
    (progress(ExecutionStatus.LEASED), CLAIM_MS, RecoveryRefusal.NOT_FOUND),
    (progress(ExecutionStatus.RETRY_WAIT), CLAIM_MS, RecoveryRefusal.NOT_FOUND),
    (progress(ExecutionStatus.BLOCKED), CLAIM_MS, RecoveryRefusal.NOT_FOUND),
    (progress(ExecutionStatus.SUCCEEDED), 0, RecoveryRefusal.ALREADY_TERMINAL),
    (case(MANUAL_REQUIRED).progress, 0, RecoveryRefusal.MANUAL_REQUIRED),
    (case(MANUAL_REQUIRED).progress, CLAIM_MS, RecoveryRefusal.MANUAL_REQUIRED),
    (armed(next_scan_tick=tick(0)), LEASE_END_MS - 1, RecoveryRefusal.EXECUTION_ACTIVE),
    (leased(), LEASE_END_MS - 1, RecoveryRefusal.EXECUTION_ACTIVE),
    (leased(next_scan_tick=tick(0)), SCAN_END_MS - 1, RecoveryRefusal.LEASED),
    (armed(next_scan_tick=tick(50_000)), 49_999, RecoveryRefusal.NOT_DUE),
    (armed(next_scan_tick=None), CLAIM_MS, RecoveryRefusal.NOT_DUE),
]


@pytest.mark.scenario(109, 130, 132, 133, 143)
@pytest.mark.adr("0033", "5.3")
@pytest.mark.parametrize(("before", "ms", "refusal"), CLAIM_REFUSALS)
def test_nobody_looks_where_there_is_nothing_to_look_for_yet(
    before: Progress, ms: int, refusal: RecoveryRefusal
) -> None:
    assert claim(before, claim_scan(owner="other", token="probe-2"), at(ms)) is refusal


@pytest.mark.scenario(131, 132, 133)
@pytest.mark.parametrize(
    ("before", "ms"),
    [
        (armed(next_scan_tick=tick(0)), LEASE_END_MS),
        (armed(next_scan_tick=tick(50_000)), 50_000),
        (leased(), SCAN_END_MS),
    ],
)
def test_at_exactly_its_tick_the_next_one_may_look(before: Progress, ms: int) -> None:
    after = watch_of(claim(before, claim_scan(owner="other", token="probe-2"), at(ms)))
    assert before.control is not None
    assert (after.status, after.version) == (LEASED, before.control.version + 1)
    assert after.lease == Lease("other", "probe-2", tick(ms), tick(ms + LEASE_MS))


@pytest.mark.scenario(131)
@pytest.mark.parametrize("lease_ms", [1, LEASE_MS, limits.LEASE_MS_MAX])
def test_the_holder_s_repeat_is_a_replay_while_its_lease_runs(lease_ms: int) -> None:
    before, event = leased(), claim_scan(lease_ms=lease_ms)
    assert claim(before, event, at(SCAN_END_MS - 1)) == Replayed(before)
    assert isinstance(claim(before, event, at(SCAN_END_MS)), Changed)


@pytest.mark.scenario(131)
@pytest.mark.parametrize("change", [{"owner": "other"}, {"token": "probe-2"}])
def test_half_a_name_is_somebody_else(change: dict[str, str]) -> None:
    assert claim(leased(), claim_scan(**change), at(CLAIM_MS)) is RecoveryRefusal.LEASED


@pytest.mark.scenario(227)
def test_a_later_boot_ends_every_lease_and_every_wait() -> None:
    """Whatever the boot clock shows: it counts from nothing again (W31)."""
    now = at(0, epoch=2)
    for before in (armed(), leased(), armed(next_scan_tick=tick(10**9))):
        after = watch_of(claim(before, claim_scan(token="probe-2"), now))
        expires = tick(LEASE_MS, epoch=2)
        assert after.lease == Lease("resolver", "probe-2", tick(0, epoch=2), expires)


@pytest.mark.scenario(227)
@pytest.mark.parametrize("trust", Trust)
def test_looking_needs_no_wall_clock(trust: Trust) -> None:
    """Neither trust nor the wall decides it, and no stamp goes back."""
    now = at(CLAIM_MS, wall_ms=0, trust=trust)
    after = watch_of(claim(armed(), claim_scan(), now))
    assert after.updated_at_ms == WALL_MS + 2_000


# Holding on.


@pytest.mark.scenario(139)
@pytest.mark.adr("0033", "5.3")
@pytest.mark.parametrize(
    ("ms", "lease_ms", "expires_ms"),
    [
        (50_000, LEASE_MS, 80_000),
        (SCAN_END_MS, LEASE_MS, SCAN_END_MS + LEASE_MS),
        (SCAN_END_MS * 9, LEASE_MS, SCAN_END_MS * 9 + LEASE_MS),
        (CLAIM_MS, 1, SCAN_END_MS),
    ],
)
def test_the_holder_gets_more_time_even_after_its_end_and_never_less(
    ms: int, lease_ms: int, expires_ms: int
) -> None:
    before = leased()
    after = changed(renew(before, renew_scan(lease_ms=lease_ms), at(ms)))
    assert after.execution is before.execution
    assert before.control is not None
    assert after.control == before.control._replace(
        version=2,
        next_scan_tick=tick(expires_ms),
        lease=Lease("resolver", "probe-1", tick(ms), tick(expires_ms)),
        updated_at_ms=WALL_MS + ms,
    )


@pytest.mark.scenario(139)
def test_a_repeated_renewal_is_a_replay_unless_it_asks_for_more() -> None:
    after = changed(renew(leased(), renew_scan(), at(50_000)))
    for lease_ms in (1, LEASE_MS):
        assert renew(after, renew_scan(lease_ms=lease_ms), at(50_001)) == Replayed(after)
    assert renew(after, renew_scan(lease_ms=LEASE_MS + 1), at(50_001)) is FR


@pytest.mark.scenario(139)
@pytest.mark.parametrize("status", [ARMED, MANUAL_REQUIRED, RESOLVED])
def test_what_is_not_leased_cannot_be_held(status: ControlStatus) -> None:
    before = case(status).progress
    assert before.control is not None
    held = scan_fence(before.control.version)
    assert renew(before, renew_scan(fence=held), at(CLAIM_MS)) is FR
    assert renew(progress(ExecutionStatus.PENDING), renew_scan(), at(CLAIM_MS)) is FR


STALE = [
    scan_fence(owner="other"),
    scan_fence(token="probe-2"),
    scan_fence(execution_version=1),
    scan_fence(execution_version=3),
    scan_fence(0),
    scan_fence(2),
]


@pytest.mark.scenario(138, 139, 152)
@pytest.mark.adr("0033", "5.3")
@pytest.mark.parametrize("stale", STALE)
def test_another_fence_says_nothing(stale: ScanFence) -> None:
    assert observe(leased(), observe_command(fence=stale), at(50_000)) is FR
    asked = renew_scan(fence=stale, lease_ms=LEASE_MS + 1)
    assert renew(leased(), asked, at(50_000)) is FR


@pytest.mark.scenario(138)
@pytest.mark.adr("0033", "5.8")
def test_a_renewed_execution_takes_the_word_from_its_resolver() -> None:
    before = leased()
    renewed = renew_execution(before, Renew("dsp-1", fence(2), LEASE_MS), at(50_000))
    assert isinstance(renewed, Changed)
    after = renewed.after
    assert not holds(after, scan_fence())
    assert observe(after, observe_command(), at(50_000)) is FR
    assert renew(after, renew_scan(), at(50_000)) is FR
    refusal = claim(after, claim_scan(), at(50_000 + LEASE_MS - 1))
    assert refusal is RecoveryRefusal.EXECUTION_ACTIVE


@pytest.mark.scenario(131, 139)
def test_a_takeover_takes_the_word_and_the_end_of_a_lease_alone_does_not() -> None:
    slow = at(SCAN_END_MS * 9)
    assert watch_of(observe(leased(), observe_command(), slow)).finding_count == 1
    taken = changed(claim(leased(), claim_scan(token="probe-2"), at(SCAN_END_MS)))
    assert observe(taken, observe_command(), at(SCAN_END_MS)) is FR
    assert observe(taken, observe_command(fence=scan_fence(2)), at(SCAN_END_MS)) is FR
    assert renew(taken, renew_scan(), at(SCAN_END_MS)) is FR


@pytest.mark.scenario(142)
@pytest.mark.parametrize(
    ("run", "watch", "version"),
    [
        (execution(EXECUTING), control(LEASED, execution_version=1), 2),
        (execution(EXECUTING), control(LEASED)._replace(status=ARMED), 2),
        (execution(EXECUTING), control(LEASED, lease=None), 2),
        (execution(ExecutionStatus.SUCCEEDED), control(LEASED, execution_version=3), 3),
    ],
    ids=["other-version", "not-leased", "no-lease", "ended"],
)
def test_a_row_that_contradicts_itself_is_held_by_nobody(
    run: Execution, watch: Control, version: int
) -> None:
    held = scan_fence(execution_version=version)
    assert scan_fence_of(Progress(run, watch)) is None
    assert not holds(Progress(run, watch), held)
    assert observe(Progress(run, watch), observe_command(fence=held), at(50_000)) is FR


@pytest.mark.parametrize("row", [armed(), Progress(execution(EXECUTING), None)])
def test_without_a_scan_lease_there_is_no_fence_to_hold(row: Progress) -> None:
    assert scan_fence_of(row) is None
    assert not holds(row, scan_fence())
