"""Translate what SQLite says into what the caller may do next; the only such place."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from qinglong_edge.domain.errors import (
    DamagedError,
    InvariantBroken,
    QinglongError,
    UnavailableError,
)

_NO_CODE = -1  # the sqlite3 module itself complains
_PRIMARY = 0xFF  # extended codes carry the primary one in their low byte

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: ("store_busy", "another process holds the database"),
    sqlite3.SQLITE_LOCKED: ("store_busy", "another connection holds the database"),
    sqlite3.SQLITE_FULL: ("disk_full", "no space left for the database"),
    sqlite3.SQLITE_READONLY: ("read_only", "the database cannot be written"),
    sqlite3.SQLITE_IOERR: ("storage_error", "the storage failed"),
    sqlite3.SQLITE_CANTOPEN: ("storage_error", "the database cannot be opened"),
    sqlite3.SQLITE_PERM: ("storage_error", "the database may not be opened"),
    sqlite3.SQLITE_NOMEM: ("out_of_memory", "not enough memory"),
    sqlite3.SQLITE_INTERRUPT: ("storage_error", "the statement was interrupted"),
    sqlite3.SQLITE_PROTOCOL: ("store_busy", "another process holds the database"),
}
_DAMAGED = {
    sqlite3.SQLITE_CORRUPT: ("store_damaged", "the database file is damaged"),
    sqlite3.SQLITE_NOTADB: ("store_damaged", "the file is not a database"),
    sqlite3.SQLITE_ERROR: ("schema_damaged", "the database lacks what this program put there"),
}


def translated(error: sqlite3.Error) -> QinglongError:
    """Return our error for one of SQLite's; foreign text stays in `__cause__`."""
    code = _code(error)
    if code == _NO_CODE and isinstance(error, sqlite3.OperationalError):
        return DamagedError("store_damaged", "the database holds text that is none")
    if code in _UNAVAILABLE:
        return UnavailableError(*_UNAVAILABLE[code])
    if code in _DAMAGED:
        return DamagedError(*_DAMAGED[code])
    return InvariantBroken("the database refused a value or a statement of this program")


@contextmanager
def translating() -> Iterator[None]:
    """Raise our error for whatever SQLite raises inside."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error) from error
    except UnicodeDecodeError as error:  # the sqlite3 module, on the damaged text of a message
        raise DamagedError("store_damaged", "the database file is damaged") from error


def is_full(error: sqlite3.Error) -> bool:
    """Tell whether there was no space: SQLite has then stored nothing of the transaction."""
    return _code(error) == sqlite3.SQLITE_FULL


def _code(error: sqlite3.Error) -> int:
    extended = getattr(error, "sqlite_errorcode", None)
    return extended & _PRIMARY if isinstance(extended, int) else _NO_CODE
