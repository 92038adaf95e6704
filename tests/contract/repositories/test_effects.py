"""Actions on this database: their effect at most once, with its receipt, in one commit."""

from typing import Any

import pytest

from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.effect import PLAN_CHANGED, PLAN_DISAPPEARED, Effect, PublishTask
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.receipt import Found, parse_receipt, receipt_digest
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.domain.run import Attempt, AttemptStatus, Run, RunStatus
from qinglong_edge.domain.task import TaskRevision, task_body
from qinglong_edge.ports.handlers import HandlerAnswer
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import (
    by_person,
    claimed_effect,
    done_effect,
    evidence_of,
    judged,
    left,
    perform_of,
    publish_of,
    run_of,
    scan_of,
    start_effect,
    started_effect,
    task_of,
    whole_of,
)
from tests.contract.story import (
    Story,
    changed,
    complete_of,
    expire_of,
    fence_of,
    renew_of,
)
from tests.support.builders import HOUR_MS, LEASE_MS, PROJECT
from tests.support.clock import WALL_MS

PUBLISHED = HandlerAnswer(Outcome.SUCCEEDED, "task_published")
CREATED = HandlerAnswer(Outcome.SUCCEEDED, "approved_run_created")
WAYS = pytest.mark.parametrize("whole", [False, True], ids=["split", "whole"])
EFFECTS = pytest.mark.parametrize(
    ("effect", "answer"),
    [(publish_of(2), PUBLISHED), (run_of(2, of=1), CREATED)],
    ids=["publish", "run"],
)
NOTHING = Found(None, None, None, None, stray=False)


def have(story: Story, n: int, effect: Effect, *, whole: bool) -> None:
    """Have an effect behind its barrier, in one commit or in one after the other."""
    if whole:
        done_effect(story, n, effect)
        return
    started_effect(story, n, effect)
    assert story.ports.effects.perform(perform_of(n, effect)).outcome is Outcome.SUCCEEDED  # type: ignore[union-attr]


@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(187)
@WAYS
def test_a_published_task_is_the_next_revision(story: Story, *, whole: bool) -> None:
    have(story, 1, publish_of(1), whole=whole)
    anew = PublishTask(task_of(1, name="Anew", timeout_ms=5))
    story.clocks.advance(7)
    have(story, 2, anew, whole=whole)
    tasks = story.ports.tasks
    first = TaskRevision("task-1", PROJECT, 1, "Task 1", task_body(task_of(1)), "dsp-1", WALL_MS)
    second = TaskRevision("task-1", PROJECT, 2, "Anew", task_body(anew.task), "dsp-2", WALL_MS + 7)
    assert (tasks.find("task-1"), tasks.find("task-1", 2)) == (second, second)
    assert tasks.find("task-1", 1) == first
    assert (tasks.find("task-1", 3), tasks.find("task-9")) == (None, None)
    assert (left(story, 1).resource, left(story, 2).resource) == (first, second)


@pytest.mark.adr("0033", "4.3")
@pytest.mark.scenario(187)
@WAYS
def test_an_admitted_run_is_queued_with_its_first_attempt(story: Story, *, whole: bool) -> None:
    done_effect(story, 1, publish_of(1))
    story.clocks.advance(7)
    have(story, 2, run_of(2, of=1), whole=whole)
    at_ms, found = WALL_MS + 7, left(story, 2)
    assert found.resource == Run(
        "run-2", PROJECT, "task-1", "r1", "Task 1", 0, "approved_action", "system", "runtime",
        "approved-action:dsp-2", "apr-2", "dsp-2", RunStatus.QUEUED, 2, 2, at_ms, at_ms,
    )  # fmt: skip
    assert found.attempt == Attempt("att-2", 1, AttemptStatus.CLAIMED, "local_process", 0, at_ms)


@pytest.mark.adr("0009", "6")
@pytest.mark.adr("0033", "3.1")
@pytest.mark.adr("0033", "3.2")
@pytest.mark.scenario(187, 202)
@EFFECTS
@WAYS
def test_a_receipt_binds_the_whole_identity(
    story: Story, effect: Effect, answer: HandlerAnswer, *, whole: bool
) -> None:
    done_effect(story, 1, publish_of(1))
    story.clocks.advance(7)
    have(story, 2, effect, whole=whole)
    record, found = story.record(2), left(story, 2)
    assert found.body is not None
    assert len(found.body) <= 4_096
    assert b"argv" not in found.body
    assert b"/bin/true" not in found.body
    said, at_ms = parse_receipt(found.body), WALL_MS + 7
    kind = "run" if answer is CREATED else "task_revision"
    assert said == (
        1, "dsp-2", "apr-2", PROJECT, record.approval.action.action_type,
        record.approval.action.action_digest, 1, 2, at_ms, "dsp-2", "succeeded",
        answer.result_code, kind, "run-2" if kind == "run" else "task-2:r1", at_ms, at_ms,
    )  # fmt: skip
    assert found.digest == receipt_digest(found.body)
    verified = judged(story, 2)
    assert (verified.finding, verified.evidence_digest) == (
        Finding.VERIFIED_SUCCEEDED,
        found.digest,
    )


@pytest.mark.adr("0033", "6.2")
@pytest.mark.scenario(187)
@EFFECTS
def test_an_effect_is_had_once_and_answered_alike(
    story: Story, repositories: Repositories, effect: Effect, answer: HandlerAnswer
) -> None:
    done_effect(story, 1, publish_of(1))
    executing = started_effect(story, 2, effect)
    commits = repositories.commits()
    assert story.ports.effects.perform(perform_of(2, effect)) == answer
    assert repositories.commits() == commits + 1
    assert story.record(2) == executing
    before = repositories.snapshot()
    story.clocks.advance(1)
    other = run_of(2, of=1)
    drawn = other._replace(drawn=other.drawn._replace(run_id="run-x", attempt_id="att-x"))
    again = effect if effect != other else drawn
    for ports in (story.ports, repositories.second_session()):
        assert ports.effects.perform(perform_of(2, again)) == answer
    assert (repositories.snapshot(), repositories.commits()) == (before, commits + 1)


@pytest.mark.scenario(191, 192)
@pytest.mark.parametrize("change", [{"owner": "x"}, {"token": "x"}, {"version": 3}])
@EFFECTS
def test_only_the_holder_has_its_effect(
    story: Story, effect: Effect, answer: HandlerAnswer, change: dict[str, Any]
) -> None:
    done_effect(story, 1, publish_of(1))
    started_effect(story, 2, effect)
    before = story.repositories.snapshot()
    lost = perform_of(2, effect)._replace(fence=fence_of(2, 2)._replace(**change))
    assert story.ports.effects.perform(lost) is DispatchRefusal.FENCE_REJECTED
    assert story.repositories.snapshot() == before
    assert story.ports.effects.perform(perform_of(2, effect)) == answer


@pytest.mark.scenario(191, 192)
@pytest.mark.parametrize("how", ["completed", "resolved"])
@EFFECTS
def test_what_ended_has_no_effect_any_more(
    story: Story, effect: Effect, answer: HandlerAnswer, how: str
) -> None:
    done_effect(story, 1, publish_of(1))
    started_effect(story, 2, effect)
    if how == "completed":
        changed(story.ports.dispatches.complete(complete_of(2, outcome=Outcome.FAILED))[0])
    else:
        changed(story.ports.dispatches.expire(expire_of(2)))
        changed(by_person(story, 2, unprobed=True))
    before = story.repositories.snapshot()
    refused = story.ports.effects.perform(perform_of(2, effect))
    assert (refused, answer.outcome) == (DispatchRefusal.FENCE_REJECTED, Outcome.SUCCEEDED)
    whole = story.ports.dispatches.start(whole_of(2, effect, mutation_id="done-x"))
    assert whole is DispatchRefusal.FENCE_REJECTED
    assert story.repositories.snapshot() == before
    assert left(story, 2) == NOTHING


@pytest.mark.scenario(143)
def test_before_the_barrier_there_is_no_effect(story: Story) -> None:
    claimed_effect(story, 1, publish_of(1))
    before = story.repositories.snapshot()
    for event in (perform_of(1, publish_of(1), 1), perform_of(1, publish_of(1))):
        assert story.ports.effects.perform(event) is DispatchRefusal.FENCE_REJECTED
    missing = story.ports.effects.perform(perform_of(9, publish_of(9)))
    assert missing is DispatchRefusal.NOT_FOUND
    assert story.repositories.snapshot() == before
    assert story.ports.effects.receipt("dsp-9") is None
    assert story.ports.effects.receipt("apr-1") is None
    assert judged(story, 1).finding is Finding.CONFLICT


@pytest.mark.scenario(190)
@pytest.mark.parametrize("expired", [False, True])
@EFFECTS
def test_a_renewal_or_an_expiry_takes_no_effect_away(
    story: Story, effect: Effect, answer: HandlerAnswer, *, expired: bool
) -> None:
    """The receipt holds the version that its own transaction read."""
    done_effect(story, 1, publish_of(1))
    started_effect(story, 2, effect)
    if expired:
        changed(story.ports.dispatches.expire(expire_of(2)))
    else:
        changed(story.ports.dispatches.renew(renew_of(2, 2)))
    assert story.ports.effects.perform(perform_of(2, effect)) == answer
    body = left(story, 2).body
    assert body is not None
    assert parse_receipt(body).execution_version == 3
    assert judged(story, 2).finding is Finding.VERIFIED_SUCCEEDED
    changed(story.ports.dispatches.renew(renew_of(2, 3)))
    assert judged(story, 2).finding is Finding.VERIFIED_SUCCEEDED


@pytest.mark.adr("0033", "6.1")
@pytest.mark.scenario(193, 200)
@EFFECTS
def test_a_verdict_that_was_never_stored_is_found_by_its_receipt(
    story: Story, effect: Effect, answer: HandlerAnswer
) -> None:
    done_effect(story, 1, publish_of(1))
    started_effect(story, 2, effect)
    missing = judged(story, 2)
    assert (missing.finding, missing.evidence_digest) == (Finding.MISSING, None)
    assert story.ports.effects.perform(perform_of(2, effect)) == answer
    story.clocks.advance(LEASE_MS)
    changed(story.ports.recoveries.claim(scan_of(2)))
    event = evidence_of(2, 1, evidence=judged(story, 2))
    settled = event._replace(fence=event.fence._replace(execution_version=2))
    stored = changed(story.ports.recoveries.resolve_by_evidence(settled))
    assert story.status(2) is ExecutionStatus.SUCCEEDED
    assert stored.resolution is not None
    assert stored.resolution.evidence_digest == left(story, 2).digest
    assert judged(story, 2).finding is Finding.VERIFIED_SUCCEEDED


CHANGED: list[tuple[Effect, Effect]] = [
    (publish_of(2), PublishTask(task_of(2, name="Other"))),
    (publish_of(2), run_of(2, of=1)),
    (run_of(2, of=1), run_of(2, of=1, revision="r2")),
]


@pytest.mark.scenario(197)
@pytest.mark.parametrize(("approved", "asked"), CHANGED)
@WAYS
def test_only_what_was_approved_is_had(
    story: Story, approved: Effect, asked: Effect, *, whole: bool
) -> None:
    done_effect(story, 1, publish_of(1))
    claimed_effect(story, 2, approved)
    if whole:
        event = whole_of(2, approved)._replace(effect=asked)
        changed(story.ports.dispatches.start(event))
        ended = story.execution(2)
        assert (ended.status, ended.last_result_code) == (ExecutionStatus.FAILED, PLAN_CHANGED)
    else:
        changed(story.ports.dispatches.start(start_effect(2, approved)))
        before = story.repositories.snapshot()
        answer = story.ports.effects.perform(perform_of(2, asked))
        assert answer == HandlerAnswer(Outcome.FAILED, PLAN_CHANGED)
        assert story.repositories.snapshot() == before
    assert left(story, 2) == NOTHING


def test_an_action_outside_this_database_has_no_effect_in_it(story: Story) -> None:
    story.started(1)
    before = story.repositories.snapshot()
    answer = story.ports.effects.perform(perform_of(1, publish_of(1)))
    assert answer == HandlerAnswer(Outcome.FAILED, PLAN_CHANGED)
    assert story.repositories.snapshot() == before


RENAMED = run_of(2, of=1)._replace(plan=run_of(2, of=1).plan._replace(task_name="Other"))
GONE = [run_of(2, of=9), run_of(2, of=1, revision="r7"), RENAMED]


@pytest.mark.scenario(196)
@pytest.mark.parametrize("effect", GONE)
@WAYS
def test_a_run_of_a_revision_that_is_not_there_is_not_admitted(
    story: Story, effect: Effect, *, whole: bool
) -> None:
    done_effect(story, 1, publish_of(1))
    claimed_effect(story, 2, effect)
    if whole:
        changed(story.ports.dispatches.start(whole_of(2, effect)))
        ended = story.execution(2)
        assert (ended.status, ended.last_result_code) == (ExecutionStatus.FAILED, PLAN_DISAPPEARED)
    else:
        changed(story.ports.dispatches.start(start_effect(2, effect)))
        answer = story.ports.effects.perform(perform_of(2, effect))
        assert answer == HandlerAnswer(Outcome.FAILED, PLAN_DISAPPEARED)
        assert judged(story, 2).finding is Finding.MISSING
    assert left(story, 2) == NOTHING


@pytest.mark.scenario(199)
def test_a_receipt_never_ends_before_its_start(story: Story) -> None:
    """W23: a clock that was set back leaves a good effect standing."""
    started_effect(story, 1, publish_of(1))
    story.clocks.step_wall(-HOUR_MS)
    assert story.ports.effects.perform(perform_of(1, publish_of(1))) == PUBLISHED
    body = left(story, 1).body
    assert body is not None
    said = parse_receipt(body)
    assert said.finished_at_ms == said.created_at_ms == said.started_at_ms
    assert judged(story, 1).finding is Finding.VERIFIED_SUCCEEDED
