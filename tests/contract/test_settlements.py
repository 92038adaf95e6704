"""Who proved what for an outcome that a person settled: stored, proven, never filled in."""

import sqlite3

import pytest

from qinglong_edge.domain import resolution
from qinglong_edge.domain.authorization import AuthorizationFact, FactKind, fact_digest
from qinglong_edge.domain.errors import DamagedError, InvariantBroken
from qinglong_edge.domain.identity import Assurance
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import Subject, SubjectType
from qinglong_edge.domain.recovery import RecoveryRefusal
from qinglong_edge.ports.repositories import Listing
from qinglong_edge.storage.sqlite import facts
from tests.contract.adapters import SqliteRepositories, dump, spoil
from tests.contract.recovery_story import (
    by_person,
    ended,
    evidence_of,
    person_of,
    scan_of,
    scanned,
    strong,
    unknown,
)
from tests.contract.story import Story, changed, complete_of, replayed
from tests.support.builders import ANA, PROJECT
from tests.support.clock import WALL_MS


@pytest.fixture
def story(sqlite: SqliteRepositories) -> Story:
    return Story(sqlite)


def rows(sqlite: SqliteRepositories, table: str) -> int:
    return len(dump(sqlite.path)[table])


def fact_of(story: Story, sqlite: SqliteRepositories) -> AuthorizationFact | None:
    record = story.record()
    act = resolution.act_of(record.resolution)
    return sqlite.database.read(lambda tx: facts.proven(tx, record.key, FactKind.RESOLUTION, act))


@pytest.mark.adr("0033", "7.1")
@pytest.mark.scenario(168)
@pytest.mark.parametrize("waited_ms", [0, 300_000])
def test_a_persons_word_stands_with_its_fact(
    story: Story, sqlite: SqliteRepositories, waited_ms: int
) -> None:
    unknown(story)
    principal = strong(story.clocks, assurance=Assurance.HARDWARE)
    story.clocks.advance(waited_ms)
    changed(story.ports.recoveries.resolve_by_person(person_of(1, principal)))
    fact = fact_of(story, sqlite)
    assert fact == AuthorizationFact(
        "dsp-1", PROJECT, "man-1", ANA, "ses-1", Assurance.HARDWARE, WALL_MS, 1, 1,
        WALL_MS + waited_ms,
    )  # fmt: skip
    (row,) = dump(sqlite.path)["authorization_facts"]
    assert row[1] == "resolution"
    assert row[-1].hex() == fact_digest(fact)
    assert story.ports.overview.problems() == []


@pytest.mark.scenario(154)
def test_evidence_needs_no_fact(story: Story, sqlite: SqliteRepositories) -> None:
    scanned(story)
    changed(story.ports.recoveries.resolve_by_evidence(evidence_of(1)))
    assert fact_of(story, sqlite) is None
    assert (rows(sqlite, "resolutions"), rows(sqlite, "authorization_facts")) == (1, 0)
    assert story.ports.overview.problems() == []


@pytest.mark.scenario(109)
def test_an_answer_leaves_neither_resolution_nor_fact(
    story: Story, sqlite: SqliteRepositories
) -> None:
    unknown(story)
    changed(story.ports.dispatches.complete(complete_of(1, 3))[0])
    assert (rows(sqlite, "resolutions"), rows(sqlite, "authorization_facts")) == (0, 0)


@pytest.mark.adr("0033", "7.1")
@pytest.mark.scenario(177)
@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM authorization_facts", "fact_missing"),
        ("UPDATE authorization_facts SET kind = 'decision'", "fact_damaged"),
        ("UPDATE authorization_facts SET assurance = 'hardware'", "fact_damaged"),
        ("UPDATE authorization_facts SET assurance = 'single_factor'", "fact_damaged"),
        ("UPDATE authorization_facts SET authentication_id = 'ses-2'", "fact_damaged"),
        ("UPDATE authorization_facts SET mutation_id = 'man-2'", "fact_damaged"),
        ("UPDATE authorization_facts SET authorized_by = 'user:bob'", "fact_damaged"),
        ("UPDATE authorization_facts SET authorized_by = 'agent:ana'", "fact_damaged"),
        ("UPDATE authorization_facts SET authenticated_at_ms = 1", "fact_damaged"),
        ("UPDATE authorization_facts SET project_version = 2", "fact_damaged"),
        ("UPDATE authorization_facts SET binding_version = 2", "fact_damaged"),
        ("UPDATE authorization_facts SET authorized_at_ms = 1", "fact_damaged"),
        ("UPDATE authorization_facts SET fact_digest = zeroblob(32)", "fact_damaged"),
        ("UPDATE resolutions SET resolved_by = 'user:bob'", "fact_damaged"),
        ("UPDATE resolutions SET resolved_by = NULL", "row_damaged"),
        ("UPDATE resolutions SET resolved_at_ms = resolved_at_ms + 1", "fact_damaged"),
    ],
)
def test_verify_sees_a_word_whose_fact_is_gone_or_says_something_else(
    story: Story, sqlite: SqliteRepositories, statement: str, problem: str
) -> None:
    unknown(story)
    changed(by_person(story))
    spoil(sqlite.path, statement)
    found = story.ports.overview.problems()
    broken_checks = {"row": None, "problem": "database_integrity"}
    assert [each for each in found if each != broken_checks] == [{"row": 1, "problem": problem}]


@pytest.mark.scenario(178, 179)
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM authorization_facts",
        "UPDATE authorization_facts SET authentication_id = 'ses-2'",
    ],
)
def test_a_fact_that_is_gone_or_wrong_is_never_filled_in(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    unknown(story)
    event = person_of(1, strong(story.clocks))
    changed(story.ports.recoveries.resolve_by_person(event))
    replayed(story.ports.recoveries.resolve_by_person(event))
    spoil(sqlite.path, statement)
    before = dump(sqlite.path)
    answer = story.ports.recoveries.resolve_by_person(event)
    assert answer is RecoveryRefusal.ALREADY_TERMINAL
    assert dump(sqlite.path) == before


CONTRADICTIONS = [
    "UPDATE resolutions SET execution_version = execution_version + 1",
    "UPDATE resolutions SET mutation_id = 'other'",
    "UPDATE resolutions SET decision = 'confirm_failed'",
    "UPDATE resolutions SET decision = 'retry'",
    "UPDATE resolutions SET source = 'nobody'",
    "UPDATE resolutions SET resolved_by = 'bob' WHERE source = 'human'",
    "UPDATE executions SET result_mutation_id = 'other'",
    "UPDATE executions SET status = 'failed'",
    "UPDATE executions SET version = version + 1",
]


@pytest.mark.scenario(142, 147)
@pytest.mark.parametrize("statement", CONTRADICTIONS)
def test_a_resolution_that_contradicts_its_execution_is_damage(
    story: Story, sqlite: SqliteRepositories, statement: str
) -> None:
    unknown(story)
    changed(by_person(story))
    spoil(sqlite.path, statement)
    before = dump(sqlite.path)
    for call in (
        story.record,
        lambda: by_person(story),
        lambda: story.ports.recoveries.resolve_by_evidence(evidence_of(1)),
        lambda: story.ports.dispatches.complete(complete_of(1, 3)),
    ):
        with pytest.raises(DamagedError) as raised:
            call()
        assert raised.value.code == "row_damaged"
    page = story.ports.approvals.page(Listing(None, None, 9))
    assert (page.items, page.damaged) == ([], 1)
    assert {"row": 1, "problem": "row_damaged"} in story.ports.overview.problems()
    assert dump(sqlite.path) == before


def test_a_resolution_of_what_never_started_is_damage(
    story: Story, sqlite: SqliteRepositories
) -> None:
    story.claimed()
    row = "1, 1, 'm', 'human', 'abandon_unknown', NULL, 'r', 'user:ana', 1, 0"
    spoil(sqlite.path, f"INSERT INTO resolutions VALUES ({row})")
    with pytest.raises(DamagedError):
        story.record()


ABORTS = {
    "ids": "WHEN NEW.kind = 'resolution'",
    "resolutions": "",
    "authorization_facts": "",
}


@pytest.mark.adr("0033", "5.5")
@pytest.mark.scenario(146, 176)
@pytest.mark.parametrize("table", ABORTS)
@pytest.mark.parametrize("by", ["evidence", "person"])
def test_a_settlement_that_breaks_off_leaves_nothing(
    story: Story, sqlite: SqliteRepositories, table: str, by: str
) -> None:
    stored = scanned(story)
    before = dump(sqlite.path)
    abort = f"BEFORE INSERT ON {table} {ABORTS[table]} BEGIN SELECT RAISE(ABORT, 'staged'); END"
    sqlite.database.connection.execute(f"CREATE TRIGGER staged {abort}")

    def settle() -> object:
        if by == "person":
            return by_person(story)
        return story.ports.recoveries.resolve_by_evidence(evidence_of(1))

    if (table, by) != ("authorization_facts", "evidence"):
        with pytest.raises(InvariantBroken):
            settle()
        assert dump(sqlite.path) == before
        assert story.record() == stored
        assert story.control().status is ControlStatus.LEASED
        assert story.status() is ExecutionStatus.EXECUTING
    sqlite.database.connection.execute("DROP TRIGGER staged")
    changed(settle())
    assert ended(story)[1] is ControlStatus.RESOLVED


@pytest.mark.adr("0033", "5.5")
@pytest.mark.scenario(146)
@pytest.mark.parametrize("column", ["status", "control_status"])
def test_a_settlement_whose_control_cannot_move_leaves_nothing(
    story: Story, sqlite: SqliteRepositories, column: str
) -> None:
    scanned(story)
    before = dump(sqlite.path)
    abort = f"BEFORE UPDATE OF {column} ON executions BEGIN SELECT RAISE(ABORT, 'staged'); END"
    sqlite.database.connection.execute(f"CREATE TRIGGER staged {abort}")
    with pytest.raises(InvariantBroken):
        story.ports.recoveries.resolve_by_evidence(evidence_of(1))
    with pytest.raises(InvariantBroken):
        by_person(story)
    assert dump(sqlite.path) == before


@pytest.mark.scenario(141, 142)
@pytest.mark.parametrize("change", ["control_status = NULL", "control_status = 'resolved'"])
def test_an_execution_that_nobody_watches_is_damage(
    story: Story, sqlite: SqliteRepositories, change: str
) -> None:
    unknown(story)
    spoil(sqlite.path, f"UPDATE executions SET {change}")
    before = dump(sqlite.path)
    for call in (
        story.record,
        lambda: story.ports.recoveries.claim(scan_of(1)),
        lambda: by_person(story),
        lambda: story.ports.dispatches.complete(complete_of(1, 3)),
    ):
        with pytest.raises(DamagedError) as raised:
            call()
        assert raised.value.code == "row_damaged"
    page = story.ports.recoveries.list_due(None, 9)
    assert (page.items, page.damaged) == ([], 1)
    assert dump(sqlite.path) == before


def test_a_stranger_cannot_stand_as_the_one_who_settled(
    story: Story, sqlite: SqliteRepositories
) -> None:
    unknown(story)
    principal = strong(story.clocks, Subject(SubjectType.AGENT, "ana"))
    answer = story.ports.recoveries.resolve_by_person(person_of(1, principal))
    assert answer is RecoveryRefusal.HUMAN_REQUIRED
    with pytest.raises(sqlite3.IntegrityError):
        sqlite.database.connection.execute(
            "INSERT INTO resolutions VALUES (1, 3, 'm', 'human', 'abandon_unknown', NULL, 'r',"
            " 'agent:ana', 1, 0)"
        )
