"""Bad clocks: an untrusted wall gives no new authority; believing it again costs a purge."""

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.dispatch import START_DEADLINE_PASSED
from qinglong_edge.domain.identity import Assurance
from qinglong_edge.domain.machines import ApprovalState, ExecutionStatus
from qinglong_edge.domain.policy import Role, Subject, SubjectType
from qinglong_edge.domain.tick import Trust
from qinglong_edge.ports.identities import AddIdentity, OpenSession
from qinglong_edge.ports.repositories import Listing, Queue
from tests.contract.adapters import Capability, Repositories
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    complete_of,
    consume_of,
    decide_of,
    propose_of,
    start_of,
)
from tests.support.builders import EDGE, HOUR_MS, LEASE_MS, PROJECT
from tests.support.clock import WALL_MS
from tests.support.store import CHEAP_HASH

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
JUMPS = pytest.mark.parametrize("jump_ms", [-HOUR_MS, DAY_MS + 60_000, YEAR_MS])


def trust(story: Story) -> Trust:
    return story.ports.overview.instant().now.trust


def seen_long_enough(story: Story) -> None:
    """Let something see the bad clock, then let it stay stable for ten minutes."""
    assert story.ports.overview.work_waits("owner-1")
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    story.clocks.advance(limits.CLOCK_SETTLE_MS)


@pytest.mark.adr("0002", "3")
@JUMPS
def test_an_untrusted_clock_gives_no_new_authority(story: Story, jump_ms: int) -> None:
    story.proposed(1)
    story.clocks.step_wall(jump_ms)
    assert trust(story) is Trust.UNTRUSTED
    approvals = story.ports.approvals
    assert approvals.propose(propose_of(2)) is ApprovalRefusal.CLOCK_UNTRUSTED
    assert approvals.decide(decide_of(1)) is ApprovalRefusal.CLOCK_UNTRUSTED
    both = approvals.approve_and_consume(decide_of(1), consume_of(1))
    assert both is ApprovalRefusal.CLOCK_UNTRUSTED
    assert story.approval().state is ApprovalState.PENDING


def test_completion_and_cancellation_go_on_under_an_untrusted_clock(story: Story) -> None:
    story.started(1)
    story.consumed(2)
    story.proposed(3)
    story.clocks.step_wall(-HOUR_MS)
    changed(story.ports.dispatches.complete(complete_of(1))[0])
    changed(story.ports.approvals.cancel(cancel_of(2)))
    changed(story.ports.approvals.decide(decide_of(3, approved=False)))


@pytest.mark.adr("0002", "2")
@pytest.mark.parametrize(
    ("jump_ms", "refusal"),
    [
        (-limits.CLOCK_BACK_MS_MAX + 60_000, ApprovalRefusal.EXPIRED),
        (-HOUR_MS, ApprovalRefusal.CLOCK_UNTRUSTED),
        (-YEAR_MS, ApprovalRefusal.CLOCK_UNTRUSTED),
    ],
)
def test_a_clock_that_runs_backwards_revives_nothing(
    story: Story, jump_ms: int, refusal: ApprovalRefusal
) -> None:
    story.approved()
    story.clocks.advance(HOUR_MS)
    story.consumed(2)  # a commit that carries the mark
    story.clocks.step_wall(jump_ms)
    assert story.ports.approvals.consume(consume_of(1)) is refusal
    assert story.approval().state is ApprovalState.APPROVED
    assert story.ports.approvals.page(Listing(Queue.APPROVED, None, 9)).items == []


@pytest.mark.adr("0002", "1")
@JUMPS
def test_a_wall_jump_moves_no_lease(story: Story, jump_ms: int) -> None:
    story.claimed(1)
    story.started(2)
    story.clocks.step_wall(jump_ms)
    assert story.due() == []
    assert story.waits_for_recovery() == []
    story.clocks.advance(LEASE_MS)
    assert story.due() == ["dsp-1"]
    assert story.waits_for_recovery() == ["dsp-2"]


@pytest.mark.adr("0002", "1")
def test_a_reboot_ends_every_lease_and_delay_whatever_the_wall_says(story: Story) -> None:
    story.claimed(1)
    story.started(2)
    story.clocks.reboot(wall_ms=0)
    assert story.due() == ["dsp-1"]
    assert story.waits_for_recovery() == ["dsp-2"]


def test_a_small_step_is_believed(story: Story) -> None:
    story.proposed()
    story.clocks.step_wall(-limits.CLOCK_BACK_MS_MAX + 1_000)
    assert trust(story) is Trust.TRUSTED
    changed(story.ports.approvals.decide(decide_of(1)))


def test_the_first_sighting_is_stored_once(story: Story, repositories: Repositories) -> None:
    story.clocks.step_wall(-HOUR_MS)
    assert story.ports.overview.work_waits("owner-1")
    commits = repositories.commits()
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    assert repositories.commits() == commits + 1
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    assert repositories.commits() == commits + 1
    assert not story.ports.overview.work_waits("owner-1")


def test_a_clock_that_comes_back_costs_nothing(story: Story) -> None:
    stored = story.proposed()
    story.clocks.step_wall(-HOUR_MS)
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    story.clocks.advance(1_000)
    story.clocks.step_wall(HOUR_MS)
    assert trust(story) is Trust.TRUSTED
    assert story.record() == stored
    changed(story.ports.approvals.decide(decide_of(1)))


@pytest.mark.adr("0002", "4")
@pytest.mark.parametrize("jump_ms", [-HOUR_MS, YEAR_MS])
def test_a_settled_clock_closes_what_it_could_revive(
    story: Story, repositories: Repositories, jump_ms: int
) -> None:
    story.proposed(1)
    story.approved(2)
    story.consumed(3)
    story.claimed(4)
    story.started(5)
    running = story.record(5)
    story.clocks.step_wall(jump_ms)
    seen_long_enough(story)
    assert story.ports.overview.work_waits("owner-1")
    commits = repositories.commits()
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    assert repositories.commits() == commits + 1
    assert [story.approval(n).state for n in (1, 2)] == [ApprovalState.EXPIRED] * 2
    assert [story.approval(n).version for n in (1, 2)] == [2, 3]
    for n in (3, 4):
        ended = story.execution(n)
        assert ended.status is ExecutionStatus.BLOCKED
        assert ended.last_result_code == START_DEADLINE_PASSED
    assert story.record(5) == running
    assert trust(story) is Trust.TRUSTED
    assert story.ports.overview.instant().now.at_ms == story.clocks.wall_ms
    changed(story.ports.approvals.propose(propose_of(6)))
    changed(story.ports.dispatches.complete(complete_of(5))[0])


def test_a_settled_clock_settles_before_the_mutation_that_found_it(story: Story) -> None:
    story.claimed(1)
    story.clocks.step_wall(-HOUR_MS)
    seen_long_enough(story)
    story.ports.dispatches.start(start_of(1))
    ended = story.execution(1)
    assert (ended.status, ended.started_at_ms) == (ExecutionStatus.BLOCKED, None)
    assert ended.last_result_code == START_DEADLINE_PASSED


@pytest.mark.adr("0002", "4")
def test_one_moment_before_the_ten_minutes_nothing_is_settled(story: Story) -> None:
    stored = story.proposed()
    story.clocks.step_wall(YEAR_MS)
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    story.clocks.advance(limits.CLOCK_SETTLE_MS - 1)
    assert trust(story) is Trust.UNTRUSTED
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    assert story.record() == stored


def test_a_damaged_row_does_not_stop_the_settlement(
    story: Story, repositories: Repositories
) -> None:
    story.proposed(1)
    story.proposed(2)
    repositories.damage("apr-1")
    story.clocks.step_wall(YEAR_MS)
    seen_long_enough(story)
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    assert story.approval(2).state is ApprovalState.EXPIRED


@pytest.mark.needs(Capability.IDENTITIES)
def test_no_session_survives_a_settlement(story: Story) -> None:
    identities = story.ports.identities
    assert identities is not None
    user = Subject(SubjectType.USER, "eve")
    add = AddIdentity(PROJECT, user, Role.VIEWER, CHEAP_HASH, None, "add-eve", EDGE)
    assert isinstance(identities.add(add), Changed)
    digest = "d" * 64
    story.clocks.step_wall(YEAR_MS)
    seen_long_enough(story)
    opening = OpenSession("ses-1", digest, user, Assurance.SINGLE_FACTOR, HOUR_MS, 1)
    assert isinstance(identities.open_session(opening), Changed)
    assert identities.session(digest) is not None
    story.clocks.step_wall(-YEAR_MS)
    seen_long_enough(story)
    assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
    story.clocks.step_wall(YEAR_MS)
    assert identities.session(digest) is None


def test_a_new_boot_is_stored_with_its_first_write_only(story: Story) -> None:
    story.clocks.reboot()
    before = story.repositories.snapshot()
    assert story.ports.overview.instant().now.epoch == 2
    assert story.repositories.snapshot() == before
    story.proposed(1)
    assert story.ports.overview.instant().boots[0].epoch == 2
    assert story.ports.overview.instant().now.at_ms >= WALL_MS
