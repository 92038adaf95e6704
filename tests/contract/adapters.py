"""What a case may ask of an adapter, and the two adapters that exist."""

import enum
import os
import shutil
import sqlite3
from contextlib import closing
from typing import Any, NamedTuple, Protocol

from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.policy import BindRole, Role
from qinglong_edge.ports.effects import Effects, Tasks
from qinglong_edge.ports.identities import Factors, Identities
from qinglong_edge.ports.probe import no_probe
from qinglong_edge.ports.repositories import (
    Approvals,
    Clock,
    Dispatches,
    Overview,
    Policy,
    Recoveries,
)
from qinglong_edge.storage.sqlite import actions, database, meta, migrations
from qinglong_edge.storage.sqlite.approvals import SqliteApprovals
from qinglong_edge.storage.sqlite.clock import SqliteClock
from qinglong_edge.storage.sqlite.database import Journal
from qinglong_edge.storage.sqlite.dispatches import SqliteDispatches
from qinglong_edge.storage.sqlite.effects import SqliteEffects
from qinglong_edge.storage.sqlite.factors import SqliteFactors
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.overview import SqliteOverview
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.recoveries import SqliteRecoveries
from qinglong_edge.storage.sqlite.tasks import SqliteTasks
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, EDGE, PROJECT
from tests.support.clock import FakeClocks
from tests.support.model import open_model
from tests.support.model_store import ModelStore
from tests.support.store import CHEAP_HASH

# Several connections meet the WAL-reset race of SQLite before 3.51.3.
JOURNAL: Journal = "truncate" if sqlite3.sqlite_version_info < (3, 51, 3) else "wal"
MEMBERS = ((BOB, Role.ADMIN), (BOT, Role.OPERATOR))
TABLES = (
    "actions", "boots", "clock", "executions", "identities", "ids", "meta", "plans", "projects",
    "role_bindings", "sessions", "prune_permit", "totp_keys", "recovery_codes", "identity_resets",
    "authorization_facts", "resolutions", "action_receipts", "task_revisions", "runs",
    "run_attempts", "run_events",
)  # fmt: skip


class Capability(enum.Enum):
    """Name what an adapter can stage or offer beyond the ports of the cases."""

    FAULTY_COMMITS = "a commit may fail, or lose its answer, on request"
    IDENTITIES = "users, agents and sessions are kept"


class Fault(enum.Enum):
    """Name how the next commit goes wrong."""

    LOST_ANSWER = "the commit happens, and an error is answered"
    NOT_DONE = "the commit does not happen, and an error is answered"
    NEVER_DONE = "as NOT_DONE, for every repeat as well"
    FULL = "no space is left, so nothing happens"


class Ports(NamedTuple):
    """Hold the ports of one session."""

    approvals: Approvals
    dispatches: Dispatches
    recoveries: Recoveries
    effects: Effects
    tasks: Tasks
    policy: Policy
    overview: Overview
    clock: Clock
    identities: Identities | None
    factors: Factors | None


class Repositories(Protocol):
    """Be one store with clocks in the test's hand; `ports` is its first session.

    It holds project `PROJECT` version 1, its owner `ANA`, the admin `BOB` and the agent `BOT` as an
    operator, each with binding version 1.
    """

    clocks: FakeClocks
    ports: Ports
    capabilities: frozenset[Capability]

    def second_session(self) -> Ports:
        """Return the ports of another session on the same store."""
        ...

    def snapshot(self) -> object:
        """Return everything stored, for comparison with another snapshot."""
        ...

    def commits(self) -> int:
        """Return how many commits the first session made."""
        ...

    def raise_project_version(self) -> None:
        """Change the project behind the back of the ports, as an archive command would."""
        ...

    def damage(self, approval_request_id: str) -> None:
        """Make the stored action one that cannot be believed."""
        ...

    def fail_next_commit(self, fault: Fault) -> None:
        """Stage a fault for the first session; needs `Capability.FAULTY_COMMITS`."""
        ...


class ModelRepositories:
    """Offer the model."""

    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, clocks: FakeClocks) -> None:
        self.clocks = clocks
        self._kept = ModelStore(clocks)
        self.ports = self.second_session()
        enrol(self.ports.policy)
        self._kept.commits = 0

    def second_session(self) -> Ports:
        return Ports(*open_model(self._kept), None, None)

    def snapshot(self) -> object:
        time = self._kept.time
        return self._kept.state.copy(), time.newest, time.mark, time.sighting

    def commits(self) -> int:
        return self._kept.commits

    def raise_project_version(self) -> None:
        projects = self._kept.state.projects
        projects[PROJECT] = projects[PROJECT]._replace(version=projects[PROJECT].version + 1)

    def damage(self, approval_request_id: str) -> None:
        self._kept.state.damaged[self._kept.state.ids[approval_request_id][1]] = True

    def fail_next_commit(self, fault: Fault) -> None:
        raise NotImplementedError(fault)


class FaultyConnection(sqlite3.Connection):
    """Fail commits on request, as a storage device may."""

    fault: Fault | None = None
    fail_in: int | None = None  # so many statements from now one fails

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if self.fail_in is not None and not sql.startswith(("COMMIT", "ROLLBACK", "RELEASE")):
            self.fail_in -= 1
            if self.fail_in < 0:
                self.fail_in = None
                raise staged(sqlite3.SQLITE_IOERR_WRITE)
        if sql != "COMMIT" or self.fault is None:
            return super().execute(sql, parameters)
        fault = self.fault
        if fault is not Fault.NEVER_DONE:
            self.fault = None
        if fault is Fault.LOST_ANSWER:
            super().execute("COMMIT")
        full = fault is Fault.FULL
        raise staged(sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR_FSYNC)


def staged(code: int) -> sqlite3.OperationalError:
    """Return the error that SQLite raises with this extended code."""
    error = sqlite3.OperationalError("staged")
    error.sqlite_errorcode = code
    return error


def connect(path: str) -> FaultyConnection:
    """Open a store file in normal locking mode, so that others may open it too."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=FaultyConnection
    )
    database.configure(connection, JOURNAL, exclusive=False)
    connection.execute("PRAGMA synchronous = OFF")  # no case cuts the power
    return connection


def make_store(path: str, clocks: FakeClocks) -> None:
    """Make the store that every case starts from, as `init` makes one."""
    facts = meta.Meta("state-1", PROJECT, "edge", ANA.id, (), False, JOURNAL, "ext4", 0)
    with closing(database.create(path, JOURNAL)) as connection:
        migrations.migrate(connection, no_probe)
        meta.create(connection, facts, CHEAP_HASH, reading=clocks.read(), probe=no_probe)
        enrol(SqlitePolicy(Database(connection, clocks, probe=no_probe)))


def enrol(policy: Policy) -> None:
    for subject, role in MEMBERS:
        event = BindRole(PROJECT, subject, 0, role, f"enrol-{subject.id}", EDGE)
        assert isinstance(policy.bind(event), Changed)


class SqliteRepositories:
    """Offer a real file, with one connection a session."""

    capabilities = frozenset(Capability)

    def __init__(self, path: str, clocks: FakeClocks) -> None:
        self.path = path
        self.clocks = clocks
        self.database = self._open()
        self.ports = ports_of(self.database)
        self._others: list[Database] = []

    def _open(self) -> Database:
        opened = Database(connect(self.path), self.clocks, probe=no_probe)
        opened.settle = actions.settle
        return opened

    def second_session(self) -> Ports:
        self._others.append(self._open())
        return ports_of(self._others[-1])

    def snapshot(self) -> object:
        return dump(self.path)

    def commits(self) -> int:
        return self.database.commits

    def raise_project_version(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("UPDATE projects SET version = version + 1")

    def damage(self, approval_request_id: str) -> None:
        spoil(
            self.path,
            f"UPDATE actions SET risk = 'none' WHERE approval_request_id = '{approval_request_id}'",
        )

    def fail_next_commit(self, fault: Fault) -> None:
        assert isinstance(self.database.connection, FaultyConnection)
        self.database.connection.fault = fault

    def close(self) -> None:
        for opened in (self.database, *self._others):
            opened.close()


def ports_of(opened: Database) -> Ports:
    return Ports(
        SqliteApprovals(opened),
        SqliteDispatches(opened),
        SqliteRecoveries(opened),
        SqliteEffects(opened),
        SqliteTasks(opened),
        SqlitePolicy(opened),
        SqliteOverview(opened),
        SqliteClock(opened),
        SqliteIdentities(opened),
        SqliteFactors(opened),
    )


def dump(path: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return every row of every table, whatever stands in it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3").fetchall()
            if table != "prune_permit"
            else connection.execute("SELECT * FROM prune_permit").fetchall()
            for table in TABLES
        }


def spoil(path: str, *statements: str) -> None:
    """Change rows behind the guards of the schema, which stand again afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        guards = connection.execute(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
        ).fetchall()
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("PRAGMA synchronous = OFF")  # a guard is a commit, and there are dozens
        for name, _ in guards:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, sql in guards:
            connection.execute(sql)


def copied(template: str, folder: os.PathLike[str]) -> str:
    """Return the path of a fresh copy of a closed store."""
    return shutil.copy(template, os.path.join(folder, database.DATABASE))


ADAPTERS: dict[str, frozenset[Capability]] = {
    "model": ModelRepositories.capabilities,
    "sqlite": SqliteRepositories.capabilities,
}
