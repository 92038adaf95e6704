"""What only one host promises, or only a real supervisor shows."""

import asyncio
import itertools
import threading
from collections.abc import Callable

import pytest

from qinglong_edge.domain.lifecycle import Cursors, End, Options
from qinglong_edge.domain.paging import Cursor, PageBudget
from qinglong_edge.domain.profile import Profile, local_policy
from qinglong_edge.executor.ambient import SystemClocks
from qinglong_edge.runtime.asyncio_host import AsyncioHost
from qinglong_edge.runtime.carrier import Hooks
from qinglong_edge.runtime.reconciler import Reconciler
from qinglong_edge.runtime.supervisor import Supervisor, next_cursors
from tests.contract.adapters import ModelRepositories
from tests.contract.lifecycle.conftest import OPTIONS
from tests.contract.lifecycle.drivers import DRIVERS, PATIENCE_S, Stage
from tests.contract.story import Story, changed, expire_of
from tests.support.clock import FakeClocks
from tests.unit.runtime.carrying import Handler, NoProviders, office
from tests.unit.runtime.test_supervisor import Unreadable


class Supervised:
    """A supervisor in a host, on the model, with one item a page and a page a phase."""

    def __init__(self, name: str, reconciler: Reconciler | None = None) -> None:
        self.story = Story(ModelRepositories(FakeClocks()))
        self.handler = Handler()
        one = PageBudget(1, 1)
        policy = local_policy(Profile.EDGE)._replace(recovery=one, dispatch=one)
        working = office(self.story, self.handler, clocks=self.story.clocks)
        looking = Reconciler(working.desk, self.story.ports.recoveries, NoProviders())
        supervisor = Supervisor(
            reconciler or looking, working.dispatcher, policy, self.story.clocks
        )
        self.stage = Stage(name, OPTIONS)
        self.stage.work = lambda cursors, stopping: next_cursors(
            supervisor.run_cycle(cursors, stopping)
        )

    def cycle(self) -> Cursors:
        self.stage.advance(OPTIONS.interval_ms)
        return self.stage.reported.get(timeout=PATIENCE_S)


@pytest.mark.scenario(204, 205, 212)
@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_both_phases_go_on_where_the_last_cycle_ended(name: str) -> None:
    made = Supervised(name)
    for n in (1, 2):
        made.story.started(n)
        changed(made.story.ports.dispatches.expire(expire_of(n)))
    for n in (3, 4):
        made.story.consumed(n)
    assert made.stage.driver.start()
    first = made.stage.reported.get(timeout=PATIENCE_S)
    assert isinstance(first.recovery, Cursor)
    assert isinstance(first.dispatch, Cursor)
    made.stage.sync()
    assert made.cycle() == Cursors()
    assert made.handler.executed == ["dsp-3", "dsp-4"]
    made.stage.close()


@pytest.mark.scenario(207, 213)
@pytest.mark.parametrize("name", sorted(DRIVERS))
def test_a_recovery_that_cannot_be_listed_begins_nothing_and_comes_again(name: str) -> None:
    made = Supervised(name, Unreadable())
    made.story.consumed(1)
    assert made.stage.driver.start()
    for _ in range(2):
        made.stage.errors.get(timeout=PATIENCE_S)
        made.stage.sync()
        made.stage.advance(OPTIONS.interval_ms)
    made.stage.errors.get(timeout=PATIENCE_S)
    assert (made.handler.inspected, made.handler.executed) == ([], [])
    made.stage.close()


def nothing(_of: object) -> None:
    pass


def quiet(
    run_cycle: Callable[[Cursors, Callable[[], bool]], Cursors],
    on_cycle: Callable[[Cursors], None] = nothing,
) -> AsyncioHost:
    hooks = Hooks(run_cycle, on_cycle, nothing)
    return AsyncioHost(Options(250, 0, 5_000, 250), hooks, SystemClocks())


@pytest.mark.scenario(210)
def test_neither_timer_nor_cycle_keeps_a_loop_alive() -> None:
    """`asyncio.run` returns while a cycle is out; its end finds the loop closed and is no error."""
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def cycle(cursors: Cursors, stopping: Callable[[], bool]) -> Cursors:
        begun.set()
        go.wait(PATIENCE_S)
        ended.set()
        return cursors

    host = quiet(cycle)

    async def begin() -> None:
        assert await host.start()
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)

    asyncio.run(begin())
    go.set()
    assert ended.wait(PATIENCE_S)


@pytest.mark.scenario(214)
def test_all_that_wait_for_a_stop_get_its_end_and_a_cancelled_one_harms_none() -> None:
    begun, go = threading.Event(), threading.Event()

    def cycle(cursors: Cursors, stopping: Callable[[], bool]) -> Cursors:
        begun.set()
        go.wait(PATIENCE_S)
        return cursors

    async def live() -> list[End]:
        host = quiet(cycle)
        assert await host.stop() is End.DRAINED
        assert await host.start()
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        stops = [asyncio.create_task(host.stop()) for _ in range(3)]
        await asyncio.sleep(0)
        stops[0].cancel()
        go.set()
        return [await each for each in stops[1:]]

    assert asyncio.run(live()) == [End.DRAINED, End.DRAINED]


@pytest.mark.scenario(211)
def test_a_real_clock_carries_it_through_several_cycles() -> None:
    """A quarter of a second apart: nothing here is faked."""
    clocks = SystemClocks()
    began: list[int] = []

    def cycle(cursors: Cursors, stopping: Callable[[], bool]) -> Cursors:
        began.append(clocks.monotonic_ms())
        return cursors

    async def live() -> End:
        thrice = asyncio.Event()
        host = quiet(cycle, lambda _cursors: thrice.set() if len(began) == 3 else None)
        await host.start()
        await asyncio.wait_for(thrice.wait(), PATIENCE_S)
        return await host.stop()

    assert asyncio.run(live()) is End.DRAINED
    assert all(after - before >= 250 for before, after in itertools.pairwise(began))
