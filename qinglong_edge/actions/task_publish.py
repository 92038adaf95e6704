"""`task.publish`: store the next revision of a task, exactly as it was approved."""

from qinglong_edge.actions.database import perform, require_no_files
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import TASK_PUBLISH, Plan, action_digest
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.effect import PublishTask
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.domain.task import Task, parse_task, task_json
from qinglong_edge.ports.effects import Effects
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection, Readiness


class TaskPublish:
    """Carry `task.publish`."""

    def __init__(self, effects: Effects) -> None:
        """Take what has the effect."""
        self._effects = effects

    @property
    def action_type(self) -> str:
        """Return `task.publish`."""
        return TASK_PUBLISH

    def check(self, plan: Plan) -> None:
        """Prove the exact shape of the plan; raises `UsageError`."""
        require_no_files(plan)
        _task(plan)

    def pin(self, plan: Plan, known: Plan | None) -> Plan:  # noqa: ARG002 - nothing to look up
        """Return the plan with every default of the task filled in."""
        return plan._replace(params=task_json(_task(plan)))

    def preview(self, plan: Plan) -> JsonObject:
        """Return what a person is shown: the whole task."""
        return {"action_type": TASK_PUBLISH, "task": task_json(_task(plan))}

    def deadline_ms(self, plan: Plan) -> int:  # noqa: ARG002 - the port
        """Return the time of one commit."""
        return limits.HANDLER_DEADLINE_MS_DEFAULT

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:  # noqa: ARG002 - the port
        """Look whether the stored plan still is a task."""
        try:
            _task(plan)
        except UsageError:
            return Inspection(Readiness.BLOCKED, None, "task_plan_invalid")
        return Inspection(Readiness.READY, action_digest(plan), None)

    def effect(self, plan: Plan) -> PublishTask:
        """Return the revision to store."""
        return PublishTask(_task(plan))

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        """Store the revision in a commit of its own."""
        return perform(self._effects, context, self.effect(context.plan))


def _task(plan: Plan) -> Task:
    return parse_task(plan.params, "plan.params")
