"""Kill a real child before and after every commit of the forward path, then go on in each way.

Each case kills one process at one crash point, lets the next processes go on in one of three ways,
and holds every state in between against the invariants. `CRASH_FULL=1` kills at every passing of
every point instead of the first one, and at every point of the second process as well.
"""

import ast
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import qinglong_edge
from qinglong_edge.ports.probe import Moment, Step
from tests.support.crash import (
    CYCLE,
    VERIFY,
    Place,
    View,
    Workshop,
    add_agent,
    approve,
    cancel,
    check_moved,
    check_view,
    dispatch,
    init,
    login,
    propose,
    ready,
    reject,
    show,
)
from tests.support.crash_driver import FAULTS, Call, Shift, Spot

FULL = os.environ.get("CRASH_FULL") == "1"
DAY_MS = 86_400_000
MINUTE_MS = 60_000
STRANGE = Shift(wall_ms=3 * DAY_MS)
SETTLED = Shift(wall_ms=3 * DAY_MS + 11 * MINUTE_MS, boot_ms=11 * MINUTE_MS)
BIND = Call("role.bind", {"subject": "agent:bot", "role": "viewer", "mutation_id": "bind-1"})
# One short action is leased for inspect + execute + slack; most of it passes while it sleeps.
ALMOST = Shift(boot_ms=99_600, monotonic_ms=99_600)
MIDDLE = "middle"  # inside `execute`, after the side effect: the action itself kills its parent


class Scenario(NamedTuple):
    """Say what was there, which command meets its end, and which steps it passes."""

    name: str
    given: tuple[Any, ...]
    when: Call
    steps: tuple[Step, ...]
    more: dict[str, Any] = {}  # noqa: RUF012  # a NamedTuple's default, never changed
    blank: bool = False


def _each(*calls: Call) -> tuple[dict[str, Any], ...]:
    """Let every call be a process of its own, as on the command line."""
    return tuple({"calls": [call]} for call in calls)


LEFT_BEHIND = {"calls": [CYCLE], "kill": Spot("after", "claim_start")}
SCENARIOS = (
    Scenario("init", (), init(), (Step.MIGRATE, Step.INIT), blank=True),
    Scenario("propose", (), propose(), (Step.PROPOSE,)),
    Scenario("hold", _each(propose()), approve(hold=True), (Step.APPROVE,)),
    Scenario("reject", _each(propose()), reject(), (Step.REJECT,)),
    Scenario("dispatch", _each(propose(), approve(hold=True)), dispatch(), (Step.CONSUME,)),
    Scenario("approve", _each(propose()), approve(), (Step.APPROVE_CONSUME,)),
    Scenario("withdraw", _each(propose()), cancel(), (Step.CANCEL,)),
    Scenario("stop_before_start", _each(*ready("good")), cancel(), (Step.CANCEL,)),
    Scenario("bind", (), BIND, (Step.BIND_ROLE,)),
    Scenario("agent", (), add_agent("eve", "e" * 42 + "A"), (Step.IDENTITY,)),
    Scenario("login", (), login(1), (Step.SESSION,)),
    Scenario(
        "one", _each(*ready("good")), CYCLE, (Step.CLAIM_START, Step.EXECUTE, Step.COMPLETE)
    ),
    Scenario("two", _each(*ready("good", "good")), CYCLE, (Step.COMPLETE_START,)),
    Scenario(
        "split", _each(*ready("bad", "good")), CYCLE, (Step.CLAIM, Step.RELEASE, Step.START)
    ),
    Scenario("stopped", _each(*ready("stopping", "good")), CYCLE, (Step.PUT_BACK,)),
    Scenario("silent", _each(*ready("silent")), CYCLE, (Step.EXPIRE,)),
    Scenario(
        "slow", _each(*ready("slow")), CYCLE, (Step.RENEW,),
        {"jumps": [[Spot("after", "claim_start"), ALMOST]]},
    ),
    Scenario(
        "dead_owner", (*_each(*ready("good", "good")), LEFT_BEHIND), CYCLE, (Step.SETTLE_OWNERS,)
    ),
    Scenario(
        "clock_believed_again",
        (*_each(*ready("good"), propose(2)), {"calls": [CYCLE], "clock": STRANGE}),
        CYCLE, (Step.SETTLE_CLOCK,), {"clock": SETTLED},
    ),
)  # fmt: skip
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


class Case(NamedTuple):
    """Hold one place to die."""

    scenario: Scenario
    spot: Spot

    @property
    def name(self) -> str:
        return f"{self.scenario.name}-{self.spot.moment}_{self.spot.step}_{self.spot.nth}"


def cases() -> Iterator[Case]:
    for scenario in SCENARIOS:
        for step in scenario.steps:
            if step is Step.EXECUTE:
                yield Case(scenario, Spot(Moment.INSIDE, step))
                continue
            for moment in (Moment.BEFORE, Moment.AFTER):
                yield Case(scenario, Spot(moment, step))
            if step is Step.MIGRATE:
                yield Case(scenario, Spot(Moment.INSIDE, step, 20))


CASES = tuple(cases())
NEXT = ("reopen", "repeat", "again")
EXPECTED: dict[str, View] = {}  # what each command leaves where nothing happens to it


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with closing(Workshop(tmp_path_factory.mktemp("forward"))) as made:
        yield made


def start(shop: Workshop, scenario: Scenario) -> Place:
    return shop.empty() if scenario.blank else shop.place(*scenario.given)


def kill_once(place: Place, case: Case, **more: Any) -> tuple[View, View]:
    """Kill the command at its point: an open commit leaves nothing, a made one stays."""
    before = place.view()
    ended = place.die(case.scenario.when, kill=case.spot, **case.scenario.more, **more)
    assert ended.points[-1] == (case.spot.moment, case.spot.step)
    assert ended.answers == []
    after = place.view()
    check_moved(before, after)
    commits = [step for moment, step in ended.points if moment == Moment.AFTER]
    if not commits or case.scenario.blank:  # init works under another name until its very end
        assert after.actions == before.actions
        assert after.sizes in (before.sizes, {})
    else:
        assert after[:2] != before[:2], f"{commits} left no trace"
    return before, after


def go_on(place: Place, scenario: Scenario, *calls: Call, seen: View, **more: Any) -> View:
    """Run the next process to its end and hold what it leaves against what was there."""
    ended = place.live(*calls, VERIFY, **scenario.more, **more)
    after = place.view()
    check_moved(seen, after)
    initialised = after.sizes.get("meta") == 1
    assert ended.answers[-1].get("body") == (
        {"ok": True, "problems": []} if initialised else None
    ), ended.answers[-1]
    if CYCLE in calls and initialised:
        stuck = [row for row in after.actions.values() if row.status in {"pending", "leased"}]
        assert stuck == [], "a cycle left what no later one would be told to take"
    return after


def end_in_one_effect(shop: Workshop, place: Place, scenario: Scenario, seen: View) -> None:
    """Repeat the command with the same ids, twice: it answers, and it was done once."""
    if scenario.name not in EXPECTED:
        reference = start(shop, scenario)
        reference.live(scenario.when, **scenario.more)
        EXPECTED[scenario.name] = reference.view()
    repeated = place.live(scenario.when, scenario.when, **scenario.more)
    assert repeated.exits == [0, 0], repeated
    after = place.view()
    check_moved(seen, after)
    assert after.shape == EXPECTED[scenario.name].shape
    if scenario.when.command.startswith("action."):
        assert repeated.answers[1]["body"]["replayed"] is True


@pytest.mark.scenario(225, 128)
@pytest.mark.adr("0005", "10")
@pytest.mark.parametrize("then", NEXT)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_killed_command_is_done_once_or_not_at_all(shop: Workshop, case: Case, then: str) -> None:
    scenario = case.scenario
    place = start(shop, scenario)
    _, seen = kill_once(place, case)
    if then == "again":
        ended = place.run(scenario.when, CYCLE, kill=Spot("any", "any"), **scenario.more)
        assert ended.code in {0, -signal.SIGKILL}
        later = place.view()
        check_moved(seen, later)
        seen = later
    if then != "reopen" and scenario.when != CYCLE:
        end_in_one_effect(shop, place, scenario, seen)
        seen = place.view()
    go_on(place, scenario, CYCLE, seen=seen)


@pytest.mark.scenario(201)
@pytest.mark.parametrize("then", NEXT)
def test_an_action_that_outlives_its_killed_parent_is_not_run_again(
    shop: Workshop, then: str
) -> None:
    place = shop.home(*ready("deadly", "good"))
    ended = place.run(CYCLE)
    assert ended.code == -signal.SIGKILL
    place.await_mark("end")
    seen = place.view()
    check_view(seen)
    assert seen.begun == {"dsp-1": 1}
    assert {name: row.status for name, row in seen.actions.items()} == {
        "apr-1": "executing",
        "apr-2": "leased",
    }
    if then == "again":
        place.die(CYCLE, kill=Spot("any", "any"))
        check_moved(seen, place.view())
    scenario = BY_NAME["one"]
    after = go_on(place, scenario, *([CYCLE] * (1 + (then == "repeat"))), seen=seen)
    assert after.begun == {"dsp-1": 1, "dsp-2": 1}
    answers = place.live(show(1), show(2)).answers
    assert [answer["body"]["effective_state"] for answer in answers] == [
        "recovery_required",
        "succeeded",
    ]


def test_what_was_printed_before_the_kill_is_there(shop: Workshop) -> None:
    place = shop.home()
    calls = (propose(1), approve(1), propose(2), reject(2), propose(3), approve(3, hold=True))
    ended = place.die(*calls, propose(4), kill=Spot("before", "propose", 4))
    assert ended.exits == [0] * len(calls)
    seen = place.view()
    check_view(seen)
    states = {name: row.state for name, row in seen.actions.items()}
    assert states == {"apr-1": "consumed", "apr-2": "rejected", "apr-3": "approved"}
    assert seen.actions["apr-1"].dispatch_id == ended.answers[1]["body"]["dispatch_id"]


def existing() -> set[tuple[str, str]]:
    """Return every pair that the program has: by its enum, and by the literals of its source."""
    found = {
        (moment.value, step.value)
        for step in Step
        if step is not Step.EXECUTE
        for moment in (Moment.BEFORE, Moment.AFTER)
    }
    for path in Path(qinglong_edge.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "CrashPoint":
                words = [ast.unparse(argument).split(".") for argument in node.args]
                if len(words) == 2 and [len(word) for word in words] == [2, 2]:
                    found.add((Moment[words[0][1]].value, Step[words[1][1]].value))
    return found


def test_every_crash_point_of_the_program_has_a_case() -> None:
    """Each case proves by itself that it died at its point, so the table is what was hit."""
    covered = {(case.spot.moment, case.spot.step) for case in CASES}
    assert covered == existing()
    assert {("inside", "execute"), ("inside", "migrate")} <= existing()


@pytest.mark.parametrize(
    ("fault", "scenario", "spot"),
    [
        ("execute_before_start", "one", Spot("before", "claim_start")),
        ("execute_before_start", "two", Spot("before", "complete_start")),
        ("execute_twice", "one", Spot("before", "complete")),
        ("forget_commits", "one", Spot("inside", "execute")),
        ("forget_commits", "approve", Spot("after", "approve_consume")),
    ],
)
def test_a_seeded_fault_is_found(shop: Workshop, fault: str, scenario: str, spot: Spot) -> None:
    case = Case(BY_NAME[scenario], spot)
    place = start(shop, case.scenario)
    with pytest.raises(AssertionError, match=r"executed|barrier|left no trace"):
        kill_once(place, case, fault=fault)


def test_every_seeded_fault_is_one_that_the_driver_knows() -> None:
    marks = [
        mark for mark in test_a_seeded_fault_is_found.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    ]  # fmt: skip
    assert {row[0] for row in marks[0].args[1]} == set(FAULTS)


@pytest.mark.skipif(not FULL, reason="CRASH_FULL=1 runs the whole product")
@pytest.mark.parametrize("name", list(BY_NAME))
def test_every_passing_of_every_point_leaves_a_state_that_goes_on(
    shop: Workshop, name: str
) -> None:
    scenario = BY_NAME[name]
    passed = start(shop, scenario).live(scenario.when, **scenario.more).points
    stride = (
        9 if scenario.blank else 1
    )  # init has some forty points; all of them are in test_init.py
    for first in range(1, len(passed) + 1, stride):
        for second in range(1, 100, stride):
            place = start(shop, scenario)
            before = place.view()
            place.die(scenario.when, kill=Spot("any", "any", first), **scenario.more)
            seen = place.view()
            check_moved(before, seen)
            ended = place.run(scenario.when, kill=Spot("any", "any", second), **scenario.more)
            later = place.view()
            check_moved(seen, later)
            if scenario.when != CYCLE:
                end_in_one_effect(shop, place, scenario, later)
            go_on(place, scenario, CYCLE, seen=place.view())
            if ended.code == 0:
                break
