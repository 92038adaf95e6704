"""Carry one started action: the single call of `execute`, its lease, its answer.

This is where the side effect happens, and it happens once: the caller holds a durable barrier, and
every way out of here is either a valid answer or no answer. No answer is never turned into failure.
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain import ids
from qinglong_edge.domain.errors import STORE_FAILED, UsageError
from qinglong_edge.domain.execution import Execution, Fence, Outcome
from qinglong_edge.domain.ids import new_id
from qinglong_edge.executor.invoke import Outstanding, Overran, Returned
from qinglong_edge.ports.ambient import Clocks, Entropy
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext
from qinglong_edge.ports.probe import CrashPoint, Moment, Probe, Step
from qinglong_edge.ports.repositories import Dispatches
from qinglong_edge.runtime.readiness import Candidate


class Late(NamedTuple):
    """Keep the way to the answer of a handler that overran, under its last fence."""

    dispatch_id: str
    fence: Fence
    ending: Overran[HandlerAnswer]


class Desk(NamedTuple):
    """Hold what carrying actions needs, for one owner of leases."""

    dispatches: Dispatches
    outstanding: Outstanding
    clocks: Clocks
    entropy: Entropy
    probe: Probe
    owner: str

    def draw_id(self) -> str:
        """Draw a mutation id."""
        return new_id(self.clocks.read().wall_ms, self.entropy)


class Run:
    """Execute one started action while keeping its lease alive."""

    def __init__(self, desk: Desk, item: Candidate, execution: Execution, fence: Fence) -> None:
        """Take the fence under which the barrier was passed."""
        self._desk = desk
        self._item = item
        self._execution = execution
        self._lost = False
        self.fence = fence
        self.late: Late | None = None

    def execute(self, lease_ms: int) -> rules.Complete | None:
        """Call the handler once; return its verdict, or None when there was no answer."""
        context = HandlerContext(
            self._item.dispatch,
            self._item.plan,
            self._execution,
            self.fence,
            self._item.dispatch.dispatch_id,
            lambda: self._lost,
        )
        ending = self._desk.outstanding.call(
            self._item.dispatch.action.action_type,
            self._call(context),
            deadline_ms=self._item.execute_ms,
            tick_ms=max(1, lease_ms // 2),
            on_tick=lambda: self._renew(lease_ms),
        )
        if isinstance(ending, Overran):
            self.late = Late(self._item.dispatch.dispatch_id, self.fence, ending)
        return verdict(ending, self._item.dispatch.dispatch_id, self.fence, self._desk.draw_id)

    def _call(self, context: HandlerContext) -> Callable[[], HandlerAnswer]:
        def work() -> HandlerAnswer:
            self._desk.probe(CrashPoint(Moment.INSIDE, Step.EXECUTE))
            # The side effect. Nothing above or below may repeat this line for a dispatch.
            return self._item.handler.execute(context)

        return work

    def _renew(self, lease_ms: int) -> None:
        event = rules.Renew(self._item.dispatch.dispatch_id, self.fence, lease_ms)
        try:
            answer = self._desk.dispatches.renew(event)
        except STORE_FAILED:
            return  # the lease may run out; only the fence decides whether the answer counts
        if isinstance(answer, rules.DispatchRefusal):
            self._lost = True
        else:
            self.fence = self.fence._replace(version=self.fence.version + 1)


def verdict(
    ending: object, dispatch_id: str, fence: Fence, draw_id: Callable[[], str]
) -> rules.Complete | None:
    """Return the verdict that a handler's end amounts to; anything malformed is no answer."""
    if not isinstance(ending, Returned):
        return None
    answer = ending.value
    if not isinstance(answer, HandlerAnswer) or not isinstance(answer.outcome, Outcome):
        return None
    try:
        code = ids.check_ident(answer.result_code, "result_code")
    except UsageError:
        return None
    return rules.Complete(dispatch_id, fence, draw_id(), answer.outcome, code)
