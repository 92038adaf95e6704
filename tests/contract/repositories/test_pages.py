"""Keyset pages: nothing skipped, nothing twice, and a damaged row costs only itself (W9, W11)."""

from collections.abc import Callable

import pytest

from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.paging import Cursor, Page, advances
from qinglong_edge.ports.repositories import Backlog, Listing, Queue
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import scan_of
from tests.contract.story import (
    Story,
    changed,
    claim_of,
    complete_of,
    expire_of,
    names,
    release_of,
    start_of,
)
from tests.support.builders import HOUR_MS, LEASE_MS

Read = Callable[[Cursor | None, int], Page[Record]]


def queue(story: Story, name: str | None) -> Read:
    """Return the pages of a list, or of a phase."""
    if name == "phase":
        return story.ports.dispatches.list_due
    if name == "recovery phase":
        return story.ports.recoveries.list_due
    return lambda after, limit: story.ports.approvals.page(
        Listing(None if name is None else Queue(name), after, limit)
    )


def walked(read: Read, limit: int) -> tuple[list[str], int, int]:
    """Read a list to its end; return ids, pages and damaged rows. The cursor must move on."""
    seen: list[str] = []
    after: Cursor | None = None
    for pages in range(1, 100):
        page = read(after, limit)
        assert len(page.items) + page.damaged <= limit
        seen += [record.approval.approval_request_id for record in page.items]
        if page.cursor is None:
            return seen, pages, page.damaged
        assert advances(after, page.cursor)
        after = page.cursor
    raise AssertionError("a list has no end")


def fill(story: Story, name: str) -> None:
    """Put five actions into a list, all at the same instant: their order values are equal."""
    for n in range(1, 6):
        if name == "pending":
            story.proposed(n)
        elif name == "approved":
            story.approved(n)
        elif name in {"due", "phase"}:
            story.consumed(n)
        else:
            story.started(n)
            if "recovery" in name:
                changed(story.ports.dispatches.expire(expire_of(n)))


QUEUES = ["pending", "approved", "due", "phase", "executing", "recovery_due", "recovery phase"]


@pytest.mark.scenario(72, 73, 129)
@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize(("limit", "pages"), [(1, 5), (2, 3), (4, 2), (5, 1), (64, 1)])
def test_equal_keys_are_neither_skipped_nor_repeated(
    story: Story, name: str, limit: int, pages: int
) -> None:
    fill(story, name)
    seen, needed, damaged = walked(queue(story, name), limit)
    assert seen == [f"apr-{n}" for n in range(1, 6)]
    assert (needed, damaged) == (pages, 0)


@pytest.mark.scenario(72)
def test_the_oldest_due_come_first(story: Story) -> None:
    for n in (3, 1, 2):
        story.consumed(n)
        story.clocks.advance(1)
    page = story.ports.dispatches.list_due(None, 2)
    assert names(page.items) == ["dsp-3", "dsp-1"]
    assert page.cursor is not None
    rest = story.ports.dispatches.list_due(page.cursor, 2)
    assert (names(rest.items), rest.cursor) == (["dsp-2"], None)


def test_everything_is_listed_newest_first(story: Story) -> None:
    story.proposed(1)
    story.completed(2)
    story.consumed(3)
    read = queue(story, None)
    page = read(None, 2)
    assert [each.approval.approval_request_id for each in page.items] == ["apr-3", "apr-2"]
    rest = read(page.cursor, 2)
    assert [each.approval.approval_request_id for each in rest.items] == ["apr-1"]
    assert rest.cursor is None


def test_the_first_to_expire_is_decided_first(story: Story) -> None:
    story.proposed(1, lifetime_ms=HOUR_MS)
    story.proposed(2, lifetime_ms=1_000)
    story.proposed(3, lifetime_ms=2_000)
    seen, _, _ = walked(queue(story, "pending"), 1)
    assert seen == ["apr-2", "apr-3", "apr-1"]


@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize("spoiled", [1, 3, 5])
def test_a_damaged_row_is_skipped_and_counted(
    story: Story, repositories: Repositories, name: str, spoiled: int
) -> None:
    fill(story, name)
    repositories.damage(f"apr-{spoiled}")
    page = queue(story, name)(None, 64)
    expected = [f"apr-{n}" for n in range(1, 6) if n != spoiled]
    assert [each.approval.approval_request_id for each in page.items] == expected
    assert page.damaged == 1
    assert walked(queue(story, name), 1)[0] == expected


def test_a_damaged_row_stays_closed(story: Story, repositories: Repositories) -> None:
    story.consumed(1)
    repositories.damage("apr-1")
    before = repositories.snapshot()
    for call in (
        lambda: story.ports.approvals.find("apr-1"),
        lambda: story.ports.approvals.find("dsp-1"),
        lambda: story.ports.dispatches.claim_page((claim_of(1),)),
    ):
        with pytest.raises(DamagedError) as raised:
            call()
        assert raised.value.code == "row_damaged"
    assert repositories.snapshot() == before


@pytest.mark.scenario(75)
def test_what_waits_or_has_ended_is_not_due(story: Story) -> None:
    story.completed(1)
    story.claimed(2)
    changed(story.ports.dispatches.release(release_of(2)))
    story.claimed(3)
    story.started(4)
    assert story.due() == []
    story.clocks.advance(1_000)
    assert story.due() == ["dsp-2"]


def test_a_deadline_that_passed_is_still_listed_so_that_it_ends(story: Story) -> None:
    story.consumed()
    story.clocks.advance(2 * HOUR_MS)
    assert story.due() == ["dsp-1"]


def test_what_waits_is_counted(story: Story) -> None:
    story.proposed(1)
    story.proposed(9, lifetime_ms=1)
    story.approved(2)
    story.clocks.advance(1)
    story.consumed(3)
    story.claimed(4)
    story.started(5)
    story.started(6)
    changed(story.ports.dispatches.expire(expire_of(6)))
    story.completed(7)
    story.clocks.advance(10)
    assert story.ports.overview.backlog() == Backlog(
        due=1, waiting=1, executing=1, pending=1, recovery_due=1, manual_required=0,
        oldest_age_ms=10,
    )  # fmt: skip


@pytest.mark.adr("0004", "2")
@pytest.mark.adr("0033", "5.10")
@pytest.mark.scenario(221)
def test_reading_writes_nothing(story: Story, repositories: Repositories) -> None:
    story.proposed(1)
    story.completed(2)
    before, commits = repositories.snapshot(), repositories.commits()
    for name in (None, *QUEUES, "manual_required"):
        queue(story, name)(None, 64)
    story.ports.approvals.find("apr-1")
    story.ports.approvals.plan("apr-1")
    story.ports.overview.backlog()
    story.ports.overview.instant()
    assert story.ports.dispatches.settle_dead_owners("owner-9") == 0
    assert not story.ports.overview.work_waits("owner-9")
    assert (repositories.snapshot(), repositories.commits()) == (before, commits)


def test_work_waits_exactly_when_a_cycle_would_write(story: Story) -> None:
    waits = story.ports.overview.work_waits
    story.proposed(1)
    assert not waits("owner-1")
    story.consumed(2)
    assert waits("owner-1")
    story.claimed_again(2)
    assert not waits("owner-1")
    assert waits("owner-2")
    changed(story.ports.dispatches.start(start_of(2)))
    assert not waits("owner-1")
    assert waits("owner-2")
    story.clocks.advance(LEASE_MS)
    assert waits("owner-1")
    assert waits("owner-2")
    changed(story.ports.recoveries.claim(scan_of(2)))
    assert not waits("owner-2")
    changed(story.ports.dispatches.complete(complete_of(2))[0])
    assert not waits("owner-2")
