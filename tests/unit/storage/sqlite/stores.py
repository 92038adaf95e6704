"""Make stores for tests: closed ones, and ones whose writer was killed."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from qinglong_edge.storage.sqlite import database
from qinglong_edge.storage.sqlite.database import Journal


def value(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT x FROM t").fetchone()["x"])


def setting(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def names(path: str) -> set[str]:
    return set(os.listdir(os.path.dirname(path)))


def made(path: str, journal: Journal, number: int = 1) -> str:
    """Leave a closed store behind that holds `number`."""
    with closing(database.create(path, journal)) as connection:
        connection.execute("CREATE TABLE t (x INTEGER) STRICT")
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    return path


def left(path: str, journal: Journal, *statements: str) -> str:
    """Let a child write and be killed without closing."""
    child = os.fork()
    if child == 0:
        try:
            connection = database.open_writing(path, journal)
            for statement in statements:
                connection.execute(statement)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return path


def with_log(path: str) -> str:
    return left(made(path, "wal"), "wal", "UPDATE t SET x = 2")


def with_hot_journal(path: str) -> str:
    """Leave a store whose file holds pages of a transaction that never committed."""
    left(
        made(path, "truncate"),
        "truncate",
        "PRAGMA cache_size = 1",
        "BEGIN IMMEDIATE",
        "UPDATE t SET x = 2",
        "CREATE TABLE u (x BLOB) STRICT",
        *["INSERT INTO u VALUES (zeroblob(9000))"] * 4,
    )
    assert Path(f"{path}-journal").read_bytes()[:4] == b"\xd9\xd5\x05\xf9"
    return path
