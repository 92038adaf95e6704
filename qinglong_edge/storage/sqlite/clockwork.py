"""Read and store the clock rows: boots, the mark, the sighting (architecture 3.1).

Nothing here decides: `domain.tick` judges, this file carries its values in and out of the one
transaction that is happening anyway.
"""

import sqlite3
from typing import NamedTuple

from qinglong_edge.domain import tick
from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.tick import Boot, Mark, Now, Reading, Sighting, Trust
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.storage import statements

SQL = statements.load("qinglong_edge.storage.sqlite", "sql/clock.sql")


class Face(NamedTuple):
    """Hold the instant together with the rows it was read from."""

    now: Now
    mark: Mark
    sighting: Sighting | None
    new_boot: bool

    @property
    def waits(self) -> bool:
        """Tell whether the clock rule itself has something to store."""
        return self.now.trust is Trust.SETTLED or self.next_sighting != self.sighting

    @property
    def next_sighting(self) -> Sighting | None:
        """Return the sighting to store with the next commit."""
        if self.now.trust is Trust.TRUSTED:
            return None
        return tick.sighting_after(self.now.reading, self.now.epoch, self.sighting)


def read(connection: sqlite3.Connection, clocks: Clocks) -> Face:
    """Look at the clocks once and judge what they say."""
    reading = clocks.read()
    newest = _newest(connection)
    mark, sighting = _rows(connection)
    epoch = tick.epoch_of(reading, newest)
    now = Now(
        tick.tick_of(epoch, reading.boot_ms),
        tick.deadline_ms(reading, epoch, mark),
        reading,
        tick.trust_of(reading, epoch, mark, sighting),
    )
    return Face(now, mark, sighting, new_boot=newest is None or newest.epoch != epoch)


def create(connection: sqlite3.Connection, reading: Reading) -> None:
    """Store the first boot and the first mark of a new store."""
    mark = tick.first_mark(reading)
    connection.execute(
        SQL["add_boot"], Boot(1, reading.boot_id, mark.wall_ms, reading.boot_ms)._asdict()
    )
    connection.execute(SQL["create_clock"], mark._asdict())


def store(connection: sqlite3.Connection, face: Face, *, settled: bool) -> None:
    """Write the clock rows that this commit carries along."""
    now = face.now
    if face.new_boot:
        boot = Boot(now.epoch, now.reading.boot_id, now.reading.wall_ms, now.reading.boot_ms)
        connection.execute(SQL["add_boot"], boot._asdict())
    mark = tick.mark_after(now, face.mark)
    sighting = face.next_sighting
    if settled:
        mark, sighting = Mark(now.reading.wall_ms, now.epoch, now.reading.boot_ms), None
    if (mark, sighting) == (face.mark, face.sighting):
        return
    seen = sighting or (None, None, None)
    values = {
        **mark._asdict(),
        "seen_epoch": seen[0],
        "seen_boot_ms": seen[1],
        "seen_wall_ms": seen[2],
    }
    connection.execute(SQL["store_clock"], values)


def boots(connection: sqlite3.Connection) -> tuple[Boot, ...]:
    """Return the boot generations, newest first; the newest 64 are enough to show ticks."""
    return tuple(Boot(*row) for row in connection.execute(SQL["boots"]))


def _newest(connection: sqlite3.Connection) -> Boot | None:
    row = connection.execute(SQL["newest_boot"]).fetchone()
    return None if row is None else Boot(*row)


def _rows(connection: sqlite3.Connection) -> tuple[Mark, Sighting | None]:
    row = connection.execute(SQL["clock"]).fetchone()
    if row is None:
        raise DamagedError("clock_damaged", "the clock row is missing")
    mark = Mark(*row[:3])
    return mark, None if row[3] is None else Sighting(*row[3:])
