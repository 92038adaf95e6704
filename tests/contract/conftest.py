"""The one fixture that every case of the contract is written against."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.adapters import (
    ADAPTERS,
    ModelRepositories,
    Repositories,
    SqliteRepositories,
    copied,
    make_store,
)
from tests.contract.calls import prepare
from tests.contract.story import Story
from tests.support.clock import FakeClocks


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*capabilities): play the case on the adapters that declare all of them"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Play every case on every adapter that declares what the case needs."""
    if "repositories" not in metafunc.fixturenames:
        return
    needed = {each for mark in metafunc.definition.iter_markers("needs") for each in mark.args}
    able = [name for name, offered in ADAPTERS.items() if needed <= offered]
    metafunc.parametrize("repositories", able, indirect=True)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a closed SQLite store that holds what every case starts from."""
    path = str(tmp_path_factory.mktemp("template") / "state.db")
    make_store(path, FakeClocks())
    return path


@pytest.fixture(scope="session")
def prepared(template: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a closed SQLite store that holds something for each of the prepared calls."""
    made = SqliteRepositories(copied(template, tmp_path_factory.mktemp("prepared")), FakeClocks())
    prepare(made)
    made.close()
    return made.path


@pytest.fixture
def full(prepared: str, tmp_path: Path) -> Iterator[SqliteRepositories]:
    """Return a copy of the prepared store."""
    opened = SqliteRepositories(copied(prepared, tmp_path), FakeClocks())
    yield opened
    opened.close()


@pytest.fixture
def sqlite(template: str, tmp_path: Path) -> Iterator[SqliteRepositories]:
    """Return a store on a real file of its own."""
    opened = SqliteRepositories(copied(template, tmp_path), FakeClocks())
    yield opened
    opened.close()


@pytest.fixture
def repositories(request: pytest.FixtureRequest) -> Repositories:
    """Return a fresh store by one adapter."""
    if request.param == "model":
        return ModelRepositories(FakeClocks())
    made: SqliteRepositories = request.getfixturevalue("sqlite")
    return made


@pytest.fixture
def story(repositories: Repositories) -> Story:
    """Return the steps of an action's life on that store."""
    return Story(repositories)
