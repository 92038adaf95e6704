"""A run of a task: admitted by an approved `run.create`, in the transaction that starts it.

An admitted run is `queued`, version 2, with two events; nothing has been started yet (contract 11).
"""

import enum
from typing import NamedTuple

from qinglong_edge.domain import ids, limits, task
from qinglong_edge.domain.action import LOCAL_PROCESS, Plan
from qinglong_edge.domain.canonical import Fields, Json, JsonObject
from qinglong_edge.domain.execution import Dispatch

TRIGGER_TYPE = "approved_action"
EXECUTION_ORIGIN = "system"
EXECUTION_OWNER = "runtime"
ACTOR_TYPE = "system"
ACTOR_ID = "approved-action-dispatcher"


class RunStatus(enum.StrEnum):
    """Name the stored states of a run."""

    QUEUED = "queued"


class AttemptStatus(enum.StrEnum):
    """Name the stored states of an attempt."""

    CLAIMED = "claimed"


class RunPlan(NamedTuple):
    """Hold what a `run.create` runs: a pinned revision of a task, by name."""

    task_id: str
    task_revision: str
    task_name: str
    priority: int


class RunIds(NamedTuple):
    """Hold the ids of a new run, drawn in this order."""

    run_id: str
    attempt_id: str
    created_id: str
    queued_id: str


class Run(NamedTuple):
    """Hold a run."""

    run_id: str
    project_id: str
    task_id: str
    task_revision: str
    task_name: str
    priority: int
    trigger_type: str
    execution_origin: str
    execution_owner: str
    triggered_by: str
    request_id: str
    idempotency_key: str
    status: RunStatus
    version: int
    event_sequence: int
    created_at_ms: int
    queued_at_ms: int


class Attempt(NamedTuple):
    """Hold one attempt of a run."""

    attempt_id: str
    number: int
    status: AttemptStatus
    executor_type: str
    callback_sequence: int
    created_at_ms: int


class RunEvent(NamedTuple):
    """Hold one event of a run; nothing of a command line is ever in it."""

    event_id: str
    sequence: int
    type: str
    dedupe_key: str
    payload: JsonObject
    created_at_ms: int


class Admitted(NamedTuple):
    """Hold all rows of a new run."""

    run: Run
    attempt: Attempt
    events: tuple[RunEvent, RunEvent]


class Asked(NamedTuple):
    """Hold what a plan file asks for; what is left open is pinned when it is proposed."""

    task_id: str
    task_revision: str | None
    task_name: str | None
    priority: int


def parse_asked(params: JsonObject) -> Asked:
    """Read the params of a plan file; raises `UsageError`."""
    fields = Fields(params, "plan.params")
    task_id = task.check_task_id(fields.take("task_id"), "plan.params.task_id")
    revision = fields.maybe("task_revision")
    name = fields.maybe("task_name")
    priority = ids.check_int(
        fields.maybe("priority", 0),
        "plan.params.priority",
        least=limits.PRIORITY_MIN,
        most=limits.PRIORITY_MAX,
    )
    fields.done()
    if revision is not None:
        revision = task.revision_text(task.parse_revision(revision, "plan.params.task_revision"))
    if name is not None:
        name = ids.check_text(name, "plan.params.task_name", most=limits.TASK_NAME_CHARS_MAX)
    return Asked(task_id, revision, name, priority)


def run_plan(plan: Plan) -> RunPlan:
    """Return what a stored plan runs; raises `UsageError` where it is not pinned."""
    asked = parse_asked(plan.params)
    if asked.task_revision is None or asked.task_name is None:
        raise ids.invalid("plan.params.task_revision", "must be pinned")
    return RunPlan(asked.task_id, asked.task_revision, asked.task_name, asked.priority)


def run_params(plan: RunPlan) -> dict[str, Json]:
    """Return the params of the stored plan."""
    return {**plan._asdict()}


def admit(dispatch: Dispatch, started_at_ms: int, plan: RunPlan, drawn: RunIds) -> Admitted:
    """Return the rows of the run that an approved action creates (contract 11.3)."""
    at_ms = started_at_ms
    run = Run(
        drawn.run_id, dispatch.project_id, plan.task_id, plan.task_revision, plan.task_name,
        plan.priority, TRIGGER_TYPE, EXECUTION_ORIGIN, EXECUTION_OWNER,
        triggered_by(dispatch), dispatch.approval_request_id, dispatch.dispatch_id,
        RunStatus.QUEUED, 2, 2, at_ms, at_ms,
    )  # fmt: skip
    attempt = Attempt(drawn.attempt_id, 1, AttemptStatus.CLAIMED, LOCAL_PROCESS, 0, at_ms)
    created = RunEvent(
        drawn.created_id, 1, "run.created", f"primary-run-created:{run.run_id}",
        {"status": "created", "version": 1, "execution_owner": EXECUTION_OWNER}, at_ms,
    )  # fmt: skip
    queued = RunEvent(
        drawn.queued_id, 2, "run.queued", f"primary-run-queued:{run.run_id}",
        {"from_status": "created", "to_status": "queued", "version": 2}, at_ms,
    )  # fmt: skip
    return Admitted(run, attempt, (created, queued))


def triggered_by(dispatch: Dispatch) -> str:
    """Return how a run names the action that created it."""
    return f"approved-action:{dispatch.dispatch_id}"


def created_by(run: Run, dispatch: Dispatch) -> bool:
    """Tell whether a run is the one that this dispatch creates: every binding field."""
    said = (
        run.project_id, run.idempotency_key, run.request_id, run.trigger_type,
        run.execution_owner, run.execution_origin, run.triggered_by,
    )  # fmt: skip
    known = (
        dispatch.project_id, dispatch.dispatch_id, dispatch.approval_request_id, TRIGGER_TYPE,
        EXECUTION_OWNER, EXECUTION_ORIGIN, triggered_by(dispatch),
    )  # fmt: skip
    return said == known
