"""The bounded page loop that all phases share (ADR-0036, 2).

A phase reads one page after another until nothing follows, its page budget is spent, its cursor
stops moving, or it is told to stop. It adds up numbers and keeps nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple

from qinglong_edge.domain.paging import Cursor, PageBudget, StopReason, advances

Counts = dict[str, int]


class Batch(NamedTuple):
    """Hold what one page did; `cursor` None means that nothing follows."""

    counts: Counts
    cursor: Cursor | None
    stopped: bool = False


class Phase(NamedTuple):
    """Hold what a phase did, and where its next cycle goes on."""

    counts: Counts
    pages: int
    stop_reason: StopReason
    remaining: bool
    cursor: Cursor | None


def run_phase(
    budget: PageBudget, start: Cursor | None, batch: Callable[[Cursor | None, int], Batch]
) -> Phase:
    """Run pages within the budget; what `batch` raises ends the phase and goes on up.

    A cursor that does not strictly increase has stalled: it is reported and dropped, so the next
    cycle begins at the front again.
    """
    counts: Counts = {}
    cursor = start
    for pages in range(1, budget.max_pages + 1):
        done = batch(cursor, budget.page_size)
        for name, number in done.counts.items():
            counts[name] = counts.get(name, 0) + number
        if done.stopped:
            return Phase(counts, pages, StopReason.STOPPED, remaining=True, cursor=cursor)
        if done.cursor is None:
            return Phase(counts, pages, StopReason.COMPLETE, remaining=False, cursor=None)
        if not advances(cursor, done.cursor):
            return Phase(counts, pages, StopReason.CURSOR_STALLED, remaining=True, cursor=None)
        cursor = done.cursor
    return Phase(counts, budget.max_pages, StopReason.PAGE_LIMIT, remaining=True, cursor=cursor)
