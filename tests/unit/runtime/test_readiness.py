"""Whether an action could start now: every answer but a clean `ready` lets go."""

import threading
from typing import Any

import pytest

from qinglong_edge.domain.execution import Dispatch
from qinglong_edge.executor.invoke import Outstanding
from qinglong_edge.ports.handlers import Inspection, Readiness
from qinglong_edge.runtime.readiness import Candidate, LetGo, candidate, inspect
from tests.contract.adapters import SqliteRepositories, spoil
from tests.contract.story import Story
from tests.support.builders import action_binding, shell_plan
from tests.unit.runtime.carrying import Carried, Handler, RunningClocks, ready, settled

READY, RETRY, BLOCKED = Readiness


def dispatch_of(story: Story, **changes: Any) -> Dispatch:
    found = story.consumed(1, **changes).dispatch
    assert found is not None
    return found


def found_by(story: Story, *handlers: Handler, **changes: Any) -> Candidate | LetGo:
    dispatch = dispatch_of(story, **changes)
    return candidate(dispatch, story.ports.approvals, Carried(*handlers, inspect_ms=70))


def looked(story: Story, handler: Handler, outstanding: Outstanding | None = None) -> LetGo | None:
    item = found_by(story, handler)
    assert isinstance(item, Candidate)
    calls = outstanding or Outstanding(RunningClocks(story.clocks))
    return inspect(item, calls, tick_ms=10, on_tick=lambda: None)


def test_a_candidate_knows_plan_handler_and_deadlines(story: Story) -> None:
    handler = Handler(deadline_ms=30)
    item = found_by(story, handler)
    assert isinstance(item, Candidate)
    assert (item.plan, item.handler) == (shell_plan("/bin/echo", "1"), handler)
    assert (item.inspect_ms, item.execute_ms, item.span_ms) == (70, 30, 100)
    assert handler.inspected == []


@pytest.mark.scenario(113, 115)
def test_a_type_without_a_handler_gives_the_attempt_back(story: Story) -> None:
    """W10: what is only not there yet does not eat the budget."""
    assert found_by(story) == LetGo("handler_unavailable", retry=True, spend=False)


def test_a_permission_of_another_type_is_blocked(story: Story) -> None:
    """W17: the registry fixes which permission a type needs."""
    plan = shell_plan("/bin/echo", "1")
    binding = action_binding(plan, permission="run.start")
    found = found_by(story, Handler(), action=binding)
    assert found == LetGo("permission_mismatch", retry=False)


def test_a_missing_plan_waits_and_a_damaged_one_ends(
    stored: Story, sqlite: SqliteRepositories
) -> None:
    dispatch = dispatch_of(stored)
    spoil(sqlite.path, "UPDATE plans SET body = X'7B7D'")
    damaged = candidate(dispatch, stored.ports.approvals, Carried(Handler()))
    assert damaged == LetGo("plan_damaged", retry=False)
    spoil(sqlite.path, "DELETE FROM plans")
    missing = candidate(dispatch, stored.ports.approvals, Carried(Handler()))
    assert missing == LetGo("plan_missing", retry=True, spend=False)


def test_a_clean_ready_goes_on(story: Story) -> None:
    handler = Handler()
    assert looked(story, handler) is None
    assert (handler.inspected, handler.executed) == (["dsp-1"], [])


@pytest.mark.scenario(114, 115)
@pytest.mark.parametrize("digest", [None, "0" * 64, ""])
def test_ready_for_another_digest_is_blocked(story: Story, digest: str | None) -> None:
    handler = Handler(inspect=lambda _: Inspection(READY, digest))
    assert looked(story, handler) == LetGo("action_digest_mismatch", retry=False)


@pytest.mark.scenario(115)
def test_a_handlers_own_code_is_passed_on(story: Story) -> None:
    handler = Handler(inspect=lambda _: Inspection(RETRY, None, "mirror_down"))
    assert looked(story, handler) == LetGo("mirror_down", retry=True)


@pytest.mark.scenario(114)
def test_a_blocked_look_does_not_come_back(story: Story) -> None:
    handler = Handler(inspect=lambda _: Inspection(BLOCKED, None, "gone"))
    assert looked(story, handler) == LetGo("gone", retry=False)


@pytest.mark.scenario(119)
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "ready",
        (READY, "0" * 64, None),
        Inspection("ready"),  # type: ignore[arg-type]
        Inspection(RETRY),
        Inspection(BLOCKED, None, ""),
        Inspection(RETRY, None, "x" * 65),
        Inspection(RETRY, None, "a b"),
        Inspection(READY, "0" * 64, "and_a_code"),
    ],
)
def test_a_malformed_look_is_a_failed_look(story: Story, answer: object) -> None:
    handler = Handler(inspect=lambda _: answer)
    assert looked(story, handler) == LetGo("handler_inspection_failed")


@pytest.mark.scenario(113)
@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_a_look_that_raises_is_a_failed_look(story: Story, error: type[BaseException]) -> None:
    def raising(_dispatch: Dispatch) -> Inspection:
        raise error

    assert looked(story, Handler(inspect=raising)) == LetGo("handler_inspection_failed")


def test_a_look_that_overruns_keeps_its_type_busy_until_it_returns(story: Story) -> None:
    """W3: nobody waits for it, and the type is not called again meanwhile."""
    gate = threading.Event()

    def slow(dispatch: Dispatch) -> Inspection:
        gate.wait(5)
        return ready(dispatch)

    outstanding = Outstanding(RunningClocks(story.clocks))
    handler = Handler(inspect=slow)
    item = found_by(story, handler)
    assert isinstance(item, Candidate)
    first = inspect(item, outstanding, tick_ms=10, on_tick=lambda: None)
    assert first == LetGo("handler_inspection_failed")
    second = inspect(item, outstanding, tick_ms=10, on_tick=lambda: None)
    assert second == LetGo("handler_busy", retry=True, spend=False)
    assert len(handler.inspected) == 1
    gate.set()
    settled()
    assert inspect(item, outstanding, tick_ms=10, on_tick=lambda: None) is None


def test_the_caller_ticks_while_the_look_lasts(story: Story) -> None:
    ticked = threading.Event()

    def patient(dispatch: Dispatch) -> Inspection:
        assert ticked.wait(5)
        return ready(dispatch)

    dispatch = dispatch_of(story)
    item = candidate(dispatch, story.ports.approvals, Carried(Handler(inspect=patient)))
    assert isinstance(item, Candidate)
    calls = Outstanding(RunningClocks(story.clocks))
    assert inspect(item, calls, tick_ms=5, on_tick=ticked.set) is None
