"""Start: the barrier. What it proves, what it arms, and that nothing leads back."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain.dispatch import START_DEADLINE_PASSED, DispatchRefusal
from qinglong_edge.domain.errors import QinglongError
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Control
from tests.contract.adapters import Repositories
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    claim_of,
    complete_of,
    digest_of,
    expire_of,
    fence_of,
    put_back_of,
    release_of,
    renew_of,
    replayed,
    start_of,
)
from tests.support.builders import HOUR_MS, LEASE_MS
from tests.support.clock import WALL_MS


@pytest.mark.adr("0033", "5.1")
@pytest.mark.scenario(88, 91)
def test_the_barrier_is_stored_together_with_its_armed_control(
    story: Story, repositories: Repositories
) -> None:
    story.claimed()
    lease = story.execution().lease
    assert lease is not None
    story.clocks.advance(3)
    commits = repositories.commits()
    stored = changed(story.ports.dispatches.start(start_of(1)))
    assert repositories.commits() == commits + 1
    begun = story.execution()
    assert (begun.status, begun.version, begun.attempt_count) == (ExecutionStatus.EXECUTING, 2, 1)
    assert (begun.eligible_tick, begun.started_at_ms, begun.lease) == (None, WALL_MS + 3, lease)
    at_ms = WALL_MS + 3
    assert story.control() == Control(
        status=ControlStatus.ARMED,
        version=0,
        execution_version=2,
        next_scan_tick=lease.expires_tick,
        lease=None,
        finding_count=0,
        last=None,
        resolution_mutation_id=None,
        created_at_ms=at_ms,
        updated_at_ms=at_ms,
    )
    assert story.record() == stored


@pytest.mark.scenario(89)
def test_a_repeated_start_replays_and_arms_nothing_anew(story: Story) -> None:
    stored = story.started()
    story.clocks.advance(LEASE_MS + 1)
    before = story.repositories.snapshot()
    assert replayed(story.ports.dispatches.start(start_of(1))) == stored
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(86, 87)
@pytest.mark.parametrize(
    "change", [{"action_digest": digest_of(2)}, {"approval_request_id": "apr-2"}]
)
def test_the_barrier_is_for_this_very_action(story: Story, change: dict[str, Any]) -> None:
    stored = story.claimed()[0]
    answer = story.ports.dispatches.start(start_of(1, **change))
    assert answer is DispatchRefusal.BINDING_CONFLICT
    assert story.record() == stored


@pytest.mark.scenario(87)
@pytest.mark.parametrize("change", [{"owner": "x"}, {"token": "x"}, {"version": 0}, {"version": 2}])
def test_only_the_holder_of_the_lease_starts(story: Story, change: dict[str, Any]) -> None:
    stored = story.claimed()[0]
    wrong = start_of(1, fence=fence_of(1, 1)._replace(**change))
    assert story.ports.dispatches.start(wrong) is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored


@pytest.mark.scenario(87)
@pytest.mark.parametrize(("ms", "late"), [(LEASE_MS - 1, False), (LEASE_MS, True)])
def test_a_lease_starts_nothing_from_its_end_on(story: Story, ms: int, late: bool) -> None:
    story.claimed()
    story.clocks.advance(ms)
    answer = story.ports.dispatches.start(start_of(1))
    if late:
        assert answer is DispatchRefusal.FENCE_REJECTED
        assert story.status() is ExecutionStatus.LEASED
    else:
        changed(answer)


@pytest.mark.scenario(90)
def test_a_start_is_no_replay_once_the_execution_moved_on(story: Story) -> None:
    story.started(1)
    changed(story.ports.dispatches.renew(renew_of(1, 2)))
    assert story.ports.dispatches.start(start_of(1)) is DispatchRefusal.FENCE_REJECTED
    story.completed(2)
    assert story.ports.dispatches.start(start_of(2)) is DispatchRefusal.FENCE_REJECTED


def test_what_is_not_leased_is_not_started(story: Story) -> None:
    story.consumed()
    unclaimed = start_of(1, 0)
    assert story.ports.dispatches.start(unclaimed) is DispatchRefusal.FENCE_REJECTED
    assert story.ports.dispatches.start(start_of(9)) is DispatchRefusal.NOT_FOUND
    assert story.status() is ExecutionStatus.PENDING


def late_to_start(story: Story) -> None:
    """Hold a lease over the moment at which the approval expires."""
    story.consumed()
    story.clocks.advance(HOUR_MS - 1)
    story.claimed_again(1)


def test_the_last_moment_before_the_deadline_starts(story: Story) -> None:
    late_to_start(story)
    changed(story.ports.dispatches.start(start_of(1)))
    assert story.status() is ExecutionStatus.EXECUTING


@pytest.mark.adr("0005", "2")
def test_the_start_deadline_blocks_inside_the_barrier(story: Story) -> None:
    """W2: checked in the start transaction; nothing is executed."""
    late_to_start(story)
    story.clocks.advance(1)
    stored = changed(story.ports.dispatches.start(start_of(1)))
    ended = story.execution()
    assert (ended.status, ended.started_at_ms) == (ExecutionStatus.BLOCKED, None)
    assert ended.last_result_code == START_DEADLINE_PASSED
    assert stored.progress is not None
    assert stored.progress.control is None
    assert replayed(story.ports.dispatches.start(start_of(1))) == stored


def test_the_start_deadline_blocks_at_the_claim(story: Story) -> None:
    story.consumed()
    story.clocks.advance(HOUR_MS)
    answers, started = story.ports.dispatches.claim_page((claim_of(1),), start_of(1))
    changed(answers[0])
    assert started is DispatchRefusal.FENCE_REJECTED
    ended = story.execution()
    assert (ended.status, ended.attempt_count) == (ExecutionStatus.BLOCKED, 0)
    assert ended.last_result_code == START_DEADLINE_PASSED


@pytest.mark.adr("0033", "7.2")
@pytest.mark.scenario(103, 156)
def test_nothing_undoes_the_barrier(story: Story) -> None:
    stored = story.started()
    dispatches = story.ports.dispatches
    assert dispatches.release(release_of(1, 2)) is DispatchRefusal.ALREADY_STARTED
    assert dispatches.put_back((put_back_of(1, 2),)) == (DispatchRefusal.FENCE_REJECTED,)
    assert story.ports.approvals.cancel(cancel_of(1)) is DispatchRefusal.ALREADY_STARTED
    assert dispatches.settle_dead_owners("owner-1") == 0
    assert story.record() == stored
    story.clocks.reboot()
    assert dispatches.settle_dead_owners("owner-2") == 0
    assert story.due() == []
    assert story.record() == stored


def steps(story: Story) -> tuple[Callable[[], Record], ...]:
    """Return the writes of a life, from the claim to a late verdict."""
    dispatches = story.ports.dispatches
    return (
        lambda: changed(dispatches.claim_page((claim_of(1),))[0][0]),
        lambda: changed(dispatches.start(start_of(1))),
        lambda: changed(dispatches.renew(renew_of(1, 2))),
        lambda: changed(dispatches.expire(expire_of(1, 3))),
        lambda: changed(dispatches.complete(complete_of(1, 4))[0]),
    )


@pytest.mark.adr("0002", "5")
def test_each_write_keeps_the_stamps_in_order(story: Story) -> None:
    """A wall clock that runs backwards never makes a later stamp smaller."""
    story.consumed()
    stamps = [story.execution().updated_at_ms]
    for step in steps(story):
        story.clocks.step_wall(-60_000)
        step()
        stamps.append(story.execution().updated_at_ms)
    assert stamps == sorted(stamps)
    assert story.control().updated_at_ms >= story.control().created_at_ms


def test_a_damaged_action_is_not_started(story: Story, repositories: Repositories) -> None:
    story.claimed()
    repositories.damage("apr-1")
    before = repositories.snapshot()
    with pytest.raises(QinglongError) as raised:
        story.ports.dispatches.start(start_of(1))
    assert raised.value.code == "row_damaged"
    assert repositories.snapshot() == before
