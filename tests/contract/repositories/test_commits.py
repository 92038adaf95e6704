"""Commits that go wrong: for every mutation the same call tells what became of it, once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import CommitUnknownError, UnavailableError
from qinglong_edge.ports.handlers import HandlerAnswer
from tests.contract.adapters import Fault, FaultyConnection, SqliteRepositories, copied
from tests.contract.calls import CALLS, WRITES
from tests.support.clock import FakeClocks

MUTATIONS = pytest.mark.parametrize("name", WRITES)


@pytest.fixture
def twin(prepared: str, tmp_path: Path) -> Iterator[SqliteRepositories]:
    """Return a second prepared store, for what an undisturbed call stores."""
    folder = tmp_path / "twin"
    folder.mkdir()
    opened = SqliteRepositories(copied(prepared, folder), FakeClocks())
    yield opened
    opened.close()


def kinds(answer: object) -> set[type]:
    """Return the types of the decisions in an answer, whatever its shape."""
    if isinstance(answer, tuple) and not hasattr(answer, "_fields"):
        return {kind for each in answer for kind in kinds(each)}
    return {type(answer)}


@pytest.mark.adr("0004", "5")
@pytest.mark.adr("0033", "6.3")
@MUTATIONS
def test_a_lost_answer_turns_into_a_replay_and_nothing_is_doubled(
    name: str, full: SqliteRepositories, twin: SqliteRepositories
) -> None:
    CALLS[name].run(twin.ports)
    full.fail_next_commit(Fault.LOST_ANSWER)
    answer = CALLS[name].run(full.ports)
    assert Changed not in kinds(answer)
    same = HandlerAnswer in kinds(answer)  # an effect had before is answered like the first time
    assert Replayed in kinds(answer) or same or answer == 0
    assert full.snapshot() == twin.snapshot()
    CALLS[name].run(full.ports)
    assert full.snapshot() == twin.snapshot()


@MUTATIONS
def test_a_commit_that_did_not_happen_is_made_by_the_repeat(
    name: str, full: SqliteRepositories, twin: SqliteRepositories
) -> None:
    expected = CALLS[name].run(twin.ports)
    full.fail_next_commit(Fault.NOT_DONE)
    assert CALLS[name].run(full.ports) == expected
    assert full.snapshot() == twin.snapshot()


@MUTATIONS
def test_a_commit_that_never_happens_stays_unknown_and_can_be_repeated(
    name: str, full: SqliteRepositories, twin: SqliteRepositories
) -> None:
    before = full.snapshot()
    full.fail_next_commit(Fault.NEVER_DONE)
    with pytest.raises(CommitUnknownError):
        CALLS[name].run(full.ports)
    assert full.snapshot() == before
    full.database.connection.fault = None  # type: ignore[attr-defined]
    assert CALLS[name].run(full.ports) == CALLS[name].run(twin.ports)
    assert full.snapshot() == twin.snapshot()


@pytest.mark.adr("0004", "9")
@MUTATIONS
def test_a_full_device_has_stored_nothing(
    name: str, full: SqliteRepositories, twin: SqliteRepositories
) -> None:
    before = full.snapshot()
    full.fail_next_commit(Fault.FULL)
    with pytest.raises(UnavailableError) as raised:
        CALLS[name].run(full.ports)
    assert (type(raised.value), raised.value.code) == (UnavailableError, "disk_full")
    assert full.snapshot() == before
    assert CALLS[name].run(full.ports) == CALLS[name].run(twin.ports)
    assert full.snapshot() == twin.snapshot()


@MUTATIONS
def test_every_mutation_is_one_commit_and_its_repeat_is_none(
    name: str, full: SqliteRepositories
) -> None:
    first = full.commits()
    CALLS[name].run(full.ports)
    assert full.commits() == first + 1
    stored = full.snapshot()
    full.clocks.advance(1)
    again = CALLS[name].run(full.ports)
    assert Changed not in kinds(again)
    assert full.commits() == first + 1
    assert full.snapshot() == stored


@pytest.mark.scenario(62, 63, 92, 111, 155, 226)
@pytest.mark.adr("0004", "9")
@MUTATIONS
def test_a_fault_at_any_statement_takes_the_whole_call_back(
    name: str, full: SqliteRepositories, twin: SqliteRepositories
) -> None:
    """One statement after another fails, until the call gets through; then it is whole."""
    before = full.snapshot()
    connection = full.database.connection
    assert isinstance(connection, FaultyConnection)
    statements = 0
    while True:
        connection.fail_in = statements
        try:
            answer = CALLS[name].run(full.ports)
        except UnavailableError:
            statements += 1
            assert full.snapshot() == before
        else:
            break
    assert statements > 4
    connection.fail_in = None
    assert answer == CALLS[name].run(twin.ports)
    assert full.snapshot() == twin.snapshot()
