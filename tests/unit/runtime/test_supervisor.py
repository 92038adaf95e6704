"""One cycle: recovery first, then dispatch, each within its budget (ADR-0036)."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.lifecycle import Cursors
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.paging import Cursor, PageBudget, StopReason
from qinglong_edge.domain.profile import Profile, ResourcePolicy, local_policy
from qinglong_edge.ports.evidence import EvidenceContext
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext
from qinglong_edge.runtime.reconciler import Reconciler
from qinglong_edge.runtime.supervisor import Cycle, Supervisor, next_cursors
from tests.contract.adapters import Fault, SqliteRepositories
from tests.contract.recovery_story import MISSING, VERIFIED
from tests.contract.story import Story, changed, expire_of
from tests.unit.runtime.carrying import DONE, Handler, NoProviders, office
from tests.unit.runtime.looking import Provider, lookout, unknown_publish
from tests.unit.runtime.test_dispatcher import consumed


def policy(recovery: PageBudget, dispatch: PageBudget) -> ResourcePolicy:
    return local_policy(Profile.EDGE)._replace(recovery=recovery, dispatch=dispatch)


EDGE = local_policy(Profile.EDGE)


def supervisor(
    story: Story,
    handler: Handler,
    budgets: ResourcePolicy = EDGE,
    *,
    reconciler: Reconciler | None = None,
) -> Supervisor:
    working = office(story, handler, clocks=story.clocks)
    looking = reconciler or Reconciler(working.desk, story.ports.recoveries, NoProviders())
    return Supervisor(looking, working.dispatcher, budgets, story.clocks)


def cycle(made: Supervisor, cursors: Cursors | None = None, *, stop: bool = False) -> Cycle:
    return made.run_cycle(cursors or Cursors(), lambda: stop)


def unknown(story: Story, *numbers: int) -> None:
    for n in numbers:
        story.started(n)
        changed(story.ports.dispatches.expire(expire_of(n)))


@pytest.mark.adr("0036", "1.1")
@pytest.mark.scenario(204)
def test_recovery_runs_first_and_both_phases_sum_their_pages(story: Story) -> None:
    unknown(story, 1, 2)
    consumed(story, 3, 4, 5)
    handler = Handler()
    done = cycle(supervisor(story, handler, policy(PageBudget(4, 1), PageBudget(2, 2))))
    assert (done.recovery.counts["scanned"], done.recovery.counts["manual_required"]) == (2, 2)
    assert done.recovery.stop_reason is StopReason.COMPLETE
    assert (done.dispatch.counts["succeeded"], done.dispatch.pages) == (3, 2)
    assert not done.dispatch.remaining
    assert handler.executed == ["dsp-3", "dsp-4", "dsp-5"]


@pytest.mark.adr("0036", "2.5")
@pytest.mark.scenario(205, 212)
def test_a_spent_budget_leaves_a_cursor_for_the_next_cycle(story: Story) -> None:
    unknown(story, 1, 2)
    consumed(story, 3, 4)
    made = supervisor(story, Handler(), policy(PageBudget(1, 1), PageBudget(1, 1)))
    first = cycle(made)
    for phase in (first.recovery, first.dispatch):
        assert (phase.stop_reason, phase.remaining) == (StopReason.PAGE_LIMIT, True)
        assert isinstance(phase.cursor, Cursor)
    second = cycle(made, next_cursors(first))
    assert second.recovery.counts["scanned"] == 1
    assert second.dispatch.counts["succeeded"] == 1
    assert next_cursors(second) == Cursors(None, None)


class Unreadable(Reconciler):
    """Fail to list, as a locked store does."""

    def __init__(self) -> None:
        """Take nothing: it never comes to a store."""

    def reconcile_page(
        self, after: Cursor | None, limit: int, may_begin: Callable[[], bool]
    ) -> NoReturn:
        raise UnavailableError("store_busy", "no")


@pytest.mark.adr("0036", "1.2")
@pytest.mark.scenario(207)
def test_a_recovery_that_cannot_be_listed_skips_dispatch(story: Story) -> None:
    consumed(story, 1)
    handler = Handler()
    with pytest.raises(UnavailableError):
        cycle(supervisor(story, handler, reconciler=Unreadable()))
    assert (handler.inspected, handler.executed) == ([], [])
    assert story.status() is ExecutionStatus.PENDING


@pytest.mark.scenario(208)
def test_what_recovery_cannot_believe_does_not_stop_dispatch(story: Story) -> None:
    unknown(story, 1)
    consumed(story, 2)
    story.repositories.damage("apr-1")
    done = cycle(supervisor(story, Handler()))
    assert (done.recovery.counts["scanned"], done.recovery.counts["damaged"]) == (1, 1)
    assert done.dispatch.counts["succeeded"] == 1


def test_a_stop_begins_nothing(story: Story) -> None:
    consumed(story, 1)
    handler = Handler()
    done = cycle(supervisor(story, handler), stop=True)
    assert done.dispatch.stop_reason is StopReason.STOPPED
    assert handler.executed == []
    assert story.due() == ["dsp-1"]


@pytest.mark.adr("0005", "8")
@pytest.mark.parametrize(("ms", "begun"), [(-1, 2), (0, 1)])
def test_nothing_begins_after_a_minute_of_a_cycle(story: Story, ms: int, begun: int) -> None:
    """What was claimed and not reached is put back, unspent."""
    spent_ms = limits.CYCLE_START_MS_MAX + ms

    def slow(context: HandlerContext) -> HandlerAnswer:
        if context.idempotency_key == "dsp-1":
            story.clocks.advance(spent_ms)
        return DONE

    consumed(story, 1, 2)
    handler = Handler(execute=slow, deadline_ms=100_000)
    done = cycle(supervisor(story, handler))
    assert len(handler.executed) == begun
    assert done.dispatch.counts["put_back"] == 2 - begun
    if begun == 1:
        assert (story.status(2), story.execution(2).attempt_count) == (
            ExecutionStatus.RETRY_WAIT,
            0,
        )


def looking_with(story: Story, answer: Callable[[EvidenceContext], Evidence]) -> Reconciler:
    """Return a recovery that settles publications; its deadlines are in the test's hand."""
    long = limits.HANDLER_DEADLINE_MS_MAX
    return lookout(story, Provider(answer), clocks=story.clocks, look_ms=long).reconciler


@pytest.mark.adr("0036", "1.1")
@pytest.mark.scenario(204)
def test_what_evidence_settles_is_settled_before_anything_starts(story: Story) -> None:
    seen: list[str] = []

    def looks(context: EvidenceContext) -> Evidence:
        seen.append(context.idempotency_key)
        return VERIFIED

    def works(context: HandlerContext) -> HandlerAnswer:
        seen.append(context.idempotency_key)
        return DONE

    consumed(story, 1)
    unknown_publish(story, 2, 3)
    handler = Handler(execute=works)
    done = cycle(supervisor(story, handler, reconciler=looking_with(story, looks)))
    assert seen == ["dsp-2", "dsp-3", "dsp-1"]
    assert (done.recovery.counts["verified_succeeded"], done.dispatch.counts["succeeded"]) == (2, 1)


@pytest.mark.adr("0036", "2.5")
@pytest.mark.scenario(205, 212)
def test_recovery_goes_on_where_its_budget_ended_and_then_from_the_front(story: Story) -> None:
    unknown_publish(story, 1, 2, 3)
    asked: list[str] = []

    def looks(context: EvidenceContext) -> Evidence:
        asked.append(context.idempotency_key)
        return MISSING

    one_page = policy(PageBudget(2, 1), PageBudget(1, 1))
    made = supervisor(story, Handler(), one_page, reconciler=looking_with(story, looks))
    first = cycle(made)
    assert first.recovery.stop_reason is StopReason.PAGE_LIMIT
    second = cycle(made, next_cursors(first))
    assert (second.recovery.stop_reason, next_cursors(second)) == (
        StopReason.COMPLETE,
        Cursors(None, None),
    )
    assert asked == ["dsp-1", "dsp-2", "dsp-3"]
    story.clocks.advance(5_000)
    cycle(made, next_cursors(second))
    assert asked[3:] == ["dsp-1", "dsp-2"]


@pytest.mark.adr("0005", "8")
def test_a_stop_while_looking_ends_both_phases_and_the_page_is_read_again(story: Story) -> None:
    """W12: what was not reached is found again from the cursor at which its page began."""
    unknown_publish(story, 1, 2, 3)
    consumed(story, 4)
    stop = threading.Event()

    def looks(context: EvidenceContext) -> Evidence:
        if context.idempotency_key == "dsp-2":
            stop.set()
        return VERIFIED

    handler = Handler()
    budgets = policy(PageBudget(1, 4), PageBudget(4, 1))
    made = supervisor(story, handler, budgets, reconciler=looking_with(story, looks))
    done = made.run_cycle(Cursors(), stop.is_set)
    assert (done.recovery.stop_reason, done.recovery.remaining) == (StopReason.STOPPED, True)
    assert (done.recovery.counts["verified_succeeded"], done.recovery.pages) == (2, 3)
    assert done.dispatch.stop_reason is StopReason.STOPPED
    assert handler.executed == []
    assert done.recovery.cursor is not None
    after = cycle(made, next_cursors(done))
    assert after.recovery.counts["verified_succeeded"] == 1
    assert handler.executed == ["dsp-4"]


@pytest.mark.adr("0005", "8")
def test_a_look_that_takes_the_minute_of_a_cycle_leaves_nothing_to_begin(story: Story) -> None:
    unknown_publish(story, 1, 2)
    consumed(story, 3)

    def slow(_context: EvidenceContext) -> Evidence:
        story.clocks.advance(limits.CYCLE_START_MS_MAX)
        return VERIFIED

    handler = Handler()
    done = cycle(supervisor(story, handler, reconciler=looking_with(story, slow)))
    assert done.recovery.counts["verified_succeeded"] == 1
    assert (done.recovery.stop_reason, done.dispatch.stop_reason) == (StopReason.STOPPED,) * 2
    assert handler.executed == []
    assert story.waits_for_recovery() == ["dsp-2"]


@pytest.mark.adr("0033", "6.3")
@pytest.mark.scenario(208)
def test_a_finding_that_is_not_stored_does_not_stop_dispatch(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    unknown_publish(stored, 1)
    consumed(stored, 2)

    def looks(_context: EvidenceContext) -> Evidence:
        sqlite.fail_next_commit(Fault.FULL)
        return VERIFIED

    done = cycle(supervisor(stored, Handler(), reconciler=looking_with(stored, looks)))
    assert done.recovery.counts["unavailable"] == 1
    assert done.dispatch.counts["succeeded"] == 1
    assert stored.status(1) is ExecutionStatus.EXECUTING


@pytest.mark.scenario(209)
@pytest.mark.parametrize("budget", [(0, 1), (65, 1), (1, 0), (1, 65)])
@pytest.mark.parametrize("phase", ["recovery", "dispatch"])
def test_a_budget_out_of_its_range_is_refused_before_anything_runs(
    story: Story, budget: tuple[int, int], phase: str
) -> None:
    wrong = EDGE._replace(**{phase: PageBudget(*budget)})  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        supervisor(story, Handler(), wrong)


@pytest.mark.slow
@pytest.mark.scenario(222)
def test_an_edge_cycle_touches_sixteen_of_a_hundred(story: Story) -> None:
    unknown(story, *range(1, 51))
    consumed(story, *range(51, 101))
    done = cycle(supervisor(story, Handler()))
    assert done.recovery.counts["scanned"] == 8
    assert done.dispatch.counts["scanned"] == done.dispatch.counts["succeeded"] == 8
    assert (done.recovery.remaining, done.dispatch.remaining) == (True, True)


@pytest.mark.adr("0033", "5.10")
@pytest.mark.adr("0004", "2")
@pytest.mark.scenario(221)
def test_an_idle_cycle_writes_nothing(stored: Story) -> None:
    stored.completed(1)
    before, commits = stored.repositories.snapshot(), stored.repositories.commits()
    made = supervisor(stored, Handler())
    for _ in range(3):
        done = cycle(made)
        assert not any([*done.recovery.counts.values(), *done.dispatch.counts.values()])
    assert (stored.repositories.snapshot(), stored.repositories.commits()) == (before, commits)


@pytest.mark.scenario(223)
def test_importing_the_runtime_starts_nothing() -> None:
    code = (
        "import sys, threading, os; import qinglong_edge.runtime.supervisor; "
        "print(threading.active_count(), len(os.listdir('/proc/self/task')), "
        "'sqlite3' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=30
    )
    assert done.stdout.split() == ["1", "1", "False"]
