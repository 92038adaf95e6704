"""Unknown outcomes that wait for a person: ten thousand of them cost nobody else a step."""

from collections.abc import Callable

import pytest

from qinglong_edge.domain.paging import Cursor
from qinglong_edge.ports.repositories import Listing, Queue
from qinglong_edge.storage.sqlite.transaction import Database
from tests.contract.adapters import SqliteRepositories
from tests.contract.recovery_story import UNSUPPORTED, observe_of, scanned
from tests.contract.story import Story, changed

MANY = 10_000
PAGE = 64


def columns(database: Database, table: str, changes: dict[str, str]) -> str:
    names = [row["name"] for row in database.connection.execute(f"PRAGMA table_info({table})")]
    return ", ".join(changes.get(name, name) for name in names)


def park(sqlite: SqliteRepositories, first: int, last: int) -> None:
    """Copy the one parked action until there are as many as `last`."""
    database = sqlite.database
    numbers = (
        f"WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
    )
    fresh = {"key": "i", "approval_request_id": "'apr-x' || i", "dispatch_id": "'dsp-x' || i"}
    shown = columns(database, "actions", fresh)
    database.connection.execute("BEGIN")
    database.connection.execute(
        f"INSERT INTO actions {numbers} SELECT {shown} FROM n JOIN actions ON key = 1"
    )
    shown = columns(database, "executions", {"action": "i"})
    database.connection.execute(
        f"INSERT INTO executions {numbers} SELECT {shown} FROM n JOIN executions ON action = 1"
    )
    database.connection.execute("COMMIT")


def steps(database: Database, call: Callable[[], object]) -> int:
    """Count the virtual machine's steps of one call."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    database.connection.set_progress_handler(count, 1)
    try:
        call()
    finally:
        database.connection.set_progress_handler(None, 1)
    return counted


def idle(story: Story) -> dict[str, Callable[[], object]]:
    """Return what a cycle asks before it finds that nothing waits."""
    ports = story.ports
    return {
        "work waits": lambda: ports.overview.work_waits("owner-9"),
        "dead owners": lambda: ports.dispatches.settle_dead_owners("owner-9"),
        "recovery": lambda: ports.recoveries.list_due(None, PAGE),
        "dispatch": lambda: ports.dispatches.list_due(None, PAGE),
    }


@pytest.mark.adr("0009", "9")
@pytest.mark.adr("0033", "5.2")
@pytest.mark.adr("0033", "5.10")
@pytest.mark.scenario(134, 221)
def test_an_idle_cycle_takes_the_same_steps_beside_a_crowd_that_waits_for_a_person(
    sqlite: SqliteRepositories,
) -> None:
    story, database = Story(sqlite), sqlite.database
    alone = {name: steps(database, call) for name, call in idle(story).items()}
    scanned(story)
    changed(story.ports.recoveries.observe(observe_of(1, evidence=UNSUPPORTED)))
    park(sqlite, 2, MANY)
    assert story.ports.overview.backlog().manual_required == MANY
    commits = sqlite.commits()
    crowded = {name: steps(database, call) for name, call in idle(story).items()}
    assert crowded == alone
    assert min(alone.values()) > 0
    assert not story.ports.overview.work_waits("owner-9")
    assert (story.due(), story.waits_for_recovery()) == ([], [])
    assert sqlite.commits() == commits


@pytest.mark.adr("0033", "5.9")
def test_a_page_of_the_manual_queue_costs_a_page_however_many_wait(
    sqlite: SqliteRepositories,
) -> None:
    story = Story(sqlite)
    scanned(story)
    changed(story.ports.recoveries.observe(observe_of(1, evidence=UNSUPPORTED)))

    def page(after: Cursor | None) -> Callable[[], object]:
        listing = Listing(Queue.MANUAL_REQUIRED, after, PAGE)

        def read() -> None:
            found = story.ports.approvals.page(listing)
            assert (len(found.items), found.damaged) == (PAGE, 0)
            assert found.cursor is not None

        return read

    park(sqlite, 2, 3 * PAGE)
    few = steps(sqlite.database, page(None))
    park(sqlite, 3 * PAGE + 1, MANY)
    assert steps(sqlite.database, page(None)) == few
    deep = story.ports.approvals.page(Listing(Queue.MANUAL_REQUIRED, Cursor(0, MANY // 2), 1))
    assert deep.items[0].key == MANY // 2 + 1
    assert abs(steps(sqlite.database, page(deep.cursor)) - few) <= few // 10
