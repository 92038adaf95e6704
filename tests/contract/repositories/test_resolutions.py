"""Settling an unknown outcome: one commit, one winner, and nothing ever leads back."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.execution import Outcome, Record
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Decision, Finding, RecoveryRefusal, Source
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import (
    PROOF,
    UNSUPPORTED,
    VERIFIED,
    by_person,
    ended,
    evidence_of,
    observe_of,
    scan_of,
    scanned,
    unknown,
)
from tests.contract.story import (
    Story,
    changed,
    claim_of,
    complete_of,
    expire_of,
    release_of,
    renew_of,
    replayed,
    start_of,
)
from tests.support.builders import LEASE_MS
from tests.support.clock import WALL_MS

FAILED = Evidence(Finding.VERIFIED_FAILED, "receipt_says_failed", PROOF)
ENDS = {
    Decision.CONFIRM_SUCCEEDED: ExecutionStatus.SUCCEEDED,
    Decision.CONFIRM_FAILED: ExecutionStatus.FAILED,
    Decision.ABANDON_UNKNOWN: ExecutionStatus.BLOCKED,
}
Change = dict[str, Any]


@pytest.mark.adr("0009", "3")
@pytest.mark.adr("0033", "5.5")
@pytest.mark.scenario(144, 145, 154)
@pytest.mark.parametrize(
    ("evidence", "decision"),
    [(VERIFIED, Decision.CONFIRM_SUCCEEDED), (FAILED, Decision.CONFIRM_FAILED)],
)
def test_evidence_ends_execution_and_control_in_one_commit(
    story: Story, repositories: Repositories, evidence: Evidence, decision: Decision
) -> None:
    scanned(story)
    story.clocks.advance(9)
    commits = repositories.commits()
    event = evidence_of(1, evidence=evidence)
    stored = changed(story.ports.recoveries.resolve_by_evidence(event))
    assert repositories.commits() == commits + 1
    assert stored == story.record()
    assert ended(story) == (ENDS[decision], ControlStatus.RESOLVED)
    made, control = stored.resolution, story.control()
    assert made is not None
    assert (made.source, made.decision, made.resolved_by) == (
        Source.AUTOMATIC_EVIDENCE,
        decision,
        None,
    )
    assert (made.evidence_digest, made.reason_code) == (PROOF, evidence.result_code)
    assert (made.execution_version, made.mutation_id) == (3, "res-1")
    assert (made.resolved_at_ms, made.unprobed) == (WALL_MS + 9, False)
    assert (control.finding_count, control.last) == (1, ("res-1", *evidence))
    assert (story.execution().version, control.version) == (4, 3)


@pytest.mark.adr("0033", "6.2")
@pytest.mark.scenario(144, 147)
def test_the_same_evidence_again_is_a_replay_with_the_stored_time(story: Story) -> None:
    scanned(story)
    stored = changed(story.ports.recoveries.resolve_by_evidence(evidence_of(1)))
    story.clocks.advance(86_400_000)
    before = story.repositories.snapshot()
    assert replayed(story.ports.recoveries.resolve_by_evidence(evidence_of(1))) == stored
    assert story.repositories.snapshot() == before


EVIDENCE_DRIFTS: list[Change] = [
    {"mutation_id": "res-9"},
    {"evidence": FAILED},
    {"evidence": VERIFIED._replace(result_code="other")},
    {"evidence": VERIFIED._replace(evidence_digest="b" * 64)},
]


@pytest.mark.adr("0033", "6.2")
@pytest.mark.scenario(147)
@pytest.mark.parametrize("change", EVIDENCE_DRIFTS)
def test_other_evidence_comes_too_late(story: Story, change: Change) -> None:
    scanned(story)
    changed(story.ports.recoveries.resolve_by_evidence(evidence_of(1)))
    before = story.repositories.snapshot()
    answer = story.ports.recoveries.resolve_by_evidence(evidence_of(1, **change))
    assert answer is RecoveryRefusal.ALREADY_TERMINAL
    assert story.repositories.snapshot() == before


@pytest.mark.adr("0009", "4")
@pytest.mark.adr("0033", "6.1")
@pytest.mark.scenario(149, 150)
def test_a_completion_that_came_first_leaves_no_resolution(
    story: Story, repositories: Repositories
) -> None:
    scanned(story)
    won = changed(repositories.second_session().dispatches.complete(complete_of(1, 3))[0])
    answer = story.ports.recoveries.resolve_by_evidence(evidence_of(1))
    assert answer is RecoveryRefusal.ALREADY_TERMINAL
    assert by_person(story) is RecoveryRefusal.ALREADY_TERMINAL
    assert story.record() == won
    assert won.resolution is None


@pytest.mark.adr("0033", "6.1")
@pytest.mark.scenario(149, 151)
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("by", ["evidence", "person"])
def test_a_late_answer_counts_as_a_replay_only_where_it_says_the_same(
    story: Story, repositories: Repositories, outcome: Outcome, by: str
) -> None:
    """W1: under the fence that was settled; any other answer is refused, and nothing moves."""
    scanned(story)
    if by == "evidence":
        won = changed(story.ports.recoveries.resolve_by_evidence(evidence_of(1)))
    else:
        won = changed(by_person(story, decision=Decision.CONFIRM_SUCCEEDED))
    before = repositories.snapshot()
    handler = repositories.second_session().dispatches
    answer = handler.complete(complete_of(1, 3, outcome=outcome))[0]
    if outcome is Outcome.SUCCEEDED:
        assert replayed(answer) == won
    else:
        assert answer is DispatchRefusal.FENCE_REJECTED
    assert handler.complete(complete_of(1, 2))[0] is DispatchRefusal.FENCE_REJECTED
    assert repositories.snapshot() == before


@pytest.mark.adr("0033", "6.1")
@pytest.mark.scenario(149)
def test_of_two_resolvers_the_one_that_holds_the_scan_settles(
    story: Story, repositories: Repositories
) -> None:
    scanned(story)
    story.clocks.advance(LEASE_MS)
    other = repositories.second_session().recoveries
    changed(other.claim(scan_of(1, owner="resolver-2", token="probe-x")))
    first = story.ports.recoveries.resolve_by_evidence(evidence_of(1))
    assert first is RecoveryRefusal.FENCE_REJECTED
    held = evidence_of(1, 3).fence._replace(owner="resolver-2", token="probe-x")
    won = changed(other.resolve_by_evidence(evidence_of(1, fence=held, mutation_id="res-2")))
    late = story.ports.recoveries.resolve_by_evidence(evidence_of(1))
    assert late is RecoveryRefusal.ALREADY_TERMINAL
    assert story.record() == won


def armed(story: Story) -> None:
    unknown(story)


def waiting(story: Story) -> None:
    scanned(story)
    changed(story.ports.recoveries.observe(observe_of(1, evidence=UNSUPPORTED)))


@pytest.mark.adr("0033", "1.4")
@pytest.mark.scenario(182)
@pytest.mark.parametrize("before", [armed, scanned, waiting])
def test_a_person_settles_whoever_looks_meanwhile(
    story: Story, repositories: Repositories, before: Callable[[Story], object]
) -> None:
    before(story)
    won = changed(by_person(story))
    resolver = repositories.second_session().recoveries
    found = resolver.observe(observe_of(1, mutation_id="see-9"))
    assert found is RecoveryRefusal.FENCE_REJECTED
    late = resolver.resolve_by_evidence(evidence_of(1))
    assert late is RecoveryRefusal.ALREADY_TERMINAL
    assert resolver.claim(scan_of(1)) is RecoveryRefusal.ALREADY_TERMINAL
    assert story.record() == won


def used_by_the_same_approval(story: Story) -> str:
    return "apr-1"


def used_by_another_resolution(story: Story) -> str:
    scanned(story, 2)
    changed(story.ports.recoveries.resolve_by_evidence(evidence_of(2)))
    return "res-2"


@pytest.mark.adr("0033", "6.2")
@pytest.mark.scenario(153)
@pytest.mark.parametrize("used", [used_by_the_same_approval, used_by_another_resolution])
@pytest.mark.parametrize("by", ["evidence", "person"])
def test_a_mutation_id_settles_one_outcome_for_ever(
    story: Story, used: Callable[[Story], str], by: str
) -> None:
    scanned(story)
    name = used(story)
    before = story.repositories.snapshot()
    if by == "evidence":
        event = evidence_of(1, mutation_id=name)
        answer: object = story.ports.recoveries.resolve_by_evidence(event)
    else:
        answer = by_person(story, mutation_id=name)
    assert answer is RecoveryRefusal.MUTATION_DRIFT
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(143, 183)
def test_what_never_started_is_not_settled(story: Story) -> None:
    story.consumed(1)
    story.claimed(2)
    before = story.repositories.snapshot()
    for n in (1, 2, 9):
        assert by_person(story, n) is RecoveryRefusal.NOT_FOUND
        answer = story.ports.recoveries.resolve_by_evidence(evidence_of(n))
        assert answer is RecoveryRefusal.NOT_FOUND
    assert story.repositories.snapshot() == before


@pytest.mark.adr("0033", "7.2")
@pytest.mark.scenario(128, 156)
@pytest.mark.parametrize("decision", Decision)
def test_nothing_leads_back_from_a_settled_outcome(story: Story, decision: Decision) -> None:
    unknown(story)
    won: Record = changed(by_person(story, decision=decision))
    dispatches = story.ports.dispatches
    for version in range(5):
        dispatches.claim_page((claim_of(1),), start_of(1, version))
        dispatches.start(start_of(1, version))
        dispatches.renew(renew_of(1, version))
        dispatches.release(release_of(1, version))
        dispatches.expire(expire_of(1, version))
    assert dispatches.settle_dead_owners("owner-9") == 0
    assert story.record() == won
