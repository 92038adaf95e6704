"""Questions about the store as a whole, answered from the indexes that the phases read."""

from qinglong_edge.domain.canonical import Json
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.ports.repositories import Backlog, Instant
from qinglong_edge.storage.sqlite import verification
from qinglong_edge.storage.sqlite.actions import SQL
from qinglong_edge.storage.sqlite.transaction import Database, Tx


class SqliteOverview:
    """Answer from one read snapshot each."""

    def __init__(self, database: Database) -> None:
        """Work on an open database."""
        self._database = database

    def instant(self) -> Instant:
        """Return the time as a reader sees it, and the boots to show old ticks with."""
        boots = self._database.boots()
        return Instant(self._database.read(lambda tx: tx.now), boots)

    def backlog(self) -> Backlog:
        """Return what waits."""
        return self._database.read(_backlog)

    def work_waits(self, owner: str) -> bool:
        """Tell whether a cycle run by `owner` would write anything; the clock rule included."""

        def look(tx: Tx) -> bool:
            row = tx.one(SQL["work_waits"], tick=tx.now.tick, owner=owner)
            return row is not None and row["waits"] == 1

        return self._database.clock_waits() or self._database.read(look)

    def problems(self) -> list[Json]:
        """Return what `verify` finds: bounded, and nothing is repaired."""
        return verification.problems(self._database)

    def bytes_on_disk(self) -> int:
        """Return the size of the database in bytes, its log apart."""
        row = self._database.read(lambda tx: tx.one(SQL["bytes_on_disk"]))
        return 0 if row is None else int(row["bytes"])


def _backlog(tx: Tx) -> Backlog:
    tick, at_ms = tx.now.tick, tx.now.at_ms
    dispatches = tx.one(SQL["count_dispatches"], tick=tick)
    executing = tx.one(SQL["count_executing"], tick=tick)
    manual = tx.one(SQL["count_manual"])
    pending = tx.one(SQL["count_pending"], at_ms=at_ms)
    if dispatches is None or executing is None or manual is None or pending is None:
        raise DamagedError("schema_damaged", "a count found nothing")
    oldest = [row["oldest_at_ms"] for row in (dispatches, executing, manual)]
    waits = [at_ms - created for created in oldest if created is not None]
    return Backlog(
        dispatches["due"],
        dispatches["waiting"],
        executing["executing"],
        pending["pending"],
        executing["recovery_due"],
        manual["manual_required"],
        max([0, *waits]),
    )
