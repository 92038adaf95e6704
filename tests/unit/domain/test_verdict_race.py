"""One verdict: of the handler's answer and recovery's word the first wins, and stays."""

from typing import Any

import pytest

from qinglong_edge.domain import evidence as looking
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.dispatch import (
    Complete,
    DispatchRefusal,
    Expire,
    Release,
    Renew,
    claim,
    complete,
    expire,
    release,
    renew,
)
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Decision, Finding, RecoveryRefusal, Resolution
from qinglong_edge.domain.resolution import Answer, Case, Settled, by_evidence, by_person
from tests.support.builders import (
    FENCE,
    LEASE_MS,
    at,
    claim_command,
    control,
    dispatch,
    fence,
    progress,
)
from tests.support.recovering import (
    CLAIM_MS,
    PROOF,
    case,
    claim_scan,
    evidence_command,
    observe_command,
    person_command,
    scan_fence,
)

EXECUTING, SUCCEEDED, FAILED, BLOCKED = (
    ExecutionStatus.EXECUTING,
    ExecutionStatus.SUCCEEDED,
    ExecutionStatus.FAILED,
    ExecutionStatus.BLOCKED,
)
FR = DispatchRefusal.FENCE_REJECTED
TERMINAL = RecoveryRefusal.ALREADY_TERMINAL
DONE = Complete("dsp-1", fence(2), "done-1", Outcome.SUCCEEDED, "of_its_own")
PAIRS = [
    (Outcome.SUCCEEDED, Decision.CONFIRM_SUCCEEDED, SUCCEEDED),
    (Outcome.FAILED, Decision.CONFIRM_FAILED, FAILED),
    (Outcome.INDETERMINATE, Decision.ABANDON_UNKNOWN, BLOCKED),
]


def settled(answer: Answer) -> Settled:
    assert type(answer) is Changed
    return answer.after


def by_ana(decision: Decision = Decision.CONFIRM_SUCCEEDED) -> Settled:
    event = person_command(decision=decision)
    return settled(by_person(case(), event, at(CLAIM_MS), policy=FENCE))


def late(after: Settled, *, known: Resolution | None, **changes: Any) -> object:
    return complete(after.progress, DONE._replace(**changes), at(90_000), known=known)


@pytest.mark.scenario(151)
@pytest.mark.adr("0033", "6.1")
@pytest.mark.parametrize(("outcome", "decision", "status"), PAIRS)
def test_a_late_answer_counts_only_as_an_echo_of_the_resolution(
    outcome: Outcome, decision: Decision, status: ExecutionStatus
) -> None:
    """Equal in what it says, under the fence that was settled (W1); upstream compares the id."""
    after = by_ana(decision)
    assert after.progress.execution.status is status
    known = after.resolution
    assert late(after, known=known, outcome=outcome) == Replayed(after.progress)
    for other in set(Outcome) - {outcome}:
        assert late(after, known=known, outcome=other) is FR
        assert late(after, known=known, outcome=other, mutation_id="man-1") is FR
    for version in (1, 3):
        assert late(after, known=known, outcome=outcome, fence=fence(version)) is FR


@pytest.mark.scenario(151, 156)
@pytest.mark.adr("0033", "6.1")
@pytest.mark.adr("0033", "7.2")
def test_nobody_ends_or_prolongs_or_begins_again_what_was_settled() -> None:
    after = by_ana().progress
    assert renew(after, Renew("dsp-1", fence(2), LEASE_MS), at(90_000)) is FR
    assert expire(after, Expire("dsp-1", fence(2)), at(90_000)) is FR
    assert release(after, Release("dsp-1", fence(2), "rel-1", "busy", 1_000), at(90_000)) is FR
    again = claim(dispatch(), after, claim_command(), at(90_000))
    assert again is DispatchRefusal.ALREADY_TERMINAL


@pytest.mark.scenario(149, 150)
@pytest.mark.adr("0033", "6.1")
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("watch", [ControlStatus.ARMED, ControlStatus.LEASED])
def test_an_answer_that_came_first_leaves_nothing_to_settle(
    outcome: Outcome, watch: ControlStatus
) -> None:
    answered = complete(case(watch).progress, DONE._replace(outcome=outcome), at(90_000))
    assert isinstance(answered, Changed)
    before = Case(dispatch(), answered.after, None)
    for version in (0, 1, 2):
        event = evidence_command(fence=scan_fence(version))
        assert by_evidence(before, event, at(90_000)) is TERMINAL
        seen = observe_command(fence=scan_fence(version))
        assert looking.observe(before.progress, seen, at(90_000)) is (
            RecoveryRefusal.FENCE_REJECTED
        )
    for decision in Decision:
        said = person_command(decision=decision)
        assert by_person(before, said, at(90_000), policy=FENCE) is TERMINAL
    assert looking.claim(before.progress, claim_scan(), at(90_000)) is TERMINAL


@pytest.mark.scenario(149, 182)
@pytest.mark.adr("0033", "6.1")
def test_of_two_settlements_the_second_comes_too_late() -> None:
    held = case(ControlStatus.LEASED)
    person = settled(by_person(held, person_command(), at(CLAIM_MS), policy=FENCE))
    after = Case(dispatch(), person.progress, person.resolution)
    assert by_evidence(after, evidence_command(), at(50_000)) is TERMINAL
    proof = settled(by_evidence(held, evidence_command(), at(CLAIM_MS)))
    after = Case(dispatch(), proof.progress, proof.resolution)
    same = person_command(mutation_id="res-1", decision=Decision.CONFIRM_SUCCEEDED)
    assert by_person(after, same, at(CLAIM_MS), policy=FENCE) is TERMINAL


@pytest.mark.scenario(145, 152)
@pytest.mark.adr("0033", "1.4")
@pytest.mark.parametrize("finding", sorted(looking.VERIFIED))
@pytest.mark.parametrize("state", ExecutionStatus)
@pytest.mark.parametrize("watch", ControlStatus)
def test_evidence_moves_only_what_its_resolver_holds(
    state: ExecutionStatus, finding: Finding, watch: ControlStatus
) -> None:
    """The other road to the rows of `resolve`: never to blocked, and never without a scan lease."""
    before = progress(state, control(watch) if state is EXECUTING else None)
    version = 0 if before.control is None else before.control.version
    event = evidence_command(
        fence=scan_fence(version, execution_version=before.execution.version),
        evidence=Evidence(finding, "seen", PROOF),
    )
    answer = by_evidence(Case(dispatch(), before, None), event, at(70_000))
    if (state, watch) == (EXECUTING, ControlStatus.LEASED):
        ended = settled(answer).progress
        assert finding.value == f"verified_{ended.execution.status.value}"
        assert ended.control is not None
        assert ended.control.status is ControlStatus.RESOLVED
    elif state is EXECUTING:
        assert answer is RecoveryRefusal.FENCE_REJECTED
    else:
        assert answer is (RecoveryRefusal.NOT_FOUND if before.control is None else TERMINAL)
