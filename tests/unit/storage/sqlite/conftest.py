"""One open store for the adapters of users and roles."""

from collections.abc import Iterator

import pytest

from qinglong_edge.storage.sqlite.identities import SqliteIdentities
from qinglong_edge.storage.sqlite.policy import SqlitePolicy
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.clock import FakeClocks
from tests.support.store import open_store


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def database(clocks: FakeClocks) -> Iterator[Database]:
    opened = open_store(":memory:", clocks)
    yield opened
    opened.close()


@pytest.fixture
def identities(database: Database) -> SqliteIdentities:
    return SqliteIdentities(database)


@pytest.fixture
def policy(database: Database) -> SqlitePolicy:
    return SqlitePolicy(database)
