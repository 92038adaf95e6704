"""A run of a pinned revision: what is approved, and the rows that come of it (contract 11)."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.action import (
    Plan,
    action_digest,
    bind,
    parse_plan,
    plan_body,
    plan_from_body,
    run_plan_digest,
)
from qinglong_edge.domain.canonical import canonical_bytes
from qinglong_edge.domain.effect import CreateRun, plan_of
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.run import (
    Asked,
    Attempt,
    AttemptStatus,
    Run,
    RunEvent,
    RunIds,
    RunPlan,
    RunStatus,
    admit,
    created_by,
    parse_asked,
    run_params,
    run_plan,
)
from tests.support.builders import PREVIEW, PROJECT, dispatch
from tests.support.clock import WALL_MS

PLAN = RunPlan("backup.nas", "r7", '夜间备份 "A"', -5)
DRAWN = RunIds("run-1", "att-1", "ev-1", "ev-2")
PARAMS: dict[str, Any] = {
    "task_id": "backup.nas", "task_revision": "r7", "task_name": '夜间备份 "A"', "priority": -5,
}  # fmt: skip
STARTED_MS = WALL_MS + 2_000
RUN = admit(dispatch(), STARTED_MS, PLAN, DRAWN).run


def plan(params: dict[str, Any]) -> Plan:
    return Plan("run.create", PROJECT, params, ())


@pytest.mark.scenario(184, 186)
@pytest.mark.adr("0003", "1")
def test_what_a_person_approves_is_the_contract_s_plan_of_a_run() -> None:
    """Members of contract 15.1; the reference is the task, what cannot be said is null."""
    made = plan_of(CreateRun(PLAN, DRAWN), PROJECT)
    assert made == plan(PARAMS)
    digest = run_plan_digest(
        {
            "schemaVersion": 1,
            "actionType": "run.create",
            "actionRef": "task:backup.nas",
            "projectId": PROJECT,
            "taskId": "backup.nas",
            "taskRevision": "r7",
            "executorType": "local_process",
            "priority": -5,
            "taskName": '夜间备份 "A"',
            "taskSnapshotRef": None,
            "inputRef": None,
        }
    )
    assert action_digest(made) == digest
    bound = bind(made, "run.start", PREVIEW)
    assert (bound.action_ref, bound.action_digest) == ("task:backup.nas", digest)
    assert (bound.permission, bound.action_type) == ("run.start", "run.create")
    assert action_digest(plan(dict(reversed(PARAMS.items())))) == digest


@pytest.mark.scenario(197)
@pytest.mark.parametrize(
    "other",
    [
        PLAN._replace(task_id="other"),
        PLAN._replace(task_revision="r8"),
        PLAN._replace(task_name="other"),
        PLAN._replace(priority=0),
    ],
)
def test_another_run_is_another_action(other: RunPlan) -> None:
    digest = action_digest(plan_of(CreateRun(PLAN, DRAWN), PROJECT))
    assert action_digest(plan_of(CreateRun(other, DRAWN), PROJECT)) != digest
    assert action_digest(plan_of(CreateRun(PLAN, DRAWN), "prj-other")) != digest
    drawn = RunIds("run-9", "att-9", "ev-8", "ev-9")
    assert action_digest(plan_of(CreateRun(PLAN, drawn), PROJECT)) == digest


def test_a_stored_plan_reads_back_as_the_run_it_means() -> None:
    stored = plan_from_body(plan_body(plan_of(CreateRun(PLAN, DRAWN), PROJECT)))
    assert run_plan(stored) == PLAN
    assert run_params(PLAN) == PARAMS
    assert list(run_params(PLAN)) == ["task_id", "task_revision", "task_name", "priority"]


@pytest.mark.parametrize(
    ("params", "asked"),
    [
        (PARAMS, Asked(*PLAN)),
        ({"task_id": "t"}, Asked("t", None, None, 0)),
        ({"task_id": "t", "priority": limits.PRIORITY_MIN}, Asked("t", None, None, -(2**31))),
        ({"task_id": "t", "priority": limits.PRIORITY_MAX}, Asked("t", None, None, 2**31 - 1)),
        ({"task_id": "x" * 48, "task_name": "n" * 255}, Asked("x" * 48, None, "n" * 255, 0)),
        ({"task_id": "t", "task_revision": "r2147483647"}, Asked("t", "r2147483647", None, 0)),
    ],
)
def test_a_plan_file_may_leave_revision_name_and_priority_open(
    params: dict[str, Any], asked: Asked
) -> None:
    assert parse_asked(params) == asked


def params_with(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{**PARAMS, name: value} for value in values]


BAD_PARAMS: list[dict[str, Any]] = [
    {},
    *params_with("task_id", "", "x" * 49, "a b", ".x", "a\n", None, 1),
    *params_with("task_revision", "", "7", "r0", "r01", "r7\n", 7, None, []),
    *params_with("task_name", "", "n" * 256, "a\tb", "\x7f", None, 1, []),
    *params_with("priority", 2**31, -(2**31) - 1, "0", 0.0, None, True),
    *params_with("executor_type", "local_process", "ssh"),
    *params_with("task_snapshot_ref", "x" * 512, "x" * 513),
    *params_with("input_ref", "x"),
    *params_with("schema_version", 1, 2),
    *params_with("argv", ["/bin/true"]),
]


@pytest.mark.scenario(184, 185)
@pytest.mark.parametrize("params", BAD_PARAMS)
def test_a_plan_of_any_other_shape_is_refused(params: dict[str, Any]) -> None:
    """Executor and references are not ours to choose: whoever names one is refused."""
    for read in (parse_asked, lambda value: run_plan(plan(value))):
        with pytest.raises(UsageError):
            read(params)


@pytest.mark.scenario(185)
@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_plan_file_of_another_schema_is_refused(version: object) -> None:
    file = {"schema_version": version, "action_type": "run.create", "params": PARAMS}
    with pytest.raises(UsageError):
        parse_plan(canonical_bytes(file), PROJECT)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["task_revision", "task_name"])
def test_a_stored_plan_that_is_not_pinned_runs_nothing(name: str) -> None:
    params = {key: value for key, value in PARAMS.items() if key != name}
    assert getattr(parse_asked(params), name) is None
    with pytest.raises(UsageError):
        run_plan(plan(params))


@pytest.mark.scenario(187)
@pytest.mark.adr("0033", "4.3")
def test_the_rows_of_an_admitted_run() -> None:
    """Contract 11.3, field by field; every stamp is the start of the action."""
    made = admit(dispatch(), STARTED_MS, PLAN, DRAWN)
    assert made.run == Run(
        run_id="run-1",
        project_id=PROJECT,
        task_id="backup.nas",
        task_revision="r7",
        task_name='夜间备份 "A"',
        priority=-5,
        trigger_type="approved_action",
        execution_origin="system",
        execution_owner="runtime",
        triggered_by="approved-action:dsp-1",
        request_id="apr-1",
        idempotency_key="dsp-1",
        status=RunStatus.QUEUED,
        version=2,
        event_sequence=2,
        created_at_ms=STARTED_MS,
        queued_at_ms=STARTED_MS,
    )
    assert made.attempt == Attempt(
        "att-1", 1, AttemptStatus.CLAIMED, "local_process", 0, STARTED_MS
    )
    created, queued = made.events
    assert created == RunEvent(
        "ev-1", 1, "run.created", "primary-run-created:run-1",
        {"status": "created", "version": 1, "execution_owner": "runtime"}, STARTED_MS,
    )  # fmt: skip
    assert queued == RunEvent(
        "ev-2", 2, "run.queued", "primary-run-queued:run-1",
        {"from_status": "created", "to_status": "queued", "version": 2}, STARTED_MS,
    )  # fmt: skip


def test_ids_are_drawn_for_run_attempt_and_both_events_in_this_order() -> None:
    assert RunIds._fields == ("run_id", "attempt_id", "created_id", "queued_id")


@pytest.mark.scenario(194, 195)
@pytest.mark.adr("0033", "3.1")
@pytest.mark.parametrize(
    "change",
    [
        {"project_id": "prj-other"},
        {"idempotency_key": "dsp-2"},
        {"request_id": "apr-2"},
        {"trigger_type": "manual"},
        {"execution_owner": "somebody"},
        {"execution_origin": "user"},
        {"triggered_by": "approved-action:dsp-2"},
    ],
)
def test_a_run_that_differs_in_any_binding_is_somebody_else_s(change: dict[str, Any]) -> None:
    assert created_by(RUN, dispatch())
    assert not created_by(RUN._replace(**change), dispatch())


@pytest.mark.scenario(203)
def test_what_became_of_the_run_does_not_change_who_made_it() -> None:
    later = RUN._replace(version=9, event_sequence=9, priority=0, task_name="renamed")
    assert created_by(later, dispatch())
