"""The only BEGINs of the program: a write, a read snapshot, a migration (architecture 3.2).

`BEGIN IMMEDIATE` comes before the first read, and the clock is read under the lock, so waiting
never shortens a lease. A transaction that changed nothing is rolled back and costs nothing. A
commit whose answer was lost is ambiguous: the identical body runs again, and its mutation ids turn
a hidden success into a replay. No handler is ever called inside.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from qinglong_edge.domain.errors import CommitUnknownError, InvariantBroken
from qinglong_edge.domain.limits import COMMIT_TRIES_MAX
from qinglong_edge.domain.tick import Boot, Now, Trust
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.ports.probe import CrashPoint, Moment, Probe, Step
from qinglong_edge.storage.sqlite import clockwork
from qinglong_edge.storage.sqlite.failures import is_full, translating

Result = TypeVar("Result")
Value = int | str | bytes | None


class Tx:
    """Run statements inside one open transaction."""

    def __init__(self, connection: sqlite3.Connection, now: Now) -> None:
        """Hold the connection and the instant that all rules of this transaction see."""
        self._connection = connection
        self.now = now

    def rows(self, sql: str, **values: Value) -> list[sqlite3.Row]:
        """Return all rows of a bounded query."""
        return self._connection.execute(sql, values).fetchall()

    def one(self, sql: str, **values: Value) -> sqlite3.Row | None:
        """Return the only row, or None."""
        found = self._connection.execute(sql, values).fetchall()
        if len(found) > 1:
            raise InvariantBroken("a query for one row found several")
        return found[0] if found else None

    def run(self, sql: str, **values: Value) -> int:
        """Write, and return how many rows were hit."""
        return self._connection.execute(sql, values).rowcount

    def insert(self, sql: str, **values: Value) -> int:
        """Insert one row and return its integer key."""
        key = self._connection.execute(sql, values).lastrowid
        if key is None:
            raise InvariantBroken("an insert made no row")
        return key

    def exactly_one(self, sql: str, **values: Value) -> None:
        """Write one row; anything else is a lost compare-and-swap under our own lock: a bug."""
        hit = self.run(sql, **values)
        if hit != 1:
            raise InvariantBroken(f"a write hit {hit} rows instead of one")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Let a part fail alone: an exception rolls back to here and goes on up."""
        self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO part")
                self._connection.execute("RELEASE part")
            raise
        self._connection.execute("RELEASE part")


class Settle(Protocol):
    """Close what a reset of the clock makes unbelievable; called inside its own transaction."""

    def __call__(self, tx: Tx, code: str, /) -> object:
        """Void open approvals, not-started dispatches and sessions."""
        ...


class Database:
    """Own one write connection, one mutex, and every transaction."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clocks: Clocks,
        *,
        probe: Probe,
        on_boot: Callable[[int], None] = lambda _epoch: None,
        still_there: Callable[[], None] = lambda: None,
    ) -> None:
        """Take a configured connection.

        `on_boot` is told a new epoch after its first commit. `still_there` is asked around each
        commit and raises where the file has lost its name: SQLite would go on in a file that
        nobody finds again.
        """
        self.connection = connection
        self._clocks = clocks
        self._probe = probe
        self._on_boot = on_boot
        self._still_there = still_there
        self._mutex = threading.RLock()
        self.settle: Settle | None = None
        self.commits = 0

    def write(self, step: Step, body: Callable[[Tx], Result]) -> Result:
        """Run `body` in one write transaction; repeat it while a commit's answer is lost.

        Raises `UnavailableError` when nothing was stored, `CommitUnknownError` when that could not
        be told even after repeats. An exception of `body` rolls back and goes on up.
        """
        return self._repeated(lambda: self._settled_write(step, body))

    def read(self, body: Callable[[Tx], Result]) -> Result:
        """Run `body` in one read snapshot; it must not write."""
        with self._mutex, translating():
            self.connection.execute("BEGIN")
            try:
                return body(Tx(self.connection, clockwork.read(self.connection, self._clocks).now))
            finally:
                self._rollback()

    def boots(self) -> tuple[Boot, ...]:
        """Return the boot generations, newest first, for showing old ticks."""
        with self._mutex, translating():
            return clockwork.boots(self.connection)

    def clock_waits(self) -> bool:
        """Tell whether the clock rule has something to store: a first sighting, or a settlement."""
        with self._mutex, translating():
            return clockwork.read(self.connection, self._clocks).waits

    def trust_clock(self, body: Callable[[Tx], Result]) -> Result:
        """Run `body` in the transaction that sets the mark to the wall, wherever the mark was.

        Raises as `write` does; an exception of `body` leaves the mark where it is.
        """
        return self._repeated(lambda: self._write_once(Step.SETTLE_CLOCK, body))

    def _repeated(self, once: Callable[[], Result]) -> Result:
        with self._mutex:
            for _ in range(COMMIT_TRIES_MAX - 1):
                try:
                    return once()
                except CommitUnknownError:
                    continue
            return once()

    def _settled_write(self, step: Step, body: Callable[[Tx], Result]) -> Result:
        if self.settle is not None and self._trust() is Trust.SETTLED:
            settle = self.settle
            self._write_once(Step.SETTLE_CLOCK, lambda tx: settle(tx, "start_deadline_passed"))
        return self._write_once(step, body)

    def _trust(self) -> Trust:
        with translating():
            return clockwork.read(self.connection, self._clocks).now.trust

    def _write_once(self, step: Step, body: Callable[[Tx], Result]) -> Result:
        with translating():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                face = clockwork.read(self.connection, self._clocks)
                before = self.connection.total_changes
                result = body(Tx(self.connection, face.now))
                settled = step is Step.SETTLE_CLOCK
                if self.connection.total_changes == before and not (face.waits or settled):
                    return result
                clockwork.store(self.connection, face, settled=settled)
                self._probe(CrashPoint(Moment.BEFORE, step))
                self._still_there()
                self._commit()
            finally:
                self._rollback()
        self._probe(CrashPoint(Moment.AFTER, step))
        self._still_there()
        if face.new_boot:
            self._on_boot(face.now.epoch)
        return result

    def _commit(self) -> None:
        """Commit: for `Step.START` this is the line after which nothing is ever tried again."""
        try:
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            if is_full(error):
                raise
            raise CommitUnknownError(
                "commit_unknown", "the storage did not say whether it kept the change"
            ) from error
        self.commits += 1

    def _rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection; in WAL mode this folds the log into the database."""
        with self._mutex, translating():
            self.connection.close()


@contextmanager
def immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold one bare write transaction: for migrations, which come before there is a clock."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
