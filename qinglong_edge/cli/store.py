"""Own a state for one command: custody, lock, look, and writing only when there is something to.

A command that wrote leaves without closing: closing would fold the log into the database and cost
two to three times the bytes. Its lock ends with the process.
"""

import os
import sqlite3
from collections.abc import Callable
from typing import cast

from qinglong_edge.actions.database import ReceiptEvidence
from qinglong_edge.actions.manifest import Manifest, read_manifest
from qinglong_edge.actions.registry import Registry
from qinglong_edge.actions.run_create import RunCreate
from qinglong_edge.actions.shell_exec import ShellExec
from qinglong_edge.actions.task_publish import TaskPublish
from qinglong_edge.cli.request import Surroundings
from qinglong_edge.commands.engine import Engine, StateFacts
from qinglong_edge.domain import limits, receipt
from qinglong_edge.domain.errors import DamagedError, QinglongError, RefusedError, UnavailableError
from qinglong_edge.domain.ids import new_id
from qinglong_edge.domain.profile import Profile, local_policy
from qinglong_edge.executor.logs import ActionLogs, log_name, read_log
from qinglong_edge.executor.passwords import Here
from qinglong_edge.storage import filesystem
from qinglong_edge.storage.sqlite import actions, database, epoch_file, meta, migrations
from qinglong_edge.storage.sqlite.approvals import SqliteApprovals
from qinglong_edge.storage.sqlite.clock import SqliteClock
from qinglong_edge.storage.sqlite.database import Kind
from qinglong_edge.storage.sqlite.dispatches import SqliteDispatches
from qinglong_edge.storage.sqlite.effects import SqliteEffects
from qinglong_edge.storage.sqlite.factors import SqliteFactors
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.meta import Meta
from qinglong_edge.storage.sqlite.overview import SqliteOverview
from qinglong_edge.storage.sqlite.owner import OwnerLock
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.recoveries import SqliteRecoveries
from qinglong_edge.storage.sqlite.tasks import SqliteTasks
from qinglong_edge.storage.sqlite.transaction import Database
from qinglong_edge.storage.sqlite.watch import Watch

LOGS = "logs"
_WAL_MARK_AT = 18  # SQLite's file format: the write version, 2 for WAL
_WAL_MARK = 2


class StateOwner:
    """Own one state directory until the process ends or `close` is called."""

    def __init__(
        self, state_dir: str, surroundings: Surroundings, *, wait_ms: int = limits.OWNER_WAIT_MS
    ) -> None:
        """Take the owner lock; raises `UnavailableError` (`state_busy`) after `wait_ms`."""
        self._state_dir = state_dir
        self._around = surroundings
        self._path = os.path.join(state_dir, database.DATABASE)
        self._lock = OwnerLock.acquire(state_dir, wait_ms=wait_ms, clocks=surroundings.clocks)
        self._opened: database.Opened | None = None
        self.database: Database | None = None

    @property
    def descriptor(self) -> int:
        """Return the descriptor that holds the lock, for the record of a listening owner."""
        return self._lock.descriptor

    def look(self) -> Engine:
        """Open for reading; writes nothing unless a log lies there, which the close folds in."""
        opened = self._look()
        return self._believed(opened.connection, self._meta(opened.connection))

    def write(self) -> Engine:
        """Open for writing, by way of a look that tells how; a look that read a log goes on."""
        opened = self._opened or self._look()
        recorded = self._meta(opened.connection)
        if opened.kind is Kind.FROZEN:
            raise UnavailableError("read_only", "the database cannot be written")
        self._check_place(recorded)
        connection = opened.connection
        if opened.kind is Kind.IMMUTABLE:
            connection.close()
            journal = cast("database.Journal", recorded.journal)
            connection = database.open_writing(self._path, journal)
            self._opened = database.Opened(connection, Kind.RECOVERED)
        return self._believed(connection, recorded)

    def migrating(self) -> sqlite3.Connection:
        """Open for writing whatever the schema; the file's own mark tells its journal."""
        database.look(self._path).connection.close()
        with open(self._path, "rb") as file:
            header = file.read(_WAL_MARK_AT + 1)
        journal: database.Journal = "wal" if header[_WAL_MARK_AT] == _WAL_MARK else "truncate"
        connection = database.open_writing(self._path, journal)
        self._opened = database.Opened(connection, Kind.RECOVERED)
        return connection

    def close(self) -> None:
        """Close the database and give the lock up."""
        if self._opened is not None:
            self._opened.connection.close()
            self._opened = None
        self._lock.release()

    def _look(self) -> database.Opened:
        self._opened = database.look(self._path)
        migrations.check(self._opened.connection)
        return self._opened

    def _meta(self, connection: sqlite3.Connection) -> Meta:
        recorded = meta.read(connection)
        if recorded is None:
            raise DamagedError("store_damaged", "the database has lost what init recorded")
        return recorded

    def _check_place(self, recorded: Meta) -> None:
        """Prove again what init proved where the state now lies on another kind of file system."""
        found = filesystem.describe(self._state_dir)
        if found.type == recorded.file_system:
            return
        filesystem.require_durable(found, allow_volatile=recorded.volatile)
        filesystem.check_links(self._state_dir, self._around.entropy)
        if database.probe_journal(self._state_dir, self._around.entropy) != recorded.journal:
            raise UnavailableError(
                "journal_unusable", "the state was moved to where its journal mode does not work"
            )

    def _believed(self, connection: sqlite3.Connection, recorded: Meta) -> Engine:
        around = self._around
        opened = Database(
            connection,
            around.clocks,
            probe=around.probe,
            on_boot=lambda epoch: epoch_file.write(self._state_dir, epoch),
            still_there=Watch(self._path),
        )
        opened.settle = actions.settle
        self.database = opened
        boots = opened.boots()
        epoch_file.check(self._state_dir, boots[0].epoch if boots else 0)
        return self._engine(opened, recorded)

    def _engine(self, opened: Database, recorded: Meta) -> Engine:
        around, logs_dir = self._around, os.path.join(self._state_dir, LOGS)
        tasks, effects = SqliteTasks(opened), SqliteEffects(opened)
        return Engine(
            self._facts(recorded),
            SqliteApprovals(opened),
            SqliteDispatches(opened),
            SqliteRecoveries(opened),
            SqlitePolicy(opened),
            SqliteIdentities(opened),
            SqliteFactors(opened),
            tasks,
            SqliteClock(opened),
            SqliteOverview(opened),
            self._registry(tasks, effects, logs_dir),
            Here(around.entropy, around.clocks),
            around.clocks,
            around.entropy,
            around.probe,
            _reader(logs_dir),
        )

    def _registry(self, tasks: SqliteTasks, effects: SqliteEffects, logs_dir: str) -> Registry:
        around = self._around

        def draw_id() -> str:
            return new_id(around.clocks.read().wall_ms, around.entropy)

        handlers = (
            ShellExec(ActionLogs(logs_dir), around.clocks),
            RunCreate(tasks, effects, draw_id),
            TaskPublish(effects),
        )
        providers = [ReceiptEvidence(name, effects) for name in receipt.WORDS]
        return Registry(_manifest(self._state_dir), handlers, providers)

    def _facts(self, recorded: Meta) -> StateFacts:
        return StateFacts(
            self._state_dir,
            recorded.state_id,
            recorded.project_id,
            local_policy(Profile(recorded.profile)),
            recorded.owner,
            recorded.enable,
            recorded.volatile,
            recorded.journal,
            recorded.file_system,
            len(migrations.MANIFEST),
            recorded.created_at_ms,
        )


def _manifest(state_dir: str) -> Manifest | QinglongError:
    """Return the manifest, or what is wrong with it."""
    try:
        return read_manifest(state_dir)
    except (DamagedError, UnavailableError) as error:
        return error


def _reader(logs_dir: str) -> Callable[[str], tuple[bytes, bool]]:
    def read(dispatch_id: str) -> tuple[bytes, bool]:
        part = read_log(logs_dir, log_name(dispatch_id), most=limits.ACTION_LOG_BYTES_MAX)
        if part is None:
            raise RefusedError("no_log", "this action has no captured output here")
        return part.data, part.truncated

    return read
