"""A run is pinned to one revision, shown whole, and looked at before it starts (contract 11)."""

from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import RUN_CREATE, Plan, PlanFile, action_digest, bind
from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.domain.task import task_json
from qinglong_edge.ports.handlers import (
    ActionHandler,
    Inspection,
    Readiness,
)
from tests.contract.adapters import SqliteRepositories
from tests.contract.recovery_story import (
    done_effect,
    publish_of,
    task_of,
)
from tests.contract.story import Story
from tests.support.builders import PREVIEW, PROJECT, dispatch
from tests.unit.actions.acting import run_create


def plan(files: tuple[PlanFile, ...] = (), **params: Any) -> Plan:
    return Plan(RUN_CREATE, PROJECT, {"task_id": "task-1", **params}, files)


@pytest.fixture
def handler(story: Story) -> ActionHandler:
    """Return the handler on a store with task-1."""
    done_effect(story, 1, publish_of(1))
    return run_create(story.ports)


def republished(story: Story, n: int, name: str) -> None:
    """Store the next revision of task-1."""
    done_effect(story, n, publish_of(1)._replace(task=task_of(1, name=name)))


# check.


@pytest.mark.scenario(184, 185)
@pytest.mark.parametrize(
    "params",
    [
        {"note": 1},
        {"task_id": ""},
        {"task_id": "two words"},
        {"task_id": "x" * (limits.TASK_ID_CHARS_MAX + 1)},
        {"task_id": None},
        {"task_revision": "1"},
        {"task_revision": "r0"},
        {"task_revision": "r01"},
        {"task_revision": "r2147483648"},
        {"task_revision": 1},
        {"task_name": ""},
        {"task_name": "a\nb"},
        {"task_name": "x" * (limits.TASK_NAME_CHARS_MAX + 1)},
        {"priority": limits.PRIORITY_MAX + 1},
        {"priority": limits.PRIORITY_MIN - 1},
        {"priority": True},
        {"priority": 1.0},
        {"executor_type": "ssh"},
    ],
)
def test_a_malformed_plan_is_refused(handler: ActionHandler, params: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        handler.check(plan(**params))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"task_revision": "r2147483647", "task_name": "x" * limits.TASK_NAME_CHARS_MAX},
        {"priority": limits.PRIORITY_MIN, "task_id": "x" * limits.TASK_ID_CHARS_MAX},
        {"priority": limits.PRIORITY_MAX},
    ],
)
def test_a_well_formed_plan_passes(handler: ActionHandler, params: dict[str, Any]) -> None:
    handler.check(plan(**params))


def test_files_mean_nothing_to_a_run(handler: ActionHandler) -> None:
    with pytest.raises(UsageError):
        handler.check(plan((PlanFile("/bin/true", "a" * 64),)))


# pin and preview.


def test_an_open_plan_is_pinned_to_the_newest_revision(
    story: Story, handler: ActionHandler
) -> None:
    republished(story, 2, "Second")
    assert handler.pin(plan(priority=7), None).params == {
        "task_id": "task-1", "task_revision": "r2", "task_name": "Second", "priority": 7,
    }  # fmt: skip


def test_a_plan_may_name_an_older_revision(story: Story, handler: ActionHandler) -> None:
    republished(story, 2, "Second")
    pinned = handler.pin(plan(task_revision="r1", task_name="Task 1"), None)
    assert pinned.params == {
        "task_id": "task-1", "task_revision": "r1", "task_name": "Task 1", "priority": 0,
    }  # fmt: skip
    assert handler.pin(pinned, None) == pinned


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"task_id": "task-9"}, "task_not_found"),
        ({"task_revision": "r2"}, "task_not_found"),
        ({"task_name": "Other"}, "task_name_mismatch"),
    ],
)
def test_a_plan_for_what_is_not_there_is_refused(
    handler: ActionHandler, params: dict[str, Any], code: str
) -> None:
    with pytest.raises(RefusedError) as raised:
        handler.pin(plan(**params), None)
    assert raised.value.code == code


@pytest.mark.parametrize(
    "params", [{}, {"task_revision": "r1"}, {"task_name": "Task 1"}, {"priority": 0}]
)
def test_a_repeated_proposal_says_the_same_after_a_newer_revision_came(
    story: Story, handler: ActionHandler, params: dict[str, Any]
) -> None:
    known = handler.pin(plan(), None)
    republished(story, 2, "Second")
    assert handler.pin(plan(**params), known) == known
    assert handler.pin(plan(), None) != known


@pytest.mark.parametrize(
    "params", [{"task_revision": "r2"}, {"task_name": "Second"}, {"priority": 1}]
)
def test_a_proposal_that_says_something_else_is_pinned_anew(
    story: Story, handler: ActionHandler, params: dict[str, Any]
) -> None:
    """Under its old request id that is another action, and the store says so."""
    known = handler.pin(plan(), None)
    republished(story, 2, "Second")
    assert handler.pin(plan(**params), known).params["task_revision"] == "r2"


def test_what_another_type_stands_under_an_id_is_not_repeated(handler: ActionHandler) -> None:
    shell = Plan("shell.exec", PROJECT, {"argv": ["true"]}, ())
    assert handler.pin(plan(), shell).params["task_revision"] == "r1"


def test_a_preview_shows_the_whole_revision(story: Story, handler: ActionHandler) -> None:
    pinned = handler.pin(plan(), None)
    republished(story, 2, "Second")
    assert handler.preview(pinned) == {
        "action_type": RUN_CREATE,
        **pinned.params,
        "task": task_json(task_of(1)),
    }
    with pytest.raises(RefusedError):
        handler.preview(
            handler.pin(plan(), None)._replace(params={**pinned.params, "task_id": "x"})
        )


# inspect.


def dispatched(pinned: Plan, **action: Any) -> Dispatch:
    binding = bind(pinned, "run.start", PREVIEW)._replace(**action)
    return dispatch(action=binding)


@pytest.mark.scenario(187)
def test_a_look_is_ready_for_the_approved_digest_and_changes_nothing(
    sqlite: SqliteRepositories, handler: ActionHandler
) -> None:
    pinned = handler.pin(plan(), None)
    before = sqlite.snapshot()
    assert handler.inspect(dispatched(pinned), pinned) == Inspection(
        Readiness.READY, action_digest(pinned)
    )
    assert sqlite.snapshot() == before


def at_another_place(pinned: Plan) -> tuple[Dispatch, Plan]:
    return dispatched(pinned), pinned._replace(project_id="prj-other")


def of_another_task(pinned: Plan) -> tuple[Dispatch, Plan]:
    return dispatched(pinned, action_ref="task:task-2"), pinned


def of_another_name(pinned: Plan) -> tuple[Dispatch, Plan]:
    renamed: Any = {**pinned.params, "task_name": "Other"}
    return dispatched(pinned), pinned._replace(params=renamed)


def unpinned(pinned: Plan) -> tuple[Dispatch, Plan]:
    return dispatched(pinned), plan()


def of_another_type(pinned: Plan) -> tuple[Dispatch, Plan]:
    shell = Plan("shell.exec", PROJECT, {"argv": ["true"]}, ())
    return dispatched(pinned, action_type="shell.exec"), shell


def of_a_missing_revision(pinned: Plan) -> tuple[Dispatch, Plan]:
    later: Any = {**pinned.params, "task_revision": "r9"}
    return dispatched(pinned), pinned._replace(params=later)


@pytest.mark.scenario(196)
@pytest.mark.parametrize(
    ("staged", "readiness", "code"),
    [
        (at_another_place, Readiness.BLOCKED, "approved_run_plan_binding_invalid"),
        (of_another_task, Readiness.BLOCKED, "approved_run_plan_binding_invalid"),
        (of_another_name, Readiness.BLOCKED, "approved_run_plan_binding_invalid"),
        (unpinned, Readiness.BLOCKED, "approved_run_plan_invalid"),
        (of_another_type, Readiness.BLOCKED, "approved_run_type_mismatch"),
        (of_a_missing_revision, Readiness.RETRY, "approved_run_plan_missing"),
    ],
)
def test_a_look_says_why_a_run_cannot_start(
    handler: ActionHandler,
    staged: Callable[[Plan], tuple[Dispatch, Plan]],
    readiness: Readiness,
    code: str,
) -> None:
    asked = staged(handler.pin(plan(), None))
    assert handler.inspect(*asked) == Inspection(readiness, None, code)
