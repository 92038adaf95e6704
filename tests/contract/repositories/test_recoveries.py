"""The armed control, its following of the lease, and the list of what is due for a look."""

import pytest

from qinglong_edge.domain.machines import ControlStatus
from qinglong_edge.domain.tick import tick_of
from qinglong_edge.ports.repositories import Listing, Queue
from tests.contract.adapters import Repositories
from tests.contract.story import Story, changed, complete_of, expire_of, names, renew_of, start_of
from tests.support.builders import LEASE_MS
from tests.support.clock import BOOT_MS


@pytest.mark.adr("0033", "1.1")
@pytest.mark.scenario(129, 132)
@pytest.mark.parametrize(("ms", "found"), [(LEASE_MS - 1, []), (LEASE_MS, ["dsp-1"])])
def test_an_execution_waits_for_recovery_from_the_end_of_its_lease(
    story: Story, ms: int, found: list[str]
) -> None:
    story.started()
    story.clocks.advance(ms)
    assert story.waits_for_recovery() == found


@pytest.mark.scenario(129)
def test_the_expired_are_listed_in_order_and_the_live_never(story: Story) -> None:
    for n in (2, 1):
        story.started(n)
        story.clocks.advance(1)
    story.clocks.advance(LEASE_MS)
    story.started(3)
    page = story.ports.recoveries.list_due(None, 1)
    assert names(page.items) == ["dsp-2"]
    rest = story.ports.recoveries.list_due(page.cursor, 1)
    assert (names(rest.items), rest.cursor) == (["dsp-1"], None)


@pytest.mark.scenario(130)
def test_what_ended_or_never_started_is_not_listed(story: Story) -> None:
    story.completed(1)
    story.claimed(2)
    story.consumed(3)
    story.clocks.advance(2 * LEASE_MS)
    assert story.waits_for_recovery() == []


@pytest.mark.adr("0033", "5.8")
@pytest.mark.scenario(97)
def test_a_renewal_moves_the_scan_with_the_lease(story: Story) -> None:
    story.started()
    story.clocks.advance(LEASE_MS)
    changed(story.ports.dispatches.renew(renew_of(1, 2)))
    control, lease = story.control(), story.execution().lease
    assert lease is not None
    assert (control.status, control.version, control.execution_version) == (
        ControlStatus.ARMED,
        1,
        3,
    )
    assert control.next_scan_tick == lease.expires_tick
    assert lease.expires_tick == tick_of(1, BOOT_MS + 2 * LEASE_MS)
    assert story.waits_for_recovery() == []
    story.clocks.advance(LEASE_MS)
    assert story.waits_for_recovery() == ["dsp-1"]


@pytest.mark.scenario(129)
def test_a_long_wait_is_listed_without_end_and_without_a_write(story: Story) -> None:
    story.started()
    story.clocks.advance(LEASE_MS)
    before = story.repositories.snapshot()
    for _ in range(3):
        story.clocks.advance(86_400_000)
        assert story.waits_for_recovery() == ["dsp-1"]
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(109)
def test_a_verdict_takes_an_execution_off_the_list(story: Story) -> None:
    story.started(1)
    story.started(2)
    for n in (1, 2):
        changed(story.ports.dispatches.expire(expire_of(n)))
    changed(story.ports.dispatches.complete(complete_of(1, 3))[0])
    assert story.waits_for_recovery() == ["dsp-2"]
    assert story.control(1).status is ControlStatus.RESOLVED


def test_the_lists_of_people_and_of_the_phase_agree(
    story: Story, repositories: Repositories
) -> None:
    story.claimed(1, 2)
    changed(story.ports.dispatches.start(start_of(1)))
    changed(story.ports.dispatches.start(start_of(2)))
    changed(story.ports.dispatches.expire(expire_of(1)))
    shown = repositories.second_session().approvals
    due = shown.page(Listing(Queue.RECOVERY_DUE, None, 64))
    assert names(due.items) == story.waits_for_recovery() == ["dsp-1"]
    running = shown.page(Listing(Queue.EXECUTING, None, 64))
    assert names(running.items) == ["dsp-1", "dsp-2"]
    assert shown.page(Listing(Queue.MANUAL_REQUIRED, None, 64)).items == []
