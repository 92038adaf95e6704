"""The named statements: all used, all fed what they ask for, all served by the index they are for.

Use is recorded at the connection while every port method is called, so a statement that no call
reaches, or one that gets a value too many, fails here.
"""

import ast
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qinglong_edge.domain import totp
from qinglong_edge.domain.action import Risk
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.identity import Assurance, Principal
from qinglong_edge.ports.identities import RecoveryProof, TotpProof
from qinglong_edge.ports.probe import no_probe
from qinglong_edge.ports.repositories import Listing, Queue
from qinglong_edge.storage import statements
from qinglong_edge.storage.sqlite import actions, meta, migrations
from qinglong_edge.storage.sqlite.transaction import Database
from tests.contract.adapters import Ports, enrol, ports_of
from tests.contract.calls import CALLS, OLD_SECRET, enrolment_of, opening
from tests.contract.story import changed, consume_of, decide_of, propose_of
from tests.support.builders import ANA, PROJECT, at
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.store import CHEAP_HASH

STORAGE = Path(statements.__file__).parent / "sqlite"
FILES = ("actions", "clock", "effects", "factors", "identities", "meta", "policy")
FRAGMENTS = {"record", "identity", "session", "revision"}  # stand inside others as {name}
NAME = re.compile(r"(?<![:\w]):([a-z_]+)")


def named() -> dict[str, str]:
    """Return every statement of every file by its name."""
    return {
        name: sql
        for file in FILES
        for name, sql in statements.load("qinglong_edge.storage.sqlite", f"sql/{file}.sql").items()
    }


STATEMENTS = named()


class Use(NamedTuple):
    """Hold one execution of a named statement."""

    name: str
    given: frozenset[str]


class Recorder(sqlite3.Connection):
    """Record which named statements run, and with which values."""

    uses: list[Use]

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        for name in (name for name, text in STATEMENTS.items() if text == sql):
            self.uses.append(Use(name, frozenset(parameters)))
        return super().execute(sql, parameters)


@pytest.fixture(scope="module")
def uses(prepared: str, tmp_path_factory: pytest.TempPathFactory) -> list[Use]:
    """Make a store, and call every method on copies of a full one; return what ran."""
    ran: list[Use] = []
    clocks = FakeClocks()
    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=Recorder)) as fresh:
        fresh.row_factory, fresh.uses = sqlite3.Row, ran
        migrations.migrate(fresh, no_probe)
        facts = meta.Meta("state-1", PROJECT, "edge", ANA.id, (), False, "wal", "ext4", 0)
        meta.create(fresh, facts, CHEAP_HASH, reading=clocks.read(), probe=no_probe)
        assert meta.read(fresh) is not None
    for name in CALLS:
        on_a_copy(prepared, ran, [name])
    on_a_copy(prepared, ran, [], settle=True)
    return ran


def on_a_copy(prepared: str, ran: list[Use], names: list[str], *, settle: bool = False) -> None:
    clocks = FakeClocks()
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Recorder)
    with closing(connection), closing(sqlite3.connect(prepared)) as source:
        source.backup(connection)
        connection.row_factory, connection.uses = sqlite3.Row, ran
        opened = Database(connection, clocks, probe=no_probe)
        opened.settle = actions.settle
        ports = ports_of(opened)
        for name in names:
            CALLS[name].run(ports)
        for queue in QUEUES:
            ports.approvals.page(Listing(None if queue is None else Queue(queue), None, 9))
        if settle:
            many_sessions(ports)
            proofs(ports)
            clocks.step_wall(400 * 86_400_000)
            ports.dispatches.settle_dead_owners("owner-9")
            ports.overview.problems()
            clocks.advance(600_000)
            ports.dispatches.settle_dead_owners("owner-9")


def many_sessions(ports: Ports) -> None:
    """Open more sessions than one subject may hold, so that the oldest goes."""
    assert ports.identities is not None
    for n in range(17):
        answer = ports.identities.open_session(opening(f"more-{n}", f"{n:064x}"))
        assert isinstance(answer, Changed)


def proofs(ports: Ports) -> None:
    """Use a code of each kind, and decide what needs a fact."""
    assert ports.identities is not None
    code = totp.hotp(OLD_SECRET, WALL_MS // totp.STEP_MS)
    recovery = enrolment_of(OLD_SECRET).code_digests[0]
    shown: tuple[TotpProof | RecoveryProof, ...] = (TotpProof(code), RecoveryProof(recovery))
    for n, proof in enumerate(shown):
        event = opening(f"strong-{n}", f"{n + 100:064x}")._replace(proof=proof)
        assert isinstance(ports.identities.open_session(event), Changed)
    changed(ports.approvals.propose(propose_of(30, risk=Risk.HIGH)))
    ana = Principal(ANA, Assurance.MULTI_FACTOR, "ses-1", at(0).at_ms, at(0).tick)
    changed(ports.approvals.decide(decide_of(30, principal=ana)))


QUEUES = (None, "pending", "approved", "due", "executing", "recovery_due", "manual_required")


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - FRAGMENTS))
def test_a_named_statement_is_used_with_exactly_what_it_asks_for(
    uses: list[Use], name: str
) -> None:
    given = {use.given for use in uses if use.name == name}
    asked = frozenset(NAME.findall(STATEMENTS[name]))
    if name == "add_meta":  # it is handed the whole record of the state
        given = {each & asked for each in given}
    assert given == {asked}


def test_a_fragment_stands_inside_a_statement() -> None:
    for name in FRAGMENTS:
        whole = [text for other, text in STATEMENTS.items() if other != name]
        assert any(STATEMENTS[name] in text for text in whole)


def literals(path: Path) -> Iterator[str]:
    """Yield the names that a module asks of a statement table by a literal."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("SQL"):
            if isinstance(node.slice, ast.Constant):
                yield str(node.slice.value)


def test_every_name_that_is_asked_for_exists() -> None:
    asked = {name for path in STORAGE.glob("*.py") for name in literals(path)}
    assert len(asked) > 20
    assert asked <= set(STATEMENTS)


def test_no_name_stands_in_two_files() -> None:
    counted = [
        name
        for file in FILES
        for name in statements.load("qinglong_edge.storage.sqlite", f"sql/{file}.sql")
    ]
    assert sorted(counted) == sorted(STATEMENTS)
    assert {path.stem for path in (STORAGE / "sql").glob("*.sql")} == {*FILES, "schema"}


MANY = 2_000


@pytest.fixture(scope="module")
def crowd() -> Iterator[Database]:
    """Return a store of 2,000 actions: consumed, then every other one started and expired."""
    clocks = FakeClocks()
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    migrations.migrate(connection, no_probe)
    facts = meta.Meta("state-1", PROJECT, "edge", ANA.id, (), False, "wal", "ext4", 0)
    meta.create(connection, facts, CHEAP_HASH, reading=clocks.read(), probe=no_probe)
    opened = Database(connection, clocks, probe=no_probe)
    ports = ports_of(opened)
    enrol(ports.policy)
    for n in range(1, 4):
        changed(ports.approvals.propose(propose_of(n)))
    changed(ports.approvals.approve_and_consume(decide_of(1), consume_of(1)))
    changed(ports.approvals.decide(decide_of(2)))
    multiply(connection)
    yield opened
    connection.close()


def columns(connection: sqlite3.Connection, table: str, changes: dict[str, str]) -> str:
    names = [row["name"] for row in connection.execute(f"PRAGMA table_info({table})")]
    return ", ".join(changes.get(name, name) for name in names)


NUMBERS = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"


def multiply(connection: sqlite3.Connection) -> None:
    """Copy one consumed, one approved and one pending action until there are 2,000 of all."""
    fresh = {
        "key": "10 + i",
        "approval_request_id": "'apr-x' || i",
        "dispatch_id": "CASE WHEN dispatch_id IS NULL THEN NULL ELSE 'dsp-x' || i END",
    }
    shown = columns(connection, "actions", fresh)
    connection.execute(
        f"INSERT INTO actions {NUMBERS} SELECT {shown} FROM n JOIN actions ON key = 1 + i % 3"
    )
    shown = columns(connection, "executions", {"action": "key"})
    connection.execute(
        f"INSERT INTO executions SELECT {shown} FROM executions JOIN"
        " (SELECT key FROM actions WHERE key > 10 AND state = 'consumed') WHERE action = 1"
    )
    lease = "lease_owner = 'o', lease_token = 't', lease_from_tick = eligible_tick"
    connection.execute(
        "UPDATE executions SET status = 'leased', version = 1, attempt_count = 1,"
        f" lease_expires_tick = eligible_tick, {lease} WHERE action % 2 = 0"
    )
    connection.execute(
        "UPDATE executions SET status = 'executing', version = 2, started_at_ms = created_at_ms,"
        " eligible_tick = NULL, control_status = 'armed', control_version = 0, finding_count = 0,"
        " next_scan_tick = lease_expires_tick, control_updated_at_ms = created_at_ms"
        " WHERE status = 'leased'"
    )


def plan(database: Database, name: str) -> list[str]:
    """Return how SQLite means to run a statement."""
    values = dict.fromkeys(NAME.findall(STATEMENTS[name]), 1)
    rows = database.connection.execute(f"EXPLAIN QUERY PLAN {STATEMENTS[name]}", values)
    return [row["detail"] for row in rows]


SERVED_BY = [
    ("list_due", "executions_due"),
    ("list_recovery_due", "executions_scan"),
    ("list_executing", "executions_scan"),
    ("list_manual", "executions_manual"),
    ("list_open", "actions_open"),
    ("count_open", "actions_open"),
    ("count_pending", "actions_open"),
    ("count_dispatches", "executions_due"),
    ("count_executing", "executions_scan"),
    ("count_manual", "executions_manual"),
    ("unknown_outcomes", "executions_scan"),
    ("leased_by_others", "executions_due"),
    ("executing_by_others", "executions_scan"),
    ("work_waits", "executions_due"),
    ("work_waits", "executions_scan"),
    ("repeated_by", "actions_repeating"),
    ("list_tasks", "task_revisions_first"),
    ("unknown_outcomes", "executions_manual"),
    ("unknown_outcomes", "executions_unknown"),
]


@pytest.mark.adr("0033", "5.2")
@pytest.mark.parametrize(("name", "index"), SERVED_BY)
def test_a_list_is_served_by_its_partial_index(crowd: Database, name: str, index: str) -> None:
    assert any(f"INDEX {index}" in step for step in plan(crowd, name)), plan(crowd, name)


@pytest.mark.parametrize("index", sorted({index for _, index in SERVED_BY}))
def test_an_index_holds_only_what_waits(crowd: Database, index: str) -> None:
    """A finished action must leave every index, or each one grows with the history."""
    sql = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?"
    (text,) = crowd.connection.execute(sql, [index]).fetchone()
    assert " WHERE " in " ".join(text.split())


LISTS = sorted(name for name in STATEMENTS if name.startswith("list_"))


@pytest.mark.parametrize("name", LISTS)
def test_no_page_is_sorted(crowd: Database, name: str) -> None:
    assert not [step for step in plan(crowd, name) if "TEMP B-TREE" in step]


@pytest.mark.scenario(27)
def test_no_index_is_there_for_nobody(crowd: Database) -> None:
    rows = crowd.connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    )
    read = " ".join(
        step for name in STATEMENTS if name != "create_clock" for step in plan(crowd, name)
    )
    assert {row["name"] for row in rows} <= set(re.findall(r"INDEX (\w+)", read))


def steps(database: Database, ports: Ports, queue: str | None, limit: int) -> int:
    """Count the virtual machine's steps of one page."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    database.connection.set_progress_handler(count, 1)
    try:
        found = ports.approvals.page(Listing(None if queue is None else Queue(queue), None, limit))
    finally:
        database.connection.set_progress_handler(None, 1)
    assert len(found.items) == limit
    assert found.cursor is not None
    return counted


@pytest.mark.parametrize("queue", [None, "pending", "approved", "due", "executing", "recovery_due"])
def test_a_page_reads_one_row_more_than_it_shows(crowd: Database, queue: str | None) -> None:
    """One more item costs one more row, each row about as much as the first; 2,000 wait."""
    ports = ports_of(crowd)
    one, two, nine = (steps(crowd, ports, queue, limit) for limit in (1, 2, 9))
    row = two - one
    assert 0 < row < 1_000
    assert abs(nine - two - 7 * row) <= 7 * row // 4
    assert one < 2 * row + 600


def test_the_crowd_is_one(crowd: Database) -> None:
    (count,) = crowd.connection.execute("SELECT count(*) FROM actions").fetchone()
    assert count >= MANY
