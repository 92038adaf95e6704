"""How proof settles an unknown outcome, in the hands of whoever holds the scan lease."""

from typing import Any

import pytest

from qinglong_edge.domain.authorization import Act
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import (
    Decision,
    Finding,
    Observation,
    RecoveryRefusal,
)
from qinglong_edge.domain.resolution import Answer, Case, Settled, act_of, by_evidence, settles
from tests.support.builders import (
    ANA,
    PROJECT,
    at,
    control,
    dispatch,
    progress,
)
from tests.support.clock import WALL_MS
from tests.support.recovering import (
    CLAIM_MS,
    LEASE_END_MS,
    PROOF,
    case,
    evidence_command,
    resolution,
    scan_fence,
)

ARMED, LEASED, MANUAL_REQUIRED, RESOLVED = ControlStatus
SUCCEEDED, FAILED, BLOCKED = (
    ExecutionStatus.SUCCEEDED,
    ExecutionStatus.FAILED,
    ExecutionStatus.BLOCKED,
)
FR, TERMINAL = RecoveryRefusal.FENCE_REJECTED, RecoveryRefusal.ALREADY_TERMINAL
FAILURE = Evidence(Finding.VERIFIED_FAILED, "receipt_says_no", PROOF)


def settled(answer: Answer) -> Settled:
    assert type(answer) is Changed
    return answer.after


def known(after: Settled, of: Dispatch | None = None) -> Case:
    return Case(of or dispatch(), after.progress, after.resolution)


@pytest.mark.scenario(144, 145, 154)
@pytest.mark.adr("0033", "5.5")
@pytest.mark.parametrize(
    ("evidence", "status", "decision"),
    [
        (evidence_command().evidence, SUCCEEDED, Decision.CONFIRM_SUCCEEDED),
        (FAILURE, FAILED, Decision.CONFIRM_FAILED),
    ],
)
def test_a_proof_ends_execution_and_watch_and_says_why(
    evidence: Evidence, status: ExecutionStatus, decision: Decision
) -> None:
    before = case(LEASED, finding_count=2)
    after = settled(by_evidence(before, evidence_command(evidence=evidence), at(CLAIM_MS)))
    ended = WALL_MS + CLAIM_MS
    assert after.progress.execution == before.progress.execution._replace(
        status=status, version=3, lease=None, result_mutation_id="res-1",
        last_result_code=evidence.result_code, completed_at_ms=ended, updated_at_ms=ended,
    )  # fmt: skip
    assert before.progress.control is not None
    assert after.progress.control == before.progress.control._replace(
        status=RESOLVED, version=2, execution_version=3, next_scan_tick=None, lease=None,
        finding_count=3, last=Observation("res-1", *evidence), resolution_mutation_id="res-1",
        updated_at_ms=ended,
    )  # fmt: skip
    reason = evidence.result_code
    assert after.resolution == resolution(decision=decision, reason_code=reason)
    assert after.fact is None
    assert settles(after.resolution, after.progress)


def test_only_a_person_s_word_needs_a_fact() -> None:
    act = Act("dsp-1", PROJECT, "man-1", ANA, WALL_MS)
    word = resolution(mutation_id="man-1", resolved_by=ANA, resolved_at_ms=WALL_MS)
    assert act_of(word) == act
    assert act_of(word._replace(resolved_by=None)) is None
    assert act_of(None) is None


@pytest.mark.scenario(147, 152)
@pytest.mark.adr("0033", "5.5")
@pytest.mark.parametrize(
    ("before", "ms", "refusal"),
    [
        (
            Case(dispatch(), progress(ExecutionStatus.LEASED), None),
            70_000,
            RecoveryRefusal.NOT_FOUND,
        ),
        (Case(dispatch(), progress(SUCCEEDED), None), 0, TERMINAL),
        (case(ARMED), 70_000, FR),
        (case(MANUAL_REQUIRED), 70_000, FR),
        (case(LEASED), LEASE_END_MS - 1, FR),
    ],
)
def test_a_proof_settles_only_what_is_unknown_and_held(
    before: Case, ms: int, refusal: RecoveryRefusal
) -> None:
    assert by_evidence(before, evidence_command(), at(ms)) is refusal


@pytest.mark.scenario(139, 148)
@pytest.mark.parametrize("ms", [LEASE_END_MS, CLAIM_MS, 70_000, 10**9])
def test_a_proof_counts_from_the_end_of_the_execution_s_lease_on(ms: int) -> None:
    """And after the end of its own: nobody replaced it."""
    after = settled(by_evidence(case(LEASED), evidence_command(), at(ms)))
    assert after.resolution.resolved_at_ms == WALL_MS + ms


@pytest.mark.scenario(152)
@pytest.mark.adr("0033", "5.3")
@pytest.mark.parametrize(
    "change", [{"owner": "other"}, {"token": "probe-2"}, {"execution_version": 3}]
)
def test_a_proof_under_another_fence_settles_nothing(change: dict[str, Any]) -> None:
    event = evidence_command(fence=scan_fence()._replace(**change))
    assert by_evidence(case(LEASED), event, at(CLAIM_MS)) is FR
    for version in (0, 2):
        event = evidence_command(fence=scan_fence(version))
        assert by_evidence(case(LEASED), event, at(CLAIM_MS)) is FR


@pytest.mark.scenario(144, 147)
@pytest.mark.adr("0033", "6.2")
def test_a_repeated_proof_is_a_replay_by_meaning_and_every_other_one_too_late() -> None:
    first = settled(by_evidence(case(LEASED), evidence_command(), at(CLAIM_MS)))
    after = known(first)
    replay = Replayed(Settled(first.progress, first.resolution))
    held = evidence_command(fence=scan_fence(7, owner="other", token="probe-2"))
    for event in (evidence_command(), held):
        for now in (at(CLAIM_MS), at(10**9), at(0, epoch=2)):
            assert by_evidence(after, event, now) == replay
    for changes in (
        {"mutation_id": "res-2"},
        {"fence": scan_fence(execution_version=3)},
        {"evidence": evidence_command().evidence._replace(result_code="other")},
        {"evidence": evidence_command().evidence._replace(evidence_digest="b" * 64)},
        {"evidence": evidence_command().evidence._replace(finding=Finding.VERIFIED_FAILED)},
    ):
        assert by_evidence(after, evidence_command(**changes), at(CLAIM_MS)) is TERMINAL


@pytest.mark.scenario(142)
@pytest.mark.adr("0033", "5.5")
def test_a_resolution_belongs_to_exactly_one_end() -> None:
    ended = settled(by_evidence(case(LEASED), evidence_command(), at(CLAIM_MS))).progress
    assert settles(resolution(), ended)
    for change in (
        {"decision": Decision.CONFIRM_FAILED},
        {"decision": Decision.ABANDON_UNKNOWN},
        {"execution_version": 1},
        {"execution_version": 3},
        {"mutation_id": "res-2"},
    ):
        assert not settles(resolution(**change), ended)
    assert not settles(resolution(), ended._replace(control=None))
    open_yet = progress(ExecutionStatus.EXECUTING, control())
    assert not settles(resolution(), open_yet)
