"""What an action on this database does: a value that the store applies in one transaction.

Such an action needs no handler call behind its barrier: barrier, effect, receipt and verdict are
one commit, and then there is nothing that a crash could leave unknown (W7).
"""

from typing import NamedTuple

from qinglong_edge.domain.action import RUN_CREATE, TASK_PUBLISH, Plan, action_digest
from qinglong_edge.domain.dispatch import DispatchRefusal, Start
from qinglong_edge.domain.execution import Dispatch, Execution, Fence, Outcome, started_at_ms
from qinglong_edge.domain.machines import TERMINAL, ExecutionStatus
from qinglong_edge.domain.receipt import WORDS, Found, judge
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.domain.run import RunIds, RunPlan, run_params
from qinglong_edge.domain.task import Task, TaskRevision, task_body, task_json


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


class Verdict(NamedTuple):
    """Hold what came of an effect."""

    outcome: Outcome
    result_code: str


def may_act(execution: Execution, fence: Fence) -> bool:
    """Tell whether the holder that passed the barrier still may.

    Neither a renewal nor the end of the lease takes that away; another holder does, and a verdict.
    """
    lease = execution.lease
    return (
        execution.status is ExecutionStatus.EXECUTING
        and lease is not None
        and (lease.owner, lease.token) == (fence.owner, fence.token)
        and execution.version >= fence.version
    )


def had_before(
    dispatch: Dispatch, execution: Execution, event: Perform, found: Found
) -> Verdict | DispatchRefusal | None:
    """Say why there is nothing to do; None: have the effect now, in this transaction."""
    if not may_act(execution, event.fence):
        return DispatchRefusal.FENCE_REJECTED
    plan = plan_of(event.effect, dispatch.project_id)
    words = WORDS[plan.action_type]
    if action_digest(plan) != dispatch.action.action_digest:
        return Verdict(Outcome.FAILED, words.plan_changed)
    seen = judge(dispatch, execution, found).finding
    if seen is Finding.VERIFIED_SUCCEEDED:
        return Verdict(Outcome.SUCCEEDED, words.done)
    return None if seen is Finding.MISSING else Verdict(Outcome.FAILED, words.conflict)


def next_revision(
    task: Task, newest: TaskRevision | None, dispatch: Dispatch, execution: Execution
) -> TaskRevision:
    """Return the revision that publishing a task makes."""
    return TaskRevision(
        task.task_id,
        dispatch.project_id,
        1 if newest is None else newest.number + 1,
        task.name,
        task_body(task),
        dispatch.dispatch_id,
        started_at_ms(execution),
    )


def is_pinned(plan: RunPlan, revision: TaskRevision | None) -> bool:
    """Tell whether a revision is the one that was approved."""
    return revision is not None and revision.name == plan.task_name


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
