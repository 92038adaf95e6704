"""Consume: an approval is spent on exactly one dispatch, alone or together with its decision."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.execution import Execution
from qinglong_edge.domain.machines import ApprovalState, ExecutionStatus
from qinglong_edge.domain.policy import Subject, SubjectType
from qinglong_edge.domain.tick import tick_of
from qinglong_edge.ports.repositories import Listing
from tests.contract.adapters import Repositories
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    claim_of,
    consume_of,
    decide_of,
    digest_of,
    replayed,
    start_of,
)
from tests.support.builders import BOB, BOT, EDGE, FENCE, HOUR_MS
from tests.support.clock import BOOT_MS, WALL_MS


@pytest.mark.scenario(55, 56)
def test_a_dispatch_and_its_execution_are_born_with_the_consumption(story: Story) -> None:
    story.approved()
    story.clocks.advance(7)
    stored = changed(story.ports.approvals.consume(consume_of(1)))
    assert (stored.approval.state, stored.approval.version) == (ApprovalState.CONSUMED, 3)
    born = stored.dispatch
    assert born is not None
    assert (born.dispatch_id, born.approval_request_id) == ("dsp-1", "apr-1")
    assert (born.action, born.requested_by, born.consumed_by) == (stored.approval.action, BOT, EDGE)
    assert (born.created_at_ms, born.start_deadline_ms) == (WALL_MS + 7, WALL_MS + HOUR_MS)
    assert born.fence == FENCE
    assert story.execution() == Execution(
        status=ExecutionStatus.PENDING,
        version=0,
        attempt_count=0,
        max_attempts=limits.ATTEMPTS_DEFAULT,
        eligible_tick=tick_of(1, BOOT_MS + 7),
        lease=None,
        started_at_ms=None,
        result_mutation_id=None,
        last_result_code=None,
        completed_at_ms=None,
        created_at_ms=WALL_MS + 7,
        updated_at_ms=WALL_MS + 7,
    )
    assert story.record() == stored
    assert story.ports.approvals.find("dsp-1") == stored
    assert story.due() == ["dsp-1"]


@pytest.mark.scenario(57)
def test_a_repeated_consumption_replays_whatever_became_of_it(story: Story) -> None:
    story.consumed()
    assert replayed(story.ports.approvals.consume(consume_of(1))) == story.record()
    story.claimed_again(1)
    story.clocks.advance(2 * HOUR_MS)
    before = story.repositories.snapshot()
    assert replayed(story.ports.approvals.consume(consume_of(1))) == story.record()
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(57, 59)
@pytest.mark.parametrize(
    "change",
    [
        {"dispatch_id": "dsp-9"},
        {"action_digest": digest_of(2)},
        {"requested_by": BOB},
        {"consumed_by": Subject(SubjectType.WORKER, "w")},
        {"expected_version": 3},
    ],
)
def test_a_used_consumption_id_with_another_meaning_is_drift(
    story: Story, change: dict[str, Any]
) -> None:
    stored = story.consumed()
    before = story.repositories.snapshot()
    answer = story.ports.approvals.consume(consume_of(1, **change))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.record() == stored
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(57, 59)
@pytest.mark.parametrize("change", [{"action_digest": digest_of(2)}, {"requested_by": BOB}])
def test_only_the_approved_action_is_consumed(story: Story, change: dict[str, Any]) -> None:
    stored = story.approved()
    answer = story.ports.approvals.consume(consume_of(1, **change))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.record() == stored


@pytest.mark.scenario(44)
@pytest.mark.parametrize(("ms", "expired"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_an_approval_is_spent_before_its_expiry(story: Story, ms: int, expired: bool) -> None:
    stored = story.approved()
    story.clocks.advance(ms)
    answer = story.ports.approvals.consume(consume_of(1))
    if expired:
        assert answer is ApprovalRefusal.EXPIRED
        assert story.record() == stored
    else:
        changed(answer)


def test_a_pending_request_is_not_spent(story: Story) -> None:
    story.proposed()
    answer = story.ports.approvals.consume(consume_of(1))
    assert answer is ApprovalRefusal.VERSION_CONFLICT
    answer = story.ports.approvals.consume(consume_of(1, expected_version=1))
    assert answer is ApprovalRefusal.STATE_CONFLICT
    assert story.approval().state is ApprovalState.PENDING


@pytest.mark.scenario(60)
def test_two_consumptions_make_one_dispatch(story: Story, repositories: Repositories) -> None:
    story.approved()
    other = repositories.second_session().approvals
    stored = changed(other.consume(consume_of(1, consumption_id="con-b", dispatch_id="dsp-b")))
    loser = story.ports.approvals.consume(consume_of(1))
    assert loser is ApprovalRefusal.VERSION_CONFLICT
    assert story.ports.approvals.find("dsp-1") is None
    assert story.ports.approvals.find("dsp-b") == stored
    assert story.due() == ["dsp-b"]


@pytest.mark.scenario(61)
@pytest.mark.parametrize("taken", ["dsp-1", "con-1", "apr-1", "dec-1"])
def test_a_used_dispatch_id_is_drift_and_the_approval_stays(story: Story, taken: str) -> None:
    story.consumed(1)
    stored = story.approved(2)
    answer = story.ports.approvals.consume(consume_of(2, dispatch_id=taken))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.record(2) == stored
    assert story.due() == ["dsp-1"]
    changed(story.ports.approvals.consume(consume_of(2)))


def test_approve_and_consume_is_one_commit(story: Story, repositories: Repositories) -> None:
    story.proposed()
    commits = repositories.commits()
    stored = changed(story.ports.approvals.approve_and_consume(decide_of(1), consume_of(1)))
    assert repositories.commits() == commits + 1
    assert (stored.approval.state, stored.approval.version) == (ApprovalState.CONSUMED, 3)
    assert stored.approval.decision is not None
    assert story.record() == stored


def test_both_halves_and_each_alone_replay(story: Story) -> None:
    stored = story.consumed()
    approvals = story.ports.approvals
    before = story.repositories.snapshot()
    assert replayed(approvals.approve_and_consume(decide_of(1), consume_of(1))) == stored
    assert replayed(approvals.decide(decide_of(1))) == stored
    assert replayed(approvals.consume(consume_of(1))) == stored
    assert story.repositories.snapshot() == before


def test_a_held_approval_is_spent_by_the_same_decision(story: Story) -> None:
    story.approved()
    stored = changed(story.ports.approvals.approve_and_consume(decide_of(1), consume_of(1)))
    assert stored.approval.state is ApprovalState.CONSUMED


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"dispatch_id": "dsp-9"}, ApprovalRefusal.MUTATION_DRIFT),
        ({"consumption_id": "dec-1"}, ApprovalRefusal.MUTATION_DRIFT),
        ({"action_digest": digest_of(2)}, ApprovalRefusal.MUTATION_DRIFT),
        ({"expected_version": 3}, ApprovalRefusal.VERSION_CONFLICT),
        ({"fence": FENCE._replace(binding_version=2)}, ApprovalRefusal.FENCE_CHANGED),
    ],
)
def test_a_refused_consumption_takes_the_decision_back(
    story: Story, change: dict[str, Any], refusal: ApprovalRefusal
) -> None:
    story.consumed(9)
    stored = story.proposed(1)
    before = story.repositories.snapshot()
    answer = story.ports.approvals.approve_and_consume(decide_of(1), consume_of(1, **change))
    assert answer is refusal
    assert story.record(1) == stored
    assert story.repositories.snapshot() == before
    changed(story.ports.approvals.approve_and_consume(decide_of(1), consume_of(1)))


def test_a_refused_decision_consumes_nothing(story: Story) -> None:
    stored = story.proposed()
    wrong = decide_of(1, decided_by=Subject(SubjectType.AGENT, "x"))
    answer = story.ports.approvals.approve_and_consume(wrong, consume_of(1))
    assert answer is ApprovalRefusal.HUMAN_REQUIRED
    rejected = decide_of(1, approved=False)
    answer = story.ports.approvals.approve_and_consume(rejected, consume_of(1))
    assert answer is ApprovalRefusal.STATE_CONFLICT
    assert story.record() == stored
    assert story.due() == []


@pytest.mark.scenario(224)
def test_a_life_costs_five_commits(story: Story, repositories: Repositories) -> None:
    """Propose, approve with consume, claim with start, complete: four merged, five split."""
    first = repositories.commits()
    story.completed(1)
    assert repositories.commits() - first == 5
    story.consumed(2)
    claims = (claim_of(2),)
    fused = repositories.commits()
    _, started = story.ports.dispatches.claim_page(claims, start_of(2))
    changed(started)
    assert repositories.commits() - fused == 1
    assert len(story.ports.approvals.page(Listing(None, None, 64)).items) == 2


def test_a_cancelled_approval_is_not_spent(story: Story) -> None:
    story.approved()
    changed(story.ports.approvals.cancel(cancel_of(1)))
    answer = story.ports.approvals.consume(consume_of(1, expected_version=3))
    assert answer is ApprovalRefusal.STATE_CONFLICT
    assert story.due() == []
