"""The right to look: one winner, takeover at its end, stale fences, and what a look leaves."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.backoff import next_scan_ms
from qinglong_edge.domain.dispatch import DispatchRefusal
from qinglong_edge.domain.errors import UsageError
from qinglong_edge.domain.evidence import EVIDENCE_EXHAUSTED, Evidence
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Finding, Observation, RecoveryRefusal
from qinglong_edge.domain.tick import tick_of
from qinglong_edge.ports.repositories import Listing, Queue
from tests.contract.adapters import Repositories
from tests.contract.recovery_story import (
    MISSING,
    PROOF,
    UNSUPPORTED,
    VERIFIED,
    evidence_of,
    observe_of,
    person_of,
    renew_scan_of,
    scan_fence,
    scan_of,
    scanned,
    strong,
    unknown,
)
from tests.contract.story import (
    Story,
    changed,
    complete_of,
    names,
    renew_of,
    replayed,
    start_of,
)
from tests.support.builders import LEASE_MS
from tests.support.clock import BOOT_MS, WALL_MS

RIVAL = {"owner": "resolver-2", "token": "probe-x"}
RUNNING = Evidence(Finding.STILL_RUNNING, "still_there")
AWAY = Evidence(Finding.UNAVAILABLE, "recovery_evidence_unavailable", PROOF)
CONFLICT = Evidence(Finding.CONFLICT, "recovery_evidence_invalid")


@pytest.mark.adr("0033", "5.3")
@pytest.mark.scenario(131)
def test_of_two_resolvers_one_looks_and_at_the_end_another_takes_over(
    story: Story, repositories: Repositories
) -> None:
    unknown(story)
    other = repositories.second_session().recoveries
    won = changed(story.ports.recoveries.claim(scan_of(1)))
    assert other.claim(scan_of(1, **RIVAL)) is RecoveryRefusal.LEASED
    assert replayed(story.ports.recoveries.claim(scan_of(1))) == won
    story.clocks.advance(LEASE_MS - 1)
    assert other.claim(scan_of(1, **RIVAL)) is RecoveryRefusal.LEASED
    story.clocks.advance(1)
    taken = changed(other.claim(scan_of(1, **RIVAL)))
    assert story.record() == taken
    lease = story.control().lease
    assert lease is not None
    assert (lease.owner, lease.token) == ("resolver-2", "probe-x")
    assert story.ports.recoveries.claim(scan_of(1)) is RecoveryRefusal.LEASED


@pytest.mark.adr("0033", "5.3")
def test_a_claimed_scan_grants_nothing_of_the_execution(story: Story) -> None:
    before = unknown(story)
    stored = changed(story.ports.recoveries.claim(scan_of(1)))
    control = story.control()
    assert before.progress is not None
    assert stored.progress is not None
    assert stored.progress.execution == before.progress.execution
    assert (control.status, control.version) == (ControlStatus.LEASED, 2)
    end = tick_of(1, BOOT_MS + LEASE_MS)
    assert (control.next_scan_tick, control.finding_count) == (end, 0)
    assert story.ports.dispatches.start(start_of(1)) is DispatchRefusal.FENCE_REJECTED
    assert story.due() == []
    assert story.status() is ExecutionStatus.EXECUTING


@pytest.mark.scenario(132)
@pytest.mark.parametrize(("early", "refusal"), [(1, RecoveryRefusal.EXECUTION_ACTIVE), (0, None)])
def test_a_look_begins_at_the_end_of_the_execution_lease(
    story: Story, early: int, refusal: RecoveryRefusal | None
) -> None:
    story.started()
    story.clocks.advance(LEASE_MS - early)
    before = story.repositories.snapshot()
    answer = story.ports.recoveries.claim(scan_of(1))
    if refusal is None:
        changed(answer)
    else:
        assert answer is refusal
        assert story.repositories.snapshot() == before


@pytest.mark.scenario(143)
def test_what_has_no_control_is_not_found(story: Story) -> None:
    story.consumed(1)
    story.claimed(2)
    story.proposed(3)
    before = story.repositories.snapshot()
    for n in (1, 2, 3, 9):
        assert story.ports.recoveries.claim(scan_of(n)) is RecoveryRefusal.NOT_FOUND
        assert story.ports.recoveries.observe(observe_of(n)) is RecoveryRefusal.NOT_FOUND
    assert story.ports.recoveries.renew(renew_scan_of(9)) is RecoveryRefusal.NOT_FOUND
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(109, 130)
def test_what_ended_or_waits_for_a_person_is_not_claimed(story: Story) -> None:
    story.completed(1)
    scanned(story, 2)
    changed(story.ports.recoveries.observe(observe_of(2, evidence=UNSUPPORTED)))
    story.clocks.advance(86_400_000)
    claim = story.ports.recoveries.claim
    assert claim(scan_of(1)) is RecoveryRefusal.ALREADY_TERMINAL
    assert claim(scan_of(2)) is RecoveryRefusal.MANUAL_REQUIRED
    assert story.waits_for_recovery() == []


@pytest.mark.adr("0033", "5.4")
@pytest.mark.scenario(133, 136)
@pytest.mark.parametrize("evidence", [MISSING, RUNNING, AWAY])
def test_a_finding_counts_and_moves_the_next_scan_and_nothing_else(
    story: Story, evidence: Evidence
) -> None:
    scanned(story)
    execution = story.execution()
    story.clocks.advance(7)
    stored = changed(story.ports.recoveries.observe(observe_of(1, evidence=evidence)))
    control = story.control()
    assert story.execution() == execution
    assert (control.status, control.version, control.lease) == (ControlStatus.ARMED, 3, None)
    assert control.next_scan_tick == tick_of(1, BOOT_MS + 7 + limits.SCAN_BASE_MS)
    assert (control.finding_count, control.last) == (1, Observation("see-1", *evidence))
    assert control.updated_at_ms == WALL_MS + 7
    story.clocks.advance(1)
    before = story.repositories.snapshot()
    assert replayed(story.ports.recoveries.observe(observe_of(1, evidence=evidence))) == stored
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(133)
def test_after_a_finding_the_next_look_is_due_at_its_time_and_not_before(story: Story) -> None:
    scanned(story)
    changed(story.ports.recoveries.observe(observe_of(1)))
    story.clocks.advance(limits.SCAN_BASE_MS - 1)
    assert story.waits_for_recovery() == []
    assert story.ports.recoveries.claim(scan_of(1)) is RecoveryRefusal.NOT_DUE
    story.clocks.advance(1)
    assert story.waits_for_recovery() == ["dsp-1"]
    changed(story.ports.recoveries.claim(scan_of(1)))


@pytest.mark.adr("0033", "5.6")
@pytest.mark.scenario(134, 135)
@pytest.mark.parametrize("evidence", [CONFLICT, UNSUPPORTED])
def test_what_nobody_can_tell_waits_for_a_person_and_stays_executing(
    story: Story, evidence: Evidence
) -> None:
    scanned(story)
    changed(story.ports.recoveries.observe(observe_of(1, evidence=evidence)))
    control = story.control()
    assert control.status is ControlStatus.MANUAL_REQUIRED
    assert (control.next_scan_tick, control.lease, control.finding_count) == (None, None, 1)
    assert story.status() is ExecutionStatus.EXECUTING
    story.clocks.advance(365 * 86_400_000)
    assert story.waits_for_recovery() == []
    waiting = story.ports.approvals.page(Listing(Queue.MANUAL_REQUIRED, None, 64))
    assert names(waiting.items) == ["dsp-1"]


def look(story: Story, nth: int) -> None:
    """Claim a due scan and find nothing."""
    held = story.control().version
    changed(story.ports.recoveries.claim(scan_of(1)))
    event = observe_of(1, held + 1, mutation_id=f"look-{nth}")
    changed(story.ports.recoveries.observe(event))


@pytest.mark.adr("0033", "5.4")
@pytest.mark.scenario(164)
def test_looks_come_ever_later_and_the_sixteenth_calls_a_person(story: Story) -> None:
    unknown(story)
    waited = []
    for nth in range(1, limits.FINDINGS_MAX):
        look(story, nth)
        waited.append(next_scan_ms(nth))
        story.clocks.advance(waited[-1])
    assert waited[:4] == [5_000, 10_000, 20_000, 40_000]
    assert waited[-1] == limits.SCAN_MS_MAX
    look(story, limits.FINDINGS_MAX)
    control = story.control()
    assert control.last is not None
    assert (control.status, control.finding_count) == (ControlStatus.MANUAL_REQUIRED, 16)
    assert (control.last.finding, control.last.result_code) == (Finding.MISSING, EVIDENCE_EXHAUSTED)
    assert story.status() is ExecutionStatus.EXECUTING


@pytest.mark.scenario(140)
@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"evidence": RUNNING}, RecoveryRefusal.MUTATION_DRIFT),
        ({"evidence": MISSING._replace(result_code="other")}, RecoveryRefusal.MUTATION_DRIFT),
        ({"evidence": MISSING._replace(evidence_digest=PROOF)}, RecoveryRefusal.MUTATION_DRIFT),
        ({"mutation_id": "see-2"}, RecoveryRefusal.FENCE_REJECTED),
    ],
)
def test_a_finding_that_says_something_else_is_no_repeat(
    story: Story, change: dict[str, Any], refusal: RecoveryRefusal
) -> None:
    scanned(story)
    changed(story.ports.recoveries.observe(observe_of(1)))
    before = story.repositories.snapshot()
    assert story.ports.recoveries.observe(observe_of(1, **change)) is refusal
    assert story.repositories.snapshot() == before


WRONG = [{"owner": "x"}, {"token": "x"}, {"execution_version": 2}, {"recovery_version": 1}]


@pytest.mark.adr("0033", "5.3")
@pytest.mark.scenario(138, 152)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_stale_resolver_changes_nothing(story: Story, wrong: dict[str, Any]) -> None:
    scanned(story)
    fence = scan_fence(1, 2)._replace(**wrong)
    before = story.repositories.snapshot()
    recoveries = story.ports.recoveries
    for answer in (
        recoveries.observe(observe_of(1, fence=fence)),
        recoveries.renew(renew_scan_of(1, fence=fence, lease_ms=2 * LEASE_MS)),
        recoveries.resolve_by_evidence(evidence_of(1, fence=fence)),
    ):
        assert answer is RecoveryRefusal.FENCE_REJECTED
    assert story.repositories.snapshot() == before


@pytest.mark.adr("0033", "5.3")
@pytest.mark.adr("0033", "5.8")
@pytest.mark.scenario(138)
def test_a_renewed_execution_sends_its_resolver_away(
    story: Story, repositories: Repositories
) -> None:
    scanned(story)
    handler = repositories.second_session().dispatches
    changed(handler.renew(renew_of(1, 3)))
    recoveries = story.ports.recoveries
    assert recoveries.observe(observe_of(1)) is RecoveryRefusal.FENCE_REJECTED
    assert recoveries.resolve_by_evidence(evidence_of(1)) is RecoveryRefusal.FENCE_REJECTED
    assert recoveries.claim(scan_of(1)) is RecoveryRefusal.EXECUTION_ACTIVE
    assert story.waits_for_recovery() == []


@pytest.mark.scenario(139)
@pytest.mark.parametrize("taken", [False, True])
def test_a_slow_resolver_counts_until_somebody_replaced_it(
    story: Story, repositories: Repositories, *, taken: bool
) -> None:
    scanned(story)
    story.clocks.advance(LEASE_MS)
    if taken:
        changed(repositories.second_session().recoveries.claim(scan_of(1, **RIVAL)))
        late = story.ports.recoveries.observe(observe_of(1))
        assert late is RecoveryRefusal.FENCE_REJECTED
    else:
        changed(story.ports.recoveries.observe(observe_of(1)))


@pytest.mark.adr("0033", "5.3")
def test_a_held_scan_is_prolonged_and_never_cut_short(story: Story) -> None:
    scanned(story)
    commits = story.repositories.commits()
    story.clocks.advance(LEASE_MS // 2)
    stored = changed(story.ports.recoveries.renew(renew_scan_of(1)))
    control, end = story.control(), tick_of(1, BOOT_MS + LEASE_MS // 2 + LEASE_MS)
    assert control.lease is not None
    assert (control.lease.expires_tick, control.next_scan_tick, control.version) == (end, end, 3)
    assert replayed(story.ports.recoveries.renew(renew_scan_of(1))) == stored
    assert story.repositories.commits() == commits + 1
    changed(story.ports.recoveries.renew(renew_scan_of(1, 3, lease_ms=1)))
    lease = story.control().lease
    assert lease is not None
    assert lease.expires_tick == end
    old = story.ports.recoveries.observe(observe_of(1, 3))
    assert old is RecoveryRefusal.FENCE_REJECTED
    changed(story.ports.recoveries.observe(observe_of(1, 4)))


def test_a_reboot_ends_every_look(story: Story, repositories: Repositories) -> None:
    scanned(story)
    story.clocks.reboot()
    assert story.waits_for_recovery() == ["dsp-1"]
    changed(repositories.second_session().recoveries.claim(scan_of(1, **RIVAL)))
    assert story.ports.recoveries.observe(observe_of(1)) is RecoveryRefusal.FENCE_REJECTED


@pytest.mark.scenario(130)
def test_only_what_is_due_for_a_look_is_listed(story: Story) -> None:
    """1 is looked at, 2 was found missing, 3 waits for a person, 4 and 5 ended, 6 lives, 7 is."""
    for n in (1, 2, 3, 4):
        scanned(story, n)
    changed(story.ports.recoveries.observe(observe_of(2)))
    changed(story.ports.recoveries.observe(observe_of(3, evidence=UNSUPPORTED)))
    changed(story.ports.recoveries.resolve_by_evidence(evidence_of(4)))
    unknown(story, 5)
    changed(story.ports.recoveries.resolve_by_person(person_of(5, strong(story.clocks))))
    story.started(6)
    unknown(story, 7)
    assert story.waits_for_recovery() == ["dsp-7"]


@pytest.mark.adr("0033", "5.9")
@pytest.mark.scenario(129)
def test_the_list_follows_the_next_scan_and_then_the_action(
    story: Story, repositories: Repositories
) -> None:
    for n in (3, 1, 2, 4):
        unknown(story, n)
    for n in (3, 1):
        changed(story.ports.recoveries.claim(scan_of(n)))
        changed(story.ports.recoveries.observe(observe_of(n)))
    story.clocks.advance(limits.SCAN_BASE_MS)
    before, read = repositories.snapshot(), repositories.second_session().recoveries.list_due
    seen, after = [], None
    for _ in range(4):
        page = read(after, 1)
        seen += names(page.items)
        after = page.cursor
    assert (seen, after) == (["dsp-2", "dsp-4", "dsp-3", "dsp-1"], None)
    assert names(read(None, 3).items) == ["dsp-2", "dsp-4", "dsp-3"]
    assert repositories.snapshot() == before


@pytest.mark.scenario(137)
@pytest.mark.parametrize("event", [VERIFIED, Evidence(Finding.VERIFIED_FAILED, "failed", PROOF)])
def test_what_is_verified_settles_and_is_no_finding(story: Story, event: Evidence) -> None:
    scanned(story)
    with pytest.raises(UsageError):
        story.ports.recoveries.observe(observe_of(1, evidence=event))
    with pytest.raises(UsageError):
        story.ports.recoveries.resolve_by_evidence(evidence_of(1, evidence=MISSING))


@pytest.mark.parametrize("lease_ms", [0, limits.LEASE_MS_MAX + 1])
def test_a_scan_lease_has_its_bounds(story: Story, lease_ms: int) -> None:
    unknown(story)
    with pytest.raises(UsageError):
        story.ports.recoveries.claim(scan_of(1, lease_ms=lease_ms))
    with pytest.raises(UsageError):
        story.ports.recoveries.renew(renew_scan_of(1, lease_ms=lease_ms))


@pytest.mark.adr("0033", "6.1")
def test_an_answer_that_comes_while_somebody_looks_wins(
    story: Story, repositories: Repositories
) -> None:
    scanned(story)
    handler = repositories.second_session().dispatches
    changed(handler.complete(complete_of(1, 3))[0])
    recoveries = story.ports.recoveries
    assert recoveries.observe(observe_of(1)) is RecoveryRefusal.FENCE_REJECTED
    assert recoveries.renew(renew_scan_of(1)) is RecoveryRefusal.FENCE_REJECTED
    assert (story.control().finding_count, story.record().resolution) == (0, None)
