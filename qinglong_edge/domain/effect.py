"""What an action on this database does: a value that the store applies in one transaction.

Such an action needs no handler call behind its barrier: barrier, effect, receipt and verdict are
one commit, and then there is nothing that a crash could leave unknown (W7).
"""

from typing import NamedTuple

from qinglong_edge.domain.action import RUN_CREATE, TASK_PUBLISH, Plan
from qinglong_edge.domain.dispatch import Start
from qinglong_edge.domain.execution import Dispatch, Execution, Fence
from qinglong_edge.domain.machines import TERMINAL
from qinglong_edge.domain.run import RunIds, RunPlan, run_params
from qinglong_edge.domain.task import Task, task_json

PLAN_DISAPPEARED = "approved_run_plan_disappeared"
PLAN_CHANGED = "approved_run_plan_changed"
FENCE_INVALID = "approved_run_fence_invalid"


class CreateRun(NamedTuple):
    """Admit a run of a pinned revision."""

    plan: RunPlan
    drawn: RunIds


class PublishTask(NamedTuple):
    """Store the next revision of a task."""

    task: Task


Effect = CreateRun | PublishTask


def plan_of(effect: Effect, project_id: str) -> Plan:
    """Return the plan that says exactly this effect; its digest is what a person approved."""
    if isinstance(effect, PublishTask):
        return Plan(TASK_PUBLISH, project_id, task_json(effect.task), ())
    return Plan(RUN_CREATE, project_id, run_params(effect.plan), ())


class Perform(NamedTuple):
    """Ask for the effect of an action that passed its barrier, under the fence that did."""

    dispatch_id: str
    fence: Fence
    effect: Effect


class Whole(NamedTuple):
    """Ask for barrier, effect and verdict in one commit; `mutation_id` is the verdict's."""

    start: Start
    mutation_id: str
    effect: Effect


def ended_by(event: Whole, dispatch: Dispatch, execution: Execution) -> bool:
    """Tell whether this very command passed the barrier before, and ended what it started."""
    asked = (event.start.approval_request_id, event.start.action_digest, event.mutation_id)
    known = (
        dispatch.approval_request_id,
        dispatch.action.action_digest,
        execution.result_mutation_id,
    )
    ended = execution.started_at_ms is not None and execution.status in TERMINAL
    return ended and asked == known
