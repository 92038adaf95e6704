"""A real store for tests: the schema to read, one project, no user until somebody adds one.

`open_store(":memory:", clocks)` is enough for most; a path may be opened several times, in normal
locking mode, for what two connections do to each other.
"""

import base64
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from qinglong_edge.actions.manifest import EMPTY
from qinglong_edge.actions.registry import Registry
from qinglong_edge.commands.authority import token_digest
from qinglong_edge.commands.engine import Caller, Engine, StateFacts
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.identity import Assurance, PasswordHash
from qinglong_edge.domain.policy import Role, Subject, SubjectType
from qinglong_edge.domain.profile import Profile, local_policy
from qinglong_edge.executor.passwords import Costs, Here, hash_password
from qinglong_edge.ports.ambient import Clocks, Entropy
from qinglong_edge.ports.identities import AddIdentity, OpenSession
from qinglong_edge.ports.probe import Probe, no_probe
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import actions, clockwork
from qinglong_edge.storage.sqlite.approvals import SqliteApprovals
from qinglong_edge.storage.sqlite.clock import SqliteClock
from qinglong_edge.storage.sqlite.dispatches import SqliteDispatches
from qinglong_edge.storage.sqlite.factors import SqliteFactors
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.overview import SqliteOverview
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.recoveries import SqliteRecoveries
from qinglong_edge.storage.sqlite.tasks import SqliteTasks
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, EDGE, HOUR_MS, PROJECT
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.entropy import CounterEntropy

PASSWORD = "correct horse"
CHEAP = Costs(scrypt_log2=4, pbkdf2_least=2, pbkdf2_most=2)
CHEAP_HASH = hash_password(PASSWORD, CounterEntropy(), clocks=FakeClocks(), costs=CHEAP)
NOBODY = Caller(None, None, is_state_owner=False)
STATE_OWNER = Caller(None, None, is_state_owner=True)
BUSY_S = 5.0


class ClosingConnection(sqlite3.Connection):
    """Close with the last reference, so that no test has to; 3.13 warns about whoever does not."""

    def __del__(self) -> None:
        self.close()


class Fill(NamedTuple):
    """What a new store holds besides its schema."""

    project_id: str = PROJECT
    owner: str = ANA.id


def open_store(
    path: str, clocks: Clocks, *, probe: Probe = no_probe, fill: Fill | None = None
) -> Database:
    """Open a store; an empty one gets schema, clock rows, project and meta first."""
    connection = sqlite3.connect(
        path,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        factory=ClosingConnection,
    )
    connection.row_factory = sqlite3.Row
    for pragma in ("journal_mode = TRUNCATE", "synchronous = OFF", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        _create(connection, clocks, fill or Fill())
    database = Database(connection, clocks, probe=probe)
    database.settle = actions.settle
    return database


def schema_statements() -> Iterator[str]:
    """Cut the schema the way migrations are cut: a trigger holds semicolons."""
    statement = ""
    for line in statements.text("qinglong_edge.storage.sqlite", "sql/schema.sql").splitlines(
        keepends=True
    ):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _create(connection: sqlite3.Connection, clocks: Clocks, fill: Fill) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in schema_statements():
        connection.execute(statement)
    clockwork.create(connection, clocks.read())
    connection.execute(
        "INSERT INTO projects VALUES (1, ?, 'Home', 'home', 'active', 1, 0, 0)", [fill.project_id]
    )
    connection.execute(
        "INSERT INTO meta VALUES (1, 'state-1', 'edge', 1, ?, '', 0, 'truncate', 'ext4', ?)",
        [fill.owner, WALL_MS],
    )
    connection.execute("COMMIT")


def make_engine(
    database: Database,
    clocks: Clocks,
    *,
    entropy: Entropy | None = None,
    registry: Registry | None = None,
) -> Engine:
    """Put a store behind the commands; no action type is carried unless a registry says so."""
    facts = StateFacts(
        state_dir="/var/lib/qinglong-edge",
        state_id="state-1",
        project_id=PROJECT,
        policy=local_policy(Profile.EDGE),
        owner=ANA.id,
        enable=(),
        volatile=False,
        journal="truncate",
        file_system="ext4",
        schema_version=1,
        created_at_ms=WALL_MS,
    )
    return Engine(
        facts=facts,
        approvals=SqliteApprovals(database),
        dispatches=SqliteDispatches(database),
        recoveries=SqliteRecoveries(database),
        policy=SqlitePolicy(database),
        identities=SqliteIdentities(database),
        factors=SqliteFactors(database),
        tasks=SqliteTasks(database),
        clock=SqliteClock(database),
        overview=SqliteOverview(database),
        registry=registry or Registry(EMPTY, ()),
        passwords=Here(entropy or CounterEntropy(), clocks),
        clocks=clocks,
        entropy=entropy or CounterEntropy(),
        probe=no_probe,
        read_log=lambda _dispatch_id: (b"", False),
    )


def token(name: str) -> str:
    """Return a token of the right shape, the same for the same name."""
    return base64.urlsafe_b64encode(name.encode().ljust(32, b".")[:32]).decode().rstrip("=")


def add_user(
    engine: Engine, name: str, role: Role, *, password: PasswordHash = CHEAP_HASH
) -> Subject:
    """Store a user whose password is `PASSWORD`, hashed so cheaply that tests stay quick."""
    user = Subject(SubjectType.USER, name)
    event = AddIdentity(PROJECT, user, role, password, None, f"add-user-{name}", EDGE)
    added = engine.identities.add(event)
    assert isinstance(added, Changed), added
    return user


def add_agent(engine: Engine, name: str, role: Role) -> Caller:
    """Store an agent and return the caller that shows its token."""
    agent = Subject(SubjectType.AGENT, name)
    shown = token(f"agent {name}")
    event = AddIdentity(PROJECT, agent, role, None, token_digest(shown), f"add-agent-{name}", EDGE)
    added = engine.identities.add(event)
    assert isinstance(added, Changed), added
    return Caller(None, shown, is_state_owner=False)


def log_in(
    engine: Engine, name: str, assurance: Assurance = Assurance.SINGLE_FACTOR, *, nth: int = 1
) -> Caller:
    """Open a session without asking for the password; `nth` tells several of one user apart."""
    user = Subject(SubjectType.USER, name)
    found = engine.identities.find(user)
    assert found is not None
    shown = token(f"session {nth} {name}")
    event = OpenSession(
        f"ses-{nth}-{name}", token_digest(shown), user, assurance, HOUR_MS, found.version
    )
    opened = engine.identities.open_session(event)
    assert isinstance(opened, Changed), opened
    return Caller(shown, None, is_state_owner=False)
