"""Barrier, effect and verdict in one commit: all of it or nothing, and once."""

import pytest

from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.effect import Effect, PublishTask
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.receipt import Found
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.ports.handlers import HandlerAnswer
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import (
    claimed_effect,
    done_effect,
    judged,
    left,
    publish_of,
    run_of,
    start_effect,
    started_effect,
    task_of,
    whole_of,
)
from tests.contract.story import (
    Story,
    changed,
    claim_of,
    complete_of,
    renew_of,
    replayed,
)
from tests.support.builders import BOT, HOUR_MS, LEASE_MS

PUBLISHED = HandlerAnswer(Outcome.SUCCEEDED, "task_published")
CREATED = HandlerAnswer(Outcome.SUCCEEDED, "approved_run_created")
EFFECTS = pytest.mark.parametrize(
    ("effect", "answer"),
    [(publish_of(2), PUBLISHED), (run_of(2, of=1), CREATED)],
    ids=["publish", "run"],
)
NOTHING = Found(None, None, None, None, stray=False)


@pytest.mark.adr("0033", "4.3")
@EFFECTS
def test_barrier_effect_and_verdict_are_one_commit(
    story: Story, repositories: Repositories, effect: Effect, answer: HandlerAnswer
) -> None:
    done_effect(story, 1, publish_of(1))
    claimed_effect(story, 2, effect)
    commits = repositories.commits()
    stored = changed(story.ports.dispatches.start(whole_of(2, effect)))
    assert repositories.commits() == commits + 1
    assert stored == story.record(2)
    ended = story.execution(2)
    assert (ended.status, ended.version) == (ExecutionStatus.SUCCEEDED, 3)
    assert (ended.result_mutation_id, ended.last_result_code) == ("done-2", answer.result_code)
    before = repositories.snapshot()
    assert replayed(story.ports.dispatches.start(whole_of(2, effect))) == stored
    assert (repositories.snapshot(), repositories.commits()) == (before, commits + 1)
    story.clocks.advance(HOUR_MS)
    assert (story.due(), story.waits_for_recovery()) == ([], [])


@EFFECTS
def test_a_whole_rides_along_with_a_claim_and_with_a_verdict(
    story: Story, repositories: Repositories, effect: Effect, answer: HandlerAnswer
) -> None:
    done_effect(story, 1, publish_of(1))
    claimed_effect(story, 2, effect)
    story.started(3)
    commits = repositories.commits()
    both = story.ports.dispatches.complete(complete_of(3), whole_of(2, effect))
    assert [changed(each) for each in both] == [story.record(3), story.record(2)]
    assert story.execution(2).last_result_code == answer.result_code
    story.clocks.advance(1)
    again = PublishTask(task_of(4))
    claims = story.ports.dispatches.claim_page
    claimed_effect(story, 4, again)
    story.clocks.advance(LEASE_MS)
    start = start_effect(4, again, 2)
    _, begun = claims((claim_of(4),), whole_of(4, again, start=start))
    changed(begun)
    assert story.status(4) is ExecutionStatus.SUCCEEDED
    assert repositories.commits() == commits + 5  # propose, approve and a claim stand between


def deadline(story: Story) -> None:
    story.clocks.advance(HOUR_MS)
    changed(story.ports.dispatches.renew(renew_of(1, 1)))


@pytest.mark.parametrize("why", ["deadline", "policy"])
def test_a_barrier_that_blocks_has_no_effect(story: Story, why: str) -> None:
    claimed_effect(story, 1, publish_of(1))
    version = 1
    if why == "deadline":
        deadline(story)
        version = 2
    else:
        story.revoke(BOT)
    start = start_effect(1, publish_of(1), version)
    event = whole_of(1, publish_of(1), start=start)
    stored = changed(story.ports.dispatches.start(event))
    assert story.status() is ExecutionStatus.BLOCKED
    assert (story.ports.tasks.find("task-1"), left(story, 1)) == (None, NOTHING)
    assert replayed(story.ports.dispatches.start(event)) == stored


@pytest.mark.adr("0033", "6.2")
def test_a_whole_is_replayed_only_to_who_means_it(story: Story) -> None:
    done_effect(story, 1, publish_of(1))
    stored = story.record()
    whole, start = whole_of(1, publish_of(1)), start_effect(1, publish_of(1))
    for other in (
        start._replace(approval_request_id="apr-2"),
        start._replace(action_digest="f" * 64),
    ):
        answer = story.ports.dispatches.start(whole._replace(start=other))
        assert answer is DispatchRefusal.BINDING_CONFLICT
    late = story.ports.dispatches.start(whole._replace(mutation_id="done-x"))
    assert late is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored


def test_a_barrier_that_stands_alone_is_finished_whole(story: Story) -> None:
    started_effect(story, 1, publish_of(1))
    changed(story.ports.dispatches.start(whole_of(1, publish_of(1))))
    assert story.status() is ExecutionStatus.SUCCEEDED
    assert judged(story, 1).finding is Finding.VERIFIED_SUCCEEDED
