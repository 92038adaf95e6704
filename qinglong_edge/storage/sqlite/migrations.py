"""Bring a database up to this program's schema; only ever upwards.

Each migration is one transaction together with its number in the file's header and its row in
`migrations`, so that a killed one has left nothing and is simply run again. A released file never
changes: its digest stands in the manifest and in every database that ran it.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import NamedTuple

from qinglong_edge.domain.canonical import sha256_hex
from qinglong_edge.domain.errors import DamagedError, InvariantBroken, RefusedError
from qinglong_edge.ports.probe import CrashPoint, Moment, Probe, Step
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite.failures import translating
from qinglong_edge.storage.sqlite.transaction import immediate

_HISTORY = "SELECT number, name, sha256 FROM migrations ORDER BY number"
_RECORD = "INSERT INTO migrations (number, name, sha256) VALUES (?, ?, ?)"


class Migration(NamedTuple):
    """Name one file of `sql/migrations/` and the digest (hexadecimal) it was released with."""

    number: int
    file: str
    sha256: str


MANIFEST = (
    Migration(
        1,
        "0001_foundation.sql",
        "0c104824e1401c287dd4921808f24993c91de6c1637b7ac2fc9905bf34904b4d",
    ),
)


def packaged(file: str) -> str:
    """Return the text of a migration that is part of this program."""
    return statements.text("qinglong_edge.storage.sqlite", f"sql/migrations/{file}")


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the newest migration that the database has seen, 0 for none."""
    with translating():
        (number,) = connection.execute("PRAGMA user_version").fetchone()
    return int(number)


def check(connection: sqlite3.Connection, *, manifest: tuple[Migration, ...] = MANIFEST) -> None:
    """Refuse any schema but this program's: `schema_newer` or `migration_required`."""
    number = version(connection)
    _refuse_newer(number, manifest)
    if number != len(manifest):
        raise RefusedError(
            "migration_required",
            "the database is older than this program; run migrate",
            {"schema_version": number, "needed": len(manifest)},
        )


def check_history(
    connection: sqlite3.Connection, *, manifest: tuple[Migration, ...] = MANIFEST
) -> None:
    """Compare what the database ran with the manifest.

    Raises `DamagedError` `migration_changed`, `RefusedError` `schema_newer`.
    """
    number = version(connection)
    _refuse_newer(number, manifest)
    if number == 0:
        return
    with translating():
        rows = [Migration(*row) for row in connection.execute(_HISTORY)]
    if rows != list(manifest[:number]):
        raise DamagedError(
            "migration_changed", "the database was made by other migrations than this program's"
        )


def migrate(
    connection: sqlite3.Connection,
    probe: Probe,
    *,
    manifest: tuple[Migration, ...] = MANIFEST,
    read: Callable[[str], str] = packaged,
) -> int:
    """Run every migration that is missing, each in one transaction; return how many ran.

    A failing one leaves the database as the one before it did. Raises as `check_history` does, and
    `UnavailableError` where the storage failed: the same call goes on from there.
    """
    check_history(connection, manifest=manifest)
    waiting = manifest[version(connection) :]
    for migration in waiting:
        _apply(connection, migration, probe=probe, text=read(migration.file))
    return len(waiting)


def _apply(
    connection: sqlite3.Connection, migration: Migration, *, probe: Probe, text: str
) -> None:
    digest = sha256_hex(text.encode())
    if digest != migration.sha256:
        raise InvariantBroken(f"{migration.file} is not the file of the manifest: {digest}")
    with translating(), immediate(connection):
        if version(connection) != migration.number - 1:
            raise InvariantBroken(f"{migration.file} does not come next")
        for statement in cut(text):
            probe(CrashPoint(Moment.INSIDE, Step.MIGRATE))
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {migration.number:d}")
        connection.execute(_RECORD, migration)
        probe(CrashPoint(Moment.BEFORE, Step.MIGRATE))
    probe(CrashPoint(Moment.AFTER, Step.MIGRATE))


def cut(text: str) -> Iterator[str]:
    """Yield the statements of a script, triggers whole; each begins on a line of its own."""
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        lines.append(line)
        statement = "".join(lines)
        if sqlite3.complete_statement(statement):
            yield statement
            lines.clear()
    if any(line.strip() and not line.lstrip().startswith("--") for line in lines):
        raise InvariantBroken("a migration ends within a statement")


def _refuse_newer(number: int, manifest: tuple[Migration, ...]) -> None:
    if number > len(manifest):
        raise RefusedError(
            "schema_newer",
            "the database was written by a newer program",
            {"schema_version": number, "known": len(manifest)},
        )
    if number < 0:
        raise DamagedError("store_damaged", "the schema number is impossible")
