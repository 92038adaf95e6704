"""Migrations: whole or not at all, in order, and never other than they were released."""

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.errors import DamagedError, InvariantBroken, QinglongError, RefusedError
from qinglong_edge.ports.probe import CrashPoint, Moment, Step, no_probe
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import database, migrations
from qinglong_edge.storage.sqlite.migrations import MANIFEST, Migration

FIRST = """-- The first; with a remark; and another.
CREATE TABLE migrations (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL
) STRICT;
CREATE TABLE a (x INTEGER PRIMARY KEY, y TEXT) STRICT;  -- behind it; too
INSERT INTO a VALUES (1, 'one; two');
CREATE TRIGGER a_stays BEFORE DELETE ON a BEGIN
  SELECT raise(ABORT, 'no; never');
  SELECT 1;
END;
-- The end; no statement.
"""
SECOND = """CREATE TABLE b (x INTEGER PRIMARY KEY) STRICT;
INSERT INTO b SELECT x + 1 FROM a;
"""


class Chain:
    """Hold migrations that exist for a test only."""

    def __init__(self, *texts: str) -> None:
        self.texts = {f"{number:04}_test.sql": text for number, text in enumerate(texts, 1)}
        self.manifest = tuple(
            Migration(number, file, sha256_hex(text.encode()))
            for number, (file, text) in enumerate(self.texts.items(), 1)
        )

    def run(
        self, connection: sqlite3.Connection, probe: Callable[[CrashPoint], None] = no_probe
    ) -> int:
        return migrations.migrate(
            connection, probe, manifest=self.manifest, read=self.texts.__getitem__
        )


REAL = Chain()
REAL.manifest = MANIFEST
REAL.texts = {each.file: migrations.packaged(each.file) for each in MANIFEST}
BOTH = Chain(FIRST, SECOND)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / database.DATABASE)


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    with closing(database.create(path, "wal")) as connection:
        yield connection


def schema(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2")
    return [tuple(row) for row in rows]


def caught(call: Callable[[], object]) -> QinglongError:
    with pytest.raises(QinglongError) as found:
        call()
    return found.value


def test_the_manifest_holds_the_released_digests() -> None:
    found = [Migration(*each[:2], sha256_hex(REAL.texts[each.file].encode())) for each in MANIFEST]
    assert found == list(MANIFEST), "a released file never changes; a new one brings its digest"
    assert [each.number for each in MANIFEST] == list(range(1, len(MANIFEST) + 1))
    assert all(each.file.startswith(f"{each.number:04}_") for each in MANIFEST)


def test_no_file_stands_outside_the_manifest() -> None:
    folder = Path(migrations.__file__).parent / "sql" / "migrations"
    assert sorted(each.name for each in folder.iterdir()) == [each.file for each in MANIFEST]


@pytest.mark.adr("0004", "4")
def test_all_migrations_from_empty_are_the_schema(connection: sqlite3.Connection) -> None:
    assert REAL.run(connection) == len(MANIFEST)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        for statement in migrations.cut(
            statements.text("qinglong_edge.storage.sqlite", "sql/schema.sql")
        ):
            fresh.execute(statement)
        assert schema(connection) == schema(fresh)
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


INDEXES = {
    ("projects", "slug"),
    ("role_bindings", "project,subject,version"),
    ("role_bindings", "project,mutation_id"),
    ("identities", "subject"),
    ("ids", "id"),
    ("actions", "project,expires_at_ms"),
    ("executions", "eligible_tick"),
    ("executions", "next_scan_tick"),
}


@pytest.mark.scenario(2, 27)
def test_what_is_looked_for_by_key_has_its_index(connection: sqlite3.Connection) -> None:
    """One tree of ids serves decisions, consumptions and dispatches, which upstream has apart."""
    REAL.run(connection)
    rows = connection.execute(
        "SELECT t.name, i.name, c.name FROM sqlite_schema t, pragma_index_list(t.name) i,"
        " pragma_index_info(i.name) c WHERE t.type = 'table' ORDER BY 1, 2, c.seqno"
    )
    found: dict[tuple[str, str], list[str]] = {}
    for table, index, column in rows:
        found.setdefault((table, index), []).append(column)
    assert INDEXES - {(table, ",".join(columns)) for (table, _), columns in found.items()} == set()


def test_each_runs_once_and_is_recorded(connection: sqlite3.Connection) -> None:
    assert migrations.version(connection) == 0
    assert BOTH.run(connection) == 2
    assert BOTH.run(connection) == 0
    assert migrations.version(connection) == 2
    rows = connection.execute("SELECT * FROM migrations ORDER BY number")
    assert [tuple(row) for row in rows] == list(BOTH.manifest)
    assert [tuple(row) for row in connection.execute("SELECT * FROM b")] == [(2,)]
    migrations.check(connection, manifest=BOTH.manifest)
    migrations.check_history(connection, manifest=BOTH.manifest)


def test_an_older_store_goes_on_with_its_rows(connection: sqlite3.Connection) -> None:
    assert Chain(FIRST).run(connection) == 1
    connection.execute("INSERT INTO a VALUES (7, NULL)")
    assert BOTH.run(connection) == 1
    assert [tuple(row) for row in connection.execute("SELECT * FROM b")] == [(2,), (8,)]


def test_statements_are_cut_whole() -> None:
    cut = [each.strip() for each in migrations.cut(FIRST)]
    assert len(cut) == 4
    assert cut[3].endswith("SELECT 1;\nEND;")
    assert "".join(migrations.cut(SECOND)) == SECOND


def test_half_a_statement_is_a_bug() -> None:
    with pytest.raises(InvariantBroken, match="ends within"):
        list(migrations.cut("CREATE TABLE a (x);\nCREATE TABLE b (x)\n"))


def test_points_to_die_at_stand_around_each_commit(connection: sqlite3.Connection) -> None:
    points: list[CrashPoint] = []
    depth: list[bool] = []

    def probe(point: CrashPoint) -> None:
        points.append(point)
        depth.append(connection.in_transaction)

    BOTH.run(connection, probe)
    inside, before, after = Moment.INSIDE, Moment.BEFORE, Moment.AFTER
    moments = [*[inside] * 4, before, after, *[inside] * 2, before, after]
    assert points == [CrashPoint(moment, Step.MIGRATE) for moment in moments]
    assert depth == [moment is not after for moment in moments]


@pytest.mark.adr("0004", "4")
@pytest.mark.parametrize("journal", ["wal", "truncate"])
@pytest.mark.parametrize("chain", [REAL, BOTH], ids=["real", "two"])
def test_killed_anywhere_it_goes_on(
    tmp_path: Path, chain: Chain, journal: database.Journal
) -> None:
    whole = database.create(str(tmp_path / "whole.db"), journal)
    moments: list[Moment] = []
    chain.run(whole, lambda point: moments.append(point.moment))
    wanted = schema(whole)
    whole.close()
    for stop in range(len(moments)):
        path = str(tmp_path / f"{stop}.db")
        database.create(path, journal).close()
        killed(path, chain, stop=stop, journal=journal)
        committed = moments[: stop + 1].count(Moment.AFTER)
        with closing(database.open_writing(path, journal)) as connection:
            assert migrations.version(connection) == committed
            if committed == 0:
                assert schema(connection) == []
            assert chain.run(connection) == len(chain.manifest) - committed
            assert schema(connection) == wanted


def killed(path: str, chain: Chain, *, stop: int, journal: database.Journal) -> None:
    """Run the migrations in a child that is killed at point number `stop`."""
    child = os.fork()
    if child == 0:
        try:
            points = iter(range(stop + 1))

            def probe(_point: CrashPoint) -> None:
                if next(points) == stop:
                    os.kill(os.getpid(), signal.SIGKILL)

            chain.run(database.open_writing(path, journal), probe)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize("bad", ["CREATE TABLE a (x);", "SELECT nothing;", "INSERT INTO c DEFAULT"])
def test_a_failing_one_leaves_nothing(connection: sqlite3.Connection, bad: str) -> None:
    Chain(FIRST).run(connection)
    before = schema(connection)
    chain = Chain(FIRST, f"CREATE TABLE b (x);\n{bad}\n")
    caught(lambda: chain.run(connection))
    assert (schema(connection), connection.in_transaction) == (before, False)
    assert migrations.version(connection) == 1
    assert BOTH.run(connection) == 1


@pytest.mark.adr("0004", "4")
def test_a_newer_store_is_refused(connection: sqlite3.Connection) -> None:
    BOTH.run(connection)
    older = Chain(FIRST)
    for call in (
        lambda: older.run(connection),
        lambda: migrations.check(connection, manifest=older.manifest),
        lambda: migrations.check_history(connection, manifest=older.manifest),
    ):
        error = caught(call)
        assert (type(error), error.code) == (RefusedError, "schema_newer")
        assert error.details == {"schema_version": 2, "known": 1}


def test_an_older_store_must_be_migrated_first(connection: sqlite3.Connection) -> None:
    for done, chain in ((0, None), (1, Chain(FIRST))):
        if chain is not None:
            chain.run(connection)
        error = caught(lambda: migrations.check(connection, manifest=BOTH.manifest))
        assert (type(error), error.code) == (RefusedError, "migration_required")
        assert error.details == {"schema_version": done, "needed": 2}


def test_an_impossible_number_is_damage(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA user_version = -1")
    error = caught(lambda: migrations.check(connection))
    assert (type(error), error.code) == (DamagedError, "store_damaged")


@pytest.mark.adr("0004", "4")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE migrations SET sha256 = upper(sha256) || 'x' WHERE number = 1",
        "UPDATE migrations SET name = '0001_other.sql' WHERE number = 1",
        "DELETE FROM migrations WHERE number = 1",
        "INSERT INTO migrations VALUES (2, '0002_test.sql', '')",
    ],
)
def test_another_history_is_damage(connection: sqlite3.Connection, change: str) -> None:
    Chain(FIRST).run(connection)
    connection.execute(change)
    error = caught(lambda: BOTH.run(connection))
    assert (type(error), error.code) == (DamagedError, "migration_changed")
    assert migrations.version(connection) == 1


def test_a_missing_history_is_damage(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA user_version = 1")
    assert isinstance(caught(lambda: BOTH.run(connection)), DamagedError)


def test_a_file_that_is_not_the_manifests_is_a_bug(connection: sqlite3.Connection) -> None:
    BOTH.texts, before = {**BOTH.texts, "0001_test.sql": FIRST + " "}, BOTH.texts
    try:
        with pytest.raises(InvariantBroken, match=sha256_hex((FIRST + " ").encode())):
            BOTH.run(connection)
    finally:
        BOTH.texts = before
    assert migrations.version(connection) == 0
