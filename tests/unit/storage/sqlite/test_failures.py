"""What SQLite says, provoked for real, and what the caller may do next."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qinglong_edge.domain.errors import (
    DamagedError,
    InvariantBroken,
    QinglongError,
    UnavailableError,
)
from qinglong_edge.storage.sqlite.failures import is_full, translated, translating

OPEN: list[sqlite3.Connection] = []


@pytest.fixture(autouse=True)
def all_closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def opened(path: Path, query: str = "mode=rwc") -> sqlite3.Connection:
    uri = f"file:{path}?{query}"
    OPEN.append(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0))
    return OPEN[-1]


def busy(root: Path) -> None:
    opened(root / "a.db").execute("BEGIN EXCLUSIVE")
    opened(root / "a.db").execute("CREATE TABLE t (a)")


def full(root: Path) -> None:
    connection = opened(root / "a.db")
    connection.execute("CREATE TABLE t (a)")
    connection.execute("PRAGMA max_page_count = 3")
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")


def read_only(root: Path) -> None:
    opened(root / "a.db").execute("CREATE TABLE t (a)")
    opened(root / "a.db", "mode=ro").execute("DROP TABLE t")


def missing(root: Path) -> None:
    opened(root / "none.db", "mode=ro")


def foreign(root: Path) -> None:
    (root / "a.db").write_bytes(b"no database at all " * 100)
    opened(root / "a.db").execute("SELECT 1 FROM sqlite_schema")


def torn(root: Path) -> None:
    connection = opened(root / "a.db")
    connection.execute("CREATE TABLE t (a)")
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    connection.close()
    data = bytearray((root / "a.db").read_bytes())
    data[4096:8192] = b"\xff" * 4096
    (root / "a.db").write_bytes(data)
    opened(root / "a.db").execute("SELECT a FROM t").fetchall()


def lacking(root: Path) -> None:
    opened(root / "a.db").execute("SELECT * FROM nothing")


def interrupted(root: Path) -> None:
    connection = opened(root / "a.db")
    connection.set_progress_handler(lambda: 1, 1)
    connection.execute(
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT max(x) FROM n"
    )


def refused_value(root: Path) -> None:
    connection = opened(root / "a.db")
    connection.execute("CREATE TABLE t (a CHECK (a > 0))")
    connection.execute("INSERT INTO t VALUES (0)")


def closed(root: Path) -> None:
    connection = opened(root / "a.db")
    connection.close()
    connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("provoke", "family", "code"),
    [
        (busy, UnavailableError, "store_busy"),
        (full, UnavailableError, "disk_full"),
        (read_only, UnavailableError, "read_only"),
        (missing, UnavailableError, "storage_error"),
        (interrupted, UnavailableError, "storage_error"),
        (foreign, DamagedError, "store_damaged"),
        (torn, DamagedError, "store_damaged"),
        (lacking, DamagedError, "schema_damaged"),
        (refused_value, InvariantBroken, "invariant_broken"),
        (closed, InvariantBroken, "invariant_broken"),
    ],
)
def test_a_real_failure_gets_its_family(
    tmp_path: Path, provoke: Callable[[Path], None], family: type[QinglongError], code: str
) -> None:
    with pytest.raises(QinglongError) as caught, translating():
        provoke(tmp_path)
    assert (type(caught.value), caught.value.code) == (family, code)
    cause = caught.value.__cause__
    assert isinstance(cause, sqlite3.Error)
    assert is_full(cause) is (provoke is full)


def test_an_extended_code_counts_as_its_primary_one() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert translated(error).code == "storage_error"


def test_what_is_not_of_sqlite_passes_through() -> None:
    with pytest.raises(KeyError), translating():
        raise KeyError
