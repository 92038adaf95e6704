"""The bounded page loop: sums, budgets, and cursors that must move (ADR-0036, 2)."""

from collections.abc import Callable

import pytest

from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.domain.paging import Cursor, PageBudget, StopReason, check_budget
from qinglong_edge.runtime.page_loop import Batch, Phase, run_phase

A, B, C = Cursor(1, 1), Cursor(1, 2), Cursor(2, 1)


class Pages:
    """Answer prepared pages, and remember what was asked."""

    def __init__(self, *batches: Batch) -> None:
        self._batches = list(batches)
        self.asked: list[tuple[Cursor | None, int]] = []

    def __call__(self, after: Cursor | None, limit: int) -> Batch:
        self.asked.append((after, limit))
        return self._batches.pop(0)


def phase(pages: Callable[[Cursor | None, int], Batch], most: int = 4) -> Phase:
    return run_phase(PageBudget(8, most), None, pages)


@pytest.mark.adr("0036", "2.2")
@pytest.mark.scenario(204)
def test_pages_are_read_to_their_end_and_summed() -> None:
    pages = Pages(Batch({"scanned": 8}, A), Batch({"scanned": 3, "blocked": 1}, None))
    assert phase(pages) == Phase(
        {"scanned": 11, "blocked": 1}, 2, StopReason.COMPLETE, remaining=False, cursor=None
    )
    assert pages.asked == [(None, 8), (A, 8)]


@pytest.mark.adr("0036", "2.4")
@pytest.mark.scenario(205)
def test_a_spent_budget_keeps_the_cursor() -> None:
    pages = Pages(Batch({"scanned": 8}, A), Batch({"scanned": 8}, B))
    done = phase(pages, most=2)
    assert (done.stop_reason, done.remaining, done.cursor) == (StopReason.PAGE_LIMIT, True, B)
    assert (done.pages, done.counts) == (2, {"scanned": 16})


def test_the_next_cycle_goes_on_at_the_kept_cursor() -> None:
    pages = Pages(Batch({}, None))
    run_phase(PageBudget(8, 1), B, pages)
    assert pages.asked == [(B, 8)]


@pytest.mark.adr("0036", "2.3")
@pytest.mark.scenario(206)
@pytest.mark.parametrize("stalled", [A, Cursor(0, 9), Cursor(1, 0)])
def test_a_cursor_that_does_not_increase_is_reported_and_dropped(stalled: Cursor) -> None:
    """W11: equality and going back are stalls; the next cycle begins at the front."""
    pages = Pages(Batch({"scanned": 1}, A), Batch({"scanned": 1}, stalled))
    done = phase(pages)
    assert done.stop_reason is StopReason.CURSOR_STALLED
    assert (done.remaining, done.cursor, done.pages) == (True, None, 2)
    assert done.counts == {"scanned": 2}


@pytest.mark.parametrize(("first", "second"), [(A, B), (A, C), (B, C)])
def test_a_cursor_that_increases_goes_on(first: Cursor, second: Cursor) -> None:
    pages = Pages(Batch({}, first), Batch({}, second), Batch({}, None))
    assert phase(pages).stop_reason is StopReason.COMPLETE


def test_a_stop_keeps_the_cursor_of_the_page_that_was_not_finished() -> None:
    pages = Pages(Batch({"claimed": 2}, A), Batch({"claimed": 1}, B, stopped=True))
    done = phase(pages)
    assert (done.stop_reason, done.cursor, done.remaining) == (StopReason.STOPPED, A, True)
    assert done.counts == {"claimed": 3}


def test_what_a_page_raises_ends_the_phase() -> None:
    def failing(_after: Cursor | None, _limit: int) -> Batch:
        raise UnavailableError("store_busy", "no")

    with pytest.raises(UnavailableError):
        phase(failing)


@pytest.mark.adr("0036", "2.1")
@pytest.mark.adr("0033", "5.9")
@pytest.mark.scenario(209)
@pytest.mark.parametrize("budget", [(0, 1), (65, 1), (1, 0), (1, 65), (True, 1), (1, 1.5)])
def test_a_budget_outside_its_bounds_is_refused(budget: tuple[object, object]) -> None:
    with pytest.raises(UsageError):
        check_budget(*budget)
