"""A person's word for the clock: what waiting ten minutes would cost, at once, in one commit."""

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.dispatch import START_DEADLINE_PASSED
from qinglong_edge.domain.machines import ApprovalState, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence
from qinglong_edge.domain.tick import ClockRefusal, Trust
from qinglong_edge.ports.repositories import Settlement, TrustClock
from tests.contract.adapters import Repositories
from tests.contract.story import Story, changed, propose_of
from tests.support.builders import ANA, FENCE, HOUR_MS, PROJECT

YEAR_MS = 365 * 86_400_000
EVENT = TrustClock(PROJECT, ANA, FENCE)


def settled(story: Story) -> Settlement:
    answer = story.ports.clock.trust(EVENT)
    assert isinstance(answer, Settlement)
    return answer


@pytest.mark.adr("0002", "4")
@pytest.mark.parametrize("jump_ms", [-HOUR_MS, YEAR_MS])
@pytest.mark.parametrize("seen", [False, True])
def test_the_clock_is_believed_at_once_and_everything_open_ends(
    story: Story, repositories: Repositories, jump_ms: int, *, seen: bool
) -> None:
    story.proposed(1)
    story.approved(2)
    story.consumed(3)
    story.claimed(4)
    story.started(5)
    before = repositories.commits()
    story.clocks.step_wall(jump_ms)
    if seen:
        assert story.ports.dispatches.settle_dead_owners("owner-1") == 0
        before += 1
    answer = settled(story)
    assert repositories.commits() == before + 1
    assert (answer.approvals, answer.dispatches) == (2, 2)
    now = story.ports.overview.instant().now
    assert (now.trust, now.at_ms) == (Trust.TRUSTED, story.clocks.wall_ms)
    for n in (1, 2):
        assert story.approval(n).state is ApprovalState.EXPIRED
    for n in (3, 4):
        execution = story.execution(n)
        assert execution.status is ExecutionStatus.BLOCKED
        assert execution.last_result_code == START_DEADLINE_PASSED
    assert story.execution(5).status is ExecutionStatus.EXECUTING
    changed(story.ports.approvals.propose(propose_of(6)))


def test_an_empty_store_remembers_that_its_clock_is_believed(
    story: Story, repositories: Repositories
) -> None:
    story.clocks.step_wall(YEAR_MS)
    assert settled(story)[:3] == (0, 0, 0)
    other = repositories.second_session()
    assert other.overview.instant().now.trust is Trust.TRUSTED


def test_a_new_boot_with_a_bad_clock_is_believed_too(story: Story) -> None:
    story.clocks.reboot(wall_ms=story.clocks.wall_ms - HOUR_MS)
    assert story.ports.overview.instant().now.trust is Trust.UNTRUSTED
    settled(story)
    now = story.ports.overview.instant().now
    assert (now.trust, now.epoch, now.at_ms) == (Trust.TRUSTED, 2, story.clocks.wall_ms)


@pytest.mark.adr("0002", "5")
@pytest.mark.parametrize(
    ("jump_ms", "refusal"),
    [(0, ClockRefusal.TRUSTED_ALREADY), (-YEAR_MS, ClockRefusal.CERTAINLY_WRONG)],
)
def test_what_a_word_does_not_change(
    story: Story, repositories: Repositories, jump_ms: int, refusal: ClockRefusal
) -> None:
    story.proposed(1)
    story.clocks.step_wall(jump_ms)
    before, commits = repositories.snapshot(), repositories.commits()
    assert story.ports.clock.trust(EVENT) is refusal
    assert (repositories.snapshot(), repositories.commits()) == (before, commits)


def test_the_clock_is_not_believed_under_a_fence_that_changed(
    story: Story, repositories: Repositories
) -> None:
    story.clocks.step_wall(YEAR_MS)
    before = repositories.snapshot()
    stale = EVENT._replace(fence=PolicyFence(1, 9))
    assert story.ports.clock.trust(stale) is ClockRefusal.FENCE_CHANGED
    assert repositories.snapshot() == before


def test_a_clock_about_to_be_believed_is_believed_once(
    story: Story, repositories: Repositories
) -> None:
    story.clocks.step_wall(YEAR_MS)
    story.ports.dispatches.settle_dead_owners("owner-1")
    story.clocks.advance(limits.CLOCK_SETTLE_MS)
    assert story.ports.overview.instant().now.trust is Trust.SETTLED
    settled(story)
    assert story.ports.clock.trust(EVENT) is ClockRefusal.TRUSTED_ALREADY
