"""Dead owners: what a starting owner takes over from those before it, once, in one commit."""

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.dispatch import NOT_REACHED, OWNER_DIED, DispatchRefusal
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import RecoveryRefusal
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import UNSUPPORTED, by_person, observe_of, scanned
from tests.contract.story import (
    Story,
    changed,
    complete_of,
    release_of,
    renew_of,
    start_of,
)
from tests.support.builders import LEASE_MS

NEW = "owner-2"


def left_behind(story: Story) -> None:
    """Let an owner die within a page: one started, three held."""
    story.claimed(1, 2, 3, 4)
    changed(story.ports.dispatches.start(start_of(1)))


@pytest.mark.adr("0005", "4")
def test_what_is_left_is_taken_over_in_one_commit(story: Story, repositories: Repositories) -> None:
    left_behind(story)
    story.clocks.advance(1)
    commits = repositories.commits()
    assert story.ports.dispatches.settle_dead_owners(NEW) == 4
    assert repositories.commits() == commits + 1
    assert story.status(1) is ExecutionStatus.EXECUTING
    assert story.waits_for_recovery() == ["dsp-1"]
    assert story.due() == ["dsp-2", "dsp-3", "dsp-4"]
    states = [story.execution(n) for n in (2, 3, 4)]
    assert [each.status for each in states] == [ExecutionStatus.RETRY_WAIT] * 3
    assert [each.attempt_count for each in states] == [1, 0, 0]
    assert [each.last_result_code for each in states] == [OWNER_DIED, NOT_REACHED, NOT_REACHED]
    assert story.ports.dispatches.settle_dead_owners(NEW) == 0
    assert repositories.commits() == commits + 1


def test_a_page_that_kills_its_owner_ends_blocked(story: Story) -> None:
    """The first unstarted one pays with an attempt each time, so a poisoned page ends."""
    story.consumed()
    for turn in range(limits.ATTEMPTS_DEFAULT):
        story.claimed_again(1, owner=f"owner-{turn}")
        assert story.ports.dispatches.settle_dead_owners("owner-x") == 1
    ended = story.execution()
    assert (ended.status, ended.last_result_code) == (ExecutionStatus.BLOCKED, OWNER_DIED)
    assert ended.attempt_count == limits.ATTEMPTS_DEFAULT
    assert story.due() == []


def test_an_owner_keeps_what_it_holds_itself(story: Story) -> None:
    story.claimed(1)
    story.started(2)
    before = story.repositories.snapshot()
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    assert story.repositories.snapshot() == before


def test_what_waits_or_ended_belongs_to_nobody(story: Story) -> None:
    story.consumed(1)
    story.claimed(2)
    changed(story.ports.dispatches.release(release_of(2)))
    story.completed(3)
    story.proposed(4)
    before = story.repositories.snapshot()
    assert story.ports.dispatches.settle_dead_owners(NEW) == 0
    assert story.repositories.snapshot() == before


@pytest.mark.parametrize("reboot", [False, True])
def test_an_expired_execution_needs_no_taking_over(story: Story, reboot: bool) -> None:
    stored = story.started()
    if reboot:
        story.clocks.reboot()
    else:
        story.clocks.advance(LEASE_MS)
    assert story.ports.dispatches.settle_dead_owners(NEW) == 0
    assert story.record() == stored
    assert story.waits_for_recovery() == ["dsp-1"]


def test_leases_of_an_earlier_boot_are_put_back(story: Story) -> None:
    story.claimed(1, 2)
    story.clocks.reboot()
    assert story.ports.dispatches.settle_dead_owners(NEW) == 2
    assert [story.execution(n).attempt_count for n in (1, 2)] == [1, 0]
    assert story.due() == ["dsp-1", "dsp-2"]


@pytest.mark.scenario(128)
def test_the_dead_owners_fence_is_void_before_its_barrier_and_late_behind_it(story: Story) -> None:
    left_behind(story)
    assert story.ports.dispatches.settle_dead_owners(NEW) == 4
    dispatches = story.ports.dispatches
    assert dispatches.start(start_of(2)) is DispatchRefusal.FENCE_REJECTED
    assert dispatches.complete(complete_of(1, 2))[0] is DispatchRefusal.FENCE_REJECTED
    assert story.control(1).status is ControlStatus.ARMED
    changed(dispatches.complete(complete_of(1, 3))[0])


def test_a_damaged_row_stays_and_keeps_nobody_waiting(
    story: Story, repositories: Repositories
) -> None:
    story.claimed(1, 2, 3)
    repositories.damage("apr-2")
    assert story.ports.dispatches.settle_dead_owners(NEW) == 2
    assert story.due() == ["dsp-1", "dsp-3"]
    assert [story.execution(n).attempt_count for n in (1, 3)] == [1, 0]


def test_what_waits_for_a_person_is_left_to_its_own_lease(story: Story) -> None:
    """Nothing automatic follows from its end, so nobody has to read the whole queue for it."""
    scanned(story)
    changed(story.ports.recoveries.observe(observe_of(1, evidence=UNSUPPORTED)))
    stored = changed(story.ports.dispatches.renew(renew_of(1, 3)))
    assert not story.ports.overview.work_waits(NEW)
    assert story.ports.dispatches.settle_dead_owners(NEW) == 0
    assert story.record() == stored
    assert by_person(story, execution_version=4) is RecoveryRefusal.EXECUTION_ACTIVE
    story.clocks.advance(LEASE_MS)
    changed(by_person(story, execution_version=4))
