"""Ask a handler whether an action could start now; every answer but a clean `ready` lets go.

Looking has no side effect and may be repeated. What is only not there yet (handler, plan) gives the
attempt back and waits longer; what looked and failed spends it (W10).
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import ids
from qinglong_edge.domain.action import ACTION_TYPES, Plan
from qinglong_edge.domain.effect import Effect
from qinglong_edge.domain.errors import DamagedError, UsageError
from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.executor.invoke import Outstanding, Returned
from qinglong_edge.ports.handlers import ActionHandler, Handlers, Inspection, Readiness
from qinglong_edge.ports.repositories import Approvals


class LetGo(NamedTuple):
    """Say why an item does not start: `retry` or block, `spend` the attempt or give it back."""

    code: str
    retry: bool = True
    spend: bool = True


class Candidate(NamedTuple):
    """Hold a due dispatch with the plan and the handler that would carry it."""

    dispatch: Dispatch
    plan: Plan
    handler: ActionHandler
    inspect_ms: int
    execute_ms: int
    effect: Effect | None = None

    @property
    def span_ms(self) -> int:
        """Return how long inspect and execute may take together."""
        return self.inspect_ms + self.execute_ms


def candidate(dispatch: Dispatch, approvals: Approvals, handlers: Handlers) -> Candidate | LetGo:
    """Find plan and handler of a dispatch, and prove that its permission is its type's (W17)."""
    known = ACTION_TYPES.get(dispatch.action.action_type)
    if known is None or known.permission != dispatch.action.permission:
        return LetGo("permission_mismatch", retry=False)
    handler = handlers.find(dispatch.action.action_type)
    if handler is None:
        return LetGo("handler_unavailable", spend=False)
    try:
        stored = approvals.plan(dispatch.approval_request_id)
    except DamagedError:
        return LetGo("plan_damaged", retry=False)
    if stored is None:
        return LetGo("plan_missing", spend=False)
    plan = stored[0]
    inspect_ms = handlers.inspect_deadline_ms(dispatch.action.action_type)
    try:
        execute_ms = handler.deadline_ms(plan)
        effect = handler.effect(plan)
    except UsageError:
        return LetGo("plan_invalid", retry=False)  # approved under other rules than this build's
    return Candidate(dispatch, plan, handler, inspect_ms, execute_ms, effect)


def inspect(
    item: Candidate, outstanding: Outstanding, *, tick_ms: int, on_tick: Callable[[], None]
) -> LetGo | None:
    """Return None when the handler is ready for exactly the approved digest."""
    if outstanding.busy(item.dispatch.action.action_type):
        return LetGo("handler_busy", spend=False)
    ending = outstanding.call(
        item.dispatch.action.action_type,
        lambda: item.handler.inspect(item.dispatch, item.plan),
        deadline_ms=item.inspect_ms,
        tick_ms=tick_ms,
        on_tick=on_tick,
    )
    if not isinstance(ending, Returned):
        return LetGo("handler_inspection_failed")
    return _judge(ending.value, item.dispatch)


def _judge(seen: object, dispatch: Dispatch) -> LetGo | None:
    if not isinstance(seen, Inspection) or not isinstance(seen.readiness, Readiness):
        return LetGo("handler_inspection_failed")
    if seen.readiness is Readiness.READY:
        if seen.result_code is not None:
            return LetGo("handler_inspection_failed")
        matches = seen.action_digest == dispatch.action.action_digest
        return None if matches else LetGo("action_digest_mismatch", retry=False)
    try:
        code = ids.check_ident(seen.result_code, "result_code")
    except UsageError:
        return LetGo("handler_inspection_failed")
    return LetGo(code, retry=seen.readiness is Readiness.RETRY)
