"""Expire: no answer came, so the outcome stays open and recovery has it at once (W1)."""

from typing import Any

import pytest

from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.tick import tick_of
from tests.contract.adapters import Repositories
from tests.contract.story import (
    Story,
    changed,
    complete_of,
    expire_of,
    fence_of,
    renew_of,
    replayed,
)
from tests.support.builders import LEASE_MS
from tests.support.clock import BOOT_MS


def test_the_lease_ends_now_and_the_scan_begins_now(
    story: Story, repositories: Repositories
) -> None:
    story.started()
    story.clocks.advance(50)
    commits = repositories.commits()
    stored = changed(story.ports.dispatches.expire(expire_of(1)))
    assert repositories.commits() == commits + 1
    now = tick_of(1, BOOT_MS + 50)
    execution, control = story.execution(), story.control()
    assert (execution.status, execution.version) == (ExecutionStatus.EXECUTING, 3)
    assert execution.lease is not None
    assert execution.lease.expires_tick == now
    assert (control.status, control.version) == (ControlStatus.ARMED, 1)
    assert (control.next_scan_tick, control.execution_version, control.lease) == (now, 3, None)
    assert story.record() == stored
    assert story.waits_for_recovery() == ["dsp-1"]
    assert story.due() == []


def test_a_repeated_expiry_replays(story: Story) -> None:
    story.started()
    stored = changed(story.ports.dispatches.expire(expire_of(1)))
    story.clocks.advance(7)
    before = story.repositories.snapshot()
    assert replayed(story.ports.dispatches.expire(expire_of(1))) == stored
    assert story.repositories.snapshot() == before


def test_an_expired_lease_is_handed_over_too(story: Story) -> None:
    story.started()
    story.clocks.advance(2 * LEASE_MS)
    changed(story.ports.dispatches.expire(expire_of(1)))
    lease = story.execution().lease
    assert lease is not None
    assert lease.expires_tick == tick_of(1, BOOT_MS + 2 * LEASE_MS)


@pytest.mark.parametrize("change", [{"owner": "x"}, {"token": "x"}, {"version": 1}])
def test_only_the_fence_hands_over(story: Story, change: dict[str, Any]) -> None:
    stored = story.started()
    wrong = expire_of(1)._replace(fence=fence_of(1, 2)._replace(**change))
    assert story.ports.dispatches.expire(wrong) is DispatchRefusal.FENCE_REJECTED
    assert story.record() == stored


def test_only_an_execution_is_handed_over(story: Story) -> None:
    story.claimed(1)
    story.completed(2)
    for n, version in ((1, 1), (2, 3)):
        answer = story.ports.dispatches.expire(expire_of(n, version))
        assert answer is DispatchRefusal.FENCE_REJECTED
    assert story.ports.dispatches.expire(expire_of(9)) is DispatchRefusal.NOT_FOUND


def test_the_late_answer_counts_under_the_new_fence(story: Story) -> None:
    story.started()
    changed(story.ports.dispatches.expire(expire_of(1)))
    story.clocks.advance(LEASE_MS)
    changed(story.ports.dispatches.complete(complete_of(1, 3))[0])
    assert story.status() is ExecutionStatus.SUCCEEDED
    assert story.waits_for_recovery() == []


def test_a_handed_over_execution_may_be_renewed_by_its_holder(story: Story) -> None:
    story.started()
    changed(story.ports.dispatches.expire(expire_of(1)))
    changed(story.ports.dispatches.renew(renew_of(1, 3)))
    assert story.waits_for_recovery() == []
    assert story.control().execution_version == 4
