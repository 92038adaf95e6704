import pytest

from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.machines import ControlStatus
from qinglong_edge.domain.recovery import Control, Finding, Observation, arm, close, rearm
from tests.support.builders import LEASE_MS, control, tick
from tests.support.clock import WALL_MS

ARMED, LEASED, MANUAL_REQUIRED, RESOLVED = ControlStatus
SEEN = Observation("find-1", Finding.MISSING, "nothing_yet", None)
NEXT = tick(99_000)


@pytest.mark.scenario(91)
@pytest.mark.adr("0033", "5.1")
def test_the_barrier_arms_a_fresh_watch() -> None:
    armed = arm(2, tick(1_000 + LEASE_MS), WALL_MS + 2_000)
    assert armed == control(ARMED)
    assert (armed.version, armed.finding_count, armed.last, armed.lease) == (0, 0, None, None)


@pytest.mark.scenario(97, 98)
@pytest.mark.adr("0033", "5.8")
@pytest.mark.parametrize(
    ("status", "after", "scan"),
    [(ARMED, ARMED, NEXT), (LEASED, ARMED, NEXT), (MANUAL_REQUIRED, MANUAL_REQUIRED, None)],
)
def test_the_watch_follows_the_new_lease_and_keeps_its_findings(
    status: ControlStatus, after: ControlStatus, scan: int | None
) -> None:
    """The manual queue keeps what it has (W28); upstream arms it again."""
    before = control(status, finding_count=3, last=SEEN)
    assert rearm(before, 3, NEXT, WALL_MS + 9_000) == before._replace(
        status=after,
        version=before.version + 1,
        execution_version=3,
        next_scan_tick=scan,
        lease=None,
        updated_at_ms=WALL_MS + 9_000,
    )


@pytest.mark.scenario(109)
@pytest.mark.adr("0033", "5.7")
@pytest.mark.parametrize("status", [ARMED, LEASED, MANUAL_REQUIRED])
def test_the_first_verdict_closes_the_watch_under_its_mutation(status: ControlStatus) -> None:
    before = control(status, finding_count=3, last=SEEN)
    assert close(before, 3, "done-1", WALL_MS + 9_000) == before._replace(
        status=RESOLVED,
        version=before.version + 1,
        execution_version=3,
        next_scan_tick=None,
        lease=None,
        resolution_mutation_id="done-1",
        updated_at_ms=WALL_MS + 9_000,
    )


@pytest.mark.adr("0033", "7.2")
def test_a_closed_watch_stays_closed() -> None:
    before = control(RESOLVED)
    with pytest.raises(InvariantBroken):
        rearm(before, 4, NEXT, WALL_MS)
    with pytest.raises(InvariantBroken):
        close(before, 4, "done-2", WALL_MS)
    assert before == control(RESOLVED)


@pytest.mark.scenario(227)
@pytest.mark.adr("0002", "5")
@pytest.mark.parametrize("status", [ARMED, LEASED, MANUAL_REQUIRED])
def test_no_stamp_of_the_watch_goes_back(status: ControlStatus) -> None:
    before = control(status)
    values: list[Control] = [rearm(before, 3, NEXT, 0), close(before, 3, "done-1", 0)]
    for value in values:
        assert value.updated_at_ms == before.updated_at_ms
        assert value.created_at_ms == before.created_at_ms


def test_evidence_has_seven_findings_and_two_of_them_are_verdicts() -> None:
    assert {finding.value for finding in Finding} == {
        "verified_succeeded", "verified_failed", "still_running", "missing", "conflict",
        "unsupported", "unavailable",
    }  # fmt: skip
