"""A store on a real file for the actions that act on the database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.adapters import SqliteRepositories, copied, make_store
from tests.contract.story import Story
from tests.support.clock import FakeClocks


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("template") / "state.db")
    make_store(path, FakeClocks())
    return path


@pytest.fixture
def sqlite(template: str, tmp_path: Path) -> Iterator[SqliteRepositories]:
    opened = SqliteRepositories(copied(template, tmp_path), FakeClocks())
    yield opened
    opened.close()


@pytest.fixture
def story(sqlite: SqliteRepositories) -> Story:
    """Return the steps of a life on a real file."""
    return Story(sqlite)
