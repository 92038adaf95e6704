"""A task's next revision is stored once, exactly as it was approved."""

from typing import Any

import pytest

from qinglong_edge.actions.task_publish import TaskPublish
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import TASK_PUBLISH, Plan, PlanFile, action_digest, bind
from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.task import task_body, task_json
from qinglong_edge.ports.handlers import ActionHandler, HandlerAnswer, Inspection, Readiness
from tests.contract.adapters import Fault, SqliteRepositories
from tests.contract.recovery_story import done_effect, publish_of, started_effect, task_of
from tests.contract.story import Story, changed, complete_of, renew_of
from tests.support.builders import PREVIEW, PROJECT, dispatch
from tests.unit.actions.acting import context_of, found, left, receipt

PUBLISHED = HandlerAnswer(Outcome.SUCCEEDED, "task_published")
SMALL: dict[str, Any] = {
    "schema_version": 1, "task_id": "task-1", "name": "Task 1", "argv": ["/bin/true"],
}  # fmt: skip


def plan(files: tuple[PlanFile, ...] = (), **params: Any) -> Plan:
    return Plan(TASK_PUBLISH, PROJECT, {**SMALL, **params}, files)


@pytest.fixture
def handler(story: Story) -> ActionHandler:
    return TaskPublish(story.ports.effects)


@pytest.mark.parametrize(
    "params",
    [
        {"note": 1},
        {"schema_version": 2},
        {"task_id": "two words"},
        {"task_id": "x" * (limits.TASK_ID_CHARS_MAX + 1)},
        {"name": ""},
        {"argv": []},
        {"argv": "true"},
        {"cwd": "tmp"},
        {"env": {"1A": "x"}},
        {"timeout_ms": 0},
        {"timeout_ms": limits.RUN_TIMEOUT_MS_MAX + 1},
        {"overlap": "queue"},
    ],
)
def test_a_malformed_task_is_refused_and_never_ready(
    handler: ActionHandler, params: dict[str, Any]
) -> None:
    wrong = plan(**params)
    with pytest.raises(UsageError):
        handler.check(wrong)
    assert handler.inspect(dispatch(), wrong) == Inspection(
        Readiness.BLOCKED, None, "task_plan_invalid"
    )


def test_files_mean_nothing_to_a_task(handler: ActionHandler) -> None:
    handler.check(plan())
    with pytest.raises(UsageError):
        handler.check(plan((PlanFile("/bin/true", "a" * 64),)))


def test_what_is_approved_holds_every_default(handler: ActionHandler) -> None:
    pinned = handler.pin(plan(), None)
    assert pinned.params == {
        **SMALL,
        "cwd": "/",
        "env": {},
        "timeout_ms": limits.RUN_TIMEOUT_MS_DEFAULT,
        "overlap": "refuse",
    }
    assert handler.pin(pinned, None) == handler.pin(plan(overlap="refuse"), pinned) == pinned
    assert handler.preview(plan()) == {"action_type": TASK_PUBLISH, "task": pinned.params}


def test_a_look_is_ready_for_the_approved_digest_and_changes_nothing(
    sqlite: SqliteRepositories, handler: ActionHandler
) -> None:
    pinned = handler.pin(plan(), None)
    asked = dispatch(action=bind(pinned, "task.update", PREVIEW))
    before = sqlite.snapshot()
    assert handler.inspect(asked, pinned) == Inspection(Readiness.READY, action_digest(pinned))
    assert handler.effect(pinned) == publish_of(1)
    assert sqlite.snapshot() == before


def test_executing_again_answers_alike_and_leaves_one_revision(
    story: Story, sqlite: SqliteRepositories, handler: ActionHandler
) -> None:
    started_effect(story, 1, publish_of(1))
    context = context_of(story, 1)
    assert handler.execute(context) == PUBLISHED
    once = sqlite.snapshot()
    assert handler.execute(context) == PUBLISHED
    assert sqlite.snapshot() == once
    assert left(sqlite) == {"task_revisions": 1, "action_receipts": 1}
    stored = story.ports.tasks.find("task-1")
    assert stored is not None
    assert (stored.number, stored.body, stored.dispatch_id) == (1, task_body(task_of(1)), "dsp-1")
    said = receipt(story, 1)
    assert (said["resourceType"], said["resourceId"]) == ("task_revision", "task-1:r1")
    assert found(story, 1).resource == stored


def test_every_publication_is_the_next_revision_and_the_old_ones_stay(
    story: Story, handler: ActionHandler
) -> None:
    names = ["First", "Second", "Third"]
    for n, name in enumerate(names, 1):
        started_effect(story, n, publish_of(1)._replace(task=task_of(1, name=name)))
        assert handler.execute(context_of(story, n)) == PUBLISHED
    revisions = [story.ports.tasks.find("task-1", number) for number in (1, 2, 3)]
    assert [each.name for each in revisions if each is not None] == names
    assert story.ports.tasks.find("task-1") == revisions[-1]
    assert story.ports.tasks.find("task-1", 4) is None


def test_the_longest_name_of_a_task_still_fits_its_receipt(
    story: Story, handler: ActionHandler
) -> None:
    longest = task_of(1, task_id="x" * limits.TASK_ID_CHARS_MAX)
    started_effect(story, 1, publish_of(1)._replace(task=longest))
    assert handler.execute(context_of(story, 1)) == PUBLISHED
    assert receipt(story, 1)["resourceId"] == f"{longest.task_id}:r1"


@pytest.mark.scenario(197)
def test_a_task_that_changed_behind_the_look_is_not_published(
    story: Story, sqlite: SqliteRepositories, handler: ActionHandler
) -> None:
    started_effect(story, 1, publish_of(1))
    context = context_of(story, 1)
    renamed = context.plan._replace(params=task_json(task_of(1, name="Other")))
    other = context._replace(plan=renamed)
    assert handler.execute(other) == HandlerAnswer(Outcome.FAILED, "approved_run_plan_changed")
    assert left(sqlite) == {}


@pytest.mark.scenario(190, 191)
def test_only_the_holder_of_the_barrier_publishes(
    story: Story, sqlite: SqliteRepositories, handler: ActionHandler
) -> None:
    """A renewal takes nothing away; another token and an end do."""
    started_effect(story, 1, publish_of(1))
    context = context_of(story, 1)
    lost = HandlerAnswer(Outcome.FAILED, "approved_run_fence_invalid")
    assert handler.execute(context._replace(fence=context.fence._replace(token="other"))) == lost
    started_effect(story, 2, publish_of(2))
    ended = context_of(story, 2)
    changed(story.ports.dispatches.complete(complete_of(2))[0])
    assert handler.execute(ended) == lost
    assert left(sqlite) == {}
    changed(story.ports.dispatches.renew(renew_of(1, 2)))
    assert handler.execute(context) == PUBLISHED


@pytest.mark.adr("0033", "6.3")
def test_what_the_storage_does_not_take_is_raised_and_no_answer(
    story: Story, sqlite: SqliteRepositories, handler: ActionHandler
) -> None:
    done_effect(story, 1, publish_of(1))
    started_effect(story, 2, publish_of(2))
    before = sqlite.snapshot()
    sqlite.fail_next_commit(Fault.FULL)
    with pytest.raises(UnavailableError):
        handler.execute(context_of(story, 2))
    assert sqlite.snapshot() == before
