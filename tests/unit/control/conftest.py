"""Loops that are closed after each test, with nothing left of them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.control.driving import Loop, descriptors

MakeLoop = Callable[..., Loop]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Count descriptors and threads before and after."""
    before, threads = descriptors(), threading.active_count()
    yield
    assert descriptors() <= before  # less, where garbage of an earlier test was closed meanwhile
    assert threading.active_count() == threads


@pytest.fixture
def serve(public: Path, _nothing_left: None) -> Iterator[MakeLoop]:
    loops: list[Loop] = []

    def make(*arguments: Any, **named: Any) -> Loop:
        loops.append(Loop(str(public / "control.sock"), *arguments, **named))
        return loops[-1]

    yield make
    for loop in loops:
        if not loop._over:
            loop.close()
