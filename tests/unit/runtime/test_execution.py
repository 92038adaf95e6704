"""One started action: called once, its lease kept alive, its end an answer or none."""

import threading
from typing import Any

import pytest

from qinglong_edge.domain import dispatch as rules
from qinglong_edge.domain.errors import RowDamagedError
from qinglong_edge.domain.execution import Fence, Outcome
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.executor.invoke import NotCalled, Raised, Returned
from qinglong_edge.ports.handlers import HandlerAnswer, HandlerContext
from qinglong_edge.ports.repositories import Dispatches
from qinglong_edge.runtime.execution import Run, verdict
from qinglong_edge.runtime.readiness import Candidate, candidate
from tests.contract.story import Story, changed, fence_of
from tests.unit.runtime.carrying import DONE, PATIENCE_S, Carried, Handler, desk_of, settled, until

LEASE_MS = 40


def run_of(story: Story, handler: Handler) -> Run:
    """Return the run of action 1, whose barrier was just passed."""
    started = story.started(1)
    assert started.dispatch is not None
    assert started.progress is not None
    item = candidate(started.dispatch, story.ports.approvals, Carried(handler))
    assert isinstance(item, Candidate)
    return Run(desk_of(story), item, started.progress.execution, fence_of(1, 2))


@pytest.mark.scenario(112)
def test_a_handler_is_called_once_with_what_it_may_know(story: Story) -> None:
    handler = Handler()
    done = run_of(story, handler).execute(10_000)
    assert done is not None
    assert (done.outcome, done.result_code, done.fence) == (
        Outcome.SUCCEEDED,
        "exit_0",
        fence_of(1, 2),
    )
    context = handler.contexts[0]
    assert handler.executed == ["dsp-1"]
    assert context.idempotency_key == "dsp-1"
    assert context.execution.status is ExecutionStatus.EXECUTING
    assert (context.fence, context.fence_lost()) == (fence_of(1, 2), False)
    assert story.status() is ExecutionStatus.EXECUTING  # recording it is not the run's part


@pytest.mark.adr("0005", "8")
def test_the_lease_is_renewed_at_its_half_while_the_handler_works(story: Story) -> None:
    """W14: twice here; the verdict speaks under the newest fence."""
    handler = Handler(execute=lambda _: DONE if until(lambda: renewed(story) >= 2) else None)
    run = run_of(story, handler)
    before = story.execution().lease
    story.clocks.advance(7)
    done = run.execute(LEASE_MS)
    assert done is not None
    after = story.execution().lease
    assert before is not None
    assert after is not None
    assert after.from_tick == before.from_tick + 7
    assert done.fence == run.fence == fence_of(1, story.execution().version)
    changed(story.ports.dispatches.complete(done)[0])


def renewed(story: Story) -> int:
    """Return how many renewals are stored; the barrier left version 2."""
    return story.execution().version - 2


def test_a_handler_learns_that_its_fence_is_lost(story: Story) -> None:
    """Somebody took over what looked abandoned; the answer then decides nothing."""
    lost = threading.Event()

    def patient(context: HandlerContext) -> HandlerAnswer:
        assert story.ports.dispatches.settle_dead_owners("owner-2") == 1
        if until(context.fence_lost):
            lost.set()
        return DONE

    done = run_of(story, Handler(execute=patient)).execute(LEASE_MS)
    assert lost.is_set()
    assert done is not None
    refused = story.ports.dispatches.complete(done)[0]
    assert refused is rules.DispatchRefusal.FENCE_REJECTED


class Renewing:
    """Renew, and tell that it was tried."""

    def __init__(self, real: Dispatches) -> None:
        self.tried = threading.Event()
        self._real = real

    def renew(self, event: rules.Renew) -> object:
        try:
            return self._real.renew(event)
        finally:
            self.tried.set()


def test_a_row_that_is_damaged_while_the_handler_works_does_not_end_the_wait(story: Story) -> None:
    """W9: its renewal fails; whether the answer counts is the store's to say."""
    renewing = Renewing(story.ports.dispatches)

    def spoils(_context: HandlerContext) -> HandlerAnswer:
        story.repositories.damage("apr-1")
        assert renewing.tried.wait(PATIENCE_S)
        return DONE

    run = run_of(story, Handler(execute=spoils))
    run._desk = run._desk._replace(dispatches=renewing)  # type: ignore[arg-type]
    done = run.execute(LEASE_MS)
    assert done is not None
    assert done.fence == fence_of(1, 2)
    with pytest.raises(RowDamagedError):
        story.ports.dispatches.complete(done)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, MemoryError])
def test_an_exception_is_no_answer(story: Story, error: type[BaseException]) -> None:
    def raising(_context: HandlerContext) -> HandlerAnswer:
        raise error

    run = run_of(story, Handler(execute=raising))
    assert run.execute(10_000) is None
    assert run.late is None


def test_an_overrun_is_no_answer_and_leaves_the_way_to_a_late_one(story: Story) -> None:
    gate = threading.Event()
    handler = Handler(execute=lambda _: gate.wait(5) and DONE, deadline_ms=30)
    run = run_of(story, handler)
    assert run.execute(10_000) is None
    assert run.late is not None
    assert (run.late.dispatch_id, run.late.fence) == ("dsp-1", run.fence)
    assert run.late.ending.late() is None
    gate.set()
    settled()
    ending = run.late.ending.late()
    assert isinstance(ending, Returned)
    assert ending.value == DONE


def says(value: Any) -> rules.Complete | None:
    return verdict(Returned(value), "dsp-1", Fence("o", "t", 2), lambda: "mut-1")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_clean_answer_is_a_verdict(outcome: Outcome) -> None:
    expected = rules.Complete("dsp-1", Fence("o", "t", 2), "mut-1", outcome, "exit_3")
    assert says(HandlerAnswer(outcome, "exit_3")) == expected


@pytest.mark.scenario(117)
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "succeeded",
        (Outcome.SUCCEEDED, "exit_0"),
        {"outcome": "succeeded", "result_code": "exit_0"},
        HandlerAnswer("succeeded", "exit_0"),  # type: ignore[arg-type]
        HandlerAnswer(Outcome.SUCCEEDED, ""),
        HandlerAnswer(Outcome.SUCCEEDED, "x" * 65),
        HandlerAnswer(Outcome.SUCCEEDED, "a b"),
        HandlerAnswer(Outcome.SUCCEEDED, None),  # type: ignore[arg-type]
    ],
)
def test_anything_malformed_is_no_answer(value: object) -> None:
    assert says(value) is None


def test_what_did_not_return_is_no_answer() -> None:
    for ending in (Raised(RuntimeError("x")), NotCalled("busy")):
        assert verdict(ending, "dsp-1", Fence("o", "t", 2), lambda: "mut-1") is None
