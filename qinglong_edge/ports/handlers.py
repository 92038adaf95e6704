"""What an action type must offer: check, preview, inspect, execute (contract 7.1).

`inspect` looks and has no side effect. `execute` is called only after the start barrier is durable,
at most once for a dispatch. Whatever it does besides returning a `HandlerAnswer` (raising,
overrunning its deadline, vanishing) is no answer: the outcome stays unknown and recovery decides.
"""

import enum
from collections.abc import Callable
from typing import NamedTuple, Protocol

from qinglong_edge.domain.action import Plan
from qinglong_edge.domain.canonical import JsonObject
from qinglong_edge.domain.effect import Effect
from qinglong_edge.domain.execution import Dispatch, Execution, Fence, Outcome


class Readiness(enum.StrEnum):
    """Name what `inspect` may answer."""

    READY = "ready"
    RETRY = "retry"
    BLOCKED = "blocked"


class Inspection(NamedTuple):
    """Hold what `inspect` saw: ready for exactly this digest, or a code of 1..64 characters."""

    readiness: Readiness
    action_digest: str | None = None
    result_code: str | None = None


class HandlerAnswer(NamedTuple):
    """Hold what a handler says happened."""

    outcome: Outcome
    result_code: str


class HandlerContext(NamedTuple):
    """Hold what `execute` may know; `fence_lost` turns true when somebody else took over."""

    dispatch: Dispatch
    plan: Plan
    execution: Execution
    fence: Fence
    idempotency_key: str
    fence_lost: Callable[[], bool]


class ActionHandler(Protocol):
    """Carry one action type."""

    @property
    def action_type(self) -> str:
        """Return the type's name."""
        ...

    def check(self, plan: Plan) -> None:
        """Prove the exact shape of the plan's params; raises `UsageError`."""
        ...

    def pin(self, plan: Plan, known: Plan | None) -> Plan:
        """Return the plan with everything fixed that it leaves open, before it gets its digest.

        `known` is what stands under the same request id, so that a repeated proposal says the same.
        """
        ...

    def preview(self, plan: Plan) -> JsonObject:
        """Return what a person is shown before approving; never executes anything."""
        ...

    def deadline_ms(self, plan: Plan) -> int:
        """Return how long `execute` may take before it counts as no answer."""
        ...

    def inspect(self, dispatch: Dispatch, plan: Plan) -> Inspection:
        """Look whether the action could start now; no side effect."""
        ...

    def effect(self, plan: Plan) -> Effect | None:
        """Return what the store itself can do in the commit of the barrier; None for the rest."""
        ...

    def execute(self, context: HandlerContext) -> HandlerAnswer:
        """Do it. Called once, behind the barrier."""
        ...


class Handlers(Protocol):
    """Find the handler of an enabled type: what is not enabled is not reachable."""

    def find(self, action_type: str) -> ActionHandler | None:
        """Return the handler, or None where the type is not enabled or not carried."""
        ...

    def inspect_deadline_ms(self, action_type: str) -> int:
        """Return how long `inspect` of this type may take."""
        ...
