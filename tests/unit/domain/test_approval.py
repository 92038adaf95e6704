from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import Risk
from qinglong_edge.domain.approval import (
    Answer,
    Approval,
    ApprovalRefusal,
    Cancellation,
    Consumption,
    Decision,
    Openness,
    cancel,
    check_propose,
    consume,
    decide,
    effective_state,
    propose,
    replay_propose,
    void,
)
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import InvariantBroken, UsageError
from qinglong_edge.domain.machines import ApprovalState
from qinglong_edge.domain.policy import Subject, SubjectType
from qinglong_edge.domain.tick import Now, Trust
from tests.support.builders import (
    ANA,
    BOB,
    EDGE,
    FENCE,
    HOUR_MS,
    action_binding,
    approval,
    at,
    cancel_command,
    consume_command,
    decide_command,
    decision,
    propose_command,
)
from tests.support.clock import WALL_MS

PENDING, APPROVED, REJECTED, CONSUMED, CANCELLED, EXPIRED = ApprovalState
NOTHING_OPEN = Openness(0, 0)
NONE: frozenset[str] = frozenset()
UNTRUSTED = at(1, trust=Trust.UNTRUSTED)
SETTLED = at(1, trust=Trust.SETTLED)


def changed(answer: Answer) -> Approval:
    assert type(answer) is Changed
    return answer.after


@pytest.mark.scenario(26)
def test_a_proposal_becomes_a_pending_request_of_version_one() -> None:
    row = changed(propose(propose_command(), NOTHING_OPEN, NONE, at(0)))
    assert row == approval(PENDING)
    assert row.expires_at_ms - row.requested_at_ms == HOUR_MS


BAD_PROPOSALS: list[dict[str, Any]] = [
    *({"approval_request_id": value} for value in ("", "-a", "a\n", "x" * 65, 1)),
    *({"project_id": value} for value in ("", "a\n", "x" * 129)),
    *({"lifetime_ms": value} for value in (0, -1, 86_400_001, 1.5, True)),
    *({"repeats": value} for value in ("", "-a", "x" * 65)),
    *({"action": action_binding(permission=value)} for value in ("logs", "tool.call:*")),
    *({"action": action_binding(action_type=value)} for value in ("", "x" * 65)),
    *({"action": action_binding(action_ref=value)} for value in ("-a", "x" * 256)),
    *({"action": action_binding(action_digest=value)} for value in ("A" * 64, "0" * 63)),
    *({"action": action_binding(preview_digest=value)} for value in ("g" * 64, "0" * 65)),
]
UNPROVEN: list[dict[str, Any]] = [
    *({"requested_by": Subject(SubjectType.AGENT, name)} for name in ("", "a\n", "x" * 256)),
    {"body": b"x" * (limits.PLAN_BYTES_MAX + 1)},
    {"preview": b"x" * (limits.PREVIEW_BYTES_MAX + 1)},
]


@pytest.mark.scenario(5, 34, 35)
@pytest.mark.parametrize("change", [*BAD_PROPOSALS, *UNPROVEN])
def test_a_malformed_proposal_is_refused_before_any_read(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_propose(propose_command(**change))


@pytest.mark.scenario(34, 35)
@pytest.mark.parametrize(
    "change",
    [
        *({"lifetime_ms": value} for value in (1, HOUR_MS, 86_400_000)),
        *({"action": action_binding(action_ref=value)} for value in ("x", "x" * 255)),
        {"repeats": "dsp-0"},
        {"body": b"x" * limits.PLAN_BYTES_MAX, "preview": b"x" * limits.PREVIEW_BYTES_MAX},
    ],
)
def test_a_proposal_within_its_bounds_is_kept(change: dict[str, Any]) -> None:
    asked = propose_command(**change)
    assert check_propose(asked) is asked


@pytest.mark.adr("0002", "3")
@pytest.mark.parametrize("now", [UNTRUSTED, SETTLED])
def test_nobody_proposes_while_the_clock_cannot_be_believed(now: Now) -> None:
    answer = propose(propose_command(), NOTHING_OPEN, NONE, now)
    assert answer is ApprovalRefusal.CLOCK_UNTRUSTED


@pytest.mark.parametrize(
    ("openness", "full"),
    [
        (Openness(31, 31), False),
        (Openness(32, 32), True),
        (Openness(0, 255), False),
        (Openness(0, 256), True),
    ],
)
def test_open_requests_are_bounded_for_a_requester_and_for_a_project(
    openness: Openness, *, full: bool
) -> None:
    answer = propose(propose_command(), openness, NONE, at(0))
    assert (answer is ApprovalRefusal.TOO_MANY_PENDING) is full


HIGH = {"risk": Risk.HIGH}


@pytest.mark.adr("0003", "5")
@pytest.mark.adr("0033", "7.3")
@pytest.mark.parametrize(
    ("change", "unknown", "answer"),
    [
        ({}, {"dsp-0"}, ApprovalRefusal.REPEATS_REQUIRED),
        (HIGH, {"dsp-0"}, ApprovalRefusal.REPEATS_REQUIRED),
        ({"repeats": "dsp-0"}, {"dsp-0"}, ApprovalRefusal.REPEATS_MISMATCH),
        ({**HIGH, "repeats": "dsp-9"}, {"dsp-0"}, ApprovalRefusal.REPEATS_MISMATCH),
        ({**HIGH, "repeats": "dsp-0"}, set(), ApprovalRefusal.REPEATS_MISMATCH),
        ({**HIGH, "repeats": "dsp-0"}, {"dsp-0"}, None),
        ({"risk": Risk.CRITICAL, "repeats": "dsp-1"}, {"dsp-0", "dsp-1"}, None),
    ],
)
def test_repeating_an_unknown_action_names_it_and_carries_high_risk(
    change: dict[str, Any], unknown: set[str], answer: ApprovalRefusal | None
) -> None:
    got = propose(propose_command(**change), NOTHING_OPEN, frozenset(unknown), at(0))
    if answer is None:
        assert changed(got).repeats == change["repeats"]
    else:
        assert got is answer


@pytest.mark.scenario(29, 30)
@pytest.mark.adr("0003", "4")
@pytest.mark.parametrize("state", ApprovalState)
def test_the_same_proposal_answers_with_the_row_as_it_is_now(state: ApprovalState) -> None:
    """The preview is ours and may warn differently today; upstream compares its digest as well."""
    row = approval(state)
    for action in (action_binding(), action_binding(preview_digest="0" * 64)):
        assert replay_propose(row, propose_command(action=action)) == Replayed(row)


@pytest.mark.scenario(29, 31)
@pytest.mark.adr("0002", "6")
@pytest.mark.adr("0003", "4")
@pytest.mark.parametrize(
    "change",
    [
        HIGH,
        {"project_id": "another"},
        {"requested_by": BOB},
        {"lifetime_ms": HOUR_MS - 1},
        {"repeats": "dsp-0"},
        *(
            {"action": action_binding()._replace(**{field: value})}
            for field, value in (
                ("permission", "run.start"),
                ("action_type", "run.create"),
                ("action_ref", "another"),
                ("action_digest", "0" * 64),
            )
        ),
    ],
)
def test_another_meaning_under_a_known_id_is_drift(change: dict[str, Any]) -> None:
    """Times are no part of identity, unlike upstream; the lifetime is."""
    answer = replay_propose(approval(), propose_command(**change))
    assert answer is ApprovalRefusal.MUTATION_DRIFT


@pytest.mark.scenario(37, 40)
@pytest.mark.parametrize(
    ("approved", "state", "now"),
    [(True, APPROVED, at(5)), (False, REJECTED, at(5)), (False, REJECTED, UNTRUSTED)],
)
def test_a_person_decides_once(approved: bool, state: ApprovalState, now: Now) -> None:
    row = changed(decide(approval(), decide_command(approved=approved), now))
    made = Decision("dec-1", approved, "reviewed", ANA, now.at_ms)
    assert row == approval()._replace(state=state, version=2, decision=made)


ROBOTS = [kind for kind in SubjectType if kind is not SubjectType.USER]


@pytest.mark.scenario(38, 39)
@pytest.mark.adr("0006", "2")
@pytest.mark.parametrize("kind", ROBOTS)
@pytest.mark.parametrize("approved", [True, False])
def test_only_a_user_decides(kind: SubjectType, *, approved: bool) -> None:
    event = decide_command(decided_by=Subject(kind, "ana"), approved=approved)
    assert decide(approval(), event, at(5)) is ApprovalRefusal.HUMAN_REQUIRED


@pytest.mark.scenario(41)
@pytest.mark.adr("0006", "3")
def test_nobody_decides_a_request_of_their_own() -> None:
    answer = decide(approval(requested_by=ANA), decide_command(), at(5))
    assert answer is ApprovalRefusal.SELF_DECISION


E_MS = HOUR_MS
DECISIONS: list[tuple[str, Approval, dict[str, Any], Now, ApprovalRefusal]] = [
    ("at E", approval(), {}, at(E_MS), ApprovalRefusal.EXPIRED),
    ("reject at E", approval(), {"approved": False}, at(E_MS), ApprovalRefusal.EXPIRED),
    ("rejected, past E", approval(REJECTED), {"decision_id": "d2"}, at(E_MS),
     ApprovalRefusal.EXPIRED),
    ("closed as expired", approval(EXPIRED), {}, at(5), ApprovalRefusal.EXPIRED),
    ("expected 2 while pending", approval(), {"expected_version": 2}, at(5),
     ApprovalRefusal.VERSION_CONFLICT),
    ("expected 1 while approved", approval(APPROVED), {"decision_id": "d2"}, at(5),
     ApprovalRefusal.VERSION_CONFLICT),
    ("expected 2 while approved", approval(APPROVED), {"decision_id": "d2",
     "expected_version": 2}, at(5), ApprovalRefusal.STATE_CONFLICT),
    ("expected 2 while cancelled", approval(CANCELLED), {"expected_version": 2}, at(5),
     ApprovalRefusal.STATE_CONFLICT),
    ("another digest", approval(), {"action_digest": "0" * 64}, at(5),
     ApprovalRefusal.DIGEST_MISMATCH),
    ("no clock", approval(), {}, UNTRUSTED, ApprovalRefusal.CLOCK_UNTRUSTED),
    ("no clock yet", approval(), {}, SETTLED, ApprovalRefusal.CLOCK_UNTRUSTED),
]  # fmt: skip


@pytest.mark.scenario(43, 48, 49)
@pytest.mark.adr("0002", "3")
@pytest.mark.parametrize(
    ("row", "change", "now", "refusal"), [case[1:] for case in DECISIONS],
    ids=[case[0] for case in DECISIONS],
)  # fmt: skip
def test_a_decision_is_refused(
    row: Approval, change: dict[str, Any], *, now: Now, refusal: ApprovalRefusal
) -> None:
    assert decide(row, decide_command(**change), now) is refusal


@pytest.mark.scenario(43)
@pytest.mark.parametrize("ms", [0, E_MS - 2, E_MS - 1])
def test_until_its_expiry_a_request_can_be_decided(ms: int) -> None:
    event = decide_command(action_digest=action_binding().action_digest)
    assert changed(decide(approval(), event, at(ms))).state is APPROVED


@pytest.mark.scenario(52, 67)
@pytest.mark.adr("0002", "5")
def test_a_clock_behind_the_row_stores_no_earlier_stamp() -> None:
    """The store's clock is read under its lock; upstream refuses a caller's earlier time."""
    row = changed(decide(approval(), decide_command(), at(-5)))
    assert row.decision is not None
    assert row.decision.decided_at_ms == WALL_MS
    row = changed(consume(row, consume_command(), at(-5)))
    assert row.consumption is not None
    assert row.consumption.consumed_at_ms == WALL_MS


@pytest.mark.scenario(45, 47, 50)
@pytest.mark.parametrize("state", [APPROVED, CONSUMED])
@pytest.mark.parametrize("digest", [None, action_binding().action_digest])
@pytest.mark.parametrize("now", [at(5), at(E_MS), UNTRUSTED])
def test_the_same_decision_again_answers_with_the_row_as_it_is_now(
    state: ApprovalState, digest: str | None, now: Now
) -> None:
    row = approval(state)
    assert decide(row, decide_command(action_digest=digest), now) == Replayed(row)


@pytest.mark.scenario(45, 46)
@pytest.mark.parametrize(
    "change",
    [
        {"approved": False},
        {"reason_code": "another"},
        {"decided_by": BOB},
        {"expected_version": 2},
        {"action_digest": "0" * 64},
    ],
)
def test_another_meaning_under_a_used_decision_id_is_drift(change: dict[str, Any]) -> None:
    answer = decide(approval(APPROVED), decide_command(**change), at(5))
    assert answer is ApprovalRefusal.MUTATION_DRIFT


@pytest.mark.parametrize("state", [PENDING, APPROVED])
def test_an_open_request_can_be_withdrawn(state: ApprovalState) -> None:
    before = approval(state)
    row = changed(cancel(before, cancel_command(), at(7)))
    note = Cancellation("can-1", ANA, WALL_MS + 7)
    assert row == before._replace(state=CANCELLED, version=before.version + 1, cancellation=note)
    assert cancel(row, cancel_command(), at(E_MS)) == Replayed(row)


@pytest.mark.adr("0002", "5")
@pytest.mark.parametrize(
    "before",
    [
        approval(APPROVED, decision=decision(decided_at_ms=WALL_MS + 9)),
        approval(CONSUMED, consumption=Consumption("con-1", "dsp-1", EDGE, WALL_MS + 9, FENCE)),
    ],
)
def test_a_clock_behind_the_row_does_not_date_a_withdrawal_back(before: Approval) -> None:
    row = changed(cancel(before, cancel_command(), at(7)))
    assert row.cancellation == Cancellation("can-1", ANA, WALL_MS + 9)


@pytest.mark.parametrize(
    ("state", "ms", "refusal"),
    [
        (PENDING, E_MS, ApprovalRefusal.EXPIRED),
        (REJECTED, E_MS, ApprovalRefusal.EXPIRED),
        (EXPIRED, 7, ApprovalRefusal.EXPIRED),
        (REJECTED, 7, ApprovalRefusal.STATE_CONFLICT),
    ],
)
def test_no_other_request_can_be_withdrawn(
    state: ApprovalState, ms: int, refusal: ApprovalRefusal
) -> None:
    assert cancel(approval(state), cancel_command(), at(ms)) is refusal


def test_a_second_withdrawal_and_another_meaning_of_the_first_are_refused() -> None:
    row = approval(CANCELLED)
    assert cancel(row, cancel_command(), at(7)) is ApprovalRefusal.STATE_CONFLICT
    drifted = cancel_command(cancel_id="can-0", cancelled_by=BOB)
    assert cancel(row, drifted, at(7)) is ApprovalRefusal.MUTATION_DRIFT


@pytest.mark.parametrize("state", ApprovalState)
def test_a_reset_clock_closes_open_requests_as_expired_and_no_others(state: ApprovalState) -> None:
    before = approval(state)
    if state in {PENDING, APPROVED}:
        assert void(before) == before._replace(state=EXPIRED, version=before.version + 1)
    else:
        with pytest.raises(InvariantBroken):
            void(before)


@pytest.mark.scenario(42, 44)
@pytest.mark.parametrize("state", ApprovalState)
def test_an_open_request_past_its_time_reads_as_expired(state: ApprovalState) -> None:
    row = approval(state)
    is_open = state in {PENDING, APPROVED}
    assert effective_state(row, at(E_MS - 1)) == state.value
    for now in (at(E_MS), at(0, wall_ms=WALL_MS + E_MS)):
        assert effective_state(row, now) == ("expired" if is_open else state.value)
