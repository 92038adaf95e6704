"""What ADR-0036 asks of a lifecycle, played on every host with its real threads."""

import threading
from collections.abc import Callable

import pytest

from qinglong_edge.domain.errors import InvariantBroken, UnavailableError, UsageError
from qinglong_edge.domain.lifecycle import Cursors, End, Failed, Outcome, Succeeded, Unsettled
from qinglong_edge.domain.paging import Cursor
from tests.contract.lifecycle.drivers import PATIENCE_S, Stage

LEFT = Cursors(Cursor(1, 2), Cursor(3, 4))
MORE = Cursors(None, Cursor(5, 6))
DONE = Cursors()


def broken() -> UnavailableError:
    return UnavailableError("store_busy", "no")


@pytest.mark.scenario(210)
@pytest.mark.adr("0036", "4.1")
@pytest.mark.adr("0008", "1")
def test_a_host_is_inert_until_it_is_started(make_stage: Callable[..., Stage]) -> None:
    threads = threading.active_count()
    stage = make_stage(initial_delay_ms=700)
    assert stage.timer_at_ms() is None
    assert stage.begun.empty()
    assert threading.active_count() <= threads + 1  # the loop's, where the driver has one already
    assert stage.driver.start()
    stage.sync()
    assert stage.timer_at_ms() == stage.now_ms + 700
    assert stage.begun.empty()
    stage.advance(700)
    assert stage.begins() == DONE
    assert all(thread.daemon and thread.name == "cycle" for thread in stage.threads)


@pytest.mark.scenario(210)
@pytest.mark.adr("0036", "4.1")
@pytest.mark.adr("0008", "1")
def test_a_second_start_schedules_nothing(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(initial_delay_ms=700)
    assert stage.driver.start()
    stage.clocks.advance(100)
    assert not stage.driver.start()
    stage.sync()
    assert stage.timer_at_ms() == stage.now_ms + 600


@pytest.mark.scenario(211)
@pytest.mark.adr("0036", "4.1")
@pytest.mark.adr("0008", "1")
def test_a_slow_cycle_is_alone_and_the_next_waits_a_whole_interval_after_it(stage: Stage) -> None:
    stage.start()
    assert stage.timer_at_ms() is None
    stage.advance(300_000)
    assert stage.timer_at_ms() is None
    assert stage.begun.empty()
    assert not stage.driver.start()
    stage.end(DONE)
    assert stage.timer_at_ms() == stage.now_ms + 30_000
    stage.advance(29_999)
    assert stage.begun.empty()
    stage.advance(1)
    stage.begins()
    assert len(stage.threads) == 1


@pytest.mark.scenario(205, 206, 212)
def test_cursors_go_on_until_a_cycle_completes(stage: Stage) -> None:
    stage.start()
    for given, following in ((LEFT, LEFT), (MORE, MORE), (DONE, DONE)):
        stage.end(given)
        stage.advance(30_000)
        assert stage.begins() == following


@pytest.mark.scenario(207, 213)
def test_a_failed_cycle_is_told_once_and_repeated_at_the_same_place(stage: Stage) -> None:
    stage.start()
    stage.end(LEFT)
    stage.advance(30_000)
    stage.begins()
    stage.end(broken())
    assert stage.errors.empty()
    assert stage.reported.empty()
    assert stage.timer_at_ms() == stage.now_ms + 30_000
    stage.advance(30_000)
    assert stage.begins() == LEFT


@pytest.mark.scenario(213)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_nothing_that_a_cycle_raises_ends_the_host(stage: Stage, error: BaseException) -> None:
    stage.start()
    stage.end(error)
    stage.advance(30_000)
    stage.begins()


@pytest.mark.scenario(213)
def test_a_cycle_without_cursors_has_failed(stage: Stage) -> None:
    stage.start()
    stage._ends.put(None)  # type: ignore[arg-type]
    assert isinstance(stage.errors.get(timeout=PATIENCE_S), InvariantBroken)
    stage.advance(30_000)
    assert stage.begins() == DONE


def test_without_a_thread_the_cycle_has_failed_and_the_next_one_tries_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "cycle":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    assert stage.driver.start()
    error = stage.errors.get(timeout=PATIENCE_S)
    assert isinstance(error, UnavailableError)
    assert error.code == "no_thread"
    stage.sync()
    monkeypatch.undo()
    stage.advance(30_000)
    stage.begins()


@pytest.mark.scenario(214)
@pytest.mark.adr("0036", "4.1")
@pytest.mark.adr("0008", "1")
def test_a_stop_waits_no_longer_than_it_may(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(stop_ms=5)
    stage.start()
    assert not stage.stopping()
    stopped = stage.driver.stop()
    stage.sync()
    assert stage.stopping()
    stage.advance(5)
    assert stopped() is End.TIMED_OUT
    assert stage.timer_at_ms() is None
    assert not stage.driver.start()
    assert stage.stopping(), "a start that was refused calls nobody back to work"
    stage.end_unseen(LEFT)
    stage.sync()
    assert stage.driver.start()
    assert stage.reported.get(timeout=PATIENCE_S) == LEFT
    assert stage.begins() == LEFT
    stage.end(DONE)
    assert stage.driver.stop()() is End.DRAINED
    assert len(stage.threads) == 2


@pytest.mark.scenario(214)
def test_a_stop_drains_a_cycle_that_hurries(stage: Stage) -> None:
    stage.start()
    stopped = stage.driver.stop()
    stage.sync()
    stage.advance(4_999)
    stage.end(LEFT)
    assert stopped() is End.DRAINED
    assert stage.timer_at_ms() is None
    assert stage.driver.start()
    assert stage.begins() == LEFT


@pytest.mark.scenario(215)
def test_a_stop_clears_the_timer(stage: Stage) -> None:
    stage.start()
    stage.end(DONE)
    assert stage.timer_at_ms() is not None
    assert stage.driver.stop()() is End.DRAINED
    assert stage.timer_at_ms() is None
    stage.clocks.advance(300_000)
    stage.sync()
    assert stage.begun.empty()
    assert stage.driver.stop()() is End.DRAINED


@pytest.mark.scenario(216)
@pytest.mark.parametrize("report_fails", [False, True])
def test_a_callback_that_raises_changes_no_schedule(stage: Stage, report_fails: bool) -> None:
    wrong = ValueError("the metric is down")

    def fail() -> None:
        raise wrong

    stage.on_cycle = fail
    if report_fails:
        stage.on_error = fail
    stage.start()
    stage.end(LEFT)
    assert stage.errors.get(timeout=PATIENCE_S) is wrong
    assert stage.errors.empty()
    assert stage.timer_at_ms() == stage.now_ms + 30_000
    stage.advance(30_000)
    assert stage.begins() == LEFT
    stage.end(broken())
    assert stage.timer_at_ms() == stage.now_ms + 30_000
    assert stage.driver.stop()() is End.DRAINED


@pytest.mark.scenario(217)
@pytest.mark.parametrize(
    "change",
    [
        {"interval_ms": 249},
        {"interval_ms": 86_400_001},
        {"initial_delay_ms": -1},
        {"stop_ms": 60_001},
        {"early_gap_ms": 249},
    ],
)
def test_wrong_options_make_no_host(
    make_stage: Callable[..., Stage], change: dict[str, int]
) -> None:
    with pytest.raises(UsageError):
        make_stage(**change)


def test_a_request_runs_at_once_and_counts_the_interval_anew(stage: Stage) -> None:
    stage.start()
    stage.end(LEFT)
    stage.advance(10_000)
    on_settled, outcomes = stage.settled()
    stage.driver.request_cycle(on_settled)
    assert stage.begins() == LEFT
    assert stage.timer_at_ms() is None
    stage.end(MORE)
    assert outcomes.get(timeout=PATIENCE_S) == Succeeded(MORE)
    assert stage.timer_at_ms() == stage.now_ms + 30_000


def test_a_request_is_served_by_a_cycle_that_began_after_it(stage: Stage) -> None:
    stage.start()
    both = [stage.settled() for _ in range(2)]
    for on_settled, _ in both:
        stage.driver.request_cycle(on_settled)
    stage.sync()
    stage.end(LEFT)
    assert stage.begins() == LEFT
    assert all(outcomes.empty() for _, outcomes in both)
    wrong = broken()
    stage.end(wrong)
    assert [outcomes.get(timeout=PATIENCE_S) for _, outcomes in both] == [Failed(wrong)] * 2
    assert stage.begun.empty(), "one cycle serves all that asked before it"


def test_a_stop_answers_who_waits_for_a_cycle(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(stop_ms=5)
    stage.start()
    stage.end(DONE)
    riding, rides = stage.settled()
    stage.driver.request_cycle(riding)
    stage.begins()
    waiting, waits = stage.settled()
    stage.driver.request_cycle(waiting)
    stage.sync()
    stopped = stage.driver.stop()
    assert waits.get(timeout=PATIENCE_S) == Unsettled(began=False)
    late, refused = stage.settled()
    stage.driver.request_cycle(late)
    assert refused.get(timeout=PATIENCE_S) == Unsettled(began=False)
    stage.sync()
    stage.advance(5)
    assert stopped() is End.TIMED_OUT
    assert rides.get(timeout=PATIENCE_S) == Unsettled(began=True)
    after, lost = stage.settled()
    stage.driver.request_cycle(after)
    assert lost.get(timeout=PATIENCE_S) == Unsettled(began=False)


def test_a_failing_answer_to_a_request_is_told_and_changes_nothing(stage: Stage) -> None:
    wrong = ValueError("the connection is gone")

    def fail(_outcome: Outcome | Unsettled) -> None:
        raise wrong

    stage.start()
    stage.end(DONE)
    stage.driver.request_cycle(fail)
    stage.begins()
    stage.end(DONE)
    assert stage.errors.get(timeout=PATIENCE_S) is wrong
    assert stage.timer_at_ms() == stage.now_ms + 30_000


def test_early_ticks_keep_the_gap_and_never_postpone(stage: Stage) -> None:
    stage.start()
    stage.end(DONE)
    settled_ms = stage.now_ms
    stage.advance(400)
    for _ in range(3):
        stage.driver.early_tick()
    stage.sync()
    assert stage.timer_at_ms() == settled_ms + 1_000
    stage.advance(599)
    assert stage.begun.empty()
    stage.advance(1)
    stage.begins()
    stage.driver.early_tick()
    stage.sync()
    assert stage.begun.empty()
    stage.end(DONE)
    assert stage.timer_at_ms() == stage.now_ms + 1_000
    stage.advance(1_000)
    stage.begins()
    stage.end(DONE)
    assert stage.timer_at_ms() == stage.now_ms + 30_000, "a tick is spent once"
    stage.advance(29_500)
    stage.driver.early_tick()
    assert stage.begins() == DONE, "the gap is long over"
