"""Kill a real daemon at every crash point of its cycle, and let the next daemon go on.

The same scenarios as of the one-shot `cycle`, the same oracle; what differs is who carries them: a
process that owns the state until a signal, with its cycle in a second thread and a socket beside.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest

from tests.crash.scenarios import CASES, Case, Scenario
from tests.crash.test_forward_path import FULL, converge, start
from tests.support.crash import (
    CYCLE,
    DRIVER,
    ENVIRONMENT,
    PATIENCE_S,
    STATUS,
    VERIFY,
    Place,
    Workshop,
)
from tests.support.crash_driver import Call, Spot
from tests.support.crash_oracle import check_moved

SERVE = Call("serve", {"socket": None, "socket_group": None})
KILLED = tuple(case for case in CASES if case.scenario.when == CYCLE)


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Workshop(tmp_path_factory.mktemp("daemon"))) as made:
        yield made


@contextmanager
def serving(place: Place, scenario: Scenario) -> Iterator[None]:
    """Have the next daemon own the state; it ends by a signal, drained."""
    orders = json.dumps(place.orders(SERVE, **scenario.more))
    daemon = subprocess.Popen(
        [sys.executable, *DRIVER, orders],
        cwd=place.directory,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        end = time.monotonic() + PATIENCE_S
        while f'"pid":{daemon.pid},' not in (place.state / "lock").read_text():
            assert daemon.poll() is None, daemon.communicate()
            assert time.monotonic() < end, "the daemon does not listen"
            time.sleep(0.01)
        yield
    finally:
        daemon.send_signal(signal.SIGTERM)
        out, told = daemon.communicate(timeout=PATIENCE_S)
    assert json.loads(out) == {"command": "serve", "exit": 0, "body": {"outcome": "drained"}}, told


def until_idle(place: Place) -> None:
    """Watch the daemon go on by itself until nothing is due or under way."""
    end = time.monotonic() + PATIENCE_S
    while True:
        backlog = place.live(STATUS).answers[0]["body"]["backlog"]
        if backlog["due"] == backlog["waiting"] == backlog["executing"] == 0:
            return
        assert time.monotonic() < end, backlog
        time.sleep(0.05)


@pytest.mark.scenario(225, 128)
@pytest.mark.adr("0008", "4")
@pytest.mark.parametrize("case", KILLED, ids=lambda case: case.name)
def test_a_killed_daemon_is_followed_by_one_that_goes_on(shop: Workshop, case: Case) -> None:
    place = start(shop, case.scenario)
    before = place.view()
    ended = place.die(SERVE, kill=case.spot, **case.scenario.more)
    assert ended.points[-1] == (case.spot.moment, case.spot.step)
    seen = place.view()
    check_moved(before, seen)
    assert (place.state / "control.sock").is_socket()  # stale: the next daemon takes it over
    with serving(place, case.scenario):
        place.live(
            CYCLE
        )  # carried by the daemon: what it found at its start has been taken by then
    after = place.view()
    check_moved(seen, after)
    converge(place, case.scenario, after)
    answers = place.live(VERIFY, **case.scenario.more).answers
    assert answers[0]["body"] == {"ok": True, "problems": []}


@pytest.mark.skipif(not FULL, reason="CRASH_FULL=1 kills the process in between as well")
@pytest.mark.parametrize("case", KILLED, ids=lambda case: case.name)
def test_a_killed_daemon_and_a_killed_cycle_are_followed_by_a_daemon(
    shop: Workshop, case: Case
) -> None:
    for nth in range(1, 100):
        place = start(shop, case.scenario)
        views = [place.view()]
        place.die(SERVE, kill=case.spot, **case.scenario.more)
        views.append(place.view())
        ended = place.run(CYCLE, kill=Spot("any", "any", nth), **case.scenario.more)
        views.append(place.view())
        with serving(place, case.scenario):
            place.live(CYCLE)
        views.append(place.view())
        for earlier, later in pairwise(views):
            check_moved(earlier, later)
        converge(place, case.scenario, views[-1])
        if ended.code == 0:
            break


def test_the_next_daemon_goes_on_by_itself(shop: Workshop) -> None:
    """Nobody asks for a cycle, and what the dead one left in the lock file stands in no way."""
    case = KILLED[0]
    place = start(shop, case.scenario)
    place.die(SERVE, kill=case.spot, **case.scenario.more)
    assert (place.state / "lock").stat().st_size > 0
    with serving(place, case.scenario):
        until_idle(place)
    assert {row.status for row in place.view().actions.values()} == {"succeeded"}
