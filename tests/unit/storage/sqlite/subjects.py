"""What the tests of users and roles ask the store, and how they look at what it holds."""

from typing import Any

from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.identity import Assurance, Session
from qinglong_edge.domain.policy import BindRole, Role
from qinglong_edge.ports.identities import AddIdentity, DisableIdentity, OpenSession
from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.builders import ANA, BOB, BOT, EDGE, HOUR_MS, PROJECT
from tests.support.store import CHEAP_HASH

USER = AddIdentity(PROJECT, BOB, Role.VIEWER, CHEAP_HASH, None, "add-bob", ANA)
AGENT = AddIdentity(PROJECT, BOT, Role.OPERATOR, None, "1" * 64, "add-bot", ANA)
OWNER = AddIdentity(PROJECT, ANA, Role.OWNER, CHEAP_HASH, None, "add-ana", EDGE)
DISABLE = DisableIdentity(PROJECT, BOB, "end-bob", ANA)
OPEN = OpenSession("ses-1", "a" * 64, BOB, Assurance.SINGLE_FACTOR, HOUR_MS, 1)
BIND = BindRole(PROJECT, BOB, 0, Role.VIEWER, "bind-1", ANA)


def added(identities: SqliteIdentities, *events: AddIdentity) -> None:
    """Add users and agents that must be new."""
    for event in events:
        assert isinstance(identities.add(event), Changed)


def opened(identities: SqliteIdentities, **changes: Any) -> Session:
    """Open a session that must be a new one."""
    answer = identities.open_session(OPEN._replace(**changes))
    assert isinstance(answer, Changed), answer
    return answer.after


def histories(database: Database) -> list[tuple[Any, ...]]:
    """Return every version of every role."""
    sql = "SELECT subject, version, state, role FROM role_bindings ORDER BY subject, version"
    return [tuple(row) for row in database.connection.execute(sql)]
