"""Who may change whose role: the bounds that the store proves inside the commit."""

from pathlib import Path
from typing import Any

import pytest

from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.policy import (
    Authority,
    BindRole,
    PolicyFence,
    PolicyRefusal,
    Role,
    RoleBinding,
    Subject,
)
from qinglong_edge.ports.identities import AddIdentity
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, EDGE, PROJECT
from tests.support.clock import FakeClocks
from tests.support.store import CHEAP_HASH, open_store
from tests.unit.storage.sqlite.subjects import BIND, histories

OWNER, ADMIN, OPERATOR, VIEWER = Role


def bound(policy: SqlitePolicy, subject: Subject, role: Role | None, **changes: Any) -> RoleBinding:
    name = f"{subject}-{role}-{len(changes)}"
    event = BindRole(PROJECT, subject, None, role, name, EDGE)._replace(**changes)
    answer = policy.bind(event)
    assert isinstance(answer, Changed), answer
    return answer.after


def an_owner(database: Database, user: Subject) -> None:
    event = AddIdentity(PROJECT, user, OWNER, CHEAP_HASH, None, f"add-{user.id}", EDGE)
    assert isinstance(SqliteIdentities(database).add(event), Changed)


def test_an_agent_is_never_bound_as_owner(policy: SqlitePolicy) -> None:
    event = BindRole(PROJECT, BOT, None, OWNER, "bind-1", ANA)
    assert policy.bind(event) is PolicyRefusal.AGENT_OWNER


@pytest.mark.adr("0006", "4")
@pytest.mark.parametrize(
    ("own", "before", "role", "refused"),
    [
        (ADMIN, None, OWNER, True),
        (ADMIN, None, ADMIN, False),
        (ADMIN, VIEWER, OPERATOR, False),
        (ADMIN, OWNER, VIEWER, True),
        (ADMIN, OWNER, None, True),
        (ADMIN, ADMIN, None, False),
        (OWNER, OWNER, None, False),
        (OWNER, ADMIN, OWNER, False),
    ],
)
def test_nobody_grants_or_touches_what_stands_above_them(
    policy: SqlitePolicy, *, own: Role, before: Role | None, role: Role | None, refused: bool
) -> None:
    actor = bound(policy, ANA, own)
    if before is not None:
        bound(policy, BOB, before)
    authority = Authority(own, PolicyFence(1, actor.version))
    answer = policy.bind(BindRole(PROJECT, BOB, None, role, "bind-x", ANA, authority))
    assert (answer is PolicyRefusal.ABOVE_OWN_ROLE) is refused
    assert isinstance(answer, Changed) is not refused


@pytest.mark.adr("0006", "7")
@pytest.mark.parametrize("moved", ["role", "project"])
def test_an_authority_that_moved_changes_nothing(
    policy: SqlitePolicy, database: Database, moved: str
) -> None:
    authority = Authority(OWNER, PolicyFence(1, bound(policy, ANA, OWNER).version))
    if moved == "role":
        bound(policy, ANA, VIEWER)
    else:
        database.connection.execute("UPDATE projects SET version = 2")
    before = histories(database)
    answer = policy.bind(BIND._replace(authority=authority))
    assert answer is PolicyRefusal.FENCE_CHANGED
    assert histories(database) == before


@pytest.mark.adr("0006", "4")
@pytest.mark.parametrize("role", [None, ADMIN, VIEWER])
def test_the_last_active_owner_user_stays_owner(
    policy: SqlitePolicy, database: Database, role: Role | None
) -> None:
    an_owner(database, ANA)
    event = BindRole(PROJECT, ANA, None, role, "down", ANA)
    before = histories(database)
    assert policy.bind(event) is PolicyRefusal.LAST_OWNER
    assert histories(database) == before
    an_owner(database, BOB)
    assert isinstance(policy.bind(event), Changed)
    last = BindRole(PROJECT, BOB, None, role, "down-2", ANA)
    assert policy.bind(last) is PolicyRefusal.LAST_OWNER


def test_a_disabled_owner_does_not_count(policy: SqlitePolicy, database: Database) -> None:
    an_owner(database, ANA)
    an_owner(database, BOB)
    database.connection.execute(
        "UPDATE identities SET state = 'disabled' WHERE subject = 'user:bob'"
    )
    event = BindRole(PROJECT, ANA, None, ADMIN, "down", ANA)
    assert policy.bind(event) is PolicyRefusal.LAST_OWNER


def test_the_last_owner_may_be_bound_as_owner_again(
    policy: SqlitePolicy, database: Database
) -> None:
    an_owner(database, ANA)
    assert isinstance(policy.bind(BindRole(PROJECT, ANA, None, OWNER, "again", ANA)), Changed)


@pytest.mark.adr("0006", "4")
def test_of_two_connections_one_keeps_its_owner(tmp_path: Path) -> None:
    """Two owners revoke each other: the rule is asked under the write lock."""
    path = str(tmp_path / "state.db")
    one, two = (open_store(path, FakeClocks()) for _ in range(2))
    an_owner(one, ANA)
    an_owner(one, BOB)
    first = SqlitePolicy(one).bind(BindRole(PROJECT, BOB, 1, None, "a", ANA))
    second = SqlitePolicy(two).bind(BindRole(PROJECT, ANA, 1, None, "b", BOB))
    assert isinstance(first, Changed)
    assert second is PolicyRefusal.LAST_OWNER
