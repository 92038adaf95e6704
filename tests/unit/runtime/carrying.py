"""Real handlers written for tests, and a dispatcher that carries them on a store of the suite."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from qinglong_edge.domain import approval as approvals
from qinglong_edge.domain.action import Plan, plan_body
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.execution import Dispatch, Outcome
from qinglong_edge.domain.tick import Reading
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.executor.invoke import Outstanding
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.ports.evidence import EvidenceProvider
from qinglong_edge.ports.handlers import (
    ActionHandler,
    HandlerAnswer,
    HandlerContext,
    Inspection,
    Readiness,
)
from qinglong_edge.ports.probe import no_probe
from qinglong_edge.runtime.dispatcher import Dispatcher
from qinglong_edge.runtime.execution import Desk
from qinglong_edge.runtime.page_loop import Batch, Counts
from tests.contract.story import OWNER, Story, propose_of
from tests.support.builders import action_binding, shell_plan
from tests.support.clock import FakeClocks
from tests.support.entropy import CounterEntropy
from tests.support.handlers import Plain

DONE = HandlerAnswer(Outcome.SUCCEEDED, "exit_0")
SHELL, RUN = "shell.exec", "run.create"
PERMISSIONS = {SHELL: "tool.call:shell.exec", RUN: "run.start"}
PATIENCE_S = 5.0


class RunningClocks:
    """Measure deadlines on the real monotonic clock; the store's clocks stay in the test's hand."""

    def __init__(self, fake: FakeClocks) -> None:
        self._fake = fake
        self._real = SystemClocks()

    def read(self) -> Reading:
        return self._fake.read()

    def monotonic_ms(self) -> int:
        return self._real.monotonic_ms()


class Handler(Plain):
    """Carry one type: what `inspect` and `execute` do is the test's; both are remembered."""

    def __init__(
        self,
        action_type: str = SHELL,
        *,
        inspect: Callable[[Dispatch], Any] | None = None,
        execute: Callable[[HandlerContext], Any] | None = None,
        deadline_ms: int = 5_000,
    ) -> None:
        self._type = action_type
        self._inspect = inspect or ready
        self._execute = execute or (lambda _context: DONE)
        self._deadline_ms = deadline_ms
        self.inspected: list[str] = []
        self.executed: list[str] = []
        self.contexts: list[HandlerContext] = []

    @property
    def action_type(self) -> str:
        return self._type

    def check(self, plan: Plan) -> None:
        raise NotImplementedError

    def preview(self, plan: Plan) -> JsonObject:
        raise NotImplementedError

    def deadline_ms(self, plan: Plan) -> int:
        return self._deadline_ms

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        self.inspected.append(dispatch.dispatch_id)
        seen: Inspection = self._inspect(dispatch)
        return seen

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        self.executed.append(context.dispatch.dispatch_id)
        self.contexts.append(context)
        answer: HandlerAnswer = self._execute(context)
        return answer


class Carried:
    """Find handlers by type."""

    def __init__(self, *handlers: ActionHandler, inspect_ms: int = 2_000) -> None:
        self._handlers = {each.action_type: each for each in handlers}
        self._inspect_ms = inspect_ms

    def find(self, action_type: str) -> ActionHandler | None:
        return self._handlers.get(action_type)

    def inspect_deadline_ms(self, action_type: str) -> int:
        return self._inspect_ms


class NoProviders:
    """Know nobody who looks for evidence."""

    def provider(self, action_type: str) -> EvidenceProvider | None:
        return None

    def inspect_deadline_ms(self, action_type: str) -> int:
        return 2_000


def ready(dispatch: Dispatch) -> Inspection:
    return Inspection(Readiness.READY, dispatch.action.action_digest)


def of_type(n: int, action_type: str, **changes: Any) -> approvals.Propose:
    """Return the request of a numbered plan of another type."""
    plan = shell_plan("/bin/echo", str(n), action_type=action_type)
    binding = action_binding(plan, permission=PERMISSIONS[action_type])
    return propose_of(n, action=binding, body=plan_body(plan), **changes)


class Office(NamedTuple):
    """Hold a dispatcher together with what it works on."""

    story: Story
    dispatcher: Dispatcher
    desk: Desk

    def page(self, limit: int = 16, may_begin: Callable[[], bool] = lambda: True) -> Batch:
        return self.dispatcher.dispatch_page(None, limit, may_begin)

    def counts(self, limit: int = 16, may_begin: Callable[[], bool] = lambda: True) -> Counts:
        """Work one page and return the counters that are not zero."""
        return {name: n for name, n in self.page(limit, may_begin).counts.items() if n}


def desk_of(story: Story, clocks: Clocks | None = None, owner: str = OWNER) -> Desk:
    running = clocks or RunningClocks(story.clocks)
    return Desk(
        story.ports.dispatches, Outstanding(running), running, CounterEntropy(), no_probe, owner
    )


def office(
    story: Story, *handlers: ActionHandler, clocks: Clocks | None = None, inspect_ms: int = 2_000
) -> Office:
    desk = desk_of(story, clocks)
    carried = Carried(*handlers, inspect_ms=inspect_ms)
    return Office(story, Dispatcher(desk, story.ports.approvals, carried), desk)


def settled() -> None:
    """Wait until every handler has returned."""
    for thread in threading.enumerate():
        if thread.name == "handler":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def until(true: Callable[[], bool]) -> bool:
    """Wait a little, again and again, until something is true; False where it never is."""
    for _ in range(500):
        if true():
            return True
        threading.Event().wait(0.01)
    return False
