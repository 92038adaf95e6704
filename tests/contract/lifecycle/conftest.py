"""One suite, two hosts."""

from collections.abc import Callable, Iterator

import pytest

from qinglong_edge.domain.lifecycle import Options
from tests.contract.lifecycle.drivers import DRIVERS, Stage

OPTIONS = Options(interval_ms=30_000, initial_delay_ms=0, stop_ms=5_000, early_gap_ms=1_000)


@pytest.fixture(params=sorted(DRIVERS))
def make_stage(request: pytest.FixtureRequest) -> Iterator[Callable[..., Stage]]:
    """Return a maker of stages for one of the hosts; what it made is stopped at the end."""
    made: list[Stage] = []

    def make(**changes: int) -> Stage:
        made.append(Stage(request.param, OPTIONS._replace(**changes)))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    """Return a host that was not started."""
    return make_stage()
