import pytest

from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.paging import (
    Cursor,
    Page,
    PageBudget,
    StopReason,
    advances,
    check_budget,
    check_limit,
    cursor_text,
    parse_cursor,
)


@pytest.mark.scenario(76)
@pytest.mark.adr("0033", "5.9")
@pytest.mark.parametrize("limit", [1, 2, 63, 64])
def test_a_page_has_one_to_64_items(limit: int) -> None:
    assert check_limit(limit) == limit


@pytest.mark.scenario(76)
@pytest.mark.adr("0033", "5.9")
@pytest.mark.adr("0036", "2.1")
@pytest.mark.parametrize("limit", [0, 65, -1, 1.5, True, "16", None])
def test_any_other_page_size_is_refused(limit: object) -> None:
    with pytest.raises(UsageError):
        check_limit(limit)


@pytest.mark.adr("0036", "2.1")
@pytest.mark.parametrize(("size", "pages"), [(1, 1), (64, 64), (8, 1)])
def test_a_budget_within_its_bounds_is_kept(size: int, pages: int) -> None:
    assert check_budget(size, pages) == PageBudget(size, pages)


@pytest.mark.scenario(209)
@pytest.mark.adr("0036", "2.1")
@pytest.mark.parametrize(
    ("size", "pages", "field"),
    [
        (0, 1, "page_size"),
        (65, 1, "page_size"),
        (1, 0, "max_pages"),
        (1, 65, "max_pages"),
        (True, 1, "page_size"),
        (1, 1.0, "max_pages"),
        (0, 0, "page_size"),
    ],
)
def test_a_budget_outside_its_bounds_is_refused(size: object, pages: object, field: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_budget(size, pages)
    assert caught.value.details == {"field": field}


@pytest.mark.scenario(206)
@pytest.mark.adr("0036", "2.3")
@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (None, Cursor(0, 0), True),
        (Cursor(5, 5), Cursor(5, 6), True),
        (Cursor(5, 5), Cursor(6, 0), True),
        (Cursor(5, 5), Cursor(5, 5), False),
        (Cursor(5, 5), Cursor(5, 4), False),
        (Cursor(5, 5), Cursor(4, 9), False),
    ],
)
def test_a_cursor_must_strictly_increase(before: Cursor | None, after: Cursor, moved: bool) -> None:
    """Going back is a stall as well, which upstream does not see (W11)."""
    assert advances(before, after) is moved


@pytest.mark.parametrize(
    "cursor", [Cursor(0, 0), Cursor(1, 2), Cursor(2**42 + 17, 3), Cursor(2**63 - 1, 2**63 - 1)]
)
def test_a_cursor_survives_its_text(cursor: Cursor) -> None:
    text = cursor_text(cursor)
    assert text is not None
    assert parse_cursor(text) == cursor


def test_no_cursor_has_no_text() -> None:
    assert cursor_text(None) is None


FOREIGN = [
    "", ".", "1", "1.", ".1", "1.2.3", "g.1", "1.g", "A.1", "1.F", " 1.2", "1.2\n", "+1.2", "-1.2",
    "0x1.2", "1_0.2", "１.2", f"{2**63:x}.0", f"0.{2**63:x}", "1" * 64 + ".1", "f" * 10_000,
]  # fmt: skip


@pytest.mark.scenario(76)
@pytest.mark.parametrize("text", FOREIGN)
def test_a_foreign_text_is_no_cursor(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cursor(text)
    assert caught.value.details == {"field": "cursor"}


@pytest.mark.parametrize("text", ["00.1", "1.01", "0000000000000001.1"])
def test_a_text_that_no_list_printed_is_no_cursor(text: str) -> None:
    with pytest.raises(UsageError):
        parse_cursor(text)


def test_a_page_holds_rows_the_way_on_and_the_damage() -> None:
    page = Page(["a", "b"], Cursor(1, 2), damaged=1)
    assert (page.items, page.cursor, page.damaged) == (["a", "b"], Cursor(1, 2), 1)
    assert Page(["a"], None).damaged == 0


def test_a_phase_ends_for_one_of_four_reasons() -> None:
    assert {reason.value for reason in StopReason} == {
        "complete", "page_limit", "cursor_stalled", "stopped",
    }  # fmt: skip
