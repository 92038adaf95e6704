from collections.abc import Callable
from typing import Any

import pytest

from qinglong_edge.domain.decisions import Changed, Replayed
from qinglong_edge.domain.dispatch import (
    Answer,
    Complete,
    DispatchRefusal,
    Expire,
    PutBack,
    Renew,
    Start,
    claim,
    complete,
    expire,
    put_back,
    renew,
    start,
)
from qinglong_edge.domain.errors import InvariantBroken
from qinglong_edge.domain.execution import Outcome, Progress
from qinglong_edge.domain.lease import Lease
from qinglong_edge.domain.machines import ControlStatus, ExecutionStatus
from qinglong_edge.domain.policy import PolicyFence
from qinglong_edge.domain.tick import Now
from tests.support.builders import (
    FENCE,
    HOUR_MS,
    LEASE_MS,
    at,
    claim_command,
    control,
    dispatch,
    execution,
    fence,
    progress,
    start_command,
    tick,
)
from tests.support.clock import BOOT_MS, WALL_MS

Ask = Callable[[], Answer]
PENDING, LEASED, EXECUTING, RETRY_WAIT, SUCCEEDED, FAILED, BLOCKED = ExecutionStatus
L_MS = 1_000 + LEASE_MS  # the end of the builders' lease
D_MS = HOUR_MS  # the start deadline of the builders' dispatch


def changed(answer: Answer) -> Progress:
    assert type(answer) is Changed
    return answer.after


@pytest.mark.scenario(56, 77, 78, 80)
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (progress(PENDING), at(0)),
        (progress(PENDING), at(1_000)),
        (progress(RETRY_WAIT), at(3_000)),
        (progress(LEASED), at(L_MS)),
        (progress(LEASED), at(-BOOT_MS, epoch=2)),
        (progress(RETRY_WAIT, eligible_tick=tick(10**9)), at(0, epoch=2)),
    ],
)
def test_a_due_dispatch_is_leased(before: Progress, now: Now) -> None:
    """The last code stays until it is replaced; upstream clears it (W27)."""
    event = claim_command(owner="owner-2", token="token-2")
    after = changed(claim(dispatch(), before, event, now))
    was = before.execution
    assert after.control is None
    assert after.execution == was._replace(
        status=LEASED,
        version=was.version + 1,
        attempt_count=was.attempt_count + 1,
        eligible_tick=now.tick + LEASE_MS,
        lease=Lease("owner-2", "token-2", now.tick, now.tick + LEASE_MS),
        result_mutation_id=None,
        updated_at_ms=max(was.updated_at_ms, now.at_ms),
    )


@pytest.mark.scenario(77, 78, 79, 80, 82, 83, 106, 107)
@pytest.mark.adr("0033", "1.3")
@pytest.mark.parametrize(
    ("before", "event", "now", "refusal"),
    [
        (progress(PENDING), {}, at(-1), DispatchRefusal.NOT_DUE),
        (progress(PENDING, eligible_tick=None), {}, at(0), DispatchRefusal.NOT_DUE),
        (progress(RETRY_WAIT), {}, at(2_999), DispatchRefusal.NOT_DUE),
        (progress(LEASED), {"token": "token-2"}, at(L_MS - 1), DispatchRefusal.LEASED),
        (progress(LEASED), {"owner": "owner-2"}, at(L_MS - 1), DispatchRefusal.LEASED),
        (progress(EXECUTING), {}, at(L_MS - 1), DispatchRefusal.EXECUTING),
        (progress(EXECUTING), {}, at(L_MS), DispatchRefusal.RECOVERY_REQUIRED),
        (progress(EXECUTING), {}, at(0, epoch=2), DispatchRefusal.RECOVERY_REQUIRED),
        (progress(EXECUTING), {}, at(D_MS * 99), DispatchRefusal.RECOVERY_REQUIRED),
        (progress(SUCCEEDED), {}, at(L_MS), DispatchRefusal.ALREADY_TERMINAL),
        (progress(FAILED), {}, at(L_MS), DispatchRefusal.ALREADY_TERMINAL),
        (progress(BLOCKED), {}, at(L_MS), DispatchRefusal.ALREADY_TERMINAL),
    ],
)
def test_a_dispatch_that_is_not_due_is_not_leased(
    before: Progress, event: dict[str, Any], *, now: Now, refusal: DispatchRefusal
) -> None:
    assert claim(dispatch(), before, claim_command(**event), now) is refusal


@pytest.mark.scenario(77, 79)
def test_a_holder_that_asks_again_is_answered_until_its_lease_ends() -> None:
    before = progress(LEASED)
    assert claim(dispatch(), before, claim_command(), at(L_MS - 1)) == Replayed(before)
    again = changed(claim(dispatch(), before, claim_command(), at(L_MS)))
    assert (again.execution.version, again.execution.attempt_count) == (2, 2)


BLOCKING_CLAIMS = [
    (progress(LEASED, attempt_count=5), at(L_MS), "exhausted:1", "attempt_budget_exhausted"),
    (progress(RETRY_WAIT, attempt_count=5), at(L_MS), "exhausted:2", "attempt_budget_exhausted"),
    (progress(PENDING), at(D_MS), "claim:0", "start_deadline_passed"),
    (progress(LEASED), at(D_MS), "claim:1", "start_deadline_passed"),
    (progress(LEASED, attempt_count=5), at(D_MS), "claim:1", "start_deadline_passed"),
    (progress(RETRY_WAIT), at(5_000, wall_ms=WALL_MS + D_MS), "claim:2", "start_deadline_passed"),
]


@pytest.mark.scenario(81)
@pytest.mark.parametrize(("before", "now", "mutation_id", "code"), BLOCKING_CLAIMS)
def test_a_claim_blocks_what_may_never_start(
    before: Progress, now: Now, *, mutation_id: str, code: str
) -> None:
    """The start deadline is ours (W2); upstream knows the spent budget only."""
    after = changed(claim(dispatch(), before, claim_command(token="token-2"), now))
    assert after.control is None
    assert after.execution == before.execution._replace(
        status=BLOCKED,
        version=before.execution.version + 1,
        eligible_tick=None,
        lease=None,
        result_mutation_id=mutation_id,
        last_result_code=code,
        completed_at_ms=now.at_ms,
        updated_at_ms=now.at_ms,
    )


@pytest.mark.scenario(88, 91)
@pytest.mark.adr("0033", "5.1")
@pytest.mark.parametrize("ms", [1_000, L_MS - 1])
def test_the_barrier_arms_recovery_in_the_same_change(ms: int) -> None:
    before = progress(LEASED)
    after = changed(start(dispatch(), before, start_command(), at(ms), policy=FENCE))
    started = WALL_MS + ms
    assert after.execution == before.execution._replace(
        status=EXECUTING, version=2, eligible_tick=None, started_at_ms=started,
        updated_at_ms=started,
    )  # fmt: skip
    assert after.control == control(created_at_ms=started, updated_at_ms=started)
    assert after.control is not None
    assert after.control.next_scan_tick == tick(L_MS)


def test_the_watch_of_a_row_without_a_due_time_is_looked_at_once() -> None:
    before = progress(LEASED, eligible_tick=None)
    after = changed(start(dispatch(), before, start_command(), at(2_000), policy=FENCE))
    assert after.control is not None
    assert after.control.next_scan_tick == tick(2_000)


FR, BC = DispatchRefusal.FENCE_REJECTED, DispatchRefusal.BINDING_CONFLICT


@pytest.mark.scenario(86, 87)
@pytest.mark.parametrize(
    ("change", "ms", "refusal"),
    [
        ({"action_digest": "0" * 64}, 2_000, BC),
        ({"approval_request_id": "apr-2"}, 2_000, BC),
        ({"action_digest": "0" * 64, "fence": fence(9)}, L_MS, BC),
        ({"fence": fence(owner="owner-2")}, 2_000, FR),
        ({"fence": fence(token="token-2")}, 2_000, FR),
        ({"fence": fence(0)}, 2_000, FR),
        ({"fence": fence(2)}, 2_000, FR),
        ({}, L_MS, FR),
    ],
)
def test_the_barrier_is_passed_only_under_the_held_fence_by_this_very_action(
    change: dict[str, Any], ms: int, refusal: DispatchRefusal
) -> None:
    answer = start(dispatch(), progress(LEASED), start_command(**change), at(ms), policy=FENCE)
    assert answer is refusal


@pytest.mark.scenario(90, 103)
@pytest.mark.adr("0033", "7.2")
@pytest.mark.parametrize("status", [PENDING, RETRY_WAIT, SUCCEEDED, FAILED, BLOCKED])
def test_no_other_state_passes_the_barrier(status: ExecutionStatus) -> None:
    assert start(dispatch(), progress(status), start_command(), at(2_000), policy=FENCE) is FR


@pytest.mark.adr("0005", "2")
@pytest.mark.parametrize(
    ("policy", "ms", "code"),
    [
        (FENCE, D_MS, "start_deadline_passed"),
        (PolicyFence(9, 9), D_MS, "start_deadline_passed"),
        (PolicyFence(2, 1), 2_000, "policy_fence_changed"),
        (PolicyFence(1, 2), 2_000, "policy_fence_changed"),
        (PolicyFence(1, None), 2_000, "policy_fence_changed"),
    ],
)
def test_the_last_look_blocks_what_lost_its_authority(
    policy: PolicyFence, ms: int, code: str
) -> None:
    """Deadline and policy are looked at behind the barrier's own lock (W2)."""
    before = progress(LEASED, lease=Lease("owner-1", "token-1", tick(0), tick(D_MS * 2)))
    after = changed(start(dispatch(), before, start_command(), at(ms), policy=policy))
    run = after.execution
    assert (run.status, run.version, run.started_at_ms, after.control) == (BLOCKED, 2, None, None)
    assert (run.result_mutation_id, run.last_result_code) == ("start:1", code)
    assert (run.completed_at_ms, run.updated_at_ms) == (WALL_MS + ms, WALL_MS + ms)
    assert start(dispatch(), after, start_command(), at(ms), policy=FENCE) == Replayed(after)


@pytest.mark.scenario(89, 90)
@pytest.mark.adr("0002", "6")
def test_an_identical_start_is_a_replay_until_the_execution_moves_on() -> None:
    """A later clock is no other meaning; upstream refuses a repeat with another time."""
    before = progress(EXECUTING)
    for ms in (2_000, 2_001, L_MS + 1):
        assert start(dispatch(), before, start_command(), at(ms), policy=FENCE) == Replayed(before)
    renewed = changed(renew(before, Renew("dsp-1", fence(2), LEASE_MS), at(2_500)))
    for event in (start_command(), start_command(fence=fence(1, token="token-2"))):
        assert start(dispatch(), renewed, event, at(2_600), policy=FENCE) is FR


@pytest.mark.scenario(90)
def test_a_fresh_watch_beside_what_does_not_execute_is_no_start() -> None:
    before = Progress(execution(LEASED, version=2), control())
    assert start(dispatch(), before, start_command(), at(2_500), policy=FENCE) is FR


@pytest.mark.scenario(95)
def test_a_leased_execution_is_renewed_with_its_due_time() -> None:
    before = progress(LEASED)
    event = Renew("dsp-1", fence(1), LEASE_MS)
    after = changed(renew(before, event, at(5_000)))
    assert renew(after, event, at(5_001)) == Replayed(after)
    expires = tick(5_000 + LEASE_MS)
    assert after == Progress(
        before.execution._replace(
            version=2,
            eligible_tick=expires,
            lease=Lease("owner-1", "token-1", tick(5_000), expires),
            updated_at_ms=WALL_MS + 5_000,
        ),
        None,
    )


@pytest.mark.scenario(94, 97)
@pytest.mark.adr("0033", "5.8")
@pytest.mark.parametrize("ms", [5_000, L_MS, L_MS + 99_000])
def test_an_executing_renewal_moves_the_watch_with_it(ms: int) -> None:
    before = progress(EXECUTING)
    after = changed(renew(before, Renew("dsp-1", fence(2), LEASE_MS), at(ms)))
    expires = tick(ms + LEASE_MS)
    assert after.execution == before.execution._replace(
        version=3,
        lease=Lease("owner-1", "token-1", tick(ms), expires),
        updated_at_ms=WALL_MS + ms,
    )
    assert after.control == control(
        version=1, execution_version=3, next_scan_tick=expires, updated_at_ms=WALL_MS + ms
    )


@pytest.mark.scenario(95, 98)
def test_a_renewal_never_shortens_and_its_repeat_is_a_replay() -> None:
    """Upstream may shorten a lease and refuses the repeat (W28)."""
    event = Renew("dsp-1", fence(2), 1)
    after = changed(renew(progress(EXECUTING), event, at(5_000)))
    assert after.execution.lease is not None
    assert after.execution.lease.expires_tick == tick(L_MS)
    assert renew(after, event, at(5_001)) == Replayed(after)


@pytest.mark.scenario(95, 98)
@pytest.mark.parametrize("status", [LEASED, EXECUTING])
def test_a_repeated_renewal_that_asks_for_more_is_no_replay(status: ExecutionStatus) -> None:
    before = progress(status)
    event = Renew("dsp-1", fence(before.execution.version), LEASE_MS)
    after = changed(renew(before, event, at(5_000)))
    for lease_ms in (1, LEASE_MS):
        assert renew(after, event._replace(lease_ms=lease_ms), at(5_001)) == Replayed(after)
    assert renew(after, event._replace(lease_ms=LEASE_MS + 1), at(5_001)) is FR


@pytest.mark.scenario(96, 105)
@pytest.mark.parametrize("status", [LEASED, EXECUTING])
@pytest.mark.parametrize("change", [{"owner": "owner-2"}, {"token": "token-2"}, {"version": 9}])
def test_only_the_fence_speaks_for_a_lease(status: ExecutionStatus, change: dict[str, Any]) -> None:
    before = progress(status)
    foreign = fence(before.execution.version)._replace(**change)
    done = Complete("dsp-1", foreign, "done-1", Outcome.SUCCEEDED, "done")
    assert renew(before, Renew("dsp-1", foreign, LEASE_MS), at(5_000)) is FR
    assert expire(before, Expire("dsp-1", foreign), at(5_000)) is FR
    assert put_back(before, PutBack("dsp-1", foreign), at(5_000)) is FR
    assert complete(before, done, at(5_000)) is FR


def renewed() -> Progress:
    return changed(renew(progress(EXECUTING), Renew("dsp-1", fence(2), LEASE_MS), at(5_000)))


def expired() -> Progress:
    return changed(expire(progress(EXECUTING), Expire("dsp-1", fence(2)), at(5_000)))


@pytest.mark.scenario(90, 96)
@pytest.mark.parametrize(
    ("before", "event"),
    [
        (renewed(), Expire("dsp-1", fence(2))),
        (expired(), Renew("dsp-1", fence(2), LEASE_MS)),
        (progress(EXECUTING), Renew("dsp-1", fence(1), LEASE_MS)),
        (progress(EXECUTING), Expire("dsp-1", fence(1))),
        (renewed(), start_command(fence=fence(2))),
        (expired(), start_command(fence=fence(2))),
    ],
    ids=[
        "expire after a renewal",
        "renew after an expiry",
        "renew after the start",
        "expire after the start",
        "start after a renewal",
        "start after an expiry",
    ],
)
def test_what_another_event_did_is_no_replay_of_this_one(
    before: Progress, event: Expire | Renew | Start
) -> None:
    """`Replayed` says that this very event was applied; one version behind does not prove it."""
    if isinstance(event, Expire):
        assert expire(before, event, at(6_000)) is FR
    elif isinstance(event, Renew):
        assert renew(before, event, at(6_000)) is FR
    else:
        assert start(dispatch(), before, event, at(6_000), policy=FENCE) is FR


@pytest.mark.scenario(116)
@pytest.mark.parametrize("status", [ControlStatus.ARMED, ControlStatus.LEASED])
def test_no_answer_hands_the_outcome_to_recovery_at_once(status: ControlStatus) -> None:
    """Upstream blocks an execution whose handler raised; ours lets evidence decide (W1)."""
    before = progress(EXECUTING, control(status))
    event = Expire("dsp-1", fence(2))
    after = changed(expire(before, event, at(5_000)))
    watch, was = after.control, before.control
    assert watch is not None
    assert was is not None
    lease = after.execution.lease
    assert lease == Lease("owner-1", "token-1", tick(5_000), tick(5_000))
    assert (after.execution.status, after.execution.version) == (EXECUTING, 3)
    assert watch == was._replace(
        status=ControlStatus.ARMED,
        version=was.version + 1,
        execution_version=3,
        next_scan_tick=tick(5_000),
        lease=None,
        updated_at_ms=WALL_MS + 5_000,
    )
    assert claim(dispatch(), after, claim_command(), at(5_000)) is DispatchRefusal.RECOVERY_REQUIRED
    assert expire(after, event, at(5_001)) == Replayed(after)
    late = Complete("dsp-1", fence(3), "done-1", Outcome.SUCCEEDED, "done")
    assert changed(complete(after, late, at(9_000))).execution.status is SUCCEEDED


def ask_each_watched_verb(before: Progress) -> dict[str, Answer | InvariantBroken]:
    done = Complete("dsp-1", fence(2), "done-1", Outcome.SUCCEEDED, "done")
    asked: dict[str, Ask] = {
        "renew": lambda: renew(before, Renew("dsp-1", fence(2), LEASE_MS), at(5_000)),
        "expire": lambda: expire(before, Expire("dsp-1", fence(2)), at(5_000)),
        "complete": lambda: complete(before, done, at(5_000)),
    }
    answers: dict[str, Answer | InvariantBroken] = {}
    for verb, ask in asked.items():
        try:
            answers[verb] = ask()
        except InvariantBroken as error:
            answers[verb] = error
    return answers


@pytest.mark.scenario(99)
@pytest.mark.parametrize("verb", ["renew", "expire", "complete"])
def test_an_execution_without_its_watch_is_damage_and_does_not_change(verb: str) -> None:
    answer = ask_each_watched_verb(Progress(execution(EXECUTING), None))[verb]
    assert isinstance(answer, DispatchRefusal | InvariantBroken)
