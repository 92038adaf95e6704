"""Sessions on SQLite: how they open, how long they hold, how many there are."""

from typing import Any

import pytest

from qinglong_edge.domain.decisions import Replayed
from qinglong_edge.domain.errors import DamagedError, UsageError
from qinglong_edge.domain.identity import SESSIONS_MAX, Assurance, IdentityRefusal, Session
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, HOUR_MS
from tests.support.clock import WALL_MS, FakeClocks
from tests.unit.storage.sqlite.subjects import AGENT, DISABLE, OPEN, OWNER, USER, added, opened


def test_a_damaged_session_is_no_session(identities: SqliteIdentities, database: Database) -> None:
    identities.add(USER)
    opened(identities)
    database.connection.execute("PRAGMA ignore_check_constraints = ON")
    database.connection.execute("UPDATE sessions SET assurance = 'divine'")
    with pytest.raises(DamagedError):
        identities.session("a" * 64)


def test_a_session_begins_now_on_both_clocks(
    identities: SqliteIdentities, database: Database
) -> None:
    identities.add(USER)
    session = opened(identities)
    tick = database.read(lambda tx: tx.now.tick)
    assert session == Session(
        "ses-1", "a" * 64, BOB, Assurance.SINGLE_FACTOR, WALL_MS, tick, WALL_MS + HOUR_MS
    )
    assert identities.session("a" * 64) == session
    assert identities.session("b" * 64) is None


@pytest.mark.parametrize(
    ("passed_ms", "stepped_ms", "holds"),
    [
        (HOUR_MS - 1, 0, True),
        (HOUR_MS, 0, False),
        (0, HOUR_MS, False),
        (HOUR_MS, -HOUR_MS, False),
        (HOUR_MS - 1, -HOUR_MS, True),
    ],
)
def test_a_session_holds_while_both_clocks_say_so(
    identities: SqliteIdentities,
    clocks: FakeClocks,
    *,
    passed_ms: int,
    stepped_ms: int,
    holds: bool,
) -> None:
    """A wall clock set back never prolongs a session: deadline time goes on."""
    identities.add(USER)
    opened(identities)
    clocks.advance(passed_ms)
    clocks.step_wall(stepped_ms)
    assert (identities.session("a" * 64) is not None) is holds


def test_no_session_survives_a_reboot(identities: SqliteIdentities, clocks: FakeClocks) -> None:
    identities.add(USER)
    opened(identities)
    clocks.reboot()
    assert identities.session("a" * 64) is None


def test_a_repeated_login_replays_while_its_session_holds(
    identities: SqliteIdentities, database: Database, clocks: FakeClocks
) -> None:
    identities.add(USER)
    session = opened(identities)
    clocks.advance(60_000)
    commits = database.commits
    assert identities.open_session(OPEN) == Replayed(session)
    assert database.commits == commits
    clocks.advance(HOUR_MS)
    anew = opened(identities)
    assert anew.authenticated_at_ms == WALL_MS + 60_000 + HOUR_MS


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "ses-2"},
        {"token_digest": "b" * 64},
        {"subject": ANA},
        {"assurance": Assurance.MULTI_FACTOR},
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_an_id_or_a_token_opens_one_session(
    identities: SqliteIdentities, clocks: FakeClocks, change: dict[str, Any], *, ended: bool
) -> None:
    added(identities, USER, OWNER)
    opened(identities)
    clocks.advance(HOUR_MS if ended else 1)
    answer = identities.open_session(OPEN._replace(**change))
    assert answer is IdentityRefusal.SESSION_TAKEN


def test_only_the_user_whose_password_was_proven_gets_a_session(
    identities: SqliteIdentities, database: Database
) -> None:
    added(identities, USER, AGENT)
    for change in ({"subject": ANA}, {"subject": BOT}, {"identity_version": 2}):
        answer = identities.open_session(OPEN._replace(**change))
        assert answer is IdentityRefusal.NOT_FOUND
    identities.disable(DISABLE)
    answer = identities.open_session(OPEN._replace(identity_version=2))
    assert answer is IdentityRefusal.NOT_FOUND
    assert not database.connection.execute("SELECT * FROM sessions").fetchall()


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": ""},
        {"session_id": "x" * 65},
        {"token_digest": "A" * 64},
        {"span_ms": 0},
        {"span_ms": HOUR_MS + 1},
    ],
)
def test_a_malformed_session_is_refused_before_any_read(
    identities: SqliteIdentities, database: Database, change: dict[str, Any]
) -> None:
    database.connection.close()
    with pytest.raises(UsageError):
        identities.open_session(OPEN._replace(**change))


def test_sessions_are_bounded_and_the_oldest_goes(
    identities: SqliteIdentities, database: Database, clocks: FakeClocks
) -> None:
    added(identities, USER, OWNER)
    opened(identities, session_id="hers", token_digest="f" * 64, subject=ANA)
    for number in range(SESSIONS_MAX + 2):
        clocks.advance(1)
        opened(identities, session_id=f"ses-{99 - number}", token_digest=f"{number:064x}")
    count = database.connection.execute(
        "SELECT count(*) FROM sessions WHERE subject = 'user:bob'"
    ).fetchone()[0]
    assert count == SESSIONS_MAX
    alive = [number for number in range(SESSIONS_MAX + 2) if identities.session(f"{number:064x}")]
    assert alive == list(range(2, SESSIONS_MAX + 2))
    assert identities.session("f" * 64) is not None


def test_ended_sessions_go_before_living_ones(
    identities: SqliteIdentities, database: Database, clocks: FakeClocks
) -> None:
    identities.add(USER)
    opened(identities, session_id="old", token_digest="1" * 64)
    clocks.advance(HOUR_MS - 1)
    opened(identities, session_id="young", token_digest="2" * 64)
    clocks.advance(1)
    opened(identities, session_id="new", token_digest="3" * 64)
    rows = database.connection.execute("SELECT session_id FROM sessions ORDER BY 1").fetchall()
    assert [row[0] for row in rows] == ["new", "young"]


def test_a_session_ends_once(identities: SqliteIdentities, database: Database) -> None:
    identities.add(USER)
    opened(identities)
    assert identities.close_session("a" * 64)
    assert identities.session("a" * 64) is None
    commits = database.commits
    assert not identities.close_session("a" * 64)
    assert database.commits == commits
