"""The table of the crash suite: what was there, which command is killed, at which of its steps."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from qinglong_edge.ports.probe import Moment, Step
from tests.support.crash import (
    CYCLE,
    add_agent,
    approve,
    cancel,
    dispatch,
    init,
    login,
    propose,
    ready,
    reject,
    settle,
)
from tests.support.crash_driver import Call, Shift, Spot

DAY_MS = 86_400_000
MINUTE_MS = 60_000
STRANGE = Shift(wall_ms=3 * DAY_MS)
SETTLED = Shift(wall_ms=3 * DAY_MS + 11 * MINUTE_MS, boot_ms=11 * MINUTE_MS)
BIND = Call("role.bind", {"subject": "agent:bot", "role": "viewer", "mutation_id": "bind-1"})
# One short action is leased for inspect + execute + slack; most of it passes while it sleeps.
ALMOST = Shift(boot_ms=99_600, monotonic_ms=99_600)
LEASES_MS = 2 * MINUTE_MS


class Scenario(NamedTuple):
    """Say what was there, which command meets its end, and which steps it passes."""

    name: str
    given: tuple[Any, ...]
    when: Call
    steps: tuple[Step, ...]
    more: dict[str, Any] = {}  # noqa: RUF012  # a NamedTuple's default, never changed
    blank: bool = False

    @property
    def later(self) -> dict[str, Any]:
        """Return how the same is run when the leases of dead processes have run out."""
        clock: Shift = self.more.get("clock", Shift())
        later = Shift(
            clock.wall_ms + LEASES_MS,
            clock.boot_ms + LEASES_MS,
            clock.monotonic_ms + LEASES_MS,
            clock.boot_id,
        )
        return {**self.more, "clock": later}


def _each(*calls: Call) -> tuple[dict[str, Any], ...]:
    """Let every call be a process of its own, as on the command line."""
    return tuple({"calls": [call]} for call in calls)


LEFT_BEHIND = {"calls": [CYCLE], "kill": Spot("after", "claim_start")}
UNANSWERED = (*_each(*ready("good")), LEFT_BEHIND)
# An action on the database whose barrier, effect and verdict are three commits, as of any other.
SPLIT = {"way": "split"}
TO_RUN = _each(*ready("publish"), CYCLE, propose(2, "run"), approve(2))
UNPROVEN = (*TO_RUN, {"calls": [CYCLE], "kill": Spot("before", "effect"), **SPLIT})
PROVEN = (*TO_RUN, {"calls": [CYCLE], "kill": Spot("after", "effect"), **SPLIT})
FORWARD = (
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
ON_DATABASE = (
    Scenario(
        "published", _each(*ready("publish", "publish")), CYCLE, (Step.CLAIM_START, Step.WHOLE)
    ),
    Scenario("published_next", _each(*ready("good", "publish")), CYCLE, (Step.COMPLETE_START,)),
    Scenario("ran", TO_RUN, CYCLE, (Step.CLAIM_START,)),
    Scenario(
        "ran_in_three", TO_RUN, CYCLE,
        (Step.CLAIM_START, Step.EXECUTE, Step.EFFECT, Step.COMPLETE), SPLIT,
    ),
)  # fmt: skip
RECOVERY = (
    Scenario("proven", PROVEN, CYCLE, (Step.CLAIM_SCAN, Step.RESOLVE_EVIDENCE)),
    Scenario("looked_long", PROVEN, CYCLE, (Step.RENEW_SCAN,), {"way": "slow_look"}),
    Scenario("unproven", UNPROVEN, CYCLE, (Step.OBSERVE,)),
    Scenario("unanswered", UNANSWERED, CYCLE, (Step.OBSERVE,)),
    Scenario(
        "person", (*UNANSWERED, {"calls": [CYCLE]}), settle(1, 3), (Step.RESOLVE_PERSON,)
    ),
)  # fmt: skip
SCENARIOS = (*FORWARD, *ON_DATABASE, *RECOVERY)
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

# No command publishes yet: test_receipts.py dies at these points, and finds the receipt or none.
PUBLISHED = {Moment.BEFORE: False, Moment.INSIDE: True, Moment.AFTER: True}
