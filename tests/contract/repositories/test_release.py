"""Let go before the barrier: release, put back, cancel."""

from typing import Any

import pytest

from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.dispatch import CANCELLED, NOT_REACHED, DispatchRefusal
from qinglong_edge.domain.machines import ApprovalState, ExecutionStatus
from qinglong_edge.domain.tick import tick_of
from tests.contract.adapters import Repositories
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    claim_of,
    complete_of,
    consume_of,
    decide_of,
    fence_of,
    put_back_of,
    release_of,
    replayed,
    start_of,
)
from tests.support.builders import ANA, BOB, HOUR_MS, LEASE_MS
from tests.support.clock import BOOT_MS, WALL_MS

RIVAL: dict[str, Any] = {"owner": "owner-2", "token": "token-b"}


@pytest.mark.scenario(100)
def test_a_release_waits_for_its_retry(story: Story) -> None:
    story.claimed()
    story.clocks.advance(10)
    stored = changed(story.ports.dispatches.release(release_of(1)))
    waits = story.execution()
    assert (waits.status, waits.version, waits.attempt_count) == (ExecutionStatus.RETRY_WAIT, 2, 1)
    assert (waits.eligible_tick, waits.lease) == (tick_of(1, BOOT_MS + 1_010), None)
    assert (waits.result_mutation_id, waits.last_result_code) == ("rel-1-1", "busy")
    story.clocks.advance(5)
    before = story.repositories.snapshot()
    assert replayed(story.ports.dispatches.release(release_of(1))) == stored
    assert story.repositories.snapshot() == before


def test_a_repeated_release_with_another_code_is_drift(story: Story) -> None:
    story.claimed()
    stored = changed(story.ports.dispatches.release(release_of(1)))
    drift = story.ports.dispatches.release(release_of(1, result_code="other"))
    assert drift is DispatchRefusal.MUTATION_DRIFT
    other = story.ports.dispatches.release(release_of(1, mutation_id="rel-9"))
    assert other is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored


@pytest.mark.scenario(101)
def test_the_last_attempt_blocks_whatever_retry_was_asked(story: Story) -> None:
    story.consumed()
    for attempt in range(1, 6):
        story.claimed_again(1)
        version = story.execution().version
        stored = changed(story.ports.dispatches.release(release_of(1, version)))
        story.clocks.advance(1_000)
        expected = ExecutionStatus.BLOCKED if attempt == 5 else ExecutionStatus.RETRY_WAIT
        assert story.status() is expected
    ended = story.execution()
    assert (ended.attempt_count, ended.last_result_code) == (5, "busy")
    assert ended.completed_at_ms == WALL_MS + 4_000
    assert replayed(story.ports.dispatches.release(release_of(1, ended.version - 1))) == stored
    assert story.due() == []


@pytest.mark.scenario(102)
def test_a_release_without_a_retry_blocks_at_once(story: Story) -> None:
    story.claimed()
    stored = changed(story.ports.dispatches.release(release_of(1, retry_after_ms=None)))
    assert story.status() is ExecutionStatus.BLOCKED
    again = release_of(1, retry_after_ms=None)
    assert replayed(story.ports.dispatches.release(again)) == stored


@pytest.mark.adr("0005", "9")
def test_what_was_not_there_gives_the_attempt_back(story: Story) -> None:
    """W10: a missing handler or plan does not eat the budget, however often."""
    story.consumed()
    for _ in range(12):
        story.claimed_again(1)
        version = story.execution().version
        missing = release_of(1, version, result_code="handler_unavailable", spend=False)
        changed(story.ports.dispatches.release(missing))
        assert story.execution().attempt_count == 0
        story.clocks.advance(1_000)
    assert story.due() == ["dsp-1"]


@pytest.mark.scenario(104)
def test_an_expired_lease_is_released_while_nobody_replaced_it(story: Story) -> None:
    story.claimed(1, 2)
    story.clocks.advance(LEASE_MS)
    changed(story.ports.dispatches.release(release_of(1)))
    story.claimed_again(2, **RIVAL)
    assert story.ports.dispatches.release(release_of(2)) is DispatchRefusal.FENCE_REJECTED


@pytest.mark.parametrize("change", [{"owner": "x"}, {"token": "x"}, {"version": 2}])
def test_only_the_holder_releases(story: Story, change: dict[str, Any]) -> None:
    stored = story.claimed()[0]
    wrong = release_of(1, fence=fence_of(1, 1)._replace(**change))
    assert story.ports.dispatches.release(wrong) is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored


@pytest.mark.scenario(103)
def test_what_started_or_ended_is_not_released(story: Story) -> None:
    story.started(1)
    story.completed(2)
    dispatches = story.ports.dispatches
    assert dispatches.release(release_of(1)) is DispatchRefusal.ALREADY_STARTED
    assert dispatches.release(release_of(2, 3)) is DispatchRefusal.FENCE_REJECTED
    assert dispatches.release(release_of(9)) is DispatchRefusal.NOT_FOUND


@pytest.mark.adr("0005", "5")
def test_an_unreached_page_is_put_back_in_one_commit(
    story: Story, repositories: Repositories
) -> None:
    story.claimed(1, 2, 3)
    commits = repositories.commits()
    back = (put_back_of(1), put_back_of(2), put_back_of(3))
    stored = [changed(answer) for answer in story.ports.dispatches.put_back(back)]
    assert repositories.commits() == commits + 1
    for n in (1, 2, 3):
        waits = story.execution(n)
        assert (waits.status, waits.attempt_count) == (ExecutionStatus.RETRY_WAIT, 0)
        assert (waits.version, waits.last_result_code) == (2, NOT_REACHED)
    assert story.due() == ["dsp-1", "dsp-2", "dsp-3"]
    assert [replayed(each) for each in story.ports.dispatches.put_back(back)] == stored
    assert repositories.commits() == commits + 1


def test_a_put_back_item_has_its_whole_budget(story: Story) -> None:
    story.claimed()
    changed(story.ports.dispatches.put_back((put_back_of(1),))[0])
    again = changed(story.ports.dispatches.claim_page((claim_of(1),))[0][0])
    assert again.progress is not None
    assert again.progress.execution.attempt_count == 1


def test_a_page_put_back_answers_item_by_item(story: Story) -> None:
    story.claimed(1, 2)
    story.started(3)
    back = (put_back_of(1, 9), put_back_of(2), put_back_of(3, 2), put_back_of(4))
    answers = story.ports.dispatches.put_back(back)
    refusal = DispatchRefusal
    assert answers[0] is refusal.FENCE_REJECTED
    changed(answers[1])
    assert answers[2:] == (refusal.FENCE_REJECTED, refusal.NOT_FOUND)
    assert story.ports.dispatches.put_back(()) == ()


def waiting(story: Story) -> None:
    story.claimed()
    changed(story.ports.dispatches.release(release_of(1)))


def expired_lease(story: Story) -> None:
    story.claimed()
    story.clocks.advance(LEASE_MS)


@pytest.mark.parametrize("reach", [Story.consumed, Story.claimed, waiting, expired_lease])
def test_a_dispatch_is_cancelled_in_every_state_before_its_start(story: Story, reach: Any) -> None:
    """W20: a holder's start is refused afterwards."""
    reach(story)
    version = story.execution().version
    stored = changed(story.ports.approvals.cancel(cancel_of(1)))
    ended = story.execution()
    assert (ended.status, ended.version) == (ExecutionStatus.BLOCKED, version + 1)
    assert (ended.result_mutation_id, ended.last_result_code) == ("can-1", CANCELLED)
    assert (ended.lease, ended.eligible_tick) == (None, None)
    assert stored.approval.cancellation is not None
    assert stored.approval.cancellation.cancelled_by == ANA
    assert stored.approval.state is ApprovalState.CONSUMED
    dispatches = story.ports.dispatches
    assert dispatches.start(start_of(1, version)) is DispatchRefusal.FENCE_REJECTED
    assert dispatches.release(release_of(1, version + 1)) is DispatchRefusal.FENCE_REJECTED
    assert dispatches.complete(complete_of(1, version))[0] is DispatchRefusal.ALREADY_TERMINAL
    assert story.due() == []
    assert replayed(story.ports.approvals.cancel(cancel_of(1))) == stored
    by_dispatch = cancel_of(1, approval_request_id="dsp-1")
    assert replayed(story.ports.approvals.cancel(by_dispatch)) == stored
    assert story.record() == stored


@pytest.mark.parametrize("taken", ["rel-1-1", "put_back:1"])
def test_a_recorded_cancellation_always_blocks(story: Story, taken: str) -> None:
    """Even where its id is that of an earlier release: nothing cancelled is ever due."""
    story.claimed()
    if taken == "put_back:1":
        changed(story.ports.dispatches.put_back((put_back_of(1),))[0])
    else:
        changed(story.ports.dispatches.release(release_of(1)))
    story.ports.approvals.cancel(cancel_of(1, cancel_id=taken))
    recorded = story.approval().cancellation is not None
    assert recorded == (story.status() is ExecutionStatus.BLOCKED)


@pytest.mark.parametrize(("approved", "version"), [(False, 2), (True, 3)])
def test_an_open_request_is_withdrawn(story: Story, approved: bool, version: int) -> None:
    if approved:
        story.approved()
    else:
        story.proposed()
    stored = changed(story.ports.approvals.cancel(cancel_of(1)))
    assert (stored.approval.state, stored.approval.version) == (ApprovalState.CANCELLED, version)
    assert replayed(story.ports.approvals.cancel(cancel_of(1))) == stored
    late = story.ports.approvals.decide(decide_of(1, decision_id="dec-9"))
    assert late is ApprovalRefusal.VERSION_CONFLICT
    assert story.record() == stored


def test_a_second_cancellation_is_a_conflict(story: Story) -> None:
    story.consumed(1)
    story.proposed(2)
    for n in (1, 2):
        stored = changed(story.ports.approvals.cancel(cancel_of(n)))
        other = cancel_of(n, cancel_id=f"can-{n}-b")
        assert story.ports.approvals.cancel(other) is ApprovalRefusal.STATE_CONFLICT
        theirs = cancel_of(n, cancelled_by=BOB)
        assert story.ports.approvals.cancel(theirs) is ApprovalRefusal.MUTATION_DRIFT
        assert story.record(n) == stored


@pytest.mark.parametrize("taken", ["apr-2", "dec-2", "con-2", "dsp-2"])
def test_a_used_cancel_id_is_drift(story: Story, taken: str) -> None:
    story.consumed(2)
    stored = story.consumed(1)
    answer = story.ports.approvals.cancel(cancel_of(1, cancel_id=taken))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.record(1) == stored
    assert story.due() == ["dsp-2", "dsp-1"]


def test_what_is_closed_is_not_cancelled(story: Story) -> None:
    story.completed(1)
    story.started(2)
    story.proposed(3)
    changed(story.ports.approvals.decide(decide_of(3, approved=False)))
    approvals = story.ports.approvals
    before = story.repositories.snapshot()
    assert approvals.cancel(cancel_of(1)) is DispatchRefusal.ALREADY_TERMINAL
    assert approvals.cancel(cancel_of(2)) is DispatchRefusal.ALREADY_STARTED
    assert approvals.cancel(cancel_of(3)) is ApprovalRefusal.STATE_CONFLICT
    assert story.repositories.snapshot() == before


def test_an_expired_request_is_not_cancelled(story: Story) -> None:
    story.proposed()
    story.clocks.advance(HOUR_MS)
    assert story.ports.approvals.cancel(cancel_of(1)) is ApprovalRefusal.EXPIRED
    assert story.ports.approvals.consume(consume_of(1)) is ApprovalRefusal.EXPIRED
