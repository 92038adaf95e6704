"""Every port method on a store that cannot answer: our errors only, and nothing half done.

The methods are listed from the Protocols, so a new one without a prepared call fails here.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import (
    DamagedError,
    QinglongError,
    RefusedError,
    UnavailableError,
)
from qinglong_edge.ports.probe import no_probe
from qinglong_edge.storage.sqlite import database, migrations
from tests.contract.adapters import (
    Repositories,
    SqliteRepositories,
    connect,
    copied,
    dump,
)
from tests.contract.calls import CALLS, READS, WRITES, port_methods, prepare
from tests.contract.story import changed, propose_of
from tests.support.clock import FakeClocks

PATIENCE_MS = 10
ALL = pytest.mark.parametrize("name", sorted(CALLS))
READING = pytest.mark.parametrize("name", READS)
WRITING = pytest.mark.parametrize("name", WRITES)


@pytest.mark.adr("0004", "8")
def test_every_port_method_has_a_prepared_call() -> None:
    assert {name.partition(" ")[0] for name in CALLS} == port_methods()


@ALL
def test_a_prepared_call_does_what_it_says(full: SqliteRepositories, name: str) -> None:
    before = full.snapshot()
    CALLS[name].run(full.ports)
    assert (full.snapshot() != before) is CALLS[name].writes


def test_the_model_answers_the_prepared_calls_alike(
    repositories: Repositories, template: str, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = SqliteRepositories(copied(template, folder), FakeClocks())
    prepare(repositories)
    prepare(other)
    skipped = {"Overview.problems", "Overview.bytes_on_disk"}
    for name, call in CALLS.items():
        if name not in skipped and not (
            name.startswith(("Identities", "Factors")) and repositories.ports.identities is None
        ):
            assert call.run(repositories.ports) == call.run(other.ports), name
    other.close()


def failure(full: SqliteRepositories, name: str) -> QinglongError:
    """Return what a call raises; anything but our families fails the test."""
    with pytest.raises((UnavailableError, DamagedError, RefusedError)) as raised:
        CALLS[name].run(full.ports)
    assert raised.value.code
    assert "sqlite" not in raised.value.message.lower()
    assert not full.database.connection.in_transaction
    return raised.value


@contextmanager
def held(full: SqliteRepositories, how: str) -> Iterator[None]:
    """Let another connection hold a lock on the file."""
    full.database.connection.execute(f"PRAGMA busy_timeout = {PATIENCE_MS}")
    with closing(connect(full.path)) as other:
        other.execute(f"BEGIN {how}")
        yield
        other.execute("ROLLBACK")


@pytest.mark.adr("0004", "8")
@WRITING
def test_a_write_does_not_wait_for_ever_on_a_locked_store(
    full: SqliteRepositories, name: str
) -> None:
    before = dump(full.path)
    with held(full, "IMMEDIATE"):
        assert (failure(full, name).code, dump(full.path)) == ("store_busy", before)
    CALLS[name].run(full.ports)
    assert dump(full.path) != before


@READING
def test_a_read_goes_on_beside_a_writer(full: SqliteRepositories, name: str) -> None:
    free = CALLS[name].run(full.ports)
    with held(full, "IMMEDIATE"):
        assert CALLS[name].run(full.ports) == free


@ALL
def test_a_store_in_anothers_hands_is_busy(full: SqliteRepositories, name: str) -> None:
    before = dump(full.path)
    with held(full, "EXCLUSIVE"):
        error = failure(full, name)
    assert (type(error), error.code) == (UnavailableError, "store_busy")
    assert dump(full.path) == before
    CALLS[name].run(full.ports)


def padded(full: SqliteRepositories) -> None:
    """Leave no free page, and no room for another."""
    connection = full.database.connection
    connection.execute("CREATE TABLE padding (x BLOB)")
    connection.execute("INSERT INTO padding VALUES (zeroblob(9000))")
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")


def grown(full: SqliteRepositories, name: str) -> None:
    """Make room again."""
    full.database.connection.execute("PRAGMA max_page_count = 1000000")
    CALLS[name].run(full.ports)


@pytest.mark.adr("0004", "8")
@ALL
def test_a_full_store_refuses_whole_or_takes_whole(
    full: SqliteRepositories, prepared: str, tmp_path: Path, name: str
) -> None:
    (tmp_path / "twin").mkdir()
    twin = SqliteRepositories(copied(prepared, tmp_path / "twin"), FakeClocks())
    CALLS[name].run(twin.ports)
    padded(full)
    before = dump(full.path)
    if not took(full, name):
        assert dump(full.path) == before
        grown(full, name)
    assert dump(full.path) == twin.snapshot()
    twin.close()


def test_a_full_store_runs_out_in_the_end(full: SqliteRepositories) -> None:
    padded(full)
    codes = [refusal(full, n) for n in range(100, 130)]
    assert "disk_full" in codes
    assert CALLS["Approvals.page"].run(full.ports)


def refusal(full: SqliteRepositories, n: int) -> str | None:
    """Propose a numbered action; return the code of what stopped it."""
    try:
        changed(full.ports.approvals.propose(propose_of(n)))
    except UnavailableError as error:
        return error.code
    return None


def took(full: SqliteRepositories, name: str) -> bool:
    try:
        CALLS[name].run(full.ports)
    except UnavailableError as error:
        if error.code != "disk_full":
            raise
        return False
    return True


@pytest.mark.adr("0004", "8")
@WRITING
def test_a_read_only_store_takes_nothing(full: SqliteRepositories, name: str) -> None:
    before = dump(full.path)
    full.database.connection.execute("PRAGMA query_only = ON")
    error = failure(full, name)
    assert (type(error), error.code) == (UnavailableError, "read_only")
    assert dump(full.path) == before
    full.database.connection.execute("PRAGMA query_only = OFF")
    CALLS[name].run(full.ports)
    assert dump(full.path) != before


@READING
def test_a_read_only_store_is_read(full: SqliteRepositories, name: str) -> None:
    free = CALLS[name].run(full.ports)
    full.database.connection.execute("PRAGMA query_only = ON")
    assert CALLS[name].run(full.ports) == free


@pytest.mark.adr("0004", "8")
@WRITING
def test_a_file_that_was_moved_away_takes_nothing(full: SqliteRepositories, name: str) -> None:
    aside = full.path + ".aside"
    os.rename(full.path, aside)
    before = Path(aside).read_bytes()
    assert isinstance(failure(full, name), UnavailableError)
    assert Path(aside).read_bytes() == before
    assert not os.path.exists(full.path)
    os.rename(aside, full.path)
    CALLS[name].run(full.ports)
    assert Path(full.path).read_bytes() != before


@ALL
def test_garbage_is_damage_and_stays_as_it_is(full: SqliteRepositories, name: str) -> None:
    whole = Path(full.path).read_bytes()
    spoiled = b"\xa5" * len(whole)
    overwrite(full.path, spoiled)
    assert isinstance(failure(full, name), DamagedError)
    assert Path(full.path).read_bytes() == spoiled
    overwrite(full.path, whole)
    CALLS[name].run(full.ports)


@ALL
def test_an_emptied_file_is_damage_and_stays_empty(full: SqliteRepositories, name: str) -> None:
    """An open connection does not find its schema again, so nothing is repeated on it."""
    overwrite(full.path, b"")
    assert isinstance(failure(full, name), DamagedError)
    assert Path(full.path).read_bytes() == b""


def overwrite(path: str, data: bytes) -> None:
    """Replace the content of the very file that is open."""
    with Path(path).open("r+b") as file:
        file.write(data)
        file.truncate()


TABLES = ("actions", "executions", "plans", "ids", "identities", "sessions", "role_bindings")


@ALL
def test_a_schema_of_another_program_is_damage(full: SqliteRepositories, name: str) -> None:
    """A table that a method needs is gone; with it, nothing else was touched."""
    with closing(sqlite3.connect(full.path, isolation_level=None)) as other:
        other.execute("PRAGMA legacy_alter_table = ON")
        for table in (*TABLES, "clock"):
            other.execute(f"ALTER TABLE {table} RENAME TO their_{table}")
        assert isinstance(failure(full, name), DamagedError)
        for table in (*TABLES, "clock"):
            other.execute(f"ALTER TABLE their_{table} RENAME TO {table}")
    CALLS[name].run(full.ports)


@pytest.mark.adr("0004", "8")
@ALL
def test_a_newer_store_is_refused_before_any_call(
    full: SqliteRepositories, prepared: str, name: str
) -> None:
    """The schema number is looked at where a store is opened, so no method ever meets it."""
    with closing(sqlite3.connect(full.path, isolation_level=None)) as other:
        other.execute(f"PRAGMA user_version = {len(migrations.MANIFEST) + 1}")
    before = dump(full.path)
    connection = database.open_writing(full.path, "truncate", exclusive=False)
    with closing(connection):
        for look in (migrations.check, migrations.check_history):
            with pytest.raises(RefusedError) as raised:
                look(connection)
            assert raised.value.code == "schema_newer"
        with pytest.raises(RefusedError):
            migrations.migrate(connection, no_probe)
    assert dump(full.path) == before
