"""Complete: the first verdict wins, whenever it comes; the next barrier may ride along."""

from typing import Any

import pytest

from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from tests.contract.adapters import Repositories
from tests.contract.story import (
    Story,
    changed,
    claim_of,
    complete_of,
    digest_of,
    expire_of,
    fence_of,
    renew_of,
    replayed,
    start_of,
)
from tests.support.builders import BOT, LEASE_MS
from tests.support.clock import WALL_MS

ENDS = {
    Outcome.SUCCEEDED: ExecutionStatus.SUCCEEDED,
    Outcome.FAILED: ExecutionStatus.FAILED,
    Outcome.INDETERMINATE: ExecutionStatus.BLOCKED,
}


@pytest.mark.adr("0033", "5.7")
@pytest.mark.scenario(106, 107, 108, 109)
@pytest.mark.parametrize(("outcome", "status"), ENDS.items())
def test_a_verdict_ends_execution_and_control_together(
    story: Story, outcome: Outcome, status: ExecutionStatus
) -> None:
    """W1: an answer `indeterminate` completes as blocked."""
    story.started()
    lease = story.execution().lease
    assert lease is not None
    story.clocks.advance(9)
    stored = changed(story.ports.dispatches.complete(complete_of(1, outcome=outcome))[0])
    ended, control = story.execution(), story.control()
    assert (ended.status, ended.version, ended.lease) == (status, 3, None)
    assert (ended.result_mutation_id, ended.last_result_code) == ("done-1", "exit_0")
    assert ended.completed_at_ms == ended.updated_at_ms == WALL_MS + 9
    assert (control.status, control.version) == (ControlStatus.RESOLVED, 1)
    assert (control.execution_version, control.resolution_mutation_id) == (3, "done-1")
    assert control.next_scan_tick is None
    assert story.record() == stored
    assert (story.due(), story.waits_for_recovery()) == ([], [])


@pytest.mark.adr("0033", "1.5")
@pytest.mark.adr("0033", "6.2")
@pytest.mark.scenario(106, 107, 108)
@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_late_verdict_counts_and_replays(story: Story, outcome: Outcome) -> None:
    story.started()
    story.clocks.advance(2 * LEASE_MS)
    stored = changed(story.ports.dispatches.complete(complete_of(1, outcome=outcome))[0])
    story.clocks.advance(1)
    before = story.repositories.snapshot()
    again = complete_of(1, outcome=outcome)
    assert replayed(story.ports.dispatches.complete(again)[0]) == stored
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(108)
@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"outcome": Outcome.FAILED}, DispatchRefusal.MUTATION_DRIFT),
        ({"result_code": "exit_1"}, DispatchRefusal.MUTATION_DRIFT),
        ({"mutation_id": "done-2"}, DispatchRefusal.ALREADY_TERMINAL),
    ],
)
def test_the_first_verdict_stands(
    story: Story, change: dict[str, Any], refusal: DispatchRefusal
) -> None:
    stored = story.completed()
    assert story.ports.dispatches.complete(complete_of(1, **change))[0] is refusal
    assert story.record() == stored


@pytest.mark.scenario(105)
@pytest.mark.parametrize("change", [{"owner": "x"}, {"token": "x"}, {"version": 1}, {"version": 3}])
def test_only_the_fence_speaks(story: Story, change: dict[str, Any]) -> None:
    stored = story.started()
    wrong = complete_of(1, fence=fence_of(1, 2)._replace(**change))
    assert story.ports.dispatches.complete(wrong)[0] is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored


def test_what_did_not_start_has_no_verdict(story: Story) -> None:
    story.consumed(1)
    story.claimed(2)
    for n, version in ((1, 0), (2, 1)):
        answer = story.ports.dispatches.complete(complete_of(n, version))[0]
        assert answer is DispatchRefusal.FENCE_REJECTED
    missing = story.ports.dispatches.complete(complete_of(9))[0]
    assert missing is DispatchRefusal.NOT_FOUND


def test_a_renewed_execution_is_completed_under_its_new_fence(story: Story) -> None:
    story.started()
    changed(story.ports.dispatches.renew(renew_of(1, 2)))
    stale = story.ports.dispatches.complete(complete_of(1, 2))[0]
    assert stale is DispatchRefusal.FENCE_REJECTED
    changed(story.ports.dispatches.complete(complete_of(1, 3))[0])


def started_and_claimed(story: Story) -> None:
    story.claimed(1, 2)
    changed(story.ports.dispatches.start(start_of(1)))


def test_a_verdict_and_the_next_barrier_share_one_commit(
    story: Story, repositories: Repositories
) -> None:
    started_and_claimed(story)
    commits = repositories.commits()
    done, begun = story.ports.dispatches.complete(complete_of(1), start_of(2))
    assert repositories.commits() == commits + 1
    assert changed(done) == story.record(1)
    assert changed(begun) == story.record(2)
    assert (story.status(1), story.status(2)) == (
        ExecutionStatus.SUCCEEDED,
        ExecutionStatus.EXECUTING,
    )
    again = story.ports.dispatches.complete(complete_of(1), start_of(2))
    assert [replayed(each) for each in again] == [story.record(1), story.record(2)]
    assert repositories.commits() == commits + 1


@pytest.mark.adr("0005", "6")
@pytest.mark.parametrize(
    ("start", "refusal"),
    [
        (start_of(2, approval_request_id="apr-1"), DispatchRefusal.BINDING_CONFLICT),
        (start_of(2, action_digest=digest_of(1)), DispatchRefusal.BINDING_CONFLICT),
        (start_of(2, 7), DispatchRefusal.FENCE_REJECTED),
        (start_of(3), DispatchRefusal.NOT_FOUND),
    ],
)
def test_a_refused_barrier_rolls_back_only_itself(
    story: Story, start: Any, refusal: DispatchRefusal
) -> None:
    started_and_claimed(story)
    waiting = story.record(2)
    done, begun = story.ports.dispatches.complete(complete_of(1), start)
    assert changed(done) == story.record(1)
    assert begun is refusal
    assert story.record(2) == waiting
    changed(story.ports.dispatches.start(start_of(2)))


def test_a_barrier_that_blocks_is_stored_with_the_verdict(story: Story) -> None:
    started_and_claimed(story)
    story.revoke(BOT)
    done, begun = story.ports.dispatches.complete(complete_of(1), start_of(2))
    changed(done)
    changed(begun)
    assert (story.status(1), story.status(2)) == (
        ExecutionStatus.SUCCEEDED,
        ExecutionStatus.BLOCKED,
    )


def test_a_refused_verdict_does_not_keep_the_next_one_waiting(story: Story) -> None:
    started_and_claimed(story)
    done, begun = story.ports.dispatches.complete(complete_of(1, 9), start_of(2))
    assert done is DispatchRefusal.FENCE_REJECTED
    changed(begun)
    assert story.status(1) is ExecutionStatus.EXECUTING


def test_a_verdict_beside_a_damaged_neighbour_is_kept(
    story: Story, repositories: Repositories
) -> None:
    started_and_claimed(story)
    repositories.damage("apr-2")
    done, begun = story.ports.dispatches.complete(complete_of(1), start_of(2))
    changed(done)
    assert begun is DispatchRefusal.FENCE_REJECTED
    assert story.status(1) is ExecutionStatus.SUCCEEDED


def test_a_killed_owner_leaves_what_only_recovery_ends(story: Story) -> None:
    story.started()
    story.clocks.reboot()
    assert story.due() == []
    assert story.waits_for_recovery() == ["dsp-1"]
    answers, _ = story.ports.dispatches.claim_page((claim_of(1, owner="owner-2"),))
    assert answers[0] is DispatchRefusal.RECOVERY_REQUIRED


def test_a_verdict_after_the_hand_over_names_the_new_fence(story: Story) -> None:
    story.started()
    changed(story.ports.dispatches.expire(expire_of(1)))
    stale = story.ports.dispatches.complete(complete_of(1, 2))[0]
    assert stale is DispatchRefusal.FENCE_REJECTED
    changed(story.ports.dispatches.complete(complete_of(1, 3))[0])
    assert story.waits_for_recovery() == []
