"""A run is created once, of the revision that was approved (contract 11.5)."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import RUN_CREATE, Plan
from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.run import RunIds, RunPlan
from qinglong_edge.ports.handlers import (
    ActionHandler,
    HandlerAnswer,
    HandlerContext,
)
from tests.contract.adapters import Fault, SqliteRepositories, spoil
from tests.contract.recovery_story import (
    done_effect,
    evidence_of,
    publish_of,
    run_of,
    scan_of,
    started_effect,
    task_of,
)
from tests.contract.story import Story, changed, complete_of, expire_of, fence_of, renew_of
from tests.support.builders import PROJECT
from tests.unit.actions.acting import context_of, found, left, receipt, run_create, table

CREATED = HandlerAnswer(Outcome.SUCCEEDED, "approved_run_created")
ONE_RUN = {
    "task_revisions": 1, "runs": 1, "run_attempts": 1, "run_events": 2, "action_receipts": 2,
}  # fmt: skip


def plan(**params: Any) -> Plan:
    return Plan(RUN_CREATE, PROJECT, {"task_id": "task-1", **params}, ())


def failed(code: str) -> HandlerAnswer:
    return HandlerAnswer(Outcome.FAILED, code)


@pytest.fixture
def handler(story: Story) -> ActionHandler:
    """Return the handler on a store with task-1."""
    done_effect(story, 1, publish_of(1))
    return run_create(story.ports)


def test_the_ids_of_a_run_are_drawn_in_their_order(handler: ActionHandler) -> None:
    pinned = handler.pin(plan(priority=-5), None)
    effect = handler.effect(pinned)
    assert effect == (
        RunPlan("task-1", "r1", "Task 1", -5),
        RunIds("drawn-1", "drawn-2", "drawn-3", "drawn-4"),
    )
    assert handler.effect(pinned) != effect
    assert handler.deadline_ms(pinned) == limits.HANDLER_DEADLINE_MS_DEFAULT


@pytest.fixture
def started(story: Story, handler: ActionHandler) -> HandlerContext:
    """Return what `execute` is given for action 2, which runs task-1."""
    started_effect(story, 2, run_of(2, of=1))
    return context_of(story, 2)


@pytest.mark.scenario(187)
def test_executing_again_answers_alike_and_leaves_one_run(
    story: Story, sqlite: SqliteRepositories, handler: ActionHandler, started: HandlerContext
) -> None:
    assert handler.execute(started) == CREATED
    once = sqlite.snapshot()
    assert handler.execute(started) == CREATED
    assert sqlite.snapshot() == once
    assert left(sqlite) == ONE_RUN
    (run,) = table(sqlite, "runs")
    assert (run["run_id"], run["status"], run["version"]) == ("drawn-1", "queued", 2)
    assert (run["idempotency_key"], run["request_id"]) == ("dsp-2", "apr-2")
    assert run["created_at_ms"] == started.execution.started_at_ms
    said = receipt(story, 2)
    assert (said["resourceType"], said["resourceId"]) == ("run", "drawn-1")
    assert (said["executionAttempt"], said["executionVersion"]) == (1, 2)
    assert said["startedAtMs"] == started.execution.started_at_ms


@pytest.mark.scenario(198)
def test_two_sessions_that_create_for_one_dispatch_leave_one_run(
    sqlite: SqliteRepositories, handler: ActionHandler, started: HandlerContext
) -> None:
    rival = run_create(sqlite.second_session(), start=100)
    assert (rival.execute(started), handler.execute(started)) == (CREATED, CREATED)
    assert left(sqlite) == ONE_RUN
    assert table(sqlite, "runs")[0]["run_id"] == "drawn-101"


@pytest.mark.scenario(196, 197)
@pytest.mark.parametrize("change", [{"priority": 1}, {"task_name": "Other"}])
def test_a_plan_that_changed_behind_the_look_creates_nothing(
    sqlite: SqliteRepositories,
    handler: ActionHandler,
    started: HandlerContext,
    change: dict[str, Any],
) -> None:
    params: Any = {**started.plan.params, **change}
    other = started._replace(plan=started.plan._replace(params=params))
    before = sqlite.snapshot()
    assert handler.execute(other) == failed("approved_run_plan_changed")
    assert sqlite.snapshot() == before


@pytest.mark.scenario(196)
@pytest.mark.parametrize(
    "statement", ["DELETE FROM task_revisions", "UPDATE task_revisions SET name = 'Other'"]
)
def test_a_revision_that_disappeared_creates_nothing(
    sqlite: SqliteRepositories, handler: ActionHandler, started: HandlerContext, statement: str
) -> None:
    spoil(sqlite.path, statement)
    assert handler.execute(started) == failed("approved_run_plan_disappeared")
    assert "runs" not in left(sqlite)


FOREIGN = """
    INSERT INTO runs (run_id, project, task_id, task_revision, task_name, priority, trigger_type,
      execution_origin, execution_owner, triggered_by, request_id, idempotency_key, status, version,
      event_sequence, created_at_ms, queued_at_ms)
    VALUES ('run-foreign', 1, 'task-1', 'r1', 'Task 1', 0, 'manual', 'user', 'runtime', 'ana',
      'req', 'dsp-2', 'queued', 2, 2, 1, 1)
"""


@pytest.mark.scenario(195)
def test_a_foreign_run_under_the_same_key_is_a_conflict_and_stays(
    sqlite: SqliteRepositories, handler: ActionHandler, started: HandlerContext
) -> None:
    spoil(sqlite.path, FOREIGN)
    before = sqlite.snapshot()
    assert handler.execute(started) == failed("approved_run_receipt_conflict")
    assert sqlite.snapshot() == before


def complete(story: Story) -> None:
    changed(story.ports.dispatches.complete(complete_of(2))[0])


def settle(story: Story) -> None:
    changed(story.ports.dispatches.expire(expire_of(2)))
    changed(story.ports.recoveries.claim(scan_of(2)))
    changed(story.ports.recoveries.resolve_by_evidence(evidence_of(2, 2)))


@pytest.mark.scenario(191, 192, 196)
@pytest.mark.parametrize("ends", [complete, settle])
def test_an_old_context_creates_nothing_after_the_end(
    story: Story,
    sqlite: SqliteRepositories,
    handler: ActionHandler,
    started: HandlerContext,
    ends: Callable[[Story], None],
) -> None:
    ends(story)
    before = sqlite.snapshot()
    assert handler.execute(started) == failed("approved_run_fence_invalid")
    assert sqlite.snapshot() == before


@pytest.mark.scenario(192, 196)
@pytest.mark.parametrize(
    "change", [{"owner": "owner-2"}, {"token": "token-9"}, {"version": 3}], ids=str
)
def test_another_fence_creates_nothing(
    sqlite: SqliteRepositories,
    handler: ActionHandler,
    started: HandlerContext,
    change: dict[str, Any],
) -> None:
    other = started._replace(fence=fence_of(2, 2)._replace(**change))
    assert handler.execute(other) == failed("approved_run_fence_invalid")
    assert "runs" not in left(sqlite)


@pytest.mark.scenario(190)
def test_a_renewal_took_nothing_away_and_the_receipt_knows_it(
    story: Story, handler: ActionHandler, started: HandlerContext
) -> None:
    changed(story.ports.dispatches.renew(renew_of(2, 2)))
    assert handler.execute(started) == CREATED
    assert receipt(story, 2)["executionVersion"] == 3


@pytest.mark.scenario(199)
def test_a_clock_behind_the_start_finishes_at_the_start(
    story: Story, handler: ActionHandler, started: HandlerContext
) -> None:
    """W23: nothing finished before it began."""
    story.clocks.step_wall(-3_600_000)
    assert handler.execute(started) == CREATED
    said = receipt(story, 2)
    assert said["finishedAtMs"] == said["createdAtMs"] >= said["startedAtMs"]


@pytest.mark.adr("0033", "3.2")
@pytest.mark.scenario(202)
def test_a_receipt_is_small_and_says_nothing_of_the_task(
    story: Story, sqlite: SqliteRepositories
) -> None:
    secret = task_of(1, argv=("/bin/echo", "s3cret"), env={"KEY": "s3cret"})
    done_effect(story, 1, publish_of(1)._replace(task=secret))
    done_effect(story, 2, run_of(2, of=1))
    for n in (1, 2):
        body = found(story, n).body
        assert body is not None
        assert len(body) <= limits.RECEIPT_BYTES_MAX
        assert b"s3cret" not in body
    assert "s3cret" not in str(table(sqlite, "run_events") + table(sqlite, "runs"))


@pytest.mark.adr("0033", "6.3")
@pytest.mark.scenario(155)
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.NEVER_DONE])
def test_what_the_storage_does_not_take_is_raised_and_no_answer(
    sqlite: SqliteRepositories, handler: ActionHandler, started: HandlerContext, fault: Fault
) -> None:
    before = sqlite.snapshot()
    sqlite.fail_next_commit(fault)
    with pytest.raises(UnavailableError):
        handler.execute(started)
    assert sqlite.snapshot() == before
