"""Settling on the word of a person: who counts as one, and what they must have seen and proven."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.identity import Assurance
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence, Subject, SubjectType
from qinglong_edge.domain.recovery import Decision, RecoveryRefusal, Source
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import (
    MISSING,
    PROOF,
    by_person,
    ended,
    observe_of,
    person_of,
    publish_of,
    scan_of,
    scanned,
    started_effect,
    strong,
    unknown,
)
from tests.contract.story import (
    Story,
    changed,
    expire_of,
    replayed,
)
from tests.support.builders import ANA, BOB, LEASE_MS
from tests.support.clock import WALL_MS

ENDS = {
    Decision.CONFIRM_SUCCEEDED: ExecutionStatus.SUCCEEDED,
    Decision.CONFIRM_FAILED: ExecutionStatus.FAILED,
    Decision.ABANDON_UNKNOWN: ExecutionStatus.BLOCKED,
}
Change = dict[str, Any]


@pytest.mark.adr("0033", "5.5")
@pytest.mark.adr("0033", "1.4")
@pytest.mark.scenario(148, 181)
@pytest.mark.parametrize("decision", Decision)
@pytest.mark.parametrize("digest", [None, PROOF])
def test_a_person_ends_execution_and_control_in_one_commit(
    story: Story, repositories: Repositories, decision: Decision, digest: str | None
) -> None:
    unknown(story)
    story.clocks.advance(9)
    commits = repositories.commits()
    stored = changed(by_person(story, decision=decision, evidence_digest=digest))
    assert repositories.commits() == commits + 1
    assert stored == story.record()
    assert ended(story) == (ENDS[decision], ControlStatus.RESOLVED)
    made = stored.resolution
    assert made is not None
    assert (made.source, made.decision, made.resolved_by) == (Source.HUMAN, decision, ANA)
    assert (made.evidence_digest, made.reason_code) == (digest, "looked_myself")
    assert (made.resolved_at_ms, story.execution().completed_at_ms) == (WALL_MS + 9, WALL_MS + 9)
    assert (story.control().finding_count, story.execution().eligible_tick) == (0, None)
    story.clocks.advance(86_400_000)
    assert (story.due(), story.waits_for_recovery()) == ([], [])


@pytest.mark.adr("0033", "6.2")
@pytest.mark.scenario(147, 178)
def test_the_same_word_of_the_same_person_again_is_a_replay(story: Story) -> None:
    """W16: the person may have logged in anew meanwhile, and the clock went on."""
    unknown(story)
    stored = changed(by_person(story))
    story.clocks.advance(86_400_000)
    before = story.repositories.snapshot()
    anew = strong(story.clocks, authentication_id="ses-2", assurance=Assurance.HARDWARE)
    again = story.ports.recoveries.resolve_by_person(person_of(1, anew))
    assert replayed(again) == stored
    assert story.repositories.snapshot() == before


PERSON_DRIFTS: list[Change] = [
    {"mutation_id": "man-9"},
    {"decision": Decision.CONFIRM_FAILED},
    {"reason_code": "other"},
    {"evidence_digest": PROOF},
    {"execution_version": 2},
    {"unprobed": True},
]


@pytest.mark.adr("0033", "6.2")
@pytest.mark.scenario(147, 178)
@pytest.mark.parametrize("change", PERSON_DRIFTS)
def test_another_word_of_a_person_comes_too_late(story: Story, change: Change) -> None:
    unknown(story)
    changed(by_person(story))
    before = story.repositories.snapshot()
    assert by_person(story, **change) is RecoveryRefusal.ALREADY_TERMINAL
    assert story.repositories.snapshot() == before


def test_another_person_comes_too_late(story: Story) -> None:
    unknown(story)
    changed(by_person(story))
    event = person_of(1, strong(story.clocks, BOB))
    answer = story.ports.recoveries.resolve_by_person(event)
    assert answer is RecoveryRefusal.ALREADY_TERMINAL


@pytest.mark.scenario(148)
@pytest.mark.parametrize(("early", "refusal"), [(1, RecoveryRefusal.EXECUTION_ACTIVE), (0, None)])
def test_nobody_settles_what_may_still_answer(
    story: Story, early: int, refusal: RecoveryRefusal | None
) -> None:
    story.started()
    story.clocks.advance(LEASE_MS - early)
    before = story.repositories.snapshot()
    answer = by_person(story, execution_version=2)
    assert answer is refusal if refusal else isinstance(answer, Changed)
    assert (story.repositories.snapshot() == before) is (refusal is not None)


@pytest.mark.adr("0033", "7.1")
@pytest.mark.scenario(152)
@pytest.mark.parametrize(
    "change", [{"execution_version": 2}, {"execution_version": 4}, {"recovery_version": 1}]
)
def test_a_person_settles_what_they_saw(story: Story, change: Change) -> None:
    before = scanned(story)
    assert by_person(story, **change) is RecoveryRefusal.FENCE_REJECTED
    assert story.record() == before
    changed(by_person(story, recovery_version=2))


def revoke_the_person(story: Story) -> None:
    story.revoke(BOB)


def raise_the_project(story: Story) -> None:
    story.repositories.raise_project_version()


@pytest.mark.adr("0033", "7.1")
@pytest.mark.scenario(174, 175)
@pytest.mark.parametrize("between", [revoke_the_person, raise_the_project])
def test_a_permission_that_moved_since_it_was_looked_up_settles_nothing(
    story: Story, between: Callable[[Story], None]
) -> None:
    stored = unknown(story)
    between(story)
    event = person_of(1, strong(story.clocks, BOB))
    answer = story.ports.recoveries.resolve_by_person(event)
    assert answer is RecoveryRefusal.FENCE_CHANGED
    assert story.record() == stored
    assert story.control().status is ControlStatus.ARMED


def test_a_person_without_any_role_settles_nothing(story: Story) -> None:
    unknown(story)
    stranger = strong(story.clocks, Subject(SubjectType.USER, "eve"))
    event = person_of(1, stranger, fence=PolicyFence(1, None))
    answer = story.ports.recoveries.resolve_by_person(event)
    assert answer is RecoveryRefusal.STRONG_REQUIRED
    assert story.status() is ExecutionStatus.EXECUTING


OTHERS = [each for each in SubjectType if each is not SubjectType.USER]


@pytest.mark.adr("0033", "7.1")
@pytest.mark.scenario(169, 170)
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("settled", [False, True])
def test_only_a_user_is_a_person(story: Story, kind: SubjectType, *, settled: bool) -> None:
    unknown(story)
    if settled:
        changed(by_person(story))
    before = story.repositories.snapshot()
    event = person_of(1, strong(story.clocks, Subject(kind, "ana")))
    answer = story.ports.recoveries.resolve_by_person(event)
    assert answer is RecoveryRefusal.HUMAN_REQUIRED
    assert story.repositories.snapshot() == before


@pytest.mark.adr("0033", "7.1")
@pytest.mark.scenario(169, 171)
@pytest.mark.parametrize(
    ("assurance", "waited_ms", "refused"),
    [
        (Assurance.MULTI_FACTOR, limits.STRONG_AUTHENTICATION_AGE_MS_MAX, False),
        (Assurance.HARDWARE, 0, False),
        (Assurance.LOCAL_CONSOLE, 0, False),
        (Assurance.MULTI_FACTOR, limits.STRONG_AUTHENTICATION_AGE_MS_MAX + 1, True),
        (Assurance.SINGLE_FACTOR, 0, True),
        (Assurance.SERVICE, 0, True),
    ],
)
def test_a_person_proved_themselves_strongly_and_just_now(
    story: Story, assurance: Assurance, waited_ms: int, *, refused: bool
) -> None:
    stored = unknown(story)
    principal = strong(story.clocks, assurance=assurance)
    story.clocks.advance(waited_ms)
    answer = story.ports.recoveries.resolve_by_person(person_of(1, principal))
    assert answer is RecoveryRefusal.STRONG_REQUIRED if refused else isinstance(answer, Changed)
    assert (story.record() == stored) is refused


def test_a_person_is_believed_only_under_a_believed_clock(story: Story) -> None:
    stored = unknown(story)
    principal = strong(story.clocks)
    story.clocks.step_wall(-3_600_000)
    answer = story.ports.recoveries.resolve_by_person(person_of(1, principal))
    assert answer is RecoveryRefusal.CLOCK_UNTRUSTED
    assert story.record() == stored


def test_what_evidence_may_settle_is_looked_for_first(story: Story) -> None:
    """W25: without a look a person has to say so, and it is stored with their word."""
    started_effect(story, 1, publish_of(1))
    changed(story.ports.dispatches.expire(expire_of(1)))
    assert by_person(story) is RecoveryRefusal.NOT_PROBED
    stored = changed(by_person(story, unprobed=True))
    assert stored.resolution is not None
    assert stored.resolution.unprobed
    started_effect(story, 2, publish_of(2))
    changed(story.ports.dispatches.expire(expire_of(2)))
    changed(story.ports.recoveries.claim(scan_of(2)))
    changed(story.ports.recoveries.observe(observe_of(2, evidence=MISSING)))
    changed(by_person(story, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"evidence_digest": "A" * 64},
        {"execution_version": 0},
        {"recovery_version": -1},
        {"mutation_id": ""},
        {"reason_code": "x" * 65},
    ],
)
def test_a_malformed_word_is_refused_before_anything_is_read(story: Story, change: Change) -> None:
    unknown(story)
    with pytest.raises(UsageError):
        by_person(story, **change)
