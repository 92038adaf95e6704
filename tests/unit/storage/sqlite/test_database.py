"""Opening a store: what is read, what is written, what is refused; on real files."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError, QinglongError, RefusedError, UnavailableError
from qinglong_edge.storage.sqlite import database
from qinglong_edge.storage.sqlite.database import Journal, Kind
from tests.unit.storage.sqlite.stores import (
    left,
    made,
    names,
    setting,
    value,
    with_hot_journal,
    with_log,
)

JOURNALS: tuple[Journal, ...] = ("wal", "truncate")
ODD_NAMES = ["two words", "a?b=c&mode=rwc", "a#b", "100%25", "%2e", "青龙", "a:b;c", "\udcff\udc80"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return str(state / database.DATABASE)


def caught(call: Callable[[], object]) -> QinglongError:
    with pytest.raises(QinglongError) as found:
        call()
    return found.value


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_new_store_is_private_small_paged_and_ours(path: str, journal: Journal) -> None:
    before = os.umask(0o777)
    try:
        connection = database.create(path, journal)
    finally:
        os.umask(before)
    with closing(connection):
        assert setting(connection, "page_size") == 512
        assert setting(connection, "application_id") == database.APPLICATION_ID
        assert setting(connection, "auto_vacuum") == 0
        assert {
            os.stat(os.path.join(os.path.dirname(path), n)).st_mode & 0o777 for n in names(path)
        } == {0o600}
        assert f"{database.DATABASE}-shm" not in names(path)
    assert os.stat(path).st_size % 512 == 0


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_writing_connection_is_set_up_as_decided(path: str, journal: Journal) -> None:
    with closing(database.open_writing(made(path, journal), journal)) as connection:
        assert {name: setting(connection, name) for name in WANTED} == WANTED
        assert setting(connection, "journal_mode") == journal
        assert (connection.isolation_level, connection.row_factory) == (None, sqlite3.Row)
        log_bytes = int(str(setting(connection, "wal_autocheckpoint"))) * (512 + 24)
        assert 1_000_000 < log_bytes <= 1_048_576


WANTED = {
    "locking_mode": "exclusive",
    "foreign_keys": 1,
    "trusted_schema": 0,
    "busy_timeout": limits.BUSY_WAIT_MS,
    "synchronous": 2,
    "temp_store": 2,
    "journal_size_limit": 1_048_576,
    "cache_size": -1_024,
}


def test_memory_is_never_mapped(path: str) -> None:
    with closing(database.open_writing(made(path, "wal"), "wal")) as connection:
        row = connection.execute("PRAGMA mmap_size").fetchone()
        assert row is None or row[0] == 0  # no row: a SQLite that cannot map at all


def test_the_log_stays_bounded(path: str) -> None:
    with closing(database.create(path, "wal")) as connection:
        connection.execute("CREATE TABLE t (x BLOB) STRICT")
        for _ in range(40):
            connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
        assert os.stat(f"{path}-wal").st_size < 1_048_576 + 2 * 120_000


def test_two_connections_work_where_a_test_asks_for_them(path: str) -> None:
    made(path, "wal")
    first = database.open_writing(path, "wal", exclusive=False)
    second = database.open_writing(path, "wal", exclusive=False)
    with closing(first), closing(second):
        first.execute("UPDATE t SET x = 7")
        assert value(second) == 7


def test_an_existing_file_is_not_made_again(path: str) -> None:
    made(path, "wal")
    before = Path(path).read_bytes()
    error = caught(lambda: database.create(path, "wal"))
    assert (type(error), error.code) == (RefusedError, "already_exists")
    assert Path(path).read_bytes() == before


def test_a_failed_creation_leaves_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CACHE_KIB", "no number")
    monkeypatch.setattr(database, "APPLICATION_ID", "no; number")
    caught(lambda: database.create(path, "wal"))
    assert names(path) == set()


def test_a_missing_directory_is_unavailable(path: str) -> None:
    error = caught(lambda: database.create(f"{path}/none", "wal"))
    assert (type(error), error.code) == (UnavailableError, "storage_error")


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_look_at_a_closed_store_cannot_write(path: str, journal: Journal) -> None:
    connection, kind = database.look(made(path, journal))
    with closing(connection):
        assert (kind, value(connection)) == (Kind.IMMUTABLE, 1)
        with pytest.raises(sqlite3.OperationalError):
            connection.execute("UPDATE t SET x = 3")
    assert names(path) <= {database.DATABASE, f"{database.DATABASE}-journal"}


def test_a_look_with_a_log_may_go_on_to_write_and_folds_it_in_by_closing(path: str) -> None:
    connection, kind = database.look(with_log(path))
    with closing(connection):
        assert (kind, value(connection)) == (Kind.RECOVERED, 2)
        assert names(path) == {database.DATABASE, f"{database.DATABASE}-wal"}
        assert {name: setting(connection, name) for name in WANTED} == WANTED
        connection.execute("UPDATE t SET x = 3")
    connection, kind = database.look(path)
    with closing(connection):
        assert (kind, value(connection)) == (Kind.IMMUTABLE, 3)
    assert names(path) == {database.DATABASE}


def test_an_empty_log_is_no_log(path: str) -> None:
    made(path, "wal")
    Path(f"{path}-wal").touch()
    connection, kind = database.look(path)
    with closing(connection):
        assert (kind, value(connection)) == (Kind.IMMUTABLE, 1)


@pytest.mark.parametrize("kept", [1, 31, 32, 300, -1])
def test_a_torn_log_counts_as_far_as_it_is_whole(path: str, kept: int) -> None:
    log = Path(f"{with_log(path)}-wal")
    log.write_bytes(log.read_bytes()[:kept])
    connection, kind = database.look(path)
    with closing(connection):
        assert (kind, value(connection)) == (Kind.RECOVERED, 1)
    connection, kind = database.look(path)
    with closing(connection):
        assert (kind, value(connection)) == (Kind.IMMUTABLE, 1)


def test_a_hot_journal_is_rolled_back_once(path: str) -> None:
    with_hot_journal(path)
    for _ in range(2):
        connection, kind = database.look(path)
        with closing(connection):
            assert (kind, value(connection)) == (Kind.IMMUTABLE, 1)
            assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 1
            assert setting(connection, "integrity_check") == "ok"
    journal = Path(f"{path}-journal")
    assert not journal.exists() or journal.stat().st_size == 0


def test_a_stale_journal_is_emptied_once(path: str) -> None:
    journal = Path(f"{made(path, 'truncate')}-journal")
    journal.write_bytes(b"\0" * 1_024)
    connection, kind = database.look(path)
    with closing(connection):
        assert (kind, value(connection)) == (Kind.IMMUTABLE, 1)
    assert not journal.exists() or journal.stat().st_size == 0


OPENINGS: list[Callable[[str], object]] = [
    database.look,
    lambda path: database.open_writing(path, "wal"),
    lambda path: database.open_writing(path, "truncate"),
]


@pytest.mark.parametrize("open_it", OPENINGS)
def test_what_is_missing_is_not_created(path: str, open_it: Callable[[str], object]) -> None:
    for missing in (path, f"{path}/below", f"{os.path.dirname(path)}/none/state.db"):
        error = caught(lambda missing=missing: open_it(missing))  # type: ignore[misc]
        assert (type(error), error.code) == (RefusedError, "not_initialised")
    assert names(path) == set()


@pytest.mark.parametrize("open_it", OPENINGS)
@pytest.mark.parametrize("content", [b"", b"x", b"no database" * 100, b"\0" * 4_096])
def test_what_is_no_database_is_damage(
    path: str, content: bytes, open_it: Callable[[str], object]
) -> None:
    Path(path).write_bytes(content)
    error = caught(lambda: open_it(path))
    assert (type(error), error.code) == (DamagedError, "store_damaged")
    assert Path(path).read_bytes() == content


@pytest.mark.parametrize("open_it", OPENINGS)
def test_a_store_of_another_program_is_damage(path: str, open_it: Callable[[str], object]) -> None:
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE t (x)")
    before = Path(path).read_bytes()
    error = caught(lambda: open_it(path))
    assert (type(error), error.code) == (DamagedError, "store_damaged")
    assert (Path(path).read_bytes(), names(path)) == (before, {database.DATABASE})


def test_a_directory_or_a_link_is_damage(path: str, tmp_path: Path) -> None:
    made(str(tmp_path / "other.db"), "wal")
    Path(path).symlink_to(tmp_path / "other.db")
    assert caught(lambda: database.look(path)).code == "store_damaged"
    os.unlink(path)
    os.mkdir(path)
    assert caught(lambda: database.look(path)).code == "store_damaged"


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("journal", JOURNALS)
def test_an_odd_path_is_a_path(tmp_path: Path, name: str, journal: Journal) -> None:
    folder = tmp_path / name
    folder.mkdir()
    path = made(f"{folder}/{name}.db", journal)
    left(path, journal, "UPDATE t SET x = 2")
    connection, _ = database.look(path)
    with closing(connection):
        assert value(connection) == 2
    assert os.listdir(tmp_path) == [name]
    assert {each.split(".db")[0] for each in os.listdir(folder)} == {name}


@pytest.mark.parametrize("name", ["state.db", "./state.db", "%41?.db"])
def test_a_relative_path_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    connection, _ = database.look(made(name, "wal"))
    connection.close()
    assert os.listdir(tmp_path) == [os.path.basename(name)]


def test_two_leading_slashes_are_a_path(path: str) -> None:
    connection, _ = database.look(f"/{made(path, 'wal')}")
    connection.close()


def test_a_path_beyond_the_library_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["x" * 200] * 3)
    folder.mkdir(parents=True)
    error = caught(lambda: database.create(str(folder / "state.db"), "wal"))
    assert (type(error), error.code) == (RefusedError, "path_too_long")
    assert list(folder.iterdir()) == []


def test_an_old_library_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path, "wal")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 9))
    for call in (
        lambda: database.look(path),
        lambda: database.open_writing(path, "wal"),
        lambda: database.create(f"{path}2", "wal"),
        lambda: database.probe_journal(os.path.dirname(path), os.urandom),
    ):
        error = caught(call)
        assert (type(error), error.code) == (UnavailableError, "sqlite_too_old")
        assert error.details == {"version": sqlite3.sqlite_version}
    assert names(path) == {database.DATABASE}


def test_a_second_process_is_locked_out(path: str) -> None:
    made(path, "wal")
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('SELECT x FROM t')"
    with closing(database.open_writing(path, "wal")) as connection:
        assert value(connection) == 1
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=False)
    assert b"database is locked" in done.stderr


@pytest.mark.adr("0004", "3")
def test_the_log_is_chosen_where_it_works(path: str) -> None:
    assert database.probe_journal(os.path.dirname(path), os.urandom) == "wal"
    assert names(path) == set()


class Refusing:
    """Fail the openings of given modes, as a file system may."""

    def __init__(self, *journals: Journal, lies: bool = False) -> None:
        self.journals = journals
        self.lies = lies

    def __call__(
        self, connection: sqlite3.Connection, journal: Journal, *, exclusive: bool = True
    ) -> None:
        if journal in self.journals and not self.lies:
            raise UnavailableError("storage_error", "no")
        connection.row_factory = sqlite3.Row
        connection.execute(f"PRAGMA journal_mode = {'MEMORY' if self.lies else journal}")


@pytest.mark.adr("0004", "3")
def test_truncate_is_chosen_where_the_log_fails(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "configure", Refusing("wal"))
    assert database.probe_journal(os.path.dirname(path), os.urandom) == "truncate"
    assert names(path) == set()


@pytest.mark.adr("0004", "3")
def test_a_log_that_is_only_claimed_is_not_believed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "configure", Refusing("wal", lies=True))
    assert database.probe_journal(os.path.dirname(path), os.urandom) == "truncate"


def test_where_neither_works_both_reasons_are_told(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "configure", Refusing("wal", "truncate"))
    error = caught(lambda: database.probe_journal(os.path.dirname(path), os.urandom))
    assert (type(error), error.code) == (UnavailableError, "journal_unusable")
    assert error.details == {"wal": "storage_error", "truncate": "storage_error"}
    assert names(path) == set()
