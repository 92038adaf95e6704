"""`clock trust` where it meets authority; what it closes stands in the contract suite."""

import pytest

from qinglong_edge.commands.authority import authenticate
from qinglong_edge.commands.clock import trust
from qinglong_edge.commands.engine import Answer, Engine
from qinglong_edge.domain.decisions import Changed
from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.domain.policy import Role
from qinglong_edge.domain.tick import Trust
from tests.support.builders import propose_command
from tests.support.clock import WALL_MS, FakeClocks
from tests.support.store import (
    NOBODY,
    STATE_OWNER,
    add_agent,
    add_user,
    log_in,
)

DAY_MS = 86_400_000


@pytest.fixture
def engine(engine: Engine) -> Engine:
    add_user(engine, "adam", Role.ADMIN)
    add_agent(engine, "bot", Role.OPERATOR)
    return engine


def refused(engine: Engine, caller: object) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        trust(engine, caller, {})  # type: ignore[arg-type]
    return caught.value


def test_a_believed_clock_costs_nothing(engine: Engine) -> None:
    ana = log_in(engine, "ana")
    assert trust(engine, ana, {}) == Answer(
        {
            "settled": False,
            "wall_at_ms": WALL_MS,
            "approvals_closed": 0,
            "dispatches_blocked": 0,
            "sessions_ended": 0,
        }
    )
    assert authenticate(engine, ana) is not None


def test_a_word_for_the_clock_closes_what_is_open(engine: Engine, clocks: FakeClocks) -> None:
    assert isinstance(engine.approvals.propose(propose_command()), Changed)
    clocks.step_wall(30 * DAY_MS)
    ana, _other = log_in(engine, "ana"), log_in(engine, "adam")
    body = trust(engine, ana, {}).body
    assert body == {
        "settled": True,
        "wall_at_ms": WALL_MS + 30 * DAY_MS,
        "approvals_closed": 1,
        "dispatches_blocked": 0,
        "sessions_ended": 2,
    }
    assert engine.overview.instant().now.trust is Trust.TRUSTED
    with pytest.raises(RefusedError):
        authenticate(engine, ana)


def test_a_clock_before_the_build_is_set_not_believed(engine: Engine, clocks: FakeClocks) -> None:
    clocks.step_wall(-400 * DAY_MS)
    error = refused(engine, log_in(engine, "ana"))
    assert error.code == "clock_untrusted"
    assert error.details == {"hint": "set the clock, by NTP or by hand"}


def test_whose_word_counts(engine: Engine, clocks: FakeClocks) -> None:
    clocks.step_wall(30 * DAY_MS)
    assert refused(engine, NOBODY).code == "login_required"
    assert refused(engine, STATE_OWNER).code == "login_required"
    assert refused(engine, log_in(engine, "adam")).code == "not_allowed"
    with pytest.raises(UsageError):
        trust(engine, log_in(engine, "ana"), {"more": 1})
