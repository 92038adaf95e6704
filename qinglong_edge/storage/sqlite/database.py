"""Open the database file, and nothing else (architecture 3.2).

Always EXCLUSIVE before anything is read: then the log needs no shared memory, which breaks on JFFS2
and kills the process on a full UBIFS. Every function here expects the owner lock to be held.
"""

import enum
import os
import sqlite3
import stat
from contextlib import suppress
from typing import Literal, NamedTuple

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError, QinglongError, RefusedError, UnavailableError
from qinglong_edge.ports.ambient import Entropy
from qinglong_edge.storage.filesystem import PROBE_PREFIX, unavailable
from qinglong_edge.storage.sqlite.failures import translating

DATABASE = "state.db"
APPLICATION_ID = 0x514C4544  # "QLED"
PAGE_BYTES = 512
WAL_BYTES = 1_048_576  # growth of the log is what costs; beyond this a checkpoint is cheaper
CACHE_KIB = 1_024
OLDEST_SQLITE = (3, 37, 0)  # the first with STRICT tables

Journal = Literal["wal", "truncate"]

_FRAME_BYTES = PAGE_BYTES + 24
_STATEMENTS = 128  # prepared ones kept for a connection
_PRIVATE = 0o600
_PATH_BYTES_MAX = 504  # SQLite's own bound of 512, less `-journal`
_UNQUOTED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/-._~")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAGIC = b"SQLite format 3\x00"
_MARK_AT = 68  # SQLite's file format: the application id
_HEADER_BYTES = 100
_COMPANIONS = ("-wal", "-journal", "-shm")
_NOT_THE_JOURNAL = frozenset({"disk_full", "read_only", "out_of_memory"})
_PROBE_BYTES = 4_096


class Kind(enum.Enum):
    """Name how a look was taken."""

    IMMUTABLE = "immutable"  # the file alone; must not write; closing costs nothing
    RECOVERED = "recovered"  # with the log; may go on to write; closing folds the log in
    FROZEN = "frozen"  # with the log, on what cannot be written; closing changes nothing


class Opened(NamedTuple):
    """Hold a connection and how it was opened."""

    connection: sqlite3.Connection
    kind: Kind


def _text(stored: bytes) -> str:
    """Return a stored text; what is not UTF-8 is kept apart in it, for its row's reader to refuse.

    Raising here would take the whole page away for one row (W9).
    """
    return stored.decode("utf-8", "surrogateescape")


def configure(connection: sqlite3.Connection, journal: Journal, *, exclusive: bool = True) -> None:
    """Set up a connection that nothing was read from yet.

    `exclusive=False` is for tests that run several connections. Raises `UnavailableError`
    `journal_unusable` where SQLite answers another journal mode than asked for.
    """
    connection.isolation_level = None
    connection.row_factory, connection.text_factory = sqlite3.Row, _text
    with translating():
        if exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        for setting in (
            "mmap_size = 0",
            "trusted_schema = OFF",
            "foreign_keys = ON",
            "temp_store = MEMORY",
            f"busy_timeout = {limits.BUSY_WAIT_MS}",
            f"cache_size = -{CACHE_KIB}",
        ):
            connection.execute(f"PRAGMA {setting}")
        answer = connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()
        if answer is None or answer[0] != journal:
            raise UnavailableError("journal_unusable", "the journal mode cannot be set here")
        for setting in (
            "synchronous = FULL",
            f"wal_autocheckpoint = {WAL_BYTES // _FRAME_BYTES}",
            f"journal_size_limit = {WAL_BYTES}",
        ):
            connection.execute(f"PRAGMA {setting}")


def look(path: str) -> Opened:
    """Open an existing store for reading, writing as little as its last end allows.

    Without a log: nothing is written. With one (its writer left without closing): it is read into
    memory and the connection may go on to write; its close folds the log in, so that the next look
    writes nothing. A half-written rollback journal is rolled back first. Creates no file.
    Raises `RefusedError` `not_initialised`, `DamagedError` `store_damaged`, `UnavailableError`
    `read_only_unrecovered` where a journal or a log cannot be dealt with, and others.
    """
    _require(path)
    if _size(path + "-journal") > 0:
        _roll_back(path)
    if _size(path + "-wal") == 0:
        return Opened(_reading(path, "mode=ro&immutable=1"), Kind.IMMUTABLE)
    if _writable(path):
        return Opened(open_writing(path, "wal"), Kind.RECOVERED)
    # The log's index must live in memory, which asks for exclusive locking, and a file that was
    # opened for reading cannot be locked so: the owner lock stands in for SQLite's.
    try:
        return Opened(_reading(path, "mode=ro&vfs=unix-none"), Kind.FROZEN)
    except UnavailableError as error:
        raise _unrecovered() from error


def open_writing(path: str, journal: Journal, *, exclusive: bool = True) -> sqlite3.Connection:
    """Open an existing store for writing, with the journal mode that was recorded for it.

    Raises as `look` does, and `UnavailableError` `read_only`.
    """
    _require(path)
    if not _writable(path):
        raise UnavailableError("read_only", "the database cannot be written")
    connection = _connect(path, "mode=rw")
    try:
        if exclusive:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _believe(connection)  # before the journal mode, which would write into anybody's file
        configure(connection, journal, exclusive=exclusive)
    except BaseException:
        connection.close()
        raise
    return connection


def create(path: str, journal: Journal) -> sqlite3.Connection:
    """Make an empty store (0600 whatever the umask) and open it for writing.

    A file of that name is refused with `RefusedError` `already_exists`; any other failure leaves
    nothing behind. The caller syncs the directory.
    """
    _require_sqlite()
    try:
        made = os.open(path, _NEW, _PRIVATE)
    except FileExistsError as error:
        raise RefusedError("already_exists", "there is a database already") from error
    except OSError as error:
        raise unavailable(error) from error
    try:
        os.fchmod(made, _PRIVATE)
    except OSError as error:
        raise unavailable(error) from error
    finally:
        os.close(made)  # before SQLite opens the file: closing it later would drop SQLite's locks
    try:
        return _filled(path, journal)
    except BaseException:
        _remove(path)
        raise


def left_behind(path: str) -> list[str]:
    """Return the paths of a database's companions that exist: its log, its journal."""
    return [path + end for end in _COMPANIONS if os.path.lexists(path + end)]


def check_path(path: str) -> None:
    """Refuse a path that SQLite could not open: `RefusedError` `path_too_long`."""
    if len(os.fsencode(os.path.realpath(path))) > _PATH_BYTES_MAX:
        raise RefusedError(
            "path_too_long", "SQLite cannot open so long a path", {"bytes_max": _PATH_BYTES_MAX}
        )


def probe_journal(directory: str, entropy: Entropy) -> Journal:
    """Try on a scratch database which journal works in `directory`.

    What SQLite says is not believed: the data must come back. Removes its files whatever happens.
    Raises `UnavailableError` `journal_unusable`, with the codes of both failures in its details.
    """
    path = os.path.join(directory, f"{PROBE_PREFIX}{entropy(8).hex()}.db")
    _require_sqlite()
    wal = _probe_failure(path, "wal", entropy)
    if wal is None:
        return "wal"
    truncate = _probe_failure(path, "truncate", entropy)
    if truncate is None:
        return "truncate"
    if wal.code == truncate.code and wal.code in _NOT_THE_JOURNAL:
        raise wal
    raise UnavailableError(
        "journal_unusable",
        "no journal mode keeps data in this directory",
        {"wal": wal.code, "truncate": truncate.code},
    ) from truncate


def _filled(path: str, journal: Journal) -> sqlite3.Connection:
    connection = _connect(path, "mode=rw")
    try:
        with translating():
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = NONE")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            configure(connection, journal)
    except BaseException:
        connection.close()
        raise
    return connection


def _reading(path: str, query: str) -> sqlite3.Connection:
    connection = _connect(path, query)
    connection.row_factory, connection.text_factory = sqlite3.Row, _text
    try:
        with translating():
            for setting in (
                "locking_mode = EXCLUSIVE",
                "mmap_size = 0",
                "trusted_schema = OFF",
                "query_only = ON",
                "temp_store = MEMORY",
                f"cache_size = -{CACHE_KIB}",
            ):
                connection.execute(f"PRAGMA {setting}")
        _believe(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _roll_back(path: str) -> None:
    """Let SQLite play a hot journal back, and empty what it found stale; both are done once."""
    if not _writable(path):
        raise _unrecovered()
    connection = _connect(path, "mode=rw")
    try:
        with translating():
            for setting in (
                "locking_mode = EXCLUSIVE",
                "synchronous = FULL",
                "journal_size_limit = 0",
            ):
                connection.execute(f"PRAGMA {setting}")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            connection.close()
        if _size(path + "-journal") > 0:
            os.truncate(path + "-journal", 0)
    except OSError as error:
        raise unavailable(error) from error
    finally:
        connection.close()


def _connect(path: str, query: str) -> sqlite3.Connection:
    _require_sqlite()
    try:
        with translating():
            return sqlite3.connect(
                f"file:{_quoted(path)}?{query}",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=_STATEMENTS,
            )
    except UnavailableError:
        check_path(path)
        raise


def _quoted(path: str) -> str:
    """Quote a path for a URI: each byte that could mean something, and all beyond ASCII."""
    data = os.fsencode(path)
    quoted = "".join(chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in data)
    return f"//{quoted}" if quoted.startswith("/") else quoted


def _require_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise UnavailableError(
            "sqlite_too_old",
            "SQLite 3.37 or newer is needed",
            {"version": sqlite3.sqlite_version},
        )


def _require(path: str) -> None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RefusedError("not_initialised", "there is no database") from error
    except OSError as error:
        raise unavailable(error) from error
    if not stat.S_ISREG(found.st_mode) or not _marked(path):
        raise DamagedError("store_damaged", "the file is not a store of this program")
    for companion in left_behind(path):
        if not stat.S_ISREG(os.lstat(companion).st_mode):
            raise DamagedError("store_damaged", f"{os.path.basename(companion)} is not a file")


def _marked(path: str) -> bool:
    """Tell whether the file begins as ours do; SQLite would write into one that it cannot read.

    Called before SQLite has the file open: closing any descriptor later would drop its locks.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            header = os.pread(file, _HEADER_BYTES, 0)
        finally:
            os.close(file)
    except OSError as error:
        raise unavailable(error) from error
    mark = APPLICATION_ID.to_bytes(4, "big")
    return header.startswith(_MAGIC) and header[_MARK_AT : _MARK_AT + len(mark)] == mark


def _believe(connection: sqlite3.Connection) -> None:
    with translating():
        (found,) = connection.execute("PRAGMA application_id").fetchone()
    if found != APPLICATION_ID:
        raise DamagedError("store_damaged", "the file is not a store of this program")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise unavailable(error) from error


def _writable(path: str) -> bool:
    directory = os.path.dirname(path) or "."
    return os.access(path, os.W_OK) and os.access(directory, os.W_OK | os.X_OK)


def _unrecovered() -> UnavailableError:
    return UnavailableError(
        "read_only_unrecovered", "what the last owner left open cannot be finished without writing"
    )


def _probe_failure(path: str, journal: Journal, entropy: Entropy) -> QinglongError | None:
    try:
        _probe(path, journal, entropy(_PROBE_BYTES))
    except QinglongError as error:
        return error
    finally:
        _remove(path)
    return None


def _probe(path: str, journal: Journal, data: bytes) -> None:
    """Write, close, reopen, read, write, close, look: as the store will be used."""
    connection = create(path, journal)
    try:
        with translating():
            connection.execute("CREATE TABLE probe (data BLOB NOT NULL) STRICT")
            connection.execute("INSERT INTO probe VALUES (?)", (data,))
        if journal == "wal" and _size(path + "-wal") == 0:
            raise UnavailableError("journal_unusable", "there is no log")
    finally:
        connection.close()
    connection = open_writing(path, journal)
    try:
        _expect(connection, data)
        with translating():
            connection.execute("UPDATE probe SET data = ?", (data[::-1],))
    finally:
        connection.close()
    connection = look(path).connection
    try:
        _expect(connection, data[::-1])
    finally:
        connection.close()


def _expect(connection: sqlite3.Connection, data: bytes) -> None:
    with translating():
        rows = connection.execute("SELECT data FROM probe").fetchall()
    if [row[0] for row in rows] != [data]:
        raise UnavailableError("journal_unusable", "other data came back than was written")


def _remove(path: str) -> None:
    for name in (path, *(path + end for end in _COMPANIONS)):
        with suppress(OSError):
            os.unlink(name)
