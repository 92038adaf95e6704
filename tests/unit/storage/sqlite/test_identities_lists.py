"""Lists of users and agents on SQLite, and rows that nobody can believe."""

import pytest

from qinglong_edge.domain.errors import DamagedError
from qinglong_edge.domain.paging import Cursor
from qinglong_edge.domain.policy import BindRole, Role, Subject, SubjectType
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, PROJECT
from tests.unit.storage.sqlite.subjects import AGENT, OWNER, USER, added


def test_a_list_shows_one_kind_with_the_roles_of_now(
    identities: SqliteIdentities, database: Database
) -> None:
    added(identities, OWNER, AGENT, USER)
    users = identities.page(SubjectType.USER, None, 64)
    assert [(each.identity.subject, each.role) for each in users.items] == [
        (ANA, Role.OWNER),
        (BOB, Role.VIEWER),
    ]
    assert (users.cursor, users.damaged) == (None, 0)
    agents = identities.page(SubjectType.AGENT, None, 64)
    assert [each.identity.subject for each in agents.items] == [BOT]
    policy = SqlitePolicy(database)
    policy.bind(BindRole(PROJECT, BOB, None, Role.ADMIN, "up", ANA))
    assert identities.page(SubjectType.USER, None, 64).items[1].role is Role.ADMIN
    policy.bind(BindRole(PROJECT, BOB, None, None, "none", ANA))
    assert identities.page(SubjectType.USER, None, 64).items[1].role is None


def test_pages_neither_skip_nor_repeat(identities: SqliteIdentities) -> None:
    names = [f"u{number}" for number in range(5)]
    for name in names:
        identities.add(USER._replace(subject=Subject.user(name), mutation_id=name))
    seen, cursor = list[str](), None
    while True:
        page = identities.page(SubjectType.USER, cursor, 2)
        assert len(page.items) <= 2
        seen += [each.identity.subject.id for each in page.items]
        if page.cursor is None:
            break
        assert cursor is None or page.cursor > cursor
        cursor = page.cursor
    assert seen == names
    assert identities.page(SubjectType.USER, Cursor(99, 99), 2).items == []


def damage(database: Database, sql: str) -> None:
    database.connection.execute("PRAGMA ignore_check_constraints = ON")
    database.connection.execute(sql)
    database.connection.execute("PRAGMA ignore_check_constraints = OFF")


@pytest.mark.parametrize(
    "change",
    [
        "state = 'asleep'",
        "password_scheme = NULL",
        "password_salt = NULL",
        "password_value = NULL",
        "token_digest = x'00'",
    ],
)
def test_a_damaged_identity_stays_closed_and_is_counted(
    identities: SqliteIdentities, database: Database, change: str
) -> None:
    added(identities, OWNER, USER)
    damage(database, f"UPDATE identities SET {change} WHERE subject = 'user:bob'")
    with pytest.raises(DamagedError) as caught:
        identities.find(BOB)
    assert caught.value.code == "identity_damaged"
    page = identities.page(SubjectType.USER, None, 64)
    assert [each.identity.subject for each in page.items] == [ANA]
    assert page.damaged == 1
