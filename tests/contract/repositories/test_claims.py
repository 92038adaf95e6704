"""Claim, renew, and whose a lease is."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.dispatch import ATTEMPTS_EXHAUSTED, DispatchRefusal
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.execution import Outcome
from qinglong_edge.domain.machines import ExecutionStatus
from qinglong_edge.domain.tick import tick_of
from tests.contract.adapters import Ports, Repositories
from tests.contract.story import (
    Story,
    changed,
    claim_of,
    complete_of,
    fence_of,
    only,
    release_of,
    renew_of,
    replayed,
    start_of,
)
from tests.support.builders import LEASE_MS
from tests.support.clock import BOOT_MS, WALL_MS

RIVAL: dict[str, Any] = {"owner": "owner-2", "token": "token-b"}


def claim(ports: Ports, n: int = 1, **changes: Any) -> object:
    answers, started = ports.dispatches.claim_page((claim_of(n, **changes),))
    assert started is None
    return only(list(answers))


def test_a_claim_spends_an_attempt_and_sets_the_lease(story: Story) -> None:
    story.consumed()
    story.clocks.advance(10)
    changed(claim(story.ports))
    held = story.execution()
    end = tick_of(1, BOOT_MS + 10 + LEASE_MS)
    assert (held.status, held.version, held.attempt_count) == (ExecutionStatus.LEASED, 1, 1)
    assert held.lease is not None
    assert held.lease == (claim_of(1).owner, claim_of(1).token, end - LEASE_MS, end)
    assert (held.eligible_tick, held.updated_at_ms) == (end, WALL_MS + 10)
    assert story.due() == []


@pytest.mark.scenario(77)
def test_two_claims_have_one_winner_whose_repeat_replays(
    story: Story, repositories: Repositories
) -> None:
    story.consumed()
    rival = repositories.second_session()
    stored = changed(claim(story.ports))
    assert claim(rival, **RIVAL) is DispatchRefusal.LEASED
    story.clocks.advance(LEASE_MS - 1)
    before = repositories.snapshot()
    assert replayed(claim(story.ports)) == stored
    assert claim(rival, **RIVAL) is DispatchRefusal.LEASED
    assert repositories.snapshot() == before


@pytest.mark.scenario(78, 79)
@pytest.mark.parametrize("change", [RIVAL, {}])
def test_at_its_end_a_lease_is_taken_over(story: Story, change: dict[str, Any]) -> None:
    story.claimed()
    story.clocks.advance(LEASE_MS)
    assert story.due() == ["dsp-1"]
    stored = changed(claim(story.ports, **change))
    held = story.execution()
    assert (held.version, held.attempt_count) == (2, 2)
    assert held.lease is not None
    assert held.lease.owner == change.get("owner", "owner-1")
    assert story.record() == stored


@pytest.mark.scenario(80)
def test_a_waiting_dispatch_is_claimed_at_its_time(story: Story) -> None:
    story.claimed()
    changed(story.ports.dispatches.release(release_of(1)))
    story.clocks.advance(999)
    assert claim(story.ports) is DispatchRefusal.NOT_DUE
    assert story.due() == []
    story.clocks.advance(1)
    assert story.due() == ["dsp-1"]
    changed(claim(story.ports))
    held = story.execution()
    assert (held.result_mutation_id, held.last_result_code) == (None, "busy")


@pytest.mark.scenario(81)
def test_a_spent_budget_blocks_at_the_next_claim(story: Story) -> None:
    story.consumed()
    for _ in range(limits.ATTEMPTS_DEFAULT):
        changed(claim(story.ports))
        story.clocks.advance(LEASE_MS)
    assert story.execution().attempt_count == limits.ATTEMPTS_DEFAULT
    changed(claim(story.ports))
    ended = story.execution()
    assert ended.status is ExecutionStatus.BLOCKED
    assert ended.result_mutation_id == f"exhausted:{limits.ATTEMPTS_DEFAULT}"
    assert ended.last_result_code == ATTEMPTS_EXHAUSTED
    assert ended.attempt_count == limits.ATTEMPTS_DEFAULT
    assert ended.completed_at_ms == ended.updated_at_ms == story.clocks.wall_ms
    assert claim(story.ports) is DispatchRefusal.ALREADY_TERMINAL
    assert story.due() == []


@pytest.mark.adr("0033", "1.2")
@pytest.mark.adr("0033", "1.3")
@pytest.mark.scenario(74, 82)
def test_what_executes_is_never_claimed(story: Story) -> None:
    stored = story.started()
    assert claim(story.ports, **RIVAL) is DispatchRefusal.EXECUTING
    assert claim(story.ports) is DispatchRefusal.EXECUTING
    story.clocks.advance(LEASE_MS)
    assert claim(story.ports, **RIVAL) is DispatchRefusal.RECOVERY_REQUIRED
    story.clocks.advance(86_400_000)
    assert claim(story.ports) is DispatchRefusal.RECOVERY_REQUIRED
    assert story.due() == []
    story.clocks.reboot()
    assert story.due() == []
    assert story.record() == stored


@pytest.mark.scenario(83)
@pytest.mark.parametrize("outcome", list(Outcome))
def test_what_has_ended_is_never_claimed(story: Story, outcome: Outcome) -> None:
    story.completed(outcome=outcome)
    before = story.repositories.snapshot()
    story.clocks.advance(LEASE_MS)
    assert claim(story.ports, **RIVAL) is DispatchRefusal.ALREADY_TERMINAL
    assert story.due() == []
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(84)
def test_an_unknown_dispatch_is_not_found(story: Story) -> None:
    story.consumed()
    assert claim(story.ports, 9) is DispatchRefusal.NOT_FOUND
    assert claim(story.ports, dispatch_id="apr-1") is DispatchRefusal.NOT_FOUND


@pytest.mark.scenario(84)
@pytest.mark.parametrize(
    "change",
    [
        {"lease_ms": 0},
        {"lease_ms": limits.LEASE_MS_MAX + 1},
        {"owner": "x" * 129},
        {"owner": "a b"},
        {"token": ""},
    ],
)
def test_a_malformed_claim_spoils_its_whole_page(story: Story, change: dict[str, Any]) -> None:
    story.consumed(1)
    story.consumed(2)
    with pytest.raises(UsageError):
        story.ports.dispatches.claim_page((claim_of(1), claim_of(2, **change)))
    assert story.status(1) is ExecutionStatus.PENDING


@pytest.mark.parametrize("lease_ms", [1, limits.LEASE_MS_MAX])
def test_a_lease_is_as_long_as_asked_for(story: Story, lease_ms: int) -> None:
    story.consumed()
    changed(claim(story.ports, lease_ms=lease_ms))
    lease = story.execution().lease
    assert lease is not None
    assert lease.expires_tick - lease.from_tick == lease_ms


def test_a_page_is_claimed_in_one_commit_and_each_item_answers(
    story: Story, repositories: Repositories
) -> None:
    story.claimed(1)
    story.consumed(2)
    story.completed(3)
    commits = repositories.commits()
    page = (claim_of(1, **RIVAL), claim_of(2), claim_of(3), claim_of(4))
    answers, _ = story.ports.dispatches.claim_page(page)
    assert answers[0] is DispatchRefusal.LEASED
    changed(answers[1])
    assert answers[2:] == (DispatchRefusal.ALREADY_TERMINAL, DispatchRefusal.NOT_FOUND)
    assert repositories.commits() == commits + 1


def test_a_page_without_a_change_is_no_commit(story: Story, repositories: Repositories) -> None:
    story.claimed(1)
    commits = repositories.commits()
    assert claim(story.ports, **RIVAL) is DispatchRefusal.LEASED
    replayed(claim(story.ports))
    assert story.ports.dispatches.claim_page(()) == ((), None)
    assert repositories.commits() == commits


def test_the_claim_of_a_page_carries_the_first_barrier(
    story: Story, repositories: Repositories
) -> None:
    story.consumed(1)
    story.consumed(2)
    commits = repositories.commits()
    page = (claim_of(1), claim_of(2))
    answers, started = story.ports.dispatches.claim_page(page, start_of(1))
    for answer in answers:
        changed(answer)
    assert changed(started) == story.record(1)
    assert (story.status(1), story.status(2)) == (ExecutionStatus.EXECUTING, ExecutionStatus.LEASED)
    assert (story.execution(1).version, story.execution(1).attempt_count) == (2, 1)
    assert repositories.commits() == commits + 1
    again, started = story.ports.dispatches.claim_page(page, start_of(1))
    assert again[0] is DispatchRefusal.EXECUTING
    replayed(again[1])
    replayed(started)
    assert repositories.commits() == commits + 1


def test_a_refused_barrier_leaves_the_claims(story: Story) -> None:
    story.consumed(1)
    wrong = start_of(1, approval_request_id="apr-2")
    answers, started = story.ports.dispatches.claim_page((claim_of(1),), wrong)
    changed(only(list(answers)))
    assert started is DispatchRefusal.BINDING_CONFLICT
    assert story.status(1) is ExecutionStatus.LEASED


@pytest.mark.scenario(95)
def test_a_renewed_lease_moves_its_end_and_spends_nothing(story: Story) -> None:
    story.claimed()
    story.clocks.advance(LEASE_MS // 2)
    stored = changed(story.ports.dispatches.renew(renew_of(1, 1)))
    held = story.execution()
    end = tick_of(1, BOOT_MS + LEASE_MS // 2 + LEASE_MS)
    assert (held.version, held.attempt_count, held.eligible_tick) == (2, 1, end)
    assert held.lease is not None
    assert held.lease.expires_tick == end
    assert replayed(story.ports.dispatches.renew(renew_of(1, 1))) == stored


@pytest.mark.scenario(95)
def test_a_renewal_never_brings_the_end_closer(story: Story) -> None:
    story.claimed()
    before = story.execution().lease
    changed(story.ports.dispatches.renew(renew_of(1, 1, lease_ms=1)))
    after = story.execution().lease
    assert before is not None
    assert after is not None
    assert after.expires_tick == before.expires_tick


@pytest.mark.scenario(94)
def test_an_expired_lease_is_renewed_while_nobody_replaced_it(story: Story) -> None:
    story.started(1)
    story.claimed(2)
    story.clocks.advance(2 * LEASE_MS)
    changed(story.ports.dispatches.renew(renew_of(1, 2)))
    assert story.status(1) is ExecutionStatus.EXECUTING
    assert story.waits_for_recovery() == []
    changed(claim(story.ports, 2, **RIVAL))
    late = story.ports.dispatches.renew(renew_of(2, 1))
    assert late is DispatchRefusal.FENCE_REJECTED


@pytest.mark.scenario(96)
@pytest.mark.parametrize("change", [{"owner": "x"}, {"token": "x"}, {"version": 0}, {"version": 3}])
def test_only_the_holder_renews(story: Story, change: dict[str, Any]) -> None:
    stored = story.started()
    wrong = renew_of(1, 2, fence=fence_of(1, 2)._replace(**change))
    assert story.ports.dispatches.renew(wrong) is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored


def test_only_a_held_lease_is_renewed(story: Story) -> None:
    story.consumed(1)
    story.completed(2)
    for n, version in ((1, 0), (2, 3)):
        answer = story.ports.dispatches.renew(renew_of(n, version))
        assert answer is DispatchRefusal.FENCE_REJECTED
    missing = story.ports.dispatches.renew(renew_of(9, 1))
    assert missing is DispatchRefusal.NOT_FOUND


@pytest.mark.scenario(78)
def test_a_replaced_holder_can_do_nothing_more(story: Story) -> None:
    story.claimed()
    story.clocks.advance(LEASE_MS)
    stored = changed(claim(story.ports, **RIVAL))
    dispatches = story.ports.dispatches
    assert dispatches.start(start_of(1)) is DispatchRefusal.FENCE_REJECTED
    assert dispatches.release(release_of(1)) is DispatchRefusal.FENCE_REJECTED
    assert dispatches.complete(complete_of(1, 1))[0] is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored
