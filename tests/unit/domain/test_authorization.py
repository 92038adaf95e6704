from typing import Any

import pytest

from qinglong_edge.domain.action import Risk
from qinglong_edge.domain.approval import (
    Approval,
    ApprovalRefusal,
    Decide,
    act_of,
    decide,
    decision_fact,
)
from qinglong_edge.domain.authorization import (
    Act,
    AuthorizationFact,
    FactKind,
    authorize,
    fact_digest,
)
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.identity import STRONG, Assurance, Principal
from qinglong_edge.domain.machines import ApprovalState
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from tests.support.builders import ANA, BOB, BOT, FENCE, PROJECT, approval, at, decide_command, tick
from tests.support.clock import WALL_MS

LIMIT_MS = 300_000
STRONG_ANA = Principal(ANA, Assurance.MULTI_FACTOR, "ses-1", WALL_MS, tick(0))
ACT = Act("apr-1", PROJECT, "dec-1", ANA, WALL_MS)
HIGH = approval(risk=Risk.HIGH)


@pytest.mark.adr("0006", "11")
def test_the_published_vector_of_a_fact() -> None:
    fact = AuthorizationFact(
        "dsp-1", "home-lab", "man-1", Subject(SubjectType.USER, "usr_ana"), "mfa:77",
        Assurance.HARDWARE, 1_700_000_100_000, 1, 3, 1_700_000_160_000,
    )  # fmt: skip
    digest = "22ef2ca2370436b4d96ff91efe273e2c290ba0c567bbea44388c4f8d46408455"
    assert fact_digest(fact) == digest
    for name in set(AuthorizationFact._fields) - {"authorized_by", "assurance"}:
        value: Any = getattr(fact, name)
        changed: Any = value + 1 if isinstance(value, int) else f"{value}x"
        assert fact_digest(fact._replace(**{name: changed})) != digest


@pytest.mark.scenario(168)
@pytest.mark.adr("0033", "7.1")
def test_a_fact_stands_for_one_decision_or_one_resolution() -> None:
    """What it is about, for whom and under which mutation is what its digest covers."""
    assert {kind.value for kind in FactKind} == {"decision", "resolution"}
    acts = [
        ACT,
        ACT._replace(target_id="dsp-1"),
        ACT._replace(project_id="prj-other"),
        ACT._replace(mutation_id="man-1"),
        ACT._replace(at_ms=WALL_MS + 1),
    ]
    facts = [authorize(act, STRONG_ANA, FENCE, at(0)) for act in acts]
    digests = {fact_digest(fact) for fact in facts if fact is not None}
    assert len(digests) == len(acts)


@pytest.mark.parametrize("assurance", sorted(STRONG))
def test_a_strong_proof_becomes_a_fact(assurance: Assurance) -> None:
    principal = STRONG_ANA._replace(assurance=assurance)
    act = ACT._replace(at_ms=WALL_MS + LIMIT_MS)
    assert authorize(act, principal, FENCE, at(LIMIT_MS)) == AuthorizationFact(
        "apr-1", PROJECT, "dec-1", ANA, "ses-1", assurance, WALL_MS, 1, 1, WALL_MS + LIMIT_MS
    )


@pytest.mark.parametrize(
    ("principal", "fence", "act", "ms"),
    [
        (None, FENCE, ACT, 0),
        (STRONG_ANA._replace(assurance=Assurance.SINGLE_FACTOR), FENCE, ACT, 0),
        (STRONG_ANA._replace(subject=BOT), FENCE, ACT._replace(by=BOT), 0),
        (STRONG_ANA._replace(subject=BOB), FENCE, ACT, 0),
        (STRONG_ANA, FENCE, None, 0),
        (STRONG_ANA, PolicyFence(1, None), ACT, 0),
        (STRONG_ANA, FENCE, ACT._replace(at_ms=WALL_MS + LIMIT_MS + 1), 0),
        (STRONG_ANA, FENCE, ACT._replace(at_ms=WALL_MS - 1), 0),
        (STRONG_ANA, FENCE, ACT, LIMIT_MS + 1),
    ],
)
def test_a_weak_old_or_future_proof_is_no_fact(
    principal: Principal | None, fence: PolicyFence, act: Act | None, ms: int
) -> None:
    assert authorize(act, principal, fence, at(ms)) is None


def test_a_proof_of_an_earlier_boot_is_no_fact() -> None:
    assert authorize(ACT, STRONG_ANA, FENCE, at(0, epoch=2)) is None


@pytest.mark.adr("0006", "6")
@pytest.mark.parametrize("risk", [Risk.HIGH, Risk.CRITICAL])
def test_high_risk_is_approved_by_a_strong_decider_only(risk: Risk) -> None:
    before = approval(risk=risk)
    weak = STRONG_ANA._replace(assurance=Assurance.SINGLE_FACTOR)
    for principal in (None, weak, STRONG_ANA._replace(subject=BOB)):
        event = decide_command(principal=principal)
        assert decide(before, event, at(0)) is ApprovalRefusal.STRONG_REQUIRED
    event = decide_command(principal=STRONG_ANA)
    assert isinstance(decide(before, event, at(LIMIT_MS)), Changed)
    assert decide(before, event, at(LIMIT_MS + 1)) is ApprovalRefusal.STRONG_REQUIRED


def leaves_no_fact(before: Approval, event: Decide) -> bool:
    answer = decide(before, event, at(0))
    assert isinstance(answer, Changed)
    return act_of(answer.after) is None and decision_fact(answer.after, event, at(0)) is None


def test_an_open_request_needs_no_fact_yet() -> None:
    assert act_of(HIGH) is None


def test_rejecting_needs_no_second_factor_and_leaves_no_fact() -> None:
    event = decide_command(approved=False, principal=STRONG_ANA)
    assert leaves_no_fact(HIGH, event)


@pytest.mark.parametrize("risk", [Risk.LOW, Risk.MEDIUM])
def test_lower_risk_leaves_no_fact(risk: Risk) -> None:
    event = decide_command(principal=STRONG_ANA)
    assert leaves_no_fact(approval(risk=risk), event)


def test_the_fact_says_what_the_decision_says() -> None:
    event = decide_command(principal=STRONG_ANA)
    answer = decide(HIGH, event, at(5))
    assert isinstance(answer, Changed)
    fact = decision_fact(answer.after, event, at(5))
    made = answer.after.decision
    assert made is not None
    assert fact is not None
    assert (fact.mutation_id, fact.authorized_by, fact.authorized_at_ms) == (
        made.decision_id, made.decided_by, made.decided_at_ms,
    )  # fmt: skip


def test_repeating_a_strong_decision_later_is_a_replay() -> None:
    made = decide(HIGH, decide_command(principal=STRONG_ANA), at(0))
    assert isinstance(made, Changed)
    assert made.after.state is ApprovalState.APPROVED
    assert decide(made.after, decide_command(), at(LIMIT_MS * 2)) == Replayed(made.after)
