"""One open store for the commands; a file that needs another one has a fixture of its own."""

import pytest

from qinglong_edge.commands.engine import Engine
from qinglong_edge.domain.policy import Role
from qinglong_edge.storage.sqlite.transaction import Database
from tests.support.clock import FakeClocks
from tests.support.store import add_user, make_engine, open_store


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def database(clocks: FakeClocks) -> Database:
    return open_store(":memory:", clocks)


@pytest.fixture
def engine(database: Database, clocks: FakeClocks) -> Engine:
    """Return an engine whose only user is ana (owner)."""
    engine = make_engine(database, clocks)
    add_user(engine, "ana", Role.OWNER)
    return engine
