"""Proposing again what may have happened already: `repeats` (ADR-0033, 7)."""

import pytest

from qinglong_edge.domain.action import Risk
from qinglong_edge.domain.approval import ApprovalRefusal
from qinglong_edge.domain.execution import Outcome
from tests.contract.story import (
    Story,
    cancel_of,
    changed,
    complete_of,
    digest_of,
    expire_of,
    propose_of,
)
from tests.support.builders import LEASE_MS, action_binding, shell_plan

AGAIN = propose_of(2, action=action_binding(shell_plan("/bin/echo", "1")))
NAMED = AGAIN._replace(repeats="dsp-1", risk=Risk.HIGH)


def test_the_second_plan_is_the_first_one() -> None:
    assert AGAIN.action.action_digest == digest_of(1)


@pytest.mark.adr("0033", "7.3")
@pytest.mark.adr("0003", "5")
def test_an_unknown_outcome_must_be_named_at_high_risk(story: Story) -> None:
    story.started()
    changed(story.ports.dispatches.expire(expire_of(1)))
    approvals = story.ports.approvals
    before = story.repositories.snapshot()
    assert approvals.propose(AGAIN) is ApprovalRefusal.REPEATS_REQUIRED
    mild = NAMED._replace(risk=Risk.MEDIUM)
    assert approvals.propose(mild) is ApprovalRefusal.REPEATS_MISMATCH
    other = NAMED._replace(repeats="dsp-2")
    assert approvals.propose(other) is ApprovalRefusal.REPEATS_MISMATCH
    assert story.repositories.snapshot() == before
    stored = changed(approvals.propose(NAMED))
    assert stored.approval.repeats == "dsp-1"
    assert story.record(2) == stored


@pytest.mark.adr("0033", "7.3")
def test_an_execution_past_its_lease_is_unknown(story: Story) -> None:
    story.started()
    story.clocks.advance(LEASE_MS - 1)
    changed(story.ports.approvals.propose(AGAIN._replace(approval_request_id="apr-3")))
    story.clocks.advance(1)
    assert story.ports.approvals.propose(AGAIN) is ApprovalRefusal.REPEATS_REQUIRED


@pytest.mark.adr("0033", "7.3")
def test_an_answer_that_says_unknown_stays_unknown(story: Story) -> None:
    """The handler answered `indeterminate`: blocked, and nobody knows what happened."""
    story.completed(outcome=Outcome.INDETERMINATE, result_code="lost_touch")
    assert story.ports.approvals.propose(AGAIN) is ApprovalRefusal.REPEATS_REQUIRED
    changed(story.ports.approvals.propose(NAMED))


@pytest.mark.adr("0033", "7.3")
def test_a_known_outcome_names_nothing(story: Story) -> None:
    story.completed()
    assert story.ports.approvals.propose(NAMED) is ApprovalRefusal.REPEATS_MISMATCH
    changed(story.ports.approvals.propose(AGAIN))


@pytest.mark.adr("0033", "7.3")
def test_a_late_answer_ends_the_duty(story: Story) -> None:
    story.started()
    changed(story.ports.dispatches.expire(expire_of(1)))
    assert story.ports.approvals.propose(AGAIN) is ApprovalRefusal.REPEATS_REQUIRED
    changed(story.ports.dispatches.complete(complete_of(1, version=3))[0])
    changed(story.ports.approvals.propose(AGAIN))


@pytest.mark.adr("0033", "7.3")
def test_what_never_started_needs_no_repeats(story: Story) -> None:
    story.consumed()
    changed(story.ports.approvals.cancel(cancel_of(1)))
    changed(story.ports.approvals.propose(AGAIN))


@pytest.mark.adr("0033", "7.3")
def test_another_plan_repeats_nothing(story: Story) -> None:
    story.started()
    changed(story.ports.dispatches.expire(expire_of(1)))
    named = propose_of(2, repeats="dsp-1", risk=Risk.HIGH)
    assert story.ports.approvals.propose(named) is ApprovalRefusal.REPEATS_MISMATCH
    changed(story.ports.approvals.propose(propose_of(2)))
