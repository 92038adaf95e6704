"""A task file is read exactly, with its defaults filled in once and for all."""

import json
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import PlanFile, action_digest, parse_plan, plan_body
from qinglong_edge.domain.canonical import parse_object
from qinglong_edge.domain.effect import PublishTask, plan_of
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.ids import check_ident
from qinglong_edge.domain.task import (
    Overlap,
    Task,
    check_task_id,
    parse_revision,
    parse_task,
    revision_text,
    task_body,
    task_json,
)
from tests.support.builders import PROJECT

LEAST: dict[str, Any] = {
    "schema_version": 1, "task_id": "backup.nas", "name": "夜间备份", "argv": ["/bin/true"],
}  # fmt: skip
WHOLE: dict[str, Any] = {
    **LEAST, "cwd": "/srv", "env": {"Z": "1", "A": ""}, "timeout_ms": 5_000, "overlap": "allow",
}  # fmt: skip


def test_a_whole_task_file_is_read() -> None:
    assert parse_task(WHOLE, "task") == Task(
        "backup.nas", "夜间备份", ("/bin/true",), "/srv", {"Z": "1", "A": ""}, 5_000, Overlap.ALLOW
    )


def test_what_is_left_out_is_filled_in_and_stored() -> None:
    task = parse_task(LEAST, "task")
    assert task == Task(
        "backup.nas", "夜间备份", ("/bin/true",), "/", {}, 3_600_000, Overlap.REFUSE
    )
    filled = {**LEAST, "cwd": "/", "env": {}, "timeout_ms": 3_600_000, "overlap": "refuse"}
    assert json.loads(task_body(task)) == filled
    assert parse_task(task_json(task), "task") == task


def test_the_bytes_of_a_revision_do_not_depend_on_the_order_of_the_file() -> None:
    other = {name: WHOLE[name] for name in reversed(WHOLE)}
    other["env"] = {"A": "", "Z": "1"}
    body = task_body(parse_task(other, "task"))
    assert body == task_body(parse_task(WHOLE, "task"))
    assert (
        body
        == (
            '{"schema_version":1,"task_id":"backup.nas","name":"夜间备份","argv":["/bin/true"],'
            '"cwd":"/srv","env":{"A":"","Z":"1"},"timeout_ms":5000,"overlap":"allow"}'
        ).encode()
    )
    assert parse_task(parse_object(body, "task"), "task") == parse_task(WHOLE, "task")


@pytest.mark.parametrize(
    "change",
    [
        {"task_id": "x" * 48},
        {"task_id": "0._:-"},
        {"name": "n" * 255},
        {"argv": ["x"] * limits.ARGV_ITEMS_MAX},
        {"cwd": "/" + "x" * 4_095},
        {"timeout_ms": 1},
        {"timeout_ms": 604_800_000},
        {"overlap": "refuse"},
    ],
)
def test_a_task_may_go_up_to_its_bounds(change: dict[str, Any]) -> None:
    value = {**WHOLE, **change}
    assert task_json(parse_task(value, "task")) == value


ABSENT = object()


def change_of(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


BAD_TASKS: list[dict[str, Any]] = [
    *({name: ABSENT} for name in LEAST),
    *({name: None} for name in WHOLE),
    *change_of("schema_version", 0, 2, "1", True, 1.0),
    *change_of("task_id", "", "x" * 49, ".x", "a b", "a/b", "a\n", "夜", 1),
    *change_of("name", "", "n" * 256, "\U0001f600" * 128, "a\nb", "\x7f", 1, []),
    *change_of("argv", [], "x", [""], ["x"] * 257, ["a\0"], [1]),
    *change_of("cwd", "", "srv", "./x", "/a\n", "/" + "x" * 4_096, 1),
    *change_of("env", [], {"1": "x"}, {"A": 1}, {"QINGLONG_EDGE_X": "x"}),
    *change_of("timeout_ms", 0, -1, 604_800_001, "1", 1.0, True),
    *change_of("overlap", "", "REFUSE", "queue", 1, True, [], {}, ["allow"]),
    *({name: "x"} for name in ("priority", "project_id", "retries", "shell", "env_file")),
]


@pytest.mark.parametrize("change", BAD_TASKS)
def test_a_task_of_any_other_shape_is_refused(change: dict[str, Any]) -> None:
    value = {name: member for name, member in {**WHOLE, **change}.items() if member is not ABSENT}
    with pytest.raises(UsageError) as caught:
        parse_task(value, "task")
    assert str(caught.value.details["field"]).startswith("task")


def test_a_revision_of_the_longest_task_id_is_still_an_identifier() -> None:
    task_id = check_task_id("x" * limits.TASK_ID_CHARS_MAX, "task_id")
    resource = f"{task_id}:{revision_text(limits.VERSION_MAX)}"
    assert check_ident(resource, "resource") == resource


@pytest.mark.parametrize("number", [1, 9, 10, limits.VERSION_MAX])
def test_a_revision_has_a_name(number: int) -> None:
    assert parse_revision(revision_text(number), "revision") == number
    assert revision_text(number) == f"r{number}"


@pytest.mark.parametrize(
    "value",
    [
        "", "r", "r0", "r01", "1", "R1", "r-1", "r1 ", " r1", "r1\n", "r1.0", "r+1", "r١",
        f"r{limits.VERSION_MAX + 1}", "r9999999999", "r12345678901", 1, None, True, ["r1"],
    ],
)  # fmt: skip
def test_anything_else_names_no_revision(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_revision(value, "revision")
    assert caught.value.details == {"field": "revision"}


@pytest.mark.adr("0003", "1")
def test_the_plan_of_a_task_is_the_task_and_any_change_of_it_another_action() -> None:
    task = parse_task(WHOLE, "task")
    plan = plan_of(PublishTask(task), PROJECT)
    assert (plan.action_type, plan.project_id, plan.files) == ("task.publish", PROJECT, ())
    file = {"schema_version": 1, "action_type": "task.publish", "params": task_json(task)}
    assert action_digest(parse_plan(json.dumps(file).encode(), PROJECT)) == action_digest(plan)
    others = [
        task._replace(task_id="other"),
        task._replace(name="other"),
        task._replace(argv=("/bin/true", "")),
        task._replace(cwd="/"),
        task._replace(env={}),
        task._replace(timeout_ms=1),
        task._replace(overlap=Overlap.REFUSE),
    ]
    digests = {action_digest(plan_of(PublishTask(each), PROJECT)) for each in [task, *others]}
    elsewhere = action_digest(plan_of(PublishTask(task), "prj-other"))
    covering = action_digest(plan._replace(files=(PlanFile("/a", "a" * 64),)))
    assert len(digests | {elsewhere, covering}) == len(others) + 3


def test_a_plan_that_fits_makes_a_revision_that_can_be_read() -> None:
    """The defaults that are filled in cost a few dozen bytes."""
    task = parse_task({**LEAST, "argv": ["x" * 31_000]}, "task")
    assert len(plan_body(plan_of(PublishTask(task), PROJECT))) < limits.PLAN_BYTES_MAX
    assert len(task_body(task)) < limits.TASK_BODY_BYTES_MAX
