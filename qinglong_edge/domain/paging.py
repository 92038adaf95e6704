"""Pages, cursors and the bounded page loop's verdicts (ADR-0036, 2).

A cursor is opaque text to people: the two integers of a keyset, so that a page never skips or
repeats. It must strictly increase; one that does not has stalled, and is dropped.
"""

import enum
from typing import Generic, NamedTuple, TypeVar

from qinglong_edge.domain import ids, limits

Item = TypeVar("Item")


class Cursor(NamedTuple):
    """Hold the key of the last row of a page: order value, then action key."""

    order: int
    key: int


class StopReason(enum.StrEnum):
    """Name why a phase ended."""

    COMPLETE = "complete"
    PAGE_LIMIT = "page_limit"
    CURSOR_STALLED = "cursor_stalled"
    STOPPED = "stopped"


class PageBudget(NamedTuple):
    """Bound a phase: items a page, pages a cycle."""

    page_size: int
    max_pages: int


class Page(Generic[Item]):
    """Hold one bounded page; `cursor` is None when nothing follows, `damaged` rows were skipped."""

    __slots__ = ("cursor", "damaged", "items")

    def __init__(self, items: list[Item], cursor: Cursor | None, damaged: int = 0) -> None:
        """Hold the rows, where to go on, and how many rows could not be believed."""
        self.items = items
        self.cursor = cursor
        self.damaged = damaged


def check_limit(value: object) -> int:
    """Return a page size of 1..64."""
    return ids.check_int(value, "limit", least=1, most=limits.PAGE_ITEMS_MAX)


def check_budget(page_size: object, max_pages: object) -> PageBudget:
    """Return a phase budget; raises `UsageError` outside 1..64."""
    return PageBudget(
        ids.check_int(page_size, "page_size", least=1, most=limits.PAGE_ITEMS_MAX),
        ids.check_int(max_pages, "max_pages", least=1, most=limits.PHASE_PAGES_MAX),
    )


def advances(before: Cursor | None, after: Cursor) -> bool:
    """Tell whether a cursor moved on; equality and going back are stalls (W11)."""
    return before is None or after > before


def cursor_text(cursor: Cursor | None) -> str | None:
    """Return the text form of a cursor."""
    return None if cursor is None else f"{cursor.order:x}.{cursor.key:x}"


def parse_cursor(text: str) -> Cursor:
    """Read a cursor's text form; raises `UsageError` where no list of ours could print it."""
    order, _, key = text.partition(".")
    if not _is_hex(order) or not _is_hex(key):
        raise ids.invalid("cursor", "was not printed by a list of this program")
    cursor = Cursor(int(order, 16), int(key, 16))
    if max(cursor) >= 2**63 or cursor_text(cursor) != text:
        raise ids.invalid("cursor", "was not printed by a list of this program")
    return cursor


def _is_hex(text: str) -> bool:
    return bool(text) and all(character in "0123456789abcdef" for character in text)
