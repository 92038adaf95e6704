"""What is the repeat of a step and what a stranger's; and what begins only by a good clock."""

from typing import Any

import pytest

from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.dispatch import (
    Complete,
    DispatchRefusal,
    Expire,
    Renew,
    cancel,
    claim,
    complete,
    expire,
    renew,
    start,
)
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.tick import Trust
from tests.support.builders import (
    FENCE,
    LEASE_MS,
    at,
    claim_command,
    dispatch,
    fence,
    progress,
    start_command,
)

PENDING, LEASED, EXECUTING = (
    ExecutionStatus.PENDING,
    ExecutionStatus.LEASED,
    ExecutionStatus.EXECUTING,
)
FR = DispatchRefusal.FENCE_REJECTED
STRANGERS: list[dict[str, Any]] = [
    {"owner": "owner-2"}, {"token": "token-2"}, {"version": 0}, {"version": 4}, {"version": 9},
]  # fmt: skip


@pytest.mark.scenario(87, 89)
@pytest.mark.adr("0033", "6.2")
@pytest.mark.parametrize("change", STRANGERS)
def test_only_who_started_hears_that_it_did(change: dict[str, Any]) -> None:
    """Whoever believes to have started would execute."""
    before = progress(EXECUTING)
    assert start(dispatch(), before, start_command(), at(2_500), policy=FENCE) == Replayed(before)
    event = start_command(fence=fence(1)._replace(**change))
    assert start(dispatch(), before, event, at(2_500), policy=FENCE) is FR


@pytest.mark.adr("0033", "6.2")
@pytest.mark.parametrize("change", STRANGERS)
def test_only_who_gave_up_hears_that_it_did(change: dict[str, Any]) -> None:
    given_up = expire(progress(EXECUTING), Expire("dsp-1", fence(2)), at(2_500))
    assert isinstance(given_up, Changed)
    after = given_up.after
    assert expire(after, Expire("dsp-1", fence(2)), at(2_600)) == Replayed(after)
    other = Expire("dsp-1", fence(2)._replace(**change))
    assert expire(after, other, at(2_600)) is FR


@pytest.mark.adr("0033", "6.2")
def test_a_cancellation_under_the_id_of_a_verdict_is_no_repeat() -> None:
    done = Complete("dsp-1", fence(2), "can-1", Outcome.FAILED, "exit_1")
    ended = complete(progress(EXECUTING), done, at(3_000))
    assert isinstance(ended, Changed)
    refusal = cancel(ended.after, "can-1", at(3_001))
    assert refusal is DispatchRefusal.ALREADY_TERMINAL


@pytest.mark.adr("0002", "3")
@pytest.mark.parametrize("trust", [Trust.UNTRUSTED, Trust.SETTLED])
def test_nothing_new_begins_by_a_clock_that_is_not_believed(trust: Trust) -> None:
    """Its deadline could not be told; what runs goes on and ends."""
    now = at(2_000, trust=trust)
    untrusted = DispatchRefusal.CLOCK_UNTRUSTED
    assert claim(dispatch(), progress(PENDING), claim_command(), now) is untrusted
    begun = start(dispatch(), progress(LEASED), start_command(), now, policy=FENCE)
    assert begun is untrusted
    running, held = progress(EXECUTING), fence(2)
    done = Complete("dsp-1", held, "done-1", Outcome.SUCCEEDED, "done")
    assert isinstance(complete(running, done, now), Changed)
    assert isinstance(renew(running, Renew("dsp-1", held, LEASE_MS), now), Changed)
    assert isinstance(expire(running, Expire("dsp-1", held), now), Changed)
    assert isinstance(cancel(progress(PENDING), "can-1", now), Changed)
