"""Propose, decide, expiry: what an approval may become before it is spent."""

from typing import Any

import pytest

from qinglong_edge.domain.action import Risk, bind
from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.canonical import canonical_bytes
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.machines import ApprovalState
from qinglong_edge.domain.policy import BindRole, Role, Subject, SubjectType
from qinglong_edge.ports.repositories import Listing, Queue
from tests.contract.adapters import Repositories
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    consume_of,
    decide_of,
    digest_of,
    propose_of,
    replayed,
)
from tests.support.builders import (
    ANA,
    BOB,
    EDGE,
    HOUR_MS,
    PREVIEW,
    PROJECT,
    action_binding,
    shell_plan,
)
from tests.support.clock import WALL_MS

DAY_MS = 86_400_000


@pytest.mark.scenario(26)
def test_a_request_is_stored_pending_with_its_plan(story: Story) -> None:
    stored = story.proposed()
    approval = stored.approval
    assert (approval.state, approval.version, approval.decision) == (ApprovalState.PENDING, 1, None)
    assert (approval.requested_at_ms, approval.expires_at_ms) == (WALL_MS, WALL_MS + HOUR_MS)
    assert (stored.dispatch, stored.progress) == (None, None)
    assert story.record() == stored
    assert story.ports.approvals.plan("apr-1") == (shell_plan("/bin/echo", "1"), PREVIEW)


@pytest.mark.adr("0002", "6")
@pytest.mark.adr("0003", "4")
@pytest.mark.scenario(29)
def test_a_repeated_request_replays_with_the_stored_times(story: Story) -> None:
    stored = story.proposed()
    story.clocks.advance(60_000)
    before = story.repositories.snapshot()
    assert replayed(story.ports.approvals.propose(propose_of(1))) == stored
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(30)
def test_the_request_of_a_consumed_approval_replays_the_consumed_one(story: Story) -> None:
    stored = story.consumed()
    assert replayed(story.ports.approvals.propose(propose_of(1))) == stored


def test_a_new_preview_of_the_same_plan_still_replays_and_changes_nothing(story: Story) -> None:
    stored = story.proposed()
    preview = {**PREVIEW, "warning": "writable by others"}
    other = bind(shell_plan("/bin/echo", "1"), "tool.call:shell.exec", preview)
    again = propose_of(1, action=other, preview=canonical_bytes(preview))
    assert replayed(story.ports.approvals.propose(again)) == stored
    assert story.ports.approvals.plan("apr-1") == (shell_plan("/bin/echo", "1"), PREVIEW)


@pytest.mark.adr("0003", "4")
@pytest.mark.scenario(29, 31)
@pytest.mark.parametrize(
    "change",
    [
        {"risk": Risk.HIGH},
        {"project_id": "another"},
        {"requested_by": Subject(SubjectType.AGENT, "other")},
        {"lifetime_ms": HOUR_MS + 1},
        {"repeats": "dsp-9"},
        {"action": action_binding(shell_plan("/bin/echo", "2"))},
        {"action": action_binding(shell_plan("/bin/echo", "1"), action_ref="other")},
        {"action": action_binding(shell_plan("/bin/echo", "1"), permission="run.start")},
    ],
)
def test_a_used_id_with_another_meaning_is_drift(story: Story, change: dict[str, Any]) -> None:
    story.proposed()
    before = story.repositories.snapshot()
    answer = story.ports.approvals.propose(propose_of(1, **change))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.repositories.snapshot() == before


@pytest.mark.parametrize("taken", ["dec-1", "con-1", "dsp-1"])
def test_an_id_drawn_for_something_else_is_no_request(story: Story, taken: str) -> None:
    story.consumed()
    before = story.repositories.snapshot()
    answer = story.ports.approvals.propose(propose_of(2, approval_request_id=taken))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.repositories.snapshot() == before


@pytest.mark.adr("0003", "3")
@pytest.mark.scenario(34, 35)
@pytest.mark.parametrize(
    "change",
    [
        {"lifetime_ms": 0},
        {"lifetime_ms": -1},
        {"lifetime_ms": DAY_MS + 1},
        {"approval_request_id": "-apr"},
        {"approval_request_id": "apr-1\n"},
        {"action": action_binding(action_digest="A" * 64)},
        {"action": action_binding(preview_digest="a" * 63)},
        {"action": action_binding(action_type="a" * 65)},
        {"action": action_binding(action_ref="a" * 256)},
        {"repeats": ""},
    ],
)
def test_a_malformed_request_is_a_usage_error(story: Story, change: dict[str, Any]) -> None:
    before = story.repositories.snapshot()
    with pytest.raises(UsageError):
        story.ports.approvals.propose(propose_of(1, **change))
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(34)
def test_a_whole_day_is_the_longest_lifetime(story: Story) -> None:
    stored = story.proposed(lifetime_ms=DAY_MS)
    assert stored.approval.expires_at_ms == WALL_MS + DAY_MS


@pytest.mark.scenario(37)
def test_a_person_approves_once(story: Story) -> None:
    story.proposed()
    story.clocks.advance(5)
    stored = changed(story.ports.approvals.decide(decide_of(1)))
    assert (stored.approval.state, stored.approval.version) == (ApprovalState.APPROVED, 2)
    assert stored.approval.decision is not None
    assert stored.approval.decision.decided_by == ANA
    assert stored.approval.decision.decided_at_ms == WALL_MS + 5
    assert story.record() == stored


@pytest.mark.scenario(40)
def test_a_rejected_request_is_never_consumed(story: Story) -> None:
    story.proposed()
    refusal = decide_of(1, approved=False, reason_code="too_risky")
    stored = changed(story.ports.approvals.decide(refusal))
    assert stored.approval.state is ApprovalState.REJECTED
    answer = story.ports.approvals.consume(consume_of(1))
    assert answer is ApprovalRefusal.STATE_CONFLICT
    assert story.record() == stored
    assert replayed(story.ports.approvals.decide(refusal)) == stored


@pytest.mark.scenario(38, 39)
@pytest.mark.parametrize("kind", [each for each in SubjectType if each is not SubjectType.USER])
def test_only_a_user_decides(story: Story, kind: SubjectType) -> None:
    story.proposed()
    answer = story.ports.approvals.decide(decide_of(1, decided_by=Subject(kind, "x")))
    assert answer is ApprovalRefusal.HUMAN_REQUIRED
    assert story.approval().state is ApprovalState.PENDING


@pytest.mark.adr("0006", "3")
@pytest.mark.scenario(41)
def test_nobody_decides_their_own_request(story: Story) -> None:
    story.proposed(requested_by=BOB)
    answer = story.ports.approvals.decide(decide_of(1, decided_by=BOB))
    assert answer is ApprovalRefusal.SELF_DECISION
    assert story.approval().state is ApprovalState.PENDING


@pytest.mark.scenario(42, 43)
@pytest.mark.parametrize(("ms", "expired"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_a_request_expires_at_exactly_its_time(story: Story, ms: int, expired: bool) -> None:
    story.proposed()
    story.clocks.advance(ms)
    pending = Listing(Queue.PENDING, None, 64)
    assert len(story.ports.approvals.page(pending).items) == (0 if expired else 1)
    answer = story.ports.approvals.decide(decide_of(1))
    if expired:
        assert answer is ApprovalRefusal.EXPIRED
        assert story.approval().state is ApprovalState.PENDING
    else:
        changed(answer)


@pytest.mark.scenario(42)
def test_expiry_writes_nothing(story: Story) -> None:
    story.proposed()
    before = story.repositories.snapshot()
    story.clocks.advance(HOUR_MS)
    assert story.ports.approvals.page(Listing(Queue.PENDING, None, 64)).items == []
    assert story.ports.approvals.decide(decide_of(1)) is ApprovalRefusal.EXPIRED
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(45, 46)
@pytest.mark.parametrize(
    "change",
    [
        {"reason_code": "other"},
        {"approved": False},
        {"decided_by": BOB},
        {"expected_version": 2},
        {"action_digest": digest_of(2)},
    ],
)
def test_a_used_decision_id_with_another_meaning_is_drift(
    story: Story, change: dict[str, Any]
) -> None:
    stored = story.approved()
    answer = story.ports.approvals.decide(decide_of(1, **change))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.record() == stored


@pytest.mark.scenario(46)
def test_a_decision_id_of_another_request_is_drift(story: Story) -> None:
    story.approved(1)
    story.proposed(2)
    answer = story.ports.approvals.decide(decide_of(2, decision_id="dec-1"))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    answer = story.ports.approvals.decide(decide_of(3, decision_id="dec-1"))
    assert answer is ApprovalRefusal.MUTATION_DRIFT
    assert story.approval(2).state is ApprovalState.PENDING


@pytest.mark.scenario(45, 47)
@pytest.mark.parametrize("spent", [False, True])
def test_a_repeated_decision_replays_even_past_the_expiry(story: Story, spent: bool) -> None:
    stored = story.consumed() if spent else story.approved()
    story.clocks.advance(2 * HOUR_MS)
    for digest in (None, digest_of(1)):
        again = decide_of(1, action_digest=digest)
        assert replayed(story.ports.approvals.decide(again)) == stored


@pytest.mark.scenario(48)
def test_expiry_is_looked_at_before_version_and_state(story: Story) -> None:
    story.proposed()
    changed(story.ports.approvals.decide(decide_of(1, approved=False)))
    story.clocks.advance(HOUR_MS)
    late = decide_of(1, decision_id="dec-9", expected_version=7)
    assert story.ports.approvals.decide(late) is ApprovalRefusal.EXPIRED


@pytest.mark.scenario(49)
def test_a_decision_fits_version_and_state(story: Story) -> None:
    story.proposed()
    early = decide_of(1, expected_version=2)
    assert story.ports.approvals.decide(early) is ApprovalRefusal.VERSION_CONFLICT
    changed(story.ports.approvals.decide(decide_of(1)))
    late = decide_of(1, decision_id="dec-9", expected_version=2)
    assert story.ports.approvals.decide(late) is ApprovalRefusal.STATE_CONFLICT


def test_a_person_approves_the_digest_that_was_shown(story: Story) -> None:
    story.proposed()
    wrong = decide_of(1, action_digest=digest_of(2))
    assert story.ports.approvals.decide(wrong) is ApprovalRefusal.DIGEST_MISMATCH
    changed(story.ports.approvals.decide(decide_of(1, action_digest=digest_of(1))))


@pytest.mark.scenario(50)
def test_two_decisions_have_one_winner_whose_repeat_replays(
    story: Story, repositories: Repositories
) -> None:
    story.proposed()
    other = repositories.second_session()
    stored = changed(other.approvals.decide(decide_of(1, decision_id="dec-b", decided_by=BOB)))
    loser = story.ports.approvals.decide(decide_of(1))
    assert loser is ApprovalRefusal.VERSION_CONFLICT
    again = decide_of(1, decision_id="dec-b", decided_by=BOB)
    assert replayed(story.ports.approvals.decide(again)) == stored


@pytest.mark.scenario(53)
def test_what_is_unknown_is_not_found(story: Story) -> None:
    approvals = story.ports.approvals
    assert approvals.find("apr-9") is None
    assert approvals.plan("apr-9") is None
    assert approvals.decide(decide_of(9)) is ApprovalRefusal.NOT_FOUND
    assert approvals.consume(consume_of(9)) is ApprovalRefusal.NOT_FOUND
    assert approvals.cancel(cancel_of(9)) is ApprovalRefusal.NOT_FOUND


def test_a_decision_id_names_no_action(story: Story) -> None:
    story.consumed()
    assert story.ports.approvals.find("dec-1") is None
    assert story.ports.approvals.decide(decide_of(0, approval_request_id="dsp-1")) is (
        ApprovalRefusal.NOT_FOUND
    )


def test_at_most_32_requests_of_one_requester_are_open(story: Story) -> None:
    for n in range(1, 33):
        story.proposed(n, lifetime_ms=HOUR_MS if n > 1 else 1_000)
    refused = story.ports.approvals.propose(propose_of(33))
    assert refused is ApprovalRefusal.TOO_MANY_PENDING
    story.proposed(34, requested_by=BOB)
    story.clocks.advance(1_000)
    story.proposed(33)  # the first one has expired


def test_an_approved_request_is_open_and_a_consumed_one_is_not(story: Story) -> None:
    story.approved(1)
    for n in range(2, 33):
        story.proposed(n)
    assert story.ports.approvals.propose(propose_of(33)) is ApprovalRefusal.TOO_MANY_PENDING
    changed(story.ports.approvals.consume(consume_of(1)))
    story.proposed(33)


def test_at_most_256_requests_of_one_project_are_open(story: Story) -> None:
    agents = [Subject(SubjectType.AGENT, f"bot-{n}") for n in range(9)]
    for n, agent in enumerate(agents):
        story.bind(BindRole(PROJECT, agent, 0, Role.OPERATOR, f"bind-{n}", EDGE))
    for n in range(256):
        story.proposed(n, requested_by=agents[n // 32])
    refused = story.ports.approvals.propose(propose_of(256, requested_by=agents[8]))
    assert refused is ApprovalRefusal.TOO_MANY_PENDING
    changed(story.ports.approvals.cancel(cancel_of(0)))
    story.proposed(256, requested_by=agents[8])
