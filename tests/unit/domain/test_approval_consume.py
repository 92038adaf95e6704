"""Spending an approval: once, in time, by the machine, and for the approved action only."""

from typing import Any

import pytest

from qinglong_edge.domain.approval import (
    Approval,
    ApprovalRefusal,
    Consumption,
    consume,
)
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.machines import ApprovalState
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.tick import Now, Trust
from tests.support.builders import (
    BOB,
    EDGE,
    FENCE,
    HOUR_MS,
    action_binding,
    approval,
    at,
    consume_command,
    shell_plan,
)
from tests.support.clock import WALL_MS

PENDING, APPROVED, REJECTED, CONSUMED, CANCELLED, EXPIRED = ApprovalState
UNTRUSTED = at(1, trust=Trust.UNTRUSTED)
OTHER_ACTION = action_binding(shell_plan("/bin/false"))
E_MS = HOUR_MS


@pytest.mark.scenario(55)
def test_an_approved_request_is_spent_once() -> None:
    answer = consume(approval(APPROVED), consume_command(), at(5))
    used = Consumption("con-1", "dsp-1", EDGE, WALL_MS + 5, FENCE)
    row = approval(APPROVED)._replace(state=CONSUMED, version=3, consumption=used)
    assert answer == Changed(row)


CONSUMPTIONS: list[tuple[str, Approval, dict[str, Any], int, ApprovalRefusal]] = [
    ("at E", approval(APPROVED), {}, E_MS, ApprovalRefusal.EXPIRED),
    ("closed as expired", approval(EXPIRED), {}, 5, ApprovalRefusal.EXPIRED),
    ("expected 3", approval(APPROVED), {"expected_version": 3}, 5,
     ApprovalRefusal.VERSION_CONFLICT),
    ("pending", approval(), {"expected_version": 1}, 5, ApprovalRefusal.STATE_CONFLICT),
    ("rejected", approval(REJECTED), {}, 5, ApprovalRefusal.STATE_CONFLICT),
    ("undecided", approval(APPROVED, decision=None), {}, 5, ApprovalRefusal.STATE_CONFLICT),
    ("cancelled", approval(CANCELLED), {}, 5, ApprovalRefusal.STATE_CONFLICT),
    ("spent under another id", approval(CONSUMED), {"consumption_id": "c2",
     "expected_version": 3}, 5, ApprovalRefusal.STATE_CONFLICT),
    ("another digest", approval(APPROVED), {"action_digest": OTHER_ACTION.action_digest}, 5,
     ApprovalRefusal.MUTATION_DRIFT),
    ("another requester", approval(APPROVED), {"requested_by": BOB}, 5,
     ApprovalRefusal.MUTATION_DRIFT),
]  # fmt: skip


@pytest.mark.scenario(40, 44, 57, 59, 60)
@pytest.mark.parametrize(
    ("row", "change", "ms", "refusal"), [case[1:] for case in CONSUMPTIONS],
    ids=[case[0] for case in CONSUMPTIONS],
)  # fmt: skip
def test_a_consumption_is_refused(
    row: Approval, change: dict[str, Any], *, ms: int, refusal: ApprovalRefusal
) -> None:
    assert consume(row, consume_command(**change), at(ms)) is refusal


@pytest.mark.scenario(57)
@pytest.mark.parametrize("now", [at(5), at(E_MS), UNTRUSTED])
def test_the_same_consumption_again_is_a_replay_whatever_the_policy_is_now(now: Now) -> None:
    row = approval(CONSUMED)
    event = consume_command(fence=PolicyFence(9, None))
    assert consume(row, event, now) == Replayed(row)


@pytest.mark.scenario(57, 59)
@pytest.mark.parametrize(
    "change",
    [
        *({name: BOB} for name in ("consumed_by", "requested_by")),
        *({name: "0" * 64} for name in ("action_digest", "dispatch_id")),
        {"expected_version": 3},
    ],
)
def test_another_meaning_under_a_used_consumption_id_is_drift(change: dict[str, Any]) -> None:
    answer = consume(approval(CONSUMED), consume_command(**change), at(5))
    assert answer is ApprovalRefusal.MUTATION_DRIFT


@pytest.mark.adr("0002", "3")
@pytest.mark.parametrize("trust", [Trust.UNTRUSTED, Trust.SETTLED])
def test_nothing_is_spent_while_the_clock_cannot_be_believed(trust: Trust) -> None:
    answer = consume(approval(APPROVED), consume_command(), at(5, trust=trust))
    assert answer is ApprovalRefusal.CLOCK_UNTRUSTED


CONSUMERS = {SubjectType.SYSTEM, SubjectType.WORKER}


@pytest.mark.scenario(58)
@pytest.mark.parametrize("kind", SubjectType)
def test_only_the_machine_spends(kind: SubjectType) -> None:
    """Asked before clock, expiry, version and state; upstream asks it before any read."""
    event = consume_command(consumed_by=Subject(kind, "edge"))
    late = consume_command(consumed_by=Subject(kind, "edge"), expected_version=9)
    answer = consume(approval(APPROVED), event, at(5))
    assert (answer is ApprovalRefusal.CONSUMER_DENIED) is (kind not in CONSUMERS)
    assert isinstance(answer, Changed) is (kind in CONSUMERS)
    for row, now in ((approval(APPROVED), UNTRUSTED), (approval(REJECTED), at(E_MS))):
        refusal = consume(row, late, now)
        assert (refusal is ApprovalRefusal.CONSUMER_DENIED) is (kind not in CONSUMERS)
