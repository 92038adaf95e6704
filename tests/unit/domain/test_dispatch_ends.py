"""The ways out of a dispatch: release, put back, complete, cancel, void."""

from typing import Any

import pytest

from qinglong_edge.domain import limits
from qinglong_edge.domain.backoff import retry_after_ms, waiting_retry_ms
from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.dispatch import (
    Answer,
    Complete,
    DispatchRefusal,
    PutBack,
    Release,
    cancel,
    claim,
    complete,
    put_back,
    release,
    start,
    void,
)
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.execution import Outcome, Progress
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from tests.support.builders import (
    FENCE,
    LEASE_MS,
    at,
    claim_command,
    control,
    dispatch,
    fence,
    progress,
    start_command,
    tick,
)
from tests.support.clock import WALL_MS

PENDING, LEASED, EXECUTING, RETRY_WAIT, SUCCEEDED, FAILED, BLOCKED = ExecutionStatus
FR, DRIFT = DispatchRefusal.FENCE_REJECTED, DispatchRefusal.MUTATION_DRIFT
L_MS = 1_000 + LEASE_MS
RETRY = Release("dsp-1", fence(1), "rel-1", "busy", 4_000)
GIVE_UP = RETRY._replace(retry_after_ms=None)
BACK = PutBack("dsp-1", fence(1))
DONE = Complete("dsp-1", fence(2), "done-1", Outcome.SUCCEEDED, "done")


def changed(answer: Answer) -> Progress:
    assert type(answer) is Changed
    return answer.after


@pytest.mark.scenario(100)
@pytest.mark.parametrize("ms", [2_000, L_MS, L_MS + 99_000])
def test_a_release_waits_for_its_retry_even_after_the_lease_ended(ms: int) -> None:
    before = progress(LEASED)
    after = changed(release(before, RETRY, at(ms)))
    assert after == Progress(
        before.execution._replace(
            status=RETRY_WAIT,
            version=2,
            eligible_tick=tick(ms + 4_000),
            lease=None,
            result_mutation_id="rel-1",
            last_result_code="busy",
            updated_at_ms=WALL_MS + ms,
        ),
        None,
    )
    assert release(after, RETRY, at(ms + 1)) == Replayed(after)


@pytest.mark.scenario(101)
@pytest.mark.parametrize(
    ("attempts", "most", "spend", "status", "counted"),
    [
        (4, 5, True, RETRY_WAIT, 4),
        (5, 5, True, BLOCKED, 5),
        (2, 2, True, BLOCKED, 2),
        (1, 5, False, RETRY_WAIT, 0),
        (5, 5, False, RETRY_WAIT, 4),
        (16, 16, True, BLOCKED, 16),
    ],
)
def test_a_release_blocks_when_the_budget_is_spent(
    attempts: int, most: int, *, spend: bool, status: ExecutionStatus, counted: int
) -> None:
    """An attempt that could not even look is given back (W10); upstream counts it."""
    before = progress(LEASED, attempt_count=attempts, max_attempts=most)
    event = RETRY._replace(spend=spend)
    after = changed(release(before, event, at(2_000)))
    assert (after.execution.status, after.execution.attempt_count) == (status, counted)
    assert (after.execution.eligible_tick is None) is (status is BLOCKED)
    assert release(after, event, at(2_001)) == Replayed(after)


@pytest.mark.scenario(102)
def test_a_release_without_a_retry_blocks_at_once() -> None:
    before = progress(LEASED)
    after = changed(release(before, GIVE_UP, at(2_000)))
    assert after == Progress(
        before.execution._replace(
            status=BLOCKED,
            version=2,
            eligible_tick=None,
            lease=None,
            result_mutation_id="rel-1",
            last_result_code="busy",
            completed_at_ms=WALL_MS + 2_000,
            updated_at_ms=WALL_MS + 2_000,
        ),
        None,
    )
    assert release(after, GIVE_UP, at(2_001)) == Replayed(after)


@pytest.mark.scenario(100, 102)
@pytest.mark.adr("0033", "6.2")
@pytest.mark.parametrize(
    ("first", "again"),
    [
        (RETRY, RETRY._replace(result_code="other")),
        (RETRY, GIVE_UP),
        (GIVE_UP, RETRY),
        (GIVE_UP, GIVE_UP._replace(result_code="other")),
    ],
)
def test_another_meaning_under_a_used_release_id_is_drift(first: Release, again: Release) -> None:
    after = changed(release(progress(LEASED), first, at(2_000)))
    assert release(after, again, at(2_001)) is DRIFT


@pytest.mark.scenario(104)
def test_a_used_release_id_under_another_version_is_no_replay() -> None:
    assert release(progress(RETRY_WAIT), RETRY._replace(fence=fence(5)), at(2_001)) is FR


@pytest.mark.scenario(102, 227)
@pytest.mark.adr("0002", "5")
def test_a_clock_behind_the_row_does_not_refuse_a_release() -> None:
    """Upstream refuses it and the lease must run out (W4); ours keeps the later stamp."""
    after = changed(release(progress(LEASED), RETRY, at(500)))
    assert after.execution.updated_at_ms == WALL_MS + 1_000


@pytest.mark.scenario(103)
@pytest.mark.adr("0033", "7.2")
def test_the_start_barrier_cannot_be_undone() -> None:
    before = progress(EXECUTING)
    for event in (RETRY._replace(fence=fence(2)), GIVE_UP._replace(fence=fence(2))):
        for ms in (2_500, L_MS):
            assert release(before, event, at(ms)) is DispatchRefusal.ALREADY_STARTED
    assert put_back(before, PutBack("dsp-1", fence(2)), at(2_500)) is FR


@pytest.mark.scenario(104)
@pytest.mark.parametrize(
    "change", [{"owner": "owner-2"}, {"token": "token-2"}, {"version": 0}, {"version": 2}]
)
def test_a_release_under_another_fence_is_refused(change: dict[str, Any]) -> None:
    event = RETRY._replace(fence=fence(1)._replace(**change))
    assert release(progress(LEASED), event, at(2_000)) is FR


@pytest.mark.scenario(104)
def test_a_release_after_a_takeover_is_refused() -> None:
    taken = changed(claim(dispatch(), progress(LEASED), claim_command(token="token-2"), at(L_MS)))
    assert release(taken, RETRY, at(L_MS)) is FR
    assert put_back(taken, BACK, at(L_MS)) is FR
    assert start(dispatch(), taken, start_command(), at(L_MS), policy=FENCE) is FR


@pytest.mark.adr("0005", "5")
@pytest.mark.parametrize(("attempts", "left"), [(1, 0), (2, 1), (5, 4)])
def test_an_unreached_item_is_due_again_and_gets_its_attempt_back(attempts: int, left: int) -> None:
    before = progress(LEASED, attempt_count=attempts)
    after = changed(put_back(before, BACK, at(2_000)))
    assert after == Progress(
        before.execution._replace(
            status=RETRY_WAIT,
            version=2,
            attempt_count=left,
            eligible_tick=tick(2_000),
            lease=None,
            result_mutation_id="put_back:1",
            last_result_code="not_reached",
            updated_at_ms=WALL_MS + 2_000,
        ),
        None,
    )
    assert put_back(after, BACK, at(2_001)) == Replayed(after)
    again = changed(claim(dispatch(), after, claim_command(), at(2_000)))
    assert again.execution.attempt_count == attempts


@pytest.mark.scenario(106, 107, 108, 109)
@pytest.mark.adr("0033", "1.5")
@pytest.mark.adr("0033", "5.7")
@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.SUCCEEDED, SUCCEEDED),
        (Outcome.FAILED, FAILED),
        (Outcome.INDETERMINATE, BLOCKED),
    ],
)
@pytest.mark.parametrize(
    "watch", [ControlStatus.ARMED, ControlStatus.LEASED, ControlStatus.MANUAL_REQUIRED]
)
@pytest.mark.parametrize("ms", [3_000, L_MS, L_MS * 99])
def test_a_completion_ends_execution_and_watch_together_whatever_the_lease_says(
    outcome: Outcome, status: ExecutionStatus, *, watch: ControlStatus, ms: int
) -> None:
    before = progress(EXECUTING, control(watch))
    event = DONE._replace(outcome=outcome)
    after = changed(complete(before, event, at(ms)))
    ended = WALL_MS + ms
    assert before.control is not None
    assert after.execution == before.execution._replace(
        status=status, version=3, lease=None, result_mutation_id="done-1",
        last_result_code="done", completed_at_ms=ended, updated_at_ms=ended,
    )  # fmt: skip
    assert after.control == before.control._replace(
        status=ControlStatus.RESOLVED, version=before.control.version + 1, execution_version=3,
        next_scan_tick=None, lease=None, resolution_mutation_id="done-1", updated_at_ms=ended,
    )  # fmt: skip
    assert complete(after, event, at(ms + 1)) == Replayed(after)
    refusal = claim(dispatch(), after, claim_command(), at(ms + 1))
    assert refusal is DispatchRefusal.ALREADY_TERMINAL


@pytest.mark.scenario(105)
@pytest.mark.adr("0033", "1.5")
@pytest.mark.parametrize(
    "change", [{"owner": "owner-2"}, {"token": "token-2"}, {"version": 1}, {"version": 3}]
)
def test_a_completion_under_another_fence_is_refused(change: dict[str, Any]) -> None:
    event = DONE._replace(fence=fence(2)._replace(**change))
    assert complete(progress(EXECUTING), event, at(3_000)) is FR


@pytest.mark.scenario(108)
@pytest.mark.adr("0033", "6.2")
@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"result_code": "other"}, DRIFT),
        ({"outcome": Outcome.FAILED}, DRIFT),
        ({"outcome": Outcome.INDETERMINATE}, DRIFT),
        ({"mutation_id": "done-2", "result_code": "x"}, DispatchRefusal.ALREADY_TERMINAL),
    ],
)
def test_the_first_verdict_wins(change: dict[str, Any], refusal: DispatchRefusal) -> None:
    before = progress(SUCCEEDED)
    assert complete(before, DONE._replace(**change), at(4_000)) is refusal


@pytest.mark.scenario(110)
@pytest.mark.adr("0002", "5")
def test_a_clock_behind_the_start_does_not_refuse_the_answer() -> None:
    """Upstream leaves it executing (W4); ours keeps the later stamp."""
    after = changed(complete(progress(EXECUTING), DONE, at(-3_000))).execution
    assert (after.status, after.completed_at_ms) == (SUCCEEDED, WALL_MS + 2_000)
    assert after.updated_at_ms == after.completed_at_ms


@pytest.mark.scenario(106, 156)
@pytest.mark.parametrize("status", [PENDING, LEASED, RETRY_WAIT, BLOCKED])
def test_what_did_not_start_cannot_be_completed(status: ExecutionStatus) -> None:
    before = progress(status)
    event = DONE._replace(fence=fence(before.execution.version))
    assert isinstance(complete(before, event, at(3_000)), DispatchRefusal)


@pytest.mark.parametrize("status", [PENDING, LEASED, RETRY_WAIT])
def test_a_dispatch_that_has_not_started_can_be_withdrawn(status: ExecutionStatus) -> None:
    """A live lease is no protection: the holder's start is refused afterwards (W20)."""
    before = progress(status)
    after = changed(cancel(before, "can-1", at(2_500)))
    assert after == Progress(
        before.execution._replace(
            status=BLOCKED,
            version=before.execution.version + 1,
            eligible_tick=None,
            lease=None,
            result_mutation_id="can-1",
            last_result_code="cancelled_before_start",
            completed_at_ms=WALL_MS + 2_500,
            updated_at_ms=WALL_MS + 2_500,
        ),
        None,
    )
    assert cancel(after, "can-1", at(2_600)) == Replayed(after)
    assert start(dispatch(), after, start_command(), at(2_600), policy=FENCE) is FR
    assert release(after, RETRY, at(2_600)) is FR


@pytest.mark.adr("0033", "7.2")
def test_a_started_or_ended_dispatch_cannot_be_withdrawn() -> None:
    for ms in (2_500, L_MS):
        answer = cancel(progress(EXECUTING), "can-1", at(ms))
        assert answer is DispatchRefusal.ALREADY_STARTED
    for status in (SUCCEEDED, FAILED, BLOCKED):
        answer = cancel(progress(status), "can-1", at(2_500))
        assert answer is DispatchRefusal.ALREADY_TERMINAL


@pytest.mark.parametrize("status", [PENDING, LEASED, RETRY_WAIT])
@pytest.mark.parametrize("code", ["start_deadline_passed", "restored_from_backup"])
def test_a_reset_past_blocks_what_has_not_started(status: ExecutionStatus, code: str) -> None:
    before = progress(status)
    after = void(before, code, at(2_500))
    run = after.execution
    assert (run.status, run.last_result_code, run.lease, run.eligible_tick) == (
        BLOCKED, code, None, None,
    )  # fmt: skip
    assert run.result_mutation_id == f"void:{before.execution.version}"
    assert (run.version, run.completed_at_ms) == (before.execution.version + 1, WALL_MS + 2_500)


@pytest.mark.parametrize("status", [EXECUTING, SUCCEEDED, FAILED, BLOCKED])
def test_a_reset_past_never_touches_what_has_started_or_ended(status: ExecutionStatus) -> None:
    with pytest.raises(InvariantBroken):
        void(progress(status), "restored_from_backup", at(2_500))


@pytest.mark.scenario(123)
@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 60), (16, 60), (10**30, 60)],
)
def test_a_spent_attempt_waits_twice_as_long_up_to_a_minute(attempts: int, seconds: int) -> None:
    assert retry_after_ms(attempts) == seconds * 1_000 <= limits.RETRY_MS_MAX


@pytest.mark.adr("0005", "9")
@pytest.mark.parametrize(
    ("age_ms", "wait_ms"),
    [
        (-1_000, 30_000),
        (0, 30_000),
        (60_001, 30_000),
        (60_002, 30_001),
        (1_199_999, 599_999),
        (1_200_000, 600_000),
        (10**9, 600_000),
    ],
)
def test_what_is_not_there_yet_is_asked_for_after_half_its_age_within_bounds(
    age_ms: int, wait_ms: int
) -> None:
    """Upstream spends an attempt on it within seconds (W10)."""
    assert waiting_retry_ms(dispatch(), WALL_MS + age_ms) == wait_ms
