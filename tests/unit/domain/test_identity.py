import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import RefusedError
from qinglong_edge.domain.identity import (
    STRONG,
    Assurance,
    Principal,
    Session,
    require_strong,
    session_active,
)
from qinglong_edge.domain.tick import Now
from tests.support.builders import ANA, HOUR_MS, at, tick
from tests.support.clock import WALL_MS

LIMIT_MS = limits.STRONG_AUTHENTICATION_AGE_MS_MAX
SESSION = Session(
    "ses-1", "0" * 64, ANA, Assurance.MULTI_FACTOR, WALL_MS, tick(0), WALL_MS + HOUR_MS
)
PRINCIPAL = Principal(ANA, Assurance.MULTI_FACTOR, "ses-1", WALL_MS, tick(0))


@pytest.mark.scenario(170)
@pytest.mark.parametrize(
    ("now", "active"),
    [
        (at(0), True),
        (at(HOUR_MS - 1), True),
        (at(HOUR_MS), False),
        (at(HOUR_MS + 1), False),
        (at(-1), False),
        (at(1, wall_ms=WALL_MS + HOUR_MS - 1), True),
        (at(1, wall_ms=WALL_MS + HOUR_MS), False),
        (at(HOUR_MS - 1, wall_ms=WALL_MS + 1), True),
        (at(HOUR_MS, wall_ms=WALL_MS + 1), False),
        (at(1, wall_ms=WALL_MS - 1), False),
        (at(-1, wall_ms=WALL_MS), False),
        (at(1, epoch=2), False),
    ],
)
def test_a_session_holds_while_both_clocks_say_so(now: Now, *, active: bool) -> None:
    """Both times, at their ends: at the start it holds, at exactly its end it does not."""
    assert session_active(SESSION, now) is active


@pytest.mark.scenario(171)
@pytest.mark.parametrize("assurance", sorted(STRONG))
def test_strong_is_more_than_one_factor(assurance: Assurance) -> None:
    require_strong(PRINCIPAL._replace(assurance=assurance), at(LIMIT_MS))


@pytest.mark.scenario(169, 170)
@pytest.mark.adr("0033", "7")
@pytest.mark.parametrize("assurance", sorted(set(Assurance) - STRONG))
def test_one_factor_and_services_are_not_strong(assurance: Assurance) -> None:
    with pytest.raises(RefusedError) as caught:
        require_strong(PRINCIPAL._replace(assurance=assurance), at(0))
    assert caught.value.code == "strong_authentication_required"


def test_the_strong_assurances_are_three() -> None:
    assert {Assurance.MULTI_FACTOR, Assurance.HARDWARE, Assurance.LOCAL_CONSOLE} == STRONG


@pytest.mark.scenario(171)
@pytest.mark.adr("0033", "7")
@pytest.mark.parametrize(
    "now", [at(0), at(LIMIT_MS), at(1, wall_ms=WALL_MS + LIMIT_MS), at(LIMIT_MS, wall_ms=WALL_MS)]
)
def test_five_minutes_are_recent(now: Now) -> None:
    require_strong(PRINCIPAL, now)


@pytest.mark.scenario(169, 170)
@pytest.mark.adr("0033", "7")
@pytest.mark.parametrize(
    "now",
    [
        at(LIMIT_MS + 1),
        at(1, wall_ms=WALL_MS + LIMIT_MS + 1),
        at(LIMIT_MS + 1, wall_ms=WALL_MS),
        at(0, epoch=2),
    ],
)
def test_one_millisecond_more_on_either_clock_is_not_recent(now: Now) -> None:
    with pytest.raises(RefusedError) as caught:
        require_strong(PRINCIPAL, now)
    assert caught.value.code == "strong_authentication_required"


@pytest.mark.scenario(170)
@pytest.mark.parametrize(
    "now", [at(-1), at(1, wall_ms=WALL_MS - 1), at(-1, wall_ms=WALL_MS), at(0, wall_ms=0)]
)
def test_a_proof_from_the_future_is_no_proof(now: Now) -> None:
    """Contract 10.1: a principal is active from its authentication on, on both clocks."""
    with pytest.raises(RefusedError):
        require_strong(PRINCIPAL, now)
