from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.identity import (
    Identity,
    IdentityRefusal,
    IdentityState,
)
from qinglong_edge.domain.policy import (
    Authority,
    BindRole,
    PolicyFence,
    PolicyRefusal,
    Role,
    Subject,
    SubjectType,
)
from qinglong_edge.ports.identities import AddIdentity, DisableIdentity
from qinglong_edge.ports.probe import CrashPoint, Moment, Step
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, PROJECT
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.store import CHEAP_HASH, open_store
from tests.unit.storage.sqlite.subjects import AGENT, DISABLE, OWNER, USER, added, opened

TABLES = ("identities", "role_bindings", "sessions")


def stored(database: Database) -> list[tuple[Any, ...]]:
    """Return every row of the tables that this adapter writes."""
    return [
        (table, *row)
        for table in TABLES
        for row in database.connection.execute(f"SELECT * FROM {table}")
    ]


def test_a_user_is_born_with_a_role_in_one_commit(
    identities: SqliteIdentities, database: Database
) -> None:
    commits = database.commits
    user = Identity(BOB, IdentityState.ACTIVE, 1, CHEAP_HASH, None, WALL_MS, WALL_MS)
    assert identities.add(USER) == Changed(user)
    assert database.commits == commits + 1
    assert identities.find(BOB) == user
    binding = SqlitePolicy(database).resolve(PROJECT, BOB)[1]
    assert binding is not None
    assert (binding.version, binding.role, binding.changed_by) == (1, Role.VIEWER, ANA)


def test_an_agent_is_found_by_its_token(identities: SqliteIdentities) -> None:
    agent = Identity(BOT, IdentityState.ACTIVE, 1, None, "1" * 64, WALL_MS, WALL_MS)
    assert identities.add(AGENT) == Changed(agent)
    assert identities.by_token("1" * 64) == agent
    assert identities.by_token("2" * 64) is None
    assert identities.find(BOB) is None


@pytest.mark.parametrize("event", [USER, AGENT])
def test_a_repeat_replays_whatever_the_salt(
    identities: SqliteIdentities, database: Database, event: AddIdentity
) -> None:
    identities.add(event)
    before, commits = stored(database), database.commits
    again = event
    if event.password is not None:
        again = event._replace(password=event.password._replace(salt=b"other", value=b"other"))
    answer = identities.add(again)
    assert isinstance(answer, Replayed)
    assert answer.after == identities.find(event.subject)
    assert (stored(database), database.commits) == (before, commits)


@pytest.mark.parametrize(
    "change",
    [
        {"role": Role.ADMIN},
        {"changed_by": BOB},
        {"token_digest": "2" * 64},
        {"subject": Subject(SubjectType.AGENT, "other")},
    ],
)
def test_a_used_mutation_id_with_another_meaning_is_drift(
    identities: SqliteIdentities, database: Database, change: dict[str, Any]
) -> None:
    identities.add(AGENT)
    before = stored(database)
    assert identities.add(AGENT._replace(**change)) is PolicyRefusal.MUTATION_DRIFT
    assert stored(database) == before


def test_a_repeat_after_a_rotation_is_drift(identities: SqliteIdentities) -> None:
    """The answer of a replay would hand out a token that no longer works."""
    identities.add(AGENT)
    identities.rotate(BOT, "2" * 64)
    assert identities.add(AGENT) is PolicyRefusal.MUTATION_DRIFT


def test_the_id_of_a_mere_binding_adds_nobody(
    identities: SqliteIdentities, database: Database
) -> None:
    SqlitePolicy(database).bind(BindRole(PROJECT, BOB, None, Role.VIEWER, "add-bob", ANA))
    assert identities.add(USER) is PolicyRefusal.MUTATION_DRIFT
    assert identities.find(BOB) is None


def test_a_name_is_taken_for_ever(identities: SqliteIdentities, database: Database) -> None:
    identities.add(USER)
    again = USER._replace(mutation_id="add-bob-2")
    assert identities.add(again) is IdentityRefusal.NAME_TAKEN
    identities.disable(DISABLE)
    before = stored(database)
    assert identities.add(again) is IdentityRefusal.NAME_TAKEN
    assert stored(database) == before


def test_a_token_belongs_to_one_agent(identities: SqliteIdentities) -> None:
    other = Subject(SubjectType.AGENT, "other")
    identities.add(AGENT)
    clash = AGENT._replace(subject=other, mutation_id="add-other")
    assert identities.add(clash) is IdentityRefusal.TOKEN_TAKEN
    assert isinstance(identities.add(clash._replace(token_digest="2" * 64)), Changed)
    assert identities.rotate(other, "1" * 64) is IdentityRefusal.TOKEN_TAKEN


@pytest.mark.parametrize(
    "event",
    [
        USER._replace(password=None),
        USER._replace(password=None, token_digest="1" * 64),
        USER._replace(token_digest="1" * 64),
        AGENT._replace(token_digest=None),
        AGENT._replace(password=CHEAP_HASH),
        AGENT._replace(token_digest="x"),
        USER._replace(subject=Subject(SubjectType.SYSTEM, "edge")),
        USER._replace(subject=Subject.user("a b")),
        USER._replace(subject=Subject.user("x" * 65)),
        USER._replace(mutation_id=""),
        USER._replace(project_id=""),
    ],
)
def test_a_malformed_identity_is_refused(
    identities: SqliteIdentities, database: Database, event: AddIdentity
) -> None:
    with pytest.raises(UsageError):
        identities.add(event)
    assert stored(database) == []


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (USER._replace(project_id="another"), PolicyRefusal.PROJECT_NOT_FOUND),
        (AGENT._replace(role=Role.OWNER), PolicyRefusal.AGENT_OWNER),
        (
            USER._replace(authority=Authority(Role.ADMIN, PolicyFence(1, 7))),
            PolicyRefusal.FENCE_CHANGED,
        ),
        (
            USER._replace(role=Role.OWNER, authority=Authority(Role.ADMIN, PolicyFence(1, None))),
            PolicyRefusal.ABOVE_OWN_ROLE,
        ),
    ],
)
def test_a_role_that_cannot_be_given_adds_nobody(
    identities: SqliteIdentities, database: Database, event: AddIdentity, refusal: PolicyRefusal
) -> None:
    assert identities.add(event) is refusal
    assert stored(database) == []


def test_disabling_ends_role_sessions_and_token_in_one_commit(
    identities: SqliteIdentities, database: Database, clocks: FakeClocks
) -> None:
    added(identities, USER, AGENT)
    opened(identities)
    clocks.advance(5_000)
    commits = database.commits
    answer = identities.disable(DISABLE)
    assert isinstance(answer, Changed)
    assert (answer.after.state, answer.after.version) == (IdentityState.DISABLED, 2)
    assert answer.after.updated_at_ms == WALL_MS + 5_000
    assert database.commits == commits + 1
    assert identities.session("a" * 64) is None
    binding = SqlitePolicy(database).resolve(PROJECT, BOB)[1]
    assert binding is not None
    assert (binding.version, binding.role) == (2, None)
    identities.disable(DISABLE._replace(subject=BOT, mutation_id="end-bot"))
    assert identities.by_token("1" * 64) is None
    assert not database.connection.execute("SELECT * FROM sessions").fetchall()


def test_disabling_moves_the_fence_of_whoever_had_no_role_left(
    identities: SqliteIdentities, database: Database
) -> None:
    policy = SqlitePolicy(database)
    identities.add(USER)
    policy.bind(BindRole(PROJECT, BOB, None, None, "revoke", ANA))
    identities.disable(DISABLE)
    binding = policy.resolve(PROJECT, BOB)[1]
    assert binding is not None
    assert binding.version == 3


def test_a_disabling_replays_by_its_id_only(
    identities: SqliteIdentities, database: Database
) -> None:
    identities.add(USER)
    changed = identities.disable(DISABLE)
    before = stored(database)
    assert isinstance(changed, Changed)
    assert identities.disable(DISABLE) == Replayed(changed.after)
    other = DISABLE._replace(mutation_id="end-again")
    assert identities.disable(other) is IdentityRefusal.ALREADY_DISABLED
    assert identities.disable(DISABLE._replace(changed_by=BOB)) is PolicyRefusal.MUTATION_DRIFT
    assert stored(database) == before


def test_the_id_of_a_mere_revocation_disables_nobody(
    identities: SqliteIdentities, database: Database
) -> None:
    identities.add(USER)
    SqlitePolicy(database).bind(BindRole(PROJECT, BOB, None, None, "end-bob", ANA))
    assert identities.disable(DISABLE) is PolicyRefusal.MUTATION_DRIFT


@pytest.mark.adr("0006", "4")
def test_the_last_active_owner_user_is_not_disabled(
    identities: SqliteIdentities, database: Database
) -> None:
    added(identities, OWNER, USER, AGENT)
    end = DISABLE._replace(subject=ANA, mutation_id="end-ana")
    before = stored(database)
    assert identities.disable(end) is IdentityRefusal.LAST_OWNER
    assert stored(database) == before
    SqlitePolicy(database).bind(BindRole(PROJECT, BOB, None, Role.OWNER, "up", ANA))
    assert isinstance(identities.disable(end), Changed)
    assert identities.disable(DISABLE) is IdentityRefusal.LAST_OWNER


@pytest.mark.parametrize(
    ("event", "refusal"),
    [
        (DISABLE._replace(subject=ANA), IdentityRefusal.NOT_FOUND),
        (DISABLE._replace(project_id="another"), PolicyRefusal.PROJECT_NOT_FOUND),
        (
            DISABLE._replace(authority=Authority(Role.ADMIN, PolicyFence(2, None))),
            PolicyRefusal.FENCE_CHANGED,
        ),
    ],
)
def test_a_disabling_that_cannot_be_changes_nothing(
    identities: SqliteIdentities,
    database: Database,
    event: DisableIdentity,
    refusal: IdentityRefusal | PolicyRefusal,
) -> None:
    identities.add(USER)
    before = stored(database)
    assert identities.disable(event) is refusal
    assert stored(database) == before


def test_a_rotation_ends_the_old_token(identities: SqliteIdentities) -> None:
    identities.add(AGENT)
    changed = identities.rotate(BOT, "2" * 64)
    assert isinstance(changed, Changed)
    assert changed.after.version == 2
    assert identities.by_token("1" * 64) is None
    assert identities.by_token("2" * 64) == changed.after
    assert identities.rotate(BOT, "2" * 64) == Replayed(changed.after)


def test_users_strangers_and_disabled_agents_have_no_token_to_rotate(
    identities: SqliteIdentities,
) -> None:
    added(identities, USER, AGENT)
    assert identities.rotate(BOB, "2" * 64) is IdentityRefusal.NOT_FOUND
    stranger = Subject(SubjectType.AGENT, "x")
    assert identities.rotate(stranger, "2" * 64) is IdentityRefusal.NOT_FOUND
    identities.disable(DISABLE._replace(subject=BOT))
    assert identities.rotate(BOT, "2" * 64) is IdentityRefusal.ALREADY_DISABLED
    with pytest.raises(UsageError):
        identities.rotate(BOT, "2" * 63)


def test_no_password_token_or_salt_is_in_the_file_but_hashed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = open_store(str(path), FakeClocks())
    identities = SqliteIdentities(database)
    added(identities, USER, AGENT)
    opened(identities)
    database.close()
    assert b"correct horse" not in path.read_bytes()


def test_each_mutation_is_one_step_with_its_crash_points() -> None:
    passed = list[CrashPoint]()
    identities = SqliteIdentities(open_store(":memory:", FakeClocks(), probe=passed.append))
    added(identities, USER, AGENT)
    identities.rotate(BOT, "2" * 64)
    opened(identities)
    identities.close_session("a" * 64)
    identities.disable(DISABLE)
    steps = [Step.IDENTITY] * 3 + [Step.SESSION] * 2 + [Step.IDENTITY]
    assert passed == [
        CrashPoint(moment, step) for step in steps for moment in (Moment.BEFORE, Moment.AFTER)
    ]


def test_of_two_connections_one_takes_the_name(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db")
    one, two = (SqliteIdentities(open_store(path, FakeClocks())) for _ in range(2))
    assert isinstance(one.add(USER), Changed)
    assert two.add(USER._replace(mutation_id="other")) is IdentityRefusal.NAME_TAKEN
    assert isinstance(two.add(USER), Replayed)
