"""`run.create`: admit a run of one pinned revision of a task.

What is approved is the revision, by name: revisions never change, and the preview shows all of it.
Success means that the run is queued, nothing about how it will end (contract 11.2).
"""

from collections.abc import Callable

from qinglong_edge.actions.database import perform, require_no_files
from qinglong_edge.domain import limits
from qinglong_edge.domain.action import RUN_CREATE, Plan, action_digest, task_ref
from qinglong_edge.domain.canonical import JsonObject, parse_object
from qinglong_edge.domain.effect import CreateRun
from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.domain.run import Asked, RunIds, RunPlan, parse_asked, run_params, run_plan
from qinglong_edge.domain.task import TaskRevision, parse_revision, revision_text
from qinglong_edge.ports.effects import Effects, Tasks
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection, Readiness


class RunCreate:
    """Carry `run.create`."""

    def __init__(self, tasks: Tasks, effects: Effects, draw_id: Callable[[], str]) -> None:
        """Take where tasks are, what has the effect, and how the ids of a run are drawn."""
        self._tasks = tasks
        self._effects = effects
        self._draw_id = draw_id

    @property
    def action_type(self) -> str:
        """Return `run.create`."""
        return RUN_CREATE

    def check(self, plan: Plan) -> None:
        """Prove the exact shape of the plan; raises `UsageError`."""
        require_no_files(plan)
        parse_asked(plan.params)

    def pin(self, plan: Plan, known: Plan | None) -> Plan:
        """Return the plan bound to a revision: the one it names, or the newest.

        Raises `RefusedError`: `task_not_found`, or `task_name_mismatch` where the plan says another
        name than the revision has.
        """
        asked = parse_asked(plan.params)
        if known is not None and _says(asked, known):
            return known
        revision = self._revision(asked.task_id, asked.task_revision)
        if revision is None:
            raise RefusedError("task_not_found", "there is no such task, or no such revision")
        if asked.task_name not in {None, revision.name}:
            raise RefusedError("task_name_mismatch", "the revision has another name")
        pinned = RunPlan(
            asked.task_id, revision_text(revision.number), revision.name, asked.priority
        )
        return plan._replace(params=run_params(pinned))

    def preview(self, plan: Plan) -> JsonObject:
        """Return what a person is shown: the pinned revision whole; raises `RefusedError`."""
        pinned = run_plan(plan)
        revision = self._revision(pinned.task_id, pinned.task_revision)
        if revision is None:
            raise RefusedError("task_not_found", "there is no such task, or no such revision")
        body = parse_object(revision.body, "task", most=limits.TASK_BODY_BYTES_MAX)
        return {"action_type": RUN_CREATE, **run_params(pinned), "task": body}

    def deadline_ms(self, plan: Plan) -> int:  # noqa: ARG002 - the port
        """Return the time of one commit."""
        return limits.HANDLER_DEADLINE_MS_DEFAULT

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        """Look whether the revision is there and is the one that was approved."""
        if dispatch.action.action_type != RUN_CREATE:
            return Inspection(Readiness.BLOCKED, None, "approved_run_type_mismatch")
        try:
            pinned = run_plan(plan)
        except UsageError:
            return Inspection(Readiness.BLOCKED, None, "approved_run_plan_invalid")
        bound = (task_ref(plan), plan.project_id)
        if bound != (dispatch.action.action_ref, dispatch.project_id):
            return Inspection(Readiness.BLOCKED, None, "approved_run_plan_binding_invalid")
        revision = self._revision(pinned.task_id, pinned.task_revision)
        if revision is None:
            return Inspection(Readiness.RETRY, None, "approved_run_plan_missing")
        if revision.name != pinned.task_name:
            return Inspection(Readiness.BLOCKED, None, "approved_run_plan_binding_invalid")
        return Inspection(Readiness.READY, action_digest(plan), None)

    def effect(self, plan: Plan) -> CreateRun:
        """Return the run to admit; its ids are drawn here, so a repeated commit says the same."""
        draw = self._draw_id
        return CreateRun(run_plan(plan), RunIds(draw(), draw(), draw(), draw()))

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        """Admit the run in a commit of its own."""
        return perform(self._effects, context, self.effect(context.plan))

    def _revision(self, task_id: str, text: str | None) -> TaskRevision | None:
        number = None if text is None else parse_revision(text, "task_revision")
        return self._tasks.find(task_id, number)


def _says(asked: Asked, known: Plan) -> bool:
    """Tell whether a plan file asks for what stands under its request id already."""
    if known.action_type != RUN_CREATE:
        return False
    pinned = run_plan(known)
    return (
        (asked.task_id, asked.priority) == (pinned.task_id, pinned.priority)
        and asked.task_revision in {None, pinned.task_revision}
        and asked.task_name in {None, pinned.task_name}
    )
