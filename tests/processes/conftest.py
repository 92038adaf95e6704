"""Owners of spawners that leave nothing behind, however a test ends."""

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.children import marked, nothing_left
from tests.support.spawning import Owner, until

MakeOwner = Callable[[], Owner]


@pytest.fixture
def new_owner(tmp_path: Path) -> Iterator[MakeOwner]:
    mark = uuid.uuid4().hex
    owners: list[Owner] = []

    def make() -> Owner:
        directory = tmp_path / f"owner-{len(owners)}"
        directory.mkdir()
        owners.append(Owner(directory, mark))
        return owners[-1]

    with nothing_left(mark):
        try:
            yield make
            for owner in owners:
                owner.close()
            until(lambda: marked(mark) == [], "the end of every process")
        finally:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
            for owner in owners:
                owner.close()


@pytest.fixture
def owner(new_owner: MakeOwner) -> Owner:
    return new_owner()
