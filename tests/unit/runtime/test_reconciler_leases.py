"""What a page of looks costs, survives and leaves: its lease, staged faults, stops, damage."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import RowDamagedError, UnavailableError
from qinglong_edge.domain.evidence import Evidence
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Finding
from qinglong_edge.ports.evidence import EvidenceContext
from qinglong_edge.runtime.reconciler import COUNTERS
from tests.contract.adapters import Fault, SqliteRepositories
from tests.contract.recovery_story import MISSING, VERIFIED, unknown
from tests.contract.story import Story, changed, renew_of
from tests.unit.runtime.carrying import until
from tests.unit.runtime.looking import HandClocks, Provider, lookout, unknown_publish

ONE_LOOK = {"scanned": 1, "claimed": 1}
LOOK_MS = 80


def missing(_context: EvidenceContext) -> Evidence:
    return MISSING


def verified(_context: EvidenceContext) -> Evidence:
    return VERIFIED


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave next to no slack in a lease, so that a look can outlive its half."""
    monkeypatch.setattr(limits, "PAGE_SLACK_MS", 1)


def test_a_lease_covers_the_look_and_its_commits(story: Story) -> None:
    seen: list[int] = []

    def looks(_context: EvidenceContext) -> Evidence:
        lease = story.control().lease
        assert lease is not None
        seen.append(lease.expires_tick - lease.from_tick)
        return MISSING

    unknown_publish(story)
    lookout(story, Provider(looks), look_ms=2_000).page()
    story.clocks.advance(5_000)
    lookout(story, Provider(looks), look_ms=limits.HANDLER_DEADLINE_MS_MAX).page()
    assert seen == [2_000 + limits.PAGE_SLACK_MS, limits.LEASE_MS_MAX]


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(
    ("answer", "counter"), [(VERIFIED, "verified_succeeded"), (MISSING, "deferred")]
)
def test_a_lease_is_renewed_at_its_half_and_the_finding_speaks_under_it(
    story: Story, answer: Evidence, counter: str
) -> None:
    clocks = HandClocks(story.clocks)
    ends: list[int] = []

    def patient(_context: EvidenceContext) -> Evidence:
        before = story.control()
        clocks.advance(LOOK_MS // 2)
        assert until(lambda: story.control().version == before.version + 1)
        after = story.control()
        assert before.lease is not None
        assert after.lease is not None
        ends.append(after.lease.expires_tick - before.lease.expires_tick)
        return answer

    unknown_publish(story)
    looking = lookout(story, Provider(patient), clocks=clocks, look_ms=LOOK_MS)
    assert looking.counts() == {**ONE_LOOK, counter: 1}
    assert looking.recoveries.calls[:3] == ["list_due", "claim", "renew"]
    assert ends == [LOOK_MS // 2]


@pytest.mark.usefixtures("tight")
@pytest.mark.adr("0033", "5.3")
@pytest.mark.scenario(97, 138)
@pytest.mark.parametrize("answer", [VERIFIED, MISSING])
def test_where_the_executor_is_back_the_look_counts_for_nothing(
    story: Story, answer: Evidence
) -> None:
    """The renewal of its scan lease is refused, and so is what it says in the end."""
    clocks = HandClocks(story.clocks)

    def overtaken(_context: EvidenceContext) -> Evidence:
        changed(story.ports.dispatches.renew(renew_of(1, 3)))
        clocks.advance(LOOK_MS // 2)
        assert until(lambda: "renew" in looking.recoveries.calls)
        return answer

    unknown_publish(story)
    looking = lookout(story, Provider(overtaken), clocks=clocks, look_ms=LOOK_MS)
    assert looking.counts() == {**ONE_LOOK, "deferred": 1}
    control = story.control()
    assert (control.status, control.finding_count) == (ControlStatus.ARMED, 0)
    assert story.status() is ExecutionStatus.EXECUTING
    assert story.waits_for_recovery() == []


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.NOT_DONE, Fault.LOST_ANSWER])
def test_a_renewal_that_fails_leaves_the_finding_to_its_fence(
    stored: Story, sqlite: SqliteRepositories, fault: Fault
) -> None:
    clocks = HandClocks(stored.clocks)

    def patient(_context: EvidenceContext) -> Evidence:
        sqlite.fail_next_commit(fault)
        clocks.advance(LOOK_MS // 2)
        assert until(lambda: "renew" in looking.recoveries.calls)
        assert until(lambda: sqlite.database.connection.fault is None)  # type: ignore[attr-defined]
        return VERIFIED

    unknown_publish(stored)
    looking = lookout(stored, Provider(patient), clocks=clocks, look_ms=LOOK_MS)
    assert looking.counts() == {**ONE_LOOK, "verified_succeeded": 1}


@pytest.mark.usefixtures("tight")
def test_a_row_that_is_damaged_while_somebody_looks_stops_nobody_else(story: Story) -> None:
    clocks = HandClocks(story.clocks)

    def spoils(context: EvidenceContext) -> Evidence:
        if context.idempotency_key == "dsp-1":
            story.repositories.damage("apr-1")
            clocks.advance(LOOK_MS // 2)
            assert until(lambda: "renew" in looking.recoveries.calls)
        return VERIFIED

    unknown_publish(story, 1)
    unknown(story, 2)
    looking = lookout(story, Provider(spoils), clocks=clocks, look_ms=LOOK_MS)
    assert looking.counts() == {
        "scanned": 2, "claimed": 2, "unavailable": 1, "manual_required": 1,
    }  # fmt: skip


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize(
    ("answer", "counter"), [(VERIFIED, "verified_succeeded"), (MISSING, "deferred")]
)
def test_a_renewal_that_meets_damage_does_not_end_the_look(
    story: Story, answer: Evidence, counter: str
) -> None:
    """W9: whether the finding counts is the store's to say, when it is recorded."""
    clocks = HandClocks(story.clocks)

    def patient(_context: EvidenceContext) -> Evidence:
        clocks.advance(LOOK_MS // 2)
        assert until(lambda: "renew" in looking.recoveries.calls)
        return answer

    unknown_publish(story)
    looking = lookout(story, Provider(patient), clocks=clocks, look_ms=LOOK_MS)
    looking.recoveries.errors["renew"] = RowDamagedError("row_damaged", "no")
    assert looking.counts() == {**ONE_LOOK, counter: 1}


@pytest.mark.parametrize("look_ms", [2_000, limits.HANDLER_DEADLINE_MS_MAX])
def test_a_look_may_take_as_long_as_its_type_was_given(
    story: Story, monkeypatch: pytest.MonkeyPatch, look_ms: int
) -> None:
    """The lease that it is taken under may be shorter: it is renewed at its half."""
    seen: list[int] = []
    unknown_publish(story)
    looking = lookout(story, Provider(missing), look_ms=look_ms)
    call = looking.desk.outstanding.call

    def noted(*args: Any, **options: Any) -> object:
        seen.append(options["deadline_ms"])
        return call(*args, **options)

    monkeypatch.setattr(looking.desk.outstanding, "call", noted)
    assert looking.counts() == {**ONE_LOOK, "deferred": 1}
    assert seen == [look_ms]


@pytest.mark.scenario(163)
def test_a_page_is_one_list_call_and_every_counter(story: Story) -> None:
    before = story.repositories.snapshot()
    looking = lookout(story)
    done = looking.page()
    assert done.counts == dict.fromkeys(COUNTERS, 0)
    assert (done.cursor, done.stopped) == (None, False)
    assert looking.recoveries.calls == ["list_due"]
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(207)
def test_what_listing_raises_goes_up(story: Story) -> None:
    unknown_publish(story)
    looking = lookout(story, Provider(verified))
    looking.recoveries.errors["list_due"] = UnavailableError("store_busy", "no")
    with pytest.raises(UnavailableError):
        looking.page()
    assert looking.recoveries.calls == ["list_due"]


@pytest.mark.adr("0004", "2")
@pytest.mark.parametrize(
    ("answer", "counter"), [(VERIFIED, "verified_succeeded"), (MISSING, "deferred")]
)
def test_a_look_is_two_commits(stored: Story, answer: Evidence, counter: str) -> None:
    unknown_publish(stored, 1, 2, 3)
    first = stored.repositories.commits()
    counts = lookout(stored, Provider(lambda _: answer)).counts()
    assert counts == {"scanned": 3, "claimed": 3, counter: 3}
    assert stored.repositories.commits() - first == 6


@pytest.mark.adr("0033", "6.3")
@pytest.mark.scenario(155, 165)
@pytest.mark.parametrize("fault", [Fault.FULL, Fault.NEVER_DONE])
def test_a_claim_that_is_not_stored_looks_at_nothing(
    stored: Story, sqlite: SqliteRepositories, fault: Fault
) -> None:
    unknown_publish(stored, 1)
    provider = Provider(verified)
    before = stored.repositories.snapshot()
    sqlite.fail_next_commit(fault)
    assert lookout(stored, provider).counts() == {"scanned": 1, "unavailable": 1}
    assert provider.asked == []
    assert stored.repositories.snapshot() == before
    assert stored.waits_for_recovery() == ["dsp-1"]


@pytest.mark.adr("0033", "6.3")
@pytest.mark.scenario(146, 155, 165)
@pytest.mark.parametrize("answer", [VERIFIED, MISSING])
def test_what_cannot_be_stored_is_looked_at_again_and_the_page_goes_on(
    stored: Story, sqlite: SqliteRepositories, answer: Evidence
) -> None:
    """The scan lease runs out; nothing was concluded."""

    def looks(context: EvidenceContext) -> Evidence:
        if context.idempotency_key == "dsp-1":
            sqlite.fail_next_commit(Fault.FULL)
        return answer

    unknown_publish(stored, 1, 2)
    counter = "deferred" if answer is MISSING else "verified_succeeded"
    counts = lookout(stored, Provider(looks)).counts()
    assert counts == {"scanned": 2, "claimed": 2, "unavailable": 1, counter: 1}
    found = stored.record(1)
    assert found.resolution is None
    assert (stored.status(1), stored.control(1).status, stored.control(1).finding_count) == (
        ExecutionStatus.EXECUTING,
        ControlStatus.LEASED,
        0,
    )
    stored.clocks.advance(32_000)
    assert "dsp-1" in stored.waits_for_recovery()
    again = lookout(stored, Provider(lambda _: answer)).counts()
    assert again[counter] == again["scanned"]


@pytest.mark.adr("0004", "5")
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.NOT_DONE])
@pytest.mark.parametrize("answer", [VERIFIED, MISSING])
def test_a_commit_that_says_nothing_is_repeated_and_counts_once(
    stored: Story, sqlite: SqliteRepositories, fault: Fault, answer: Evidence
) -> None:
    def looks(_context: EvidenceContext) -> Evidence:
        sqlite.fail_next_commit(fault)
        return answer

    unknown_publish(stored)
    counter = "deferred" if answer is MISSING else "verified_succeeded"
    sqlite.fail_next_commit(fault)
    assert lookout(stored, Provider(looks)).counts() == {**ONE_LOOK, counter: 1}
    assert stored.control().finding_count == 1


def test_a_stop_between_items_leaves_the_rest_where_it_was(story: Story) -> None:
    """W12: the flag is read before each item, and nothing was claimed ahead."""
    stop = threading.Event()

    def last(_context: EvidenceContext) -> Evidence:
        stop.set()
        return VERIFIED

    unknown_publish(story, 1, 2, 3)
    looking = lookout(story, Provider(last))
    done = looking.page(may_begin=lambda: not stop.is_set())
    assert done.stopped
    assert {name: n for name, n in done.counts.items() if n} == {
        "scanned": 3, "claimed": 1, "verified_succeeded": 1,
    }  # fmt: skip
    assert looking.recoveries.calls.count("claim") == 1
    assert story.waits_for_recovery() == ["dsp-2", "dsp-3"]


def test_a_stop_before_the_page_claims_nothing(story: Story) -> None:
    unknown_publish(story)
    before = story.repositories.snapshot()
    done = lookout(story, Provider(verified)).page(may_begin=lambda: False)
    assert (done.stopped, done.counts["scanned"], done.counts["claimed"]) == (True, 1, 0)
    assert story.repositories.snapshot() == before


@pytest.mark.scenario(208)
def test_a_damaged_row_is_skipped_and_counted(story: Story) -> None:
    """W9: it stays closed, and what follows it is settled."""
    unknown_publish(story, 1, 2, 3)
    story.repositories.damage("apr-2")
    provider = Provider(verified)
    assert lookout(story, provider).counts() == {
        "scanned": 3, "damaged": 1, "claimed": 2, "verified_succeeded": 2,
    }  # fmt: skip
    assert [context.idempotency_key for context in provider.asked] == ["dsp-1", "dsp-3"]


@pytest.mark.scenario(129)
def test_a_page_goes_on_where_the_last_one_ended(story: Story) -> None:
    unknown_publish(story, 1, 2, 3)
    looking = lookout(story, Provider(missing))
    first = looking.page(limit=2)
    assert (first.counts["deferred"], first.stopped) == (2, False)
    rest = looking.reconciler.reconcile_page(first.cursor, 2, lambda: True)
    assert (rest.counts["scanned"], rest.counts["deferred"], rest.cursor) == (1, 1, None)


@pytest.mark.adr("0033", "1.1")
@pytest.mark.adr("0033", "2.2")
@pytest.mark.scenario(128)
def test_what_a_dead_owner_left_behind_is_looked_at_in_the_next_boot(story: Story) -> None:
    unknown_publish(story)
    story.started(2)
    story.clocks.reboot()
    assert story.due() == []
    counts = lookout(story, Provider(missing)).counts()
    assert counts == {"scanned": 2, "claimed": 2, "deferred": 1, "manual_required": 1}
    for n in (1, 2):
        assert story.status(n) is ExecutionStatus.EXECUTING
    assert story.due() == []


def refused(_context: EvidenceContext) -> Evidence:
    raise RowDamagedError("row_damaged", "no")


@pytest.mark.parametrize("answer", [refused, lambda _: Evidence(Finding.CONFLICT, "other_proof")])
def test_no_way_out_of_a_look_executes_or_releases(
    story: Story, answer: Callable[[EvidenceContext], Evidence]
) -> None:
    """Whatever a provider does, the dispatch is never due again."""
    unknown_publish(story)
    lookout(story, Provider(answer)).page()
    assert story.status() is ExecutionStatus.EXECUTING
    story.clocks.advance(86_000_000)
    assert story.due() == []
