"""One cycle in its fixed order: recovery first, then dispatch (ADR-0036, 1).

A recovery phase that fails ends the cycle: no new action starts while what is unknown cannot even
be listed. The phases never run at the same time.
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import limits
from qinglong_edge.domain.lifecycle import Cursors
from qinglong_edge.domain.paging import check_budget
from qinglong_edge.domain.profile import ResourcePolicy
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.runtime.dispatcher import Dispatcher
from qinglong_edge.runtime.page_loop import Phase, run_phase
from qinglong_edge.runtime.reconciler import Reconciler


class Cycle(NamedTuple):
    """Hold what one cycle did."""

    recovery: Phase
    dispatch: Phase


class Supervisor:
    """Run one bounded cycle at a time."""

    def __init__(
        self, reconciler: Reconciler, dispatcher: Dispatcher, policy: ResourcePolicy, clocks: Clocks
    ) -> None:
        """Take the phases and their budgets; nothing runs until a cycle is asked for.

        Raises `UsageError` for a budget outside 1..64.
        """
        for budget in (policy.recovery, policy.dispatch):
            check_budget(*budget)
        self._reconciler = reconciler
        self._dispatcher = dispatcher
        self._policy = policy
        self._clocks = clocks

    def run_cycle(self, cursors: Cursors, stopping: Callable[[], bool]) -> Cycle:
        """Run recovery, then dispatch; what recovery raises goes up and dispatch is not called."""
        began_ms = self._clocks.monotonic_ms()

        def may_begin() -> bool:
            spent_ms = self._clocks.monotonic_ms() - began_ms
            return not stopping() and spent_ms < limits.CYCLE_START_MS_MAX

        recovery = run_phase(
            self._policy.recovery,
            cursors.recovery,
            lambda after, limit: self._reconciler.reconcile_page(after, limit, may_begin),
        )
        dispatch = run_phase(
            self._policy.dispatch,
            cursors.dispatch,
            lambda after, limit: self._dispatcher.dispatch_page(after, limit, may_begin),
        )
        return Cycle(recovery, dispatch)


def next_cursors(cycle: Cycle) -> Cursors:
    """Return where the next cycle begins: at a kept cursor, or at the front."""
    return Cursors(cycle.recovery.cursor, cycle.dispatch.cursor)
