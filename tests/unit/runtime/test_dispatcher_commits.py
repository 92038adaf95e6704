"""What a page costs and what it survives, on a real file: counted commits, staged faults."""

from collections.abc import Callable

import pytest

from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection, Readiness
from tests.contract.adapters import Fault, SqliteRepositories
from tests.contract.story import Story
from tests.unit.runtime.carrying import DONE, RUN, Handler, office, ready
from tests.unit.runtime.test_dispatcher import consumed, consumed_as


@pytest.mark.adr("0005", "1")
@pytest.mark.scenario(224)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_a_page_of_n_actions_costs_n_and_one_commits(stored: Story, n: int) -> None:
    consumed(stored, *range(1, n + 1))
    first = stored.repositories.commits()
    assert office(stored, Handler()).counts()["succeeded"] == n
    assert stored.repositories.commits() - first == n + 1


@pytest.mark.adr("0005", "1")
@pytest.mark.parametrize("n", [1, 4])
def test_the_split_path_costs_one_commit_more(stored: Story, n: int) -> None:
    """The first item is let go, so its claim carries no barrier: N + 2, and its release."""
    consumed_as(stored, 1, RUN)
    consumed(stored, *range(2, n + 2))
    first = stored.repositories.commits()
    counts = office(stored, Handler()).counts()
    assert (counts["succeeded"], counts["retrying"]) == (n, 1)
    assert stored.repositories.commits() - first == n + 2 + 1


@pytest.mark.scenario(221)
def test_an_idle_page_costs_nothing(stored: Story) -> None:
    stored.completed(1)
    stored.proposed(2)
    before, first = stored.repositories.snapshot(), stored.repositories.commits()
    for _ in range(3):
        assert office(stored, Handler()).counts() == {}
    assert (stored.repositories.snapshot(), stored.repositories.commits()) == (before, first)


def test_a_stop_puts_back_in_one_commit(stored: Story) -> None:
    begun: list[str] = []
    consumed(stored, 1, 2, 3, 4)
    first = stored.repositories.commits()

    def begins(context: HandlerContext) -> HandlerAnswer:
        begun.append(context.idempotency_key)
        return DONE

    counts = office(stored, Handler(execute=begins)).counts(may_begin=lambda: not begun)
    assert (counts["succeeded"], counts["put_back"]) == (1, 3)
    assert stored.repositories.commits() - first == 3


def failing_at(sqlite: SqliteRepositories, name: str, fault: Fault) -> Callable[..., None]:
    """Stage a fault for the commit that follows the moment at which `name` is called."""

    def stage(called: str) -> None:
        if called == name:
            sqlite.fail_next_commit(fault)

    return stage


def staged(stage: Callable[..., None]) -> Handler:
    def look(dispatch: Dispatch) -> Inspection:
        stage(f"inspect {dispatch.dispatch_id}")
        return ready(dispatch)

    def work(context: HandlerContext) -> HandlerAnswer:
        stage(f"execute {context.idempotency_key}")
        return DONE

    return Handler(inspect=look, execute=work)


MOMENTS = pytest.mark.parametrize(
    "moment", ["inspect dsp-1", "execute dsp-1", "inspect dsp-2", "execute dsp-2"]
)


@pytest.mark.adr("0004", "5")
@MOMENTS
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.NOT_DONE])
def test_a_commit_that_says_nothing_is_repeated_and_nothing_runs_twice(
    stored: Story, sqlite: SqliteRepositories, moment: str, fault: Fault
) -> None:
    """W5: the exact replays are used."""
    consumed(stored, 1, 2)
    handler = staged(failing_at(sqlite, moment, fault))
    counts = office(stored, handler).counts()
    assert counts == {"scanned": 2, "claimed": 2, "started": 2, "succeeded": 2}
    assert handler.executed == ["dsp-1", "dsp-2"]
    assert stored.waits_for_recovery() == []


@pytest.mark.parametrize("moment", ["execute dsp-1", "inspect dsp-2"])
def test_after_a_full_device_the_result_and_the_barrier_are_stored_alone(
    stored: Story, sqlite: SqliteRepositories, moment: str
) -> None:
    consumed(stored, 1, 2)
    handler = staged(failing_at(sqlite, moment, Fault.FULL))
    counts = office(stored, handler).counts()
    assert (counts["started"], counts["succeeded"]) == (2, 2)
    assert handler.executed == ["dsp-1", "dsp-2"]


@pytest.mark.adr("0005", "7")
@pytest.mark.adr("0004", "9")
@pytest.mark.scenario(120, 121)
def test_a_barrier_that_cannot_be_told_executes_nothing(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    consumed(stored, 1, 2)
    handler = staged(failing_at(sqlite, "inspect dsp-1", Fault.NEVER_DONE))
    assert office(stored, handler).counts() == {"scanned": 2, "unavailable": 2}
    assert handler.executed == []
    assert stored.due() == ["dsp-1", "dsp-2"]


@pytest.mark.scenario(118, 120)
def test_a_result_that_cannot_be_stored_is_left_to_recovery(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    """Executed once; never again, and never released."""
    consumed(stored, 1, 2)
    handler = staged(failing_at(sqlite, "execute dsp-1", Fault.NEVER_DONE))
    counts = office(stored, handler).counts()
    assert (counts["started"], counts["unavailable"]) == (1, 2)
    assert counts["recovery_required"] == 1
    assert "succeeded" not in counts
    assert handler.executed == ["dsp-1"]
    assert stored.status(1) is ExecutionStatus.EXECUTING
    assert stored.status(2) is ExecutionStatus.LEASED
    stored.clocks.advance(600_000)
    assert stored.waits_for_recovery() == ["dsp-1"]


@pytest.mark.scenario(122)
def test_a_release_that_fails_is_counted_and_the_page_goes_on(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    def look(dispatch: Dispatch) -> Inspection:
        if dispatch.dispatch_id == "dsp-2":
            sqlite.fail_next_commit(Fault.FULL)
            return Inspection(Readiness.RETRY, None, "later")
        return ready(dispatch)

    consumed_as(stored, 1, RUN)
    consumed(stored, 2, 3)
    handler = Handler(inspect=look)
    counts = office(stored, handler).counts()
    assert (counts["retrying"], counts["unavailable"], counts["succeeded"]) == (1, 1, 1)
    assert handler.executed == ["dsp-3"]
    assert stored.status(2) is ExecutionStatus.LEASED


def test_a_row_that_is_damaged_within_the_page_stops_nobody_else(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    """W9: it is counted and stays closed; what follows it is carried, and nothing is raised."""

    def spoils(context: HandlerContext) -> HandlerAnswer:
        if context.idempotency_key == "dsp-1":
            sqlite.damage("apr-2")
        return DONE

    consumed(stored, 1, 2, 3)
    handler = Handler(execute=spoils)
    counts = office(stored, handler).counts()
    assert handler.executed == ["dsp-1", "dsp-3"]
    assert counts["succeeded"] == 2
    assert stored.status(1) is ExecutionStatus.SUCCEEDED
