"""Kill a real child before and after every commit of the program, then go on in each way.

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
from typing import Any

import pytest

import qinglong_edge
from qinglong_edge.ports.probe import Moment, Step
from tests.crash.scenarios import BY_NAME, CASES, PUBLISHED, Case, Scenario
from tests.support.crash import (
    CYCLE,
    VERIFY,
    Place,
    Workshop,
    approve,
    propose,
    ready,
    reject,
    show,
)
from tests.support.crash_driver import BY_PERSON, Call, Spot
from tests.support.crash_faults import FAULTS
from tests.support.crash_oracle import View, check_converged, check_moved, check_view

FULL = os.environ.get("CRASH_FULL") == "1"
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
        after = converge(place, scenario, after)
    return after


def converge(place: Place, scenario: Scenario, seen: View) -> View:
    """Hold what a cycle left; where a dead process holds the right to look, wait for its end."""
    if any(row.control == "leased" for row in seen.actions.values()):
        place.live(CYCLE, **scenario.later)
        after = place.view()
        check_moved(seen, after)
        seen = after
    check_converged(seen)
    return seen


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
    if scenario.when.command.startswith(("action.", BY_PERSON)):
        assert repeated.answers[1]["body"]["replayed"] is True


@pytest.mark.scenario(225, 128, 146, 176)
@pytest.mark.adr("0005", "10")
@pytest.mark.adr("0033", "5.5")
@pytest.mark.adr("0033", "7.1")
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
        "manual_required",
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
    covered |= {(moment.value, Step.PUBLISH.value) for moment in PUBLISHED}
    assert covered == existing()
    assert {("inside", "execute"), ("inside", "migrate")} <= existing()


FOUND = r"executed|barrier|left no trace|effect and receipt|says another end|without its fact"


@pytest.mark.parametrize(
    ("fault", "scenario", "spot"),
    [
        ("execute_before_start", "one", Spot("before", "claim_start")),
        ("execute_before_start", "two", Spot("before", "complete_start")),
        ("execute_twice", "one", Spot("before", "complete")),
        ("forget_commits", "one", Spot("inside", "execute")),
        ("forget_commits", "approve", Spot("after", "approve_consume")),
        ("forget_commits", "published", Spot("after", "claim_start")),
        ("execute_in_recovery", "unproven", Spot("after", "claim_scan")),
        ("execute_in_recovery", "unanswered", Spot("after", "claim_scan")),
        ("resolve_in_two_commits", "proven", Spot("after", "resolve_evidence")),
        ("person_without_fact", "person", Spot("after", "resolve_person")),
        ("effect_without_receipt", "published", Spot("after", "claim_start")),
        ("effect_without_receipt", "ran_in_three", Spot("after", "effect")),
    ],
)
def test_a_seeded_fault_is_found(shop: Workshop, fault: str, scenario: str, spot: Spot) -> None:
    case = Case(BY_NAME[scenario], spot)
    place = start(shop, case.scenario)
    with pytest.raises(AssertionError, match=FOUND):
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
