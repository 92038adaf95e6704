"""One cycle in its fixed order: recovery first, then dispatch (ADR-0036, 1).

A recovery phase that fails ends the cycle: no new action starts while what is unknown cannot even
be listed. The phases never run at the same time.
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain import limits
from qinglong_edge.domain.lifecycle import Cursors as Cursors  # noqa: PLC0414 - tests know it here
from qinglong_edge.domain.paging import Cursor, check_budget
from qinglong_edge.domain.profile import ResourcePolicy
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.ports.repositories import Recoveries
from qinglong_edge.runtime.dispatcher import Dispatcher
from qinglong_edge.runtime.page_loop import Batch, Phase, run_phase

RECOVERY_COUNTERS = (
    "scanned", "claimed", "verified_succeeded", "verified_failed", "deferred", "manual_required",
    "execution_active", "already_resolved", "unavailable", "damaged",
)  # fmt: skip


class Cycle(NamedTuple):
    """Hold what one cycle did."""

    recovery: Phase
    dispatch: Phase


class Supervisor:
    """Run one bounded cycle at a time."""

    def __init__(
        self, recoveries: Recoveries, dispatcher: Dispatcher, policy: ResourcePolicy, clocks: Clocks
    ) -> None:
        """Take the phases and their budgets; nothing runs until a cycle is asked for.

        Raises `UsageError` for a budget outside 1..64.
        """
        for budget in (policy.recovery, policy.dispatch):
            check_budget(*budget)
        self._recoveries = recoveries
        self._dispatcher = dispatcher
        self._policy = policy
        self._clocks = clocks

    def run_cycle(self, cursors: Cursors, stopping: Callable[[], bool]) -> Cycle:
        """Run recovery, then dispatch; what recovery raises goes up and dispatch is not called."""
        began_ms = self._clocks.monotonic_ms()

        def may_begin() -> bool:
            spent_ms = self._clocks.monotonic_ms() - began_ms
            return not stopping() and spent_ms < limits.CYCLE_START_MS_MAX

        recovery = recover(self._recoveries, self._policy, cursors.recovery)
        dispatch = run_phase(
            self._policy.dispatch,
            cursors.dispatch,
            lambda after, limit: self._dispatcher.dispatch_page(after, limit, may_begin),
        )
        return Cycle(recovery, dispatch)


def recover(recoveries: Recoveries, policy: ResourcePolicy, after: Cursor | None) -> Phase:
    """List what waits for evidence or a person; looking for it is the reconciler's part."""

    def page(cursor: Cursor | None, limit: int) -> Batch:
        found = recoveries.list_due(cursor, limit)
        counts = dict.fromkeys(RECOVERY_COUNTERS, 0) | {
            "scanned": len(found.items) + found.damaged,
            "deferred": len(found.items),
            "damaged": found.damaged,
        }
        return Batch(counts, found.cursor)

    return run_phase(policy.recovery, after, page)


def next_cursors(cycle: Cycle) -> Cursors:
    """Return where the next cycle begins: at a kept cursor, or at the front."""
    return Cursors(cycle.recovery.cursor, cycle.dispatch.cursor)
