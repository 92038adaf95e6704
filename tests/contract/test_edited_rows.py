"""Rows that somebody edited to the most or to nonsense: they stay closed, and the others go on."""

from collections.abc import Callable

import pytest

from qinglong_edge.domain.errors import RowDamagedError
from qinglong_edge.domain.execution import Record
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.paging import Page
from qinglong_edge.ports.repositories import Listing, Queue
from tests.contract.adapters import SqliteRepositories, dump, spoil
from tests.contract.recovery_story import by_person, scan_of, scanned, unknown
from tests.contract.story import Story, cancel_of, changed, claim_of, names, renew_of

NEXT_OWNER = "owner-2"
ACTIONS = "UPDATE actions SET {} WHERE key = 1"
EXECUTIONS = "UPDATE executions SET {} WHERE action = 1"
OF_ANY = [
    ACTIONS.format("approved = 0"),
    ACTIONS.format("decided_by = requested_by"),
    ACTIONS.format("decided_by = 'agent:bot'"),
    ACTIONS.format("decided_by = 'user:'"),
    ACTIONS.format("consumed_by = 'user:ana'"),
    ACTIONS.format("consumed_by = 'system:'"),
    ACTIONS.format("fence_project_version = 0"),
    ACTIONS.format("fence_binding_version = 0"),
    ACTIONS.format("risk = 'low'"),
    EXECUTIONS.format("version = 2147483647"),
    EXECUTIONS.format("attempt_count = 99"),
    ACTIONS.format("approved = 7"),
    EXECUTIONS.format("last_result_code = char(0)"),
    ACTIONS.format("permission = CAST(X'746F6FFF' AS TEXT)"),
    ACTIONS.format("decision_reason = CAST(X'C0' AS TEXT)"),
]
OF_LEASED = [
    EXECUTIONS.format("lease_token = ''"),
    EXECUTIONS.format("lease_owner = char(0)"),
    EXECUTIONS.format("lease_from_tick = lease_expires_tick + 1"),
    EXECUTIONS.format("version = 0"),
]
OF_UNSTARTED = [
    EXECUTIONS.format("control_version = 0"),
    EXECUTIONS.format("finding_count = 0"),
    EXECUTIONS.format("scan_owner = 'nobody'"),
    EXECUTIONS.format("next_scan_tick = 1"),
    EXECUTIONS.format("finding = 'missing'"),
]
OF_WATCHED = [
    EXECUTIONS.format("control_version = 2147483647"),
    EXECUTIONS.format("control_version = NULL"),
    EXECUTIONS.format("control_updated_at_ms = NULL"),
    EXECUTIONS.format("finding_count = 7"),
    EXECUTIONS.format("finding_count = NULL"),
    EXECUTIONS.format("finding = 'missing', finding_count = 1"),
    EXECUTIONS.format(
        "finding = 'missing', finding_count = 1, finding_mutation_id = 'see-1', finding_code = 'c',"
        " evidence_digest = X'00'"
    ),
    EXECUTIONS.format(
        "finding = 'missing', finding_count = 1, finding_mutation_id = 'see-1', finding_code = ''"
    ),
]


@pytest.fixture
def story(sqlite: SqliteRepositories) -> Story:
    return Story(sqlite)


def edited(story: Story, sqlite: SqliteRepositories, statement: str) -> Callable[[], None]:
    """Edit the first action; return the proof that it is named, and still as it was edited."""
    spoil(sqlite.path, statement)
    kept = first_rows(sqlite)

    def closed() -> None:
        assert first_rows(sqlite) == kept
        assert {"row": 1, "problem": "row_damaged"} in story.ports.overview.problems()
        with pytest.raises(RowDamagedError):
            story.record(1)
        with pytest.raises(RowDamagedError):
            story.ports.approvals.cancel(cancel_of(1))
        assert only_the_second(story.ports.approvals.page(Listing(None, None, 9)))
        story.ports.overview.backlog()
        story.ports.overview.work_waits(NEXT_OWNER)

    closed()
    return closed


def first_rows(sqlite: SqliteRepositories) -> list[object]:
    stored = dump(sqlite.path)
    return [row for table in ("actions", "executions") for row in stored[table] if row[0] == 1]


def only_the_second(page: Page[Record]) -> bool:
    return (names(page.items), page.damaged) == (["dsp-2"], 1)


@pytest.mark.scenario(54, 69)
@pytest.mark.parametrize("statement", [*OF_ANY, *OF_UNSTARTED])
def test_the_other_due_action_is_claimed(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    story.consumed(1)
    story.consumed(2)
    closed = edited(story, sqlite, statement)
    assert only_the_second(story.ports.dispatches.list_due(None, 9))
    with pytest.raises(RowDamagedError):  # edited after it was listed: the page is repeated
        story.ports.dispatches.claim_page((claim_of(1), claim_of(2)))
    assert story.status(2) is ExecutionStatus.PENDING
    story.claimed_again(2)
    closed()


@pytest.mark.parametrize("tick", ["-1", "-9223372036854775808"])
def test_an_action_whose_turn_never_comes_is_named(
    story: Story, sqlite: SqliteRepositories, tick: str
) -> None:
    story.consumed(1)
    story.consumed(2)
    closed = edited(story, sqlite, EXECUTIONS.format(f"eligible_tick = {tick}"))
    assert story.due() == ["dsp-2"]
    closed()


@pytest.mark.scenario(54, 69)
@pytest.mark.parametrize("statement", [*OF_ANY, *OF_LEASED, *OF_UNSTARTED])
def test_the_other_lease_of_a_dead_owner_is_taken_over(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    story.claimed(1, 2)
    closed = edited(story, sqlite, statement)
    with pytest.raises(RowDamagedError):
        story.ports.dispatches.renew(renew_of(1, 1))
    assert story.ports.dispatches.settle_dead_owners(NEXT_OWNER) == 1
    assert story.status(2) is ExecutionStatus.RETRY_WAIT
    closed()


@pytest.mark.scenario(54, 69)
@pytest.mark.parametrize("statement", [*OF_ANY, *OF_LEASED, *OF_WATCHED])
def test_the_other_execution_of_a_dead_owner_goes_to_recovery(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    story.started(1)
    story.started(2)
    closed = edited(story, sqlite, statement)
    assert story.ports.dispatches.settle_dead_owners(NEXT_OWNER) == 1
    assert story.waits_for_recovery() == ["dsp-2"]
    closed()


@pytest.mark.scenario(54, 69)
@pytest.mark.parametrize("statement", [*OF_ANY, *OF_LEASED, *OF_WATCHED])
def test_evidence_of_the_other_unknown_outcome_is_looked_for(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    unknown(story, 1)
    unknown(story, 2)
    closed = edited(story, sqlite, statement)
    assert only_the_second(story.ports.recoveries.list_due(None, 9))
    assert only_the_second(story.ports.approvals.page(Listing(Queue.RECOVERY_DUE, None, 9)))
    with pytest.raises(RowDamagedError):
        story.ports.recoveries.claim(scan_of(1))
    changed(story.ports.recoveries.claim(scan_of(2)))
    with pytest.raises(RowDamagedError):
        by_person(story, 1, unprobed=True)
    changed(by_person(story, 2, unprobed=True))
    closed()


@pytest.mark.parametrize(
    "statement",
    [
        EXECUTIONS.format("scan_token = ''"),
        EXECUTIONS.format("scan_owner = NULL"),
        EXECUTIONS.format("next_scan_tick = next_scan_tick - 1"),
        *OF_WATCHED,
    ],
)
def test_the_other_held_scan_may_be_settled(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    scanned(story, 1)
    scanned(story, 2)
    closed = edited(story, sqlite, statement)
    changed(by_person(story, 2, unprobed=True))
    closed()


@pytest.mark.scenario(142, 147)
@pytest.mark.parametrize(
    "change",
    [
        "reason_code = 'another'",
        "unprobed = 7",
        "resolved_by = NULL",
        "source = 'automatic_evidence'",
        "decision = 'confirm_failed'",
    ],
)
def test_an_end_that_was_edited_is_not_believed(
    story: Story, sqlite: SqliteRepositories, change: str
) -> None:
    for n in (1, 2):
        unknown(story, n)
        changed(by_person(story, n, unprobed=True))
    edited(story, sqlite, f"UPDATE resolutions SET {change} WHERE action = 1")
