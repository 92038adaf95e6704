"""What looking for evidence found, and what each finding leads to."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.backoff import next_scan_ms
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.evidence import (
    VERIFIED,
    Answer,
    Evidence,
    Observe,
    claim,
    counted,
    holds,
    observe,
    scan_fence_of,
)
from qinglong_edge.domain.execution import Progress
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.recovery import Control, Finding, Observation, RecoveryRefusal
from qinglong_edge.domain.tick import Now
from tests.support.builders import at, control, progress, tick
from tests.support.clock import WALL_MS
from tests.support.recovering import (
    CONFLICT,
    MISSING,
    PROOF,
    case,
    claim_scan,
    observe_command,
    scan_fence,
)

ARMED, LEASED, MANUAL_REQUIRED, RESOLVED = ControlStatus
EXECUTING = ExecutionStatus.EXECUTING
FR, DRIFT = RecoveryRefusal.FENCE_REJECTED, RecoveryRefusal.MUTATION_DRIFT
LATER_FINDINGS = sorted(set(Finding) - VERIFIED - {Finding.CONFLICT, Finding.UNSUPPORTED})


def leased(**changes: Any) -> Progress:
    return case(LEASED, **changes).progress


def changed(answer: Answer) -> Progress:
    assert type(answer) is Changed
    return answer.after


def watch_of(answer: Answer) -> Control:
    after = changed(answer)
    assert after.control is not None
    return after.control


@pytest.mark.scenario(133, 136)
@pytest.mark.adr("0033", "5.4")
@pytest.mark.parametrize("finding", LATER_FINDINGS)
@pytest.mark.parametrize("digest", [None, PROOF])
def test_a_finding_counts_and_is_looked_at_again_later(
    finding: Finding, digest: str | None
) -> None:
    assert LATER_FINDINGS == ["missing", "still_running", "unavailable"]
    before = leased()
    event = observe_command(evidence=Evidence(finding, "seen", digest))
    after = changed(observe(before, event, at(50_000)))
    assert after.execution is before.execution
    assert before.control is not None
    assert after.control == before.control._replace(
        status=ARMED,
        version=2,
        next_scan_tick=tick(55_000),
        lease=None,
        finding_count=1,
        last=Observation("see-1", finding, "seen", digest),
        updated_at_ms=WALL_MS + 50_000,
    )
    again = claim_scan(token="probe-2")
    assert claim(after, again, at(54_999)) is RecoveryRefusal.NOT_DUE
    assert isinstance(claim(after, again, at(55_000)), Changed)


@pytest.mark.scenario(134, 135)
@pytest.mark.adr("0033", "5.6")
@pytest.mark.parametrize("finding", [Finding.CONFLICT, Finding.UNSUPPORTED])
@pytest.mark.parametrize("count", [0, 14, 15, 16])
def test_what_contradicts_itself_or_cannot_be_looked_at_goes_to_a_person(
    finding: Finding, count: int
) -> None:
    """Under its own code, and the outcome stays as unknown as it was."""
    before = leased(finding_count=count)
    event = observe_command(evidence=Evidence(finding, "seen"))
    after = changed(observe(before, event, at(50_000)))
    assert after.execution is before.execution
    assert after.execution.status is EXECUTING
    watch = after.control
    assert watch is not None
    assert (watch.status, watch.next_scan_tick, watch.lease) == (MANUAL_REQUIRED, None, None)
    assert watch.last == Observation("see-1", finding, "seen", None)
    assert watch.finding_count == count + 1
    refusal = claim(after, claim_scan(), at(10**9, epoch=7))
    assert refusal is RecoveryRefusal.MANUAL_REQUIRED


@pytest.mark.adr("0009", "2")
@pytest.mark.scenario(164)
@pytest.mark.adr("0033", "5.4")
@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        *enumerate([5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 5_120, 10_240, 20_480], 1),
        (14, 21_600),
        (15, 21_600),
    ],
)
def test_looking_waits_twice_as_long_each_time_up_to_six_hours(count: int, seconds: int) -> None:
    """Upstream asks every five minutes for ever (W6)."""
    after = watch_of(observe(leased(finding_count=count - 1), observe_command(), at(50_000)))
    assert (after.status, after.finding_count) == (ARMED, count)
    assert after.next_scan_tick == tick(50_000 + seconds * 1_000)
    assert next_scan_ms(count) == seconds * 1_000


@pytest.mark.parametrize(("count", "wait_ms"), [(-1, 5_000), (0, 5_000), (10**30, 21_600_000)])
def test_a_wait_stays_within_its_bounds_whatever_was_counted(count: int, wait_ms: int) -> None:
    assert next_scan_ms(count) == wait_ms


@pytest.mark.adr("0009", "2")
@pytest.mark.scenario(164)
@pytest.mark.adr("0033", "5.4")
@pytest.mark.parametrize("finding", LATER_FINDINGS)
def test_after_the_sixteenth_finding_a_person_is_asked(finding: Finding) -> None:
    before = leased(finding_count=limits.FINDINGS_MAX - 1)
    event = observe_command(evidence=Evidence(finding, "seen", PROOF))
    answer = observe(before, event, at(50_000))
    after = watch_of(answer)
    exhausted = "recovery_evidence_exhausted"
    assert (after.status, after.next_scan_tick) == (MANUAL_REQUIRED, None)
    assert (after.finding_count, after.lease) == (16, None)
    assert after.last == Observation("see-1", finding, exhausted, PROOF)
    assert observe(changed(answer), event, at(50_001)) == Replayed(changed(answer))


@pytest.mark.scenario(164)
def test_a_provider_s_own_words_exhaust_nothing() -> None:
    evidence = Evidence(Finding.MISSING, "recovery_evidence_exhausted")
    after = watch_of(observe(leased(), observe_command(evidence=evidence), at(50_000)))
    assert (after.status, after.finding_count) == (ARMED, 1)


def test_a_count_saturates() -> None:
    assert counted(control(finding_count=0)) == 1
    assert counted(control(finding_count=limits.VERSION_MAX - 1)) == limits.VERSION_MAX
    assert counted(control(finding_count=limits.VERSION_MAX)) == limits.VERSION_MAX


@pytest.mark.adr("0009", "2")
@pytest.mark.scenario(133, 140)
@pytest.mark.adr("0033", "6.2")
@pytest.mark.parametrize("evidence", [MISSING, MISSING._replace(evidence_digest=PROOF), CONFLICT])
def test_a_repeated_finding_is_a_replay_and_another_meaning_under_its_id_is_drift(
    evidence: Evidence,
) -> None:
    """By meaning, at any time, whoever holds what (W16); upstream compares the millisecond."""
    event = observe_command(evidence=evidence)
    after = changed(observe(leased(), event, at(50_000)))
    for now in (at(50_001), at(10**9), at(0, epoch=2)):
        assert observe(after, event, now) == Replayed(after)
    for change in (
        {"finding": Finding.UNAVAILABLE},
        {"result_code": "other"},
        {"evidence_digest": "b" * 64},
    ):
        other = event._replace(evidence=evidence._replace(**change))
        assert observe(after, other, at(50_001)) is DRIFT
    assert observe(after, event._replace(mutation_id="see-2"), at(50_001)) is FR


@pytest.mark.scenario(133)
@pytest.mark.adr("0033", "6.2")
def test_a_finding_stays_known_while_others_look_again() -> None:
    after = changed(observe(leased(), observe_command(), at(50_000)))
    taken = changed(claim(after, claim_scan(token="probe-2"), at(55_000)))
    assert observe(taken, observe_command(), at(55_001)) == Replayed(taken)
    fresh = Observe("dsp-1", scan_fence(3, token="probe-2"), "see-2", MISSING)
    second = watch_of(observe(taken, fresh, at(55_001)))
    assert (second.finding_count, second.next_scan_tick) == (2, tick(65_001))


@pytest.mark.scenario(133)
def test_without_a_watch_there_is_nothing_to_say() -> None:
    before = progress(ExecutionStatus.LEASED)
    assert observe(before, observe_command(), at(50_000)) is RecoveryRefusal.NOT_FOUND
    assert scan_fence_of(before) is None
    assert not holds(before, scan_fence())


@pytest.mark.scenario(227)
@pytest.mark.parametrize(("now", "stamp"), [(at(60_000), 60_000), (at(40_000, wall_ms=0), 2_000)])
def test_no_stamp_of_a_finding_goes_back(now: Now, stamp: int) -> None:
    after = watch_of(observe(leased(), observe_command(), now))
    assert after.updated_at_ms == WALL_MS + stamp
    assert after.created_at_ms == WALL_MS + 2_000
