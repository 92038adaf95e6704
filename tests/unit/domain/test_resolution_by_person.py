"""How a person who proved themselves settles an unknown outcome."""

from typing import Any

import pytest

from qinglong_edge.domain.action import ACTION_TYPES, Capability
from qinglong_edge.domain.authorization import AuthorizationFact, fact_digest
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.execution import Dispatch, effective_state
from qinglong_edge.domain.identity import STRONG, Assurance
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.recovery import (
    Decision,
    Finding,
    Observation,
    RecoveryRefusal,
    Source,
)
from qinglong_edge.domain.resolution import Answer, Case, Settled, by_evidence, by_person, settles
from qinglong_edge.domain.tick import Trust
from tests.support.builders import (
    ANA,
    BOB,
    FENCE,
    PROJECT,
    action_binding,
    at,
    dispatch,
    progress,
    tick,
)
from tests.support.clock import WALL_MS
from tests.support.recovering import (
    CLAIM_MS,
    LEASE_END_MS,
    PROOF,
    case,
    evidence_command,
    person_command,
    principal,
    resolution,
)

ARMED, LEASED, MANUAL_REQUIRED, RESOLVED = ControlStatus
SUCCEEDED, FAILED, BLOCKED = (
    ExecutionStatus.SUCCEEDED,
    ExecutionStatus.FAILED,
    ExecutionStatus.BLOCKED,
)
FR, TERMINAL = RecoveryRefusal.FENCE_REJECTED, RecoveryRefusal.ALREADY_TERMINAL
LIMIT_MS = 300_000
AUTOMATIC = dispatch(action=action_binding(action_type="run.create"))


def settled(answer: Answer) -> Settled:
    assert type(answer) is Changed
    return answer.after


def said(before: Case, ms: int = CLAIM_MS, **changes: Any) -> Answer:
    return by_person(before, person_command(**changes), at(ms), policy=FENCE)


def known(after: Settled, of: Dispatch | None = None) -> Case:
    return Case(of or dispatch(), after.progress, after.resolution)


@pytest.mark.scenario(148, 168, 181)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize(
    ("decision", "status"),
    [
        (Decision.CONFIRM_SUCCEEDED, SUCCEEDED),
        (Decision.CONFIRM_FAILED, FAILED),
        (Decision.ABANDON_UNKNOWN, BLOCKED),
    ],
)
@pytest.mark.parametrize("digest", [None, PROOF])
def test_a_person_s_word_ends_it_and_is_kept_with_what_they_proved(
    decision: Decision, status: ExecutionStatus, digest: str | None
) -> None:
    before = case()
    after = settled(said(before, decision=decision, evidence_digest=digest))
    ended = WALL_MS + CLAIM_MS
    assert after.progress.execution == before.progress.execution._replace(
        status=status, version=3, lease=None, result_mutation_id="man-1",
        last_result_code="looked_myself", completed_at_ms=ended, updated_at_ms=ended,
    )  # fmt: skip
    assert before.progress.control is not None
    assert after.progress.control == before.progress.control._replace(
        status=RESOLVED, version=1, execution_version=3, next_scan_tick=None,
        resolution_mutation_id="man-1", updated_at_ms=ended,
    )  # fmt: skip
    assert after.resolution == resolution(
        mutation_id="man-1", source=Source.HUMAN, decision=decision, evidence_digest=digest,
        reason_code="looked_myself", resolved_by=ANA,
    )  # fmt: skip
    assert settles(after.resolution, after.progress)
    assert effective_state(after.progress, at(10**9)) == status.value
    fact = after.fact
    assert fact == AuthorizationFact(
        "dsp-1", PROJECT, "man-1", ANA, "ses-1", Assurance.MULTI_FACTOR, ended, 1, 1, ended
    )
    assert len(fact_digest(fact)) == 64


@pytest.mark.scenario(182)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize("watch", [ARMED, LEASED, MANUAL_REQUIRED])
@pytest.mark.parametrize("count", [0, 3])
def test_a_person_pre_empts_whoever_looks_and_leaves_the_findings(
    watch: ControlStatus, count: int
) -> None:
    seen = Observation("see-1", Finding.MISSING, "nothing_there", None) if count else None
    before = case(watch, finding_count=count, last=seen)
    ended = settled(said(before)).progress.control
    assert ended is not None
    assert (ended.status, ended.lease) == (RESOLVED, None)
    assert (ended.finding_count, ended.last) == (count, seen)


@pytest.mark.scenario(169, 170)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize("kind", sorted(set(SubjectType) - {SubjectType.USER}))
def test_nobody_but_a_user_settles_anything(kind: SubjectType) -> None:
    """Before anything else is said about the dispatch, repeats included."""
    somebody = principal(subject=Subject(kind, "ana"))
    nothing = Case(dispatch(), progress(ExecutionStatus.LEASED), None)
    after = known(settled(said(case())))
    for before in (case(), nothing, after):
        assert said(before, principal=somebody) is RecoveryRefusal.HUMAN_REQUIRED


@pytest.mark.scenario(148, 150, 152)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize(
    ("before", "ms", "changes", "refusal"),
    [
        (
            Case(dispatch(), progress(ExecutionStatus.LEASED), None),
            CLAIM_MS,
            {},
            RecoveryRefusal.NOT_FOUND,
        ),
        (Case(dispatch(), progress(SUCCEEDED), None), 0, {}, TERMINAL),
        (case(), LEASE_END_MS - 1, {}, RecoveryRefusal.EXECUTION_ACTIVE),
        (case(LEASED), LEASE_END_MS - 1, {}, RecoveryRefusal.EXECUTION_ACTIVE),
        (case(MANUAL_REQUIRED), LEASE_END_MS - 1, {}, RecoveryRefusal.EXECUTION_ACTIVE),
        (case(), CLAIM_MS, {"execution_version": 1}, FR),
        (case(), CLAIM_MS, {"execution_version": 3}, FR),
        (case(), CLAIM_MS, {"recovery_version": 1}, FR),
        (case(LEASED), CLAIM_MS, {"recovery_version": 0}, FR),
    ],
)
def test_a_word_comes_too_early_too_late_or_about_something_else(
    before: Case, ms: int, *, changes: dict[str, Any], refusal: RecoveryRefusal
) -> None:
    assert said(before, ms, **changes) is refusal


@pytest.mark.scenario(148)
@pytest.mark.parametrize("version", [None, 0])
def test_at_exactly_the_end_of_the_lease_a_person_may_speak(version: int | None) -> None:
    proven = principal(authenticated_at_ms=WALL_MS, authenticated_tick=tick(0))
    after = settled(said(case(), LEASE_END_MS, principal=proven, recovery_version=version))
    assert after.progress.execution.status is BLOCKED


@pytest.mark.adr("0002", "3")
@pytest.mark.parametrize("trust", [Trust.UNTRUSTED, Trust.SETTLED])
def test_nothing_is_settled_on_a_person_s_word_by_a_clock_that_is_not_believed(
    trust: Trust,
) -> None:
    """A proof needs no clock; a repeat says nothing new."""
    now = at(CLAIM_MS, trust=trust)
    asked = person_command()
    assert by_person(case(), asked, now, policy=FENCE) is RecoveryRefusal.CLOCK_UNTRUSTED
    assert isinstance(by_evidence(case(LEASED), evidence_command(), now), Changed)
    after = known(settled(said(case())))
    assert isinstance(by_person(after, asked, now, policy=FENCE), Replayed)


@pytest.mark.scenario(174, 175)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize("policy", [None, PolicyFence(2, 1), PolicyFence(1, 2)])
def test_a_right_that_moved_since_it_was_checked_settles_nothing(
    policy: PolicyFence | None,
) -> None:
    answer = by_person(case(), person_command(), at(CLAIM_MS), policy=policy)
    assert answer is RecoveryRefusal.FENCE_CHANGED


PROOFS = [
    ({}, 0, True),
    ({}, LIMIT_MS, True),
    ({}, LIMIT_MS + 1, False),
    ({}, -1, False),
    ({"authenticated_at_ms": WALL_MS + CLAIM_MS - 1}, LIMIT_MS, False),
    ({"authenticated_tick": tick(CLAIM_MS - 1)}, LIMIT_MS, False),
    ({"authenticated_at_ms": WALL_MS + CLAIM_MS + 1}, 0, False),
    ({"authenticated_tick": tick(CLAIM_MS + 1)}, 0, False),
    ({"authenticated_tick": tick(CLAIM_MS, epoch=2)}, 0, False),
    *(({"assurance": strong}, LIMIT_MS, True) for strong in sorted(STRONG)),
    *(({"assurance": weak}, 0, False) for weak in sorted(set(Assurance) - STRONG)),
]


@pytest.mark.scenario(169, 170, 171)
@pytest.mark.adr("0033", "7.1")
@pytest.mark.parametrize(("change", "age_ms", "strong"), PROOFS)
def test_a_person_proved_themselves_strongly_at_most_five_minutes_ago_on_both_clocks(
    change: dict[str, Any], age_ms: int, *, strong: bool
) -> None:
    answer = said(case(), CLAIM_MS + age_ms, principal=principal(**change))
    if strong:
        assert settled(answer).fact is not None
    else:
        assert answer is RecoveryRefusal.STRONG_REQUIRED


@pytest.mark.scenario(171)
def test_the_proof_is_as_old_as_the_stamp_of_the_resolution_says() -> None:
    """The row was stamped later than the clock shows now."""
    before = case()
    for age_ms, strong in ((LIMIT_MS, True), (LIMIT_MS + 1, False)):
        run = before.progress.execution._replace(updated_at_ms=WALL_MS + CLAIM_MS + age_ms)
        late = before._replace(progress=before.progress._replace(execution=run))
        answer = said(late)
        assert isinstance(answer, Changed) is strong
        assert strong or answer is RecoveryRefusal.STRONG_REQUIRED


def test_an_unbound_user_proves_nothing() -> None:
    unbound = PolicyFence(1, None)
    event = person_command(fence=unbound)
    answer = by_person(case(), event, at(CLAIM_MS), policy=unbound)
    assert answer is RecoveryRefusal.STRONG_REQUIRED


@pytest.mark.adr("0033", "4.1")
@pytest.mark.parametrize("name", sorted(ACTION_TYPES))
def test_where_evidence_may_exist_somebody_looks_first_or_it_is_said_that_nobody_did(
    name: str,
) -> None:
    """Upstream lets a person abandon at once (W25)."""
    of = dispatch(action=action_binding(action_type=name))
    answer = said(case(of=of))
    if ACTION_TYPES[name].capability is Capability.AUTOMATIC:
        assert answer is RecoveryRefusal.NOT_PROBED
    else:
        assert settled(answer).resolution.unprobed is False
    assert settled(said(case(of=of, finding_count=1))).resolution.unprobed is False
    assert settled(said(case(of=of), unprobed=True)).resolution.unprobed is True


def test_a_type_that_this_build_does_not_know_has_nobody_to_look() -> None:
    foreign = dispatch(action=action_binding(action_type="robot.move"))
    assert isinstance(said(case(of=foreign)), Changed)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"execution_version": 9}, FR),
        ({"principal": principal(assurance=Assurance.SINGLE_FACTOR)}, RecoveryRefusal.NOT_PROBED),
        ({"fence": PolicyFence(9, 9)}, RecoveryRefusal.NOT_PROBED),
    ],
)
def test_the_state_is_told_before_the_person_is_judged(
    changes: dict[str, Any], refusal: RecoveryRefusal
) -> None:
    assert said(case(of=AUTOMATIC), **changes) is refusal


@pytest.mark.scenario(168, 178)
@pytest.mark.adr("0033", "6.2")
def test_a_repeated_word_is_a_replay_by_meaning() -> None:
    """Whatever was proven for the repeat and when (W16); upstream compares the millisecond."""
    first = settled(said(case(), recovery_version=0))
    after, replay = known(first), Replayed(Settled(first.progress, first.resolution))
    weak = principal(assurance=Assurance.SINGLE_FACTOR, authentication_id="ses-2")
    for changes in ({}, {"principal": weak}, {"recovery_version": 7}, {"fence": PolicyFence(9, 9)}):
        for ms in (CLAIM_MS, 10**9):
            assert said(after, ms, **changes) == replay


@pytest.mark.scenario(147, 178)
@pytest.mark.adr("0033", "6.2")
@pytest.mark.parametrize(
    "changes",
    [
        {"mutation_id": "man-2"},
        {"decision": Decision.CONFIRM_FAILED},
        {"reason_code": "other"},
        {"evidence_digest": PROOF},
        {"execution_version": 3},
        {"unprobed": True},
        {"principal": principal(subject=BOB)},
    ],
)
def test_another_meaning_comes_too_late(changes: dict[str, Any]) -> None:
    assert said(known(settled(said(case()))), **changes) is TERMINAL
