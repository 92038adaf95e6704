"""One page of due dispatches: what is called, what is stored, what is counted (contract 7)."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain.dispatch import NOT_REACHED, Renew
from qinglong_edge.domain.errors import UnavailableError
from qinglong_edge.domain.execution import Dispatch, Outcome
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.paging import Cursor
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext, Inspection, Readiness
from qinglong_edge.runtime.dispatcher import COUNTERS
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    claim_of,
    consume_of,
    decide_of,
    fence_of,
)
from tests.support.builders import BOT, HOUR_MS, LEASE_MS
from tests.support.clock import BOOT_MS
from tests.unit.runtime.carrying import (
    DONE,
    RUN,
    Handler,
    Office,
    of_type,
    office,
    ready,
    settled,
    until,
)

READY, RETRY, BLOCKED = Readiness


def consumed(story: Story, *numbers: int) -> None:
    for n in numbers:
        story.consumed(n)


def consumed_as(story: Story, n: int, action_type: str) -> None:
    event = of_type(n, action_type)
    changed(story.ports.approvals.propose(event))
    digest = event.action.action_digest
    both = (decide_of(n), consume_of(n, action_digest=digest))
    changed(story.ports.approvals.approve_and_consume(*both))


@pytest.mark.scenario(112)
def test_a_good_handler_is_looked_at_then_executed_behind_its_barrier(story: Story) -> None:
    seen: dict[str, tuple[ExecutionStatus, int]] = {}

    def looks(dispatch: Dispatch) -> Inspection:
        seen["inspect"] = (story.status(), story.execution().version)
        return ready(dispatch)

    def works(context: HandlerContext) -> HandlerAnswer:
        seen["execute"] = (story.status(), story.execution().version)
        assert story.control().status is ControlStatus.ARMED
        assert context.fence == fence_of(1, 2)._replace(token=context.fence.token)
        return DONE

    story.consumed()
    counts = office(story, Handler(inspect=looks, execute=works)).counts()
    assert counts == {"scanned": 1, "claimed": 1, "started": 1, "succeeded": 1}
    assert seen["inspect"] == (ExecutionStatus.PENDING, 0)
    assert seen["execute"] == (ExecutionStatus.EXECUTING, 2)
    ended = story.execution()
    assert (ended.status, ended.last_result_code) == (ExecutionStatus.SUCCEEDED, "exit_0")


def test_a_page_carries_its_items_one_after_another_in_id_order(story: Story) -> None:
    running: list[str] = []

    def alone(context: HandlerContext) -> HandlerAnswer:
        assert running == []
        running.append(context.idempotency_key)
        running.pop()
        return DONE

    consumed(story, 3, 1, 2)
    handler = Handler(execute=alone)
    assert office(story, handler).counts()["succeeded"] == 3
    assert handler.executed == ["dsp-1", "dsp-2", "dsp-3"]


def test_an_empty_page_does_nothing_and_counts_every_counter(story: Story) -> None:
    before = story.repositories.snapshot()
    done = office(story, Handler()).page()
    assert done.counts == dict.fromkeys(COUNTERS, 0)
    assert (done.cursor, done.stopped) == (None, False)
    assert story.repositories.snapshot() == before


@pytest.mark.adr("0005", "9")
@pytest.mark.scenario(113, 115)
def test_a_missing_handler_waits_without_spending_an_attempt(story: Story) -> None:
    story.consumed()
    assert office(story).counts() == {"scanned": 1, "claimed": 1, "retrying": 1}
    waits = story.execution()
    assert (waits.status, waits.attempt_count) == (ExecutionStatus.RETRY_WAIT, 0)
    assert waits.last_result_code == "handler_unavailable"
    assert waits.eligible_tick is not None
    assert (waits.eligible_tick & (1 << 42) - 1) - BOOT_MS == 30_000


@pytest.mark.scenario(113, 123)
def test_a_failed_look_spends_an_attempt_and_waits_ever_longer(story: Story) -> None:
    def failing(_dispatch: Dispatch) -> Inspection:
        raise RuntimeError

    story.consumed(lifetime_ms=HOUR_MS)
    handler = Handler(inspect=failing)
    working = office(story, handler)
    waited = []
    for attempt in range(1, 5):
        assert working.counts()["retrying"] == 1
        waits = story.execution()
        assert (waits.attempt_count, waits.last_result_code) == (
            attempt,
            "handler_inspection_failed",
        )
        assert waits.eligible_tick is not None
        waited.append((waits.eligible_tick & (1 << 42) - 1) - story.clocks.boot_ms)
        story.clocks.advance(waited[-1])
    assert waited == [1_000, 2_000, 4_000, 8_000]
    assert working.counts()["blocked"] == 1
    assert story.status() is ExecutionStatus.BLOCKED
    assert handler.executed == []


@pytest.mark.scenario(114, 115)
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Inspection(READY, "0" * 64), "action_digest_mismatch"),
        (Inspection(BLOCKED, None, "gone"), "gone"),
    ],
)
def test_a_look_that_blocks_ends_without_executing(
    story: Story, answer: Inspection, code: str
) -> None:
    story.consumed()
    handler = Handler(inspect=lambda _: answer)
    assert office(story, handler).counts() == {"scanned": 1, "claimed": 1, "blocked": 1}
    assert (story.status(), story.execution().last_result_code) == (ExecutionStatus.BLOCKED, code)
    assert handler.executed == []


def raising(_context: HandlerContext) -> HandlerAnswer:
    raise RuntimeError


@pytest.mark.adr("0005", "3")
@pytest.mark.scenario(116, 117)
@pytest.mark.parametrize(
    "execute",
    [raising, lambda _: None, lambda _: ("succeeded", "exit_0"), lambda _: HandlerAnswer("x", "y")],  # type: ignore[arg-type]
)
def test_no_answer_is_handed_to_recovery_and_never_called_failed(
    story: Story, execute: Callable[[HandlerContext], Any]
) -> None:
    """W1: executing goes on, with its lease over and its next look due."""
    story.consumed()
    handler = Handler(execute=execute)
    counts = office(story, handler).counts()
    assert counts == {"scanned": 1, "claimed": 1, "started": 1, "recovery_required": 1}
    assert story.status() is ExecutionStatus.EXECUTING
    assert story.waits_for_recovery() == ["dsp-1"]
    assert office(story, handler).counts() == {}
    assert handler.executed == ["dsp-1"]


@pytest.mark.parametrize(
    ("outcome", "counter"),
    [
        (Outcome.SUCCEEDED, "succeeded"),
        (Outcome.FAILED, "failed"),
        (Outcome.INDETERMINATE, "blocked"),
    ],
)
def test_an_answer_is_recorded_as_it_was_given(
    story: Story, outcome: Outcome, counter: str
) -> None:
    story.consumed()
    handler = Handler(execute=lambda _: HandlerAnswer(outcome, "exit_7"))
    assert office(story, handler).counts()[counter] == 1
    assert story.execution().last_result_code == "exit_7"


@pytest.mark.scenario(121)
def test_an_item_that_somebody_else_claims_meanwhile_is_deferred(story: Story) -> None:
    rival = story.repositories.second_session()

    def overtaken(dispatch: Dispatch) -> Inspection:
        if dispatch.dispatch_id == "dsp-1":
            changed(rival.dispatches.claim_page((claim_of(2, owner="owner-2"),))[0][0])
        return ready(dispatch)

    consumed(story, 1, 2, 3)
    handler = Handler(inspect=overtaken)
    counts = office(story, handler).counts()
    assert counts == {"scanned": 3, "claimed": 2, "deferred": 1, "started": 2, "succeeded": 2}
    assert handler.executed == ["dsp-1", "dsp-3"]


def test_a_deadline_that_passed_blocks_at_the_claim_and_executes_nothing(story: Story) -> None:
    story.consumed()
    story.clocks.advance(HOUR_MS)
    handler = Handler()
    assert office(story, handler).counts() == {"scanned": 1, "blocked": 1}
    assert handler.executed == []


@pytest.mark.scenario(127)
def test_a_spent_budget_has_a_counter_of_its_own(story: Story) -> None:
    story.consumed()
    for _ in range(5):
        story.claimed_again(1)
        story.clocks.advance(LEASE_MS)
    assert office(story, Handler()).counts() == {"scanned": 1, "exhausted": 1}


def test_a_policy_that_moved_blocks_every_barrier_of_the_page(story: Story) -> None:
    consumed(story, 1, 2)
    story.revoke(BOT)
    handler = Handler()
    counts = office(story, handler).counts()
    assert counts == {"scanned": 2, "claimed": 2, "blocked": 2}
    assert handler.executed == []


def test_an_action_cancelled_while_another_runs_is_not_executed(story: Story) -> None:
    def cancels(context: HandlerContext) -> HandlerAnswer:
        changed(story.ports.approvals.cancel(cancel_of(2)))
        return DONE

    consumed(story, 1, 2)
    handler = Handler(execute=cancels)
    assert office(story, handler).counts()["succeeded"] == 1
    assert handler.executed == ["dsp-1"]
    assert story.status(2) is ExecutionStatus.BLOCKED


@pytest.mark.scenario(128)
def test_what_a_killed_process_started_is_not_executed_again(story: Story) -> None:
    story.started()
    story.clocks.reboot()
    handler = Handler()
    assert office(story, handler).counts() == {}
    assert handler.executed == []
    assert story.waits_for_recovery() == ["dsp-1"]


@pytest.mark.adr("0005", "8")
@pytest.mark.adr("0005", "5")
def test_a_stop_puts_the_rest_of_the_page_back(story: Story) -> None:
    """W12: the flag is read before each item; what was not reached is due again, unspent."""
    stop = threading.Event()

    def last(_context: HandlerContext) -> HandlerAnswer:
        stop.set()
        return DONE

    consumed(story, 1, 2, 3)
    handler = Handler(execute=last)
    done = office(story, handler).page(may_begin=lambda: not stop.is_set())
    assert done.stopped
    assert (done.counts["succeeded"], done.counts["put_back"]) == (1, 2)
    assert handler.executed == ["dsp-1"]
    assert story.due() == ["dsp-2", "dsp-3"]
    for n in (2, 3):
        assert (story.execution(n).attempt_count, story.execution(n).last_result_code) == (
            0,
            NOT_REACHED,
        )


def test_a_stop_before_the_page_claims_nothing(story: Story) -> None:
    story.consumed()
    before = story.repositories.snapshot()
    done = office(story, Handler()).page(may_begin=lambda: False)
    assert done.stopped
    assert done.counts["scanned"] == 1
    assert story.repositories.snapshot() == before


def test_a_page_is_as_long_as_its_lease_allows(story: Story) -> None:
    """Two times 250 s and the slack fit into ten minutes, three do not."""
    consumed(story, 1, 2, 3)
    working = office(story, Handler(deadline_ms=249_000), inspect_ms=1_000)
    first = working.page()
    assert (first.counts["claimed"], first.counts["succeeded"]) == (2, 2)
    assert first.cursor is not None
    again = working.dispatcher.dispatch_page(first.cursor, 16, lambda: True)
    assert (again.counts["claimed"], again.cursor) == (1, None)


def test_one_item_is_always_carried(story: Story) -> None:
    consumed(story, 1, 2)
    done = office(story, Handler(deadline_ms=600_000)).page()
    assert done.counts["succeeded"] == 1
    assert isinstance(done.cursor, Cursor)


def test_what_the_lease_no_longer_covers_is_put_back(story: Story) -> None:
    """The first item took longer than its share, so the last ones are not begun."""

    def slow(context: HandlerContext) -> HandlerAnswer:
        if context.idempotency_key == "dsp-1":
            story.clocks.advance(34_500)
        return DONE

    consumed(story, 1, 2, 3)
    handler = Handler(execute=slow, deadline_ms=1_000)
    done = office(story, handler, clocks=story.clocks, inspect_ms=1_000).page()
    assert (done.counts["succeeded"], done.counts["put_back"], done.stopped) == (1, 2, True)
    assert handler.executed == ["dsp-1"]


def overrunning(gate: threading.Event) -> Handler:
    return Handler(execute=lambda _: DONE if gate.wait(5) else None, deadline_ms=40)


@pytest.mark.adr("0005", "8")
def test_an_overrun_goes_to_recovery_and_its_type_waits_until_it_returns(story: Story) -> None:
    """W3: the handler is left alone; other types go on; its late answer is recorded."""
    gate = threading.Event()
    shell, run = overrunning(gate), Handler(RUN)
    consumed(story, 1, 2)
    consumed_as(story, 3, RUN)
    working = office(story, shell, run)
    assert working.counts() == {
        "scanned": 3, "claimed": 3, "started": 2, "recovery_required": 1, "retrying": 1,
        "succeeded": 1,
    }  # fmt: skip
    assert story.waits_for_recovery() == ["dsp-1"]
    assert (story.execution(2).attempt_count, story.execution(2).last_result_code) == (
        0,
        "handler_busy",
    )
    gate.set()
    settled()
    story.clocks.advance(30_000)
    assert working.counts() == {"scanned": 1, "claimed": 1, "started": 1, "succeeded": 2}
    assert story.status(1) is ExecutionStatus.SUCCEEDED
    assert story.waits_for_recovery() == []
    assert shell.executed == ["dsp-1", "dsp-2"]


def test_a_late_answer_that_came_too_late_changes_nothing(story: Story) -> None:
    gate = threading.Event()
    story.consumed()
    working = office(story, overrunning(gate))
    assert working.counts()["recovery_required"] == 1
    held = story.execution()
    assert held.lease is not None
    fence = fence_of(1, held.version)._replace(token=held.lease.token)
    changed(story.ports.dispatches.renew(Renew("dsp-1", fence, LEASE_MS)))
    gate.set()
    settled()
    before = story.record()
    assert working.counts() == {"already_terminal": 1}
    assert story.record() == before


def test_a_result_does_not_wait_for_a_slow_look(story: Story) -> None:
    """It waits for the next barrier's commit, but at most 200 ms."""

    def slow(dispatch: Dispatch) -> Inspection:
        if dispatch.dispatch_id == "dsp-2":
            assert until(lambda: story.status(1) is ExecutionStatus.SUCCEEDED)
        return ready(dispatch)

    consumed(story, 1, 2)
    assert office(story, Handler(inspect=slow)).counts()["succeeded"] == 2


@pytest.mark.scenario(125)
def test_what_listing_raises_goes_up(story: Story) -> None:
    class Broken:
        """Fail where the page is listed, as a locked store does."""

        def list_due(self, _after: object, _limit: int) -> object:
            raise UnavailableError("store_busy", "no")

    working: Office = office(story, Handler())
    working.dispatcher._desk = working.desk._replace(dispatches=Broken())  # type: ignore[arg-type]
    with pytest.raises(UnavailableError):
        working.page()
